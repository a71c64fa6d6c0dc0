// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package viewmeta is the view metadata of Apache Iceberg (format version 1)
// as a lossless document: keys at every level that it does not know survive
// every commit, in their order.
//
// View metadata is small, so a commit decodes one level and keeps everything
// below as JSON. The semantics are those of the Iceberg view specification
// and, where it leaves room, of Java's ViewMetadata.Builder, which engines
// were tested against. The package does no I/O.
package viewmeta

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"
)

// ErrInvalid is matched by every error that says that metadata, an update or
// their combination is not valid.
var ErrInvalid = errors.New("invalid view metadata")

// ErrDialects is matched, with ErrInvalid, by errors about the SQL dialects of
// a version; Java's clients are told of them by an exception of its own.
var ErrDialects = errors.New("invalid view dialects")

// InvalidError says what is wrong and where ("updates[2].view-version").
type InvalidError struct {
	Path, Problem string
	dialects      bool
}

// Error returns path and problem.
func (e *InvalidError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Is makes errors.Is hold for ErrInvalid and ErrDialects.
func (e *InvalidError) Is(target error) bool {
	return target == ErrInvalid || e.dialects && target == ErrDialects
}

func invalid(path, format string, args ...any) error {
	return &InvalidError{Path: path, Problem: fmt.Sprintf(format, args...)}
}

func invalidDialects(format string, args ...any) error {
	return &InvalidError{Problem: fmt.Sprintf(format, args...), dialects: true}
}

// RequirementFailedError says that the view is not in the state that a commit
// asserted (409).
type RequirementFailedError struct{ Problem string }

// Error returns the problem as Java words it.
func (e *RequirementFailedError) Error() string { return "Requirement failed: " + e.Problem }

// Limits of what Parse accepts.
const (
	maxBytes    = 64 << 20
	maxDepth    = 256
	maxVersions = 50_000
)

// Defaults and keys of view properties.
const (
	propertyHistory     = "version.history.num-entries"
	propertyDropDialect = "replace.drop-dialect.allowed"
	defaultHistory      = 10
)

// object is a JSON object with its keys in order.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func parseObject(raw json.RawMessage, path string) (*object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, invalid(path, "expected an object")
	}
	o := &object{values: map[string]json.RawMessage{}}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, invalid(path, "malformed JSON: %s", err)
		}
		key := t.(string)
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, invalid(join(path, key), "malformed JSON: %s", err)
		}
		if _, ok := o.values[key]; ok {
			return nil, invalid(join(path, key), "the key occurs twice")
		}
		o.keys = append(o.keys, key)
		o.values[key] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, invalid(path, "malformed JSON: %s", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid(path, "data after the end of the object")
	}
	return o, nil
}

func (o *object) clone() *object {
	c := &object{keys: append([]string(nil), o.keys...), values: make(map[string]json.RawMessage, len(o.values))}
	for k, v := range o.values {
		c.values[k] = v
	}
	return c
}

func (o *object) set(key string, value any) {
	raw, ok := value.(json.RawMessage)
	if !ok {
		raw = encode(value)
	}
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = raw
}

func (o *object) bytes() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, k := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(k))
		b.WriteByte(':')
		b.Write(o.values[k])
	}
	b.WriteByte('}')
	return b.Bytes()
}

// encode marshals what cannot fail to marshal, without HTML escapes.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("viewmeta: encode %T: %v", v, err))
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// get decodes a member; required members must be there and not null.
func get[T any](o *object, path, key string, required bool, what string) (v T, ok bool, err error) {
	raw, found := o.values[key]
	if !found || string(raw) == "null" {
		if required {
			return v, false, invalid(join(path, key), "required, %s", what)
		}
		return v, false, nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, false, invalid(join(path, key), "expected %s, found %s", what, kindOf(raw))
	}
	return v, true, nil
}

// kindOf names the JSON type of a value, for messages.
func kindOf(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}

// version is a view version: its JSON, and what we interpret of it.
type version struct {
	id, schemaID int
	timestamp    int64
	dialects     []string // lower case
	raw          *object
}

