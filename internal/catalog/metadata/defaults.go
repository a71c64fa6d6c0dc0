// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// checkDefault checks a default value against the single-value JSON form of
// the specification (appendix D). It returns what is wrong, or "".
func checkDefault(t dataType, raw []byte) string {
	if raw == nil {
		return ""
	}
	if t.kind == structType || t.kind == mapType {
		if raw[0] != '{' {
			return "must be an object"
		}
		return ""
	}
	if t.kind == listType {
		if raw[0] != '[' {
			return "must be an array"
		}
		return ""
	}
	if t.name == "unknown" || t.name == "variant" || strings.HasPrefix(t.name, "geo") {
		return fmt.Sprintf("must be null for type %s", t.name)
	}
	if !validDefault(t.name, raw) {
		return fmt.Sprintf("is not a value of type %s", t.name)
	}
	return ""
}

func validDefault(name string, raw []byte) bool {
	switch name {
	case "boolean":
		return raw[0] == 't' || raw[0] == 'f'
	case "int", "long":
		n, err := strconv.ParseInt(string(raw), 10, 64)
		return err == nil && (name == "long" || n >= math.MinInt32 && n <= math.MaxInt32)
	case "float", "double":
		bitSize := map[string]int{"float": 32, "double": 64}[name]
		_, err := strconv.ParseFloat(string(raw), bitSize)
		return raw[0] != '"' && err == nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return false
	}
	switch name {
	case "string":
		return true
	case "date":
		return layout(s, "2006-01-02")
	case "time":
		return layout(s, "15:04:05.999999")
	case "timestamp":
		return layout(s, "2006-01-02T15:04:05.999999")
	case "timestamp_ns":
		return layout(s, "2006-01-02T15:04:05.999999999")
	case "timestamptz":
		return layout(s, "2006-01-02T15:04:05.999999-07:00", "2006-01-02T15:04:05.999999Z")
	case "timestamptz_ns":
		return layout(s, "2006-01-02T15:04:05.999999999-07:00", "2006-01-02T15:04:05.999999999Z")
	case "uuid":
		_, err := uuid.Parse(s)
		return err == nil && len(s) == 36
	case "binary":
		_, err := hex.DecodeString(s)
		return err == nil
	}
	if n, ok := between(name, "fixed[", "]"); ok {
		b, err := hex.DecodeString(s)
		return err == nil && strconv.Itoa(len(b)) == n
	}
	if _, ok := between(name, "decimal(", ")"); ok {
		return validDecimal(name, s)
	}
	return false
}

func layout(s string, layouts ...string) bool {
	for _, l := range layouts {
		if _, err := time.Parse(l, s); err == nil {
			return true
		}
	}
	return false
}

// validDecimal checks a decimal's text: the unscaled value must fit the
// precision and the scale must be the type's.
func validDecimal(name, s string) bool {
	var precision, scale int
	if _, err := fmt.Sscanf(name, "decimal(%d, %d)", &precision, &scale); err != nil {
		return false
	}
	s = strings.TrimPrefix(s, "-")
	if mantissa, exponent, ok := cutExponent(s); ok {
		// Java prints large scales as 1E-20.
		return len(strings.Replace(mantissa, ".", "", 1)) <= precision && digitsOnly(strings.Replace(mantissa, ".", "", 1)) && exponent >= -38 && exponent <= 38
	}
	whole, fraction, _ := strings.Cut(s, ".")
	if !digitsOnly(whole+fraction) || len(fraction) != scale {
		return false
	}
	return len(strings.TrimLeft(whole+fraction, "0")) <= precision
}

func cutExponent(s string) (string, int, bool) {
	mantissa, exponent, ok := strings.Cut(strings.ToUpper(s), "E")
	if !ok {
		return s, 0, false
	}
	n, err := strconv.Atoi(exponent)
	return mantissa, n, err == nil
}

func digitsOnly(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// canonicalDefault is a text that is equal for equal values of a type.
func canonicalDefault(t dataType, raw []byte) string {
	if raw == nil {
		return "null"
	}
	switch {
	case t.name == "float" || t.name == "double":
		if f, err := strconv.ParseFloat(string(raw), 64); err == nil {
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
	case t.name == "int" || t.name == "long":
		if n, ok := new(big.Int).SetString(string(raw), 10); ok {
			return n.String()
		}
	case raw[0] == '"':
		var s string
		if json.Unmarshal(raw, &s) == nil {
			if t.name == "binary" || t.name == "uuid" || strings.HasPrefix(t.name, "fixed[") {
				s = strings.ToLower(s)
			}
			return strconv.Quote(s)
		}
	}
	var out bytes.Buffer
	if json.Compact(&out, raw) == nil {
		return out.String()
	}
	return string(raw)
}
