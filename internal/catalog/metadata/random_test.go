// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	icetable "github.com/apache/iceberg-go/table"
)

// randomUpdate makes one update, most often one that is valid for d.
func randomUpdate(r *rand.Rand, d *Document) string {
	snapshotID := func() int64 {
		if n := d.SnapshotCount(); n > 0 && r.IntN(10) > 0 {
			return d.snapshots[r.IntN(n)].id
		}
		return int64(r.IntN(20))
	}
	ref := []string{"main", "dev", "tag ü", "a\\\"b"}[r.IntN(4)]
	quotedRef := string(quoted(ref))
	field := r.IntN(8) + 1
	switch r.IntN(20) {
	case 0, 1, 2, 3:
		rows, seq := "", d.LastSequenceNumber()+1
		if d.FormatVersion() == 1 {
			seq = 0
		}
		if d.FormatVersion() == 3 {
			rows = fmt.Sprintf(`,"first-row-id":%d,"added-rows":%d`, d.NextRowID()+int64(r.IntN(2)), r.IntN(5))
		}
		id := 100 + r.Int64N(1<<40)
		add := fmt.Sprintf(`{"action":"add-snapshot","snapshot":{"snapshot-id":%d,"sequence-number":%d,"timestamp-ms":%d,"manifest-list":"s3://m/%d","summary":{"operation":"append","n":"%d"}%s}}`,
			id, seq, 1700000000000+r.Int64N(50_000), id, r.IntN(9), rows)
		if r.IntN(3) > 0 {
			add += fmt.Sprintf(`,{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":%d}`, id)
		}
		return add
	case 4, 5:
		kind := []string{"branch", "tag"}[r.IntN(2)]
		return fmt.Sprintf(`{"action":"set-snapshot-ref","ref-name":%s,"type":"%s","snapshot-id":%d}`, quotedRef, kind, snapshotID())
	case 6:
		return fmt.Sprintf(`{"action":"remove-snapshot-ref","ref-name":%s}`, quotedRef)
	case 7, 8:
		return fmt.Sprintf(`{"action":"remove-snapshots","snapshot-ids":[%d,%d]}`, snapshotID(), snapshotID())
	case 9, 10:
		return fmt.Sprintf(`{"action":"set-properties","updates":{"k%d":"v%d","write.metadata.previous-versions-max":"%d"}}`, r.IntN(5), r.IntN(3), r.IntN(6))
	case 11:
		return fmt.Sprintf(`{"action":"remove-properties","removals":["k%d"]}`, r.IntN(5))
	case 12:
		typ := []string{"int", "string", "timestamp_ns"}[r.IntN(3)]
		return fmt.Sprintf(`{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"id","required":true,"type":"long"},{"id":2,"name":"at","required":false,"type":"timestamptz"},{"id":%d,"name":"n%d","required":false,"type":%q}]}},{"action":"set-current-schema","schema-id":-1}`, 2+field, field, typ)
	case 13:
		return fmt.Sprintf(`{"action":"add-spec","spec":{"fields":[{"name":"p%d","transform":"bucket[%d]","source-id":1}]}},{"action":"set-default-spec","spec-id":-1}`, field, field)
	case 14:
		return fmt.Sprintf(`{"action":"add-sort-order","sort-order":{"order-id":1,"fields":[{"transform":"bucket[%d]","source-id":2,"direction":"asc","null-order":"nulls-first"}]}},{"action":"set-default-sort-order","sort-order-id":-1}`, field)
	case 15:
		return fmt.Sprintf(`{"action":"set-statistics","statistics":{"snapshot-id":%d,"statistics-path":"s3://s/%d","file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[]}}`, snapshotID(), field)
	case 16:
		return fmt.Sprintf(`{"action":"remove-statistics","snapshot-id":%d}`, snapshotID())
	case 17:
		return fmt.Sprintf(`{"action":"remove-schemas","schema-ids":[%d]}`, r.IntN(4))
	case 18:
		return fmt.Sprintf(`{"action":"remove-partition-specs","spec-ids":[%d]}`, r.IntN(4))
	}
	if r.IntN(4) == 0 {
		return fmt.Sprintf(`{"action":"upgrade-format-version","format-version":%d}`, r.IntN(3)+1)
	}
	return fmt.Sprintf(`{"action":"set-location","location":"s3://b/%d"}`, r.IntN(3))
}

