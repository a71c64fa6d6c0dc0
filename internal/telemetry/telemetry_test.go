// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-data/sluice/internal/secret"
)

func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsOptions{Version: "1.2.3", Commit: "abc"})
	route := m.Route("loadTable", http.MethodGet)
	route.Begin()
	route.Begin()
	route.End(200, 3*time.Millisecond)
	route.Begin()
	route.End(0, time.Second)
	load := m.StoreCall("object", "ok", "not-found")
	load.Done("ok", 20*time.Microsecond)
	load.Done("something else", time.Millisecond)
	m.ObjectCall("read", "ok").Done("ok", time.Millisecond)
	for _, outcome := range []string{"committed", "conflict", "never heard of"} {
		m.CommitAttempt(outcome)
	}
	m.MetadataRead(true, 10)
	m.MetadataRead(false, 10)
	m.Authentication("client", "refused")
	m.Panicked()
	m.Gauge("sluice_test_gauge", "x", func() float64 { return 7 })
	m.Counter("sluice_test_counter", "x", func() float64 { return 8 })
	m.MetricsReport("scan-report", []byte(`{"table-name":"secret_name","metrics":{
		"total-planning-duration":{"count":1,"time-unit":"nanoseconds","total-duration":2500000000},
		"result-data-files":{"unit":"count","value":3},"total-file-size-in-bytes":{"unit":"bytes","value":1000},
		"result-delete-files":{"unit":"count","value":-5},"made-up-by-the-client":{"unit":"count","value":1}}}`))
	m.MetricsReport("commit-report", []byte(`{"metrics":{"attempts":{"unit":"count","value":2},"total-duration":{"count":1,"time-unit":"days","total-duration":1}}}`))
	m.MetricsReport("other-report", []byte(`{}`))
	m.MetricsReport("scan-report", []byte(`{`))
	got := scrape(t, m)
	for _, want := range []string{
		`sluice_build_info{commit="abc",version="1.2.3"} 1`,
		`sluice_http_requests_total{code="200",method="GET",route="loadTable"} 1`,
		`sluice_http_requests_total{code="500",method="GET",route="loadTable"} 1`,
		`sluice_http_request_duration_seconds_count{method="GET",route="loadTable"} 2`,
		`sluice_http_request_duration_seconds_bucket{method="GET",route="loadTable",le="0.005"} 1`,
		`sluice_http_requests_in_flight 1`,
		`sluice_http_panics_total 1`,
		`sluice_store_calls_total{op="object",outcome="ok"} 1`,
		`sluice_store_calls_total{op="object",outcome="error"} 1`,
		`sluice_store_call_duration_seconds_count{op="object"} 2`,
		`sluice_object_store_calls_total{op="read",outcome="ok"} 1`,
		`sluice_commit_attempts_total{outcome="committed"} 1`,
		`sluice_commit_attempts_total{outcome="conflict"} 1`,
		`sluice_commit_attempts_total{outcome="error"} 1`,
		`sluice_metadata_cache_lookups_total{result="hit"} 1`,
		`sluice_metadata_cache_lookups_total{result="miss"} 1`,
		`sluice_metadata_read_bytes_total 10`,
		`sluice_authentications_total{kind="client",outcome="refused"} 1`,
		`sluice_client_reports_total{type="scan-report"} 1`,
		`sluice_client_reports_total{type="commit-report"} 1`,
		`sluice_client_report_values_total{type="scan-report",value="data_files"} 3`,
		`sluice_client_report_values_total{type="scan-report",value="data_file_bytes"} 1000`,
		`sluice_client_report_values_total{type="commit-report",value="attempts"} 2`,
		`sluice_client_report_seconds_total{type="scan-report"} 2.5`,
		`sluice_test_gauge 7`, `sluice_test_counter 8`, `go_goroutines`, `process_resident_memory_bytes`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, never := range []string{"secret_name", "made-up", "other-report", `value="delete_files"`} {
		if strings.Contains(got, never) {
			t.Errorf("%s is there", never)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	named := NewMetrics(MetricsOptions{ReportsByTable: true})
	named.MetricsReport("commit-report", []byte(`{"table-name":"a.t","metrics":{"attempts":{"value":1}}}`))
	if got := scrape(t, named); !strings.Contains(got, `sluice_client_report_values_total{table="a.t",type="commit-report",value="attempts"} 1`) {
		t.Errorf("no report by table:\n%s", got)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	for _, format := range []string{FormatJSON, FormatText} {
		var out bytes.Buffer
		log, err := NewLogger(&out, format, slog.LevelInfo)
		if err != nil {
			t.Fatal(err)
		}
		ctx := WithRequestID(t.Context(), "r-42")
		sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
		ctx = trace.ContextWithSpanContext(ctx, sc)
		log.DebugContext(ctx, "too detailed")
		log.With("a", 1).WithGroup("g").InfoContext(ctx, "hello", "Authorization", "Bearer hunter2", "token", "hunter2", "value", secret.New("hunter2"))
		log.Info("plain")
		got := out.String()
		for _, want := range []string{"r-42", "01000000000000000000000000000000", "hello", "plain", "REDACTED"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is missing from %s", format, want, got)
			}
		}
		if strings.Contains(got, "hunter2") || strings.Contains(got, "too detailed") || strings.Count(got, "r-42") != 1 {
			t.Errorf("%s: %s", format, got)
		}
	}
	if _, err := NewLogger(io.Discard, "xml", slog.LevelInfo); err == nil {
		t.Error("an unknown format is accepted")
	}
	if RequestID(context.Background()) != "" {
		t.Error("a request id from nowhere")
	}
}

// TestTracing sends spans to a collector of its own.
func TestTracing(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []byte
	var header string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(r.Body); err != nil {
				t.Error(err)
				return
			}
		}
		raw, err := io.ReadAll(body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, raw...)
		header = r.URL.Path + " " + r.Header.Get("X-Key")
	}))
	defer collector.Close()
	tracer, err := NewTracer(t.Context(), TraceOptions{
		Endpoint: collector.URL, SampleRatio: 0, Service: "sluice-test", Version: "1",
		Headers: map[string]secret.Value{"X-Key": secret.New("k")},
	})
	if err != nil {
		t.Fatal(err)
	}
	request := func(traceparent string) trace.SpanContext {
		r := httptest.NewRequest(http.MethodGet, "/v1/demo/namespaces/hidden_name", nil)
		r.Header.Set("Traceparent", traceparent)
		ctx, span := tracer.Request(r.Context(), r, "loadTable")
		_, inner := tracer.Start(ctx, "store.object")
		inner.End()
		EndRequest(span, 503)
		return span.SpanContext()
	}
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	if sc := request("00-" + id + "-00f067aa0ba902b7-01"); sc.TraceID().String() != id || !sc.IsSampled() {
		t.Errorf("the caller's trace is not continued: %v", sc)
	}
	if sc := request(""); sc.IsSampled() {
		t.Error("sampled against the ratio")
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"loadTable", "store.object", "sluice-test"} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("%s was not exported", want)
		}
	}
	if header != "/v1/traces k" || bytes.Contains(got, []byte("hidden_name")) {
		t.Errorf("sent to %q; a name leaks: %v", header, bytes.Contains(got, []byte("hidden_name")))
	}
}

