// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
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

// Environment is a process's environment. It remembers what was looked up, so
// that what nobody asked for can be told. It is not safe for concurrent use.
type Environment struct {
	values map[string]string
	asked  map[string]bool
}

// NewEnvironment returns the environment of "NAME=value" strings, as
// [os.Environ] returns them.
func NewEnvironment(environ []string) *Environment {
	e := &Environment{values: map[string]string{}, asked: map[string]bool{}}
	for _, s := range environ {
		if name, value, ok := strings.Cut(s, "="); ok {
			e.values[name] = value
		}
	}
	return e
}

// Lookup is what [Load] wants.
func (e *Environment) Lookup(name string) (string, bool) {
	e.asked[name] = true
	value, ok := e.values[name]
	return value, ok
}

// injected are the variables that Kubernetes gives every container for a
// Service that is called sluice or sluice-something.
var injected = regexp.MustCompile(`^SLUICE(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)

// Unknown returns a line for each variable whose name begins like that of a
// key, but that Load did not ask for: most often one that is misspelt, and so
// without effect.
func (e *Environment) Unknown() []string {
	var known []string
	for name := range e.asked {
		known = append(known, strings.ToLower(name))
	}
	slices.Sort(known)
	var lines []string
	for name := range e.values {
		if strings.HasPrefix(name, envPrefix+"_") && !e.asked[name] && !injected.MatchString(name) {
			hint := strings.Replace(strings.ToUpper(didYouMean(strings.ToLower(name), known)), "DID YOU MEAN", "did you mean", 1)
			lines = append(lines, fmt.Sprintf("the environment variable %s is no key of the configuration, and has no effect%s", clip(name), hint))
		}
	}
	slices.Sort(lines)
	return lines
}
