// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// faults runs ten writers against one table: every commit that was
// acknowledged must be in the history, none twice, and none that was refused.
// Then the same with the server killed in the middle and started again, many
// times. It speaks the raw protocol and knows nothing of the server's packages.
func faults(r *run) {
	calm := fmt.Sprintf("ten writers, %d rounds", calmRounds)
	killed := fmt.Sprintf("ten writers and kill -9, %d times", r.rounds)
	// The same folder and port each time: a restarted server serves the same catalog.
	for _, s := range []struct {
		name, dir string
		rounds    int
		kill      bool
	}{{calm, "faults-calm", calmRounds, false}, {killed, "faults-kill", r.rounds, true}} {
		r.step("sqlite: "+s.name, 15*time.Minute, func(ctx context.Context) error {
			port, err := freePort()
			if err != nil {
				return err
			}
			return hammer(ctx, s.rounds, s.kill, func() (*target, error) { return r.sqlite(ctx, filepath.Join(r.dir, s.dir), port) })
		})
	}
	if r.fixture {
		return // its PostgreSQL driver is not part of the kit
	}
	var db *database
	if !r.step("start PostgreSQL", time.Minute, func(ctx context.Context) (err error) { db, err = r.postgres(ctx); return err }) {
		return
	}
	for _, s := range []struct {
		name, dir string
		rounds    int
		kill      bool
	}{{calm, "faults-calm", calmRounds, false}, {killed, "faults-kill", r.rounds, true}} {
		r.step("postgresql: "+s.name, 15*time.Minute, func(ctx context.Context) error {
			port, err := freePort()
			if err != nil {
				return err
			}
			d := deployment{Port: port, Root: "file://" + filepath.Join(r.dir, s.dir+"-postgresql"), dsn: db.dsn}
			return hammer(ctx, s.rounds, s.kill, func() (*target, error) { return r.serve(ctx, s.dir, d) })
		})
	}
	r.step("stop PostgreSQL", time.Minute, func(context.Context) error { return db.stop() })
}

const (
	writerCount = 10
	calmRounds  = 3
	// A calm round ends after so many acknowledged commits; a round with a kill
	// after some number up to the other.
	calmCommits   = 150
	mostUntilKill = 25
	roundLimit    = time.Minute
)

// kind is what a commit does.
type kind int

const (
	snapshot    kind = iota // adds a snapshot to main, built on what main was
	property                // sets a property of its own, whatever else happened
	transaction             // sets the same property on two tables, or on neither
)

// commit is one that was sent: what it did, and what its writer knows of it.
type commit struct {
	kind    kind
	id      int64 // of the snapshot, and in the property's name
	key     string
	path    string
	body    any
	outcome outcome
}

type outcome int

const (
	unknown outcome = iota // no answer
	acknowledged
	refused
)

// round is one round's tables and all commits that were sent to them.
type round struct {
	namespace, first, second string
	kill                     bool         // the server is killed under the writers
	done                     atomic.Int64 // acknowledged commits, while writers write
	mu                       sync.Mutex
	commits                  []*commit
	wrong                    error // what no server may answer
}

// hammer runs rounds of ten writers; with kill the server is killed in the
// middle of each and started again. The tables of a round are checked after
// it, commits without an answer are sent again with their key, and the tables
// checked again; all tables are checked once more at the end, on a server that
// was started anew.
func hammer(ctx context.Context, rounds int, kill bool, start func() (*target, error)) error {
	t, err := start()
	if err != nil {
		return err
	}
	defer func() { t.kill() }()
	namespace := "faults_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := t.do(ctx, http.MethodPost, "/namespaces", map[string]any{"namespace": []string{namespace}}, nil, ""); err != nil {
		return err
	}
	var all []*round
	sent, without, again := 0, 0, 0
	for n := range rounds {
		// Tables of its own keep each round's metadata small.
		rd := &round{namespace: namespace, first: fmt.Sprintf("t%d", n), second: fmt.Sprintf("u%d", n), kill: kill}
		for _, name := range []string{rd.first, rd.second} {
			if err := t.do(ctx, http.MethodPost, "/namespaces/"+namespace+"/tables", map[string]any{"name": name, "schema": oneColumn}, nil, ""); err != nil {
				return fmt.Errorf("round %d: create %s: %w", n, name, err)
			}
		}
		enough := int64(calmCommits)
		if kill {
			enough = 1 + rand.Int64N(mostUntilKill)
		}
		if err := rd.play(ctx, t, enough); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		if kill {
			if t, err = start(); err != nil {
				return fmt.Errorf("round %d: restart: %w", n, err)
			}
		}
		if err := rd.check(ctx, t); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		lost := rd.count(unknown)
		if t.idempotent {
			if err := rd.resend(ctx, t); err != nil {
				return fmt.Errorf("round %d: commits sent again with their Idempotency-Key: %w", n, err)
			}
			again += lost
		}
		sent, without = sent+len(rd.commits), without+lost
		all = append(all, rd)
	}
	if err := t.stop(); err != nil {
		return err
	}
	if t, err = start(); err != nil {
		return err
	}
	good := 0
	for n, rd := range all {
		if err := rd.check(ctx, t); err != nil {
			return fmt.Errorf("round %d, at the end: %w", n, err)
		}
		good += rd.count(acknowledged)
	}
	fmt.Printf("     %d commits sent, %d in the history, %d had no answer, %d of those were sent again\n", sent, good, without, again)
	if kill && without == 0 {
		return fmt.Errorf("no commit was under way in any of %d kills: nothing was tested", rounds)
	}
	return t.stop()
}

