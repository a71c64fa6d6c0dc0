// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestFollow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	add("one\n")
	lines := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Follow(ctx, path, true, time.Millisecond, func(line []byte) error {
			lines <- string(line)
			return nil
		})
	}()
	var got []string
	next := func() {
		t.Helper()
		select {
		case l := <-lines:
			got = append(got, l)
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing after %q", got)
		}
	}
	next()
	add("tw")
	time.Sleep(5 * time.Millisecond)
	add("o\nthree\n")
	next()
	next()
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add("four\n")
	next()
	if want := []string{"one", "two", "three", "four"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop := errors.New("enough")
	if err := Follow(t.Context(), path, true, time.Millisecond, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	if err := Follow(t.Context(), path+".none", true, time.Millisecond, nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// From the end on there is nothing.
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Follow(ctx, path, false, time.Millisecond, func(line []byte) error { return errors.New(string(line)) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
