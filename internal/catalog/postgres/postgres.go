// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package postgres keeps a catalog in PostgreSQL 15 or newer. Any number of
// servers may share one database; they coordinate by its rows and advisory
// locks alone.
//
// Invariants: transactions run at READ COMMITTED, and what must not interleave
// is held apart by unique indexes, foreign keys, row locks, compare-and-swap,
// and advisory locks on locations; a COMMIT that was sent and not answered is
// reported as ErrUnknownOutcome, never as a failure or a success; no error
// holds the password of the connection string.
package postgres

import (
	"context"
	"errors"
	"fmt"
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
	// BeginTimeout bounds how long a transaction waits for a connection of the
	// pool and its start; 10 s when zero.
	BeginTimeout time.Duration
	// IdleInTransaction is after how long the server ends a transaction whose
	// client says nothing, so that a lost server holds no locks for ever; a
	// minute when zero.
	IdleInTransaction time.Duration
}

// Open prepares a pool for a connection string or URL. It does not connect
// yet; Ping does. Errors never hold the password.
func Open(ctx context.Context, dsn string, o Options) (*sqlstore.Store, error) {
	e, err := openEngine(ctx, dsn, o)
	if err != nil {
		return nil, err
	}
	return sqlstore.New(e), nil
}

func openEngine(ctx context.Context, dsn string, o Options) (*engine, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver's message may quote a string that it could not take apart.
		return nil, errors.New("the PostgreSQL connection string cannot be parsed; it has the form postgres://user:password@host:5432/database?sslmode=verify-full, with special characters of the password percent-encoded")
	}
	cfg.MaxConns = 16
	if o.MaxConns > 0 {
		cfg.MaxConns = int32(o.MaxConns)
	}
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	if o.ConnectTimeout > 0 {
		cfg.ConnConfig.ConnectTimeout = o.ConnectTimeout
	}
	begin := 10 * time.Second
	if o.BeginTimeout > 0 {
		begin = o.BeginTimeout
	}
	idle := time.Minute
	if o.IdleInTransaction > 0 {
		idle = o.IdleInTransaction
	}
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(idle.Milliseconds())
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "catalogd"
	}
	cfg.ConnConfig.StatementCacheCapacity = 256
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL pool: %w", classify(err))
	}
	return &engine{pool: pool, beginTimeout: begin}, nil
}

// engine implements sqlstore.Engine.
type engine struct {
	pool         *pgxpool.Pool
	beginTimeout time.Duration
}

// querier is what a pool and a transaction have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// conn implements sqlstore.Conn but for TryExec.
type conn struct{ q querier }

func (c conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := c.q.Exec(ctx, query, plainIDs(args)...)
	return tag.RowsAffected(), classify(err)
}

func (c conn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return classify(c.q.QueryRow(ctx, query, plainIDs(args)...).Scan(plainIDs(dest)...))
}

func (c conn) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	r, err := c.q.Query(ctx, query, plainIDs(args)...)
	if err != nil {
		return nil, classify(err)
	}
	return rows{r}, nil
}

type rows struct{ pgx.Rows }

func (r rows) Scan(dest ...any) error { return classify(r.Rows.Scan(plainIDs(dest)...)) }

// plainIDs gives pgx, in place, the arrays that ids are: it knows a
// [uuid.UUID] only as a driver.Valuer and a sql.Scanner of database/sql,
// each of which goes through text and a failed attempt without it.
func plainIDs(values []any) []any {
	for i, v := range values {
		switch v := v.(type) {
		case uuid.UUID:
			values[i] = [16]byte(v)
		case *uuid.UUID:
			values[i] = (*[16]byte)(v)
		}
	}
	return values
}

func (r rows) Err() error { return classify(r.Rows.Err()) }

// Exec is a transaction of one statement.
func (e *engine) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = e.Transact(ctx, func(c sqlstore.Conn) error {
		n, err = c.Exec(ctx, query, args...)
		return err
	})
	return n, err
}

// TryExec is Exec.
func (e *engine) TryExec(ctx context.Context, query string, args ...any) (int64, error) {
	return e.Exec(ctx, query, args...)
}

// QueryRow reads outside transactions. Of a name that PostgreSQL's text cannot
// hold, such as one with a NUL, there is no row.
func (e *engine) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	err := conn{e.pool}.QueryRow(ctx, query, args, dest...)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22021" { // character_not_in_repertoire
		return sqlstore.ErrNoRows
	}
	return err
}

// Query reads outside transactions.
func (e *engine) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	return conn{e.pool}.Query(ctx, query, args...)
}

// RowLocks implements sqlstore.Engine.
func (e *engine) RowLocks() sqlstore.RowLocks {
	return sqlstore.RowLocks{Update: " FOR NO KEY UPDATE", Delete: " FOR UPDATE", SkipLocked: " FOR UPDATE SKIP LOCKED"}
}

// Ping asks for a connection that answers.
func (e *engine) Ping(ctx context.Context) error { return classify(e.pool.Ping(ctx)) }

// Close waits for connections in use.
func (e *engine) Close() error {
	e.pool.Close()
	return nil
}

// classify gives errors of the driver, before a COMMIT is sent, the meaning
// that sqlstore knows.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return sqlstore.ErrNoRows
	}
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	if !errors.As(err, &pg) || errors.As(err, &connect) || fatal(pg) {
		// Whatever is not PostgreSQL's answer to a statement is a failure to
		// reach it, or the caller's context.
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	switch pg.Code {
	case "23505": // unique_violation
		return fmt.Errorf("%w: %w", sqlstore.ErrUnique, err)
	case "23503": // foreign_key_violation
		return fmt.Errorf("%w: %w", sqlstore.ErrForeignKey, err)
	case "55P03", "25006": // lock_not_available, read_only_sql_transaction
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	switch pg.Code[:2] {
	case "08", "53", "57", "58": // connection, resources, operator, system
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	return err
}

// fatal reports whether PostgreSQL ends the connection with this error.
func fatal(pg *pgconn.PgError) bool {
	return pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC"
}
