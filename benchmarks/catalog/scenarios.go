// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"
)

// scenario is one kind of request.
type scenario struct {
	name        string
	connections []int
	count       int64 // requests of a run; 0: as many as fit into the time
	// requests returns what to send to a subject, nil when the scenario is
	// not for it. round names the namespace that writes go to.
	requests func(ctx context.Context, s *subject, round string) ([]request, error)
}

// The names of scenarios that goals speak of.
const (
	loadHot      = "loadTable, one table"
	loadAll      = "loadTable, 100 of 100 tables"
	loadMany     = "loadTable, 1,000 tables"
	listBig      = "list 100 of many tables, first page"
	listDeep     = "list 100 of many tables, page in the middle"
	listSmall    = "list 100 of 100 tables"
	commitProps  = "commit set-properties, distinct tables"
	commitAppend = "commit add-snapshot, distinct tables"
	commitLarge  = "commit add-snapshot, 10,000 snapshots"

	createTable = "createTable"
)

// warmUp is the namespace of the round that does not count.
const warmUp = "round0"

// writeTables is how many tables a round creates, and then commits to.
const writeTables = 1024

// get is a scenario that reads one path.
func get(s *subject, path string, header ...string) []request {
	return []request{{Method: http.MethodGet, Path: path, Header: append(s.header(), header...)}}
}

// commitBody is a commit of one update.
func commitBody(updates string) string { return `{"requirements":[],"updates":[` + updates + `]}` }

const (
	setProperty = `{"action":"set-properties","updates":{"committed":"${n}"}}`
	addSnapshot = `{"action":"add-snapshot","snapshot":{"sequence-number":${n},"snapshot-id":${n},"timestamp-ms":${now},` +
		`"summary":{"operation":"append","added-data-files":"1","added-records":"1000","total-records":"1000"},` +
		`"manifest-list":"%s/metadata/snap-${n}.avro","schema-id":0}},` +
		`{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":${n}}`
)

// scenarios returns all scenarios. Subjects without a warehouse, and the one
// with few tables, take part where they are asked for.
func (b *bench) scenarios() []scenario {
	all, one := []int{1, 8, 64}, []int{8}
	if b.quick {
		all = one
	}
	servers := func(f func(s *subject) []request) func(context.Context, *subject, string) ([]request, error) {
		return func(_ context.Context, s *subject, _ string) ([]request, error) {
			if !b.takesAll(s) {
				return nil, nil
			}
			return f(s), nil
		}
	}
	commits := func(n int, f func(s *subject, ns string, i int) request) func(context.Context, *subject, string) ([]request, error) {
		return func(_ context.Context, s *subject, round string) ([]request, error) {
			if !b.takesAll(s) {
				return nil, nil
			}
			list := make([]request, n)
			for i := range list {
				list[i] = f(s, round, i)
				list[i].Method, list[i].Header = http.MethodPost, s.header()
			}
			return list, nil
		}
	}
	table := func(s *subject, ns string, i int) string { return s.path("/namespaces/%s/tables/%s", ns, tableName(i)) }
	return []scenario{
		{"config", all, 0, servers(func(s *subject) []request { return get(s, "/v1/config?warehouse=demo") })},
		{loadHot, all, 0, func(_ context.Context, s *subject, _ string) ([]request, error) {
			return get(s, table(s, small, 0)), nil
		}},
		{"loadTable, one table, its ETag known: 304", one, 0, func(ctx context.Context, s *subject, _ string) ([]request, error) {
			if !b.takesAll(s) {
				return nil, nil
			}
			header, _, err := s.call(ctx, http.MethodGet, table(s, small, 0), nil)
			if err != nil {
				return nil, err
			}
			return get(s, table(s, small, 0), "If-None-Match: "+header.Get("ETag")), nil
		}},
		{loadAll, one, 0, func(_ context.Context, s *subject, _ string) ([]request, error) {
			if s != b.few && s != b.fewPostgres {
				return nil, nil
			}
			var list []request
			for i := range smallCount {
				list = append(list, get(s, table(s, small, i))...)
			}
			return list, nil
		}},
		{loadMany, all, 0, servers(func(s *subject) []request {
			var list []request
			for i := range realTables {
				list = append(list, get(s, table(s, big, i))...)
			}
			return list
		})},
		{"loadTable, 1 MB of metadata", one, 0, servers(func(s *subject) []request { return get(s, s.path("/namespaces/%s/tables/mb1", large)) })},
		{"loadTable, 10 MB of metadata", one, 0, servers(func(s *subject) []request { return get(s, s.path("/namespaces/%s/tables/mb10", large)) })},
		{listSmall, one, 0, func(_ context.Context, s *subject, _ string) ([]request, error) {
			if s == b.bare {
				return nil, nil
			}
			return get(s, s.path("/namespaces/%s/tables?pageSize=100&pageToken=", small)), nil
		}},
		{listBig, one, 0, servers(func(s *subject) []request {
			return get(s, s.path("/namespaces/%s/tables?pageSize=100&pageToken=", big))
		})},
		{listDeep, one, 0, servers(func(s *subject) []request {
			return get(s, s.path("/namespaces/%s/tables?pageSize=100&pageToken=%s", big, b.deepTokens[s]))
		})},
		{createTable, one, writeTables, commits(writeTables, func(s *subject, ns string, i int) request {
			return request{Path: s.path("/namespaces/%s/tables", ns), Body: createBody(tableName(i))}
		})},
		{commitProps, all, b.commits, commits(128, func(s *subject, ns string, i int) request {
			return request{Path: table(s, ns, i), Body: commitBody(setProperty)}
		})},
		{commitAppend, one, b.commits, func(ctx context.Context, s *subject, ns string) ([]request, error) {
			if !b.takesAll(s) {
				return nil, nil
			}
			var list []request
			for i := range 128 {
				path := table(s, ns, 128+i)
				location, err := s.location(ctx, path)
				if err != nil {
					return nil, err
				}
				list = append(list, request{Method: http.MethodPost, Path: path, Header: s.header(), Body: commitBody(fmt.Sprintf(addSnapshot, location))})
			}
			return list, nil
		}},
		{"commit set-properties, all on one table", one, b.commits / 2, commits(1, func(s *subject, ns string, _ int) request {
			return request{Path: table(s, ns, 256), Body: commitBody(setProperty)}
		})},
		{"commit of two tables at once", one, b.commits / 2, commits(64, func(s *subject, ns string, i int) request {
			change := func(i int) string {
				return fmt.Sprintf(`{"identifier":{"namespace":[%q],"name":%q},"requirements":[],"updates":[%s]}`, ns, tableName(i), setProperty)
			}
			return request{Path: s.path("/transactions/commit"), Body: `{"table-changes":[` + change(512+2*i) + `,` + change(513+2*i) + `]}`}
		})},
	}
}

