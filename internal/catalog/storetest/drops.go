// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

var dropChecks = []check{
	{"drop for good", func(f *fixture) {
		f.namespaces("a", "probe")
		o := f.created(catalog.KindTable, "a", "t")
		wrong := o
		wrong.Kind = catalog.KindView
		f.is(f.drop(wrong, start, time.Time{}, false), catalog.ErrNoObject)
		wrong.Kind = catalog.KindFunction
		f.is(f.drop(wrong, start, time.Time{}, false), catalog.ErrNoObject)
		f.do(func(tx catalog.Tx) error {
			got, err := tx.DropObject(f.ctx, f.wh, catalog.KindTable, o.Ident(), after(time.Second), time.Time{}, false)
			f.sameObject(got, o)
			return err
		})
		f.is(f.drop(o, start, time.Time{}, false), catalog.ErrNoObject)
		_, err := f.find(catalog.KindTable, "a", "t")
		f.is(err, catalog.ErrNoObject)
		_, err = f.store.ObjectByID(f.ctx, f.wh, o.ID)
		f.is(err, catalog.ErrNoObject)
		equalSlices(f, "tables", f.names(catalog.KindTable, "a"), nil)
		equal(f, "location is free", f.reservable(o.Location), true)
		_, err = f.store.ClaimPurge(f.ctx, after(time.Hour), time.Minute)
		f.is(err, catalog.ErrNoObject)
		f.created(catalog.KindView, "a", "t")
	}},
	{"drop with purge keeps the locations until the purge is done", func(f *fixture) {
		f.namespaces("a", "probe")
		o := f.created(catalog.KindTable, "a", "t", "s3://x/base", "s3://x/data", "s3://x/another")
		f.ok(f.drop(o, after(time.Second), time.Time{}, true))
		_, err := f.store.ObjectByID(f.ctx, f.wh, o.ID)
		f.is(err, catalog.ErrNoObject)
		f.created(catalog.KindTable, "a", "t") // the name is free
		equal(f, "location is free", f.reservable("s3://x/data"), false)
		p, err := f.store.ClaimPurge(f.ctx, after(time.Minute), time.Minute)
		f.ok(err)
		equal(f, "warehouse", p.Warehouse, f.wh)
		equal(f, "object", p.Object, o.ID)
		equalSlices(f, "locations", p.Locations, []string{"s3://x/base", "s3://x/data", "s3://x/another"})
		equal(f, "metadata location", p.MetadataLocation, o.MetadataLocation)
		equal(f, "attempts", p.Attempts, 0)
		equal(f, "created", p.CreatedAt, after(time.Second))
		f.ok(f.store.FinishPurge(f.ctx, p))
		equal(f, "location is free", f.reservable("s3://x/data"), true)
		_, err = f.store.ClaimPurge(f.ctx, after(time.Hour), time.Minute)
		f.is(err, catalog.ErrNoObject)
	}},
	{"soft delete hides a table and keeps its locations", func(f *fixture) {
		f.namespaces("a", "probe")
		o := f.created(catalog.KindTable, "a", "t")
		f.do(func(tx catalog.Tx) error {
			got, err := tx.DropObject(f.ctx, f.wh, catalog.KindTable, o.Ident(), after(time.Second), after(time.Hour), false)
			o.DroppedAt, o.ExpiresAt = after(time.Second), after(time.Hour)
			f.sameObject(got, o)
			return err
		})
		_, err := f.find(catalog.KindTable, "a", "t")
		f.is(err, catalog.ErrNoObject)
		equalSlices(f, "tables", f.names(catalog.KindTable, "a"), nil)
		equal(f, "location is free", f.reservable(o.Location), false)
		f.is(f.drop(o, start, time.Time{}, false), catalog.ErrNoObject)
		dropped, err := f.store.ListDropped(f.ctx, f.wh, catalog.Page{})
		f.ok(err)
		if len(dropped) != 1 {
			f.Fatalf("%d dropped objects, want 1", len(dropped))
		}
		f.sameObject(dropped[0], o)
		_, err = f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Minute)
		f.is(err, catalog.ErrNoObject)
	}},
	{"dropped objects are listed oldest first, in pages", func(f *fixture) {
		f.namespaces("a")
		var all []uuid.UUID
		for range 5 { // five of one name
			o := f.created(catalog.KindTable, "a", "t")
			f.ok(f.drop(o, start, after(time.Hour), false))
			all = append(all, o.ID)
		}
		f.created(catalog.KindTable, "a", "t")
		ids := func(wh uuid.UUID, page catalog.Page) (got []uuid.UUID) {
			objects, err := f.store.ListDropped(f.ctx, wh, page)
			f.ok(err)
			for _, o := range objects {
				got = append(got, o.ID)
			}
			return got
		}
		equalSlices(f, "all", ids(f.wh, catalog.Page{}), all)
		equalSlices(f, "first page", ids(f.wh, catalog.Page{Limit: 2}), all[:2])
		equalSlices(f, "second page", ids(f.wh, catalog.Page{After: all[1].String(), Limit: 2}), all[2:4])
		equalSlices(f, "last page", ids(f.wh, catalog.Page{After: all[3].String(), Limit: 2}), all[4:])
		equalSlices(f, "of another warehouse", ids(f.warehouse("other"), catalog.Page{}), nil)
	}},
	{"restore", func(f *fixture) {
		f.namespaces("a", "b")
		o := f.created(catalog.KindTable, "a", "t")
		restore := func(id uuid.UUID, at time.Time, to *catalog.Ident) (got catalog.Object, err error) {
			err = f.update(func(tx catalog.Tx) error {
				got, err = tx.RestoreObject(f.ctx, f.wh, id, to, at)
				return err
			})
			return got, err
		}
		_, err := restore(o.ID, start, nil) // not dropped
		f.is(err, catalog.ErrNoObject)
		_, err = restore(uuid.New(), start, nil)
		f.is(err, catalog.ErrNoObject)

		f.ok(f.drop(o, start, after(time.Hour), true))
		got, err := restore(o.ID, after(time.Second), nil)
		f.ok(err)
		o.UpdatedAt = after(time.Second)
		f.sameObject(got, o)
		got, err = f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		f.sameObject(got, o)

		f.ok(f.drop(o, start, after(time.Hour), false))
		view := f.created(catalog.KindView, "a", "t")
		_, err = restore(o.ID, after(time.Second), nil)
		f.is(err, catalog.ErrExists)
		_, err = restore(o.ID, after(time.Second), &catalog.Ident{Namespace: catalog.Namespace{"absent"}, Name: "t"})
		f.is(err, catalog.ErrNoNamespace)
		got, err = restore(o.ID, after(time.Second), &catalog.Ident{Namespace: catalog.Namespace{"b"}, Name: "u"})
		f.ok(err)
		equal(f, "name", got.Ident().String(), "b.u")
		got, err = f.find(catalog.KindTable, "b", "u")
		f.ok(err)
		equal(f, "id", got.ID, o.ID)
		f.ok(f.drop(view, start, time.Time{}, false))

		// Not when its time is over, even if nobody has removed it yet.
		f.ok(f.drop(got, start, after(time.Hour), false))
		_, err = restore(o.ID, after(time.Hour), nil)
		f.is(err, catalog.ErrNoObject)
		// The purge that the first drop asked for was forgotten.
		_, err = f.store.Expire(f.ctx, after(time.Hour), time.Time{}, time.Time{}, 10)
		f.ok(err)
		_, err = f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Minute)
		f.is(err, catalog.ErrNoObject)
	}},
	{"expiry ends what soft delete began", func(f *fixture) {
		f.namespaces("a", "probe")
		plain := f.created(catalog.KindTable, "a", "plain")
		purged := f.created(catalog.KindTable, "a", "purged")
		later := f.created(catalog.KindTable, "a", "later")
		live := f.created(catalog.KindTable, "a", "live")
		f.ok(f.drop(plain, start, after(time.Hour), false))
		f.ok(f.drop(purged, start, after(time.Hour), true))
		f.ok(f.drop(later, start, after(time.Hour+time.Millisecond), true))
		expire := func(at time.Time) int {
			n, err := f.store.Expire(f.ctx, at, time.Time{}, time.Time{}, 10)
			f.ok(err)
			return n
		}
		equal(f, "rows expired too early", expire(after(time.Hour-time.Millisecond)), 0)
		equal(f, "rows expired", expire(after(time.Hour)), 2)
		equal(f, "rows expired again", expire(after(time.Hour)), 0)
		for _, o := range []catalog.Object{plain, purged} {
			_, err := f.store.ObjectByID(f.ctx, f.wh, o.ID)
			f.is(err, catalog.ErrNoObject)
		}
		for _, o := range []catalog.Object{later, live} {
			_, err := f.store.ObjectByID(f.ctx, f.wh, o.ID)
			f.ok(err)
		}
		equal(f, "location of the one without purge is free", f.reservable(plain.Location), true)
		equal(f, "location of the one with purge is free", f.reservable(purged.Location), false)
		p, err := f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Hour)
		f.ok(err)
		equal(f, "object to purge", p.Object, purged.ID)
		equalSlices(f, "locations to purge", p.Locations, []string{purged.Location})
		_, err = f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Hour)
		f.is(err, catalog.ErrNoObject)
	}},
	{"expiry goes on in steps", func(f *fixture) {
		f.namespaces("a")
		for range 7 {
			o := f.created(catalog.KindTable, "a", "t")
			f.ok(f.drop(o, start, after(time.Hour), true))
		}
		for _, want := range []int{3, 3, 1, 0} {
			n, err := f.store.Expire(f.ctx, after(time.Hour), time.Time{}, time.Time{}, 3)
			f.ok(err)
			equal(f, "rows expired", n, want)
		}
	}},
}
