// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"errors"
	"math/big"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
)

// Value is a value of a row, or of an expression on it. The zero Value is
// null: an absent attribute.
type Value struct {
	kind Kind
	// broken marks a value that Cedar has no room for: whatever compares it
	// fails.
	broken bool
	number int64 // Bool as 0 and 1; units as told at Kind
	text   string
}

// Kind is the value's kind.
func (v Value) Kind() Kind { return v.kind }

// BoolValue returns a Bool.
func BoolValue(b bool) Value {
	if b {
		return Value{kind: Bool, number: 1}
	}
	return Value{kind: Bool}
}

// LongValue returns a Long.
func LongValue(n int64) Value { return Value{kind: Long, number: n} }

// StringValue returns a String.
func StringValue(s string) Value { return Value{kind: String, text: s} }

// DateValue returns the datetime at the start of a day, counted in days since
// 1970-01-01 as Iceberg's date is.
func DateValue(days int32) Value { return Value{kind: Datetime, number: int64(days) * millisPerDay} }

// MicrosValue returns the datetime of an Iceberg timestamp in microseconds
// since 1970-01-01T00:00:00, in UTC where it has no zone. Cedar counts in
// milliseconds: what lies between two of them counts as the earlier.
func MicrosValue(micros int64) Value {
	return Value{kind: Datetime, number: floorDiv(micros, 1000)}
}

// NanosValue is [MicrosValue] for nanoseconds.
func NanosValue(nanos int64) Value {
	return Value{kind: Datetime, number: floorDiv(nanos, 1_000_000)}
}

// DecimalValue returns the decimal unscaled · 10^-scale, scale from 0 to 4.
// One that does not fit Cedar's 64 bits makes every comparison with it an
// error: a permit that compares it does not apply, a forbid does.
func DecimalValue(unscaled *big.Int, scale int) Value {
	n := new(big.Int).Mul(unscaled, big.NewInt(pow10(4-scale)))
	if !n.IsInt64() {
		return Value{kind: Decimal, broken: true}
	}
	return Value{kind: Decimal, number: n.Int64()}
}

const millisPerDay = 24 * 60 * 60 * 1000

func pow10(n int) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}

// floorDiv divides by a positive number, rounding down.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// fromCedar converts a value of a policy; false for sets, records, entities
// and addresses.
func fromCedar(v cedar.Value) (Value, bool) {
	switch v := v.(type) {
	case types.Boolean:
		return BoolValue(bool(v)), true
	case types.Long:
		return LongValue(int64(v)), true
	case types.String:
		return StringValue(string(v)), true
	case types.Datetime:
		return Value{kind: Datetime, number: v.Milliseconds()}, true
	case types.Duration:
		return Value{kind: Duration, number: v.ToMilliseconds()}, true
	case types.Decimal:
		return Value{kind: Decimal, number: decimalUnits(v)}, true
	default:
		return Value{}, false
	}
}

// toCedar is the other way; false for null and for what has no room.
func (v Value) toCedar() (cedar.Value, bool) {
	switch v.kind {
	case Bool:
		return types.Boolean(v.number == 1), true
	case Long:
		return types.Long(v.number), true
	case String:
		return types.String(v.text), true
	case Datetime:
		return types.NewDatetimeFromMillis(v.number), true
	case Duration:
		return types.NewDurationFromMillis(v.number), true
	case Decimal:
		if v.broken {
			return nil, false
		}
		d, err := types.NewDecimal(v.number, -4)
		return d, err == nil
	default:
		return nil, false
	}
}

// errKind is the error of a part whose value is of another type than its place
// asks for. No value is in it.
var errKind = errors.New("the value is not of the kind that is wanted")
