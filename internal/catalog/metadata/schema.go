// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// typeKind tells the four shapes of a type.
type typeKind byte

const (
	primitive typeKind = iota
	structType
	listType
	mapType
)

// dataType is a type of the specification. Lists have one child field
// ("element"), maps two ("key", "value").
type dataType struct {
	kind     typeKind
	name     string // of a primitive, in canonical spelling
	children []field
}

// field is a field of a struct, or the element, key or value of a container.
type field struct {
	id             int
	idAt           span // of the number in the JSON that was parsed
	at             int
	name           string
	required       bool
	typ            dataType
	doc            string
	hasDoc         bool
	initial, write []byte // defaults as JSON; nil when absent
}

// schema is a parsed schema. raw is its JSON; offsets in fields count from
// the start of raw.
type schema struct {
	raw           []byte
	id            int
	hasID         bool
	idAt          span
	fields        []field
	identifiers   []int
	identifiersAt []span
}

// parseSchema reads a schema. Offsets are made relative to its start.
func parseSchema(c *cursor, maxFields int) *schema {
	start := c.at()
	p := &schemaParser{c: c, base: start, left: maxFields}
	s := &schema{}
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "type":
			c.once(&seen, 0)
			at := c.at()
			if name := c.str(); name != "struct" && c.ok() {
				c.fail(at, "a schema has type struct, not %s", printable(name))
			}
		case "fields":
			c.once(&seen, 1)
			s.fields = p.fields()
		case "schema-id":
			c.once(&seen, 2)
			if c.null() {
				break
			}
			at := c.at()
			s.id, s.hasID = c.int(), true
			s.idAt = p.since(at)
		case "identifier-field-ids":
			c.once(&seen, 3)
			if c.null() {
				break
			}
			for c.array(); c.element(); {
				at := c.at()
				s.identifiers = append(s.identifiers, c.int())
				s.identifiersAt = append(s.identifiersAt, p.since(at))
			}
		default:
			c.skip()
		}
	}
	if c.ok() && seen&2 == 0 {
		c.fail(start, "fields is missing")
	}
	if c.ok() {
		s.raw = c.b[start:c.i]
	}
	return s
}

type schemaParser struct {
	c    *cursor
	base int
	left int // fields that may still come
}

func (p *schemaParser) since(start int) span {
	return span{uint32(start - p.base), uint32(p.c.i - p.base)} //nolint:gosec // inputs are limited to less than 4 GiB
}

func (p *schemaParser) count() {
	if p.left--; p.left < 0 {
		p.c.fail(p.c.i, "the schema has more fields than this server accepts")
	}
}

func (p *schemaParser) fields() []field {
	var out []field
	for p.c.array(); p.c.element(); {
		p.count()
		out = append(out, p.field())
	}
	return out
}

func (p *schemaParser) field() field {
	c := p.c
	start := c.at()
	f := field{at: start - p.base}
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "id":
			c.once(&seen, 0)
			f.id, f.idAt = p.id()
		case "name":
			c.once(&seen, 1)
			f.name = c.nonEmpty()
		case "type":
			c.once(&seen, 2)
			f.typ = p.dataType()
		case "required":
			c.once(&seen, 3)
			f.required = c.bool()
		case "doc":
			c.once(&seen, 4)
			if !c.null() {
				f.doc, f.hasDoc = c.str(), true
			}
		case "initial-default":
			c.once(&seen, 5)
			f.initial = p.value()
		case "write-default":
			c.once(&seen, 6)
			f.write = p.value()
		default:
			c.skip()
		}
	}
	p.require(start, seen, "id", "name", "type", "required")
	return f
}

// require fails when one of the keys, numbered from bit 0, was not seen.
func (p *schemaParser) require(at int, seen uint64, keys ...string) { p.c.require(at, seen, keys...) }

func (c *cursor) require(at int, seen uint64, keys ...string) {
	for bit, key := range keys {
		if seen&(1<<bit) == 0 && c.ok() {
			c.fail(at, "%s is missing", key)
		}
	}
}

func (p *schemaParser) id() (int, span) {
	at := p.c.at()
	id := p.c.int()
	if id < 0 {
		p.c.fail(at, "field id must not be negative, is %d", id)
	}
	return id, p.since(at)
}

