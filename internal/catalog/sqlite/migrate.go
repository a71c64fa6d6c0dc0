// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"embed"
	"fmt"

	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

//go:embed migrations/*.sql
var migrations embed.FS

const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT`

// Migrate implements catalog.Store. The file's lock keeps other processes
// out.
func (e *engine) Migrate(ctx context.Context) error {
	e.migrating.Lock()
	defer e.migrating.Unlock()
	all, err := sqlstore.LoadMigrations(migrations)
	if err != nil {
		return err
	}
	if _, err := e.Exec(ctx, createMigrations); err != nil {
		return fmt.Errorf("create migrations table: %w", err)
	}
	return sqlstore.Migrate(ctx, e, all, func(ctx context.Context, _ sqlstore.Conn, script string) error {
		// On the connection of this very transaction; prepared statements
		// hold one statement each, so it goes around them.
		_, err := e.writeOne.ExecContext(context.WithoutCancel(ctx), script)
		return classify(err)
	})
}

// Version implements catalog.Store.
func (e *engine) Version(ctx context.Context) (current, newest int, err error) {
	all, err := sqlstore.LoadMigrations(migrations)
	if err != nil {
		return 0, 0, err
	}
	var exists bool
	if err := e.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations')`, nil, &exists); err != nil || !exists {
		return 0, len(all), err
	}
	current, err = sqlstore.CurrentVersion(ctx, e)
	return current, len(all), err
}