func parseVersion(raw json.RawMessage, path string) (version, error) {
	o, err := parseObject(raw, path)
	if err != nil {
		return version{}, err
	}
	v := version{raw: o}
	if v.id, _, err = get[int](o, path, "version-id", true, "an integer"); err != nil {
		return version{}, err
	}
	if v.schemaID, _, err = get[int](o, path, "schema-id", true, "an integer"); err != nil {
		return version{}, err
	}
	if v.timestamp, _, err = get[int64](o, path, "timestamp-ms", true, "an integer"); err != nil {
		return version{}, err
	}
	if _, _, err = get[map[string]string](o, path, "summary", false, "an object of strings"); err != nil {
		return version{}, err
	}
	if _, _, err = get[[]string](o, path, "default-namespace", true, "an array of strings"); err != nil {
		return version{}, err
	}
	if _, _, err = get[string](o, path, "default-catalog", false, "a string"); err != nil {
		return version{}, err
	}
	reps, _, err := get[[]json.RawMessage](o, path, "representations", true, "an array")
	if err != nil {
		return version{}, err
	}
	for i, rep := range reps {
		at := fmt.Sprintf("%s[%d]", join(path, "representations"), i)
		r, err := parseObject(rep, at)
		if err != nil {
			return version{}, err
		}
		kind, _, err := get[string](r, at, "type", true, "a string")
		if err != nil {
			return version{}, err
		}
		if kind != "sql" {
			continue // kept as it is, as the specification asks of unknown types
		}
		if _, _, err := get[string](r, at, "sql", true, "a string"); err != nil {
			return version{}, err
		}
		dialect, _, err := get[string](r, at, "dialect", true, "a string")
		if err != nil {
			return version{}, err
		}
		dialect = strings.ToLower(dialect)
		for _, d := range v.dialects {
			if d == dialect {
				return version{}, invalidDialects("Invalid view version: Cannot add multiple queries for dialect %s", dialect)
			}
		}
		v.dialects = append(v.dialects, dialect)
	}
	return v, nil
}

// same reports whether two versions differ only in id and time, as Java's
// reuseOrCreateNewViewVersionId compares them.
func (v version) same(o version) bool {
	strip := func(v version) json.RawMessage {
		c := map[string]any{}
		if err := json.Unmarshal(v.raw.bytes(), &c); err != nil {
			return nil
		}
		delete(c, "version-id")
		delete(c, "timestamp-ms")
		return encode(c)
	}
	return bytes.Equal(strip(v), strip(o))
}

// viewSchema is a schema: its JSON and id.
type viewSchema struct {
	id  int
	raw *object
}

func parseSchema(raw json.RawMessage, path string) (viewSchema, error) {
	o, err := parseObject(raw, path)
	if err != nil {
		return viewSchema{}, err
	}
	s := viewSchema{raw: o}
	if s.id, _, err = get[int](o, path, "schema-id", false, "an integer"); err != nil {
		return viewSchema{}, err
	}
	var parsed iceberg.Schema
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return viewSchema{}, invalid(path, "not a valid schema: %s", err)
	}
	if _, _, err = get[[]json.RawMessage](o, path, "fields", true, "an array"); err != nil {
		return viewSchema{}, err
	}
	return s, nil
}

// same reports whether two schemas differ only in id.
func (s viewSchema) same(o viewSchema) bool {
	strip := func(s viewSchema) json.RawMessage {
		c := map[string]any{}
		if err := json.Unmarshal(s.raw.bytes(), &c); err != nil {
			return nil
		}
		delete(c, "schema-id")
		if ids, ok := c["identifier-field-ids"].([]any); ok && len(ids) == 0 {
			delete(c, "identifier-field-ids")
		}
		return encode(c)
	}
	return bytes.Equal(strip(s), strip(o))
}

// logEntry is an entry of the version log.
type logEntry struct {
	VersionID   int   `json:"version-id"`
	TimestampMs int64 `json:"timestamp-ms"`
}

// view is decoded metadata.
type view struct {
	raw        *object
	uuid       uuid.UUID
	location   string
	current    int
	versions   []version
	schemas    []viewSchema
	log        []logEntry
	properties map[string]string
}

// Info is what a catalog needs to know of a view.
type Info struct {
	UUID             uuid.UUID
	Location         string
	FormatVersion    int
	CurrentVersionID int
	Properties       map[string]string
}

// Parse checks the JSON of a view's metadata. Errors match ErrInvalid and
// name the JSON path.
func Parse(raw []byte) (*Info, error) {
	v, err := parse(raw)
	if err != nil {
		return nil, err
	}
	return &Info{UUID: v.uuid, Location: v.location, FormatVersion: 1, CurrentVersionID: v.current, Properties: v.properties}, nil
}

