// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
)

// EveryQuery calls every method of a store once or more, so that an engine's
// test can look at the plans of the statements behind them.
func EveryQuery(t *testing.T, store catalog.Store) {
	t.Helper()
	f := &fixture{T: t, ctx: t.Context(), store: store}
	f.wh = f.warehouse("main")
	f.namespaces("a", "probe")
	table := f.created(catalog.KindTable, "a", "t")
	f.do(func(tx catalog.Tx) error { return f.everything(tx, table, uuid.New()) })
	dropped, err := f.store.ListDropped(f.ctx, f.wh, catalog.Page{Limit: 1})
	f.ok(err)
	f.do(func(tx catalog.Tx) error {
		o, err := tx.RestoreObject(f.ctx, f.wh, dropped[0].ID, nil, start)
		if err != nil {
			return err
		}
		if err := tx.ReplaceObject(f.ctx, o.ID, o.MetadataLocation, o, []string{o.Location}); err != nil {
			return err
		}
		_, err = tx.DropObject(f.ctx, f.wh, catalog.KindTable, o.Ident(), start, after(time.Minute), true)
		return err
	})
	for _, reader := range []func(func(r catalog.Reader) error) error{
		func(read func(r catalog.Reader) error) error { return read(f.store) },
		func(read func(r catalog.Reader) error) error {
			return f.update(func(tx catalog.Tx) error { return read(tx) })
		},
	} {
		f.ok(reader(func(r catalog.Reader) error {
			_, err := r.Namespace(f.ctx, f.wh, catalog.Namespace{"a"})
			f.ok(err)
			_, err = r.ListNamespaces(f.ctx, f.wh, nil, catalog.Page{Limit: 1})
			f.ok(err)
			_, err = r.Object(f.ctx, f.wh, catalog.Namespace{"b"}, "v", catalog.KindView)
			f.ok(err)
			_, err = r.ObjectByID(f.ctx, f.wh, dropped[0].ID)
			f.ok(err)
			_, err = r.ListObjects(f.ctx, f.wh, catalog.Namespace{"a"}, catalog.KindTable, catalog.Page{Limit: 1})
			f.ok(err)
			_, err = r.ListDropped(f.ctx, f.wh, catalog.Page{Limit: 1})
			f.ok(err)
			_, err = r.Locations(f.ctx, table.ID)
			f.ok(err)
			_, err = r.Idempotency(f.ctx, f.wh, "p", uuid.New(), start)
			f.is(err, catalog.ErrNoObject)
			return nil
		}))
	}
	f.ok(f.store.PutMetricsReports(f.ctx, []catalog.MetricsReport{{Time: start, Warehouse: f.wh, Object: table.ID, Report: json.RawMessage(`{}`)}}))
	_, err = f.store.MetricsReports(f.ctx, f.wh, table.ID, 1)
	f.ok(err)
	_, err = f.store.Events(f.ctx, f.wh, 0, 1)
	f.ok(err)
	_, err = f.store.Audit(f.ctx, f.wh, 1)
	f.ok(err)
	_, head, err := f.store.SealAudit(f.ctx, f.wh, 10)
	f.ok(err)
	_, err = f.store.AuditState(f.ctx, f.wh)
	f.ok(err)
	_, err = f.store.AuditRows(f.ctx, f.wh, 0, 1)
	f.ok(err)
	f.ok(f.store.PutAuditCheckpoint(f.ctx, f.wh, audit.Checkpoint{Ref: head, Count: head.Seq, Time: start}))
	_, err = f.store.AuditCheckpoints(f.ctx, f.wh, 0, 1)
	f.ok(err)
	cursor, err := f.store.ClaimAuditCursor(f.ctx, f.wh, "e", start, time.Minute)
	f.ok(err)
	_, err = f.store.MoveAuditCursor(f.ctx, cursor, 1, after(time.Minute))
	f.ok(err)
	_, err = f.store.AuditCursors(f.ctx, f.wh)
	f.ok(err)
	_, err = f.store.ExpireAudit(f.ctx, f.wh, after(time.Hour), head.Seq)
	f.ok(err)
	_, err = f.store.Expire(f.ctx, after(time.Hour), start, start, 10)
	f.ok(err)
	p, err := f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Hour)
	f.ok(err)
	p, err = f.store.RenewPurge(f.ctx, p, after(4*time.Hour))
	f.ok(err)
	f.ok(f.store.RetryPurge(f.ctx, p, start))
	p, err = f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Hour)
	f.ok(err)
	f.ok(f.store.FinishPurge(f.ctx, p))
}
