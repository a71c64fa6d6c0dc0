// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package sqlite keeps a catalog in one SQLite file: pure Go, nothing to
// install, durable (WAL with synchronous=FULL).
//
// Invariants: one process opens the file at a time, a second is refused; no
// write is acknowledged before the COMMIT that holds it is on disk; a
// transaction that fails takes nothing of the others with it that share its
// COMMIT; a caller's cancellation never interrupts a statement that writes,
// since SQLite could answer by rolling back what others did; what a look-up
// kept in memory is void before the COMMIT that may change it.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/google/uuid"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

// Options tune a store; the zero value is right for most.
type Options struct {
	// Readers is how many connections read at once; 2 per core when zero.
	Readers int
	// MaxBatch is how many writers share one COMMIT; 64 when zero, 1 to have
	// each commit alone.
	MaxBatch int
}

// Open opens or creates the database file at path, readable by its owner
// alone. Migrate it before use.
func Open(ctx context.Context, path string, o Options) (*sqlstore.Store, error) {
	e, err := openEngine(ctx, path, o)
	if err != nil {
		return nil, err
	}
	return sqlstore.New(e), nil
}

func openEngine(ctx context.Context, path string, o Options) (*engine, error) {
	if o.Readers <= 0 {
		o.Readers = 2 * runtime.GOMAXPROCS(0)
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = 64
	}
	path, err := create(path)
	if err != nil {
		return nil, fmt.Errorf("create SQLite database: %w", err)
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	e := &engine{
		path: path, lock: lock, maxBatch: o.MaxBatch,
		jobs: make(chan *job), quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := e.connect(ctx, o); err != nil {
		close(e.stopped) // the writing goroutine has not been started
		return nil, errors.Join(fmt.Errorf("open SQLite database %s: %w", path, err), e.Close())
	}
	go e.write()
	return e, nil
}

// create makes the file when it is missing, and returns its path without
// symbolic links, so that one file has one lock.
func create(path string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// lockFile takes an exclusive lock beside the database, which the operating
// system releases when the process ends, however it ends. The file stays: to
// remove it would let two processes lock two files of that name.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock SQLite database: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		f.Close()
		return nil, fmt.Errorf("%w: the SQLite database %s is in use by another process; stop that one first, or use PostgreSQL for a catalog that several servers share", catalog.ErrUnavailable, path)
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("lock SQLite database %s: %w", path, err)
	}
	return f, nil
}

// engine implements sqlstore.Engine.
type engine struct {
	path     string
	lock     *os.File
	maxBatch int

	readDB   *sql.DB
	reader   *conn
	writeDB  *sql.DB
	writeOne *sql.Conn // the one connection of writeDB
	writer   *conn     // writeOne with prepared statements
	live     liveCache

	jobs      chan *job
	quit      chan struct{} // closed by Close
	stopped   chan struct{} // closed when write has returned
	closing   sync.Once
	closed    error      // what Close returned
	migrating sync.Mutex // one Migrate at a time
}

func (e *engine) connect(ctx context.Context, o Options) error {
	file := url.URL{Scheme: "file", OmitHost: true, Path: e.path}
	dsn := file.String() + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(ON)&_pragma=cache_size(-8192)"
	var err error
	if e.writeDB, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	e.writeDB.SetMaxOpenConns(1)
	if e.writeOne, err = e.writeDB.Conn(ctx); err != nil {
		return err
	}
	e.writer = &conn{prepare: e.writeOne.PrepareContext}
	if e.readDB, err = sql.Open("sqlite", dsn+"&_pragma=query_only(ON)"); err != nil {
		return err
	}
	e.readDB.SetMaxOpenConns(o.Readers)
	e.readDB.SetMaxIdleConns(o.Readers)
	e.reader = &conn{prepare: e.readDB.PrepareContext, cancellable: true}
	return nil
}

// conn implements sqlstore.Conn with statements that are prepared once.
type conn struct {
	prepare     func(ctx context.Context, query string) (*sql.Stmt, error)
	cancellable bool     // whether a query may be interrupted
	stmts       sync.Map // query → *sql.Stmt
}

func (c *conn) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if s, ok := c.stmts.Load(query); ok {
		return s.(*sql.Stmt), nil
	}
	s, err := c.prepare(context.WithoutCancel(ctx), query)
	if err != nil {
		return nil, classify(err)
	}
	if prior, loaded := c.stmts.LoadOrStore(query, s); loaded {
		return prior.(*sql.Stmt), classify(s.Close())
	}
	return s, nil
}

