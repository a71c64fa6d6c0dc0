// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// signerOf makes the key of a number.
func signerOf(t testing.TB, n byte) *Signer {
	t.Helper()
	s, err := ParseSigner(secret.New(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{n}, 32))))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func verify(t testing.TB, o VerifyOptions, files ...[]byte) *Report {
	t.Helper()
	var readers []io.Reader
	for _, f := range files {
		readers = append(readers, bytes.NewReader(f))
	}
	report, err := Verify(Lines(readers...), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// run is one life of a server that writes n records into a file.
func run(t testing.TB, path string, signer *Signer, n, every int) {
	t.Helper()
	l, err := OpenFile(path, Options{Signer: signer, CheckpointRecords: every})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := example
		r.RequestID, r.Time = fmt.Sprint("r-", i), time.Now()
		if err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// logOf is the log of several runs.
func logOf(t testing.TB, signer *Signer, every int, runs ...int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "reads.log")
	for _, n := range runs {
		run(t, path, signer, n, every)
	}
	return read(t, path)
}

func split(raw []byte) []string {
	list := strings.SplitAfter(string(raw), "\n")
	return list[:len(list)-1]
}

func isCheckpoint(line string) bool { return strings.Contains(line, `"type":"audit.checkpoint"`) }

// lastCheckpoint returns the last one and the number of its line.
func lastCheckpoint(t testing.TB, list []string) (Checkpoint, int) {
	t.Helper()
	for i, line := range slices.Backward(list) {
		if isCheckpoint(line) {
			c, err := ParseCheckpoint([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			return c, i
		}
	}
	t.Fatal("there is no checkpoint")
	return Checkpoint{}, 0
}

func TestWholeLogVerifies(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	raw := logOf(t, signer, 4, 10, 0, 3)
	r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, raw)
	if !r.OK() || r.Records != 15 || len(r.Partitions) != 2 || r.Unproven() != 0 || r.Torn {
		t.Fatalf("%+v", r)
	}
	for i, want := range []int64{11, 4} {
		if p := r.Partitions[i]; p.First != 1 || p.Last != want || p.Records != want || !p.Ended || p.Checkpoint == nil || p.Checkpoint.Seq != want {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	// Without keys the chain is whole, and proves nothing.
	if r := verify(t, VerifyOptions{}, raw); !r.OK() || r.Unproven() != 15 {
		t.Errorf("without keys: %+v", r)
	}
	if r := verify(t, VerifyOptions{Keys: NewKeys(signerOf(t, 2).Public())}, raw); r.OK() || !strings.Contains(r.Problems[0].What, "not among those given") {
		t.Errorf("with another key: %+v", r)
	}
}

// TestLogsTogether puts the logs of two servers and a warehouse's changes
// together, as a table has them.
func TestLogsTogether(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	keys := NewKeys(signer.Public())
	chain := NewChain(Ref{Partition: "warehouse"})
	changes := chain.Append(nil, &example)
	c := signer.Sign(chain.Last(), false, time.Now())
	changes = c.Append(changes)
	one, two := logOf(t, signer, 4, 3, 2), logOf(t, signer, 4, 2, 3)
	for _, files := range [][][]byte{{changes, one, two}, {one, changes, two}} {
		if r := verify(t, VerifyOptions{Keys: keys, Logs: 2}, files...); !r.OK() || len(r.Partitions) != 5 || r.Unproven() != 0 {
			t.Errorf("%+v", r)
		}
		if r := verify(t, VerifyOptions{Keys: keys}, files...); r.Found != 1 || !strings.Contains(r.Problems[0].What, "names none before it") {
			t.Errorf("two logs count as one: %+v", r.Problems)
		}
	}
	if r := verify(t, VerifyOptions{Keys: keys}, changes, one); !r.OK() {
		t.Errorf("%+v", r)
	}
	// The beginning of one is gone: one log more than there are.
	list := split(one)
	second := slices.IndexFunc(list[1:], func(l string) bool { return strings.Contains(l, openType) }) + 1
	if r := verify(t, VerifyOptions{Keys: keys, Logs: 1}, two, []byte(strings.Join(list[second:], ""))); r.OK() {
		t.Error("a partition whose predecessor is missing counts as a log")
	}
}

func TestKeysAreReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "reads.log")
	first, second := signerOf(t, 1), signerOf(t, 2)
	run(t, path, first, 3, 10)
	run(t, path, second, 3, 10)
	if r := verify(t, VerifyOptions{Keys: NewKeys(second.Public(), first.Public())}, read(t, path)); !r.OK() || r.Unproven() != 0 {
		t.Errorf("%+v", r)
	}
	if r := verify(t, VerifyOptions{Keys: NewKeys(second.Public())}, read(t, path)); r.OK() {
		t.Error("the first key's checkpoint is believed without it")
	}
}

// TestTampering does to a log what somebody might who can write it. The log
// has two partitions, of 11 and 6 records, with a checkpoint every 4.
func TestTampering(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	raw := logOf(t, signer, 4, 10, 5)
	list := split(raw)
	opening := slices.IndexFunc(list[1:], func(l string) bool { return strings.Contains(l, `"type":"audit.partition"`) }) + 1
	record := func(n int) int { // line of the n-th record of the first partition
		return slices.IndexFunc(list, func(l string) bool { return strings.Contains(l, fmt.Sprintf(`"seq":%d,"time"`, n)) && !isCheckpoint(l) })
	}
	kept, _ := lastCheckpoint(t, list)
	forger := signerOf(t, 9)
	// rehash makes the chain of the first partition anew, without the key.
	rehash := func(list []string) []string {
		chain := NewChain(Ref{Partition: kept.Partition})
		for i, line := range list {
			p, hashed, _, ok := parsePlace([]byte(strings.TrimSuffix(line, "\n")))
			switch {
			case ok && p.Type == openType:
				chain = NewChain(Ref{Partition: p.Partition})
				fallthrough
			case ok:
				list[i] = string(chain.end(bytes.Clone(hashed), 0))
			}
		}
		return list
	}
	for name, c := range map[string]struct {
		change func(l []string) []string
		want   string
	}{
		"a record removed":            {func(l []string) []string { return slices.Delete(l, record(3), record(3)+1) }, "record 3 is missing"},
		"several records removed":     {func(l []string) []string { return slices.Delete(l, record(2), record(4)+1) }, "records 2 to 4 are missing"},
		"the first record removed":    {func(l []string) []string { return l[1:] }, "record 1 is missing"},
		"records before a checkpoint": {func(l []string) []string { return slices.Delete(l, record(5), record(5)+1) }, "record 5 is missing"},
		"a record altered":            {func(l []string) []string { l[record(3)] = strings.Replace(l[record(3)], "alice", "mallo", 1); return l }, "was altered"},
		"a record altered and rehashed": {func(l []string) []string {
			l[record(3)] = strings.Replace(l[record(3)], "alice", "mallo", 1)
			return rehash(l)
		}, "not the one that was signed"},
		"records exchanged": {func(l []string) []string {
			i, j := record(3), record(4)
			l[i], l[j] = l[j], l[i]
			return l
		}, "is out of order"},
		"a record twice":          {func(l []string) []string { return slices.Insert(l, record(3), l[record(3)]) }, "is out of order, or there twice"},
		"a record of another run": {func(l []string) []string { return slices.Insert(l, record(3), l[opening+1]) }, "is missing"},
		"a record made up": {func(l []string) []string {
			chain := NewChain(Ref{Partition: kept.Partition, Seq: kept.Seq, Hash: kept.Hash})
			return append(l, string(chain.Append(nil, &example)))
		}, "stands after the checkpoint that ended"},
		"a line of something else":                     {func(l []string) []string { return slices.Insert(l, 3, "{\"type\":\"audit.other\"}\n") }, "neither a record nor a checkpoint"},
		"an empty line":                                {func(l []string) []string { return slices.Insert(l, 3, "\n") }, "neither a record nor a checkpoint"},
		"a record without hash":                        {func(l []string) []string { return slices.Insert(l, 3, "{\"type\":\"audit.read\",\"status\":200}\n") }, "neither a record nor a checkpoint"},
		"the first partition removed, but its opening": {func(l []string) []string { return slices.Delete(l, 1, opening) }, "at its end"},
		"the end of a partition removed": {func(l []string) []string {
			return slices.Delete(l, record(10), opening)
		}, "records 10 to 11 are missing at its end"},
		"the end altered, chain and all": {func(l []string) []string {
			return rehash(slices.Delete(l, record(10), opening))
		}, "at its end"},
		"a checkpoint of somebody else": {func(l []string) []string {
			forged := forger.Sign(kept.Ref, true, time.Now())
			l[len(l)-1] = string(forged.Append(nil))
			return l
		}, "not among those given"},
		"a checkpoint under the true key's name": {func(l []string) []string {
			forged := forger.Sign(kept.Ref, true, time.Now())
			forged.Key = kept.Key
			l[len(l)-1] = string(forged.Append(nil))
			return l
		}, "does not match"},
		"a checkpoint moved": {func(l []string) []string {
			i := slices.IndexFunc(l, isCheckpoint)
			return slices.Insert(slices.Delete(slices.Clone(l), i, i+1), i+2, l[i])
		}, "out of place"},
		"all but the last checkpoint removed": {func(l []string) []string { return l[len(l)-1:] }, "are missing"},
		"the partitions exchanged": {func(l []string) []string {
			return append(slices.Clone(l[opening:]), l[:opening]...)
		}, "names none before it"},
		"a partition in the middle removed": {func([]string) []string {
			three := split(logOf(t, signer, 4, 2, 2, 2))
			var at []int
			for i, line := range three {
				if strings.Contains(line, `"type":"audit.partition"`) {
					at = append(at, i)
				}
			}
			return slices.Delete(three, at[1], at[2])
		}, "which comes before this one, is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Join(c.change(slices.Clone(list)), "")
			r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, []byte(changed))
			if r.OK() || !slices.ContainsFunc(r.Problems, func(p Problem) bool { return strings.Contains(p.What, c.want) }) {
				t.Errorf("found %v, want %q", r.Problems, c.want)
			}
		})
	}
}

// TestTruncation cuts the end of a log off, which nothing in the log itself
// can show: what is left is unproven down to its last checkpoint, and a
// checkpoint that was kept elsewhere shows the cut.
func TestTruncation(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	keys := NewKeys(signer.Public())
	list := split(logOf(t, signer, 4, 10))
	kept, last := lastCheckpoint(t, list)
	for _, c := range []struct {
		lines    int
		unproven int64
	}{
		{len(list), 0},
		{last, 2},     // without the last checkpoint, which is of record 11
		{last - 1, 1}, // and a record
		{last - 2, 0}, // down to the checkpoint of record 9
		{last - 3, 4}, // down to record 9
		{1, 1},        // down to the opening
		{0, 0},
	} {
		cut := []byte(strings.Join(list[:c.lines], ""))
		r := verify(t, VerifyOptions{Keys: keys}, cut)
		if !r.OK() || r.Unproven() != c.unproven {
			t.Errorf("%d lines: %d unproven, want %d; %v", c.lines, r.Unproven(), c.unproven, r.Problems)
		}
		r = verify(t, VerifyOptions{Keys: keys, Checkpoints: []Checkpoint{kept}}, cut)
		if whole := c.lines >= last; r.OK() != whole {
			t.Errorf("%d lines against the checkpoint: %v", c.lines, r.Problems)
		} else if whole && r.Unproven() != 0 {
			t.Errorf("%d records are unproven, though a checkpoint kept elsewhere proves them", r.Unproven())
		}
	}
	if _, err := Verify(Lines(), VerifyOptions{Keys: NewKeys(signerOf(t, 2).Public()), Checkpoints: []Checkpoint{kept}}); err == nil {
		t.Error("a checkpoint of an unknown key is believed")
	}
	// Another log with the same partition, made by somebody with the key.
	other := kept
	other.Hash[0]++
	other = signer.Sign(other.Ref, true, time.Now())
	if r := verify(t, VerifyOptions{Keys: keys, Checkpoints: []Checkpoint{other}}, []byte(strings.Join(list, ""))); r.OK() {
		t.Error("a log that a checkpoint contradicts is whole")
	}
}

// TestEveryFlipIsFound changes every byte of a log, and with it every member
// of every record and checkpoint, in a way that differs each run.
func TestEveryFlipIsFound(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	keys := NewKeys(signer.Public())
	for _, end := range []string{"after a checkpoint", "after a record"} {
		raw := logOf(t, signer, 2, 2, 2)
		if end == "after a record" {
			list := split(raw)
			_, i := lastCheckpoint(t, list)
			raw = []byte(strings.Join(list[:i], ""))
		}
		for i := range raw {
			changed := bytes.Clone(raw)
			changed[i] ^= byte(1 + rand.N(255))
			if r := verify(t, VerifyOptions{Keys: keys}, changed); r.OK() {
				t.Fatalf("%s: byte %d changed from %q to %q is not found:\n%s", end, i, raw[i], changed[i], changed)
			}
		}
	}
}

// recordsOf is a log without its checkpoints, and without a last line that is
// not finished.
func recordsOf(raw []byte) []byte {
	var records []byte
	for _, line := range split(raw) {
		if _, err := ParseCheckpoint([]byte(line)); err != nil && strings.HasSuffix(line, "\n") {
			records = append(records, line...)
		}
	}
	return records
}

// FuzzVerify puts any bytes in any place of a log: it must be found, and must
// not break the verifier.
func FuzzVerify(f *testing.F) {
	signer := signerOf(f, 1)
	keys := NewKeys(signer.Public())
	raw := logOf(f, signer, 2, 3, 2)
	f.Add(uint(0), uint(1), []byte("x"))
	f.Add(uint(300), uint(0), []byte("\n"))
	f.Add(uint(10), uint(900), []byte{})
	f.Fuzz(func(t *testing.T, at, remove uint, insert []byte) {
		i := int(at % uint(len(raw)))
		j := i + int(remove%uint(len(raw)-i+1))
		changed := slices.Concat(raw[:i], insert, raw[j:])
		if bytes.Equal(changed, raw) {
			return
		}
		r, err := Verify(Lines(bytes.NewReader(changed)), VerifyOptions{Keys: keys})
		// What cuts the end off leaves a log that was whole once, and a
		// checkpoint is not missed where a later one covers the same.
		if err == nil && r.OK() && !bytes.HasPrefix(raw, changed) && !bytes.HasPrefix(recordsOf(raw), recordsOf(changed)) {
			t.Errorf("bytes %d to %d replaced by %q are not found", i, j, insert)
		}
	})
}

func TestServerWasKilled(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	keys := NewKeys(signer.Public())
	path := filepath.Join(t.TempDir(), "reads.log")
	run(t, path, signer, 5, 100)
	list := split(read(t, path))
	_, last := lastCheckpoint(t, list)
	whole := strings.Join(list[:last], "")
	for cut := 1; cut < len(list[last-1]); cut += 7 {
		if err := os.WriteFile(path, []byte(whole[:len(whole)-cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		r := verify(t, VerifyOptions{Keys: keys}, read(t, path))
		if want := int64(5); cut == 1 && r.Records != 6 || cut > 1 && (r.Records != want || !r.Torn) || !r.OK() {
			t.Fatalf("cut by %d: %+v", cut, r)
		}
		run(t, path, signer, 2, 100)
		r = verify(t, VerifyOptions{Keys: keys}, read(t, path))
		if !r.OK() || len(r.Partitions) != 2 || r.Unproven() > 0 && cut > 1 {
			t.Fatalf("cut by %d, after the next run: %+v\n%s", cut, r, read(t, path))
		}
	}
}

// TestRotation moves the log away, while the server runs and while it does
// not: each file verifies alone, and all together in their order.
func TestRotation(t *testing.T) {
	t.Parallel()
	for _, signer := range []*Signer{signerOf(t, 1), nil} {
		keys := Keys{}
		if signer != nil {
			keys = NewKeys(signer.Public())
		}
		path := filepath.Join(t.TempDir(), "reads.log")
		move := func(to string) {
			if err := os.Rename(path, path+to); err != nil {
				t.Fatal(err)
			}
		}
		run(t, path, signer, 3, 100)
		move(".1")
		l, err := OpenFile(path, Options{Signer: signer})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{".2", ".3"} {
			if err := l.Append(t.Context(), example); err != nil {
				t.Fatal(err)
			}
			for waiting, written, _ := l.Stats(); waiting > 0 || written == 0; waiting, written, _ = l.Stats() {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(5 * time.Millisecond)
			move(to)
			if err := l.Reopen(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(t, path, signer, 3, 100)
		var files [][]byte
		for _, name := range []string{".1", ".2", ".3", ""} {
			files = append(files, read(t, path+name))
			if r := verify(t, VerifyOptions{Keys: keys}, files[len(files)-1]); !r.OK() || signer != nil && r.Unproven() != 0 || name != ".1" && r.Partitions[0].After == nil {
				t.Errorf("%q alone: %+v", name, r)
			}
		}
		if r := verify(t, VerifyOptions{Keys: keys}, files...); !r.OK() || len(r.Partitions) != 4 {
			t.Errorf("together: %+v", r)
		}
		if r := verify(t, VerifyOptions{Keys: keys}, files[0], files[2], files[3]); r.OK() {
			t.Error("a file that was left out is not missed")
		}
		if info, err := os.Stat(path + LastSuffix); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

// TestLastCheckpointBesideTheLog is about the file that proves where the log
// ended.
func TestLastCheckpointBesideTheLog(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	path := filepath.Join(t.TempDir(), "reads.log")
	l, err := OpenFile(path, Options{Signer: signer, CheckpointInterval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), example); err != nil {
		t.Fatal(err)
	}
	for { // a checkpoint comes by itself
		if raw, err := os.ReadFile(path + LastSuffix); err == nil {
			c, err := ParseCheckpoint(raw)
			if err != nil || c.Verify(NewKeys(signer.Public())) != nil || c.Seq != 2 || c.Final {
				t.Errorf("%+v, %v", c, err)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := ParseCheckpoint(read(t, path+LastSuffix))
	if err != nil || !c.Final || c.Seq != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLogFromBeforeTheChain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "reads.log")
	older := `{"type":"audit.read","time":"2026-01-02T03:04:05.000006Z","status":200}` + "\n"
	if err := os.WriteFile(path, []byte(older+older), 0o600); err != nil {
		t.Fatal(err)
	}
	signer := signerOf(t, 1)
	run(t, path, signer, 2, 100)
	if r := verify(t, VerifyOptions{Keys: NewKeys(signer.Public())}, read(t, path)); !r.OK() || r.Older != 2 || r.Records != 3 {
		t.Errorf("%+v", r)
	}
}

func TestCheckpointForms(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	c := signer.Sign(Ref{Partition: "p", Seq: 3}, false, time.Now())
	line := string(c.Append(nil))
	again, err := ParseCheckpoint([]byte(line))
	if err != nil || again != c || again.Verify(NewKeys(signer.Public())) != nil {
		t.Errorf("%+v, %v", again, err)
	}
	for _, bad := range []string{
		"", "{}", "null", line[1:], strings.Replace(line, "{", "{ ", 1), strings.Replace(line, `"seq":3`, `"seq":03`, 1),
		strings.Replace(line, `,"count"`, `,"more":1,"count"`, 1), strings.ToUpper(line), strings.Replace(line, "checkpoint", "decision", 1),
	} {
		if _, err := ParseCheckpoint([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v", signer, signer, signer); strings.Contains(s, "1, 1, 1") || !strings.Contains(s, signer.Public().ID()) {
		t.Errorf("a signer prints as %s", s)
	}
}
