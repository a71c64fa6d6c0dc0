// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// transform is a partition or sort transform, by name and, for bucket and
// truncate, width. A name that the specification does not know is kept:
// readers must ignore such fields, not fail.
type transform struct {
	text string // canonical spelling
	name string
}

func parseTransform(s string) (transform, bool) {
	lower := strings.ToLower(s)
	for _, name := range []string{"bucket", "truncate"} {
		if arg, ok := between(lower, name+"[", "]"); ok {
			n, err := strconv.Atoi(arg)
			return transform{fmt.Sprintf("%s[%d]", name, n), name}, err == nil && n > 0 && n <= math.MaxInt32
		}
	}
	switch lower {
	case "identity", "year", "month", "day", "hour", "void":
		return transform{lower, lower}, true
	}
	return transform{s, ""}, s != ""
}

// accepts reports whether the transform applies to a type (appendix
// "Partition Transforms").
func (t transform) accepts(d dataType) bool {
	if d.kind != primitive {
		return false
	}
	base, _, _ := strings.Cut(d.name, "(")
	base, _, _ = strings.Cut(base, "[")
	opaque := base == "variant" || base == "geometry" || base == "geography"
	instant := strings.HasPrefix(base, "timestamp")
	switch t.name {
	case "identity":
		return !opaque
	case "bucket":
		return !opaque && !slices.Contains([]string{"boolean", "float", "double", "unknown"}, base)
	case "truncate":
		return slices.Contains([]string{"int", "long", "decimal", "string", "binary"}, base)
	case "year", "month", "day":
		return instant || base == "date"
	case "hour":
		return instant
	}
	return true // void, and what we do not know
}

// specField is a partition field, sortField a field of a sort order. Format 3
// allows several sources.
type specField struct {
	sources []int
	id      int
	hasID   bool
	name    string
	transform
	at, idAt    span // relative to the JSON of the whole spec
	sourceSpans []span
}

type partitionSpec struct {
	raw    []byte
	id     int
	hasID  bool
	idAt   span
	fields []specField
}

type sortField struct {
	sources     []int
	sourceSpans []span
	transform
	descending, nullsFirst bool
	at                     span
}

type sortOrder struct {
	raw    []byte
	id     int
	hasID  bool
	idAt   span
	fields []sortField
}

// relative moves a span of the cursor's bytes to one that counts from base.
func relative(s span, base int) span {
	return span{s.start - uint32(base), s.end - uint32(base)} //nolint:gosec // inputs are limited to less than 4 GiB
}

func parseSpec(c *cursor) *partitionSpec {
	s := &partitionSpec{}
	s.raw = parseNumbered(c, "spec-id", &s.id, &s.hasID, &s.idAt, func(base int) { s.fields = parseSpecFields(c, base) })
	return s
}

// parseNumbered reads an object of fields and an id that may be absent, and
// returns its bytes, nil after an error.
func parseNumbered(c *cursor, idName string, id *int, hasID *bool, idAt *span, fields func(base int)) []byte {
	start := c.at()
	var seen uint64
	for c.object(); c.member(); {
		switch string(c.key) {
		case "fields":
			c.once(&seen, 0)
			fields(start)
		case idName:
			c.once(&seen, 1)
			if c.null() {
				break
			}
			at := c.at()
			*id, *hasID = c.int(), true
			*idAt = relative(c.since(at), start)
		default:
			c.skip()
		}
	}
	c.require(start, seen, "fields")
	if !c.ok() {
		return nil
	}
	return c.b[start:c.i]
}

