// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestDecodeUpdatesRefuses(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{}`:                             "updates: expected an array",
		`[{}]`:                           "updates[0]: action is missing",
		`[{"action":"drop-everything"}]`: `updates[0]: action "drop-everything" is not an update`,
		`[{"action":"add-view-version","view-version":{}}]`:                                                                                                                          "is not an update of tables",
		`[{"action":"set-location","location":""}]`:                                                                                                                                  "updates[0].location: must not be empty",
		`[{"action":"set-location"}]`:                                                                                                                                                "updates[0]: location is missing",
		`[{"action":"set-location","location":null}]`:                                                                                                                                "updates[0]: location is missing",
		`[{"action":"set-location","location":5}]`:                                                                                                                                   "updates[0].location: expected a string, found a number",
		`[{"action":"set-properties","updates":{"a":1}}]`:                                                                                                                            "updates[0].updates.a: expected a string",
		`[{"action":"set-properties","updates":{"a":null}}]`:                                                                                                                         "updates[0].updates.a: expected a string",
		`[{"action":"set-location","location":"a"},{"action":"assign-uuid","uuid":"x"}]`:                                                                                             `updates[1].uuid: "x" is not a UUID`,
		`[{"action":"set-location","action":"assign-uuid"}]`:                                                                                                                         `updates[0].action: key "action" appears twice`,
		`[{"action":"remove-snapshots","snapshot-ids":[1,"2"]}]`:                                                                                                                     "updates[0].snapshot-ids[1]: expected a whole number",
		`[{"action":"remove-schemas","schema-ids":[3000000000]}]`:                                                                                                                    "updates[0].schema-ids[0]: number does not fit 32 bits",
		`[{"action":"add-snapshot","snapshot":{"snapshot-id":"1"}}]`:                                                                                                                 "updates[0].snapshot.snapshot-id: expected a whole number",
		`[{"action":"add-snapshot","snapshot":{"timestamp-ms":1,"manifest-list":"m","summary":{"operation":"append"}}}]`:                                                             "updates[0].snapshot: snapshot-id is missing",
		`[{"action":"add-snapshot","snapshot":{"snapshot-id":1,"timestamp-ms":1,"manifest-list":"m","summary":{}}}]`:                                                                 "updates[0].snapshot.summary: operation is missing",
		`[{"action":"add-snapshot","snapshot":{"snapshot-id":1,"timestamp-ms":1,"manifest-list":"m"}}]`:                                                                              "updates[0].snapshot: summary is missing",
		`[{"action":"add-snapshot","snapshot":{"snapshot-id":-1,"timestamp-ms":1,"manifest-list":"m","summary":{"operation":"append"}}}]`:                                            "-1 means no snapshot",
		`[{"action":"set-snapshot-ref","ref-name":"b","type":"fork","snapshot-id":1}]`:                                                                                               "updates[0].type: must be branch or tag",
		`[{"action":"set-snapshot-ref","ref-name":"b","type":"branch"}]`:                                                                                                             "updates[0]: snapshot-id is missing",
		`[{"action":"set-snapshot-ref","ref-name":"b","type":"branch","snapshot-id":1,"max-ref-age-ms":0}]`:                                                                          "updates[0].max-ref-age-ms: must be greater than 0",
		`[{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":{"type":"list","element":"int"}}]}}]`:                                 "updates[0].schema.fields[0].type: element-id is missing in a list",
		`[{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":"int8"}]}}]`:                                                          "updates[0].schema.fields[0].type: type int8 is not known",
		`[{"action":"add-schema","schema":{"type":"list","fields":[]}}]`:                                                                                                             "updates[0].schema.type: a schema has type struct",
		`[{"action":"add-spec","spec":{"fields":[{"name":"x","transform":"bucket[-1]","source-id":1}]}}]`:                                                                            "updates[0].spec.fields[0].transform: transform bucket[-1] is not valid",
		`[{"action":"add-sort-order","sort-order":{"fields":[{"transform":"identity","source-id":1,"direction":"up","null-order":"nulls-last"}]}}]`:                                  "updates[0].sort-order.fields[0].direction: must be asc or desc",
		`[{"action":"set-statistics","snapshot-id":2,"statistics":{"snapshot-id":1,"statistics-path":"s","file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[]}}]`: "updates[0].snapshot-id: is 2, but statistics.snapshot-id is 1",
		`[{"action":"set-statistics","statistics":{"snapshot-id":1,"statistics-path":"s","file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[{}]}}]`:               "updates[0].statistics.blob-metadata[0]: type is missing",
		`[{"action":"add-encryption-key","encryption-key":{"key-id":"k"}}]`:                                                                                                          "updates[0].encryption-key: encrypted-key-metadata is missing",
		`[1]`:            "updates[0]: expected an object",
		`[{"action":1}]`: "updates[0].action: expected a string",
		`[] []`:          "goes on after its end",
		`[{"action":"set-location","location":"s3://b","x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}]`: "nested deeper than 256",
	} {
		_, err := DecodeUpdates([]byte(raw))
		var bad *BadRequestError
		if !errors.As(err, &bad) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s\n got %v\nwant %s", raw, err, want)
		}
	}
	many := "[" + strings.Repeat(`{"action":"set-location","location":"a"},`, maxUpdates) + `{"action":"set-location","location":"a"}]`
	if _, err := DecodeUpdates([]byte(many)); err == nil || !strings.Contains(err.Error(), "more than 50000 entries") {
		t.Errorf("too many updates: %v", err)
	}
	for _, none := range []string{"", "null", " [] "} {
		if list, err := DecodeUpdates([]byte(none)); err != nil || len(list) != 0 {
			t.Errorf("%q: %v, %v", none, list, err)
		}
	}
}

