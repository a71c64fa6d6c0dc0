// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// The formats of logs.
const (
	FormatJSON = "json"
	FormatText = "text"
)

// NewLogger returns a logger that writes to w. Lines logged with a context
// carry its request id and trace id. Attributes whose name says that they are
// credentials are replaced, in case somebody logs one.
func NewLogger(w io.Writer, format string, level slog.Level) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: redact}
	switch format {
	case FormatJSON:
		return slog.New(contextHandler{slog.NewJSONHandler(w, o)}), nil
	case FormatText:
		return slog.New(contextHandler{slog.NewTextHandler(w, o)}), nil
	}
	return nil, fmt.Errorf("log format %q is not known; use %s or %s", format, FormatJSON, FormatText)
}

// credentialNames are attribute names, in lower case, whose values nobody
// should see. Secrets are of a type that does not print; this is for what was
// never put into one, such as a request's headers.
var credentialNames = map[string]bool{
	"authorization": true, "proxy-authorization": true, "cookie": true, "set-cookie": true,
	"token": true, "access_token": true, "subject_token": true, "actor_token": true, "refresh_token": true,
	"client_secret": true, "secret": true, "password": true, "dsn": true, "x-amz-security-token": true,
}

func redact(_ []string, a slog.Attr) slog.Attr {
	if credentialNames[strings.ToLower(a.Key)] {
		a.Value = slog.StringValue("REDACTED")
	}
	return a
}

type requestIDKey struct{}

// WithRequestID returns a context whose log lines carry the request id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the context's request id, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// contextHandler adds what the context knows.
type contextHandler struct{ slog.Handler }

func (h contextHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("request_id", id))
	}
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h contextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contextHandler{h.Handler.WithAttrs(attrs)}
}

func (h contextHandler) WithGroup(name string) slog.Handler {
	return contextHandler{h.Handler.WithGroup(name)}
}
