// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package telemetry

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// MetricsOptions are the settings of [Metrics].
type MetricsOptions struct {
	// Version and Commit label sluice_build_info.
	Version, Commit string
	// ReportsByTable would label clients' scan and commit reports with the
	// table's name, which the reports carry. Off by default: names may be
	// confidential, and there may be many.
	ReportsByTable bool
}

// Metrics are the process's series, on a registry of their own.
type Metrics struct {
	registry *prometheus.Registry

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	panics   prometheus.Counter

	store   *callMetrics
	objects *callMetrics

	commits    map[string]prometheus.Counter
	commitsAny *prometheus.CounterVec
	cacheHits  prometheus.Counter
	cacheMiss  prometheus.Counter
	readBytes  prometheus.Counter
	auth       *prometheus.CounterVec
	issuers    *prometheus.CounterVec
	reports    reportMetrics
}

// Buckets in seconds. Requests reach from a cached load to a slow commit;
// calls of the embedded store are tens of microseconds.
var (
	requestBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	callBuckets    = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30}
)

// NewMetrics registers all series.
func NewMetrics(o MetricsOptions) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	counterVec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(v)
		return v
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	histogramVec := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(v)
		return v
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_build_info", Help: "Always 1; the labels tell which build runs."}, []string{"version", "commit"})
	m.registry.MustRegister(build)
	build.WithLabelValues(o.Version, o.Commit).Set(1)

	m.requests = counterVec("sluice_http_requests_total", "Requests answered.", "route", "method", "code")
	m.duration = histogramVec("sluice_http_request_duration_seconds", "Time from the request's headers to the end of its answer.", requestBuckets, "route", "method")
	m.inFlight = prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_http_requests_in_flight", Help: "Requests being answered."})
	m.registry.MustRegister(m.inFlight)
	m.panics = counter("sluice_http_panics_total", "Requests that ended in a panic.")

	m.store = &callMetrics{
		calls:    counterVec("sluice_store_calls_total", "Calls of the catalog's store.", "op", "outcome"),
		duration: histogramVec("sluice_store_call_duration_seconds", "Duration of calls of the catalog's store.", callBuckets, "op"),
	}
	m.objects = &callMetrics{
		calls:    counterVec("sluice_object_store_calls_total", "Calls of object stores.", "op", "outcome"),
		duration: histogramVec("sluice_object_store_call_duration_seconds", "Duration of calls of object stores.", callBuckets, "op"),
	}
	m.commitsAny = counterVec("sluice_commit_attempts_total", "Attempts of commits: committed, conflict (tried again), requirement-failed, unchanged, unknown, error.", "outcome")
	m.commits = map[string]prometheus.Counter{}
	for _, outcome := range []string{"committed", "conflict", "requirement-failed", "unchanged", "unknown", "error"} {
		m.commits[outcome] = m.commitsAny.WithLabelValues(outcome)
	}
	lookups := counterVec("sluice_metadata_cache_lookups_total", "Look-ups of table and view metadata by whether the cache had it.", "result")
	m.cacheHits, m.cacheMiss = lookups.WithLabelValues("hit"), lookups.WithLabelValues("miss")
	m.readBytes = counter("sluice_metadata_read_bytes_total", "Bytes of metadata read from object stores.")
	m.issuers = counterVec("sluice_issuer_requests_total", "Requests to issuers of tokens, for keys or about a token: ok, error.", "issuer", "outcome")
	m.auth = counterVec("sluice_authentications_total", "Attempts to authenticate by bearer token, client certificate, client secret or activation link.", "kind", "outcome")
	m.reports = newReportMetrics(m.registry, o.ReportsByTable)
	return m
}

// Handler serves the series in the formats of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Gauge adds a series whose value is asked for when it is scraped. labels are
// names and values in turn; series of one name have the same names.
func (m *Metrics) Gauge(name, help string, value func() float64, labels ...string) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: pairs(labels)}, value))
}

// Counter adds a growing series whose value is asked for when it is scraped.
func (m *Metrics) Counter(name, help string, value func() float64, labels ...string) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: pairs(labels)}, value))
}

