// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	adminv1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
)

// message is a message of the administration interface as its JSON says it:
// what people see of it, write in files for apply, and get with -o json.
type message = map[string]any

// adminPackage is the interface's name.
var adminPackage = adminv1.File_sluice_admin_v1_share_proto.Package()

// adminMethod finds a method: "ShareService", "CreateShare".
func adminMethod(service, method string) (protoreflect.MethodDescriptor, error) {
	name := protoreflect.FullName(string(adminPackage) + "." + service + "." + method)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no method", name)
	}
	return md, nil
}

// adminClient makes a client of one method. It speaks the Connect protocol
// with JSON.
func (a *app) adminClient(md protoreflect.MethodDescriptor, streaming bool) (*connect.Client[dynamicpb.Message, dynamicpb.Message], error) {
	n, err := a.use()
	if err != nil {
		return nil, err
	}
	client := n.http
	if streaming {
		unbounded := *client
		unbounded.Timeout = 0 // until the caller ends it
		client = &unbounded
	}
	uri := first(n.ctx.AdminURI, n.ctx.URI) + "/" + string(md.Parent().FullName()) + "/" + string(md.Name())
	return connect.NewClient[dynamicpb.Message, dynamicpb.Message](client, uri,
		connect.WithSchema(md), connect.WithProtoJSON(),
		connect.WithResponseInitializer(func(spec connect.Spec, m any) error {
			answer, ok := m.(*dynamicpb.Message)
			if !ok {
				return fmt.Errorf("answer of %s is a %T", spec.Procedure, m)
			}
			*answer = *dynamicpb.NewMessage(md.Output())
			return nil
		})), nil
}

// adminRequest makes a request of JSON. What the message has no field for is
// an error.
func (a *app) adminRequest(ctx context.Context, md protoreflect.MethodDescriptor, body message) (*connect.Request[dynamicpb.Message], error) {
	m := dynamicpb.NewMessage(md.Input())
	if err := toProto(body, m); err != nil {
		return nil, err
	}
	token, err := a.bearer(ctx)
	if err != nil {
		return nil, err
	}
	r := connect.NewRequest(m)
	if token != "" {
		r.Header().Set("Authorization", "Bearer "+token)
	}
	return r, nil
}

func toProto(body message, m proto.Message) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(raw, m); err != nil {
		return usage(fmt.Errorf("%s", strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))), "")
	}
	return nil
}

// fromProto is the message's JSON; what is empty is left out.
func fromProto(m proto.Message) (message, error) {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var answer message
	return answer, json.Unmarshal(raw, &answer)
}

// canonical writes a message of a type as the server would.
func canonical(typ string, m message) (message, error) {
	d, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(string(adminPackage) + "." + typ))
	if err != nil {
		return nil, err
	}
	p := d.New().Interface()
	if err := toProto(m, p); err != nil {
		return nil, err
	}
	return fromProto(p)
}

// ask calls a method.
func (a *app) ask(ctx context.Context, service, method string, body message) (message, error) {
	md, err := adminMethod(service, method)
	if err != nil {
		return nil, err
	}
	client, err := a.adminClient(md, false)
	if err != nil {
		return nil, err
	}
	r, err := a.adminRequest(ctx, md, body)
	if err != nil {
		return nil, err
	}
	answer, err := client.CallUnary(ctx, r)
	if err != nil {
		return nil, adminError(err)
	}
	return fromProto(answer.Msg)
}

// change calls a method that changes something. It carries an id by which the
// server knows a repetition, and with --dry-run only checks.
func (a *app) change(ctx context.Context, service, method string, body message) (message, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	body["requestId"] = id.String()
	if a.dryRun {
		body["validateOnly"] = true
	}
	return a.ask(ctx, service, method, body)
}

// pages lists all of something: field is the answer's list.
func (a *app) pages(ctx context.Context, service, method, field string, body message, limit int) ([]message, error) {
	all := []message{}
	request := message{"pageSize": 1000}
	for k, v := range body {
		request[k] = v
	}
	for {
		answer, err := a.ask(ctx, service, method, request)
		if err != nil {
			return nil, err
		}
		list, _ := answer[field].([]any)
		for _, x := range list {
			if m, ok := x.(message); ok {
				all = append(all, m)
			}
			if limit > 0 && len(all) == limit {
				return all, nil
			}
		}
		next, _ := answer["nextPageToken"].(string)
		if next == "" {
			return all, nil
		}
		if next == request["pageToken"] {
			return nil, fmt.Errorf("%s: the server names the same next page again", method)
		}
		request["pageToken"] = next
	}
}

// stream calls a method that answers with a stream.
func (a *app) stream(ctx context.Context, service, method string, body message, use func(message) error) error {
	md, err := adminMethod(service, method)
	if err != nil {
		return err
	}
	client, err := a.adminClient(md, true)
	if err != nil {
		return err
	}
	r, err := a.adminRequest(ctx, md, body)
	if err != nil {
		return err
	}
	s, err := client.CallServerStream(ctx, r)
	if err != nil {
		return adminError(err)
	}
	defer func() { _ = s.Close() }() // what matters is in Err
	for s.Receive() {
		m, err := fromProto(s.Msg())
		if err != nil {
			return err
		}
		if err := use(m); err != nil {
			return err
		}
	}
	if err := s.Err(); err != nil {
		return adminError(err)
	}
	return nil
}

// errNoSuchOperation is the error for an operation that the server lacks.
var errNoSuchOperation = errors.New("the server has no such operation of the sharing API")

// adminError gives an error of the interface its exit code.
func adminError(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) {
		return err
	}
	f := &failure{err: errors.New(e.Message())}
	switch e.Code() {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		f.code = codeUsage
	case connect.CodeUnauthenticated:
		f.code, f.next = statusCode(http.StatusUnauthorized)
	case connect.CodePermissionDenied:
		f.code, f.next = statusCode(http.StatusForbidden)
	case connect.CodeNotFound:
		f.code = codeNotFound
	case connect.CodeAlreadyExists, connect.CodeFailedPrecondition, connect.CodeAborted:
		f.code = codeConflict
	case connect.CodeCanceled:
		return context.Canceled
	case connect.CodeUnimplemented:
		f.err = errNoSuchOperation
		f.code, f.next = codeFailed, "sharectl context set --admin-uri URI, if it listens elsewhere"
	case connect.CodeUnavailable, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded:
		f.code, f.next = codeUnreachable, "sharectl doctor"
		if cause := e.Unwrap(); cause != nil && !connect.IsWireError(err) {
			return cause // of the connection
		}
	default:
		f.code = codeFailed
	}
	if f.err.Error() == "" {
		f.err = errors.New(e.Code().String())
	}
	return f
}

// text is a field of a message for people; path has dots between its levels.
func text(m message, path string) string {
	var v any = m
	for part := range strings.SplitSeq(path, ".") {
		level, ok := v.(message)
		if !ok {
			return ""
		}
		v = level[part]
	}
	return valueText(v)
}

func valueText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		if v {
			return "yes"
		}
		return ""
	case []any:
		parts := make([]string, len(v))
		for i, x := range v {
			parts[i] = valueText(x)
		}
		return strings.Join(parts, ", ")
	case float64:
		return fmt.Sprint(v)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(raw)
}
