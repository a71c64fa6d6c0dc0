// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/secret"
)

// auditRecord is a record with something in every field that stores keep.
func auditRecord(i int) audit.Record {
	return audit.Record{
		Kind: audit.KindChange, Time: start, RequestID: fmt.Sprint("r", i), Principal: "p", Actor: "agent", Address: netip.MustParseAddr("2001:db8::1"),
		Operation: "updateTable", Resource: `a."t.t"`, Status: 200, Decision: audit.Allow,
		Policies: []audit.Policy{{Set: "provider/acme", Version: 3, ID: "p1"}, {Set: "platform", Version: 1}}, Detail: json.RawMessage(`{"i":1}`),
	}
}

func (f *fixture) putAudit(wh uuid.UUID, from, to int) {
	f.Helper()
	for i := from; i < to; i++ {
		f.do(func(tx catalog.Tx) error {
			return tx.PutAudit(f.ctx, catalog.AuditRow{Warehouse: wh, Record: auditRecord(i)})
		})
	}
}

// sealAll seals in steps until nothing is left.
func (f *fixture) sealAll(step int) audit.Ref {
	f.Helper()
	for {
		before, after, err := f.store.SealAudit(f.ctx, f.wh, step)
		f.ok(err)
		if before.Partition != "" && before == after {
			return after
		}
	}
}

func (f *fixture) signer() *audit.Signer {
	f.Helper()
	s, err := audit.ParseSigner(secret.New(base64.StdEncoding.EncodeToString(make([]byte, 32))))
	f.ok(err)
	return s
}

func (f *fixture) verify(o audit.VerifyOptions) *audit.Report {
	f.Helper()
	r, err := audit.Verify(catalog.AuditLines(f.ctx, f.store, f.wh, 0), o)
	f.ok(err)
	return r
}

