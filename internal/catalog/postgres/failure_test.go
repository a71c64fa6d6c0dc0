// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/postgres/pgtest"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

// TestLostConnections cuts the connection at chosen statements: before COMMIT
// nothing was applied; from then on nobody can know, and both happen.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		at      string
		after   bool
		want    error
		applied bool
	}{
		{"begin is lost", "begin isolation", false, catalog.ErrUnavailable, false},
		{"answer to begin is lost", "begin isolation", true, catalog.ErrUnavailable, false},
		{"statement is lost", "a new name", false, catalog.ErrUnavailable, false},
		{"answer to a statement is lost", "a new name", true, catalog.ErrUnavailable, false},
		{"commit is lost", "commit\x00", false, catalog.ErrUnknownOutcome, false},
		{"answer to commit is lost", "commit\x00", true, catalog.ErrUnknownOutcome, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			direct, _ := open(t, Options{})
			p, through := newProxy(t, direct.pool.Config().ConnString())
			s, err := Open(t.Context(), through, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			wh, err := s.EnsureWarehouse(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			create := func(name string) error {
				return s.Update(t.Context(), func(tx catalog.Tx) error {
					return tx.CreateNamespace(t.Context(), catalog.NamespaceRecord{Warehouse: wh, Namespace: catalog.Namespace{name}})
				})
			}
			if err := create("before"); err != nil {
				t.Fatal(err)
			}
			p.cut(c.at, c.after)
			if err := create("a new name"); !errors.Is(err, c.want) {
				t.Errorf("error is %v, want %v", err, c.want)
			}
			if p.times() != 1 {
				t.Fatalf("the connection was cut %d times", p.times())
			}
			_, err = s.Namespace(t.Context(), wh, catalog.Namespace{"a new name"})
			if applied := err == nil; applied != c.applied {
				t.Errorf("it is applied: %v, want %v (%v)", applied, c.applied, err)
			}
			if err := create("after"); err != nil {
				t.Errorf("the store does not recover: %v", err)
			}
		})
	}
}

func TestUnreachableServerIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, dsn := range map[string]string{
		"refused":      "postgres://u:hunter2@127.0.0.1:1/db?sslmode=disable",
		"no such host": "postgres://u:hunter2@host.invalid/db",
		"no socket":    "host=/nowhere user=u password=hunter2 dbname=db",
	} {
		s, err := Open(t.Context(), dsn, Options{ConnectTimeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		_, _, version := s.Version(t.Context())
		for what, err := range map[string]error{
			"ping": s.Ping(t.Context()), "migrate": s.Migrate(t.Context()), "version": version,
			"update": s.Update(t.Context(), func(catalog.Tx) error { return nil }),
		} {
			if !errors.Is(err, catalog.ErrUnavailable) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
			if strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter2") {
				t.Errorf("%s: %s tells the password: %v", name, what, err)
			}
		}
		s.Close()
	}
}

func TestPasswordIsNeverInErrors(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(database(t))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), "wrong-hunter2")
	s, err := Open(t.Context(), u.String(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Ping(t.Context())
	if !errors.Is(err, catalog.ErrUnavailable) || !strings.Contains(err.Error(), "password authentication failed") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("wrong password: %v", err)
	}
	for _, dsn := range []string{
		"postgres://u:hunter2@h:port/db",
		"postgres://u:hunter2/x@h/db",
		"postgres://u:%zzhunter2@h/db",
		"postgres://u:hunter2@h/db?sslmode=hunter2",
		"user=u password='hunter2",
		"host=h user=u password=hunter2 sslmode=nope",
		"hunter2",
		"postgres://u:hunter2@h/db?pool_max_conns=x",
	} {
		s, err := Open(t.Context(), dsn, Options{})
		if err == nil {
			s.Close()
			t.Errorf("%s was taken", dsn)
		} else if strings.Contains(fmt.Sprintf("%+v", err), "hunter2") {
			t.Errorf("%s: error tells the password: %v", dsn, err)
		}
	}
}