func parse(raw []byte) (*view, error) {
	if len(raw) > maxBytes {
		return nil, invalid("", "%d bytes are too long; at most %d are allowed", len(raw), maxBytes)
	}
	if depth(raw) > maxDepth {
		return nil, invalid("", "nested deeper than %d levels", maxDepth)
	}
	o, err := parseObject(raw, "")
	if err != nil {
		return nil, err
	}
	v := &view{raw: o}
	format, _, err := get[int](o, "", "format-version", true, "an integer")
	if err != nil {
		return nil, err
	}
	if format != 1 {
		return nil, invalid("format-version", "version %d is not supported; views have version 1", format)
	}
	id, _, err := get[string](o, "", "view-uuid", true, "a string")
	if err != nil {
		return nil, err
	}
	if v.uuid, err = uuid.Parse(id); err != nil {
		return nil, invalid("view-uuid", "%q is not a UUID", id)
	}
	if v.location, _, err = get[string](o, "", "location", true, "a string"); err != nil {
		return nil, err
	}
	if v.current, _, err = get[int](o, "", "current-version-id", true, "an integer"); err != nil {
		return nil, err
	}
	if v.properties, _, err = get[map[string]string](o, "", "properties", false, "an object of strings"); err != nil {
		return nil, err
	}
	if v.log, _, err = get[[]logEntry](o, "", "version-log", true, "an array of version-id and timestamp-ms"); err != nil {
		return nil, err
	}
	schemas, _, err := get[[]json.RawMessage](o, "", "schemas", true, "an array")
	if err != nil {
		return nil, err
	}
	versions, _, err := get[[]json.RawMessage](o, "", "versions", true, "an array")
	if err != nil {
		return nil, err
	}
	if len(versions) > maxVersions || len(schemas) > maxVersions {
		return nil, invalid("", "more than %d versions or schemas", maxVersions)
	}
	known := map[int]bool{}
	for i, raw := range schemas {
		s, err := parseSchema(raw, fmt.Sprintf("schemas[%d]", i))
		if err != nil {
			return nil, err
		}
		if known[s.id] {
			return nil, invalid(fmt.Sprintf("schemas[%d].schema-id", i), "schema %d occurs twice", s.id)
		}
		known[s.id] = true
		v.schemas = append(v.schemas, s)
	}
	seen := map[int]bool{}
	for i, raw := range versions {
		path := fmt.Sprintf("versions[%d]", i)
		ver, err := parseVersion(raw, path)
		if err != nil {
			return nil, err
		}
		if seen[ver.id] {
			return nil, invalid(path+".version-id", "version %d occurs twice", ver.id)
		}
		if !known[ver.schemaID] {
			return nil, invalid(path+".schema-id", "no schema has the id %d", ver.schemaID)
		}
		seen[ver.id] = true
		v.versions = append(v.versions, ver)
	}
	if !seen[v.current] {
		return nil, invalid("current-version-id", "no version has the id %d", v.current)
	}
	return v, nil
}

// depth returns how deeply a JSON text nests, without decoding it.
func depth(raw []byte) int {
	deepest, now := 0, 0
	inString, escaped := false, false
	for _, c := range raw {
		switch {
		case escaped:
			escaped = false
		case inString:
			inString = c != '"'
			escaped = c == '\\'
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// Create is a create-view request. Schema and Version are the client's JSON.
type Create struct {
	UUID       uuid.UUID
	Location   string
	Schema     json.RawMessage
	Version    json.RawMessage
	Properties map[string]string
	At         time.Time
}

// New returns the metadata of a new view: schema 0 and version 1.
func New(c Create) ([]byte, error) {
	if depth(c.Schema) > maxDepth || depth(c.Version) > maxDepth {
		return nil, invalid("", "nested deeper than %d levels", maxDepth)
	}
	s, err := parseSchema(c.Schema, "schema")
	if err != nil {
		return nil, err
	}
	ver, err := parseVersion(c.Version, "view-version")
	if err != nil {
		return nil, err
	}
	if len(ver.dialects) == 0 {
		return nil, invalid("view-version.representations", "at least one SQL representation is required")
	}
	s.raw.set("schema-id", 0)
	ver.raw.set("version-id", 1)
	ver.raw.set("schema-id", 0)
	if _, ok := ver.raw.values["summary"]; !ok {
		ver.raw.set("summary", map[string]string{})
	}
	properties := c.Properties
	if properties == nil {
		properties = map[string]string{}
	}
	o := &object{values: map[string]json.RawMessage{}}
	o.set("view-uuid", c.UUID.String())
	o.set("format-version", 1)
	o.set("location", c.Location)
	o.set("schemas", json.RawMessage("["+string(s.raw.bytes())+"]"))
	o.set("current-version-id", 1)
	o.set("versions", json.RawMessage("["+string(ver.raw.bytes())+"]"))
	o.set("version-log", []logEntry{{1, ver.timestamp}})
	o.set("properties", properties)
	raw := o.bytes()
	if _, err := parse(raw); err != nil {
		return nil, err
	}
	return raw, nil
}
