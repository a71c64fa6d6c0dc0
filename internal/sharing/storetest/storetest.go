// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package storetest is the conformance suite of sharing.Store: whatever the
// comments of that interface promise is tried here, and every engine runs all
// of it.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
)

// Open returns a new, empty, migrated store with the catalog's of the same
// database, and closes both when the test ends.
type Open func(t *testing.T) (sharing.Store, catalog.Store)

// Run runs the suite. Each test has a store of its own.
func Run(t *testing.T, open Open) {
	for name, run := range map[string]func(f *fixture){
		"organisations": organisations, "principals": principals, "service accounts": serviceAccounts, "warehouses": warehouses,
		"shares": shares, "members": members, "members go with what they are bound to": cascades, "recipients": recipients,
		"activations": activations, "grants": grants, "warnings": warnings, "policies": policies, "records": records,
		"a failed write is never committed": failures, "one of many wins": races, "an owner is held": held,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{T: t, ctx: t.Context()}
			f.store, f.catalog = open(t)
			run(f)
		})
	}
}

type fixture struct {
	*testing.T
	ctx     context.Context
	store   sharing.Store
	catalog catalog.Store
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)

func stamp() sharing.Stamp { return sharing.Stamp{Version: 1, CreatedAt: start, UpdatedAt: start} }

func next(s sharing.Stamp) sharing.Stamp {
	return sharing.Stamp{Version: s.Version + 1, CreatedAt: s.CreatedAt, UpdatedAt: start.Add(time.Hour)}
}

func (f *fixture) do(fn func(tx sharing.Tx) error) {
	f.Helper()
	if err := f.store.Update(f.ctx, fn); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) fails(want error, fn func(tx sharing.Tx) error) {
	f.Helper()
	if err := f.store.Update(f.ctx, fn); !errors.Is(err, want) {
		f.Errorf("error is %v, want %v", err, want)
	}
}

func equal[T any](f *fixture, what string, got T, err error, want T) {
	f.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		f.Errorf("%s:\n got %+v, %v\nwant %+v", what, got, err, want)
	}
}

// noun is what all stamped rows have in common.
type noun[T any] struct {
	put    func(sharing.Tx, T) error
	remove func(sharing.Tx) error
	get    func(sharing.Reader) (T, error)
	stamp  func(*T) *sharing.Stamp
	change func(*T)
}

// life is the life of a row: it is put, kept as it is, put again with the next
// version only, and deleted.
func life[T any](f *fixture, v T, n noun[T]) {
	f.Helper()
	f.do(func(tx sharing.Tx) error { return n.put(tx, v) })
	got, err := n.get(f.store)
	equal(f, "after it was put", got, err, v)
	f.fails(sharing.ErrExists, func(tx sharing.Tx) error { return n.put(tx, v) })
	skipped := v
	n.stamp(&skipped).Version += 2
	f.fails(sharing.ErrStale, func(tx sharing.Tx) error { return n.put(tx, skipped) })
	changed := v
	*n.stamp(&changed) = next(*n.stamp(&changed))
	n.change(&changed)
	f.do(func(tx sharing.Tx) error {
		if err := n.put(tx, changed); err != nil {
			return err
		}
		got, err := n.get(tx)
		equal(f, "in its transaction", got, err, changed)
		return nil
	})
	got, err = n.get(f.store)
	equal(f, "after it was changed", got, err, changed)
	f.fails(sharing.ErrStale, func(tx sharing.Tx) error { return n.put(tx, changed) })
	if n.remove == nil {
		return
	}
	f.do(func(tx sharing.Tx) error { return n.remove(tx) })
	if _, err := n.get(f.store); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("after it was deleted: %v", err)
	}
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { return n.remove(tx) })
}

// pages holds a listing to its order and its bounds, two rows at a time.
func pages[T any](f *fixture, want []string, key func(T) string, list func(sharing.Page) ([]T, error)) {
	f.Helper()
	var got []string
	page := sharing.Page{Limit: 2}
	for range len(want) + 1 {
		all, err := list(page)
		if err != nil || len(all) > 2 {
			f.Fatalf("%d rows, %v", len(all), err)
		}
		for _, v := range all {
			got = append(got, key(v))
		}
		if len(all) < 2 {
			break
		}
		page.After = key(all[1])
	}
	if !slices.Equal(got, want) {
		f.Errorf("listed %q, want %q", got, want)
	}
	all, err := list(sharing.Page{})
	if err != nil || len(all) != len(want) {
		f.Errorf("without a limit %d rows, %v; want %d", len(all), err, len(want))
	}
}

func (f *fixture) organisation(name string) {
	f.Helper()
	f.do(func(tx sharing.Tx) error {
		return tx.PutOrganisation(f.ctx, sharing.Organisation{Name: name, ID: uuid.New(), Stamp: stamp()})
	})
}

func organisations(f *fixture) {
	life(f, sharing.Organisation{Name: "acme", ID: uuid.New(), DisplayName: "Acme, Inc. ☃", Contact: "ops@acme.example", Stamp: stamp()}, noun[sharing.Organisation]{
		put:    func(tx sharing.Tx, o sharing.Organisation) error { return tx.PutOrganisation(f.ctx, o) },
		remove: func(tx sharing.Tx) error { return tx.DeleteOrganisation(f.ctx, "acme") },
		get:    func(r sharing.Reader) (sharing.Organisation, error) { return r.Organisation(f.ctx, "acme") },
		stamp:  func(o *sharing.Organisation) *sharing.Stamp { return &o.Stamp },
		change: func(o *sharing.Organisation) { o.Contact = "" },
	})
	for _, name := range []string{"b", "a-b", "a", "c", "a0"} {
		f.organisation(name)
	}
	pages(f, []string{"a", "a-b", "a0", "b", "c"}, func(o sharing.Organisation) string { return o.Name }, func(p sharing.Page) ([]sharing.Organisation, error) { return f.store.Organisations(f.ctx, p) })
}

