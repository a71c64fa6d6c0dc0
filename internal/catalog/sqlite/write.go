// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

// Group commit. One goroutine owns the writing connection. It takes all who
// wait into one transaction, lets one after the other run in a savepoint of
// its own, and then pays for one COMMIT. Each caller's function runs on the
// caller's goroutine; only the turn to use the connection is passed around.

// job is one Transact call. Its channels have room for their one message, so
// that neither side ever waits for the other to listen.
type job struct {
	ctx    context.Context
	turn   chan *jobConn // from the writer: run now
	ran    chan error    // from the caller: what its function returned
	result chan error    // from the writer, once: what became of it
}

// errPanicked is what the writer hears of a function that did not return.
var errPanicked = errors.New("a transaction's function did not return")

// Transact implements sqlstore.Engine.
func (e *engine) Transact(ctx context.Context, fn func(sqlstore.Conn) error) error {
	j := &job{ctx: ctx, turn: make(chan *jobConn, 1), ran: make(chan error, 1), result: make(chan error, 1)}
	if err := ctx.Err(); err != nil {
		return givenUp(err)
	}
	select {
	case e.jobs <- j:
	case <-ctx.Done():
		return givenUp(ctx.Err())
	case <-e.quit:
		return errClosed()
	}
	select {
	case c := <-j.turn:
		j.run(c, fn)
		return <-j.result
	case err := <-j.result:
		return err
	}
}

// run has fn use the connection, and gives it back also when fn panics.
func (j *job) run(c *jobConn, fn func(sqlstore.Conn) error) {
	err := errPanicked
	defer func() { j.ran <- err }()
	err = fn(c)
}

// write serves jobs until Close.
func (e *engine) write() {
	defer close(e.stopped)
	for {
		select {
		case <-e.quit:
			return
		case j := <-e.jobs:
			for batch := e.gather(j); len(batch) > 0; {
				batch = e.transaction(batch)
			}
		}
	}
}

// gather takes those who wait right now.
func (e *engine) gather(first *job) []*job {
	batch := []*job{first}
	for len(batch) < e.maxBatch {
		select {
		case j := <-e.jobs:
			batch = append(batch, j)
		default:
			return batch
		}
	}
	return batch
}

// transaction runs a batch and tells each job its result. When a job breaks
// the transaction, all that ran in it are told so, and the jobs whose turn had
// not come are returned.
func (e *engine) transaction(batch []*job) (rest []*job) {
	if err := e.begin(); err != nil {
		for _, j := range batch {
			j.result <- fmt.Errorf("%w: begin: %w", catalog.ErrUnavailable, err)
		}
		return nil
	}
	var good []*job
	for i, j := range batch {
		err, broken := e.turn(j, len(batch) > 1)
		switch {
		case broken != nil:
			e.rollback()
			j.result <- err
			for _, g := range good {
				g.result <- fmt.Errorf("%w: rolled back with another transaction: %w", catalog.ErrUnavailable, broken)
			}
			return batch[i+1:]
		case err != nil:
			j.result <- err
		default:
			good = append(good, j)
		}
	}
	var err error
	if len(good) == 0 {
		e.rollback()
	} else {
		err = e.commit()
	}
	for _, j := range good {
		j.result <- err
	}
	return nil
}

// begin also clears away a transaction that could not be ended before.
func (e *engine) begin() error {
	ctx := context.Background()
	_, err := e.writer.Exec(ctx, "BEGIN IMMEDIATE")
	if err != nil {
		e.rollback()
		_, err = e.writer.Exec(ctx, "BEGIN IMMEDIATE")
	}
	return err
}

// commit makes a transaction durable and visible. What readers have kept is
// void from before that moment.
func (e *engine) commit() error {
	defer e.live.change()()
	if _, err := e.writer.Exec(context.Background(), "COMMIT"); err != nil {
		return e.commitFailed(err)
	}
	return nil
}

// rollback ends a transaction if there still is one: SQLite has ended it by
// itself after some errors, and then answers with one more.
func (e *engine) rollback() {
	defer e.live.change()()
	_, _ = e.writer.Exec(context.Background(), "ROLLBACK")
}

// commitFailed rolls back. Only when the file system failed can the
// transaction turn out to be on disk after all.
func (e *engine) commitFailed(err error) error {
	e.rollback()
	var s *sqlite.Error
	if errors.As(err, &s) && primary(s) != sqlite3.SQLITE_IOERR {
		return fmt.Errorf("%w: commit: %w", catalog.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: commit: %w", catalog.ErrUnknownOutcome, err)
}

// turn lets one job run. err is what it ends with, nil if it is to be
// committed; broken is set when the transaction cannot go on.
func (e *engine) turn(j *job, shared bool) (err, broken error) {
	ctx := context.Background()
	if err := j.ctx.Err(); err != nil {
		return givenUp(err), nil
	}
	if shared {
		if _, err := e.writer.Exec(ctx, "SAVEPOINT job"); err != nil {
			return fmt.Errorf("%w: savepoint: %w", catalog.ErrUnavailable, err), err
		}
	}
	c := &jobConn{conn: e.writer}
	j.turn <- c
	err = <-j.ran
	if c.broken != nil {
		if err == nil {
			err = c.broken
		}
		return err, c.broken
	}
	if !shared {
		return err, nil
	}
	if err != nil {
		if _, broken := e.writer.Exec(ctx, "ROLLBACK TO job"); broken != nil {
			return err, broken
		}
	}
	if _, broken := e.writer.Exec(ctx, "RELEASE job"); broken != nil {
		return fmt.Errorf("%w: release: %w", catalog.ErrUnavailable, broken), broken
	}
	return err, nil
}

// jobConn is the writing connection during one job's turn. After a failure of
// the database itself SQLite may have ended the transaction, and what follows
// would be applied at once and alone; so nothing follows.
type jobConn struct {
	*conn
	broken error
}

func (c *jobConn) ready(ctx context.Context) error {
	if c.broken != nil {
		return c.broken
	}
	if err := ctx.Err(); err != nil {
		return givenUp(err)
	}
	return nil
}

func (c *jobConn) note(err error) error {
	if err != nil && !errors.Is(err, sqlstore.ErrUnique) && !errors.Is(err, sqlstore.ErrForeignKey) && !errors.Is(err, sqlstore.ErrNoRows) {
		c.broken = err
	}
	return err
}

func (c *jobConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := c.ready(ctx); err != nil {
		return 0, err
	}
	n, err := c.conn.Exec(ctx, query, args...)
	return n, c.note(err)
}

func (c *jobConn) TryExec(ctx context.Context, query string, args ...any) (int64, error) {
	return c.Exec(ctx, query, args...)
}

func (c *jobConn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	return c.note(c.conn.QueryRow(ctx, query, args, dest...))
}

func (c *jobConn) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	r, err := c.conn.Query(ctx, query, args...)
	if err != nil {
		return nil, c.note(err)
	}
	return jobRows{r, c}, nil
}

type jobRows struct {
	sqlstore.Rows
	c *jobConn
}

func (r jobRows) Err() error { return r.c.note(r.Rows.Err()) }
