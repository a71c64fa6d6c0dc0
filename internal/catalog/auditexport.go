// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
)

// AuditExporter hands the audit chains of changes on, with their checkpoints.
// Any number of replicas may run one of each name: a chain is one worker's at a
// time, and how far it has come is in the store. Every line is sent at least
// once, and in order.
type AuditExporter struct {
	Name       string
	Store      Store
	Warehouses []*Warehouse
	// Send delivers lines of one warehouse; an error is tried again, with
	// pauses that double from Interval to a minute.
	Send func(ctx context.Context, warehouse string, lines [][]byte) error
	// Signed holds lines back until a checkpoint covers them, so that what is
	// handed on can be proved. Without a signer it must be false.
	Signed bool
	// Interval is the pause between rounds; 1 s when zero.
	Interval time.Duration
	Logger   *slog.Logger
}

const (
	exportBatch   = 500
	exportLease   = 2 * time.Minute
	exportTimeout = time.Minute // of one delivery: well within the lease
	exportPause   = time.Minute // the longest pause between tries
)

// Run works until ctx ends.
func (x *AuditExporter) Run(ctx context.Context) {
	interval := x.Interval
	if interval <= 0 {
		interval = time.Second
	}
	pause := interval
	for {
		if err := x.Round(ctx); err == nil {
			pause = interval
		} else if ctx.Err() == nil {
			pause = min(2*pause, exportPause)
			x.Logger.Warn("audit export", "export", x.Name, "again_in", pause, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Round sends all that there is.
func (x *AuditExporter) Round(ctx context.Context) error {
	var errs []error
	for _, w := range x.Warehouses {
		for {
			more, err := x.batch(ctx, w)
			if err != nil {
				errs = append(errs, fmt.Errorf("warehouse %s: %w", w.Name(), err))
			}
			if err != nil || !more {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// batch sends the next lines of a warehouse, and reports whether there are
// more.
func (x *AuditExporter) batch(ctx context.Context, w *Warehouse) (more bool, err error) {
	state, err := x.Store.AuditState(ctx, w.id)
	if err != nil {
		return false, err
	}
	upTo := state.Head.Seq
	if x.Signed {
		upTo = state.Checkpoint
	}
	cursors, err := x.Store.AuditCursors(ctx, w.id)
	if at, known := cursors[x.Name]; err != nil || known && at >= upTo || upTo == 0 {
		return false, err
	}
	cursor, err := x.Store.ClaimAuditCursor(ctx, w.id, x.Name, time.Now(), exportLease)
	if errors.Is(err, ErrNoObject) {
		return false, nil // another replica has it
	}
	if err != nil {
		return false, err
	}
	seq, err := x.send(ctx, w, cursor.Seq, upTo)
	// What was delivered is noted also when the server ends meanwhile.
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, moved := x.Store.MoveAuditCursor(done, cursor, seq, time.Now()); moved != nil {
		err = errors.Join(err, moved)
	}
	return err == nil && seq > cursor.Seq && seq < upTo, err
}

// send delivers one batch and returns the number of the last record that the
// receiver has.
func (x *AuditExporter) send(ctx context.Context, w *Warehouse, after, upTo int64) (int64, error) {
	var lines [][]byte
	seq := after
	for line, err := range AuditLines(ctx, x.Store, w.id, after) {
		if err != nil {
			return after, err
		}
		if _, err := audit.ParseCheckpoint(line.Text); err != nil { // a record
			if seq-after == exportBatch || seq >= upTo {
				break
			}
			seq = max(seq, seqOf(line.Text))
		}
		lines = append(lines, bytes.Clone(line.Text))
	}
	if len(lines) == 0 {
		return after, nil
	}
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	if err := x.Send(ctx, w.Name(), lines); err != nil {
		return after, err
	}
	return seq, nil
}

// seqOf is the number of a record's line.
func seqOf(line []byte) int64 {
	var m struct {
		Seq int64 `json:"seq"`
	}
	_ = json.Unmarshal(line, &m) // AuditLines has written it
	return m.Seq
}
