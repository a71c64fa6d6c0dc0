// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
)

// Bench is what an engine brings to Benchmark.
type Bench struct {
	// Open returns a new, migrated store and a function that puts n tables
	// named t0000000, t0000001, … into a namespace "ns" of a warehouse, as fast
	// as the engine can.
	Open func(b *testing.B) (store catalog.Store, fill func(warehouse uuid.UUID, n int) error)
}

// Benchmark measures what loads and commits of tables cost a store, with few
// and with many tables in the namespace.
func Benchmark(b *testing.B, engine Bench) {
	ns := catalog.Namespace{"ns"}
	for _, tables := range []int{100, 100_000} {
		store, fill := engine.Open(b)
		wh, err := store.EnsureWarehouse(b.Context(), "main")
		if err != nil {
			b.Fatal(err)
		}
		if err := store.Update(b.Context(), func(tx catalog.Tx) error {
			return tx.CreateNamespace(b.Context(), catalog.NamespaceRecord{Warehouse: wh, Namespace: ns, CreatedAt: start, UpdatedAt: start})
		}); err != nil {
			b.Fatal(err)
		}
		if err := fill(wh, tables); err != nil {
			b.Fatal(err)
		}
		name := func(i int) string { return fmt.Sprintf("t%07d", i%tables) }
		b.Run(fmt.Sprintf("object/%d", tables), func(b *testing.B) {
			b.ReportAllocs()
			defer reportCPU(b)()
			for i := 0; b.Loop(); i++ {
				if _, err := store.Object(b.Context(), wh, ns, name(i*7919), catalog.KindTable); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("page of 100/%d", tables), func(b *testing.B) {
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				names, err := store.ListObjects(b.Context(), wh, ns, catalog.KindTable, catalog.Page{After: name(tables/2 - 1), Limit: 100})
				if err != nil || len(names) != min(100, tables/2) {
					b.Fatal(len(names), err)
				}
			}
		})
		b.Run(fmt.Sprintf("page of no views/%d", tables), func(b *testing.B) {
			for b.Loop() {
				if names, err := store.ListObjects(b.Context(), wh, ns, catalog.KindView, catalog.Page{Limit: 100}); err != nil || len(names) != 0 {
					b.Fatal(len(names), err)
				}
			}
		})
		b.Run(fmt.Sprintf("commit/%d", tables), func(b *testing.B) {
			b.ReportAllocs()
			w := newCommitter(b, store, wh, name(0))
			defer reportCPU(b)()
			for b.Loop() {
				w.commit(b)
			}
		})
		b.Run(fmt.Sprintf("commit by 8 writers/%d", tables), func(b *testing.B) {
			var next atomic.Int64
			defer reportCPU(b)()
			b.SetParallelism(4) // per core, of which benchmarks have two or more
			b.RunParallel(func(pb *testing.PB) {
				w := newCommitter(b, store, wh, name(int(next.Add(1))))
				for pb.Next() {
					w.commit(b)
				}
			})
		})
	}
}

// reportCPU measures the processor time of this process until the returned
// function is called; it tells more than the time passed when the machine is
// busy with other things.
func reportCPU(b *testing.B) func() {
	begin := cpu(b)
	return func() { b.ReportMetric(float64(cpu(b)-begin)/float64(b.N), "cpu-ns/op") }
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// committer moves the pointer of one table with the event and the audit row
// that go with it.
type committer struct {
	store   catalog.Store
	current catalog.Object
	moves   int
}

func newCommitter(b *testing.B, store catalog.Store, wh uuid.UUID, name string) *committer {
	o, err := store.Object(b.Context(), wh, catalog.Namespace{"ns"}, name, catalog.KindTable)
	if err != nil {
		b.Error(err)
	}
	return &committer{store: store, current: o}
}

func (w *committer) commit(b *testing.B) {
	ctx := b.Context()
	w.moves++
	o := w.current
	next := fmt.Sprintf("%s/metadata/%d-%s.json", o.Location, w.moves, o.ID)
	if err := w.store.Update(ctx, func(tx catalog.Tx) error {
		if err := tx.SwapMetadata(ctx, o.ID, o.MetadataLocation, next, catalog.DigestOf([]byte(next)), o.Location, nil, start); err != nil {
			return err
		}
		if err := tx.PutEvent(ctx, catalog.Event{
			Time: start, Warehouse: o.Warehouse, Type: "table.committed", Object: o.ID, Namespace: "ns", Name: o.Name, Payload: json.RawMessage(`{"snapshot":1}`),
		}); err != nil {
			return err
		}
		return tx.PutAudit(ctx, catalog.AuditRow{Warehouse: o.Warehouse, Record: audit.Record{
			Kind: audit.KindChange, Time: start, RequestID: "r", Principal: "p", Operation: "updateTable", Resource: "ns." + o.Name, Detail: json.RawMessage(`{}`),
		}})
	}); err != nil {
		b.Error(err)
	}
	w.current.MetadataLocation = next
}
