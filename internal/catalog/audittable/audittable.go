// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package audittable keeps audit records as rows of an Iceberg table, which any
// engine can query through the catalog: system.audit.
//
// Invariants:
//
//   - Each line is one row. How far a partition has come is a property of the
//     table, set by the commit that adds the rows: a batch that comes again
//     after a crash adds what is missing of it, and nothing twice.
//   - That property names the last line by its SHA-256. Somebody who sets it
//     without knowing the line makes rows come twice, never not at all.
//   - Rows are written through the catalog's own commits, which are changes and
//     so make records of their own: see [Own].
//
// The column line holds each line byte for byte: in the order of partition and
// seq they verify as any audit log does.
package audittable

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

// Ident is the table's name.
var Ident = catalog.Ident{Namespace: catalog.Namespace{"system"}, Name: "audit"}

// Own reports whether a record is of a change that the table made itself.
func Own(i audit.LineInfo) bool {
	return i.Principal == catalog.SystemPrincipal && (i.Resource == Ident.Resource() || i.Resource == Ident.Namespace.Resource())
}

// Table is an [audit.Sink]. It is safe for concurrent use; other servers may
// write to the same table.
type Table struct {
	Warehouse *catalog.Warehouse
	Files     Objects
	// Keep is how long rows stay, by days of their time in UTC; 0 for ever.
	Keep   time.Duration
	Logger *slog.Logger
	Now    func() time.Time

	snapshots int // keepSnapshots when zero; tests have fewer
}

const (
	// attempts bounds how often a batch is built anew when another server has
	// committed meanwhile.
	attempts = 10
	// keepSnapshots are left when old ones are expired, which is done when
	// there are twice as many.
	keepSnapshots = 100
	// keepPositions is how long the property stays of a partition that got no
	// rows: of a server that is no more.
	keepPositions = 90 * 24 * time.Hour
)

// positionPrefix begins the properties that say how far partitions have come:
// "<number> <SHA-256 of the last line> <time>".
const positionPrefix = "sluice.audit.position."

// Send implements [audit.Sink].
func (t *Table) Send(ctx context.Context, b audit.Batch) error {
	for attempt := 1; ; attempt++ {
		err := t.try(ctx, b)
		var conflict *catalog.Error
		if errors.As(err, &conflict) && conflict.Reason == catalog.CommitFailed && attempt < attempts {
			continue
		}
		if err != nil {
			return fmt.Errorf("table %s of warehouse %s: %w", Ident, t.Warehouse.Name(), err)
		}
		return nil
	}
}

func (t *Table) try(ctx context.Context, b audit.Batch) error {
	doc, location, err := t.load(ctx)
	if err != nil {
		return err
	}
	position, _ := doc.Property(positionPrefix + b.Partition)
	lines := missing(position, b.Lines)
	if len(lines) == 0 {
		return nil
	}
	meta, err := table.ParseMetadataBytes(doc.Bytes())
	if err != nil {
		return err
	}
	files := &files{ctx: ctx, objects: t.Files, root: strings.TrimRight(doc.Location(), "/") + "/"}
	before := table.New(table.Identifier{Ident.Namespace[0], Ident.Name}, meta, location, files.open, nil)
	after, err := t.commit(ctx, before, b, lines, files)
	if err != nil {
		var refused *catalog.Error
		if errors.As(err, &refused) && refused.Reason != catalog.CommitStateUnknown {
			files.discard() // nothing refers to them
		}
		return err
	}
	t.tidy(ctx, before, after)
	return nil
}

// missing returns what a table lacks of a batch's lines.
func missing(position string, lines [][]byte) [][]byte {
	_, rest, _ := strings.Cut(position, " ")
	last, _, _ := strings.Cut(rest, " ")
	for i, line := range lines {
		if digest(line) == last {
			return lines[i+1:]
		}
	}
	return lines
}

func digest(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// commit appends rows and says how far the partition has come, in one commit.
func (t *Table) commit(ctx context.Context, tbl *table.Table, b audit.Batch, lines [][]byte, files *files) (*table.Table, error) {
	rows, err := rowsOf(tbl.Schema(), b.Source, lines)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	txn := tbl.NewTransaction()
	if err := txn.AssertRefSnapshotID(table.MainBranch); err != nil {
		return nil, err
	}
	first, err := audit.ParseLine(lines[0])
	if err != nil {
		return nil, err
	}
	last := strconv.FormatInt(b.Last, 10)
	err = txn.Append(ctx, rows, iceberg.Properties{
		"sluice.audit.source": b.Source, "sluice.audit.partition": b.Partition, "sluice.audit.first": strconv.FormatInt(first.Seq, 10), "sluice.audit.last": last,
	})
	if err != nil {
		return nil, err
	}
	set := iceberg.Properties{positionPrefix + b.Partition: last + " " + digest(lines[len(lines)-1]) + " " + t.now().UTC().Format(time.RFC3339)}
	if err := txn.SetProperties(set); err != nil {
		return nil, err
	}
	if gone := t.outlived(tbl.Properties(), b.Partition); len(gone) > 0 {
		if err := txn.RemoveProperties(gone); err != nil {
			return nil, err
		}
	}
	keep := cmp.Or(t.snapshots, keepSnapshots)
	if len(tbl.Metadata().Snapshots()) >= 2*keep {
		if err := txn.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(keep)); err != nil {
			return nil, err
		}
	}
	return t.submit(ctx, tbl, txn, files, "updateTable")
}

