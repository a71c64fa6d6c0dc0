// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

func example(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func mustApply(t testing.TB, d *Document, updates string) *Document {
	t.Helper()
	list, err := DecodeUpdates([]byte(updates))
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	after, changed, err := d.Apply(list, ApplyOptions{At: time.UnixMilli(1800000000000), PreviousMetadataLocation: "s3://b/prev.json"})
	if err != nil || !changed {
		t.Fatalf("apply: changed=%t, error %v", changed, err)
	}
	if again := mustParse(t, after.Bytes()); !sameIndex(again, after) {
		t.Fatalf("the carried index differs from a parsed one:\n%+v\n%+v", after, again)
	}
	return after
}

func TestAccessors(t *testing.T) {
	t.Parallel()
	v1, v2, v3 := mustParse(t, example(t, "v1.json")), mustParse(t, example(t, "v2.json")), mustParse(t, example(t, "v3.json"))
	check := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("v1 format", v1.FormatVersion(), 1)
	check("v1 schema", v1.CurrentSchemaID(), 0)
	check("v1 last partition id", v1.LastPartitionID(), 1000)
	check("v1 sequence", v1.LastSequenceNumber(), int64(0))
	check("v1 refs", v1.Refs(), map[string]Ref{"main": {SnapshotID: 1646658105718557341, Type: "branch"}})
	check("v1 property", v1.Properties()["x-ünïcode"], `é / "quoted"`)
	check("v1 manifest list", v1.ManifestList(1646658105718557341), "")
	check("v2 uuid", v2.UUID(), uuid.MustParse("9c12d441-03fe-4693-9a96-a0705ddf69c1"))
	check("v2 location", v2.Location(), "gs://bucket/db/v2")
	check("v2 sequence", v2.LastSequenceNumber(), int64(34))
	check("v2 updated", v2.LastUpdatedMs(), int64(1602638573590))
	check("v2 column", v2.LastColumnID(), 5)
	check("v2 spec", v2.DefaultSpecID(), 0)
	check("v2 order", v2.DefaultSortOrderID(), 3)
	check("v2 snapshots", v2.SnapshotCount(), 2)
	check("v2 has", []bool{v2.HasSnapshot(3051729675574597004), v2.HasSnapshot(1)}, []bool{true, false})
	check("v2 manifest list", v2.ManifestList(3055729675574597004), "gs://bucket/db/v2/metadata/2.avro")
	check("v2 metadata log", v2.MetadataLog(), []MetadataLogEntry{{"gs://bucket/db/v2/metadata/00000-a.metadata.json", 1515100955770}})
	check("v3 next row", v3.NextRowID(), int64(30))
	id, ok := v3.CurrentSnapshotID()
	check("v3 current", []any{id, ok}, []any{int64(3055729675574597004), true})
	var current struct {
		ID int `json:"schema-id"`
	}
	if err := json.Unmarshal(v2.CurrentSchema(), &current); err != nil || current.ID != 1 {
		t.Errorf("current schema %d, %v", current.ID, err)
	}
	if main := v2.Refs()["main"]; main.MinSnapshotsToKeep == nil || *main.MinSnapshotsToKeep != 3 || main.MaxSnapshotAgeMs == nil || *main.MaxSnapshotAgeMs != 500000 {
		t.Errorf("main of v2: %+v", main)
	}
	v2.Properties()["write.data.path"] = "changed"
	if got, _ := v2.Property("write.data.path"); got != "gs://bucket/db/v2-data" {
		t.Error("Properties gave out the document's own map")
	}
}

func TestLocations(t *testing.T) {
	t.Parallel()
	got := maps.Collect(mustParse(t, example(t, "v2.json")).Locations())
	want := map[string]string{
		"location":                      "gs://bucket/db/v2",
		"properties.write.data.path":    "gs://bucket/db/v2-data",
		"snapshots[0].manifest-list":    "gs://bucket/db/v2/metadata/1.avro",
		"snapshots[1].manifest-list":    "gs://bucket/db/v2/metadata/2.avro",
		"statistics[0].statistics-path": "gs://bucket/db/v2/metadata/s.puffin",
		"metadata-log[0].metadata-file": "gs://bucket/db/v2/metadata/00000-a.metadata.json",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	v1 := maps.Collect(mustParse(t, example(t, "v1.json")).Locations())
	if v1["snapshots[0].manifests[1]"] != "s3://bucket/db/v1/metadata/m1.avro" {
		t.Errorf("version 1 without a manifest list: %v", v1)
	}
	v3 := maps.Collect(mustParse(t, example(t, "v3.json")).Locations())
	if !strings.HasSuffix(v3["partition-statistics[0].statistics-path"], "/ps.parquet") {
		t.Errorf("partition statistics: %v", v3)
	}
}

// TestLossless changes every part of a document and checks that the rest of
// its bytes, down to white space, is still there in order.
func TestLossless(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"v1.json", "v2.json", "v3.json"} {
		d := mustParse(t, example(t, file))
		seq, rows := d.LastSequenceNumber()+1, ""
		if d.FormatVersion() == 1 {
			seq = 0
		}
		if d.FormatVersion() == 3 {
			rows = `,"first-row-id":30,"added-rows":5`
		}
		for touched, update := range map[string]string{
			"properties":  `{"action":"set-properties","updates":{"new":"value"}}`,
			"location":    `{"action":"set-location","location":"s3://elsewhere"}`,
			"snapshots":   fmt.Sprintf(`{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":%d,"timestamp-ms":1700000000000,"manifest-list":"s3://m","summary":{"operation":"append"}%s,"x-new":1.00}}`, seq, rows),
			"statistics":  `{"action":"set-statistics","statistics":{"snapshot-id":5,"statistics-path":"s3://s","file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[{"type":"t","snapshot-id":5,"sequence-number":1,"fields":[1]}]}}`,
			"sort-orders": `{"action":"add-sort-order","sort-order":{"order-id":9,"fields":[{"transform":"identity","source-id":1,"direction":"desc","null-order":"nulls-last","x":1.0}]}}`,
			"refs":        `{"action":"set-snapshot-ref","ref-name":"t/1","type":"tag","snapshot-id":` + fmt.Sprint(d.snapshots[0].id) + `,"x-new":2.50}`,
		} {
			after := mustApply(t, d, "["+update+"]")
			for _, m := range d.members {
				switch m.key {
				case touched, "last-updated-ms", "metadata-log", "last-sequence-number", "next-row-id":
					continue
				}
				now := after.member(m.key)
				if now == nil || !bytes.Equal(now.val.of(after.raw), m.val.of(d.raw)) {
					t.Errorf("%s, %s: %s changed", file, touched, m.key)
				}
			}
			for _, part := range []string{"x-new", "1.00", "2.50"} {
				if strings.Contains(update, part) && !bytes.Contains(after.raw, []byte(part)) {
					t.Errorf("%s: what we do not know of an update is lost: %s", file, part)
				}
			}
			// Within the section that changed, what was there stays as bytes.
			if m := d.member(touched); m != nil && touched != "location" {
				old := bytes.TrimRight(m.val.of(d.raw), " \n]}")
				if !bytes.HasPrefix(after.member(touched).val.of(after.raw), old) {
					t.Errorf("%s: entries of %s changed", file, touched)
				}
			}
		}
	}
}

func TestKeepsKeyIDAndUnknownKeysOfRefs(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v3.json"))
	after := mustApply(t, d, `[{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":35,"timestamp-ms":1700000000000,"manifest-list":"s3://m","summary":{"operation":"append"},"first-row-id":30,"added-rows":5,"key-id":"k1"}},
		{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":7}]`)
	s, ok := after.SnapshotByID(7)
	if !ok || !bytes.Contains(s.Raw, []byte(`"key-id":"k1"`)) {
		t.Errorf("key-id is lost: %s", s.Raw)
	}
	if after.NextRowID() != 35 {
		t.Errorf("next-row-id %d", after.NextRowID())
	}
	if got := after.Refs(); got["main"].SnapshotID != 7 || got["audit"].SnapshotID != 3055729675574597004 {
		t.Errorf("refs %v", got)
	}
}

func TestRefsOnly(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1 << 10, 50 << 10} {
		d := mustParse(t, largeDocument(size))
		only := mustParse(t, d.RefsOnly())
		current, has := d.CurrentSnapshotID()
		if has && (only.SnapshotCount() != 1 || !only.HasSnapshot(current)) {
			t.Errorf("kept %d of %d snapshots", only.SnapshotCount(), d.SnapshotCount())
		}
		for _, m := range d.members {
			if m.key != "snapshots" && !bytes.Equal(m.val.of(d.raw), only.member(m.key).val.of(only.raw)) {
				t.Errorf("%s changed", m.key)
			}
		}
	}
	tagged := mustParse(t, example(t, "v2.json"))
	if got := mustParse(t, tagged.RefsOnly()); got.SnapshotCount() != 2 {
		t.Errorf("a tag's snapshot is missing: %d", got.SnapshotCount())
	}
	untagged := mustApply(t, tagged, `[{"action":"remove-snapshot-ref","ref-name":"release 1"}]`)
	if got := mustParse(t, untagged.RefsOnly()); got.SnapshotCount() != 1 || got.HasSnapshot(3051729675574597004) {
		t.Error("an unreferenced snapshot is there")
	}
	none := mustApply(t, untagged, `[{"action":"remove-snapshot-ref","ref-name":"main"}]`)
	if got := mustParse(t, none.RefsOnly()); got.SnapshotCount() != 0 {
		t.Error("snapshots without refs are there")
	}
}

