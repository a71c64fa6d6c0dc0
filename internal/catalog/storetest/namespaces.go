// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

var namespaceChecks = []check{
	{"warehouse keeps its id", func(f *fixture) {
		equal(f, "second id", f.warehouse("main"), f.wh)
		if f.warehouse("other") == f.wh {
			f.Error("two warehouses share an id")
		}
		ids := make([]uuid.UUID, 20)
		for _, err := range together(len(ids), func(i int) (err error) {
			ids[i], err = f.store.EnsureWarehouse(f.ctx, "new")
			return err
		}) {
			f.ok(err)
		}
		for _, id := range ids {
			equal(f, "id", id, ids[0])
		}
	}},
	{"namespace comes back as stored", func(f *fixture) {
		rec := f.namespaceRecord("a")
		rec.Properties = map[string]string{"owner": "ünï", "": "empty", "q": `"'\`}
		rec.UpdatedAt = after(time.Second)
		f.do(func(tx catalog.Tx) error { return tx.CreateNamespace(f.ctx, rec) })
		got, err := f.store.Namespace(f.ctx, f.wh, rec.Namespace)
		f.ok(err)
		equal(f, "warehouse", got.Warehouse, f.wh)
		equal(f, "path", got.Namespace.Path(), "a")
		equal(f, "created", got.CreatedAt, rec.CreatedAt)
		equal(f, "updated", got.UpdatedAt, rec.UpdatedAt)
		if !maps.Equal(got.Properties, rec.Properties) {
			f.Errorf("properties are %v, want %v", got.Properties, rec.Properties)
		}
	}},
	{"the longest names fit", func(f *fixture) {
		// What a database could not compress into a smaller index row.
		random := rand.New(rand.NewPCG(1, 2))
		long := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte('!' + random.IntN('{'-'!'))
			}
			return string(b)
		}
		var ns catalog.Namespace
		for range 7 {
			ns = append(ns, long(255))
			f.ok(f.createNamespace(ns...))
		}
		ns = append(ns, long(2000-len(ns.Path())-1))
		f.ok(f.createNamespace(ns...))
		for _, kind := range []catalog.Kind{catalog.KindTable, catalog.KindView, catalog.KindFunction} {
			obj := f.object(kind, "", long(255))
			obj.Namespace = ns
			f.ok(f.create(obj, "s3://b/"+string('a'+rune(kind))))
			got, err := f.store.Object(f.ctx, f.wh, ns, obj.Name, kind)
			f.ok(err)
			equal(f, "id", got.ID, obj.ID)
		}
	}},
	{"namespace without properties has none, not nil", func(f *fixture) {
		rec := f.namespaceRecord("a")
		rec.Properties = nil
		f.do(func(tx catalog.Tx) error { return tx.CreateNamespace(f.ctx, rec) })
		got, err := f.store.Namespace(f.ctx, f.wh, rec.Namespace)
		f.ok(err)
		if got.Properties == nil {
			f.Error("properties are nil")
		}
	}},
	{"namespace is unique and needs its parent", func(f *fixture) {
		f.is(f.createNamespace("a", "b"), catalog.ErrNoNamespace)
		f.ok(f.createNamespace("a"))
		f.is(f.createNamespace("a"), catalog.ErrExists)
		f.ok(f.createNamespace("a", "b"))
		f.is(f.createNamespace("a", "b"), catalog.ErrExists)
		f.is(f.createNamespace("a", "x", "c"), catalog.ErrNoNamespace)
		f.ok(f.createNamespace("a", "b", "c"))
		f.is(f.createNamespace(), catalog.ErrExists)
		_, err := f.store.Namespace(f.ctx, f.wh, catalog.Namespace{"b"})
		f.is(err, catalog.ErrNoNamespace)
		_, err = f.store.Namespace(f.ctx, f.wh, nil)
		f.is(err, catalog.ErrNoNamespace)
	}},
	{"warehouses do not see each other", func(f *fixture) {
		f.namespaces("a")
		f.created(catalog.KindTable, "a", "t")
		other := &fixture{T: f.T, ctx: f.ctx, store: f.store, wh: f.warehouse("other")}
		_, err := other.store.Namespace(f.ctx, other.wh, catalog.Namespace{"a"})
		f.is(err, catalog.ErrNoNamespace)
		f.is(other.create(other.object(catalog.KindTable, "a", "t")), catalog.ErrNoNamespace)
		other.namespaces("a")
		_, err = other.find(catalog.KindTable, "a", "t")
		f.is(err, catalog.ErrNoObject)
		other.created(catalog.KindTable, "a", "t")
		f.do(func(tx catalog.Tx) error {
			_, err := tx.DropObject(f.ctx, other.wh, catalog.KindTable, catalog.Ident{Namespace: catalog.Namespace{"a"}, Name: "t"}, start, time.Time{}, false)
			return err
		})
		_, err = f.find(catalog.KindTable, "a", "t")
		f.ok(err)
	}},
	{"namespaces are listed by parent, in pages", func(f *fixture) {
		f.namespaces("b", "a", "B", "é", "a b")
		f.ok(f.createNamespace("a", "z"))
		f.ok(f.createNamespace("a", "y"))
		f.ok(f.createNamespace("a", "y", "x"))
		list := func(parent catalog.Namespace, page catalog.Page) (paths []string) {
			all, err := f.store.ListNamespaces(f.ctx, f.wh, parent, page)
			f.ok(err)
			for _, ns := range all {
				paths = append(paths, strings.Join(ns, "/"))
			}
			return paths
		}
		equalSlices(f, "top level", list(nil, catalog.Page{}), []string{"B", "a", "a b", "b", "é"})
		equalSlices(f, "children of a", list(catalog.Namespace{"a"}, catalog.Page{}), []string{"a/y", "a/z"})
		equalSlices(f, "children of b", list(catalog.Namespace{"b"}, catalog.Page{}), nil)
		equalSlices(f, "children of an absent one", list(catalog.Namespace{"absent"}, catalog.Page{}), nil)
		equalSlices(f, "first page", list(nil, catalog.Page{Limit: 2}), []string{"B", "a"})
		equalSlices(f, "second page", list(nil, catalog.Page{After: "a", Limit: 2}), []string{"a b", "b"})
		equalSlices(f, "last page", list(nil, catalog.Page{After: "b", Limit: 2}), []string{"é"})
		equalSlices(f, "page after a name that is gone", list(nil, catalog.Page{After: "aa"}), []string{"b", "é"})
	}},
	{"namespace properties are changed from what they are", func(f *fixture) {
		f.namespaces("a")
		change := func(key, value string) error {
			return f.update(func(tx catalog.Tx) error {
				return tx.UpdateNamespaceProperties(f.ctx, f.wh, catalog.Namespace{"a"}, after(time.Minute), func(p map[string]string) map[string]string {
					p[key] = value
					return p
				})
			})
		}
		f.ok(change("x", "1"))
		for _, err := range together(20, func(i int) error { return change(fmt.Sprint(i), "v") }) {
			f.ok(err)
		}
		got, err := f.store.Namespace(f.ctx, f.wh, catalog.Namespace{"a"})
		f.ok(err)
		equal(f, "number of properties", len(got.Properties), 21)
		equal(f, "updated", got.UpdatedAt, after(time.Minute))
		equal(f, "created", got.CreatedAt, start)
		f.is(f.update(func(tx catalog.Tx) error {
			return tx.UpdateNamespaceProperties(f.ctx, f.wh, catalog.Namespace{"absent"}, start, func(p map[string]string) map[string]string { return p })
		}), catalog.ErrNoNamespace)
	}},
	{"namespace is dropped only when empty", func(f *fixture) {
		drop := func(levels ...string) error {
			return f.update(func(tx catalog.Tx) error { return tx.DropNamespace(f.ctx, f.wh, levels) })
		}
		f.is(drop("a"), catalog.ErrNoNamespace)
		f.namespaces("a", "b")
		f.ok(f.createNamespace("a", "b"))
		f.is(drop("a"), catalog.ErrNotEmpty)
		f.ok(drop("a", "b"))
		for _, kind := range []catalog.Kind{catalog.KindTable, catalog.KindView, catalog.KindFunction} {
			o := f.created(kind, "a", "o")
			f.is(drop("a"), catalog.ErrNotEmpty)
			f.ok(f.drop(o, start, after(time.Hour), false))
			f.is(drop("a"), catalog.ErrHoldsDropped)
			live := f.created(kind, "a", "o")
			f.is(drop("a"), catalog.ErrNotEmpty)
			f.ok(f.drop(live, start, time.Time{}, false))
			_, err := f.store.Expire(f.ctx, after(time.Hour), time.Time{}, time.Time{}, 10)
			f.ok(err)
		}
		f.ok(drop("a"))
		f.is(drop("a"), catalog.ErrNoNamespace)
		_, err := f.store.Namespace(f.ctx, f.wh, catalog.Namespace{"b"})
		f.ok(err)
		f.ok(f.createNamespace("a"))
	}},
	{"names are bytes, not patterns", func(f *fixture) {
		f.namespaces(literalNames...)
		equalSlices(f, "namespaces", topLevel(f), sorted(literalNames))
		ids := map[string]uuid.UUID{}
		for _, name := range literalNames {
			ids[name] = f.created(catalog.KindTable, "a_b", name).ID
			f.is(f.create(f.object(catalog.KindView, "a_b", name)), catalog.ErrExists)
		}
		equalSlices(f, "tables", f.names(catalog.KindTable, "a_b"), sorted(literalNames))
		equalSlices(f, "tables of a namespace with a similar name", f.names(catalog.KindTable, "aXb"), nil)
		for _, name := range literalNames {
			got, err := f.find(catalog.KindTable, "a_b", name)
			f.ok(err)
			equal(f, "id of "+name, got.ID, ids[name])
		}
		for i, name := range sorted(literalNames) {
			got, err := f.find(catalog.KindTable, "a_b", name)
			f.ok(err)
			f.ok(f.drop(got, start, time.Time{}, false))
			equalSlices(f, "tables left", f.names(catalog.KindTable, "a_b"), sorted(literalNames)[i+1:])
		}
	}},
	{"of a name that cannot be stored there is nothing", func(f *fixture) {
		f.namespaces("a")
		for _, name := range []string{"a\x00", "\x00", "\xff\xfe", "a\xc3"} {
			_, err := f.find(catalog.KindTable, "a", name)
			f.is(err, catalog.ErrNoObject)
			_, err = f.store.Namespace(f.ctx, f.wh, catalog.Namespace{name})
			f.is(err, catalog.ErrNoNamespace)
		}
		_, err := f.find(catalog.KindTable, "a\x1f", "")
		f.is(err, catalog.ErrNoObject)
	}},
	{"listing is paged truly while names come and go", func(f *fixture) {
		f.namespaces("a")
		testPaging(f, func(page catalog.Page) ([]string, error) {
			return f.store.ListObjects(f.ctx, f.wh, catalog.Namespace{"a"}, catalog.KindTable, page)
		}, func(name string) error {
			return f.create(f.object(catalog.KindTable, "a", name))
		}, func(name string) error {
			o := f.object(catalog.KindTable, "a", name)
			return f.drop(o, start, time.Time{}, false)
		})
	}},
	{"namespace listing is paged truly while names come and go", func(f *fixture) {
		testPaging(f, func(page catalog.Page) (names []string, err error) {
			all, err := f.store.ListNamespaces(f.ctx, f.wh, nil, page)
			for _, ns := range all {
				names = append(names, ns[0])
			}
			return names, err
		}, func(name string) error {
			return f.createNamespace(name)
		}, func(name string) error {
			return f.update(func(tx catalog.Tx) error { return tx.DropNamespace(f.ctx, f.wh, catalog.Namespace{name}) })
		})
	}},
}

// literalNames would be confused by patterns, folding, trimming,
// normalisation or quoting.
var literalNames = []string{
	"a_b", "aXb", "a%b", "%", "_", "ab", "AB", "Ab", "a b", "ab ", " ab", "ab.", "a'b", `a"b`, `a\b`, "a;--", "a/b", "*",
	"caf\u00e9", "cafe\u0301", // NFC and NFD
	"\u0430b",              // a Cyrillic letter that looks like a
	"\U0001F9CA", "\uffef", // beyond and at the end of the basic plane: bytewise order differs from UTF-16's
	"ß", "SS", "İ", "i̇", "null", "0", "00",
}

func topLevel(f *fixture) (names []string) {
	f.Helper()
	all, err := f.store.ListNamespaces(f.ctx, f.wh, nil, catalog.Page{})
	f.ok(err)
	for _, ns := range all {
		names = append(names, ns[0])
	}
	return names
}

// testPaging walks through pages again and again while other names are
// created and dropped between, before and after the ones that stay.
func testPaging(f *fixture, list func(catalog.Page) ([]string, error), create, drop func(string) error) {
	var stay []string
	for i := range 30 {
		stay = append(stay, fmt.Sprintf("n%02d", i))
		f.ok(create(stay[i]))
	}
	stop := make(chan struct{})
	churned := make(chan error, 1)
	go func() {
		churned <- func() error {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				name := fmt.Sprintf("n%02dx", i%30)
				if err := create(name); err != nil {
					return err
				}
				if err := drop(name); err != nil {
					return err
				}
			}
		}()
	}()
	for walk := range 20 {
		var seen []string
		var page catalog.Page
		page.Limit = 1 + walk%7
		for {
			names, err := list(page)
			f.ok(err)
			if len(names) > page.Limit {
				f.Fatalf("page of %d names, limit %d", len(names), page.Limit)
			}
			seen = append(seen, names...)
			if len(names) < page.Limit {
				break
			}
			page.After = names[len(names)-1]
		}
		var stayed []string
		for i, name := range seen {
			if i > 0 && seen[i-1] >= name {
				f.Fatalf("%q follows %q", name, seen[i-1])
			}
			if !strings.HasSuffix(name, "x") {
				stayed = append(stayed, name)
			}
		}
		equalSlices(f, "names that were there all the time", stayed, stay)
	}
	close(stop)
	f.ok(<-churned)
}
