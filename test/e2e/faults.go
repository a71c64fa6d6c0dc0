// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"time"
)

// faults runs ten writers against one table: every commit that was
// acknowledged must be in the history, and none twice. Then the same with the
// server killed in the middle and started again, many times. It speaks the
// raw protocol and knows nothing of the server's packages.
func faults(r *run) {
	// One data directory and port: a restarted server serves the same catalog.
	r.step("sqlite ten writers", 3*time.Minute, func(ctx context.Context) error {
		port, err := freePort()
		if err != nil {
			return err
		}
		start := func() (*target, error) { return r.dev(ctx, filepath.Join(r.dir, "faults-calm"), port) }
		return r.writers(ctx, start, 3, false)
	})
	r.step(fmt.Sprintf("sqlite kill -9, %d times", r.rounds), 8*time.Minute, func(ctx context.Context) error {
		port, err := freePort()
		if err != nil {
			return err
		}
		start := func() (*target, error) { return r.dev(ctx, filepath.Join(r.dir, "faults-kill"), port) }
		return r.writers(ctx, start, r.rounds, true)
	})
	pg, dsn, err := r.postgres(r.ctx)
	if err != nil {
		r.report("start PostgreSQL", 0, err)
		return
	}
	defer func() { _ = pg.stop() }()
	serve := func(ctx context.Context, name string) (func() (*target, error), error) {
		port, err := freePort()
		return func() (*target, error) {
			return r.serve(ctx, name, deployment{Port: port, Root: "file://" + filepath.Join(r.dir, "faults-pg"), dsn: dsn})
		}, err
	}
	r.step("postgresql ten writers", 3*time.Minute, func(ctx context.Context) error {
		start, err := serve(ctx, "faults-calm")
		if err != nil {
			return err
		}
		return r.writers(ctx, start, 3, false)
	})
	r.step(fmt.Sprintf("postgresql kill -9, %d times", r.rounds), 10*time.Minute, func(ctx context.Context) error {
		start, err := serve(ctx, "faults-kill")
		if err != nil {
			return err
		}
		return r.writers(ctx, start, r.rounds, true)
	})
}

const writerCount = 10

// history is what writers know they have done.
type history struct {
	mu           sync.Mutex
	acknowledged map[int64]bool // snapshot ids
	unknown      map[int64]bool // sent, answer lost
}

// writers runs rounds of ten writers; with kill the server is killed in the
// middle of each. After each round the restarted server's history is checked.
func (r *run) writers(ctx context.Context, start func() (*target, error), rounds int, kill bool) error {
	t, err := start()
	if err != nil {
		return err
	}
	defer func() { t.kill() }()
	c := &rawClient{target: t}
	namespace := fmt.Sprintf("faults_%d", time.Now().UnixNano())
	if err := c.do(ctx, http.MethodPost, "/namespaces", map[string]any{"namespace": []string{namespace}}, nil); err != nil {
		return err
	}
	total, acknowledged := 0, 0
	for round := range rounds {
		// A table of its own keeps each round's metadata small.
		name := fmt.Sprintf("t%d", round)
		var table loaded
		if err := c.do(ctx, http.MethodPost, "/namespaces/"+namespace+"/tables", map[string]any{
			"name": name, "schema": map[string]any{"type": "struct", "fields": []any{map[string]any{"id": 1, "name": "x", "required": false, "type": "long"}}},
		}, &table); err != nil {
			return err
		}
		h := &history{acknowledged: map[int64]bool{}, unknown: map[int64]bool{}}
		roundCtx, cancel := context.WithTimeout(ctx, time.Duration(250+rand.IntN(350))*time.Millisecond)
		if !kill {
			cancel()
			roundCtx, cancel = context.WithTimeout(ctx, 3*time.Second)
		}
		var wg sync.WaitGroup
		for w := range writerCount {
			wg.Go(func() { h.write(roundCtx, c, namespace, name, table.Metadata.Location, w) })
		}
		if kill {
			<-roundCtx.Done() // the writers are still at it
			t.kill()
		}
		wg.Wait()
		cancel()
		if kill {
			if t, err = start(); err != nil {
				return fmt.Errorf("round %d: restart: %w", round, err)
			}
			c.target = t
		}
		if err := h.check(ctx, c, namespace, name); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		acknowledged += len(h.acknowledged)
		total += len(h.acknowledged) + len(h.unknown)
	}
	fmt.Printf("     %d commits acknowledged, %d sent without an answer, in %d rounds\n", acknowledged, total-acknowledged, rounds)
	if acknowledged < rounds*2 {
		return fmt.Errorf("only %d commits were acknowledged in %d rounds: the test did not test", acknowledged, rounds)
	}
	return t.stop()
}

