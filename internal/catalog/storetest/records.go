// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

func (f *fixture) idempotency(key uuid.UUID) catalog.IdempotencyRecord {
	return catalog.IdempotencyRecord{
		Warehouse: f.wh, Principal: "p", Key: key, Operation: "createTable", RequestHash: [32]byte{1, 31: 2},
		Response: json.RawMessage(`{"status":200}`), CreatedAt: start, ExpiresAt: after(time.Hour),
	}
}

func (f *fixture) putIdempotency(rec catalog.IdempotencyRecord) error {
	return f.update(func(tx catalog.Tx) error { return tx.PutIdempotency(f.ctx, rec) })
}

func (f *fixture) event(name string) catalog.Event {
	return catalog.Event{
		Time: start, Warehouse: f.wh, Type: "table.committed", Object: uuid.New(), Namespace: "a\x1fb", Name: name, Payload: json.RawMessage(`{"n": "` + name + `"}`),
	}
}

func (f *fixture) putEvent(e catalog.Event) error {
	return f.update(func(tx catalog.Tx) error { return tx.PutEvent(f.ctx, e) })
}

var recordChecks = []check{
	{"idempotency record comes back until it expires", func(f *fixture) {
		rec := f.idempotency(uuid.New())
		f.ok(f.putIdempotency(rec))
		got, err := f.store.Idempotency(f.ctx, f.wh, "p", rec.Key, after(time.Hour-time.Millisecond))
		f.ok(err)
		equal(f, "operation", got.Operation, rec.Operation)
		equal(f, "hash", got.RequestHash, rec.RequestHash)
		equal(f, "response", string(got.Response), string(rec.Response))
		equal(f, "created", got.CreatedAt, rec.CreatedAt)
		equal(f, "expires", got.ExpiresAt, rec.ExpiresAt)
		equal(f, "key", got.Key, rec.Key)
		equal(f, "principal", got.Principal, rec.Principal)
		equal(f, "warehouse", got.Warehouse, rec.Warehouse)
		for _, c := range []struct {
			wh        uuid.UUID
			principal string
			key       uuid.UUID
			now       time.Time
		}{
			{f.wh, "p", rec.Key, rec.ExpiresAt},
			{f.wh, "P", rec.Key, start},
			{f.wh, "p", uuid.New(), start},
			{f.warehouse("other"), "p", rec.Key, start},
		} {
			_, err := f.store.Idempotency(f.ctx, c.wh, c.principal, c.key, c.now)
			f.is(err, catalog.ErrNoObject)
		}
	}},
	{"idempotency key is used once per principal, until it expires", func(f *fixture) {
		rec := f.idempotency(uuid.New())
		f.ok(f.putIdempotency(rec))
		f.is(f.putIdempotency(rec), catalog.ErrIdempotencyUsed)
		again := rec
		again.CreatedAt = after(time.Hour - time.Millisecond)
		f.is(f.putIdempotency(again), catalog.ErrIdempotencyUsed)
		other := rec
		other.Principal = "q"
		f.ok(f.putIdempotency(other))
		other.Warehouse = f.warehouse("other")
		f.ok(f.putIdempotency(other))
		again.CreatedAt, again.ExpiresAt, again.Operation = after(time.Hour), after(2*time.Hour), "dropTable"
		f.ok(f.putIdempotency(again))
		got, err := f.store.Idempotency(f.ctx, f.wh, "p", rec.Key, after(time.Hour))
		f.ok(err)
		equal(f, "operation", got.Operation, "dropTable")
	}},
	{"idempotency key waits for whoever has it in hand", func(f *fixture) {
		for _, commit := range []bool{true, false} {
			key := uuid.New()
			inHand, finish, first, second := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
			failed := errors.New("changed its mind")
			go func() {
				first <- f.update(func(tx catalog.Tx) error {
					if err := tx.PutIdempotency(f.ctx, f.idempotency(key)); err != nil {
						return err
					}
					close(inHand)
					<-finish
					if !commit {
						return failed
					}
					return nil
				})
			}()
			<-inHand
			go func() { second <- f.putIdempotency(f.idempotency(key)) }()
			select {
			case err := <-second:
				f.Fatalf("the second did not wait: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			close(finish)
			if commit {
				f.ok(<-first)
				f.is(<-second, catalog.ErrIdempotencyUsed)
			} else {
				f.is(<-first, failed)
				f.ok(<-second)
			}
		}
	}},
	{"of a hundred uses of one idempotency key one wins", func(f *fixture) {
		rec := f.idempotency(uuid.New())
		f.oneWins(together(100, func(int) error { return f.putIdempotency(rec) }), catalog.ErrIdempotencyUsed)
	}},
	{"events come in order, by warehouse, after a given one", func(f *fixture) {
		none, err := f.store.Events(f.ctx, f.wh, 0, 10)
		f.ok(err)
		equal(f, "number of events of a new store", len(none), 0)
		var want []catalog.Event
		for i := range 5 {
			e := f.event(fmt.Sprint(i))
			want = append(want, e)
			f.ok(f.putEvent(e))
			e.Warehouse = f.warehouse("other")
			f.ok(f.putEvent(e))
		}
		got, err := f.store.Events(f.ctx, f.wh, 0, 3)
		f.ok(err)
		equal(f, "number of events", len(got), 3)
		rest, err := f.store.Events(f.ctx, f.wh, got[2].ID, 0)
		f.ok(err)
		got = append(got, rest...)
		if len(got) != len(want) {
			f.Fatalf("%d events, want %d", len(got), len(want))
		}
		for i, e := range got {
			if e.ID <= 0 || i > 0 && e.ID <= got[i-1].ID {
				f.Errorf("id %d does not grow", e.ID)
			}
			w := want[i]
			equal(f, "name", e.Name, w.Name)
			equal(f, "time", e.Time, w.Time)
			equal(f, "warehouse", e.Warehouse, w.Warehouse)
			equal(f, "type", e.Type, w.Type)
			equal(f, "object", e.Object, w.Object)
			equal(f, "namespace", e.Namespace, w.Namespace)
			equal(f, "payload", string(e.Payload), string(w.Payload))
		}
		again, err := f.store.Events(f.ctx, f.wh, 0, 0)
		f.ok(err)
		for i, e := range again {
			equal(f, "id when read again", e.ID, got[i].ID)
		}
	}},
	{"no event is skipped by readers that follow", func(f *fixture) {
		const readers, writers, each = 3, 6, 25
		var written atomic.Bool
		var seen [readers][]catalog.Event
		follow := func(r int) error {
			var last int64
			for {
				final := written.Load()
				events, err := f.store.Events(f.ctx, f.wh, last, 7+r)
				if err != nil {
					return err
				}
				seen[r] = append(seen[r], events...)
				if len(events) > 0 {
					last = events[len(events)-1].ID
				} else if final {
					return nil
				}
			}
		}
		read := make(chan []error, 1)
		go func() { read <- together(readers, follow) }()
		for _, err := range together(writers, func(w int) error {
			for i := range each {
				if err := f.putEvent(f.event(fmt.Sprint(w, "-", i))); err != nil {
					return err
				}
			}
			return nil
		}) {
			f.ok(err)
		}
		written.Store(true)
		for _, err := range <-read {
			f.ok(err)
		}
		for r, events := range seen {
			names := map[string]bool{}
			for i, e := range events {
				if i > 0 && e.ID <= events[i-1].ID {
					f.Fatalf("event %d comes after %d", e.ID, events[i-1].ID)
				}
				if i < len(seen[0]) && (e.ID != seen[0][i].ID || e.Name != seen[0][i].Name) {
					f.Fatalf("reader %d sees event %d %s where reader 0 sees %d %s", r, e.ID, e.Name, seen[0][i].ID, seen[0][i].Name)
				}
				names[e.Name] = true
			}
			equal(f, "number of events read", len(events), writers*each)
			equal(f, "number of different events read", len(names), writers*each)
		}
	}},
	{"an event in flight is not overtaken for good", func(f *fixture) {
		inHand, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- f.update(func(tx catalog.Tx) error {
				if err := tx.PutEvent(f.ctx, f.event("slow")); err != nil {
					return err
				}
				close(inHand)
				<-finish
				return nil
			})
		}()
		<-inHand
		quick := make(chan error, 1)
		go func() { quick <- f.putEvent(f.event("quick")) }()
		var early []catalog.Event
		read := make(chan error, 1)
		go func() {
			var err error
			early, err = f.store.Events(f.ctx, f.wh, 0, 0)
			read <- err
		}()
		time.Sleep(50 * time.Millisecond)
		close(finish)
		f.ok(<-done)
		f.ok(<-quick)
		f.ok(<-read)
		var last int64
		if len(early) > 0 {
			last = early[len(early)-1].ID
		}
		late, err := f.store.Events(f.ctx, f.wh, last, 0)
		f.ok(err)
		equal(f, "number of events in all", len(early)+len(late), 2)
	}},
	{"audit rows come newest first", func(f *fixture) {
		other := f.warehouse("other")
		f.do(func(tx catalog.Tx) error {
			for i := range 4 {
				row := catalog.AuditRow{Warehouse: f.wh, Record: auditRecord(i)}
				if err := tx.PutAudit(f.ctx, row); err != nil {
					return err
				}
				row.Warehouse = other
				if err := tx.PutAudit(f.ctx, row); err != nil {
					return err
				}
			}
			return nil
		})
		got, err := f.store.Audit(f.ctx, f.wh, 3)
		f.ok(err)
		if len(got) != 3 {
			f.Fatalf("%d rows, want 3", len(got))
		}
		for i, row := range got {
			equal(f, "warehouse", row.Warehouse, f.wh)
			equal(f, "record", fmt.Sprint(row.Record), fmt.Sprint(auditRecord(3-i)))
		}
	}},
	{"metrics reports come newest first", func(f *fixture) {
		object := uuid.New()
		var reports []catalog.MetricsReport
		for i := range 5 {
			reports = append(reports, catalog.MetricsReport{
				Time: after(time.Duration(i) * time.Second), Warehouse: f.wh, Object: object, Principal: "p", Type: "scan-report",
				Report: json.RawMessage(fmt.Sprintf(`{"i":%d}`, i)),
			})
		}
		other := reports[0]
		other.Object = uuid.New()
		f.ok(f.store.PutMetricsReports(f.ctx, nil))
		f.ok(f.store.PutMetricsReports(f.ctx, append(reports, other)))
		got, err := f.store.MetricsReports(f.ctx, f.wh, object, 3)
		f.ok(err)
		if len(got) != 3 {
			f.Fatalf("%d reports, want 3", len(got))
		}
		for i, r := range got {
			want := reports[4-i]
			equal(f, "report", string(r.Report), string(want.Report))
			equal(f, "time", r.Time, want.Time)
			equal(f, "type", r.Type, want.Type)
			equal(f, "principal", r.Principal, want.Principal)
			equal(f, "object", r.Object, want.Object)
			equal(f, "warehouse", r.Warehouse, want.Warehouse)
		}
	}},
	{"only the newest metrics reports of a table are kept", func(f *fixture) {
		object, other := uuid.New(), uuid.New()
		put := func(object uuid.UUID, from, to int) {
			var reports []catalog.MetricsReport
			for i := from; i < to; i++ {
				reports = append(reports, catalog.MetricsReport{Time: start, Warehouse: f.wh, Object: object, Type: "scan-report", Report: json.RawMessage(fmt.Sprint(i))})
			}
			f.ok(f.store.PutMetricsReports(f.ctx, reports))
		}
		put(other, 0, 2)
		put(object, 0, catalog.MaxReports)
		put(object, catalog.MaxReports, catalog.MaxReports+3)
		got, err := f.store.MetricsReports(f.ctx, f.wh, object, 0)
		f.ok(err)
		equal(f, "number of reports", len(got), catalog.MaxReports)
		equal(f, "oldest report", string(got[len(got)-1].Report), "3")
		got, err = f.store.MetricsReports(f.ctx, f.wh, other, 0)
		f.ok(err)
		equal(f, "number of another table's reports", len(got), 2)
	}},
	{"records expire, each by its own time", func(f *fixture) {
		object := uuid.New()
		key := uuid.New()
		for i := range 5 {
			at := after(time.Duration(i) * time.Minute)
			f.ok(f.store.PutMetricsReports(f.ctx, []catalog.MetricsReport{{Time: at, Warehouse: f.wh, Object: object, Type: "scan-report", Report: json.RawMessage(`{}`)}}))
			e := f.event(fmt.Sprint(i))
			e.Time = at
			f.ok(f.putEvent(e))
			rec := f.idempotency(uuid.New())
			if i == 4 {
				rec.Key = key
			}
			rec.ExpiresAt = at.Add(time.Hour)
			f.ok(f.putIdempotency(rec))
		}
		expire := func(now, reports, events time.Time, limit int) int {
			n, err := f.store.Expire(f.ctx, now, reports, events, limit)
			f.ok(err)
			return n
		}
		equal(f, "rows when nothing is due", expire(start, start, start, 100), 0)
		// 3 reports (older than minute 3), 2 events, 4 keys (minutes 0 to 3).
		equal(f, "rows", expire(after(time.Hour+3*time.Minute), after(3*time.Minute), after(2*time.Minute), 100), 9)
		reports, err := f.store.MetricsReports(f.ctx, f.wh, object, 0)
		f.ok(err)
		equal(f, "reports left", len(reports), 2)
		events, err := f.store.Events(f.ctx, f.wh, 0, 0)
		f.ok(err)
		equal(f, "events left", len(events), 3)
		equal(f, "first event left", events[0].Name, "2")
		_, err = f.store.Idempotency(f.ctx, f.wh, "p", key, start)
		f.ok(err)
		far := after(1000 * time.Hour)
		for _, want := range []int{3, 2, 1, 0} { // 2, 3 and 1 are left, one of each goes at a time
			equal(f, "rows in a step of one", expire(far, far, far, 1), want)
		}
	}},
}
