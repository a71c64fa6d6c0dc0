// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/catalog/storetest"
)

// TestServersMigrateOneDatabaseTogether starts several servers on an empty
// database, each with one connection to spare.
func TestServersMigrateOneDatabaseTogether(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			s, err := Open(t.Context(), dsn, Options{MaxConns: 1})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if current, newest, err := s.Version(t.Context()); err != nil || current > newest || newest < 1 {
				t.Errorf("version %d of %d: %v", current, newest, err)
			}
			if err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
			if current, newest, err := s.Version(t.Context()); err != nil || current != newest {
				t.Errorf("version %d of %d: %v", current, newest, err)
			}
		})
	}
	wg.Wait()
}

func TestForeignSchemaIsRefused(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		`INSERT INTO schema_migrations VALUES (1000, '', 0)`:                `schema version 1000`,
		`UPDATE schema_migrations SET checksum = 'other' WHERE version = 1`: `another build`,
	} {
		e, s := open(t, Options{})
		if _, err := e.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if err := s.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %s: %v", change, err)
		}
	}
}

// TestServersShareOneDatabase runs the suite on a store that uses another
// server's pool for each transaction in turn.
func TestServersShareOneDatabase(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) catalog.Store {
		first, _ := open(t, Options{MaxConns: 6})
		second, err := openEngine(t.Context(), first.pool.Config().ConnString(), Options{MaxConns: 6})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = second.Close() })
		return sqlstore.New(&alternating{engine: first, other: second})
	})
}

// alternating is two servers.
type alternating struct {
	*engine
	other *engine
	mu    sync.Mutex
	n     int
}

func (a *alternating) next() *engine {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if a.n%2 == 0 {
		return a.other
	}
	return a.engine
}

func (a *alternating) Transact(ctx context.Context, fn func(sqlstore.Conn) error) error {
	return a.next().Transact(ctx, fn)
}

func (a *alternating) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return a.next().QueryRow(ctx, query, args, dest...)
}

func (a *alternating) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	return a.next().Query(ctx, query, args...)
}

func (a *alternating) Close() error { return errors.Join(a.engine.Close(), a.other.Close()) }

func TestQueryPlans(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{MaxConns: 1})
	storetest.EveryQuery(t, s)
	ctx := t.Context()
	wh, err := s.EnsureWarehouse(ctx, "large")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(ctx, func(tx catalog.Tx) error {
		return tx.CreateNamespace(ctx, catalog.NamespaceRecord{Warehouse: wh, Namespace: catalog.Namespace{"ns"}})
	}); err != nil {
		t.Fatal(err)
	}
	if err := fill(ctx, e, wh, 20_000); err != nil {
		t.Fatal(err)
	}
	held, err := e.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	c := held.Conn()
	rows, err := c.Query(ctx, `SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement ~ '(FROM|UPDATE|DELETE)' AND statement !~ 'pg_prepared_statements'`, pgx.QueryExecModeExec)
	if err != nil {
		t.Fatal(err)
	}
	type statement struct {
		Name, Query string
		Args        int
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[statement])
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 25 {
		t.Errorf("only %d statements were prepared", len(all))
	}
	seen := map[string]bool{}
	for _, setting := range []string{
		`SET plan_cache_mode = force_generic_plan`,
		// Small tables are read whole with good reason; the question is
		// whether they could be read by an index.
		`SET enable_seqscan = off`,
	} {
		if _, err := c.Exec(ctx, setting, pgx.QueryExecModeExec); err != nil {
			t.Fatal(err)
		}
	}
	for _, st := range all {
		args := ""
		if st.Args > 0 {
			args = "(" + strings.TrimSuffix(strings.Repeat("NULL,", st.Args), ",") + ")"
		}
		rows, err := c.Query(ctx, fmt.Sprintf(`EXPLAIN EXECUTE "%s"%s`, st.Name, args), pgx.QueryExecModeExec)
		if err != nil {
			t.Fatalf("%s: %v", st.Query, err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("explain %s: %v", st.Query, err)
		}
		text := strings.Join(plan, "\n")
		if strings.Contains(text, "Seq Scan") && !strings.Contains(st.Query, "schema_migrations") {
			t.Errorf("%s\nreads a whole table:\n%s", st.Query, text)
		}
		for query, index := range map[string]string{
			`AND class = $2 AND namespace = $3 AND name = $4`:             "objects_live",
			`SELECT name FROM objects WHERE warehouse = $1 AND kind = $2`: "objects_listed",
			`SELECT object, location FROM locations`:                      "locations_pkey",
			`location > $2 AND location < $3`:                             "locations_pkey",
		} {
			if strings.HasPrefix(st.Query, "SELECT") && strings.Contains(st.Query, query) {
				seen[query] = true
				if !strings.Contains(text, index) {
					t.Errorf("%s\ndoes not use %s:\n%s", st.Query, index, text)
				}
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("not all of the hot statements were seen: %v", seen)
	}
}