func principals(f *fixture) {
	life(f, sharing.Principal{ID: "corp:alice", Organisation: "acme", DisplayName: "Alice", Admin: true, Stamp: stamp()}, noun[sharing.Principal]{
		put:    func(tx sharing.Tx, p sharing.Principal) error { return tx.PutPrincipal(f.ctx, p) },
		remove: func(tx sharing.Tx) error { return tx.DeletePrincipal(f.ctx, "acme", "corp:alice") },
		get:    func(r sharing.Reader) (sharing.Principal, error) { return r.Principal(f.ctx, "acme", "corp:alice") },
		stamp:  func(p *sharing.Principal) *sharing.Stamp { return &p.Stamp },
		change: func(p *sharing.Principal) { p.Admin, p.Disabled = false, true },
	})
	for i, id := range []string{"x:4", "x:1", "x:3", "x:2"} {
		f.do(func(tx sharing.Tx) error {
			return tx.PutPrincipal(f.ctx, sharing.Principal{ID: id, Organisation: []string{"acme", "acme", "other", "acme"}[i], Stamp: stamp()})
		})
	}
	key := func(p sharing.Principal) string { return sharing.Key(p.Organisation, p.ID) }
	// Another organisation's record of the same principal is another one.
	f.do(func(tx sharing.Tx) error {
		return tx.PutPrincipal(f.ctx, sharing.Principal{ID: "x:1", Organisation: "other", Stamp: stamp()})
	})
	mine := []string{sharing.Key("acme", "x:1"), sharing.Key("acme", "x:2"), sharing.Key("acme", "x:4")}
	pages(f, append(slices.Clone(mine), sharing.Key("other", "x:1"), sharing.Key("other", "x:3")), key, func(p sharing.Page) ([]sharing.Principal, error) { return f.store.Principals(f.ctx, "", p) })
	pages(f, mine, key, func(p sharing.Page) ([]sharing.Principal, error) { return f.store.Principals(f.ctx, "acme", p) })
}

func serviceAccounts(f *fixture) {
	life(f, sharing.ServiceAccount{ClientID: "etl", Organisation: "acme", Secrets: []sharing.AccountSecret{}, Stamp: stamp()}, noun[sharing.ServiceAccount]{
		put:    func(tx sharing.Tx, a sharing.ServiceAccount) error { return tx.PutServiceAccount(f.ctx, a) },
		remove: func(tx sharing.Tx) error { return tx.DeleteServiceAccount(f.ctx, "etl") },
		get:    func(r sharing.Reader) (sharing.ServiceAccount, error) { return r.ServiceAccount(f.ctx, "etl") },
		stamp:  func(a *sharing.ServiceAccount) *sharing.Stamp { return &a.Stamp },
		change: func(a *sharing.ServiceAccount) {
			a.Secrets = []sharing.AccountSecret{{ID: "1", Hash: "$argon2id$…", CreatedAt: start, ExpiresAt: start.Add(time.Hour)}, {ID: "2", CreatedAt: start}}
		},
	})
	for _, id := range []string{"c", "b", "a"} {
		f.do(func(tx sharing.Tx) error {
			return tx.PutServiceAccount(f.ctx, sharing.ServiceAccount{ClientID: id, Organisation: "acme", Stamp: stamp()})
		})
	}
	pages(f, []string{"a", "b", "c"}, func(a sharing.ServiceAccount) string { return a.ClientID }, func(p sharing.Page) ([]sharing.ServiceAccount, error) {
		return f.store.ServiceAccounts(f.ctx, "acme", p)
	})
}

// warehouse makes a warehouse of the catalog and its profile.
func (f *fixture) warehouse(name, organisation string) sharing.Warehouse {
	f.Helper()
	id, err := f.store.EnsureWarehouse(f.ctx, name)
	if err != nil {
		f.Fatal(err)
	}
	w := sharing.Warehouse{Name: name, ID: id, Organisation: organisation, Storage: sharing.Storage{Root: "file:///" + name}, Source: sharing.SourceAPI, Stamp: stamp()}
	f.do(func(tx sharing.Tx) error { return tx.PutWarehouse(f.ctx, w) })
	return w
}