func TestTracingOff(t *testing.T) { // not parallel: it counts allocations
	off, err := NewTracer(t.Context(), TraceOptions{})
	if err != nil || off.Enabled() {
		t.Fatalf("%v, %v", off, err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		_, span := off.Request(ctx, r, "loadTable")
		EndRequest(span, 200)
	}); n != 0 {
		t.Errorf("tracing that is off allocates %v times per request", n)
	}
	if err := off.Close(ctx); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"collector:4318", "ftp://x", "http://u:p@x", "://"} {
		if _, err := NewTracer(ctx, TraceOptions{Endpoint: bad}); err == nil || strings.Contains(err.Error(), "u:p") {
			t.Errorf("endpoint %q: %v", bad, err)
		}
	}
}

func FuzzMetricsReport(f *testing.F) {
	m := NewMetrics(MetricsOptions{})
	f.Add("scan-report", []byte(`{"metrics":{"result-data-files":{"value":1e300}}}`))
	// The most series that all reports together can make.
	most := 0
	for _, counters := range reportCounters {
		most += len(counters) + 2
	}
	f.Fuzz(func(t *testing.T, kind string, raw []byte) {
		m.MetricsReport(kind, raw)
		if n := strings.Count(scrape(t, m), "\nsluice_client_"); n > most {
			t.Errorf("clients made %d series", n)
		}
	})
}

// BenchmarkRequest is what metrics and switched-off tracing add to a request.
func BenchmarkRequest(b *testing.B) {
	m := NewMetrics(MetricsOptions{})
	route := m.Route("loadTable", http.MethodGet)
	call := m.StoreCall("object", "ok")
	off := &Tracer{}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		route.Begin()
		_, span := off.Request(ctx, r, "loadTable")
		call.Done("ok", time.Microsecond)
		m.MetadataRead(true, 1000)
		EndRequest(span, 200)
		route.End(200, time.Since(start))
	}
}