var oneColumn = map[string]any{"type": "struct", "fields": []any{map[string]any{"id": 1, "name": "x", "required": false, "type": "long"}}}

// play lets ten writers write until there are enough acknowledged commits, and
// then stops them, or kills the server under them.
func (rd *round) play(ctx context.Context, t *target, enough int64) error {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	var over atomic.Bool
	var wg sync.WaitGroup
	for w := range writerCount {
		wg.Go(func() {
			for n := 0; !over.Load() && ctx.Err() == nil; n++ {
				if !rd.write(ctx, t, kinds[w], int64(w+1)<<32|int64(n+1)) {
					return
				}
			}
		})
	}
	var err error
	for rd.done.Load() < enough && err == nil {
		select {
		case <-ctx.Done():
			err = fmt.Errorf("only %d of %d commits were acknowledged within %v", rd.done.Load(), enough, roundLimit)
		case <-time.After(time.Millisecond):
		}
		if e := rd.problem(); e != nil {
			err = e
		}
	}
	if rd.kill {
		t.kill() // the writers are still at it
	}
	over.Store(true)
	wg.Wait()
	return errors.Join(err, rd.problem())
}

// kinds tells what each writer does.
var kinds = [writerCount]kind{snapshot, snapshot, snapshot, snapshot, snapshot, snapshot, property, property, transaction, transaction}

// write makes one commit, and reports whether the writer should go on.
func (rd *round) write(ctx context.Context, t *target, k kind, id int64) bool {
	c := &commit{kind: k, id: id}
	if t.idempotent {
		c.key = uuid.Must(uuid.NewV7()).String()
	}
	set := []any{map[string]any{"action": "set-properties", "updates": map[string]string{c.property(): "1"}}}
	switch k {
	case snapshot:
		// As engines do: load, build on what main is, commit if it still is.
		table, err := rd.load(ctx, t, rd.first)
		if err != nil {
			rd.mu.Lock()
			defer rd.mu.Unlock()
			return rd.failed(fmt.Errorf("load %s: %w", rd.first, err))
		}
		c.path = rd.path(rd.first)
		c.body = table.append(id)
	case property:
		c.path = rd.path(rd.first)
		c.body = map[string]any{"requirements": []any{}, "updates": set}
	case transaction:
		c.path = "/transactions/commit"
		var changes []any
		for _, name := range []string{rd.first, rd.second} {
			changes = append(changes, map[string]any{
				"identifier":   map[string]any{"namespace": []string{rd.namespace}, "name": name},
				"requirements": []any{}, "updates": set,
			})
		}
		c.body = map[string]any{"table-changes": changes}
	}
	err := t.do(ctx, http.MethodPost, c.path, c.body, nil, c.key)
	rd.mu.Lock()
	defer rd.mu.Unlock()
	rd.commits = append(rd.commits, c)
	var answer *statusError
	switch {
	case err == nil:
		c.outcome = acknowledged
		rd.done.Add(1)
	case errors.As(err, &answer) && answer.status == http.StatusConflict, errors.Is(err, syscall.ECONNREFUSED):
		c.outcome = refused
	default:
		return rd.failed(fmt.Errorf("POST %s: %w", c.path, err))
	}
	return true
}

// failed notes an error that no server may give, and ends the writer. That
// there is no answer is no such error when the server is killed.
func (rd *round) failed(err error) bool {
	var answer *statusError
	if !rd.kill || errors.As(err, &answer) {
		rd.wrong = err
	}
	return false
}

func (rd *round) problem() error {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	return rd.wrong
}

func (rd *round) count(o outcome) int {
	n := 0
	for _, c := range rd.commits {
		if c.outcome == o {
			n++
		}
	}
	return n
}

func (rd *round) path(table string) string {
	return "/namespaces/" + rd.namespace + "/tables/" + table
}

func (c *commit) property() string { return fmt.Sprintf("w-%d", c.id) }

// loaded is what is read of a load answer.
type loaded struct {
	Metadata struct {
		Location   string            `json:"location"`
		Sequence   int64             `json:"last-sequence-number"`
		Properties map[string]string `json:"properties"`
		Snapshots  []struct {
			ID       int64  `json:"snapshot-id"`
			Sequence int64  `json:"sequence-number"`
			Parent   *int64 `json:"parent-snapshot-id"`
		} `json:"snapshots"`
		Refs map[string]struct {
			ID int64 `json:"snapshot-id"`
		} `json:"refs"`
	} `json:"metadata"`
}

