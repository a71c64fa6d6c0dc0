// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"fmt"
	"slices"
	"strconv"
)

// maxMembers bounds the top-level keys of a document.
const maxMembers = 1000

// change is what happens to a top-level key: a new value, or an edit of the
// old one, or removal.
type change struct {
	key    string
	value  []byte     // new value, when not nil
	edit   *rewritten // edit of the base's value, when not nil
	remove bool
}

// render writes the draft as a new document. Everything that no change names
// is copied; indexes are carried over, never read again.
func (t *draft) render() (*Document, error) {
	w := &renderer{draft: t}
	w.identity()
	w.structure()
	w.history()
	w.logs()
	return w.write()
}

type renderer struct {
	*draft
	changes []change

	snapshots, log, metaLog *rewritten // for the index; nil when unchanged
	snapshotItems           []item
	logItems                []item
	newLog                  []logEntry
	legacy                  bool
}

func (w *renderer) set(key string, value []byte) {
	w.changes = append(w.changes, change{key: key, value: value})
}

func (w *renderer) setInt(key string, when bool, value int64) {
	if when || w.creating {
		w.set(key, strconv.AppendInt(nil, value, 10))
	}
}

func (w *renderer) remove(key string) {
	if w.base.member(key) != nil {
		w.changes = append(w.changes, change{key: key, remove: true})
	}
}

func (w *renderer) lacks(key string) bool {
	m := w.base.member(key)
	return m == nil || w.base.raw[m.val.start] == 'n' // null
}

// edit changes an array or object; where the base has none, it is made.
func (w *renderer) edit(key string, empty string, items []item, added [][]byte) *rewritten {
	if w.lacks(key) {
		// Entries of what does not exist yet are all new.
		r := rewrite([]byte(empty), span{0, 2}, nil, added)
		value := r.appendTo(nil, []byte(empty))
		w.set(key, value)
		return &r
	}
	r := rewrite(w.base.raw, w.base.member(key).val, items, added)
	w.changes = append(w.changes, change{key: key, edit: &r})
	return &r
}

func editList[T any](w *renderer, key, empty string, l *list[T], when bool) {
	if !when && !l.touched && !w.creating {
		return
	}
	var items []item
	var added [][]byte
	for _, e := range l.entries {
		switch {
		case e.at != (span{}):
			items = append(items, item{e.at, e.drop, e.with})
		case !e.drop:
			added = append(added, e.with)
		}
	}
	w.edit(key, empty, items, added)
}

func (w *renderer) identity() {
	b := w.base
	w.setInt("format-version", w.format != b.format, int64(w.format))
	if w.creating || w.uuid != b.uuid {
		w.set("table-uuid", strconv.AppendQuote(nil, w.uuid.String()))
	}
	if w.creating || w.location != b.location {
		w.set("location", quoted(w.location))
	}
	if w.format >= 2 {
		w.setInt("last-sequence-number", w.lastSequence != b.lastSequence || w.lacks("last-sequence-number"), w.lastSequence)
	}
	w.setInt("last-updated-ms", true, w.lastUpdated)
	w.setInt("last-column-id", w.lastColumn != b.lastColumn, int64(w.lastColumn))
}

// structure writes schemas, specs and sort orders. Version 1 also keeps the
// current ones in schema and partition-spec, for its oldest readers.
func (w *renderer) structure() {
	b := w.base
	upgraded := w.format >= 2 && b.format == 1 && !w.creating
	moved := w.currentSchema != b.currentSchema
	w.legacy = b.legacyV1Schema && !upgraded && !w.schemas.touched && !moved
	listed := b.legacyV1Schema && !w.legacy
	if listed {
		w.loadSchemas()
	}
	switch {
	case upgraded:
		w.remove("schema")
	case w.format == 1 && (moved || listed || w.creating):
		w.set("schema", w.currentSchemaJSON())
	}
	w.setInt("current-schema-id", moved || listed, int64(w.currentSchema))
	editList(w, "schemas", "[]", &w.schemas, listed)

	respec := w.defaultSpec != b.defaultSpec
	speclisted := !w.creating && w.lacks("partition-specs") && (upgraded || w.specs.touched || respec)
	if speclisted {
		w.loadSpecs()
	}
	switch {
	case upgraded:
		w.remove("partition-spec")
	case w.format == 1 && (respec || speclisted || w.creating):
		w.set("partition-spec", w.defaultSpecFields())
	}
	w.setInt("default-spec-id", respec || speclisted, int64(w.defaultSpec))
	editList(w, "partition-specs", "[]", &w.specs, speclisted)
	w.setInt("last-partition-id", w.lastPartition != b.lastPartition || speclisted || upgraded && w.lacks("last-partition-id"), int64(w.lastPartition))

	reordered := w.defaultOrd != b.defaultOrder
	orderlisted := !w.creating && w.lacks("sort-orders") && (upgraded || w.orders.touched || reordered)
	if orderlisted {
		w.loadOrders()
	}
	w.setInt("default-sort-order-id", reordered || orderlisted, int64(w.defaultOrd))
	editList(w, "sort-orders", "[]", &w.orders, orderlisted)
}

