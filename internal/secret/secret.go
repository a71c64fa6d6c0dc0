// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package secret holds values that never print. A [Value] shows as REDACTED in
// every way in which Go formats, encodes or logs a value; only Reveal gives
// what it holds.
package secret

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Redacted is what a secret looks like wherever it is printed.
const Redacted = "REDACTED"

// Value is a secret. The zero Value is empty.
type Value struct{ b []byte }

// New returns a Value that holds a copy of s.
func New(s string) Value { return Value{b: []byte(s)} }

// Reveal returns the secret. Callers hand it to whoever checks or signs, and
// to nobody else.
func (v Value) Reveal() string { return string(v.b) }

// Empty reports whether there is no secret.
func (v Value) Empty() bool { return len(v.b) == 0 }

// Equal compares in constant time.
func (v Value) Equal(o Value) bool { return subtle.ConstantTimeCompare(v.b, o.b) == 1 }

// String, GoString, Format, MarshalText, MarshalJSON and LogValue all give
// Redacted.
func (v Value) String() string { return Redacted }

// GoString is String.
func (v Value) GoString() string { return Redacted }

// Format is String for every verb.
func (v Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// MarshalText is String.
func (v Value) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON is String in quotes.
func (v Value) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// LogValue is String.
func (v Value) LogValue() slog.Value { return slog.StringValue(Redacted) }
