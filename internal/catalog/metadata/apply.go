// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ApplyOptions say when a commit happens and what it replaces.
type ApplyOptions struct {
	// At becomes last-updated-ms, unless the time before it or that of a new
	// snapshot is later.
	At time.Time
	// PreviousMetadataLocation is the file of the document that the updates
	// are applied to; it goes into the metadata log unless empty.
	PreviousMetadataLocation string
}

// CreateOptions say when a table is created and what it gets when the
// updates do not say.
type CreateOptions struct {
	At              time.Time
	DefaultUUID     uuid.UUID
	DefaultLocation string
	Limits          Limits
}

// reservedProperties tell about the table or direct its creation; Iceberg
// does not store them.
var reservedProperties = []string{
	"format-version", "uuid", "snapshot-count", "current-snapshot-id", "current-snapshot-summary",
	"current-snapshot-timestamp-ms", "current-schema", "default-partition-spec", "default-sort-order",
}

// Apply returns the document after a commit's updates, in their order.
// changed is false when they change nothing: then the result is d itself.
//
// Errors match ErrInvalid, or are *StaleError when the commit has been
// overtaken by another and may be prepared again.
func (d *Document) Apply(updates []Update, options ApplyOptions) (result *Document, changed bool, err error) {
	t := newDraft(d)
	t.nowMs = options.At.UnixMilli()
	for i := range updates {
		if err := t.apply(&updates[i]); err != nil {
			return nil, false, err
		}
	}
	if !t.changed {
		return d, false, nil
	}
	if err := t.finish(options.PreviousMetadataLocation); err != nil {
		return nil, false, err
	}
	result, err = t.render()
	return result, err == nil, err
}

// CreateFromUpdates returns the first document of a table from the updates of
// a commit that asserts that the table does not exist. Errors match
// ErrInvalid.
func CreateFromUpdates(updates []Update, options CreateOptions) (*Document, error) {
	t := newDraft(&Document{
		raw: []byte("{}"), limits: options.Limits.withDefaults(), format: initialFormat(updates),
		lastPartition: firstPartitionID - 1, properties: func() map[string]string { return nil },
	})
	t.creating = true
	t.nowMs = options.At.UnixMilli()
	for i := range updates {
		if err := t.apply(&updates[i]); err != nil {
			return nil, err
		}
	}
	if t.uuid == uuid.Nil {
		t.uuid = options.DefaultUUID
	}
	if t.location == "" {
		t.location = strings.TrimRight(options.DefaultLocation, "/")
	}
	if err := t.complete(); err != nil {
		return nil, err
	}
	if err := t.finish(""); err != nil {
		return nil, err
	}
	return t.render()
}

// initialFormat is the version that a new table starts with: the first that
// the updates name, or 2.
func initialFormat(updates []Update) int {
	for _, u := range updates {
		if u.action == "upgrade-format-version" && u.number >= 1 && u.number <= maxFormat {
			return u.number
		}
	}
	return 2
}

// draft is a document being changed. Its lists are read from the base only
// when an update needs them.
type draft struct {
	base     *Document
	creating bool
	changed  bool
	nowMs    int64

	format                                 int
	uuid                                   uuid.UUID
	location                               string
	lastSequence, lastUpdated, nextRow     int64
	lastColumn, lastPartition              int
	currentSchema, defaultSpec, defaultOrd int
	current                                int64
	hasCurrent                             bool

	schemas         list[*schema]
	specs           list[*partitionSpec]
	orders          list[*sortOrder]
	refs            list[namedRef]
	properties      list[property]
	statistics      list[statistics]
	partStatistics  list[statistics]
	encryptionKeys  list[namedKey]
	addedSnapshots  []snapshotEntry
	addedRaw        [][]byte
	removedSnaps    map[int64]bool
	addedLog        []logEntry
	addedMetaLog    *MetadataLogEntry
	keepMetaLog     int
	stampedAt       int64                // time of the last snapshot this commit added, 0 when none
	structural      int                  // updates of structure so far
	canonical       map[string]*schema   // schemas by what they mean
	indexes         map[int]*schemaIndex // of schemas, by id
	addedAt         map[int64]int        // positions in addedSnapshots
	lastSchema      *int
	lastSpec        *int
	lastOrder       *int
	structureMoved  bool // schema, spec or order changed: check the defaults
	upgradedFromOne bool
}

type namedKey struct {
	id string
	at span
}

// list is a section of the document as entries that a commit edits.
type list[T any] struct {
	loaded, touched bool
	entries         []listEntry[T]
	places          map[string]int  // of live entries by name, where they have one
	groups          map[int64][]int // of entries by snapshot, where they have one
}

// named returns the live entry of a name.
func (l *list[T]) named(name string) *listEntry[T] {
	if i, ok := l.places[name]; ok && !l.entries[i].drop {
		return &l.entries[i]
	}
	return nil
}

// index notes the names of the entries.
func (l *list[T]) index(name func(T) string) {
	l.places = make(map[string]int, len(l.entries))
	for i := range l.entries {
		l.places[name(l.entries[i].value)] = i
	}
}