// value reads a default; null is no default.
func (p *schemaParser) value() []byte {
	if p.c.null() {
		return nil
	}
	s := p.c.skip()
	return s.of(p.c.b)
}

func (p *schemaParser) dataType() dataType {
	c := p.c
	if c.peek() == '"' {
		at := c.i
		text := c.str()
		name, ok := canonicalPrimitive(text)
		if !ok && c.ok() {
			c.fail(at, "type %s is not known", printable(text))
		}
		return dataType{name: name}
	}
	start := c.at()
	var kind string
	var fields []field
	element, key, value := field{name: "element"}, field{name: "key", required: true}, field{name: "value"}
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "type":
			c.once(&seen, 0)
			kind = c.str()
		case "fields":
			c.once(&seen, 1)
			fields = p.fields()
		case "element-id":
			c.once(&seen, 2)
			p.count()
			element.id, element.idAt = p.id()
		case "element":
			c.once(&seen, 3)
			element.typ = p.dataType()
		case "element-required":
			c.once(&seen, 4)
			element.required = c.bool()
		case "key-id":
			c.once(&seen, 5)
			p.count()
			key.id, key.idAt = p.id()
		case "key":
			c.once(&seen, 6)
			key.typ = p.dataType()
		case "value-id":
			c.once(&seen, 7)
			p.count()
			value.id, value.idAt = p.id()
		case "value":
			c.once(&seen, 8)
			value.typ = p.dataType()
		case "value-required":
			c.once(&seen, 9)
			value.required = c.bool()
		default:
			c.skip()
		}
	}
	if !c.ok() {
		return dataType{}
	}
	element.at, key.at, value.at = start-p.base, start-p.base, start-p.base
	need := func(names map[uint]string) {
		for bit := uint(1); bit < 10; bit++ {
			if name, ok := names[bit]; ok && seen&(1<<bit) == 0 {
				c.fail(start, "%s is missing in a %s", name, kind)
			}
		}
	}
	switch kind {
	case "struct":
		need(map[uint]string{1: "fields"})
		return dataType{kind: structType, children: fields}
	case "list":
		need(map[uint]string{2: "element-id", 3: "element", 4: "element-required"})
		return dataType{kind: listType, children: []field{element}}
	case "map":
		need(map[uint]string{5: "key-id", 6: "key", 7: "value-id", 8: "value", 9: "value-required"})
		return dataType{kind: mapType, children: []field{key, value}}
	}
	c.fail(start, "type must be struct, list or map, is %s", printable(kind))
	return dataType{}
}

// canonicalPrimitive returns the one spelling of a primitive type.
func canonicalPrimitive(s string) (string, bool) {
	lower := strings.ToLower(s)
	switch lower {
	case "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz",
		"timestamp_ns", "timestamptz_ns", "string", "uuid", "binary", "unknown", "variant":
		return lower, true
	case "geometry":
		return "geometry(OGC:CRS84)", true
	case "geography":
		return "geography(OGC:CRS84, spherical)", true
	}
	if args, ok := between(lower, "fixed[", "]"); ok {
		n, err := strconv.Atoi(strings.TrimSpace(args))
		return fmt.Sprintf("fixed[%d]", n), err == nil && n >= 0
	}
	if args, ok := between(lower, "decimal(", ")"); ok {
		ps, ss, two := strings.Cut(args, ",")
		p, err1 := strconv.Atoi(strings.TrimSpace(ps))
		s, err2 := strconv.Atoi(strings.TrimSpace(ss))
		return fmt.Sprintf("decimal(%d, %d)", p, s), two && err1 == nil && err2 == nil && p >= 1 && p <= 38 && s >= 0 && s <= p
	}
	if strings.HasPrefix(lower, "geometry") {
		if args, ok := between(s[len("geometry"):], "(", ")"); ok {
			crs := strings.TrimSpace(args)
			return fmt.Sprintf("geometry(%s)", crs), crs != "" && !strings.Contains(crs, ",")
		}
	}
	if strings.HasPrefix(lower, "geography") {
		if args, ok := between(s[len("geography"):], "(", ")"); ok {
			crs, algorithm, two := strings.Cut(args, ",")
			crs, algorithm = strings.TrimSpace(crs), strings.ToLower(strings.TrimSpace(algorithm))
			if !two {
				algorithm = "spherical"
			}
			known := slices.Contains([]string{"spherical", "vincenty", "thomas", "andoyer", "karney"}, algorithm)
			return fmt.Sprintf("geography(%s, %s)", crs, algorithm), crs != "" && known
		}
	}
	return "", false
}