func parseSpecFields(c *cursor, base int) []specField {
	var out []specField
	for c.array(); c.element(); {
		start := c.at()
		f := specField{}
		var seen uint64
		for c.object(); c.member(); {
			switch string(c.key) {
			case "name":
				c.once(&seen, 0)
				f.name = c.nonEmpty()
			case "transform":
				c.once(&seen, 1)
				f.transform = readTransform(c)
			case "source-id":
				c.once(&seen, 2)
				f.sources, f.sourceSpans = readSource(c, base, f.sources, f.sourceSpans)
			case "source-ids":
				c.once(&seen, 3)
				f.sources, f.sourceSpans = readSources(c, base, f.sources, f.sourceSpans)
			case "field-id":
				c.once(&seen, 4)
				if c.null() {
					break
				}
				at := c.at()
				f.id, f.hasID = int(c.natural()), true
				if f.id > math.MaxInt32 {
					c.fail(at, "number does not fit 32 bits")
				}
				f.idAt = relative(c.since(at), base)
			default:
				c.skip()
			}
		}
		requireSource(c, start, &seen)
		c.require(start, seen, "name", "transform", "source-id")
		f.at = relative(c.since(start), base)
		out = append(out, f)
	}
	return out
}

func readTransform(c *cursor) transform {
	at := c.at()
	text := c.str()
	t, ok := parseTransform(text)
	if !ok {
		c.fail(at, "transform %s is not valid", printable(text))
	}
	return t
}

// requireSource treats source-ids as the source-id that is required.
func requireSource(c *cursor, at int, seen *uint64) {
	switch {
	case *seen&(1<<2) != 0 && *seen&(1<<3) != 0:
		c.fail(at, "source-id and source-ids exclude each other")
	case *seen&(1<<3) != 0:
		*seen |= 1 << 2
	}
}

func readSource(c *cursor, base int, ids []int, spans []span) ([]int, []span) {
	at := c.at()
	return append(ids, c.int()), append(spans, relative(c.since(at), base))
}

func readSources(c *cursor, base int, ids []int, spans []span) ([]int, []span) {
	start := c.at()
	for c.array(); c.element(); {
		ids, spans = readSource(c, base, ids, spans)
	}
	if len(ids) == 0 {
		c.fail(start, "must not be empty")
	}
	return ids, spans
}

func parseOrder(c *cursor) *sortOrder {
	o := &sortOrder{}
	o.raw = parseNumbered(c, "order-id", &o.id, &o.hasID, &o.idAt, func(base int) { o.fields = parseSortFields(c, base) })
	return o
}

func parseSortFields(c *cursor, base int) []sortField {
	var out []sortField
	for c.array(); c.element(); {
		start := c.at()
		f := sortField{}
		var seen uint64
		for c.object(); c.member(); {
			switch string(c.key) {
			case "direction":
				c.once(&seen, 0)
				f.descending = oneOf(c, "asc", "desc") == "desc"
			case "null-order":
				c.once(&seen, 1)
				f.nullsFirst = oneOf(c, "nulls-first", "nulls-last") == "nulls-first"
			case "source-id":
				c.once(&seen, 2)
				f.sources, f.sourceSpans = readSource(c, base, f.sources, f.sourceSpans)
			case "source-ids":
				c.once(&seen, 3)
				f.sources, f.sourceSpans = readSources(c, base, f.sources, f.sourceSpans)
			case "transform":
				c.once(&seen, 4)
				f.transform = readTransform(c)
			default:
				c.skip()
			}
		}
		requireSource(c, start, &seen)
		c.require(start, seen, "direction", "null-order", "source-id")
		if seen&(1<<4) == 0 {
			c.fail(start, "transform is missing")
		}
		f.at = relative(c.since(start), base)
		out = append(out, f)
	}
	return out
}

// oneOf reads a string that must be one of a few, in any case, as Java does.
func oneOf(c *cursor, words ...string) string {
	at := c.at()
	s := strings.ToLower(c.str())
	if !slices.Contains(words, s) {
		c.fail(at, "must be %s, is %s", strings.Join(words, " or "), printable(s))
	}
	return s
}

func (f *specField) String() string {
	return fmt.Sprintf("%d: %s: %s(%s)", f.id, printable(f.name), printable(f.text), joinInts(f.sources))
}

func joinInts(ids []int) string {
	var parts []string
	for _, id := range ids {
		parts = append(parts, strconv.Itoa(id))
	}
	return strings.Join(parts, ", ")
}