func (l *list[T]) appendNamed(name string, value T, raw []byte) {
	l.places[name] = len(l.entries)
	l.append(value, raw)
}

type listEntry[T any] struct {
	value T
	at    span   // in the base; zero for a new entry
	with  []byte // replaces or is the entry, when not nil
	drop  bool
}

// live yields the entries that are not dropped.
func (l *list[T]) live(yield func(*listEntry[T]) bool) {
	for i := range l.entries {
		if !l.entries[i].drop && !yield(&l.entries[i]) {
			return
		}
	}
}

func (l *list[T]) find(match func(T) bool) *listEntry[T] {
	for e := range l.live {
		if match(e.value) {
			return e
		}
	}
	return nil
}

func (l *list[T]) append(value T, raw []byte) {
	l.touched = true
	l.entries = append(l.entries, listEntry[T]{value: value, with: raw})
}

func newDraft(d *Document) *draft {
	return &draft{
		base: d, format: d.format, uuid: d.uuid, location: d.location, lastSequence: d.lastSequence,
		lastUpdated: d.lastUpdated, nextRow: d.nextRow, lastColumn: d.lastColumn, lastPartition: d.lastPartition,
		currentSchema: d.currentSchema, defaultSpec: d.defaultSpec, defaultOrd: d.defaultOrder,
		current: d.current, hasCurrent: d.hasCurrent,
		removedSnaps: map[int64]bool{}, addedAt: map[int64]int{}, indexes: map[int]*schemaIndex{},
	}
}

// maxStructural bounds the updates of one commit that change schemas, specs,
// sort orders or keys: they cost time with the number of those that exist.
const maxStructural = 1000

func (t *draft) countStructural(u *Update) error {
	switch u.action {
	case "add-schema", "set-current-schema", "remove-schemas", "add-spec", "set-default-spec", "remove-partition-specs",
		"add-sort-order", "set-default-sort-order", "add-encryption-key", "remove-encryption-key":
		if t.structural++; t.structural > maxStructural {
			return invalidf(u.path, "more than %d updates of schemas, partition specs, sort orders and keys in one commit", maxStructural)
		}
	}
	return nil
}

// apply applies one update.
func (t *draft) apply(u *Update) error {
	if err := t.countStructural(u); err != nil {
		return err
	}
	switch u.action {
	case "assign-uuid":
		return t.assignUUID(u)
	case "upgrade-format-version":
		return t.upgrade(u)
	case "add-schema":
		return t.addSchema(u)
	case "set-current-schema":
		return t.setCurrentSchema(u)
	case "add-spec":
		return t.addSpec(u)
	case "set-default-spec":
		return t.setDefaultSpec(u)
	case "add-sort-order":
		return t.addOrder(u)
	case "set-default-sort-order":
		return t.setDefaultOrder(u)
	case "add-snapshot":
		return t.addSnapshot(u)
	case "set-snapshot-ref":
		return t.setRef(u)
	case "remove-snapshots":
		t.removeSnapshots(u.ids)
	case "remove-snapshot-ref":
		t.removeRef(u.text)
	case "set-location":
		t.setLocation(u.text)
	case "set-properties":
		return t.setProperties(u)
	case "remove-properties":
		t.removeProperties(u.names)
	case "set-statistics":
		t.setStatistics(&t.statistics, "statistics", u.statistics)
	case "set-partition-statistics":
		t.setStatistics(&t.partStatistics, "partition-statistics", u.statistics)
	case "remove-statistics":
		t.removeStatistics(&t.statistics, "statistics", u.snapshotID)
	case "remove-partition-statistics":
		t.removeStatistics(&t.partStatistics, "partition-statistics", u.snapshotID)
	case "remove-partition-specs":
		return t.removeSpecs(u)
	case "remove-schemas":
		return t.removeSchemas(u)
	case "add-encryption-key":
		t.addKey(u)
	case "remove-encryption-key":
		t.removeKey(u.text)
	default:
		return invalidf(u.path, "action %q is not known", printable(u.action))
	}
	return nil
}

func (t *draft) assignUUID(u *Update) error {
	id := uuid.MustParse(u.text) // decoding checked it
	if id == t.uuid {
		return nil
	}
	if t.uuid != uuid.Nil {
		return invalidf(u.path+".uuid", "the table has UUID %s; another cannot be assigned", t.uuid)
	}
	t.uuid, t.changed = id, true
	return nil
}

func (t *draft) upgrade(u *Update) error {
	path := u.path + ".format-version"
	switch v := u.number; {
	case v > maxFormat || v < 1:
		return invalidf(path, "format version %d is not supported; this server writes 1 to %d", v, maxFormat)
	case v < t.format:
		return invalidf(path, "Cannot downgrade v%d table to v%d", t.format, v)
	case v > t.format:
		t.upgradedFromOne = t.upgradedFromOne || t.format == 1
		t.format, t.changed = v, true
	}
	return nil
}

// ---- schemas, partition specs, sort orders