func (rd *round) load(ctx context.Context, t *target, name string) (*loaded, error) {
	var table loaded
	return &table, t.do(ctx, http.MethodGet, rd.path(name), nil, &table, "")
}

// append is the body of a commit that adds a snapshot to main as it is here.
func (l *loaded) append(id int64) map[string]any {
	s := map[string]any{
		"snapshot-id": id, "sequence-number": l.Metadata.Sequence + 1, "timestamp-ms": time.Now().UnixMilli(), "schema-id": 0,
		"manifest-list": fmt.Sprintf("%s/metadata/snap-%d.avro", l.Metadata.Location, id),
		"summary":       map[string]string{"operation": "append"},
	}
	var parent any
	if main, ok := l.Metadata.Refs["main"]; ok {
		parent = main.ID
		s["parent-snapshot-id"] = parent
	}
	return map[string]any{
		"requirements": []any{map[string]any{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}},
		"updates": []any{
			map[string]any{"action": "add-snapshot", "snapshot": s},
			map[string]any{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
		},
	}
}

// resend sends each commit without an answer again, with the same key, as a
// client does. Then each has an outcome, and the history must agree.
func (rd *round) resend(ctx context.Context, t *target) error {
	for _, c := range rd.commits {
		if c.outcome != unknown {
			continue
		}
		err := t.do(ctx, http.MethodPost, c.path, c.body, nil, c.key)
		var answer *statusError
		switch {
		case err == nil:
			c.outcome = acknowledged
		case errors.As(err, &answer) && answer.status == http.StatusConflict:
			c.outcome = refused
		default:
			return fmt.Errorf("POST %s: %w", c.path, err)
		}
	}
	return rd.check(ctx, t)
}

// check reads the tables back and holds them against what the writers know.
func (rd *round) check(ctx context.Context, t *target) error {
	first, err := rd.load(ctx, t, rd.first)
	if err != nil {
		return fmt.Errorf("load %s: %w", rd.first, err)
	}
	second, err := rd.load(ctx, t, rd.second)
	if err != nil {
		return fmt.Errorf("load %s: %w", rd.second, err)
	}
	if err := first.consistent(); err != nil {
		return fmt.Errorf("%s: %w", rd.first, err)
	}
	snapshots := map[int64]int{}
	for _, s := range first.Metadata.Snapshots {
		snapshots[s.ID]++
	}
	for _, c := range rd.commits {
		var times int
		switch c.kind {
		case snapshot:
			times = snapshots[c.id]
			delete(snapshots, c.id)
		case property, transaction:
			_, one := first.Metadata.Properties[c.property()]
			_, two := second.Metadata.Properties[c.property()]
			if c.kind == transaction && one != two {
				return fmt.Errorf("the transaction %d changed one table and not the other", c.id)
			}
			if one {
				times = 1
			}
		}
		switch {
		case times > 1:
			return fmt.Errorf("the commit %d is in the history %d times", c.id, times)
		case c.outcome == acknowledged && times == 0:
			return fmt.Errorf("the commit %d was acknowledged and is not in the history", c.id)
		case c.outcome == refused && times == 1:
			return fmt.Errorf("the commit %d was refused and is in the history", c.id)
		}
	}
	for id := range snapshots {
		return fmt.Errorf("the snapshot %d is in the history, and nobody sent it", id)
	}
	for name := range first.Metadata.Properties {
		if strings.HasPrefix(name, "w-") && !rd.sentProperty(name) {
			return fmt.Errorf("the property %s is set, and nobody sent it", name)
		}
	}
	return nil
}

func (rd *round) sentProperty(name string) bool {
	for _, c := range rd.commits {
		if c.kind != snapshot && c.property() == name {
			return true
		}
	}
	return false
}

// consistent checks that no snapshot was built beside another: main's
// ancestors are all snapshots, and no sequence number was given out twice.
func (l *loaded) consistent() error {
	parents := map[int64]*int64{}
	sequences := map[int64]bool{}
	for _, s := range l.Metadata.Snapshots {
		parents[s.ID] = s.Parent
		if sequences[s.Sequence] {
			return fmt.Errorf("the sequence number %d was given out twice", s.Sequence)
		}
		sequences[s.Sequence] = true
	}
	length := 0
	if main, ok := l.Metadata.Refs["main"]; ok {
		for id := &main.ID; id != nil && length <= len(parents); id = parents[*id] {
			length++
		}
	}
	if length != len(l.Metadata.Snapshots) {
		return fmt.Errorf("main has %d ancestors, with itself, of %d snapshots", length, len(l.Metadata.Snapshots))
	}
	return nil
}
