// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/catalog/storetest"
)

// open returns a migrated engine and its store in a directory of its own.
func open(t testing.TB, o Options) (*engine, *sqlstore.Store) {
	t.Helper()
	e, err := openEngine(t.Context(), filepath.Join(t.TempDir(), "catalog.db"), o)
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
	for name, o := range map[string]Options{"group commit": {}, "each alone": {MaxBatch: 1, Readers: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) catalog.Store {
				_, s := open(t, o)
				return s
			})
		})
	}
}
