// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/sharing"
)

// message is a pointer to a message type.
type message[T any] interface {
	*T
	proto.Message
}

// mutating is a request that changes something.
type mutating interface {
	proto.Message
	GetRequestId() string
	GetValidateOnly() bool
}

// mutation is what a change takes with it.
func mutation(ctx context.Context, procedure string, req mutating, etag string) (sharing.Mutation, error) {
	c := who(ctx)
	m := sharing.Mutation{
		Mutation: catalog.Mutation{
			Caller:    catalog.Caller{Principal: c.ID, Actor: c.Actor, RequestID: c.requestID, Address: c.Address},
			Operation: operationOf(procedure), Decision: audit.Allow,
		},
		ValidateOnly: req.GetValidateOnly(), Etag: etag,
	}
	text := req.GetRequestId()
	if text == "" || m.ValidateOnly {
		return m, nil
	}
	id, err := uuid.Parse(text)
	if err != nil || !strings.EqualFold(id.String(), text) || id == uuid.Nil {
		return m, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_REQUEST_ID", Message: "request_id: not a UUID", Next: "send a new random UUID for each operation, or none"}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return m, err
	}
	m.Key = &catalog.IdempotencyKey{Key: id, RequestHash: sha256.Sum256(append([]byte(procedure+"\n"), raw...))}
	return m, nil
}

// change makes a change and answers, or answers as before when the request was
// made before. answer builds the response; with kept set, the one that is kept
// for a repetition, without what is shown once.
func change[Req any, Res any, T any, PReq interface {
	message[Req]
	mutating
}, PRes message[Res]](ctx context.Context, s *server, req *connect.Request[Req], etag string,
	do func(ctx context.Context, m sharing.Mutation) (T, error), answer func(result T, kept bool) (PRes, error),
) (*connect.Response[Res], error) {
	m, err := mutation(ctx, req.Spec().Procedure, PReq(req.Msg), etag)
	if err != nil {
		return nil, err
	}
	m.Answer = func(result any) (json.RawMessage, error) {
		t, ok := result.(T)
		if !ok {
			return nil, fmt.Errorf("the result of %s is a %T", m.Operation, result)
		}
		res, err := answer(t, true)
		if err != nil {
			return nil, err
		}
		return protojson.Marshal(res)
	}
	replay := func() (*connect.Response[Res], error) {
		raw, err := s.sharing.Replay(ctx, m)
		if err != nil || raw == nil {
			return nil, err
		}
		res := PRes(new(Res))
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, res); err != nil {
			return nil, err
		}
		return connect.NewResponse((*Res)(res)), nil
	}
	if res, err := replay(); err != nil || res != nil {
		return res, err
	}
	result, err := do(ctx, m)
	if sharing.IsReplayed(err) {
		if res, again := replay(); again != nil || res != nil {
			return res, again
		}
	}
	if err != nil {
		return nil, err
	}
	res, err := answer(result, false)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse((*Res)(res)), nil
}

// nothing is the result of a change that is answered with an empty message.
type nothing = struct{}

// remove is change for what has no result.
func remove[Req any, Res any, PReq interface {
	message[Req]
	mutating
}, PRes message[Res]](ctx context.Context, s *server, req *connect.Request[Req], etag string, do func(ctx context.Context, m sharing.Mutation) error) (*connect.Response[Res], error) {
	return change[Req, Res, nothing, PReq, PRes](ctx, s, req, etag, func(ctx context.Context, m sharing.Mutation) (nothing, error) {
		return nothing{}, do(ctx, m)
	}, func(nothing, bool) (PRes, error) { return PRes(new(Res)), nil })
}

// Pages.

const (
	defaultPage = 100
	maxPage     = 1000
)

type paged interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// pageToken is what a token holds: the key to go on after, and what the
// request was, so that a token fits no other listing.
type pageToken struct {
	After  string `json:"a"`
	Filter []byte `json:"f"`
}

// filterOf is a digest of a listing's request without its page.
func filterOf(ctx context.Context, req paged) []byte {
	bare := proto.Clone(req)
	fields := bare.ProtoReflect().Descriptor().Fields()
	for _, name := range []string{"page_size", "page_token"} {
		bare.ProtoReflect().Clear(fields.ByTextName(name))
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare)
	if err != nil {
		raw = nil
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", req.ProtoReflect().Descriptor().FullName(), who(ctx).ID, raw))
	return sum[:12]
}

// pageOf reads which page is wanted.
func pageOf(ctx context.Context, req paged) (sharing.Page, error) {
	p := sharing.Page{Limit: int(req.GetPageSize())}
	switch {
	case p.Limit < 0:
		return p, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_PAGE_SIZE", Message: "page_size: must not be negative"}
	case p.Limit == 0:
		p.Limit = defaultPage
	}
	p.Limit = min(p.Limit, maxPage)
	if req.GetPageToken() == "" {
		return p, nil
	}
	var t pageToken
	raw, err := base64.RawURLEncoding.Strict().DecodeString(req.GetPageToken())
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.After == "" || string(t.Filter) != string(filterOf(ctx, req)) {
		return p, badPage()
	}
	p.After = t.After
	return p, nil
}

func badPage() error {
	return &sharing.Error{
		Code: sharing.InvalidArgument, Reason: "INVALID_PAGE_TOKEN", Message: "page_token: not one that this listing has given",
		Next: "send next_page_token of the page before, with the same other fields, or begin without",
	}
}

// tokenOf is the token of the page that comes after a key; "" after the last.
func tokenOf(ctx context.Context, req paged, after string) string {
	if after == "" {
		return ""
	}
	raw, err := json.Marshal(pageToken{after, filterOf(ctx, req)})
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Field masks.

// maskField is a field that an update may change: its path, whether the
// request has it, and how it is taken.
type maskField struct {
	path  string
	given bool
	take  func()
}

// applyMask takes the fields that a mask names, "*" for all; without a mask
// those that the request has.
func applyMask(mask *fieldmaskpb.FieldMask, fields ...maskField) error {
	if mask == nil {
		for _, f := range fields {
			if f.given {
				f.take()
			}
		}
		return nil
	}
	for _, path := range mask.GetPaths() {
		known := path == "*"
		for _, f := range fields {
			if path == "*" || f.path == path {
				f.take()
				known = true
			}
		}
		if !known {
			names := make([]string, len(fields))
			for i, f := range fields {
				names[i] = f.path
			}
			return &sharing.Error{
				Code: sharing.InvalidArgument, Reason: "INVALID_UPDATE_MASK", Message: fmt.Sprintf("update_mask: %q cannot be changed", limited(path)),
				Next: "name some of " + strings.Join(names, ", "),
			}
		}
	}
	return nil
}

// text is a field of a string.
func text(path string, from string, to *string) maskField {
	return maskField{path, from != "", func() { *to = from }}
}

func limited(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// Times.

func stampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf reads an optional time.
func timeOf(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	at := t.AsTime()
	if err := t.CheckValid(); err != nil || at.Year() < 1971 || at.Year() > 9998 {
		return time.Time{}, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_TIME", Message: field + ": not a time between 1971 and 9998"}
	}
	return at.UTC(), nil
}
