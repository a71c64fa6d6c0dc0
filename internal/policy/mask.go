// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Mask is what is done to the values of a column before they are given out.
// All but KeyedHash are actions of the Iceberg REST specification's read
// restrictions.
type Mask string

// The masks. No mask, the empty string, shows a column plain.
const (
	ReplaceWithNull  Mask = "replace-with-null"
	MaskToFixed      Mask = "mask-to-fixed-value"
	SHA256QueryLocal Mask = "sha-256-query-local"
	// KeyedHash is HMAC-SHA-256 with a key per share.
	KeyedHash       Mask = "keyed-hash"
	SHA256Global    Mask = "sha-256-global"
	MaskAlphanum    Mask = "mask-alphanum"
	TruncateToYear  Mask = "truncate-to-year"
	TruncateToMonth Mask = "truncate-to-month"
	ShowFirst4      Mask = "show-first-4"
	ShowLast4       Mask = "show-last-4"
)

// masks is every mask, the strictest first.
var masks = []Mask{
	ReplaceWithNull, MaskToFixed, SHA256QueryLocal, KeyedHash, SHA256Global,
	MaskAlphanum, TruncateToYear, TruncateToMonth, ShowFirst4, ShowLast4,
}

// strictest returns the stricter of two masks. ShowFirst4 and ShowLast4
// together would show more than either, so the two of them give MaskAlphanum.
func strictest(a, b Mask) Mask {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	case a == ShowFirst4 && b == ShowLast4 || a == ShowLast4 && b == ShowFirst4:
		return MaskAlphanum
	case slices.Index(masks, a) < slices.Index(masks, b):
		return a
	default:
		return b
	}
}

// refusal says why a mask cannot be applied to a column, or nothing.
func (m Mask) refusal(f iceberg.NestedField) string {
	var fits bool
	var want string
	switch m {
	case "":
		return ""
	case ReplaceWithNull:
		if f.Required {
			return fmt.Sprintf("%s cannot be applied to %s, which is required", m, f.Name)
		}
		return ""
	case MaskToFixed:
		return ""
	case SHA256QueryLocal, KeyedHash, SHA256Global:
		want = "string, int, long and binary columns"
		switch f.Type.(type) {
		case iceberg.StringType, iceberg.Int32Type, iceberg.Int64Type, iceberg.BinaryType:
			fits = true
		}
	case MaskAlphanum, ShowFirst4, ShowLast4:
		want = "string columns"
		_, fits = f.Type.(iceberg.StringType)
	case TruncateToYear, TruncateToMonth:
		want = "date and timestamp columns"
		switch f.Type.(type) {
		case iceberg.DateType, iceberg.TimestampType, iceberg.TimestampTzType, iceberg.TimestampNsType, iceberg.TimestampTzNsType:
			fits = true
		}
	}
	if fits {
		return ""
	}
	return fmt.Sprintf("%s applies to %s; %s is %s", m, want, f.Name, f.Type)
}

// checkMask finds what is wrong with an @mask whatever the column.
func checkMask(r *rule) Problems {
	switch {
	case r.mask == "" && !slices.ContainsFunc(r.ast.Annotations, isMask):
		return nil
	case !slices.Contains(masks, r.mask):
		names := make([]string, len(masks))
		for i, m := range masks {
			names[i] = string(m)
		}
		return Problems{r.problem(fmt.Sprintf("unknown mask %q", r.mask), "known are "+strings.Join(names, ", "))}
	case r.forbid:
		return Problems{r.problem("a forbid cannot carry @mask", "a column under a forbid is absent; write a permit with @mask to show it masked")}
	case r.actions != bitOf(ReadColumn):
		return Problems{r.problem("@mask belongs to readColumn alone", `write action == Action::"readColumn"`)}
	}
	return nil
}

func isMask(a ast.AnnotationType) bool { return a.Key == "mask" }
