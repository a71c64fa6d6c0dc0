// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
)

// auditPage is how many rows of the audit chain are read or sealed at once.
const auditPage = 1000

// Line appends the row's line, without its newline, as the chain hashed it.
func (r *AuditRow) Line(b []byte) []byte {
	return audit.AppendSealed(b, &r.Record, audit.Ref{Partition: r.Warehouse.String(), Seq: r.Seq, Hash: r.Hash})
}

// AuditLines reads a warehouse's audit chain after a record, as the lines of
// an audit log: each checkpoint follows its record. From the beginning, that
// of rows that were removed comes first.
func AuditLines(ctx context.Context, store Store, warehouse uuid.UUID, after int64) iter.Seq2[audit.Line, error] {
	return func(yield func(audit.Line, error) bool) {
		var line []byte
		c := checkpoints{store: store, warehouse: warehouse}
		if c.from = after + 1; after == 0 {
			c.from = 0
		}
		// emit yields the checkpoints of records before one.
		emit := func(before int64) bool {
			for {
				cp, err := c.next(ctx, before)
				if err != nil {
					yield(audit.Line{}, err)
					return false
				}
				if cp == nil {
					return true
				}
				line = cp.Append(line[:0])
				if !yield(audit.Line{Text: line[:len(line)-1]}, nil) {
					return false
				}
			}
		}
		for {
			rows, err := store.AuditRows(ctx, warehouse, after, auditPage)
			if err != nil {
				yield(audit.Line{}, err)
				return
			}
			c.again(after + 1)
			for _, row := range rows {
				if !emit(row.Seq) {
					return
				}
				line = row.Line(line[:0])
				if !yield(audit.Line{Text: line}, nil) {
					return
				}
				after = row.Seq
			}
			if len(rows) < auditPage {
				if after == 0 { // all rows were removed
					after, err = c.peek(ctx)
					if err != nil {
						yield(audit.Line{}, err)
						return
					}
				}
				// None of a record that was sealed after the rows were read.
				emit(after + 1)
				return
			}
		}
	}
}

// checkpoints reads those of a warehouse a page at a time.
type checkpoints struct {
	store     Store
	warehouse uuid.UUID
	from      int64 // the next page
	page      []audit.Checkpoint
	end       bool
}

// again looks anew when there were no more, for those of records from one on:
// one that was signed late is left out, since a later one covers the same.
func (c *checkpoints) again(from int64) {
	if len(c.page) == 0 {
		c.end = false
		if from > 1 {
			c.from = max(c.from, from)
		}
	}
}

// fill reads a page when there is none.
func (c *checkpoints) fill(ctx context.Context) error {
	if len(c.page) > 0 || c.end {
		return nil
	}
	page, err := c.store.AuditCheckpoints(ctx, c.warehouse, c.from, auditPage)
	if err != nil {
		return err
	}
	if c.page, c.end = page, len(page) < auditPage; len(page) > 0 {
		c.from = page[len(page)-1].Seq + 1
	}
	return nil
}

// peek is the record of the next one; 0 when there is none.
func (c *checkpoints) peek(ctx context.Context) (int64, error) {
	if err := c.fill(ctx); err != nil || len(c.page) == 0 {
		return 0, err
	}
	return c.page[0].Seq, nil
}

// next returns the next one if it is of a record before one; nil when it is
// not, or there is none.
func (c *checkpoints) next(ctx context.Context, before int64) (*audit.Checkpoint, error) {
	seq, err := c.peek(ctx)
	if err != nil || seq == 0 || seq >= before {
		return nil, err
	}
	cp := &c.page[0]
	c.page = c.page[1:]
	return cp, nil
}

// AuditChain is one chain of audit rows in the store.
type AuditChain struct {
	ID uuid.UUID // the partition
	// Source is what exports call it: "warehouses/<name>", or "administration".
	Source string
}

// AuditChain is that of the warehouse's changes.
func (w *Warehouse) AuditChain() AuditChain { return AuditChain{w.id, "warehouses/" + w.Name()} }

