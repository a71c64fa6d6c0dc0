// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audittable

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/secret"
)

// house is a warehouse with the table.
type house struct {
	*catalog.Warehouse
	store  catalog.Store
	bucket *objstore.Bucket
	dir    string
	signer *audit.Signer
}

func open(t *testing.T) *house {
	t.Helper()
	dir := t.TempDir()
	store, err := sqlite.Open(t.Context(), filepath.Join(dir, "catalog.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	root := "file://" + dir + "/w"
	bucket, err := objstore.Open(t.Context(), objstore.Profile{Type: objstore.TypeFile, Root: root}, objstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := catalog.OpenWarehouse(t.Context(), catalog.Config{Options: catalog.Options{Name: "sales", Reserved: Ident}, Root: root, Store: store, Files: bucket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); bucket.Close() })
	signer, err := audit.ParseSigner(secret.New(base64.StdEncoding.EncodeToString(make([]byte, 32))))
	if err != nil {
		t.Fatal(err)
	}
	return &house{w, store, bucket, dir, signer}
}

func (h *house) sink() *Table {
	return &Table{Warehouse: h.Warehouse, Files: h.bucket, Logger: slog.New(slog.DiscardHandler)}
}

// row is what the tests look at of a row.
type row struct {
	partition, line, principal, policies, outcome, warehouse string
	seq                                                      int64
	at                                                       time.Time
}

// rows reads the table as an engine does that has its metadata, in the order
// of the chain.
func (h *house) rows(t *testing.T, filters ...iceberg.BooleanExpression) (all []row) {
	t.Helper()
	obj, err := h.LookupTable(t.Context(), Ident)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := h.TableMetadata(t.Context(), obj)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := table.ParseMetadataBytes(doc.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	files := &files{ctx: t.Context(), objects: h.bucket, root: doc.Location() + "/"}
	var options []table.ScanOption
	for _, f := range filters {
		options = append(options, table.WithRowFilter(f))
	}
	result, err := table.New(table.Identifier{"system", "audit"}, meta, obj.MetadataLocation, files.open, nil).Scan(options...).ToArrowTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer result.Release()
	reader := array.NewTableReader(result, 0)
	defer reader.Release()
	for reader.Next() {
		b := reader.RecordBatch()
		column := func(name string) any {
			return b.Column(b.Schema().FieldIndices(name)[0])
		}
		text := func(name string, i int) string {
			c := column(name).(*array.String)
			if c.IsNull(i) {
				return ""
			}
			return c.Value(i)
		}
		for i := range int(b.NumRows()) {
			r := row{
				partition: text("partition", i), line: text("line", i), principal: text("principal", i), outcome: text("outcome", i),
				warehouse: text("warehouse", i), seq: column("seq").(*array.Int64).Value(i), at: time.UnixMicro(int64(column("time").(*array.Timestamp).Value(i))),
			}
			if l := column("policies").(*array.List); l.IsValid(i) {
				r.policies = l.ValueStr(i)
			}
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b row) int {
		if c := strings.Compare(a.partition, b.partition); c != 0 {
			return c
		}
		if a.seq != b.seq {
			return int(a.seq - b.seq)
		}
		return strings.Index(a.line, "checkpoint") - strings.Index(b.line, "checkpoint") // the record is before its checkpoint
	})
	return all
}

func (h *house) verify(t *testing.T, rows []row) *audit.Report {
	t.Helper()
	var raw bytes.Buffer
	for _, r := range rows {
		raw.WriteString(r.line + "\n")
	}
	report, err := audit.Verify(audit.Lines(&raw), audit.VerifyOptions{Keys: audit.NewKeys(h.signer.Public())})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var start = time.Date(2026, 3, 4, 23, 59, 59, 0, time.UTC)

// chain makes lines of a partition, one record a second, with a checkpoint
// after every third and the last.
func (h *house) chain(partition string, n int) (lines [][]byte) {
	c := audit.NewChain(audit.Ref{Partition: partition})
	for i := range n {
		r := audit.Record{
			Kind: audit.KindChange, Time: start.Add(time.Duration(i) * time.Second), RequestID: fmt.Sprint(i), Principal: "account:älice", Actor: "account:engine",
			Address: netip.MustParseAddr("192.0.2.1"), Operation: "updateTable", Resource: `a."b.c"`, Status: 403, Decision: audit.Deny, Detail: json.RawMessage(`{"x":[1]}`),
			Policies: []audit.Policy{{Set: "provider/acme", Version: 3, ID: "p1"}, {Set: "platform", Version: 1}},
		}
		if i == 1 {
			r = audit.Record{Kind: audit.KindChange, Time: r.Time}
		}
		lines = append(lines, bytes.TrimSuffix(c.Append(nil, &r), []byte("\n")))
		if i%3 == 2 || i == n-1 {
			cp := h.signer.Sign(c.Last(), false, start.Add(time.Duration(i)*time.Second))
			lines = append(lines, bytes.TrimSuffix(cp.Append(nil), []byte("\n")))
		}
	}
	return lines
}

func batchOf(t *testing.T, source string, lines [][]byte) audit.Batch {
	t.Helper()
	first, err := audit.ParseLine(lines[0])
	last, err2 := audit.ParseLine(lines[len(lines)-1])
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return audit.Batch{Source: source, Partition: first.Partition, After: first.Seq - 1, Last: last.Seq, Lines: lines}
}

// TestRowsOnce sends batches again as an export does that was killed: after
// the commit, before it, with more lines than before. Each line is one row, with
// everything that the record says.
func TestRowsOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	partition := uuid.NewString()
	lines := h.chain(partition, 8)
	for _, part := range [][2]int{{0, 4}, {0, 4}, {0, 6}, {2, 6}, {6, 7}, {6, len(lines)}, {6, len(lines)}, {0, len(lines)}} {
		if err := h.sink().Send(t.Context(), batchOf(t, "warehouses/sales", lines[part[0]:part[1]])); err != nil {
			t.Fatal(err)
		}
	}
	rows := h.rows(t)
	var got []string
	for _, r := range rows {
		got = append(got, r.line)
	}
	if want := string(bytes.Join(lines, []byte("\n"))); strings.Join(got, "\n") != want {
		t.Errorf("%d rows\n%s\nwant %d\n%s", len(got), strings.Join(got, "\n"), len(lines), want)
	}
	if r := h.verify(t, rows); !r.OK() || r.Records != 8 || r.Unproven() != 0 {
		t.Errorf("%+v", r)
	}
	first := rows[0]
	if !first.at.Equal(start) || first.principal != "account:älice" || first.outcome != audit.OutcomeDenied || first.warehouse != "sales" ||
		first.policies != `[{"policy":"p1","set":"provider/acme","version":3},{"policy":null,"set":"platform","version":1}]` {
		t.Errorf("%+v", first)
	}
	if bare := rows[1]; bare.principal != "" || bare.policies != "" || bare.outcome != audit.OutcomeOK {
		t.Errorf("%+v", bare)
	}
	// Days are partitions.
	midnight := iceberg.Timestamp(start.Add(time.Second).UnixMicro())
	if n := len(h.rows(t, iceberg.LessThan(iceberg.Reference("time"), midnight))); n != 1 {
		t.Errorf("%d rows on the first day", n)
	}
	// Of another server, meanwhile.
	other := h.chain(uuid.NewString(), 3)
	if err := h.sink().Send(t.Context(), batchOf(t, "reads", other)); err != nil {
		t.Fatal(err)
	}
	if err := h.sink().Send(t.Context(), batchOf(t, "warehouses/sales", lines)); err != nil {
		t.Fatal(err)
	}
	if n := len(h.rows(t)); n != len(lines)+len(other) {
		t.Errorf("%d rows", n)
	}
}

// TestServersAtOnce has several servers write to the table.
func TestServersAtOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	errs := make([]error, 4)
	var workers sync.WaitGroup
	want := 0
	for i := range errs {
		lines := h.chain(uuid.NewString(), 5)
		want += len(lines)
		workers.Go(func() {
			sink := h.sink()
			for _, to := range []int{3, 5, len(lines)} {
				errs[i] = errors.Join(errs[i], sink.Send(t.Context(), batchOf(t, "reads", lines[:to])))
			}
		})
	}
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if r := h.verify(t, h.rows(t)); r.Records != 20 || len(r.Partitions) != 4 || int(r.Found) != 0 {
		t.Errorf("%+v", r)
	}
	if n := len(h.rows(t)); n != want {
		t.Errorf("%d rows, want %d", n, want)
	}
}

// failing is a bucket whose next writes are lost, or made with the answer lost.
type failing struct {
	*objstore.Bucket
	write, lose int
}

func (f *failing) WriteNew(ctx context.Context, location string, data []byte) error {
	if f.write > 0 {
		f.write--
		return errors.New("no")
	}
	err := f.Bucket.WriteNew(ctx, location, data)
	if f.lose > 0 {
		f.lose--
		return errors.New("the answer was lost")
	}
	return err
}

// TestWritesFail loses and repeats nothing when the object store fails at any
// of a commit's files.
func TestWritesFail(t *testing.T) {
	t.Parallel()
	h := open(t)
	lines := h.chain(uuid.NewString(), 6)
	sink := h.sink()
	broken := &failing{Bucket: h.bucket}
	sink.Files = broken
	for to := 1; to <= len(lines); to++ {
		broken.write, broken.lose = to%2, to%3%2
		for range 3 {
			err := sink.Send(t.Context(), batchOf(t, "warehouses/sales", lines[:to]))
			if broken.write+broken.lose == 0 && err == nil {
				break
			}
		}
	}
	if rows := h.rows(t); len(rows) != len(lines) || !func() bool { r := h.verify(t, rows); return r.OK() }() {
		t.Errorf("%d rows, want %d", len(rows), len(lines))
	}
}

// TestForgedPosition has somebody say that the table has what it has not: rows
// come twice at worst.
func TestForgedPosition(t *testing.T) {
	t.Parallel()
	h := open(t)
	lines := h.chain(uuid.NewString(), 6)
	b := batchOf(t, "warehouses/sales", lines)
	if err := h.sink().Send(t.Context(), batchOf(t, "warehouses/sales", lines[:2])); err != nil {
		t.Fatal(err)
	}
	for _, forged := range []string{"6", "6 " + digest([]byte("x")) + " 2026-01-01T00:00:00Z", "999999 x", ""} {
		u, err := metadata.DecodeUpdates(json.RawMessage(fmt.Sprintf(`[{"action":"set-properties","updates":{%q:%q}}]`, positionPrefix+b.Partition, forged)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.CommitTable(t.Context(), catalog.System("updateTable"), Ident, catalog.Commit{Updates: u}); err != nil {
			t.Fatal(err)
		}
		if err := h.sink().Send(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		has := map[string]bool{}
		for _, r := range h.rows(t) {
			has[r.line] = true
		}
		for _, line := range lines {
			if !has[string(line)] {
				t.Errorf("with %q, this is not in the table: %s", forged, line)
			}
		}
	}
}

// TestClientsCannotChangeIt tries every operation on the table.
func TestClientsCannotChangeIt(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx, m := t.Context(), catalog.Mutation{Caller: catalog.Caller{Principal: catalog.SystemPrincipal}} // the name does not suffice
	other := catalog.Ident{Namespace: catalog.Namespace{"a"}, Name: "t"}
	const fields = `{"type":"struct","fields":[{"id":1,"name":"x","type":"int","required":false}]}`
	for _, ns := range []catalog.Namespace{other.Namespace, Ident.Namespace} {
		if _, err := h.CreateNamespace(ctx, m, ns, nil); err != nil {
			t.Fatal(err)
		}
	}
	made, err := h.CreateTable(ctx, m, other.Namespace, catalog.NewTable{Name: other.Name, Schema: json.RawMessage(fields)})
	if err != nil {
		t.Fatal(err)
	}
	u, err := metadata.DecodeUpdates(json.RawMessage(`[{"action":"set-properties","updates":{"a":"b"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	forbidden := func(what string, err error) {
		t.Helper()
		if catalog.ReasonOf(err) != catalog.Forbidden {
			t.Errorf("%s: %v", what, err)
		}
	}
	before := func() {
		_, err := h.CreateTable(ctx, m, Ident.Namespace, catalog.NewTable{Name: Ident.Name, Schema: json.RawMessage(fields)})
		forbidden("create", err)
		forbidden("rename to it", h.RenameTable(ctx, m, other, Ident))
		_, err = h.RegisterTable(ctx, m, Ident.Namespace, Ident.Name, made.Object.MetadataLocation, false)
		if err == nil {
			t.Error("it was registered")
		}
	}
	before()
	if err := h.sink().Send(ctx, batchOf(t, "reads", h.chain("p", 1))); err != nil {
		t.Fatal(err)
	}
	_, err = h.CommitTable(ctx, m, Ident, catalog.Commit{Updates: u})
	forbidden("commit", err)
	forbidden("commit to several", h.CommitTransaction(ctx, m, []catalog.TableChange{{Table: other, Commit: catalog.Commit{Updates: u}}, {Table: Ident, Commit: catalog.Commit{Updates: u}}}))
	forbidden("drop", h.DropTable(ctx, m, Ident, false))
	forbidden("purge", h.DropTable(ctx, m, Ident, true))
	forbidden("rename", h.RenameTable(ctx, m, Ident, catalog.Ident{Namespace: other.Namespace, Name: "mine"}))
	_, err = h.UnregisterTable(ctx, m, Ident)
	forbidden("unregister", err)
	_, err = h.RegisterTable(ctx, m, Ident.Namespace, Ident.Name, made.Object.MetadataLocation, true)
	if err == nil {
		t.Error("it was replaced")
	}
	if err := h.DropNamespace(ctx, m, Ident.Namespace); err == nil {
		t.Error("its namespace was dropped")
	}
	if n := len(h.rows(t)); n != 2 {
		t.Errorf("%d rows", n)
	}
	if _, err := h.CommitTable(ctx, m, other, catalog.Commit{Updates: u}); err != nil {
		t.Error(err)
	}
}

// TestAnotherTable finds a table of that name that is somebody else's.
func TestAnotherTable(t *testing.T) {
	t.Parallel()
	h := open(t)
	if _, err := h.CreateNamespace(t.Context(), catalog.Mutation{}, Ident.Namespace, nil); err != nil {
		t.Fatal(err)
	}
	for _, fields := range []string{
		`{"id":1,"name":"x","type":"int","required":false}`,
		`{"id":1,"name":"time","type":"timestamptz","required":false},{"id":2,"name":"seq","type":"long","required":false},{"id":3,"name":"line","type":"int","required":false}`,
	} {
		if _, err := h.CreateTable(t.Context(), catalog.System("createTable"), Ident.Namespace, catalog.NewTable{Name: Ident.Name, Schema: json.RawMessage(`{"type":"struct","fields":[` + fields + `]}`)}); err != nil {
			t.Fatal(err)
		}
		if err := h.sink().Send(t.Context(), batchOf(t, "reads", h.chain("p", 2))); err == nil || !strings.Contains(err.Error(), "is not a table of audit records") {
			t.Errorf("%v", err)
		}
		if err := h.DropTable(t.Context(), catalog.System("dropTable"), Ident, true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBigBatch sends as many records as a commit takes, of many days.
func TestBigBatch(t *testing.T) {
	t.Parallel()
	h := open(t)
	partition := uuid.NewString()
	c := audit.NewChain(audit.Ref{Partition: partition})
	var lines [][]byte
	for i := range 10_000 {
		r := audit.Record{
			Kind: audit.Kind(i % 5), Time: start.Add(time.Duration(i) * 17 * time.Minute), Principal: strings.Repeat("ü", i%50), Resource: string(rune(i)), Status: i % 600,
			Policies: make([]audit.Policy, i%4), Detail: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)),
		}
		lines = append(lines, bytes.TrimSuffix(c.Append(nil, &r), []byte("\n")))
	}
	if err := h.sink().Send(t.Context(), audit.Batch{Source: "reads", Partition: partition, Last: 10_000, Lines: lines}); err != nil {
		t.Fatal(err)
	}
	rows := h.rows(t)
	if r := h.verify(t, rows); !r.OK() || r.Records != 10_000 {
		t.Errorf("%d records, %v", r.Records, r.Problems)
	}
}

// TestManyCommits looks at what is left of many commits.
func TestManyCommits(t *testing.T) {
	t.Parallel()
	h := open(t)
	const keepSnapshots = 10
	lines := h.chain(uuid.NewString(), 2*keepSnapshots+30)
	sink := h.sink()
	sink.snapshots = keepSnapshots
	for to := 1; to < 2*keepSnapshots+32; to++ {
		if err := sink.Send(t.Context(), batchOf(t, "warehouses/sales", lines[to-1:to])); err != nil {
			t.Fatal(err)
		}
	}
	obj, err := h.LookupTable(t.Context(), Ident)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := h.TableMetadata(t.Context(), obj)
	if err != nil {
		t.Fatal(err)
	}
	if n := doc.SnapshotCount(); n > 2*keepSnapshots {
		t.Errorf("%d snapshots", n)
	}
	if n := len(h.rows(t)); n != 2*keepSnapshots+31 {
		t.Errorf("%d rows", n)
	}
	h.Close() // old metadata files are removed behind commits
	counts := map[string]int{}
	err = h.bucket.List(t.Context(), doc.Location(), func(location string, _ int64) error {
		switch {
		case strings.HasSuffix(location, ".metadata.json"), strings.HasSuffix(location, ".metadata.json.gz"):
			counts["metadata"]++
		case strings.Contains(location, "/snap-"):
			counts["lists"]++
		}
		return nil
	})
	if err != nil || counts["metadata"] > 25 || counts["lists"] > 2*keepSnapshots {
		t.Errorf("%v, %v", counts, err)
	}
}

// TestKeep removes whole days.
func TestKeep(t *testing.T) {
	t.Parallel()
	h := open(t)
	lines := h.chain(uuid.NewString(), 6) // the first on the day before the others
	sink := h.sink()
	if err := sink.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink.Keep = 48 * time.Hour
	now := start
	sink.Now = func() time.Time { return now }
	if err := sink.Maintain(t.Context()); err != nil {
		t.Fatal("there is no table yet:", err)
	}
	if err := sink.Send(t.Context(), batchOf(t, "warehouses/sales", lines)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after time.Duration
		left  int
	}{{0, len(lines)}, {47 * time.Hour, len(lines)}, {49 * time.Hour, len(lines) - 1}, {49 * time.Hour, len(lines) - 1}, {200 * time.Hour, 0}, {201 * time.Hour, 0}} {
		now = start.Add(c.after)
		if err := sink.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(h.rows(t)); n != c.left {
			t.Errorf("after %s: %d rows, want %d", c.after, n, c.left)
		}
	}
	if err := sink.Send(t.Context(), batchOf(t, "warehouses/sales", lines)); err != nil {
		t.Fatal(err)
	}
	if n := len(h.rows(t)); n != 0 {
		t.Errorf("%d rows came back", n)
	}
	data := 0
	obj, _ := h.LookupTable(t.Context(), Ident)
	err := h.bucket.List(t.Context(), obj.Location, func(location string, _ int64) error {
		if strings.HasSuffix(location, ".parquet") {
			data++
		}
		return nil
	})
	if err != nil || data != 0 {
		t.Errorf("%d data files are left, %v", data, err)
	}
}

// TestCompact puts the small files of past days together: the rows stay.
func TestCompact(t *testing.T) {
	t.Parallel()
	h := open(t)
	partition := uuid.NewString()
	lines := h.chain(partition, 30) // one on the day before the others
	now := start
	sink := h.sink()
	sink.Now = func() time.Time { return now }
	for to := 1; to <= len(lines); to++ {
		if err := sink.Send(t.Context(), batchOf(t, "warehouses/sales", lines[to-1:to])); err != nil {
			t.Fatal(err)
		}
	}
	files := func() int {
		t.Helper()
		obj, err := h.LookupTable(t.Context(), Ident)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := h.TableMetadata(t.Context(), obj)
		if err != nil {
			t.Fatal(err)
		}
		meta, err := table.ParseMetadataBytes(doc.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		files := &files{ctx: t.Context(), objects: h.bucket, root: doc.Location() + "/"}
		plan, err := table.New(table.Identifier{"system", "audit"}, meta, obj.MetadataLocation, files.open, nil).Scan().PlanFiles(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(plan)
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, len(lines)}, {time.Hour, len(lines)}, {25 * time.Hour, 2}, {25 * time.Hour, 2}} {
		now = start.Add(c.after)
		if err := sink.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := files(); n != c.want {
			t.Errorf("after %s: %d files, want %d", c.after, n, c.want)
		}
		rows := h.rows(t)
		if r := h.verify(t, rows); len(rows) != len(lines) || !r.OK() || r.Unproven() != 0 {
			t.Errorf("after %s: %d rows, %+v", c.after, len(rows), r)
		}
	}
	// It is known still how far the partition has come.
	if err := sink.Send(t.Context(), batchOf(t, "warehouses/sales", lines)); err != nil {
		t.Fatal(err)
	}
	if n := len(h.rows(t)); n != len(lines) {
		t.Errorf("%d rows", n)
	}
}

// TestExportOfItself exports the changes of the warehouse that the table is
// in: its own commits are records too, and do not make it go on for ever.
func TestExportOfItself(t *testing.T) {
	t.Parallel()
	h := open(t)
	chains := []catalog.AuditChain{h.AuditChain()}
	sealer := &catalog.AuditSealer{Store: h.store, Chains: chains, Signer: h.signer, Keys: audit.NewKeys(h.signer.Public()), CheckpointRecords: 1}
	export := &catalog.AuditExporter{Name: "table", Store: h.store, Chains: chains, Signed: true, Sink: h.sink(), Own: Own, Logger: slog.New(slog.DiscardHandler)}
	round := func() {
		t.Helper()
		if err := sealer.Round(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := export.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.CreateNamespace(t.Context(), catalog.Mutation{Operation: "createNamespace"}, catalog.Namespace{"a"}, nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		round()
	}
	state, err := h.store.AuditState(t.Context(), h.ID())
	if err != nil || state.Head.Seq != 4 { // the namespace; the table's namespace, the table, its rows
		t.Errorf("%d records, %v", state.Head.Seq, err)
	}
	if export.Progress.Lag(time.Now()) != 0 {
		t.Error("its own records lag")
	}
	if _, err := h.CreateNamespace(t.Context(), catalog.Mutation{Operation: "createNamespace"}, catalog.Namespace{"b"}, nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		round()
	}
	rows := h.rows(t)
	if r := h.verify(t, rows); !r.OK() || r.Records != 5 {
		t.Errorf("%+v", r)
	}
}
