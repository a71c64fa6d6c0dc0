// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

const (
	// maxAttempts bounds how often a transaction is tried that others keep
	// from running.
	maxAttempts = 10
	// commitTimeout and rollbackTimeout bound what runs to its end also when
	// the caller has given up.
	commitTimeout   = 30 * time.Second
	rollbackTimeout = 5 * time.Second
)

// Transact implements sqlstore.Engine.
func (e *engine) Transact(ctx context.Context, fn func(sqlstore.Conn) error) error {
	for attempt := 1; ; attempt++ {
		err := e.transactOnce(ctx, fn)
		if !retryable(err) {
			return err
		}
		if attempt == maxAttempts {
			return fmt.Errorf("%w: tried %d times: %w", catalog.ErrUnavailable, attempt, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", catalog.ErrUnavailable, ctx.Err())
		case <-time.After(pause(attempt)):
		}
	}
}

// pause is how long a transaction waits after its n-th try: at random, so that
// those who met do not meet again, and longer each time, up to a second.
func pause(attempt int) time.Duration {
	return rand.N(min(10*time.Millisecond<<attempt, time.Second))
}

// retryable tells a transaction that others have kept from running.
func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") // serialization_failure, deadlock_detected
}

func (e *engine) transactOnce(ctx context.Context, fn func(sqlstore.Conn) error) error {
	t, err := e.begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", classify(err))
	}
	committing := false
	defer func() {
		if committing {
			return
		}
		// Also when fn panics, and when the caller's context is over. Should
		// it fail, PostgreSQL rolls back when the connection closes.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = t.Rollback(ctx)
	}()
	c := &txConn{conn: conn{t}, tx: t}
	if err := fn(c); err != nil {
		if c.retry != nil && !retryable(err) {
			return c.retry // fn made something else of it
		}
		return err
	}
	if c.retry != nil {
		return c.retry
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	committing = true
	return commit(ctx, t)
}

func (e *engine) begin(ctx context.Context) (pgx.Tx, error) {
	ctx, cancel := context.WithTimeout(ctx, e.beginTimeout)
	defer cancel()
	return e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
}

// commit runs to its end: a caller that gives up must not turn a commit into
// an unknown one.
func commit(ctx context.Context, t pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err := t.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("%w: the transaction was rolled back", catalog.ErrUnavailable)
	case errors.As(err, &pg) && !fatal(pg), pgconn.SafeToRetry(err):
		return classify(err) // refused, or never sent: nothing was applied
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
}

// txConn implements sqlstore.Conn in a transaction.
type txConn struct {
	conn
	tx    pgx.Tx
	retry error // a serialisation failure or deadlock, which ends the transaction
}

func (c *txConn) note(err error) error {
	if retryable(err) {
		c.retry = err
	}
	return err
}

func (c *txConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	n, err := c.conn.Exec(ctx, query, args...)
	return n, c.note(err)
}

func (c *txConn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return c.note(c.conn.QueryRow(ctx, query, args, dest...))
}

func (c *txConn) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	r, err := c.conn.Query(ctx, query, args...)
	if err != nil {
		return nil, c.note(err)
	}
	return txRows{r, c}, nil
}

type txRows struct {
	sqlstore.Rows
	c *txConn
}

func (r txRows) Err() error { return r.c.note(r.Rows.Err()) }

// TryExec puts a savepoint around the statement, in the same round trip:
// PostgreSQL lets nothing more run in a transaction of which a statement has
// failed, but callers want to read why.
func (c *txConn) TryExec(ctx context.Context, query string, args ...any) (int64, error) {
	var batch pgx.Batch
	batch.Queue("SAVEPOINT try")
	batch.Queue(query, plainIDs(args)...)
	batch.Queue("RELEASE SAVEPOINT try")
	results := c.tx.SendBatch(ctx, &batch)
	var tag pgconn.CommandTag
	_, err := results.Exec()
	if err == nil {
		tag, err = results.Exec()
	}
	if err == nil {
		_, err = results.Exec()
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	err = c.note(classify(err))
	if errors.Is(err, sqlstore.ErrUnique) || errors.Is(err, sqlstore.ErrForeignKey) {
		if _, rollback := c.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT try"); rollback != nil {
			return 0, classify(rollback)
		}
	}
	return tag.RowsAffected(), err
}

// lockDepth is how many levels of a location are told apart by locks. It
// bounds the locks of one transaction: PostgreSQL has a fixed number for all.
const lockDepth = 24

// locationLock is a lock on one location, taken until the transaction ends.
type locationLock struct {
	location  string
	exclusive bool
}

// locationLocks returns, in the one order in which everybody takes them, a
// shared lock for every ancestor of each location and an exclusive one for
// the location itself. Two locations of which one contains the other
// therefore meet on the upper one's lock, and unrelated ones on none that
// excludes. Below lockDepth a location counts as its ancestor there: then more
// locations meet, never fewer.
func locationLocks(locations []string) []locationLock {
	exclusive := map[string]bool{}
	for _, l := range locations {
		levels := sqlstore.Ancestors(l)
		levels = levels[:min(len(levels), lockDepth)]
		for i, level := range levels {
			exclusive[level] = exclusive[level] || i == len(levels)-1
		}
	}
	locks := make([]locationLock, 0, len(exclusive))
	for l, x := range exclusive {
		locks = append(locks, locationLock{l, x})
	}
	slices.SortFunc(locks, func(a, b locationLock) int {
		if a.location < b.location {
			return -1
		}
		return 1 // never equal
	})
	return locks
}

// LockLocations implements sqlstore.Engine.
func (e *engine) LockLocations(ctx context.Context, c sqlstore.Conn, warehouse uuid.UUID, locations []string) error {
	locks := locationLocks(locations)
	keys := make([]string, len(locks))
	exclusive := make([]bool, len(locks))
	for i, l := range locks {
		keys[i], exclusive[i] = warehouse.String()+" "+l.location, l.exclusive
	}
	_, err := c.Exec(ctx, `SELECT CASE WHEN exclusive
		THEN pg_advisory_xact_lock(hashtextextended(key, 0))::text
		ELSE pg_advisory_xact_lock_shared(hashtextextended(key, 0))::text END
		FROM unnest($1::text[], $2::boolean[]) WITH ORDINALITY AS l(key, exclusive, n) ORDER BY n`, keys, exclusive)
	return err
}

// NumberAudit implements sqlstore.Engine.
func (e *engine) NumberAudit(ctx context.Context, c sqlstore.Conn, ids []int64, first int64, hashes []byte) error {
	n, err := c.Exec(ctx, `UPDATE audit SET seq = $2 + l.n - 1, hash = substr($3::bytea, ((l.n - 1) * 32 + 1)::int, 32)
		FROM unnest($1::bigint[]) WITH ORDINALITY AS l(id, n) WHERE audit.id = l.id AND audit.seq IS NULL`, ids, first, hashes)
	if err == nil && n != int64(len(ids)) {
		return fmt.Errorf("%d of %d audit rows are gone", int64(len(ids))-n, len(ids))
	}
	return err
}
