// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package archive

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/secret"
)

var errExists = errors.New("exists")

// directory keeps objects as files. It can fail after it has written.
type directory struct {
	root string
	lose int
}

func (d *directory) path(location string) string {
	return filepath.Join(d.root, strings.TrimPrefix(location, "s3://b/audit/"))
}

func (d *directory) WriteNew(_ context.Context, location string, data []byte) error {
	p := d.path(location)
	if _, err := os.Stat(p); err == nil {
		return fmt.Errorf("write: %w", errExists)
	}
	if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(p, data, 0o600); err != nil {
		return err
	}
	if d.lose > 0 {
		d.lose--
		return errors.New("the answer was lost")
	}
	return nil
}

func (d *directory) Read(_ context.Context, location string, _ int64) ([]byte, error) {
	return os.ReadFile(d.path(location))
}

func signer(t *testing.T) *audit.Signer {
	t.Helper()
	s, err := audit.ParseSigner(secret.New(base64.StdEncoding.EncodeToString(make([]byte, 32))))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// chain makes lines of a partition, with a checkpoint after every third and
// the last record.
func chain(t *testing.T, partition string, n int) (lines [][]byte) {
	t.Helper()
	c, s := audit.NewChain(audit.Ref{Partition: partition}), signer(t)
	for i := range n {
		r := audit.Record{Kind: audit.KindChange, Time: time.Unix(int64(i), 0), RequestID: fmt.Sprint(i)}
		lines = append(lines, bytes.TrimSuffix(c.Append(nil, &r), []byte("\n")))
		if i%3 == 2 || i == n-1 {
			cp := s.Sign(c.Last(), false, time.Unix(int64(i), 0))
			lines = append(lines, bytes.TrimSuffix(cp.Append(nil), []byte("\n")))
		}
	}
	return lines
}

func batch(t *testing.T, lines [][]byte) audit.Batch {
	t.Helper()
	first, err := audit.ParseLine(lines[0])
	last, err2 := audit.ParseLine(lines[len(lines)-1])
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	b := audit.Batch{Source: "warehouses/sales", Partition: first.Partition, After: first.Seq - 1, Last: last.Seq, Lines: lines}
	if first.IsCheckpoint() {
		b.After = first.Seq
	}
	return b
}

// contents reads an archive in its order.
func contents(t *testing.T, dir string) (all []byte, files []string) {
	t.Helper()
	files, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, raw...)
	}
	return all, files
}

func verified(t *testing.T, raw []byte) *audit.Report {
	t.Helper()
	r, err := audit.Verify(audit.Lines(bytes.NewReader(raw)), audit.VerifyOptions{Keys: audit.NewKeys(signer(t).Public())})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEachLineOnce sends batches again as an exporter does that was killed:
// from where it was noted, with more lines than before.
func TestEachLineOnce(t *testing.T) {
	t.Parallel()
	const partition = "0b7c2d4e-0000-4000-8000-000000000001"
	lines := chain(t, partition, 12) // 16 lines
	d := &directory{root: t.TempDir()}
	a := New(d, "s3://b/audit/", errExists, slog.New(slog.DiscardHandler))
	for from := 0; from < len(lines); {
		noted := from
		for _, to := range []int{from + 3, from + 3, min(from+7, len(lines)), len(lines)} {
			to = min(to, len(lines))
			d.lose = 1
			_ = a.Send(t.Context(), batch(t, lines[noted:to]))
			if err := a.Send(t.Context(), batch(t, lines[noted:to])); err != nil {
				t.Fatal(err)
			}
			from = to
		}
	}
	// The end of the partition, by itself.
	at, _ := audit.ParseCheckpoint(lines[len(lines)-1])
	final := signer(t).Sign(at.Ref, true, time.Unix(100, 0))
	end := bytes.TrimSuffix(final.Append(nil), []byte("\n"))
	for range 2 {
		if err := a.Send(t.Context(), batch(t, [][]byte{end})); err != nil {
			t.Fatal(err)
		}
	}
	raw, files := contents(t, d.root)
	if want := append(bytes.Join(append(lines, end), []byte("\n")), '\n'); !bytes.Equal(raw, want) {
		t.Errorf("%d files hold\n%s\nwant\n%s", len(files), raw, want)
	}
	if r := verified(t, raw); !r.OK() || r.Records != 12 || r.Unproven() != 0 || !r.Partitions[0].Ended {
		t.Errorf("%+v", r)
	}
	if want := filepath.Join(d.root, "warehouses", "sales", partition, "00000000000000000001.jsonl"); files[0] != want {
		t.Errorf("the first is %s", files[0])
	}
}

// TestSomebodyElsesObject finds something in an object's place: no record is
// lost for that.
func TestSomebodyElsesObject(t *testing.T) {
	t.Parallel()
	lines := chain(t, "p", 5)
	whole := string(bytes.Join(lines, []byte("\n"))) + "\n"
	for name, c := range map[string]struct {
		there string
		kept  bool // it is what it should be
	}{
		"nothing in it":      {"", false},
		"something else":     {"{}\n", false},
		"a line cut":         {whole[:40], false},
		"a line without end": {strings.TrimSuffix(whole, "\n"), false},
		"another record":     {strings.Replace(whole, `"0"`, `"9"`, 1), false},
		"lines, then else":   {string(lines[0]) + "\nx\n", false},
		"the same":           {whole, true},
		"more of the same":   {whole + whole, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &directory{root: t.TempDir()}
			a := New(d, "s3://b/audit", errExists, slog.New(slog.DiscardHandler))
			if err := d.WriteNew(t.Context(), "s3://b/audit/warehouses/sales/p/00000000000000000001.jsonl", []byte(c.there)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := a.Send(t.Context(), batch(t, lines)); err != nil {
					t.Fatal(err)
				}
			}
			held := map[string]bool{}
			err := filepath.WalkDir(d.root, func(p string, e os.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					raw, _ := os.ReadFile(p)
					held[string(raw)] = true
				}
				return err
			})
			if err != nil || !held[whole] && !c.kept || len(held) != map[bool]int{true: 1, false: 2}[c.kept] {
				t.Errorf("%v: %d objects: %q", err, len(held), slices.Collect(maps.Keys(held)))
			}
		})
	}
}

// TestOrder reads partitions in the order in which they began, whatever their
// ids are.
func TestOrder(t *testing.T) {
	t.Parallel()
	d := &directory{root: t.TempDir()}
	a := New(d, "s3://b/audit", errExists, slog.New(slog.DiscardHandler))
	later := chain(t, "a", 6)[4:]
	for _, lines := range [][][]byte{later, chain(t, "b", 2)} {
		if err := a.Send(t.Context(), batch(t, lines)); err != nil {
			t.Fatal(err)
		}
	}
	_, files := contents(t, d.root)
	if len(files) != 2 || !strings.Contains(files[0], "/b/") {
		t.Errorf("order %v", files)
	}
	if err := os.WriteFile(filepath.Join(d.root, "x.jsonl"), []byte("no\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Files(d.root); err == nil {
		t.Error("a file of something else is taken")
	}
}

// TestFailure passes what the store says on.
func TestFailure(t *testing.T) {
	t.Parallel()
	a := New(&directory{root: t.TempDir(), lose: 1}, "s3://b/audit", errExists, slog.New(slog.DiscardHandler))
	if err := a.Send(t.Context(), batch(t, chain(t, "p", 1))); err == nil {
		t.Error("a store that fails has it")
	}
	if err := a.Send(t.Context(), audit.Batch{Lines: [][]byte{[]byte("{")}}); err == nil {
		t.Error("a line that is none is archived")
	}
}
