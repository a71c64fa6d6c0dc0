// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"
)

const (
	maxFormat        = 3
	firstPartitionID = 1000
	// oneMinuteMs is the clock skew that logs may show, as in Java.
	oneMinuteMs = 60_000
)

// Limits bound what Parse accepts. A zero field means its default.
type Limits struct {
	MaxBytes     int // of the JSON; 256 MiB, at most 2 GiB
	MaxDepth     int // of nesting; 512
	MaxSnapshots int // 500,000
	MaxRefs      int // 50,000
	MaxFields    int // of one schema, nested ones included; 50,000
	MaxSchemas   int // schemas, partition specs and sort orders, each; 50,000
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.MaxBytes, 256<<20)
	l.MaxBytes = min(l.MaxBytes, math.MaxInt32)
	set(&l.MaxDepth, 512)
	set(&l.MaxSnapshots, 500_000)
	set(&l.MaxRefs, 50_000)
	set(&l.MaxFields, 50_000)
	set(&l.MaxSchemas, 50_000)
	return l
}

// parser fills a Document in one pass; what needs all of the document is
// checked afterwards.
type parser struct {
	*cursor
	d    *Document
	seen map[string]bool

	schemas, specs, orders   []int // ids
	maxPartitionID           int
	refs                     []namedRef
	legacySchema, legacySpec bool
}

// Parse checks the JSON of a table's metadata, format version 1, 2 or 3, and
// indexes it. The Document keeps raw, which must not be changed afterwards.
// Errors match ErrInvalid and name the JSON path.
func Parse(raw []byte, limits Limits) (*Document, error) {
	limits = limits.withDefaults()
	if len(raw) > limits.MaxBytes {
		return nil, invalidf("", "table metadata has %d bytes, more than the %d that this server accepts", len(raw), limits.MaxBytes)
	}
	if !utf8.Valid(raw) {
		return nil, invalidf("", "table metadata is not UTF-8")
	}
	p := &parser{cursor: newCursor(raw, limits.MaxDepth), d: &Document{raw: raw, limits: limits}, seen: map[string]bool{}}
	p.document()
	p.end()
	if p.fault != nil {
		return nil, &InvalidError{Path: pathAt(raw, p.fault.at), Problem: p.fault.problem}
	}
	p.d.lazyProperties()
	if err := p.resolve(); err != nil {
		return nil, err
	}
	return p.d, nil
}

func (p *parser) document() {
	for p.object(); p.member(); {
		key, keyAt := string(p.key), p.keyAt
		if p.seen[key] {
			p.fail(keyAt, "key %q appears twice", printable(key))
			break
		}
		p.seen[key] = true
		if len(p.d.members) == maxMembers {
			p.fail(keyAt, "table metadata has more than %d keys", maxMembers)
			break
		}
		start := p.at()
		m := member{key: key, keyAt: span{uint32(keyAt), uint32(start)}} //nolint:gosec // limited by MaxBytes
		p.topLevel(key)
		m.val = p.since(start)
		p.d.members = append(p.d.members, m)
	}
}

