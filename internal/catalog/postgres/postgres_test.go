// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
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
	return m.Run()
}

// database returns the URL of a database of the test's own.
func database(t testing.TB) string {
	t.Helper()
	dsn, drop, err := server.Database(t.Context())
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

// open returns a migrated engine and its store on a database of its own.
func open(t testing.TB, o Options) (*engine, *sqlstore.Store) {
	t.Helper()
	e, err := openEngine(t.Context(), database(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := e.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e, sqlstore.New(e)
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) catalog.Store {
		_, s := open(t, Options{})
		return s
	})
}