func (t *draft) loadSchemas() {
	if t.schemas.loaded {
		return
	}
	t.schemas.loaded = true
	for _, s := range t.base.schemas() {
		e := listEntry[*schema]{value: s}
		if t.base.legacyV1Schema {
			e.with = s.withID(s.id) // it moves into a list, where the id is required
		} else {
			e.at = t.base.place(s.raw)
		}
		t.schemas.entries = append(t.schemas.entries, e)
	}
}

// place finds where a part of the base's bytes is. part is a subslice of the
// base, so its capacity tells the offset.
func (d *Document) place(part []byte) span {
	end := cap(d.raw) - cap(part) + len(part)
	return span{uint32(end - len(part)), uint32(end)} //nolint:gosec // limited by MaxBytes
}

func (t *draft) loadSpecs() {
	if t.specs.loaded {
		return
	}
	t.specs.loaded = true
	legacy := t.base.member("partition-specs") == nil
	for _, s := range t.base.specs() {
		e := listEntry[*partitionSpec]{value: s}
		if legacy {
			e.with = s.legacyWithIDs()
		} else {
			e.at = t.base.place(s.raw)
		}
		t.specs.entries = append(t.specs.entries, e)
	}
}

// legacyWithIDs turns version 1's bare array of fields into spec 0.
func (s *partitionSpec) legacyWithIDs() []byte {
	var patches []patch
	for i, f := range s.fields {
		if !f.hasID {
			p := insertFirst(f.at.of(s.raw), "field-id", number(s.fields[i].id))
			p.at = span{p.at.start + f.at.start, p.at.end + f.at.start}
			patches = append(patches, p)
		}
	}
	return slices.Concat([]byte(`{"spec-id":0,"fields":`), applyPatches(s.raw, patches), []byte("}"))
}

func (t *draft) loadOrders() {
	if t.orders.loaded {
		return
	}
	t.orders.loaded = true
	if t.base.member("sort-orders") == nil && !t.creating {
		// Version 1 may leave the unsorted order out.
		t.orders.entries = append(t.orders.entries, listEntry[*sortOrder]{value: &sortOrder{}, with: []byte(`{"order-id":0,"fields":[]}`)})
	}
	for _, o := range t.base.orders() {
		t.orders.entries = append(t.orders.entries, listEntry[*sortOrder]{value: o, at: t.base.place(o.raw)})
	}
}

func (t *draft) schemaByID(id int) *schema {
	t.loadSchemas()
	if e := t.schemas.find(func(s *schema) bool { return s.id == id }); e != nil {
		return e.value
	}
	return nil
}

// currentIndex returns the look-up of the current schema.
func (t *draft) currentIndex(path string) (*schemaIndex, error) {
	s := t.schemaByID(t.currentSchema)
	if s == nil {
		return nil, invalidf(path, "the table has no current schema yet; add a schema first")
	}
	if ix := t.indexes[s.id]; ix != nil {
		return ix, nil
	}
	ix, err := s.index("schemas[schema-id=" + strconv.Itoa(s.id) + "]")
	if err != nil {
		return nil, err
	}
	t.indexes[s.id] = ix
	return ix, nil
}

func (t *draft) addSchema(u *Update) error {
	path := u.path + ".schema"
	if err := u.schema.check(path, t.format); err != nil {
		return err
	}
	t.loadSchemas()
	if t.canonical == nil {
		t.canonical = map[string]*schema{}
		for e := range t.schemas.live {
			if key := string(e.value.canonical()); t.canonical[key] == nil {
				t.canonical[key] = e.value
			}
		}
	}
	meaning := string(u.schema.canonical())
	if same := t.canonical[meaning]; same != nil {
		// The id that the table has for it also answers to "last added": a
		// client that adds what is there and makes it current means this one.
		t.lastSchema = &same.id
		return nil
	}
	id := 0
	for e := range t.schemas.live {
		if e.value.id == math.MaxInt32 {
			return invalidf(path, "no schema ids are left")
		}
		id = max(id, e.value.id+1)
	}
	if err := t.room(path, len(t.schemas.entries)); err != nil {
		return err
	}
	added := *u.schema
	added.id = id
	ix, err := added.index(path)
	if err != nil {
		return err
	}
	t.lastColumn = max(t.lastColumn, ix.lastID)
	t.schemas.append(&added, u.schema.withID(id))
	t.canonical[meaning], t.indexes[id] = &added, ix
	t.lastSchema, t.changed = &added.id, true
	return nil
}

// room refuses one more entry in a list that is full.
func (t *draft) room(path string, entries int) error {
	if entries >= t.base.limits.MaxSchemas {
		return invalidf(path, "the table has %d of them, the most that this server accepts; remove some", entries)
	}
	return nil
}

func (t *draft) setCurrentSchema(u *Update) error {
	path, id := u.path+".schema-id", u.number
	if id == lastAdded {
		if t.lastSchema == nil {
			return invalidf(path, "Cannot set last added schema: no schema has been added")
		}
		id = *t.lastSchema
	}
	if t.schemaByID(id) == nil {
		return invalidf(path, "Cannot set current schema to unknown schema: %d", id)
	}
	if id != t.currentSchema {
		t.currentSchema, t.changed, t.structureMoved = id, true, true
	}
	return nil
}

