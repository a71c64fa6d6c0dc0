// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// lookup finds the value at a path of a decoded document: keys and indexes
// joined by "/"; "#" is the length of what precedes it, "-1" the last element;
// "" is the document itself.
func lookup(doc any, path string) (any, bool) {
	if path == "" {
		return doc, true
	}
	for step := range strings.SplitSeq(path, "/") {
		switch v := doc.(type) {
		case map[string]any:
			if step == "#" {
				doc = json.Number(strconv.Itoa(len(v)))
				continue
			}
			next, ok := v[step]
			if !ok {
				return nil, false
			}
			doc = next
		case []any:
			if step == "#" {
				doc = json.Number(strconv.Itoa(len(v)))
				continue
			}
			i, err := strconv.Atoi(step)
			if err == nil && i < 0 {
				i += len(v)
			}
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			doc = v[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// match compares what an answer holds with what a case wants and returns what
// is wrong, "" when nothing is. want is a JSON value, compared exactly with
// numbers by value, or an object of operators, all of which must hold:
//
//	$exists: bool      the path exists and is not null, or not
//	$type: T           string, number, boolean, array, object
//	$match: RE         a string that the regular expression matches
//	$not: W            does not match W
//	$gte: N            a number of at least N
//	$contains: W       an array with an element that matches W, or a string
//	                   with that text
//	$lacks: W          the opposite
//	$each: W           an array whose elements all match W
//	$subset: {…}       an object with at least these members, each matching
//	$set: […]          an array with exactly these elements in any order
//	$any: […]          one of these
func match(got any, present bool, want any) string {
	ops, isMap := want.(map[string]any)
	if isMap && len(ops) > 0 && allOperators(ops) {
		names := make([]string, 0, len(ops))
		for name := range ops {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if wrong := operator(name, ops[name], got, present); wrong != "" {
				return wrong
			}
		}
		return ""
	}
	if !present {
		return "is absent, want " + show(want)
	}
	if !equal(got, want) {
		return "is " + show(got) + ", want " + show(want)
	}
	return ""
}

func allOperators(m map[string]any) bool {
	for k := range m {
		if !strings.HasPrefix(k, "$") {
			return false
		}
	}
	return true
}

func operator(name string, arg, got any, present bool) string {
	switch name {
	case "$exists":
		if has := present && got != nil; has != (arg == true) {
			if has {
				return "is " + show(got) + ", want it absent"
			}
			return "is absent"
		}
		return ""
	case "$not":
		if match(got, present, arg) == "" {
			return "is " + show(got) + ", which it must not be"
		}
		return ""
	case "$any":
		options, _ := arg.([]any)
		for _, o := range options {
			if match(got, present, o) == "" {
				return ""
			}
		}
		return "is " + show(got) + ", want one of " + show(arg)
	}
	if !present {
		return "is absent"
	}
	switch name {
	case "$type":
		if typeOf(got) != arg {
			return fmt.Sprintf("is %s, want a value of type %v", show(got), arg)
		}
	case "$match":
		s, ok := got.(string)
		re, err := regexp.Compile(fmt.Sprint(arg))
		if err != nil {
			return "cannot be checked: " + err.Error()
		}
		if !ok || !re.MatchString(s) {
			return fmt.Sprintf("is %s, want text that matches %v", show(got), arg)
		}
	case "$gte":
		g, w := number(got), number(arg)
		if g == nil || w == nil || g.Cmp(w) < 0 {
			return fmt.Sprintf("is %s, want at least %v", show(got), arg)
		}
	case "$contains", "$lacks":
		if has := contains(got, arg); has != (name == "$contains") {
			if has {
				return "is " + show(got) + ", which contains " + show(arg)
			}
			return "is " + show(got) + ", want it to contain " + show(arg)
		}
		if name == "$lacks" && typeOf(got) != "array" && typeOf(got) != "string" {
			return "is " + show(got) + ", want an array or text"
		}
	case "$each":
		list, ok := got.([]any)
		if !ok {
			return "is " + show(got) + ", want an array"
		}
		for i, e := range list {
			if wrong := match(e, true, arg); wrong != "" {
				return fmt.Sprintf("element %d %s", i, wrong)
			}
		}
	case "$subset":
		object, ok := got.(map[string]any)
		if !ok {
			return "is " + show(got) + ", want an object"
		}
		members, _ := arg.(map[string]any)
		for k, w := range members {
			v, has := object[k]
			if wrong := match(v, has, w); wrong != "" {
				return k + " " + wrong
			}
		}
	case "$set":
		list, ok := got.([]any)
		wanted, _ := arg.([]any)
		if !ok || len(list) != len(wanted) {
			return "is " + show(got) + ", want in any order " + show(arg)
		}
		for _, w := range wanted {
			if !contains(list, w) {
				return "is " + show(got) + ", want in any order " + show(arg)
			}
		}
	default:
		return "cannot be checked: operator " + name + " is unknown"
	}
	return ""
}

func contains(got, want any) bool {
	switch g := got.(type) {
	case string:
		w, ok := want.(string)
		return ok && strings.Contains(g, w)
	case []any:
		for _, e := range g {
			if match(e, true, want) == "" {
				return true
			}
		}
	}
	return false
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	if number(v) != nil {
		return "number"
	}
	return "unknown"
}

// number returns the exact value of a number, nil for anything else.
func number(v any) *big.Rat {
	switch n := v.(type) {
	case json.Number:
		if len(n) > 64 {
			return nil // no exponent bombs
		}
		if r, ok := new(big.Rat).SetString(n.String()); ok {
			return r
		}
	case int:
		return new(big.Rat).SetInt64(int64(n))
	case int64:
		return new(big.Rat).SetInt64(n)
	case uint64:
		return new(big.Rat).SetInt(new(big.Int).SetUint64(n))
	case float64:
		return new(big.Rat).SetFloat64(n)
	}
	return nil
}

func equal(got, want any) bool {
	if g, w := number(got), number(want); g != nil || w != nil {
		return g != nil && w != nil && g.Cmp(w) == 0
	}
	switch g := got.(type) {
	case []any:
		w, ok := want.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range g {
			if !equalOrMatch(g[i], w[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k, v := range g {
			x, ok := w[k]
			if !ok || !equalOrMatch(v, x) {
				return false
			}
		}
		return true
	}
	return got == want
}

// equalOrMatch lets operators stand inside wanted arrays and objects.
func equalOrMatch(got, want any) bool { return match(got, true, want) == "" }

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return excerpt(b)
}
