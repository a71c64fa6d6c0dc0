// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/postgres"
	"github.com/sluice-data/sluice/internal/catalog/postgres/pgtest"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
	"github.com/sluice-data/sluice/internal/sharing/storetest"
)

// server is the PostgreSQL of this test binary, migrated the database on it
// that tests copy.
var (
	server   *pgtest.Server
	migrated string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	ctx := context.Background()
	var err error
	if server, err = pgtest.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop PostgreSQL:", err)
			code = 1
		}
	}()
	var drop func() error
	if migrated, drop, err = server.Database(ctx); err == nil {
		defer func() { _ = drop() }()
		var s *sqlstore.Store
		if s, err = postgres.Open(ctx, migrated, postgres.Options{MaxConns: 2}); err == nil {
			err = s.Migrate(ctx)
			s.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "migrate the database that tests copy:", err)
		return 1
	}
	return m.Run()
}

func openPostgres(t *testing.T) *sqlstore.Store {
	dsn, drop, err := server.Copy(t.Context(), migrated)
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Open(t.Context(), dsn, postgres.Options{MaxConns: 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := drop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func openSQLite(t *testing.T) *sqlstore.Store {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *sqlstore.Store{"sqlite": openSQLite, "postgres": openPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) (sharing.Store, catalog.Store) {
				c := open(t)
				s, err := store.Open(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				return s, c
			})
		})
	}
}
