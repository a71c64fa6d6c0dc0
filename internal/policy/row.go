// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// expr is a condition, or a part of one, with context.row open. The second
// result of eval is false when Cedar would report an error; row has a value
// per column of the filter.
type expr interface {
	eval(row []Value) (Value, bool)
}

type (
	// closed is a part that does not mention the row. It is evaluated once
	// per decision, and is not in a filter.
	closed struct{ node ast.IsNode }
	// constant is a value that is known.
	constant struct{ value Value }
	// oneOf is set.contains(arg); set is closed until a decision is made.
	oneOf struct {
		set  expr
		arg  expr
		in   map[Value]struct{}
		kind Kind // of the members
	}
	// failed is a part whose evaluation is an error, whatever the row.
	failed struct{ reason error }
	// column is the value of a column.
	column struct {
		ref  *node
		slot int
	}
	// has asks for a column's presence. It fails when the struct in which it
	// lies is null.
	has struct {
		ref, within      *node // within is nil when that is never null
		slot, withinSlot int
	}
	not         struct{ arg expr }
	and         struct{ left, right expr }
	or          struct{ left, right expr }
	conditional struct{ test, then, otherwise expr }
	comparison  struct {
		op          operator
		left, right expr
	}
	like struct {
		arg     expr
		pattern types.Pattern
	}
	arithmetic struct {
		op          operator
		left, right expr
	}
	unary struct {
		op  operator
		arg expr
	}
)

type operator uint8

const (
	equal operator = iota
	notEqual
	less
	lessOrEqual
	greater
	greaterOrEqual

	add
	subtract
	multiply
	offset        // datetime + duration
	durationSince // datetime - datetime

	negate
	toDate
	toTime
	toMilliseconds
	toSeconds
	toMinutes
	toHours
	toDays
)

var decimalComparisons = map[types.Path]operator{
	"lessThan": less, "lessThanOrEqual": lessOrEqual, "greaterThan": greater, "greaterThanOrEqual": greaterOrEqual,
}

var methods = map[types.Path]operator{
	"offset": offset, "durationSince": durationSince, "toDate": toDate, "toTime": toTime, "toMilliseconds": toMilliseconds,
	"toSeconds": toSeconds, "toMinutes": toMinutes, "toHours": toHours, "toDays": toDays,
}

// compiler turns the conditions of one policy into an expression.
type compiler struct {
	rule  *rule
	table *Table
	seen  int // variables context passed so far, in the order of rule.places
}

// untranslatable is what a compiler refuses.
type untranslatable struct {
	at            int
	message, hint string
}

func (u *untranslatable) Error() string { return u.message }

// compileRule returns the conjunction of a policy's conditions; its scope is
// not part of it.
func compileRule(r *rule, t *Table) (expr, *Problem) {
	c := &compiler{rule: r, table: t}
	var all expr = constant{BoolValue(true)}
	for i, condition := range r.ast.Conditions {
		e, err := c.compile(condition.Body)
		if err != nil {
			p := r.problem(err.message, err.hint)
			if err.at < len(r.places) {
				p.Line, p.Column = r.places[err.at].line, r.places[err.at].column
			}
			p.Table = t.ID()
			return nil, &p
		}
		if condition.Condition == ast.ConditionUnless {
			e = not{e}
		}
		if i == 0 {
			all = e
		} else {
			all = and{all, e}
		}
	}
	return all, nil
}

// mentionsRow reports whether a part must be translated: it speaks of
// context.row, or of context as a whole.
func mentionsRow(n ast.IsNode) (found bool) {
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		if name, ok := contextMember(n); ok {
			found = found || name == "row"
			return false
		}
		found = found || isContext(n)
		return !found
	})
	return found
}

func countContext(n ast.IsNode) (count int) {
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		if isContext(n) {
			count++
		}
		return true
	})
	return count
}