func TestUpdateAccessors(t *testing.T) {
	t.Parallel()
	list, err := DecodeUpdates([]byte(`[{"action":"add-snapshot","snapshot":{"snapshot-id":7,"timestamp-ms":1,"manifest-list":"s3://m","summary":{"operation":"append"}}},
		{"action":"set-properties","updated":{"a":"b"}},
		{"action":"set-statistics","statistics":{"snapshot-id":1,"statistics-path":"s3://s","file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[]}},
		{"action":"set-location","location":"s3://l"},
		{"action":"set-partition-statistics","partition-statistics":{"snapshot-id":1,"statistics-path":"s3://p","file-size-in-bytes":1}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := list[0].AddedSnapshot(); !ok || s != (NewSnapshot{7, "s3://m"}) {
		t.Errorf("snapshot %v", s)
	}
	if p, ok := list[1].SetProperties(); !ok || p["a"] != "b" {
		t.Errorf("properties %v", p)
	}
	if l, ok := list[3].SetLocation(); !ok || l != "s3://l" {
		t.Errorf("location %v", l)
	}
	files := map[string]string{}
	for _, u := range list {
		maps.Insert(files, u.Files())
	}
	want := map[string]string{"snapshot.manifest-list": "s3://m", "statistics.statistics-path": "s3://s", "partition-statistics.statistics-path": "s3://p"}
	if !maps.Equal(files, want) {
		t.Errorf("files %v", files)
	}
}

func TestRequirements(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v2.json"))
	for _, c := range []struct {
		document    *Document
		requirement string
		problem     string // "" when it holds
	}{
		{nil, `{"type":"assert-create"}`, ""},
		{d, `{"type":"assert-create"}`, "Requirement failed: table already exists"},
		{d, `{"type":"assert-table-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"}`, ""},
		{d, `{"type":"assert-table-uuid","uuid":"9C12D441-03FE-4693-9A96-A0705DDF69C1"}`, ""},
		{d, `{"type":"assert-table-uuid","uuid":"00000000-03fe-4693-9a96-a0705ddf69c1"}`, "Requirement failed: UUID does not match: expected 9c12d441-03fe-4693-9a96-a0705ddf69c1 != 00000000-03fe-4693-9a96-a0705ddf69c1"},
		{nil, `{"type":"assert-table-uuid","uuid":"00000000-03fe-4693-9a96-a0705ddf69c1"}`, "Requirement failed: table does not exist"},
		{d, `{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":3055729675574597004}`, ""},
		{d, `{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":1}`, "Requirement failed: branch main has changed: expected id 1 != 3055729675574597004"},
		{d, `{"type":"assert-ref-snapshot-id","ref":"release 1","snapshot-id":1}`, "Requirement failed: tag release 1 has changed: expected id 1 != 3051729675574597004"},
		{d, `{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":null}`, "Requirement failed: branch main was created concurrently"},
		{d, `{"type":"assert-ref-snapshot-id","ref":"main"}`, "Requirement failed: branch main was created concurrently"},
		{d, `{"type":"assert-ref-snapshot-id","ref":"dev","snapshot-id":null}`, ""},
		{d, `{"type":"assert-ref-snapshot-id","ref":"dev","snapshot-id":1}`, "Requirement failed: branch or tag dev is missing, expected 1"},
		{d, `{"type":"assert-last-assigned-field-id","last-assigned-field-id":5}`, ""},
		{d, `{"type":"assert-last-assigned-field-id","last-assigned-field-id":4}`, "Requirement failed: last assigned field id changed: expected id 4 != 5"},
		{d, `{"type":"assert-current-schema-id","current-schema-id":1}`, ""},
		{d, `{"type":"assert-current-schema-id","current-schema-id":0}`, "Requirement failed: current schema changed: expected id 0 != 1"},
		{d, `{"type":"assert-last-assigned-partition-id","last-assigned-partition-id":1000}`, ""},
		{d, `{"type":"assert-last-assigned-partition-id","last-assigned-partition-id":999}`, "Requirement failed: last assigned partition id changed: expected id 999 != 1000"},
		{d, `{"type":"assert-default-spec-id","default-spec-id":0}`, ""},
		{d, `{"type":"assert-default-spec-id","default-spec-id":1}`, "Requirement failed: default partition spec changed: expected id 1 != 0"},
		{d, `{"type":"assert-default-sort-order-id","default-sort-order-id":3}`, ""},
		{d, `{"type":"assert-default-sort-order-id","default-sort-order-id":0}`, "Requirement failed: default sort order changed: expected id 0 != 3"},
	} {
		list, err := DecodeRequirements([]byte("[" + c.requirement + "]"))
		if err != nil {
			t.Errorf("%s: %v", c.requirement, err)
			continue
		}
		err = c.document.Check(list)
		var failed *RequirementFailedError
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: %v", c.requirement, err)
		case c.problem != "" && (!errors.As(err, &failed) || err.Error() != c.problem):
			t.Errorf("%s\n got %v\nwant %s", c.requirement, err, c.problem)
		}
	}
	for raw, want := range map[string]string{
		`[{"type":"assert-view-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"}]`: "requirements[0]: type \"assert-view-uuid\" is not a requirement",
		`[{"type":"assert-current-schema-id"}]`:                                       "requirements[0]: current-schema-id is missing",
		`[{"type":"assert-current-schema-id","current-schema-id":"1"}]`:               "requirements[0].current-schema-id: expected a whole number",
		`[{"type":"assert-ref-snapshot-id","snapshot-id":1}]`:                         "requirements[0]: ref is missing",
		`[{}]`: "requirements[0]: type is missing",
	} {
		_, err := DecodeRequirements([]byte(raw))
		var bad *BadRequestError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", raw, err, want)
		}
	}
}

