// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// CursorSuffix ends the names of the files beside a log in which exports keep
// how far they have come: <log>.<export>.cursor.
const CursorSuffix = ".cursor"

// lockSuffix is added to a cursor's name for the file that the process locks
// which exports.
const lockSuffix = ".lock"

// Segment is one file of a log of reads: the one that is written, or one that
// was moved away and keeps its name with a suffix behind it.
type Segment struct {
	Path string
	// id is the SHA-256 of the file's first line, which begins a partition of
	// its own: it names the file however that is called.
	id Hash
	// first is the first record, and at its time.
	first place
	at    time.Time
}

// Begins is the time of the first record.
func (s *Segment) Begins() time.Time { return s.at }

// Segments returns the files of a log that hold a line, oldest first: the
// file itself and those beside it whose names begin with its name and a dot.
func Segments(path string) ([]Segment, error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(cmp.Or(dir, "."))
	if err != nil {
		return nil, err
	}
	var all []Segment
	for _, e := range entries {
		name := e.Name()
		if name != base && (!strings.HasPrefix(name, base+".") || strings.HasSuffix(name, LastSuffix) || strings.HasSuffix(name, CursorSuffix) || strings.HasSuffix(name, lockSuffix)) || !e.Type().IsRegular() {
			continue
		}
		s, ok, err := segmentOf(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // moved meanwhile
		}
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Segment) int { return a.at.Compare(b.at) })
	return all, nil
}

// segmentOf looks at a file's beginning.
func segmentOf(path string) (s Segment, ok bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, false, err
	}
	defer f.Close()
	s.Path = path
	n := 0
	for line, err := range lines(f) {
		if err != nil || line.Torn || n == maxLookAhead {
			break
		}
		if n++; n == 1 {
			s.id = sha256.Sum256(line.Text)
		}
		if p, _, _, isRecord := parsePlace(line.Text); isRecord {
			info, err := ParseLine(line.Text)
			s.first, s.at = p, info.Time
			return s, err == nil, nil
		}
	}
	return s, false, nil
}

var errNoLine = errors.New("remove it to export the log from the oldest file on")

// maxLookAhead is how many lines of a file's beginning may be no records:
// those from before the chain, or what a killed server left.
const maxLookAhead = 100_000

// shipped is how far an export of a log has come.
type shipped struct {
	// File is the id of the segment, and Offset where in it the next line
	// begins.
	File   Hash  `json:"file"`
	Offset int64 `json:"offset"`
	// Partition and Seq are of the last record that was delivered.
	Partition string `json:"partition"`
	Seq       int64  `json:"seq"`
}

// Shipper hands a log of reads on, across restarts and rotations. Every line is
// delivered at least once, and in order. It must be the only one of its name.
type Shipper struct {
	Path string // of the log
	Name string // of the export
	Sink Sink
	// Signed holds records back until a checkpoint follows them, unless a whole
	// batch has none.
	Signed bool
	// Batch is how many records are sent at once at most; DefaultBatch when
	// zero.
	Batch int64
	// Interval is the pause between rounds; 1 s when zero.
	Interval time.Duration
	Progress *Progress
	Logger   *slog.Logger

	file   *os.File
	at     shipped
	loaded bool
}

// ReadsSource is the source of batches of a log of reads.
const ReadsSource = "reads"

// deliveryTimeout bounds one delivery.
const deliveryTimeout = time.Minute

// Run works until ctx ends. While another process does, such as the server that
// this one takes over from, it waits.
func (s *Shipper) Run(ctx context.Context) {
	var lock *os.File
	round := func(ctx context.Context) (err error) {
		if lock == nil {
			if lock, err = s.lock(); lock == nil {
				return err
			}
			s.loaded = false // the other one has gone on
			s.close()
		}
		return s.Round(ctx)
	}
	Repeat(ctx, s.Interval, round, func(err error, pause time.Duration) {
		s.Logger.Warn("audit export of reads", "export", s.Name, "again_in", pause.String(), "error", err)
	})
	s.close()
	if lock != nil {
		lock.Close() //nolint:errcheck // nothing was written
	}
}

