// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"encoding/json"
	"iter"
	"slices"
	"unicode/utf8"
)

const (
	// maxUpdates bounds one commit's list of updates or requirements. Older
	// Java clients expire snapshots with one update each.
	maxUpdates = 50_000
	// requestDepth bounds the nesting of a request, so that what it adds fits
	// into a document.
	requestDepth = 256
	// lastAdded stands for the object that the same commit added last.
	lastAdded = -1
)

// Update is one decoded update of a commit. It is immutable: one list of
// updates may be applied to several documents, for example after a retry.
type Update struct {
	action string
	path   string // "updates[3]"

	text       string // uuid, location, ref name, key id
	number     int    // format version, or the id of a schema, spec or order
	snapshotID int64
	ids        []int64
	names      []string
	properties []property
	schema     *schema
	spec       *partitionSpec
	order      *sortOrder
	snapshot   *snapshot
	ref        Ref
	statistics statistics
	raw        []byte // of the ref or encryption key
}

// Action returns the update's action, e.g. "add-snapshot".
func (u Update) Action() string { return u.action }

// NewSnapshot is the snapshot of an add-snapshot update. ManifestList is ""
// when a version 1 snapshot lists its manifests itself.
type NewSnapshot struct {
	ID           int64
	ManifestList string
}

// AddedSnapshot returns the snapshot of an add-snapshot update.
func (u Update) AddedSnapshot() (NewSnapshot, bool) {
	if u.snapshot == nil {
		return NewSnapshot{}, false
	}
	return NewSnapshot{u.snapshot.id, u.snapshot.manifestList}, true
}

// SetProperties returns what a set-properties update sets.
func (u Update) SetProperties() (map[string]string, bool) {
	if u.action != "set-properties" {
		return nil, false
	}
	out := make(map[string]string, len(u.properties))
	for _, p := range u.properties {
		out[p.key] = p.value
	}
	return out, true
}

// SetLocation returns the location of a set-location update.
func (u Update) SetLocation() (string, bool) { return u.text, u.action == "set-location" }

// Files yields the files that the update makes the table refer to, with
// their paths below the update ("snapshot.manifest-list").
func (u Update) Files() iter.Seq2[string, string] {
	return func(yield func(path, location string) bool) {
		switch u.action {
		case "add-snapshot":
			for path, location := range u.snapshot.files() {
				if !yield("snapshot."+path, location) {
					return
				}
			}
		case "set-statistics":
			yield("statistics.statistics-path", u.statistics.path)
		case "set-partition-statistics":
			yield("partition-statistics.statistics-path", u.statistics.path)
		}
	}
}

