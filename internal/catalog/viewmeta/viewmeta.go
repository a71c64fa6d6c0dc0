// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/google/uuid"
)

// Info is what a catalog needs to know of a view.
type Info struct {
	UUID             uuid.UUID
	Location         string
	FormatVersion    int
	CurrentVersionID int
	Properties       map[string]string
}

// Parse checks the JSON of a view's metadata (view specification, "View
// Metadata"). Errors match ErrInvalid and name the JSON path.
func Parse(raw []byte) (*Info, error) {
	v, err := parse(raw)
	if err != nil {
		return nil, err
	}
	info := &Info{
		UUID: v.uuid, Location: v.location, FormatVersion: formatVersion, CurrentVersionID: v.current,
		Properties: make(map[string]string, len(v.properties.keys)),
	}
	for _, key := range v.properties.keys {
		info.Properties[key], _ = v.properties.lookup(key)
	}
	return info, nil
}

// Create is a create-view request. Schema and Version are the client's JSON.
type Create struct {
	UUID       uuid.UUID
	Location   string
	Schema     json.RawMessage
	Version    json.RawMessage
	Properties map[string]string
}

// New returns the metadata of a new view: the schema as schema 0, the version
// as version 1, whatever ids the client gave them. Errors match ErrInvalid and
// name the path below the request.
func New(c Create) ([]byte, error) {
	if err := checkText(c.Schema, "schema"); err != nil {
		return nil, err
	}
	if err := checkText(c.Version, "view-version"); err != nil {
		return nil, err
	}
	s, err := parseSchema(c.Schema, "schema")
	if err != nil {
		return nil, err
	}
	v, err := parseVersion(c.Version, "view-version")
	if err != nil {
		return nil, err
	}
	if err := v.checkReadable("view-version"); err != nil {
		return nil, err
	}
	s, v = s.withID(0), v.withIDs(1, 0)

	properties := newObject()
	for _, key := range slices.Sorted(maps.Keys(c.Properties)) {
		properties.set(key, encode(c.Properties[key]))
	}
	if _, err := historySize(properties); err != nil {
		return nil, err
	}
	o := newObject()
	o.set("view-uuid", encode(c.UUID.String()))
	o.set("format-version", encode(formatVersion))
	o.set("location", encode(c.Location))
	o.set("schemas", array([]schema{s}, schema.bytes))
	o.set("current-version-id", encode(v.id))
	o.set("versions", array([]version{v}, version.bytes))
	o.set("version-log", array([]logEntry{newLogEntry(v.id, v.timestamp)}, logEntry.bytes))
	o.set("properties", properties.bytes())
	raw := o.bytes()
	if _, err := parse(raw); err != nil {
		return nil, err
	}
	return raw, nil
}
