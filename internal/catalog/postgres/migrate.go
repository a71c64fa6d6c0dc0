// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
	"embed"
	"fmt"

	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

//go:embed migrations/*.sql
var migrations embed.FS

const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)`

// migrationLock is the advisory lock that lets one program migrate at a time.
const migrationLock = 0x736c75696365 // "sluice"

// Migrate implements catalog.Store. Others who migrate the same database wait.
func (e *engine) Migrate(ctx context.Context) error {
	all, err := sqlstore.LoadMigrations(migrations)
	if err != nil {
		return err
	}
	// A connection of its own holds the lock: one of the pool might be the
	// last, which the migrations need.
	held, err := e.pool.Acquire(ctx)
	if err != nil {
		return classify(err)
	}
	lock := held.Hijack()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = lock.Close(ctx) // which releases the lock
	}()
	if _, err := lock.Exec(ctx, `SELECT pg_advisory_lock($1)`, migrationLock); err != nil {
		return fmt.Errorf("lock migrations: %w", classify(err))
	}
	if _, err := lock.Exec(ctx, createMigrations); err != nil {
		return fmt.Errorf("create migrations table: %w", classify(err))
	}
	return sqlstore.Migrate(ctx, e, all, func(ctx context.Context, c sqlstore.Conn, script string) error {
		// Without arguments, in the simple protocol, a script is one query.
		_, err := c.(*txConn).tx.Conn().PgConn().Exec(ctx, script).ReadAll()
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
	if err := e.QueryRow(ctx, `SELECT to_regclass('schema_migrations') IS NOT NULL`, nil, &exists); err != nil || !exists {
		return 0, len(all), err
	}
	current, err = sqlstore.CurrentVersion(ctx, e)
	return current, len(all), err
}
