// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"cmp"
	"math"
	"math/bits"
	"strings"

	"github.com/cedar-policy/cedar-go/types"
)

func (v Value) isTrue() bool  { return v.kind == Bool && v.number == 1 }
func (v Value) isFalse() bool { return v.kind == Bool && v.number == 0 }

func (closed) eval([]Value) (Value, bool) { return Value{}, false }

func (e constant) eval([]Value) (Value, bool) { return e.value, true }

func (failed) eval([]Value) (Value, bool) { return Value{}, false }

func (e column) eval(row []Value) (Value, bool) {
	v := row[e.slot]
	return v, v.kind == e.ref.column.Kind // null is an error: an absent attribute
}

func (e has) eval(row []Value) (Value, bool) {
	if row[e.slot].kind != Null {
		return BoolValue(true), true
	}
	return BoolValue(false), e.within == nil || row[e.withinSlot].kind != Null
}

func (e not) eval(row []Value) (Value, bool) {
	v, ok := e.arg.eval(row)
	return BoolValue(v.number == 0), ok && v.kind == Bool
}

func (e and) eval(row []Value) (Value, bool) {
	v, ok := e.left.eval(row)
	if !ok || !v.isTrue() {
		return v, ok && v.kind == Bool
	}
	v, ok = e.right.eval(row)
	return v, ok && v.kind == Bool
}

func (e or) eval(row []Value) (Value, bool) {
	v, ok := e.left.eval(row)
	if !ok || !v.isFalse() {
		return v, ok && v.kind == Bool
	}
	v, ok = e.right.eval(row)
	return v, ok && v.kind == Bool
}

func (e conditional) eval(row []Value) (Value, bool) {
	v, ok := e.test.eval(row)
	if !ok || v.kind != Bool {
		return Value{}, false
	}
	if v.isTrue() {
		return e.then.eval(row)
	}
	return e.otherwise.eval(row)
}

func (e comparison) eval(row []Value) (Value, bool) {
	left, ok := e.left.eval(row)
	if !ok {
		return Value{}, false
	}
	right, ok := e.right.eval(row)
	if !ok || left.broken || right.broken {
		return Value{}, false
	}
	switch e.op {
	case equal:
		return BoolValue(left == right), true
	case notEqual:
		return BoolValue(left != right), true
	}
	if left.kind != right.kind {
		return Value{}, false
	}
	switch left.kind {
	case Long, Datetime, Duration, Decimal:
		return BoolValue(e.op.holds(cmp.Compare(left.number, right.number))), true
	default: // Cedar orders nothing else
		return Value{}, false
	}
}

// holds says what a comparison gives for the order of its sides.
func (o operator) holds(order int) bool {
	switch o {
	case less:
		return order < 0
	case lessOrEqual:
		return order <= 0
	case greater:
		return order > 0
	case greaterOrEqual:
		return order >= 0
	default:
		return false
	}
}

func (e like) eval(row []Value) (Value, bool) {
	v, ok := e.arg.eval(row)
	if !ok || v.kind != String {
		return Value{}, false
	}
	return BoolValue(e.pattern.Match(types.String(v.text))), true
}

func (e oneOf) eval(row []Value) (Value, bool) {
	v, ok := e.arg.eval(row)
	if !ok || v.broken {
		return Value{}, false
	}
	_, found := e.in[v]
	return BoolValue(found), true
}

func (e arithmetic) eval(row []Value) (Value, bool) {
	left, ok := e.left.eval(row)
	if !ok {
		return Value{}, false
	}
	right, ok := e.right.eval(row)
	if !ok {
		return Value{}, false
	}
	a, b := left.number, right.number
	switch {
	case e.op == offset && left.kind == Datetime && right.kind == Duration:
		sum, ok := addInt64(a, b)
		return Value{kind: Datetime, number: sum}, ok
	case e.op == durationSince && left.kind == Datetime && right.kind == Datetime:
		difference, ok := subtractInt64(a, b)
		return Value{kind: Duration, number: difference}, ok
	case left.kind != Long || right.kind != Long:
		return Value{}, false
	case e.op == add:
		sum, ok := addInt64(a, b)
		return LongValue(sum), ok
	case e.op == subtract:
		difference, ok := subtractInt64(a, b)
		return LongValue(difference), ok
	case e.op == multiply:
		product, ok := multiplyInt64(a, b)
		return LongValue(product), ok
	default:
		return Value{}, false
	}
}

func addInt64(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

func subtractInt64(a, b int64) (int64, bool) {
	difference := a - b
	return difference, (difference < a) == (b > 0)
}

func multiplyInt64(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	if (a < 0) != (b < 0) {
		return int64(-lo), hi == 0 && lo <= 1<<63
	}
	return int64(lo), hi == 0 && lo < 1<<63
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

func (e unary) eval(row []Value) (Value, bool) {
	v, ok := e.arg.eval(row)
	if !ok {
		return Value{}, false
	}
	n := v.number
	switch {
	case e.op == negate:
		return LongValue(-n), v.kind == Long && n != math.MinInt64
	case v.kind == Datetime && e.op == toDate:
		days := floorDiv(n, millisPerDay)
		return Value{kind: Datetime, number: days * millisPerDay}, days >= math.MinInt64/millisPerDay
	case v.kind == Datetime && e.op == toTime:
		return Value{kind: Duration, number: n - floorDiv(n, millisPerDay)*millisPerDay}, true
	case v.kind != Duration:
		return Value{}, false
	case e.op == toMilliseconds:
		return LongValue(n), true
	case e.op == toSeconds:
		return LongValue(n / 1000), true
	case e.op == toMinutes:
		return LongValue(n / (60 * 1000)), true
	case e.op == toHours:
		return LongValue(n / (60 * 60 * 1000)), true
	case e.op == toDays:
		return LongValue(n / millisPerDay), true
	default:
		return Value{}, false
	}
}

// decimalUnits returns a decimal in ten-thousandths. The type does not tell;
// its text is exact.
func decimalUnits(d types.Decimal) int64 {
	text := d.String()
	whole, fraction, _ := strings.Cut(text, ".")
	fraction += "0000"[:4-len(fraction)]
	var n int64
	for _, c := range strings.TrimPrefix(whole, "-") + fraction {
		n = n*10 - int64(c-'0') // downwards: the smallest has no counterpart
	}
	if strings.HasPrefix(whole, "-") {
		return n
	}
	return -n
}
