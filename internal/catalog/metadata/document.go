// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// MainBranch is the branch that current-snapshot-id follows.
const MainBranch = "main"

// Document is one immutable version of a table's metadata: the bytes of its
// JSON and an index over them. It is safe for concurrent use.
type Document struct {
	raw     []byte
	limits  Limits
	members []member // top-level keys in the document's order

	format         int
	uuid           uuid.UUID // zero in an old version 1 table without one
	location       string
	lastSequence   int64
	lastUpdated    int64
	lastColumn     int
	currentSchema  int
	defaultSpec    int
	defaultOrder   int
	lastPartition  int
	current        int64 // snapshot id, when hasCurrent
	hasCurrent     bool
	nextRow        int64
	hasRefs        bool // false when main follows from current alone
	snapshots      []snapshotEntry
	byID           []uint32 // positions in snapshots, in order of snapshot id
	metadataLog    []span
	log            logIndex
	properties     func() map[string]string
	legacyV1Schema bool // version 1 with neither schemas nor partition-specs
}

// member is a top-level key with the places of key and value.
type member struct {
	key        string
	keyAt, val span
}

// snapshotEntry is the index of one snapshot.
type snapshotEntry struct {
	id, sequence, timestamp int64
	at                      span
}

// logIndex is what a commit needs to know about the snapshot log.
type logIndex struct {
	entries       int
	items         span // from the first entry to the last
	lastSnapshot  int64
	lastTimestamp int64
}

// Ref is a branch or tag. The three retention settings are nil when unset.
type Ref struct {
	SnapshotID         int64
	Type               string // "branch" or "tag"
	MinSnapshotsToKeep *int
	MaxSnapshotAgeMs   *int64
	MaxRefAgeMs        *int64
}

func (r Ref) equal(o Ref) bool {
	return r.SnapshotID == o.SnapshotID && r.Type == o.Type && samePtr(r.MinSnapshotsToKeep, o.MinSnapshotsToKeep) &&
		samePtr(r.MaxSnapshotAgeMs, o.MaxSnapshotAgeMs) && samePtr(r.MaxRefAgeMs, o.MaxRefAgeMs)
}