func (c *compiler) compile(n ast.IsNode) (expr, *untranslatable) {
	at := c.seen
	refuse := func(hint, format string, args ...any) (expr, *untranslatable) {
		return nil, &untranslatable{at, fmt.Sprintf(format, args...), hint}
	}
	if !mentionsRow(n) {
		c.seen += countContext(n)
		return closed{n}, nil
	}
	switch n := n.(type) {
	case ast.NodeTypeVariable:
		return refuse("name one of its attributes: context.row.<column>", "context cannot be used as a value")
	case ast.NodeTypeAccess:
		ref, err := c.path(n)
		if err != nil {
			return nil, err
		}
		if ref.column.Kind == Null {
			return refuse("compare its fields one by one", "%s is a record", pathText(n))
		}
		return column{ref: ref}, nil
	case ast.NodeTypeHas:
		return c.has(n)
	case ast.NodeTypeNot:
		arg, err := c.compile(n.Arg)
		return not{arg}, err
	case ast.NodeTypeAnd:
		left, right, err := c.both(n.BinaryNode)
		return and{left, right}, err
	case ast.NodeTypeOr:
		left, right, err := c.both(n.BinaryNode)
		return or{left, right}, err
	case ast.NodeTypeIfThenElse:
		test, err := c.compile(n.If)
		if err != nil {
			return nil, err
		}
		then, otherwise, err := c.both(ast.BinaryNode{Left: n.Then, Right: n.Else})
		return conditional{test, then, otherwise}, err
	case ast.NodeTypeEquals:
		return c.comparison(equal, n.BinaryNode)
	case ast.NodeTypeNotEquals:
		return c.comparison(notEqual, n.BinaryNode)
	case ast.NodeTypeLessThan:
		return c.comparison(less, n.BinaryNode)
	case ast.NodeTypeLessThanOrEqual:
		return c.comparison(lessOrEqual, n.BinaryNode)
	case ast.NodeTypeGreaterThan:
		return c.comparison(greater, n.BinaryNode)
	case ast.NodeTypeGreaterThanOrEqual:
		return c.comparison(greaterOrEqual, n.BinaryNode)
	case ast.NodeTypeAdd:
		return c.arithmetic(add, n.BinaryNode)
	case ast.NodeTypeSub:
		return c.arithmetic(subtract, n.BinaryNode)
	case ast.NodeTypeMult:
		return c.arithmetic(multiply, n.BinaryNode)
	case ast.NodeTypeNegate:
		arg, err := c.compile(n.Arg)
		return unary{negate, arg}, err
	case ast.NodeTypeLike:
		arg, err := c.compile(n.Arg)
		return like{arg, n.Value}, err
	case ast.NodeTypeContains:
		if mentionsRow(n.Left) {
			return refuse(`write the columns apart: context.row.a == x || context.row.b == x`, "a set cannot be made of columns")
		}
		set, arg, err := c.both(n.BinaryNode)
		return oneOf{set: set, arg: arg}, err
	case ast.NodeTypeContainsAll, ast.NodeTypeContainsAny, ast.NodeTypeIsEmpty, ast.NodeTypeSet:
		return refuse(`write [...].contains(context.row.<column>)`, "a set cannot be made of columns")
	case ast.NodeTypeRecord:
		return refuse("compare the columns one by one", "a record cannot be made of columns")
	case ast.NodeTypeGetTag, ast.NodeTypeHasTag:
		return refuse("write the tag's name in the policy", "the name of a tag cannot come from the row")
	case ast.NodeTypeExtensionCall:
		if op, ok := decimalComparisons[n.Name]; ok && len(n.Args) == 2 {
			return c.comparison(op, ast.BinaryNode{Left: n.Args[0], Right: n.Args[1]})
		}
		switch op, ok := methods[n.Name]; {
		case ok && len(n.Args) == 2:
			return c.arithmetic(op, ast.BinaryNode{Left: n.Args[0], Right: n.Args[1]})
		case ok && len(n.Args) == 1:
			arg, err := c.compile(n.Args[0])
			return unary{op, arg}, err
		}
		return refuse("its argument has to be known when the policy is written", "%s cannot be applied to a column", n.Name)
	default:
		return refuse("", "the row cannot be used here")
	}
}

