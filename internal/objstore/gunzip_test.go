// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/sluice-data/sluice/internal/secret"
)

func value(s string) secret.Value { return secret.New(s) }

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	if _, err := zw.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestGunzip(t *testing.T) {
	t.Parallel()
	text := []byte(strings.Repeat(`{"format-version":2,"table-uuid":"9c12d441"}`, 1000))
	zipped := zip(t, text)
	for name, c := range map[string]struct {
		data  []byte
		limit int64
		want  []byte
		err   error
	}{
		"whole":         {zipped, 1 << 20, text, nil},
		"exactly":       {zipped, int64(len(text)), text, nil},
		"one too many":  {zipped, int64(len(text)) - 1, nil, ErrTooLarge},
		"empty":         {zip(t, nil), 0, []byte{}, nil},
		"nothing":       {nil, 10, nil, ErrInvalidGzip},
		"not gzip":      {text, 1 << 20, nil, ErrInvalidGzip},
		"cut off":       {zipped[:len(zipped)-5], 1 << 20, nil, ErrInvalidGzip},
		"bad checksum":  {flip(zipped, len(zipped)-6), 1 << 20, nil, ErrInvalidGzip},
		"garbage after": {append(bytes.Clone(zipped), "garbage"...), 1 << 20, nil, ErrInvalidGzip},
		"two members":   {append(bytes.Clone(zipped), zipped...), 1 << 20, append(bytes.Clone(text), text...), nil},
	} {
		got, err := Gunzip(c.data, c.limit)
		if !errors.Is(err, c.err) || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %d bytes, %v; want %d, %v", name, len(got), err, len(c.want), c.err)
		}
	}
}

func flip(data []byte, i int) []byte {
	data = bytes.Clone(data)
	data[i] ^= 1
	return data
}

// TestGunzipBomb inflates what would become 2 GiB and counts what is allocated
// until it is refused. It runs alone: the counters are the process's.
func TestGunzipBomb(t *testing.T) {
	member := zip(t, make([]byte, 64<<20))
	bomb := bytes.Repeat(member, 32)
	const limit = 8 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Gunzip(bomb, limit)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 3*limit {
		t.Errorf("%d bytes were allocated to refuse a bomb of %d; the limit was %d", used, len(bomb), limit)
	}
}

// FuzzGunzip: no input makes more than the limit, and what Gunzip accepts is
// what was deflated.
func FuzzGunzip(f *testing.F) {
	f.Add(zip(f, []byte("text")), int64(10))
	f.Add(zip(f, make([]byte, 1000)), int64(999))
	f.Add([]byte{0x1f, 0x8b, 8, 0}, int64(0))
	f.Fuzz(func(t *testing.T, data []byte, limit int64) {
		limit &= 1<<20 - 1
		out, err := Gunzip(data, limit)
		switch {
		case int64(len(out)) > limit:
			t.Fatalf("%d bytes with a limit of %d", len(out), limit)
		case err != nil && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrInvalidGzip):
			t.Fatal(err)
		case err != nil && out != nil:
			t.Fatalf("%d bytes beside the error %v", len(out), err)
		}
		again, err := Gunzip(zip(t, data), int64(len(data)))
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%d bytes come back as %d, %v", len(data), len(again), err)
		}
	})
}