func samePtr[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// MetadataLogEntry names an earlier metadata file and when it was written.
type MetadataLogEntry struct {
	File        string
	TimestampMs int64
}

// Snapshot is the index of a snapshot; Raw is its JSON.
type Snapshot struct {
	ID             int64
	SequenceNumber int64 // 0 in format version 1
	TimestampMs    int64
	Raw            json.RawMessage
}

// Bytes returns the document's JSON. The caller must not change it.
func (d *Document) Bytes() []byte { return d.raw }

// Size returns the number of bytes of the document's JSON.
func (d *Document) Size() int { return len(d.raw) }

// FormatVersion returns 1, 2 or 3.
func (d *Document) FormatVersion() int { return d.format }

// UUID returns the table's UUID: zero for a version 1 table that has none.
func (d *Document) UUID() uuid.UUID { return d.uuid }

// Location returns the table's base location, as stored.
func (d *Document) Location() string { return d.location }

// LastSequenceNumber returns the highest sequence number given out; 0 in
// format version 1.
func (d *Document) LastSequenceNumber() int64 { return d.lastSequence }

// LastUpdatedMs returns when the table was last changed, in milliseconds
// since the epoch.
func (d *Document) LastUpdatedMs() int64 { return d.lastUpdated }

// LastColumnID returns the highest field id ever assigned.
func (d *Document) LastColumnID() int { return d.lastColumn }

// CurrentSchemaID returns the id of the current schema.
func (d *Document) CurrentSchemaID() int { return d.currentSchema }

// DefaultSpecID returns the id of the partition spec that writers use.
func (d *Document) DefaultSpecID() int { return d.defaultSpec }

// DefaultSortOrderID returns the id of the sort order that writers use.
func (d *Document) DefaultSortOrderID() int { return d.defaultOrder }

// LastPartitionID returns the highest partition field id ever assigned, 999
// when there is none.
func (d *Document) LastPartitionID() int { return d.lastPartition }

// CurrentSnapshotID returns the id of main's snapshot; ok is false for a
// table without one.
func (d *Document) CurrentSnapshotID() (id int64, ok bool) { return d.current, d.hasCurrent }

// NextRowID returns the first row id not yet assigned; 0 before format
// version 3.
func (d *Document) NextRowID() int64 { return d.nextRow }

// Property returns a table property.
func (d *Document) Property(key string) (string, bool) {
	v, ok := d.properties()[key]
	return v, ok
}

// Properties returns a copy of the table's properties.
func (d *Document) Properties() map[string]string { return maps.Clone(d.properties()) }

// lazyProperties decodes the properties once, when they are first asked for.
func (d *Document) lazyProperties() {
	d.properties = sync.OnceValue(func() map[string]string {
		out := map[string]string{}
		if m := d.member("properties"); m != nil {
			c := newCursor(m.val.of(d.raw), d.limits.MaxDepth)
			if c.null() {
				return out
			}
			for c.object(); c.member(); {
				key := string(c.key)
				out[key] = c.str()
			}
		}
		return out
	})
}

func (d *Document) member(key string) *member {
	for i := range d.members {
		if d.members[i].key == key {
			return &d.members[i]
		}
	}
	return nil
}

// value returns a cursor at a top-level value; ok is false when it is absent
// or null.
func (d *Document) value(key string) (c *cursor, ok bool) {
	m := d.member(key)
	if m == nil {
		return nil, false
	}
	c = newCursor(d.raw[:m.val.end], d.limits.MaxDepth)
	c.i = int(m.val.start)
	return c, !c.null()
}

// Refs returns all branches and tags by name. A table whose document has no
// refs has main when it has a current snapshot.
func (d *Document) Refs() map[string]Ref {
	out := map[string]Ref{}
	for _, r := range d.refList() {
		out[r.name] = r.Ref
	}
	return out
}

func (d *Document) refList() []namedRef {
	if !d.hasRefs {
		if d.hasCurrent {
			return []namedRef{d.impliedMain()}
		}
		return nil
	}
	c, ok := d.value("refs")
	if !ok {
		return nil
	}
	refs := parseRefs(c, d.limits.MaxRefs)
	if d.hasCurrent && !slices.ContainsFunc(refs, func(r namedRef) bool { return r.name == MainBranch }) {
		refs = append(refs, d.impliedMain())
	}
	return refs
}

// impliedMain is the branch main of a document that only has a current
// snapshot.
func (d *Document) impliedMain() namedRef {
	return namedRef{name: MainBranch, Ref: Ref{SnapshotID: d.current, Type: "branch"}}
}

// ref returns one branch or tag.
func (d *Document) ref(name string) (Ref, bool) {
	for _, r := range d.refList() {
		if r.name == name {
			return r.Ref, true
		}
	}
	return Ref{}, false
}

// SnapshotCount returns the number of snapshots.
func (d *Document) SnapshotCount() int { return len(d.snapshots) }

// HasSnapshot reports whether a snapshot is in the table's history.
func (d *Document) HasSnapshot(id int64) bool { return d.find(id) >= 0 }

// find returns the position of a snapshot, -1 when there is none.
func (d *Document) find(id int64) int {
	k, ok := slices.BinarySearchFunc(d.byID, id, func(i uint32, id int64) int { return cmp.Compare(d.snapshots[i].id, id) })
	if !ok {
		return -1
	}
	return int(d.byID[k])
}

// Snapshots yields all snapshots in the document's order.
func (d *Document) Snapshots() iter.Seq[Snapshot] {
	return func(yield func(Snapshot) bool) {
		for _, s := range d.snapshots {
			if !yield(Snapshot{s.id, s.sequence, s.timestamp, s.at.of(d.raw)}) {
				return
			}
		}
	}
}

// SnapshotByID returns a snapshot.
func (d *Document) SnapshotByID(id int64) (Snapshot, bool) {
	i := d.find(id)
	if i < 0 {
		return Snapshot{}, false
	}
	s := d.snapshots[i]
	return Snapshot{s.id, s.sequence, s.timestamp, s.at.of(d.raw)}, true
}

// ManifestList returns the location of a snapshot's manifest list; "" when
// there is no such snapshot or, in format version 1, it lists its manifests
// itself.
func (d *Document) ManifestList(id int64) string {
	i := d.find(id)
	if i < 0 {
		return ""
	}
	c := newCursor(d.snapshots[i].at.of(d.raw), d.limits.MaxDepth)
	return readSnapshot(c, true).manifestList
}

// MetadataLog returns the earlier metadata files, oldest first.
func (d *Document) MetadataLog() []MetadataLogEntry {
	out := make([]MetadataLogEntry, 0, len(d.metadataLog))
	for _, at := range d.metadataLog {
		out = append(out, readMetadataLogEntry(newCursor(at.of(d.raw), d.limits.MaxDepth)))
	}
	return out
}

// DroppedMetadataFiles returns the metadata files that d lists and next, a
// later version, no longer does; for write.metadata.delete-after-commit.
func (d *Document) DroppedMetadataFiles(next *Document) []string {
	kept := map[string]bool{}
	for _, e := range next.MetadataLog() {
		kept[e.File] = true
	}
	var out []string
	for _, e := range d.MetadataLog() {
		if !kept[e.File] {
			out = append(out, e.File)
		}
	}
	return out
}

// CurrentSchema returns the JSON of the current schema.
func (d *Document) CurrentSchema() json.RawMessage {
	for _, s := range d.schemas() {
		if s.id == d.currentSchema {
			return s.raw
		}
	}
	return nil // Parse made sure that there is one
}

// Schemas yields the id and JSON of every schema.
func (d *Document) Schemas() iter.Seq2[int, json.RawMessage] {
	return func(yield func(int, json.RawMessage) bool) {
		for _, s := range d.schemas() {
			if !yield(s.id, s.raw) {
				return
			}
		}
	}
}

// PartitionSpecs yields the id and JSON of every partition spec. A version 1
// table's only spec may be an array of fields.
func (d *Document) PartitionSpecs() iter.Seq2[int, json.RawMessage] {
	return func(yield func(int, json.RawMessage) bool) {
		for _, s := range d.specs() {
			if !yield(s.id, s.raw) {
				return
			}
		}
	}
}

// SortOrders yields the id and JSON of every sort order.
func (d *Document) SortOrders() iter.Seq2[int, json.RawMessage] {
	return func(yield func(int, json.RawMessage) bool) {
		for _, o := range d.orders() {
			if !yield(o.id, o.raw) {
				return
			}
		}
	}
}

// schemas reads the schemas again from the bytes: a commit that does not
// touch them never asks.
func (d *Document) schemas() []*schema {
	if c, ok := d.value("schemas"); ok {
		return readList(c, func(c *cursor) *schema { return parseSchema(c, d.limits.MaxFields) })
	}
	if c, ok := d.value("schema"); ok {
		return []*schema{parseSchema(c, d.limits.MaxFields)}
	}
	return nil
}

func (d *Document) specs() []*partitionSpec {
	if c, ok := d.value("partition-specs"); ok {
		specs := readList(c, parseSpec)
		for _, s := range specs {
			s.numberFields()
		}
		return specs
	}
	if c, ok := d.value("partition-spec"); ok {
		start := c.at()
		s := &partitionSpec{fields: parseSpecFields(c, start)}
		s.raw = c.b[start:c.i]
		s.numberFields()
		return []*partitionSpec{s}
	}
	return nil
}

// numberFields gives ids to the fields of an old spec that has none, by
// position as readers do.
func (s *partitionSpec) numberFields() {
	for i := range s.fields {
		if !s.fields[i].hasID {
			s.fields[i].id = firstPartitionID + i
		}
	}
}

func (d *Document) orders() []*sortOrder {
	c, ok := d.value("sort-orders")
	if !ok {
		return nil
	}
	return readList(c, parseOrder)
}

func readList[T any](c *cursor, read func(*cursor) T) []T {
	var out []T
	for c.array(); c.element(); {
		out = append(out, read(c))
	}
	return out
}

// RefsOnly returns the document with only those snapshots that a branch or
// tag names, for loads with snapshots=refs; all else is untouched. The caller
// must not change the result.
func (d *Document) RefsOnly() []byte {
	var keep []int // positions
	for _, r := range d.refList() {
		keep = append(keep, d.find(r.SnapshotID))
	}
	if d.hasCurrent {
		keep = append(keep, d.find(d.current))
	}
	slices.Sort(keep)
	keep = slices.Compact(keep)
	if len(keep) == len(d.snapshots) {
		return d.raw
	}
	first, last := d.snapshots[0].at.start, d.snapshots[len(d.snapshots)-1].at.end
	size := len(d.raw) - int(last-first)
	for _, i := range keep {
		size += int(d.snapshots[i].at.end-d.snapshots[i].at.start) + 1
	}
	out := make([]byte, 0, size)
	out = append(out, d.raw[:first]...)
	for n, i := range keep {
		if n > 0 {
			out = append(out, ',')
		}
		out = append(out, d.snapshots[i].at.of(d.raw)...)
	}
	return append(out, d.raw[last:]...)
}

// Locations yields every location in the document with its JSON path: the
// table's own, path properties, manifest lists (in version 1 also
// manifests), statistics files and earlier metadata files.
func (d *Document) Locations() iter.Seq2[string, string] {
	return func(yield func(path, location string) bool) {
		if !yield("location", d.location) {
			return
		}
		properties := d.properties()
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			if isPathProperty(key) && !yield("properties."+key, properties[key]) {
				return
			}
		}
		for i, s := range d.snapshots {
			read := readSnapshot(newCursor(s.at.of(d.raw), d.limits.MaxDepth), true)
			for path, location := range read.files() {
				if !yield(indexed("snapshots", i)+"."+path, location) {
					return
				}
			}
		}
		for _, key := range []string{"statistics", "partition-statistics"} {
			c, ok := d.value(key)
			if !ok {
				continue
			}
			for i, s := range readList(c, readStatistics) {
				if !yield(indexed(key, i)+".statistics-path", s.path) {
					return
				}
			}
		}
		for i, e := range d.MetadataLog() {
			if !yield(indexed("metadata-log", i)+".metadata-file", e.File) {
				return
			}
		}
	}
}

// isPathProperty reports whether a property's value is a location: the ones
// we know and whatever else is named like them.
func isPathProperty(key string) bool {
	return strings.HasPrefix(key, "write.") && strings.HasSuffix(key, ".path")
}
