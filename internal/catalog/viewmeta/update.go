// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	// maxUpdates bounds one commit's list of updates or requirements.
	maxUpdates = 10_000
	// lastAdded stands for the schema or version that the same commit added.
	lastAdded = -1
)

// Requirement is one decoded assertion of a view commit.
type Requirement struct{ uuid uuid.UUID }

// DecodeRequirements decodes the requirements of a commit; the protocol knows
// one, assert-view-uuid. Errors match ErrInvalid and name the path
// ("requirements[0].uuid").
func DecodeRequirements(all []json.RawMessage) ([]Requirement, error) {
	return decodeList("requirements", all, func(o *object, path string) (r Requirement, err error) {
		kind, err := o.text(path, "type")
		if err != nil {
			return r, err
		}
		if kind != "assert-view-uuid" {
			return r, invalid(path+".type", "unknown requirement %q; a view knows assert-view-uuid", kind)
		}
		r.uuid, err = o.uuid(path, "uuid")
		return r, err
	})
}

// decodeList decodes an array of objects of a request.
func decodeList[T any](name string, all []json.RawMessage, one func(o *object, path string) (T, error)) ([]T, error) {
	if len(all) > maxUpdates {
		return nil, invalid(name, "more than %d entries in one commit", maxUpdates)
	}
	out := make([]T, 0, len(all))
	for i, raw := range all {
		path := indexed(name, i)
		if err := checkText(raw, path); err != nil {
			return nil, err
		}
		o, err := parseObject(raw, path)
		if err != nil {
			return nil, err
		}
		v, err := one(o, path)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Check reports whether the view is in the state that a commit asserts.
// Errors are *RequirementFailedError.
func Check(info *Info, requirements []Requirement) error {
	for _, r := range requirements {
		if r.uuid != info.UUID {
			return &RequirementFailedError{fmt.Sprintf("view UUID does not match: expected %s != %s", info.UUID, r.uuid)}
		}
	}
	return nil
}

// Update is one decoded update of a view commit. It is immutable: a list may
// be applied again after a retry.
type Update struct {
	action   string
	path     string // "updates[3]"
	uuid     uuid.UUID
	id       int // format version or version id
	location string
	schema   schema
	version  version
	set      *object // of strings
	removals []string
}

// DecodeUpdates decodes the updates of a commit. Errors match ErrInvalid and
// name the path; an unknown action is one.
func DecodeUpdates(all []json.RawMessage) ([]Update, error) {
	return decodeList("updates", all, decodeUpdate)
}

func decodeUpdate(o *object, path string) (u Update, err error) {
	u.path = path
	if u.action, err = o.text(path, "action"); err != nil {
		return u, err
	}
	switch u.action {
	case "assign-uuid":
		u.uuid, err = o.uuid(path, "uuid")
	case "upgrade-format-version":
		u.id, err = o.int32(path, "format-version")
	case "add-schema":
		var raw json.RawMessage
		if raw, err = o.required(path, "schema", "an object"); err == nil {
			u.schema, err = parseSchema(raw, path+".schema")
		}
	case "set-location":
		u.location, err = o.filledText(path, "location")
	case "set-properties":
		u.set, err = o.stringMap(path, eitherKey(o, "updates", "updated"))
	case "remove-properties":
		u.removals, err = o.strings(path, eitherKey(o, "removals", "removed"))
	case "add-view-version":
		var raw json.RawMessage
		if raw, err = o.required(path, "view-version", "an object"); err == nil {
			u.version, err = parseVersion(raw, path+".view-version")
		}
		if err == nil {
			err = u.version.checkReadable(path + ".view-version")
		}
	case "set-current-view-version":
		u.id, err = o.int32(path, "view-version-id")
	default:
		err = invalid(path+".action", "unknown view update %q", u.action)
	}
	return u, err
}

// eitherKey returns the key that is there; older clients use other ones.
func eitherKey(o *object, key, old string) string {
	if !o.has(key) && o.has(old) {
		return old
	}
	return key
}

// commit is a view while updates are applied to it.
type commit struct {
	*document
	at time.Time

	dirty       map[string]bool // the members of the document that changed
	lastSchema  *int            // named last by add-schema
	lastVersion *int            // named last by add-view-version
	added       map[int]bool    // versions new in this commit
	entry       *logEntry       // for the last change of the current version
	before      version         // the current version before the commit
}

// Apply returns the metadata after a commit's updates, in their order; at is
// the time of the commit. changed is false when they change nothing, and next
// is then raw. Errors match ErrInvalid and name the update.
func Apply(raw []byte, updates []Update, at time.Time) (next []byte, changed bool, err error) {
	v, err := parse(raw)
	if err != nil {
		return nil, false, fmt.Errorf("parse the view's metadata: %w", err)
	}
	c := &commit{document: v, at: at, dirty: map[string]bool{}, added: map[int]bool{}}
	c.before, _ = v.version(v.current)
	for _, u := range updates {
		if err := c.apply(u); err != nil {
			return nil, false, err
		}
	}
	if len(c.dirty) == 0 {
		return raw, false, nil
	}
	if err := c.finish(); err != nil {
		return nil, false, err
	}
	next = c.bytes()
	if _, err := parse(next); err != nil {
		return nil, false, err
	}
	return next, true, nil
}

func (c *commit) apply(u Update) error {
	switch u.action {
	case "assign-uuid":
		if u.uuid != c.uuid {
			return invalid(u.path+".uuid", "Cannot reassign uuid")
		}
	case "upgrade-format-version":
		if u.id != formatVersion {
			return invalid(u.path+".format-version", "version %d is not supported; views have version %d", u.id, formatVersion)
		}
	case "set-location":
		return c.setLocation(u)
	case "set-properties":
		c.setProperties(u.set)
	case "remove-properties":
		c.removeProperties(u.removals)
	case "add-schema":
		return c.addSchema(u)
	case "add-view-version":
		return c.addVersion(u)
	case "set-current-view-version":
		return c.setCurrent(u)
	}
	return nil
}

func (c *commit) setLocation(u Update) error {
	location := strings.TrimRight(u.location, "/")
	if location == "" {
		return invalid(u.path+".location", "must not be empty")
	}
	if location != c.location {
		c.location, c.dirty["location"] = location, true
	}
	return nil
}

func (c *commit) setProperties(set *object) {
	for _, key := range set.keys {
		value, _ := set.lookup(key)
		if old, ok := c.properties.lookup(key); !ok || old != value {
			c.properties.set(key, set.values[key])
			c.dirty["properties"] = true
		}
	}
}

func (c *commit) removeProperties(keys []string) {
	for _, key := range keys {
		if c.properties.has(key) {
			c.properties.remove(key)
			c.dirty["properties"] = true
		}
	}
}

// nextID returns an id that is free: the given one, or one more than the
// highest.
func nextID[T any](from int, all []T, id func(T) int, path string) (int, error) {
	for _, v := range all {
		from = max(from, id(v)+1)
	}
	if from > math.MaxInt32 {
		return 0, invalid(path, "there is no free id: the highest is %d already", math.MaxInt32)
	}
	return from, nil
}

// addSchema reuses an equal schema, or assigns the next id.
func (c *commit) addSchema(u Update) error {
	i := slices.IndexFunc(c.schemas, u.schema.same)
	if i >= 0 {
		c.lastSchema = &c.schemas[i].id
		return nil
	}
	id, err := nextID(0, c.schemas, func(s schema) int { return s.id }, u.path+".schema.schema-id")
	if err != nil {
		return err
	}
	c.schemas = append(c.schemas, u.schema.withID(id))
	c.lastSchema, c.dirty["schemas"] = &id, true
	return nil
}

// addVersion reuses an equal version, or assigns the next id when its own is
// taken.
func (c *commit) addVersion(u Update) error {
	path := u.path + ".view-version"
	schemaID := u.version.schemaID
	if schemaID == lastAdded {
		if c.lastSchema == nil {
			return invalid(path+".schema-id", "Cannot set last added schema: no schema has been added")
		}
		schemaID = *c.lastSchema
	}
	if !slices.ContainsFunc(c.schemas, func(s schema) bool { return s.id == schemaID }) {
		return invalid(path+".schema-id", "Cannot add version with unknown schema: %d", schemaID)
	}
	v := u.version.withIDs(u.version.id, schemaID)
	i := slices.IndexFunc(c.versions, v.same)
	if i >= 0 {
		c.lastVersion = &c.versions[i].id
		return nil
	}
	id, err := nextID(v.id, c.versions, func(v version) int { return v.id }, path+".version-id")
	if err != nil {
		return err
	}
	c.versions = append(c.versions, v.withIDs(id, schemaID))
	c.added[id] = true
	c.lastVersion, c.dirty["versions"] = &id, true
	return nil
}

func (c *commit) setCurrent(u Update) error {
	id := u.id
	if id == lastAdded {
		if c.lastVersion == nil {
			return invalid(u.path+".view-version-id", "Cannot set last version id: no current version id has been set")
		}
		id = *c.lastVersion
	}
	v, ok := c.version(id)
	if !ok {
		return invalid(u.path+".view-version-id", "Cannot set current version to unknown version: %d", id)
	}
	if id == c.current {
		return nil
	}
	// An older version that comes back does so now, not when it was made.
	timestamp := c.at.UnixMilli()
	if c.added[id] {
		timestamp = v.timestamp
	}
	entry := newLogEntry(id, timestamp)
	c.current, c.entry = id, &entry
	c.dirty["current-version-id"] = true
	return nil
}

// finish does what a commit does once, after its last update.
func (c *commit) finish() error {
	if c.entry != nil {
		c.log = append(c.log, *c.entry)
		c.dirty["version-log"] = true
	}
	if err := c.checkDialects(); err != nil {
		return err
	}
	size, err := historySize(c.properties)
	if err != nil {
		return err
	}
	c.trim(size)
	return nil
}

// checkDialects refuses a replacement that would take the view away from the
// engines of a dialect, unless a property allows it.
func (c *commit) checkDialects() error {
	if allowed, ok := c.properties.lookup(propertyDropDialect); ok && strings.EqualFold(allowed, "true") {
		return nil
	}
	now, _ := c.version(c.current)
	for _, dialect := range c.before.dialects {
		if !slices.Contains(now.dialects, dialect) {
			return invalidDialects("Cannot replace view due to loss of view dialects (%s=false):\nPrevious dialects: [%s]\nNew dialects: [%s]",
				propertyDropDialect, strings.Join(c.before.dialects, ", "), strings.Join(now.dialects, ", "))
		}
	}
	return nil
}

// trim keeps the current version, those that the commit added and the newest
// by id, and the part of the log from where all its versions are still there.
func (c *commit) trim(size int) {
	distinct := len(c.added)
	if !c.added[c.current] {
		distinct++
	}
	size = max(size, distinct)
	if len(c.versions) <= size {
		return
	}
	newest := slices.Clone(c.versions)
	slices.SortFunc(newest, func(a, b version) int { return b.id - a.id })
	kept := map[int]bool{c.current: true}
	for _, v := range newest {
		if len(kept) == size {
			break
		}
		kept[v.id] = true
	}
	c.versions = slices.DeleteFunc(c.versions, func(v version) bool { return !kept[v.id] })
	c.dirty["versions"] = true
	for i, e := range slices.Backward(c.log) {
		if !kept[e.versionID] {
			c.log = c.log[i+1:]
			c.dirty["version-log"] = true
			break
		}
	}
}

// bytes renders the document with the members that changed; the others keep
// their bytes.
func (c *commit) bytes() []byte {
	render := map[string]func() json.RawMessage{
		"location":           func() json.RawMessage { return encode(c.location) },
		"properties":         func() json.RawMessage { return c.properties.bytes() },
		"schemas":            func() json.RawMessage { return array(c.schemas, schema.bytes) },
		"current-version-id": func() json.RawMessage { return encode(c.current) },
		"versions":           func() json.RawMessage { return array(c.versions, version.bytes) },
		"version-log":        func() json.RawMessage { return array(c.log, logEntry.bytes) },
	}
	// A document that never had properties gets them last.
	for _, key := range slices.Sorted(maps.Keys(c.dirty)) {
		c.raw.set(key, render[key]())
	}
	return c.raw.bytes()
}
