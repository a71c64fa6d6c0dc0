// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/audit/archive"
	"github.com/sluice-data/sluice/internal/audit/otlplogs"
	"github.com/sluice-data/sluice/internal/audit/webhook"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/audittable"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/server/config"
)

// export is one place where audit records are sent.
type export struct {
	name     string
	kind     string // of receiver, as the configuration calls it
	sink     audit.Sink
	all      bool          // reads too
	interval time.Duration // between rounds
	batch    int64         // records at once; 0 for the default
	own      func(audit.LineInfo) bool
	changes  *audit.Progress
	reads    *audit.Progress
}

// archiveBatch is how many records an object of an archive, and a commit of the
// table, hold at most.
const archiveBatch = 10_000

// administration is what exports and verify call the chain of what is changed
// by the administration interface.
const administration = "administration"

// openExports opens what the configuration says records are sent to.
func (s *Server) openExports(ctx context.Context, _ Options) error {
	c := s.cfg.Audit
	for _, w := range c.Webhooks {
		s.addExport(export{name: w.Name, kind: "webhook", sink: webhook.New(w.URL, w.Secret.Value, nil), all: w.Records == "all", interval: c.SealInterval})
	}
	for _, o := range c.OTLP {
		sender, err := otlplogs.New(ctx, otlplogs.Options{
			Endpoint: o.Endpoint, Headers: secretsOf(o.Headers), Service: s.cfg.Telemetry.ServiceName, Version: BuildInfo().Version,
		})
		if err != nil {
			return fmt.Errorf("audit.otlp %s: %w", o.Name, err)
		}
		s.onClose(sender.Close)
		s.addExport(export{name: o.Name, kind: "otlp", sink: sender, all: o.Records == "all", interval: c.SealInterval})
	}
	observe := objectObserver(s.metrics)
	for _, a := range c.Archives {
		bucket, err := objstore.Open(ctx, profileOf(a.Storage), objstore.Options{Observe: observe})
		if err != nil {
			return fmt.Errorf("audit.archives %s: %w", a.Name, err)
		}
		s.onClose(func(context.Context) error { return bucket.Close() })
		s.addExport(export{
			name: a.Name, kind: "archive", sink: archive.New(bucket, a.Storage.Root, objstore.ErrExists, s.log), all: a.Records == "all",
			interval: a.Interval, batch: archiveBatch,
		})
	}
	if t := c.Table; t != nil {
		s.addExport(export{
			name: config.TableExport, kind: "table", sink: s.auditTable, all: t.Records == "all", interval: t.Interval, batch: archiveBatch, own: audittable.Own,
		})
	}
	return nil
}

func (s *Server) addExport(x export) {
	x.changes, x.reads = &audit.Progress{}, &audit.Progress{}
	s.exports = append(s.exports, x)
	for records, p := range map[string]*audit.Progress{"changes": x.changes, "reads": x.reads} {
		if records == "reads" && !x.all {
			continue
		}
		labels := []string{"export", x.name, "kind", x.kind, "records", records}
		s.metrics.Gauge("sluice_audit_export_lag_seconds", "Age of the oldest audit record that the receiver does not have; 0 when it has all.",
			func() float64 { return p.Lag(time.Now()).Seconds() }, labels...)
		s.metrics.Counter("sluice_audit_export_records_total", "Audit records that the receiver has taken from this server.", func() float64 {
			n, _ := p.Counts()
			return float64(n)
		}, labels...)
		s.metrics.Counter("sluice_audit_export_failures_total", "Deliveries of audit records that failed, after which the same is tried again.", func() float64 {
			_, n := p.Counts()
			return float64(n)
		}, labels...)
	}
}