func (t *draft) addSpec(u *Update) error {
	path := u.path + ".spec"
	ix, err := t.currentIndex(path)
	if err != nil {
		return err
	}
	added := *u.spec
	added.fields = slices.Clone(added.fields)
	t.loadSpecs()
	id := 0
	for e := range t.specs.live {
		if sameSpec(e.value, &added) {
			t.lastSpec = &e.value.id
			return nil
		}
		if e.value.id == math.MaxInt32 {
			return invalidf(path, "no partition spec ids are left")
		}
		id = max(id, e.value.id+1)
	}
	if err := t.room(path, len(t.specs.entries)); err != nil {
		return err
	}
	added.id = id
	if err := t.numberSpec(path, &added); err != nil {
		return err
	}
	if err := checkSpecNames(path, &added, ix); err != nil {
		return err
	}
	if err := checkSpec(path, &added, ix); err != nil {
		return err
	}
	for _, f := range added.fields {
		t.lastPartition = max(t.lastPartition, f.id)
	}
	same := func(id int) int { return id }
	t.specs.append(&added, u.spec.withIDs(id, func(i int) int { return added.fields[i].id }, same))
	t.lastSpec, t.changed = &added.id, true
	return nil
}

// numberSpec gives ids to fields that came without: the id that a field of
// the same source and transform has in an earlier spec, or the next. An id
// that came must not mean another field already.
func (t *draft) numberSpec(path string, s *partitionSpec) error {
	used := map[int]bool{}
	for i := range s.fields {
		f := &s.fields[i]
		if !f.hasID {
			continue
		}
		if used[f.id] {
			return invalidf(path, "partition field id %d is used twice", f.id)
		}
		used[f.id] = true
		if other := t.conflicting(f); other != nil {
			return invalidf(path, "partition field id %d already means %s and cannot mean %s", f.id, other, f)
		}
	}
	next := t.lastPartition
	for i := range s.fields {
		f := &s.fields[i]
		if f.hasID {
			next = max(next, f.id)
		}
	}
	for i := range s.fields {
		f := &s.fields[i]
		if f.hasID {
			continue
		}
		f.id = -1
		if old := t.equivalentField(f); old != nil && !used[old.id] {
			f.id = old.id
		}
		if t.format == 1 && !s.anyID() {
			f.id = firstPartitionID + i
		}
		if f.id < 0 {
			if next == math.MaxInt32 {
				return invalidf(path, "no partition field ids are left")
			}
			next++
			f.id = next
		}
		used[f.id] = true
	}
	for i := range s.fields {
		if t.format == 1 && s.fields[i].id != firstPartitionID+i {
			return invalidf(path, "partition field ids must be %d, %d, … in order in format version 1", firstPartitionID, firstPartitionID+1)
		}
	}
	return nil
}

func (s *partitionSpec) anyID() bool {
	return slices.ContainsFunc(s.fields, func(f specField) bool { return f.hasID })
}

func (t *draft) equivalentField(f *specField) *specField {
	for e := range t.specs.live {
		for i := range e.value.fields {
			if old := &e.value.fields[i]; old.text == f.text && slices.Equal(old.sources, f.sources) {
				return old
			}
		}
	}
	return nil
}

// conflicting returns a field that has f's id but another meaning, from
// format version 2 on, where ids are unique across specs. Void stands for
// whatever the id meant.
func (t *draft) conflicting(f *specField) *specField {
	if t.format == 1 || f.transform.name == "void" {
		return nil
	}
	var other *specField
	for e := range t.specs.live {
		for i := range e.value.fields {
			old := &e.value.fields[i]
			if old.id != f.id || old.transform.name == "void" {
				continue
			}
			if old.text == f.text && slices.Equal(old.sources, f.sources) {
				return nil
			}
			other = old
		}
	}
	return other
}

func (t *draft) setDefaultSpec(u *Update) error {
	path, id := u.path+".spec-id", u.number
	if id == lastAdded {
		if t.lastSpec == nil {
			return invalidf(path, "Cannot set last added spec: no spec has been added")
		}
		id = *t.lastSpec
	}
	t.loadSpecs()
	if t.specs.find(func(s *partitionSpec) bool { return s.id == id }) == nil {
		return invalidf(path, "Cannot set default partition spec to unknown spec: %d", id)
	}
	if id != t.defaultSpec {
		t.defaultSpec, t.changed, t.structureMoved = id, true, true
	}
	return nil
}

func (t *draft) addOrder(u *Update) error {
	path := u.path + ".sort-order"
	ix, err := t.currentIndex(path)
	if err != nil {
		return err
	}
	if err := checkOrder(path, u.order, ix); err != nil {
		return err
	}
	t.loadOrders()
	id := 1
	if len(u.order.fields) == 0 {
		id = 0 // reserved for unsorted
	}
	for e := range t.orders.live {
		if sameOrder(e.value, u.order) {
			t.lastOrder = &e.value.id
			return nil
		}
		if e.value.id == math.MaxInt32 {
			return invalidf(path, "no sort order ids are left")
		}
		if id > 0 {
			id = max(id, e.value.id+1)
		}
	}
	if err := t.room(path, len(t.orders.entries)); err != nil {
		return err
	}
	added := *u.order
	added.id = id
	t.orders.append(&added, u.order.withIDs(id, func(id int) int { return id }))
	t.lastOrder, t.changed = &added.id, true
	return nil
}