// lock takes the export's lock; nil when another process has it.
func (s *Shipper) lock() (*os.File, error) {
	f, err := os.OpenFile(s.cursorPath()+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	switch ok, err := tryLock(f); {
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	case !ok:
		return nil, f.Close()
	}
	return f, nil
}

func (s *Shipper) close() {
	if s.file != nil {
		s.file.Close() //nolint:errcheck // opened for reading
		s.file = nil
	}
}

// Round sends all that there is.
func (s *Shipper) Round(ctx context.Context) error {
	if s.Progress == nil {
		s.Progress = &Progress{}
	}
	for {
		more, err := s.step(ctx)
		if err != nil {
			s.Progress.Failed()
		}
		if err != nil || !more {
			return err
		}
	}
}

// step sends one batch, or goes on to the next file. It reports whether there
// may be more.
func (s *Shipper) step(ctx context.Context) (more bool, err error) {
	if s.file == nil {
		if ok, err := s.open(); !ok || err != nil {
			return false, err
		}
	}
	// Whether the file was moved away is asked before it is read: what is
	// written until the server opens the new one is read the next time.
	moved, err := isMoved(s.file, s.Path)
	if err != nil {
		return false, err
	}
	next, err := s.successor(moved)
	if err != nil {
		return false, err
	}
	b, end, err := s.collect(next != nil)
	if err != nil {
		return false, err
	}
	if len(b.Lines) == 0 {
		s.at.Offset = end
		if next == nil {
			return false, nil
		}
		s.close()
		s.at.File, s.at.Offset = next.id, 0
		return true, s.keep()
	}
	sending, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	if err := s.Sink.Send(sending, b); err != nil {
		return false, err
	}
	s.at.Offset, s.at.Partition, s.at.Seq = end, b.Partition, b.Last
	s.Progress.Delivered(b.Records())
	s.Progress.Pending(ReadsSource, time.Time{})
	return true, s.keep()
}

func (s *Shipper) cursorPath() string { return s.Path + "." + s.Name + CursorSuffix }

// noted is how far the export has come; zero when it has not begun.
func (s *Shipper) noted() (at shipped, err error) {
	raw, err := os.ReadFile(s.cursorPath())
	if errors.Is(err, fs.ErrNotExist) {
		return at, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &at)
	}
	if err != nil {
		return at, fmt.Errorf("read how far the export has come, in %s: %w", s.cursorPath(), err)
	}
	return at, nil
}

