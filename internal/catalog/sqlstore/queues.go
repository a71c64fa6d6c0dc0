// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
)

// EnsureWarehouse implements catalog.Store.
func (s *Store) EnsureWarehouse(ctx context.Context, name string) (uuid.UUID, error) {
	var id uuid.UUID
	err := s.engine.Transact(ctx, func(c Conn) error {
		if _, err := c.Exec(ctx, `INSERT INTO warehouses (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`, uuid.Must(uuid.NewV7()), name); err != nil {
			return err
		}
		if err := c.QueryRow(ctx, `SELECT id FROM warehouses WHERE name = $1`, []any{name}, &id); err != nil {
			return err
		}
		_, err := c.Exec(ctx, `INSERT INTO audit_partitions (warehouse, seq, hash, checkpoint, checkpoint_at) VALUES ($1, 0, $2, 0, 0) ON CONFLICT (warehouse) DO NOTHING`,
			id, make([]byte, len(audit.Hash{})))
		return err
	})
	return id, wrap("register warehouse "+name, err)
}

// PutMetricsReports implements catalog.Store.
func (s *Store) PutMetricsReports(ctx context.Context, reports []catalog.MetricsReport) error {
	return s.engine.Transact(ctx, func(c Conn) error {
		for _, r := range reports {
			if _, err := c.Exec(ctx, `INSERT INTO metrics_reports (warehouse, object, at, principal, type, report) VALUES ($1, $2, $3, $4, $5, $6)`,
				r.Warehouse, r.Object, millis(r.Time), r.Principal, r.Type, string(r.Report)); err != nil {
				return fmt.Errorf("store metrics report: %w", err)
			}
			if _, err := c.Exec(ctx, `DELETE FROM metrics_reports WHERE warehouse = $1 AND object = $2 AND id <=
				(SELECT id FROM metrics_reports WHERE warehouse = $1 AND object = $2 ORDER BY id DESC LIMIT 1 OFFSET $3)`,
				r.Warehouse, r.Object, catalog.MaxReports); err != nil {
				return fmt.Errorf("drop old metrics reports: %w", err)
			}
		}
		return nil
	})
}

// MetricsReports implements catalog.Store.
func (s *Store) MetricsReports(ctx context.Context, warehouse, object uuid.UUID, n int) ([]catalog.MetricsReport, error) {
	rows, err := s.c.Query(ctx, `SELECT at, principal, type, report FROM metrics_reports WHERE warehouse = $1 AND object = $2 ORDER BY id DESC LIMIT $3`,
		warehouse, object, limit(n))
	if err != nil {
		return nil, fmt.Errorf("read metrics reports: %w", err)
	}
	defer rows.Close()
	var reports []catalog.MetricsReport
	for rows.Next() {
		r := catalog.MetricsReport{Warehouse: warehouse, Object: object}
		var at int64
		var report string
		if err := rows.Scan(&at, &r.Principal, &r.Type, &report); err != nil {
			return nil, fmt.Errorf("read metrics reports: %w", err)
		}
		r.Time, r.Report = fromMillis(at), json.RawMessage(report)
		reports = append(reports, r)
	}
	return reports, rows.Err()
}

// eventBatch bounds how many events one call numbers.
const eventBatch = 10_000

