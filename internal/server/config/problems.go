// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Where is "file:line:column", "environment variable NAME", or the file.
	Where string
	// Key is the dotted path of the key, "" for the file as a whole.
	Key     string
	Message string
}

// String is one line.
func (p Problem) String() string {
	if p.Key == "" {
		return p.Where + ": " + p.Message
	}
	return p.Where + ": " + p.Key + ": " + p.Message
}

// Problems is the error of [Load]: everything that is wrong.
type Problems []Problem

// Error has one line per problem.
func (p Problems) Error() string {
	var b strings.Builder
	for i, one := range p {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(one.String())
	}
	return b.String()
}

// didYouMean returns a hint naming the candidate closest to word, or "".
func didYouMean(word string, candidates []string) string {
	best, distance := "", min(len(word)/2+1, 4)
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(word), c); d < distance {
			best, distance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is Levenshtein's distance, with a swap of neighbours as one
// step.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
