// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

// item is one entry of an array or object that is rewritten: kept as it is,
// dropped, or replaced.
type item struct {
	at   span
	drop bool
	with []byte // replaces the entry when not nil
}

// piece is a stretch of the old bytes, or new bytes.
type piece struct {
	old span
	new []byte
}

// rewritten is an array or object as a list of pieces, so that what stays is
// copied once, in runs as long as possible.
type rewritten struct {
	pieces []piece
	size   int
	starts []uint32 // of each surviving and added entry, from the start of the whole
}

func (r *rewritten) keep(from, to uint32) {
	if from == to {
		return
	}
	r.size += int(to - from)
	if n := len(r.pieces); n > 0 && r.pieces[n-1].new == nil && r.pieces[n-1].old.end == from {
		r.pieces[n-1].old.end = to
		return
	}
	r.pieces = append(r.pieces, piece{old: span{from, to}})
}

func (r *rewritten) add(b []byte) {
	r.size += len(b)
	r.pieces = append(r.pieces, piece{new: b})
}

func (r *rewritten) mark() {
	r.starts = append(r.starts, uint32(r.size)) //nolint:gosec // limited by MaxBytes
}

// appendTo writes the pieces; raw is what old spans refer to.
func (r *rewritten) appendTo(out, raw []byte) []byte {
	for _, p := range r.pieces {
		if p.new != nil {
			out = append(out, p.new...)
		} else {
			out = append(out, p.old.of(raw)...)
		}
	}
	return out
}

// rewrite returns the array or object at whole with its items kept, dropped
// or replaced, and entries added at the end. Separators and white space
// between surviving entries stay as they are.
func rewrite(raw []byte, whole span, items []item, added [][]byte) rewritten {
	var r rewritten
	separator := []byte(",")
	head, tail := whole.start+1, whole.end-1
	if n := len(items); n > 0 {
		head, tail = items[0].at.start, items[n-1].at.end
		if n > 1 {
			separator = raw[items[0].at.end:items[1].at.start]
		}
	}
	r.keep(whole.start, head)
	some := false
	for i, it := range items {
		if it.drop {
			continue
		}
		if some {
			r.keep(items[i-1].at.end, it.at.start)
		}
		some = true
		r.mark()
		if it.with != nil {
			r.add(it.with)
		} else {
			r.keep(it.at.start, it.at.end)
		}
	}
	for _, b := range added {
		if some {
			r.add(separator)
		}
		some = true
		r.mark()
		r.add(b)
	}
	if len(items) == 0 {
		r.keep(whole.end-1, whole.end)
	} else {
		r.keep(tail, whole.end)
	}
	return r
}
