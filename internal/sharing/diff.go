// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"fmt"
	"slices"
	"strings"
)

// diffContext is how many lines stand around a difference.
const diffContext = 3

// maxDiffCells bounds the work of comparing two files line by line; beyond it
// a file is shown as replaced.
const maxDiffCells = 4_000_000

// diffFiles is the unified diff of two sets of files, which are in order of
// their paths.
func diffFiles(before, after []PolicyFile) string {
	texts := func(files []PolicyFile) (map[string]string, []string) {
		m, names := map[string]string{}, []string{}
		for _, f := range files {
			m[f.Path] = f.Text
			names = append(names, f.Path)
		}
		return m, names
	}
	old, names := texts(before)
	fresh, more := texts(after)
	names = append(names, more...)
	slices.Sort(names)
	var b strings.Builder
	for _, name := range slices.Compact(names) {
		was, had := old[name]
		is, has := fresh[name]
		if had && has && was == is {
			continue
		}
		from, to := "a/"+name, "b/"+name
		if !had {
			from = "/dev/null"
		}
		if !has {
			to = "/dev/null"
		}
		fmt.Fprintf(&b, "--- %s\n+++ %s\n", from, to)
		writeHunks(&b, diffLines(linesOf(was), linesOf(is)))
	}
	return b.String()
}

func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	lines := strings.SplitAfter(text, "\n")
	if last := len(lines) - 1; lines[last] == "" {
		return lines[:last]
	}
	return lines
}

// edit is a line that both have (' '), only the first ('-') or the second
// ('+').
type edit struct {
	op   byte
	line string
}

// diffLines compares by the longest common subsequence, after what both begin
// and end with.
func diffLines(a, b []string) []edit {
	var head, tail []edit
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, edit{' ', a[0]})
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail = append(tail, edit{' ', a[len(a)-1]})
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	slices.Reverse(tail)
	return append(append(head, middle(a, b)...), tail...)
}

func middle(a, b []string) []edit {
	var out []edit
	if (len(a)+1)*(len(b)+1) > maxDiffCells {
		for _, l := range a {
			out = append(out, edit{'-', l})
		}
		for _, l := range b {
			out = append(out, edit{'+', l})
		}
		return out
	}
	// common[i][j] is how many lines a[i:] and b[j:] have in common, in order.
	width := len(b) + 1
	common := make([]int32, (len(a)+1)*width)
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, edit{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[(i+1)*width+j] >= common[i*width+j+1]:
			out = append(out, edit{'-', a[i]})
			i++
		default:
			out = append(out, edit{'+', b[j]})
			j++
		}
	}
	return out
}

// writeHunks writes edits with the lines around them.
func writeHunks(b *strings.Builder, edits []edit) {
	oldLine, newLine := 1, 1
	for i := 0; i < len(edits); {
		if edits[i].op == ' ' {
			// Is there a difference near enough that this line belongs to it?
			if !slices.ContainsFunc(edits[i:min(len(edits), i+diffContext+1)], func(e edit) bool { return e.op != ' ' }) {
				oldLine, newLine, i = oldLine+1, newLine+1, i+1
				continue
			}
		}
		end, quiet := i, 0
		for end < len(edits) && quiet <= 2*diffContext {
			if edits[end].op == ' ' {
				quiet++
			} else {
				quiet = 0
			}
			end++
		}
		if quiet > diffContext {
			end -= quiet - diffContext
		}
		oldCount, newCount := 0, 0
		for _, e := range edits[i:end] {
			if e.op != '+' {
				oldCount++
			}
			if e.op != '-' {
				newCount++
			}
		}
		fmt.Fprintf(b, "@@ -%s +%s @@\n", span(oldLine, oldCount), span(newLine, newCount))
		for _, e := range edits[i:end] {
			b.WriteByte(e.op)
			b.WriteString(e.line)
			if !strings.HasSuffix(e.line, "\n") {
				b.WriteString("\n\\ No newline at end of file\n")
			}
		}
		oldLine, newLine, i = oldLine+oldCount, newLine+newCount, end
	}
}

// span is a range of a hunk's head: an empty one begins before its place.
func span(line, count int) string {
	if count == 0 {
		line--
	}
	if count == 1 {
		return fmt.Sprint(line)
	}
	return fmt.Sprintf("%d,%d", line, count)
}
