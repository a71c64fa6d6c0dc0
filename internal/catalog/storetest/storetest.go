// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package storetest is the conformance suite of catalog.Store: whatever the
// comments of that interface promise is tried here, and every engine runs all
// of it. The suite knows the interface alone; it leaves no test out for an
// engine that cannot do something.
package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// Open returns a new, empty, migrated store, and closes it when the test ends.
type Open func(t *testing.T) catalog.Store

// Run runs the suite. Each test has a store of its own.
func Run(t *testing.T, open Open) {
	for _, part := range [][]check{
		namespaceChecks, objectChecks, dropChecks, locationChecks, recordChecks, purgeChecks, transactionChecks, raceChecks, auditChecks,
	} {
		for _, c := range part {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				f := &fixture{T: t, ctx: t.Context(), store: open(t)}
				f.wh = f.warehouse("main")
				c.run(f)
			})
		}
	}
}

// check is one test.
type check struct {
	name string
	run  func(f *fixture)
}

// fixture is a store with one warehouse and what tests do with it.
type fixture struct {
	*testing.T
	ctx   context.Context
	store catalog.Store
	wh    uuid.UUID
}

// start is the time at which tests begin; stores keep milliseconds.
var start = time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)

func after(d time.Duration) time.Time { return start.Add(d) }

func (f *fixture) warehouse(name string) uuid.UUID {
	f.Helper()
	id, err := f.store.EnsureWarehouse(f.ctx, name)
	f.ok(err)
	return id
}

// ok ends the test when err is not nil.
func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("unexpected error: %v", err)
	}
}

// is fails the test when err is not the one wanted.
func (f *fixture) is(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Errorf("error is %v, want %v", err, want)
	}
}

func equal[T comparable](f *fixture, what string, got, want T) {
	f.Helper()
	if got != want {
		f.Errorf("%s is %v, want %v", what, got, want)
	}
}

func equalSlices[T comparable](f *fixture, what string, got, want []T) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Errorf("%s is %q, want %q", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}

// update runs one transaction.
func (f *fixture) update(fn func(tx catalog.Tx) error) error { return f.store.Update(f.ctx, fn) }

// do runs one transaction that must succeed.
func (f *fixture) do(fn func(tx catalog.Tx) error) {
	f.Helper()
	f.ok(f.update(fn))
}

func (f *fixture) createNamespace(levels ...string) error {
	return f.update(func(tx catalog.Tx) error { return tx.CreateNamespace(f.ctx, f.namespaceRecord(levels...)) })
}

func (f *fixture) namespaceRecord(levels ...string) catalog.NamespaceRecord {
	return catalog.NamespaceRecord{Warehouse: f.wh, Namespace: levels, Properties: map[string]string{}, CreatedAt: start, UpdatedAt: start}
}

// namespaces creates namespaces of one level.
func (f *fixture) namespaces(names ...string) {
	f.Helper()
	for _, name := range names {
		f.ok(f.createNamespace(name))
	}
}

// object makes up an object with a location of its own.
func (f *fixture) object(kind catalog.Kind, ns, name string) catalog.Object {
	id := uuid.Must(uuid.NewV7())
	o := catalog.Object{
		ID: id, Warehouse: f.wh, Kind: kind, Namespace: catalog.Namespace{ns}, Name: name, UUID: uuid.New(),
		Version: 1, CreatedAt: start, UpdatedAt: start,
	}
	if kind == catalog.KindFunction {
		o.Metadata = json.RawMessage(`{"function":true}`)
		return o
	}
	o.Location = "s3://bucket/warehouse/" + id.String()
	o.MetadataLocation, o.MetadataDigest = o.Location+"/metadata/00000.json", catalog.DigestOf(id[:])
	return o
}

func (f *fixture) create(o catalog.Object, locations ...string) error {
	if len(locations) == 0 && o.Location != "" {
		locations = []string{o.Location}
	}
	return f.update(func(tx catalog.Tx) error { return tx.CreateObject(f.ctx, o, locations) })
}

