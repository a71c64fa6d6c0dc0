// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// Maintenance does what no request waits for: it purges files of dropped
// objects and removes rows that have outlived their time. Any number of
// replicas may run one; rows are claimed by lease, so a crash only delays.
type Maintenance struct {
	Store      Store
	Warehouses []*Warehouse
	// Interval is the pause between rounds; 30 s when zero.
	Interval time.Duration
	// KeepReports and KeepEvents are how long metrics reports and outbox
	// events stay; 30 and 7 days when zero.
	KeepReports, KeepEvents time.Duration
	Logger                  *slog.Logger
	Now                     func() time.Time
}

const (
	purgeLease       = 10 * time.Minute
	purgeParallelism = 16
	purgeBatch       = 1000 // files deleted under one look at the lease
	expireBatch      = 1000
)

// Run works until ctx ends.
func (m *Maintenance) Run(ctx context.Context) {
	interval := m.Interval
	if interval <= 0 {
		interval = 30 * time.Second
	}
	for {
		if err := m.Round(ctx); err != nil && ctx.Err() == nil {
			m.logger().Warn("maintenance", "error", err)
		}
		// Jitter keeps replicas apart.
		pause := interval/2 + rand.N(interval)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Round does all work that is due now.
func (m *Maintenance) Round(ctx context.Context) error {
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	keepReports, keepEvents := m.KeepReports, m.KeepEvents
	if keepReports <= 0 {
		keepReports = 30 * 24 * time.Hour
	}
	if keepEvents <= 0 {
		keepEvents = 7 * 24 * time.Hour
	}
	for {
		at := now().UTC()
		n, err := m.Store.Expire(ctx, at, at.Add(-keepReports), at.Add(-keepEvents), expireBatch)
		if err != nil {
			return fmt.Errorf("expire: %w", err)
		}
		if n < expireBatch {
			break
		}
	}
	byID := make(map[uuid.UUID]*Warehouse, len(m.Warehouses))
	for _, w := range m.Warehouses {
		byID[w.id] = w
	}
	for {
		p, err := m.Store.ClaimPurge(ctx, now().UTC(), purgeLease)
		if errors.Is(err, ErrNoObject) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("claim purge: %w", err)
		}
		p, err = m.purge(ctx, byID[p.Warehouse], p, now)
		if errors.Is(err, ErrStale) {
			m.logger().Warn("purge took longer than its lease; another worker has it", "object", p.Object)
			continue
		}
		if err != nil {
			// Later again, for as long as it takes: the order was
			// acknowledged. The pause doubles up to an hour.
			pause := min(time.Minute<<min(p.Attempts, 6), time.Hour)
			m.logger().Warn("purge", "object", p.Object, "attempt", p.Attempts+1, "again_in", pause, "error", err)
			if err := m.Store.RetryPurge(ctx, p, now().UTC().Add(pause)); err != nil && !errors.Is(err, ErrStale) {
				return fmt.Errorf("put purge back: %w", err)
			}
			continue
		}
		if err := m.Store.FinishPurge(ctx, p); err != nil && !errors.Is(err, ErrStale) {
			return fmt.Errorf("finish purge: %w", err)
		}
		m.logger().Info("purged", "object", p.Object, "locations", p.Locations)
	}
}

func (m *Maintenance) logger() *slog.Logger {
	if m.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return m.Logger
}

// purge deletes everything below the object's own locations. It can be
// repeated: what is gone is no error.
//
// Files are listed in batches, and before a batch is deleted the lease is
// renewed, which fails when another worker has it: that one may have finished,
// and the place may be a new table's. So what is deleted was listed while the
// place was this purge's. It returns the purge with its last lease.
func (m *Maintenance) purge(ctx context.Context, w *Warehouse, p Purge, now func() time.Time) (Purge, error) {
	if w == nil {
		return p, errors.New("its warehouse is not configured here")
	}
	for _, dir := range p.Locations {
		// A location was checked when it was reserved; check it again, since
		// a purge cannot be undone.
		if _, err := w.checkLocation("location", dir); err != nil {
			return p, err
		}
		var batch []string
		flush := func() (err error) {
			if p, err = m.Store.RenewPurge(ctx, p, now().UTC().Add(purgeLease)); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, purgeLease/2)
			defer cancel()
			g, ctx := errgroup.WithContext(ctx)
			g.SetLimit(purgeParallelism)
			for _, file := range batch {
				g.Go(func() error { return w.files.Delete(ctx, file) })
			}
			batch = batch[:0]
			return g.Wait()
		}
		err := w.files.List(ctx, dir, func(file string, _ int64) error {
			if batch = append(batch, file); len(batch) < purgeBatch {
				return nil
			}
			return flush()
		})
		if err == nil && len(batch) > 0 {
			err = flush()
		}
		if err != nil {
			return p, fmt.Errorf("purge %s: %w", dir, err)
		}
	}
	return p, nil
}
