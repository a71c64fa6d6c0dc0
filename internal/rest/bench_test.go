// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/rest"
	"github.com/sluice-data/sluice/internal/telemetry"
)

// memory is a warehouse of one table whose row and metadata cost nothing to
// look up, so that only this package's own work is measured.
type memory struct {
	rest.Warehouse
	object catalog.Object
	doc    *metadata.Document
}

func (m memory) LookupTable(context.Context, catalog.Ident) (catalog.Object, error) {
	return m.object, nil
}

func (m memory) TableMetadata(context.Context, catalog.Object) (*metadata.Document, error) {
	return m.doc, nil
}

// sink is a ResponseWriter that costs nothing.
type sink struct {
	header http.Header
	status int
	bytes  int
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(status int) { s.status = status }

func (s *sink) Write(b []byte) (int, error) { s.bytes += len(b); return len(b), nil }

// BenchmarkLoadTable is loadTable without look-up, authentication and
// network: what this package itself adds. "bare" is a handler that writes the
// same bytes.
func BenchmarkLoadTable(b *testing.B) {
	s := start(b)
	s.create(b, "small", "large")
	for i := range 200 {
		update := fmt.Sprintf(`{"requirements":[],"updates":[{"action":"set-properties","updates":{"key-%d":%q}}]}`, i, strings.Repeat("text ", 1000))
		s.do(b, "POST", "/v1/demo/namespaces/m/tables/large", update).want(b, 200)
	}
	for _, size := range []string{"small", "large"} {
		object, err := s.warehouse.LookupTable(b.Context(), catalog.Ident{Namespace: catalog.Namespace{"m"}, Name: size})
		if err != nil {
			b.Fatal(err)
		}
		doc, err := s.warehouse.TableMetadata(b.Context(), object)
		if err != nil {
			b.Fatal(err)
		}
		h, err := rest.New(rest.Config{
			Warehouses: []rest.Warehouse{memory{s.warehouse, object, doc}}, Authenticate: authenticate,
			Metrics: telemetry.NewMetrics(telemetry.MetricsOptions{}), Audit: func(context.Context, rest.Access) error { return nil },
		})
		if err != nil {
			b.Fatal(err)
		}
		ask := func(headers ...string) *http.Request {
			r := httptest.NewRequestWithContext(b.Context(), "GET", "/v1/demo/namespaces/m/tables/"+size, nil)
			r.Header.Set("Authorization", "Bearer writer")
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			return r
		}
		seen := httptest.NewRecorder()
		h.ServeHTTP(seen, ask())
		body := seen.Body.Bytes()
		bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body)
		})
		for _, c := range []struct {
			name    string
			handler http.Handler
			request *http.Request
			status  int
		}{
			{"plain", h, ask(), 200},
			{"gzip", h, ask("Accept-Encoding", "gzip"), 200},
			{"not-modified", h, ask("If-None-Match", seen.Header().Get("ETag")), 304},
			{"bare", bare, ask(), 200},
		} {
			b.Run(fmt.Sprintf("%s-%dK/%s", size, len(body)>>10, c.name), func(b *testing.B) {
				b.ReportAllocs()
				w := &sink{header: http.Header{}}
				for b.Loop() {
					clear(w.header)
					w.status = 0
					c.handler.ServeHTTP(w, c.request)
				}
				if w.status != c.status && w.status != 0 {
					b.Fatalf("status %d, want %d", w.status, c.status)
				}
			})
		}
	}
}

// names is a warehouse of n tables that cost nothing to list.
type names struct {
	rest.Warehouse
	all []string
}

func (n names) ListTables(context.Context, catalog.Namespace, catalog.Page) ([]string, string, error) {
	return n.all, "", nil
}

// BenchmarkListTables encodes the answer for 100,000 tables.
func BenchmarkListTables(b *testing.B) {
	s := start(b)
	n := names{Warehouse: s.warehouse}
	for i := range 100_000 {
		n.all = append(n.all, fmt.Sprintf("table_%06d", i))
	}
	h, err := rest.New(rest.Config{Warehouses: []rest.Warehouse{n}, Authenticate: authenticate})
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequestWithContext(b.Context(), "GET", "/v1/demo/namespaces/m/tables", nil)
	r.Header.Set("Authorization", "Bearer writer")
	b.ReportAllocs()
	w := &sink{header: http.Header{}}
	for b.Loop() {
		clear(w.header)
		w.bytes = 0
		h.ServeHTTP(w, r)
	}
	b.SetBytes(int64(w.bytes))
}

// BenchmarkCommitLarge is a commit to a table of 10,000 snapshots (10 MB of
// metadata) without network: decode, apply, write the file, move the pointer,
// answer with all of it.
func BenchmarkCommitLarge(b *testing.B) {
	s := start(b)
	table := s.root + "/large"
	var snapshots, log strings.Builder
	const n = 10_000
	for i := range n {
		if i > 0 {
			snapshots.WriteByte(',')
			log.WriteByte(',')
		}
		fmt.Fprintf(&snapshots, `{"sequence-number":%d,"snapshot-id":%d,"timestamp-ms":%d,"summary":{"operation":"append","note":%q},"manifest-list":"%s/metadata/snap-%d.avro","schema-id":0}`,
			i+1, i+1, 1600000000000+i, strings.Repeat("x", 800), table, i+1)
		fmt.Fprintf(&log, `{"timestamp-ms":%d,"snapshot-id":%d}`, 1600000000000+i, i+1)
	}
	file := table + "/metadata/00000-a.metadata.json"
	document := fmt.Sprintf(`{"format-version":2,"table-uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1","location":%q,"last-updated-ms":1700000000000,
		"last-column-id":1,"current-schema-id":0,"schemas":[{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":true,"type":"long"}]}],
		"default-spec-id":0,"partition-specs":[{"spec-id":0,"fields":[]}],"last-partition-id":999,"default-sort-order-id":0,"sort-orders":[{"order-id":0,"fields":[]}],
		"properties":{},"refs":{"main":{"snapshot-id":%d,"type":"branch"}},"last-sequence-number":%d,"current-snapshot-id":%d,"snapshots":[%s],"snapshot-log":[%s]}`,
		table, n, n, n, snapshots.String(), log.String())
	path := strings.TrimPrefix(file, "file://")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(document), 0o644); err != nil {
		b.Fatal(err)
	}
	s.create(b, "small") // makes the namespace
	s.do(b, "POST", "/v1/demo/namespaces/m/register", fmt.Sprintf(`{"name":"large","metadata-location":%q}`, file)).want(b, 200)
	b.SetBytes(int64(len(document)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		update := fmt.Sprintf(`{"requirements":[{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":%d}],"updates":[
			{"action":"add-snapshot","snapshot":{"sequence-number":%d,"snapshot-id":%d,"timestamp-ms":1700000000001,"summary":{"operation":"append"},"manifest-list":"%s/metadata/snap-%d.avro","schema-id":0}},
			{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":%d}]}`, n+i, n+i+1, n+i+1, table, n+i+1, n+i+1)
		r := httptest.NewRequestWithContext(b.Context(), "POST", "/v1/demo/namespaces/m/tables/large", strings.NewReader(update))
		r.Header.Set("Authorization", "Bearer writer")
		r.Header.Set("Content-Type", "application/json")
		w := &sink{header: http.Header{}}
		s.handler.ServeHTTP(w, r)
		if w.status != http.StatusOK || w.bytes < len(document) {
			b.Fatalf("status %d, %d bytes", w.status, w.bytes)
		}
	}
}