func (c *compiler) both(n ast.BinaryNode) (left, right expr, err *untranslatable) {
	if left, err = c.compile(n.Left); err != nil {
		return nil, nil, err
	}
	right, err = c.compile(n.Right)
	return left, right, err
}

func (c *compiler) comparison(op operator, n ast.BinaryNode) (expr, *untranslatable) {
	left, right, err := c.both(n)
	return comparison{op, left, right}, err
}

func (c *compiler) arithmetic(op operator, n ast.BinaryNode) (expr, *untranslatable) {
	left, right, err := c.both(n)
	return arithmetic{op, left, right}, err
}

func (c *compiler) has(n ast.NodeTypeHas) (expr, *untranslatable) {
	if isContext(n.Arg) { // context has row
		c.seen++
		return constant{BoolValue(true)}, nil
	}
	at := c.seen
	within, err := c.path(n.Arg)
	if err != nil {
		return nil, err
	}
	ref, err := c.field(at, within, string(n.Value))
	if err != nil {
		return nil, err
	}
	h := has{ref: ref}
	if within != c.table.row && !within.column.Required {
		h.within = within
	}
	return h, nil
}

// path resolves context.row.a.b.
func (c *compiler) path(n ast.IsNode) (*node, *untranslatable) {
	at := c.seen
	access, ok := n.(ast.NodeTypeAccess)
	if !ok {
		return nil, &untranslatable{at, "a column can only be named as context.row.<column>", ""}
	}
	if isContext(access.Arg) {
		c.seen++
		return c.table.row, nil // only context.row gets here: mentionsRow
	}
	within, err := c.path(access.Arg)
	if err != nil {
		return nil, err
	}
	return c.field(at, within, string(access.Value))
}

func (c *compiler) field(at int, within *node, name string) (*node, *untranslatable) {
	f := within.field(name)
	if f == nil {
		u := &untranslatable{at, fmt.Sprintf("there is no column %q", name), ""}
		for _, other := range within.fields {
			if strings.EqualFold(other.name, name) {
				u.hint = fmt.Sprintf("there is %q", other.name)
			}
		}
		return nil, u
	}
	if f.refusal != "" {
		return nil, &untranslatable{at, fmt.Sprintf("column %q is %s: %s", f.column.Name, f.column.Type, f.refusal), ""}
	}
	return f, nil
}

func pathText(n ast.IsNode) string {
	if a, ok := n.(ast.NodeTypeAccess); ok {
		return pathText(a.Arg) + "." + string(a.Value)
	}
	return "context"
}

// folder makes a filter's expression of a policy's, for one principal.
type folder struct {
	req   Request
	table *Table
	known *Table    // the table as the layer's set knows it
	env   *eval.Env // see environment
	slots map[*node]int
	cols  []*node
}

func (f *folder) slot(n *node) int {
	s, ok := f.slots[n]
	if !ok {
		if f.slots == nil {
			f.slots = map[*node]int{}
		}
		s = len(f.cols)
		f.slots[n] = s
		f.cols = append(f.cols, n)
	}
	return s
}

