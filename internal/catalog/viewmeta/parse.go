// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"
)

// Limits of what is accepted.
const (
	maxBytes   = 64 << 20
	maxDepth   = 256
	maxEntries = 50_000 // versions, schemas, log entries
)

const (
	formatVersion = 1

	propertyHistory     = "version.history.num-entries"
	propertyDropDialect = "replace.drop-dialect.allowed"
	defaultHistory      = 10
)

// document is decoded metadata. raw has all of it; the rest is what we interpret.
type document struct {
	raw        *object
	uuid       uuid.UUID
	location   string
	current    int
	versions   []version
	schemas    []schema
	log        []logEntry
	properties *object // of strings
}

// checkText refuses what is not worth decoding.
func checkText(raw []byte, path string) error {
	switch {
	case len(raw) > maxBytes:
		return invalid(path, "%d bytes are too long; at most %d are allowed", len(raw), maxBytes)
	case !utf8.Valid(raw):
		return invalid(path, "not UTF-8")
	case depth(raw) > maxDepth:
		return invalid(path, "nested deeper than %d levels", maxDepth)
	}
	return nil
}

func parse(raw []byte) (*document, error) {
	if err := checkText(raw, ""); err != nil {
		return nil, err
	}
	o, err := parseObject(raw, "")
	if err != nil {
		return nil, err
	}
	v := &document{raw: o}
	format, err := o.int32("", "format-version")
	if err != nil {
		return nil, err
	}
	if format != formatVersion {
		return nil, invalid("format-version", "version %d is not supported; views have version %d", format, formatVersion)
	}
	if v.uuid, err = o.uuid("", "view-uuid"); err != nil {
		return nil, err
	}
	if v.location, err = o.filledText("", "location"); err != nil {
		return nil, err
	}
	if v.current, err = o.int32("", "current-version-id"); err != nil {
		return nil, err
	}
	v.properties = newObject()
	if _, ok := o.optional("properties"); ok {
		if v.properties, err = o.stringMap("", "properties"); err != nil {
			return nil, err
		}
	}
	if v.schemas, err = parseAll(o, "schemas", parseSchema); err != nil {
		return nil, err
	}
	if v.versions, err = parseAll(o, "versions", parseVersion); err != nil {
		return nil, err
	}
	if v.log, err = parseAll(o, "version-log", parseLogEntry); err != nil {
		return nil, err
	}
	return v, v.checkIDs()
}

