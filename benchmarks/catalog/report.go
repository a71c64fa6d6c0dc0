// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// goal is one line of the end. Got is null when there is no such number: it
// was not measured, or the cost that it divides by was too small to count.
type goal struct {
	Goal string   `json:"goal"`
	Want float64  `json:"want"`
	Got  *float64 `json:"got"`
	Unit string   `json:"unit"`
	Met  bool     `json:"met"`
}

// atLeast and atMost are the two ways to meet a goal.
func atLeast(name string, want, got float64, unit string) goal {
	value := round3(got)
	return goal{name, want, value, unit, value != nil && got >= want}
}

func atMost(name string, want, got float64, unit string) goal {
	value := round3(got)
	return goal{name, want, value, unit, value != nil && got > 0 && got <= want}
}

// round3 keeps three significant digits.
func round3(v float64) *float64 {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return nil
	case v != 0:
		scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
		v = math.Round(v*scale) / scale
	}
	return &v
}

// of returns the median of a value over the rounds of a cell, NaN of none.
func of(samples []sample, value func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = value(s)
	}
	return median(values)
}

func own(s sample) float64      { return s.own }
func database(s sample) float64 { return s.database }

func (b *bench) report(w io.Writer) error {
	fmt.Fprintf(w, "catalogd beside the Iceberg reference server: CPU time of the server per good request, medians of %d rounds\n", b.rounds)
	fmt.Fprintf(w, "%d CPUs, %s, %d tables, an answer of loadTable has %d bytes\n\n", runtime.NumCPU(), runtime.Version(), b.tables, b.tableBytes)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scenario\tconnections\tserver\tCPU ms\tPostgreSQL ms\trequests/s\tp50 ms\tp99 ms\tnot 2xx or 304\t")
	row := func(name string, connections int, server string, samples []sample) {
		var failed int64
		for _, s := range samples {
			failed += s.failed
		}
		pg := ""
		if server == b.postgres.name || server == b.fewPostgres.name {
			pg = fmt.Sprintf("%.4f", of(samples, database))
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%.4f\t%s\t%.0f\t%.3f\t%.3f\t%d\t\n", name, connections, server, of(samples, own), pg,
			of(samples, func(s sample) float64 { return s.rate }), of(samples, func(s sample) float64 { return s.p50 }),
			of(samples, func(s sample) float64 { return s.p99 }), failed)
	}
	for _, sc := range b.scenarios() {
		for _, connections := range sc.connections {
			for _, s := range b.subjects {
				if samples := b.samples[cell{sc.name, connections, s.name}]; len(samples) > 0 {
					row(sc.name, connections, s.name, samples)
				}
			}
		}
	}
	for _, s := range []*subject{b.fixture, b.sqlite, b.postgres} {
		if samples := b.largeSamples[s.name]; len(samples) > 0 {
			row(commitLarge, 1, s.name, samples)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "server\tready after ms\tidle MB\t")
	for _, s := range b.subjects {
		if s != b.bare {
			fmt.Fprintf(t, "%s\t%.0f\t%.1f\t\n", s.name, milliseconds(b.ready[s.name]), megabytes(b.idle[s.name]))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%.1f MB of metadata in process, ms of CPU: iceberg-go parse, apply, serialise %.0f; ours parse %.1f, then %.2f per commit; a parsed document holds %.2f times its bytes\n",
		float64(b.metadata.Bytes)/1e6, b.metadata.IcebergGoMs, b.metadata.ParseMs, b.metadata.SluiceMs, b.metadata.HeapFactor)
	fmt.Fprintf(w, "catalogd's resident memory: idle %.1f MB, at most %.1f MB when such a table is registered and loaded, %.1f MB after %d commits to it\n\n",
		megabytes(b.growth.idle), megabytes(b.growth.loaded), megabytes(b.growth.committed), b.largeCommits)
	for _, problem := range b.problems() {
		fmt.Fprintln(w, problem)
	}
	encoder := json.NewEncoder(w)
	for _, g := range b.goals() {
		if g.Got == nil && b.only.String() != "" {
			continue // left out, or what it is compared with is
		}
		if err := encoder.Encode(g); err != nil {
			return err
		}
	}
	return nil
}

// problems says what the first answer was that was not good, once per cell.
func (b *bench) problems() []string {
	var out []string
	for _, sc := range b.scenarios() {
		for _, connections := range sc.connections {
			for _, s := range b.subjects {
				for _, got := range b.samples[cell{sc.name, connections, s.name}] {
					if got.failed > 0 {
						out = append(out, fmt.Sprintf("%s, %s, %d connections: %d failed, first %s", s.name, sc.name, connections, got.failed, strings.TrimSpace(got.problem)))
						break
					}
				}
			}
		}
	}
	return out
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }

// goals returns the goals of the design and what this run found. Ratios are
// of medians, at 8 connections where there is a choice.
func (b *bench) goals() []goal {
	cost := func(scenario string, s *subject) float64 {
		samples := b.samples[cell{scenario, 8, s.name}]
		return of(samples, own)
	}
	whole := func(scenario string, s *subject) float64 {
		samples := b.samples[cell{scenario, 8, s.name}]
		return of(samples, own) + of(samples, database)
	}
	large := func(s *subject) float64 { return of(b.largeSamples[s.name], own) }
	ready := func(s *subject) float64 { return float64(b.ready[s.name]) / float64(time.Second) }
	return []goal{
		atLeast("loadTable CPU vs fixture", 5, cost(loadHot, b.fixture)/cost(loadHot, b.sqlite), "x"),
		atMost("loadTable CPU vs bare Go handler, at most", 4, cost(loadHot, b.sqlite)/cost(loadHot, b.bare), "x"),
		atLeast("loadTable CPU vs fixture, PostgreSQL", 3, cost(loadHot, b.fixture)/cost(loadHot, b.postgres), "x"),
		atLeast("commit set-properties CPU vs fixture", 3, cost(commitProps, b.fixture)/cost(commitProps, b.sqlite), "x"),
		atLeast("commit set-properties CPU vs fixture, PostgreSQL", 3, cost(commitProps, b.fixture)/cost(commitProps, b.postgres), "x"),
		atLeast("commit add-snapshot CPU vs fixture", 3, cost(commitAppend, b.fixture)/cost(commitAppend, b.sqlite), "x"),
		atLeast("commit add-snapshot CPU vs fixture, PostgreSQL", 3, cost(commitAppend, b.fixture)/cost(commitAppend, b.postgres), "x"),
		atMost("idle memory, at most", 60, megabytes(b.idle[b.few.name]), "MB"),
		atMost("idle memory, many tables, at most", 60, megabytes(b.idle[b.sqlite.name]), "MB"),
		atMost("ready, at most", 0.5, ready(b.few), "s"),
		atMost("ready, many tables, at most", 0.5, ready(b.sqlite), "s"),
		// A tenth is what two runs of the same thing differ by. On SQLite one
		// table is answered from memory; of 1,000, some have lost their place
		// there, and PostgreSQL is asked every time.
		atMost("loadTable CPU with many tables vs 100, at most", 1.1, cost(loadHot, b.sqlite)/cost(loadHot, b.few), "x"),
		atMost("loadTable CPU, 1,000 of many tables vs 100 of 100, at most", 1.1, cost(loadMany, b.sqlite)/cost(loadAll, b.few), "x"),
		atMost("loadTable CPU, 1,000 of many tables vs 100 of 100, PostgreSQL and its own process, at most", 1.1,
			whole(loadMany, b.postgres)/whole(loadAll, b.fewPostgres), "x"),
		atMost("listTables page CPU with many tables vs 100, at most", 1.1, cost(listBig, b.sqlite)/cost(listSmall, b.few), "x"),
		atMost("listTables page in the middle CPU with many tables vs 100, at most", 1.1, cost(listDeep, b.sqlite)/cost(listSmall, b.few), "x"),
		atLeast("commit with 10,000 snapshots, whole request, CPU vs iceberg-go in process", 20, b.metadata.IcebergGoMs/large(b.sqlite), "x"),
		atLeast("commit with 10,000 snapshots, in process, CPU vs iceberg-go", 20, b.metadata.IcebergGoMs/b.metadata.SluiceMs, "x"),
		atMost("commit with 10,000 snapshots CPU vs Java's parse and serialise, at most", 42, large(b.sqlite), "ms"),
		atMost("memory of 10 MB of metadata, parsed, vs its size, at most", 4, b.metadata.HeapFactor, "x"),
		atMost("memory added by loading 10 MB of metadata vs its size, at most", 4, float64(b.growth.loaded-b.growth.idle)/float64(b.growth.size), "x"),
		atMost(fmt.Sprintf("memory added by %d commits to 10 MB of metadata vs its size, at most", b.largeCommits), 4, float64(b.growth.committed-b.growth.idle)/float64(b.growth.size), "x"),
	}
}
