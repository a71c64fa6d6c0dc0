// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"maps"
	"slices"
)

// AllTables are the tables of the cases, in the order of their ids.
func (c *Cases) AllTables() []*Table { return c.tableList() }

// Table is a table of the cases by its id; nil when there is none.
func (c *Cases) Table(id string) *Table { return c.tables[id] }

// Attributes adds to all, name to Cedar type, the attributes that the cases'
// principals have, for [NewSchema] where no server's configuration says which
// there are. One that is of two types is an error.
func (c *Cases) Attributes(all map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(c.Principals)) {
		p, err := c.Principals[name].principal()
		if err != nil {
			return fmt.Errorf("%s: principal %q: %w", c.file, name, err)
		}
		for _, a := range slices.Sorted(maps.Keys(p.Attributes)) {
			typ := AttributeType(p.Attributes[a].Type)
			if known, ok := all[a]; ok && known != typ {
				return fmt.Errorf("%s: attribute %q of principal %q is a %s, and elsewhere a %s", c.file, a, name, typ, known)
			}
			all[a] = typ
		}
	}
	return nil
}

// How names what is done to the column: "plain", "absent" or a mask.
func (c ColumnDecision) How() string { return c.how() }

// Sees reports whether a row of a table, by column name as in cases, can be
// seen by a decision on reading that table.
func (d *Decision) Sees(t *Table, row map[string]any) (bool, error) {
	values, err := t.parseRow(row)
	if err != nil {
		return false, err
	}
	return d.sees(values), nil
}