// sealer chains and signs the records of changes.
func (s *Server) sealer() *catalog.AuditSealer {
	c := s.cfg.Audit
	sealer := &catalog.AuditSealer{
		Store: s.store, Chains: s.chains(), Signer: s.signer, Keys: s.auditKeys, Interval: c.SealInterval,
		CheckpointRecords: int64(c.CheckpointRecords), CheckpointInterval: c.CheckpointInterval,
		Keep: c.KeepChanges, Logger: s.log, Progress: &audit.Progress{},
	}
	for _, x := range s.exports {
		sealer.Exports = append(sealer.Exports, x.name)
	}
	s.metrics.Gauge("sluice_audit_seal_failing_seconds", "For how long the chain of some warehouse's changes could not be sealed and signed; 0 when all are. A chain that was altered in the store stays so.",
		func() float64 { return sealer.Progress.Lag(time.Now()).Seconds() })
	s.metrics.Counter("sluice_audit_seal_failures_total", "Rounds in which the chain of some warehouse's changes could not be sealed and signed.", func() float64 {
		_, n := sealer.Progress.Counts()
		return float64(n)
	})
	return sealer
}

// runExports starts the workers of all exports.
func (s *Server) runExports(ctx context.Context, start func(func())) {
	for _, x := range s.exports {
		changes := &catalog.AuditExporter{
			Name: x.name, Store: s.store, Chains: s.chains(), Sink: x.sink, Signed: s.signer != nil, Batch: x.batch, Own: x.own,
			Interval: x.interval, Progress: x.changes, Logger: s.log,
		}
		start(func() { changes.Run(ctx) })
		if !x.all {
			continue
		}
		reads := &audit.Shipper{
			Path: s.cfg.Audit.Reads, Name: x.name, Sink: x.sink, Signed: s.signer != nil, Batch: x.batch,
			Interval: x.interval, Progress: x.reads, Logger: s.log,
		}
		start(func() { reads.Run(ctx) })
	}
	if c := s.cfg.Audit; s.reads != nil && c.ReadsInFile() && c.RotateReads+c.KeepReads > 0 {
		start(func() {
			audit.Repeat(ctx, retainPause, s.retainReads, func(err error, pause time.Duration) {
				s.log.Warn("rotate and remove files of reads", "again_in", pause.String(), "error", err)
			})
		})
	}
	if t := s.auditTable; t != nil {
		start(func() {
			audit.Repeat(ctx, time.Hour, t.Maintain, func(err error, pause time.Duration) {
				s.log.Warn("maintain the audit table", "again_in", pause.String(), "error", err)
			})
		})
	}
}

// retainPause is the pause between looks at the files of reads.
const retainPause = 20 * time.Second

// retainReads moves the file of reads away when it is old, and removes those
// that have outlived their time.
func (s *Server) retainReads(ctx context.Context) error {
	c := s.cfg.Audit
	segments, err := audit.Segments(c.Reads)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, g := range segments {
		if c.RotateReads > 0 && g.Path == c.Reads && now.Sub(g.Begins()) >= c.RotateReads {
			to, err := s.reads.Rotate(ctx, now)
			if err != nil {
				return err
			}
			s.log.Info("the log of reads was moved away", "file", to)
		}
	}
	if c.KeepReads <= 0 {
		return nil
	}
	var exports []string
	for _, x := range s.exports {
		if x.all {
			exports = append(exports, x.name)
		}
	}
	removed, err := audit.Retain(c.Reads, now.Add(-c.KeepReads), exports, s.auditKeys)
	if len(removed) > 0 {
		s.log.Info("old files of reads were removed", "files", removed)
	}
	return err
}

// checkExports reports for each archive whether it can be written and read.
func checkExports(c *config.Config, report func(what string, f func(context.Context) error)) {
	for _, a := range c.Audit.Archives {
		report("audit archive "+a.Name, func(ctx context.Context) error { return checkArchive(ctx, a) })
	}
}

// checkArchive writes an object and reads it. An archive's credentials need
// not be able to remove it, so it stays.
func checkArchive(ctx context.Context, a config.Archive) error {
	bucket, err := objstore.Open(ctx, profileOf(a.Storage), objstore.Options{})
	if err != nil {
		return err
	}
	defer bucket.Close() //nolint:errcheck // nothing is open in it
	const text = "catalogd writes audit records beside this\n"
	object := strings.TrimRight(a.Storage.Root, "/") + "/check"
	if err := bucket.WriteNew(ctx, object, []byte(text)); err != nil && !errors.Is(err, objstore.ErrExists) {
		return err
	}
	_, err = bucket.Read(ctx, object, int64(len(text)))
	return err
}
