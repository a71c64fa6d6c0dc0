// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Requirement is one decoded assertion of a commit.
type Requirement struct {
	kind     string
	text     string // uuid or ref
	snapshot *int64
	number   int
}

// IsAssertCreate reports whether the requirement is that the table does not
// exist.
func (r Requirement) IsAssertCreate() bool { return r.kind == "assert-create" }

// requirementFields names the number that each requirement compares.
var requirementFields = map[string]string{
	"assert-last-assigned-field-id":     "last-assigned-field-id",
	"assert-current-schema-id":          "current-schema-id",
	"assert-last-assigned-partition-id": "last-assigned-partition-id",
	"assert-default-spec-id":            "default-spec-id",
	"assert-default-sort-order-id":      "default-sort-order-id",
}

// DecodeRequirements decodes the JSON array of a commit's requirements;
// nothing or null is an empty list. Errors are *BadRequestError.
func DecodeRequirements(raw json.RawMessage) ([]Requirement, error) {
	var out []Requirement
	err := decodeList("requirements", raw, func(c *cursor, o *object, _ string) {
		var r Requirement
		r.decode(c, o)
		out = append(out, r)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (r *Requirement) decode(c *cursor, o *object) {
	o.read(c, func(s *cursor) { r.kind = s.str() }, "type")
	switch r.kind {
	case "assert-create":
	case "assert-table-uuid":
		o.read(c, func(s *cursor) { r.text = readUUID(s).String() }, "uuid")
	case "assert-ref-snapshot-id":
		o.read(c, func(s *cursor) { r.text = s.nonEmpty() }, "ref")
		// Null says that the ref must not exist; absent is not the same, but
		// clients leave nulls out.
		o.optional(c, func(s *cursor) { n := s.int64(); r.snapshot = &n }, "snapshot-id")
	default:
		key, known := requirementFields[r.kind]
		if !known {
			if c.ok() {
				c.fail(o.start, "type %q is not a requirement of tables that this server knows; it knows assert-create, assert-table-uuid, assert-ref-snapshot-id, %v",
					printable(r.kind), slices.Sorted(maps.Keys(requirementFields)))
			}
			return
		}
		o.read(c, func(s *cursor) { r.number = s.int() }, key)
	}
}

// Check reports whether the table is in the state that a commit asserts. A
// nil Document is a table that does not exist. Errors are
// *RequirementFailedError.
func (d *Document) Check(requirements []Requirement) error {
	for _, r := range requirements {
		if problem := d.violated(r); problem != "" {
			return &RequirementFailedError{problem}
		}
	}
	return nil
}

// violated returns how the table violates a requirement, or "". The words
// are those that clients know from Java.
func (d *Document) violated(r Requirement) string {
	if r.IsAssertCreate() {
		if d != nil {
			return "table already exists"
		}
		return ""
	}
	if d == nil {
		return "table does not exist"
	}
	switch r.kind {
	case "assert-table-uuid":
		if got := d.uuid.String(); !strings.EqualFold(got, r.text) {
			return fmt.Sprintf("UUID does not match: expected %s != %s", got, r.text)
		}
	case "assert-ref-snapshot-id":
		return d.refViolated(r)
	case "assert-last-assigned-field-id":
		return differs("last assigned field id changed", r.number, d.lastColumn)
	case "assert-current-schema-id":
		return differs("current schema changed", r.number, d.currentSchema)
	case "assert-last-assigned-partition-id":
		return differs("last assigned partition id changed", r.number, d.lastPartition)
	case "assert-default-spec-id":
		return differs("default partition spec changed", r.number, d.defaultSpec)
	case "assert-default-sort-order-id":
		return differs("default sort order changed", r.number, d.defaultOrder)
	}
	return ""
}

func (d *Document) refViolated(r Requirement) string {
	ref, exists := d.ref(r.text)
	kind := "branch"
	if exists {
		kind = ref.Type
	}
	switch {
	case r.snapshot == nil && exists:
		return fmt.Sprintf("%s %s was created concurrently", kind, printable(r.text))
	case r.snapshot == nil:
		return ""
	case !exists:
		return fmt.Sprintf("branch or tag %s is missing, expected %d", printable(r.text), *r.snapshot)
	case ref.SnapshotID != *r.snapshot:
		return fmt.Sprintf("%s %s has changed: expected id %d != %d", kind, printable(r.text), *r.snapshot, ref.SnapshotID)
	}
	return ""
}

func differs(what string, want, got int) string {
	if want == got {
		return ""
	}
	return fmt.Sprintf("%s: expected id %d != %d", what, want, got)
}