var auditChecks = []check{
	{"audit rows are chained", func(f *fixture) {
		other := f.warehouse("other")
		state, err := f.store.AuditState(f.ctx, f.wh)
		f.ok(err)
		equal(f, "state at first", state, catalog.AuditState{Head: audit.Ref{Partition: f.wh.String()}})
		f.putAudit(f.wh, 0, 7)
		f.putAudit(other, 0, 2)
		state, err = f.store.AuditState(f.ctx, f.wh)
		f.ok(err)
		equal(f, "fresh", state.Fresh, true)
		head := f.sealAll(3)
		equal(f, "records", head.Seq, 7)
		state, err = f.store.AuditState(f.ctx, f.wh)
		f.ok(err)
		equal(f, "state", state, catalog.AuditState{Head: head})
		rows, err := f.store.AuditRows(f.ctx, f.wh, 2, 3)
		f.ok(err)
		for i, row := range rows {
			equal(f, "number", row.Seq, int64(i+3))
			equal(f, "record", fmt.Sprint(row.Record), fmt.Sprint(auditRecord(i+2)))
		}
		equal(f, "number of rows", len(rows), 3)
		r := f.verify(audit.VerifyOptions{})
		if !r.OK() || r.Records != 7 || r.Partitions[0].ID != f.wh.String() {
			f.Errorf("%+v", r)
		}
	}},
	{"a change that commits late is chained late, and never skipped", func(f *fixture) {
		const writers, rows = 8, 20
		done := make(chan struct{})
		sealed := make(chan error, 1)
		go func() {
			for {
				_, _, err := f.store.SealAudit(f.ctx, f.wh, 5)
				select {
				case <-done:
					sealed <- err
					return
				default:
					if err != nil {
						sealed <- err
						return
					}
				}
			}
		}()
		errs := together(writers, func(w int) error {
			for i := range rows {
				if err := f.update(func(tx catalog.Tx) error {
					err := tx.PutAudit(f.ctx, catalog.AuditRow{Warehouse: f.wh, Record: auditRecord(w*rows + i)})
					time.Sleep(time.Duration((w+i)%4) * time.Millisecond) // ids are given, others commit first
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		})
		f.ok(errors.Join(errs...))
		close(done)
		f.ok(<-sealed)
		head := f.sealAll(50)
		equal(f, "records", head.Seq, int64(writers*rows))
		if r := f.verify(audit.VerifyOptions{}); !r.OK() || r.Records != writers*rows {
			f.Errorf("%+v", r)
		}
		seen := map[string]bool{}
		all, err := f.store.AuditRows(f.ctx, f.wh, 0, 0)
		f.ok(err)
		for _, row := range all {
			seen[row.RequestID] = true
		}
		equal(f, "different records", len(seen), writers*rows)
	}},
	{"a transaction with a smaller row id commits after a larger one was sealed", func(f *fixture) {
		begun, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- f.update(func(tx catalog.Tx) error {
				err := tx.PutAudit(f.ctx, catalog.AuditRow{Warehouse: f.wh, Record: auditRecord(1)})
				close(begun)
				<-finish
				return err
			})
		}()
		<-begun
		quick := make(chan error, 1)
		go func() {
			err := f.update(func(tx catalog.Tx) error {
				return tx.PutAudit(f.ctx, catalog.AuditRow{Warehouse: f.wh, Record: auditRecord(2)})
			})
			if err == nil {
				_, _, err = f.store.SealAudit(f.ctx, f.wh, 10)
			}
			quick <- err
		}()
		// Where writers exclude each other, the quick one waits for the slow.
		select {
		case err := <-quick:
			quick <- err
		case <-time.After(200 * time.Millisecond):
		}
		close(finish)
		f.ok(<-done)
		f.ok(<-quick)
		equal(f, "records", f.sealAll(10).Seq, 2)
		if r := f.verify(audit.VerifyOptions{}); !r.OK() || r.Records != 2 {
			f.Errorf("%+v", r)
		}
	}},
	{"several seal at once", func(f *fixture) {
		f.putAudit(f.wh, 0, 40)
		f.ok(errors.Join(together(6, func(int) error {
			for range 20 {
				if _, _, err := f.store.SealAudit(f.ctx, f.wh, 3); err != nil {
					return err
				}
			}
			return nil
		})...))
		equal(f, "records", f.sealAll(3).Seq, 40)
		if r := f.verify(audit.VerifyOptions{}); !r.OK() || r.Records != 40 {
			f.Errorf("%+v", r)
		}
	}},
	{"audit rows expire up to a checkpoint", func(f *fixture) {
		signer := f.signer()
		keys := audit.NewKeys(signer.Public())
		for i := range 4 {
			f.putAudit(f.wh, i*3, i*3+3)
			head := f.sealAll(10)
			if i < 3 {
				f.ok(f.store.PutAuditCheckpoint(f.ctx, f.wh, signer.Sign(head, false, after(time.Duration(i)*time.Hour))))
				f.ok(f.store.PutAuditCheckpoint(f.ctx, f.wh, signer.Sign(head, false, after(100*time.Hour)))) // the first stays
			}
		}
		state, err := f.store.AuditState(f.ctx, f.wh)
		f.ok(err)
		equal(f, "checkpoint", state.Checkpoint, 9)
		equal(f, "its time", state.CheckpointAt, after(2*time.Hour))
		r := f.verify(audit.VerifyOptions{Keys: keys})
		if !r.OK() || r.Unproven() != 3 {
			f.Errorf("%+v", r)
		}
		expire := func(before time.Time, upTo int64) int {
			n, err := f.store.ExpireAudit(f.ctx, f.wh, before, upTo)
			f.ok(err)
			return n
		}
		equal(f, "rows when nothing is due", expire(start, 100), 0)
		equal(f, "rows that an export has not taken", expire(after(90*time.Minute), 2), 0)
		equal(f, "rows", expire(after(90*time.Minute), 100), 3)
		equal(f, "rows", expire(after(90*time.Minute), 100), 3)
		equal(f, "rows after a checkpoint that is younger", expire(after(90*time.Minute), 100), 0)
		checkpoints, err := f.store.AuditCheckpoints(f.ctx, f.wh, 0, 0)
		f.ok(err)
		equal(f, "checkpoints", len(checkpoints), 2)
		r = f.verify(audit.VerifyOptions{Keys: keys, RemovedBefore: after(90 * time.Minute)})
		if !r.OK() || r.Records != 6 || r.Unproven() != 3 || r.Partitions[0].First != 7 || r.Partitions[0].After == nil {
			f.Errorf("%+v", r)
		}
		if r = f.verify(audit.VerifyOptions{Keys: keys, RemovedBefore: after(30 * time.Minute)}); r.OK() {
			f.Error("rows that should still be there are not missed")
		}
		equal(f, "all but the unproven", expire(after(90*time.Hour), 100), 3)
		equal(f, "the unproven", expire(after(90*time.Hour), 100), 0)
		if r = f.verify(audit.VerifyOptions{Keys: keys, RemovedBefore: after(90 * time.Hour)}); !r.OK() || r.Records != 3 {
			f.Errorf("%+v", r)
		}
	}},
	{"an export's cursor is one worker's at a time", func(f *fixture) {
		c, err := f.store.ClaimAuditCursor(f.ctx, f.wh, "siem", start, time.Minute)
		f.ok(err)
		equal(f, "cursor at first", c, catalog.AuditCursor{Warehouse: f.wh, Name: "siem", HeldUntil: after(time.Minute)})
		_, err = f.store.ClaimAuditCursor(f.ctx, f.wh, "siem", after(59*time.Second), time.Minute)
		f.is(err, catalog.ErrNoObject)
		_, err = f.store.ClaimAuditCursor(f.ctx, f.wh, "other", start, time.Minute)
		f.ok(err)
		moved, err := f.store.MoveAuditCursor(f.ctx, c, 5, after(2*time.Minute))
		f.ok(err)
		second, err := f.store.ClaimAuditCursor(f.ctx, f.wh, "siem", after(2*time.Minute), time.Minute)
		f.ok(err)
		equal(f, "cursor of the next worker", second.Seq, 5)
		_, err = f.store.MoveAuditCursor(f.ctx, moved, 9, after(5*time.Minute))
		f.is(err, catalog.ErrStale)
		all, err := f.store.AuditCursors(f.ctx, f.wh)
		f.ok(err)
		equal(f, "cursors", fmt.Sprint(all), "map[other:0 siem:5]")
	}},
}
