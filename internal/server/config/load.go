// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/secret"
)

// maxFileBytes bounds the configuration and each file it names.
const maxFileBytes = 4 << 20

// Load reads a configuration file, applies the environment (as
// [os.LookupEnv] finds it) and checks everything that can be checked without
// opening anything but files. The error is a [Problems].
func Load(path string, lookup func(string) (string, bool)) (*Config, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, Problems{{Where: path, Message: err.Error()}}
	}
	return parse(path, raw, lookup)
}

// Default returns a configuration that holds nothing but defaults.
func Default() *Config {
	var c Config
	(&loader{}).setDefaults(reflect.ValueOf(&c).Elem())
	return &c
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	return os.ReadFile(path)
}

// loader decodes one file.
type loader struct {
	file     string
	lookup   func(string) (string, bool)
	places   map[string]string // dotted path -> where it was said
	problems Problems
}

func parse(path string, raw []byte, lookup func(string) (string, bool)) (*Config, error) {
	l := &loader{file: path, lookup: lookup, places: map[string]string{}}
	var c Config
	root := reflect.ValueOf(&c).Elem()
	l.setDefaults(root)
	if node := l.document(raw); node != nil {
		l.decode(node, root, "")
	}
	l.overrides(root, "", envPrefix)
	if len(l.problems) == 0 {
		l.required(root, "")
	}
	if len(l.problems) == 0 {
		l.validate(&c)
	}
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	for _, files := range []*TLS{c.Listeners.Catalog.TLS, c.Listeners.Metrics.TLS} {
		if files != nil {
			files.Cert, files.Key, files.ClientCA = l.beside(files.Cert), l.beside(files.Key), l.beside(files.ClientCA)
		}
	}
	for _, set := range c.Policies {
		for _, files := range [][]string{set.Files, set.Cases} {
			for i := range files {
				files[i] = l.beside(files[i])
			}
		}
	}
	for i := range c.Issuers {
		issuer := &c.Issuers[i]
		issuer.CAFile = l.beside(issuer.CAFile)
		if issuer.Kubernetes != nil {
			issuer.Kubernetes.TokenFile = l.beside(issuer.Kubernetes.TokenFile)
		}
		if issuer.MTLS != nil {
			issuer.MTLS.CAFile = l.beside(issuer.MTLS.CAFile)
		}
	}
	return &c, nil
}

// beside returns a path that is relative to the configuration's directory as
// one to open; "" stays "".
func (l *loader) beside(file string) string {
	if file == "" || filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(filepath.Dir(l.file), file)
}

// document parses YAML and returns the one document's mapping; nil when it is
// empty or broken.
func (l *loader) document(raw []byte) ast.Node {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		where, message := l.file, err.Error()
		var e yaml.Error
		if errors.As(err, &e) {
			// Only the message: the library's own text quotes the source.
			message = e.GetMessage()
			if t := e.GetToken(); t != nil {
				where = l.position(t)
			}
		}
		l.problems = append(l.problems, Problem{Where: where, Message: "not valid YAML: " + message})
		return nil
	}
	var bodies []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil && d.Body.Type() != ast.CommentType {
			bodies = append(bodies, d.Body)
		}
	}
	switch len(bodies) {
	case 0:
		return nil
	case 1:
		return bodies[0]
	}
	l.problem(bodies[1], "", "only one YAML document is expected")
	return nil
}

func (l *loader) position(t *token.Token) string {
	return fmt.Sprintf("%s:%d:%d", l.file, t.Position.Line, t.Position.Column)
}

// problem reports something at a node.
func (l *loader) problem(n ast.Node, key, format string, args ...any) {
	where := l.file
	if n != nil && n.GetToken() != nil {
		where = l.position(n.GetToken())
	}
	l.problems = append(l.problems, Problem{Where: where, Key: key, Message: fmt.Sprintf(format, args...)})
}

// wrong reports something about a key, at the place where it or the nearest
// enclosing key was said.
func (l *loader) wrong(key, format string, args ...any) {
	where := l.file
	for k := key; k != ""; {
		if place, ok := l.places[k]; ok {
			where = place
			break
		}
		k = k[:max(strings.LastIndexAny(k, ".["), 0)]
	}
	l.problems = append(l.problems, Problem{Where: where, Key: key, Message: fmt.Sprintf(format, args...)})
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
	secretType   = reflect.TypeFor[Secret]()
	hashType     = reflect.TypeFor[Hash]()
)

// isSection reports whether a type is a mapping of known keys.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != secretType && t != hashType
}

// setDefaults fills a section from its fields' tags.
func (l *loader) setDefaults(v reflect.Value) {
	for i := range v.NumField() {
		f, field := v.Type().Field(i), v.Field(i)
		if isSection(f.Type) {
			l.setDefaults(field)
		} else if d, ok := f.Tag.Lookup("default"); ok {
			if err := setScalar(field, d); err != nil {
				panic(fmt.Sprintf("default of %s: %v", f.Name, err)) // a test loads every default
			}
		}
	}
}

