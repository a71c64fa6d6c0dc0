// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package sqlite keeps a catalog in one SQLite file: pure Go, nothing to
// install, durable (WAL with synchronous=FULL).
//
// One process opens the file at a time; a second is refused. There is one
// writing connection. Writers that wait for it share a transaction, each in a
// savepoint of its own, and so share its fsync: one that fails takes nothing
// of the others with it, and none is acknowledged before the COMMIT.
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
	// MaxBatch is how many writers share one transaction; 64 when zero.
	MaxBatch int
}

// Open opens or creates the database file at path. Migrate it before use.
func Open(ctx context.Context, path string, o Options) (*sqlstore.Store, error) {
	if o.Readers <= 0 {
		o.Readers = 2 * runtime.GOMAXPROCS(0)
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = 64
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	e := &engine{path: path, lock: lock, maxBatch: o.MaxBatch}
	if err := e.open(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("open SQLite database %s: %w", path, err), e.Close())
	}
	return sqlstore.New(e), nil
}

// lockFile takes an exclusive lock beside the database, which the operating
// system releases when the process ends, however it ends.
func lockFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of SQLite database: %w", err)
	}
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock SQLite database: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("the SQLite database %s is in use by another process; stop it, or use PostgreSQL to share one catalog", path)
	}
	return f, nil
}

// engine implements sqlstore.Engine.
type engine struct {
	path     string
	lock     *os.File
	read     *sql.DB
	readConn *conn
	write    *sql.DB
	writer   *conn // the one connection of write
	maxBatch int

	mu       sync.Mutex
	queue    []*job
	draining bool
	closed   bool
}

func (e *engine) open(ctx context.Context, o Options) error {
	dsn := func(extra string) string {
		u := url.URL{Scheme: "file", OmitHost: true, Path: e.path}
		return u.String() + "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(ON)&_pragma=busy_timeout(10000)&_pragma=cache_size(-8192)" + extra
	}
	var err error
	if e.write, err = sql.Open("sqlite", dsn("")); err != nil {
		return err
	}
	e.write.SetMaxOpenConns(1)
	c, err := e.write.Conn(ctx)
	if err != nil {
		return err
	}
	e.writer = &conn{prepare: c.PrepareContext, detached: true}
	if e.read, err = sql.Open("sqlite", dsn("&_pragma=query_only(ON)")); err != nil {
		return err
	}
	e.read.SetMaxOpenConns(o.Readers)
	e.read.SetMaxIdleConns(o.Readers)
	e.readConn = &conn{prepare: e.read.PrepareContext}
	return nil
}

// job is one Transact call that waits for the writing connection.
type job struct {
	ctx  context.Context
	fn   func(sqlstore.Conn) error
	err  error
	done chan struct{}
}

// Transact queues fn. Whoever finds nobody at work takes everything that
// waits into one transaction, again and again until nobody waits.
func (e *engine) Transact(ctx context.Context, fn func(sqlstore.Conn) error) error {
	j := &job{ctx: ctx, fn: fn, done: make(chan struct{})}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return fmt.Errorf("%w: the database is closed", catalog.ErrUnavailable)
	}
	e.queue = append(e.queue, j)
	if e.draining {
		e.mu.Unlock()
		<-j.done
		return j.err
	}
	e.draining = true
	for len(e.queue) > 0 {
		batch := e.queue
		if len(batch) > e.maxBatch {
			batch = batch[:e.maxBatch:e.maxBatch]
		}
		e.queue = e.queue[len(batch):]
		e.mu.Unlock()
		e.run(batch)
		e.mu.Lock()
	}
	e.queue = nil
	e.draining = false
	e.mu.Unlock()
	return j.err
}

// run carries out a batch in one transaction and tells each its result.
func (e *engine) run(batch []*job) {
	defer func() {
		for _, j := range batch {
			close(j.done)
		}
	}()
	ctx := context.Background()
	if _, err := e.writer.Exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		for _, j := range batch {
			j.err = fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
		}
		return
	}
	var good []*job
	for _, j := range batch {
		if j.err = j.ctx.Err(); j.err != nil {
			continue // nobody waits for it any more
		}
		if j.err = e.runOne(ctx, j, len(batch) > 1); j.err == nil {
			good = append(good, j)
		}
	}
	end := "COMMIT"
	if len(good) == 0 {
		end = "ROLLBACK"
	}
	if _, err := e.writer.Exec(ctx, end); err != nil {
		// A failed COMMIT leaves the transaction open: nothing of it stays.
		_, rollback := e.writer.Exec(ctx, "ROLLBACK")
		for _, j := range good {
			j.err = fmt.Errorf("%w: commit: %w", catalog.ErrUnavailable, errors.Join(err, rollback))
		}
	}
}

// runOne runs one function, in a savepoint when others share the transaction.
func (e *engine) runOne(ctx context.Context, j *job, shared bool) (err error) {
	if shared {
		if _, err := e.writer.Exec(ctx, "SAVEPOINT job"); err != nil {
			return err
		}
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a transaction: %v", p)
		}
		if !shared {
			return
		}
		if err != nil {
			if _, e := e.writer.Exec(ctx, "ROLLBACK TO job"); e != nil {
				err = errors.Join(err, e)
			}
		}
		if _, e := e.writer.Exec(ctx, "RELEASE job"); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return j.fn(e.writer)
}

// conn implements sqlstore.Conn with statements that are prepared once.
type conn struct {
	prepare func(ctx context.Context, query string) (*sql.Stmt, error)
	// detached keeps a caller's cancellation away from statements: SQLite
	// answers an interrupted write by rolling back the whole transaction,
	// others' parts included.
	detached bool
	stmts    sync.Map // query → *sql.Stmt
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
		s.Close()
		return prior.(*sql.Stmt), nil
	}
	return s, nil
}

func (c *conn) context(ctx context.Context) context.Context {
	if c.detached {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (c *conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(c.context(ctx), args...)
	if err != nil {
		return 0, classify(err)
	}
	return r.RowsAffected()
}

func (c *conn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return err
	}
	return classify(s.QueryRowContext(c.context(ctx), args...).Scan(dest...))
}

func (c *conn) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	r, err := s.QueryContext(c.context(ctx), args...)
	if err != nil {
		return nil, classify(err)
	}
	return rows{r}, nil
}

type rows struct{ *sql.Rows }

func (r rows) Close()     { r.Rows.Close() }
func (r rows) Err() error { return classify(r.Rows.Err()) }

// classify gives errors of the driver the meaning that sqlstore knows.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		return sqlstore.ErrNoRows
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
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY:
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	return err
}

func (e *engine) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = e.Transact(ctx, func(c sqlstore.Conn) error {
		n, err = c.Exec(ctx, query, args...)
		return err
	})
	return n, err
}

func (e *engine) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return e.readConn.QueryRow(ctx, query, args, dest...)
}

func (e *engine) Query(ctx context.Context, query string, args ...any) (sqlstore.Rows, error) {
	return e.readConn.Query(ctx, query, args...)
}

// LockLocations has nothing to do: writers exclude each other.
func (e *engine) LockLocations(context.Context, sqlstore.Conn, uuid.UUID, []string) error { return nil }

func (e *engine) ForUpdate() string  { return "" }
func (e *engine) SkipLocked() string { return "" }

func (e *engine) Ping(ctx context.Context) error {
	var one int
	return e.QueryRow(ctx, "SELECT 1", nil, &one)
}

// Close waits for the writers at work, checkpoints and releases the file.
func (e *engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	var errs []error
	for _, db := range []*sql.DB{e.read, e.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(append(errs, e.lock.Close())...)
}