// outlived are the properties of partitions that have got no rows for long.
func (t *Table) outlived(properties iceberg.Properties, but string) (gone []string) {
	for key, value := range properties {
		if !strings.HasPrefix(key, positionPrefix) || key == positionPrefix+but {
			continue
		}
		fields := strings.Fields(value)
		if at, err := time.Parse(time.RFC3339, fields[len(fields)-1]); err == nil && t.now().Sub(at) > keepPositions {
			gone = append(gone, key)
		}
	}
	return gone
}

// submit commits through the catalog.
func (t *Table) submit(ctx context.Context, tbl *table.Table, txn *table.Transaction, files *files, operation string) (*table.Table, error) {
	tc, err := txn.TableCommit()
	if err != nil {
		return nil, err
	}
	files.mu.Lock()
	err = files.err
	files.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var c catalog.Commit
	raw, err := json.Marshal(tc.Requirements)
	if err == nil {
		c.Requirements, err = metadata.DecodeRequirements(raw)
	}
	if err != nil {
		return nil, err
	}
	if raw, err = json.Marshal(tc.Updates); err == nil {
		c.Updates, err = metadata.DecodeUpdates(raw)
	}
	if err != nil {
		return nil, err
	}
	done, err := t.Warehouse.CommitTable(ctx, catalog.System(operation), Ident, c)
	if err != nil {
		return nil, err
	}
	meta, err := table.ParseMetadataBytes(done.Metadata.Bytes())
	if err != nil {
		return nil, err
	}
	return table.New(tbl.Identifier(), meta, done.Object.MetadataLocation, files.open, nil), nil
}

// load returns the table's metadata and where it is; it makes the table when
// there is none.
func (t *Table) load(ctx context.Context) (*metadata.Document, string, error) {
	obj, err := t.Warehouse.LookupTable(ctx, Ident)
	var e *catalog.Error
	switch {
	case err == nil:
		doc, err := t.Warehouse.TableMetadata(ctx, obj)
		return doc, obj.MetadataLocation, err
	case !errors.As(err, &e) || e.Reason != catalog.NoSuchTable && e.Reason != catalog.NoSuchNamespace:
		return nil, "", err
	}
	exists := func(err error) bool { return errors.As(err, &e) && e.Reason == catalog.AlreadyExists }
	if _, err := t.Warehouse.CreateNamespace(ctx, catalog.System("createNamespace"), Ident.Namespace, nil); err != nil && !exists(err) {
		return nil, "", err
	}
	made, err := t.Warehouse.CreateTable(ctx, catalog.System("createTable"), Ident.Namespace, catalog.NewTable{
		Name: Ident.Name, Schema: json.RawMessage(schemaJSON), PartitionSpec: json.RawMessage(specJSON),
		Properties: map[string]string{
			"comment":        "Who did what: the audit log. Written by the catalog server alone.",
			"format-version": "2",
			"write.metadata.delete-after-commit.enabled": "true",
			"write.metadata.previous-versions-max":       "20",
			"write.parquet.compression-codec":            "zstd",
			table.ManifestMergeEnabledKey:                "true",
		},
	})
	if exists(err) { // by another server, meanwhile
		return nil, "", &catalog.Error{Reason: catalog.CommitFailed, Message: "the table was made at the same time", Cause: err}
	}
	if err != nil {
		return nil, "", err
	}
	return made.Metadata, made.Object.MetadataLocation, nil
}

// tidy removes files of expired snapshots. What it leaves behind because it
// fails is only space.
func (t *Table) tidy(ctx context.Context, before, after *table.Table) {
	left := map[int64]bool{}
	for _, s := range after.Metadata().Snapshots() {
		left[s.SnapshotID] = true
	}
	var gone []int64
	for _, s := range before.Metadata().Snapshots() {
		if !left[s.SnapshotID] {
			gone = append(gone, s.SnapshotID)
		}
	}
	if len(gone) == 0 {
		return
	}
	if err := table.NewRemoveSnapshotsUpdate(gone, true).PostCommit(ctx, before, after); err != nil {
		t.Logger.Warn("files of old snapshots of the audit table are left behind", "error", err)
	}
}

