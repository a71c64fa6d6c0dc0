// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/postgres/pgtest"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/catalog/storetest"
)

// server is the PostgreSQL of this test binary.
var server *pgtest.Server

// migrated is the URL of a migrated, empty database on it that tests copy: a
// copy takes a third of the time of all migrations.
var migrated string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if server, err = pgtest.Start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop PostgreSQL:", err)
			code = 1
		}
	}()
	drop, err := prepare(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "migrate the database that tests copy:", err)
		return 1
	}
	defer func() {
		if err := drop(); err != nil {
			fmt.Fprintln(os.Stderr, "drop the database that tests copy:", err)
			code = 1
		}
	}()
	return m.Run()
}

// prepare makes the database that tests copy.
func prepare(ctx context.Context) (drop func() error, err error) {
	if migrated, drop, err = server.Database(ctx); err != nil {
		return nil, err
	}
	e, err := openEngine(ctx, migrated, Options{})
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	if err := errors.Join(e.Migrate(ctx), e.Close()); err != nil {
		return nil, errors.Join(err, drop())
	}
	return drop, nil
}

// database returns the URL of an empty database of the test's own.
func database(t testing.TB) string {
	t.Helper()
	dsn, drop, err := server.Database(t.Context())
	return owned(t, dsn, drop, err)
}

// owned has a database dropped when the test ends.
func owned(t testing.TB, dsn string, drop func() error, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
	return dsn
}

// open returns an engine and its store on a migrated database of its own.
func open(t testing.TB, o Options) (*engine, *sqlstore.Store) {
	t.Helper()
	dsn, drop, err := server.Copy(t.Context(), migrated)
	e, err := openEngine(t.Context(), owned(t, dsn, drop, err), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e, sqlstore.New(e)
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) catalog.Store {
		_, s := open(t, Options{})
		return s
	})
}