func warehouses(f *fixture) {
	id, err := f.store.EnsureWarehouse(f.ctx, "main")
	if err != nil {
		f.Fatal(err)
	}
	life(f, sharing.Warehouse{
		Name: "main", ID: id, Organisation: "acme", Source: sharing.SourceConfiguration, Stamp: stamp(),
		Storage: sharing.Storage{Root: "s3://b/p", AllowedRoots: []string{"s3://c"}, Region: "eu", PathStyle: true, Secrets: map[string]string{"a": "env:A"}},
	}, noun[sharing.Warehouse]{
		put:    func(tx sharing.Tx, w sharing.Warehouse) error { return tx.PutWarehouse(f.ctx, w) },
		remove: func(tx sharing.Tx) error { return tx.DeleteWarehouse(f.ctx, "main") },
		get:    func(r sharing.Reader) (sharing.Warehouse, error) { return r.WarehouseByID(f.ctx, id) },
		stamp:  func(w *sharing.Warehouse) *sharing.Stamp { return &w.Stamp },
		change: func(w *sharing.Warehouse) { w.Organisation, w.Storage.Secrets = "", nil },
	})
	w := f.warehouse("w2", "acme")
	f.warehouse("w1", "")
	got, err := f.store.Warehouse(f.ctx, "w2")
	equal(f, "by name", got, err, w)
	key := func(w sharing.Warehouse) string { return w.Name }
	pages(f, []string{"w1", "w2"}, key, func(p sharing.Page) ([]sharing.Warehouse, error) { return f.store.Warehouses(f.ctx, "", p) })
	pages(f, []string{"w2"}, key, func(p sharing.Page) ([]sharing.Warehouse, error) { return f.store.Warehouses(f.ctx, "acme", p) })
	for _, c := range []struct {
		org  string
		want bool
	}{{"acme", true}, {"nobody", false}} {
		owns, err := f.store.Owns(f.ctx, c.org)
		equal(f, "what "+c.org+" owns", owns, err, c.want)
	}
	some, err := f.store.HasNamespaces(f.ctx, w.ID)
	equal(f, "an empty warehouse", some, err, false)
	f.namespace(w.ID, "a")
	some, err = f.store.HasNamespaces(f.ctx, w.ID)
	equal(f, "a warehouse with a namespace", some, err, true)
}

func (f *fixture) share(name string) sharing.Share {
	f.Helper()
	sh := sharing.Share{Name: name, ID: uuid.Must(uuid.NewV7()), Organisation: "acme", OnDrop: sharing.OnDropBlock, Stamp: stamp()}
	f.do(func(tx sharing.Tx) error { return tx.PutShare(f.ctx, sh) })
	sh.Revision = 1
	return sh
}

func (f *fixture) revision(name string) int64 {
	f.Helper()
	sh, err := f.store.ShareHead(f.ctx, name)
	if err != nil {
		f.Fatal(err)
	}
	return sh.Revision
}

func shares(f *fixture) {
	sh := sharing.Share{Name: "sales", ID: uuid.New(), Organisation: "acme", DisplayName: "Sales", Description: "two\nlines", OnDrop: sharing.OnDropRemove, Stamp: stamp()}
	plain := func(s sharing.Share, err error) (sharing.Share, error) { s.Revision = 0; return s, err }
	life(f, sh, noun[sharing.Share]{
		put:    func(tx sharing.Tx, s sharing.Share) error { return tx.PutShare(f.ctx, s) },
		remove: func(tx sharing.Tx) error { return tx.DeleteShare(f.ctx, sh.ID) },
		get:    func(r sharing.Reader) (sharing.Share, error) { return plain(r.Share(f.ctx, "sales")) },
		stamp:  func(s *sharing.Share) *sharing.Stamp { return &s.Stamp },
		change: func(s *sharing.Share) { s.OnDrop, s.Description = sharing.OnDropBlock, "" },
	})
	one := f.share("one")
	f.share("two")
	f.share("ten")
	pages(f, []string{"one", "ten", "two"}, func(s sharing.Share) string { return s.Name }, func(p sharing.Page) ([]sharing.Share, error) { return f.store.Shares(f.ctx, "acme", p) })
	before := f.revision("one")
	f.do(func(tx sharing.Tx) error { return tx.TouchShares(f.ctx, one.ID, uuid.Nil) })
	if now := f.revision("one"); now <= before {
		f.Errorf("revision %d after %d", now, before)
	}
	// The revision is the store's own.
	one.Stamp, one.Revision = next(one.Stamp), -5
	before = f.revision("one")
	f.do(func(tx sharing.Tx) error { return tx.PutShare(f.ctx, one) })
	if now := f.revision("one"); now <= before {
		f.Errorf("revision %d after %d", now, before)
	}
	f.do(func(tx sharing.Tx) error {
		got, err := tx.HoldShare(f.ctx, "one")
		if err != nil || got.Version != 2 {
			f.Errorf("held %+v, %v", got, err)
		}
		return nil
	})
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { _, err := tx.HoldShare(f.ctx, "none"); return err })
}

