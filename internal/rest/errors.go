// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
)

// wire is status and exception of each reason; the names are those that Java
// clients map.
var wire = map[catalog.Reason]struct {
	status int
	kind   string
}{
	catalog.Internal:           {http.StatusInternalServerError, "InternalServerError"},
	catalog.BadRequest:         {http.StatusBadRequest, "BadRequestException"},
	catalog.InvalidArgument:    {http.StatusBadRequest, "IllegalArgumentException"},
	catalog.NotAuthenticated:   {http.StatusUnauthorized, "NotAuthorizedException"},
	catalog.Forbidden:          {http.StatusForbidden, "ForbiddenException"},
	catalog.NoSuchWarehouse:    {http.StatusNotFound, "NoSuchWarehouseException"},
	catalog.NoSuchNamespace:    {http.StatusNotFound, "NoSuchNamespaceException"},
	catalog.NoSuchTable:        {http.StatusNotFound, "NoSuchTableException"},
	catalog.NoSuchView:         {http.StatusNotFound, "NoSuchViewException"},
	catalog.NoSuchFunction:     {http.StatusNotFound, "NoSuchFunctionException"},
	catalog.NotFound:           {http.StatusNotFound, "NotFoundException"},
	catalog.Unsupported:        {http.StatusNotAcceptable, "UnsupportedOperationException"},
	catalog.AlreadyExists:      {http.StatusConflict, "AlreadyExistsException"},
	catalog.NamespaceNotEmpty:  {http.StatusConflict, "NamespaceNotEmptyException"},
	catalog.CommitFailed:       {http.StatusConflict, "CommitFailedException"},
	catalog.TooLarge:           {http.StatusRequestEntityTooLarge, "RequestTooLargeException"},
	catalog.Unprocessable:      {http.StatusUnprocessableEntity, "UnprocessableEntityException"},
	catalog.TooManyRequests:    {http.StatusTooManyRequests, "TooManyRequestsException"},
	catalog.CommitStateUnknown: {http.StatusInternalServerError, "CommitStateUnknownException"},
	catalog.Unavailable:        {http.StatusServiceUnavailable, "ServiceUnavailableException"},
}

// statusError is a failure of HTTP itself, which package catalog knows
// nothing of.
type statusError struct {
	status        int
	kind, message string
}

func (e *statusError) Error() string { return e.message }

// wireError is what a client is told.
type wireError struct {
	status     int
	kind       string
	message    string
	retryAfter time.Duration
	header     [2]string // one more header, name and value
}

// toWire turns any error into what a client is told. What has no meaning for
// a client becomes a 500 that says where to look.
func (c *call) toWire(err error) wireError {
	var domain *catalog.Error
	var refusal *identity.Refusal
	var status *statusError
	var method *methodError
	switch {
	case errors.As(err, &refusal):
		e := wireError{status: refusal.Status, kind: "NotAuthorizedException", message: refusal.Message, retryAfter: refusal.RetryAfter}
		switch refusal.Status {
		case http.StatusTooManyRequests:
			e.kind = "TooManyRequestsException"
		case http.StatusServiceUnavailable:
			e.kind = "ServiceUnavailableException"
		}
		if refusal.Challenge != "" {
			e.header = [2]string{"WWW-Authenticate", refusal.Challenge}
		}
		return e
	case errors.As(err, &method):
		return wireError{status: http.StatusMethodNotAllowed, kind: "MethodNotAllowedException", message: method.Error(), header: [2]string{"Allow", method.allow}}
	case errors.As(err, &status):
		return wireError{status: status.status, kind: status.kind, message: status.message}
	case errors.As(err, &domain):
		to := wire[domain.Reason]
		e := wireError{status: to.status, kind: to.kind, message: domain.Message, retryAfter: domain.RetryAfter}
		if domain.Reason == catalog.Internal {
			e.message = "Internal error; the logs have more under request id " + c.requestID
		}
		if domain.Reason == catalog.CommitStateUnknown && !c.route.write {
			e.kind = "InternalServerError"
		}
		return e
	case errors.Is(err, context.Canceled) && c.r.Context().Err() != nil:
		// The client is gone; nobody reads this but the logs.
		return wireError{status: statusClientClosedRequest, kind: "ClientClosedRequest", message: "The client closed the request"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		if c.route.write {
			return wireError{status: http.StatusInternalServerError, kind: "CommitStateUnknownException", message: "The request took too long; its outcome is unknown"}
		}
		return wireError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableException", message: "The request took too long", retryAfter: time.Second}
	}
	kind := "InternalServerError"
	return wireError{status: http.StatusInternalServerError, kind: kind, message: "Internal error; the logs have more under request id " + c.requestID}
}

// statusClientClosedRequest is nginx's code, for logs and metrics.
const statusClientClosedRequest = 499

// fail answers with an error.
func (c *call) fail(err error) {
	if c.status != 0 {
		// The answer has begun; all that is left is not to end it well.
		c.h.log.ErrorContext(c.ctx, "error after the answer had begun", "operation", c.route.operation, "error", err)
		panic(http.ErrAbortHandler)
	}
	e := c.toWire(err)
	if e.status >= 500 {
		c.h.log.ErrorContext(c.ctx, "request failed", "operation", c.route.operation, "status", e.status, c.who(), "resource", c.resource, "error", err)
	} else {
		c.h.log.InfoContext(c.ctx, "request refused", "operation", c.route.operation, "status", e.status, c.who(), "resource", c.resource, "error", err)
	}
	body := errorBody(e)
	h := c.w.Header()
	h.Del("ETag")
	if e.header[0] != "" {
		h.Set(e.header[0], e.header[1])
	}
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(max(e.retryAfter.Round(time.Second)/time.Second, 1))))
	}
	h.Set("Cache-Control", "no-store")
	if err := c.audit(e.status); err != nil && e.status < 500 {
		e = auditError
		body = errorBody(e)
		h.Set("Retry-After", "1")
	}
	c.write(e.status, body)
}

// auditError is the answer when the audit log cannot take a record.
var auditError = wireError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableException", message: "The audit log is full; try again later", retryAfter: time.Second}

// final reports whether a 4xx is deterministic, so that its repetition may be
// answered from the record.
func final(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusNotAcceptable, http.StatusConflict, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func errorBody(e wireError) []byte {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    int    `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type, body.Error.Code = e.message, e.kind, e.status
	raw, err := json.Marshal(body)
	if err != nil {
		return []byte(`{"error":{"message":"Internal error","type":"InternalServerError","code":500}}`)
	}
	return raw
}