func (p *parser) topLevel(key string) {
	d, c := p.d, p.cursor
	// Java reads null as absent in optional keys; required ones are checked
	// by type, and null fails there.
	switch key {
	case "current-snapshot-id", "next-row-id", "snapshots", "refs", "snapshot-log", "metadata-log",
		"statistics", "partition-statistics", "encryption-keys", "properties", "table-uuid":
		if c.null() {
			delete(p.seen, key)
			p.seen[key+" null"] = true
			return
		}
	}
	switch key {
	case "format-version":
		at := c.at()
		d.format = c.int()
		if c.ok() && (d.format < 1 || d.format > maxFormat) {
			c.fail(at, "format version %d is not supported; this server reads 1 to %d", d.format, maxFormat)
		}
	case "table-uuid":
		d.uuid = readUUID(c)
	case "location":
		d.location = c.nonEmpty()
	case "last-sequence-number":
		d.lastSequence = c.natural()
	case "last-updated-ms":
		d.lastUpdated = c.int64()
	case "last-column-id":
		d.lastColumn = c.int()
	case "current-schema-id":
		d.currentSchema = c.int()
	case "default-spec-id":
		d.defaultSpec = c.int()
	case "default-sort-order-id":
		d.defaultOrder = c.int()
	case "last-partition-id":
		d.lastPartition = c.int()
	case "current-snapshot-id":
		d.current = c.int64()
		d.hasCurrent = d.current != -1
	case "next-row-id":
		d.nextRow = c.natural()
	case "schemas":
		p.readSchemas()
	case "schema":
		at := c.at()
		if s := parseSchema(c, d.limits.MaxFields); c.ok() {
			p.legacySchema = true
			p.uniqueIDs(at, s)
		}
	case "partition-specs":
		p.readSpecs()
	case "partition-spec":
		for _, f := range parseSpecFields(c, c.at()) {
			p.maxPartitionID = max(p.maxPartitionID, f.id)
		}
		p.legacySpec = true
	case "sort-orders":
		for c.array(); c.element(); {
			at := c.at()
			o := parseOrder(c)
			if !o.hasID {
				c.fail(at, "order-id is missing")
			}
			p.orders = p.addID(p.orders, at, o.id)
		}
	case "snapshots":
		p.readSnapshots()
	case "refs":
		d.hasRefs = true
		p.refs = parseRefs(c, d.limits.MaxRefs)
	case "snapshot-log":
		p.readSnapshotLog()
	case "metadata-log":
		for c.array(); c.element(); {
			at := c.at()
			readMetadataLogEntry(c)
			d.metadataLog = append(d.metadataLog, c.since(at))
		}
	case "statistics", "partition-statistics":
		for c.array(); c.element(); {
			readStatistics(c)
		}
	case "encryption-keys":
		for c.array(); c.element(); {
			readEncryptionKey(c)
		}
	case "properties":
		readProperties(c)
	default:
		c.skip()
	}
}

func readUUID(c *cursor) uuid.UUID {
	at := c.at()
	s := c.str()
	id, err := uuid.Parse(s)
	if c.ok() && (err != nil || len(s) != 36) {
		c.fail(at, "%q is not a UUID", printable(s))
	}
	return id
}

// addID notes an id that must be unique in its list.
func (p *parser) addID(ids []int, at, id int) []int {
	if len(ids) >= p.d.limits.MaxSchemas {
		p.fail(at, "more entries than the %d that this server accepts", p.d.limits.MaxSchemas)
	}
	return append(ids, id)
}

func (p *parser) readSchemas() {
	for p.array(); p.element(); {
		at := p.at()
		s := parseSchema(p.cursor, p.d.limits.MaxFields)
		if !s.hasID {
			p.fail(at, "schema-id is missing")
		}
		p.schemas = p.addID(p.schemas, at, s.id)
		p.uniqueIDs(at, s)
	}
}

func (p *parser) uniqueIDs(at int, s *schema) {
	if !p.ok() {
		return
	}
	if err := s.checkIDs(""); err != nil {
		p.fail(at, "%s", err.Error())
	}
}

func (p *parser) readSpecs() {
	for p.array(); p.element(); {
		at := p.at()
		s := parseSpec(p.cursor)
		if !s.hasID {
			p.fail(at, "spec-id is missing")
		}
		p.specs = p.addID(p.specs, at, s.id)
		s.numberFields()
		for _, f := range s.fields {
			p.maxPartitionID = max(p.maxPartitionID, f.id)
		}
	}
}