// created makes up an object and stores it.
func (f *fixture) created(kind catalog.Kind, ns, name string, locations ...string) catalog.Object {
	f.Helper()
	o := f.object(kind, ns, name)
	if len(locations) > 0 {
		o.Location = locations[0]
	}
	f.ok(f.create(o, locations...))
	return o
}

func (f *fixture) find(kind catalog.Kind, ns, name string) (catalog.Object, error) {
	return f.store.Object(f.ctx, f.wh, catalog.Namespace{ns}, name, kind)
}

// names lists all objects of a kind.
func (f *fixture) names(kind catalog.Kind, ns string) []string {
	f.Helper()
	names, err := f.store.ListObjects(f.ctx, f.wh, catalog.Namespace{ns}, kind, catalog.Page{})
	f.ok(err)
	return names
}

func (f *fixture) drop(o catalog.Object, at, expires time.Time, purge bool) error {
	return f.update(func(tx catalog.Tx) error {
		_, err := tx.DropObject(f.ctx, f.wh, o.Kind, o.Ident(), at, expires, purge)
		return err
	})
}

// reservable reports whether another object could have a location.
func (f *fixture) reservable(location string) bool {
	f.Helper()
	probe := errors.New("only a probe")
	err := f.update(func(tx catalog.Tx) error {
		if err := tx.CreateObject(f.ctx, f.object(catalog.KindTable, "probe", uuid.NewString()), []string{location}); err != nil {
			return err
		}
		return probe
	})
	switch {
	case errors.Is(err, probe):
		return true
	case errors.Is(err, catalog.ErrLocationTaken):
		return false
	}
	f.Fatalf("probe of %s: %v", location, err)
	return false
}

func (f *fixture) sameObject(got, want catalog.Object) {
	f.Helper()
	equal(f, "ID", got.ID, want.ID)
	equal(f, "Warehouse", got.Warehouse, want.Warehouse)
	equal(f, "Kind", got.Kind, want.Kind)
	equal(f, "Namespace", got.Namespace.Path(), want.Namespace.Path())
	equal(f, "Name", got.Name, want.Name)
	equal(f, "UUID", got.UUID, want.UUID)
	equal(f, "Location", got.Location, want.Location)
	equal(f, "MetadataLocation", got.MetadataLocation, want.MetadataLocation)
	equal(f, "MetadataDigest", got.MetadataDigest, want.MetadataDigest)
	equal(f, "Metadata", string(got.Metadata), string(want.Metadata))
	equal(f, "Labels", string(got.Labels), string(want.Labels))
	equal(f, "Labels are nil", got.Labels == nil, want.Labels == nil)
	equal(f, "Metadata is nil", got.Metadata == nil, want.Metadata == nil)
	equal(f, "Version", got.Version, want.Version)
	equal(f, "Protected", got.Protected, want.Protected)
	equal(f, "CreatedAt", got.CreatedAt, want.CreatedAt)
	equal(f, "UpdatedAt", got.UpdatedAt, want.UpdatedAt)
	equal(f, "DroppedAt", got.DroppedAt, want.DroppedAt)
	equal(f, "ExpiresAt", got.ExpiresAt, want.ExpiresAt)
}

// together calls fn n times at once and returns all errors, in order of i.
func together(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	ready := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-ready
			errs[i] = fn(i)
		})
	}
	close(ready)
	wg.Wait()
	return errs
}

// oneWins fails the test unless exactly one error is nil and all others are
// the one wanted.
func (f *fixture) oneWins(errs []error, want error) {
	f.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, want) {
			f.Errorf("a loser's error is %v, want %v", err, want)
		}
	}
	equal(f, "number of winners", won, 1)
}

func sorted[T cmp.Ordered](s []T) []T { return slices.Sorted(slices.Values(s)) }
