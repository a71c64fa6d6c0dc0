// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/view"
	"github.com/google/uuid"
)

var commitTime = time.UnixMilli(1_700_000_000_000)

func TestNew(t *testing.T) {
	t.Parallel()
	raw, err := New(Create{
		UUID:     uuid.MustParse("fa6506c3-7681-40c8-86dc-e36561f83385"),
		Location: "file:///w/v",
		Schema:   json.RawMessage(`{"x":1, "type":"struct","schema-id":4,"fields":[{"id":1,"name":"a","required":false,"type":"long"}]}`),
		Version: json.RawMessage(`{"version-id":9,"timestamp-ms":17,"schema-id":-1,"summary":{"by":"me"},"default-namespace":["a","b"],
			"representations":[{"type":"sql","sql":"SELECT a < 1","dialect":"Spark"}],"y":null}`),
		Properties: map[string]string{"b": "é", "a": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"view-uuid":"fa6506c3-7681-40c8-86dc-e36561f83385","format-version":1,"location":"file:///w/v",` +
		`"schemas":[{"x":1,"type":"struct","schema-id":0,"fields":[{"id":1,"name":"a","required":false,"type":"long"}]}],` +
		`"current-version-id":1,` +
		`"versions":[{"version-id":1,"timestamp-ms":17,"schema-id":0,"summary":{"by":"me"},"default-namespace":["a","b"],` +
		`"representations":[{"type":"sql","sql":"SELECT a < 1","dialect":"Spark"}],"y":null}],` +
		`"version-log":[{"timestamp-ms":17,"version-id":1}],"properties":{"a":"1","b":"é"}}`
	if string(raw) != want {
		t.Errorf("got\n%s\nwant\n%s", raw, want)
	}
	info, err := Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	wantInfo := &Info{
		UUID: uuid.MustParse("fa6506c3-7681-40c8-86dc-e36561f83385"), Location: "file:///w/v",
		FormatVersion: 1, CurrentVersionID: 1, Properties: map[string]string{"a": "1", "b": "é"},
	}
	if !reflect.DeepEqual(info, wantInfo) {
		t.Errorf("got %+v, want %+v", info, wantInfo)
	}
	if _, err := view.ParseMetadataBytes(raw); err != nil {
		t.Errorf("iceberg-go cannot read it: %v", err)
	}
}

// edit parses JSON, sets the member at a path ("versions/0/schema-id") to
// other JSON, or removes it when the JSON is empty, and renders it.
func edit(t *testing.T, doc []byte, path, value string) []byte {
	t.Helper()
	o, err := parseObject(doc, "")
	if err != nil {
		t.Fatal(err)
	}
	key, rest, deeper := strings.Cut(path, "/")
	switch {
	case !deeper && value == "":
		o.remove(key)
	case !deeper:
		o.set(key, json.RawMessage(value))
	case o.values[key][0] == '[':
		index, rest, deeper := strings.Cut(rest, "/")
		i, err := strconv.Atoi(index)
		if err != nil {
			t.Fatal(err)
		}
		var all []json.RawMessage
		if err := json.Unmarshal(o.values[key], &all); err != nil {
			t.Fatal(err)
		}
		if deeper {
			all[i] = edit(t, all[i], rest, value)
		} else {
			all[i] = json.RawMessage(value)
		}
		o.set(key, array(all, func(raw json.RawMessage) json.RawMessage { return raw }))
	default:
		o.set(key, edit(t, o.values[key], rest, value))
	}
	return o.bytes()
}

func example(t testing.TB) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/view.json")
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	version := `{"version-id":%d,"timestamp-ms":1,"schema-id":1,"summary":{},"default-namespace":[],"representations":[]}`
	for _, c := range []struct{ path, value, want string }{
		{"view-uuid", ``, `view-uuid: required, a string`},
		{"view-uuid", `5`, `view-uuid: expected a string, found a number`},
		{"view-uuid", `"x"`, `view-uuid: "x" is not a UUID`},
		{"view-uuid", `"urn:uuid:fa6506c3-7681-40c8-86dc-e36561f83385"`, `view-uuid: "urn:uuid:fa6506c3-7681-40c8-86dc-e36561f83385" is not a UUID`},
		{"format-version", `null`, `format-version: required, an integer`},
		{"format-version", `2`, `format-version: version 2 is not supported; views have version 1`},
		{"location", ``, `location: required, a string`},
		{"location", `" "`, `location: must not be empty`},
		{"current-version-id", `3`, `current-version-id: no version has the id 3`},
		{"current-version-id", `1.5`, `current-version-id: expected an integer, found a number`},
		{"current-version-id", `4294967298`, `current-version-id: 4294967298 is not a 32-bit integer`},
		{"properties", `[]`, `properties: expected an object, found an array`},
		{"properties/z", `1`, `properties.z: expected a string, found a number`},
		{"properties/z", `null`, `properties.z: expected a string, found null`},
		{"properties", `{"a":"1","a":"2"}`, `properties.a: the key occurs twice`},
		{"versions", ``, `versions: required, an array`},
		{"versions", `{}`, `versions: expected an array, found an object`},
		{"versions", `[]`, `current-version-id: no version has the id 2`},
		{"versions/0", `null`, `versions[0]: expected an object, found null`},
		{"versions/0", fmt.Sprintf(version, 2), `versions[1].version-id: version 2 occurs twice`},
		{"versions/1/schema-id", `0`, `versions[1].schema-id: no schema has the id 0`},
		{"versions/1/timestamp-ms", `"now"`, `versions[1].timestamp-ms: expected an integer of 64 bits, found a string`},
		{"versions/1/timestamp-ms", `1e400`, `versions[1].timestamp-ms: expected an integer of 64 bits, found a number`},
		{"versions/1/summary", ``, `versions[1].summary: required, an object of strings`},
		{"versions/1/summary", `{"a":1}`, `versions[1].summary.a: expected a string, found a number`},
		{"versions/1/default-namespace", ``, `versions[1].default-namespace: required, an array`},
		{"versions/1/default-namespace", `["a",null]`, `versions[1].default-namespace[1]: expected a string, found null`},
		{"versions/1/default-catalog", `{}`, `versions[1].default-catalog: expected a string, found an object`},
		{"versions/1/representations", `"SELECT 1"`, `versions[1].representations: expected an array, found a string`},
		{"versions/1/representations/0/type", ``, `versions[1].representations[0].type: required, a string`},
		{"versions/1/representations/0/sql", ``, `versions[1].representations[0].sql: required, a string`},
		{"versions/1/representations/0/sql", `"\n"`, `versions[1].representations[0].sql: must not be empty`},
		{"versions/1/representations/0/dialect", `""`, `versions[1].representations[0].dialect: must not be empty`},
		{"versions/1/representations/1", `{"type":"sql","sql":"SELECT 1","dialect":"SPARK "}`, `Invalid view version: Cannot add multiple queries for dialect spark`},
		{"schemas", `[]`, `versions[0].schema-id: no schema has the id 1`},
		{"schemas/0/schema-id", `"1"`, `schemas[0].schema-id: expected an integer, found a string`},
		{"schemas/0/fields", ``, `schemas[0].fields: required, an array`},
		{"schemas/0/identifier-field-ids", `[3]`, `schemas[0].identifier-field-ids[0]: no field has the id 3`},
		{"schemas/0/identifier-field-ids", `[2]`, `schemas[0].identifier-field-ids[0]: field event_date cannot identify rows: it is not a required primitive`},
		{"version-log", ``, `version-log: required, an array`},
		{"version-log/0/version-id", ``, `version-log[0].version-id: required, an integer`},
		{"version-log/1/timestamp-ms", `true`, `version-log[1].timestamp-ms: expected an integer of 64 bits, found a boolean`},
		{"x-last", strings.Repeat("[", 256) + strings.Repeat("]", 256), `nested deeper than 256 levels`},
		{"x-last", "\"\xff\"", `not UTF-8`},
	} {
		_, err := Parse(edit(t, example(t), c.path, c.value))
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s = %s: got %v, want ErrInvalid", c.path, c.value, err)
		} else if err.Error() != c.want {
			t.Errorf("%s = %s: got %q, want %q", c.path, c.value, err, c.want)
		}
	}
	// What iceberg-go says of a schema is its own wording.
	for _, fields := range []string{
		`[{"id":1,"name":"a","required":true,"type":"nothing"}]`,
		`[{"id":1,"name":"a","required":true,"type":"int"},{"id":1,"name":"b","required":true,"type":"int"}]`,
		`[{"id":1,"name":"a","required":true,"type":"int"},{"id":2,"name":"a","required":true,"type":"int"}]`,
	} {
		_, err := Parse(edit(t, example(t), "schemas/0/fields", fields))
		if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "schemas[0]: not a valid schema: ") {
			t.Errorf("fields %s: got %v", fields, err)
		}
	}
	for _, text := range []string{"", "null", "[]", "{", `{"a":1}}`, `{"a":1} {}`, `{"a":1,"a":1}`, `{"a"}`, `{"a":}`} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", text, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	sql := `{"version-id":1,"timestamp-ms":1,"schema-id":1,"summary":{},"default-namespace":[],"representations":%s}`
	for _, c := range []struct{ update, want string }{
		{`null`, `updates[1]: expected an object, found null`},
		{`"x"`, `updates[1]: expected an object, found a string`},
		{`{}`, `updates[1].action: required, a string`},
		{`{"action":7}`, `updates[1].action: expected a string, found a number`},
		{`{"action":"add-snapshot"}`, `updates[1].action: unknown view update "add-snapshot"`},
		{`{"action":"assign-uuid"}`, `updates[1].uuid: required, a string`},
		{`{"action":"assign-uuid","uuid":"7"}`, `updates[1].uuid: "7" is not a UUID`},
		{`{"action":"upgrade-format-version","format-version":"1"}`, `updates[1].format-version: expected an integer, found a string`},
		{`{"action":"add-schema"}`, `updates[1].schema: required, an object`},
		{`{"action":"add-schema","schema":[]}`, `updates[1].schema: expected an object, found an array`},
		{`{"action":"set-location","location":null}`, `updates[1].location: required, a string`},
		{`{"action":"set-properties"}`, `updates[1].updates: required, an object of strings`},
		{`{"action":"set-properties","updates":{"a":{}}}`, `updates[1].updates.a: expected a string, found an object`},
		{`{"action":"remove-properties"}`, `updates[1].removals: required, an array`},
		{`{"action":"remove-properties","removals":[null]}`, `updates[1].removals[0]: expected a string, found null`},
		{`{"action":"add-view-version"}`, `updates[1].view-version: required, an object`},
		{`{"action":"add-view-version","view-version":` + fmt.Sprintf(sql, `[]`) + `}`, `updates[1].view-version.representations: at least one SQL representation is required`},
		{`{"action":"add-view-version","view-version":` + fmt.Sprintf(sql, `[{"type":"x"}]`) + `}`, `updates[1].view-version.representations: at least one SQL representation is required`},
		{`{"action":"add-view-version","view-version":` + fmt.Sprintf(sql, `[{"type":"sql","dialect":"a","sql":5}]`) + `}`, `updates[1].view-version.representations[0].sql: expected a string, found a number`},
		{`{"action":"set-current-view-version"}`, `updates[1].view-version-id: required, an integer`},
		{`{"action":"set-current-view-version","view-version-id":1,"view-version-id":1}`, `updates[1].view-version-id: the key occurs twice`},
	} {
		_, err := DecodeUpdates([]json.RawMessage{json.RawMessage(`{"action":"set-properties","updates":{}}`), json.RawMessage(c.update)})
		if !errors.Is(err, ErrInvalid) || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.update, err, c.want)
		}
	}
	for _, c := range []struct{ requirement, want string }{
		{`{}`, `requirements[0].type: required, a string`},
		{`{"type":"assert-uuid","uuid":"fa6506c3-7681-40c8-86dc-e36561f83385"}`, `requirements[0].type: unknown requirement "assert-uuid"; a view knows assert-view-uuid`},
		{`{"type":"assert-view-uuid"}`, `requirements[0].uuid: required, a string`},
	} {
		_, err := DecodeRequirements([]json.RawMessage{json.RawMessage(c.requirement)})
		if !errors.Is(err, ErrInvalid) || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.requirement, err, c.want)
		}
	}
	if _, err := DecodeUpdates(make([]json.RawMessage, maxUpdates+1)); !errors.Is(err, ErrInvalid) || err.Error() != "updates: more than 10000 entries in one commit" {
		t.Errorf("too many updates: got %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Create{
		UUID: uuid.New(), Location: "file:///w/v",
		Schema:  json.RawMessage(`{"type":"struct","fields":[]}`),
		Version: json.RawMessage(`{"version-id":1,"timestamp-ms":1,"schema-id":0,"summary":{},"default-namespace":[],"representations":[{"type":"sql","sql":"SELECT 1","dialect":"spark"}]}`),
	}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spoil func(*Create)
		want  string
	}{
		{func(c *Create) { c.Schema = nil }, `schema: expected an object, found nothing`},
		{func(c *Create) { c.Version = nil }, `view-version: expected an object, found nothing`},
		{func(c *Create) { c.Location = "" }, `location: must not be empty`},
		{func(c *Create) { c.Schema = json.RawMessage("{\"\xff\":1}") }, `schema: not UTF-8`},
		{func(c *Create) { c.Version = edit(t, c.Version, "representations", `[]`) }, `view-version.representations: at least one SQL representation is required`},
		{func(c *Create) { c.Version = edit(t, c.Version, "summary", ``) }, `view-version.summary: required, an object of strings`},
		{func(c *Create) { c.Properties = map[string]string{propertyHistory: "-1"} }, `version.history.num-entries must be positive but was -1`},
	} {
		bad := good
		c.spoil(&bad)
		if _, err := New(bad); !errors.Is(err, ErrInvalid) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	info, err := Parse(example(t))
	if err != nil {
		t.Fatal(err)
	}
	decode := func(id string) []Requirement {
		r, err := DecodeRequirements([]json.RawMessage{json.RawMessage(`{"type":"assert-view-uuid","uuid":"` + id + `"}`)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := Check(info, decode("fa6506c3-7681-40c8-86dc-e36561f83385")); err != nil {
		t.Error(err)
	}
	err = Check(info, decode("fa6506c3-7681-40c8-86dc-e36561f83386"))
	var failed *RequirementFailedError
	if !errors.As(err, &failed) || err.Error() != "Requirement failed: view UUID does not match: expected fa6506c3-7681-40c8-86dc-e36561f83385 != fa6506c3-7681-40c8-86dc-e36561f83386" {
		t.Errorf("got %v", err)
	}
}

// at follows a path of keys and indices; "#" is an array's length, and what
// is absent is null.
func at(t *testing.T, doc any, path string) any {
	t.Helper()
	for step := range strings.SplitSeq(path, "/") {
		switch v := doc.(type) {
		case map[string]any:
			doc = v[step]
		case []any:
			if step == "#" {
				doc = json.Number(strconv.Itoa(len(v)))
				continue
			}
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) {
				t.Fatalf("no %s in %v", path, doc)
			}
			doc = v[i]
		default:
			t.Fatalf("no %s: %v", path, doc)
		}
	}
	return doc
}

func decodeJSON(t *testing.T, raw []byte) (v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return v
}

func TestApply(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/commits.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name, Error         string
		Updates             []json.RawMessage
		Unchanged, Dialects bool
		Want                map[string]json.RawMessage
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if c.Error == "" && !c.Unchanged && len(c.Want) == 0 {
				t.Fatal("the case expects nothing")
			}
			base := example(t)
			updates, err := DecodeUpdates(c.Updates)
			if err != nil {
				t.Fatal(err)
			}
			next, changed, err := Apply(base, updates, commitTime)
			if c.Error != "" {
				if !errors.Is(err, ErrInvalid) || err.Error() != c.Error || errors.Is(err, ErrDialects) != c.Dialects {
					t.Fatalf("got %v, want %s", err, c.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if changed == c.Unchanged || c.Unchanged && !bytes.Equal(next, base) {
				t.Fatalf("changed: %v", changed)
			}
			got := decodeJSON(t, next)
			for path, want := range c.Want {
				if got, want := at(t, got, path), decodeJSON(t, want); !reflect.DeepEqual(got, want) {
					t.Errorf("%s: got %v, want %v", path, got, want)
				}
			}
			checkLossless(t, base, next)
			again, _, err := Apply(base, updates, commitTime)
			if err != nil || !bytes.Equal(again, next) {
				t.Errorf("the same updates, applied again, give another document: %v", err)
			}
		})
	}
}

// checkLossless checks that members that did not change kept their bytes,
// that keys kept their order, and that what stayed in lists stayed whole.
func checkLossless(t *testing.T, before, after []byte) {
	t.Helper()
	a, err := parse(before)
	if err != nil {
		t.Fatal(err)
	}
	b, err := parse(after)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.raw.keys, b.raw.keys[:len(a.raw.keys)]) {
		t.Errorf("the order of keys changed from %v to %v", a.raw.keys, b.raw.keys)
	}
	for _, key := range a.raw.keys {
		if strings.HasPrefix(key, "x-") || key == "view-uuid" || key == "format-version" {
			if !bytes.Equal(a.raw.values[key], b.raw.values[key]) {
				t.Errorf("%s changed", key)
			}
		}
	}
	for _, s := range b.schemas {
		i := slices.IndexFunc(a.schemas, func(o schema) bool { return o.id == s.id })
		if i >= 0 && !bytes.Equal(s.raw.bytes(), a.schemas[i].raw.bytes()) {
			t.Errorf("schema %d changed to %s", s.id, s.raw.bytes())
		}
	}
	for _, v := range b.versions {
		if o, ok := a.version(v.id); ok && !bytes.Equal(v.raw.bytes(), o.raw.bytes()) {
			t.Errorf("version %d changed to %s", v.id, v.raw.bytes())
		}
	}
	moment := func(e logEntry) string {
		return fmt.Sprint(e.versionID, string(e.raw.values["timestamp-ms"]))
	}
	for _, e := range b.log {
		i := slices.IndexFunc(a.log, func(o logEntry) bool { return moment(o) == moment(e) })
		if i >= 0 && !bytes.Equal(e.raw.bytes(), a.log[i].raw.bytes()) {
			t.Errorf("log entry %s changed", moment(e))
		}
	}
	for _, key := range b.properties.keys {
		was, _ := a.properties.lookup(key)
		is, _ := b.properties.lookup(key)
		if was == is && !bytes.Equal(a.properties.values[key], b.properties.values[key]) {
			t.Errorf("property %s has another spelling", key)
		}
	}
}

func TestUntouchedMembersKeepTheirBytes(t *testing.T) {
	t.Parallel()
	base := example(t)
	updates, err := DecodeUpdates([]json.RawMessage{json.RawMessage(`{"action":"set-location","location":"s3://b/other"}`)})
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := Apply(base, updates, commitTime)
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseObject(base, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := parseObject(next, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range a.keys {
		if key != "location" && !bytes.Equal(a.values[key], b.values[key]) {
			t.Errorf("%s: got %s, want %s", key, b.values[key], a.values[key])
		}
	}
}

// TestAgainstIcebergGo applies random commits here and with iceberg-go's
// builder. The generator avoids what differs on purpose (doc.go): "last added"
// for what the view had already.
func TestAgainstIcebergGo(t *testing.T) {
	t.Parallel()
	refused, applied := 0, 0
	for seed := range uint64(300) {
		g := &generator{rand: rand.New(rand.NewPCG(seed, 1))}
		raw, err := New(Create{
			UUID: uuid.New(), Location: "file:///w/v", Schema: g.schema(0), Version: g.version(1, 0, "spark"),
			Properties: map[string]string{"version.history.num-entries": strconv.Itoa(1 + g.rand.IntN(5))},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 12 {
			texts := g.commit(t, raw)
			updates, err := DecodeUpdates(texts)
			if err != nil {
				t.Fatal(err)
			}
			next, changed, ours := Apply(raw, updates, commitTime)
			theirs, err := applyWithIcebergGo(t, raw, texts)
			if (ours == nil) != (err == nil) {
				t.Fatalf("seed %d: %s\non %s\nours: %v\niceberg-go: %v", seed, texts, raw, ours, err)
			}
			if ours != nil {
				refused++
				continue
			}
			if !changed {
				// The builder trims history even then; a server writes nothing.
				if !bytes.Equal(next, raw) {
					t.Fatal("unchanged, but other bytes")
				}
				continue
			}
			if got, want := summarise(t, next), summariseMetadata(theirs); got != want {
				t.Fatalf("seed %d: %s\non %s\ngot  %s\nwant %s", seed, texts, raw, got, want)
			}
			raw = next
			applied++
		}
	}
	if applied < 1000 || refused < 100 {
		t.Errorf("%d commits applied, %d refused: too few to mean anything", applied, refused)
	}
}

type generator struct {
	rand  *rand.Rand
	names int
}

func (g *generator) schema(id int) json.RawMessage {
	g.names++
	return json.RawMessage(fmt.Sprintf(`{"type":"struct","schema-id":%d,"fields":[{"id":1,"name":"c%d","required":true,"type":"decimal(9, 2)"}],"identifier-field-ids":[1]}`, id, g.names))
}

func (g *generator) version(id, schemaID int, dialects ...string) json.RawMessage {
	g.names++
	var all []string
	for _, d := range dialects {
		all = append(all, fmt.Sprintf(`{"type":"sql","sql":"SELECT %d","dialect":%q}`, g.names, d))
	}
	return json.RawMessage(fmt.Sprintf(`{"version-id":%d,"timestamp-ms":%d,"schema-id":%d,"summary":{"n":"1"},"default-namespace":["a"],"representations":[%s]}`,
		id, 1000+g.names, schemaID, strings.Join(all, ",")))
}

// commit returns one to four updates, most of them valid.
func (g *generator) commit(t *testing.T, raw []byte) []json.RawMessage {
	t.Helper()
	v, err := parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	schemaAdded, versionAdded := false, false
	var out []json.RawMessage
	add := func(format string, args ...any) { out = append(out, json.RawMessage(fmt.Sprintf(format, args...))) }
	for range 1 + g.rand.IntN(4) {
		switch g.rand.IntN(10) {
		case 0:
			add(`{"action":"set-properties","updates":{"k%d":"%d"}}`, g.rand.IntN(3), g.rand.IntN(3))
		case 1:
			add(`{"action":"remove-properties","removals":["k0","k%d"]}`, g.rand.IntN(3))
		case 2:
			add(`{"action":"set-location","location":"file:///w/v%d"}`, g.rand.IntN(3))
		case 3:
			add(`{"action":"set-properties","updates":{"version.history.num-entries":"%d"}}`, g.rand.IntN(6))
		case 4:
			add(`{"action":"set-properties","updates":{"replace.drop-dialect.allowed":"%t"}}`, g.rand.IntN(2) == 0)
		case 5:
			add(`{"action":"add-schema","schema":%s}`, g.schema(g.rand.IntN(3)))
			schemaAdded = true
		case 6, 7:
			dialects := [][]string{{"spark"}, {"Spark", "trino"}, {"trino"}, {"duckdb", "spark"}}[g.rand.IntN(4)]
			schemaID := v.schemas[g.rand.IntN(len(v.schemas))].id
			if schemaAdded && g.rand.IntN(2) == 0 {
				schemaID = -1
			}
			add(`{"action":"add-view-version","view-version":%s}`, g.version(1+g.rand.IntN(20), schemaID, dialects...))
			versionAdded = true
		case 8:
			if versionAdded {
				add(`{"action":"set-current-view-version","view-version-id":-1}`)
			}
		case 9:
			add(`{"action":"set-current-view-version","view-version-id":%d}`, v.versions[g.rand.IntN(len(v.versions))].id+g.rand.IntN(8)/7)
		}
	}
	return out
}

func applyWithIcebergGo(t *testing.T, raw []byte, texts []json.RawMessage) (view.Metadata, error) {
	t.Helper()
	base, err := view.ParseMetadataBytes(raw)
	if err != nil {
		t.Fatalf("iceberg-go cannot read %s: %v", raw, err)
	}
	var updates view.Updates
	if err := json.Unmarshal(array(texts, func(raw json.RawMessage) json.RawMessage { return raw }), &updates); err != nil {
		t.Fatal(err)
	}
	b, err := view.MetadataBuilderFromBase(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range updates {
		if err := u.Apply(b); err != nil {
			return nil, err
		}
	}
	result, err := b.Build()
	if err != nil {
		return nil, err
	}
	return result.Metadata, nil
}

func summarise(t *testing.T, raw []byte) string {
	t.Helper()
	m, err := view.ParseMetadataBytes(raw)
	if err != nil {
		t.Fatalf("iceberg-go cannot read %s: %v", raw, err)
	}
	return summariseMetadata(m)
}

// summariseMetadata prints metadata; iceberg-go reads the clock for log
// entries of older versions, so those have no time here.
func summariseMetadata(m view.Metadata) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s current %d\n", m.ViewUUID(), m.Location(), m.CurrentVersionID())
	keys := make([]string, 0)
	for k, v := range m.Properties() {
		keys = append(keys, k+"="+v)
	}
	slices.Sort(keys)
	fmt.Fprintln(&b, keys)
	for _, s := range m.Schemas() {
		fmt.Fprintf(&b, "schema %d %v %v\n", s.ID, s.Fields(), s.IdentifierFieldIDs)
	}
	versions := m.Versions()
	slices.SortFunc(versions, func(a, b *view.Version) int { return int(a.VersionID - b.VersionID) })
	for _, v := range versions {
		fmt.Fprintf(&b, "version %+v\n", *v)
	}
	for _, e := range m.VersionLog() {
		if e.TimestampMS >= commitTime.UnixMilli() {
			e.TimestampMS = 0
		}
		fmt.Fprintf(&b, "log %+v\n", e)
	}
	return b.String()
}

// The oracle itself must see what the test relies on.
func TestOracle(t *testing.T) {
	t.Parallel()
	if _, err := view.ParseMetadataBytes(example(t)); err != nil {
		t.Fatal(err)
	}
	a := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "a", Type: iceberg.PrimitiveTypes.Int32})
	b := iceberg.NewSchema(5, iceberg.NestedField{ID: 1, Name: "a", Type: iceberg.PrimitiveTypes.Int32})
	if !a.Equals(b) {
		t.Error("iceberg-go compares schema ids")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(example(f))
	f.Add([]byte(`{"view-uuid":"fa6506c3-7681-40c8-86dc-e36561f83385","format-version":1,"location":"a","schemas":[{"type":"struct","fields":[]}],"current-version-id":1,"versions":[],"version-log":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := parse(raw)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("not ErrInvalid: %v", err)
			}
			return
		}
		if _, err := parse(v.raw.bytes()); err != nil {
			t.Fatalf("rendered, it is refused: %v", err)
		}
		next, changed, err := Apply(raw, nil, commitTime)
		if err != nil || changed || !bytes.Equal(next, raw) {
			t.Fatalf("an empty commit changed it: %v", err)
		}
	})
}

func FuzzApply(f *testing.F) {
	raw, err := os.ReadFile("testdata/commits.json")
	if err != nil {
		f.Fatal(err)
	}
	var cases []struct{ Updates json.RawMessage }
	if err := json.Unmarshal(raw, &cases); err != nil {
		f.Fatal(err)
	}
	base := example(f)
	for _, c := range cases {
		f.Add(base, []byte(c.Updates))
	}
	f.Fuzz(func(t *testing.T, base, text []byte) {
		var texts []json.RawMessage
		if json.Unmarshal(text, &texts) != nil {
			return
		}
		updates, err := DecodeUpdates(texts)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("not ErrInvalid: %v", err)
			}
			return
		}
		next, changed, err := Apply(base, updates, commitTime)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("not ErrInvalid: %v", err)
			}
			return
		}
		if !changed && !bytes.Equal(next, base) {
			t.Fatal("unchanged, but other bytes")
		}
		if _, err := Parse(next); err != nil {
			t.Fatalf("the result is refused: %v", err)
		}
		again, _, err := Apply(base, updates, commitTime)
		if err != nil || !bytes.Equal(again, next) {
			t.Fatalf("the same updates give another document: %v", err)
		}
	})
}
