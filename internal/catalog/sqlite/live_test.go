// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
)

// place makes a warehouse and one table in namespace ns, pointing to "0".
func place(t *testing.T, s *sqlstore.Store) (catalog.Object, catalog.Ident) {
	t.Helper()
	ctx := t.Context()
	wh, err := s.EnsureWarehouse(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	id := catalog.Ident{Namespace: catalog.Namespace{"ns"}, Name: "t"}
	obj := catalog.Object{
		ID: uuid.New(), Warehouse: wh, Kind: catalog.KindTable, Namespace: id.Namespace, Name: id.Name,
		UUID: uuid.New(), Location: "file:///w/t", MetadataLocation: "0", CreatedAt: time.UnixMilli(1), UpdatedAt: time.UnixMilli(1),
	}
	err = s.Update(ctx, func(tx catalog.Tx) error {
		if err := tx.CreateNamespace(ctx, catalog.NamespaceRecord{Warehouse: wh, Namespace: id.Namespace}); err != nil {
			return err
		}
		return tx.CreateObject(ctx, obj, []string{"file:///w/t"})
	})
	if err != nil {
		t.Fatal(err)
	}
	return obj, id
}

func (e *engine) kept(obj catalog.Object, id catalog.Ident) bool {
	_, _, ok := e.live.get(liveKey{obj.Warehouse, 1, id.Namespace.Path(), id.Name})
	return ok
}

// TestLookUpIsKeptUntilTheNextCommit also pins that an absent object, a failed
// transaction and a closed database never answer from memory.
func TestLookUpIsKeptUntilTheNextCommit(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{})
	obj, id := place(t, s)
	ctx := t.Context()
	find := func() (catalog.Object, error) {
		return s.Object(ctx, obj.Warehouse, id.Namespace, id.Name, catalog.KindTable)
	}
	if e.kept(obj, id) {
		t.Fatal("kept before it was looked up")
	}
	first, err := find()
	if err != nil || !e.kept(obj, id) {
		t.Fatalf("not kept after a look-up: %v", err)
	}
	again, err := find()
	if err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
		t.Fatalf("from memory %v, from the database %v: %v", again, first, err)
	}
	refused := errors.New("refused")
	err = s.Update(ctx, func(tx catalog.Tx) error {
		if err := tx.SwapMetadata(ctx, obj.ID, "0", "never", catalog.Digest{}, obj.Location, nil, time.UnixMilli(2)); err != nil {
			return err
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if got, err := find(); err != nil || got.MetadataLocation != "0" {
		t.Errorf("after a transaction that failed: %v, %v", got.MetadataLocation, err)
	}
	if err := s.Update(ctx, func(tx catalog.Tx) error {
		return tx.SwapMetadata(ctx, obj.ID, "0", "1", catalog.Digest{}, obj.Location, nil, time.UnixMilli(2))
	}); err != nil {
		t.Fatal(err)
	}
	if e.kept(obj, id) {
		t.Error("kept over a commit")
	}
	if got, err := find(); err != nil || got.MetadataLocation != "1" {
		t.Errorf("after a commit: %v, %v", got.MetadataLocation, err)
	}
	if err := s.Update(ctx, func(tx catalog.Tx) error {
		_, err := tx.DropObject(ctx, obj.Warehouse, catalog.KindTable, id, time.UnixMilli(3), time.Time{}, false)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := find(); !errors.Is(err, catalog.ErrNoObject) {
			t.Errorf("after a drop: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := find(); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("after close: %v", err)
	}
}

// TestLookUpNeverLagsBehind has readers look a table up while its pointer
// moves. Each must see what was acknowledged before it asked, and nothing
// older than any look-up that had ended before it asked.
func TestLookUpNeverLagsBehind(t *testing.T) {
	t.Parallel()
	e, s := open(t, Options{})
	obj, id := place(t, s)
	var floor atomic.Int64 // the newest that anyone has been told of
	raise := func(to int64) {
		for at := floor.Load(); at < to && !floor.CompareAndSwap(at, to); at = floor.Load() {
			continue
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	var looked, hits atomic.Int64
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				want := floor.Load()
				if e.kept(obj, id) {
					hits.Add(1)
				}
				got, err := s.Object(ctx, obj.Warehouse, id.Namespace, id.Name, catalog.KindTable)
				if ctx.Err() != nil {
					return
				}
				var n int64
				if err == nil {
					_, err = fmt.Sscan(got.MetadataLocation, &n)
				}
				if err != nil || n < want {
					t.Errorf("looked up %d after %d had been seen: %v", n, want, err)
					return
				}
				raise(n)
				looked.Add(1)
			}
		})
	}
	for i := range int64(300) {
		err := s.Update(t.Context(), func(tx catalog.Tx) error {
			return tx.SwapMetadata(t.Context(), obj.ID, fmt.Sprint(i), fmt.Sprint(i+1), catalog.Digest{}, obj.Location, nil, time.UnixMilli(i))
		})
		if err != nil {
			t.Error(err)
			break
		}
		raise(i + 1)
	}
	cancel()
	readers.Wait()
	if looked.Load() < 300 || hits.Load() == 0 {
		t.Errorf("only %d look-ups, %d of them from memory", looked.Load(), hits.Load())
	}
}
