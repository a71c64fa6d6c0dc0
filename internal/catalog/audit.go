// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
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
		from := after + 1
		if after == 0 {
			from = 0
		}
		for {
			rows, err := store.AuditRows(ctx, warehouse, after, auditPage)
			if err != nil {
				yield(audit.Line{}, err)
				return
			}
			checkpoints, err := store.AuditCheckpoints(ctx, warehouse, from, 0)
			if err != nil {
				yield(audit.Line{}, err)
				return
			}
			for _, row := range rows {
				for len(checkpoints) > 0 && checkpoints[0].Seq < row.Seq {
					line = checkpoints[0].Append(line[:0])
					if !yield(audit.Line{Text: line[:len(line)-1]}, nil) {
						return
					}
					checkpoints = checkpoints[1:]
				}
				line = row.Line(line[:0])
				if !yield(audit.Line{Text: line}, nil) {
					return
				}
				after = row.Seq
			}
			if last := len(rows) < auditPage; last || len(checkpoints) > 0 && checkpoints[0].Seq == after {
				for len(checkpoints) > 0 && (last || checkpoints[0].Seq == after) {
					line = checkpoints[0].Append(line[:0])
					if !yield(audit.Line{Text: line[:len(line)-1]}, nil) {
						return
					}
					checkpoints = checkpoints[1:]
				}
				if last {
					return
				}
			}
			from = after + 1
		}
	}
}

// AuditSealer chains the audit rows of changes and signs checkpoints of the
// chains. Any number of replicas may run one.
//
// It signs nothing that it cannot tell to be the continuation of what it has
// seen: whoever rewrites a chain in the store while servers run does not get
// it signed.
type AuditSealer struct {
	Store      Store
	Warehouses []*Warehouse
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
	for _, w := range s.Warehouses {
		err := s.seal(ctx, w.id, final)
		if err != nil {
			errs = append(errs, fmt.Errorf("warehouse %s: %w", w.Name(), err))
			s.Progress.Failed()
		}
		if err == nil && !s.broken[w.id] {
			delete(s.failing, w.id)
		} else if s.failing[w.id].IsZero() {
			s.failing[w.id] = s.now()
		}
		s.Progress.Pending(source(w), s.failing[w.id])
	}
	if s.Keep > 0 && s.Signer != nil && s.now().Sub(s.expired) >= time.Minute {
		s.expired = s.now()
		for _, w := range s.Warehouses {
			if err := s.expire(ctx, w.id); err != nil {
				errs = append(errs, fmt.Errorf("warehouse %s: %w", w.Name(), err))
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
		checkpoints, err := s.Store.AuditCheckpoints(ctx, wh, 0, 0)
		if err != nil {
			return err
		}
		for _, c := range checkpoints {
			if err := c.Verify(s.Keys); err != nil {
				return fmt.Errorf("%w: %w", ErrAuditBroken, err)
			}
			known = c.Ref
		}
	}
	if head.Seq < known.Seq {
		return fmt.Errorf("%w: it ends at record %d, and had %d", ErrAuditBroken, head.Seq, known.Seq)
	}
	chain := audit.NewChain(known)
	for chain.Last().Seq < head.Seq {
		rows, err := s.Store.AuditRows(ctx, wh, chain.Last().Seq, auditPage)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("%w: records from %d on are missing", ErrAuditBroken, chain.Last().Seq+1)
		}
		for _, row := range rows {
			chain.Append(nil, &row.Record)
			if last := chain.Last(); last.Seq != row.Seq || last.Hash != row.Hash {
				return fmt.Errorf("%w: record %d does not follow record %d", ErrAuditBroken, row.Seq, last.Seq-1)
			}
			if row.Seq == head.Seq {
				break
			}
		}
	}
	if chain.Last() != head {
		return fmt.Errorf("%w: record %d is not the one that it was", ErrAuditBroken, head.Seq)
	}
	s.proved[wh] = head
	return nil
}

// expire removes rows that have outlived their time and that every export
// has.
func (s *AuditSealer) expire(ctx context.Context, wh uuid.UUID) error {
	upTo := int64(1<<63 - 1)
	if len(s.Exports) > 0 {
		cursors, err := s.Store.AuditCursors(ctx, wh)
		if err != nil {
			return err
		}
		for _, name := range s.Exports {
			upTo = min(upTo, cursors[name])
		}
	}
	for {
		n, err := s.Store.ExpireAudit(ctx, wh, s.now().Add(-s.Keep), upTo)
		if err != nil || n == 0 {
			return err
		}
	}
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

// AuditPartition stands for an audit chain that belongs to no warehouse, where
// an [AuditSealer] or an exporter takes warehouses. It has no other use.
func AuditPartition(name string, id uuid.UUID) *Warehouse {
	return &Warehouse{id: id, opts: Options{Name: name}}
}