// fold evaluates what is closed and drops what then no longer matters,
// exactly as Cedar's evaluation order has it.
func (f *folder) fold(e expr) expr {
	switch e := e.(type) {
	case closed:
		v, err := f.value(e)
		if err != nil {
			return failed{err}
		}
		known, ok := fromCedar(v)
		if !ok {
			return failed{errKind}
		}
		return constant{known}
	case column:
		e.slot = f.slot(e.ref)
		return e
	case has:
		e.slot = f.slot(e.ref)
		if e.within != nil {
			e.withinSlot = f.slot(e.within)
		}
		return e
	case not:
		return simplify(not{f.fold(e.arg)})
	case and:
		left := f.fold(e.left)
		if v, ok, known := settled(left); known && (!ok || !v.isTrue()) {
			return onlyBool(left)
		} else if known {
			return f.fold(e.right)
		}
		right := f.fold(e.right)
		if v, ok, known := settled(right); known && ok && v.isTrue() && yieldsBool(left) {
			return left
		}
		return and{left, right}
	case or:
		left := f.fold(e.left)
		if v, ok, known := settled(left); known && (!ok || !v.isFalse()) {
			return onlyBool(left)
		} else if known {
			return f.fold(e.right)
		}
		right := f.fold(e.right)
		if v, ok, known := settled(right); known && ok && v.isFalse() && yieldsBool(left) {
			return left
		}
		return or{left, right}
	case conditional:
		test := f.fold(e.test)
		switch v, ok, known := settled(test); {
		case known && ok && v.isTrue():
			return f.fold(e.then)
		case known && ok && v.isFalse():
			return f.fold(e.otherwise)
		case known:
			return onlyBool(test)
		}
		return conditional{test, f.fold(e.then), f.fold(e.otherwise)}
	case comparison:
		return simplify(comparison{e.op, f.fold(e.left), f.fold(e.right)})
	case like:
		return simplify(like{f.fold(e.arg), e.pattern})
	case arithmetic:
		return simplify(arithmetic{e.op, f.fold(e.left), f.fold(e.right)})
	case unary:
		return simplify(unary{e.op, f.fold(e.arg)})
	case oneOf:
		return f.foldOneOf(e)
	default:
		return e
	}
}

// yieldsBool reports whether an expression is a Bool or an error.
func yieldsBool(e expr) bool {
	switch e := e.(type) {
	case has, not, and, or, comparison, like, oneOf:
		return true
	case column:
		return e.ref.column.Kind == Bool
	default:
		return false
	}
}

func (f *folder) value(e closed) (cedar.Value, error) { return eval.Eval(e.node, f.environment()) }

func (f *folder) foldOneOf(e oneOf) expr {
	part, ok := e.set.(closed)
	if !ok {
		return failed{errKind}
	}
	v, err := f.value(part)
	if err != nil {
		return failed{err}
	}
	set, ok := v.(types.Set)
	if !ok {
		return failed{errKind}
	}
	in := make(map[Value]struct{}, set.Len())
	kind := Null
	for member := range set.All() {
		if v, ok := fromCedar(member); ok { // others equal no column
			in[v] = struct{}{}
			kind = v.kind
		}
	}
	return simplify(oneOf{arg: f.fold(e.arg), in: in, kind: kind})
}

// settled returns what an expression is whatever the row, if that is known.
func settled(e expr) (v Value, ok, known bool) {
	switch e := e.(type) {
	case constant:
		return e.value, true, true
	case failed:
		return Value{}, false, true
	default:
		return Value{}, false, false
	}
}

// onlyBool turns a settled value that is not a Bool into the error it is as
// a condition.
func onlyBool(e expr) expr {
	if c, ok := e.(constant); ok && c.value.kind != Bool {
		return failed{errKind}
	}
	return e
}

// simplify evaluates an expression whose parts are all settled. Of two parts
// that are both evaluated in any case, one that fails fails the whole.
func simplify(e expr) expr {
	open := false
	for _, part := range partsOf(e) {
		_, ok, known := settled(part)
		switch {
		case known && !ok:
			return part
		case !known:
			open = true
		}
	}
	if open {
		return e
	}
	v, ok := e.eval(nil)
	if !ok {
		return failed{errKind}
	}
	return constant{v}
}

func partsOf(e expr) []expr {
	switch e := e.(type) {
	case not:
		return []expr{e.arg}
	case comparison:
		return []expr{e.left, e.right}
	case arithmetic:
		return []expr{e.left, e.right}
	case unary:
		return []expr{e.arg}
	case like:
		return []expr{e.arg}
	case oneOf:
		return []expr{e.arg}
	default:
		return nil
	}
}