func (p *parser) readSnapshots() {
	d := p.d
	for p.array(); p.element(); {
		at := p.at()
		s := readSnapshot(p.cursor, false)
		if len(d.snapshots) >= d.limits.MaxSnapshots {
			p.fail(at, "more snapshots than the %d that this server accepts", d.limits.MaxSnapshots)
		}
		d.snapshots = append(d.snapshots, snapshotEntry{s.id, s.sequence, s.timestamp, p.since(at)})
	}
	// Growing left up to a quarter unused: give it back, documents are cached.
	d.snapshots = slices.Clip(slices.Clone(d.snapshots))
}

// snapshot is what we interpret of a snapshot's JSON.
type snapshot struct {
	raw                     []byte
	id, sequence, timestamp int64
	hasSequence             bool
	hasParent               bool
	parent                  int64
	manifestList            string
	manifests               []string // version 1 without a manifest list
	firstRow, addedRows     *int64
}

// files yields the locations in a snapshot with their paths.
func (s *snapshot) files() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if s.manifestList != "" && !yield("manifest-list", s.manifestList) {
			return
		}
		for i, m := range s.manifests {
			if !yield(indexed("manifests", i), m) {
				return
			}
		}
	}
}

func indexed(key string, i int) string { return key + "[" + strconv.Itoa(i) + "]" }

// readSnapshot reads a snapshot. Texts are kept only when asked for, so that
// parsing a document allocates nothing per snapshot.
func readSnapshot(c *cursor, texts bool) snapshot {
	start := c.at()
	var s snapshot
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "snapshot-id":
			c.once(&seen, 0)
			at := c.at()
			if s.id = c.int64(); s.id == -1 {
				c.fail(at, "-1 means no snapshot and cannot be one's id")
			}
		case "timestamp-ms":
			c.once(&seen, 1)
			s.timestamp = c.int64()
		case "sequence-number":
			c.once(&seen, 2)
			if !c.null() {
				s.sequence, s.hasSequence = c.natural(), true
			}
		case "parent-snapshot-id":
			c.once(&seen, 3)
			if !c.null() {
				s.parent, s.hasParent = c.int64(), true
			}
		case "manifest-list":
			c.once(&seen, 4)
			if c.null() {
				seen &^= 1 << 4
				break
			}
			s.manifestList = c.location(texts)
		case "manifests":
			c.once(&seen, 5)
			for c.array(); c.element(); {
				if m := c.location(texts); texts {
					s.manifests = append(s.manifests, m)
				}
			}
		case "summary":
			c.once(&seen, 6)
			if !c.null() {
				readSummary(c)
			}
		case "schema-id":
			c.once(&seen, 7)
			if !c.null() {
				c.int()
			}
		case "first-row-id":
			c.once(&seen, 8)
			s.firstRow = optional(c, texts)
		case "added-rows":
			c.once(&seen, 9)
			s.addedRows = optional(c, texts)
		default:
			c.skip()
		}
	}
	c.require(start, seen, "snapshot-id", "timestamp-ms")
	if c.ok() && seen&(1<<4|1<<5) == 0 {
		c.fail(start, "manifest-list is missing")
	}
	if c.ok() {
		s.raw = c.b[start:c.i]
	}
	return s
}

// optional reads a number that may be null and must not be negative.
func optional(c *cursor, keep bool) *int64 {
	if c.null() {
		return nil
	}
	n := c.natural()
	if !keep {
		return nil
	}
	return &n
}

// location reads a location, which must not be empty.
func (c *cursor) location(keep bool) string {
	if keep {
		return c.nonEmpty()
	}
	if c.peek() != '"' {
		c.unexpected("a string")
		return ""
	}
	at := c.i
	body, escaped := c.stringBody()
	if escaped {
		c.unescape(at, body)
	}
	if len(body) == 0 {
		c.fail(at, "must not be empty")
	}
	return ""
}

// readSummary checks that a summary maps strings to strings and names its
// operation once. Old writers left the operation out.
func readSummary(c *cursor) {
	var seen uint64
	for c.object(); c.member(); {
		if string(c.key) == "operation" {
			c.once(&seen, 0)
		}
		if c.peek() != '"' {
			c.unexpected("a string")
			return
		}
		c.stringBody()
	}
}