func (f *fixture) namespace(wh uuid.UUID, levels ...string) {
	f.Helper()
	if err := f.catalog.Update(f.ctx, func(tx catalog.Tx) error {
		return tx.CreateNamespace(f.ctx, catalog.NamespaceRecord{Warehouse: wh, Namespace: levels, Properties: map[string]string{}, CreatedAt: start, UpdatedAt: start})
	}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) object(wh uuid.UUID, kind catalog.Kind, ns catalog.Namespace, name string) catalog.Object {
	f.Helper()
	o := catalog.Object{
		ID: uuid.Must(uuid.NewV7()), Warehouse: wh, Kind: kind, Namespace: ns, Name: name, UUID: uuid.New(),
		Location: "file:///" + name, MetadataLocation: "file:///" + name + "/metadata.json", CreatedAt: start, UpdatedAt: start,
	}
	if err := f.catalog.Update(f.ctx, func(tx catalog.Tx) error { return tx.CreateObject(f.ctx, o, []string{o.Location}) }); err != nil {
		f.Fatal(err)
	}
	return o
}

func memberOf(sh sharing.Share, o catalog.Object, alias ...string) sharing.Member {
	return sharing.Member{
		ID: uuid.Must(uuid.NewV7()), Share: sh.ID, Kind: sharing.MemberKind(o.Kind), Warehouse: o.Warehouse, Namespace: o.Namespace, Name: o.Name,
		Object: o.ID, UUID: o.UUID, AliasNamespace: alias[:len(alias)-1], Alias: alias[len(alias)-1], CreatedAt: start,
	}
}

func wholeOf(sh sharing.Share, wh uuid.UUID, ns catalog.Namespace, alias ...string) sharing.Member {
	return sharing.Member{ID: uuid.Must(uuid.NewV7()), Share: sh.ID, Kind: sharing.MemberNamespace, Warehouse: wh, Namespace: ns, AliasNamespace: alias, CreatedAt: start}
}

func members(f *fixture) {
	w := f.warehouse("main", "acme")
	f.namespace(w.ID, "a")
	f.namespace(w.ID, "a", "b")
	table, view := f.object(w.ID, catalog.KindTable, catalog.Namespace{"a"}, "t"), f.object(w.ID, catalog.KindView, catalog.Namespace{"a", "b"}, "v")
	one, two := f.share("one"), f.share("two")
	add := func(m sharing.Member) func(tx sharing.Tx) error {
		return func(tx sharing.Tx) error { return tx.AddMember(f.ctx, m) }
	}
	shown, deep, whole := memberOf(one, table, "x", "t"), memberOf(one, view, "x", "deep", "v"), wholeOf(one, w.ID, catalog.Namespace{"a"}, "everything")
	f.do(add(shown))
	f.do(add(deep))
	f.do(add(whole))
	f.do(add(memberOf(two, table, "x", "t")))
	for _, m := range []sharing.Member{shown, deep, whole} {
		got, err := f.store.Member(f.ctx, one.ID, m.ID)
		equal(f, "a member", got, err, m)
	}
	if _, err := f.store.Member(f.ctx, two.ID, shown.ID); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("another share's member: %v", err)
	}
	all, err := f.store.Members(f.ctx, one.ID, sharing.Page{})
	equal(f, "all members", all, err, []sharing.Member{whole, shown, deep})
	pages(f, []string{whole.ID.String(), shown.ID.String(), deep.ID.String()}, func(m sharing.Member) string { return m.ID.String() }, func(p sharing.Page) ([]sharing.Member, error) {
		for _, m := range all {
			if p.After == m.ID.String() {
				p.After = sharing.Key(append(slices.Clone(m.AliasNamespace), m.Alias)...)
			}
		}
		return f.store.Members(f.ctx, one.ID, p)
	})
	got, err := f.store.Share(f.ctx, "one")
	equal(f, "the number of members", got.Members, err, 3)

	f.fails(sharing.ErrExists, add(memberOf(one, table, "other", "t"))) // the object is there
	f.fails(sharing.ErrExists, add(memberOf(one, f.object(w.ID, catalog.KindTable, catalog.Namespace{"a"}, "u"), "x", "t")))
	f.fails(sharing.ErrExists, add(wholeOf(one, w.ID, catalog.Namespace{"a", "b"}, "everything")))
	f.fails(sharing.ErrExists, add(wholeOf(one, w.ID, catalog.Namespace{"a"}, "again")))
	f.fails(sharing.ErrNotFound, add(wholeOf(one, w.ID, catalog.Namespace{"nowhere"}, "nowhere")))
	gone := table
	gone.ID = uuid.New()
	f.fails(sharing.ErrNotFound, add(memberOf(one, gone, "x", "gone")))

	of, err := f.store.MembersOf(f.ctx, table.ID)
	if err != nil || len(of) != 2 {
		f.Errorf("members that are the table: %d, %v", len(of), err)
	}
	are, err := f.store.MembersWhole(f.ctx, w.ID, catalog.Namespace{"a"})
	equal(f, "members that are the namespace", are, err, []sharing.Member{whole})
	some, err := f.store.SharesFrom(f.ctx, w.ID)
	equal(f, "whether the warehouse is shared from", some, err, true)
	some, err = f.store.SharesFrom(f.ctx, uuid.New())
	equal(f, "whether another is", some, err, false)

	f.do(func(tx sharing.Tx) error { return tx.MoveMember(f.ctx, shown.ID, catalog.Namespace{"a", "b"}, "moved") })
	shown.Namespace, shown.Name = catalog.Namespace{"a", "b"}, "moved"
	moved, err := f.store.Member(f.ctx, one.ID, shown.ID)
	equal(f, "a moved member", moved, err, shown)
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { return tx.DeleteMember(f.ctx, two.ID, shown.ID) })
	f.do(func(tx sharing.Tx) error { return tx.DeleteMember(f.ctx, one.ID, shown.ID) })
	f.do(func(tx sharing.Tx) error { return tx.DeleteShare(f.ctx, one.ID) })
	if left, err := f.store.MembersWhole(f.ctx, w.ID, catalog.Namespace{"a"}); err != nil || len(left) != 0 {
		f.Errorf("members of a share that is gone: %v, %v", left, err)
	}
}

