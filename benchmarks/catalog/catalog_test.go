// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/catalog/postgres"
	"github.com/sluice-data/sluice/internal/catalog/postgres/pgtest"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
)

// TestLoad checks that the generator sends what it is told, each request
// equally often, and counts what came back.
func TestLoad(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	paths, bodies, connections := map[string]int{}, map[string]int{}, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("body %q of %d: %v", body, r.ContentLength, err)
		}
		mu.Lock()
		defer mu.Unlock()
		paths[r.URL.Path]++
		bodies[string(body)]++
		connections[r.RemoteAddr] = true
		if r.Header.Get("X-Fail") != "" {
			http.Error(w, "no", http.StatusConflict)
			return
		}
		// Longer than what is buffered, so that it is chunked.
		fmt.Fprint(w, strings.Repeat("x", 5000))
	}))
	defer server.Close()
	var requests []request
	for i := range 8 {
		requests = append(requests, request{Method: http.MethodPost, Path: fmt.Sprintf("/%d", i), Body: "n" + placeholder})
	}
	requests[7].Header = []string{"X-Fail: 1"}
	o, err := load{Address: server.Listener.Addr().String(), Connections: 4, Count: 64, Requests: requests, First: 10}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o.OK != 56 || o.Failed != 8 || o.Bytes != 56*5000 || !strings.HasPrefix(o.Problem, "409 Conflict: no") || o.P99 < o.P50 || o.P50 <= 0 {
		t.Errorf("got %+v", o)
	}
	for i := range 8 {
		if n := paths[fmt.Sprintf("/%d", i)]; n != 8 {
			t.Errorf("/%d was asked for %d times, not 8", i, n)
		}
	}
	for i := 11; i <= 74; i++ {
		if n := bodies[fmt.Sprintf("n%d", i)]; n != 1 {
			t.Errorf("n%d was sent %d times, not once", i, n)
		}
	}
	if len(connections) != 4 {
		t.Errorf("%d connections, not 4", len(connections))
	}
}

func TestLoadForATime(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }))
	defer server.Close()
	l := load{Address: server.Listener.Addr().String(), Connections: 3, Duration: 50 * time.Millisecond, Requests: []request{{Method: http.MethodGet, Path: "/"}}}
	o, err := l.run(t.Context())
	if err != nil || o.OK < 3 || o.Failed != 0 || o.Elapsed < l.Duration {
		t.Errorf("got %+v, %v", o, err)
	}
	l.Count, l.Duration = 4, time.Hour
	if o, err := l.run(t.Context()); err != nil || o.OK != 4 {
		t.Errorf("a count within its time: got %+v, %v", o, err)
	}
	l.Count, l.Duration = 0, 0
	if _, err := l.run(t.Context()); err == nil {
		t.Error("a load without end is accepted")
	}
	server.Close()
	l.Count = 1
	if _, err := l.run(t.Context()); err == nil {
		t.Error("a server that is gone is no error")
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	got := string(request{Method: "GET", Path: "/a/" + placeholder, Header: []string{"A: b"}}.render("h:1", 5))
	if got != "GET /a/5 HTTP/1.1\r\nHost: h:1\r\nA: b\r\n\r\n" {
		t.Errorf("got %q", got)
	}
	before := time.Now().UnixMilli()
	text := string(request{Method: "POST", Path: "/", Body: `[` + placeholderNow + `]`}.render("h", 5))
	var sent []int64
	if err := json.Unmarshal([]byte(text[strings.Index(text, "\r\n\r\n"):]), &sent); err != nil || sent[0] < before || sent[0] > time.Now().UnixMilli() {
		t.Errorf("got %q: %v", text, err)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	s, err := parseStat("42 (a ) b) S 7 42 42 0 -1 4194560 100 0 0 0 150 50 3 4 20 0 1 0 100")
	if err != nil || s != (stat{parent: 7, own: 2 * time.Second, descended: 70 * time.Millisecond}) {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := parseStat("42"); err == nil {
		t.Error("nonsense is accepted")
	}
}

// TestCPU checks the numbers of the kernel against work of a known length.
func TestCPU(t *testing.T) {
	t.Parallel()
	before, err := cpu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	used, err := cpuOf(1, func() error {
		for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
			runtime.Gosched()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	after, err := cpu(os.Getpid())
	if err != nil || used <= 0 || after <= before {
		t.Errorf("getrusage says %.1f ms, /proc went from %s to %s: %v", used, before, after, err)
	}
	if tree, err := cpuTree(os.Getpid()); err != nil || tree < after {
		t.Errorf("with children %s, alone %s: %v", tree, after, err)
	}
	for _, key := range []string{"VmRSS", "VmHWM"} {
		if n, err := memory(os.Getpid(), key); err != nil || n < 1<<20 {
			t.Errorf("%s is %d: %v", key, n, err)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 3}, 3}, {[]float64{4, 1, 3, 100}, 3.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v: got %v, want %v", c.values, got, c.want)
		}
	}
}

func TestMedianOfNothing(t *testing.T) {
	t.Parallel()
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("got %v; a median of nothing must not pass for a cost", got)
	}
}

func TestGoals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got  goal
		want string
	}{
		{atLeast("a", 5, 5.12345, "x"), `{"goal":"a","want":5,"got":5.12,"unit":"x","met":true}`},
		{atLeast("a", 5, 4.999, "x"), `{"goal":"a","want":5,"got":5,"unit":"x","met":false}`},
		{atMost("a", 60, 61, "MB"), `{"goal":"a","want":60,"got":61,"unit":"MB","met":false}`},
		{atMost("a", 0.5, 0.01234, "s"), `{"goal":"a","want":0.5,"got":0.0123,"unit":"s","met":true}`},
		{atMost("too small to count", 4, 0, "x"), `{"goal":"too small to count","want":4,"got":0,"unit":"x","met":false}`},
		{atMost("not measured", 4, math.NaN(), "x"), `{"goal":"not measured","want":4,"got":null,"unit":"x","met":false}`},
		{atLeast("by nothing", 4, math.Inf(1), "x"), `{"goal":"by nothing","want":4,"got":null,"unit":"x","met":false}`},
	} {
		got, err := json.Marshal(c.got)
		if err != nil || string(got) != c.want {
			t.Errorf("got %s, want %s (%v)", got, c.want, err)
		}
	}
}