// decode reads a node into a value.
func (l *loader) decode(n ast.Node, v reflect.Value, key string) {
	if key != "" {
		l.places[key] = l.position(n.GetToken())
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		l.problem(n, key, "anchors, aliases, tags and merge keys are not supported")
		return
	case *ast.NullNode:
		return // as if it were absent
	}
	t := v.Type()
	switch {
	case t == secretType:
		l.secret(n, v.Addr().Interface().(*Secret), key)
	case t == hashType:
		l.hash(n, v.Addr().Interface().(*Hash), key)
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		l.setDefaults(v.Elem())
		l.decode(n, v.Elem(), key)
	case t.Kind() == reflect.Struct:
		l.section(n, v, key)
	case t.Kind() == reflect.Slice:
		l.list(n, v, key)
	case t.Kind() == reflect.Map:
		l.mapping(n, v, key)
	default:
		l.scalar(n, v, key)
	}
}

// entries returns a mapping's entries; a mapping of one entry has a node type
// of its own.
func (l *loader) entries(n ast.Node, key string) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	l.problem(n, key, "expected a mapping of keys, found %s", describe(n))
	return nil, false
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

func (l *loader) section(n ast.Node, v reflect.Value, key string) {
	entries, ok := l.entries(n, key)
	if !ok {
		return
	}
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("config")
		fields[name] = i
		names = append(names, name)
	}
	for _, e := range entries {
		name := keyText(e.Key)
		i, known := fields[name]
		if !known {
			where := "here"
			if key != "" {
				where = "in " + key
			}
			l.problem(e.Key, join(key, name), "there is no such key %s%s", where, didYouMean(name, names))
			continue
		}
		before := len(l.problems)
		l.decode(e.Value, v.Field(i), join(key, name))
		// A key whose value is on later lines is best found at itself.
		if _, isScalar := e.Value.(ast.ScalarNode); !isScalar || len(l.problems) > before {
			l.places[join(key, name)] = l.position(e.Key.GetToken())
		}
		if len(l.problems) == before {
			l.checkTags(e.Value, v.Type().Field(i), v.Field(i), join(key, name))
		}
	}
}

func keyText(n ast.MapKeyNode) string {
	if s, ok := n.(*ast.StringNode); ok {
		return s.Value
	}
	return n.String()
}

func (l *loader) list(n ast.Node, v reflect.Value, key string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		l.problem(n, key, "expected a list, found %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		element := v.Index(i)
		if isSection(element.Type()) {
			l.setDefaults(element)
		}
		l.decode(item, element, fmt.Sprintf("%s[%d]", key, i))
	}
}

