// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go/types"
)

// String is the filter as a condition in Cedar's syntax, with what does not
// depend on the row evaluated, in the names of the table's schema. It is to be
// read: several permits are joined by ||, though a permit that fails does not
// keep the next from applying, and what fails on every row is written "error".
// It holds the values that policies compare with.
func (f *Filter) String() string {
	parts := make([]string, len(f.layers))
	for i := range f.layers {
		p := &f.layers[i]
		permitted := "true"
		if !p.everyRow {
			list := make([]string, len(p.permits))
			for i, e := range p.permits {
				list[i] = group(e, levelOr)
			}
			permitted = strings.Join(list, " || ")
			if len(list) > 1 && (len(p.forbids) > 0 || len(f.layers) > 1) {
				permitted = "(" + permitted + ")"
			}
		}
		list := []string{permitted}
		for _, e := range p.forbids {
			list = append(list, group(not{e}, levelAnd))
		}
		if permitted == "true" && len(list) > 1 {
			list = list[1:]
		}
		parts[i] = strings.Join(list, " && ")
	}
	return strings.Join(parts, " && ")
}

const errorText = "error"

// level is how tightly an expression binds, in Cedar's grammar.
type level int

const (
	levelIf level = iota
	levelOr
	levelAnd
	levelRelation
	levelAdd
	levelMultiply
	levelUnary
	levelMember
)

// group writes an expression where one of at least a level is wanted.
func group(e expr, want level) string {
	text, is := format(e)
	if is < want {
		return "(" + text + ")"
	}
	return text
}

var operatorText = map[operator]string{
	equal: "==", notEqual: "!=", less: "<", lessOrEqual: "<=", greater: ">", greaterOrEqual: ">=",
	add: "+", subtract: "-", multiply: "*",
}

func methodText[K comparable](names map[types.Path]K, op K) string {
	for name, o := range names {
		if o == op {
			return string(name)
		}
	}
	return "?"
}

func format(e expr) (string, level) {
	switch e := e.(type) {
	case constant:
		return e.value.String(), levelMember
	case failed, closed:
		return errorText, levelMember
	case column:
		return "context.row" + attributePath(e.ref.column.Name), levelMember
	case has:
		name := e.ref.column.Name
		return "context.row has " + strings.TrimPrefix(attributePath(name), "."), levelRelation
	case not:
		return "!" + group(e.arg, levelMember), levelUnary
	case and:
		return group(e.left, levelAnd) + " && " + group(e.right, levelRelation), levelAnd
	case or:
		return group(e.left, levelOr) + " || " + group(e.right, levelAnd), levelOr
	case conditional:
		return "if " + group(e.test, levelIf) + " then " + group(e.then, levelIf) + " else " + group(e.otherwise, levelIf), levelIf
	case comparison:
		if decimal(e.left) || decimal(e.right) {
			if name := methodText(decimalComparisons, e.op); name != "?" {
				return group(e.left, levelMember) + "." + name + "(" + group(e.right, levelIf) + ")", levelMember
			}
		}
		return group(e.left, levelAdd) + " " + operatorText[e.op] + " " + group(e.right, levelAdd), levelRelation
	case like:
		return group(e.arg, levelAdd) + " like " + string(e.pattern.MarshalCedar()), levelRelation
	case oneOf:
		members := make([]string, 0, len(e.in))
		for _, v := range slices.SortedFunc(maps.Keys(e.in), compareValues) {
			members = append(members, v.String())
		}
		return "[" + strings.Join(members, ", ") + "].contains(" + group(e.arg, levelIf) + ")", levelMember
	case arithmetic:
		switch e.op {
		case multiply:
			return group(e.left, levelMultiply) + " * " + group(e.right, levelUnary), levelMultiply
		case add, subtract:
			return group(e.left, levelAdd) + " " + operatorText[e.op] + " " + group(e.right, levelMultiply), levelAdd
		}
		return group(e.left, levelMember) + "." + methodText(methods, e.op) + "(" + group(e.right, levelIf) + ")", levelMember
	case unary:
		if e.op == negate {
			return "-" + group(e.arg, levelMember), levelUnary
		}
		return group(e.arg, levelMember) + "." + methodText(methods, e.op) + "()", levelMember
	default:
		return fmt.Sprintf("%T", e), levelIf
	}
}

func decimal(e expr) bool {
	switch e := e.(type) {
	case constant:
		return e.value.kind == Decimal
	case column:
		return e.ref.column.Kind == Decimal
	default:
		return false
	}
}

// attributePath writes ".a.b", or ["a b"] for what is no identifier.
func attributePath(name string) string {
	var b strings.Builder
	for _, part := range strings.Split(name, ".") {
		if part != "" && strings.IndexFunc(part, func(c rune) bool { return !isWord(c) }) < 0 && (part[0] < '0' || part[0] > '9') {
			b.WriteString("." + part)
		} else {
			b.WriteString("[" + quote(part) + "]")
		}
	}
	return b.String()
}

func compareValues(a, b Value) int {
	if a.kind != b.kind {
		return int(a.kind) - int(b.kind)
	}
	if a.kind == String {
		return strings.Compare(a.text, b.text)
	}
	switch {
	case a.number < b.number:
		return -1
	case a.number > b.number:
		return 1
	}
	return 0
}

// String is the value in Cedar's syntax.
func (v Value) String() string {
	switch v.kind {
	case Null:
		return "null"
	case Long:
		return strconv.FormatInt(v.number, 10)
	}
	c, ok := v.toCedar()
	if !ok {
		return "decimal(out of range)"
	}
	return string(c.MarshalCedar())
}
