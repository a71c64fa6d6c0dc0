// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/sharing"
)

// domain is that of reasons in google.rpc.ErrorInfo.
const domain = "sluice"

var codes = map[sharing.Code]connect.Code{
	sharing.InvalidArgument:    connect.CodeInvalidArgument,
	sharing.NotFound:           connect.CodeNotFound,
	sharing.AlreadyExists:      connect.CodeAlreadyExists,
	sharing.FailedPrecondition: connect.CodeFailedPrecondition,
	sharing.Aborted:            connect.CodeAborted,
	sharing.PermissionDenied:   connect.CodePermissionDenied,
	sharing.ResourceExhausted:  connect.CodeResourceExhausted,
	sharing.Unavailable:        connect.CodeUnavailable,
	sharing.Unknown:            connect.CodeUnknown,
	sharing.Internal:           connect.CodeInternal,
}

// wireError turns an error into what the caller gets. What has no meaning for
// the caller is logged, and says nothing.
func (s *server) wireError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var wire *connect.Error
	if errors.As(err, &wire) {
		return err
	}
	var e *sharing.Error
	var c *catalog.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return connect.NewError(connect.CodeCanceled, errors.New("the request was given up"))
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the request took longer than it may"))
	case errors.As(err, &c) && c.Reason == catalog.Unavailable, errors.Is(err, catalog.ErrUnavailable):
		e = &sharing.Error{Code: sharing.Unavailable, Reason: "STORE_UNAVAILABLE", Message: "The store is not available", Next: "try again", Cause: err}
	default:
		e = &sharing.Error{Code: sharing.Internal, Reason: "INTERNAL", Message: "Internal error", Cause: err}
	}
	if e.Code == sharing.Internal || e.Code == sharing.Unavailable || e.Code == sharing.Unknown {
		s.log.ErrorContext(ctx, "administration", "error", err, "request_id", who(ctx).requestID)
	}
	return connectError(e)
}

func connectError(e *sharing.Error) *connect.Error {
	out := connect.NewError(codes[e.Code], errors.New(e.Message))
	info := &errdetails.ErrorInfo{Reason: e.Reason, Domain: domain}
	if e.Next != "" {
		info.Metadata = map[string]string{"next_step": e.Next}
	}
	if d, err := connect.NewErrorDetail(info); err == nil {
		out.AddDetail(d)
	}
	return out
}
