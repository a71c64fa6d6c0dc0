// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// expand replaces variables and macros in a body:
//
//	"${name}" alone         the variable with its type
//	"a ${name} b"           the variable as text
//	{$schema: [0, "1 id long!", "2 data string"]}
//	                        a schema: its id, then fields; "!" means required
//	{$snapshot: {table: t, id: 1, seq: 1, parent: 5, …}}
//	                        a snapshot of the table; other keys are kept as
//	                        they are, a null value removes a key
//	{$view-version: {…}}    a view version, likewise
func (t *Trial) expand(v any) (any, error) {
	switch v := v.(type) {
	case string:
		return t.expandString(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			x, err := t.expand(e)
			if err != nil {
				return nil, err
			}
			out[i] = x
		}
		return out, nil
	case map[string]any:
		if len(v) == 1 {
			for name, arg := range v {
				if strings.HasPrefix(name, "$") && !strings.HasPrefix(name, "${") {
					return t.macro(name, arg)
				}
			}
		}
		out := make(map[string]any, len(v))
		for k, e := range v {
			x, err := t.expand(e)
			if err != nil {
				return nil, err
			}
			key, err := t.expandString(k)
			if err != nil {
				return nil, err
			}
			out[fmt.Sprint(key)] = x
		}
		return out, nil
	}
	return v, nil
}

// expandString expands the variables of one string, and "${repeat:TEXT:N}",
// whose text may hold braces, to N times TEXT.
func (t *Trial) expandString(s string) (any, error) {
	start := strings.Index(s, "${")
	if start < 0 {
		return s, nil
	}
	if start == 0 && strings.IndexByte(s, '}') == len(s)-1 && !strings.HasPrefix(s, "${repeat:") {
		return t.variable(s[2 : len(s)-1])
	}
	repeat := regexp.MustCompile(`^\$\{repeat:(.+?):(\d+)\}`)
	var b strings.Builder
	for {
		start := strings.Index(s, "${")
		if start < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if m := repeat.FindStringSubmatch(s[start:]); m != nil {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				return nil, fmt.Errorf("expand %s: %w", m[0], err)
			}
			b.WriteString(s[:start])
			b.WriteString(strings.Repeat(m[1], n))
			s = s[start+len(m[0]):]
			continue
		}
		end := strings.IndexByte(s[start:], '}')
		if end < 0 {
			return nil, fmt.Errorf("expand %q: a variable is not closed", excerpt([]byte(s)))
		}
		v, err := t.variable(s[start+2 : start+end])
		if err != nil {
			return nil, err
		}
		b.WriteString(s[:start])
		fmt.Fprint(&b, v)
		s = s[start+end+1:]
	}
}

// variable returns the value of what stands between "${" and "}": a name, a
// name with the filter "|escape" (for a path or a query), "hex:FF" (bytes),
// "now" (milliseconds), or "key.NAME", which is the same fresh
// Idempotency-Key each time in one trial.
func (t *Trial) variable(expr string) (any, error) {
	if digits, ok := strings.CutPrefix(expr, "hex:"); ok {
		b, err := hex.DecodeString(digits)
		if err != nil {
			return nil, fmt.Errorf("expand ${%s}: %w", expr, err)
		}
		return string(b), nil
	}
	name, filter, _ := strings.Cut(expr, "|")
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.vars[name]
	switch {
	case ok:
	case name == "now":
		v = time.Now().UnixMilli()
	case strings.HasPrefix(name, "key."):
		v = newKey()
		t.vars[name] = v
	default:
		return nil, fmt.Errorf("variable %q has no value", name)
	}
	switch filter {
	case "":
		return v, nil
	case "escape":
		return url.QueryEscape(fmt.Sprint(v)), nil
	}
	return nil, fmt.Errorf("expand ${%s}: filter %q is unknown", expr, filter)
}

func (t *Trial) macro(name string, arg any) (any, error) {
	switch name {
	case "$schema":
		return schemaMacro(arg)
	case "$snapshot":
		return t.snapshotMacro(arg)
	case "$view-version":
		m, ok := arg.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("$view-version: want an object, have %v", arg)
		}
		return t.overlay(map[string]any{
			"version-id":        1,
			"timestamp-ms":      time.Now().UnixMilli(),
			"schema-id":         0,
			"summary":           map[string]any{"engine-name": "conformance"},
			"default-namespace": []any{t.ns},
			"representations": []any{map[string]any{
				"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark",
			}},
		}, m)
	}
	return nil, fmt.Errorf("macro %s is unknown", name)
}

func schemaMacro(arg any) (any, error) {
	grammar := regexp.MustCompile(`^(\d+) (\S+) (\S+?)(!?)$`)
	list, ok := arg.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("$schema: want [id, \"1 name type\", …], have %v", arg)
	}
	fields := []any{}
	for _, e := range list[1:] {
		m := grammar.FindStringSubmatch(fmt.Sprint(e))
		if m == nil {
			return nil, fmt.Errorf("$schema: field %q is not \"ID NAME TYPE[!]\"", e)
		}
		id, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, fmt.Errorf("$schema: field %q: %w", e, err)
		}
		fields = append(fields, map[string]any{"id": id, "name": m[2], "type": m[3], "required": m[4] == "!"})
	}
	return map[string]any{"type": "struct", "schema-id": list[0], "fields": fields}, nil
}

func (t *Trial) snapshotMacro(arg any) (any, error) {
	m, ok := arg.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("$snapshot: want an object, have %v", arg)
	}
	table, _ := m["table"].(string)
	location, err := t.variable("loc." + table)
	if err != nil {
		return nil, fmt.Errorf("$snapshot: %w", err)
	}
	snapshot := map[string]any{
		"snapshot-id":     m["id"],
		"sequence-number": m["seq"],
		"timestamp-ms":    time.Now().UnixMilli(),
		"manifest-list":   fmt.Sprintf("%v/metadata/snap-%v.avro", location, m["id"]),
		"summary":         map[string]any{"operation": "append"},
		"schema-id":       0,
	}
	if parent, ok := m["parent"]; ok {
		snapshot["parent-snapshot-id"] = parent
	}
	if m["seq"] == nil {
		delete(snapshot, "sequence-number") // format version 1
	}
	rest := map[string]any{}
	for k, v := range m {
		switch k {
		case "table", "id", "seq", "parent":
		default:
			rest[k] = v
		}
	}
	return t.overlay(snapshot, rest)
}

// overlay writes the expanded keys of extra over base; null removes a key.
func (t *Trial) overlay(base, extra map[string]any) (any, error) {
	for k, v := range extra {
		x, err := t.expand(v)
		if err != nil {
			return nil, err
		}
		if x == nil {
			delete(base, k)
			continue
		}
		base[k] = x
	}
	return base, nil
}
