// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// updateCase is a document and a list of updates for it.
type updateCase struct {
	Name    string          `json:"name"`
	Base    json.RawMessage `json:"base"`
	Updates json.RawMessage `json:"updates"`
}

// choice is where we differ from Java on purpose. Patch is a JSON merge patch
// on Java's outcome; Invalid is part of our error.
type choice struct {
	Unchanged bool            `json:"unchanged"`
	Invalid   string          `json:"invalid"`
	Patch     json.RawMessage `json:"patch"`
	Reason    string          `json:"reason"`
}

// TestUpdatesAgainstJava compares each outcome with that of Java 1.12's
// TableMetadata.Builder, unless choices.json gives a reason to differ.
func TestUpdatesAgainstJava(t *testing.T) {
	t.Parallel()
	var cases []updateCase
	var java map[string]json.RawMessage
	var choices map[string]choice
	readJSON(t, "updates.json", &cases)
	readJSON(t, "updates-java.json", &java)
	readJSON(t, "choices.json", &choices)
	for _, c := range cases {
		chosen := choices[c.Name]
		delete(choices, c.Name)
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			checkCase(t, c, java[c.Name], chosen)
		})
	}
	for name := range choices {
		t.Errorf("choices.json: there is no case %s", name)
	}
}

func checkCase(t *testing.T, c updateCase, javaRaw json.RawMessage, chosen choice) {
	base := mustParse(t, c.Base)
	var java struct {
		ERR         string
		LastUpdated int64 `json:"last-updated-ms"`
	}
	if err := json.Unmarshal(javaRaw, &java); err != nil {
		t.Fatalf("no outcome of Java: %v", err)
	}
	var after *Document
	var changed bool
	updates, err := DecodeUpdates(c.Updates)
	if err == nil {
		after, changed, err = base.Apply(updates, ApplyOptions{
			At: time.UnixMilli(java.LastUpdated), PreviousMetadataLocation: "s3://prev/v.json",
		})
	}
	if err == nil {
		if again := mustParse(t, after.Bytes()); !sameIndex(again, after) {
			t.Errorf("the carried index differs from a parsed one:\n%+v\n%+v", after, again)
		}
	}
	if chosen.Reason == "" && (chosen.Unchanged || chosen.Invalid != "" || chosen.Patch != nil) {
		t.Error("choices.json: a choice needs a reason")
	}
	switch {
	case chosen.Unchanged:
		if err != nil || changed || after != base {
			t.Errorf("want no change, got changed=%t, error %v", changed, err)
		}
	case chosen.Invalid != "":
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), chosen.Invalid) {
			t.Errorf("want an invalid update, %q; got error %v", chosen.Invalid, err)
		}
	case java.ERR != "":
		var stale *StaleError
		if isStale := errors.As(err, &stale); isStale != strings.HasPrefix(java.ERR, "RetryableValidationException") {
			t.Errorf("stale=%t, Java: %s", isStale, java.ERR)
		} else if !isStale && !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v, Java: %s", err, java.ERR)
		}
	case err != nil:
		t.Errorf("error %v; Java succeeds", err)
	default:
		want := decode(t, javaRaw)
		if chosen.Patch != nil {
			want, _ = mergePatch(want, decode(t, chosen.Patch)).(map[string]any)
		}
		want, got := normal(want), normal(decode(t, after.Bytes()))
		if !reflect.DeepEqual(want, got) {
			t.Errorf("outcomes differ\nwant %s\ngot  %s", asJSON(want), asJSON(got))
		}
		// Java keeps the time of its base when nothing changed.
		if same := java.LastUpdated == base.LastUpdatedMs(); same == changed {
			t.Errorf("changed=%t, Java's last-updated-ms %d, base's %d", changed, java.LastUpdated, base.LastUpdatedMs())
		}
	}
}

func mergePatch(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out, _ := target.(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range changes {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = mergePatch(out[k], v)
		}
	}
	return out
}