// loaded is what is read of a load answer.
type loaded struct {
	Metadata struct {
		Location  string `json:"location"`
		Sequence  int64  `json:"last-sequence-number"`
		Snapshots []struct {
			ID       int64  `json:"snapshot-id"`
			Sequence int64  `json:"sequence-number"`
			Parent   *int64 `json:"parent-snapshot-id"`
		} `json:"snapshots"`
		Refs map[string]struct {
			ID int64 `json:"snapshot-id"`
		} `json:"refs"`
	} `json:"metadata"`
}

// write commits snapshots to main, as engines do: load, build on what main
// is, commit if it still is, try again if not; until the round is over.
func (h *history) write(ctx context.Context, c *rawClient, namespace, name, location string, writer int) {
	path := "/namespaces/" + namespace + "/tables/" + name
	for n := 0; ctx.Err() == nil; n++ {
		var table loaded
		if err := c.do(context.WithoutCancel(ctx), http.MethodGet, path, nil, &table); err != nil {
			return // the server is gone
		}
		id := int64(writer)<<32 | int64(n)<<8 | 1
		var parent any
		if main, ok := table.Metadata.Refs["main"]; ok {
			parent = main.ID
		}
		snapshot := map[string]any{
			"snapshot-id": id, "sequence-number": table.Metadata.Sequence + 1, "timestamp-ms": time.Now().UnixMilli(),
			"manifest-list": fmt.Sprintf("%s/metadata/snap-%d.avro", location, id), "summary": map[string]string{"operation": "append"}, "schema-id": 0,
		}
		if parent != nil {
			snapshot["parent-snapshot-id"] = parent
		}
		err := c.do(context.WithoutCancel(ctx), http.MethodPost, path, map[string]any{
			"requirements": []any{map[string]any{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}},
			"updates": []any{
				map[string]any{"action": "add-snapshot", "snapshot": snapshot},
				map[string]any{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
			},
		}, nil)
		var answer *statusError
		h.mu.Lock()
		switch {
		case err == nil:
			h.acknowledged[id] = true
		case errors.As(err, &answer) && answer.status < 500:
			// Refused for certain: it must not be in the history.
		default:
			h.unknown[id] = true
		}
		h.mu.Unlock()
	}
}

// check reads the history back.
func (h *history) check(ctx context.Context, c *rawClient, namespace, name string) error {
	var table loaded
	if err := c.do(ctx, http.MethodGet, "/namespaces/"+namespace+"/tables/"+name, nil, &table); err != nil {
		return err
	}
	seen := map[int64]int{}
	parents := map[int64]*int64{}
	sequences := map[int64]bool{}
	for _, s := range table.Metadata.Snapshots {
		seen[s.ID]++
		parents[s.ID] = s.Parent
		if sequences[s.Sequence] {
			return fmt.Errorf("sequence number %d was given out twice", s.Sequence)
		}
		sequences[s.Sequence] = true
	}
	for id := range h.acknowledged {
		if seen[id] != 1 {
			return fmt.Errorf("the acknowledged commit %d is %d times in the history", id, seen[id])
		}
	}
	for id, n := range seen {
		if n != 1 || !h.acknowledged[id] && !h.unknown[id] {
			return fmt.Errorf("commit %d is %d times in the history, although it was refused or never sent", id, n)
		}
	}
	// main's ancestors are the whole history: no commit was built beside another.
	length := 0
	for id, ok := table.Metadata.Refs["main"]; ok; length++ {
		parent := parents[id.ID]
		if parent == nil {
			length++
			break
		}
		id.ID = *parent
	}
	if length != len(seen) {
		return fmt.Errorf("main has %d ancestors of %d commits", length, len(seen))
	}
	return nil
}

// rawClient speaks the protocol with net/http alone.
type rawClient struct{ target *target }

type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

func (c *rawClient) do(ctx context.Context, method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.target.URI+"/v1/"+c.target.Warehouse+path, reader)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.target.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return &statusError{resp.StatusCode, string(raw)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(raw, into)
}
