// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// logFile is a log as somebody sees it who can write its file, but does not
// have the key.
type logFile struct {
	lines []string // each with its newline
	log   []string // what was done to it
}

func (l *logFile) any() int { return rand.N(len(l.lines)) }

// mutations are what can be done to a log. Each may leave it as it was.
var mutations = map[string]func(l *logFile){
	"remove a line": func(l *logFile) { i := l.any(); l.lines = slices.Delete(l.lines, i, i+1) },
	"remove some lines": func(l *logFile) {
		i := l.any()
		l.lines = slices.Delete(l.lines, i, i+1+rand.N(len(l.lines)-i))
	},
	"cut the end off": func(l *logFile) { l.lines = l.lines[:1+l.any()] },
	"cut a line at the end": func(l *logFile) {
		last := &l.lines[len(l.lines)-1]
		*last = (*last)[:1+rand.N(len(*last))]
	},
	"cut the beginning off": func(l *logFile) { l.lines = l.lines[l.any():] },
	"repeat a line":         func(l *logFile) { i := l.any(); l.lines = slices.Insert(l.lines, i, l.lines[l.any()]) },
	"exchange two lines":    func(l *logFile) { i, j := l.any(), l.any(); l.lines[i], l.lines[j] = l.lines[j], l.lines[i] },
	"move a line": func(l *logFile) {
		i := l.any()
		line := l.lines[i]
		l.lines = slices.Delete(l.lines, i, i+1)
		l.lines = slices.Insert(l.lines, rand.N(len(l.lines)+1), line)
	},
	"change a member": func(l *logFile) {
		i := l.any()
		var members map[string]json.RawMessage
		if json.Unmarshal([]byte(l.lines[i]), &members) != nil {
			return
		}
		for key, value := range members { // in an order of its own each time
			changed := strings.Map(func(r rune) rune {
				switch {
				case r == '9' || r == 'z':
					return r - 1
				case r >= '0' && r < '9' || r >= 'a' && r < 'z':
					return r + 1
				}
				return r
			}, string(value))
			l.lines[i] = strings.Replace(l.lines[i], `"`+key+`":`+string(value), `"`+key+`":`+changed, 1)
			break
		}
	},
	"remove a member": func(l *logFile) {
		i := l.any()
		if from := strings.IndexByte(l.lines[i], ','); from > 0 {
			if to := strings.IndexByte(l.lines[i][from+1:], ','); to > 0 {
				l.lines[i] = l.lines[i][:from] + l.lines[i][from+1+to:]
			}
		}
	},
	"change who did it, and make the chain anew": func(l *logFile) {
		i := l.any()
		l.lines[i] = strings.Replace(l.lines[i], "alice", "mallo", 1)
		l.rehash()
	},
	"make the chain anew": func(l *logFile) { l.rehash() },
	"number the records anew, and make the chain": func(l *logFile) {
		next := map[string]int64{}
		for i, line := range l.lines {
			p, _, _, ok := parsePlace([]byte(strings.TrimSuffix(line, "\n")))
			if !ok {
				continue
			}
			next[p.Partition]++
			l.lines[i] = strings.Replace(line, fmt.Sprintf(`"seq":%d,`, p.Seq), fmt.Sprintf(`"seq":%d,`, next[p.Partition]), 1)
		}
		l.rehash()
	},
	"add a record of one's own": func(l *logFile) {
		i := l.any()
		p, _, h, ok := parsePlace([]byte(strings.TrimSuffix(l.lines[i], "\n")))
		if !ok {
			return
		}
		r := example
		l.lines = slices.Insert(l.lines, i+1, string(NewChain(Ref{Partition: p.Partition, Seq: p.Seq, Hash: h}).Append(nil, &r)))
	},
	"sign with another key": func(l *logFile) {
		i := l.any()
		c, err := ParseCheckpoint([]byte(l.lines[i]))
		if err != nil {
			return
		}
		forged := forger.Sign(c.Ref, c.Final, time.Now())
		forged.Key = c.Key
		l.lines[i] = string(forged.Append(nil))
	},
	"add a checkpoint of another key": func(l *logFile) {
		i := l.any()
		p, _, h, ok := parsePlace([]byte(strings.TrimSuffix(l.lines[i], "\n")))
		if !ok {
			return
		}
		forged := forger.Sign(Ref{Partition: p.Partition, Seq: p.Seq, Hash: h}, rand.N(2) == 0, time.Now())
		l.lines = slices.Insert(l.lines, i+1, string(forged.Append(nil)))
	},
}

