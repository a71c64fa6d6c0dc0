// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// changes are all kinds of change to a warehouse, in an order in which each
// has what it needs; event is what it is recorded as.
func (h *house) changes(t *testing.T) []kindOfChange {
	view := catalog.NewView{
		Name: "v", Schema: json.RawMessage(schema),
		Version: json.RawMessage(`{"version-id":1,"timestamp-ms":1,"schema-id":0,"summary":{},"default-namespace":["m"],"representations":[{"type":"sql","sql":"SELECT 1","dialect":"spark"}]}`),
	}
	sub := catalog.Namespace{"m", "sub"}
	property := json.RawMessage(`{"action":"set-properties","updates":{"k":"v"}}`)
	second := func(_ any, err error) error { return err }
	ctx := t.Context()
	return []kindOfChange{
		{"namespace.created", func(m catalog.Mutation) error { return second(h.CreateNamespace(ctx, m, sub, nil)) }},
		{"namespace.updated", func(m catalog.Mutation) error {
			return second(h.UpdateNamespaceProperties(ctx, m, sub, nil, map[string]string{"a": "b"}))
		}},
		{"namespace.dropped", func(m catalog.Mutation) error { return h.DropNamespace(ctx, m, sub) }},
		{"table.created", func(m catalog.Mutation) error {
			return second(h.CreateTable(ctx, m, ns, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema)}))
		}},
		{"table.committed", func(m catalog.Mutation) error {
			return second(h.CommitTable(ctx, m, id("t"), catalog.Commit{Updates: updates(t, `[%s]`, property)}))
		}},
		{"table.renamed", func(m catalog.Mutation) error { return h.RenameTable(ctx, m, id("t"), id("t2")) }},
		{"table.dropped", func(m catalog.Mutation) error { return h.DropTable(ctx, m, id("t2"), false) }},
		{"view.created", func(m catalog.Mutation) error { return second(h.CreateView(ctx, m, ns, view)) }},
		{"view.replaced", func(m catalog.Mutation) error {
			return second(h.ReplaceView(ctx, m, id("v"), catalog.ViewCommit{Updates: []json.RawMessage{property}}))
		}},
		{"view.renamed", func(m catalog.Mutation) error { return h.RenameView(ctx, m, id("v"), id("v2")) }},
		{"view.dropped", func(m catalog.Mutation) error { return h.DropView(ctx, m, id("v2")) }},
	}
}

type kindOfChange struct {
	event string
	do    func(m catalog.Mutation) error
}

// TestRecordsOfEveryChange holds that each kind of change is recorded with
// itself: one event and one audit row, with who asked and who acted.
func TestRecordsOfEveryChange(t *testing.T) {
	t.Parallel()
	h := open(t, func(c *catalog.Config) { c.SoftDelete = time.Hour })
	ctx := t.Context()
	seen := 1 // the namespace that open makes
	m := catalog.Mutation{Caller: catalog.Caller{Principal: "alice", Actor: "agent", RequestID: "r"}, Operation: "op"}
	for _, c := range h.changes(t) {
		if err := c.do(m); err != nil {
			t.Fatalf("%s: %v", c.event, err)
		}
		seen++
		events, err := h.store.Events(ctx, h.ID(), 0, 100)
		if err != nil || len(events) != seen || events[seen-1].Type != c.event {
			t.Fatalf("%s: %d events, want %d: %+v, %v", c.event, len(events), seen, events, err)
		}
		rows, err := h.store.Audit(ctx, h.ID(), 100)
		if err != nil || len(rows) != seen || rows[0].Principal != "alice" || rows[0].Actor != "agent" || rows[0].Operation != "op" {
			t.Fatalf("%s: %d audit rows, want %d: %+v, %v", c.event, len(rows), seen, rows, err)
		}
	}
}

// breaking is a store whose transactions fail at the step that left counts down
// to.
type breaking struct {
	catalog.Store
	left *int
}

func (s breaking) Update(ctx context.Context, fn func(tx catalog.Tx) error) error {
	return s.Store.Update(ctx, func(tx catalog.Tx) error { return fn(breakingTx{tx, s.left}) })
}

type breakingTx struct {
	catalog.Tx
	left *int
}

// errInjected says that nothing was applied, as a store does: a file that was
// written for a change with an unknown outcome would be kept.
var errInjected = fmt.Errorf("injected fault: %w", catalog.ErrUnavailable)

func (t breakingTx) step(do func() error) error {
	if *t.left--; *t.left == 0 {
		return errInjected
	}
	return do()
}

func (t breakingTx) CreateNamespace(ctx context.Context, r catalog.NamespaceRecord) error {
	return t.step(func() error { return t.Tx.CreateNamespace(ctx, r) })
}

func (t breakingTx) UpdateNamespaceProperties(ctx context.Context, w uuid.UUID, ns catalog.Namespace, at time.Time, f func(map[string]string) map[string]string) error {
	return t.step(func() error { return t.Tx.UpdateNamespaceProperties(ctx, w, ns, at, f) })
}