func (t *draft) setDefaultOrder(u *Update) error {
	path, id := u.path+".sort-order-id", u.number
	if id == lastAdded {
		if t.lastOrder == nil {
			return invalidf(path, "Cannot set last added sort order: no sort order has been added")
		}
		id = *t.lastOrder
	}
	t.loadOrders()
	if t.orders.find(func(o *sortOrder) bool { return o.id == id }) == nil {
		return invalidf(path, "Cannot set default sort order to unknown sort order: %d", id)
	}
	if id != t.defaultOrd {
		t.defaultOrd, t.changed, t.structureMoved = id, true, true
	}
	return nil
}

func (t *draft) removeSpecs(u *Update) error {
	gone := idSet(u.ids)
	if gone[int64(t.defaultSpec)] {
		return invalidf(u.path+".spec-ids", "Cannot remove the default partition spec")
	}
	t.loadSpecs()
	for e := range t.specs.live {
		if gone[int64(e.value.id)] {
			e.drop, t.specs.touched, t.changed = true, true, true
		}
	}
	return nil
}

func (t *draft) removeSchemas(u *Update) error {
	gone := idSet(u.ids)
	if gone[int64(t.currentSchema)] {
		return invalidf(u.path+".schema-ids", "Cannot remove the current schema")
	}
	t.loadSchemas()
	for e := range t.schemas.live {
		if gone[int64(e.value.id)] {
			e.drop, t.schemas.touched, t.changed = true, true, true
			t.canonical = nil
			delete(t.indexes, e.value.id)
		}
	}
	return nil
}

