// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

var locationChecks = []check{
	{"locations overlap at slashes only", func(f *fixture) {
		f.namespaces("a", "probe")
		f.created(catalog.KindTable, "a", "t", "s3://b/w/a/b")
		for _, c := range []struct {
			location string
			free     bool
		}{
			{"s3://b/w/a/b", false},
			{"s3://b/w/a/b/c", false},
			{"s3://b/w/a/b/c/d/e/f/g/h/i/j/k", false},
			{"s3://b/w/a", false},
			{"s3://b/w", false},
			{"s3://b", false},
			{"s3://b/w/ab", true},
			{"s3://b/w/a/bc", true},
			{"s3://b/w/a/b-c", true}, // '-' and '.' sort before '/', '0' after it
			{"s3://b/w/a/b.c", true},
			{"s3://b/w/a/b0", true},
			{"s3://b/w/a/b0/c", true},
			{"s3://b/w/a/B", true},
			{"s3://b/w/a/_", true},
			{"s3://b/w/%/b", true},
			{"s3://b/w/a/c", true},
			{"s3://bb/w/a/b", true},
			{"s3://b2", true},
			{"s3a://b/w/a/b", true},
			{"gs://b/w/a/b", true},
		} {
			equal(f, c.location+" is free", f.reservable(c.location), c.free)
		}
	}},
	{"patterns in locations are literal", func(f *fixture) {
		f.namespaces("a", "probe")
		f.created(catalog.KindTable, "a", "t", "s3://b/w/a_b%")
		equal(f, "axb is free", f.reservable("s3://b/w/axb"), true)
		equal(f, "axbxx/y is free", f.reservable("s3://b/w/axbxx/y"), true)
		equal(f, "a_b%/y is free", f.reservable("s3://b/w/a_b%/y"), false)
		f.created(catalog.KindTable, "a", "nfc", "s3://b/w/caf\u00e9")
		equal(f, "the NFD twin is free", f.reservable("s3://b/w/cafe\u0301"), true)
	}},
	{"very deep locations", func(f *fixture) {
		f.namespaces("a", "probe")
		deep := "s3://b" + strings.Repeat("/d", 300)
		f.created(catalog.KindTable, "a", "t", deep)
		for location, free := range map[string]bool{
			deep + "/x": false, strings.TrimSuffix(deep, "/d"): false, strings.TrimSuffix(deep, "d") + "e": true, "s3://b/d": false, deep + "d": true,
		} {
			equal(f, location+" is free", f.reservable(location), free)
		}
	}},
	{"random locations agree with the rule in plain words", func(f *fixture) {
		f.namespaces("a")
		random := rand.New(rand.NewPCG(1, 2)) // the same ones each time
		var held []string
		taken := 0
		for i := range 400 {
			l := "s3://b"
			for range 1 + random.IntN(4) {
				l += "/" + []string{"a", "b", "ab", "a-", "a0", "%", "é"}[random.IntN(7)]
			}
			overlaps := slices.ContainsFunc(held, func(h string) bool {
				return strings.HasPrefix(l+"/", h+"/") || strings.HasPrefix(h+"/", l+"/")
			})
			got, err := f.store.Overlaps(f.ctx, f.wh, uuid.Nil, []string{"s3://free", l})
			f.ok(err)
			equal(f, l+" overlaps", got, overlaps)
			obj := f.object(catalog.KindTable, "a", fmt.Sprint(i))
			err = f.create(obj, l)
			if overlaps {
				taken++
				f.is(err, catalog.ErrLocationTaken)
				continue
			}
			f.ok(err)
			held = append(held, l)
			got, err = f.store.Overlaps(f.ctx, f.wh, obj.ID, []string{l})
			f.ok(err)
			equal(f, l+" overlaps with itself", got, false)
		}
		f.Logf("%d held, %d refused", len(held), taken)
	}},
	{"warehouses have locations of their own", func(f *fixture) {
		f.namespaces("a")
		f.created(catalog.KindTable, "a", "t", "s3://b/w/x")
		other := &fixture{T: f.T, ctx: f.ctx, store: f.store, wh: f.warehouse("other")}
		other.namespaces("a")
		other.created(catalog.KindTable, "a", "t", "s3://b/w/x/y")
	}},
	{"an object may overlap itself", func(f *fixture) {
		f.namespaces("a")
		o := f.created(catalog.KindTable, "a", "t", "s3://b/w/x", "s3://b/w/x/data", "s3://b/w", "s3://b/w/x")
		got, err := f.store.Locations(f.ctx, o.ID)
		f.ok(err)
		equalSlices(f, "locations", got, []string{"s3://b/w/x", "s3://b/w/x/data", "s3://b/w"})
	}},
	{"of an unknown object there are no locations", func(f *fixture) {
		got, err := f.store.Locations(f.ctx, uuid.New())
		f.ok(err)
		equalSlices(f, "locations", got, nil)
	}},
	{"of overlapping locations one wins, a hundred times", func(f *fixture) {
		f.namespaces("a")
		pairs := func(root string) [][2]string {
			return [][2]string{
				{root + "/a", root + "/a"},
				{root + "/a", root + "/a/b"},
				{root + "/a/b/c", root + "/a"},
				{root + "/a/b", root + "/a/b/c/d/e"},
				{root, root + "/a/b/c"},
			}
		}
		for round := range 100 {
			pair := pairs(fmt.Sprintf("s3://b/w/%d", round))[round%5]
			f.oneWins(together(2, func(i int) error {
				return f.create(f.object(catalog.KindTable, "a", fmt.Sprintf("%d-%d", round, i)), pair[i])
			}), catalog.ErrLocationTaken)
		}
	}},
	{"of many overlapping locations one wins", func(f *fixture) {
		f.namespaces("a")
		for round := range 10 {
			location := fmt.Sprintf("s3://b/w/%d", round)
			// Each overlaps each other: a chain from the top down.
			f.oneWins(together(8, func(i int) error {
				l := location + strings.Repeat("/x", (i+round)%8)
				return f.create(f.object(catalog.KindTable, "a", fmt.Sprintf("%d-%d", round, i)), l, l+"/data")
			}), catalog.ErrLocationTaken)
		}
	}},
	{"of siblings all win", func(f *fixture) {
		f.namespaces("a")
		for round := range 20 {
			root := fmt.Sprintf("s3://b/w/%d", round)
			siblings := []string{"/a/b", "/ab", "/a/c", "/a-b", "/a/bc", "/a/b0"}
			for _, err := range together(len(siblings), func(i int) error {
				return f.create(f.object(catalog.KindTable, "a", fmt.Sprintf("%d-%d", round, i)), root+siblings[i])
			}) {
				f.ok(err)
			}
		}
	}},
	{"a commit and a create compete for a location", func(f *fixture) {
		f.namespaces("a")
		for round := range 30 {
			o := f.created(catalog.KindTable, "a", fmt.Sprint(round))
			contended := fmt.Sprintf("s3://c/%d", round)
			f.oneWins(together(2, func(i int) error {
				if i == 0 {
					return f.create(f.object(catalog.KindTable, "a", fmt.Sprint(round, "x")), contended)
				}
				return f.update(func(tx catalog.Tx) error {
					return tx.SwapMetadata(f.ctx, o.ID, o.MetadataLocation, "m", catalog.DigestOf(nil), contended+"/in", []string{contended + "/in"}, start)
				})
			}), catalog.ErrLocationTaken)
		}
	}},
}
