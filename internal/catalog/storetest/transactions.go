// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
)

// everything makes every kind of change to a store that holds table a.t.
func (f *fixture) everything(tx catalog.Tx, table catalog.Object, key uuid.UUID) error {
	view := f.object(catalog.KindView, "a", "v")
	kept := f.object(catalog.KindTable, "a", "kept")
	fn := f.object(catalog.KindFunction, "a", "fn")
	moved := catalog.Ident{Namespace: catalog.Namespace{"b"}, Name: "v"}
	return errors.Join(
		tx.CreateNamespace(f.ctx, f.namespaceRecord("b")),
		tx.CreateNamespace(f.ctx, f.namespaceRecord("c")),
		tx.DropNamespace(f.ctx, f.wh, catalog.Namespace{"c"}),
		tx.UpdateNamespaceProperties(f.ctx, f.wh, catalog.Namespace{"a"}, after(time.Second), func(p map[string]string) map[string]string {
			p["x"] = "y"
			return p
		}),
		tx.CreateObject(f.ctx, view, []string{view.Location}),
		tx.CreateObject(f.ctx, kept, []string{kept.Location}),
		tx.CreateObject(f.ctx, fn, nil),
		tx.SetFunctionMetadata(f.ctx, fn.ID, json.RawMessage(`{"v":2}`), after(time.Second)),
		second(tx.RenameObject(f.ctx, f.wh, catalog.KindView, view.Ident(), moved, after(time.Second))),
		tx.SetProtected(f.ctx, f.wh, catalog.KindView, moved, true),
		tx.SetLabels(f.ctx, f.wh, catalog.KindView, moved, json.RawMessage(`{}`)),
		tx.SwapMetadata(f.ctx, table.ID, table.MetadataLocation, "next", catalog.DigestOf(nil), table.Location, []string{"s3://added/x"}, after(time.Second)),
		second(tx.DropObject(f.ctx, f.wh, catalog.KindTable, table.Ident(), start, time.Time{}, true)),
		second(tx.DropObject(f.ctx, f.wh, catalog.KindTable, kept.Ident(), start, after(time.Hour), false)),
		tx.PutIdempotency(f.ctx, f.idempotency(key)),
		tx.PutEvent(f.ctx, f.event("e")),
		tx.PutAudit(f.ctx, catalog.AuditRow{Warehouse: f.wh, Record: audit.Record{Time: start, Detail: json.RawMessage(`{}`)}}),
	)
}

func second[T any](_ T, err error) error { return err }

// untouched fails the test when anything of everything is there.
func (f *fixture) untouched(table catalog.Object, key uuid.UUID) {
	f.Helper()
	equalSlices(f, "namespaces", topLevel(f), []string{"a", "probe"})
	rec, err := f.store.Namespace(f.ctx, f.wh, catalog.Namespace{"a"})
	f.ok(err)
	equal(f, "number of properties", len(rec.Properties), 0)
	got, err := f.find(catalog.KindTable, "a", "t")
	f.ok(err)
	f.sameObject(got, table)
	equalSlices(f, "tables", f.names(catalog.KindTable, "a"), []string{"t"})
	equalSlices(f, "views", f.names(catalog.KindView, "a"), nil)
	equalSlices(f, "functions", f.names(catalog.KindFunction, "a"), nil)
	dropped, err := f.store.ListDropped(f.ctx, f.wh, catalog.Page{})
	f.ok(err)
	equal(f, "dropped objects", len(dropped), 0)
	locations, err := f.store.Locations(f.ctx, table.ID)
	f.ok(err)
	equalSlices(f, "locations", locations, []string{table.Location})
	equal(f, "added location is free", f.reservable("s3://added/x"), true)
	_, err = f.store.Idempotency(f.ctx, f.wh, "p", key, start)
	f.is(err, catalog.ErrNoObject)
	events, err := f.store.Events(f.ctx, f.wh, 0, 0)
	f.ok(err)
	equal(f, "events", len(events), 0)
	audit, err := f.store.Audit(f.ctx, f.wh, 0)
	f.ok(err)
	equal(f, "audit rows", len(audit), 0)
	_, err = f.store.ClaimPurge(f.ctx, after(time.Hour), time.Minute)
	f.is(err, catalog.ErrNoObject)
}