func (w *renderer) currentSchemaJSON() []byte {
	w.loadSchemas()
	e := w.draft.schemas.find(func(s *schema) bool { return s.id == w.currentSchema })
	if e.with != nil {
		return e.with
	}
	return e.value.raw
}

// defaultSpecFields returns the array of the default spec's fields.
func (w *renderer) defaultSpecFields() []byte {
	w.loadSpecs()
	e := w.draft.specs.find(func(s *partitionSpec) bool { return s.id == w.defaultSpec })
	raw := e.value.raw
	if e.with != nil {
		raw = e.with
	}
	c := newCursor(raw, w.base.limits.MaxDepth)
	for _, m := range readObject(c).members {
		if m.key == "fields" {
			return m.val.of(raw)
		}
	}
	return []byte("[]")
}

func (w *renderer) history() {
	b := w.base
	editList(w, "properties", "{}", &w.properties, false)
	if w.creating || w.hasCurrent != b.hasCurrent || w.current != b.current {
		w.set("current-snapshot-id", w.currentJSON())
	}
	if w.format >= 3 {
		w.setInt("next-row-id", w.nextRow != b.nextRow || w.lacks("next-row-id"), w.nextRow)
	}
	editList(w, "refs", "{}", &w.refs, false)
	if w.encryptionKeys.touched {
		editList(w, "encryption-keys", "[]", &w.encryptionKeys, false)
	}
	if w.creating || len(w.addedSnapshots) > 0 || w.removesSnapshots() {
		w.snapshotItems = w.oldSnapshots()
		w.snapshots = w.edit("snapshots", "[]", w.snapshotItems, w.addedRaw)
	}
	if w.draft.statistics.touched {
		editList(w, "statistics", "[]", &w.draft.statistics, false)
	}
	if w.partStatistics.touched {
		editList(w, "partition-statistics", "[]", &w.partStatistics, false)
	}
}

// currentJSON is how Java writes no current snapshot: -1, null in version 3.
func (w *renderer) currentJSON() []byte {
	switch {
	case w.hasCurrent:
		return strconv.AppendInt(nil, w.current, 10)
	case w.format >= 3:
		return []byte("null")
	}
	return []byte("-1")
}

func (w *renderer) removesSnapshots() bool { return len(w.removedSnaps) > 0 }

// oldSnapshots returns the base's snapshots as items: as one run when all
// stay.
func (w *renderer) oldSnapshots() []item {
	all := w.base.snapshots
	if len(all) == 0 {
		return nil
	}
	if !w.removesSnapshots() {
		return []item{{at: span{all[0].at.start, all[len(all)-1].at.end}}}
	}
	items := make([]item, len(all))
	for i, s := range all {
		items[i] = item{at: s.at, drop: w.removedSnaps[s.id]}
	}
	return items
}

func (w *renderer) logs() {
	if w.creating || len(w.addedLog) > 0 || w.removesSnapshots() {
		w.newLog = w.addedLog
		switch {
		case w.removesSnapshots():
			w.logItems, w.newLog = w.keptLog()
		case w.base.log.entries > 0:
			w.logItems = []item{{at: w.base.log.items}}
		}
		var added [][]byte
		for _, e := range w.newLog {
			added = append(added, e.json())
		}
		w.log = w.edit("snapshot-log", "[]", w.logItems, added)
	}
	if w.creating || w.addedMetaLog != nil {
		var items []item
		for i, at := range w.base.metadataLog {
			items = append(items, item{at: at, drop: i < len(w.base.metadataLog)-w.keepMetaLog})
		}
		var added [][]byte
		if e := w.addedMetaLog; e != nil {
			added = append(added, fmt.Appendf(nil, `{"timestamp-ms":%d,"metadata-file":%s}`, e.TimestampMs, quoted(e.File)))
		}
		w.metaLog = w.edit("metadata-log", "[]", items, added)
	}
}