func pairs(labels []string) prometheus.Labels {
	l := prometheus.Labels{}
	for i := 0; i+1 < len(labels); i += 2 {
		l[labels[i]] = labels[i+1]
	}
	return l
}

// Route is the series of one route and method, resolved once.
type Route struct {
	m        *Metrics
	name     string
	method   string
	duration prometheus.Observer
	codes    [600]atomic.Pointer[countedCode]
}

type countedCode struct{ prometheus.Counter }

// Route returns the series of a route. The caller keeps it: there is one per
// entry of its table of routes.
func (m *Metrics) Route(name, method string) *Route {
	return &Route{m: m, name: name, method: method, duration: m.duration.WithLabelValues(name, method)}
}

// Begin counts a request in; every Begin has its End.
func (r *Route) Begin() { r.m.inFlight.Inc() }

// End counts the answer.
func (r *Route) End(status int, took time.Duration) {
	r.m.inFlight.Dec()
	r.duration.Observe(took.Seconds())
	if status < 100 || status >= len(r.codes) {
		status = http.StatusInternalServerError
	}
	c := r.codes[status].Load()
	if c == nil {
		// Two requests may both come here; they get the same series.
		c = &countedCode{r.m.requests.WithLabelValues(r.name, r.method, strconv.Itoa(status))}
		r.codes[status].Store(c)
	}
	c.Inc()
}

// Panicked counts a request that ended in a panic.
func (m *Metrics) Panicked() { m.panics.Inc() }

// callMetrics are series by operation.
type callMetrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// Call is the series of one operation, resolved once.
type Call struct {
	duration prometheus.Observer
	outcomes map[string]prometheus.Counter
	other    prometheus.Counter
}

func (c *callMetrics) op(name string, outcomes []string) *Call {
	call := &Call{
		duration: c.duration.WithLabelValues(name),
		outcomes: make(map[string]prometheus.Counter, len(outcomes)),
		other:    c.calls.WithLabelValues(name, "error"),
	}
	for _, o := range outcomes {
		call.outcomes[o] = c.calls.WithLabelValues(name, o)
	}
	return call
}

// StoreCall returns the series of a store operation. An outcome that is not
// among outcomes counts as "error".
func (m *Metrics) StoreCall(op string, outcomes ...string) *Call { return m.store.op(op, outcomes) }

// ObjectCall returns the series of an operation on object stores.
func (m *Metrics) ObjectCall(op string, outcomes ...string) *Call { return m.objects.op(op, outcomes) }

// Done counts a call.
func (c *Call) Done(outcome string, took time.Duration) {
	c.duration.Observe(took.Seconds())
	if counter, ok := c.outcomes[outcome]; ok {
		counter.Inc()
		return
	}
	c.other.Inc()
}

// CommitAttempt, MetadataRead and MetricsReport make Metrics the observer of
// the catalog.

// CommitAttempt counts one attempt of a commit by its outcome.
func (m *Metrics) CommitAttempt(outcome string) {
	if c, ok := m.commits[outcome]; ok {
		c.Inc()
		return
	}
	m.commits["error"].Inc()
}

// MetadataRead counts a look-up of metadata of size bytes.
func (m *Metrics) MetadataRead(hit bool, size int) {
	if hit {
		m.cacheHits.Inc()
		return
	}
	m.cacheMiss.Inc()
	m.readBytes.Add(float64(size))
}

// MetricsReport counts what a client's scan or commit report says.
func (m *Metrics) MetricsReport(reportType string, report []byte) {
	m.reports.observe(reportType, report)
}

// IssuerRequest counts a request to an issuer of tokens: outcome "ok" or
// "error".
func (m *Metrics) IssuerRequest(issuer, outcome string) {
	m.issuers.WithLabelValues(issuer, outcome).Inc()
}

// Authentication counts an attempt: kind "bearer", "certificate", "client" or
// "activation", outcome "ok", "refused", "throttled" or "unavailable".
func (m *Metrics) Authentication(kind, outcome string) { m.auth.WithLabelValues(kind, outcome).Inc() }