// TestRandomCommits runs sequences of commits. Every outcome parses to the
// same index that was carried over, and iceberg-go reads the same table.
func TestRandomCommits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // repeatable, not secret
		list, err := DecodeUpdates(fmt.Appendf(nil, createUpdates, seed%3+1, ""))
		if err != nil {
			t.Fatal(err)
		}
		d, err := CreateFromUpdates(list, CreateOptions{At: time.UnixMilli(1690000000000)})
		if err != nil {
			t.Fatal(err)
		}
		if seed%5 == 4 {
			d = mustParse(t, example(t, []string{"v1.json", "v2.json", "v3.json"}[seed%3]))
		}
		applied := 0
		for step := range 60 {
			updates := make([]string, 1+r.IntN(3))
			for i := range updates {
				updates[i] = randomUpdate(r, d)
			}
			request := "[" + strings.Join(updates, ",") + "]"
			list, err := DecodeUpdates([]byte(request))
			if err != nil {
				if !errors.Is(err, ErrInvalid) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				continue
			}
			before := slices.Clone(d.Bytes())
			after, changed, err := d.Apply(list, ApplyOptions{At: time.UnixMilli(1700000000000 + int64(step)), PreviousMetadataLocation: fmt.Sprintf("s3://b/%d.json", step)})
			if string(before) != string(d.Bytes()) {
				t.Fatalf("seed %d: a commit changed its base", seed)
			}
			if err != nil {
				var stale *StaleError
				if !errors.Is(err, ErrInvalid) && !errors.As(err, &stale) {
					t.Fatalf("seed %d: error of no kind: %v", seed, err)
				}
				continue
			}
			if !changed {
				continue
			}
			applied++
			again, err := Parse(after.Bytes(), Limits{})
			if err != nil {
				t.Fatalf("seed %d: %s\nyields %s\nwhich does not parse: %v", seed, request, after.Bytes(), err)
			}
			if !sameIndex(again, after) {
				t.Fatalf("seed %d: %s\nindex differs\n%+v\n%+v", seed, request, after, again)
			}
			if !json.Valid(after.RefsOnly()) {
				t.Fatalf("seed %d: RefsOnly is not JSON", seed)
			}
			compareWithIcebergGo(t, seed, after)
			d = after
		}
		if applied < 10 {
			t.Errorf("seed %d: only %d commits were valid; the test proves little", seed, applied)
		}
	}
}

// compareWithIcebergGo reads a document with iceberg-go and compares what
// both understand.
func compareWithIcebergGo(t *testing.T, seed uint64, d *Document) {
	t.Helper()
	m, err := icetable.ParseMetadataBytes(d.Bytes())
	if err != nil {
		t.Fatalf("seed %d: iceberg-go does not parse: %v\n%s", seed, err, d.Bytes())
	}
	current, has := d.CurrentSnapshotID()
	var theirs int64
	if s := m.CurrentSnapshot(); s != nil {
		theirs = s.SnapshotID
	}
	refs := map[string]int64{}
	for name, ref := range m.Refs() {
		refs[name] = ref.SnapshotID
	}
	ours := map[string]int64{}
	for name, ref := range d.Refs() {
		ours[name] = ref.SnapshotID
	}
	logs := 0
	for range m.SnapshotLogs() {
		logs++
	}
	files := 0
	for range m.PreviousFiles() {
		files++
	}
	got := fmt.Sprint(d.FormatVersion(), d.UUID(), d.Location(), d.LastColumnID(), d.CurrentSchemaID(), d.DefaultSpecID(), d.LastPartitionID(),
		d.DefaultSortOrderID(), d.SnapshotCount(), has, current, ours, d.Properties(), d.log.entries, len(d.MetadataLog()), d.LastUpdatedMs(), len(d.schemas()), len(d.specs()))
	spec := m.PartitionSpec()
	want := fmt.Sprint(m.Version(), m.TableUUID(), m.Location(), m.LastColumnID(), m.CurrentSchema().ID, spec.ID(), *m.LastPartitionSpecID(),
		m.SortOrder().OrderID(), len(m.Snapshots()), theirs != 0, theirs, refs, map[string]string(m.Properties()), logs, files, m.LastUpdatedMillis(), len(m.Schemas()), len(m.PartitionSpecs()))
	if got != want {
		t.Fatalf("seed %d: iceberg-go reads another table\nours   %s\ntheirs %s\n%s", seed, got, want, d.Bytes())
	}
}
