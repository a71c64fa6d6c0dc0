// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Rotate moves the log's file away, to its name with the time behind it, and
// goes on in a new one. It returns where the old one is, "" when the log is no
// file or has no record yet.
func (l *Log) Rotate(ctx context.Context, now time.Time) (string, error) {
	if l.path == "" {
		return "", nil
	}
	if s, ok, err := segmentOf(l.path); err != nil || !ok || s.first.Partition == "" {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return "", err
	}
	to := l.path + "." + now.UTC().Format("20060102T150405.000000Z")
	return to, l.reopenAs(ctx, to)
}

// Retain removes files of a log of reads that were moved away: whole, from the
// oldest on, those whose last record is from before a time. A file goes only
// when every one of the exports has gone on to a later one, and when the file
// after it names its last record and is signed: that one is where the log
// begins then. It returns what it removed.
func Retain(path string, before time.Time, exports []string, keys Keys) (removed []string, err error) {
	segments, err := Segments(path)
	if err != nil {
		return nil, err
	}
	taken, err := exported(path, segments, exports)
	if err != nil {
		return nil, err
	}
	for i, s := range segments[:max(0, min(taken, len(segments)-1))] {
		e, err := endOfFile(s.Path)
		if err != nil {
			return removed, err
		}
		if s.Path == path || e.last == nil || !e.at.Before(before) {
			break
		}
		ok, err := anchors(segments[i+1], *e.last, keys)
		if err != nil || !ok {
			return removed, err
		}
		if err := intact(s.Path, keys); err != nil {
			return removed, err
		}
		if err := os.Remove(s.Path); err != nil {
			return removed, err
		}
		removed = append(removed, s.Path)
	}
	return removed, nil
}

// intact verifies a file by itself: what somebody has changed is not cleared
// away.
func intact(path string, keys Keys) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := Verify(Lines(f), VerifyOptions{Keys: keys, MaxProblems: 1})
	if err == nil && !r.OK() {
		err = errors.New(r.Problems[0].String())
	}
	if err != nil {
		return fmt.Errorf("the old file of reads %s stays, since it is not what was written: %w", path, err)
	}
	return nil
}

// exported is how many of the oldest segments all exports have behind them.
func exported(path string, segments []Segment, exports []string) (int, error) {
	taken := len(segments)
	for _, name := range exports {
		s := Shipper{Path: path, Name: name}
		at, err := s.noted()
		if err != nil {
			return 0, err
		}
		n := 0
		for i, g := range segments {
			if g.id == at.File {
				n = i
			}
		}
		taken = min(taken, n)
	}
	return taken, nil
}

// anchors reports whether a segment begins right after a record, and says so
// under a signature.
func anchors(s Segment, after Ref, keys Keys) (bool, error) {
	if s.first.Previous == nil || *s.first.Previous != after {
		return false, nil
	}
	f, err := os.Open(s.Path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	chain := NewChain(Ref{Partition: s.first.Partition})
	for line, err := range lines(f) {
		if err != nil {
			return false, fmt.Errorf("%s: %w", s.Path, err)
		}
		if c, err := ParseCheckpoint(line.Text); err == nil {
			return c.Ref == chain.Last() && c.Verify(keys) == nil, nil
		}
		_, hashed, h, ok := parsePlace(line.Text)
		if !ok {
			continue
		}
		if chain.link(hashed); chain.Last().Hash != h {
			return false, nil
		}
	}
	return false, nil
}