// AuditSealer chains the audit rows of changes and signs checkpoints of the
// chains. Any number of replicas may run one.
//
// It signs nothing that it cannot tell to be the continuation of what it has
// seen: whoever rewrites a chain in the store while servers run does not get
// it signed.
type AuditSealer struct {
	Store  Store
	Chains []AuditChain
	// Signer signs checkpoints; nil makes none.
	Signer *audit.Signer
	// Keys verify the checkpoint that a chain is followed from at the start.
	Keys audit.Keys
	// Interval is the pause between rounds, which bounds how long a committed
	// row is outside the chain; 1 s when zero.
	Interval time.Duration
	// A checkpoint is made after this many records, or this long after the one
	// before when there is any; 1000 and 10 s when zero.
	CheckpointRecords  int64
	CheckpointInterval time.Duration
	// Keep is how long rows stay, 0 for ever; without a Signer they all stay.
	// So do rows that one of the Exports, named by their cursors, has not taken.
	Keep    time.Duration
	Exports []string
	// Progress is told since when chains could not be sealed and signed.
	Progress *audit.Progress
	Logger   *slog.Logger
	Now      func() time.Time

	// proved is the end of each chain as far as this process has followed it.
	proved  map[uuid.UUID]audit.Ref
	broken  map[uuid.UUID]bool
	failing map[uuid.UUID]time.Time // since when
	expired time.Time
}

// ErrAuditBroken is in the chain of errors when an audit chain is not the
// continuation of what was seen of it before.
var ErrAuditBroken = errors.New("the audit chain was changed in the store; no checkpoint of it is signed any more: see catalogd audit verify")

// Run works until ctx ends, and then does a last round.
func (s *AuditSealer) Run(ctx context.Context) {
	interval := s.Interval
	if interval <= 0 {
		interval = time.Second
	}
	for {
		if err := s.Round(ctx, false); err != nil && ctx.Err() == nil {
			s.logger().Error("seal the audit rows", "error", err)
		}
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := s.Round(last, true); err != nil {
				s.logger().Error("seal the audit rows at the end", "error", err)
			}
			return
		case <-time.After(interval):
		}
	}
}

// Round seals what has committed and signs what is due; with final set it
// signs whatever no checkpoint covers.
func (s *AuditSealer) Round(ctx context.Context, final bool) error {
	if s.proved == nil {
		s.proved, s.broken, s.failing = map[uuid.UUID]audit.Ref{}, map[uuid.UUID]bool{}, map[uuid.UUID]time.Time{}
	}
	if s.Progress == nil {
		s.Progress = &audit.Progress{}
	}
	var errs []error
	for _, c := range s.Chains {
		err := s.seal(ctx, c.ID, final)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Source, err))
			s.Progress.Failed()
		}
		if err == nil && !s.broken[c.ID] {
			delete(s.failing, c.ID)
		} else if s.failing[c.ID].IsZero() {
			s.failing[c.ID] = s.now()
		}
		s.Progress.Pending(c.Source, s.failing[c.ID])
	}
	if s.Keep > 0 && s.Signer != nil && s.now().Sub(s.expired) >= time.Minute {
		s.expired = s.now()
		for _, c := range s.Chains {
			if err := s.expire(ctx, c.ID); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.Source, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *AuditSealer) seal(ctx context.Context, wh uuid.UUID, final bool) error {
	state, err := s.Store.AuditState(ctx, wh)
	for err == nil && state.Fresh {
		var before, after audit.Ref
		if before, after, err = s.Store.SealAudit(ctx, wh, auditPage); err != nil || after.Seq == before.Seq {
			break // another replica is at it
		}
		// What this process has sealed itself onto what it knew is known too.
		if known, ok := s.proved[wh]; ok && known == before {
			s.proved[wh] = after
		}
		if after.Seq-before.Seq < auditPage {
			break
		}
	}
	if err == nil {
		state, err = s.Store.AuditState(ctx, wh)
	}
	if err != nil {
		return err
	}
	records, pause := s.CheckpointRecords, s.CheckpointInterval
	if records <= 0 {
		records = audit.DefaultCheckpointRecords
	}
	if pause <= 0 {
		pause = audit.DefaultCheckpointInterval
	}
	fresh := state.Head.Seq - state.Checkpoint
	if s.Signer == nil || s.broken[wh] || fresh <= 0 || !final && fresh < records && s.now().Sub(state.CheckpointAt) < pause {
		return nil
	}
	if err := s.prove(ctx, wh, state.Head); err != nil {
		s.broken[wh] = errors.Is(err, ErrAuditBroken)
		return err
	}
	return s.Store.PutAuditCheckpoint(ctx, wh, s.Signer.Sign(state.Head, false, s.now()))
}

// prove follows the chain from where this process has seen it to a record. At
// the start it follows it from the newest checkpoint whose signature is valid,
// or from its beginning.
func (s *AuditSealer) prove(ctx context.Context, wh uuid.UUID, head audit.Ref) error {
	known, ok := s.proved[wh]
	if !ok {
		known = audit.Ref{Partition: wh.String()}
		for c := (checkpoints{store: s.Store, warehouse: wh}); ; {
			cp, err := c.next(ctx, head.Seq+1)
			if err != nil {
				return err
			}
			if cp == nil {
				break
			}
			if err := cp.Verify(s.Keys); err != nil {
				return fmt.Errorf("%w: %w", ErrAuditBroken, err)
			}
			known = cp.Ref
		}
	}
	if head.Seq < known.Seq {
		return fmt.Errorf("%w: it ends at record %d, and had %d", ErrAuditBroken, head.Seq, known.Seq)
	}
	if err := s.follow(ctx, wh, known, head); err != nil {
		return err
	}
	s.proved[wh] = head
	return nil
}

// follow proves that the rows lead from one record to another.
func (s *AuditSealer) follow(ctx context.Context, wh uuid.UUID, from, to audit.Ref) error {
	chain := audit.NewChain(from)
	var line []byte
	for chain.Last().Seq < to.Seq {
		rows, err := s.Store.AuditRows(ctx, wh, chain.Last().Seq, auditPage)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("%w: records from %d on are missing", ErrAuditBroken, chain.Last().Seq+1)
		}
		for _, row := range rows {
			line = chain.Append(line[:0], &row.Record)
			if last := chain.Last(); last.Seq != row.Seq || last.Hash != row.Hash {
				return fmt.Errorf("%w: record %d does not follow record %d", ErrAuditBroken, row.Seq, last.Seq-1)
			}
			if row.Seq == to.Seq {
				break
			}
		}
	}
	if chain.Last() != to {
		return fmt.Errorf("%w: record %d is not the one that it was", ErrAuditBroken, to.Seq)
	}
	return nil
}