const newSchemaJSON = `{"type":"struct","x-s":1.0,"schema-id":77,"identifier-field-ids":[10],"fields":[
	{"id":10,"name":"id","required":true,"type":"long","x-f":true},
	{"id":20,"name":"place","required":false,"type":{"type":"struct","fields":[{"id":21,"name":"lat","required":false,"type":"double"},{"id":22,"name":"lon","required":false,"type":"double"}]}},
	{"id":30,"name":"tags","required":false,"type":{"type":"map","key-id":31,"key":"string","value-id":32,"value":{"type":"list","element-id":33,"element":"int","element-required":true},"value-required":false}},
	{"id":40,"name":"at","required":false,"type":"timestamptz"}]}`

// TestNew checks the ids that Java assigns to a new table.
func TestNew(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("11111111-2222-4333-8444-555555555555")
	d, err := New(Create{
		UUID: id, Location: "s3://b/t/", Schema: json.RawMessage(newSchemaJSON),
		PartitionSpec: json.RawMessage(`{"spec-id":5,"fields":[{"name":"day","transform":"day","source-id":40},{"source-id":10,"field-id":2000,"name":"id_b","transform":"bucket[8]"}]}`),
		SortOrder:     json.RawMessage(`{"order-id":9,"fields":[{"transform":"identity","source-id":22,"direction":"asc","null-order":"nulls-first"}]}`),
		Properties:    map[string]string{"owner": "<a&b>", "format-version": "3", "uuid": "x"},
		At:            time.UnixMilli(1700000000000),
	})
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, d.Bytes()); !sameIndex(again, d) {
		t.Errorf("the index differs from a parsed one")
	}
	want := `{"format-version":3,"table-uuid":"11111111-2222-4333-8444-555555555555","location":"s3://b/t","last-sequence-number":0,"last-updated-ms":1700000000000,"last-column-id":9,
		"current-schema-id":0,"schemas":[{"type":"struct","x-s":1.0,"schema-id":0,"identifier-field-ids":[1],"fields":[
			{"id":1,"name":"id","required":true,"type":"long","x-f":true},
			{"id":2,"name":"place","required":false,"type":{"type":"struct","fields":[{"id":5,"name":"lat","required":false,"type":"double"},{"id":6,"name":"lon","required":false,"type":"double"}]}},
			{"id":3,"name":"tags","required":false,"type":{"type":"map","key-id":7,"key":"string","value-id":8,"value":{"type":"list","element-id":9,"element":"int","element-required":true},"value-required":false}},
			{"id":4,"name":"at","required":false,"type":"timestamptz"}]}],
		"default-spec-id":0,"partition-specs":[{"spec-id":0,"fields":[{"field-id":1000,"name":"day","transform":"day","source-id":4},{"source-id":1,"field-id":1001,"name":"id_b","transform":"bucket[8]"}]}],"last-partition-id":1001,
		"default-sort-order-id":1,"sort-orders":[{"order-id":1,"fields":[{"transform":"identity","source-id":6,"direction":"asc","null-order":"nulls-first"}]}],
		"properties":{"owner":"<a&b>"},"current-snapshot-id":null,"next-row-id":0,"refs":{},"snapshots":[],"snapshot-log":[],"metadata-log":[]}`
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(want)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := json.Compact(&got, d.Bytes()); err != nil {
		t.Fatal(err)
	}
	if got.String() != compact.String() {
		t.Errorf("\n got %s\nwant %s", got.String(), compact.String())
	}
}