func idSet(ids []int64) map[int64]bool {
	set := make(map[int64]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// ---- snapshots and refs

func (t *draft) hasSnapshot(id int64) bool {
	if t.removedSnaps[id] {
		return false
	}
	return t.base.HasSnapshot(id) || t.addedSnapshot(id) != nil
}

func (t *draft) addedSnapshot(id int64) *snapshotEntry {
	if i, ok := t.addedAt[id]; ok && !t.removedSnaps[id] {
		return &t.addedSnapshots[i]
	}
	return nil
}

func (t *draft) addSnapshot(u *Update) error {
	path, s := u.path+".snapshot", u.snapshot
	if t.schemaCount() == 0 {
		return invalidf(path, "Attempting to add a snapshot before a schema is added")
	}
	if t.base.HasSnapshot(s.id) || t.addedSnapshot(s.id) != nil {
		return invalidf(path+".snapshot-id", "Snapshot already exists for id: %d", s.id)
	}
	if t.removedSnaps[s.id] {
		return invalidf(path+".snapshot-id", "snapshot %d cannot be removed and added in one commit", s.id)
	}
	if len(t.base.snapshots)+len(t.addedSnapshots) >= t.base.limits.MaxSnapshots {
		return invalidf(path, "the table has %d snapshots, the most that this server accepts; expire some", len(t.base.snapshots)+len(t.addedSnapshots))
	}
	if s.timestamp < 0 {
		return invalidf(path+".timestamp-ms", "must not be negative, is %d", s.timestamp)
	}
	if err := t.checkSequence(path, s); err != nil {
		return err
	}
	if err := t.assignRows(path, s); err != nil {
		return err
	}
	t.lastSequence = max(t.lastSequence, s.sequence)
	t.stampedAt = s.timestamp
	t.addedAt[s.id] = len(t.addedSnapshots)
	t.addedSnapshots = append(t.addedSnapshots, snapshotEntry{id: s.id, sequence: s.sequence, timestamp: s.timestamp})
	t.addedRaw = append(t.addedRaw, s.raw)
	t.changed = true
	return nil
}

// schemaCount avoids reading the schemas of an existing table, which has one.
func (t *draft) schemaCount() int {
	if !t.creating {
		return 1
	}
	return len(t.schemas.entries)
}

func (t *draft) checkSequence(path string, s *snapshot) error {
	switch {
	case t.format == 1 && s.sequence != 0:
		return invalidf(path+".sequence-number", "must be 0 in format version 1, is %d", s.sequence)
	case t.format == 1:
		return nil
	case s.sequence == 0:
		return invalidf(path, "sequence-number is missing, which format version %d requires", t.format)
	case s.manifestList == "":
		return invalidf(path, "manifest-list is missing, which format version %d requires", t.format)
	case s.sequence <= t.lastSequence && s.hasParent:
		return &StaleError{invalidf(path, "Cannot add snapshot with sequence number %d older than last sequence number %d", s.sequence, t.lastSequence).Error()}
	}
	return nil
}

// assignRows moves next-row-id over the rows that a snapshot adds (row
// lineage, format version 3).
func (t *draft) assignRows(path string, s *snapshot) error {
	if t.format < 3 {
		return nil
	}
	switch {
	case s.firstRow == nil:
		return invalidf(path, "Cannot add a snapshot: first-row-id is null")
	case s.addedRows == nil:
		return invalidf(path, "added-rows is missing, which first-row-id requires")
	case *s.firstRow < t.nextRow:
		return &StaleError{invalidf(path, "Cannot add a snapshot, first-row-id is behind table next-row-id: %d < %d", *s.firstRow, t.nextRow).Error()}
	case *s.firstRow > math.MaxInt64-*s.addedRows:
		return invalidf(path, "first-row-id %d and added-rows %d exceed 64 bits", *s.firstRow, *s.addedRows)
	}
	// Not next-row-id + added-rows: first-row-id may be ahead, and every
	// assigned id must stay below the new next-row-id.
	t.nextRow = *s.firstRow + *s.addedRows
	return nil
}

func (t *draft) loadRefs() {
	if t.refs.loaded {
		return
	}
	t.refs.loaded = true
	for _, r := range t.base.refList() {
		e := listEntry[namedRef]{value: r, at: r.at}
		if r.at == (span{}) { // main follows from current-snapshot-id
			e.with = renderMember(r.name, renderRef(r.SnapshotID))
		}
		t.refs.entries = append(t.refs.entries, e)
	}
	t.refs.index(func(r namedRef) string { return r.name })
	t.refs.groups = map[int64][]int{}
	for i, e := range t.refs.entries {
		t.refs.groups[e.value.SnapshotID] = append(t.refs.groups[e.value.SnapshotID], i)
	}
}

func renderRef(snapshotID int64) []byte {
	return append(strconv.AppendInt([]byte(`{"snapshot-id":`), snapshotID, 10), `,"type":"branch"}`...)
}

// renderMember renders a member of an object.
func renderMember(key string, value []byte) []byte {
	return slices.Concat(quoted(key), []byte{':'}, value)
}

// quoted renders a string as JSON, without the escapes for HTML that
// json.Marshal adds.
func quoted(s string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic("a string always has a JSON form: " + err.Error())
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

func (t *draft) setRef(u *Update) error {
	name, ref := u.text, u.ref
	t.loadRefs()
	old := t.refs.named(name)
	if old != nil && old.value.equal(ref) {
		return nil
	}
	if !t.hasSnapshot(ref.SnapshotID) {
		return invalidf(u.path, "Cannot set %s to unknown snapshot: %d", printable(name), ref.SnapshotID)
	}
	if added := t.addedSnapshot(ref.SnapshotID); added != nil {
		t.stampedAt = added.timestamp
	}
	if name == MainBranch {
		t.moveMain(ref.SnapshotID)
	}
	member := renderMember(name, u.raw)
	t.refs.touched, t.changed = true, true
	if old != nil {
		old.value.Ref, old.with = ref, member
		i := t.refs.places[name]
		t.refs.groups[ref.SnapshotID] = append(t.refs.groups[ref.SnapshotID], i)
		return nil
	}
	if len(t.refs.entries) >= t.base.limits.MaxRefs {
		return invalidf(u.path, "the table has %d refs, the most that this server accepts", len(t.refs.entries))
	}
	t.refs.groups[ref.SnapshotID] = append(t.refs.groups[ref.SnapshotID], len(t.refs.entries))
	t.refs.appendNamed(name, namedRef{name: name, Ref: ref}, member)
	return nil
}

// moveMain makes a snapshot current and notes it in the log. Retention that
// changes without the snapshot is no new entry.
func (t *draft) moveMain(id int64) {
	if t.hasCurrent && t.current == id {
		return
	}
	at := t.stampedAt
	if at == 0 {
		at = max(t.nowMs, t.base.lastUpdated)
	}
	t.current, t.hasCurrent = id, true
	t.addedLog = append(t.addedLog, logEntry{id, at})
}

func (t *draft) removeRef(name string) {
	t.loadRefs()
	old := t.refs.named(name)
	if old == nil {
		return
	}
	t.dropRef(old)
}

func (t *draft) dropRef(e *listEntry[namedRef]) {
	e.drop, t.refs.touched, t.changed = true, true, true
	if e.value.name == MainBranch {
		t.current, t.hasCurrent = 0, false
	}
}

// removeSnapshots removes snapshots with what refers to them: branches, tags
// and statistics.
func (t *draft) removeSnapshots(ids []int64) {
	gone := map[int64]bool{}
	for _, id := range ids {
		if t.hasSnapshot(id) {
			gone[id], t.removedSnaps[id] = true, true
		}
	}
	if len(gone) == 0 {
		return
	}
	t.changed = true
	t.loadRefs()
	for id := range gone {
		for _, i := range t.refs.groups[id] {
			// A ref may have moved on since it was noted here.
			if e := &t.refs.entries[i]; !e.drop && e.value.SnapshotID == id {
				t.dropRef(e)
			}
		}
		t.removeStatistics(&t.statistics, "statistics", id)
		t.removeStatistics(&t.partStatistics, "partition-statistics", id)
	}
}

// withdrawRemoved takes back snapshots that this commit added and removed.
func (t *draft) withdrawRemoved() {
	if len(t.removedSnaps) == 0 {
		return
	}
	snapshots, raw := t.addedSnapshots, t.addedRaw
	t.addedSnapshots, t.addedRaw = nil, nil
	clear(t.addedAt)
	for i, s := range snapshots {
		if !t.removedSnaps[s.id] {
			t.addedAt[s.id] = len(t.addedSnapshots)
			t.addedSnapshots, t.addedRaw = append(t.addedSnapshots, s), append(t.addedRaw, raw[i])
		}
	}
}

// ---- the rest

func (t *draft) setLocation(location string) {
	for strings.HasSuffix(location, "/") && !strings.HasSuffix(location, "://") {
		location = location[:len(location)-1]
	}
	if location != t.location {
		t.location, t.changed = location, true
	}
}

func (t *draft) loadProperties() {
	if t.properties.loaded {
		return
	}
	t.properties.loaded = true
	if c, ok := t.base.value("properties"); ok {
		for _, p := range readProperties(c) {
			t.properties.entries = append(t.properties.entries, listEntry[property]{value: p, at: p.at})
		}
	}
	t.properties.index(func(p property) string { return p.key })
}

func (t *draft) setProperties(u *Update) error {
	t.loadProperties()
	for _, p := range u.properties {
		if slices.Contains(reservedProperties, p.key) {
			if t.creating {
				continue // it directs the creation and is not stored
			}
			return invalidf(u.path+".updates", "property %q is reserved and not stored with a table; %s", p.key, reservedAdvice(p.key))
		}
		old := t.properties.named(p.key)
		if old != nil && old.value.value == p.value {
			continue
		}
		t.changed, t.properties.touched = true, true
		member := renderMember(p.key, quoted(p.value))
		if old != nil {
			old.value.value, old.with = p.value, member
			continue
		}
		t.properties.appendNamed(p.key, property{key: p.key, value: p.value}, member)
	}
	return nil
}

func reservedAdvice(key string) string {
	if key == "format-version" {
		return "use the update upgrade-format-version"
	}
	return "the table's metadata tells it"
}

func (t *draft) removeProperties(keys []string) {
	t.loadProperties()
	for _, key := range keys {
		if e := t.properties.named(key); e != nil {
			e.drop, t.properties.touched, t.changed = true, true, true
		}
	}
}

// property returns a property of the draft.
func (t *draft) property(key string) string {
	if !t.properties.loaded {
		return t.base.properties()[key]
	}
	if e := t.properties.named(key); e != nil {
		return e.value.value
	}
	return ""
}

func (t *draft) loadStatistics(l *list[statistics], key string) {
	if l.loaded {
		return
	}
	l.loaded = true
	l.groups = map[int64][]int{}
	if c, ok := t.base.value(key); ok {
		for _, s := range readList(c, readStatistics) {
			l.groups[s.snapshot] = append(l.groups[s.snapshot], len(l.entries))
			l.entries = append(l.entries, listEntry[statistics]{value: s, at: t.base.place(s.raw)})
		}
	}
}

// setStatistics sets the statistics file of a snapshot.
func (t *draft) setStatistics(l *list[statistics], key string, s statistics) {
	t.loadStatistics(l, key)
	var place *listEntry[statistics]
	for _, i := range l.groups[s.snapshot] {
		e := &l.entries[i]
		switch {
		case e.drop:
		case place != nil:
			e.drop = true // one file per snapshot; an odd writer left several
			l.touched, t.changed = true, true
		default:
			place = e
		}
	}
	switch {
	case place == nil:
		l.groups[s.snapshot] = append(l.groups[s.snapshot], len(l.entries))
		l.append(s, s.raw)
	case sameJSON(place.value.raw, s.raw):
		return
	default:
		place.value, place.with, l.touched = s, s.raw, true
	}
	t.changed = true
}

func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

func (t *draft) removeStatistics(l *list[statistics], key string, snapshotID int64) {
	t.loadStatistics(l, key)
	for _, i := range l.groups[snapshotID] {
		if e := &l.entries[i]; !e.drop {
			e.drop, l.touched, t.changed = true, true, true
		}
	}
}

func (t *draft) loadKeys() {
	if t.encryptionKeys.loaded {
		return
	}
	t.encryptionKeys.loaded = true
	c, ok := t.base.value("encryption-keys")
	if !ok {
		return
	}
	for c.array(); c.element(); {
		start := c.at()
		k := namedKey{id: readEncryptionKey(c)}
		k.at = c.since(start)
		t.encryptionKeys.entries = append(t.encryptionKeys.entries, listEntry[namedKey]{value: k, at: k.at})
	}
}

// addKey adds an encryption key. A key that exists stays: files were
// encrypted with it, so its id never changes its meaning.
func (t *draft) addKey(u *Update) {
	t.loadKeys()
	if t.encryptionKeys.find(func(k namedKey) bool { return k.id == u.text }) == nil {
		t.encryptionKeys.append(namedKey{id: u.text}, u.raw)
		t.changed = true
	}
}

func (t *draft) removeKey(id string) {
	t.loadKeys()
	for e := range t.encryptionKeys.live {
		if e.value.id == id {
			e.drop, t.encryptionKeys.touched, t.changed = true, true, true
		}
	}
}

// ---- the end of a commit

// complete gives a new table what its updates left out and refuses it when
// that is not possible.
func (t *draft) complete() error {
	switch {
	case t.uuid == uuid.Nil:
		return invalidf("updates", "assign-uuid is missing")
	case t.location == "":
		return invalidf("updates", "set-location is missing")
	case len(t.schemas.entries) == 0:
		return invalidf("updates", "add-schema is missing")
	case t.schemaByID(t.currentSchema) == nil:
		return invalidf("updates", "set-current-schema is missing")
	}
	t.loadSpecs()
	if len(t.specs.entries) == 0 {
		t.specs.append(&partitionSpec{}, []byte(`{"spec-id":0,"fields":[]}`))
	}
	if t.specs.find(func(s *partitionSpec) bool { return s.id == t.defaultSpec }) == nil {
		return invalidf("updates", "set-default-spec is missing")
	}
	t.loadOrders()
	if t.orders.find(func(o *sortOrder) bool { return o.id == t.defaultOrd }) == nil {
		if t.defaultOrd != 0 {
			return invalidf("updates", "set-default-sort-order is missing")
		}
		t.orders.append(&sortOrder{}, []byte(`{"order-id":0,"fields":[]}`))
	}
	t.changed, t.structureMoved = true, true
	return nil
}

// finish checks the whole and settles time and logs.
func (t *draft) finish(previous string) error {
	if t.structureMoved {
		if err := t.checkDefaults(); err != nil {
			return err
		}
	}
	t.withdrawRemoved()
	t.dropIntermediate()
	// The document's time never goes back, whatever the clocks of clients say:
	// readers refuse logs that are out of order by more than a minute.
	t.lastUpdated = max(t.base.lastUpdated, t.nowMs, t.stampedAt)
	if err := t.checkLog(); err != nil {
		return err
	}
	if t.format >= 2 && t.uuid == uuid.Nil {
		return invalidf("updates", "format version %d requires a table UUID; assign one with assign-uuid first", t.format)
	}
	t.keepMetaLog = len(t.base.metadataLog)
	if previous != "" {
		most := 100
		if n, err := strconv.Atoi(t.property("write.metadata.previous-versions-max")); err == nil {
			most = max(1, n)
		}
		t.keepMetaLog = min(t.keepMetaLog, most-1)
		t.addedMetaLog = &MetadataLogEntry{File: previous, TimestampMs: t.base.lastUpdated}
	}
	return nil
}

// checkDefaults refuses a current schema that lacks what the default spec or
// sort order uses: readers could not open the table.
func (t *draft) checkDefaults() error {
	ix, err := t.currentIndex("current-schema-id")
	if err != nil {
		return err
	}
	t.loadSpecs()
	t.loadOrders()
	spec := t.specs.find(func(s *partitionSpec) bool { return s.id == t.defaultSpec })
	if err := checkSpec("default-spec-id", spec.value, ix); err != nil {
		return err
	}
	order := t.orders.find(func(o *sortOrder) bool { return o.id == t.defaultOrd })
	return checkOrder("default-sort-order-id", order.value, ix)
}

// dropIntermediate leaves snapshots that were current only within this commit
// out of the log.
func (t *draft) dropIntermediate() {
	t.addedLog = slices.DeleteFunc(t.addedLog, func(e logEntry) bool {
		if t.hasCurrent && e.snapshot == t.current {
			return false
		}
		return t.addedSnapshot(e.snapshot) != nil
	})
}

func (t *draft) checkLog() error {
	last, has := t.base.log.lastTimestamp, t.base.log.entries > 0
	for _, e := range t.addedLog {
		if has && e.timestamp-last < -oneMinuteMs {
			return invalidf("updates", "snapshot %d has timestamp-ms %d, more than a minute before the snapshot log's last entry (%d); check the writer's clock", e.snapshot, e.timestamp, last)
		}
		last, has = e.timestamp, true
	}
	return nil
}

// keptLog returns the log after snapshots were removed: which entries of the
// base stay, and which of this commit. What came before a gap goes: it would
// claim to have been current during it.
func (t *draft) keptLog() (items []item, added []logEntry) {
	keepFrom := 0
	if c, ok := t.base.value("snapshot-log"); ok {
		for c.array(); c.element(); {
			start := c.at()
			e := readLogEntry(c)
			items = append(items, item{at: c.since(start)})
			if !t.hasSnapshot(e.snapshot) {
				keepFrom = len(items)
			}
		}
	}
	for _, e := range t.addedLog {
		added = append(added, e)
		if !t.hasSnapshot(e.snapshot) {
			keepFrom, added = len(items), nil
		}
	}
	for i := range items[:keepFrom] {
		items[i].drop = true
	}
	return items, added
}
