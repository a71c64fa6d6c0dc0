// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/rest"
	"github.com/sluice-data/sluice/internal/telemetry"
)

func gzipped(t testing.TB, s string) string {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	if _, err := zw.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func (a answer) inflated(t testing.TB) []byte {
	t.Helper()
	if a.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("the answer is not compressed: %v", a.header)
	}
	zr, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(zr) // checks length and checksum
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestCompression compares every kind of large answer with its plain form.
func TestCompression(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, "t")
	for i := range 12 {
		s.create(t, strings.Repeat(string(rune('a'+i)), 200))
	}
	text := strings.Repeat("text é \U0001f600 ", 3000)
	big := fmt.Sprintf(`{"requirements":[],"updates":[{"action":"set-properties","updates":{"k1":%q,"k2":%q,"k3":%q,"k4":%q}}]}`, text, text, text, text)
	committed := s.do(t, "POST", "/v1/demo/namespaces/m/tables/t", gzipped(t, big), header{"Content-Encoding", "gzip"}).want(t, 200)
	tag := committed.header.Get("ETag")
	table := "/v1/demo/namespaces/m/tables/t"
	for _, c := range []struct {
		name, method, path, body string
		tag                      bool
	}{
		{"load", "GET", table, "", true},
		{"load again, from the cache", "GET", table, "", true},
		{"load of refs", "GET", table + "?snapshots=refs", "", false},
		{"commit of nothing", "POST", table, `{"requirements":[],"updates":[]}`, true},
		{"a list", "GET", "/v1/demo/namespaces/m/tables", "", false},
	} {
		plain := s.do(t, c.method, c.path, c.body).want(t, 200)
		small := s.do(t, c.method, c.path, c.body, header{"Accept-Encoding", "gzip"}).want(t, 200)
		if got := small.inflated(t); !bytes.Equal(got, plain.body) {
			t.Errorf("%s: inflated %d bytes differ from %d plain ones", c.name, len(got), len(plain.body))
		}
		if len(plain.body) > 1<<16 && len(small.body) > len(plain.body)/10 {
			t.Errorf("%s: %d bytes became %d", c.name, len(plain.body), len(small.body))
		}
		if c.tag && (plain.header.Get("ETag") != tag || small.header.Get("ETag") != tag) {
			t.Errorf("%s: ETags %s and %s, want %s", c.name, plain.header.Get("ETag"), small.header.Get("ETag"), tag)
		}
		if !strings.Contains(strings.Join(plain.header.Values("Vary"), ","), "Accept-Encoding") {
			t.Errorf("%s: Vary is %v", c.name, plain.header.Values("Vary"))
		}
	}
	// Small answers stay as they are.
	if a := s.do(t, "GET", "/v1/demo/namespaces", "", header{"Accept-Encoding", "gzip"}).want(t, 200); a.header.Get("Content-Encoding") != "" {
		t.Error("a small answer was compressed")
	}
	// Labels longer than a stored block of deflate, which also change the tag.
	labels, err := json.Marshal(map[string]any{"object-labels": map[string]string{"owner": strings.Repeat("x", 150_000)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.warehouse.SetLabels(t.Context(), catalog.Mutation{}, catalog.KindTable, catalog.Ident{Namespace: catalog.Namespace{"m"}, Name: "t"}, labels); err != nil {
		t.Fatal(err)
	}
	plain := s.do(t, "GET", table, "", header{"If-None-Match", tag}).want(t, 200)
	small := s.do(t, "GET", table, "", header{"Accept-Encoding", "br, *;q=0.1"}).want(t, 200)
	if !bytes.Equal(small.inflated(t), plain.body) || !bytes.Contains(plain.body, []byte(`"labels":{"object-labels":`)) {
		t.Error("labels are not in both answers")
	}
}

func TestBodyLimits(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *rest.Config) { c.MaxBodyBytes = 10_000 })
	long := `{"namespace":["n"],"x":"` + strings.Repeat("a", 20_000) + `"}`
	for name, c := range map[string]struct {
		body   string
		header header
		status int
	}{
		"too long":                  {long, header{}, 413},
		"inflates to too much":      {gzipped(t, long), header{"Content-Encoding", "gzip"}, 413},
		"cut short":                 {gzipped(t, long)[:40], header{"Content-Encoding", "gzip"}, 400},
		"trailing garbage":          {gzipped(t, `{"namespace":["n"]}`) + "xxxx", header{"Content-Encoding", "gzip"}, 400},
		"two members":               {gzipped(t, `{"namespace":`) + gzipped(t, `["two"]}`), header{"Content-Encoding", "X-GZIP"}, 200},
		"no content type":           {`{"namespace":["o"]}`, header{"Content-Type", ""}, 200},
		"content type with charset": {`{"namespace":["p"]}`, header{"Content-Type", "Application/JSON; charset=UTF-8"}, 200},
	} {
		if a := s.do(t, "POST", "/v1/demo/namespaces", c.body, c.header); a.status != c.status {
			t.Errorf("%s: status %d, want %d: %s", name, a.status, c.status, a.body)
		} else if a.status >= 400 {
			a.kind(t)
		}
	}
	// Of unknown length, and longer than allowed.
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/demo/namespaces", io.MultiReader(strings.NewReader(long)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer writer")
	send(t, r).want(t, 413)
}