// close gives the statements up. A connection with statements does not really
// close, and the log stays behind.
func (c *conn) close() error {
	var errs []error
	c.stmts.Range(func(_, s any) bool {
		errs = append(errs, s.(*sql.Stmt).Close())
		return true
	})
	return errors.Join(errs...)
}

func (c *conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.WithoutCancel(ctx), args...)
	if err != nil {
		return 0, classify(err)
	}
	return r.RowsAffected()
}

// TryExec is Exec: a statement that meets a constraint undoes itself alone.
func (c *conn) TryExec(ctx context.Context, query string, args ...any) (int64, error) {
	return c.Exec(ctx, query, args...)
}

// QueryRow runs to its end: a look-up by key takes microseconds, and a
// context that can be cancelled would cost more than that.
func (c *conn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	if err := ctx.Err(); err != nil {
		return givenUp(err)
	}
	s, err := c.stmt(ctx, query)
	if err != nil {
		return err
	}
	return classify(s.QueryRowContext(context.WithoutCancel(ctx), args...).Scan(dest...))
}

func (c *conn) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	if !c.cancellable {
		ctx = context.WithoutCancel(ctx)
	}
	r, err := s.QueryContext(ctx, args...)
	if err != nil {
		return nil, classify(err)
	}
	return rows{r}, nil
}

type rows struct{ *sql.Rows }

// Close hides the error: what ended the rows early is in Err.
func (r rows) Close()     { _ = r.Rows.Close() }
func (r rows) Err() error { return classify(r.Rows.Err()) }

// classify gives errors of the driver the meaning that sqlstore knows.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return sqlstore.ErrNoRows
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return givenUp(err)
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnique, err)
	case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
		return fmt.Errorf("%w: %w", sqlstore.ErrForeignKey, err)
	}
	switch primary(e) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT:
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	return err
}

// primary is the kind of an error, without its details.
func primary(e *sqlite.Error) int { return e.Code() & 0xff }

// givenUp is the error of a caller whose context is over before anything was
// applied.
func givenUp(err error) error { return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err) }

// errClosed is what callers get after Close.
func errClosed() error { return fmt.Errorf("%w: the database is closed", catalog.ErrUnavailable) }

func (e *engine) isClosed() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

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

// QueryRow reads outside transactions.
func (e *engine) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	if e.isClosed() {
		return errClosed()
	}
	return e.reader.QueryRow(ctx, query, args, dest...)
}

// Query reads outside transactions.
func (e *engine) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	if e.isClosed() {
		return nil, errClosed()
	}
	return e.reader.Query(ctx, query, args...)
}

// LockLocations has nothing to do: writers exclude each other.
func (e *engine) LockLocations(context.Context, sqlstore.Conn, uuid.UUID, []string) error { return nil }

// NumberAudit implements sqlstore.Engine.
func (e *engine) NumberAudit(ctx context.Context, c sqlstore.Conn, ids []int64, first int64, hashes []byte) error {
	size := len(hashes) / len(ids)
	for i, id := range ids {
		n, err := c.Exec(ctx, `UPDATE audit SET seq = $2, hash = $3 WHERE id = $1 AND seq IS NULL`, id, first+int64(i), hashes[i*size:(i+1)*size])
		if err != nil {
			return err
		}
		if n != 1 {
			return fmt.Errorf("the audit row %d is gone", id)
		}
	}
	return nil
}

// RowLocks has none: writers exclude each other.
func (e *engine) RowLocks() sqlstore.RowLocks { return sqlstore.RowLocks{} }

// Ping reads.
func (e *engine) Ping(ctx context.Context) error {
	var one int
	return e.QueryRow(ctx, "SELECT 1", nil, &one)
}

// Close lets the writers at work finish, turns those that wait away, writes
// the log back into the database, and releases the file.
func (e *engine) Close() error {
	e.closing.Do(func() {
		close(e.quit)
		<-e.stopped
		var errs []error
		if e.readDB != nil {
			errs = append(errs, e.reader.close(), e.readDB.Close())
		}
		if e.writeOne != nil {
			errs = append(errs, e.writer.close(), e.writeOne.Close())
		}
		if e.writeDB != nil {
			errs = append(errs, e.writeDB.Close())
		}
		e.closed = errors.Join(append(errs, e.lock.Close())...)
	})
	return e.closed
}
