// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"encoding/json"
	"math"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
	"github.com/cedar-policy/cedar-go/types"
)

// maxPrune bounds an expression of [Filter.Prune] in predicates. A larger one
// costs more to evaluate per file than it saves, and nested conditions could
// make it grow without bound.
const maxPrune = 1000

// Prune returns an Iceberg expression, in the names of the table's schema, that
// holds for every row that can be seen, and for others: it tells which files
// need not be read. Where nothing better can be said it is AlwaysTrue. The
// Iceberg meaning of null applies: a comparison with null does not hold.
func (f *Filter) Prune() iceberg.BooleanExpression {
	all := always
	for i := range f.layers {
		p := &f.layers[i]
		permitted := never
		if p.everyRow {
			permitted = always
		}
		for _, e := range p.permits {
			permitted = permitted.or(boundsOf(e).holds)
		}
		all = all.and(permitted)
		for _, e := range p.forbids {
			all = all.and(boundsOf(e).fails)
		}
	}
	return all.expr
}

// superset is an expression that holds for at least the rows that are meant.
type superset struct {
	expr iceberg.BooleanExpression
	size int // predicates in it
}

var (
	always = superset{iceberg.AlwaysTrue{}, 0}
	never  = superset{iceberg.AlwaysFalse{}, 0}
)

// and keeps one side alone when both would be too large: that holds for more.
func (s superset) and(o superset) superset {
	switch {
	case s.size+o.size <= maxPrune:
		return superset{iceberg.NewAnd(s.expr, o.expr), s.size + o.size}
	case s.size <= o.size && s.expr.Op() != iceberg.OpTrue || o.expr.Op() == iceberg.OpTrue:
		return s
	default:
		return o
	}
}

func (s superset) or(o superset) superset {
	if s.size+o.size > maxPrune {
		return always
	}
	return superset{iceberg.NewOr(s.expr, o.expr), s.size + o.size}
}

// bounds are supersets of the rows for which a condition is true, and of those
// for which it is false. A row for which it is an error is in neither.
type bounds struct{ holds, fails superset }

func boundsOf(e expr) bounds {
	switch e := e.(type) {
	case constant:
		switch {
		case e.value.isTrue():
			return bounds{always, never}
		case e.value.isFalse():
			return bounds{never, always}
		}
		return bounds{never, never}
	case failed:
		return bounds{never, never}
	case column:
		if e.ref.column.Kind != Bool {
			return bounds{never, never}
		}
		return bounds{boolean(e.ref, true), boolean(e.ref, false)}
	case has:
		if e.ref.column.Kind == Null { // Iceberg has no predicate on structs
			return bounds{always, always}
		}
		return bounds{unaryPredicate(iceberg.OpNotNull, e.ref), unaryPredicate(iceberg.OpIsNull, e.ref)}
	case not:
		b := boundsOf(e.arg)
		return bounds{b.fails, b.holds}
	case and:
		l, r := boundsOf(e.left), boundsOf(e.right)
		return bounds{l.holds.and(r.holds), l.fails.or(r.fails)}
	case or:
		l, r := boundsOf(e.left), boundsOf(e.right)
		return bounds{l.holds.or(r.holds), l.fails.and(r.fails)}
	case conditional:
		test, then, otherwise := boundsOf(e.test), boundsOf(e.then), boundsOf(e.otherwise)
		return bounds{
			test.holds.and(then.holds).or(test.fails.and(otherwise.holds)),
			test.holds.and(then.fails).or(test.fails.and(otherwise.fails)),
		}
	case comparison:
		return comparisonBounds(e)
	case like:
		return likeBounds(e)
	case oneOf:
		return oneOfBounds(e)
	default:
		return bounds{always, always}
	}
}

// present holds where no column is null that would make a part an error.
func present(parts ...expr) superset {
	s := always
	for _, p := range parts {
		if c, ok := p.(column); ok {
			s = s.and(unaryPredicate(iceberg.OpNotNull, c.ref))
			continue
		}
		switch p.(type) {
		case comparison, arithmetic, unary, like, oneOf, not: // all evaluate every part
			s = s.and(present(partsOf(p)...))
		}
	}
	return s
}