func TestNewFormats(t *testing.T) {
	t.Parallel()
	simple := json.RawMessage(`{"type":"struct","fields":[{"id":1,"name":"a","required":false,"type":"int"}]}`)
	for format, version := range map[string]int{"": 2, "1": 1, "2": 2, "3": 3} {
		properties := map[string]string{}
		if format != "" {
			properties["format-version"] = format
		}
		d, err := New(Create{UUID: uuid.New(), Location: "s3://b/t", Schema: simple, PartitionSpec: json.RawMessage("null"), Properties: properties})
		if err != nil {
			t.Fatal(err)
		}
		if again := mustParse(t, d.Bytes()); !sameIndex(again, d) || d.FormatVersion() != version || d.LastPartitionID() != 999 {
			t.Errorf("%s: version %d, last partition id %d", format, d.FormatVersion(), d.LastPartitionID())
		}
		if version == 1 {
			for _, key := range []string{"schema", "partition-spec"} {
				if d.member(key) == nil {
					t.Errorf("version 1 lacks %s", key)
				}
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	field := func(parts string) string {
		return `{"type":"struct","fields":[{"id":1,"name":"a","required":true,` + parts + `},{"id":2,"name":"b","required":false,"type":"string"}]}`
	}
	for name, c := range map[string]struct {
		schema, spec, order, format, problem string
	}{
		"no schema":          {"", "", "", "2", "schema: a table needs a schema"},
		"null schema":        {"null", "", "", "2", "a table needs a schema"},
		"bad version":        {field(`"type":"int"`), "", "", "x", "properties.format-version"},
		"version 4":          {field(`"type":"int"`), "", "", "4", "not supported"},
		"v3 type":            {field(`"type":"timestamp_ns"`), "", "", "2", "type timestamp_ns is not supported until format version 3"},
		"v3 default":         {field(`"type":"int","initial-default":1`), "", "", "2", "default value is not supported until format version 3"},
		"default of a type":  {field(`"type":"int","initial-default":"1"`), "", "", "3", "initial-default is not a value of type int"},
		"default of variant": {field(`"type":"variant","write-default":{}`), "", "", "3", "must be null"},
		"decimal default":    {field(`"type":"decimal(4,2)","write-default":"123.45"`), "", "", "3", "not a value of type decimal(4, 2)"},
		"required unknown":   {field(`"type":"unknown"`), "", "", "3", "must be optional"},
		"id twice":           {field(`"type":{"type":"list","element-id":2,"element":"int","element-required":true}`), "", "", "2", "field id 2 is used twice"},
		"name twice":         {strings.Replace(field(`"type":"int"`), `"b"`, `"a"`, 1), "", "", "2", `field name "a" is used twice`},
		"identifier":         {strings.Replace(field(`"type":"int"`), `"fields"`, `"identifier-field-ids":[2],"fields"`, 1), "", "", "2", `identifier field "b" is not required`},
		"float identifier":   {strings.Replace(field(`"type":"double"`), `"fields"`, `"identifier-field-ids":[1],"fields"`, 1), "", "", "2", "floating-point"},
		"no identifier":      {strings.Replace(field(`"type":"int"`), `"fields"`, `"identifier-field-ids":[9],"fields"`, 1), "", "", "2", "identifier field 9 does not exist"},
		"negative id":        {strings.Replace(field(`"type":"int"`), `"id":2`, `"id":-2`, 1), "", "", "2", "schema.fields[1].id: field id must not be negative"},
		"source":             {field(`"type":"int"`), `{"fields":[{"name":"p","transform":"identity","source-id":9}]}`, "", "2", "Cannot find source column: 9"},
		"transform of type":  {field(`"type":"int"`), `{"fields":[{"name":"p","transform":"day","source-id":1}]}`, "", "2", "Invalid source type int"},
		"partition name":     {field(`"type":"int"`), `{"fields":[{"name":"b","transform":"bucket[2]","source-id":1}]}`, "", "2", "sourced from different field"},
		"partition twice":    {field(`"type":"int"`), `{"fields":[{"name":"p","transform":"bucket[2]","source-id":1},{"name":"p","transform":"void","source-id":1}]}`, "", "2", "more than once"},
		"partition on list":  {field(`"type":{"type":"list","element-id":5,"element":"int","element-required":true}`), `{"fields":[{"name":"p","transform":"identity","source-id":5}]}`, "", "2", "lies in a list or map"},
		"sort source":        {field(`"type":"int"`), "", `{"order-id":1,"fields":[{"transform":"hour","source-id":1,"direction":"asc","null-order":"nulls-first"}]}`, "2", "Invalid source type int"},
		"not JSON":           {`{"type":`, "", "", "2", "schema"},
	} {
		_, err := New(Create{
			UUID: uuid.New(), Location: "s3://b/t", Schema: json.RawMessage(c.schema), PartitionSpec: json.RawMessage(c.spec),
			SortOrder: json.RawMessage(c.order), Properties: map[string]string{"format-version": c.format},
		})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s:\n got %v\nwant %s", name, err, c.problem)
		}
	}
	if _, err := New(Create{UUID: uuid.New(), Schema: json.RawMessage(newSchemaJSON)}); err == nil {
		t.Error("a table without a location")
	}
}

// createUpdates are what Java sends to create a table in a transaction.
const createUpdates = `[{"action":"assign-uuid","uuid":"11111111-2222-4333-8444-555555555555"},
	{"action":"upgrade-format-version","format-version":%d},
	{"action":"add-schema","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":true,"type":"long"},{"id":2,"name":"at","required":false,"type":"timestamptz"}]},"last-column-id":2},
	{"action":"set-current-schema","schema-id":-1},
	{"action":"add-spec","spec":{"spec-id":0,"fields":[{"name":"day","transform":"day","source-id":2,"field-id":1000}]}},
	{"action":"set-default-spec","spec-id":-1},
	{"action":"add-sort-order","sort-order":{"order-id":1,"fields":[{"transform":"identity","source-id":1,"direction":"asc","null-order":"nulls-first"}]}},
	{"action":"set-default-sort-order","sort-order-id":-1},
	{"action":"set-location","location":"s3://b/t/"},
	{"action":"set-properties","updates":{"owner":"etl","format-version":"3"}}%s]`

func TestCreateFromUpdates(t *testing.T) {
	t.Parallel()
	for _, format := range []int{1, 2, 3} {
		rows, seq := "", 1
		if format == 3 {
			rows = `,"first-row-id":0,"added-rows":4`
		}
		if format == 1 {
			seq = 0
		}
		snapshot := fmt.Sprintf(`,{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":%d,"timestamp-ms":1700000000000,"manifest-list":"s3://m","summary":{"operation":"append"},"schema-id":0%s}},
			{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":7}`, seq, rows)
		for _, more := range []string{"", snapshot} {
			list, err := DecodeUpdates(fmt.Appendf(nil, createUpdates, format, more))
			if err != nil {
				t.Fatal(err)
			}
			d, err := CreateFromUpdates(list, CreateOptions{At: time.UnixMilli(1600000000000)})
			if err != nil {
				t.Fatal(err)
			}
			if again := mustParse(t, d.Bytes()); !sameIndex(again, d) {
				t.Errorf("version %d: the index differs from a parsed one\n%+v\n%+v", format, d, again)
			}
			if d.FormatVersion() != format || d.Location() != "s3://b/t" || d.LastColumnID() != 2 || d.LastPartitionID() != 1000 || d.DefaultSortOrderID() != 1 || d.DefaultSpecID() != 0 {
				t.Errorf("version %d: %s", format, d.Bytes())
			}
			if p := d.Properties(); len(p) != 1 || p["owner"] != "etl" {
				t.Errorf("properties %v", p)
			}
			if more == "" {
				continue
			}
			if id, ok := d.CurrentSnapshotID(); !ok || id != 7 || d.LastUpdatedMs() != 1700000000000 || d.log.entries != 1 {
				t.Errorf("version %d: %s", format, d.Bytes())
			}
			if format == 3 && d.NextRowID() != 4 {
				t.Errorf("next-row-id %d", d.NextRowID())
			}
		}
	}
}

func TestCreateFromUpdatesFillsIn(t *testing.T) {
	t.Parallel()
	list, err := DecodeUpdates([]byte(`[{"action":"add-schema","schema":{"type":"struct","fields":[{"id":4,"name":"a","required":false,"type":"int"}]}},{"action":"set-current-schema","schema-id":-1}]`))
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.New()
	d, err := CreateFromUpdates(list, CreateOptions{At: time.UnixMilli(1), DefaultUUID: id, DefaultLocation: "s3://b/t"})
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, d.Bytes()); !sameIndex(again, d) || d.UUID() != id || d.Location() != "s3://b/t" || d.FormatVersion() != 2 || d.LastColumnID() != 4 {
		t.Errorf("%s", d.Bytes())
	}
	for raw, want := range map[string]string{
		`[]`: "add-schema is missing",
		`[{"action":"add-spec","spec":{"fields":[]}}]`: "no current schema yet",
		`[{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":1,"timestamp-ms":1,"manifest-list":"m","summary":{"operation":"append"}}}]`: "before a schema is added",
		`[{"action":"set-current-schema","schema-id":-1}]`: "no schema has been added",
	} {
		list, err := DecodeUpdates([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		_, err = CreateFromUpdates(list, CreateOptions{DefaultUUID: id, DefaultLocation: "s3://b/t"})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", raw, err, want)
		}
	}
}

// TestApplyRefuses holds refusals that Java's cases do not reach.
func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	snapshot := func(more string) string {
		return `{"action":"add-snapshot","snapshot":{"snapshot-id":7,"timestamp-ms":1700000000000,"manifest-list":"m","summary":{"operation":"append"}` + more + `}}`
	}
	for name, c := range map[string]struct{ file, updates, problem string }{
		"v1 sequence":             {"v1.json", snapshot(`,"sequence-number":1`), "must be 0 in format version 1"},
		"v2 without sequence":     {"v2.json", snapshot(``), "sequence-number is missing"},
		"v2 manifests":            {"v2.json", strings.Replace(snapshot(`,"sequence-number":35`), `"manifest-list":"m"`, `"manifests":["m"]`, 1), "manifest-list is missing"},
		"v3 without added rows":   {"v3.json", snapshot(`,"sequence-number":35,"first-row-id":30`), "added-rows is missing"},
		"v3 overflow":             {"v3.json", snapshot(`,"sequence-number":35,"first-row-id":9223372036854775807,"added-rows":1`), "exceed 64 bits"},
		"add and remove":          {"v2.json", `{"action":"remove-snapshots","snapshot-ids":[3051729675574597004]},` + strings.Replace(snapshot(`,"sequence-number":35`), `"snapshot-id":7`, `"snapshot-id":3051729675574597004`, 1), "Snapshot already exists"},
		"uuid":                    {"v2.json", `{"action":"assign-uuid","uuid":"00000000-03fe-4693-9a96-a0705ddf69c1"}`, "another cannot be assigned"},
		"partition id conflict":   {"v2.json", `{"action":"add-spec","spec":{"fields":[{"name":"yb","transform":"bucket[4]","source-id":2,"field-id":1000}]}}`, "partition field id 1000 already means"},
		"partition id twice":      {"v2.json", `{"action":"add-spec","spec":{"fields":[{"name":"a","transform":"bucket[4]","source-id":2,"field-id":1001},{"name":"b","transform":"bucket[5]","source-id":2,"field-id":1001}]}}`, "used twice"},
		"v1 partition ids":        {"v1.json", `{"action":"add-spec","spec":{"fields":[{"name":"a","transform":"bucket[4]","source-id":1,"field-id":1005}]}}`, "in order in format version 1"},
		"unknown spec":            {"v2.json", `{"action":"set-default-spec","spec-id":4}`, "unknown spec: 4"},
		"unknown order":           {"v2.json", `{"action":"set-default-sort-order","sort-order-id":4}`, "unknown sort order: 4"},
		"last spec":               {"v2.json", `{"action":"set-default-spec","spec-id":-1}`, "no spec has been added"},
		"ref to a removed one":    {"v2.json", `{"action":"remove-snapshots","snapshot-ids":[3051729675574597004]},{"action":"set-snapshot-ref","ref-name":"x","type":"tag","snapshot-id":3051729675574597004}`, "unknown snapshot"},
		"negative time":           {"v2.json", strings.Replace(snapshot(`,"sequence-number":35`), "1700000000000", "-5", 1), "must not be negative"},
		"drop sort column":        {"v2.json", `{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":"long"}]}},{"action":"set-current-schema","schema-id":-1}`, "Cannot find source column for sort field"},
		"incompatible for bucket": {"v3.json", `{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":"long"},{"id":2,"name":"y","required":true,"type":"double"}]}},{"action":"set-current-schema","schema-id":-1}`, "Invalid source type double"},
		"v1 to v3 type":           {"v1.json", `{"action":"add-schema","schema":{"type":"struct","fields":[{"id":9,"name":"v","required":false,"type":"variant"}]}}`, "not supported until format version 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := DecodeUpdates([]byte("[" + c.updates + "]"))
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = mustParse(t, example(t, c.file)).Apply(list, ApplyOptions{At: time.UnixMilli(1700000000000)})
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("\n got %v\nwant %s", err, c.problem)
			}
		})
	}
}

