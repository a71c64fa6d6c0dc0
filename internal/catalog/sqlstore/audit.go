// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
)

const auditColumns = `kind, at, request_id, principal, actor, address, operation, resource, status, decision, policies, detail`

// auditRow is the destination of auditColumns.
type auditRow struct {
	row                        catalog.AuditRow
	kind, at, status, decision int64
	address, policies, detail  string
}

func (a *auditRow) dest(more ...any) []any {
	r := &a.row.Record
	return append(more, &a.kind, &a.at, &r.RequestID, &r.Principal, &r.Actor, &a.address, &r.Operation, &r.Resource, &a.status, &a.decision, &a.policies, &a.detail)
}

// finish turns what was read into the row. What cannot be a record any more
// becomes one that no hash fits.
func (a *auditRow) finish(warehouse uuid.UUID) catalog.AuditRow {
	r := &a.row.Record
	a.row.Warehouse = warehouse
	r.Kind, r.Decision = audit.Kind(clamp(a.kind)), audit.Decision(clamp(a.decision))
	r.Time, r.Status, r.Detail = fromMillis(a.at), int(a.status), json.RawMessage(a.detail)
	if a.address != "" {
		var err error
		if r.Address, err = netip.ParseAddr(a.address); err != nil {
			r.Resource += " (address " + a.address + ")"
		}
	}
	if a.policies != "" && json.Unmarshal([]byte(a.policies), &r.Policies) != nil {
		r.Policies = []audit.Policy{{Set: a.policies}}
	}
	return a.row
}

func clamp(n int64) uint8 {
	if n < 0 || n > 255 {
		return 255
	}
	return uint8(n)
}

// Audit implements catalog.Store.
func (s *Store) Audit(ctx context.Context, warehouse uuid.UUID, n int) ([]catalog.AuditRow, error) {
	rows, err := s.c.Query(ctx, `SELECT COALESCE(seq, 0), hash, `+auditColumns+` FROM audit WHERE warehouse = $1 ORDER BY id DESC LIMIT $2`, warehouse, limit(n))
	if err != nil {
		return nil, fmt.Errorf("read audit rows: %w", err)
	}
	return chained(rows, warehouse)
}

// AuditRows implements catalog.Store.
func (s *Store) AuditRows(ctx context.Context, warehouse uuid.UUID, after int64, n int) ([]catalog.AuditRow, error) {
	rows, err := s.c.Query(ctx, `SELECT seq, hash, `+auditColumns+` FROM audit WHERE warehouse = $1 AND seq > $2 ORDER BY seq LIMIT $3`, warehouse, after, limit(n))
	if err != nil {
		return nil, fmt.Errorf("read audit rows: %w", err)
	}
	return chained(rows, warehouse)
}

// chained reads rows with their places in the chain.
func chained(rows Rows, warehouse uuid.UUID) ([]catalog.AuditRow, error) {
	defer rows.Close()
	var all []catalog.AuditRow
	for rows.Next() {
		var a auditRow
		var hash []byte
		if err := rows.Scan(a.dest(&a.row.Seq, &hash)...); err != nil {
			return nil, fmt.Errorf("read audit rows: %w", err)
		}
		if len(hash) == len(a.row.Hash) {
			copy(a.row.Hash[:], hash)
		}
		all = append(all, a.finish(warehouse))
	}
	return all, wrap("read audit rows", rows.Err())
}

// AuditState implements catalog.Store.
func (s *Store) AuditState(ctx context.Context, warehouse uuid.UUID) (catalog.AuditState, error) {
	state := catalog.AuditState{Head: audit.Ref{Partition: warehouse.String()}}
	var hash []byte
	var at int64
	err := s.c.QueryRow(ctx, `SELECT seq, hash, checkpoint, checkpoint_at, EXISTS (SELECT 1 FROM audit WHERE warehouse = $1 AND seq IS NULL) FROM audit_partitions WHERE warehouse = $1`,
		[]any{warehouse}, &state.Head.Seq, &hash, &state.Checkpoint, &at, &state.Fresh)
	if errors.Is(err, ErrNoRows) {
		return state, catalog.ErrNoObject
	}
	copy(state.Head.Hash[:], hash)
	if at > 0 {
		state.CheckpointAt = fromMillis(at)
	}
	return state, wrap("read the state of the audit chain", err)
}