func between(s, prefix, suffix string) (string, bool) {
	s, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(s, suffix)
}

// minFormat returns the first table format version that knows a type.
func minFormat(t dataType) int {
	switch base, _, _ := strings.Cut(t.name, "("); base {
	case "timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography":
		return 3
	}
	return 1
}

// walk calls f for every field, parents first, with the field's full name
// and its ancestors. f returns false to stop.
func (s *schema) walk(f func(name string, fl *field, ancestors []*field) bool) {
	var ancestors []*field
	var visit func(prefix string, fields []field) bool
	visit = func(prefix string, fields []field) bool {
		for i := range fields {
			fl := &fields[i]
			name := prefix + fl.name
			if !f(name, fl, ancestors) {
				return false
			}
			if len(fl.typ.children) == 0 {
				continue
			}
			ancestors = append(ancestors, fl)
			if !visit(name+".", fl.typ.children) {
				return false
			}
			ancestors = ancestors[:len(ancestors)-1]
		}
		return true
	}
	visit("", s.fields)
}

// checkIDs refuses a field id that is used twice; it needs no names, so it is
// cheap enough for every schema of a document.
func (s *schema) checkIDs(path string) error {
	var ids []int
	var collect func(fields []field)
	collect = func(fields []field) {
		for i := range fields {
			ids = append(ids, fields[i].id)
			collect(fields[i].typ.children)
		}
	}
	collect(s.fields)
	slices.Sort(ids)
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			return invalidf(path, "field id %d is used twice", ids[i])
		}
	}
	return nil
}

// schemaIndex finds the fields of a schema.
type schemaIndex struct {
	byID   map[int]indexedField
	byName map[string]int
	lastID int
}

type indexedField struct {
	*field
	name      string
	ancestors []*field
}

// index checks that ids and full names are unique and returns the look-up.
func (s *schema) index(path string) (*schemaIndex, error) {
	ix := &schemaIndex{byID: map[int]indexedField{}, byName: map[string]int{}}
	var err error
	s.walk(func(name string, fl *field, ancestors []*field) bool {
		if _, twice := ix.byID[fl.id]; twice {
			err = invalidf(path, "field id %d is used twice", fl.id)
			return false
		}
		if _, twice := ix.byName[name]; twice {
			err = invalidf(path, "field name %q is used twice", printable(name))
			return false
		}
		ix.byID[fl.id] = indexedField{fl, name, slices.Clone(ancestors)}
		ix.byName[name] = fl.id
		ix.lastID = max(ix.lastID, fl.id)
		return true
	})
	return ix, err
}

// check refuses a schema that a table of a format version cannot have; it is
// for schemas that a client adds.
func (s *schema) check(path string, format int) error {
	ix, err := s.index(path)
	if err != nil {
		return err
	}
	for _, id := range s.identifiers {
		if err := ix.checkIdentifier(path, id); err != nil {
			return err
		}
	}
	s.walk(func(name string, fl *field, _ []*field) bool {
		if need := minFormat(fl.typ); need > format {
			err = invalidf(path, "field %q: type %s is not supported until format version %d; this table has version %d", printable(name), fl.typ.name, need, format)
		} else if fl.initial != nil && format < 3 {
			err = invalidf(path, "field %q: a default value is not supported until format version 3; this table has version %d", printable(name), format)
		} else if fl.typ.name == "unknown" && fl.required {
			err = invalidf(path, "field %q: a field of type unknown must be optional", printable(name))
		} else if p := checkDefault(fl.typ, fl.initial); p != "" {
			err = invalidf(path, "field %q: initial-default %s", printable(name), p)
		} else if p := checkDefault(fl.typ, fl.write); p != "" {
			err = invalidf(path, "field %q: write-default %s", printable(name), p)
		}
		return err == nil
	})
	return err
}