// sameSpec reports whether two specs partition alike: names, sources and
// transforms in order; ids do not count.
func sameSpec(a, b *partitionSpec) bool {
	return slices.EqualFunc(a.fields, b.fields, func(x, y specField) bool {
		return x.name == y.name && x.text == y.text && slices.Equal(x.sources, y.sources)
	})
}

func sameOrder(a, b *sortOrder) bool {
	return slices.EqualFunc(a.fields, b.fields, func(x, y sortField) bool {
		return x.text == y.text && slices.Equal(x.sources, y.sources) && x.descending == y.descending && x.nullsFirst == y.nullsFirst
	})
}

// checkSpec refuses a spec that does not apply to a schema. A void field may
// refer to a column that was dropped.
func checkSpec(path string, s *partitionSpec, ix *schemaIndex) error {
	for i := range s.fields {
		f := &s.fields[i]
		if f.name == "" {
			return invalidf(path, "partition field %d has no name", f.id)
		}
		if f.transform.name == "void" {
			continue
		}
		for _, source := range f.sources {
			if err := checkSource(path, "partition field: "+f.String(), f.transform, source, ix); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOrder(path string, o *sortOrder, ix *schemaIndex) error {
	for _, f := range o.fields {
		for _, source := range f.sources {
			what := fmt.Sprintf("sort field: %s(%d)", printable(f.text), source)
			if err := checkSource(path, what, f.transform, source, ix); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkSource(path, what string, t transform, source int, ix *schemaIndex) error {
	column, ok := ix.byID[source]
	switch {
	case !ok:
		return invalidf(path, "Cannot find source column for %s", what)
	case column.typ.kind != primitive:
		return invalidf(path, "Source column %q is not of a primitive type, for %s", printable(column.name), what)
	case !t.accepts(column.typ):
		return invalidf(path, "Invalid source type %s for %s", column.typ.name, what)
	}
	for _, a := range column.ancestors {
		if a.typ.kind != structType {
			return invalidf(path, "Source column %q lies in a list or map, for %s", printable(column.name), what)
		}
	}
	return nil
}

// checkSpecNames refuses partition names that are used twice or that name a
// column other than the field's own source.
func checkSpecNames(path string, s *partitionSpec, ix *schemaIndex) error {
	names := map[string]bool{}
	for i := range s.fields {
		f := &s.fields[i]
		if names[f.name] {
			return invalidf(path, "Cannot use partition name more than once: %s", printable(f.name))
		}
		names[f.name] = true
		if id, taken := ix.byName[f.name]; taken && (len(f.sources) != 1 || f.sources[0] != id) {
			return invalidf(path, "Cannot create identity partition sourced from different field in schema: %s", printable(f.name))
		}
	}
	return nil
}

// withIDs returns the spec's JSON with its id and, where given, field ids and
// source ids set.
func (s *partitionSpec) withIDs(specID int, fieldID func(i int) int, source func(id int) int) []byte {
	patches := []patch{{s.idAt, number(specID)}}
	if !s.hasID {
		patches[0] = insertFirst(s.raw, "spec-id", number(specID))
	}
	for i, f := range s.fields {
		if f.hasID {
			patches = append(patches, patch{f.idAt, number(fieldID(i))})
		} else {
			p := insertFirst(f.at.of(s.raw), "field-id", number(fieldID(i)))
			p.at = span{p.at.start + f.at.start, p.at.end + f.at.start}
			patches = append(patches, p)
		}
		for k, at := range f.sourceSpans {
			patches = append(patches, patch{at, number(source(f.sources[k]))})
		}
	}
	return applyPatches(s.raw, patches)
}

func (o *sortOrder) withIDs(orderID int, source func(id int) int) []byte {
	patches := []patch{{o.idAt, number(orderID)}}
	if !o.hasID {
		patches[0] = insertFirst(o.raw, "order-id", number(orderID))
	}
	for _, f := range o.fields {
		for k, at := range f.sourceSpans {
			patches = append(patches, patch{at, number(source(f.sources[k]))})
		}
	}
	return applyPatches(o.raw, patches)
}
