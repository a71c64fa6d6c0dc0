// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

var example = Record{
	Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), RequestID: "r-1", Principal: "account:alice", Actor: "account:engine",
	Address: netip.MustParseAddr("192.0.2.1"), Operation: "loadTable", Warehouse: "sales", Resource: "a.b.t", Status: 200,
}

// decode reads the records of a log, after verifying that it is whole.
func decode(t *testing.T, raw []byte) []map[string]any {
	t.Helper()
	if report := verify(t, VerifyOptions{}, raw); !report.OK() {
		t.Errorf("the chain does not hold: %v", report.Problems)
	}
	var all []map[string]any
	for s := bufio.NewScanner(bytes.NewReader(raw)); s.Scan(); {
		var m map[string]any
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v", s.Bytes(), err)
		}
		if m["type"] != "audit.partition" && m["type"] != "audit.checkpoint" {
			all = append(all, m)
		}
	}
	return all
}

func TestRecordsAreLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "reads.log")
	l, err := OpenFile(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	full := example
	full.Kind, full.Decision, full.Detail = KindChange, Deny, json.RawMessage(`{"a": [1]}`)
	full.Policies = []Policy{{Set: "provider/acme", Version: 3, ID: "p\"1"}, {Set: "platform", Version: 1}}
	hostile := Record{Time: example.Time, Resource: "a\"\\\n\u2028\x00\xff\u00e9", Status: 404}
	for _, r := range []Record{example, full, hostile} {
		if err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, raw)
	if len(got) != 3 {
		t.Fatalf("%d lines:\n%s", len(got), raw)
	}
	for i, want := range []string{
		`map[actor:account:engine address:192.0.2.1 operation:loadTable principal:account:alice request_id:r-1 resource:a.b.t status:200 time:2026-01-02T03:04:05.000006Z type:audit.decision warehouse:sales]`,
		`map[actor:account:engine address:192.0.2.1 decision:deny detail:map[a:[1]] operation:loadTable policies:[map[policy:p"1 set:provider/acme version:3] map[set:platform version:1]] principal:account:alice request_id:r-1 resource:a.b.t status:200 time:2026-01-02T03:04:05.000006Z type:audit.change warehouse:sales]`,
	} {
		if got[i]["seq"] != float64(i+2) {
			t.Errorf("seq is %v", got[i]["seq"])
		}
		for _, member := range []string{"partition", "seq", "hash"} {
			delete(got[i], member)
		}
		if fmt.Sprint(got[i]) != want {
			t.Errorf("got  %v\nwant %s", got[i], want)
		}
	}
	if got[2]["resource"] != "a\"\\\n\u2028\x00\ufffd\u00e9" {
		t.Errorf("resource is %q", got[2]["resource"])
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := l.Append(t.Context(), example); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

// gate is a sink that fails, writes short, or blocks as told.
type gate struct {
	mu    sync.Mutex
	fails int
	block chan struct{}
	out   bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	if g.block != nil {
		<-g.block
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fails > 0 {
		g.fails--
		n, _ := g.out.Write(b[:len(b)/2])
		return n, errors.New("disk full")
	}
	return g.out.Write(b)
}

func TestFailingSinkLosesNothing(t *testing.T) {
	t.Parallel()
	g := &gate{fails: 3}
	l, err := NewWriter(g, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := l.Append(t.Context(), Record{Status: i + 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := decode(t, g.out.Bytes())
	for i, m := range got {
		if m["status"] != float64(i+1) {
			t.Fatalf("line %d is %v", i, m)
		}
	}
	if _, written, refused := l.Stats(); len(got) != 100 || written != 100 || refused != 0 {
		t.Errorf("%d lines, %d written, %d refused", len(got), written, refused)
	}
}

func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	g := &gate{block: make(chan struct{})}
	l, err := NewWriter(g, Options{Capacity: 2})
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for range 100 {
		err := l.Append(t.Context(), Record{Status: taken})
		if err == nil {
			taken++
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if taken < 2 || taken > 50 {
		t.Fatalf("%d of 100 taken with a queue of 2", taken)
	}
	close(g.block)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := decode(t, g.out.Bytes()); len(got) != taken {
		t.Errorf("%d taken, %d written", taken, len(got))
	}
}

func TestWaitingQueue(t *testing.T) {
	t.Parallel()
	g := &gate{block: make(chan struct{})}
	l, err := NewWriter(g, Options{Capacity: 1, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for err == nil {
		err = l.Append(ctx, example)
	}
	if !errors.Is(err, ErrFull) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := l.Append(t.Context(), example); err != nil {
				t.Error(err)
			}
		})
	}
	close(g.block)
	wg.Wait()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	g := &gate{fails: 1 << 30}
	l, err := NewWriter(g, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := l.Append(t.Context(), example); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := l.Close(ctx); err == nil || !strings.Contains(err.Error(), "10 audit records could not be written") {
		t.Errorf("Close with a dead sink: %v", err)
	}
}

func TestReopen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "reads.log")
	l, err := OpenFile(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	appendOne := func() {
		if err := l.Append(t.Context(), example); err != nil {
			t.Fatal(err)
		}
		for waiting, written, _ := l.Stats(); waiting > 0 || written == 0; waiting, written, _ = l.Stats() {
			time.Sleep(time.Millisecond)
		}
	}
	appendOne()
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	appendOne()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + ".1"} {
		raw, err := os.ReadFile(name)
		if err != nil || len(decode(t, raw)) != 1 {
			t.Errorf("%s: %q, %v", name, raw, err)
		}
	}
	if _, err := OpenFile(filepath.Join(dir, "none", "x"), Options{}); err == nil {
		t.Error("a directory that is not there opens")
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\u2028\x7f\xff")
	f.Fuzz(func(t *testing.T, s string) {
		raw := appendString(nil, s)
		var back string
		if err := json.Unmarshal(raw, &back); err != nil || back != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) {
			t.Errorf("%q became %s: %v", s, raw, err)
		}
		if bytes.ContainsAny(raw, "\n\r") {
			t.Errorf("%q breaks its line", s)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for name, signer := range map[string]*Signer{"unsigned": nil, "signed": signerOf(b, 1)} {
		b.Run(name, func(b *testing.B) { benchmarkAppend(b, signer) })
	}
}

func benchmarkAppend(b *testing.B, signer *Signer) {
	l, err := NewWriter(io.Discard, Options{Capacity: 1 << 16, Wait: true, Signer: signer})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Append(b.Context(), example); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	chain := NewChain(Ref{Partition: "p"})
	denied := example
	denied.Decision = Deny
	failed := example
	failed.Status = 404
	line := func(r Record) []byte { return bytes.TrimSpace(chain.Append(nil, &r)) }
	for name, c := range map[string]struct {
		filter Filter
		line   []byte
		want   bool
	}{
		"all":                {Filter{}, line(example), true},
		"an opening":         {Filter{}, NewChain(Ref{Partition: "p"}).open(nil, example.Time, end{}), false},
		"no record":          {Filter{}, []byte("x"), false},
		"principal":          {Filter{Principal: "account:alice"}, line(example), true},
		"another principal":  {Filter{Principal: "account:al"}, line(example), false},
		"actor":              {Filter{Actor: "account:engine"}, line(example), true},
		"another actor":      {Filter{Actor: "x"}, line(example), false},
		"operation":          {Filter{Operation: "loadTable"}, line(example), true},
		"another operation":  {Filter{Operation: "loadView"}, line(example), false},
		"resource":           {Filter{Resource: "a.b.t"}, line(example), true},
		"its namespace":      {Filter{Resource: "a.b"}, line(example), true},
		"a part of its name": {Filter{Resource: "a.b.t.x"}, line(example), false},
		"since":              {Filter{Since: example.Time}, line(example), true},
		"since later":        {Filter{Since: example.Time.Add(time.Second)}, line(example), false},
		"until":              {Filter{Until: example.Time}, line(example), false},
		"until later":        {Filter{Until: example.Time.Add(time.Second)}, line(example), true},
		"ok":                 {Filter{Outcome: OutcomeOK}, line(example), true},
		"not ok":             {Filter{Outcome: OutcomeOK}, line(denied), false},
		"denied":             {Filter{Outcome: OutcomeDenied}, line(denied), true},
		"failed":             {Filter{Outcome: OutcomeFailed}, line(failed), true},
	} {
		if got := c.filter.Matches(c.line); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
