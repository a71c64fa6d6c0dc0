// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// queued drops n tables with purge, a second apart, and returns their ids.
func (f *fixture) queued(n int) (ids []uuid.UUID) {
	f.Helper()
	for i := range n {
		o := f.created(catalog.KindTable, "a", fmt.Sprint("t", i))
		f.ok(f.drop(o, after(time.Duration(i)*time.Second), time.Time{}, true))
		ids = append(ids, o.ID)
	}
	return ids
}

var purgeChecks = []check{
	{"purges are claimed oldest first and hidden while leased", func(f *fixture) {
		f.namespaces("a")
		ids := f.queued(2)
		_, err := f.store.ClaimPurge(f.ctx, after(-time.Second), time.Minute)
		f.is(err, catalog.ErrNoObject)
		now := after(time.Hour)
		for _, id := range ids {
			p, err := f.store.ClaimPurge(f.ctx, now, time.Minute)
			f.ok(err)
			equal(f, "object", p.Object, id)
			equal(f, "hidden until", p.NotBefore, now.Add(time.Minute))
		}
		_, err = f.store.ClaimPurge(f.ctx, now.Add(time.Minute-time.Millisecond), time.Minute)
		f.is(err, catalog.ErrNoObject)
		p, err := f.store.ClaimPurge(f.ctx, now.Add(time.Minute), time.Minute) // its worker has died
		f.ok(err)
		equal(f, "object claimed again", p.Object, ids[0])
	}},
	{"purge that failed comes back later", func(f *fixture) {
		f.namespaces("a", "probe")
		f.queued(1)
		p, err := f.store.ClaimPurge(f.ctx, after(time.Hour), time.Minute)
		f.ok(err)
		f.ok(f.store.RetryPurge(f.ctx, p, after(2*time.Hour)))
		equal(f, "location is free", f.reservable(p.Locations[0]), false)
		_, err = f.store.ClaimPurge(f.ctx, after(2*time.Hour-time.Millisecond), time.Minute)
		f.is(err, catalog.ErrNoObject)
		p, err = f.store.ClaimPurge(f.ctx, after(2*time.Hour), time.Minute)
		f.ok(err)
		equal(f, "attempts", p.Attempts, 1)
		f.ok(f.store.FinishPurge(f.ctx, p))
		f.is(f.store.FinishPurge(f.ctx, p), catalog.ErrStale) // again does no harm
		equal(f, "location is free", f.reservable(p.Locations[0]), true)
		_, err = f.store.ClaimPurge(f.ctx, after(100*time.Hour), time.Minute)
		f.is(err, catalog.ErrNoObject)
	}},
	{"a worker whose lease was taken over does nothing more", func(f *fixture) {
		f.namespaces("a", "probe")
		f.queued(1)
		late, err := f.store.ClaimPurge(f.ctx, after(time.Hour), time.Minute)
		f.ok(err)
		late, err = f.store.RenewPurge(f.ctx, late, after(2*time.Hour))
		f.ok(err)
		equal(f, "lease", late.NotBefore, after(2*time.Hour))
		_, err = f.store.ClaimPurge(f.ctx, after(time.Hour+time.Minute), time.Minute) // it was renewed
		f.is(err, catalog.ErrNoObject)
		p, err := f.store.ClaimPurge(f.ctx, after(3*time.Hour), time.Minute)
		f.ok(err)
		_, err = f.store.RenewPurge(f.ctx, late, after(9*time.Hour))
		f.is(err, catalog.ErrStale)
		f.is(f.store.RetryPurge(f.ctx, late, start), catalog.ErrStale)
		f.is(f.store.FinishPurge(f.ctx, late), catalog.ErrStale)
		equal(f, "location is free", f.reservable(p.Locations[0]), false)
		f.ok(f.store.FinishPurge(f.ctx, p))
		equal(f, "location is free", f.reservable(p.Locations[0]), true)
	}},
	{"several workers share the purges", func(f *fixture) {
		f.namespaces("a")
		const purges = 40
		f.queued(purges)
		var mu sync.Mutex
		claimed := map[uuid.UUID]int{}
		for _, err := range together(4, func(int) error {
			for {
				p, err := f.store.ClaimPurge(f.ctx, after(time.Hour), time.Hour)
				if errors.Is(err, catalog.ErrNoObject) {
					return nil
				}
				if err != nil {
					return err
				}
				mu.Lock()
				claimed[p.Object]++
				mu.Unlock()
				if err := f.store.FinishPurge(f.ctx, p); err != nil {
					return err
				}
			}
		}) {
			f.ok(err)
		}
		equal(f, "objects claimed", len(claimed), purges)
		for id, n := range claimed {
			if n != 1 {
				f.Errorf("%s was claimed %d times", id, n)
			}
		}
	}},
}