func (e logEntry) json() []byte {
	return fmt.Appendf(nil, `{"timestamp-ms":%d,"snapshot-id":%d}`, e.timestamp, e.snapshot)
}

// write copies the base with the changes and builds the new index.
func (w *renderer) write() (*Document, error) {
	b := w.base
	byKey := map[string]*change{}
	for i := range w.changes {
		byKey[w.changes[i].key] = &w.changes[i]
	}
	size := len(b.raw) + 64
	for _, c := range w.changes {
		size += len(c.key) + len(c.value) + 4
		if c.edit != nil {
			size += c.edit.size
		}
	}
	for _, m := range b.members {
		if byKey[m.key] != nil {
			size -= int(m.val.end - m.val.start)
		}
	}
	out := make([]byte, 0, max(size, 2))
	var members []member
	head := uint32(1)
	if len(b.members) > 0 {
		head = b.members[0].keyAt.start
	}
	out = append(out, b.raw[:head]...)
	for i, m := range b.members {
		c := byKey[m.key]
		if c != nil && c.remove {
			continue
		}
		if i > 0 && len(members) > 0 {
			out = append(out, b.raw[b.members[i-1].val.end:m.keyAt.start]...)
		}
		n := member{key: m.key}
		n.keyAt.start = offset(out)
		out = append(out, b.raw[m.keyAt.start:m.val.start]...)
		n.keyAt.end = offset(out)
		n.val.start = offset(out)
		switch {
		case c == nil:
			out = append(out, m.val.of(b.raw)...)
		case c.edit != nil:
			out = c.edit.appendTo(out, b.raw)
		default:
			out = append(out, c.value...)
		}
		n.val.end = offset(out)
		members = append(members, n)
	}
	for _, c := range w.changes {
		if c.remove || b.member(c.key) != nil {
			continue
		}
		if len(members) > 0 {
			out = append(out, ',')
		}
		n := member{key: c.key}
		n.keyAt.start = offset(out)
		out = append(append(append(out, '"'), c.key...), '"', ':')
		n.keyAt.end = offset(out)
		n.val.start = offset(out)
		out = append(out, c.value...)
		n.val.end = offset(out)
		members = append(members, n)
	}
	tail := uint32(1)
	if n := len(b.members); n > 0 {
		tail = b.members[n-1].val.end
	}
	out = append(out, b.raw[tail:]...)
	if len(out) > b.limits.MaxBytes {
		return nil, invalidf("updates", "the table's metadata would have %d bytes, more than the %d that this server accepts; expire snapshots", len(out), b.limits.MaxBytes)
	}
	if len(members) > maxMembers {
		return nil, invalidf("updates", "the table's metadata would have more than %d keys", maxMembers)
	}
	return w.index(out, members), nil
}

func offset(b []byte) uint32 { return uint32(len(b)) } //nolint:gosec // limited by MaxBytes

// index builds the new document's index from the old one and what changed.
func (w *renderer) index(raw []byte, members []member) *Document {
	b := w.base
	d := &Document{
		raw: raw, limits: b.limits, members: members,
		format: w.format, uuid: w.uuid, location: w.location, lastSequence: w.lastSequence, lastUpdated: w.lastUpdated,
		lastColumn: w.lastColumn, currentSchema: w.currentSchema, defaultSpec: w.defaultSpec, defaultOrder: w.defaultOrd,
		lastPartition: w.lastPartition, current: w.current, hasCurrent: w.hasCurrent, nextRow: w.nextRow,
		legacyV1Schema: w.legacy,
	}
	if m := d.member("refs"); m != nil {
		d.hasRefs = raw[m.val.start] != 'n'
	}
	w.indexSnapshots(d)
	w.indexLog(d)
	w.indexMetadataLog(d)
	if w.properties.touched || w.creating {
		d.lazyProperties()
	} else {
		d.properties = b.properties
	}
	return d
}

// moved returns how far the value of a key moved.
func (w *renderer) moved(d *Document, key string) (by uint32, start uint32) {
	now := d.member(key)
	if now == nil {
		return 0, 0
	}
	if before := w.base.member(key); before != nil {
		by = now.val.start - before.val.start // wraps around, as its use does
	}
	return by, now.val.start
}

