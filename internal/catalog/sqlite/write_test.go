// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/catalog/storetest"
)

// batch runs functions in one group, in this order, and returns what each is
// told.
func batch(ctx context.Context, e *engine, fns ...func(sqlstore.Conn) error) []error {
	errs := make([]error, len(fns))
	hold, held := make(chan struct{}), make(chan struct{})
	done := make(chan struct{}, len(fns)+1)
	go func() {
		_ = e.Transact(ctx, func(sqlstore.Conn) error { close(held); <-hold; return nil })
		done <- struct{}{}
	}()
	<-held
	jobs := make([]*job, len(fns))
	for i, fn := range fns {
		jobs[i] = &job{ctx: ctx, turn: make(chan *jobConn, 1), ran: make(chan error, 1), result: make(chan error, 1)}
		go func() {
			defer func() { done <- struct{}{} }()
			select {
			case c := <-jobs[i].turn:
				jobs[i].run(c, fn)
				errs[i] = <-jobs[i].result
			case errs[i] = <-jobs[i].result:
			}
		}()
	}
	// The writer is not at work on anything else: this test is the writer.
	close(hold)
	<-done
	for rest := jobs; len(rest) > 0; {
		rest = e.transaction(rest)
	}
	for range fns {
		<-done
	}
	return errs
}

func insert(ctx context.Context, name string) func(sqlstore.Conn) error {
	return func(c sqlstore.Conn) error {
		_, err := c.Exec(ctx, `INSERT INTO warehouses (id, name) VALUES ($1, $2)`, uuid.New(), name)
		return err
	}
}