// TestUpgradeV1 changes a table that only has version 1's oldest forms.
func TestUpgradeV1(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v1.json"))
	evolved := mustApply(t, d, `[{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"id","required":true,"type":"long"},{"id":2,"name":"day","required":false,"type":"date"},{"id":7,"name":"n","required":false,"type":"string"}]}},{"action":"set-current-schema","schema-id":-1}]`)
	if evolved.CurrentSchemaID() != 1 || evolved.LastColumnID() != 7 || len(evolved.schemas()) != 2 {
		t.Errorf("schemas %s", evolved.Bytes())
	}
	if s := parseSchema(newCursor(evolved.member("schema").val.of(evolved.raw), 100), 100); s.id != 1 || len(s.fields) != 3 {
		t.Errorf("schema is not the current one: %s", s.raw)
	}
	for _, from := range []*Document{d, evolved} {
		for _, to := range []int{2, 3} {
			up := mustApply(t, from, fmt.Sprintf(`[{"action":"upgrade-format-version","format-version":%d}]`, to))
			if up.member("schema") != nil || up.member("partition-spec") != nil || up.member("x-unknown") == nil {
				t.Errorf("keys: %s", up.Bytes())
			}
			if up.LastPartitionID() != 1000 || up.CurrentSchemaID() != from.CurrentSchemaID() {
				t.Errorf("ids: %s", up.Bytes())
			}
		}
	}
	spec := mustApply(t, d, `[{"action":"add-spec","spec":{"fields":[{"name":"day","transform":"void","source-id":2},{"name":"id_b","transform":"bucket[4]","source-id":1}]}},{"action":"set-default-spec","spec-id":-1}]`)
	if spec.DefaultSpecID() != 1 || spec.LastPartitionID() != 1001 || !bytes.Contains(spec.member("partition-spec").val.of(spec.raw), []byte("id_b")) {
		t.Errorf("spec: %s", spec.Bytes())
	}
}

