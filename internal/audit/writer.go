// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
)

// maxBatch is how many bytes are written at once at most.
const maxBatch = 64 << 10

// writer is the goroutine that owns a Log's sink and chain.
type writer struct {
	*Log
	sink   io.WriteCloser
	before end
	// chain is nil until the first record begins a partition.
	chain *Chain
	buf   []byte
	// unsigned is how many records came after the last checkpoint.
	unsigned int
	due      *time.Timer // of the next checkpoint
	armed    bool        // due will fire
	// newest is what the file beside the log is to hold.
	newest []byte
}

// run writes until the queue is closed and empty.
func (w *writer) run() {
	defer close(w.done)
	w.buf = make([]byte, 0, maxBatch)
	w.due = time.NewTimer(time.Hour)
	w.due.Stop()
	for {
		select {
		case r, ok := <-w.queue:
			if !ok {
				w.end()
				return
			}
			if !w.batch(r) {
				return
			}
		case r := <-w.reopen:
			r.answer <- w.reopenSink(r.to)
		case <-w.due.C:
			w.armed = false
			if !w.checkpoint(false) {
				return
			}
			w.settle()
		}
	}
}

// batch writes a record and those that wait behind it. It reports false when
// Close has given up.
func (w *writer) batch(r Record) bool {
	w.buf = w.buf[:0]
	w.add(&r)
	n := int64(1)
	for more := true; more && len(w.buf) < maxBatch; {
		select {
		case r, ok := <-w.queue:
			if more = ok; ok {
				w.add(&r)
				n++
			}
		default:
			more = false
		}
	}
	if !w.persist(w.buf) {
		w.lost.Store(n + int64(len(w.queue)))
		return false
	}
	w.written.Add(n)
	return true
}

// add appends a record to the batch, with what must stand before and after it.
func (w *writer) add(r *Record) {
	if w.chain == nil {
		if w.before.torn {
			w.buf = append(w.buf, '\n')
		}
		w.chain = NewChain(Ref{Partition: uuid.NewString()})
		w.buf = w.chain.open(w.buf, time.Now(), w.before)
		w.before = end{}
	}
	w.buf = w.chain.Append(w.buf, r)
	w.unsigned++
	// Not put off by records that come meanwhile: it is what makes the log
	// durable, too.
	if !w.armed {
		w.armed = true
		w.due.Reset(w.options.CheckpointInterval)
	}
	if w.unsigned >= w.options.CheckpointRecords && w.options.Signer != nil {
		w.sign(false)
		w.unsigned = 0
	}
}

// sign appends a checkpoint to the batch.
func (w *writer) sign(final bool) {
	c := w.options.Signer.Sign(w.chain.Last(), final, time.Now())
	start := len(w.buf)
	w.buf = c.Append(w.buf)
	w.newest = append(w.newest[:0], w.buf[start:]...)
}

// checkpoint writes one for what has none. It reports false when Close has
// given up.
func (w *writer) checkpoint(final bool) bool {
	if w.chain == nil || w.unsigned == 0 && !final {
		return true
	}
	w.unsigned = 0
	if w.options.Signer == nil {
		raw, err := json.Marshal(newest{Ref: w.chain.Last(), Time: time.Now().UTC()})
		if err == nil {
			w.newest = append(raw, '\n')
		}
		return true
	}
	w.buf = w.buf[:0]
	w.sign(final)
	return w.persist(w.buf)
}

// settle makes what was written durable, and says beside the log how far that
// is. That this fails loses nothing, and keeps nobody from reading.
func (w *writer) settle() {
	if err := syncSink(w.sink); err != nil {
		w.log.Error("the audit log cannot be made durable", "error", err)
	}
	if w.last == "" || len(w.newest) == 0 {
		return
	}
	if err := replaceFile(w.last, w.newest); err != nil {
		w.log.Error("the audit log's last checkpoint cannot be kept beside it", "error", err)
	}
	w.newest = w.newest[:0]
}

// end ends the partition and closes the sink.
func (w *writer) end() {
	if !w.checkpoint(true) {
		w.log.Error("the audit log ends without a checkpoint, since it cannot be written")
	}
	w.settle()
	if err := w.sink.Close(); err != nil {
		w.log.Error("close the audit log", "error", err)
	}
}

