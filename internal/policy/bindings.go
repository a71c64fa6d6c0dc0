// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Bindings are what the names in a policy set meant when it was activated: of
// each table that was there, by its UUID, the id and the columns' names. A
// table or column that is renamed keeps the rules that were made for it; what
// takes its name later does not get what was permitted by that name, and is
// under what was forbidden.
type Bindings struct {
	tables map[string]Binding
	ids    map[string]string // id of a table -> its UUID
}

// Binding is one table.
type Binding struct {
	UUID    string         `json:"uuid"`
	ID      string         `json:"id"`
	Columns map[int]string `json:"columns"` // top-level and nested fields, by field id
}

// Bind returns what the names of a table mean at this moment.
func (t *Table) Bind() Binding {
	b := Binding{UUID: t.resource.uuid, ID: t.ID(), Columns: map[int]string{}}
	t.row.bind(b.Columns)
	return b
}

func (n *node) bind(names map[int]string) {
	for _, f := range n.fields {
		names[f.column.FieldID] = f.name
		f.bind(names)
	}
}

// NewBindings returns the bindings of a set's activation. Two of one table, or
// of one id, are an error.
func NewBindings(list []Binding) (*Bindings, error) {
	b := &Bindings{map[string]Binding{}, map[string]string{}}
	for _, one := range list {
		if one.UUID == "" || one.ID == "" {
			return nil, fmt.Errorf("a binding needs the table's UUID and id: %+v", one)
		}
		if _, ok := b.tables[one.UUID]; ok {
			return nil, fmt.Errorf("table %s is bound twice", one.UUID)
		}
		if _, ok := b.ids[one.ID]; ok {
			return nil, fmt.Errorf("%s is bound twice", one.ID)
		}
		b.tables[one.UUID], b.ids[one.ID] = one, one.UUID
	}
	return b, nil
}

// Bound reports whether a set of the stack was made for certain tables: then
// what it says of one cannot be told by its name.
func (s *Stack) Bound() bool {
	return slices.ContainsFunc(s.layers, func(l Layer) bool { return l.Bindings != nil && len(l.Bindings.tables) > 0 })
}

// seen is a resource as a layer's set knows it.
type seen struct {
	*Resource
	// replaced says that the set was made for another one of this name.
	replaced bool
}

// place returns a resource as the layer's set knows it.
func (l *Layer) place(r *Resource) seen {
	if l.Bindings == nil || r.uuid == "" {
		return seen{Resource: r}
	}
	bound, ok := l.Bindings.tables[r.uuid]
	switch {
	case !ok:
		_, taken := l.Bindings.ids[string(r.uid.ID)]
		return seen{r, taken}
	case bound.ID != string(r.uid.ID):
		return seen{Resource: r.called(bound.ID)}
	}
	return seen{Resource: r}
}

// seenTable is a table as a layer's set knows it.
type seenTable struct {
	place seen
	table *Table
}

// on returns a table as the layer's set knows it. The error is that two columns
// would have one name, since one took the name that another had.
func (l *Layer) on(t *Table) (seenTable, error) {
	if l.Bindings == nil {
		return seenTable{seen{Resource: t.resource}, t}, nil
	}
	if v, ok := t.variants.Load(l.Bindings); ok {
		return v.(seenTable), nil
	}
	place, known := l.place(t.resource), t
	if bound, ok := l.Bindings.tables[t.resource.uuid]; ok {
		o := t.options
		o.Names = maps.Clone(o.Names)
		if o.Names == nil {
			o.Names = map[int]string{}
		}
		maps.Copy(o.Names, bound.Columns)
		var err error
		if known, err = NewTable(place.Resource, t.schema, o); err != nil {
			return seenTable{}, err
		}
	}
	v, _ := t.variants.LoadOrStore(l.Bindings, seenTable{place, known})
	return v.(seenTable), nil
}

// called is the resource under another id, where it is now.
func (r *Resource) called(id string) *Resource {
	self := r.entities[r.uid]
	parts := strings.Split(id, "/")
	attributes := self.Attributes.Map()
	attributes["name"] = types.String(idUnescaper.Replace(parts[len(parts)-1]))
	self.UID, self.Attributes = cedar.NewEntityUID(r.uid.Type, cedar.String(id)), cedar.NewRecord(attributes)
	return &Resource{newLineage(self, r.entities), r.uuid}
}

// madeForAnother reports whether a policy permits something by the name of a
// table that was another's when the set was activated.
func (s *seen) madeForAnother(r *rule) bool {
	if !s.replaced || r.forbid {
		return false
	}
	var named cedar.EntityUID
	switch scope := r.ast.Resource.(type) {
	case ast.ScopeTypeEq:
		named = scope.Entity
	case ast.ScopeTypeIn:
		named = scope.Entity
	case ast.ScopeTypeIsIn:
		named = scope.Entity
	}
	id := string(named.ID)
	return named == s.uid || named.Type == typeColumn && strings.HasPrefix(id, string(s.uid.ID)+"/")
}

// applicable leaves out what was made for another resource of the name.
func (s *seen) applicable(rules []*rule) []*rule {
	if !s.replaced {
		return rules
	}
	return slices.DeleteFunc(rules, s.madeForAnother)
}
