// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Migration is one numbered script. Migrations only go forward, and one that
// has been applied never changes.
type Migration struct {
	Version  int
	Script   string
	Checksum string
}

// LoadMigrations reads migrations/NNNN_name.sql, numbered from 1 without gaps.
func LoadMigrations(files fs.FS) ([]Migration, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []Migration
	for i, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s: its number should be %04d", name, i+1)
		}
		raw, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(raw)
		all = append(all, Migration{Version: i + 1, Script: string(raw), Checksum: hex.EncodeToString(sum[:])})
	}
	return all, nil
}

// CurrentVersion returns the number of the newest applied migration, 0 for
// none.
func CurrentVersion(ctx context.Context, c Conn) (version int, err error) {
	err = c.QueryRow(ctx, `SELECT COALESCE(MAX(version), 0) FROM schema_migrations`, nil, &version)
	return version, wrap("read schema version", err)
}

// Migrate applies what is missing, each script in a transaction with its
// record. The caller holds the lock and has created schema_migrations. A
// database that is newer than the program, or whose applied scripts differ
// from the program's, is refused.
func Migrate(ctx context.Context, e Engine, all []Migration, run func(context.Context, Conn, string) error) error {
	current, err := CurrentVersion(ctx, e)
	if err != nil {
		return err
	}
	if current > len(all) {
		return fmt.Errorf("the database has schema version %d, but this program knows only up to %d: run a newer catalogd", current, len(all))
	}
	for _, m := range all {
		if m.Version <= current {
			var applied string
			if err := e.QueryRow(ctx, `SELECT checksum FROM schema_migrations WHERE version = $1`, []any{m.Version}, &applied); err != nil {
				return fmt.Errorf("read migration %d: %w", m.Version, err)
			}
			if applied != m.Checksum {
				return fmt.Errorf("migration %d was applied in another form than this program holds: the database belongs to another build", m.Version)
			}
			continue
		}
		err := e.Transact(ctx, func(c Conn) error {
			if err := run(ctx, c, m.Script); err != nil {
				return err
			}
			_, err := c.Exec(ctx, `INSERT INTO schema_migrations (version, checksum, applied_at) VALUES ($1, $2, $3)`, m.Version, m.Checksum, time.Now().UnixMilli())
			return err
		})
		if err != nil {
			return fmt.Errorf("apply migration %d: %w", m.Version, err)
		}
	}
	return nil
}