// reopenSink ends the partition in the open file and begins another, with the
// next record, in the new one: each file can be verified by itself. The file is
// moved first, unless that is "".
func (w *writer) reopenSink(to string) error {
	if to != "" {
		if err := os.Rename(w.path, to); err != nil {
			return err
		}
	}
	next, err := w.open()
	if err != nil {
		return err
	}
	if w.chain != nil && w.checkpoint(true) {
		last := w.chain.Last()
		w.before, w.chain = end{last: &last}, nil
	}
	w.settle()
	err = w.sink.Close()
	w.sink = next
	return err
}

// syncSink makes a file durable.
func syncSink(sink io.Writer) error {
	f, ok := sink.(*os.File)
	if !ok {
		return nil
	}
	if err := f.Sync(); !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, os.ErrInvalid) {
		return err
	}
	return nil // a pipe or a terminal
}

// persist writes all of b however often the sink fails. It reports false
// when Close has given up.
func (w *writer) persist(b []byte) bool {
	pause := 50 * time.Millisecond
	failing := false
	for {
		n, err := w.sink.Write(b)
		b = b[max(n, 0):]
		if err == nil && len(b) == 0 {
			if failing {
				w.log.Info("the audit log is written again")
			}
			return true
		}
		if !failing {
			failing = true
			w.log.Error("the audit log cannot be written; requests will be refused when the queue is full", "error", err, "queued", len(w.queue))
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		case <-w.giveUp:
			return false
		}
	}
}

// end is how a log ends.
type end struct {
	last *Ref      // its last record; nil when none is found
	at   time.Time // of that record
	torn bool      // its last line was not finished
}

// newest is what the file beside a log holds, as far as it is read: a
// checkpoint, or without a signer the place of the newest record.
type newest struct {
	Ref
	Time time.Time `json:"time"`
}

// maxTail is how much of a log's end is looked at for its last record.
const maxTail = 4 << 20

// endOf looks at a log's end. When its file holds no record, the log was moved
// away: then its last record is in the newest file beside it, or what the file
// says that is kept for this, whichever is newer. The latter is behind when the
// server was killed.
func endOf(path string) (end, error) {
	e, err := endOfFile(path)
	if err != nil || e.last != nil {
		return e, err
	}
	raw, err := os.ReadFile(path + LastSuffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, err
	}
	var kept newest
	if json.Unmarshal(raw, &kept) == nil && kept.Partition != "" && kept.Seq > 0 {
		e.last, e.at = &kept.Ref, kept.Time
	}
	segments, err := Segments(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return e, err
	}
	if len(segments) == 0 {
		return e, nil
	}
	moved, err := endOfFile(segments[len(segments)-1].Path)
	if err != nil || moved.last == nil {
		return e, err
	}
	if e.last == nil || moved.last.Partition == e.last.Partition && moved.last.Seq > e.last.Seq || moved.last.Partition != e.last.Partition && moved.at.After(e.at) {
		e.last, e.at = moved.last, moved.at
	}
	return e, nil
}

func endOfFile(path string) (end, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return end{}, nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return end{}, err // a pipe or device has no past
	}
	f, err := os.Open(path)
	if err != nil {
		return end{}, err
	}
	defer f.Close()
	return lastRecord(f)
}

// lastRecord looks for a file's last record in its last bytes.
func lastRecord(f *os.File) (end, error) {
	info, err := f.Stat()
	if err != nil {
		return end{}, err
	}
	raw := make([]byte, min(info.Size(), maxTail))
	if _, err := f.ReadAt(raw, info.Size()-int64(len(raw))); err != nil && !errors.Is(err, io.EOF) {
		return end{}, err
	}
	e := end{torn: len(raw) > 0 && raw[len(raw)-1] != '\n'}
	for len(raw) > 0 && e.last == nil {
		raw = raw[:len(raw)-1]
		i := bytes.LastIndexByte(raw, '\n') + 1
		if p, _, h, ok := parsePlace(raw[i:]); ok {
			e.last = &Ref{Partition: p.Partition, Seq: p.Seq, Hash: h}
			if info, err := ParseLine(raw[i:]); err == nil {
				e.at = info.Time
			}
		}
		raw = raw[:i]
	}
	return e, nil
}

// replaceFile writes a file whole or not at all, with mode 0600.
func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".audit-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}