type namedRef struct {
	name string
	Ref
	at span // of key and value
}

func parseRefs(c *cursor, most int) []namedRef {
	var out []namedRef
	names := map[string]bool{}
	for c.object(); c.member(); {
		r := namedRef{name: string(c.key)}
		keyAt := c.keyAt
		if names[r.name] {
			c.fail(keyAt, "ref %q appears twice", printable(r.name))
			break
		}
		names[r.name] = true
		if len(out) >= most {
			c.fail(keyAt, "more refs than the %d that this server accepts", most)
			break
		}
		r.Ref = readRef(c, r.name)
		r.at = c.since(keyAt)
		out = append(out, r)
	}
	return out
}

// readRef reads a branch or tag and applies the specification's rules.
func readRef(c *cursor, name string) Ref {
	start := c.at()
	var r Ref
	var seen uint64
	for c.object(); c.member(); {
		r.readKey(c, &seen)
	}
	r.check(c, start, seen, name)
	return r
}

// readKey reads the value of one of a ref's keys, or passes it.
func (r *Ref) readKey(c *cursor, seen *uint64) {
	positive := func() int64 {
		at := c.at()
		n := c.int64()
		if c.ok() && n <= 0 {
			c.fail(at, "must be greater than 0")
		}
		return n
	}
	switch string(c.key) {
	case "snapshot-id":
		c.once(seen, 0)
		r.SnapshotID = c.int64()
	case "type":
		c.once(seen, 1)
		r.Type = oneOf(c, "branch", "tag")
	case "min-snapshots-to-keep":
		c.once(seen, 2)
		if !c.null() {
			at := c.at()
			n := positive()
			if n > math.MaxInt32 {
				c.fail(at, "number does not fit 32 bits")
			}
			keep := int(n)
			r.MinSnapshotsToKeep = &keep
		}
	case "max-snapshot-age-ms":
		c.once(seen, 3)
		if !c.null() {
			n := positive()
			r.MaxSnapshotAgeMs = &n
		}
	case "max-ref-age-ms":
		c.once(seen, 4)
		if !c.null() {
			n := positive()
			r.MaxRefAgeMs = &n
		}
	default:
		c.skip()
	}
}

func (r *Ref) check(c *cursor, start int, seen uint64, name string) {
	c.require(start, seen, "snapshot-id", "type")
	switch {
	case !c.ok():
	case r.Type == "tag" && r.MinSnapshotsToKeep != nil:
		c.fail(start, "Tags do not support setting min-snapshots-to-keep")
	case r.Type == "tag" && r.MaxSnapshotAgeMs != nil:
		c.fail(start, "Tags do not support setting max-snapshot-age-ms")
	case r.Type == "tag" && name == MainBranch:
		c.fail(start, "Cannot set main to a tag, it must be a branch")
	case name == "":
		c.fail(start, "a ref needs a name")
	}
}

// logEntry is an entry of the snapshot log.
type logEntry struct{ snapshot, timestamp int64 }

func readLogEntry(c *cursor) logEntry {
	start := c.at()
	var e logEntry
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "snapshot-id":
			c.once(&seen, 0)
			e.snapshot = c.int64()
		case "timestamp-ms":
			c.once(&seen, 1)
			e.timestamp = c.int64()
		default:
			c.skip()
		}
	}
	c.require(start, seen, "snapshot-id", "timestamp-ms")
	return e
}

func (p *parser) readSnapshotLog() {
	log := &p.d.log
	for p.array(); p.element(); {
		at := p.at()
		e := readLogEntry(p.cursor)
		if log.entries == 0 {
			log.items.start = p.since(at).start
		}
		log.items.end = p.since(at).end
		log.entries++
		log.lastSnapshot, log.lastTimestamp = e.snapshot, e.timestamp
	}
}