// expire removes rows that have outlived their time and that every export
// has. Before it removes them it looks whether they are what was signed: what
// somebody has changed is not cleared away.
func (s *AuditSealer) expire(ctx context.Context, wh uuid.UUID) error {
	if s.broken[wh] {
		return nil
	}
	upTo := int64(math.MaxInt64)
	if len(s.Exports) > 0 {
		cursors, err := s.Store.AuditCursors(ctx, wh)
		if err != nil {
			return err
		}
		for _, name := range s.Exports {
			upTo = min(upTo, cursors[name])
		}
	}
	before := s.now().Add(-s.Keep)
	for {
		end, err := s.expirable(ctx, wh, before, upTo)
		if err != nil || end == 0 {
			return err
		}
		n, err := s.Store.ExpireAudit(ctx, wh, before, end)
		if err != nil || n == 0 {
			return err
		}
	}
}

// expirable returns the number of the next record up to which rows can be
// removed; 0 when there is none.
func (s *AuditSealer) expirable(ctx context.Context, wh uuid.UUID, before time.Time, upTo int64) (int64, error) {
	rows, err := s.Store.AuditRows(ctx, wh, 0, 1)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	first := rows[0].Seq
	// The one that rows were removed up to before, and the first of these.
	list, err := s.Store.AuditCheckpoints(ctx, wh, first-1, 2)
	if err != nil {
		return 0, err
	}
	from := audit.Ref{Partition: wh.String()}
	if len(list) > 0 && list[0].Seq == first-1 {
		from, list = list[0].Ref, list[1:]
	}
	if len(list) == 0 || list[0].Seq > upTo || !list[0].Time.Before(before) {
		return 0, nil
	}
	to := list[0]
	err = to.Verify(s.Keys)
	if err == nil {
		err = s.follow(ctx, wh, from, to.Ref)
	}
	if err != nil {
		return 0, fmt.Errorf("old records stay, since they are not what was signed: %w", err)
	}
	return to.Seq, nil
}

func (s *AuditSealer) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

func (s *AuditSealer) logger() *slog.Logger {
	if s.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Logger
}
