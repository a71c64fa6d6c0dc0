// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Create describes a new table. Schema, PartitionSpec and SortOrder are the
// client's JSON; the latter two may be nil or null.
type Create struct {
	UUID          uuid.UUID
	Location      string
	Schema        json.RawMessage
	PartitionSpec json.RawMessage
	SortOrder     json.RawMessage
	Properties    map[string]string
	At            time.Time
	Limits        Limits
}

// New returns the first document of a table. Ids are assigned anew: columns
// from 1, struct by struct; partition fields from 1000; schema 0, spec 0,
// sort order 1, or 0 when unsorted. The property format-version chooses the
// format, 2 when absent; it and the other reserved properties are not stored.
// Errors match ErrInvalid.
func New(c Create) (*Document, error) {
	limits := c.Limits.withDefaults()
	format, err := requestedFormat(c.Properties)
	if err != nil {
		return nil, err
	}
	t := newDraft(&Document{
		raw: []byte("{}"), limits: limits, format: format,
		lastPartition: firstPartitionID - 1, properties: func() map[string]string { return nil },
	})
	t.creating = true
	t.nowMs = c.At.UnixMilli()
	t.uuid = c.UUID
	t.setLocation(c.Location)
	ids, err := t.newSchema(c.Schema)
	if err != nil {
		return nil, err
	}
	if err := t.newSpec(c.PartitionSpec, ids); err != nil {
		return nil, err
	}
	if err := t.newOrder(c.SortOrder, ids); err != nil {
		return nil, err
	}
	t.properties.loaded = true
	for _, key := range slices.Sorted(maps.Keys(c.Properties)) {
		if slices.Contains(reservedProperties, key) {
			continue
		}
		value := c.Properties[key]
		t.properties.append(property{key: key, value: value}, renderMember(key, quoted(value)))
	}
	if err := t.complete(); err != nil {
		return nil, err
	}
	if err := t.finish(""); err != nil {
		return nil, err
	}
	return t.render()
}

func requestedFormat(properties map[string]string) (int, error) {
	v, ok := properties["format-version"]
	if !ok {
		return 2, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(v))
	if err != nil || n < 1 || n > maxFormat {
		return 0, invalidf("properties.format-version", "format version %q is not supported; this server writes 1 to %d", printable(v), maxFormat)
	}
	return n, nil
}

// readPart reads one part of a create request.
func readPart[T any](name string, raw []byte, read func(*cursor) T) (T, error) {
	var none T
	if !utf8.Valid(raw) {
		return none, invalidf(name, "not UTF-8")
	}
	c := newCursor(raw, requestDepth)
	value := read(c)
	c.end()
	if c.fault != nil {
		path := name
		if below := pathAt(raw, c.fault.at); below != "" {
			path += "." + below
		}
		return none, invalidf(path, "%s", c.fault.problem)
	}
	return value, nil
}

func absent(raw json.RawMessage) bool {
	c := newCursor(raw, requestDepth)
	if c.peek() == 0 {
		return true
	}
	null := c.null()
	c.end()
	return null && c.ok()
}

// newSchema adds the table's schema and returns how its ids were mapped.
func (t *draft) newSchema(raw json.RawMessage) (map[int]int, error) {
	if absent(raw) {
		return nil, invalidf("schema", "a table needs a schema")
	}
	read := func(c *cursor) *schema { return parseSchema(c, t.base.limits.MaxFields) }
	s, err := readPart("schema", raw, read)
	if err != nil {
		return nil, err
	}
	if err := s.check("schema", t.format); err != nil {
		return nil, err
	}
	fresh, ids := s.fresh(0)
	if s, err = readPart("schema", fresh, read); err != nil {
		return nil, err
	}
	t.schemas.loaded = true
	t.schemas.append(s, fresh)
	t.lastColumn = len(ids)
	return ids, nil
}

// sources maps the column ids of a request to those that were assigned.
func sources(path string, sources []int, ids map[int]int) ([]int, error) {
	out := make([]int, len(sources))
	for i, id := range sources {
		fresh, ok := ids[id]
		if !ok {
			return nil, invalidf(path, "Cannot find source column: %d", id)
		}
		out[i] = fresh
	}
	return out, nil
}

func (t *draft) newSpec(raw json.RawMessage, ids map[int]int) error {
	const path = "partition-spec"
	t.specs.loaded = true
	if absent(raw) {
		return nil // complete makes it unpartitioned
	}
	s, err := readPart(path, raw, parseSpec)
	if err != nil {
		return err
	}
	ix, err := t.currentIndex(path)
	if err != nil {
		return err
	}
	fresh := *s
	fresh.id = 0
	fresh.fields = slices.Clone(s.fields)
	for i := range fresh.fields {
		f := &fresh.fields[i]
		if i > math.MaxInt32-firstPartitionID {
			return invalidf(path, "too many fields")
		}
		f.id = firstPartitionID + i
		if f.sources, err = sources(path, f.sources, ids); err != nil {
			return err
		}
	}
	if err := checkSpecNames(path, &fresh, ix); err != nil {
		return err
	}
	if err := checkSpec(path, &fresh, ix); err != nil {
		return err
	}
	t.lastPartition = firstPartitionID + len(fresh.fields) - 1
	t.specs.append(&fresh, s.withIDs(0, func(i int) int { return firstPartitionID + i }, func(id int) int { return ids[id] }))
	return nil
}

func (t *draft) newOrder(raw json.RawMessage, ids map[int]int) error {
	const path = "write-order"
	t.orders.loaded = true
	if absent(raw) {
		return nil // complete makes it unsorted
	}
	o, err := readPart(path, raw, parseOrder)
	if err != nil || len(o.fields) == 0 {
		return err
	}
	ix, err := t.currentIndex(path)
	if err != nil {
		return err
	}
	fresh := *o
	fresh.id = 1
	fresh.fields = slices.Clone(o.fields)
	for i := range fresh.fields {
		f := &fresh.fields[i]
		if f.sources, err = sources(path, f.sources, ids); err != nil {
			return err
		}
	}
	if err := checkOrder(path, &fresh, ix); err != nil {
		return err
	}
	t.defaultOrd = 1
	t.orders.append(&fresh, o.withIDs(1, func(id int) int { return ids[id] }))
	return nil
}