// SealAudit implements catalog.Store. Row ids are given out before their
// transactions commit, so a row is looked for by its having no number, never
// by its id. The lock on the partition's row keeps others from numbering at
// the same time; whoever gets it next sees what was numbered before.
func (s *Store) SealAudit(ctx context.Context, warehouse uuid.UUID, n int) (before, after audit.Ref, err error) {
	err = s.engine.Transact(ctx, func(c Conn) error {
		before, after = audit.Ref{}, audit.Ref{}
		head := audit.Ref{Partition: warehouse.String()}
		var hash []byte
		err := c.QueryRow(ctx, `SELECT seq, hash FROM audit_partitions WHERE warehouse = $1`+s.locks.SkipLocked, []any{warehouse}, &head.Seq, &hash)
		if errors.Is(err, ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		copy(head.Hash[:], hash)
		before, after = head, head
		ids, hashes, last, err := freshAudit(ctx, c, warehouse, head, n)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := s.engine.NumberAudit(ctx, c, ids, head.Seq+1, hashes); err != nil {
			return err
		}
		after = last
		_, err = c.Exec(ctx, `UPDATE audit_partitions SET seq = $2, hash = $3 WHERE warehouse = $1`, warehouse, last.Seq, last.Hash[:])
		return err
	})
	if err != nil {
		return audit.Ref{}, audit.Ref{}, fmt.Errorf("seal audit rows: %w", err)
	}
	return before, after, nil
}

// freshAudit reads rows that have no number, and chains them.
func freshAudit(ctx context.Context, c Conn, warehouse uuid.UUID, head audit.Ref, n int) (ids []int64, hashes []byte, last audit.Ref, err error) {
	rows, err := c.Query(ctx, `SELECT id, `+auditColumns+` FROM audit WHERE warehouse = $1 AND seq IS NULL ORDER BY id LIMIT $2`, warehouse, limit(n))
	if err != nil {
		return nil, nil, head, err
	}
	defer rows.Close()
	chain := audit.NewChain(head)
	var line []byte
	for rows.Next() {
		var a auditRow
		var id int64
		if err := rows.Scan(a.dest(&id)...); err != nil {
			return nil, nil, head, err
		}
		row := a.finish(warehouse)
		line = chain.Append(line[:0], &row.Record)
		last := chain.Last()
		ids, hashes = append(ids, id), append(hashes, last.Hash[:]...)
	}
	return ids, hashes, chain.Last(), rows.Err()
}

// PutAuditCheckpoint implements catalog.Store.
func (s *Store) PutAuditCheckpoint(ctx context.Context, warehouse uuid.UUID, cp audit.Checkpoint) error {
	return s.engine.Transact(ctx, func(c Conn) error {
		if _, err := c.Exec(ctx, `INSERT INTO audit_checkpoints (warehouse, seq, at, line) VALUES ($1, $2, $3, $4) ON CONFLICT (warehouse, seq) DO NOTHING`,
			warehouse, cp.Seq, millis(cp.Time), string(cp.Append(nil))); err != nil {
			return fmt.Errorf("put audit checkpoint: %w", err)
		}
		_, err := c.Exec(ctx, `UPDATE audit_partitions SET checkpoint = $2, checkpoint_at = $3 WHERE warehouse = $1 AND checkpoint < $2`, warehouse, cp.Seq, millis(cp.Time))
		return wrap("put audit checkpoint", err)
	})
}

// AuditCheckpoints implements catalog.Store.
func (s *Store) AuditCheckpoints(ctx context.Context, warehouse uuid.UUID, from int64, n int) ([]audit.Checkpoint, error) {
	rows, err := s.c.Query(ctx, `SELECT seq, line FROM audit_checkpoints WHERE warehouse = $1 AND seq >= $2 ORDER BY seq LIMIT $3`, warehouse, from, limit(n))
	if err != nil {
		return nil, fmt.Errorf("read audit checkpoints: %w", err)
	}
	defer rows.Close()
	var all []audit.Checkpoint
	for rows.Next() {
		var seq int64
		var line string
		if err := rows.Scan(&seq, &line); err != nil {
			return nil, fmt.Errorf("read audit checkpoints: %w", err)
		}
		cp, err := audit.ParseCheckpoint([]byte(line))
		if err != nil || cp.Seq != seq || cp.Partition != warehouse.String() {
			// A row that was changed: a checkpoint that no key verifies.
			cp = audit.Checkpoint{Ref: audit.Ref{Partition: warehouse.String(), Seq: seq}, Count: seq, Key: "unreadable"}
		}
		all = append(all, cp)
	}
	return all, wrap("read audit checkpoints", rows.Err())
}

// ExpireAudit implements catalog.Store.
func (s *Store) ExpireAudit(ctx context.Context, warehouse uuid.UUID, before time.Time, upTo int64) (int, error) {
	var gone int64
	err := s.engine.Transact(ctx, func(c Conn) error {
		gone = 0
		var first, end int64
		err := c.QueryRow(ctx, `SELECT seq FROM audit WHERE warehouse = $1 AND seq > 0 ORDER BY seq LIMIT 1`, []any{warehouse}, &first)
		if err == nil {
			err = c.QueryRow(ctx, `SELECT seq FROM audit_checkpoints WHERE warehouse = $1 AND seq >= $2 ORDER BY seq LIMIT 1`, []any{warehouse, first}, &end)
		}
		if err == nil {
			err = c.QueryRow(ctx, `SELECT seq FROM audit_checkpoints WHERE warehouse = $1 AND seq = $2 AND seq <= $3 AND at < $4`, []any{warehouse, end, upTo, millis(before)}, &end)
		}
		if errors.Is(err, ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if gone, err = c.Exec(ctx, `DELETE FROM audit WHERE warehouse = $1 AND seq <= $2`, warehouse, end); err != nil {
			return err
		}
		_, err = c.Exec(ctx, `DELETE FROM audit_checkpoints WHERE warehouse = $1 AND seq < $2`, warehouse, end)
		return err
	})
	return int(gone), wrap("expire audit rows", err)
}

// ClaimAuditCursor implements catalog.Store.
func (s *Store) ClaimAuditCursor(ctx context.Context, warehouse uuid.UUID, name string, now time.Time, lease time.Duration) (catalog.AuditCursor, error) {
	cursor := catalog.AuditCursor{Warehouse: warehouse, Name: name, HeldUntil: fromMillis(millis(now.Add(lease)))}
	err := s.engine.Transact(ctx, func(c Conn) error {
		if _, err := c.Exec(ctx, `INSERT INTO audit_cursors (warehouse, name, seq, held_until) VALUES ($1, $2, 0, 0) ON CONFLICT (warehouse, name) DO NOTHING`, warehouse, name); err != nil {
			return err
		}
		return c.QueryRow(ctx, `UPDATE audit_cursors SET held_until = $4 WHERE warehouse = $1 AND name = $2 AND held_until <= $3 RETURNING seq`,
			[]any{warehouse, name, millis(now), millis(cursor.HeldUntil)}, &cursor.Seq)
	})
	if errors.Is(err, ErrNoRows) {
		return catalog.AuditCursor{}, catalog.ErrNoObject
	}
	return cursor, wrap("claim audit cursor", err)
}

// MoveAuditCursor implements catalog.Store.
func (s *Store) MoveAuditCursor(ctx context.Context, cursor catalog.AuditCursor, seq int64, until time.Time) (catalog.AuditCursor, error) {
	err := s.held(ctx, "move audit cursor", `UPDATE audit_cursors SET seq = $4, held_until = $5 WHERE warehouse = $1 AND name = $2 AND held_until = $3`,
		cursor.Warehouse, cursor.Name, millis(cursor.HeldUntil), seq, millis(until))
	cursor.Seq, cursor.HeldUntil = seq, fromMillis(millis(until))
	return cursor, err
}

// AuditCursors implements catalog.Store.
func (s *Store) AuditCursors(ctx context.Context, warehouse uuid.UUID) (map[string]int64, error) {
	rows, err := s.c.Query(ctx, `SELECT name, seq FROM audit_cursors WHERE warehouse = $1`, warehouse)
	if err != nil {
		return nil, fmt.Errorf("read audit cursors: %w", err)
	}
	defer rows.Close()
	all := map[string]int64{}
	for rows.Next() {
		var name string
		var seq int64
		if err := rows.Scan(&name, &seq); err != nil {
			return nil, fmt.Errorf("read audit cursors: %w", err)
		}
		all[name] = seq
	}
	return all, wrap("read audit cursors", rows.Err())
}
