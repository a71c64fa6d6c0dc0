// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
)

// boundTable is a table with some name and columns, by field id.
func boundTable(t *testing.T, name, uuid string, columns ...string) *Table {
	t.Helper()
	var fields []iceberg.NestedField
	for i, c := range columns {
		if c != "" {
			fields = append(fields, iceberg.NestedField{ID: i + 1, Name: c, Type: iceberg.PrimitiveTypes.String})
		}
	}
	table, err := NewTable(NewWarehouse("acme", "demo").Namespace("sales", nil).Table(name, nil).WithUUID(uuid), iceberg.NewSchema(0, fields...), TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestRenamesKeepRules has a set activated on a table, and then what is seen of
// it, and of others, after renames.
func TestRenamesKeepRules(t *testing.T) {
	t.Parallel()
	set := parse(t, `
		@id("rows") permit(principal, action == Action::"readTable", resource == Table::"demo/sales/orders") when { context.row has region && context.row.region == "EU" };
		@id("columns") permit(principal, action == Action::"readColumn", resource in Namespace::"demo/sales") unless { resource.name == "phone" };
		@id("masked") @mask("show-last-4") permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/phone");
		@id("writes") permit(principal, action == Action::"writeTable", resource == Table::"demo/sales/orders");
		@id("drops") permit(principal, action == Action::"dropTable", resource in Namespace::"demo/sales");
		@id("keep") forbid(principal, action == Action::"dropTable", resource == Table::"demo/sales/orders");
		@id("all-read") permit(principal, action == Action::"readTable", resource == Table::"demo/sales/people");`)
	raw, err := json.Marshal([]Binding{boundTable(t, "orders", "u1", "id", "region", "phone").Bind()})
	if err != nil {
		t.Fatal(err)
	}
	var kept []Binding
	if err := json.Unmarshal(raw, &kept); err != nil {
		t.Fatal(err)
	}
	bindings, err := NewBindings(kept)
	if err != nil {
		t.Fatal(err)
	}
	stack, err := NewStack(Layer{Name: "provider", Version: 1, Set: set, Bindings: bindings})
	if err != nil {
		t.Fatal(err)
	}
	req := testRequest()
	for _, c := range []struct {
		name  string
		table *Table
		want  string // filter, columns, write, drop
	}{
		{"as it was", boundTable(t, "orders", "u1", "id", "region", "phone"), `context.row has region && context.row.region == "EU"; plain plain show-last-4; true false`},
		{"renamed", boundTable(t, "orders_2025", "u1", "id", "region", "phone"), `context.row has region && context.row.region == "EU"; plain plain show-last-4; true false`},
		{"columns renamed", boundTable(t, "orders", "u1", "id", "area", "mobile"), `context.row has area && context.row.area == "EU"; plain plain show-last-4; true false`},
		{"a column added", boundTable(t, "orders", "u1", "id", "region", "phone", "more"), `context.row has region && context.row.region == "EU"; plain plain show-last-4 plain; true false`},
		{"the filter's column is gone", boundTable(t, "orders", "u1", "id", "", "phone"), `denied; true false`},
		{"a name taken by a new column", boundTable(t, "orders", "u1", "id", "region", "mobile", "phone"), `error; true false`},
		{"another table under the name", boundTable(t, "orders", "u2", "id", "region", "phone"), `denied; false false`},
		{"a table that was not there", boundTable(t, "people", "u3", "id", "phone"), `; plain absent; false true`},
	} {
		got := ""
		d, err := stack.Read(req, c.table)
		switch {
		case err != nil:
			got = "error"
		case !d.Allowed:
			got = "denied"
		default:
			if d.Filter != nil {
				got = d.Filter.String()
			}
			var how []string
			for _, col := range d.Columns {
				how = append(how, col.how())
			}
			got += "; " + strings.Join(how, " ")
		}
		write, drop := stack.Authorize(req, WriteTable, c.table.Resource()), stack.Authorize(req, DropTable, c.table.Resource())
		got += fmt.Sprintf("; %v %v", write.Allowed, drop.Allowed)
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		if may := stack.MayRead(req, c.table.Resource()); may != (d.Allowed || strings.HasPrefix(c.want, "error") || c.name == "the filter's column is gone") {
			t.Errorf("%s: may be read: %v", c.name, may)
		}
	}
	for _, wrong := range [][]Binding{{{ID: "x"}}, {{UUID: "u"}}, {{UUID: "u", ID: "a"}, {UUID: "u", ID: "b"}}, {{UUID: "u", ID: "a"}, {UUID: "v", ID: "a"}}} {
		if _, err := NewBindings(wrong); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}