// DecodeUpdates decodes the JSON array of a commit's updates; nothing or null
// is an empty list. Objects keep their JSON, so what we do not know survives.
// Errors are *BadRequestError and name the path ("updates[3].snapshot").
func DecodeUpdates(raw json.RawMessage) ([]Update, error) {
	var out []Update
	err := decodeList("updates", raw, func(c *cursor, o *object, path string) {
		u := Update{path: path}
		u.decode(c, o)
		out = append(out, u)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// decodeList reads an array of objects.
func decodeList(name string, raw []byte, each func(c *cursor, o *object, path string)) error {
	if !utf8.Valid(raw) {
		return &BadRequestError{name, "not UTF-8"}
	}
	c := newCursor(raw, requestDepth)
	if c.peek() == 0 || c.null() {
		return nil
	}
	n := 0
	for c.array(); c.element(); n++ {
		if n == maxUpdates {
			c.fail(c.at(), "more than %d entries in one commit", maxUpdates)
			break
		}
		o := readObject(c)
		if c.ok() {
			each(c, o, indexed(name, n))
		}
	}
	c.end()
	if c.fault != nil {
		return &BadRequestError{name + pathAt(raw, c.fault.at), c.fault.problem}
	}
	return nil
}

// object is a JSON object whose members can be read in any order.
type object struct {
	start   int
	members []member
}

func readObject(c *cursor) *object {
	o := &object{start: c.at()}
	keys := map[string]bool{}
	for c.object(); c.member(); {
		key, keyAt := string(c.key), c.keyAt
		if keys[key] {
			c.fail(keyAt, "key %q appears twice", printable(key))
			break
		}
		keys[key] = true
		start := c.at()
		c.skip()
		o.members = append(o.members, member{key, c.since(keyAt), c.since(start)})
	}
	return o
}

// at moves a copy of the cursor to a member's value; ok is false when it is
// absent or null.
func (o *object) at(c *cursor, keys ...string) (*cursor, bool) {
	for _, m := range o.members {
		if slices.Contains(keys, m.key) {
			sub := newCursor(c.b[:m.val.end], c.maxDepth)
			sub.i = int(m.val.start)
			if !sub.null() {
				return sub, true
			}
		}
	}
	return nil, false
}

// read calls f at the value of a required member; further keys are older
// names of the same.
func (o *object) read(c *cursor, f func(*cursor), keys ...string) {
	if !c.ok() {
		return
	}
	sub, ok := o.at(c, keys...)
	if !ok {
		c.fail(o.start, "%s is missing", keys[0])
		return
	}
	f(sub)
	c.take(sub)
}

// optional is read for a member that may be absent or null.
func (o *object) optional(c *cursor, f func(*cursor), keys ...string) {
	if _, ok := o.at(c, keys...); ok {
		o.read(c, f, keys...)
	}
}

// take adopts another cursor's fault.
func (c *cursor) take(sub *cursor) {
	if sub.fault != nil && c.fault == nil {
		c.fail(sub.fault.at, "%s", sub.fault.problem)
	}
}

func (u *Update) decode(c *cursor, o *object) {
	text := func(s *cursor) { u.text = s.nonEmpty() }
	num := func(s *cursor) { u.number = s.int() }
	id := func(s *cursor) { u.snapshotID = s.int64() }
	o.read(c, func(s *cursor) { u.action = s.str() }, "action")
	switch u.action {
	case "assign-uuid":
		o.read(c, func(s *cursor) { u.text = readUUID(s).String() }, "uuid")
	case "upgrade-format-version":
		o.read(c, num, "format-version")
	case "add-schema":
		o.read(c, func(s *cursor) { u.schema = parseSchema(s, Limits{}.withDefaults().MaxFields) }, "schema")
		// Deprecated and computed here; a wrong one must not waste ids.
		o.optional(c, func(s *cursor) { s.int() }, "last-column-id")
	case "set-current-schema":
		o.read(c, num, "schema-id")
	case "add-spec":
		o.read(c, func(s *cursor) { u.spec = parseSpec(s) }, "spec")
	case "set-default-spec":
		o.read(c, num, "spec-id")
	case "add-sort-order":
		o.read(c, func(s *cursor) { u.order = parseOrder(s) }, "sort-order")
	case "set-default-sort-order":
		o.read(c, num, "sort-order-id")
	case "add-snapshot":
		o.read(c, func(s *cursor) { u.decodeSnapshot(s) }, "snapshot")
	case "set-snapshot-ref":
		o.read(c, text, "ref-name")
		u.decodeRef(c, o)
	case "remove-snapshots":
		o.read(c, func(s *cursor) { u.ids = readIDs(s, (*cursor).int64) }, "snapshot-ids")
	case "remove-snapshot-ref":
		o.read(c, text, "ref-name")
	case "set-location":
		o.read(c, text, "location")
	case "set-properties":
		o.read(c, func(s *cursor) { u.properties = readProperties(s) }, "updates", "updated")
	case "remove-properties":
		o.read(c, func(s *cursor) {
			for s.array(); s.element(); {
				u.names = append(u.names, s.str())
			}
		}, "removals", "removed")
	case "set-statistics":
		o.read(c, func(s *cursor) { u.decodeStatistics(s, true) }, "statistics")
		o.optional(c, func(s *cursor) {
			at := s.at()
			if n := s.int64(); s.ok() && n != u.statistics.snapshot {
				s.fail(at, "is %d, but statistics.snapshot-id is %d", n, u.statistics.snapshot)
			}
		}, "snapshot-id")
	case "set-partition-statistics":
		o.read(c, func(s *cursor) { u.decodeStatistics(s, false) }, "partition-statistics")
	case "remove-statistics", "remove-partition-statistics":
		o.read(c, id, "snapshot-id")
	case "remove-partition-specs":
		o.read(c, func(s *cursor) { u.ids = readIDs(s, func(c *cursor) int64 { return int64(c.int()) }) }, "spec-ids")
	case "remove-schemas":
		o.read(c, func(s *cursor) { u.ids = readIDs(s, func(c *cursor) int64 { return int64(c.int()) }) }, "schema-ids")
	case "add-encryption-key":
		o.read(c, func(s *cursor) {
			start := s.at()
			u.text = readEncryptionKey(s)
			if s.ok() {
				u.raw = s.b[start:s.i]
			}
		}, "encryption-key")
	case "remove-encryption-key":
		o.read(c, text, "key-id")
	default:
		if c.ok() {
			c.fail(o.start, "action %q is not an update of tables that this server knows", printable(u.action))
		}
	}
}

func readIDs(c *cursor, read func(*cursor) int64) []int64 {
	var out []int64
	for c.array(); c.element(); {
		out = append(out, read(c))
	}
	return out
}

func (u *Update) decodeSnapshot(c *cursor) {
	start := c.at()
	s := readSnapshot(c, true)
	o := readObjectAgain(c, start)
	o.read(c, func(s *cursor) {
		at := s.at()
		for _, m := range readObject(s).members {
			if m.key == "operation" {
				return
			}
		}
		s.fail(at, "operation is missing")
	}, "summary")
	u.snapshot = &s
}

// readObjectAgain reads an object that the cursor has just passed.
func readObjectAgain(c *cursor, start int) *object {
	if !c.ok() {
		return &object{start: start}
	}
	sub := newCursor(c.b[:c.i], c.maxDepth)
	sub.i = start
	return readObject(sub)
}

// decodeRef reads the ref whose members stand beside action and ref-name.
func (u *Update) decodeRef(c *cursor, o *object) {
	var seen uint64
	raw := []byte{'{'}
	for _, m := range o.members {
		if m.key == "action" || m.key == "ref-name" {
			continue
		}
		sub := newCursor(c.b[:m.val.end], c.maxDepth)
		sub.i, sub.key, sub.keyAt = int(m.val.start), []byte(m.key), int(m.keyAt.start)
		u.ref.readKey(sub, &seen)
		c.take(sub)
		if len(raw) > 1 {
			raw = append(raw, ',')
		}
		raw = append(raw, c.b[m.keyAt.start:m.val.end]...)
	}
	u.raw = append(raw, '}')
	u.ref.check(c, o.start, seen, u.text)
}

// decodeStatistics reads a statistics file and requires what readers need.
func (u *Update) decodeStatistics(c *cursor, puffin bool) {
	start := c.at()
	u.statistics = readStatistics(c)
	o := readObjectAgain(c, start)
	o.read(c, func(s *cursor) { s.natural() }, "file-size-in-bytes")
	if !puffin {
		return
	}
	o.read(c, func(s *cursor) { s.natural() }, "file-footer-size-in-bytes")
	o.read(c, func(s *cursor) {
		for s.array(); s.element(); {
			blob := readObject(s)
			blob.read(s, func(b *cursor) { b.nonEmpty() }, "type")
			blob.read(s, func(b *cursor) { b.int64() }, "snapshot-id")
			blob.read(s, func(b *cursor) { b.int64() }, "sequence-number")
			blob.read(s, func(b *cursor) { readIDs(b, (*cursor).int64) }, "fields")
			blob.optional(s, func(b *cursor) { readProperties(b) }, "properties")
		}
	}, "blob-metadata")
}