// checkIdentifier applies the specification's rules for identifier fields.
func (ix *schemaIndex) checkIdentifier(path string, id int) error {
	f, ok := ix.byID[id]
	switch {
	case !ok:
		return invalidf(path, "identifier field %d does not exist", id)
	case f.typ.kind != primitive:
		return invalidf(path, "identifier field %q is not of a primitive type", printable(f.name))
	case !f.required:
		return invalidf(path, "identifier field %q is not required", printable(f.name))
	case f.typ.name == "float" || f.typ.name == "double":
		return invalidf(path, "identifier field %q must not be a floating-point number", printable(f.name))
	}
	for _, a := range f.ancestors {
		if a.typ.kind != structType {
			return invalidf(path, "identifier field %q lies in a list or map", printable(f.name))
		}
		if !a.required {
			return invalidf(path, "identifier field %q lies in an optional struct", printable(f.name))
		}
	}
	return nil
}

// canonical returns bytes that are equal for schemas that mean the same, as
// Java's Schema.sameSchema: fields with all their parts in order, and the set
// of identifier fields; the schema id does not count.
func (s *schema) canonical() []byte {
	var out []byte
	var write func(fields []field)
	write = func(fields []field) {
		for i := range fields {
			f := &fields[i]
			out = fmt.Appendf(out, "%d %q %t %d %s", f.id, f.name, f.required, f.typ.kind, f.typ.name)
			if f.hasDoc {
				out = fmt.Appendf(out, " doc %q", f.doc)
			}
			out = fmt.Appendf(out, " %s %s", canonicalDefault(f.typ, f.initial), canonicalDefault(f.typ, f.write))
			out = append(out, '{')
			write(f.typ.children)
			out = append(out, '}')
		}
	}
	write(s.fields)
	ids := slices.Clone(s.identifiers)
	slices.Sort(ids)
	return fmt.Append(out, slices.Compact(ids))
}

// patch is a replacement of a span.
type patch struct {
	at  span
	new []byte
}

// applyPatches returns raw with spans replaced; they must not overlap.
func applyPatches(raw []byte, patches []patch) []byte {
	slices.SortFunc(patches, func(a, b patch) int { return cmp.Compare(a.at.start, b.at.start) })
	out := make([]byte, 0, len(raw)+16)
	from := uint32(0)
	for _, p := range patches {
		out = append(out, raw[from:p.at.start]...)
		out = append(out, p.new...)
		from = p.at.end
	}
	return append(out, raw[from:]...)
}

func number(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// withID returns a schema's JSON with its id set.
func (s *schema) withID(id int) []byte {
	return applyPatches(s.raw, []patch{s.idPatch(id)})
}

func (s *schema) idPatch(id int) patch {
	if s.hasID {
		return patch{s.idAt, number(id)}
	}
	return insertFirst(s.raw, "schema-id", number(id))
}

// insertFirst is a patch that adds a member at the front of a JSON object.
func insertFirst(object []byte, key string, value []byte) patch {
	text := append(append(strconv.AppendQuote(nil, key), ':'), value...)
	if rest := bytes.TrimLeft(object[1:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' {
		text = append(text, ',')
	}
	return patch{span{1, 1}, text}
}

// fresh returns the schema's JSON with ids counted anew and the mapping from
// old ids to new: all fields of a struct first, then what they contain, as
// Java does for a new table.
func (s *schema) fresh(schemaID int) ([]byte, map[int]int) {
	ids := map[int]int{}
	patches := []patch{s.idPatch(schemaID)}
	next := 0
	var assign func(fields []field)
	assign = func(fields []field) {
		for i := range fields {
			next++
			ids[fields[i].id] = next
			patches = append(patches, patch{fields[i].idAt, number(next)})
		}
		for i := range fields {
			assign(fields[i].typ.children)
		}
	}
	assign(s.fields)
	for i, id := range s.identifiers {
		patches = append(patches, patch{s.identifiersAt[i], number(ids[id])})
	}
	return applyPatches(s.raw, patches), ids
}
