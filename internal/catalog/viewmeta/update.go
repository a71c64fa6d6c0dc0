// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Requirement is one decoded assertion of a view commit.
type Requirement struct{ uuid uuid.UUID }

// DecodeRequirements decodes the requirements of a commit; the protocol knows
// one, assert-view-uuid.
func DecodeRequirements(all []json.RawMessage) ([]Requirement, error) {
	var out []Requirement
	for i, raw := range all {
		path := fmt.Sprintf("requirements[%d]", i)
		o, err := parseObject(raw, path)
		if err != nil {
			return nil, err
		}
		kind, _, err := get[string](o, path, "type", true, "a string")
		if err != nil {
			return nil, err
		}
		if kind != "assert-view-uuid" {
			return nil, invalid(path+".type", "unknown requirement %q", kind)
		}
		id, err := getUUID(o, path, "uuid")
		if err != nil {
			return nil, err
		}
		out = append(out, Requirement{id})
	}
	return out, nil
}

func getUUID(o *object, path, key string) (uuid.UUID, error) {
	s, _, err := get[string](o, path, key, true, "a string")
	if err != nil {
		return uuid.Nil, err
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil, invalid(join(path, key), "%q is not a UUID", s)
	}
	return id, nil
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

// Update is one decoded update of a view commit.
type Update struct {
	action   string
	path     string
	uuid     uuid.UUID
	id       int // format version or version id
	text     string
	schema   viewSchema
	version  version
	set      map[string]string
	removals []string
}

// DecodeUpdates decodes the updates of a commit. Errors match ErrInvalid and
// name the path; an unknown action is one.
func DecodeUpdates(all []json.RawMessage) ([]Update, error) {
	var out []Update
	for i, raw := range all {
		path := fmt.Sprintf("updates[%d]", i)
		if depth(raw) > maxDepth {
			return nil, invalid(path, "nested deeper than %d levels", maxDepth)
		}
		o, err := parseObject(raw, path)
		if err != nil {
			return nil, err
		}
		u, err := decodeUpdate(o, path)
		if err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, nil
}

func decodeUpdate(o *object, path string) (u Update, err error) {
	u.path = path
	if u.action, _, err = get[string](o, path, "action", true, "a string"); err != nil {
		return u, err
	}
	switch u.action {
	case "assign-uuid":
		u.uuid, err = getUUID(o, path, "uuid")
	case "upgrade-format-version":
		u.id, _, err = get[int](o, path, "format-version", true, "an integer")
	case "add-schema":
		var raw json.RawMessage
		if raw, _, err = get[json.RawMessage](o, path, "schema", true, "an object"); err == nil {
			u.schema, err = parseSchema(raw, path+".schema")
		}
	case "set-location":
		u.text, _, err = get[string](o, path, "location", true, "a string")
	case "set-properties":
		key := "updates"
		if _, ok := o.values[key]; !ok {
			key = "updated" // as older clients call it
		}
		u.set, _, err = get[map[string]string](o, path, key, true, "an object of strings")
	case "remove-properties":
		key := "removals"
		if _, ok := o.values[key]; !ok {
			key = "removed"
		}
		u.removals, _, err = get[[]string](o, path, key, true, "an array of strings")
	case "add-view-version":
		var raw json.RawMessage
		if raw, _, err = get[json.RawMessage](o, path, "view-version", true, "an object"); err == nil {
			u.version, err = parseVersion(raw, path+".view-version")
		}
	case "set-current-view-version":
		u.id, _, err = get[int](o, path, "view-version-id", true, "an integer")
	default:
		err = invalid(path+".action", "unknown view update %q", u.action)
	}
	return u, err
}

// commit is a view while updates are applied to it.
type commit struct {
	*view
	lastSchema  *int // added last, by this commit
	lastVersion *int
	changed     bool
	before      version // the current version before the commit
	switched    bool    // the current version was set
	added       map[int]bool
}

// Apply returns the metadata after a commit's updates, in their order;
// changed is false when they change nothing.
func Apply(raw []byte, updates []Update, at time.Time) (next []byte, changed bool, err error) {
	v, err := parse(raw)
	if err != nil {
		return nil, false, err
	}
	c := &commit{view: v, added: map[int]bool{}}
	c.before, _ = c.versionByID(v.current)
	for _, u := range updates {
		if err := c.apply(u, at); err != nil {
			return nil, false, err
		}
	}
	if !c.changed {
		return raw, false, nil
	}
	if err := c.checkDialects(); err != nil {
		return nil, false, err
	}
	c.trim()
	out := v.raw.clone()
	out.set("view-uuid", v.uuid.String())
	out.set("location", v.location)
	out.set("current-version-id", v.current)
	out.set("schemas", list(v.schemas, func(s viewSchema) json.RawMessage { return s.raw.bytes() }))
	out.set("versions", list(v.versions, func(s version) json.RawMessage { return s.raw.bytes() }))
	out.set("version-log", v.log)
	if v.properties != nil {
		out.set("properties", v.properties)
	}
	next = out.bytes()
	if _, err := parse(next); err != nil {
		return nil, false, err
	}
	return next, true, nil
}

func list[T any](all []T, bytes func(T) json.RawMessage) json.RawMessage {
	out := []byte{'['}
	for i, v := range all {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, bytes(v)...)
	}
	return append(out, ']')
}

func (c *commit) versionByID(id int) (version, bool) {
	i := slices.IndexFunc(c.versions, func(v version) bool { return v.id == id })
	if i < 0 {
		return version{}, false
	}
	return c.versions[i], true
}

func (c *commit) apply(u Update, at time.Time) error {
	switch u.action {
	case "assign-uuid":
		if u.uuid != c.uuid {
			return invalid(u.path+".uuid", "Cannot reassign uuid")
		}
	case "upgrade-format-version":
		if u.id != 1 {
			return invalid(u.path+".format-version", "version %d is not supported; views have version 1", u.id)
		}
	case "set-location":
		location := strings.TrimRight(u.text, "/")
		if location == "" {
			return invalid(u.path+".location", "must not be empty")
		}
		if location != c.location {
			c.location, c.changed = location, true
		}
	case "set-properties":
		for k, v := range u.set {
			if old, ok := c.properties[k]; !ok || old != v {
				c.edit()[k] = v
			}
		}
	case "remove-properties":
		for _, k := range u.removals {
			if _, ok := c.properties[k]; ok {
				delete(c.edit(), k)
			}
		}
	case "add-schema":
		c.addSchema(u.schema)
	case "add-view-version":
		return c.addVersion(u)
	case "set-current-view-version":
		return c.setCurrent(u, at)
	}
	return nil
}

// edit returns the properties for changing.
func (c *commit) edit() map[string]string {
	c.properties = maps.Clone(c.properties)
	if c.properties == nil {
		c.properties = map[string]string{}
	}
	c.changed = true
	return c.properties
}

// addSchema reuses an equal schema, or assigns the next id.
func (c *commit) addSchema(s viewSchema) {
	next := 0
	for _, have := range c.schemas {
		if have.same(s) {
			c.lastSchema = &have.id
			return
		}
		next = max(next, have.id+1)
	}
	s.id = next
	s.raw = s.raw.clone()
	s.raw.set("schema-id", next)
	c.schemas = append(c.schemas, s)
	c.lastSchema, c.changed = &s.id, true
}

// addVersion reuses an equal version, or assigns the next id when its own is
// taken.
func (c *commit) addVersion(u Update) error {
	v := u.version
	v.raw = v.raw.clone()
	if v.schemaID == -1 {
		if c.lastSchema == nil {
			return invalid(u.path+".view-version.schema-id", "Cannot set last added schema: no schema has been added")
		}
		v.schemaID = *c.lastSchema
		v.raw.set("schema-id", v.schemaID)
	}
	if !slices.ContainsFunc(c.schemas, func(s viewSchema) bool { return s.id == v.schemaID }) {
		return invalid(u.path+".view-version.schema-id", "Cannot add version with unknown schema: %d", v.schemaID)
	}
	next := v.id
	for _, have := range c.versions {
		if have.same(v) {
			c.lastVersion = &have.id
			return nil
		}
		next = max(next, have.id+1)
	}
	v.id = next
	v.raw.set("version-id", next)
	if _, ok := v.raw.values["summary"]; !ok {
		v.raw.set("summary", map[string]string{})
	}
	c.versions = append(c.versions, v)
	c.added[v.id] = true
	c.lastVersion, c.changed = &v.id, true
	return nil
}

func (c *commit) setCurrent(u Update, at time.Time) error {
	id := u.id
	if id == -1 {
		if c.lastVersion == nil {
			return invalid(u.path+".view-version-id", "Cannot set last version id: no current version id has been set")
		}
		id = *c.lastVersion
	}
	v, ok := c.versionByID(id)
	if !ok {
		return invalid(u.path+".view-version-id", "Cannot set current version to unknown version: %d", id)
	}
	if id == c.current {
		return nil
	}
	timestamp := at.UnixMilli()
	if c.added[id] {
		timestamp = v.timestamp
	}
	c.current, c.changed, c.switched = id, true, true
	c.log = append(slices.Clone(c.log), logEntry{id, timestamp})
	return nil
}

// checkDialects refuses a replacement that would take a view away from the
// engines of a dialect, unless a property allows it.
func (c *commit) checkDialects() error {
	allowed, err := strconv.ParseBool(c.properties[propertyDropDialect])
	if !c.switched || (err == nil && allowed) {
		return nil
	}
	now, _ := c.versionByID(c.current)
	for _, d := range c.before.dialects {
		if !slices.Contains(now.dialects, d) {
			return invalidDialects("Cannot replace view due to loss of view dialects (%s=false):\nPrevious dialects: [%s]\nNew dialects: [%s]",
				propertyDropDialect, strings.Join(c.before.dialects, ", "), strings.Join(now.dialects, ", "))
		}
	}
	return nil
}

// trim keeps the newest versions, the current one and those just added, and
// the part of the log whose versions are still there.
func (c *commit) trim() {
	keep := defaultHistory
	if n, err := strconv.Atoi(c.properties[propertyHistory]); err == nil && n > 0 {
		keep = n
	}
	keep = max(keep, len(c.added))
	if len(c.versions) <= keep {
		return
	}
	byAge := slices.Clone(c.versions)
	slices.SortStableFunc(byAge, func(a, b version) int { return b.id - a.id })
	kept := map[int]bool{c.current: true}
	for _, v := range byAge {
		if len(kept) >= keep {
			break
		}
		kept[v.id] = true
	}
	c.versions = slices.DeleteFunc(slices.Clone(c.versions), func(v version) bool { return !kept[v.id] })
	// An entry whose version is gone ends the history before it.
	for i, e := range slices.Backward(c.log) {
		if !kept[e.VersionID] {
			c.log = slices.Clone(c.log[i+1:])
			break
		}
	}
}