func (t breakingTx) DropNamespace(ctx context.Context, w uuid.UUID, ns catalog.Namespace) error {
	return t.step(func() error { return t.Tx.DropNamespace(ctx, w, ns) })
}

func (t breakingTx) CreateObject(ctx context.Context, o catalog.Object, locations []string) error {
	return t.step(func() error { return t.Tx.CreateObject(ctx, o, locations) })
}

func (t breakingTx) SwapMetadata(ctx context.Context, id uuid.UUID, expected, next string, d catalog.Digest, location string, add []string, at time.Time) error {
	return t.step(func() error { return t.Tx.SwapMetadata(ctx, id, expected, next, d, location, add, at) })
}

func (t breakingTx) RenameObject(ctx context.Context, w uuid.UUID, k catalog.Kind, from, to catalog.Ident, at time.Time) (o catalog.Object, err error) {
	err = t.step(func() error { o, err = t.Tx.RenameObject(ctx, w, k, from, to, at); return err })
	return o, err
}

func (t breakingTx) DropObject(ctx context.Context, w uuid.UUID, k catalog.Kind, id catalog.Ident, at, expires time.Time, purge bool) (o catalog.Object, err error) {
	err = t.step(func() error { o, err = t.Tx.DropObject(ctx, w, k, id, at, expires, purge); return err })
	return o, err
}

func (t breakingTx) PutEvent(ctx context.Context, e catalog.Event) error {
	return t.step(func() error { return t.Tx.PutEvent(ctx, e) })
}

func (t breakingTx) PutAudit(ctx context.Context, r catalog.AuditRow) error {
	return t.step(func() error { return t.Tx.PutAudit(ctx, r) })
}

func (t breakingTx) PutIdempotency(ctx context.Context, r catalog.IdempotencyRecord) error {
	return t.step(func() error { return t.Tx.PutIdempotency(ctx, r) })
}

// everything is what a warehouse holds, in rows and files.
func (h *house) everything(t *testing.T) string {
	t.Helper()
	ctx := t.Context()
	var all []any
	add := func(v any, err error) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	add(h.store.Namespace(ctx, h.ID(), ns))
	children, err := h.store.ListNamespaces(ctx, h.ID(), ns, catalog.Page{Limit: 10})
	add(children, err)
	for _, child := range children {
		add(h.store.Namespace(ctx, h.ID(), child))
	}
	for _, kind := range []catalog.Kind{catalog.KindTable, catalog.KindView} {
		names, err := h.store.ListObjects(ctx, h.ID(), ns, kind, catalog.Page{Limit: 10})
		add(names, err)
		for _, name := range names {
			o, err := h.store.Object(ctx, h.ID(), ns, name, kind)
			add(o, err)
			add(h.store.Locations(ctx, o.ID))
		}
	}
	add(h.store.ListDropped(ctx, h.ID(), catalog.Page{Limit: 10}))
	add(h.store.Events(ctx, h.ID(), 0, 100))
	add(h.store.Audit(ctx, h.ID(), 100))
	add(h.files(t), nil)
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestChangeIsOneTransaction lets every step of every kind of change fail: no
// row and no file may be left of it, and its Idempotency-Key not be used up.
func TestChangeIsOneTransaction(t *testing.T) {
	t.Parallel()
	softly := func(c *catalog.Config) { c.SoftDelete = time.Hour }
	h := open(t, softly)
	left := 0
	failing := openOn(t, breaking{h.store, &left}, h.dir, softly)
	ctx := t.Context()
	for _, c := range failing.changes(t) {
		m := catalog.Mutation{Caller: catalog.Caller{Principal: "alice"}, Operation: "op", Key: &catalog.IdempotencyKey{Key: uuid.New()}}
		used := func() error {
			_, err := h.store.Idempotency(ctx, h.ID(), "alice", m.Key.Key, time.Now())
			return err
		}
		before := h.everything(t)
		steps := 0
		for step := 1; ; step++ {
			left = step
			err := c.do(m)
			if err == nil {
				steps = step - 1
				break
			}
			if !errors.Is(err, errInjected) || step > 10 {
				t.Fatalf("%s: fault in step %d: %v", c.event, step, err)
			}
			failing.Close() // what is being tidied is tidied
			if after := h.everything(t); after != before {
				t.Fatalf("%s: a fault in step %d leaves\n%s\nof\n%s", c.event, step, after, before)
			}
			if err := used(); !errors.Is(err, catalog.ErrNoObject) {
				t.Errorf("%s: a fault in step %d uses the key up: %v", c.event, step, err)
			}
		}
		if err := used(); err != nil || steps != 4 {
			t.Errorf("%s: %d steps, want the change, its event, audit row and key; the key's record: %v", c.event, steps, err)
		}
	}
}
