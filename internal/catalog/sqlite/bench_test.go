// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/storetest"
)

// fill puts n tables into namespace ns.
func fill(ctx context.Context, e *engine, warehouse uuid.UUID, n int) error {
	const ids = `substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(h, 14, 3) || '-8' || substr(h, 18, 3) || '-' || substr(h, 21, 12)`
	if _, err := e.writeOne.ExecContext(ctx, `WITH RECURSIVE n(i, h) AS
			(SELECT 0, lower(hex(randomblob(16))) UNION ALL SELECT i + 1, lower(hex(randomblob(16))) FROM n WHERE i + 1 < $2)
		INSERT INTO objects (warehouse, class, purge, id, kind, namespace, name, uuid, location, metadata_location, version, protected, created_at, updated_at)
		SELECT $1, 1, 0, `+ids+`, 1, 'ns', printf('t%07d', i), `+ids+`, 's3://bucket/warehouse/' || h, 's3://bucket/warehouse/' || h || '/metadata/00000.json', 1, 0, 0, 0 FROM n`,
		warehouse.String(), n); err != nil {
		return err
	}
	_, err := e.writeOne.ExecContext(ctx, `INSERT INTO locations (warehouse, location, object, position) SELECT warehouse, location, id, 0 FROM objects`)
	return err
}

func benchmark(b *testing.B, o Options) {
	storetest.Benchmark(b, storetest.Bench{Open: func(b *testing.B) (catalog.Store, func(uuid.UUID, int) error) {
		e, s := open(b, o)
		return s, func(wh uuid.UUID, n int) error { return fill(b.Context(), e, wh, n) }
	}})
}

func BenchmarkStore(b *testing.B)          { benchmark(b, Options{}) }
func BenchmarkStoreEachAlone(b *testing.B) { benchmark(b, Options{MaxBatch: 1}) }
