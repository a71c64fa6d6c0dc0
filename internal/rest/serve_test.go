// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/rest"
)

// server is the handler over SQLite and local files, with what tests want to
// reach behind its back.
type server struct {
	*httptest.Server
	handler   *rest.Handler
	warehouse *catalog.Warehouse
	store     catalog.Store
	root      string // location of the warehouse
	dir       string // the same as a path
}

// start opens a server. The tokens "writer" and "other" may write, "reader"
// may read, and "stranger" may not even see the warehouse "demo".
func start(t testing.TB, changes ...func(*rest.Config)) *server {
	t.Helper()
	dir := t.TempDir()
	store, err := sqlite.Open(t.Context(), filepath.Join(dir, "catalog.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &server{dir: filepath.Join(dir, "w"), store: store}
	s.root = "file://" + s.dir
	bucket, err := objstore.Open(t.Context(), objstore.Profile{Type: objstore.TypeFile, Root: s.root}, objstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bucket.Close() })
	s.warehouse, err = catalog.OpenWarehouse(t.Context(), catalog.Config{
		Options: catalog.Options{Name: "demo"}, Root: s.root, Store: store, Files: bucket,
		ClientConfig: map[string]string{"s3.region": "eu-central-1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.warehouse.Close)
	cfg := rest.Config{Warehouses: []rest.Warehouse{s.warehouse}, Authenticate: authenticate, Logger: slog.New(slog.DiscardHandler)}
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	for _, change := range changes {
		change(&cfg)
	}
	if s.handler, err = rest.New(cfg); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewServer(s.handler)
	t.Cleanup(s.Server.Close)
	return s
}

func authenticate(r *http.Request) (identity.Principal, error) {
	grant := func(id string, access identity.Access) (identity.Principal, error) {
		return identity.Principal{ID: "account:" + id, Grants: []identity.Grant{{Warehouse: "demo", Access: access}}}, nil
	}
	switch token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); token {
	case "writer", "other":
		return grant(token, identity.AccessWrite)
	case "reader":
		return grant(token, identity.AccessRead)
	case "stranger":
		return identity.Principal{ID: "account:stranger"}, nil
	case "throttled":
		return identity.Principal{}, &identity.Refusal{Status: http.StatusTooManyRequests, Message: "Too many attempts; try again later", RetryAfter: 1500e6}
	}
	return identity.Principal{}, &identity.Refusal{Status: http.StatusUnauthorized, Message: "Not authenticated", Challenge: `Bearer realm="sluice"`, Cause: errors.New("test")}
}

// answer is a response with its whole body.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// kind returns type and message of an error answer.
func (a answer) kind(t testing.TB) (kind, message string) {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type string
			Code          int
		}
	}
	if err := json.Unmarshal(a.body, &e); err != nil || e.Error.Code != a.status || e.Error.Type == "" || e.Error.Message == "" {
		t.Fatalf("status %d: the body is no error of the protocol: %q", a.status, a.body)
	}
	return e.Error.Type, e.Error.Message
}

// want ends the test when the status is another one.
func (a answer) want(t testing.TB, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %.500s", a.status, status, a.body)
	}
	return a
}

// header is a request header; the value "" removes it.
type header struct{ name, value string }

func key(k string) header { return header{"Idempotency-Key", k} }

// do sends a request as "writer", unless a header says otherwise. Bodies stay
// as they come: nothing is inflated.
func (s *server) do(t testing.TB, method, path, body string, headers ...header) answer {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, reader)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer writer")
	r.Header.Set("Accept-Encoding", "identity")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		if h.value == "" {
			r.Header.Del(h.name)
			continue
		}
		r.Header.Set(h.name, h.value)
	}
	return send(t, r)
}

func send(t testing.TB, r *http.Request) answer {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, bytes.TrimSpace(raw)}
}

const tableBody = `{"name":%q,"schema":{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":"long"}]}}`

// create makes the namespace m and the tables named.
func (s *server) create(t testing.TB, tables ...string) {
	t.Helper()
	if a := s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["m"]}`); a.status != 200 && a.status != 409 {
		t.Fatalf("create namespace: %d %s", a.status, a.body)
	}
	for _, name := range tables {
		s.do(t, "POST", "/v1/demo/namespaces/m/tables", strings.ReplaceAll(tableBody, "%q", `"`+name+`"`)).want(t, 200)
	}
}

// metadataLocation reads metadata-location from a load answer.
func (a answer) metadataLocation(t testing.TB) string {
	t.Helper()
	var body struct {
		Location string `json:"metadata-location"`
	}
	if err := json.Unmarshal(a.body, &body); err != nil || body.Location == "" {
		t.Fatalf("no metadata-location in %.200s", a.body)
	}
	return body.Location
}
