// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/identity"
)

func parse(t testing.TB, text string) *Set {
	t.Helper()
	set, err := Parse(testSchema(t), Source{"p.cedar", []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

const everything = `permit(principal, action, resource);`

// TestStackIsTheIntersection holds the decision of random stacks equal to what
// their sets say one by one.
func TestStackIsTheIntersection(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	g := generator{rand.New(rand.NewPCG(seed, 2))}
	table, req := testTable(t), testRequest()
	masks := []string{"", `@mask("show-last-4") `, `@mask("mask-alphanum") `, `@mask("sha-256-global") `}
	for range 100 {
		var sets []*Set
		for range 1 + g.IntN(3) {
			text := read(g.condition(2)) + pick(g, "", `forbid(principal, action == Action::"readTable", resource) when { `+g.condition(1)+` };`)
			for _, column := range []string{"region", "id"} {
				if g.IntN(5) > 0 {
					text += fmt.Sprintf(`%s permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/%s");`, pick(g, masks...), column)
				}
			}
			sets = append(sets, parse(t, text))
		}
		d, err := stackOf(sets...).Rows(req, table)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			row, want := g.row(), true
			for _, s := range sets {
				want = want && reference(s, req, table, row)
			}
			if got := visible(d, row); got != want {
				t.Fatalf("seed %d: visible %v, alone they say %v", seed, got, want)
			}
		}
		columns, _, err := stackOf(sets...).columns(req, table)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range columns {
			want := ColumnDecision{FieldID: c.FieldID}
			for _, s := range sets {
				alone := columnsOf(s, req, table)[i]
				want.Absent = want.Absent || alone.Absent
				want.Mask = strictest(want.Mask, alone.Mask)
			}
			if want.Absent {
				want.Mask = ""
			}
			if c.Absent != want.Absent || c.Mask != want.Mask {
				t.Fatalf("seed %d: column %d is %v %q, alone they say %v %q", seed, c.FieldID, c.Absent, c.Mask, want.Absent, want.Mask)
			}
		}
	}
}

func TestStack(t *testing.T) {
	t.Parallel()
	table, req := testTable(t), testRequest()
	const rows = `permit(principal, action == Action::"readTable", resource);`
	for _, c := range []struct {
		name    string
		sets    []string
		allowed bool
		lacking string
		reasons []string // layer, version and policy
	}{
		{"no layer", nil, false, "", nil},
		{"all three", []string{everything, everything, everything}, true, "", []string{"platform 1", "provider 1", "recipient 1"}},
		{"an empty set", []string{everything, ""}, false, "provider", nil},
		{"a forbid", []string{everything, everything + `@id("no") forbid(principal, action, resource);`, ""}, false, "", []string{"provider 1 no"}},
		{"rows but no column", []string{rows}, false, "", nil},
		{"a column under a forbid each", []string{everything, everything + `@id("no") forbid(principal, action == Action::"readColumn", resource);`}, false, "", slices.Repeat([]string{"provider 1 no"}, 8)},
	} {
		var sets []*Set
		for _, text := range c.sets {
			sets = append(sets, parse(t, text))
		}
		d, err := stackOf(sets...).Read(req, table)
		if err != nil {
			t.Fatal(err)
		}
		var reasons []string
		for _, r := range d.Reasons {
			id := " " + r.Policy
			if strings.HasPrefix(r.Policy, "p.cedar") {
				id = ""
			}
			reasons = append(reasons, fmt.Sprint(r.Layer, " ", r.Version, id))
		}
		if d.Allowed != c.allowed || d.Lacking != c.lacking || !slices.Equal(reasons, c.reasons) {
			t.Errorf("%s: allowed %v, lacking %q, reasons %q", c.name, d.Allowed, d.Lacking, reasons)
		}
		if d.Whole() != c.allowed {
			t.Errorf("%s: whole %v", c.name, d.Whole())
		}
	}
	if _, err := NewStack(Layer{Name: "provider"}); err == nil {
		t.Error("a layer without a set is taken")
	}
}

// TestAuthorize is about the actions that are allowed or not, whatever the row.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	sales := NewWarehouse("acme", "demo").Namespace("sales", map[string]string{"team": "x"})
	share := NewShare("acme", "partners")
	for _, c := range []struct {
		name, text string
		action     Action
		resource   *Resource
		want       bool
		varies     bool
	}{
		{"by group of actions", `permit(principal, action in Action::"write", resource in Warehouse::"demo");`, CreateTable, sales, true, false},
		{"another group", `permit(principal, action in Action::"read", resource);`, CreateTable, sales, false, false},
		{"above, not itself", `permit(principal, action, resource == Warehouse::"demo");`, CreateTable, sales, false, false},
		{"the owner's people", `permit(principal, action in Action::"write", resource is Namespace) when { principal.organisation == resource.organisation };`, UpdateNamespace, sales, true, false},
		{"a tag", `permit(principal, action == Action::"updateNamespace", resource) when { resource.hasTag("team") && resource.getTag("team") == "x" };`, UpdateNamespace, sales, true, false},
		{"a group of principals", `permit(principal in Group::"analysts", action == Action::"useShare", resource == Share::"partners");`, UseShare, share, true, false},
		{"a forbid that fails", everything + `forbid(principal, action == Action::"useShare", resource) when { 9223372036854775807 + 1 > 0 };`, UseShare, share, false, false},
		{"office hours", `permit(principal, action, resource) when { context.now < datetime("2030-01-01") };`, UseShare, share, true, true},
		{"an address", `permit(principal, action, resource) when { context has ip && context.ip.isInRange(ip("10.0.0.0/8")) };`, UseShare, share, false, true},
		{"an organisation", `permit(principal in Organisation::"acme", action == Action::"manageShares", resource == Organisation::"acme");`, ManageShares, NewOrganisation("acme"), true, false},
	} {
		d := stackOf(parse(t, c.text)).Authorize(testRequest(), c.action, c.resource)
		if d.Allowed != c.want || d.Varies != c.varies {
			t.Errorf("%s: %v, varies %v", c.name, d.Allowed, d.Varies)
		}
	}
}

// TestFingerprint is equal where all that a decision depends on is.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	of := func(change func(*identity.Principal)) [32]byte {
		p := identity.Principal{
			ID: "corp:bob", Kind: identity.KindToken, Organisation: "acme", Groups: []string{"corp:a", "corp:b", "corp:c"},
			Attributes: map[string]identity.AttributeValue{
				"clearance": {Type: identity.TypeLong, Long: 3}, "regions": {Type: identity.TypeSet, Set: []string{"EU", "US"}}, "full": {Type: identity.TypeBoolean, Boolean: true},
			},
		}
		change(&p)
		return NewPrincipal(p).fingerprint
	}
	same := of(func(*identity.Principal) {})
	for range 20 {
		if of(func(p *identity.Principal) { slices.Reverse(p.Groups); p.Subject = "bob" }) != same {
			t.Fatal("the order of groups, or what no policy sees, changes the fingerprint")
		}
	}
	for i, change := range []func(*identity.Principal){
		func(p *identity.Principal) { p.ID = "corp:eve" },
		func(p *identity.Principal) { p.Kind = identity.KindService },
		func(p *identity.Principal) { p.Organisation = "" },
		func(p *identity.Principal) { p.Groups = p.Groups[1:] },
		func(p *identity.Principal) {
			p.Attributes["clearance"] = identity.AttributeValue{Type: identity.TypeLong}
		},
		func(p *identity.Principal) {
			p.Attributes["clearance"] = identity.AttributeValue{Type: identity.TypeString, String: "3"}
		},
		func(p *identity.Principal) {
			p.Attributes["regions"] = identity.AttributeValue{Type: identity.TypeSet, Set: []string{"EU"}}
		},
		func(p *identity.Principal) { delete(p.Attributes, "full") },
	} {
		if of(change) == same {
			t.Errorf("change %d leaves the fingerprint as it is", i)
		}
	}
}

