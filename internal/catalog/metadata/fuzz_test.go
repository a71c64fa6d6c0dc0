// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// The inputs are large, so minimising each interesting one takes the fuzzer's
// time: run these with -fuzzminimizetime 1x.

func seedDocuments(f *testing.F) [][]byte {
	out := [][]byte{largeDocument(3000)}
	for _, name := range []string{"v1.json", "v2.json", "v3.json"} {
		out = append(out, example(f, name))
	}
	return out
}

func seedUpdates(f *testing.F) [][]byte {
	var cases []updateCase
	readJSON(f, "updates.json", &cases)
	var out [][]byte
	for _, c := range cases {
		out = append(out, c.Updates)
	}
	return out
}

// FuzzParse: whatever parses is JSON, and reading all of it again is safe.
func FuzzParse(f *testing.F) {
	for _, raw := range seedDocuments(f) {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := Parse(raw, Limits{})
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		if !json.Valid(raw) {
			t.Fatal("not JSON, but it parsed")
		}
		d.Properties()
		d.Refs()
		d.MetadataLog()
		if d.CurrentSchema() == nil {
			t.Fatal("no current schema")
		}
		for range d.Locations() {
		}
		for s := range d.Snapshots() {
			if got, ok := d.SnapshotByID(s.ID); !ok || string(got.Raw) != string(s.Raw) {
				t.Fatalf("snapshot %d is not found", s.ID)
			}
		}
		if only, err := Parse(d.RefsOnly(), Limits{}); err != nil {
			t.Fatalf("RefsOnly does not parse: %v", err)
		} else if only.SnapshotCount() > d.SnapshotCount() {
			t.Fatal("RefsOnly has more snapshots")
		}
	})
}

// FuzzDecodeUpdates: no input panics, and errors have their kind.
func FuzzDecodeUpdates(f *testing.F) {
	for _, raw := range seedUpdates(f) {
		f.Add(raw)
	}
	f.Add([]byte(`[{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":1}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var bad *BadRequestError
		updates, err := DecodeUpdates(raw)
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("error of no kind: %v", err)
		}
		if err == nil && len(updates) > 0 && !json.Valid(raw) {
			t.Fatal("not JSON, but it was decoded")
		}
		for _, u := range updates {
			u.AddedSnapshot()
			u.SetProperties()
			for range u.Files() {
			}
		}
		if _, err := DecodeRequirements(raw); err != nil && !errors.As(err, &bad) {
			t.Fatalf("error of no kind: %v", err)
		}
	})
}

// FuzzApply: every outcome parses, to the same index that was carried over.
func FuzzApply(f *testing.F) {
	for _, updates := range seedUpdates(f) {
		for _, raw := range seedDocuments(f) {
			f.Add(raw, updates)
		}
	}
	f.Add([]byte("{}"), []byte(createUpdates))
	f.Fuzz(func(t *testing.T, raw, request []byte) {
		updates, err := DecodeUpdates(request)
		if err != nil {
			return
		}
		if created, err := CreateFromUpdates(updates, CreateOptions{At: time.UnixMilli(1700000000000)}); err == nil {
			checkOutcome(t, created)
		} else if !known(err) {
			t.Fatalf("error of no kind: %v", err)
		}
		d, err := Parse(raw, Limits{})
		if err != nil {
			return
		}
		after, changed, err := d.Apply(updates, ApplyOptions{At: time.UnixMilli(1700000000000), PreviousMetadataLocation: "s3://b/p"})
		switch {
		case err != nil && !known(err):
			t.Fatalf("error of no kind: %v", err)
		case err == nil && !changed && after != d:
			t.Fatal("nothing changed, but the document is another")
		case err == nil:
			checkOutcome(t, after)
		}
	})
}

func known(err error) bool {
	var stale *StaleError
	return errors.Is(err, ErrInvalid) || errors.As(err, &stale)
}

func checkOutcome(t *testing.T, d *Document) {
	t.Helper()
	again, err := Parse(d.Bytes(), Limits{})
	if err != nil {
		t.Fatalf("the outcome does not parse: %v\n%s", err, d.Bytes())
	}
	if !sameIndex(again, d) {
		t.Fatalf("the index differs\n%+v\n%+v\n%s", d, again, d.Bytes())
	}
}