// slow is a body that stops in the middle.
type slow struct{ first io.Reader }

type timeoutError struct{}

func (timeoutError) Error() string { return "i/o timeout" }
func (timeoutError) Timeout() bool { return true }

func (s slow) Read(p []byte) (int, error) {
	if n, err := s.first.Read(p); err == nil {
		return n, nil
	}
	return 0, timeoutError{}
}

func TestSlowBody(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/demo/namespaces", slow{strings.NewReader(`{"name`)})
	r.Header.Set("Authorization", "Bearer writer")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	a := answer{w.Code, w.Header(), w.Body.Bytes()}
	if kind, _ := a.kind(t); a.status != 408 || kind != "RequestTimeoutException" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestETags checks that equal states have one tag, and others another.
func TestETags(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t)
	tag := func(a answer) string {
		t.Helper()
		if e := a.header.Get("ETag"); len(e) > 2 && e[0] == '"' {
			return e
		}
		t.Fatalf("no strong ETag: %v", a.header)
		return ""
	}
	table := "/v1/demo/namespaces/m/tables/t"
	created := tag(s.do(t, "POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "t")).want(t, 200))
	loaded := tag(s.do(t, "GET", table, "").want(t, 200))
	committed := tag(s.do(t, "POST", table, `{"requirements":[],"updates":[{"action":"set-properties","updates":{"x":"1"}}]}`).want(t, 200))
	if created != loaded {
		t.Errorf("create gave %s, load %s", created, loaded)
	}
	tags := map[string]string{created: "before the commit"}
	for name, a := range map[string]answer{
		"all":                  s.do(t, "GET", table, ""),
		"refs":                 s.do(t, "GET", table+"?snapshots=refs", ""),
		"vended":               s.do(t, "GET", table, "", header{"X-Iceberg-Access-Delegation", "vended-credentials"}),
		"signing":              s.do(t, "GET", table, "", header{"X-Iceberg-Access-Delegation", "remote-signing"}),
		"both":                 s.do(t, "GET", table, "", header{"X-Iceberg-Access-Delegation", "remote-signing, vended-credentials"}),
		"by who may only read": s.do(t, "GET", table, "", header{"Authorization", "Bearer reader"}),
	} {
		e := tag(a.want(t, 200))
		if other, ok := tags[e]; ok {
			t.Errorf("%q and %q have one tag", name, other)
		}
		tags[e] = name
	}
	if tags[committed] != "all" {
		t.Errorf("the tag of the commit is that of %q", tags[committed])
	}
	for name, c := range map[string]struct {
		headers []header
		status  int
	}{
		"the list's order and unknown mechanisms do not matter": {[]header{
			{"X-Iceberg-Access-Delegation", ", vended-credentials ,x-new,remote-signing"},
			{"If-None-Match", tag(s.do(t, "GET", table, "", header{"X-Iceberg-Access-Delegation", "remote-signing,vended-credentials"}))},
		}, 304},
		"another mode's tag":      {[]header{{"X-Iceberg-Access-Delegation", "remote-signing"}, {"If-None-Match", committed}}, 200},
		"another principal's tag": {[]header{{"Authorization", "Bearer reader"}, {"If-None-Match", committed}}, 200},
		"an old tag":              {[]header{{"If-None-Match", created}}, 200},
		"a weak tag in a list":    {[]header{{"If-None-Match", `"a,b" , W/` + committed}}, 304},
		"without quotes":          {[]header{{"If-None-Match", strings.Trim(committed, `"`)}}, 304},
		"any":                     {[]header{{"If-None-Match", "*"}}, 304},
		"nonsense":                {[]header{{"If-None-Match", `"`}}, 200},
		"empty":                   {[]header{{"If-None-Match", ","}}, 200},
	} {
		a := s.do(t, "GET", table, "", c.headers...)
		if a.status != c.status {
			t.Errorf("%s: status %d, want %d", name, a.status, c.status)
		}
		if a.status == 304 && (len(a.body) > 0 || a.header.Get("ETag") == "" || a.header.Get("Cache-Control") != "private, no-cache" || a.header.Get("Vary") == "") {
			t.Errorf("%s: 304 with %q and %v", name, a.body, a.header)
		}
	}
}

