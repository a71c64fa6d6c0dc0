// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package postgres keeps a catalog in PostgreSQL 15 or newer. Any number of
// servers may share one database; they coordinate by its rows and advisory
// locks alone.
//
// Transactions run at READ COMMITTED: what must not interleave is held apart
// by unique indexes, foreign keys, row locks, compare-and-swap, and advisory
// locks on locations. A serialisation failure or deadlock is tried again.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

// Options tune the connection pool; the zero value is right for most.
type Options struct {
	MaxConns int // 16 when zero
	// ConnectTimeout bounds making a connection; 5 s when zero.
	ConnectTimeout time.Duration
}

// Open prepares a pool for a connection string or URL. It does not connect
// yet; Ping does. Errors never hold the password.
func Open(ctx context.Context, dsn string, o Options) (*sqlstore.Store, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver's message may quote the string.
		return nil, errors.New("the PostgreSQL connection string cannot be parsed; it has the form postgres://user:password@host:5432/database?sslmode=verify-full")
	}
	cfg.MaxConns = 16
	if o.MaxConns > 0 {
		cfg.MaxConns = int32(o.MaxConns)
	}
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	if o.ConnectTimeout > 0 {
		cfg.ConnConfig.ConnectTimeout = o.ConnectTimeout
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "catalogd"
	}
	// A transaction that its client has left must not hold locks for ever.
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "60000"
	cfg.ConnConfig.StatementCacheCapacity = 256
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: open PostgreSQL pool", catalog.ErrUnavailable)
	}
	return sqlstore.New(&engine{pool: pool}), nil
}

// engine implements sqlstore.Engine.
type engine struct{ pool *pgxpool.Pool }

// querier is what a pool and a transaction have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// conn implements sqlstore.Conn.
type conn struct{ q querier }

func (c conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := c.q.Exec(ctx, query, args...)
	return tag.RowsAffected(), classify(err)
}

func (c conn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return classify(c.q.QueryRow(ctx, query, args...).Scan(dest...))
}

func (c conn) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	r, err := c.q.Query(ctx, query, args...)
	if err != nil {
		return nil, classify(err)
	}
	return rows{r}, nil
}

type rows struct{ pgx.Rows }

func (r rows) Err() error { return classify(r.Rows.Err()) }

func (e *engine) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return conn{e.pool}.Exec(ctx, query, args...)
}

func (e *engine) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return conn{e.pool}.QueryRow(ctx, query, args, dest...)
}

func (e *engine) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	return conn{e.pool}.Query(ctx, query, args...)
}

// maxAttempts bounds how often a transaction is tried that others keep from
// running.
const maxAttempts = 10

func (e *engine) Transact(ctx context.Context, fn func(sqlstore.Conn) error) error {
	for attempt := 1; ; attempt++ {
		err := e.transactOnce(ctx, fn)
		if !retryable(err) || attempt == maxAttempts {
			if retryable(err) {
				return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(time.Duration(attempt*attempt) * 2 * time.Millisecond)):
		}
	}
}

func (e *engine) transactOnce(ctx context.Context, fn func(sqlstore.Conn) error) error {
	t, err := e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return classify(err)
	}
	done := false
	defer func() {
		if !done {
			// Also when fn panics. The caller's context may be over.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = t.Rollback(ctx)
		}
	}()
	if err := fn(conn{t}); err != nil {
		return err
	}
	// From here on the outcome is PostgreSQL's to say; a caller that gives up
	// must not turn a commit into an unknown one.
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err = t.Commit(commit)
	done = true
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("%w: the transaction was rolled back", catalog.ErrUnavailable)
	case errors.As(err, &pg) && pg.Code != "57P01":
		return classify(err) // PostgreSQL itself refused: nothing was applied
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// classify gives errors of the driver the meaning that sqlstore knows.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return sqlstore.ErrNoRows
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "23505":
			return fmt.Errorf("%w: %w", sqlstore.ErrUnique, err)
		case "23503":
			return fmt.Errorf("%w: %w", sqlstore.ErrForeignKey, err)
		}
		switch pg.Code[:2] {
		case "08", "53", "57", "58": // connection, resources, operator, system
			return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
		}
		return err
	}
	var connect *pgconn.ConnectError
	var network net.Error
	if errors.As(err, &connect) {
		// The driver's message names host and user; the logs have no use for more.
		return fmt.Errorf("%w: cannot connect to PostgreSQL", catalog.ErrUnavailable)
	}
	if errors.As(err, &network) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
}

// LockLocations takes, until the transaction ends, a shared lock on every
// ancestor of each location and an exclusive one on the location itself. Two
// locations of which one contains the other therefore meet on the upper one's
// lock, and unrelated ones on none that excludes.
func (e *engine) LockLocations(ctx context.Context, c sqlstore.Conn, warehouse uuid.UUID, locations []string) error {
	shared := map[string]bool{}
	exclusive := slices.Clone(locations)
	for _, l := range locations {
		above := sqlstore.Ancestors(l)
		for _, a := range above[:len(above)-1] {
			shared[a] = true
		}
	}
	// One order for everyone: from the top down, shared before exclusive.
	var ancestors []string
	for a := range shared {
		ancestors = append(ancestors, a)
	}
	slices.Sort(ancestors)
	slices.Sort(exclusive)
	prefix := warehouse.String() + " "
	if _, err := c.Exec(ctx, `SELECT pg_advisory_xact_lock_shared(hashtextextended($1 || l, 0)) FROM unnest($2::text[]) WITH ORDINALITY AS t(l, n) ORDER BY n`, prefix, ancestors); err != nil {
		return err
	}
	_, err := c.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1 || l, 0)) FROM unnest($2::text[]) WITH ORDINALITY AS t(l, n) ORDER BY n`, prefix, exclusive)
	return err
}

func (e *engine) ForUpdate() string  { return " FOR UPDATE" }
func (e *engine) SkipLocked() string { return " FOR UPDATE SKIP LOCKED" }

func (e *engine) Ping(ctx context.Context) error { return classify(e.pool.Ping(ctx)) }

func (e *engine) Close() error {
	e.pool.Close()
	return nil
}

//go:embed migrations/*.sql
var migrations embed.FS

const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)`

// migrationLock is the advisory lock that lets one program migrate at a time.
const migrationLock = 0x736c75696365 // "sluice"

// Migrate implements catalog.Store.
func (e *engine) Migrate(ctx context.Context) error {
	all, err := sqlstore.LoadMigrations(migrations)
	if err != nil {
		return err
	}
	held, err := e.pool.Acquire(ctx)
	if err != nil {
		return classify(err)
	}
	defer held.Release()
	if _, err := held.Exec(ctx, `SELECT pg_advisory_lock($1)`, migrationLock); err != nil {
		return classify(err)
	}
	defer func() {
		// Should this fail, the lock ends with the connection.
		if _, err := held.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, migrationLock); err != nil {
			_ = held.Conn().Close(context.WithoutCancel(ctx))
		}
	}()
	if _, err := held.Exec(ctx, createMigrations); err != nil {
		return fmt.Errorf("create migrations table: %w", classify(err))
	}
	return sqlstore.Migrate(ctx, e, all, func(ctx context.Context, c sqlstore.Conn, script string) error {
		// Without arguments in the simple protocol, a script is one query.
		_, err := c.(conn).q.(pgx.Tx).Conn().PgConn().Exec(ctx, script).ReadAll()
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
