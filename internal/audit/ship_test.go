// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// receiver keeps what it is sent, and fails when it is told to: before it has
// taken the batch, or after.
type receiver struct {
	bytes.Buffer
	before, after int
	batches       []Batch
}

var errNotNow = errors.New("not now")

func (r *receiver) Send(_ context.Context, b Batch) error {
	if r.before > 0 {
		r.before--
		return errNotNow
	}
	for _, l := range b.Lines {
		r.Write(append(l, '\n'))
	}
	r.batches = append(r.batches, b)
	if r.after > 0 {
		r.after--
		return errNotNow
	}
	return nil
}

func shipper(path string, sink Sink) *Shipper {
	return &Shipper{Path: path, Name: "siem", Sink: sink, Signed: true, Batch: 4, Logger: slog.New(slog.DiscardHandler)}
}

// TestShipping hands a log on that is rotated, by servers that are restarted,
// to a receiver that fails, with the exporter restarted at any point: what
// arrives is the log.
func TestShipping(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	keys := NewKeys(signer.Public())
	path := filepath.Join(t.TempDir(), "reads.log")
	var got receiver
	s := shipper(path, &got)
	round := func() {
		t.Helper()
		if err := s.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	round() // there is no log yet
	var records int64
	for step := range 12 {
		n := 1 + step*3%11
		run(t, path, signer, n, 3)
		records += int64(n) + 1
		if step%3 == 1 { // with the server down, and sometimes before the export has seen the end
			if err := os.Rename(path, fmt.Sprint(path, ".", step)); err != nil {
				t.Fatal(err)
			}
		}
		if step%4 == 2 {
			continue
		}
		if step%4 == 0 {
			got.before = 1
			if err := s.Round(t.Context()); !errors.Is(err, errNotNow) {
				t.Fatal(err)
			}
			s = shipper(path, &got) // killed
		}
		round()
		round()
		if step%3 != 1 {
			r := verify(t, VerifyOptions{Keys: keys}, got.Bytes())
			if !r.OK() || r.Records != records || r.Unproven() != 0 {
				t.Fatalf("step %d: %d records, want %d: %+v", step, r.Records, records, r.Problems)
			}
		}
	}
	for _, b := range got.batches {
		if first, _ := ParseLine(b.Lines[0]); b.Records() > 4 || b.Records() > 0 && first.Seq != b.After+1 || first.Partition != b.Partition {
			t.Errorf("batch %s %d..%d begins with %s", b.Partition, b.After, b.Last, b.Lines[0])
		}
	}
	if sent, failures := s.Progress.Counts(); s.Progress.Lag(time.Now()) != 0 || sent == 0 || failures != 0 {
		t.Errorf("lag %s, %d sent, %d failures", s.Progress.Lag(time.Now()), sent, failures)
	}
	// Taken, but that was not noted: it comes again, the same.
	before := got.Len()
	run(t, path, signer, 2, 3)
	got.after = 1
	if err := s.Round(t.Context()); !errors.Is(err, errNotNow) {
		t.Fatal(err)
	}
	once := bytes.Clone(got.Bytes()[before:])
	s = shipper(path, &got)
	round()
	if again := got.Bytes()[before+len(once):]; !bytes.HasPrefix(again, once) {
		t.Errorf("it was sent as\n%s\nand then as\n%s", once, again)
	}
}

// TestShippingHolds tells what waits for a checkpoint, and for how long it
// does.
func TestShippingHolds(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	list := split(logOf(t, signer, 100, 9))
	var got receiver
	s := shipper(path, &got)
	for _, c := range []struct{ lines, want int }{{3, 0}, {4, 0}, {5, 4}, {8, 4}, {10, 8}, {11, 11}} {
		raw := strings.Join(list[:c.lines], "") + `{"type":"audit.dec`
		if err := os.WriteFile(path, []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Round(t.Context()); err != nil || bytes.Count(got.Bytes(), []byte("\n")) != c.want {
			t.Errorf("of %d lines: %d, want %d; %v", c.lines, bytes.Count(got.Bytes(), []byte("\n")), c.want, err)
		}
		if waits := s.Progress.Lag(time.Now()) > 0; waits != (c.want < c.lines) {
			t.Errorf("of %d lines: something waits: %t", c.lines, waits)
		}
	}
	if got.String() != strings.Join(list, "") {
		t.Errorf("sent\n%s", got.String())
	}
}

// TestShippingKilled ends the exporter at every point of its work: after the
// receiver has a batch and before that is noted, and while it is noted.
func TestShippingKilled(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	seen := map[string]bool{}
	var all []string
	for range 40 {
		run(t, path, signer, 1+rand.N(9), 1+rand.N(4))
		all = split(read(t, path))
		var got receiver
		got.before, got.after = rand.N(2), rand.N(2)
		s := shipper(path, &got)
		s.Batch = 1 + rand.N[int64](5)
		cursor, err := os.ReadFile(s.cursorPath())
		_ = s.Round(t.Context())
		if err == nil && rand.N(2) == 0 { // nothing of it was noted
			if err := os.WriteFile(s.cursorPath(), cursor, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range split(got.Bytes()) {
			seen[line] = true
		}
	}
	var got receiver
	if err := shipper(path, &got).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range split(got.Bytes()) {
		seen[line] = true
	}
	for i, line := range all {
		if !seen[line] {
			t.Errorf("line %d of %d was never delivered: %s", i, len(all), line)
		}
	}
}

// TestShippingStops does not go on when a part of the log is missing.
func TestShippingStops(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	rotate := func(to string) {
		t.Helper()
		if err := os.Rename(path, path+to); err != nil {
			t.Fatal(err)
		}
	}
	run(t, path, signer, 2, 3)
	var got receiver
	s := shipper(path, &got)
	if err := s.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	rotate(".1")
	if err := s.Round(t.Context()); err != nil {
		t.Fatal("between the rename and the next record:", err)
	}
	run(t, path, signer, 2, 3)
	rotate(".2")
	run(t, path, signer, 2, 3)
	hidden := filepath.Join(filepath.Dir(path), "elsewhere")
	for _, name := range []string{".2", ".1"} { // the next file, and the one that it is in
		if err := os.Rename(path+name, hidden); err != nil {
			t.Fatal(err)
		}
		if err := s.Round(t.Context()); err == nil || !strings.Contains(err.Error(), "is not beside") {
			t.Errorf("without %s: %v", name, err)
		}
		if err := os.Rename(hidden, path+name); err != nil {
			t.Fatal(err)
		}
		s = shipper(path, &got)
	}
	if err := s.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, got.Bytes()); !r.OK() || r.Records != 9 {
		t.Errorf("%+v", r)
	}
	noted := read(t, s.cursorPath())
	for _, offset := range []int64{s.at.Offset - 1, s.at.Offset - 700, -5} {
		moved := s.at
		moved.Offset = offset
		raw, err := json.Marshal(moved)
		if err == nil {
			err = os.WriteFile(s.cursorPath(), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := shipper(path, &got).Round(t.Context()); err == nil {
			t.Errorf("from the middle of a line, byte %d, it goes on", offset)
		}
	}
	if err := os.WriteFile(s.cursorPath(), noted, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if err := s.Round(t.Context()); err == nil || !strings.Contains(err.Error(), "renaming") {
		t.Errorf("a log that was cut: %v", err)
	}
	if err := os.WriteFile(s.cursorPath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := shipper(path, &got).Round(t.Context()); err == nil {
		t.Error("a cursor that is none is believed")
	}
}

// TestShippingRestartedAfterKill takes a log whose server was killed inside a
// line.
func TestShippingRestartedAfterKill(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	run(t, path, signer, 5, 100)
	list := split(read(t, path))
	if err := os.WriteFile(path, []byte(strings.Join(list[:4], "")+list[4][:30]), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, path, signer, 2, 100)
	var got receiver
	if err := shipper(path, &got).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, got.Bytes()); !r.OK() || r.Records != 7 || len(r.Partitions) != 2 {
		t.Errorf("%+v\n%s", r, got.String())
	}
}

// TestLastLineWithoutEnd has a server killed between its last record and the
// end of that line, and the log moved away.
func TestLastLineWithoutEnd(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	run(t, path, signer, 5, 100)
	list := split(read(t, path))
	cut := strings.TrimSuffix(strings.Join(list[:5], ""), "\n")
	var got receiver
	if err := os.WriteFile(path, []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	// It had come to no checkpoint either, which the file beside the log would
	// hold.
	if err := os.Remove(path + LastSuffix); err != nil {
		t.Fatal(err)
	}
	if err := shipper(path, &got).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	run(t, path, signer, 2, 100)
	for range 2 {
		if err := shipper(path, &got).Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, got.Bytes()); !r.OK() || r.Records != 8 || !strings.Contains(got.String(), list[4]) {
		t.Errorf("%+v\n%s", r, got.String())
	}
}

// TestMovedAwayAfterKill has a server killed before the file beside the log
// named the new partition, and the log moved away before the next one starts:
// that one goes on where the log ended.
func TestMovedAwayAfterKill(t *testing.T) {
	t.Parallel()
	for _, signer := range []*Signer{signerOf(t, 1), nil} {
		path := filepath.Join(t.TempDir(), "reads.log")
		run(t, path, signer, 2, 3)
		last := read(t, path+LastSuffix)
		run(t, path, signer, 3, 3)
		if err := os.WriteFile(path+LastSuffix, last, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		run(t, path, signer, 2, 3)
		p, _, _, _ := parsePlace(bytes.Split(read(t, path), []byte("\n"))[0])
		e, err := endOfFile(path + ".1")
		if err != nil || p.Previous == nil || *p.Previous != *e.last {
			t.Errorf("signed: %t: the new file follows %v, the old ends with %v; %v", signer != nil, p.Previous, e.last, err)
		}
		// Old files that are not the end do not count.
		if err := os.Rename(path, filepath.Join(t.TempDir(), "elsewhere")); err != nil {
			t.Fatal(err)
		}
		run(t, path, signer, 1, 3)
		if q, _, _, _ := parsePlace(bytes.Split(read(t, path), []byte("\n"))[0]); q.Previous == nil || q.Previous.Partition != p.Partition {
			t.Errorf("signed: %t: the third file follows %v, not %s", signer != nil, q.Previous, p.Partition)
		}
	}
}

// TestSettlesUnderLoad has records come all the time: the log is made durable
// and its newest checkpoint kept beside it all the same.
func TestSettlesUnderLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "reads.log")
	l, err := OpenFile(path, Options{Signer: signerOf(t, 1), CheckpointRecords: 2, CheckpointInterval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	var seen int64
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if err := l.Append(t.Context(), example); err != nil {
			t.Fatal(err)
		}
		raw, _ := os.ReadFile(path + LastSuffix)
		if c, err := ParseCheckpoint(raw); err == nil && c.Seq > seen {
			if seen > 0 {
				return // and again
			}
			seen = c.Seq
		}
		if time.Now().After(deadline) {
			t.Fatal("no checkpoint is kept beside a log that is written all the time")
		}
	}
}

// TestOneShips has two servers export one log, as when one takes over from the
// other: each batch is delivered by one of them, and the second goes on where
// the first ended.
func TestOneShips(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	run(t, path, signer, 20, 3)
	var got safeReceiver
	first, endFirst := context.WithCancel(t.Context())
	second, endSecond := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	for _, ctx := range []context.Context{first, second} {
		s := shipper(path, &got)
		s.Interval, s.Batch = time.Millisecond, 1
		go func() { s.Run(ctx); done <- struct{}{} }()
	}
	wait := func(records int64) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); got.records() < records; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d records", got.records(), records)
			}
		}
	}
	wait(21)
	endFirst()
	<-done
	run(t, path, signer, 20, 3)
	wait(42)
	endSecond()
	<-done
	if r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, got.Bytes()); !r.OK() || r.Records != 42 {
		t.Errorf("%+v", r)
	}
}

// safeReceiver is a receiver of several exporters.
type safeReceiver struct {
	mu sync.Mutex
	receiver
	n int64
}

func (r *safeReceiver) Send(ctx context.Context, b Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += b.Records()
	return r.receiver.Send(ctx, b)
}

func (r *safeReceiver) records() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}