// refused tries everything in a transaction that must come to nothing.
func refused(f *fixture, run func(all func(tx catalog.Tx) error)) {
	f.namespaces("a", "probe")
	table := f.created(catalog.KindTable, "a", "t")
	key := uuid.New()
	run(func(tx catalog.Tx) error { return f.everything(tx, table, key) })
	f.untouched(table, key)
	f.ok(f.update(func(tx catalog.Tx) error { return f.everything(tx, table, key) })) // it was not for another reason
}

var transactionChecks = []check{
	{"an error takes everything back and comes back unchanged", func(f *fixture) {
		refused(f, func(all func(catalog.Tx) error) {
			own := errors.New("own")
			err := f.update(func(tx catalog.Tx) error {
				f.ok(all(tx))
				return own
			})
			if err != own { //nolint:errorlint // unchanged means the same value
				f.Errorf("error is %v, want the function's own", err)
			}
		})
	}},
	{"a panic takes everything back", func(f *fixture) {
		refused(f, func(all func(catalog.Tx) error) {
			defer func() {
				equal(f, "panic", recover(), any("boom"))
			}()
			_ = f.update(func(tx catalog.Tx) error {
				f.ok(all(tx))
				panic("boom")
			})
		})
	}},
	{"a write that failed keeps the transaction from committing", func(f *fixture) {
		refused(f, func(all func(catalog.Tx) error) {
			err := f.update(func(tx catalog.Tx) error {
				if err := all(tx); err != nil {
					return err
				}
				f.is(tx.CreateNamespace(f.ctx, f.namespaceRecord("a")), catalog.ErrExists)
				return nil // does not care
			})
			f.is(err, catalog.ErrExists)
		})
	}},
	{"after a write that failed the transaction can still be read", func(f *fixture) {
		f.namespaces("a")
		table := f.created(catalog.KindTable, "a", "t")
		reason := errors.New("found the reason")
		for name, write := range map[string]func(tx catalog.Tx) error{
			"name taken":          func(tx catalog.Tx) error { return tx.CreateObject(f.ctx, f.object(catalog.KindView, "a", "t"), nil) },
			"namespace taken":     func(tx catalog.Tx) error { return tx.CreateNamespace(f.ctx, f.namespaceRecord("a")) },
			"parent missing":      func(tx catalog.Tx) error { return tx.CreateNamespace(f.ctx, f.namespaceRecord("x", "y")) },
			"namespace missing":   func(tx catalog.Tx) error { return tx.CreateObject(f.ctx, f.object(catalog.KindTable, "x", "y"), nil) },
			"namespace not empty": func(tx catalog.Tx) error { return tx.DropNamespace(f.ctx, f.wh, catalog.Namespace{"a"}) },
			"location taken": func(tx catalog.Tx) error {
				return tx.CreateObject(f.ctx, f.object(catalog.KindTable, "a", "new"), []string{table.Location})
			},
			"rename to nowhere": func(tx catalog.Tx) error {
				return second(tx.RenameObject(f.ctx, f.wh, catalog.KindTable, table.Ident(), catalog.Ident{Namespace: catalog.Namespace{"x"}, Name: "y"}, start))
			},
			"stale": func(tx catalog.Tx) error {
				return tx.SwapMetadata(f.ctx, table.ID, "other", "next", catalog.DigestOf(nil), table.Location, nil, start)
			},
		} {
			err := f.update(func(tx catalog.Tx) error {
				if write(tx) == nil {
					f.Errorf("%s: no error", name)
				}
				got, err := tx.Object(f.ctx, f.wh, table.Namespace, "t", catalog.KindView)
				if err != nil {
					f.Errorf("%s: cannot read any more: %v", name, err)
				}
				equal(f, name+": object", got.ID, table.ID)
				return reason
			})
			f.is(err, reason)
		}
	}},
	{"a transaction reads its own writes, others do not", func(f *fixture) {
		f.namespaces("a")
		rollback := errors.New("rollback")
		f.is(f.update(func(tx catalog.Tx) error {
			o := f.object(catalog.KindTable, "a", "t")
			f.ok(tx.CreateObject(f.ctx, o, []string{o.Location}))
			got, err := tx.Object(f.ctx, f.wh, o.Namespace, "t", catalog.KindTable)
			f.ok(err)
			f.sameObject(got, o)
			names, err := tx.ListObjects(f.ctx, f.wh, o.Namespace, catalog.KindTable, catalog.Page{})
			f.ok(err)
			equalSlices(f, "names inside", names, []string{"t"})
			locations, err := tx.Locations(f.ctx, o.ID)
			f.ok(err)
			equalSlices(f, "locations inside", locations, []string{o.Location})
			_, err = f.find(catalog.KindTable, "a", "t")
			f.is(err, catalog.ErrNoObject)
			return rollback
		}), rollback)
	}},
	{"a caller that gives up changes nothing", func(f *fixture) {
		refused(f, func(all func(catalog.Tx) error) {
			over, cancel := context.WithCancel(f.ctx)
			cancel()
			err := f.store.Update(over, func(catalog.Tx) error {
				f.Error("ran although the caller had given up")
				return nil
			})
			f.is(err, catalog.ErrUnavailable)
			f.is(err, context.Canceled)
			_, err = f.store.Object(over, f.wh, catalog.Namespace{"a"}, "t", catalog.KindTable)
			f.is(err, catalog.ErrUnavailable)

			ctx, cancel := context.WithCancel(f.ctx)
			defer cancel()
			err = f.store.Update(ctx, func(tx catalog.Tx) error {
				if err := all(tx); err != nil {
					return err
				}
				cancel()
				// The caller's context ends the transaction at its next statement.
				err := tx.PutEvent(ctx, f.event("late"))
				f.is(err, context.Canceled)
				return err
			})
			f.is(err, catalog.ErrUnavailable)
		})
	}},
	{"a caller that waits for its turn can give up", func(f *fixture) {
		f.namespaces("a")
		inHand, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		change := func(p map[string]string) map[string]string { return p }
		go func() {
			done <- f.update(func(tx catalog.Tx) error {
				err := tx.UpdateNamespaceProperties(f.ctx, f.wh, catalog.Namespace{"a"}, start, change)
				close(inHand)
				<-finish
				return err
			})
		}()
		<-inHand
		ctx, cancel := context.WithTimeout(f.ctx, 50*time.Millisecond)
		defer cancel()
		err := f.store.Update(ctx, func(tx catalog.Tx) error {
			return tx.UpdateNamespaceProperties(ctx, f.wh, catalog.Namespace{"a"}, start, change)
		})
		f.is(err, catalog.ErrUnavailable)
		f.is(err, context.DeadlineExceeded)
		close(finish)
		f.ok(<-done)
	}},
	{"migrating again, by many at once, changes nothing", func(f *fixture) {
		f.namespaces("a")
		for _, err := range together(8, func(int) error { return f.store.Migrate(f.ctx) }) {
			f.ok(err)
		}
		current, newest, err := f.store.Version(f.ctx)
		f.ok(err)
		equal(f, "version", current, newest)
		if newest < 1 {
			f.Errorf("newest version is %d", newest)
		}
		f.ok(f.store.Ping(f.ctx))
		equalSlices(f, "namespaces", topLevel(f), []string{"a"})
	}},
	{"a closed store is unavailable", func(f *fixture) {
		f.namespaces("a")
		f.ok(f.store.Close())
		f.ok(f.store.Close())
		f.is(f.createNamespace("b"), catalog.ErrUnavailable)
		_, err := f.store.Namespace(f.ctx, f.wh, catalog.Namespace{"a"})
		f.is(err, catalog.ErrUnavailable)
		f.is(f.store.Ping(f.ctx), catalog.ErrUnavailable)
	}},
}
