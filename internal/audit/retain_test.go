// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRetain removes old files of a log: only whole, only from the oldest on,
// only what all exports have, and only when the next file takes over.
func TestRetain(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	keys := NewKeys(signer.Public())
	path := filepath.Join(t.TempDir(), "reads.log")
	l, err := OpenFile(path, Options{Signer: signer, CheckpointRecords: 2})
	if err != nil {
		t.Fatal(err)
	}
	if to, err := l.Rotate(t.Context(), time.Now()); err != nil || to != "" {
		t.Errorf("a log without a record was moved to %q, %v", to, err)
	}
	year := func(n int) time.Time { return time.Date(2000+n, 1, 1, 0, 0, 0, 0, time.UTC) }
	var files []string
	for n := range 4 {
		r := example
		r.Time = year(n)
		for range 3 {
			if err := l.Append(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if n < 3 {
			for {
				if _, written, _ := l.Stats(); written == int64(3*(n+1)) {
					break
				}
				time.Sleep(time.Millisecond)
			}
			to, err := l.Rotate(t.Context(), year(n))
			if err != nil || !strings.HasPrefix(to, path+".200") {
				t.Fatal(to, err)
			}
			files = append(files, to)
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	segments, err := Segments(path)
	if err != nil || len(segments) != 4 || segments[3].Path != path {
		t.Fatal(segments, err)
	}
	read := func() *Report {
		t.Helper()
		segments, err := Segments(path)
		if err != nil {
			t.Fatal(err)
		}
		var all [][]byte
		for _, s := range segments {
			raw, err := os.ReadFile(s.Path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, raw)
		}
		return verify(t, VerifyOptions{Keys: keys}, all...)
	}
	retain := func(before time.Time, keys Keys, exports []string, want ...string) {
		t.Helper()
		removed, err := Retain(path, before, exports, keys)
		if err != nil || strings.Join(removed, " ") != strings.Join(want, " ") {
			t.Errorf("removed %v, want %v; %v", removed, want, err)
		}
		if r := read(); !r.OK() || r.Unproven() != 0 {
			t.Errorf("%+v", r)
		}
	}
	var got receiver
	s := shipper(path, &got)
	retain(year(9), keys, []string{"siem"})                // which has not begun
	retain(year(0), keys, nil)                             // nothing is that old
	retain(year(9), NewKeys(signerOf(t, 2).Public()), nil) // nobody known has signed what follows
	s.Batch, s.Progress = 1, &Progress{}
	for range 6 { // into the second file
		if _, err := s.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	retain(year(9), keys, []string{"siem"}, files[0])
	if r := read(); r.Partitions[0].After == nil || r.Partitions[0].After.Seq != 4 || r.Records != 12 {
		t.Errorf("%+v", r)
	}
	if err := s.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The one after it is not what follows: it stays, and so do all.
	hidden := filepath.Join(t.TempDir(), "x")
	if err := os.Rename(files[2], hidden); err != nil {
		t.Fatal(err)
	}
	if removed, err := Retain(path, year(9), nil, keys); err != nil || len(removed) != 0 {
		t.Errorf("removed %v before a gap, %v", removed, err)
	}
	if err := os.Rename(hidden, files[2]); err != nil {
		t.Fatal(err)
	}
	// Nor does one go that was altered.
	whole, err := os.ReadFile(files[1])
	if err == nil {
		err = os.WriteFile(files[1], []byte(strings.Replace(string(whole), "alice", "mallo", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := Retain(path, year(9), nil, keys); err == nil || len(removed) != 0 || !strings.Contains(err.Error(), "was altered") {
		t.Errorf("removed %v, which was altered; %v", removed, err)
	}
	if err := os.WriteFile(files[1], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	retain(year(2), keys, []string{"siem"}, files[1])
	retain(year(9), keys, []string{"siem"}, files[2]) // never the one that is written
	if err := s.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, VerifyOptions{Keys: keys}, got.Bytes()); !r.OK() || r.Records != 16 {
		t.Errorf("the export has %+v", r)
	}
	if err := os.WriteFile(s.cursorPath(), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Retain(path, year(9), []string{"siem"}, keys); err == nil {
		t.Error("a cursor that cannot be read holds nothing back")
	}
}
