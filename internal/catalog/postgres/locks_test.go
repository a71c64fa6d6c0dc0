// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"slices"
	"strings"
	"testing"
)

// FuzzLocationLocks checks the one property that everything rests on: of two
// overlapping locations, one is locked exclusively where the other is locked,
// too. And that many levels do not make many locks.
func FuzzLocationLocks(f *testing.F) {
	for _, s := range [][2]string{
		{"s3://b/w/a", "s3://b/w/a"},
		{"s3://b/w/a", "s3://b/w/a/b"},
		{"s3://b/w/a", "s3://b/w/ab"},
		{"s3://b", "s3://b/w/a"},
		{"file:///w/a", "file:///w"},
		{"file:///", "file:///w"},
		{"no scheme", "no scheme/x"},
		{"s3://b//", "s3://b///x"},
		{"s3://b" + strings.Repeat("/x", 100), "s3://b" + strings.Repeat("/x", 50)},
		{"s3://b" + strings.Repeat("/x", 100), "s3://b" + strings.Repeat("/x", 100) + "/y"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.HasSuffix(a, "/") || strings.HasSuffix(b, "/") {
			t.Skip("locations are stored without a trailing slash")
		}
		la, lb := locationLocks([]string{a}), locationLocks([]string{b})
		for _, locks := range [][]locationLock{la, lb, locationLocks([]string{a, b})} {
			if len(locks) > 2*lockDepth {
				t.Errorf("%d locks", len(locks))
			}
			if !slices.IsSortedFunc(locks, func(x, y locationLock) int { return strings.Compare(x.location, y.location) }) {
				t.Errorf("locks are not in order: %v", locks)
			}
		}
		overlap := a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
		if overlap && !exclude(la, lb) {
			t.Errorf("%q and %q overlap, but their locks do not exclude each other:\n%v\n%v", a, b, la, lb)
		}
	})
}

func exclude(a, b []locationLock) bool {
	for _, x := range a {
		for _, y := range b {
			if x.location == y.location && (x.exclusive || y.exclusive) {
				return true
			}
		}
	}
	return false
}

func TestUnrelatedLocationsDoNotWait(t *testing.T) {
	t.Parallel()
	a := locationLocks([]string{"s3://bucket/warehouse/0f3c"})
	b := locationLocks([]string{"s3://bucket/warehouse/0f3d", "s3://bucket/data/0f3d"})
	if exclude(a, b) {
		t.Errorf("they do:\n%v\n%v", a, b)
	}
	both := locationLocks([]string{"s3://b/a", "s3://b/a/data"})
	for _, l := range both {
		if l.location == "s3://b/a" && !l.exclusive {
			t.Error("a location that is also an ancestor is locked shared: two who reserve both would lock each other out")
		}
	}
}