// Events implements catalog.Store. Row ids are given out before their
// transactions commit, so they can become visible out of order. An event
// therefore gets its public number when it is first read, in one transaction
// at a time: whatever has a number is committed, and whatever commits later
// gets a larger one.
func (s *Store) Events(ctx context.Context, warehouse uuid.UUID, after int64, n int) ([]catalog.Event, error) {
	var fresh bool
	if err := s.c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM events WHERE seq IS NULL)`, nil, &fresh); err != nil {
		return nil, fmt.Errorf("look for new events: %w", err)
	}
	if fresh {
		if err := s.engine.Transact(ctx, func(c Conn) error { return numberEvents(ctx, c) }); err != nil {
			return nil, fmt.Errorf("number events: %w", err)
		}
	}
	rows, err := s.c.Query(ctx, `SELECT seq, at, type, object, namespace, name, payload FROM events WHERE warehouse = $1 AND seq > $2 ORDER BY seq LIMIT $3`,
		warehouse, after, limit(n))
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer rows.Close()
	var events []catalog.Event
	for rows.Next() {
		e := catalog.Event{Warehouse: warehouse}
		var at int64
		var payload string
		if err := rows.Scan(&e.ID, &at, &e.Type, &e.Object, &e.Namespace, &e.Name, &payload); err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		e.Time, e.Payload = fromMillis(at), json.RawMessage(payload)
		events = append(events, e)
	}
	return events, rows.Err()
}

// numberEvents gives public numbers to events that have none. The counter's
// row lock keeps others out until the transaction ends.
func numberEvents(ctx context.Context, c Conn) error {
	var last int64
	if err := c.QueryRow(ctx, `UPDATE counters SET value = value WHERE name = 'events' RETURNING value`, nil, &last); err != nil {
		return err
	}
	numbered, err := c.Exec(ctx, `UPDATE events SET seq = $1 + fresh.n FROM
		(SELECT id, row_number() OVER (ORDER BY id) AS n FROM events WHERE seq IS NULL ORDER BY id LIMIT $2) AS fresh
		WHERE events.id = fresh.id`, last, eventBatch)
	if err != nil || numbered == 0 {
		return err
	}
	_, err = c.Exec(ctx, `UPDATE counters SET value = $1 WHERE name = 'events'`, last+numbered)
	return err
}

// ClaimPurge implements catalog.Store.
func (s *Store) ClaimPurge(ctx context.Context, now time.Time, lease time.Duration) (catalog.Purge, error) {
	var p catalog.Purge
	var locations string
	var notBefore, created int64
	err := s.engine.Transact(ctx, func(c Conn) error {
		return c.QueryRow(ctx, `UPDATE purges SET not_before = $2 WHERE id =
			(SELECT id FROM purges WHERE not_before <= $1 ORDER BY not_before, id LIMIT 1`+s.locks.SkipLocked+`)
			RETURNING id, warehouse, object, locations, metadata_location, attempts, not_before, created_at`,
			[]any{millis(now), millis(now.Add(lease))},
			&p.ID, &p.Warehouse, &p.Object, &locations, &p.MetadataLocation, &p.Attempts, &notBefore, &created)
	})
	if errors.Is(err, ErrNoRows) {
		return catalog.Purge{}, catalog.ErrNoObject
	}
	if err != nil {
		return catalog.Purge{}, fmt.Errorf("claim purge: %w", err)
	}
	p.NotBefore, p.CreatedAt = fromMillis(notBefore), fromMillis(created)
	if err := json.Unmarshal([]byte(locations), &p.Locations); err != nil {
		return catalog.Purge{}, fmt.Errorf("decode locations of purge %d: %w", p.ID, err)
	}
	return p, nil
}

// RenewPurge implements catalog.Store.
func (s *Store) RenewPurge(ctx context.Context, p catalog.Purge, until time.Time) (catalog.Purge, error) {
	err := s.held(ctx, "renew purge", `UPDATE purges SET not_before = $3 WHERE id = $1 AND not_before = $2`, p.ID, millis(p.NotBefore), millis(until))
	p.NotBefore = fromMillis(millis(until))
	return p, err
}

// FinishPurge implements catalog.Store.
func (s *Store) FinishPurge(ctx context.Context, p catalog.Purge) error {
	return s.engine.Transact(ctx, func(c Conn) error {
		n, err := c.Exec(ctx, `DELETE FROM purges WHERE id = $1 AND not_before = $2`, p.ID, millis(p.NotBefore))
		if err == nil && n == 0 {
			return catalog.ErrStale
		}
		if err != nil {
			return fmt.Errorf("finish purge: %w", err)
		}
		_, err = c.Exec(ctx, `DELETE FROM locations WHERE object = $1`, p.Object)
		return wrap("release locations", err)
	})
}

// RetryPurge implements catalog.Store.
func (s *Store) RetryPurge(ctx context.Context, p catalog.Purge, notBefore time.Time) error {
	return s.held(ctx, "put purge back", `UPDATE purges SET not_before = $3, attempts = attempts + 1 WHERE id = $1 AND not_before = $2`,
		p.ID, millis(p.NotBefore), millis(notBefore))
}

// held changes a row that is still this worker's.
func (s *Store) held(ctx context.Context, doing, query string, args ...any) error {
	return s.engine.Transact(ctx, func(c Conn) error {
		n, err := c.Exec(ctx, query, args...)
		if err == nil && n == 0 {
			return catalog.ErrStale
		}
		return wrap(doing, err)
	})
}

// Expire implements catalog.Store.
func (s *Store) Expire(ctx context.Context, now, reportsBefore, eventsBefore time.Time, n int) (int, error) {
	total := 0
	err := s.engine.Transact(ctx, func(c Conn) error {
		total = 0
		for _, d := range []struct {
			query string
			at    time.Time
		}{
			// The outer condition holds also for a record that is replaced
			// while this waits for its row.
			{`DELETE FROM idempotency WHERE expires_at <= $1 AND (warehouse, principal, key) IN (SELECT warehouse, principal, key FROM idempotency WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)`, now},
			{`DELETE FROM metrics_reports WHERE id IN (SELECT id FROM metrics_reports WHERE at < $1 ORDER BY at LIMIT $2)`, reportsBefore},
			{`DELETE FROM events WHERE id IN (SELECT id FROM events WHERE at < $1 ORDER BY at LIMIT $2)`, eventsBefore},
		} {
			gone, err := c.Exec(ctx, d.query, millis(d.at), n)
			if err != nil {
				return fmt.Errorf("expire: %w", err)
			}
			total += int(gone)
		}
		gone, err := s.expireObjects(ctx, c, now, n)
		total += gone
		return err
	})
	if err != nil {
		return 0, err
	}
	return total, nil
}

// expireObjects removes soft-deleted objects whose time is over.
func (s *Store) expireObjects(ctx context.Context, c Conn, now time.Time, n int) (int, error) {
	type expired struct {
		obj   catalog.Object
		purge bool
	}
	rows, err := c.Query(ctx, `SELECT warehouse, id, metadata_location, purge FROM objects WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2`+s.locks.SkipLocked, millis(now), n)
	if err != nil {
		return 0, fmt.Errorf("find expired objects: %w", err)
	}
	defer rows.Close()
	var all []expired
	for rows.Next() {
		var e expired
		if err := rows.Scan(&e.obj.Warehouse, &e.obj.ID, &e.obj.MetadataLocation, &e.purge); err != nil {
			return 0, fmt.Errorf("find expired objects: %w", err)
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("find expired objects: %w", err)
	}
	rows.Close()
	t := s.tx(c)
	for _, e := range all {
		if err := t.remove(ctx, e.obj, e.purge, now); err != nil {
			return 0, err
		}
	}
	return len(all), nil
}
