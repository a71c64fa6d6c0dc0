// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/gzip"
)

// testStore is what every store must do. The bucket's root is root, and empty.
func testStore(t *testing.T, b *Bucket, root string) {
	ctx := t.Context()
	write := func(t *testing.T, location string, data []byte) {
		t.Helper()
		if err := b.WriteNew(ctx, location, data); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("names keep every byte", func(t *testing.T) {
		want := map[string]string{}
		for _, name := range fileNames {
			location := root + "/names/" + name
			write(t, location, []byte(name))
			want[location] = name
		}
		for location, name := range want {
			if got, err := b.Read(ctx, location, 1000); err != nil || string(got) != name {
				t.Errorf("read %s: %q, %v", location, got, err)
			}
			if n, err := b.Size(ctx, location); err != nil || n != int64(len(name)) {
				t.Errorf("size of %s: %d, %v", location, n, err)
			}
			if err := b.WriteNew(ctx, location, nil); !errors.Is(err, ErrExists) {
				t.Errorf("write %s again: %v", location, err)
			}
		}
		if got := listed(t, b, root+"/names"); !maps.Equal(got, sizes(want)) {
			t.Errorf("listed %v\nwant   %v", got, sizes(want))
		}
		// Half one by one, half together.
		locations := slices.Sorted(maps.Keys(want))
		for _, location := range locations[:len(locations)/2] {
			if err := b.Delete(ctx, location); err != nil {
				t.Error(err)
			}
		}
		if err := b.DeleteMany(ctx, locations); err != nil {
			t.Error(err)
		}
		if got := listed(t, b, root+"/names"); len(got) != 0 {
			t.Errorf("after deleting all, there are %v", got)
		}
	})

	t.Run("absent", func(t *testing.T) {
		location := root + "/absent/f"
		_, readErr := b.Read(ctx, location, 10)
		_, rangeErr := b.ReadRange(ctx, location, 0, 1)
		_, sizeErr := b.Size(ctx, location)
		for call, err := range map[string]error{"Read": readErr, "ReadRange": rangeErr, "Size": sizeErr} {
			if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), location) {
				t.Errorf("%s: %v", call, err)
			}
		}
		if there, err := b.Exists(ctx, location); there || err != nil {
			t.Errorf("Exists: %t, %v", there, err)
		}
		if err := b.Delete(ctx, location); err != nil {
			t.Errorf("Delete: %v", err)
		}
		if err := b.DeleteMany(ctx, []string{location, location + "2"}); err != nil {
			t.Errorf("DeleteMany: %v", err)
		}
		if got := listed(t, b, root+"/absent"); len(got) != 0 {
			t.Errorf("List: %v", got)
		}
	})

	t.Run("sizes and ranges", func(t *testing.T) {
		data := make([]byte, 100_000)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		location, empty := root+"/ranges/f", root+"/ranges/empty"
		write(t, location, data)
		write(t, empty, nil)
		for _, limit := range []int64{100_000, 1 << 40} {
			if got, err := b.Read(ctx, location, limit); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read with limit %d: %d bytes, %v", limit, len(got), err)
			}
		}
		for _, limit := range []int64{99_999, 1, 0} {
			if got, err := b.Read(ctx, location, limit); !errors.Is(err, ErrTooLarge) || got != nil {
				t.Errorf("read with limit %d: %d bytes, %v", limit, len(got), err)
			}
		}
		if got, err := b.Read(ctx, empty, 0); err != nil || len(got) != 0 {
			t.Errorf("read an empty object: %q, %v", got, err)
		}
		if n, err := b.Size(ctx, empty); err != nil || n != 0 {
			t.Errorf("size of an empty object: %d, %v", n, err)
		}
		for _, r := range [][2]int64{{0, 1}, {0, 100_000}, {1, 99_999}, {50_000, 4}, {99_999, 1}, {100_000, 0}, {7, 0}} {
			got, err := b.ReadRange(ctx, location, r[0], r[1])
			if err != nil || !bytes.Equal(got, data[r[0]:r[0]+r[1]]) {
				t.Errorf("range %v: %d bytes, %v", r, len(got), err)
			}
		}
		for _, r := range [][2]int64{{0, 100_001}, {99_999, 2}, {100_000, 1}, {1 << 40, 1}, {5, 1 << 40}} {
			got, err := b.ReadRange(ctx, location, r[0], r[1])
			if !errors.Is(err, io.ErrUnexpectedEOF) || got != nil {
				t.Errorf("range %v past the end: %d bytes, %v", r, len(got), err)
			}
		}
		if _, err := b.ReadRange(ctx, empty, 0, 1); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a range of an empty object: %v", err)
		}
		for _, r := range [][2]int64{{-1, 1}, {0, -1}, {1 << 62, 1 << 62}} {
			if _, err := b.ReadRange(ctx, location, r[0], r[1]); err == nil || errors.Is(err, ErrNotFound) {
				t.Errorf("invalid range %v: %v", r, err)
			}
		}
	})

	t.Run("bytes stay as they are", func(t *testing.T) {
		var zipped bytes.Buffer
		zw := gzip.NewWriter(&zipped)
		if _, err := io.WriteString(zw, strings.Repeat(`{"format-version":2}`, 100)); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		location := root + "/zip/00001.gz.metadata.json"
		write(t, location, zipped.Bytes())
		if got, err := b.Read(ctx, location, 1<<20); err != nil || !bytes.Equal(got, zipped.Bytes()) {
			t.Errorf("read %d bytes, %v; %d were written", len(got), err, zipped.Len())
		}
	})

	t.Run("a large object", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB
		location := root + "/large/f"
		write(t, location, data)
		if got, err := b.Read(ctx, location, 1<<30); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
		// Other bytes: a store may refuse before it has read them all and cut
		// the connection, and after that the same bytes would be our own.
		other := bytes.Repeat([]byte("fedcba9876543210"), 1<<20)
		if err := b.WriteNew(ctx, location, other); !errors.Is(err, ErrExists) {
			t.Errorf("write over it: %v", err)
		}
		if got, err := b.Read(ctx, location, 1<<30); err != nil || !bytes.Equal(got, data) {
			t.Errorf("after a write over it: %d bytes, %v", len(got), err)
		}
	})

	t.Run("one of many writers wins", func(t *testing.T) {
		for round := range 5 {
			location := fmt.Sprintf("%s/race/%d/f", root, round)
			var winners, losers atomic.Int32
			var winner atomic.Value
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					data := fmt.Sprintf("writer %d", i)
					switch err := b.WriteNew(ctx, location, []byte(data)); {
					case err == nil:
						winners.Add(1)
						winner.Store(data)
					case errors.Is(err, ErrExists):
						losers.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			wg.Wait()
			got, err := b.Read(ctx, location, 100)
			if winners.Load() != 1 || losers.Load() != 7 || err != nil || string(got) != winner.Load() {
				t.Errorf("%d writers won and %d lost; %v won; the object holds %q, %v", winners.Load(), losers.Load(), winner.Load(), got, err)
			}
		}
	})

	t.Run("listing", func(t *testing.T) {
		want := map[string]int64{}
		for i := range 25 {
			location := fmt.Sprintf("%s/list/t/d%d/f%02d", root, i%3, i)
			write(t, location, make([]byte, i))
			want[location] = int64(i)
		}
		write(t, root+"/list/t2/f", []byte("a sibling whose name begins alike"))
		if got := listed(t, b, root+"/list/t"); !maps.Equal(got, want) {
			t.Errorf("listed %v\nwant   %v", got, want)
		}
		stop := errors.New("enough")
		calls := 0
		err := b.List(ctx, root+"/list/t", func(string, int64) error { calls++; return stop })
		if !errors.Is(err, stop) || calls != 1 {
			t.Errorf("a listing that is stopped: %d calls, %v", calls, err)
		}
		// Purge: everything is deleted while it is listed.
		err = b.List(ctx, root+"/list/t", func(location string, _ int64) error { return b.Delete(ctx, location) })
		if err != nil {
			t.Errorf("deleting while listing: %v", err)
		}
		if got := listed(t, b, root+"/list"); len(got) != 1 {
			t.Errorf("after the purge there are %v; only the sibling should be", got)
		}
	})

	t.Run("nothing outside", func(t *testing.T) {
		kept := root + "/outside/kept"
		write(t, kept, []byte("x"))
		parent := root[:strings.LastIndex(root, "/")]
		for _, location := range []string{
			"", "x", root, root + "/", root + "2/f", parent + "/f", root + "/../f", root + "/a/../../f", root + "//f", root + "/%2e%2e/f", root + `/..\f`,
			"file:///etc/passwd", "http://169.254.169.254/latest/meta-data", "s3://other/f", "gs://other/f", "mem://x/f",
		} {
			_, readErr := b.Read(ctx, location, 10)
			_, rangeErr := b.ReadRange(ctx, location, 0, 1)
			_, sizeErr := b.Size(ctx, location)
			_, existsErr := b.Exists(ctx, location)
			for call, err := range map[string]error{
				"Read": readErr, "ReadRange": rangeErr, "Size": sizeErr, "Exists": existsErr,
				"WriteNew":   b.WriteNew(ctx, location, []byte("x")),
				"Delete":     b.Delete(ctx, location),
				"DeleteMany": b.DeleteMany(ctx, []string{kept, location}),
				"List":       b.List(ctx, location, func(string, int64) error { return nil }),
			} {
				if !errors.Is(err, ErrOutside) {
					t.Errorf("%s(%q): %v", call, location, err)
				}
			}
			if b.Missing(location) {
				t.Errorf("Missing(%q)", location)
			}
		}
		if there, err := b.Exists(ctx, kept); !there || err != nil {
			t.Errorf("a refused DeleteMany deleted: %t, %v", there, err)
		}
	})

	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := b.Read(ctx, root+"/f", 10); !errors.Is(err, context.Canceled) {
			t.Errorf("Read: %v", err)
		}
		if err := b.WriteNew(ctx, root+"/f", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("WriteNew: %v", err)
		}
	})

	t.Run("check", func(t *testing.T) {
		if err := b.Check(ctx); err != nil {
			t.Fatal(err)
		}
		if got := listed(t, b, root+"/_sluice"); len(got) != 0 {
			t.Errorf("Check left %v", got)
		}
	})
}

func listed(t *testing.T, b *Bucket, directory string) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	if err := b.List(t.Context(), directory, func(location string, size int64) error {
		if _, twice := got[location]; twice {
			t.Errorf("%s is listed twice", location)
		}
		got[location] = size
		return nil
	}); err != nil {
		t.Error(err)
	}
	return got
}

func sizes(content map[string]string) map[string]int64 {
	m := map[string]int64{}
	for location, data := range content {
		m[location] = int64(len(data))
	}
	return m
}
