// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"strings"
	"testing"
)

const casesSet = `
@id("analysts-read") permit(principal in Group::"corp:analysts", action == Action::"readTable", resource in Share::"partners")
when { context.row has region && principal has regions && principal.regions.contains(context.row.region) };
@id("columns") permit(principal in Group::"corp:analysts", action == Action::"readColumn", resource in Share::"partners")
unless { resource.hasTag("pii") };
@id("pii-masked") @mask("show-last-4") permit(principal in Group::"corp:analysts", action == Action::"readColumn", resource in Share::"partners")
when { resource.hasTag("pii") && resource.type == "string" };
@id("etl") permit(principal == Service::"account:etl", action in Action::"write", resource in Warehouse::"demo");
`

const casesText = `
principals:
  alice:
    user: corp:alice
    organisation: globex
    groups: [corp:analysts]
    attributes: {regions: [EU, US], clearance: 3}
  etl: {service: "account:etl", organisation: acme}
tables:
  demo/sales/orders:
    organisation: acme
    shares: [partners]
    columns:
      - {name: id, type: long, required: true}
      - {name: region, type: string}
      - {name: phone, type: string, tags: {pii: "yes"}}
      - {name: born, type: date, tags: {pii: "yes"}}
      - {name: price, type: "decimal(10, 2)"}
      - {name: at, type: timestamptz}
      - {name: address, fields: [{name: city, type: string}]}
cases:
  - name: an analyst sees the regions of her token
    principal: alice
    table: demo/sales/orders
    expect:
      allow: true
      filter: context.row has region && ["EU", "US"].contains(context.row.region)
      visible:
        - {id: 1, region: EU, price: "1.25", at: "2026-01-01T00:00:00Z", born: 2001-02-03, address: {city: Rome}}
      hidden:
        - {id: 2, region: APAC}
        - {id: 3}
      columns: {phone: show-last-4, born: absent}
      other-columns: plain
      policies: [analysts-read]
  - name: the loader creates tables
    principal: etl
    action: createTable
    namespace: demo/sales
    organisation: acme
    expect: {allow: true, policies: [etl]}
  - name: the loader does not read
    principal: etl
    table: demo/sales/orders
    expect: {allow: false}
`

func TestCases(t *testing.T) {
	t.Parallel()
	c, err := ParseCases("c.yaml", []byte(casesText))
	if err != nil {
		t.Fatal(err)
	}
	set := parse(t, casesSet)
	if problems := c.Run(set); len(problems) > 0 {
		t.Fatal(problems)
	}
	d, err := c.Ask(Case{Principal: "alice", Action: DropTable, Table: "demo/sales/orders"}, stackOf(set))
	if err != nil || d.Allowed || d.Lacking != "platform" {
		t.Error(d, err)
	}
	// Each change of the set, or of what is expected, is found.
	for _, change := range [][3]string{
		{"set", `principal has regions && `, `true || principal has regions && `},
		{"set", `unless { resource.hasTag("pii") }`, ``},
		{"set", `show-last-4`, `show-first-4`},
		{"set", `@id("etl") permit`, `@id("other") permit`},
		{"set", `action in Action::"write"`, `action`},
		{"cases", `allow: false`, `allow: true`},
		{"cases", `region: EU, price`, `region: AS, price`},
		{"cases", `- {id: 3}`, `- {id: 3, region: US}`},
		{"cases", `other-columns: plain`, `other-columns: mask-alphanum`},
		{"cases", `"US"].contains`, `"UK"].contains`},
		{"cases", `policies: [analysts-read]`, `policies: [analysts-read, more]`},
	} {
		text, cases := casesSet, casesText
		if change[0] == "set" {
			text = strings.Replace(text, change[1], change[2], 1)
		} else {
			cases = strings.Replace(cases, change[1], change[2], 1)
		}
		if text == casesSet && cases == casesText {
			t.Fatalf("%q changes nothing", change)
		}
		set, err := Parse(testSchema(t), Source{"p.cedar", []byte(text)})
		if err != nil {
			continue
		}
		c, err := ParseCases("c.yaml", []byte(cases))
		if err != nil {
			t.Fatalf("%q: %v", change, err)
		}
		problems := c.Run(set)
		if len(problems) == 0 {
			t.Errorf("%q: nothing is found", change)
		}
		for _, p := range problems {
			if p.Line == 0 {
				t.Errorf("%q: without a line: %v", change, p)
			}
		}
	}
}

func TestCasesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, want string }{
		{"principal: etl\n    action", "principal: elt\n    action", `c.yaml:36:1: case "the loader creates tables": there is no principal "elt"; known are alice, etl`},
		{"action: createTable", "action: create", `there is no action "create"`},
		{"type: timestamptz", "type: timestomp", `column "at": there is no type "timestomp"`},
		{"allow: false", "alow: false", "alow"},
		{"- {id: 3}", "- {idx: 3}", `row 2: there is no column "idx"`},
		{"- {id: 3}", "- {id: x}", `column "id": x is no value of type long`},
		{`price: "1.25"`, `price: "1.255"`, "more than 2 digits"},
		{`price: "1.25"`, `price: "1e9999999"`, "no value of type decimal"},
		{"phone: show-last-4", "fone: show-last-4", `no column "fone"`},
		{"user: corp:alice", "user: corp:alice\n    service: x", "give a user or a service"},
		{"clearance: 3", "clearance: 1.5", "a whole number"},
		{"namespace: demo/sales", "namespace: demo", "should be <warehouse>/<namespace>"},
		{"namespace: demo/sales", "ip: nowhere\n    namespace: demo/sales", "no address"},
		{"the loader does not read", "the loader creates tables", "taken by another case"},
		{"columns:\n", "columns: &a\n", "anchors and aliases"},
		{"expect: {allow: true, policies: [etl]}", "expect: {allow: true, filter: x}", "createTable is allowed or not"},
		{casesText, "", "there are no cases"},
		{casesText, "a: [", "c.yaml:1:"},
		{casesText, strings.Repeat("#", MaxCases+1), "larger than 4 MiB"},
	} {
		text := strings.Replace(casesText, c.from, c.to, 1)
		if text == casesText {
			t.Fatalf("%q is not there", c.from)
		}
		_, err := ParseCases("c.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, wanted %q", c.to, err, c.want)
		}
	}
}