var forger *Signer

// rehash makes all hashes anew, and what the openings say of the partition
// before.
func (l *logFile) rehash() {
	chains := map[string]*Chain{}
	for i, line := range l.lines {
		p, hashed, _, ok := parsePlace([]byte(strings.TrimSuffix(line, "\n")))
		if !ok {
			continue
		}
		if chains[p.Partition] == nil {
			chains[p.Partition] = NewChain(Ref{Partition: p.Partition, Seq: p.Seq - 1})
		}
		if before := p.Previous; before != nil && chains[before.Partition] != nil {
			last := chains[before.Partition].Last()
			hashed = bytes.Replace(hashed, []byte(fmt.Sprintf(`"seq":%d,"hash":"%s"`, before.Seq, before.Hash)), []byte(fmt.Sprintf(`"seq":%d,"hash":"%s"`, last.Seq, last.Hash)), 1)
		}
		c := chains[p.Partition]
		c.ref.Seq = p.Seq - 1
		l.lines[i] = string(c.end(bytes.Clone(hashed), 0))
	}
}

// byPartition are the records of a log.
func byPartition(raw string) map[string][]string {
	all := map[string][]string{}
	for _, line := range split([]byte(raw)) {
		if p, _, _, ok := parsePlace([]byte(strings.TrimSuffix(line, "\n"))); ok {
			all[p.Partition] = append(all[p.Partition], strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

// TestMutations does up to three things at a time to a log. Whatever Verify
// then calls proved is what was written, in its order, from the beginning of
// each partition; held against the checkpoints that were kept elsewhere, the
// whole log up to these is there. What comes after the last checkpoint, cut off
// or made anew, is all that can be changed.
func TestMutations(t *testing.T) {
	t.Parallel()
	signer := signerOf(t, 1)
	forger = signerOf(t, 9)
	keys := NewKeys(signer.Public())
	raw := string(logOf(t, signer, 4, 6, 3, 9))
	written := byPartition(raw)
	var kept []Checkpoint // of the end of each partition
	for _, line := range split([]byte(raw)) {
		if c, err := ParseCheckpoint([]byte(line)); err == nil && c.Final {
			kept = append(kept, c)
		}
	}
	if len(kept) != 3 || len(written) != 3 {
		t.Fatalf("%d checkpoints, %d partitions", len(kept), len(written))
	}
	var names []string
	for name := range mutations {
		names = append(names, name)
	}
	found, undetected := map[string]int{}, 0
	rounds := 3_000
	for range rounds {
		l := &logFile{lines: split([]byte(raw))}
		for range 1 + rand.N(3) {
			if len(l.lines) == 0 {
				break
			}
			name := names[rand.N(len(names))]
			mutations[name](l)
			l.log = append(l.log, name)
		}
		changed := strings.Join(l.lines, "")
		has := byPartition(changed)
		r := verify(t, VerifyOptions{Keys: keys}, []byte(changed))
		if r.OK() {
			undetected++
			for _, p := range r.Partitions {
				proved := int(p.Last - p.Unproven - p.First + 1)
				want := written[p.ID]
				from := int(p.First) - 1
				if proved > 0 && (from > len(want) || from+proved > len(want) || !slices.Equal(has[p.ID][:proved], want[from:from+proved])) {
					t.Fatalf("%q: %d records of partition %s count as proved, and are not what was written:\n%s", l.log, proved, p.ID, changed)
				}
			}
		} else {
			for _, name := range l.log {
				found[name]++
			}
		}
		if r := verify(t, VerifyOptions{Keys: keys, Checkpoints: kept}, []byte(changed)); r.OK() {
			for id, want := range written {
				if !slices.Equal(has[id], want) {
					t.Fatalf("%q: held against the checkpoints kept elsewhere, this is whole:\n%s", l.log, changed)
				}
			}
		}
	}
	for _, name := range names {
		if found[name] == 0 {
			t.Errorf("%q was never found: the test does not do what it says", name)
		}
	}
	if undetected == 0 {
		t.Error("not even a cut end passes: the test does not do what it says")
	}
}