// cascades: whatever drops an object, also what knows nothing of shares,
// leaves no member that something else could be taken for.
func cascades(f *fixture) {
	w := f.warehouse("main", "acme")
	f.namespace(w.ID, "a")
	f.namespace(w.ID, "empty")
	table, soft := f.object(w.ID, catalog.KindTable, catalog.Namespace{"a"}, "t"), f.object(w.ID, catalog.KindTable, catalog.Namespace{"a"}, "soft")
	sh := f.share("one")
	f.do(func(tx sharing.Tx) error { return tx.AddMember(f.ctx, memberOf(sh, table, "a", "t")) })
	f.do(func(tx sharing.Tx) error {
		return tx.AddMember(f.ctx, wholeOf(sh, w.ID, catalog.Namespace{"empty"}, "empty"))
	})
	if err := f.catalog.Update(f.ctx, func(tx catalog.Tx) error {
		if _, err := tx.DropObject(f.ctx, w.ID, catalog.KindTable, table.Ident(), start, time.Time{}, false); err != nil {
			return err
		}
		if _, err := tx.DropObject(f.ctx, w.ID, catalog.KindTable, soft.Ident(), start, start.Add(time.Hour), false); err != nil {
			return err
		}
		return tx.DropNamespace(f.ctx, w.ID, catalog.Namespace{"empty"})
	}); err != nil {
		f.Fatal(err)
	}
	if left, err := f.store.Members(f.ctx, sh.ID, sharing.Page{}); err != nil || len(left) != 0 {
		f.Errorf("left are %v, %v", left, err)
	}
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { return tx.AddMember(f.ctx, memberOf(sh, soft, "a", "soft")) })
	if _, err := f.store.ObjectByID(f.ctx, w.ID, soft.ID); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("a dropped object: %v", err)
	}
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { return tx.HoldObject(f.ctx, w.ID, table.ID) })
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error {
		return tx.HoldNamespace(f.ctx, w.ID, catalog.Namespace{"empty"})
	})
	f.do(func(tx sharing.Tx) error {
		return errors.Join(tx.HoldObject(f.ctx, w.ID, soft.ID), tx.HoldNamespace(f.ctx, w.ID, catalog.Namespace{"a"}))
	})
}

func (f *fixture) recipient(name string) sharing.Recipient {
	f.Helper()
	r := sharing.Recipient{
		ID: uuid.Must(uuid.NewV7()), Provider: "acme", Name: name, Binding: sharing.Binding{Kind: sharing.BoundByToken, Issuer: "corp", Claim: "organisation", Value: name}, Stamp: stamp(),
	}
	f.do(func(tx sharing.Tx) error { return tx.PutRecipient(f.ctx, r) })
	return r
}

func recipients(f *fixture) {
	r := sharing.Recipient{
		ID: uuid.New(), Provider: "acme", Name: "globex", DisplayName: "Globex", Organisation: "globex",
		Binding: sharing.Binding{Kind: sharing.BoundByActivation, LinkExpires: start.Add(time.Hour)}, Stamp: stamp(),
	}
	life(f, r, noun[sharing.Recipient]{
		put:    func(tx sharing.Tx, r sharing.Recipient) error { return tx.PutRecipient(f.ctx, r) },
		remove: func(tx sharing.Tx) error { return tx.DeleteRecipient(f.ctx, r.ID) },
		get:    func(rd sharing.Reader) (sharing.Recipient, error) { return rd.Recipient(f.ctx, "acme", "globex") },
		stamp:  func(r *sharing.Recipient) *sharing.Stamp { return &r.Stamp },
		change: func(r *sharing.Recipient) {
			r.Disabled, r.Binding = true, sharing.Binding{Kind: sharing.BoundByActivation, Issuer: "corp", Claim: "subject", Value: "alice", LinkExpires: start, ActivatedAt: start}
		},
	})
	b := f.recipient("b")
	f.recipient("a")
	f.recipient("c")
	same := b
	same.ID = uuid.New()
	f.fails(sharing.ErrExists, func(tx sharing.Tx) error { return tx.PutRecipient(f.ctx, same) })
	same.Provider = "other"
	f.do(func(tx sharing.Tx) error { return tx.PutRecipient(f.ctx, same) })
	key := func(r sharing.Recipient) string { return sharing.Key(r.Provider, r.Name) }
	pages(f, []string{sharing.Key("acme", "a"), sharing.Key("acme", "b"), sharing.Key("acme", "c"), sharing.Key("other", "b")}, key, func(p sharing.Page) ([]sharing.Recipient, error) {
		return f.store.Recipients(f.ctx, "", p)
	})
	pages(f, []string{sharing.Key("acme", "a"), sharing.Key("acme", "b"), sharing.Key("acme", "c")}, key, func(p sharing.Page) ([]sharing.Recipient, error) {
		return f.store.Recipients(f.ctx, "acme", p)
	})
	got, err := f.store.RecipientByID(f.ctx, b.ID)
	equal(f, "by its id", got, err, b)
	ids, err := f.store.RecipientsBound(f.ctx, "corp", "organisation", "b")
	if err != nil || len(ids) != 2 || !slices.Contains(ids, b.ID) || !slices.Contains(ids, same.ID) {
		f.Errorf("bound are %v, %v", ids, err)
	}
	for _, key := range [][3]string{{"corp", "organisation", "B"}, {"corp", "subject", "b"}, {"", "organisation", "b"}} {
		if ids, err := f.store.RecipientsBound(f.ctx, key[0], key[1], key[2]); err != nil || len(ids) != 0 {
			f.Errorf("bound by %v are %v, %v", key, ids, err)
		}
	}
}

