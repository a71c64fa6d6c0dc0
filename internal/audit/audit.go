// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package audit says who did what, to what, from where, with which outcome,
// and proves later that nobody has changed what it said.
//
// A [Log] takes records of what changes nothing on hot paths and writes them
// as JSON lines. Changes have their rows in the store, in the transaction that
// makes them; package catalog numbers and chains them with the [Chain] of this
// package, so that both are the same lines in the end, which [Verify] checks.
// docs/decisions/008 says why it is done this way.
//
// Invariants:
//
//   - A record that Append has taken is written, in order, unless the process
//     is killed. When the queue is full Append refuses, so that the request
//     can be refused; a record is never dropped to make room.
//   - A sink that fails is tried again until it works; meanwhile the queue
//     fills and requests are refused.
//   - A record holds no secret: its fields are names.
//   - Every record's line depends on all lines of its partition before it, and
//     checkpoints are signed: see [Chain] and [Checkpoint].
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of Append.
var (
	ErrFull   = errors.New("the audit queue is full")
	ErrClosed = errors.New("the audit log is closed")
)

// Options are the settings of a [Log].
type Options struct {
	// Capacity is how many records may wait to be written; 8192 when zero.
	Capacity int
	// Wait makes Append wait for room, as long as its context allows, where
	// it would return ErrFull.
	Wait bool
	// Signer signs checkpoints; nil writes none, and then the chain shows
	// damage but not the work of somebody who makes it anew.
	Signer *Signer
	// A checkpoint is written after CheckpointRecords records (1000 when zero)
	// or CheckpointInterval after a record (10 s when zero), whichever comes
	// first, and when the log is closed or opened anew.
	CheckpointRecords  int
	CheckpointInterval time.Duration
	// Logger is told when the sink fails and when it works again.
	Logger *slog.Logger
}

// The settings of a Log unless configured.
const (
	DefaultCapacity           = 8192
	DefaultCheckpointRecords  = 1000
	DefaultCheckpointInterval = 10 * time.Second
)

// Log takes records on hot paths and writes them as JSON lines. It is safe
// for concurrent use.
type Log struct {
	open    func() (io.WriteCloser, error)
	path    string // of the file; "" for none
	last    string // file that holds the last checkpoint or record; "" for none
	options Options
	log     *slog.Logger
	queue   chan Record
	reopen  chan reopening
	done    chan struct{} // closed when the writer has ended
	giveUp  chan struct{} // closed when Close stops waiting
	written atomic.Int64
	refused atomic.Int64
	lost    atomic.Int64 // what was left when Close gave up

	mu     sync.RWMutex // guards closed against a send to the closed queue
	closed bool
}

// LastSuffix is added to a log's name for the file that holds the newest
// checkpoint (or without a signer the newest record's place), by which a log
// that was moved away is continued. A copy of it elsewhere, made now and then,
// is what proves later that the log's end was not cut off.
const LastSuffix = ".last"

// OpenFile returns a Log that appends to a file, made with mode 0600 when it
// is new. Close it.
func OpenFile(path string, o Options) (*Log, error) {
	before, err := endOf(path)
	if err != nil {
		return nil, fmt.Errorf("read the end of the audit log: %w", err)
	}
	return start(o, before, path, func() (io.WriteCloser, error) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the audit log: %w", err)
		}
		return f, nil
	})
}

// NewWriter returns a Log that writes to w, which it does not close.
func NewWriter(w io.Writer, o Options) (*Log, error) {
	return start(o, end{}, "", func() (io.WriteCloser, error) { return nopCloser{w}, nil })
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func start(o Options, before end, path string, open func() (io.WriteCloser, error)) (*Log, error) {
	if o.Capacity <= 0 {
		o.Capacity = DefaultCapacity
	}
	if o.CheckpointRecords <= 0 {
		o.CheckpointRecords = DefaultCheckpointRecords
	}
	if o.CheckpointInterval <= 0 {
		o.CheckpointInterval = DefaultCheckpointInterval
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	sink, err := open()
	if err != nil {
		return nil, err
	}
	l := &Log{
		open: open, path: path, options: o, log: o.Logger,
		queue:  make(chan Record, o.Capacity),
		reopen: make(chan reopening),
		done:   make(chan struct{}),
		giveUp: make(chan struct{}),
	}
	if path != "" {
		l.last = path + LastSuffix
	}
	w := &writer{Log: l, sink: sink, before: before}
	go w.run()
	return l, nil
}

// Append takes a record. It returns ErrFull when there is no room (or, if the
// log waits, the context's error), and ErrClosed after Close.
func (l *Log) Append(ctx context.Context, r Record) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return ErrClosed
	}
	select {
	case l.queue <- r:
		return nil
	default:
	}
	if !l.options.Wait {
		l.refused.Add(1)
		return ErrFull
	}
	select {
	case l.queue <- r:
		return nil
	case <-ctx.Done():
		l.refused.Add(1)
		return fmt.Errorf("%w: %w", ErrFull, ctx.Err())
	case <-l.giveUp:
		return ErrClosed
	}
}

// Stats tells how many records wait, were written and were refused.
func (l *Log) Stats() (waiting int, written, refused int64) {
	return len(l.queue), l.written.Load(), l.refused.Load()
}

// Reopen opens the file anew, for when it has been moved away.
func (l *Log) Reopen(ctx context.Context) error { return l.reopenAs(ctx, "") }

// reopening asks for the file to be opened anew, after it was moved.
type reopening struct {
	to     string // where it is moved; "" for nowhere
	answer chan error
}

func (l *Log) reopenAs(ctx context.Context, to string) error {
	answer := make(chan error, 1)
	select {
	case l.reopen <- reopening{to, answer}:
		return <-answer
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close writes what waits and ends the log. When ctx ends first it gives up
// and says how many records were not written.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	if first {
		close(l.queue)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
	}
	if first {
		close(l.giveUp)
		<-l.done
	}
	if n := l.lost.Load(); n > 0 {
		return fmt.Errorf("%d audit records could not be written in time: %w", n, ctx.Err())
	}
	return nil
}