func readMetadataLogEntry(c *cursor) MetadataLogEntry {
	start := c.at()
	var e MetadataLogEntry
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "metadata-file":
			c.once(&seen, 0)
			e.File = c.str()
		case "timestamp-ms":
			c.once(&seen, 1)
			e.TimestampMs = c.int64()
		default:
			c.skip()
		}
	}
	c.require(start, seen, "metadata-file", "timestamp-ms")
	return e
}

// statistics is what we interpret of a statistics or partition statistics
// file.
type statistics struct {
	snapshot int64
	path     string
	raw      []byte
}

func readStatistics(c *cursor) statistics {
	start := c.at()
	var s statistics
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "snapshot-id":
			c.once(&seen, 0)
			s.snapshot = c.int64()
		case "statistics-path":
			c.once(&seen, 1)
			s.path = c.nonEmpty()
		case "file-size-in-bytes", "file-footer-size-in-bytes":
			c.natural()
		default:
			c.skip()
		}
	}
	c.require(start, seen, "snapshot-id", "statistics-path")
	if c.ok() {
		s.raw = c.b[start:c.i]
	}
	return s
}

func readEncryptionKey(c *cursor) (id string) {
	start := c.at()
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "key-id":
			c.once(&seen, 0)
			id = c.nonEmpty()
		case "encrypted-key-metadata":
			c.once(&seen, 1)
			c.str()
		case "encrypted-by-id":
			c.once(&seen, 2)
			if !c.null() {
				c.str()
			}
		case "properties":
			c.once(&seen, 3)
			if !c.null() {
				readProperties(c)
			}
		default:
			c.skip()
		}
	}
	c.require(start, seen, "key-id", "encrypted-key-metadata")
	return id
}

// property is one entry of a map of strings, with the place of key and value.
type property struct {
	key, value string
	at         span
}

// readProperties reads a map of strings without duplicates.
func readProperties(c *cursor) []property {
	var out []property
	keys := map[string]bool{}
	for c.object(); c.member(); {
		p := property{key: string(c.key)}
		keyAt := c.keyAt
		if keys[p.key] {
			c.fail(keyAt, "key %q appears twice", printable(p.key))
			break
		}
		keys[p.key] = true
		p.value = c.str()
		p.at = c.since(keyAt)
		out = append(out, p)
	}
	return out
}

// resolve checks what one pass cannot: required keys by format version, and
// that ids name what exists.
func (p *parser) resolve() error {
	if err := p.requireKeys(); err != nil {
		return err
	}
	for _, check := range []func() error{
		p.resolveSchemas, p.resolveSpecs, p.resolveOrders, p.resolveSnapshots, p.resolveRefs,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) requireKeys() error {
	required := []string{"format-version", "location", "last-updated-ms", "last-column-id"}
	if p.d.format >= 2 {
		required = append(required, "table-uuid", "last-sequence-number", "current-schema-id", "schemas",
			"default-spec-id", "partition-specs", "last-partition-id", "default-sort-order-id", "sort-orders")
	}
	if p.d.format >= 3 {
		required = append(required, "next-row-id")
	}
	for _, key := range required {
		if !p.seen[key] {
			return invalidf("", "%s is missing, which format version %d requires", key, max(p.d.format, 1))
		}
	}
	return nil
}

func (p *parser) resolveSchemas() error {
	d := p.d
	switch {
	case p.seen["schemas"]:
		if !p.seen["current-schema-id"] {
			return invalidf("", "current-schema-id is missing beside schemas")
		}
	case p.legacySchema:
		d.legacyV1Schema = true
		s := d.schemas()[0]
		if p.seen["current-schema-id"] && d.currentSchema != s.id {
			return invalidf("current-schema-id", "schema %d does not exist", d.currentSchema)
		}
		p.schemas, d.currentSchema = []int{s.id}, s.id
	default:
		return invalidf("", "schema is missing, which format version 1 requires")
	}
	if err := unique("schemas", "schema", p.schemas, d.currentSchema, "current-schema-id"); err != nil {
		return err
	}
	return nil
}

// unique checks a list of ids and that one of them exists.
func unique(list, what string, ids []int, id int, key string) error {
	sorted := slices.Sorted(slices.Values(ids))
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return invalidf(list, "%s %d appears twice", what, sorted[i])
		}
	}
	if _, ok := slices.BinarySearch(sorted, id); !ok {
		return invalidf(key, "%s %d does not exist", what, id)
	}
	return nil
}

