// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"
)

// Line is a line of an audit log without its newline. It is valid until the
// next one is asked for.
type Line struct {
	Text []byte
	Torn bool // the reader ended before the line did
}

// maxLine bounds a line: far above what a record can become.
const maxLine = 16 << 20

// Lines reads the lines of readers, one after the other.
func Lines(readers ...io.Reader) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		for _, r := range readers {
			for line, err := range lines(r) {
				if !yield(line, err) || err != nil {
					return
				}
			}
		}
	}
}

func lines(r io.Reader) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		b := bufio.NewReaderSize(r, 64<<10)
		var long []byte
		for {
			part, err := b.ReadSlice('\n')
			if errors.Is(err, bufio.ErrBufferFull) {
				if long = append(long, part...); len(long) > maxLine {
					yield(Line{}, fmt.Errorf("a line is longer than %d bytes: this is no audit log", maxLine))
					return
				}
				continue
			}
			text := part
			if len(long) > 0 {
				long = append(long, part...)
				text = long
			}
			switch {
			case err == nil:
				if !yield(Line{Text: text[:len(text)-1]}, nil) {
					return
				}
			case errors.Is(err, io.EOF):
				if len(text) > 0 {
					yield(Line{Text: text, Torn: true}, nil)
				}
				return
			default:
				yield(Line{}, err)
				return
			}
			long = long[:0]
		}
	}
}

// VerifyOptions say what a log is held against.
type VerifyOptions struct {
	// Keys verify checkpoints. Without any the chain alone is looked at, which
	// shows damage, but not the work of somebody who made the chain anew.
	Keys Keys
	// Checkpoints were kept elsewhere: the log must still hold what they
	// prove.
	Checkpoints []Checkpoint
	// RemovedBefore is the time before which records may have been removed, up
	// to a checkpoint. When it is zero, every partition must be there from its
	// first record on.
	RemovedBefore time.Time
	// Logs is how many logs of reads, one a server, were put together: so many
	// partitions may follow none that is there. 1 when zero.
	Logs int
	// MaxProblems bounds the report; 100 when zero. Counting goes on.
	MaxProblems int
}

// Report is what Verify found.
type Report struct {
	Records    int64             `json:"records"`
	Partitions []PartitionReport `json:"partitions"`
	// Older are records from before there was a chain, which nothing proves.
	Older    int64     `json:"older_records,omitempty"`
	Problems []Problem `json:"problems,omitempty"`
	// Found counts all problems, also those that are not listed.
	Found int64 `json:"problems_found"`
	// Torn is set when the last line is not finished: the server is writing
	// it, or was ended while it did.
	Torn bool `json:"unfinished_line,omitempty"`
}

// OK reports whether nothing was found.
func (r *Report) OK() bool { return r.Found == 0 }

// Unproven is how many records no checkpoint covers. They fit the chain, but
// whoever can write the log could have removed some at the end, or made them.
func (r *Report) Unproven() int64 {
	var n int64
	for _, p := range r.Partitions {
		n += p.Unproven
	}
	return n
}

// PartitionReport is what was found of one partition.
type PartitionReport struct {
	ID       string `json:"partition"`
	First    int64  `json:"first"` // number of the first record that is there
	Last     int64  `json:"last"`
	Records  int64  `json:"records"`
	Unproven int64  `json:"unproven"`
	// Ended is set when a checkpoint says that nothing comes after it.
	Ended bool `json:"ended,omitempty"`
	// After names what went before, and is not in what was read: the record
	// before First, or the last one of the log's partition before.
	After *Ref `json:"after,omitempty"`
	// Checkpoint is the last one.
	Checkpoint *Checkpoint `json:"-"`
}

// Problem is something that must not be.
type Problem struct {
	Line      int64  `json:"line"` // from 1; 0 for what is not there
	Partition string `json:"partition,omitempty"`
	Seq       int64  `json:"seq,omitempty"`
	What      string `json:"what"`
}

// String is the problem for people.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Partition != "" {
		fmt.Fprintf(&b, "partition %s: ", p.Partition)
	}
	if p.Seq > 0 {
		fmt.Fprintf(&b, "record %d: ", p.Seq)
	}
	return b.String() + p.What
}

// Verify reads a log and reports every place where it is not what the server
// wrote: a record that was removed, altered, moved or inserted, a checkpoint
// without a valid signature, an end that was cut off before a checkpoint that
// was kept elsewhere. The error is that of reading.
func Verify(log iter.Seq2[Line, error], o VerifyOptions) (*Report, error) {
	if o.MaxProblems <= 0 {
		o.MaxProblems = 100
	}
	o.Logs = max(o.Logs, 1)
	v := &verifier{o: o, report: &Report{}, byID: map[string]*partition{}, kept: map[keptAt][]Hash{}}
	for _, c := range o.Checkpoints {
		if err := c.Verify(o.Keys); err != nil {
			return nil, fmt.Errorf("a checkpoint kept elsewhere: %w", err)
		}
		at := keptAt{c.Partition, c.Seq}
		v.kept[at] = append(v.kept[at], c.Hash)
	}
	for line, err := range log {
		if err != nil {
			return nil, err
		}
		v.n++
		v.line(line)
	}
	v.finish()
	return v.report, nil
}

