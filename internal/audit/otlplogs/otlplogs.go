// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package otlplogs sends lines of the audit log as log records of
// OpenTelemetry, over OTLP/HTTP.
//
// The body of a record is the line, byte for byte, so that what arrives can be
// verified; attributes repeat what is searched for. A batch is sent by the
// exporter of OpenTelemetry's SDK, but not through the SDK's batching, which
// drops records when it is full: it is delivered when the receiver has taken
// all of it, and not otherwise. Redirects are not followed.
package otlplogs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/secret"
)

// Options are the settings of a [Sender].
type Options struct {
	// Endpoint is the OTLP/HTTP base URL, such as https://collector:4318.
	Endpoint string
	// Headers are sent with every batch, for authentication.
	Headers map[string]secret.Value
	Service string // service.name
	Version string // service.version
	// Transport is for tests; nil is net/http's.
	Transport http.RoundTripper
}

// Sender is an [audit.Sink]. It is safe for concurrent use.
type Sender struct {
	exporter *otlploghttp.Exporter
	provider *sdk.LoggerProvider
	logger   log.Logger
	url      string
	host     string

	mu    sync.Mutex
	batch []sdk.Record // collected by the provider's processor
}

// sendTimeout bounds one delivery.
const sendTimeout = 30 * time.Second

// New returns a Sender. Close it.
func New(ctx context.Context, o Options) (*Sender, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, errors.New("the OTLP endpoint must be a URL such as https://collector:4318, without user info")
	}
	headers := make(map[string]string, len(o.Headers))
	for name, value := range o.Headers {
		headers[name] = value.Reveal()
	}
	s := &Sender{url: u.JoinPath("v1", "logs").String(), host: u.Host}
	s.exporter, err = otlploghttp.New(ctx,
		otlploghttp.WithEndpointURL(s.url),
		otlploghttp.WithHeaders(headers),
		otlploghttp.WithCompression(otlploghttp.GzipCompression),
		// What failed is tried again by the export, which keeps its place.
		otlploghttp.WithRetry(otlploghttp.RetryConfig{}),
		otlploghttp.WithTimeout(sendTimeout),
		otlploghttp.WithHTTPClient(&http.Client{
			Transport: o.Transport, Timeout: sendTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	s.provider = sdk.NewLoggerProvider(
		sdk.WithProcessor(collector{s}),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", o.Service), attribute.String("service.version", o.Version))),
		// Environment variables could cut attributes short.
		sdk.WithAttributeCountLimit(-1), sdk.WithAttributeValueLengthLimit(-1),
	)
	s.logger = s.provider.Logger("github.com/sluice-data/sluice/audit")
	return s, nil
}

// Close releases connections.
func (s *Sender) Close(ctx context.Context) error {
	return errors.Join(s.provider.Shutdown(ctx), s.exporter.Shutdown(ctx))
}

// Send implements [audit.Sink].
func (s *Sender) Send(ctx context.Context, b audit.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch = s.batch[:0]
	for _, line := range b.Lines {
		r, err := recordOf(b.Source, line)
		if err != nil {
			return err
		}
		s.logger.Emit(ctx, r)
	}
	if len(s.batch) != len(b.Lines) {
		return fmt.Errorf("OTLP: %d of %d records were taken by the SDK", len(s.batch), len(b.Lines))
	}
	if err := s.exporter.Export(ctx, s.batch); err != nil {
		return s.failure(err)
	}
	return nil
}

// failure is what an error of the library says, without the URL, whose query
// may be a secret, and without most of what the receiver said.
func (s *Sender) failure(err error) error {
	var named *url.Error
	if errors.As(err, &named) {
		err = named.Err
	}
	text := strings.ReplaceAll(err.Error(), s.url, s.host)
	if len(text) > maxFailure {
		text = strings.ToValidUTF8(text[:maxFailure], "") + "…"
	}
	return fmt.Errorf("OTLP receiver %s: %s", s.host, text)
}

// maxFailure bounds what is logged of a failure.
const maxFailure = 400

// collector takes what the logger emits into the batch being sent.
type collector struct{ s *Sender }

func (c collector) Enabled(context.Context, sdk.EnabledParameters) bool { return true }

func (c collector) OnEmit(_ context.Context, r *sdk.Record) error {
	c.s.batch = append(c.s.batch, r.Clone())
	return nil
}

func (collector) Shutdown(context.Context) error   { return nil }
func (collector) ForceFlush(context.Context) error { return nil }

// recordOf turns a line into a log record.
func recordOf(source string, line []byte) (r log.Record, err error) {
	i, err := audit.ParseLine(line)
	if err != nil {
		return r, fmt.Errorf("a line of the audit log is no JSON: %w", err)
	}
	r.SetEventName(i.Type)
	r.SetTimestamp(i.Time)
	r.SetBody(attribute.StringValue(string(line)))
	r.SetSeverity(log.SeverityInfo)
	switch {
	case !i.IsRecord():
	case i.Outcome() == audit.OutcomeDenied:
		r.SetSeverity(log.SeverityWarn)
	case i.Outcome() == audit.OutcomeFailed:
		r.SetSeverity(log.SeverityError)
	}
	r.SetSeverityText(r.Severity().String())
	r.AddAttributes(attribute.String("sluice.audit.source", source), attribute.String("sluice.audit.partition", i.Partition), attribute.Int64("sluice.audit.seq", i.Seq))
	if i.Type != "" && i.IsRecord() {
		r.AddAttributes(attribute.String("sluice.audit.outcome", i.Outcome()))
	}
	for _, a := range [][2]string{
		{"user.id", i.Principal},
		{"client.address", i.Address},
		{"sluice.audit.actor", i.Actor},
		{"sluice.audit.request_id", i.RequestID},
		{"sluice.audit.operation", i.Operation},
		{"sluice.audit.warehouse", i.Warehouse},
		{"sluice.audit.resource", i.Resource},
		{"sluice.audit.decision", i.Decision},
		{"sluice.audit.hash", i.Hash},
	} {
		if a[1] != "" {
			r.AddAttributes(attribute.String(a[0], a[1]))
		}
	}
	if i.Status != 0 {
		r.AddAttributes(attribute.Int("http.response.status_code", i.Status))
	}
	if len(i.Policies) > 0 {
		list := make([]string, len(i.Policies))
		for n, p := range i.Policies {
			list[n] = p.String()
		}
		r.AddAttributes(attribute.StringSlice("sluice.audit.policies", list))
	}
	return r, nil
}