func comparisonBounds(e comparison) bounds {
	left, right, op := e.left, e.right, e.op
	if _, ok := left.(constant); ok {
		left, right, op = right, left, op.mirrored()
	}
	c, ok := left.(column)
	k, known := right.(constant)
	if !ok || !known || c.ref.column.Kind != k.value.kind {
		p := present(e.left, e.right)
		return bounds{p, p}
	}
	return bounds{compare(c.ref, op, k.value), compare(c.ref, op.negated(), k.value)}
}

// mirrored is the operator with its sides changed.
func (o operator) mirrored() operator {
	switch o {
	case less:
		return greater
	case lessOrEqual:
		return greaterOrEqual
	case greater:
		return less
	case greaterOrEqual:
		return lessOrEqual
	default:
		return o
	}
}

// negated is the operator that holds where a comparison without an error does
// not.
func (o operator) negated() operator {
	switch o {
	case equal:
		return notEqual
	case notEqual:
		return equal
	case less:
		return greaterOrEqual
	case lessOrEqual:
		return greater
	case greater:
		return lessOrEqual
	default:
		return less
	}
}

// compare holds for the rows whose column compares so with a value of its kind.
func compare(n *node, op operator, v Value) superset {
	switch {
	case v.kind == Bool && op == equal:
		return boolean(n, v.isTrue())
	case v.kind == Bool && op == notEqual:
		return boolean(n, !v.isTrue())
	case v.kind == String && op == equal:
		return literal(iceberg.OpEQ, n, iceberg.StringLiteral(v.text))
	case v.kind == String && op == notEqual:
		return literal(iceberg.OpNEQ, n, iceberg.StringLiteral(v.text)).and(present(column{ref: n}))
	}
	u, ok := unitsOf(n.column.Type)
	if !ok {
		return present(column{ref: n})
	}
	from, to := u.span(v.number)
	switch op {
	case less:
		return u.below(n, from)
	case lessOrEqual:
		return u.below(n, to)
	case greater:
		return u.atLeast(n, to)
	case greaterOrEqual:
		return u.atLeast(n, from)
	case equal:
		return u.between(n, from, to)
	case notEqual:
		if from.Cmp(to) >= 0 {
			return present(column{ref: n})
		}
		return u.below(n, from).or(u.atLeast(n, to))
	default:
		return present(column{ref: n})
	}
}

// units tell how the stored numbers of a column are Cedar's: stored number s is
// s·times where times is set, else s/per rounded down.
type units struct {
	times, per int64
	min, max   *big.Int // what can be stored; nil where all that matters can
	literal    func(*big.Int) iceberg.Literal
}

func unitsOf(t iceberg.Type) (units, bool) {
	long := func(make func(int64) iceberg.Literal) func(*big.Int) iceberg.Literal {
		return func(n *big.Int) iceberg.Literal { return make(n.Int64()) }
	}
	minLong, maxLong := big.NewInt(math.MinInt64), big.NewInt(math.MaxInt64)
	minInt, maxInt := big.NewInt(math.MinInt32), big.NewInt(math.MaxInt32)
	switch t := t.(type) {
	case iceberg.Int32Type:
		return units{1, 0, minInt, maxInt, long(func(n int64) iceberg.Literal { return iceberg.Int32Literal(n) })}, true
	case iceberg.Int64Type:
		return units{1, 0, minLong, maxLong, long(func(n int64) iceberg.Literal { return iceberg.Int64Literal(n) })}, true
	case iceberg.DateType:
		return units{millisPerDay, 0, minInt, maxInt, long(func(n int64) iceberg.Literal { return iceberg.DateLiteral(n) })}, true
	case iceberg.TimestampType, iceberg.TimestampTzType:
		return units{0, 1000, minLong, maxLong, long(func(n int64) iceberg.Literal { return iceberg.TimestampLiteral(n) })}, true
	case iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return units{0, 1_000_000, minLong, maxLong, long(func(n int64) iceberg.Literal { return iceberg.TimestampNsLiteral(n) })}, true
	case iceberg.DecimalType:
		scale := t.Scale()
		return units{pow10(4 - scale), 0, nil, nil, func(n *big.Int) iceberg.Literal {
			return iceberg.DecimalLiteral{Val: decimal128.FromBigInt(n), Scale: scale}
		}}, true
	default:
		return units{}, false
	}
}