func (s span) plus(n uint32) span { return span{s.start + n, s.end + n} }

func (w *renderer) indexSnapshots(d *Document) {
	by, start := w.moved(d, "snapshots")
	kept := w.base.snapshots
	if w.snapshots == nil || !w.removesSnapshots() {
		d.snapshots = make([]snapshotEntry, len(kept), len(kept)+len(w.addedSnapshots))
		copy(d.snapshots, kept)
		if by != 0 {
			for i := range d.snapshots {
				d.snapshots[i].at = d.snapshots[i].at.plus(by)
			}
		}
		d.byID = slices.Grow(slices.Clone(w.base.byID), len(w.addedSnapshots))
	} else {
		d.snapshots, d.byID = w.survivors(start)
	}
	if w.snapshots == nil {
		return
	}
	starts := w.snapshots.starts[len(w.snapshots.starts)-len(w.addedSnapshots):]
	for i, s := range w.addedSnapshots {
		at := start + starts[i]
		s.at = span{at, at + offset(w.addedRaw[i])}
		position := uint32(len(d.snapshots)) //nolint:gosec // limited by MaxSnapshots
		d.snapshots = append(d.snapshots, s)
		k, _ := slices.BinarySearchFunc(d.byID, s.id, func(p uint32, id int64) int {
			return compareIDs(d.snapshots[p].id, id)
		})
		d.byID = slices.Insert(d.byID, k, position)
	}
}

// survivors returns the index of the base's snapshots that stay.
func (w *renderer) survivors(start uint32) ([]snapshotEntry, []uint32) {
	base := w.base.snapshots
	entries := make([]snapshotEntry, 0, len(base))
	position := make([]int, len(base))
	for i, s := range base {
		position[i] = -1
		if w.snapshotItems[i].drop {
			continue
		}
		at := start + w.snapshots.starts[len(entries)]
		s.at = span{at, at + s.at.end - s.at.start}
		position[i] = len(entries)
		entries = append(entries, s)
	}
	byID := make([]uint32, 0, len(entries))
	for _, p := range w.base.byID {
		if position[p] >= 0 {
			byID = append(byID, uint32(position[p])) //nolint:gosec // limited by MaxSnapshots
		}
	}
	return entries, byID
}

func compareIDs(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (w *renderer) indexLog(d *Document) {
	by, start := w.moved(d, "snapshot-log")
	d.log = w.base.log
	if w.log == nil {
		d.log.items = d.log.items.plus(by)
		return
	}
	kept := 0
	if w.removesSnapshots() {
		d.log = logIndex{}
		for _, it := range w.logItems {
			if it.drop {
				continue
			}
			e := readLogEntry(newCursor(it.at.of(w.base.raw), w.base.limits.MaxDepth))
			at := start + w.log.starts[kept]
			d.log.note(span{at, at + it.at.end - it.at.start}, e)
			kept++
		}
	} else if d.log.entries > 0 {
		d.log.items = d.log.items.plus(by)
		kept = 1
	}
	for i, e := range w.newLog {
		at := start + w.log.starts[kept+i]
		d.log.note(span{at, at + offset(e.json())}, e)
	}
}

// note adds an entry to the index of the log.
func (l *logIndex) note(at span, e logEntry) {
	if l.entries == 0 {
		l.items.start = at.start
	}
	l.items.end = at.end
	l.entries++
	l.lastSnapshot, l.lastTimestamp = e.snapshot, e.timestamp
}

func (w *renderer) indexMetadataLog(d *Document) {
	by, start := w.moved(d, "metadata-log")
	if w.metaLog == nil {
		for _, at := range w.base.metadataLog {
			d.metadataLog = append(d.metadataLog, at.plus(by))
		}
		return
	}
	old := w.base.metadataLog[len(w.base.metadataLog)-w.keepMetaLog:]
	for i, s := range w.metaLog.starts {
		at := span{start + s, 0}
		if i < len(old) {
			at.end = at.start + old[i].end - old[i].start
		} else {
			c := newCursor(d.raw, w.base.limits.MaxDepth)
			c.i = int(at.start)
			at.end = c.skip().end
		}
		d.metadataLog = append(d.metadataLog, at)
	}
}