// Maintain removes the rows of days that ended more than Keep ago, a day's
// files whole, and puts the many small files of each past day together.
func (t *Table) Maintain(ctx context.Context) error {
	if t.Keep > 0 {
		if err := t.change(ctx, t.expire); err != nil {
			return err
		}
	}
	return t.change(ctx, t.compact)
}

// change makes a change of the table's files: what f stages. f reports whether
// there is anything.
func (t *Table) change(ctx context.Context, f func(context.Context, *table.Table, *table.Transaction) (bool, error)) error {
	obj, err := t.Warehouse.LookupTable(ctx, Ident)
	var e *catalog.Error
	if errors.As(err, &e) && (e.Reason == catalog.NoSuchTable || e.Reason == catalog.NoSuchNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	doc, err := t.Warehouse.TableMetadata(ctx, obj)
	if err != nil {
		return err
	}
	meta, err := table.ParseMetadataBytes(doc.Bytes())
	if err != nil || meta.CurrentSnapshot() == nil {
		return err
	}
	files := &files{ctx: ctx, objects: t.Files, root: strings.TrimRight(doc.Location(), "/") + "/"}
	tbl := table.New(table.Identifier{Ident.Namespace[0], Ident.Name}, meta, obj.MetadataLocation, files.open, nil)
	txn := tbl.NewTransaction()
	err = txn.AssertRefSnapshotID(table.MainBranch)
	some := false
	if err == nil {
		some, err = f(ctx, tbl, txn)
	}
	if err != nil || !some {
		files.discard()
		return err
	}
	after, err := t.submit(ctx, tbl, txn, files, "updateTable")
	if err != nil {
		if errors.As(err, &e) && e.Reason != catalog.CommitStateUnknown {
			files.discard()
		}
		return err
	}
	t.tidy(ctx, tbl, after)
	return nil
}

// past filters rows from before a time.
func past(t time.Time) iceberg.BooleanExpression {
	return iceberg.LessThan(iceberg.Reference("time"), iceberg.Timestamp(t.UnixMicro()))
}

// expire stages the removal of old days, with their files.
func (t *Table) expire(ctx context.Context, tbl *table.Table, txn *table.Transaction) (bool, error) {
	day := t.now().UTC().Add(-t.Keep).Truncate(24 * time.Hour)
	plan, err := tbl.Scan(table.WithRowFilter(past(day))).PlanFiles(ctx)
	if err != nil || len(plan) == 0 {
		return false, err
	}
	if err := txn.Delete(ctx, past(day), iceberg.Properties{"sluice.audit.removed-before": day.Format(time.RFC3339)}); err != nil {
		return false, err
	}
	t.Logger.Info("rows of the audit table are removed", "before", day, "files", len(plan))
	return true, txn.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1))
}

const (
	// manyFiles of a past day are put together.
	manyFiles = 8
	// compactBytes bounds what is put together at once.
	compactBytes = 128 << 20
)

// compact stages the putting together of small files of past days.
func (t *Table) compact(ctx context.Context, tbl *table.Table, txn *table.Transaction) (bool, error) {
	plan, err := tbl.Scan(table.WithRowFilter(past(t.now().UTC().Truncate(24 * time.Hour)))).PlanFiles(ctx)
	if err != nil {
		return false, err
	}
	days := map[string]*table.CompactionTaskGroup{}
	for _, task := range plan {
		size := task.File.FileSizeBytes()
		if size > compactBytes/manyFiles {
			continue
		}
		key := fmt.Sprint(task.File.SpecID(), task.File.Partition())
		g := days[key]
		if g == nil {
			g = &table.CompactionTaskGroup{PartitionKey: key}
			days[key] = g
		}
		if g.TotalSizeBytes+size <= compactBytes {
			g.Tasks, g.TotalSizeBytes = append(g.Tasks, task), g.TotalSizeBytes+size
		}
	}
	var groups []table.CompactionTaskGroup
	var total int64
	for _, g := range days {
		if len(g.Tasks) >= manyFiles && total+g.TotalSizeBytes <= compactBytes {
			groups, total = append(groups, *g), total+g.TotalSizeBytes
		}
	}
	if len(groups) == 0 {
		return false, nil
	}
	_, err = txn.RewriteDataFiles(ctx, groups, table.RewriteDataFilesOptions{})
	return err == nil, err
}

func (t *Table) now() time.Time {
	if t.Now == nil {
		return time.Now()
	}
	return t.Now()
}

var _ io.WriteFileIO = (*files)(nil)