func (p *parser) resolveSpecs() error {
	d := p.d
	switch {
	case p.seen["partition-specs"]:
		if !p.seen["default-spec-id"] {
			return invalidf("", "default-spec-id is missing beside partition-specs")
		}
	case p.legacySpec:
		p.specs, d.defaultSpec = []int{0}, 0
	default:
		return invalidf("", "partition-spec is missing, which format version 1 requires")
	}
	if !p.seen["last-partition-id"] {
		d.lastPartition = max(p.maxPartitionID, firstPartitionID-1)
		if specs := d.specs(); len(specs) > 0 {
			for _, s := range specs {
				for _, f := range s.fields {
					d.lastPartition = max(d.lastPartition, f.id)
				}
			}
		}
	}
	return unique("partition-specs", "partition spec", p.specs, d.defaultSpec, "default-spec-id")
}

func (p *parser) resolveOrders() error {
	if !p.seen["sort-orders"] {
		if p.d.defaultOrder != 0 {
			return invalidf("default-sort-order-id", "sort order %d does not exist", p.d.defaultOrder)
		}
		return nil
	}
	if !p.seen["default-sort-order-id"] {
		return invalidf("", "default-sort-order-id is missing beside sort-orders")
	}
	return unique("sort-orders", "sort order", p.orders, p.d.defaultOrder, "default-sort-order-id")
}

func (p *parser) resolveSnapshots() error {
	d := p.d
	d.indexSnapshots()
	for i := 1; i < len(d.byID); i++ {
		if id := d.snapshots[d.byID[i]].id; id == d.snapshots[d.byID[i-1]].id {
			return invalidf("snapshots", "snapshot %d appears twice", id)
		}
	}
	if d.hasCurrent && !d.HasSnapshot(d.current) {
		return invalidf("current-snapshot-id", "snapshot %d does not exist", d.current)
	}
	if d.format == 1 && d.lastSequence != 0 {
		return invalidf("last-sequence-number", "must be 0 in format version 1, is %d", d.lastSequence)
	}
	if d.format == 1 {
		return nil
	}
	for i, s := range d.snapshots {
		if s.sequence > d.lastSequence {
			return invalidf(indexed("snapshots", i), "sequence number %d is greater than last-sequence-number %d", s.sequence, d.lastSequence)
		}
	}
	return nil
}

// indexSnapshots orders the snapshots by id.
func (d *Document) indexSnapshots() {
	d.byID = make([]uint32, len(d.snapshots))
	for i := range d.byID {
		d.byID[i] = uint32(i) //nolint:gosec // limited by MaxSnapshots
	}
	slices.SortFunc(d.byID, func(a, b uint32) int { return cmp.Compare(d.snapshots[a].id, d.snapshots[b].id) })
}

func (p *parser) resolveRefs() error {
	d := p.d
	if !d.hasRefs {
		return nil
	}
	var main *namedRef
	for i := range p.refs {
		r := &p.refs[i]
		if !d.HasSnapshot(r.SnapshotID) {
			return invalidf("refs."+printable(r.name), "snapshot %d does not exist", r.SnapshotID)
		}
		if r.name == MainBranch {
			main = r
		}
	}
	switch {
	case main != nil && !d.hasCurrent:
		return invalidf("current-snapshot-id", "no snapshot is current, but branch main has %d", main.SnapshotID)
	case main != nil && main.SnapshotID != d.current:
		return invalidf("current-snapshot-id", "is %d, but branch main has %d", d.current, main.SnapshotID)
	}
	return nil
}
