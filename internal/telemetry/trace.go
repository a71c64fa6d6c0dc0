// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sluice-data/sluice/internal/secret"
)

// TraceOptions are the settings of tracing.
type TraceOptions struct {
	// Endpoint is the OTLP/HTTP base URL, http://collector:4318; "" switches
	// tracing off.
	Endpoint string
	// Headers are sent with every export, for authentication.
	Headers map[string]secret.Value
	// SampleRatio is the share of traces that begin here and are kept, 0 to
	// 1. A caller's decision to sample is followed.
	SampleRatio float64
	Service     string // service.name
	Version     string // service.version
	Logger      *slog.Logger
}

// Tracer starts spans. The zero value, and a nil pointer, trace nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	// propagator reads W3C traceparent and tracestate; no baggage, which is
	// the caller's data.
	propagator propagation.TraceContext
}

// NewTracer returns a Tracer; with no endpoint it does nothing at no cost.
func NewTracer(ctx context.Context, o TraceOptions) (*Tracer, error) {
	if o.Endpoint == "" {
		return &Tracer{}, nil
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, fmt.Errorf("the OTLP endpoint must be a URL such as http://127.0.0.1:4318, without user info")
	}
	headers := make(map[string]string, len(o.Headers))
	for name, value := range o.Headers {
		headers[name] = value.Reveal()
	}
	exporter, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(u.JoinPath("v1", "traces").String()),
		otlptracehttp.WithHeaders(headers),
		otlptracehttp.WithTimeout(10*time.Second),
	)
	if err != nil {
		return nil, fmt.Errorf("trace exporter: %w", err)
	}
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.SampleRatio))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", o.Service), attribute.String("service.version", o.Version),
		)),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("github.com/sluice-data/sluice")}, nil
}

// Enabled reports whether spans go anywhere.
func (t *Tracer) Enabled() bool { return t != nil && t.tracer != nil }

// Request begins the span of a request, as a child of the caller's span when
// its headers name one. End it with EndRequest.
func (t *Tracer) Request(ctx context.Context, r *http.Request, route string) (context.Context, trace.Span) {
	if !t.Enabled() {
		return ctx, noop.Span{}
	}
	ctx = t.propagator.Extract(ctx, propagation.HeaderCarrier(r.Header))
	// No path and no query: they hold names, and the route says enough.
	return t.tracer.Start(ctx, route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("http.route", route),
	))
}

// EndRequest ends the span of a request.
func EndRequest(span trace.Span, status int) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
	}
	span.End()
}

// Start begins an inner span.
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, trace.Span) {
	if !t.Enabled() {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name)
}

// Close sends what is left.
func (t *Tracer) Close(ctx context.Context) error {
	if !t.Enabled() {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}