// parseAll reads an array of objects.
func parseAll[T any](o *object, key string, one func(json.RawMessage, string) (T, error)) ([]T, error) {
	all, err := o.list("", key)
	if err != nil {
		return nil, err
	}
	if len(all) > maxEntries {
		return nil, invalid(key, "%d entries are too many; at most %d are allowed", len(all), maxEntries)
	}
	out := make([]T, len(all))
	for i, raw := range all {
		if out[i], err = one(raw, indexed(key, i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkIDs checks that ids are unique and resolve. The log may name versions
// that have expired.
func (v *document) checkIDs() error {
	schemas := map[int]bool{}
	for i, s := range v.schemas {
		if schemas[s.id] {
			return invalid(indexed("schemas", i)+".schema-id", "schema %d occurs twice", s.id)
		}
		schemas[s.id] = true
	}
	versions := map[int]bool{}
	for i, one := range v.versions {
		path := indexed("versions", i)
		if versions[one.id] {
			return invalid(path+".version-id", "version %d occurs twice", one.id)
		}
		if !schemas[one.schemaID] {
			return invalid(path+".schema-id", "no schema has the id %d", one.schemaID)
		}
		versions[one.id] = true
	}
	if !versions[v.current] {
		return invalid("current-version-id", "no version has the id %d", v.current)
	}
	return nil
}

func (v *document) version(id int) (version, bool) {
	i := slices.IndexFunc(v.versions, func(one version) bool { return one.id == id })
	if i < 0 {
		return version{}, false
	}
	return v.versions[i], true
}

// historySize returns how many versions the properties say to keep.
func historySize(properties *object) (int, error) {
	value, ok := properties.lookup(propertyHistory)
	if !ok {
		return defaultHistory, nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return 0, invalid("properties."+propertyHistory, "%q is not an integer", value)
	}
	if n < 1 {
		return 0, invalid("", "%s must be positive but was %d", propertyHistory, n)
	}
	return int(n), nil
}

// version is a view version: its JSON, and what we interpret of it.
type version struct {
	id, schemaID int
	timestamp    int64    // milliseconds since the epoch
	dialects     []string // of the SQL representations, in lower case
	raw          *object
}

func (v version) bytes() json.RawMessage { return v.raw.bytes() }

func (v version) withIDs(id, schemaID int) version {
	v.raw = v.raw.clone()
	if id != v.id {
		v.id = id
		v.raw.set("version-id", encode(id))
	}
	if schemaID != v.schemaID {
		v.schemaID = schemaID
		v.raw.set("schema-id", encode(schemaID))
	}
	return v
}

// checkReadable refuses a new version that no engine could evaluate.
func (v version) checkReadable(path string) error {
	if len(v.dialects) == 0 {
		return invalid(path+".representations", "at least one SQL representation is required")
	}
	return nil
}

func parseVersion(raw json.RawMessage, path string) (version, error) {
	o, err := parseObject(raw, path)
	if err != nil {
		return version{}, err
	}
	v := version{raw: o}
	if v.id, err = o.int32(path, "version-id"); err != nil {
		return version{}, err
	}
	if v.schemaID, err = o.int32(path, "schema-id"); err != nil {
		return version{}, err
	}
	if v.timestamp, err = o.int64(path, "timestamp-ms"); err != nil {
		return version{}, err
	}
	if _, err = o.stringMap(path, "summary"); err != nil {
		return version{}, err
	}
	if _, err = o.strings(path, "default-namespace"); err != nil {
		return version{}, err
	}
	if _, ok := o.optional("default-catalog"); ok {
		if _, err = o.text(path, "default-catalog"); err != nil {
			return version{}, err
		}
	}
	representations, err := o.list(path, "representations")
	if err != nil {
		return version{}, err
	}
	for i, raw := range representations {
		at := indexed(join(path, "representations"), i)
		dialect, isSQL, err := parseRepresentation(raw, at)
		if err != nil {
			return version{}, err
		}
		if !isSQL {
			continue
		}
		if slices.Contains(v.dialects, dialect) {
			return version{}, invalidDialects("Invalid view version: Cannot add multiple queries for dialect %s", dialect)
		}
		v.dialects = append(v.dialects, dialect)
	}
	return v, nil
}

// parseRepresentation returns the dialect of a SQL representation. Other
// types are kept as they are.
func parseRepresentation(raw json.RawMessage, path string) (dialect string, isSQL bool, err error) {
	o, err := parseObject(raw, path)
	if err != nil {
		return "", false, err
	}
	kind, err := o.text(path, "type")
	if err != nil || kind != "sql" {
		return "", false, err
	}
	if _, err := o.filledText(path, "sql"); err != nil {
		return "", false, err
	}
	dialect, err = o.filledText(path, "dialect")
	return strings.ToLower(strings.TrimSpace(dialect)), true, err
}

// same reports whether two versions differ in nothing but id and time.
func (v version) same(o version) bool {
	return v.schemaID == o.schemaID && bytes.Equal(v.essence(), o.essence())
}

func (v version) essence() []byte {
	o := v.raw.clone()
	o.remove("version-id")
	o.remove("timestamp-ms")
	if _, ok := o.optional("default-catalog"); !ok {
		o.remove("default-catalog")
	}
	return canonical(o.bytes())
}

// schema is a schema: its JSON and id.
type schema struct {
	id  int
	raw *object
}

func (s schema) bytes() json.RawMessage { return s.raw.bytes() }

func (s schema) withID(id int) schema {
	s.id, s.raw = id, s.raw.clone()
	s.raw.set("schema-id", encode(id))
	return s
}

// parseSchema reads a schema; one without an id has the id 0, as in Java.
func parseSchema(raw json.RawMessage, path string) (schema, error) {
	o, err := parseObject(raw, path)
	if err != nil {
		return schema{}, err
	}
	s := schema{raw: o}
	if id, ok := o.optional("schema-id"); ok {
		if s.id, err = asInt32(id, join(path, "schema-id")); err != nil {
			return schema{}, err
		}
	}
	if _, err := o.list(path, "fields"); err != nil {
		return schema{}, err
	}
	var parsed iceberg.Schema
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return schema{}, invalid(path, "not a valid schema: %s", err)
	}
	if _, err := iceberg.IndexByName(&parsed); err != nil {
		return schema{}, invalid(path, "not a valid schema: %s", err)
	}
	for i, id := range parsed.IdentifierFieldIDs {
		at := indexed(join(path, "identifier-field-ids"), i)
		field, ok := parsed.FindFieldByID(id)
		if !ok {
			return schema{}, invalid(at, "no field has the id %d", id)
		}
		if _, primitive := field.Type.(iceberg.PrimitiveType); !primitive || !field.Required {
			return schema{}, invalid(at, "field %s cannot identify rows: it is not a required primitive", field.Name)
		}
	}
	return s, nil
}

// same reports whether two schemas differ in nothing but their id.
func (s schema) same(o schema) bool { return bytes.Equal(s.essence(), o.essence()) }

func (s schema) essence() []byte {
	o := s.raw.clone()
	o.remove("schema-id")
	var ids []int
	if raw, ok := o.optional("identifier-field-ids"); ok {
		if err := json.Unmarshal(raw, &ids); err != nil {
			return nil // not reached: parseSchema read it
		}
		slices.Sort(ids)
	}
	o.remove("identifier-field-ids")
	if len(ids) > 0 {
		o.set("identifier-field-ids", encode(ids))
	}
	return canonical(o.bytes())
}

// canonical spells a JSON value in one way: keys sorted, no white space, no
// null doc, no spaces inside the names of types. Numbers keep their spelling.
func canonical(raw json.RawMessage) []byte {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return raw // not reached: raw was rendered from parsed JSON
	}
	return encode(simplify(v))
}

func simplify(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = simplify(v[i])
		}
	case map[string]any:
		for key, value := range v {
			text, isText := value.(string)
			switch {
			case key == "doc" && value == nil:
				delete(v, key)
			case key == "type" && isText:
				v[key] = strings.ReplaceAll(text, " ", "")
			default:
				v[key] = simplify(value)
			}
		}
	}
	return v
}

// logEntry is an entry of the version log.
type logEntry struct {
	versionID int
	raw       *object
}

func (e logEntry) bytes() json.RawMessage { return e.raw.bytes() }

func newLogEntry(versionID int, timestamp int64) logEntry {
	o := newObject()
	o.set("timestamp-ms", encode(timestamp))
	o.set("version-id", encode(versionID))
	return logEntry{versionID, o}
}

func parseLogEntry(raw json.RawMessage, path string) (logEntry, error) {
	o, err := parseObject(raw, path)
	if err != nil {
		return logEntry{}, err
	}
	e := logEntry{raw: o}
	if e.versionID, err = o.int32(path, "version-id"); err != nil {
		return logEntry{}, err
	}
	_, err = o.int64(path, "timestamp-ms")
	return e, err
}