// takesAll reports whether a subject takes part in every scenario: those that
// are there to be compared with do not.
func (b *bench) takesAll(s *subject) bool { return s != b.bare && s != b.few && s != b.fewPostgres }

// cell is what a row of the table is about.
type cell struct {
	scenario    string
	connections int
	subject     string
}

// sample is one run of the load generator in one cell.
type sample struct {
	own, database float64 // ms of CPU time per good request
	rate          float64 // good requests per second
	p50, p99      float64 // ms
	failed        int64
	problem       string
}

// measure runs one cell once.
func (b *bench) measure(ctx context.Context, s *subject, sc scenario, connections int, round string) (sample, bool, error) {
	requests, err := sc.requests(ctx, s, round)
	if err != nil || requests == nil {
		return sample{}, false, err
	}
	l := load{Address: s.address, Connections: connections, Count: sc.count, Requests: requests, First: b.number}
	if sc.count == 0 {
		l.Duration = b.duration
		if s == b.fixture && round == warmUp {
			// Java compiles a method after thousands of calls.
			l.Count, l.Duration = 20_000, 30*b.duration
		}
	}
	b.number += 1 << 20
	own, database, err := s.cpu()
	if err != nil {
		return sample{}, false, err
	}
	o, err := runLoad(ctx, l)
	if err != nil {
		return sample{}, false, fmt.Errorf("%s, %s: %w\n%s", s.name, sc.name, err, s.process.log())
	}
	ownAfter, databaseAfter, err := s.cpu()
	if err != nil {
		return sample{}, false, err
	}
	if o.OK == 0 {
		return sample{}, false, fmt.Errorf("%s, %s: no request succeeded: %s", s.name, sc.name, o.Problem)
	}
	perRequest := func(d time.Duration) float64 { return milliseconds(d) / float64(o.OK) }
	return sample{
		own: perRequest(ownAfter - own), database: perRequest(databaseAfter - database),
		rate: float64(o.OK) / o.Elapsed.Seconds(), p50: milliseconds(o.P50), p99: milliseconds(o.P99),
		failed: o.Failed, problem: o.Problem,
	}, true, nil
}

// round runs every cell once. Subjects take turns within a cell, each round
// in another order, so that what else the machine does hits all alike.
func (b *bench) round(ctx context.Context, number int) error {
	ns := fmt.Sprintf("round%d", number)
	for _, s := range b.subjects {
		if !b.takesAll(s) {
			continue
		}
		if err := s.createNamespace(ctx, ns); err != nil {
			return err
		}
	}
	for _, sc := range b.scenarios() {
		// The tables that it makes are those that others commit to.
		if sc.name != createTable && !b.only.MatchString(sc.name) {
			continue
		}
		for _, connections := range sc.connections {
			order := slices.Clone(b.subjects)
			for range number % len(order) {
				order = append(order[1:], order[0])
			}
			for _, s := range order {
				got, ok, err := b.measure(ctx, s, sc, connections, ns)
				if err != nil {
					return err
				}
				if ok && number > 0 { // round 0 warms up
					c := cell{sc.name, connections, s.name}
					b.samples[c] = append(b.samples[c], got)
				}
			}
		}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// median returns the middle of values, NaN of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
