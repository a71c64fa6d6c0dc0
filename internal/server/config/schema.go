// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Schema returns the JSON Schema (2020-12) of the configuration, for editors.
func Schema() []byte {
	s := sectionSchema(reflect.TypeFor[Config]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "catalogd configuration"
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // maps of strings, numbers and lists only
	}
	return append(raw, '\n')
}

func sectionSchema(t reflect.Type) map[string]any {
	properties := map[string]any{}
	required := []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("config")
		s := typeSchema(f.Type)
		s["description"] = f.Tag.Get("doc")
		if enum := f.Tag.Get("enum"); enum != "" {
			s["enum"] = strings.Split(enum, ",")
		}
		if d, ok := f.Tag.Lookup("default"); ok {
			s["default"] = defaultValue(f.Type, d)
		}
		for tag, keyword := range map[string]string{"min": "minimum", "max": "maximum"} {
			if n, err := strconv.ParseFloat(f.Tag.Get(tag), 64); err == nil && f.Type != durationType && f.Type != bytesType {
				s[keyword] = n
			}
		}
		if f.Tag.Get("required") == "true" {
			required = append(required, name)
		}
		properties[name] = s
	}
	s := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func typeSchema(t reflect.Type) map[string]any {
	switch {
	case t == durationType:
		return map[string]any{"type": "string", "pattern": `^([0-9]+d|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`}
	case t == bytesType:
		return map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9]+ ?(KiB|MiB|GiB)?$`, "minimum": 0}
	case t == secretType:
		return referenceSchema("file", "env")
	case t == hashType:
		return referenceSchema("file", "env", "hash")
	case t.Kind() == reflect.Pointer:
		return typeSchema(t.Elem())
	case t.Kind() == reflect.Struct:
		return sectionSchema(t)
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": typeSchema(t.Elem())}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": typeSchema(t.Elem())}
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.Int:
		return map[string]any{"type": "integer"}
	case t.Kind() == reflect.Float64:
		return map[string]any{"type": "number"}
	}
	return map[string]any{"type": "string"}
}

// referenceSchema is an object with exactly one of the keys.
func referenceSchema(keys ...string) map[string]any {
	properties := map[string]any{}
	for _, k := range keys {
		properties[k] = map[string]any{"type": "string", "minLength": 1}
	}
	return map[string]any{
		"type": "object", "additionalProperties": false, "properties": properties, "minProperties": 1, "maxProperties": 1,
	}
}

func defaultValue(t reflect.Type, text string) any {
	switch t.Kind() {
	case reflect.Bool:
		return text == "true"
	case reflect.Int:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	case reflect.Float64:
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	case reflect.Slice:
		return strings.Split(text, ",")
	}
	return text
}

// Reference returns a Markdown table of every key: its default, its variable
// and what it is for.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | default | environment | meaning |\n|---|---|---|---|\n")
	reference(&b, reflect.TypeFor[Config](), "", envPrefix)
	return b.String()
}

// reference writes a section's rows. prefix is "" inside lists, whose keys
// have no variables.
func reference(b *strings.Builder, t reflect.Type, key, prefix string) {
	for i := range t.NumField() {
		f := t.Field(i)
		path, env := join(key, f.Tag.Get("config")), ""
		if prefix != "" {
			env = envName(prefix, f.Tag.Get("config"))
		}
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case isSection(inner):
			row(b, path, "", "", f)
			reference(b, inner, path, env)
		case inner.Kind() == reflect.Slice && isSection(inner.Elem()):
			row(b, path+"[]", "", "", f)
			reference(b, inner.Elem(), path+"[]", "")
		default:
			if f.Type == secretType && env != "" {
				env += "`, `" + env + "_FILE"
			} else if !overridable(f.Type) {
				env = ""
			}
			row(b, path, f.Tag.Get("default"), env, f)
		}
	}
}

func row(b *strings.Builder, path, def, env string, f reflect.StructField) {
	doc := f.Tag.Get("doc")
	if enum := f.Tag.Get("enum"); enum != "" {
		doc += " One of " + strings.ReplaceAll(enum, ",", ", ") + "."
	}
	low, high := f.Tag.Get("min"), f.Tag.Get("max")
	switch {
	case low != "" && high != "":
		doc += fmt.Sprintf(" From %s to %s.", low, high)
	case low != "":
		doc += fmt.Sprintf(" At least %s.", low)
	}
	switch {
	case f.Tag.Get("required") == "true":
		def = "required"
	case def != "":
		def = "`" + def + "`"
	}
	if env != "" {
		env = "`" + env + "`"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", path, def, env, strings.ReplaceAll(doc, "|", `\|`))
}