// TestNotModifiedReadsNoMetadata takes the metadata files away: a 304 must
// come from the row alone.
func TestNotModifiedReadsNoMetadata(t *testing.T) {
	t.Parallel()
	counted := &counting{}
	s := start(t, func(c *rest.Config) { counted.Warehouse = c.Warehouses[0]; c.Warehouses[0] = counted })
	s.create(t, "t")
	tag := s.do(t, "GET", "/v1/demo/namespaces/m/tables/t", "").want(t, 200).header.Get("ETag")
	before := counted.reads()
	s.do(t, "GET", "/v1/demo/namespaces/m/tables/t", "", header{"If-None-Match", tag}).want(t, 304)
	if counted.reads() != before || before == 0 {
		t.Errorf("metadata was read %d times, then %d", before, counted.reads())
	}
}

// TestPaging walks listings while they change: what was there all the time is
// seen exactly once.
func TestPaging(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t)
	var kept []string
	for i := range 23 {
		name := fmt.Sprintf("t%02d", i)
		s.create(t, name)
		if i != 6 && i != 7 {
			kept = append(kept, name)
		}
	}
	var seen []string
	token, pages := "", 0
	for {
		a := s.do(t, "GET", "/v1/demo/namespaces/m/tables?pageSize=4&pageToken="+token, "").want(t, 200)
		var body struct {
			Identifiers []struct{ Name string }
			Next        *string `json:"next-page-token"`
		}
		if err := json.Unmarshal(a.body, &body); err != nil {
			t.Fatal(err)
		}
		for _, id := range body.Identifiers {
			seen = append(seen, id.Name)
		}
		if pages++; pages == 2 {
			// The last name of the page goes, and one that is to come; others
			// come, before and after.
			for _, gone := range []string{"t07", "t06"} {
				s.do(t, "DELETE", "/v1/demo/namespaces/m/tables/"+gone, "").want(t, 204)
			}
			s.create(t, "a", "t05a")
		}
		if body.Next == nil {
			break
		}
		token = *body.Next
		for _, wrong := range []string{
			"/v1/demo/namespaces/m/views?pageToken=" + token,
			"/v1/demo/namespaces?pageToken=" + token,
			"/v1/demo/namespaces/m/tables?pageToken=" + token[1:],
			"/v1/demo/namespaces/m/tables?pageToken=" + token + "A",
		} {
			s.do(t, "GET", wrong, "").want(t, 400)
		}
	}
	seen = slices.DeleteFunc(seen, func(name string) bool { return name == "t06" || name == "t07" })
	if !slices.Equal(seen, kept) || pages != 6 {
		t.Errorf("seen in %d pages: %v", pages, seen)
	}
	all := s.do(t, "GET", "/v1/demo/namespaces/m/tables?pageSize=4", "").want(t, 200)
	if n := bytes.Count(all.body, []byte(`"name"`)); n != 23 || !bytes.Contains(all.body, []byte(`"next-page-token":null`)) {
		t.Errorf("without pageToken there are %d names", n)
	}
	// pageSize is capped, not refused.
	s.do(t, "GET", "/v1/demo/namespaces/m/tables?pageToken=&pageSize=1000000", "").want(t, 200)
}

