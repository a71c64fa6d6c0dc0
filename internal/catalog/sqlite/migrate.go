// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

//go:embed migrations/*.sql
var migrations embed.FS

const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT`

// Migrate implements catalog.Store. The file's lock keeps others out.
func (e *engine) Migrate(ctx context.Context) error {
	all, err := sqlstore.LoadMigrations(migrations)
	if err != nil {
		return err
	}
	if _, err := e.Exec(ctx, createMigrations); err != nil {
		return fmt.Errorf("create migrations table: %w", err)
	}
	return sqlstore.Migrate(ctx, e, all, func(ctx context.Context, c sqlstore.Conn, script string) error {
		// The driver prepares one statement at a time.
		for _, statement := range statements(script) {
			if _, err := c.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// statements splits a migration; its scripts hold no semicolon elsewhere than
// at the end of statements.
func statements(script string) []string {
	var all []string
	for s := range strings.SplitSeq(script, ";\n") {
		if strings.TrimSpace(s) != "" {
			all = append(all, s)
		}
	}
	return all
}

// Version implements catalog.Store.
func (e *engine) Version(ctx context.Context) (current, newest int, err error) {
	all, err := sqlstore.LoadMigrations(migrations)
	if err != nil {
		return 0, 0, err
	}
	if _, err := e.Exec(ctx, createMigrations); err != nil {
		return 0, 0, fmt.Errorf("create migrations table: %w", err)
	}
	current, err = sqlstore.CurrentVersion(ctx, e)
	return current, len(all), err
}
