// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

var objectChecks = []check{
	{"object comes back as stored", func(f *fixture) {
		f.ok(f.createNamespace("a"))
		f.ok(f.createNamespace("a", "b c"))
		for _, kind := range []catalog.Kind{catalog.KindTable, catalog.KindView, catalog.KindFunction} {
			for _, full := range []bool{false, true} {
				o := f.object(kind, "a", fmt.Sprintf("o%d%t", kind, full))
				o.Namespace = catalog.Namespace{"a", "b c"}
				if full {
					o.Labels = json.RawMessage(`{"a":[1,2,"ü"]}`)
					o.Protected = true
					o.UpdatedAt = after(1234 * time.Millisecond)
				}
				f.ok(f.create(o))
				got, err := f.store.Object(f.ctx, f.wh, o.Namespace, o.Name, kind)
				f.ok(err)
				f.sameObject(got, o)
				got, err = f.store.ObjectByID(f.ctx, f.wh, o.ID)
				f.ok(err)
				f.sameObject(got, o)
				f.do(func(tx catalog.Tx) error {
					got, err := tx.Object(f.ctx, f.wh, o.Namespace, o.Name, kind)
					f.sameObject(got, o)
					return err
				})
			}
		}
	}},
	{"version begins with 1 whatever is asked", func(f *fixture) {
		f.namespaces("a")
		o := f.object(catalog.KindTable, "a", "t")
		o.Version = 77
		f.ok(f.create(o))
		got, err := f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		equal(f, "version", got.Version, 1)
	}},
	{"tables and views share names, functions do not", func(f *fixture) {
		f.namespaces("a")
		table := f.created(catalog.KindTable, "a", "x")
		view := f.created(catalog.KindView, "a", "y")
		f.is(f.create(f.object(catalog.KindTable, "a", "x")), catalog.ErrExists)
		f.is(f.create(f.object(catalog.KindView, "a", "x")), catalog.ErrExists)
		f.is(f.create(f.object(catalog.KindTable, "a", "y")), catalog.ErrExists)
		function := f.created(catalog.KindFunction, "a", "x")
		f.is(f.create(f.object(catalog.KindFunction, "a", "x")), catalog.ErrExists)
		for _, c := range []struct {
			kind catalog.Kind
			name string
			want catalog.Object
		}{
			{catalog.KindTable, "x", table},
			{catalog.KindView, "x", table},
			{catalog.KindTable, "y", view},
			{catalog.KindView, "y", view},
			{catalog.KindFunction, "x", function},
		} {
			got, err := f.find(c.kind, "a", c.name)
			f.ok(err)
			f.sameObject(got, c.want)
		}
		_, err := f.find(catalog.KindFunction, "a", "y")
		f.is(err, catalog.ErrNoObject)
		_, err = f.find(catalog.KindTable, "a", "z")
		f.is(err, catalog.ErrNoObject)
		_, err = f.find(catalog.KindTable, "absent", "x")
		f.is(err, catalog.ErrNoObject)
	}},
	{"object needs its namespace", func(f *fixture) {
		o := f.object(catalog.KindTable, "absent", "t")
		f.is(f.create(o), catalog.ErrNoNamespace)
		o.Namespace = nil
		f.is(f.create(o), catalog.ErrNoNamespace)
		f.namespaces("probe")
		if !f.reservable(o.Location) {
			f.Error("a failed create keeps its location")
		}
	}},
	{"object is found by id in its warehouse only", func(f *fixture) {
		f.namespaces("a")
		o := f.created(catalog.KindTable, "a", "t")
		_, err := f.store.ObjectByID(f.ctx, f.warehouse("other"), o.ID)
		f.is(err, catalog.ErrNoObject)
		_, err = f.store.ObjectByID(f.ctx, f.wh, uuid.New())
		f.is(err, catalog.ErrNoObject)
		f.ok(f.drop(o, after(time.Second), after(time.Hour), false))
		got, err := f.store.ObjectByID(f.ctx, f.wh, o.ID)
		f.ok(err)
		o.DroppedAt, o.ExpiresAt = after(time.Second), after(time.Hour)
		f.sameObject(got, o)
	}},
	{"objects are listed by kind, in pages", func(f *fixture) {
		f.namespaces("a", "b")
		for _, name := range []string{"t3", "t1", "T2", "tä"} {
			f.created(catalog.KindTable, "a", name)
		}
		f.created(catalog.KindView, "a", "v1")
		f.created(catalog.KindView, "a", "t2")
		f.created(catalog.KindFunction, "a", "t1")
		f.created(catalog.KindTable, "b", "t0")
		equalSlices(f, "tables", f.names(catalog.KindTable, "a"), []string{"T2", "t1", "t3", "tä"})
		equalSlices(f, "views", f.names(catalog.KindView, "a"), []string{"t2", "v1"})
		equalSlices(f, "functions", f.names(catalog.KindFunction, "a"), []string{"t1"})
		equalSlices(f, "functions of b", f.names(catalog.KindFunction, "b"), nil)
		equalSlices(f, "tables of an absent namespace", f.names(catalog.KindTable, "absent"), nil)
		for _, c := range []struct {
			page catalog.Page
			want []string
		}{
			{catalog.Page{Limit: 1}, []string{"T2"}},
			{catalog.Page{After: "T2", Limit: 2}, []string{"t1", "t3"}},
			{catalog.Page{After: "t3", Limit: 2}, []string{"tä"}},
			{catalog.Page{After: "t2"}, []string{"t3", "tä"}}, // gone from the listing of this kind
			{catalog.Page{After: "tä", Limit: 2}, nil},
		} {
			got, err := f.store.ListObjects(f.ctx, f.wh, catalog.Namespace{"a"}, catalog.KindTable, c.page)
			f.ok(err)
			equalSlices(f, fmt.Sprintf("page %+v", c.page), got, c.want)
		}
	}},
	{"metadata pointer is compared and swapped", func(f *fixture) {
		f.namespaces("a", "probe")
		o := f.created(catalog.KindTable, "a", "t")
		swap := func(id uuid.UUID, expected, next, location string, add ...string) error {
			return f.update(func(tx catalog.Tx) error {
				return tx.SwapMetadata(f.ctx, id, expected, next, catalog.DigestOf([]byte(next)), location, add, after(time.Second))
			})
		}
		f.is(swap(o.ID, "other", "m1", o.Location), catalog.ErrStale)
		f.is(swap(uuid.New(), o.MetadataLocation, "m1", o.Location), catalog.ErrStale)
		f.ok(swap(o.ID, o.MetadataLocation, "m1", o.Location))
		f.is(swap(o.ID, o.MetadataLocation, "m2", o.Location), catalog.ErrStale)
		o.MetadataLocation, o.MetadataDigest, o.Version, o.UpdatedAt = "m1", catalog.DigestOf([]byte("m1")), 2, after(time.Second)
		got, err := f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		f.sameObject(got, o)

		old := o.Location
		f.ok(swap(o.ID, "m1", "m2", "s3://moved/base", "s3://moved/base", "s3://moved/data"))
		got, err = f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		equal(f, "location", got.Location, "s3://moved/base")
		equal(f, "version", got.Version, 3)
		locations, err := f.store.Locations(f.ctx, o.ID)
		f.ok(err)
		equalSlices(f, "locations", locations, []string{"s3://moved/base", old, "s3://moved/data"})
		for _, l := range []string{old, "s3://moved/base", "s3://moved/data/x"} {
			if f.reservable(l) {
				f.Errorf("%s is not reserved", l)
			}
		}
		// What it has already it may ask for again, and parts of it.
		f.ok(swap(o.ID, "m2", "m3", old, old, "s3://moved/data", "s3://moved/data/inner", "s3://moved"))

		other := f.created(catalog.KindTable, "a", "other")
		f.is(swap(o.ID, "m3", "m4", old, other.Location+"/in"), catalog.ErrLocationTaken)
		got, err = f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		equal(f, "pointer after a refused swap", got.MetadataLocation, "m3")

		f.ok(f.drop(got, start, after(time.Hour), false))
		f.is(swap(o.ID, "m3", "m4", old), catalog.ErrStale)
	}},
	{"replaced object keeps row and name", func(f *fixture) {
		f.namespaces("a", "probe")
		o := f.created(catalog.KindTable, "a", "t", "s3://x/old", "s3://x/old-data")
		other := f.created(catalog.KindTable, "a", "other")
		replace := func(expected string, next catalog.Object, locations ...string) error {
			return f.update(func(tx catalog.Tx) error { return tx.ReplaceObject(f.ctx, o.ID, expected, next, locations) })
		}
		next := o
		next.UUID, next.Location, next.MetadataLocation, next.UpdatedAt = uuid.New(), "s3://x/new", "m9", after(time.Second)
		next.MetadataDigest = catalog.DigestOf([]byte("m9"))
		f.is(replace("other", next, next.Location), catalog.ErrStale)
		f.is(replace(o.MetadataLocation, next, other.Location), catalog.ErrLocationTaken)
		if f.reservable("s3://x/old") {
			f.Error("a refused replacement has released locations")
		}
		f.ok(replace(o.MetadataLocation, next, next.Location, "s3://x/old-data"))
		next.Version = 2
		got, err := f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		f.sameObject(got, next)
		locations, err := f.store.Locations(f.ctx, o.ID)
		f.ok(err)
		equalSlices(f, "locations", locations, []string{"s3://x/new", "s3://x/old-data"})
		equal(f, "old location is free", f.reservable("s3://x/old"), true)
		equal(f, "kept location is free", f.reservable("s3://x/old-data"), false)
	}},
	{"rename moves a name of one kind", func(f *fixture) {
		f.namespaces("a", "b", "probe")
		table := f.created(catalog.KindTable, "a", "t")
		f.created(catalog.KindTable, "b", "taken")
		f.created(catalog.KindView, "b", "view")
		f.created(catalog.KindFunction, "b", "t2")
		rename := func(kind catalog.Kind, ns, name, toNS, toName string) (o catalog.Object, err error) {
			err = f.update(func(tx catalog.Tx) error {
				o, err = tx.RenameObject(f.ctx, f.wh, kind, catalog.Ident{Namespace: catalog.Namespace{ns}, Name: name},
					catalog.Ident{Namespace: catalog.Namespace{toNS}, Name: toName}, after(time.Second))
				return err
			})
			return o, err
		}
		for _, c := range []struct {
			kind                   catalog.Kind
			ns, name, toNS, toName string
			want                   error
		}{
			{catalog.KindTable, "a", "absent", "b", "x", catalog.ErrNoObject},
			{catalog.KindTable, "absent", "t", "b", "x", catalog.ErrNoObject},
			{catalog.KindView, "a", "t", "b", "x", catalog.ErrNoObject},
			{catalog.KindFunction, "a", "t", "b", "x", catalog.ErrNoObject},
			{catalog.KindTable, "a", "t", "absent", "x", catalog.ErrNoNamespace},
			{catalog.KindTable, "a", "t", "b", "taken", catalog.ErrExists},
			{catalog.KindTable, "a", "t", "b", "view", catalog.ErrExists},
			{catalog.KindView, "b", "view", "b", "taken", catalog.ErrExists},
			{catalog.KindTable, "a", "t", "a", "t", catalog.ErrExists},
		} {
			_, err := rename(c.kind, c.ns, c.name, c.toNS, c.toName)
			f.is(err, c.want)
		}
		got, err := rename(catalog.KindTable, "a", "t", "b", "t2")
		f.ok(err)
		table.Namespace, table.Name, table.UpdatedAt = catalog.Namespace{"b"}, "t2", after(time.Second)
		f.sameObject(got, table)
		got, err = f.find(catalog.KindTable, "b", "t2")
		f.ok(err)
		f.sameObject(got, table)
		_, err = f.find(catalog.KindTable, "a", "t")
		f.is(err, catalog.ErrNoObject)
		equal(f, "location is free", f.reservable(table.Location), false)
		f.created(catalog.KindTable, "a", "t")
		f.ok(f.update(func(tx catalog.Tx) error { // the function of the same name is another
			_, err := tx.DropObject(f.ctx, f.wh, catalog.KindFunction, table.Ident(), start, time.Time{}, false)
			return err
		}))
		_, err = f.find(catalog.KindTable, "b", "t2")
		f.ok(err)
	}},
	{"protection and labels", func(f *fixture) {
		f.namespaces("a")
		o := f.created(catalog.KindTable, "a", "t")
		protect := func(kind catalog.Kind, id catalog.Ident, on bool) error {
			return f.update(func(tx catalog.Tx) error { return tx.SetProtected(f.ctx, f.wh, kind, id, on) })
		}
		label := func(kind catalog.Kind, id catalog.Ident, labels string) error {
			return f.update(func(tx catalog.Tx) error {
				return tx.SetLabels(f.ctx, f.wh, kind, id, json.RawMessage(labels))
			})
		}
		absent := catalog.Ident{Namespace: catalog.Namespace{"a"}, Name: "absent"}
		f.is(protect(catalog.KindTable, absent, true), catalog.ErrNoObject)
		f.is(protect(catalog.KindView, o.Ident(), true), catalog.ErrNoObject)
		f.is(label(catalog.KindView, o.Ident(), `{}`), catalog.ErrNoObject)
		f.ok(protect(catalog.KindTable, o.Ident(), true))
		f.ok(label(catalog.KindTable, o.Ident(), `{"a": 1}`))
		got, err := f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		o.Protected, o.Labels = true, json.RawMessage(`{"a": 1}`)
		f.sameObject(got, o)
		f.is(f.drop(o, start, time.Time{}, false), catalog.ErrProtected)
		f.is(f.drop(o, start, after(time.Hour), true), catalog.ErrProtected)
		f.ok(protect(catalog.KindTable, o.Ident(), false))
		f.ok(label(catalog.KindTable, o.Ident(), ""))
		got, err = f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		o.Protected, o.Labels = false, nil
		f.sameObject(got, o)
		f.ok(f.drop(o, start, after(time.Hour), false))
		f.is(protect(catalog.KindTable, o.Ident(), true), catalog.ErrNoObject)
		f.is(label(catalog.KindTable, o.Ident(), `{}`), catalog.ErrNoObject)
	}},
	{"function metadata is replaced", func(f *fixture) {
		f.namespaces("a")
		o := f.created(catalog.KindFunction, "a", "fn")
		table := f.created(catalog.KindTable, "a", "t")
		set := func(id uuid.UUID) error {
			return f.update(func(tx catalog.Tx) error {
				return tx.SetFunctionMetadata(f.ctx, id, json.RawMessage(`{"v":2}`), after(time.Second))
			})
		}
		f.ok(set(o.ID))
		got, err := f.find(catalog.KindFunction, "a", "fn")
		f.ok(err)
		o.Metadata, o.UpdatedAt, o.Version = json.RawMessage(`{"v":2}`), after(time.Second), 2
		f.sameObject(got, o)
		f.is(set(uuid.New()), catalog.ErrNoObject)
		f.is(set(table.ID), catalog.ErrNoObject)
		f.ok(f.drop(o, start, time.Time{}, false))
		f.is(set(o.ID), catalog.ErrNoObject)
	}},
}