func TestLargeMetadata(t *testing.T) {
	t.Parallel()
	raw := largeMetadata(uuid.New(), "file:///w/t", manySnapshots)
	doc, err := metadata.Parse(raw, metadata.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if doc.SnapshotCount() != manySnapshots || len(raw) < 9e6 || len(raw) > 11e6 {
		t.Errorf("%d snapshots in %d bytes", doc.SnapshotCount(), len(raw))
	}
}

// TestFill checks that the rows that the benchmark puts into the databases
// are tables to the stores.
func TestFill(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "catalog.db")
	server, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	dsn, drop, err := server.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer drop() //nolint:errcheck // the server ends anyway
	for _, engine := range []struct {
		name string
		open func(ctx context.Context) (catalog.Store, error)
		fill func(ctx context.Context, from, to int) error
	}{
		{
			"sqlite", func(ctx context.Context) (catalog.Store, error) { return sqlite.Open(ctx, file, sqlite.Options{}) },
			func(ctx context.Context, from, to int) error { return fillSQLite(ctx, file, from, to) },
		},
		{
			"postgres", func(ctx context.Context) (catalog.Store, error) {
				return postgres.Open(ctx, dsn, postgres.Options{MaxConns: 2})
			},
			func(ctx context.Context, from, to int) error { return fillPostgres(ctx, dsn, from, to) },
		},
	} {
		t.Run(engine.name, func(t *testing.T) {
			ctx := t.Context()
			warehouse := prepareStore(t, engine.open)
			if err := engine.fill(ctx, 1, 2500); err != nil {
				t.Fatal(err)
			}
			store, err := engine.open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			names, err := store.ListObjects(ctx, warehouse, catalog.Namespace{big}, catalog.KindTable, catalog.Page{})
			if err != nil || len(names) != 2500 || names[2499] != tableName(2499) {
				t.Fatalf("%d names: %v", len(names), err)
			}
			obj, err := store.Object(ctx, warehouse, catalog.Namespace{big}, tableName(1234), catalog.KindTable)
			if err != nil || obj.Location != "file:///w/first-1234" || obj.MetadataLocation != "file:///w/first-1234/metadata/00000.metadata.json" {
				t.Fatalf("got %+v, %v", obj, err)
			}
			locations, err := store.Locations(ctx, obj.ID)
			if err != nil || len(locations) != 1 || locations[0] != obj.Location {
				t.Errorf("locations %v: %v", locations, err)
			}
		})
	}
}

// prepareStore makes a store with one table, and closes it.
func prepareStore(t *testing.T, open func(ctx context.Context) (catalog.Store, error)) uuid.UUID {
	t.Helper()
	ctx := t.Context()
	store, err := open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	warehouse, err := store.EnsureWarehouse(ctx, "demo")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	err = store.Update(ctx, func(tx catalog.Tx) error {
		ns := catalog.Namespace{big}
		if err := tx.CreateNamespace(ctx, catalog.NamespaceRecord{Warehouse: warehouse, Namespace: ns, Properties: map[string]string{}, CreatedAt: now, UpdatedAt: now}); err != nil {
			return err
		}
		return tx.CreateObject(ctx, catalog.Object{
			ID: uuid.New(), Warehouse: warehouse, Kind: catalog.KindTable, Namespace: ns, Name: tableName(0), UUID: uuid.New(),
			Location: "file:///w/first", MetadataLocation: "file:///w/first/metadata/00000.metadata.json", Version: 1, CreatedAt: now, UpdatedAt: now,
		}, []string{"file:///w/first"})
	})
	if err != nil {
		t.Fatal(err)
	}
	return warehouse
}