func TestMetadataLogIsTrimmed(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v2.json"))
	d = mustApply(t, d, `[{"action":"set-properties","updates":{"write.metadata.previous-versions-max":"2"}}]`)
	for i := range 4 {
		before := d
		list, err := DecodeUpdates(fmt.Appendf(nil, `[{"action":"set-properties","updates":{"i":"%d"}}]`, i))
		if err != nil {
			t.Fatal(err)
		}
		d, _, err = d.Apply(list, ApplyOptions{At: time.UnixMilli(1900000000000), PreviousMetadataLocation: fmt.Sprintf("s3://b/%d.json", i)})
		if err != nil {
			t.Fatal(err)
		}
		if log := d.MetadataLog(); len(log) != 2 || log[1].File != fmt.Sprintf("s3://b/%d.json", i) || log[1].TimestampMs != before.LastUpdatedMs() {
			t.Errorf("log %v", log)
		}
		if dropped := before.DroppedMetadataFiles(d); len(dropped) != 1 || dropped[0] != before.MetadataLog()[0].File {
			t.Errorf("dropped %v", dropped)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v2.json"))
	updates, err := DecodeUpdates([]byte(`[{"action":"set-properties","updates":{"a":"b"}},{"action":"add-sort-order","sort-order":{"fields":[]}},{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":"long"},{"id":2,"name":"y","required":true,"type":"long"},{"id":9,"name":"n","required":false,"type":"string"}]}}]`))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	results := make([][]byte, 8)
	for i := range results {
		wg.Go(func() {
			after, _, err := d.Apply(updates, ApplyOptions{At: time.UnixMilli(1800000000000)})
			if err != nil {
				t.Error(err)
				return
			}
			d.Properties()
			d.Refs()
			d.RefsOnly()
			after.Properties()
			results[i] = after.Bytes()
		})
	}
	wg.Wait()
	for _, r := range results[1:] {
		if !bytes.Equal(r, results[0]) {
			t.Error("the same commit had different outcomes")
		}
	}
}

// invalidDocuments change an example into one that must be refused with an
// error that names path.
var invalidDocuments = []struct{ name, file, old, new, path, problem string }{
	{"not JSON", "v2.json", `"x-first"`, `x-first`, "", "expected a key"},
	{"trailing bytes", "v3.json", `"metadata-log":[]}`, `"metadata-log":[]} {}`, "", "goes on after its end"},
	{"truncated", "v3.json", `"metadata-log":[]}`, `"metadata-log":[]`, "metadata-log", "ends where"},
	{"NaN", "v2.json", `"last-column-id" : 5`, `"last-column-id" : NaN`, "last-column-id", "whole number"},
	{"NaN where we do not look", "v2.json", `"x-snap" : 0.10`, `"x-snap" : NaN`, "snapshots[1].x-snap", "expected a value"},
	{"fraction", "v2.json", `"last-column-id" : 5`, `"last-column-id" : 5.0`, "last-column-id", "fraction"},
	{"huge", "v2.json", `"last-sequence-number" : 34`, `"last-sequence-number" : 99999999999999999999`, "last-sequence-number", "64 bits"},
	{"beyond int64", "v2.json", `"last-sequence-number" : 34`, `"last-sequence-number" : 9223372036854775808`, "last-sequence-number", "64 bits"},
	{"int32", "v2.json", `"last-column-id" : 5`, `"last-column-id" : 2147483648`, "last-column-id", "32 bits"},
	{"leading zero", "v2.json", `"last-column-id" : 5`, `"last-column-id" : 05`, "last-column-id", "not a JSON number"},
	{"key twice", "v2.json", `"x-first" : "kept"`, `"location" : "s3://other"`, "location", "appears twice"},
	{"key twice, escaped", "v2.json", `"x-first" : "kept"`, `"loc\u0061tion" : "s3://other"`, "location", "appears twice"},
	{"snapshot key twice", "v2.json", `"x-snap" : 0.10`, `"manifest-list" : "s3://other"`, "snapshots[1].manifest-list", "appears twice"},
	{"ref key twice", "v2.json", `"x-ref" : "kept"`, `"snapshot-id" : 3051729675574597004`, "refs.main.snapshot-id", "appears twice"},
	{"field key twice", "v2.json", `"x-field" : 1e0`, `"type" : "string"`, "schemas[0].fields[0].type", "appears twice"},
	{"property twice", "v2.json", `"commit.retry.num-retries"`, `"write.data.path"`, "properties.write.data.path", "appears twice"},
	{"ref twice", "v2.json", `"release 1"`, `"main"`, "refs.main", "appears twice"},
	{"version 4", "v2.json", `"format-version" : 2`, `"format-version" : 4`, "format-version", "version 4 is not supported"},
	{"version 0", "v2.json", `"format-version" : 2`, `"format-version" : 0`, "format-version", "not supported"},
	{"no version", "v2.json", `"format-version" : 2`, `"x-version" : 2`, "", "format-version is missing"},
	{"uuid", "v2.json", `9C12D441-03FE`, `9C12D441+03FE`, "table-uuid", "not a UUID"},
	{"current schema", "v2.json", `"current-schema-id" : 1`, `"current-schema-id" : 9`, "current-schema-id", "schema 9 does not exist"},
	{"default spec", "v2.json", `"default-spec-id" : 0`, `"default-spec-id" : 9`, "default-spec-id", "does not exist"},
	{"default order", "v2.json", `"default-sort-order-id" : 3`, `"default-sort-order-id" : 0`, "default-sort-order-id", "does not exist"},
	{"current snapshot", "v3.json", `"current-snapshot-id":3055729675574597004`, `"current-snapshot-id":9`, "current-snapshot-id", "snapshot 9 does not exist"},
	{"ref", "v3.json", `"audit":{"snapshot-id":3055729675574597004`, `"audit":{"snapshot-id":9`, "refs.audit", "snapshot 9 does not exist"},
	{"main elsewhere", "v3.json", `"main":{"snapshot-id":3055729675574597004`, `"main":{"snapshot-id":3051729675574597004`, "current-snapshot-id", "branch main has"},
	{"main without current", "v3.json", `"current-snapshot-id":3055729675574597004`, `"current-snapshot-id":-1`, "current-snapshot-id", "no snapshot is current"},
	{"schema twice", "v2.json", `"schema-id" : 0`, `"schema-id" : 1`, "schemas", "schema 1 appears twice"},
	{"field id twice", "v2.json", `"id" : 4, "name" : "lat"`, `"id" : 1, "name" : "lat"`, "schemas[1]", "field id 1 is used twice"},
	{"snapshot twice", "v3.json", `{"snapshot-id":3051729675574597004,"timestamp-ms":1515100955770,"seq`, `{"snapshot-id":3055729675574597004,"timestamp-ms":1515100955770,"seq`, "snapshots", "appears twice"},
	{"sequence", "v3.json", `"sequence-number":2`, `"sequence-number":35`, "snapshots[1]", "greater than last-sequence-number"},
	{"type", "v2.json", `"decimal(10,2)"`, `"decimal(39,2)"`, "schemas[1].fields[2].type.fields[1].type", "type decimal(39,2) is not known"},
	{"transform", "v3.json", `bucket[16]`, `bucket[0]`, "partition-specs[1].fields[0].transform", "transform bucket[0] is not valid"},
	{"retention", "v2.json", `"min-snapshots-to-keep" : 3`, `"min-snapshots-to-keep" : 0`, "refs.main.min-snapshots-to-keep", "greater than 0"},
	{"tag main", "v3.json", `"main":{"snapshot-id":3055729675574597004,"type":"branch"}`, `"main":{"snapshot-id":3055729675574597004,"type":"tag"}`, "refs.main", "must be a branch"},
	{"property type", "v2.json", `"commit.retry.num-retries" : "1"`, `"commit.retry.num-retries" : 1`, "properties.commit.retry.num-retries", "expected a string"},
	{"summary type", "v3.json", `"engine-name":"spark"`, `"engine-name":1`, "snapshots[1].summary.engine-name", "expected a string"},
	{"control character", "v2.json", `"comment"`, "\"com\x01ment\"", "", "control character"},
	{"half a surrogate", "v2.json", `gs://bucket/db/v2",`, `gs://bucket/\ud800",`, "location", "surrogate"},
	{"bad escape", "v2.json", `"comment"`, `"com\xment"`, "", "escape"},
	{"not UTF-8", "v2.json", `"comment"`, "\"com\xffment\"", "", "UTF-8"},
	{"no next row id", "v3.json", `"next-row-id":30,`, ``, "", "next-row-id is missing"},
	{"no manifest list", "v3.json", `"manifest-list":"abfss://c@acct.dfs.core.windows.net/db/v3/metadata/1.avro",`, ``, "snapshots[0]", "manifest-list is missing"},
	{"empty location", "v2.json", `"gs://bucket/db/v2",`, `"",`, "location", "must not be empty"},
	{"v1 without schema", "v1.json", `"schema":`, `"x-schema":`, "", "schema is missing"},
	{"v1 with a sequence number", "v1.json", `"last-column-id": 4`, `"last-column-id": 4, "last-sequence-number": 1`, "last-sequence-number", "must be 0"},
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range invalidDocuments {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			raw := example(t, c.file)
			changed := bytes.Replace(raw, []byte(c.old), []byte(c.new), 1)
			if bytes.Equal(raw, changed) {
				t.Fatalf("%s does not hold %s", c.file, c.old)
			}
			_, err := Parse(changed, Limits{})
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
				t.Fatalf("got error %v", err)
			}
			if !strings.Contains(invalid.Problem, c.problem) {
				t.Errorf("problem %q, want %q", invalid.Problem, c.problem)
			}
			if c.path != "" && invalid.Path != c.path {
				t.Errorf("path %q, want %q", invalid.Path, c.path)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	v2 := example(t, "v2.json")
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	list := func(n int, entry string) string { return strings.Repeat(entry+",", n-1) + entry }
	replaced := func(old, new string) []byte { return bytes.Replace(v2, []byte(old), []byte(new), 1) }
	var refs []string
	for i := range 20 {
		refs = append(refs, fmt.Sprintf(`"b%d":{"snapshot-id":3055729675574597004,"type":"branch"}`, i))
	}
	for name, c := range map[string]struct {
		raw     []byte
		limits  Limits
		problem string
	}{
		"bytes":     {v2, Limits{MaxBytes: 1000}, "more than the 1000"},
		"depth":     {replaced(`"kept"`, deep), Limits{}, "deeper than 512"},
		"snapshots": {v2, Limits{MaxSnapshots: 1}, "more snapshots than the 1"},
		"refs":      {replaced(`"release 1"`, strings.Join(refs, ",")+`,"release 1"`), Limits{MaxRefs: 10}, "more refs than the 10"},
		"fields":    {v2, Limits{MaxFields: 4}, "more fields"},
		"schemas":   {v2, Limits{MaxSchemas: 1}, "more entries than the 1"},
		"keys": {replaced(`"x-first" : "kept"`, func() string {
			var keys []string
			for i := range 1001 {
				keys = append(keys, fmt.Sprintf(`"k%d":0`, i))
			}
			return strings.Join(keys, ",")
		}()), Limits{}, "more than 1000 keys"},
		"million snapshots": {replaced(`"snapshots" : [`, `"snapshots" : [`+list(1_000_000, `{"snapshot-id":1,"timestamp-ms":1,"manifest-list":"m"}`)+`,`), Limits{}, "more snapshots than the 500000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse(c.raw, c.limits)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("got error %v, want %q", err, c.problem)
			}
		})
	}
}

func TestSnapshotsAreFoundByID(t *testing.T) {
	t.Parallel()
	d := mustParse(t, largeDocument(100<<10))
	var ids []int64
	for s := range d.Snapshots() {
		ids = append(ids, s.ID)
		if got, ok := d.SnapshotByID(s.ID); !ok || !bytes.Equal(got.Raw, s.Raw) {
			t.Fatalf("snapshot %d is not found", s.ID)
		}
	}
	for _, remove := range [][]int64{ids[:1], ids[len(ids)-1:], ids[3:9], {ids[0], ids[5], ids[len(ids)-2]}, ids} {
		list, err := json.Marshal(remove)
		if err != nil {
			t.Fatal(err)
		}
		after := mustApply(t, d, fmt.Sprintf(`[{"action":"remove-snapshots","snapshot-ids":%s},{"action":"add-snapshot","snapshot":{"snapshot-id":5,"sequence-number":100000,"timestamp-ms":1700000000000,"manifest-list":"m","summary":{"operation":"append"}}}]`, list))
		for _, id := range ids {
			if after.HasSnapshot(id) == slices.Contains(remove, id) {
				t.Errorf("snapshot %d", id)
			}
		}
	}
}