// renamed is a warehouse under another name.
type renamed struct {
	rest.Warehouse
	name string
}

func (r renamed) Name() string { return r.name }

// TestWarehouseNames serves warehouses that are called like parts of routes.
func TestWarehouseNames(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *rest.Config) {
		w := c.Warehouses[0]
		c.Warehouses = []rest.Warehouse{renamed{w, "config"}, renamed{w, "oauth"}, renamed{w, "namespaces"}, renamed{w, "demo"}}
		c.Authenticate = func(*http.Request) (identity.Principal, error) {
			return identity.Principal{ID: "account:a", Grants: []identity.Grant{{Warehouse: identity.AnyWarehouse, Access: identity.AccessWrite}}}, nil
		}
		c.Tokens = http.NotFoundHandler()
	})
	for _, name := range []string{"config", "oauth", "namespaces", "demo"} {
		s.do(t, "GET", "/v1/"+name+"/namespaces", "").want(t, 200)
		a := s.do(t, "GET", "/v1/config?warehouse="+name, "").want(t, 200)
		if !bytes.Contains(a.body, []byte(`"prefix":"`+name+`"`)) {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	a := s.do(t, "GET", "/v1/config", "").want(t, 400)
	if _, message := a.kind(t); !strings.HasPrefix(message, "warehouse: required") {
		t.Errorf("with several warehouses: %s", message)
	}
}

// TestEndpointsAreServed asks for every advertised endpoint: none may be
// unknown to the router.
func TestEndpointsAreServed(t *testing.T) {
	t.Parallel()
	s := start(t)
	var config struct{ Endpoints []string }
	if err := json.Unmarshal(s.do(t, "GET", "/v1/config", "").want(t, 200).body, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Endpoints) < 28 || slices.ContainsFunc(config.Endpoints, func(e string) bool { return strings.HasSuffix(e, "/sign") }) {
		t.Errorf("endpoints: %v", config.Endpoints)
	}
	fill := strings.NewReplacer("{prefix}", "demo", "{namespace}", "none", "{table}", "none", "{view}", "none", "{function}", "none")
	for _, e := range config.Endpoints {
		method, path, _ := strings.Cut(e, " ")
		a := s.do(t, method, fill.Replace(path), "{}")
		if a.status == 405 || bytes.Contains(a.body, []byte("No such route")) || a.status >= 500 {
			t.Errorf("%s: %d %s", e, a.status, a.body)
		}
	}
}

// counting counts reads of metadata, and does to look-ups what a test wants.
type counting struct {
	rest.Warehouse
	mu       sync.Mutex
	metadata int
	lookup   func(context.Context) error
}

func (c *counting) TableMetadata(ctx context.Context, o catalog.Object) (*metadata.Document, error) {
	c.mu.Lock()
	c.metadata++
	c.mu.Unlock()
	return c.Warehouse.TableMetadata(ctx, o)
}

func (c *counting) LookupTable(ctx context.Context, id catalog.Ident) (catalog.Object, error) {
	if c.lookup != nil {
		if err := c.lookup(ctx); err != nil {
			return catalog.Object{}, err
		}
	}
	return c.Warehouse.LookupTable(ctx, id)
}

func (c *counting) reads() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metadata
}