type verifier struct {
	o       VerifyOptions
	report  *Report
	n       int64 // of the line
	byID    map[string]*partition
	order   []*partition
	logs    int // partitions of reads that follow none that is there
	kept    map[keptAt][]Hash
	garbled int64 // line before this one that says nothing; 0 for none
}

// keptAt is the record of a checkpoint that was kept elsewhere.
type keptAt struct {
	partition string
	seq       int64
}

// partition is the state of one.
type partition struct {
	PartitionReport
	chain  *Chain
	signed int64      // number of the last record that a checkpoint covers
	former *partition // the partition whose last record this one names
}

func (v *verifier) problem(partition string, seq int64, format string, args ...any) {
	v.problemAt(v.n, partition, seq, format, args...)
}

func (v *verifier) problemAt(line int64, partition string, seq int64, format string, args ...any) {
	v.report.Found++
	if len(v.report.Problems) < v.o.MaxProblems {
		v.report.Problems = append(v.report.Problems, Problem{Line: line, Partition: partition, Seq: seq, What: fmt.Sprintf(format, args...)})
	}
}

var (
	checkpointBegin = []byte(`{"type":"` + checkpointType + `",`)
	olderBegin      = []byte(`{"type":"audit.read",`)
)

func (v *verifier) line(l Line) {
	if bytes.HasPrefix(l.Text, checkpointBegin) {
		c, err := ParseCheckpoint(l.Text)
		if err != nil {
			v.garble(l)
			return
		}
		v.settle(false)
		v.checkpoint(c)
		return
	}
	if bytes.HasPrefix(l.Text, olderBegin) && len(v.order) == 0 && !l.Torn {
		v.settle(false)
		v.report.Older++
		return
	}
	p, hashed, h, ok := parsePlace(l.Text)
	if !ok {
		v.garble(l)
		return
	}
	v.settle(p.Type == openType && p.Unfinished)
	v.record(p, hashed, h)
}

// garble notes a line that is neither record nor checkpoint. A server that
// was killed may have left one unfinished: then either nothing follows, not
// even the line's end, or a partition that says so.
func (v *verifier) garble(l Line) {
	v.settle(false)
	if l.Torn && !isLine(l.Text[:len(l.Text)-1]) {
		v.report.Torn = true
		return
	}
	v.garbled = v.n
}

// isLine reports whether a text is a whole record or checkpoint.
func isLine(text []byte) bool {
	_, _, _, record := parsePlace(text)
	_, err := ParseCheckpoint(text)
	return record || err == nil
}

// settle decides about a line that said nothing, by what follows it.
func (v *verifier) settle(excused bool) {
	if v.garbled > 0 && !excused {
		v.problemAt(v.garbled, "", 0, "is neither a record nor a checkpoint")
	}
	v.garbled = 0
}

func (v *verifier) record(p place, hashed []byte, h Hash) {
	v.report.Records++
	s := v.byID[p.Partition]
	switch {
	case s == nil:
		s = v.begin(p)
	case p.Type == openType:
		v.problem(p.Partition, p.Seq, "begins the partition a second time")
	case s.Ended:
		v.problem(p.Partition, p.Seq, "stands after the checkpoint that ended the partition")
	}
	s.Records++
	switch last := s.chain.Last(); {
	case p.Seq <= last.Seq:
		v.problem(p.Partition, p.Seq, "is out of order, or there twice: record %d came before it", last.Seq)
		return
	case p.Seq > last.Seq+1:
		v.problem(p.Partition, p.Seq, "%s before it", missing(last.Seq+1, p.Seq-1))
		s.chain.ref = Ref{Partition: p.Partition, Seq: p.Seq, Hash: h}
	default:
		if s.chain.link(hashed); s.chain.ref.Hash != h {
			v.problem(p.Partition, p.Seq, "was altered, or is not the one that followed the record before: its hash does not match")
			s.chain.ref.Hash = h
		}
	}
	s.Last = p.Seq
	v.hold(s.chain.ref)
}

func missing(from, to int64) string {
	if from == to {
		return fmt.Sprintf("record %d is missing", from)
	}
	return fmt.Sprintf("records %d to %d are missing", from, to)
}