func activations(f *fixture) {
	r := f.recipient("r")
	a := identity.Activation{ID: "one", Sum: [32]byte{1, 2, 3}, Recipient: r.ID.String(), Organisation: "globex", Created: start.Truncate(time.Second), Expires: start.Truncate(time.Second).Add(time.Hour)}
	f.do(func(tx sharing.Tx) error { return tx.AddActivation(f.ctx, a) })
	f.fails(sharing.ErrExists, func(tx sharing.Tx) error { return tx.AddActivation(f.ctx, a) })
	got, err := f.store.Activation(f.ctx, "one")
	equal(f, "a link", got, err, a)
	b := a
	b.ID = "two"
	f.do(func(tx sharing.Tx) error { return tx.AddActivation(f.ctx, b) })
	by := identity.Binding{Issuer: "corp", Subject: "alice"}
	f.do(func(tx sharing.Tx) error { return tx.SpendActivation(f.ctx, "one", by, start) })
	f.fails(sharing.ErrStale, func(tx sharing.Tx) error { return tx.SpendActivation(f.ctx, "one", by, start) })
	f.fails(sharing.ErrStale, func(tx sharing.Tx) error { return tx.SpendActivation(f.ctx, "none", by, start) })
	f.do(func(tx sharing.Tx) error { return tx.VoidActivations(f.ctx, r.ID) })
	got, err = f.store.Activation(f.ctx, "one")
	a.UsedBy, a.Used = by, start
	equal(f, "a spent link", got, err, a)
	if _, err := f.store.Activation(f.ctx, "two"); !errors.Is(err, identity.ErrActivationUnknown) {
		f.Errorf("a void link: %v", err)
	}
	f.do(func(tx sharing.Tx) error { return tx.DeleteRecipient(f.ctx, r.ID) })
	if _, err := f.store.Activation(f.ctx, "one"); !errors.Is(err, identity.ErrActivationUnknown) {
		f.Errorf("a link of a recipient that is gone: %v", err)
	}
}

func (f *fixture) grant(sh sharing.Share, r sharing.Recipient) sharing.Grant {
	f.Helper()
	g := sharing.Grant{ID: uuid.Must(uuid.NewV7()), Share: sh.ID, Recipient: r.ID, Provider: r.Provider, Stamp: stamp()}
	f.do(func(tx sharing.Tx) error { return tx.PutGrant(f.ctx, g) })
	g.ShareName, g.RecipientName = sh.Name, r.Name
	return g
}

func grants(f *fixture) {
	sh, other, r := f.share("sales"), f.share("other"), f.recipient("r")
	g := sharing.Grant{
		ID: uuid.Must(uuid.NewV7()), Share: sh.ID, Recipient: r.ID, ShareName: "sales", RecipientName: "r", Provider: "acme", Comment: "why", ExpiresAt: start.Add(time.Hour),
		Conditions: sharing.Conditions{NotBefore: start, Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}, Groups: []string{"corp:a"}, Kinds: []string{"token"}},
		Terms:      "Do not\nshare.", Stamp: stamp(),
	}
	life(f, g, noun[sharing.Grant]{
		put:    func(tx sharing.Tx, g sharing.Grant) error { return tx.PutGrant(f.ctx, g) },
		remove: func(tx sharing.Tx) error { return tx.DeleteGrant(f.ctx, g.ID) },
		get:    func(rd sharing.Reader) (sharing.Grant, error) { return rd.Grant(f.ctx, g.ID) },
		stamp:  func(g *sharing.Grant) *sharing.Stamp { return &g.Stamp },
		change: func(g *sharing.Grant) {
			g.AcceptedBy, g.AcceptedAt, g.RevokedAt, g.RevokeReason, g.Conditions = "corp:alice", start, start, "over", sharing.Conditions{}
		},
	})
	q := f.recipient("q")
	a, b, c := f.grant(sh, r), f.grant(other, r), f.grant(sh, q)
	key := func(g sharing.Grant) string { return g.ID.String() }
	for _, one := range []struct {
		filter sharing.GrantFilter
		want   []string
	}{
		{sharing.GrantFilter{}, []string{key(a), key(b), key(c)}},
		{sharing.GrantFilter{Provider: "acme"}, []string{key(a), key(b), key(c)}},
		{sharing.GrantFilter{Provider: "nobody"}, nil},
		{sharing.GrantFilter{Share: sh.ID}, []string{key(a), key(c)}},
		{sharing.GrantFilter{Recipient: r.ID}, []string{key(a), key(b)}},
		{sharing.GrantFilter{Provider: "acme", Share: sh.ID, Recipient: q.ID}, []string{key(c)}},
	} {
		pages(f, one.want, key, func(p sharing.Page) ([]sharing.Grant, error) { return f.store.Grants(f.ctx, one.filter, p) })
	}
	before := []int64{f.revision("sales"), f.revision("other")}
	f.do(func(tx sharing.Tx) error { return tx.TouchShares(f.ctx, uuid.Nil, q.ID) })
	if now := []int64{f.revision("sales"), f.revision("other")}; now[0] <= before[0] || now[1] != before[1] {
		f.Errorf("revisions %v after %v", now, before)
	}
	f.do(func(tx sharing.Tx) error { return tx.DeleteShare(f.ctx, other.ID) })
	f.do(func(tx sharing.Tx) error { return tx.DeleteRecipient(f.ctx, q.ID) })
	pages(f, []string{key(a)}, key, func(p sharing.Page) ([]sharing.Grant, error) {
		return f.store.Grants(f.ctx, sharing.GrantFilter{}, p)
	})
	stray := sharing.Grant{ID: uuid.New(), Share: uuid.New(), Recipient: r.ID, Stamp: stamp()}
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { return tx.PutGrant(f.ctx, stray) })
}

