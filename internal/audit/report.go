// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// ReadKeys adds the keys of files to those that verify.
func ReadKeys(keys Keys, files ...string) error {
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		key, err := ParseVerifyKey(secret.New(string(raw)))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		keys[key.ID()] = key
	}
	return nil
}

// ReadCheckpoints reads files of checkpoints, one a line.
func ReadCheckpoints(files ...string) ([]Checkpoint, error) {
	var all []Checkpoint
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(raw) {
			c, err := ParseCheckpoint(line)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// Summary is a report with the name of its log, for programs.
type Summary struct {
	Log      string  `json:"log"`
	OK       bool    `json:"ok"`
	Signed   bool    `json:"signed"`
	Unproven int64   `json:"unproven"`
	Report   *Report `json:"report"`
}

// Summary sums a report up; signed says that there were keys to verify with.
func (r *Report) Summary(name string, signed bool) Summary {
	return Summary{name, r.OK(), signed, r.Unproven(), r}
}

// WriteText writes the report for people; signed says that there were keys to
// verify with.
func (r *Report) WriteText(to io.Writer, name string, signed bool) error {
	w := &strings.Builder{}
	verdict := "ok  "
	if !r.OK() {
		verdict = "FAIL"
	}
	fmt.Fprintf(w, "%s %s: %d records in %d partitions\n", verdict, name, r.Records, len(r.Partitions))
	for _, p := range r.Problems {
		fmt.Fprintf(w, "     %s\n", p)
	}
	if more := r.Found - int64(len(r.Problems)); more > 0 {
		fmt.Fprintf(w, "     and %d more\n", more)
	}
	switch n := r.Unproven(); {
	case !signed && r.Records > 0:
		fmt.Fprintf(w, "     no key was given: the chain shows damage, not the work of somebody who made it anew\n")
	case n > 0:
		fmt.Fprintf(w, "     unproven tail of %d records: no checkpoint covers them yet\n", n)
	}
	if r.Torn {
		fmt.Fprintf(w, "     the last line is not finished\n")
	}
	if r.Older > 0 {
		fmt.Fprintf(w, "     %d records are from before there was a chain: nothing proves them\n", r.Older)
	}
	for _, p := range r.Partitions {
		if p.After != nil {
			fmt.Fprintf(w, "     partition %s begins after record %d of %s, which is not here\n", p.ID, p.After.Seq, p.After.Partition)
		}
	}
	if n := len(r.Partitions); n > 0 && signed && r.Partitions[n-1].Checkpoint != nil {
		c := r.Partitions[n-1].Checkpoint
		fmt.Fprintf(w, "     last checkpoint, worth keeping elsewhere: record %d of %s, %s\n", c.Seq, c.Partition, c.Time.Format(time.RFC3339))
	}
	_, err := io.WriteString(to, w.String())
	return err
}