func warehouses(t *testing.T, e *engine) (names []string) {
	t.Helper()
	rows, err := e.Query(t.Context(), `SELECT name FROM warehouses ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func TestGroupMembersFailAlone(t *testing.T) {
	t.Parallel()
	e, _ := open(t, Options{})
	ctx := t.Context()
	own := errors.New("own")
	errs := batch(ctx, e,
		insert(ctx, "a"),
		func(c sqlstore.Conn) error { return errors.Join(insert(ctx, "b")(c), own) },
		insert(ctx, "a"), // taken by the first
		insert(ctx, "c"),
		func(c sqlstore.Conn) error {
			_ = insert(ctx, "d")(c)
			if err := insert(ctx, "c")(c); !errors.Is(err, sqlstore.ErrUnique) {
				t.Errorf("a taken name: %v", err)
			}
			return nil // a violated constraint undoes its statement alone
		},
	)
	for i, want := range []error{nil, own, sqlstore.ErrUnique, nil, nil} {
		if !errors.Is(errs[i], want) {
			t.Errorf("member %d: %v, want %v", i, errs[i], want)
		}
	}
	if got := warehouses(t, e); !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("stored: %q", got)
	}
}

// TestFullDiskTakesNothingHalf fills the database in the middle of a group.
// SQLite then rolls the whole transaction back by itself.
func TestFullDiskTakesNothingHalf(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{})
	ctx := t.Context()
	var pages int
	if err := e.writeOne.QueryRowContext(ctx, `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(pages int) {
		var got int
		if err := e.writeOne.QueryRowContext(ctx, fmt.Sprintf(`PRAGMA max_page_count = %d`, pages)).Scan(&got); err != nil || got != pages {
			t.Fatal(got, err)
		}
	}
	limit(pages + 3)
	fill := func(c sqlstore.Conn) error {
		_, err := c.Exec(ctx, `INSERT INTO warehouses (id, name) VALUES ($1, $2)`, uuid.New(), strings.Repeat("x", 1<<20))
		return err
	}
	swallow := func(c sqlstore.Conn) error {
		if err := fill(c); !errors.Is(err, catalog.ErrUnavailable) {
			t.Errorf("full: %v", err)
		}
		if err := insert(ctx, "after the failure")(c); !errors.Is(err, catalog.ErrUnavailable) {
			t.Errorf("goes on after the database has failed: %v", err)
		}
		return nil
	}
	for name, filler := range map[string]func(sqlstore.Conn) error{"reported": fill, "swallowed": swallow} {
		errs := batch(ctx, e, insert(ctx, name+" before"), filler, insert(ctx, name+" behind"))
		if !errors.Is(errs[1], catalog.ErrUnavailable) {
			t.Errorf("%s: the one that fills the disk: %v", name, errs[1])
		}
		for i, member := range map[int]string{0: name + " before", 2: name + " behind"} {
			stored := slices.Contains(warehouses(t, e), member)
			if (errs[i] == nil) != stored {
				t.Errorf("%s: %s is stored: %v, but was told %v", name, member, stored, errs[i])
			}
			if errs[i] != nil && !errors.Is(errs[i], catalog.ErrUnavailable) {
				t.Errorf("%s: %s: %v", name, member, errs[i])
			}
		}
		if errs := batch(ctx, e, filler); !errors.Is(errs[0], catalog.ErrUnavailable) {
			t.Errorf("%s: alone: %v", name, errs[0])
		}
	}
	if slices.Contains(warehouses(t, e), "after the failure") {
		t.Error("a statement after the failure was applied")
	}
	limit(1 << 20)
	if err := fillUp(ctx, s); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func fillUp(ctx context.Context, s *sqlstore.Store) error {
	_, err := s.EnsureWarehouse(ctx, strings.Repeat("y", 1<<20))
	return err
}

// TestWriterSurvivesAFunctionThatNeverReturns ends a caller's goroutine in the
// middle of its transaction, as the failure of a test does.
func TestWriterSurvivesAFunctionThatNeverReturns(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.Transact(t.Context(), func(c sqlstore.Conn) error {
			if err := insert(t.Context(), "x")(c); err != nil {
				t.Error(err)
			}
			runtime.Goexit()
			return nil
		})
	}()
	<-ended
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Transact(t.Context(), insert(t.Context(), "y")); err != nil {
		t.Fatal(err)
	}
	if got := warehouses(t, e); !slices.Equal(got, []string{"y"}) {
		t.Errorf("stored: %q", got)
	}
}

// TestQueryPlans fails when a statement of the store reads a whole table.
func TestQueryPlans(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{})
	storetest.EveryQuery(t, s)
	db, err := sql.Open("sqlite", e.path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	explained := 0
	for _, c := range []*conn{e.reader, e.writer} {
		c.stmts.Range(func(key, _ any) bool {
			query := key.(string)
			if !strings.Contains(query, " FROM ") && !strings.HasPrefix(query, "UPDATE") {
				return true
			}
			explained++
			plan := explain(t, db, query)
			for _, step := range plan {
				if strings.HasPrefix(step, "SCAN") && !strings.Contains(step, "USING") && !allowedScan(step) {
					t.Errorf("%s\nreads a whole table:\n%s", query, strings.Join(plan, "\n"))
				}
				if strings.Contains(step, "TEMP B-TREE") && !strings.Contains(query, "CASE WHEN o.location") {
					t.Errorf("%s\nsorts:\n%s", query, strings.Join(plan, "\n"))
				}
			}
			return true
		})
	}
	if explained < 25 {
		t.Errorf("only %d statements were explained", explained)
	}
	for query, index := range map[string]string{
		selectPacked: "objects_live (warehouse=? AND class=? AND namespace=? AND name=?)",
		`SELECT name FROM objects WHERE warehouse = $1 AND kind = $2 AND namespace = $3 AND name > $4 AND dropped_at IS NULL ORDER BY name LIMIT $5`: "COVERING INDEX objects_listed (warehouse=? AND kind=? AND namespace=? AND name>?)",
	} {
		if _, ok := e.reader.stmts.Load(query); !ok {
			t.Errorf("the store does not use %s", query)
		}
		if plan := strings.Join(explain(t, db, query), "\n"); !strings.Contains(plan, index) {
			t.Errorf("%s does not use %s:\n%s", query, index, plan)
		}
	}
}

// allowedScan is of what is no table, or one of few rows.
func allowedScan(step string) bool {
	for _, s := range []string{"SCAN fresh", "SCAN CONSTANT ROW", "SCAN (subquery", "SCAN sqlite_master", "SCAN schema_migrations"} {
		if strings.HasPrefix(step, s) {
			return true
		}
	}
	return false
}

func explain(t *testing.T, db *sql.DB, query string) (plan []string) {
	t.Helper()
	args := make([]any, 0, 64)
	for i := 1; strings.Contains(query, fmt.Sprintf("$%d", i)); i++ {
		args = append(args, nil)
	}
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("explain %s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}