func warnings(f *fixture) {
	sh, other := f.share("sales"), f.share("other")
	for i := range 5 {
		f.do(func(tx sharing.Tx) error {
			w := sharing.Warning{Time: start, Organisation: "acme", Share: sh.ID, Reason: "R", Message: fmt.Sprint(i), Object: "o", Principal: "p"}
			if i == 2 {
				w.Share = other.ID
			}
			return tx.PutWarning(f.ctx, w)
		})
	}
	messages := func(share uuid.UUID, organisation string) (out []string) {
		page := sharing.Page{Limit: 2}
		for {
			all, err := f.store.Warnings(f.ctx, share, organisation, page)
			if err != nil {
				f.Fatal(err)
			}
			for _, w := range all {
				if w.ShareName == "" || !w.Time.Equal(start) || w.Principal != "p" {
					f.Errorf("a warning: %+v", w)
				}
				out = append(out, w.Message)
			}
			if len(all) < 2 {
				return out
			}
			page.After = fmt.Sprint(all[1].ID)
		}
	}
	if got := messages(sh.ID, ""); !slices.Equal(got, []string{"4", "3", "1", "0"}) {
		f.Errorf("of a share: %q", got)
	}
	if got := messages(uuid.Nil, "acme"); !slices.Equal(got, []string{"4", "3", "2", "1", "0"}) {
		f.Errorf("of an organisation: %q", got)
	}
	if got := messages(uuid.Nil, "nobody"); len(got) != 0 {
		f.Errorf("of another: %q", got)
	}
	f.do(func(tx sharing.Tx) error { return tx.DeleteShare(f.ctx, sh.ID) })
	if all, err := f.store.Warnings(f.ctx, sh.ID, "", sharing.Page{}); err != nil || len(all) != 4 || all[0].ShareName != "" {
		f.Errorf("of a share that is gone: %d, %v", len(all), err)
	}
}

func policies(f *fixture) {
	key := sharing.PolicyKey{Layer: sharing.LayerProvider, Organisation: "acme", Name: "main"}
	set := sharing.PolicySet{PolicyKey: key, ID: uuid.New(), Description: "d", Stamp: stamp()}
	life(f, set, noun[sharing.PolicySet]{
		put:    func(tx sharing.Tx, s sharing.PolicySet) error { return tx.PutPolicySet(f.ctx, s) },
		get:    func(rd sharing.Reader) (sharing.PolicySet, error) { return rd.PolicySet(f.ctx, key) },
		stamp:  func(s *sharing.PolicySet) *sharing.Stamp { return &s.Stamp },
		change: func(s *sharing.PolicySet) { s.Active, s.Newest = 1, 2 },
	})
	of, err := f.store.PolicySetOf(f.ctx, sharing.LayerProvider, "acme")
	equal(f, "the owner's", of.ID, err, set.ID)
	second := sharing.PolicySet{PolicyKey: key, ID: uuid.New(), Stamp: stamp()}
	second.Name = "second"
	f.fails(sharing.ErrExists, func(tx sharing.Tx) error { return tx.PutPolicySet(f.ctx, second) })
	for _, k := range []sharing.PolicyKey{{Layer: sharing.LayerRecipient, Organisation: "acme", Name: "x"}, {Layer: sharing.LayerPlatform, Name: "y"}, {Layer: sharing.LayerProvider, Organisation: "zeta", Name: "z"}} {
		f.do(func(tx sharing.Tx) error {
			return tx.PutPolicySet(f.ctx, sharing.PolicySet{PolicyKey: k, ID: uuid.New(), Stamp: stamp()})
		})
	}
	name := func(s sharing.PolicySet) string { return sharing.Key(fmt.Sprint(int(s.Layer)), s.Organisation, s.Name) }
	list := func(layer sharing.Layer, organisation string) func(p sharing.Page) ([]sharing.PolicySet, error) {
		return func(p sharing.Page) ([]sharing.PolicySet, error) {
			return f.store.PolicySets(f.ctx, layer, organisation, p)
		}
	}
	platform, main, zeta, recipient := sharing.Key("1", "", "y"), sharing.Key("2", "acme", "main"), sharing.Key("2", "zeta", "z"), sharing.Key("3", "acme", "x")
	pages(f, []string{platform, main, zeta, recipient}, name, list(0, ""))
	pages(f, []string{main, zeta}, name, list(sharing.LayerProvider, ""))
	pages(f, []string{main, recipient}, name, list(0, "acme"))
	pages(f, []string{main}, name, list(sharing.LayerProvider, "acme"))

	var versions []sharing.PolicyVersion
	for n := int64(1); n <= 3; n++ {
		v := sharing.PolicyVersion{
			Set: set.ID, Version: n, Comment: "c", Principal: "p", Digest: fmt.Sprint(n), Files: []sharing.PolicyFile{{Path: "a.cedar", Text: "permit(principal, action, resource);"}}, Policies: 1, CreatedAt: start,
		}
		versions = append(versions, v)
		f.do(func(tx sharing.Tx) error { return tx.AddPolicyVersion(f.ctx, v) })
	}
	f.fails(sharing.ErrExists, func(tx sharing.Tx) error { return tx.AddPolicyVersion(f.ctx, versions[0]) })
	got, err := f.store.PolicyVersion(f.ctx, set.ID, 2)
	equal(f, "a version", got, err, versions[1])
	if _, err := f.store.PolicyVersion(f.ctx, set.ID, 4); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("a version that there is not: %v", err)
	}
	pages(f, []string{"3", "2", "1"}, func(v sharing.PolicyVersion) string { return fmt.Sprint(v.Version) }, func(p sharing.Page) ([]sharing.PolicyVersion, error) {
		all, err := f.store.PolicyVersions(f.ctx, set.ID, p)
		for _, v := range all {
			if v.Files != nil {
				f.Error("a listing has files")
			}
		}
		return all, err
	})
	before, err := f.store.PoliciesRevision(f.ctx)
	if err != nil {
		f.Fatal(err)
	}
	a := sharing.PolicyActivation{Set: set.ID, Version: 2, Previous: 1, Principal: "p", Time: start, Rollback: true, Bindings: []policy.Binding{{UUID: "u", ID: "w/n/t", Columns: map[int]string{1: "id"}}}}
	f.do(func(tx sharing.Tx) error {
		return errors.Join(tx.AddPolicyActivation(f.ctx, a), tx.AddPolicyActivation(f.ctx, sharing.PolicyActivation{Set: set.ID, Version: 3, Time: start}))
	})
	after, err := f.store.PoliciesRevision(f.ctx)
	if err != nil || after < before+2 {
		f.Errorf("revision %d after %d, %v", after, before, err)
	}
	history, err := f.store.PolicyActivations(f.ctx, set.ID, sharing.Page{})
	if err != nil || len(history) != 2 || history[0].Version != 3 || history[1].ID >= history[0].ID || !reflect.DeepEqual(history[1].Bindings, a.Bindings) {
		f.Fatalf("history %+v, %v", history, err)
	}
	a.ID = history[1].ID
	equal(f, "an activation", history[1], nil, a)
	older, err := f.store.PolicyActivations(f.ctx, set.ID, sharing.Page{After: fmt.Sprint(history[0].ID), Limit: 5})
	equal(f, "the older", older, err, history[1:])
}