// span returns the stored numbers that are Cedar's n: from, and up to before
// to. There are none when from is to; then it is the place where they would be.
func (u units) span(n int64) (from, to *big.Int) {
	one := big.NewInt(1)
	if u.per > 0 {
		from = new(big.Int).Mul(big.NewInt(n), big.NewInt(u.per))
		return from, new(big.Int).Add(from, big.NewInt(u.per))
	}
	floor, rest := new(big.Int).DivMod(big.NewInt(n), big.NewInt(u.times), new(big.Int)) // Euclidean: the rest is never negative
	to = new(big.Int).Add(floor, one)
	if rest.Sign() != 0 {
		return to, to
	}
	return floor, to
}

func (u units) below(n *node, limit *big.Int) superset {
	switch {
	case u.max != nil && limit.Cmp(u.max) > 0:
		return present(column{ref: n})
	case u.min != nil && limit.Cmp(u.min) <= 0:
		return never
	}
	return literal(iceberg.OpLT, n, u.literal(limit))
}

func (u units) atLeast(n *node, limit *big.Int) superset {
	switch {
	case u.min != nil && limit.Cmp(u.min) <= 0:
		return present(column{ref: n})
	case u.max != nil && limit.Cmp(u.max) > 0:
		return never
	}
	return literal(iceberg.OpGTEQ, n, u.literal(limit))
}

func (u units) between(n *node, from, to *big.Int) superset {
	size := new(big.Int).Sub(to, from)
	switch {
	case size.Sign() <= 0:
		return never
	case size.IsInt64() && size.Int64() == 1 && (u.min == nil || from.Cmp(u.min) >= 0 && from.Cmp(u.max) <= 0):
		return literal(iceberg.OpEQ, n, u.literal(from))
	}
	return u.atLeast(n, from).and(u.below(n, to))
}

// likeBounds makes use of what a pattern begins with.
func likeBounds(e like) bounds {
	p := present(e.arg)
	c, ok := e.arg.(column)
	if !ok || c.ref.column.Kind != String {
		return bounds{p, p}
	}
	prefix := prefixOf(e.pattern)
	if prefix == "" {
		return bounds{p, p}
	}
	return bounds{literal(iceberg.OpStartsWith, c.ref, iceberg.StringLiteral(prefix)), p}
}

// prefixOf is what every text that a pattern matches begins with. The pattern
// shows its parts in its JSON form alone.
func prefixOf(p types.Pattern) string {
	raw, err := p.MarshalJSON()
	if err != nil {
		return ""
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
		return ""
	}
	var first struct{ Literal string }
	if json.Unmarshal(parts[0], &first) != nil { // "Wildcard"
		return ""
	}
	return first.Literal
}

func oneOfBounds(e oneOf) bounds {
	p := present(e.arg)
	c, ok := e.arg.(column)
	if !ok {
		return bounds{p, p}
	}
	holds := never
	for v := range e.in {
		if v.kind == c.ref.column.Kind {
			holds = holds.or(compare(c.ref, equal, v))
		}
	}
	return bounds{holds, p}
}

func boolean(n *node, want bool) superset {
	return literal(iceberg.OpEQ, n, iceberg.BoolLiteral(want))
}

func literal(op iceberg.Operation, n *node, l iceberg.Literal) superset {
	return superset{iceberg.LiteralPredicate(op, iceberg.Reference(n.column.Name), l), 1}
}

func unaryPredicate(op iceberg.Operation, n *node) superset {
	return superset{iceberg.UnaryPredicate(op, iceberg.Reference(n.column.Name)), 1}
}