// begin starts a partition with its first record.
func (v *verifier) begin(p place) *partition {
	s := v.add(Ref{Partition: p.Partition})
	if p.Type != openType {
		return s
	}
	before := p.Previous
	if before == nil || v.byID[before.Partition] == nil {
		v.logs++
	}
	switch first := v.logs <= v.o.Logs; {
	case before == nil && first:
	case before == nil:
		v.problem(p.Partition, p.Seq, "the partition names none before it, as the first one of a log does: what came before was removed when the server started, or these are the logs of several servers (--logs)")
	case v.byID[before.Partition] == nil && first:
		s.After = before
	default:
		v.follow(s, p, *before)
	}
	return s
}

// follow holds what a partition names against the partition before.
func (v *verifier) follow(s *partition, p place, before Ref) {
	former := v.byID[before.Partition]
	if former == nil {
		v.problem(p.Partition, p.Seq, "partition %s, which comes before this one, is missing", before.Partition)
		return
	}
	switch last := former.chain.Last(); {
	case last.Seq < before.Seq:
		v.problem(before.Partition, 0, "%s at its end", missing(last.Seq+1, before.Seq))
	case last.Seq > before.Seq:
		// Another process went on writing, or the line of the last record was
		// not finished when this one looked.
	case last.Hash != before.Hash:
		v.problem(before.Partition, last.Seq, "is not the record that the next partition names as the last one")
	default:
		s.former = former
	}
}

// add begins a partition after a record.
func (v *verifier) add(after Ref) *partition {
	s := &partition{PartitionReport: PartitionReport{ID: after.Partition, First: after.Seq + 1, Last: after.Seq}, chain: NewChain(after), signed: after.Seq}
	v.byID[after.Partition] = s
	v.order = append(v.order, s)
	return s
}

func (v *verifier) checkpoint(c Checkpoint) {
	if len(v.o.Keys) > 0 {
		if err := c.Verify(v.o.Keys); err != nil {
			v.problem(c.Partition, c.Seq, "%s", err)
			return
		}
	}
	s := v.byID[c.Partition]
	if s == nil {
		if !c.Time.Before(v.o.RemovedBefore) {
			v.problem(c.Partition, c.Seq, "%s before this checkpoint of %s", missing(1, c.Seq), c.Time.Format(time.RFC3339))
		}
		s = v.add(c.Ref)
		s.After = &c.Ref
		v.hold(c.Ref)
	}
	if s.Ended {
		v.problem(c.Partition, c.Seq, "a checkpoint stands after the one that ended the partition")
	}
	switch last := s.chain.Last(); {
	case c.Seq > last.Seq:
		v.problem(c.Partition, c.Seq, "%s before its checkpoint", missing(last.Seq+1, c.Seq))
		s.chain.ref = c.Ref
		s.Last = c.Seq
	case c.Seq < last.Seq:
		v.problem(c.Partition, c.Seq, "its checkpoint is out of place: record %d came before it", last.Seq)
		return
	case c.Hash != last.Hash:
		v.problem(c.Partition, c.Seq, "the chain is not the one that was signed: records up to this one were altered and hashed anew")
		return
	}
	s.Ended = s.Ended || c.Final
	s.Checkpoint = &c
	if len(v.o.Keys) > 0 {
		s.signed = c.Seq
	}
}

// hold holds a record against checkpoints that were kept elsewhere.
func (v *verifier) hold(at Ref) {
	for _, hash := range v.kept[keptAt{at.Partition, at.Seq}] {
		if hash != at.Hash {
			v.problem(at.Partition, at.Seq, "is not the record that the checkpoint kept elsewhere proves")
		}
	}
}

func (v *verifier) finish() {
	v.settle(false)
	for _, c := range v.o.Checkpoints {
		s := v.byID[c.Partition]
		switch {
		case s == nil:
			v.problemAt(0, c.Partition, 0, "is missing, but a checkpoint kept elsewhere proves that it had %d records", c.Count)
		case c.Final && s.Last > c.Seq:
			v.problemAt(0, c.Partition, s.Last, "stands after the end of the partition, as a checkpoint kept elsewhere proves")
		case s.Last < c.Seq:
			v.problemAt(0, c.Partition, 0, "%s at its end, as a checkpoint kept elsewhere proves", missing(s.Last+1, c.Seq))
		default:
			// A partition that begins later was cut off at its beginning,
			// which RemovedBefore judges.
			s.signed = max(s.signed, c.Seq)
		}
	}
	// What a signed partition names is signed with it.
	for _, s := range slices.Backward(v.order) {
		if s.former != nil && s.signed > 0 {
			s.former.signed = s.former.Last
		}
	}
	for _, s := range v.order {
		s.Unproven = s.Last - s.signed
		v.report.Partitions = append(v.report.Partitions, s.PartitionReport)
	}
}