// TestServerCrashesAndComesBack kills a PostgreSQL of its own.
func TestServerCrashesAndComesBack(t *testing.T) {
	t.Parallel()
	own, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if !own.Own() {
		t.Skip("SLUICE_TEST_POSTGRES_DSN names a server that this test must not kill")
	}
	dsn, _, err := own.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	wh, err := s.EnsureWarehouse(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	create := func(name string, then func() error) error {
		return s.Update(t.Context(), func(tx catalog.Tx) error {
			return errors.Join(tx.CreateNamespace(t.Context(), catalog.NamespaceRecord{Warehouse: wh, Namespace: catalog.Namespace{name}}), then())
		})
	}
	nothing := func() error { return nil }
	if err := create("before", nothing); err != nil {
		t.Fatal(err)
	}
	// Its COMMIT meets a dead connection. Whether anything was sent cannot be
	// told, so both answers are right; a success is not.
	if err := create("during", own.Pause); !errors.Is(err, catalog.ErrUnknownOutcome) && !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("commit after the crash: %v", err)
	}
	if err := create("down", nothing); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("while it is down: %v", err)
	}
	if _, err := s.Namespace(t.Context(), wh, catalog.Namespace{"before"}); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("read while it is down: %v", err)
	}
	if err := own.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := create("after", nothing); err != nil {
		t.Errorf("when it is back: %v", err)
	}
	for name, want := range map[string]error{"before": nil, "during": catalog.ErrNoNamespace, "down": catalog.ErrNoNamespace, "after": nil} {
		if _, err := s.Namespace(t.Context(), wh, catalog.Namespace{name}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// raise makes PostgreSQL fail with a code.
func raise(ctx context.Context, c sqlstore.Conn, code string) error {
	_, err := c.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '`+code+`'; END $$`)
	return err
}

func TestRetries(t *testing.T) {
	t.Parallel()
	e, _ := open(t, Options{})
	for _, code := range []string{"40001", "40P01"} {
		for name, pass := range map[string]func(error) error{
			"passed on":               func(err error) error { return fmt.Errorf("wrapped: %w", err) },
			"made something else":     func(error) error { return errors.New("else") },
			"swallowed by the caller": func(error) error { return nil },
		} {
			runs := 0
			err := e.Transact(t.Context(), func(c sqlstore.Conn) error {
				runs++
				if runs < 3 {
					return pass(raise(t.Context(), c, code))
				}
				return nil
			})
			if err != nil || runs != 3 {
				t.Errorf("%s, %s: %d runs, %v", code, name, runs, err)
			}
		}
	}
	runs := 0
	err := e.Transact(t.Context(), func(c sqlstore.Conn) error {
		runs++
		return raise(t.Context(), c, "40001")
	})
	if !errors.Is(err, catalog.ErrUnavailable) || runs != maxAttempts {
		t.Errorf("%d runs, %v", runs, err)
	}
	for code, want := range map[string]error{
		"53100": catalog.ErrUnavailable, // disk_full
		"57014": catalog.ErrUnavailable, // query_canceled, as by statement_timeout
		"55P03": catalog.ErrUnavailable, // lock_not_available
		"23505": sqlstore.ErrUnique,
		"23503": sqlstore.ErrForeignKey,
	} {
		runs := 0
		err := e.Transact(t.Context(), func(c sqlstore.Conn) error {
			runs++
			return raise(t.Context(), c, code)
		})
		if !errors.Is(err, want) || runs != 1 {
			t.Errorf("%s: %d runs, %v", code, runs, err)
		}
	}
}

// TestRefusedCommitIsNotUnknown has PostgreSQL refuse at COMMIT.
func TestRefusedCommitIsNotUnknown(t *testing.T) {
	t.Parallel()
	e, _ := open(t, Options{})
	for _, q := range []string{
		`CREATE TABLE late (x INT UNIQUE DEFERRABLE INITIALLY DEFERRED)`, `INSERT INTO late VALUES (1)`,
	} {
		if _, err := e.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	_, err := e.Exec(t.Context(), `INSERT INTO late VALUES (1)`)
	if !errors.Is(err, sqlstore.ErrUnique) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("refused commit: %v", err)
	}
	// A statement failed, and the caller does not care.
	err = e.Transact(t.Context(), func(c sqlstore.Conn) error {
		_ = raise(t.Context(), c, "22012")
		return nil
	})
	if !errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("commit of a failed transaction: %v", err)
	}
}

// TestAbandonedTransactionReleasesItsLocks has a server fall silent in the
// middle of a transaction.
func TestAbandonedTransactionReleasesItsLocks(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{IdleInTransaction: 200 * time.Millisecond})
	wh, err := s.EnsureWarehouse(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	rec := catalog.NamespaceRecord{Warehouse: wh, Namespace: catalog.Namespace{"a"}}
	var second error
	err = s.Update(t.Context(), func(tx catalog.Tx) error {
		if err := tx.CreateNamespace(t.Context(), rec); err != nil {
			return err
		}
		second = s.Update(t.Context(), func(tx catalog.Tx) error { return tx.CreateNamespace(t.Context(), rec) })
		return nil
	})
	if second != nil {
		t.Errorf("the other: %v", second)
	}
	// PostgreSQL had ended it before the COMMIT, which only its log can tell.
	if !errors.Is(err, catalog.ErrUnavailable) && !errors.Is(err, catalog.ErrUnknownOutcome) {
		t.Errorf("the silent one: %v", err)
	}
	// The pool throws broken connections away on its own time.
	for deadline := time.Now().Add(10 * time.Second); e.pool.Stat().AcquiredConns() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are still in use", e.pool.Stat().AcquiredConns())
		}
	}
}

func TestCancelledStatementLeavesNothing(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{MaxConns: 2})
	for range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := e.Transact(ctx, func(c sqlstore.Conn) error {
			if _, err := c.Exec(ctx, `INSERT INTO warehouses (id, name) VALUES (gen_random_uuid(), 'x')`); err != nil {
				return err
			}
			_, err := c.Exec(ctx, `SELECT pg_sleep(10)`)
			return err
		})
		cancel()
		if !errors.Is(err, catalog.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
	}
	var n int
	if err := e.QueryRow(t.Context(), `SELECT count(*) FROM warehouses`, nil, &n); err != nil || n != 0 {
		t.Errorf("%d rows are left: %v", n, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestExhaustedPoolIsUnavailable(t *testing.T) {
	t.Parallel()
	_, s := open(t, Options{MaxConns: 1, BeginTimeout: 2 * time.Second})
	var inner error
	if err := s.Update(t.Context(), func(catalog.Tx) error {
		inner = s.Update(t.Context(), func(catalog.Tx) error { return nil })
		return nil
	}); err != nil {
		t.Errorf("the one that has the connection: %v", err)
	}
	if !errors.Is(inner, catalog.ErrUnavailable) {
		t.Errorf("the one that waits: %v", inner)
	}
}