// normal brings two spellings of the same metadata together:
//   - Java writes empty lists and maps where there is nothing, we write none;
//   - no current snapshot is -1, null or absent;
//   - main without retention follows from current-snapshot-id;
//   - Java leaves sequence-number 0 out;
//   - version 1 has an old and a new form of schema, specs and sort orders,
//     and Java writes both;
//   - Java spells types and defaults in one way, we keep the table's.
func normal(doc map[string]any) map[string]any {
	normalV1(doc)
	for _, key := range []string{"statistics", "partition-statistics", "snapshot-log", "metadata-log", "properties", "snapshots", "encryption-keys"} {
		if v := reflect.ValueOf(doc[key]); !v.IsValid() || v.Len() == 0 {
			delete(doc, key)
		}
	}
	if v := doc["current-snapshot-id"]; v == nil || v == json.Number("-1") {
		delete(doc, "current-snapshot-id")
	}
	if refs, _ := doc["refs"].(map[string]any); true {
		main := map[string]any{"snapshot-id": doc["current-snapshot-id"], "type": "branch"}
		if reflect.DeepEqual(refs[MainBranch], any(main)) {
			delete(refs, MainBranch)
		}
		if len(refs) == 0 {
			delete(doc, "refs")
		}
	}
	snapshots, _ := doc["snapshots"].([]any)
	for _, s := range snapshots {
		if s := s.(map[string]any); s["sequence-number"] == json.Number("0") {
			delete(s, "sequence-number")
		}
	}
	schemas, _ := doc["schemas"].([]any)
	for _, s := range schemas {
		normalFields(s.(map[string]any))
	}
	return doc
}

func normalV1(doc map[string]any) {
	if doc["format-version"] != json.Number("1") {
		return
	}
	put := func(key string, value any) {
		if _, ok := doc[key]; !ok {
			doc[key] = value
		}
	}
	schema := doc["schema"].(map[string]any)
	if _, ok := schema["schema-id"]; !ok {
		schema["schema-id"] = json.Number("0")
	}
	put("schemas", []any{schema})
	put("current-schema-id", schema["schema-id"])
	put("partition-specs", []any{map[string]any{"spec-id": json.Number("0"), "fields": doc["partition-spec"]}})
	put("default-spec-id", json.Number("0"))
	put("last-partition-id", json.Number("1000"))
	put("sort-orders", []any{map[string]any{"order-id": json.Number("0"), "fields": []any{}}})
	put("default-sort-order-id", json.Number("0"))
}

func normalFields(s map[string]any) {
	fields, _ := s["fields"].([]any)
	for _, f := range fields {
		f := f.(map[string]any)
		switch typ := f["type"].(type) {
		case map[string]any:
			normalFields(typ)
		case string:
			f["type"], _ = canonicalPrimitive(typ)
			for _, key := range []string{"initial-default", "write-default"} {
				if text, ok := f[key].(string); ok && typ == "binary" {
					f[key] = strings.ToLower(text)
				}
			}
		}
	}
}

func readJSON(t testing.TB, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func mustParse(t testing.TB, raw []byte) *Document {
	t.Helper()
	d, err := Parse(raw, Limits{})
	if err != nil {
		t.Fatalf("parse: %v\n%s", err, raw[:min(len(raw), 2000)])
	}
	return d
}

func decode(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		t.Fatalf("decode: %v", err)
	}
	return out
}

func asJSON(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// sameIndex compares all of two documents but how they compute properties.
func sameIndex(a, b *Document) bool {
	x, y := *a, *b
	if !reflect.DeepEqual(x.properties(), y.properties()) {
		return false
	}
	x.properties, y.properties = nil, nil
	for _, d := range []*Document{&x, &y} {
		if len(d.metadataLog) == 0 {
			d.metadataLog = nil
		}
		if len(d.snapshots) == 0 {
			d.snapshots, d.byID = nil, nil
		}
		if !d.hasCurrent {
			d.current = 0 // absent, null or -1
		}
		if d.log.entries == 0 {
			d.log = logIndex{}
		}
	}
	return reflect.DeepEqual(x, y)
}
