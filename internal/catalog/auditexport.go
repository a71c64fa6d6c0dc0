// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
)

// AuditExporter hands the audit chains of changes on, with their checkpoints.
// Any number of replicas may run one of each name: a chain is one worker's at a
// time, and how far it has come is in the store. Every line is sent at least
// once, and in order.
type AuditExporter struct {
	Name   string
	Store  Store
	Chains []AuditChain
	// Sink takes batches; an error is tried again, with pauses that double from
	// Interval to a minute.
	Sink audit.Sink
	// Signed holds lines back until a checkpoint covers them, so that what is
	// handed on can be proved. Without a signer it must be false.
	Signed bool
	// Batch is how many records are sent at once at most; audit.DefaultBatch
	// when zero.
	Batch int64
	// Own tells the records that this export makes itself. They are sent with
	// others, but do not cause a batch, which would make the next one.
	Own func(audit.LineInfo) bool
	// Interval is the pause between rounds; 1 s when zero.
	Interval time.Duration
	Progress *audit.Progress
	Logger   *slog.Logger
}

const (
	exportLease   = 2 * time.Minute
	exportTimeout = time.Minute // of one delivery: well within the lease
)

// Run works until ctx ends.
func (x *AuditExporter) Run(ctx context.Context) {
	audit.Repeat(ctx, x.Interval, x.Round, func(err error, pause time.Duration) {
		x.Logger.Warn("audit export", "export", x.Name, "again_in", pause.String(), "error", err)
	})
}

// Round sends all that there is.
func (x *AuditExporter) Round(ctx context.Context) error {
	var errs []error
	for _, c := range x.Chains {
		for {
			more, err := x.batch(ctx, c)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.Source, err))
				x.progress().Failed()
			}
			if err != nil || !more {
				break
			}
		}
	}
	return errors.Join(errs...)
}

func (x *AuditExporter) progress() *audit.Progress {
	if x.Progress == nil {
		x.Progress = &audit.Progress{}
	}
	return x.Progress
}

// batch sends the next lines of a chain, and reports whether there are
// more.
func (x *AuditExporter) batch(ctx context.Context, c AuditChain) (more bool, err error) {
	// The cursors first: another replica may go on between the two looks.
	cursors, err := x.Store.AuditCursors(ctx, c.ID)
	if err != nil {
		return false, err
	}
	state, err := x.Store.AuditState(ctx, c.ID)
	if err != nil {
		return false, err
	}
	upTo := state.Head.Seq
	if x.Signed {
		upTo = state.Checkpoint
	}
	if at := cursors[x.Name]; at > state.Head.Seq {
		return false, fmt.Errorf("%w: the export has come to record %d, but there are %d", ErrAuditBroken, at, state.Head.Seq)
	}
	if at, known := cursors[x.Name]; known && at >= upTo || upTo == 0 {
		return false, x.waiting(ctx, c, at, state.Head.Seq)
	}
	cursor, err := x.Store.ClaimAuditCursor(ctx, c.ID, x.Name, time.Now(), exportLease)
	if errors.Is(err, ErrNoObject) {
		return false, nil // another replica has it
	}
	if err != nil {
		return false, err
	}
	seq, err := x.send(ctx, c, cursor.Seq, upTo)
	// What was delivered is noted also when the server ends meanwhile.
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, moved := x.Store.MoveAuditCursor(done, cursor, seq, time.Now()); moved != nil {
		err = errors.Join(err, moved)
	}
	return err == nil && seq > cursor.Seq && seq < upTo, err
}

// waiting notes how old the oldest record is that no checkpoint lets through.
func (x *AuditExporter) waiting(ctx context.Context, c AuditChain, after, head int64) error {
	var oldest time.Time
	if after < head && x.Own == nil {
		rows, err := x.Store.AuditRows(ctx, c.ID, after, 1)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			oldest = rows[0].Time
		}
	}
	x.progress().Pending(c.Source, oldest)
	return nil
}

// send delivers one batch and returns the number of the last record that the
// receiver has.
func (x *AuditExporter) send(ctx context.Context, c AuditChain, after, upTo int64) (int64, error) {
	b := audit.Batch{Source: c.Source, Partition: c.ID.String(), After: after, Last: after}
	var bytes int64
	var oldest time.Time // of a record that is not our own
	for line, err := range AuditLines(ctx, x.Store, c.ID, after) {
		if err != nil {
			return after, err
		}
		info, err := audit.ParseLine(line.Text)
		if err != nil {
			return after, fmt.Errorf("record after %d: %w", b.Last, err)
		}
		if info.IsRecord() {
			if audit.Full(b.Records(), bytes, x.Batch) || b.Last >= upTo {
				break
			}
			b.Last = max(b.Last, info.Seq)
			if oldest.IsZero() && (x.Own == nil || !x.Own(info)) {
				oldest = info.Time
			}
		}
		if len(b.Lines) == 0 && info.IsCheckpoint() {
			b.After, b.Last = info.Seq, info.Seq // what came before it was removed
		}
		b.Lines = append(b.Lines, slices.Clone(line.Text))
		bytes += int64(len(line.Text))
	}
	x.progress().Pending(c.Source, oldest)
	if len(b.Lines) == 0 || oldest.IsZero() && b.Last >= upTo {
		return after, nil
	}
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	if err := x.Sink.Send(ctx, b); err != nil {
		return after, err
	}
	x.progress().Delivered(b.Records())
	x.progress().Pending(c.Source, time.Time{})
	return b.Last, nil
}
