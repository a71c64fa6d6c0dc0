// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package audit is the log of what was read: who asked for what, from where,
// with which outcome. Changes have their audit rows in the store, in the
// transaction that makes them; this log is for everything that changes
// nothing.
//
// Invariants:
//
//   - A record that Append has taken is written, in order, unless the process
//     is killed. When the queue is full Append refuses, so that the request
//     can be refused; a record is never dropped to make room.
//   - A sink that fails is tried again until it works; meanwhile the queue
//     fills and requests are refused.
//   - A record holds no secret: its fields are names.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Errors of Append.
var (
	ErrFull   = errors.New("the audit queue is full")
	ErrClosed = errors.New("the audit log is closed")
)

// Record is one request that read something, or tried to.
type Record struct {
	Time      time.Time
	RequestID string
	// Principal and Actor are ids; Actor is "" when the principal called by
	// itself, Principal is "" when it is not known.
	Principal, Actor string
	Address          netip.Addr
	Operation        string // operationId of the protocol: "loadTable"
	Warehouse        string
	Resource         string // dotted identifier
	Status           int    // HTTP status of the answer
}

// Options are the settings of a [Log].
type Options struct {
	// Capacity is how many records may wait to be written; 8192 when zero.
	Capacity int
	// Wait makes Append wait for room, as long as its context allows, where
	// it would return ErrFull.
	Wait bool
	// Logger is told when the sink fails and when it works again.
	Logger *slog.Logger
}

// DefaultCapacity is the queue's length unless configured.
const DefaultCapacity = 8192

// Log takes records on hot paths and writes them as JSON lines. It is safe
// for concurrent use.
type Log struct {
	open    func() (io.WriteCloser, error)
	wait    bool
	log     *slog.Logger
	queue   chan Record
	reopen  chan chan error
	done    chan struct{} // closed when the writer has ended
	giveUp  chan struct{} // closed when Close stops waiting
	written atomic.Int64
	refused atomic.Int64
	lost    atomic.Int64 // what was left when Close gave up

	mu     sync.RWMutex // guards closed against a send to the closed queue
	closed bool
}

// OpenFile returns a Log that appends to a file, made with mode 0600 when it
// is new. Close it.
func OpenFile(path string, o Options) (*Log, error) {
	return start(o, func() (io.WriteCloser, error) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the audit log: %w", err)
		}
		return f, nil
	})
}

// NewWriter returns a Log that writes to w, which it does not close.
func NewWriter(w io.Writer, o Options) (*Log, error) {
	return start(o, func() (io.WriteCloser, error) { return nopCloser{w}, nil })
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func start(o Options, open func() (io.WriteCloser, error)) (*Log, error) {
	if o.Capacity <= 0 {
		o.Capacity = DefaultCapacity
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	sink, err := open()
	if err != nil {
		return nil, err
	}
	l := &Log{
		open: open, wait: o.Wait, log: o.Logger,
		queue:  make(chan Record, o.Capacity),
		reopen: make(chan chan error),
		done:   make(chan struct{}),
		giveUp: make(chan struct{}),
	}
	go l.write(sink)
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
	if !l.wait {
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
func (l *Log) Reopen(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case l.reopen <- answer:
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

// maxBatch is how many bytes are written at once at most.
const maxBatch = 64 << 10

// write is the goroutine that owns the sink, until the queue is closed and
// empty.
func (l *Log) write(sink io.WriteCloser) {
	defer close(l.done)
	buf := make([]byte, 0, maxBatch)
	for {
		var r Record
		var ok bool
		select {
		case r, ok = <-l.queue:
		case answer := <-l.reopen:
			next, err := l.open()
			if err == nil {
				err = finish(sink)
				sink = next
			}
			answer <- err
			continue
		}
		if !ok {
			if err := finish(sink); err != nil {
				l.log.Error("close the audit log", "error", err)
			}
			return
		}
		buf = appendRecord(buf[:0], r)
		n := int64(1)
		for more := true; more && len(buf) < maxBatch; {
			select {
			case r, ok = <-l.queue:
				if more = ok; ok {
					buf = appendRecord(buf, r)
					n++
				}
			default:
				more = false
			}
		}
		if !l.persist(sink, buf) {
			l.lost.Store(n + int64(len(l.queue)))
			return
		}
		l.written.Add(n)
	}
}

// finish makes a file durable and closes it.
func finish(sink io.WriteCloser) error {
	var err error
	if f, ok := sink.(*os.File); ok {
		if err = f.Sync(); errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrInvalid) {
			err = nil // a pipe or a terminal
		}
	}
	return errors.Join(err, sink.Close())
}

// persist writes all of b however often the sink fails. It reports false
// when Close has given up.
func (l *Log) persist(sink io.Writer, b []byte) bool {
	pause := 50 * time.Millisecond
	failing := false
	for {
		n, err := sink.Write(b)
		b = b[max(n, 0):]
		if err == nil && len(b) == 0 {
			if failing {
				l.log.Info("the audit log is written again")
			}
			return true
		}
		if !failing {
			failing = true
			l.log.Error("the audit log cannot be written; requests will be refused when the queue is full", "error", err, "queued", len(l.queue))
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		case <-l.giveUp:
			return false
		}
	}
}

// appendRecord appends one JSON line.
func appendRecord(b []byte, r Record) []byte {
	b = append(b, `{"type":"audit.read","time":"`...)
	b = r.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z07:00")
	b = append(b, '"')
	b = appendField(b, "request_id", r.RequestID)
	b = appendField(b, "principal", r.Principal)
	b = appendField(b, "actor", r.Actor)
	if r.Address.IsValid() {
		b = append(b, `,"address":"`...)
		b = r.Address.AppendTo(b)
		b = append(b, '"')
	}
	b = appendField(b, "operation", r.Operation)
	b = appendField(b, "warehouse", r.Warehouse)
	b = appendField(b, "resource", r.Resource)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	return append(b, "}\n"...)
}

// appendField appends a member; an empty value is left out.
func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendString(b, value)
}

// appendString appends a JSON string. Control characters, and what some
// readers of lines take for a line's end, are escaped; invalid UTF-8 becomes
// the replacement character.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1, r == '\u2028', r == '\u2029', r == '\u0085':
				b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
			default:
				b = append(b, s[i:i+size]...)
			}
			i += size
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
		i++
	}
	return append(b, '"')
}