// TestFailures checks what a client, the logs and the metrics hear of
// failures inside.
func TestFailures(t *testing.T) {
	t.Parallel()
	var logs bytes.Buffer
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{})
	faults := &counting{}
	s := start(t, func(c *rest.Config) {
		faults.Warehouse = c.Warehouses[0]
		c.Warehouses[0] = faults
		c.Metrics = metrics
		c.Logger = slog.New(slog.NewJSONHandler(&logs, nil))
	})
	s.create(t, "t")
	ask := func(ctx context.Context) answer {
		r := httptest.NewRequestWithContext(ctx, "GET", "/v1/demo/namespaces/m/tables/t", nil)
		r.Header.Set("Authorization", "Bearer writer")
		r.Header.Set("X-Request-Id", "my-id.1_2")
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		return answer{w.Code, w.Header(), w.Body.Bytes()}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx     context.Context
		lookup  func(context.Context) error
		status  int
		kind    string
		message string
	}{
		"panic":    {t.Context(), func(context.Context) error { panic("a secret") }, 500, "InternalServerError", "Internal error; the logs have more under request id my-id.1_2"},
		"internal": {t.Context(), func(context.Context) error { return errors.New("a secret") }, 500, "InternalServerError", "Internal error; the logs have more under request id my-id.1_2"},
		"unknown outcome of a read": {t.Context(), func(context.Context) error {
			return &catalog.Error{Reason: catalog.CommitStateUnknown, Message: "lost"}
		}, 500, "InternalServerError", "lost"},
		"deadline":                  {t.Context(), func(context.Context) error { return context.DeadlineExceeded }, 503, "ServiceUnavailableException", "The request took too long"},
		"cancelled by someone else": {t.Context(), func(context.Context) error { return context.Canceled }, 503, "ServiceUnavailableException", "The request took too long"},
		"the client is gone":        {gone, func(ctx context.Context) error { return ctx.Err() }, 499, "ClientClosedRequest", "The client closed the request"},
	} {
		faults.lookup = c.lookup
		a := ask(c.ctx)
		kind, message := a.kind(t)
		if a.status != c.status || kind != c.kind || message != c.message || a.header.Get("X-Request-Id") != "my-id.1_2" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s %q %v", name, a.status, kind, message, a.header)
		}
	}
	if n := strings.Count(logs.String(), `"level":"ERROR"`); n != 6 || !strings.Contains(logs.String(), `"panic":"a secret"`) {
		t.Errorf("%d errors in the logs:\n%s", n, &logs) // the panic is logged with its stack and as a failed request
	}
	scrape := httptest.NewRecorder()
	s.do(t, "GET", "/nowhere", "").want(t, 404)
	metrics.Handler().ServeHTTP(scrape, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for _, line := range []string{
		`sluice_http_requests_total{code="500",method="GET",route="loadTable"} 3`,
		`sluice_http_requests_total{code="499",method="GET",route="loadTable"} 1`,
		`sluice_http_requests_total{code="404",method="any",route="unknown"} 1`,
		`sluice_http_requests_in_flight 0`,
		`sluice_http_panics_total 1`,
	} {
		if !strings.Contains(scrape.Body.String(), line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

// TestAbort lets a handler's abort through, and counts the request all the
// same.
func TestAbort(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{})
	s := start(t, func(c *rest.Config) {
		c.Metrics = metrics
		c.Tokens = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	})
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/oauth/tokens", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(r); err == nil {
		resp.Body.Close()
		t.Errorf("an aborted request was answered: %s", resp.Status)
	}
	scrape := httptest.NewRecorder()
	deadline := time.Now().Add(5 * time.Second)
	for {
		metrics.Handler().ServeHTTP(scrape, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		if strings.Contains(scrape.Body.String(), "sluice_http_requests_in_flight 0\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the request still counts as running")
		}
		scrape = httptest.NewRecorder()
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	s := start(t)
	for id, kept := range map[string]bool{
		"a": true, "0f-A_z.9": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, `a"b`: false, "é": false, "a\tb": false, "a;b": false,
	} {
		a := s.do(t, "GET", "/v1/config", "", header{"X-Request-Id", id})
		got := a.header.Get("X-Request-Id")
		if kept != (got == id) || !kept && len(got) != 24 {
			t.Errorf("%q became %q", id, got)
		}
	}
}

// TestAudit checks what the audit log of reads hears, and that nothing is
// answered when it cannot record.
func TestAudit(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var heard []string
	var full error
	s := start(t, func(c *rest.Config) {
		c.Audit = func(_ context.Context, a rest.Access) error {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, fmt.Sprintf("%s %s %s %s %d %s", a.Principal.ID, a.Operation, a.Warehouse, a.Resource, a.Status, a.Decision))
			return full
		}
	})
	s.create(t, "t")
	tag := s.do(t, "GET", "/v1/demo/namespaces/m/tables/t", "").want(t, 200).header.Get("ETag")
	s.do(t, "GET", "/v1/demo/namespaces/m/tables/t", "", header{"If-None-Match", tag}).want(t, 304)
	s.do(t, "HEAD", "/v1/demo/namespaces/m/tables/none", "").want(t, 404)
	s.do(t, "DELETE", "/v1/demo/namespaces/m/tables/t", "", header{"Authorization", "Bearer reader"}).want(t, 403)
	s.do(t, "GET", "/v1/config", "", header{"Authorization", ""}).want(t, 401)
	s.do(t, "GET", "/v1/demo/namespaces/m/tables/t/credentials", "").want(t, 200)
	s.do(t, "GET", "/nowhere", "").want(t, 404)
	s.do(t, "GET", "/v1/other/namespaces", "").want(t, 404)
	want := []string{
		"account:writer loadTable demo m.t 200 allow",
		"account:writer loadTable demo m.t 304 allow",
		"account:writer tableExists demo m.none 404 allow",
		"account:reader dropTable demo m.t 403 deny",
		" getConfig   401 deny",
		"account:writer loadCredentials demo m.t 200 allow",
		"account:writer listNamespaces   404 deny",
	}
	if !slices.Equal(heard, want) {
		t.Errorf("heard\n%s\nwant\n%s", strings.Join(heard, "\n"), strings.Join(want, "\n"))
	}
	mu.Lock()
	full = errors.New("disk full: /var/log")
	mu.Unlock()
	for _, path := range []string{"/v1/demo/namespaces/m/tables/t", "/v1/demo/namespaces/m/tables/none", "/v1/config", "/v1/demo/namespaces"} {
		a := s.do(t, "GET", path, "").want(t, 503)
		if kind, message := a.kind(t); kind != "ServiceUnavailableException" || strings.Contains(message, "disk") || a.header.Get("Retry-After") != "1" || a.header.Get("ETag") != "" {
			t.Errorf("%s: %s %q %v", path, kind, message, a.header)
		}
	}
	// Changes are recorded with themselves.
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["n"]}`).want(t, 200)
}

func TestFunctions(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t)
	const raw = `{"function-uuid":"5a1e1b7e-0f3c-4c53-9f0a-111111111111","format-version":1,"definitions":[{"definition-id":"int","parameters":[],"return-type":"int","versions":[],"current-version-id":1}],"definition-log":[]}`
	id := catalog.Ident{Namespace: catalog.Namespace{"m"}, Name: `f"é`}
	if _, err := s.warehouse.PutFunction(t.Context(), catalog.Mutation{}, id, json.RawMessage(raw)); err != nil {
		t.Fatal(err)
	}
	a := s.do(t, "GET", "/v1/demo/namespaces/m/functions?pageToken=", "").want(t, 200)
	if want := `{"identifiers":[["m","f\"é"]],"next-page-token":null}`; string(a.body) != want {
		t.Errorf("got %s, want %s", a.body, want)
	}
	a = s.do(t, "GET", "/v1/demo/namespaces/m/functions/f%22%C3%A9", "").want(t, 200)
	if want := `{"metadata":` + raw + `}`; string(a.body) != want {
		t.Errorf("got %s, want %s", a.body, want)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]rest.Config{
		"nothing":           {},
		"no authentication": {Warehouses: []rest.Warehouse{renamed{name: "a"}}},
		"no warehouse":      {Authenticate: authenticate},
	} {
		if _, err := rest.New(cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestBodiesThatGrow is about requests that are small on the wire and would
// be large in memory.
func TestBodiesThatGrow(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, "t")
	const many = 2_000_000
	list := func(element string) string { return "[" + strings.Repeat(element+",", many) + element + "]" }
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/demo/namespaces/m/properties", `{"removals":` + list(`""`) + `}`},
		{"POST", "/v1/demo/transactions/commit", `{"table-changes":` + list(`{}`) + `}`},
		{"POST", "/v1/demo/transactions/commit", `{"table-changes":[{"identifier":{"namespace":` + list(`""`) + `,"name":"t"},"requirements":[],"updates":[]}]}`},
		{"POST", "/v1/demo/namespaces/m/views", `{"name":"v","properties":{"a":"b"},"x":` + list(`0`) + `}`},
	} {
		a := s.do(t, c.method, c.path, gzipped(t, c.body), header{"Content-Encoding", "gzip"}).want(t, 400)
		if !strings.Contains(string(a.body), "more than 100000 entries in a list, or 1000000 values in all") {
			t.Errorf("%s: %s", c.path, a.body)
		}
	}
	report := `{"report-type":"scan-report","table-name":"t","snapshot-id":1,"metrics":{"a":"` + strings.Repeat("x", 300_000) + `"}}`
	s.do(t, "POST", "/v1/demo/namespaces/m/tables/t/metrics", report).want(t, 413)
	s.do(t, "POST", "/v1/demo/namespaces/m/tables/t/metrics", gzipped(t, report), header{"Content-Encoding", "gzip"}).want(t, 413)
	s.do(t, "POST", "/v1/demo/namespaces/m/tables/t/metrics", `{"report-type":"scan-report","table-name":"t","snapshot-id":1,"metrics":[]}`).want(t, 400)
}

// TestLargeBodiesTogether sends more at once than all may hold: the last is
// refused for now, and goes through when the others are done.
func TestLargeBodiesTogether(t *testing.T) {
	t.Parallel()
	const limit = 3 << 20
	s := start(t, func(c *rest.Config) { c.MaxBodyBytes = limit })
	s.create(t, "t")
	body := `{"requirements":[],"updates":[{"action":"set-properties","updates":{"k":"v"}}],"x":"` + strings.Repeat("x", limit-200) + `"}`
	path := "/v1/demo/namespaces/m/tables/t"
	var held []*io.PipeWriter
	var answers []chan int
	for range 7 { // each holds 2 MiB beside what is free; four times the limit is 12
		r, w := io.Pipe()
		req := httptest.NewRequestWithContext(t.Context(), "POST", path, r)
		req.Header.Set("Authorization", "Bearer writer")
		req.Header.Set("Content-Type", "application/json")
		done := make(chan int, 1)
		go func() {
			rec := httptest.NewRecorder()
			s.handler.ServeHTTP(rec, req)
			_ = r.Close()
			done <- rec.Code
		}()
		_, _ = io.WriteString(w, body[:len(body)-1])
		// The reader takes this when it has counted what it read before.
		_, _ = w.Write(nil)
		held, answers = append(held, w), append(answers, done)
	}
	if code := <-answers[6]; code != 503 {
		t.Errorf("the seventh was answered with %d", code)
	}
	for i, w := range held[:6] {
		_, _ = io.WriteString(w, "}")
		_ = w.Close()
		if code := <-answers[i]; code != 200 {
			t.Errorf("request %d was answered with %d", i, code)
		}
	}
	s.do(t, "POST", path, body).want(t, 200)
}