func TestEvolution(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v2.json"))
	// A field of the same source and transform gets the id that it had.
	d = mustApply(t, d, `[{"action":"add-spec","spec":{"fields":[{"name":"y_b","transform":"bucket[4]","source-id":2}]}},{"action":"set-default-spec","spec-id":-1}]`)
	d = mustApply(t, d, `[{"action":"add-spec","spec":{"fields":[{"name":"x","transform":"identity","source-id":1},{"name":"yb2","transform":"bucket[4]","source-id":2},{"name":"y_t","transform":"truncate[4]","source-id":2}]}},{"action":"set-default-spec","spec-id":-1}]`)
	var ids []int
	for _, f := range d.specs()[2].fields {
		ids = append(ids, f.id)
	}
	if fmt.Sprint(ids) != "[1000 1001 1002]" || d.LastPartitionID() != 1002 || d.DefaultSpecID() != 2 {
		t.Errorf("partition field ids %v, last %d", ids, d.LastPartitionID())
	}
	// A column that only an old spec uses may go.
	d = mustApply(t, d, `[{"action":"add-spec","spec":{"fields":[]}},{"action":"set-default-spec","spec-id":-1},{"action":"add-sort-order","sort-order":{"fields":[]}},{"action":"set-default-sort-order","sort-order-id":-1},
		{"action":"add-schema","schema":{"type":"struct","schema-id":0,"fields":[{"id":3,"name":"only","required":false,"type":"int"}]}},{"action":"set-current-schema","schema-id":-1}]`)
	if d.DefaultSortOrderID() != 0 || d.CurrentSchemaID() != 2 {
		t.Errorf("%s", d.Bytes())
	}
	// Declared again, nothing piles up.
	list, err := DecodeUpdates([]byte(`[{"action":"add-spec","spec":{"spec-id":9,"fields":[]}},{"action":"add-sort-order","sort-order":{"order-id":0,"fields":[]}},{"action":"set-default-sort-order","sort-order-id":-1},
		{"action":"add-schema","schema":{"type":"struct","schema-id":5,"fields":[{"id":3,"name":"only","required":false,"type":"int"}]}},{"action":"set-current-schema","schema-id":-1},{"action":"set-location","location":"gs://bucket/db/v2/"},
		{"action":"set-properties","updates":{"commit.retry.num-retries":"1"}},{"action":"assign-uuid","uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1"},{"action":"upgrade-format-version","format-version":2}]`))
	if err != nil {
		t.Fatal(err)
	}
	if after, changed, err := d.Apply(list, ApplyOptions{At: time.UnixMilli(1)}); err != nil || changed || after != d {
		t.Errorf("changed=%t, error %v", changed, err)
	}
	// A clock that runs behind does not turn the table's time back.
	behind := mustApplyAt(t, d, `[{"action":"set-properties","updates":{"a":"b"}}]`, time.UnixMilli(5))
	if behind.LastUpdatedMs() != d.LastUpdatedMs() {
		t.Errorf("time went back to %d", behind.LastUpdatedMs())
	}
}

func mustApplyAt(t testing.TB, d *Document, updates string, at time.Time) *Document {
	t.Helper()
	list, err := DecodeUpdates([]byte(updates))
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := d.Apply(list, ApplyOptions{At: at})
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func TestStatisticsWithoutProperties(t *testing.T) {
	t.Parallel()
	d := mustParse(t, example(t, "v2.json"))
	after := mustApply(t, d, `[{"action":"set-statistics","statistics":{"snapshot-id":3051729675574597004,"statistics-path":"s3://s","file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[{"type":"t","snapshot-id":3051729675574597004,"sequence-number":1,"fields":[1]}]}}]`)
	if bytes.Contains(after.member("statistics").val.of(after.raw), []byte("null")) {
		t.Errorf("null in %s", after.member("statistics").val.of(after.raw))
	}
	gone := mustApply(t, after, `[{"action":"remove-snapshots","snapshot-ids":[3051729675574597004]}]`)
	if bytes.Contains(gone.Bytes(), []byte("s3://s")) {
		t.Error("the statistics of a removed snapshot stay")
	}
	if _, ok := gone.Refs()["release 1"]; ok {
		t.Error("the tag of a removed snapshot stays")
	}
}