// TestCheckMasks is about masks that fit no column, said when they are written.
func TestCheckMasks(t *testing.T) {
	t.Parallel()
	table := testTable(t)
	for _, c := range []struct {
		text string
		want []string
	}{
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/region");`, nil},
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/amount");`, []string{"amount is int"}},
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/others/amount");`, nil},
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource in Warehouse::"other");`, nil},
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource in Warehouse::"demo") when { resource.type == "string" };`, nil},
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource) unless { resource.type != "string" || principal in Group::"x" };`, nil},
		{`@mask("show-last-4") permit(principal, action == Action::"readColumn", resource) when { principal in Group::"x" && ["region", "open"].contains(resource.name) };`, []string{"open is boolean"}},
		{`@mask("replace-with-null") permit(principal, action == Action::"readColumn", resource);`, []string{"id, which is required"}},
		{`@mask("truncate-to-year") permit(principal, action == Action::"readColumn", resource) when { resource.name == "at" || resource.name == "price" };`, []string{"price is decimal"}},
	} {
		problems, err := parse(t, c.text).Check(table)
		if err != nil {
			t.Fatal(err)
		}
		if len(problems) != len(c.want) {
			t.Errorf("%s\n%v", c.text, problems)
			continue
		}
		for i, p := range problems {
			if !strings.Contains(p.String(), c.want[i]) || p.Line != 1 || p.Hint == "" {
				t.Errorf("%s\n%v", c.text, p)
			}
		}
	}
}

// TestFilterTextIsTheFilter parses the text of random filters again: it filters
// alike, or hides more where one of two permits fails.
func TestFilterTextIsTheFilter(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	g := generator{rand.New(rand.NewPCG(seed, 3))}
	table, req := testTable(t), testRequest()
	written := 0
	for range 300 {
		d, err := stackOf(parse(t, read(g.condition(3))+pick(g, "", read(g.condition(1))))).Rows(req, table)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed || d.Filter == nil {
			continue
		}
		written++
		text := strings.ReplaceAll(d.Filter.String(), errorText, "(9223372036854775807 + 1 > 0)")
		set, err := Parse(testSchema(t), Source{"p.cedar", []byte(read(text))})
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		// What a branch that is now gone has asked for may be missing, so that
		// the validator need not agree: it is compiled without.
		e, p := compileRule(set.policies[0], table)
		if p != nil {
			t.Fatalf("seed %d: %v\n%s", seed, p, text)
		}
		f := &folder{req: req, table: table, known: table}
		again := Decision{Allowed: true, Filter: &Filter{layers: []part{{permits: []expr{f.fold(e)}}}}}
		for _, n := range f.cols {
			again.Filter.columns = append(again.Filter.columns, n.column)
		}
		for range 20 {
			row := g.row()
			if got := visible(again, row); got != visible(d, row) && (got || len(d.Filter.layers[0].permits) == 1) {
				t.Fatalf("seed %d: row %v: the filter says %v, its text not\n%s", seed, row, visible(d, row), text)
			}
		}
	}
	if written < 100 {
		t.Errorf("%d filters", written)
	}
}
