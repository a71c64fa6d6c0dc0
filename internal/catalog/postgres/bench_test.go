// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/storetest"
)

// fill puts n tables into namespace ns.
func fill(ctx context.Context, e *engine, warehouse uuid.UUID, n int) error {
	if _, err := e.pool.Exec(ctx, `INSERT INTO objects (warehouse, class, purge, id, kind, namespace, name, uuid, location, metadata_location, version, protected, created_at, updated_at)
		SELECT $1, 1, FALSE, id, 1, 'ns', 't' || lpad(i::text, 7, '0'), id, 's3://bucket/warehouse/' || id, 's3://bucket/warehouse/' || id || '/metadata/00000.json', 1, FALSE, 0, 0
		FROM (SELECT i, gen_random_uuid() AS id FROM generate_series(0, $2::int - 1) AS i) AS n`, warehouse, n); err != nil {
		return err
	}
	if _, err := e.pool.Exec(ctx, `INSERT INTO locations (warehouse, location, object, position) SELECT warehouse, location, id, 0 FROM objects WHERE warehouse = $1`, warehouse); err != nil {
		return err
	}
	_, err := e.pool.Exec(ctx, `ANALYZE`)
	return err
}

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, storetest.Bench{Open: func(b *testing.B) (catalog.Store, func(uuid.UUID, int) error) {
		e, s := open(b, Options{})
		return s, func(wh uuid.UUID, n int) error { return fill(b.Context(), e, wh, n) }
	}})
}
