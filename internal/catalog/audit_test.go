// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/secret"
)

func auditSigner(t *testing.T) *audit.Signer {
	t.Helper()
	s, err := audit.ParseSigner(secret.New(base64.StdEncoding.EncodeToString(make([]byte, 32))))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rewritten is a store in which somebody has changed what a row says, and
// hashed the chain anew from there on.
type rewritten struct {
	catalog.Store
	on bool
}

func (r *rewritten) AuditRows(ctx context.Context, wh uuid.UUID, after int64, limit int) ([]catalog.AuditRow, error) {
	rows, err := r.Store.AuditRows(ctx, wh, 0, 0)
	if err != nil || !r.on {
		return r.Store.AuditRows(ctx, wh, after, limit)
	}
	chain := audit.NewChain(audit.Ref{Partition: wh.String()})
	var kept []catalog.AuditRow
	for i, row := range rows {
		if i == 0 {
			row.Principal = "somebody else"
		}
		chain.Append(nil, &row.Record)
		row.Hash = chain.Last().Hash
		if row.Seq > after {
			kept = append(kept, row)
		}
	}
	return kept, nil
}

func (r *rewritten) AuditState(ctx context.Context, wh uuid.UUID) (catalog.AuditState, error) {
	state, err := r.Store.AuditState(ctx, wh)
	if err == nil && r.on && state.Head.Seq > 0 {
		rows, err := r.AuditRows(ctx, wh, 0, 0)
		if err != nil {
			return state, err
		}
		state.Head.Hash = rows[len(rows)-1].Hash
	}
	return state, err
}

func TestAuditSealer(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	signer := auditSigner(t)
	store := &rewritten{Store: h.store}
	now := time.Now()
	newSealer := func() *catalog.AuditSealer {
		return &catalog.AuditSealer{
			Store: store, Chains: []catalog.AuditChain{h.AuditChain()}, Signer: signer, Keys: audit.NewKeys(signer.Public()),
			CheckpointRecords: 3, CheckpointInterval: time.Minute, Now: func() time.Time { return now },
		}
	}
	n := 0
	change := func(times int) {
		t.Helper()
		for range times {
			n++
			if _, err := h.CreateNamespace(ctx, catalog.Mutation{Operation: "createNamespace"}, catalog.Namespace{fmt.Sprint("n", n)}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := newSealer()
	round := func(final bool, seq, checkpoint int64) {
		t.Helper()
		if err := s.Round(ctx, final); err != nil {
			t.Fatal(err)
		}
		state, err := h.store.AuditState(ctx, h.ID())
		if err != nil || state.Fresh || state.Head.Seq != seq || state.Checkpoint != checkpoint {
			t.Fatalf("%+v, %v; want %d records and checkpoint %d", state, err, seq, checkpoint)
		}
	}
	round(false, 1, 1) // of the house's own namespace; the first: there is none that it could be soon after
	change(2)
	round(false, 3, 1)
	change(1)
	round(false, 4, 4) // three records
	change(1)
	now = now.Add(time.Minute)
	round(false, 5, 5) // a minute
	change(1)
	round(false, 6, 5)
	round(true, 6, 6) // the end
	verify := func(unproven int64) {
		t.Helper()
		r, err := audit.Verify(catalog.AuditLines(ctx, h.store, h.ID(), 0), audit.VerifyOptions{Keys: s.Keys})
		if err != nil || !r.OK() || r.Unproven() != unproven {
			t.Errorf("%+v, %v", r, err)
		}
	}
	verify(0)

	// Another server seals in between: what it added is followed.
	change(1)
	if _, _, err := h.store.SealAudit(ctx, h.ID(), 10); err != nil {
		t.Fatal(err)
	}
	change(2)
	round(false, 9, 9)
	verify(0)

	// A restarted server goes on from the last checkpoint; one with another key
	// trusts none of them.
	s = newSealer()
	change(3)
	round(false, 12, 12)
	s = newSealer()
	s.Keys = audit.Keys{}
	change(3)
	if err := s.Round(ctx, false); !errors.Is(err, catalog.ErrAuditBroken) {
		t.Errorf("without the key that signed: %v", err)
	}

	// What was rewritten is not signed, neither by a server that has seen it
	// before nor by one that starts.
	s = newSealer()
	round(false, 15, 15)
	if lag := s.Progress.Lag(now.Add(time.Minute)); lag != 0 {
		t.Errorf("a chain that is sealed has failed for %s", lag)
	}
	for range 2 {
		store.on = true
		change(3)
		if err := s.Round(ctx, false); !errors.Is(err, catalog.ErrAuditBroken) {
			t.Errorf("a rewritten chain: %v", err)
		}
		if err := s.Round(ctx, true); err != nil {
			t.Errorf("the same again: %v", err)
		}
		if lag := s.Progress.Lag(now.Add(time.Minute)); lag != time.Minute {
			t.Errorf("it has failed for %s", lag)
		}
		if state, err := h.store.AuditState(ctx, h.ID()); err != nil || state.Checkpoint != 15 {
			t.Errorf("%+v, %v", state, err)
		}
		s = newSealer()
	}
}

// TestAuditSealerExpires removes what is old, and nothing that an export has
// not taken.
func TestAuditSealerExpires(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	signer := auditSigner(t)
	now := time.Now()
	s := &catalog.AuditSealer{
		Store: h.store, Chains: []catalog.AuditChain{h.AuditChain()}, Signer: signer, Keys: audit.NewKeys(signer.Public()),
		Keep: time.Hour, Exports: []string{"siem"}, Now: func() time.Time { return now },
	}
	for i := range 3 {
		if _, err := h.CreateNamespace(ctx, catalog.Mutation{Operation: "createNamespace"}, catalog.Namespace{fmt.Sprint("n", i)}, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Round(ctx, true); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Hour)
	left := func(want int) {
		t.Helper()
		if err := s.Round(ctx, false); err != nil {
			t.Fatal(err)
		}
		rows, err := h.store.AuditRows(ctx, h.ID(), 0, 0)
		if err != nil || len(rows) != want {
			t.Fatalf("%d rows, want %d: %v", len(rows), want, err)
		}
		now = now.Add(2 * time.Minute)
	}
	left(4) // with that of the house's own namespace
	c, err := h.store.ClaimAuditCursor(ctx, h.ID(), "siem", now, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.MoveAuditCursor(ctx, c, 3, now); err != nil {
		t.Fatal(err)
	}
	left(1)
	r, err := audit.Verify(catalog.AuditLines(ctx, h.store, h.ID(), 0), audit.VerifyOptions{Keys: s.Keys, RemovedBefore: now.Add(-time.Hour)})
	if err != nil || !r.OK() || r.Records != 1 || r.Unproven() != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// sealing is a store in which others seal and sign between any two calls.
type sealing struct {
	catalog.Store
	between func()
}

func (s *sealing) AuditRows(ctx context.Context, wh uuid.UUID, after int64, limit int) ([]catalog.AuditRow, error) {
	rows, err := s.Store.AuditRows(ctx, wh, after, limit)
	s.between()
	return rows, err
}

func (s *sealing) AuditCheckpoints(ctx context.Context, wh uuid.UUID, from int64, limit int) ([]audit.Checkpoint, error) {
	list, err := s.Store.AuditCheckpoints(ctx, wh, from, limit)
	s.between()
	return list, err
}

// TestAuditLinesWhileTheChainGrows reads a chain of many pages, with more
// checkpoints than a page has, to which records and checkpoints are added
// meanwhile: what is read is a whole beginning of it.
func TestAuditLinesWhileTheChainGrows(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	signer := auditSigner(t)
	keys := audit.NewKeys(signer.Public())
	put := func(n int) {
		t.Helper()
		err := h.store.Update(ctx, func(tx catalog.Tx) error {
			for range n {
				if err := tx.PutAudit(ctx, catalog.AuditRow{Warehouse: h.ID(), Record: audit.Record{Kind: audit.KindChange, Time: time.Now()}}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		_, head, err := h.store.SealAudit(ctx, h.ID(), 5000)
		if err == nil {
			err = h.store.PutAuditCheckpoint(ctx, h.ID(), signer.Sign(head, false, time.Now()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 1050 {
		put(2)
	}
	for _, from := range []int64{0, 1000} {
		calls := 0
		store := &sealing{h.store, func() {
			if calls++; calls < 20 {
				put(300)
			}
		}}
		var got bytes.Buffer
		for line, err := range catalog.AuditLines(ctx, store, h.ID(), from) {
			if err != nil {
				t.Fatal(err)
			}
			got.Write(append(line.Text, '\n'))
		}
		// Before a record in the middle, the rest of the chain is missing, and
		// nothing else is.
		r, err := audit.Verify(audit.Lines(bytes.NewReader(got.Bytes())), audit.VerifyOptions{Keys: keys})
		if err != nil || r.Found != min(from, 1) || r.Records < 2101-from || int64(bytes.Count(got.Bytes(), []byte("audit.checkpoint"))) < 1050-from/2 {
			t.Errorf("from %d: %d records, %v, %v", from, r.Records, r.Problems, err)
		}
	}
}

// TestNothingIsClearedAway has somebody change old records: they are not
// removed when their time is over, nor up to a checkpoint that is forged.
func TestNothingIsClearedAway(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	signer := auditSigner(t)
	now := time.Now()
	store := &rewritten{Store: h.store}
	newSealer := func() *catalog.AuditSealer {
		return &catalog.AuditSealer{
			Store: store, Chains: []catalog.AuditChain{h.AuditChain()}, Signer: signer, Keys: audit.NewKeys(signer.Public()),
			Keep: time.Hour, CheckpointRecords: 1, Now: func() time.Time { return now },
		}
	}
	left := func(want int) {
		t.Helper()
		rows, err := h.store.AuditRows(ctx, h.ID(), 0, 0)
		if err != nil || len(rows) != want {
			t.Errorf("%d rows are left, want %d; %v", len(rows), want, err)
		}
	}
	change := func(name string) {
		t.Helper()
		if _, err := h.CreateNamespace(ctx, catalog.Mutation{}, catalog.Namespace{name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	s := newSealer()
	if err := s.Round(ctx, true); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	store.on = true
	if err := s.Round(ctx, false); !errors.Is(err, catalog.ErrAuditBroken) {
		t.Errorf("the first record was changed: %v", err)
	}
	left(1)
	store.on = false
	change("x")
	if _, _, err := h.store.SealAudit(ctx, h.ID(), 10); err != nil {
		t.Fatal(err)
	}
	state, err := h.store.AuditState(ctx, h.ID())
	if err != nil {
		t.Fatal(err)
	}
	forger, err := audit.ParseSigner(secret.New(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.store.PutAuditCheckpoint(ctx, h.ID(), forger.Sign(state.Head, false, now.Add(-2*time.Hour))); err != nil {
		t.Fatal(err)
	}
	s = newSealer()
	if err := s.Round(ctx, false); err == nil {
		t.Error("a forged checkpoint is no fault")
	}
	left(1) // of the first, which the true checkpoint covered
}

// TestCursorBeyondTheChain has somebody say that an export has all that will
// ever come.
func TestCursorBeyondTheChain(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	if _, _, err := h.store.SealAudit(ctx, h.ID(), 10); err != nil {
		t.Fatal(err)
	}
	c, err := h.store.ClaimAuditCursor(ctx, h.ID(), "siem", time.Now(), time.Minute)
	if err == nil {
		_, err = h.store.MoveAuditCursor(ctx, c, 1<<60, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	x := &catalog.AuditExporter{Name: "siem", Store: h.store, Chains: []catalog.AuditChain{h.AuditChain()}, Logger: slog.New(slog.DiscardHandler), Sink: sinkFunc(func(audit.Batch) error { return nil })}
	if err := x.Round(ctx); !errors.Is(err, catalog.ErrAuditBroken) {
		t.Errorf("%v", err)
	}
	if _, failures := x.Progress.Counts(); failures != 1 {
		t.Errorf("%d failures", failures)
	}
}

type sinkFunc func(audit.Batch) error

func (f sinkFunc) Send(_ context.Context, b audit.Batch) error { return f(b) }

// TestAuditExporter has a receiver that fails now and then, and workers that
// take turns: every line arrives, in order, with its checkpoints.
func TestAuditExporter(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	signer := auditSigner(t)
	keys := audit.NewKeys(signer.Public())
	s := &catalog.AuditSealer{Store: h.store, Chains: []catalog.AuditChain{h.AuditChain()}, Signer: signer, Keys: keys, CheckpointRecords: 700}
	var got bytes.Buffer
	fail := 0
	newExporter := func() *catalog.AuditExporter {
		return &catalog.AuditExporter{
			Name: "siem", Store: h.store, Chains: []catalog.AuditChain{h.AuditChain()}, Signed: true, Logger: slog.New(slog.DiscardHandler),
			Sink: sinkFunc(func(b audit.Batch) error {
				if fail > 0 {
					fail--
					return errors.New("not now")
				}
				if b.Source != "warehouses/"+h.Name() || b.Partition != h.ID().String() || b.Records() > audit.DefaultBatch {
					t.Errorf("batch of %s: %d records", b.Source, b.Records())
				}
				for _, l := range b.Lines {
					got.Write(append(l, '\n'))
				}
				return nil
			}),
		}
	}
	x := newExporter()
	if err := x.Round(ctx); err != nil || got.Len() > 0 {
		t.Fatalf("nothing is signed yet: %s, %v", got.String(), err)
	}
	change := func(n int) {
		t.Helper()
		err := h.store.Update(ctx, func(tx catalog.Tx) error {
			for i := range n {
				if err := tx.PutAudit(ctx, catalog.AuditRow{Warehouse: h.ID(), Record: audit.Record{Kind: audit.KindChange, Time: time.Now(), RequestID: fmt.Sprint(i)}}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := int64(1) // the house's own namespace
	for i, n := range []int{1200, 3, 600} {
		change(n)
		want += int64(n)
		if err := s.Round(ctx, true); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			fail = 1
			if err := x.Round(ctx); err == nil {
				t.Fatal("a receiver that fails has it")
			}
		}
		x = newExporter() // as after a restart
		if err := x.Round(ctx); err != nil {
			t.Fatal(err)
		}
		r, err := audit.Verify(audit.Lines(bytes.NewReader(got.Bytes())), audit.VerifyOptions{Keys: keys})
		if err != nil || !r.OK() || r.Records != want || r.Unproven() != 0 {
			t.Fatalf("step %d: %+v, %v", i, r, err)
		}
	}
	size := got.Len()
	change(1)
	if _, _, err := h.store.SealAudit(ctx, h.ID(), 10); err != nil {
		t.Fatal(err)
	}
	if err := x.Round(ctx); err != nil || got.Len() != size {
		t.Errorf("a record that is not signed was sent: %v", err)
	}
	if _, err := h.store.ClaimAuditCursor(ctx, h.ID(), "siem", time.Now(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.Round(ctx, true); err != nil {
		t.Fatal(err)
	}
	if err := x.Round(ctx); err != nil || got.Len() != size {
		t.Errorf("two workers send the same: %v", err)
	}
}