// keep notes how far the export has come.
func (s *Shipper) keep() error {
	raw, err := json.Marshal(s.at)
	if err == nil {
		err = replaceFile(s.cursorPath(), append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note how far the export has come: %w", err)
	}
	return nil
}

// open opens the file in which the export goes on; ok is false when there is
// none yet.
func (s *Shipper) open() (ok bool, err error) {
	if !s.loaded {
		if s.at, err = s.noted(); err != nil {
			return false, err
		}
		s.loaded = true
	}
	segments, err := Segments(s.Path)
	if err != nil {
		return false, fmt.Errorf("look for the log of reads: %w", err)
	}
	if len(segments) == 0 && s.at.File.IsZero() {
		return false, nil
	}
	i := 0
	if !s.at.File.IsZero() {
		i = slices.IndexFunc(segments, func(g Segment) bool { return g.id == s.at.File })
	}
	if i < 0 {
		return false, fmt.Errorf("the file of the log of reads in which this export goes on, after record %d of partition %s, is not beside %s: put it back, or remove %s to begin with the oldest file that is there",
			s.at.Seq, s.at.Partition, s.Path, s.cursorPath())
	}
	if s.file, err = os.Open(segments[i].Path); err != nil {
		return false, err
	}
	s.at.File = segments[i].id
	return true, nil
}

// successor finds the file that goes on where this one ends, when it was moved
// away; nil when there is none yet.
func (s *Shipper) successor(moved bool) (*Segment, error) {
	if !moved {
		return nil, nil
	}
	last, err := lastPartition(s.file)
	if err != nil {
		return nil, err
	}
	segments, err := Segments(s.Path)
	if err != nil {
		return nil, err
	}
	for _, g := range segments {
		if g.first.Previous != nil && g.first.Previous.Partition == last && g.id != s.at.File {
			return &g, nil
		}
	}
	if i := slices.IndexFunc(segments, func(g Segment) bool { return g.Path == s.Path }); i >= 0 {
		return nil, fmt.Errorf("the file of the log of reads that follows partition %s is not beside %s: put it back, or remove %s to begin with the oldest file that is there", last, s.Path, s.cursorPath())
	}
	return nil, nil // the new one has no record yet
}

// lastPartition is the partition of a file's last record.
func lastPartition(f *os.File) (string, error) {
	e, err := lastRecord(f)
	if err != nil || e.last == nil {
		return "", err
	}
	return e.last.Partition, nil
}

// collect reads the next batch and where it ends. With final set nothing will
// be added to the file.
func (s *Shipper) collect(final bool) (b Batch, end int64, err error) {
	end = s.at.Offset
	info, err := s.file.Stat()
	if err != nil {
		return b, end, err
	}
	if info.Size() < end {
		return b, end, fmt.Errorf("%s was cut off below what was exported: rotate the log by renaming it and sending SIGHUP", s.file.Name())
	}
	if end != 0 && end != info.Size() {
		var before [1]byte
		if _, err := s.file.ReadAt(before[:], end-1); err != nil || before[0] != '\n' {
			return b, end, fmt.Errorf("%s names a place in %s where no line begins: it was altered; %w", s.cursorPath(), s.file.Name(), errors.Join(err, errNoLine))
		}
	}
	var (
		here      = end
		bytesRead int64
		oldest    time.Time
		covered   = struct { // up to the last checkpoint
			lines int
			last  int64
			end   int64
		}{}
		whole bool // all that was read can be sent
	)
	for line, err := range lines(io.NewSectionReader(s.file, end, info.Size()-end)) {
		if err != nil {
			return b, end, err
		}
		if line.Torn && !(final && isLine(line.Text)) {
			break // it is being written, or was when the server was killed
		}
		start := here
		if here += int64(len(line.Text)) + 1; line.Torn {
			here-- // killed before the line's end
		}
		at, checkpoint, ok := s.placeOf(line.Text)
		if !ok {
			continue
		}
		if len(b.Lines) == 0 {
			b = Batch{Source: ReadsSource, Partition: at.Partition, After: at.Seq - 1, Last: at.Seq - 1}
			if checkpoint {
				b.After, b.Last = at.Seq, at.Seq
			}
		}
		if at.Partition != b.Partition || !checkpoint && Full(b.Records(), bytesRead, s.Batch) {
			here, whole = start, true
			break
		}
		b.Lines = append(b.Lines, bytes.Clone(line.Text))
		bytesRead += int64(len(line.Text))
		b.Last = max(b.Last, at.Seq)
		if checkpoint {
			covered.lines, covered.last, covered.end = len(b.Lines), b.Last, here
		} else if oldest.IsZero() {
			if i, err := ParseLine(line.Text); err == nil {
				oldest = i.Time
			}
		}
	}
	s.Progress.Pending(ReadsSource, oldest)
	if s.Signed && !final && !whole {
		b.Lines, b.Last = b.Lines[:covered.lines], covered.last
		if here = covered.end; covered.lines == 0 {
			here = end
		}
	}
	return b, here, nil
}

// placeOf reads where a line stands; ok is false for one that is neither record
// nor checkpoint, which is not exported.
func (s *Shipper) placeOf(line []byte) (at Ref, checkpoint, ok bool) {
	if p, _, h, isRecord := parsePlace(line); isRecord {
		return Ref{Partition: p.Partition, Seq: p.Seq, Hash: h}, false, true
	}
	if c, err := ParseCheckpoint(line); err == nil {
		return c.Ref, true, true
	}
	if !bytes.HasPrefix(line, olderBegin) && len(line) > 0 {
		s.Logger.Warn("a line of the log of reads is neither a record nor a checkpoint, and not exported; see catalogd audit verify", "file", s.file.Name(), "bytes", len(line))
	}
	return Ref{}, false, false
}
