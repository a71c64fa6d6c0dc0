// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

var raceChecks = []check{
	{"of a hundred creates of one name one wins", func(f *fixture) {
		f.namespaces("a")
		for name, kind := range map[string]func(i int) catalog.Kind{
			"tables":    func(int) catalog.Kind { return catalog.KindTable },
			"views":     func(int) catalog.Kind { return catalog.KindView },
			"both":      func(i int) catalog.Kind { return catalog.KindTable + catalog.Kind(i%2) },
			"functions": func(int) catalog.Kind { return catalog.KindFunction },
		} {
			f.oneWins(together(100, func(i int) error { return f.create(f.object(kind(i), "a", name)) }), catalog.ErrExists)
		}
		equal(f, "tables and views", len(f.names(catalog.KindTable, "a"))+len(f.names(catalog.KindView, "a")), 3)
		f.oneWins(together(100, func(int) error { return f.createNamespace("b") }), catalog.ErrExists)
		f.oneWins(together(100, func(int) error { return f.createNamespace("a", "b") }), catalog.ErrExists)
	}},
	{"nothing is created in a namespace that is dropped", func(f *fixture) {
		for round := range 50 {
			ns := fmt.Sprint("n", round)
			f.namespaces(ns)
			errs := together(3, func(i int) error {
				switch (i + round) % 3 {
				case 0:
					return f.create(f.object(catalog.KindTable, ns, "t"))
				case 1:
					return f.createNamespace(ns, "child")
				}
				return f.update(func(tx catalog.Tx) error { return tx.DropNamespace(f.ctx, f.wh, catalog.Namespace{ns}) })
			})
			_, err := f.store.Namespace(f.ctx, f.wh, catalog.Namespace{ns})
			gone := errors.Is(err, catalog.ErrNoNamespace)
			for i, err := range errs {
				switch {
				case (i+round)%3 == 2 && gone:
					f.ok(err)
				case (i+round)%3 == 2:
					f.is(err, catalog.ErrNotEmpty)
				case gone:
					f.is(err, catalog.ErrNoNamespace)
				default:
					f.ok(err)
				}
			}
		}
	}},
	{"ten writers move one pointer and lose no move", func(f *fixture) {
		f.namespaces("a")
		o := f.created(catalog.KindTable, "a", "t")
		const writers, each = 10, 10
		var stale atomic.Int64
		for _, err := range together(writers, func(w int) error {
			for i := 0; i < each; {
				current, err := f.find(catalog.KindTable, "a", "t")
				if err != nil {
					return err
				}
				next := fmt.Sprintf("%s+%d.%d", current.MetadataLocation, w, i)
				err = f.update(func(tx catalog.Tx) error {
					if err := tx.SwapMetadata(f.ctx, o.ID, current.MetadataLocation, next, catalog.DigestOf([]byte(next)), o.Location, nil, start); err != nil {
						return err
					}
					return tx.PutEvent(f.ctx, f.event(next))
				})
				switch {
				case errors.Is(err, catalog.ErrStale):
					stale.Add(1)
				case err != nil:
					return err
				default:
					i++
				}
			}
			return nil
		}) {
			f.ok(err)
		}
		got, err := f.find(catalog.KindTable, "a", "t")
		f.ok(err)
		equal(f, "version", got.Version, 1+writers*each)
		events, err := f.store.Events(f.ctx, f.wh, 0, 0)
		f.ok(err)
		equal(f, "number of events", len(events), writers*each)
		// Each pointer holds the one before it, so events in another order
		// than the moves would show.
		for i := 1; i < len(events); i++ {
			if len(events[i].Name) <= len(events[i-1].Name) || events[i].Name[:len(events[i-1].Name)] != events[i-1].Name {
				f.Fatalf("event %d is not of the move after event %d", i, i-1)
			}
		}
		equal(f, "last event", events[len(events)-1].Name, got.MetadataLocation)
		f.Logf("%d moves were refused as stale", stale.Load())
	}},
	{"transactions that lock in opposite orders all get through", func(f *fixture) {
		f.namespaces("a")
		var ids []uuid.UUID
		for i := range 2 {
			ids = append(ids, f.created(catalog.KindTable, "a", fmt.Sprint("t", i)).ID)
		}
		const writers, each = 6, 5
		var runs atomic.Int64
		for _, err := range together(writers, func(w int) error {
			for range each {
				err := f.update(func(tx catalog.Tx) error {
					runs.Add(1)
					for i := range ids {
						name := fmt.Sprint("t", (i+w)%2)
						if err := tx.SetLabels(f.ctx, f.wh, catalog.KindTable, catalog.Ident{Namespace: catalog.Namespace{"a"}, Name: name}, nil); err != nil {
							return fmt.Errorf("label %s: %w", name, err)
						}
						time.Sleep(time.Millisecond)
					}
					return tx.PutEvent(f.ctx, f.event("e"))
				})
				if err != nil {
					return err
				}
			}
			return nil
		}) {
			f.ok(err)
		}
		events, err := f.store.Events(f.ctx, f.wh, 0, 0)
		f.ok(err)
		equal(f, "transactions that took effect", len(events), writers*each)
		f.Logf("%d runs of %d transactions", runs.Load(), writers*each)
	}},
	{"of many drops one wins", func(f *fixture) {
		f.namespaces("a")
		for _, soft := range []bool{false, true} {
			o := f.created(catalog.KindTable, "a", "t")
			var expires time.Time
			if soft {
				expires = after(time.Hour)
			}
			f.oneWins(together(20, func(int) error { return f.drop(o, start, expires, true) }), catalog.ErrNoObject)
		}
		f.oneWins(together(20, func(int) error { return second(f.store.ClaimPurge(f.ctx, after(time.Hour), time.Hour)) }), catalog.ErrNoObject)
	}},
	{"of many renames to one name one wins", func(f *fixture) {
		f.namespaces("a", "b")
		for i := range 20 {
			f.created(catalog.KindTable+catalog.Kind(i%2), "a", fmt.Sprint("t", i))
		}
		to := catalog.Ident{Namespace: catalog.Namespace{"b"}, Name: "t"}
		f.oneWins(together(20, func(i int) error {
			return f.update(func(tx catalog.Tx) error {
				from := catalog.Ident{Namespace: catalog.Namespace{"a"}, Name: fmt.Sprint("t", i)}
				return second(tx.RenameObject(f.ctx, f.wh, catalog.KindTable+catalog.Kind(i%2), from, to, start))
			})
		}), catalog.ErrExists)
		equal(f, "left", len(f.names(catalog.KindTable, "a"))+len(f.names(catalog.KindView, "a")), 19)
	}},
	{"drop, rename, commit and restore leave one state", func(f *fixture) {
		f.namespaces("a")
		for round := range 25 {
			name := fmt.Sprint("t", round)
			o := f.created(catalog.KindTable, "a", name)
			errs := together(3, func(i int) error {
				switch i {
				case 0:
					return f.drop(o, start, after(time.Hour), false)
				case 1:
					return f.update(func(tx catalog.Tx) error {
						return second(tx.RenameObject(f.ctx, f.wh, catalog.KindTable, o.Ident(), catalog.Ident{Namespace: o.Namespace, Name: name + "x"}, start))
					})
				}
				return f.update(func(tx catalog.Tx) error {
					return tx.SwapMetadata(f.ctx, o.ID, o.MetadataLocation, "next", catalog.DigestOf(nil), o.Location, nil, start)
				})
			})
			dropped, renamed, swapped := errs[0] == nil, errs[1] == nil, errs[2] == nil
			if dropped == renamed {
				f.Errorf("drop: %v, rename: %v; one of them must win", errs[0], errs[1])
			}
			for i, want := range []error{catalog.ErrNoObject, catalog.ErrNoObject, catalog.ErrStale} {
				if errs[i] != nil {
					f.is(errs[i], want)
				}
			}
			got, err := f.store.ObjectByID(f.ctx, f.wh, o.ID)
			f.ok(err)
			equal(f, "is dropped", !got.DroppedAt.IsZero(), dropped)
			equal(f, "is renamed", got.Name == name+"x", renamed)
			equal(f, "is swapped", got.MetadataLocation == "next", swapped)
		}
	}},
	{"restore and expiry: one wins", func(f *fixture) {
		f.namespaces("a")
		for round := range 20 {
			o := f.created(catalog.KindTable, "a", fmt.Sprint("t", round))
			f.ok(f.drop(o, start, after(time.Hour), true))
			errs := together(2, func(i int) error {
				if i == 0 {
					return f.update(func(tx catalog.Tx) error {
						// As if its clock were behind that of the server that expires.
						return second(tx.RestoreObject(f.ctx, f.wh, o.ID, nil, after(time.Hour-time.Second)))
					})
				}
				return second(f.store.Expire(f.ctx, after(time.Hour), time.Time{}, time.Time{}, 10))
			})
			f.ok(errs[1])
			_, find := f.find(catalog.KindTable, "a", o.Name)
			_, purge := f.store.ClaimPurge(f.ctx, after(2*time.Hour), 100*time.Hour)
			if errs[0] == nil {
				f.ok(find)
				f.is(purge, catalog.ErrNoObject)
			} else {
				f.is(errs[0], catalog.ErrNoObject)
				f.is(find, catalog.ErrNoObject)
				f.ok(purge)
			}
		}
	}},
}
