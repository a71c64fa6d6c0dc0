// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHammerFindsFaults runs the writers against catalogs that each have one
// fault, and expects them to tell it; and against one that has none.
func TestHammerFindsFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault string
		kill  bool
		want  string // part of the error
	}{
		{fault: "", kill: false},
		{fault: "", kill: true},
		{fault: "loses a snapshot", want: "was acknowledged and is not in the history"},
		{fault: "loses a property", want: "was acknowledged and is not in the history"},
		{fault: "keeps what it refuses", want: "was refused and is in the history"},
		{fault: "adds a snapshot twice", want: "sequence number 2 was given out twice"},
		{fault: "ignores requirements", want: "was given out twice"},
		{fault: "half a transaction", want: "changed one table and not the other"},
		{fault: "forgets at the restart", kill: true, want: "was acknowledged and is not in the history"},
		{fault: "forgets at the last start", want: "at the end: the commit"},
		{fault: "refuses what it has done", kill: true, want: "sent again with their Idempotency-Key: the commit"},
		{fault: "fails", want: "status 500"},
	} {
		name := c.fault
		if name == "" {
			name = "no fault"
		}
		if c.kill {
			name += ", killed"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{fault: c.fault, tables: map[string]*fakeTable{}, answers: map[string]int{}}
			starts := 0
			rounds := 1
			if c.kill {
				rounds = 8
			}
			err := hammer(t.Context(), rounds, c.kill, func() (*target, error) {
				starts++
				f.started(starts == rounds*btoi(c.kill)+2)
				server := httptest.NewServer(f)
				tt := newTarget(&fakeProcess{Server: server, f: f})
				tt.URI, tt.idempotent = server.URL, true
				return tt, nil
			})
			switch {
			case c.want == "" && err != nil:
				t.Errorf("a catalog without a fault failed: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fakeProcess ends a fake as a process ends: at once, answers and all.
type fakeProcess struct {
	*httptest.Server
	f *faulty
}

func (p *fakeProcess) stop() error { p.Close(); return nil }

func (p *fakeProcess) kill() {
	p.f.mu.Lock()
	p.f.dying = true
	p.f.mu.Unlock()
	p.CloseClientConnections()
	p.Close()
}

type fakeSnapshot struct {
	ID       int64  `json:"snapshot-id"`
	Sequence int64  `json:"sequence-number"`
	Parent   *int64 `json:"parent-snapshot-id,omitempty"`
}

type fakeTable struct {
	properties map[string]string
	snapshots  []fakeSnapshot
}

func (t *fakeTable) head() *fakeSnapshot {
	if len(t.snapshots) == 0 {
		return nil
	}
	return &t.snapshots[len(t.snapshots)-1]
}

// faulty is a catalog with one fault, or none.
type faulty struct {
	fault   string
	mu      sync.Mutex
	dying   bool
	commits int
	tables  map[string]*fakeTable
	answers map[string]int // by Idempotency-Key
}

// started is called before each start, with whether it is the last one.
func (f *faulty) started(last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dying = false
	if f.fault == "forgets at the restart" || f.fault == "forgets at the last start" && last {
		for _, t := range f.tables {
			t.snapshots, t.properties = nil, map[string]string{}
		}
	}
}

type fakeChange struct {
	Identifier   struct{ Name string }
	Requirements []struct {
		ID *int64 `json:"snapshot-id"`
	}
	Updates []struct {
		Action   string
		Updates  map[string]string
		Snapshot fakeSnapshot
	}
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(time.Millisecond) // so that a kill finds commits under way
	f.mu.Lock()
	status, answer := f.answer(r)
	raw, err := json.Marshal(answer)
	dying := f.dying
	f.mu.Unlock()
	if err != nil {
		panic(err)
	}
	if dying {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	_, _ = w.Write(raw)
}

func (f *faulty) answer(r *http.Request) (int, any) {
	var body struct {
		Name    string
		Changes []fakeChange `json:"table-changes"`
		fakeChange
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return http.StatusBadRequest, err.Error()
		}
	}
	_, name, inTable := strings.Cut(r.URL.Path, "/tables/")
	switch {
	case strings.HasSuffix(r.URL.Path, "/tables"):
		f.tables[body.Name] = &fakeTable{properties: map[string]string{}}
	case strings.HasSuffix(r.URL.Path, "/transactions/commit"):
		return f.commit(r.Header.Get("Idempotency-Key"), body.Changes...), nil
	case inTable && r.Method == http.MethodPost:
		body.Identifier.Name = name
		return f.commit(r.Header.Get("Idempotency-Key"), body.fakeChange), nil
	case inTable:
		t := f.tables[name]
		metadata := map[string]any{"properties": t.properties, "snapshots": t.snapshots}
		if head := t.head(); head != nil {
			metadata["last-sequence-number"] = head.Sequence
			metadata["refs"] = map[string]any{"main": map[string]any{"snapshot-id": head.ID}}
		}
		return http.StatusOK, map[string]any{"metadata": metadata}
	}
	return http.StatusOK, map[string]any{}
}

func (f *faulty) commit(key string, changes ...fakeChange) int {
	if status, ok := f.answers[key]; ok {
		if f.fault == "refuses what it has done" {
			return http.StatusConflict
		}
		return status
	}
	f.commits++
	unlucky := f.commits%20 == 0
	if f.fault == "fails" && unlucky {
		return http.StatusInternalServerError
	}
	status := http.StatusOK
	for _, c := range changes {
		for _, required := range c.Requirements {
			head := f.tables[c.Identifier.Name].head()
			if (head == nil) != (required.ID == nil) || head != nil && head.ID != *required.ID {
				status = http.StatusConflict
			}
		}
	}
	f.answers[key] = status
	apply := status == http.StatusOK
	switch f.fault {
	case "keeps what it refuses":
		apply = true
		if status != http.StatusOK {
			// Built on what main is, so that nothing but the answer is wrong.
			for i := range changes {
				for j := range changes[i].Updates {
					if head := f.tables[changes[i].Identifier.Name].head(); head != nil {
						s := &changes[i].Updates[j].Snapshot
						s.Parent, s.Sequence = &head.ID, head.Sequence+1
					}
				}
			}
		}
	case "ignores requirements":
		apply, status = true, http.StatusOK
	}
	if !apply {
		return status
	}
	for i, c := range changes {
		if i == 1 && f.fault == "half a transaction" && unlucky {
			break
		}
		f.apply(c)
	}
	return status
}

func (f *faulty) apply(c fakeChange) {
	t := f.tables[c.Identifier.Name]
	for _, u := range c.Updates {
		switch {
		case u.Action == "set-properties" && !(f.fault == "loses a property" && f.commits > 20):
			maps.Copy(t.properties, u.Updates)
		case u.Action == "add-snapshot" && !(f.fault == "loses a snapshot" && len(t.snapshots) == 3):
			t.snapshots = append(t.snapshots, u.Snapshot)
			if f.fault == "adds a snapshot twice" && len(t.snapshots) == 2 {
				t.snapshots = append(t.snapshots, slices.Clone(t.snapshots[1:])...)
			}
		}
	}
}