func records(f *fixture) {
	key := uuid.New()
	rec := catalog.IdempotencyRecord{Principal: "p", Key: key, Operation: "createShare", RequestHash: [32]byte{1}, Response: json.RawMessage(`{"a":1}`), CreatedAt: start, ExpiresAt: start.Add(time.Hour)}
	f.do(func(tx sharing.Tx) error { return tx.PutIdempotency(f.ctx, rec) })
	got, err := f.store.Idempotency(f.ctx, "p", key, start)
	rec.Warehouse = f.store.Administration()
	equal(f, "a record", got, err, rec)
	f.fails(catalog.ErrIdempotencyUsed, func(tx sharing.Tx) error { return tx.PutIdempotency(f.ctx, rec) })
	if _, err := f.store.Idempotency(f.ctx, "q", key, start); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("another's: %v", err)
	}
	f.do(func(tx sharing.Tx) error {
		return tx.PutAudit(f.ctx, audit.Record{Kind: audit.KindChange, Time: start, Principal: "p", Operation: "createShare", Resource: "share/sales", Decision: audit.Allow, Detail: json.RawMessage("{}")})
	})
	rows, err := f.catalog.Audit(f.ctx, f.store.Administration(), 10)
	if err != nil || len(rows) != 1 || rows[0].Resource != "share/sales" {
		f.Errorf("audit rows %+v, %v", rows, err)
	}
	if _, after, err := f.catalog.SealAudit(f.ctx, f.store.Administration(), 10); err != nil || after.Seq != 1 {
		f.Errorf("sealed up to %d, %v", after.Seq, err)
	}
}

func failures(f *fixture) {
	f.organisation("acme")
	// Even when the function goes on as if nothing had happened.
	f.fails(sharing.ErrExists, func(tx sharing.Tx) error {
		_ = tx.PutOrganisation(f.ctx, sharing.Organisation{Name: "other", ID: uuid.New(), Stamp: stamp()})
		_ = tx.PutOrganisation(f.ctx, sharing.Organisation{Name: "acme", ID: uuid.New(), Stamp: stamp()})
		return nil
	})
	if _, err := f.store.Organisation(f.ctx, "other"); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("half of a transaction was committed: %v", err)
	}
	mine := errors.New("mine")
	f.fails(mine, func(tx sharing.Tx) error {
		_ = tx.PutOrganisation(f.ctx, sharing.Organisation{Name: "other", ID: uuid.New(), Stamp: stamp()})
		return mine
	})
	if _, err := f.store.Organisation(f.ctx, "other"); !errors.Is(err, sharing.ErrNotFound) {
		f.Errorf("a transaction that its function gave up was committed: %v", err)
	}
}

func races(f *fixture) {
	sh := f.share("sales")
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			changed := sh
			changed.Stamp = next(sh.Stamp)
			err := f.store.Update(f.ctx, func(tx sharing.Tx) error { return tx.PutShare(f.ctx, changed) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.Is(err, sharing.ErrStale):
				f.Errorf("a loser got %v", err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		f.Errorf("%d have changed the same version", won)
	}
}

// held: nothing is given to an organisation while it is being deleted.
func held(f *fixture) {
	f.fails(sharing.ErrNotFound, func(tx sharing.Tx) error { return tx.HoldOrganisation(f.ctx, "acme") })
	for i := range 10 {
		name := fmt.Sprintf("org%d", i)
		f.organisation(name)
		var wg sync.WaitGroup
		var created, deleted error
		wg.Go(func() {
			created = f.store.Update(f.ctx, func(tx sharing.Tx) error {
				if err := tx.HoldOrganisation(f.ctx, name); err != nil {
					return err
				}
				return tx.PutShare(f.ctx, sharing.Share{Name: "of-" + name, ID: uuid.New(), Organisation: name, OnDrop: sharing.OnDropBlock, Stamp: stamp()})
			})
		})
		wg.Go(func() {
			deleted = f.store.Update(f.ctx, func(tx sharing.Tx) error {
				if err := tx.DeleteOrganisation(f.ctx, name); err != nil {
					return err
				}
				owns, err := tx.Owns(f.ctx, name)
				if err == nil && owns {
					err = errOwns
				}
				return err
			})
		})
		wg.Wait()
		if (created == nil) == (deleted == nil) {
			f.Errorf("created: %v, deleted: %v; one of them must fail", created, deleted)
		}
	}
}

var errOwns = errors.New("it owns something")