func (l *loader) mapping(n ast.Node, v reflect.Value, key string) {
	entries, ok := l.entries(n, key)
	if !ok {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range entries {
		value := reflect.New(v.Type().Elem()).Elem()
		l.decode(e.Value, value, join(key, keyText(e.Key)))
		v.SetMapIndex(reflect.ValueOf(keyText(e.Key)), value)
	}
}

// scalar reads one value. A string is taken from any scalar, as it was
// written; other types from a scalar that reads as one.
func (l *loader) scalar(n ast.Node, v reflect.Value, key string) {
	var text string
	switch n := n.(type) {
	case *ast.StringNode:
		text = n.Value
	case *ast.LiteralNode:
		text = n.Value.Value
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		text = n.GetToken().Value
	default:
		l.problem(n, key, "expected %s, found %s", typeName(v.Type()), describe(n))
		return
	}
	if err := setScalar(v, text); err != nil {
		l.problem(n, key, "%v", err)
	}
}

// secret reads a reference. What was written instead of one is never
// repeated.
func (l *loader) secret(n ast.Node, s *Secret, key string) {
	l.places[key] = l.position(n.GetToken())
	text, ok := l.reference(n, key, &s.File, &s.Env, nil)
	if ok {
		s.Value = secret.New(text)
	}
}

func (l *loader) hash(n ast.Node, h *Hash, key string) {
	l.places[key] = l.position(n.GetToken())
	var inline string
	text, ok := l.reference(n, key, &h.File, &h.Env, &inline)
	if !ok {
		return
	}
	value, err := identity.ParseHash(text)
	if err != nil {
		l.problem(n, key, "%v", err)
		return
	}
	h.Value = value
}

// reference reads {file: …}, {env: …} or, where inline is not nil,
// {hash: …}, and returns what it stands for.
func (l *loader) reference(n ast.Node, key string, file, env, inline *string) (string, bool) {
	forms := "{file: PATH} or {env: NAME}"
	allowed := map[string]*string{"file": file, "env": env}
	if inline != nil {
		forms = "{file: PATH}, {env: NAME} or {hash: PHC}"
		allowed["hash"] = inline
	}
	if _, isScalar := n.(ast.ScalarNode); isScalar {
		l.problem(n, key, "a secret is not written here; say where it is: %s", forms)
		return "", false
	}
	entries, ok := l.entries(n, key)
	if !ok {
		return "", false
	}
	if len(entries) != 1 || allowed[keyText(entries[0].Key)] == nil {
		l.problem(n, key, "say where the secret is: %s", forms)
		return "", false
	}
	value, ok := entries[0].Value.(*ast.StringNode)
	if !ok || value.Value == "" {
		l.problem(n, key, "say where the secret is: %s", forms)
		return "", false
	}
	*allowed[keyText(entries[0].Key)] = value.Value
	if inline != nil && *inline != "" {
		return *inline, true
	}
	text, err := l.fetch(*file, *env)
	if err != nil {
		l.problem(n, key, "%v", err)
		return "", false
	}
	return text, true
}

// fetch reads a secret from a file, relative to the configuration's, or an
// environment variable. A line's end at its end is no part of it.
func (l *loader) fetch(file, env string) (string, error) {
	var text string
	if env != "" {
		value, ok := l.lookup(env)
		if !ok {
			return "", fmt.Errorf("the environment variable %s is not set", env)
		}
		text = value
	} else {
		raw, err := readFile(l.beside(file))
		if err != nil {
			return "", err
		}
		text = string(raw)
	}
	text = strings.TrimRight(text, "\r\n")
	if text == "" {
		return "", errors.New("the secret is empty")
	}
	return text, nil
}

// checkTags applies enum, min and max.
func (l *loader) checkTags(n ast.Node, f reflect.StructField, v reflect.Value, key string) {
	if message := tagProblem(f, v); message != "" {
		l.problem(n, key, "%s", message)
	}
}

func tagProblem(f reflect.StructField, v reflect.Value) string {
	if enum := f.Tag.Get("enum"); enum != "" {
		if values := strings.Split(enum, ","); !slices.Contains(values, v.String()) {
			return fmt.Sprintf("%q is not one of %s%s", v.String(), strings.Join(values, ", "), didYouMean(v.String(), values))
		}
	}
	for _, bound := range []string{"min", "max"} {
		tag := f.Tag.Get(bound)
		if tag == "" {
			continue
		}
		limit := reflect.New(f.Type).Elem()
		if err := setScalar(limit, tag); err != nil {
			panic(fmt.Sprintf("%s of %s: %v", bound, f.Name, err))
		}
		if d := number(v) - number(limit); bound == "min" && d < 0 {
			return "must be at least " + tag
		} else if bound == "max" && d > 0 {
			return "must be at most " + tag
		}
	}
	if f.Type == durationType && v.Int() < 0 {
		return "must not be negative"
	}
	return ""
}

func number(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	return float64(v.Int())
}

// required reports keys that are missing from sections that are there.
func (l *loader) required(v reflect.Value, key string) {
	for i := range v.NumField() {
		f, field := v.Type().Field(i), v.Field(i)
		name := join(key, f.Tag.Get("config"))
		switch {
		case f.Tag.Get("required") == "true" && field.IsZero():
			l.wrong(name, "is required: %s", f.Tag.Get("doc"))
		case f.Type.Kind() == reflect.Pointer && !field.IsNil():
			l.required(field.Elem(), name)
		case isSection(f.Type):
			l.required(field, name)
		case f.Type.Kind() == reflect.Slice && isSection(f.Type.Elem()):
			for j := range field.Len() {
				l.required(field.Index(j), fmt.Sprintf("%s[%d]", name, j))
			}
		}
	}
}

// setScalar parses text into a scalar or, comma-separated, a list of strings.
func setScalar(v reflect.Value, text string) error {
	bad := func() error { return fmt.Errorf("expected %s, found %q", typeName(v.Type()), clip(text)) }
	switch {
	case v.Type() == durationType:
		d, err := parseDuration(text)
		if err != nil {
			return bad()
		}
		v.SetInt(int64(d))
	case v.Type() == bytesType:
		n, err := parseBytes(text)
		if err != nil {
			return bad()
		}
		v.SetInt(n)
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return bad()
		}
		v.SetBool(text == "true")
	case v.Kind() == reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return bad()
		}
		v.SetInt(int64(n))
	case v.Kind() == reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) {
			return bad()
		}
		v.SetFloat(n)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		var list []string
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		v.Set(reflect.ValueOf(list))
	default:
		return fmt.Errorf("%s cannot be set here", typeName(v.Type()))
	}
	return nil
}

// parseDuration reads Go's durations, and whole days ("7d").
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 32)
		if err != nil || n > 36500 {
			return 0, errors.New("not a number of days")
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	return time.ParseDuration(text)
}

func parseBytes(text string) (int64, error) {
	unit := int64(1)
	for suffix, u := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = strings.TrimSpace(number), u
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("not a size")
	}
	return n * unit, nil
}

// typeName is what messages call a type.
func typeName(t reflect.Type) string {
	switch {
	case t == durationType:
		return `a duration such as "30s", "12h" or "7d"`
	case t == bytesType:
		return `a size such as "64MiB"`
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Slice:
		return "a list"
	}
	return "a string"
}

// describe is what messages call a node.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode:
		return "a number"
	}
	return "a string"
}

// clip bounds what a message quotes.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}
