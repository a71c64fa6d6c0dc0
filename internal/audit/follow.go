// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// Follow calls use with each whole line that is added to a log file after it
// begins (or, with all set, with those that are there too), until ctx ends or
// use fails. When the file is moved away and a new one takes its place, it
// reads the old one to its end and goes on in the new one. It looks every
// pause.
func Follow(ctx context.Context, path string, all bool, pause time.Duration, use func(line []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if !all {
		if _, err := f.Seek(0, io.SeekEnd); err != nil {
			return err
		}
	}
	var rest []byte // of a line that is not finished
	buf := make([]byte, 64<<10)
	drain := func() error {
		for {
			n, err := f.Read(buf)
			rest = append(rest, buf[:n]...)
			for {
				line, more, ok := bytes.Cut(rest, []byte("\n"))
				if !ok {
					break
				}
				if err := use(line); err != nil {
					return err
				}
				rest = more
			}
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case len(rest) > maxLine:
				return errors.New("a line is too long: this is no audit log")
			}
		}
	}
	for {
		if err := drain(); err != nil {
			return err
		}
		moved, err := isMoved(f, path)
		if err != nil {
			return err
		}
		if moved {
			// What was written between the last look and the move.
			if err := drain(); err != nil {
				return err
			}
			next, err := os.Open(path)
			if err == nil {
				f.Close()
				f, rest = next, nil
				continue
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isMoved reports whether another file has the path now.
func isMoved(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // not yet replaced: the server still writes to the old one
	}
	return err == nil && !os.SameFile(mine, there), err
}
