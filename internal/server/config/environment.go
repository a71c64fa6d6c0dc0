// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"reflect"
	"strings"

	"github.com/sluice-data/sluice/internal/secret"
)

// envPrefix begins the names of variables that override keys: the key's path
// in capitals, joined by underscores. Keys inside lists and maps have none. A
// secret's variable holds the secret itself; with _FILE at its end, the path
// of a file that does.
const envPrefix = "SLUICE"

func envName(prefix, key string) string { return prefix + "_" + strings.ToUpper(key) }

// overrides applies the environment to a section.
func (l *loader) overrides(v reflect.Value, key, prefix string) {
	for i := range v.NumField() {
		f, field := v.Type().Field(i), v.Field(i)
		name, path := envName(prefix, f.Tag.Get("config")), join(key, f.Tag.Get("config"))
		switch {
		case isSection(f.Type):
			l.overrides(field, path, name)
		case f.Type.Kind() == reflect.Pointer && isSection(f.Type.Elem()):
			l.overrideOptional(field, path, name)
		case f.Type == secretType:
			l.overrideSecret(field.Addr().Interface().(*Secret), path, name)
		case overridable(f.Type):
			if text, ok := l.lookup(name); ok {
				l.places[path] = "environment variable " + name
				if err := setScalar(field, text); err != nil {
					l.wrong(path, "%v", err)
				} else if message := tagProblem(f, field); message != "" {
					l.wrong(path, "%s", message)
				}
			}
		}
	}
}

// overrideOptional makes a section that the file leaves out when the
// environment has something for it.
func (l *loader) overrideOptional(field reflect.Value, path, name string) {
	if !field.IsNil() {
		l.overrides(field.Elem(), path, name)
		return
	}
	section := reflect.New(field.Type().Elem())
	l.setDefaults(section.Elem())
	before := reflect.New(field.Type().Elem()).Elem()
	before.Set(section.Elem())
	l.overrides(section.Elem(), path, name)
	if !reflect.DeepEqual(before.Interface(), section.Elem().Interface()) {
		field.Set(section)
	}
}

func (l *loader) overrideSecret(s *Secret, path, name string) {
	if text, ok := l.lookup(name); ok {
		l.places[path] = "environment variable " + name
		if text == "" {
			l.wrong(path, "the secret is empty")
			return
		}
		*s = Secret{Env: name, Value: secret.New(text)}
	}
	if file, ok := l.lookup(name + "_FILE"); ok {
		l.places[path] = "environment variable " + name + "_FILE"
		text, err := l.fetch(file, "")
		if err != nil {
			l.wrong(path, "%v", err)
			return
		}
		*s = Secret{File: file, Value: secret.New(text)}
	}
}

// overridable reports whether a type can be given as text.
func overridable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	case reflect.Slice:
		return t.Elem().Kind() == reflect.String
	}
	return false
}
