// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// object is a JSON object with its keys in order. Values are never changed in
// place, so clones share them.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func newObject() *object { return &object{values: map[string]json.RawMessage{}} }

// parseObject reads one JSON object and nothing after it.
func parseObject(raw []byte, path string) (*object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, invalid(path, "expected an object, found %s", kindOf(raw))
	}
	o := newObject()
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, invalid(path, "malformed JSON: %s", err)
		}
		key, ok := t.(string)
		if !ok {
			return nil, invalid(path, "malformed JSON: expected a key")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, invalid(join(path, key), "malformed JSON: %s", err)
		}
		if _, ok := o.values[key]; ok {
			return nil, invalid(join(path, key), "the key occurs twice")
		}
		o.keys = append(o.keys, key)
		o.values[key] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, invalid(path, "malformed JSON: %s", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid(path, "data after the end of the object")
	}
	return o, nil
}

func (o *object) has(key string) bool {
	_, ok := o.values[key]
	return ok
}

func (o *object) clone() *object {
	return &object{keys: slices.Clone(o.keys), values: maps.Clone(o.values)}
}

// set replaces a member where it stands, or appends it.
func (o *object) set(key string, value json.RawMessage) {
	if !o.has(key) {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

func (o *object) remove(key string) {
	delete(o.values, key)
	o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
}

func (o *object) bytes() json.RawMessage {
	b := []byte{'{'}
	for i, key := range o.keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, encode(key)...)
		b = append(b, ':')
		b = append(b, o.values[key]...)
	}
	return append(b, '}')
}

// array renders a JSON array.
func array[T any](all []T, bytes func(T) json.RawMessage) json.RawMessage {
	b := []byte{'['}
	for i, v := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, bytes(v)...)
	}
	return append(b, ']')
}

// encode marshals strings and numbers, which cannot fail, without the escapes
// that are only for HTML.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("viewmeta: encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func indexed(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// required returns a member that must be there and not be null.
func (o *object) required(path, key, what string) (json.RawMessage, error) {
	raw, ok := o.values[key]
	if !ok || isNull(raw) {
		return nil, invalid(join(path, key), "required, %s", what)
	}
	return raw, nil
}

// optional returns a member that may be missing or null.
func (o *object) optional(key string) (json.RawMessage, bool) {
	raw, ok := o.values[key]
	return raw, ok && !isNull(raw)
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// as decodes a value whose Go type has no room for null.
func as[T any](raw json.RawMessage, path, what string) (v T, err error) {
	if isNull(raw) || json.Unmarshal(raw, &v) != nil {
		return v, invalid(path, "expected %s, found %s", what, kindOf(raw))
	}
	return v, nil
}

func (o *object) text(path, key string) (string, error) {
	raw, err := o.required(path, key, "a string")
	if err != nil {
		return "", err
	}
	return as[string](raw, join(path, key), "a string")
}

// filledText is text that is more than white space.
func (o *object) filledText(path, key string) (string, error) {
	s, err := o.text(path, key)
	if err == nil && strings.TrimSpace(s) == "" {
		err = invalid(join(path, key), "must not be empty")
	}
	return s, err
}

// int32 reads an id; Java keeps them in 32 bits.
func (o *object) int32(path, key string) (int, error) {
	raw, err := o.required(path, key, "an integer")
	if err != nil {
		return 0, err
	}
	return asInt32(raw, join(path, key))
}

func asInt32(raw json.RawMessage, path string) (int, error) {
	n, err := as[int64](raw, path, "an integer")
	if err != nil {
		return 0, err
	}
	if n < math.MinInt32 || n > math.MaxInt32 {
		return 0, invalid(path, "%d is not a 32-bit integer", n)
	}
	return int(n), nil
}

func (o *object) int64(path, key string) (int64, error) {
	raw, err := o.required(path, key, "an integer")
	if err != nil {
		return 0, err
	}
	return as[int64](raw, join(path, key), "an integer of 64 bits")
}

func (o *object) uuid(path, key string) (uuid.UUID, error) {
	s, err := o.text(path, key)
	if err != nil {
		return uuid.Nil, err
	}
	// uuid.Parse also takes the urn: and braced spellings, which Java does not.
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(id.String()) {
		return uuid.Nil, invalid(join(path, key), "%q is not a UUID", s)
	}
	return id, nil
}

func (o *object) list(path, key string) ([]json.RawMessage, error) {
	raw, err := o.required(path, key, "an array")
	if err != nil {
		return nil, err
	}
	return as[[]json.RawMessage](raw, join(path, key), "an array")
}

func (o *object) strings(path, key string) ([]string, error) {
	all, err := o.list(path, key)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(all))
	for i, raw := range all {
		if out[i], err = as[string](raw, indexed(join(path, key), i), "a string"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// stringMap reads an object of strings.
func (o *object) stringMap(path, key string) (*object, error) {
	raw, err := o.required(path, key, "an object of strings")
	if err != nil {
		return nil, err
	}
	path = join(path, key)
	m, err := parseObject(raw, path)
	if err != nil {
		return nil, err
	}
	for _, key := range m.keys {
		if _, err := as[string](m.values[key], join(path, key), "a string"); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// lookup returns a member of an object of strings.
func (o *object) lookup(key string) (string, bool) {
	raw, ok := o.values[key]
	if !ok {
		return "", false
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// kindOf names the JSON type of a value, for messages.
func kindOf(raw []byte) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
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
