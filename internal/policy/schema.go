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
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

// The types of entities.
const (
	typeOrganisation cedar.EntityType = "Organisation"
	typeGroup        cedar.EntityType = "Group"
	typeUser         cedar.EntityType = "User"
	typeService      cedar.EntityType = "Service"
	typeWarehouse    cedar.EntityType = "Warehouse"
	typeNamespace    cedar.EntityType = "Namespace"
	typeTable        cedar.EntityType = "Table"
	typeView         cedar.EntityType = "View"
	typeShare        cedar.EntityType = "Share"
	typeColumn       cedar.EntityType = "Column"
	typeAction       cedar.EntityType = "Action"
)

// Action is something a principal may do to a resource.
type Action string

// The actions. Which resources each applies to is in [Schema.Text].
const (
	UseWarehouse    Action = "useWarehouse"
	ListNamespace   Action = "listNamespace"
	CreateNamespace Action = "createNamespace"
	UpdateNamespace Action = "updateNamespace"
	DropNamespace   Action = "dropNamespace"
	CreateTable     Action = "createTable"
	ReadTable       Action = "readTable"
	ReadColumn      Action = "readColumn"
	ReadRestricted  Action = "readRestricted"
	WriteTable      Action = "writeTable"
	DropTable       Action = "dropTable"
	CreateView      Action = "createView"
	ReadView        Action = "readView"
	UpdateView      Action = "updateView"
	DropView        Action = "dropView"
	UseShare        Action = "useShare"
	ManageGrants    Action = "manageGrants"
	ManagePolicy    Action = "managePolicy"
	ManageShares    Action = "manageShares"
	ManageMembers   Action = "manageMembers"
	ReadAudit       Action = "readAudit"
	Provision       Action = "provision"
)

// actionDecl is how an action stands in the schema.
type actionDecl struct {
	name      Action
	group     string
	resources []cedar.EntityType
	row       bool // context.row is there
}

// actions is every action, in the order of the schema. The position is an
// action's bit in the index.
var actions = []actionDecl{
	{UseWarehouse, "read", []cedar.EntityType{typeWarehouse}, false},
	{ListNamespace, "read", []cedar.EntityType{typeWarehouse, typeNamespace}, false},
	{ReadTable, "read", []cedar.EntityType{typeTable}, true},
	{ReadColumn, "read", []cedar.EntityType{typeColumn}, false},
	{ReadView, "read", []cedar.EntityType{typeView}, false},
	{UseShare, "read", []cedar.EntityType{typeShare}, false},
	{ReadRestricted, "", []cedar.EntityType{typeTable}, false},
	{CreateNamespace, "write", []cedar.EntityType{typeWarehouse, typeNamespace}, false},
	{UpdateNamespace, "write", []cedar.EntityType{typeNamespace}, false},
	{DropNamespace, "write", []cedar.EntityType{typeNamespace}, false},
	{CreateTable, "write", []cedar.EntityType{typeNamespace}, false},
	{WriteTable, "write", []cedar.EntityType{typeTable}, false},
	{DropTable, "write", []cedar.EntityType{typeTable}, false},
	{CreateView, "write", []cedar.EntityType{typeNamespace}, false},
	{UpdateView, "write", []cedar.EntityType{typeView}, false},
	{DropView, "write", []cedar.EntityType{typeView}, false},
	{ManageGrants, "manage", []cedar.EntityType{typeWarehouse, typeNamespace, typeTable, typeView, typeShare}, false},
	{ManageShares, "manage", []cedar.EntityType{typeOrganisation}, false},
	{ManagePolicy, "manage", []cedar.EntityType{typeOrganisation}, false},
	{ManageMembers, "manage", []cedar.EntityType{typeOrganisation}, false},
	{ReadAudit, "manage", []cedar.EntityType{typeOrganisation}, false},
	{Provision, "manage", []cedar.EntityType{typeOrganisation}, false},
}

// actionEntities are the actions with their groups: Cedar looks there for who
// is in Action::"read".
var actionEntities = func() cedar.EntityMap {
	m := cedar.EntityMap{}
	for _, a := range actions {
		e := cedar.Entity{UID: a.name.uid()}
		if a.group != "" {
			e.Parents = cedar.NewEntityUIDSet(cedar.NewEntityUID(typeAction, cedar.String(a.group)))
		}
		m[e.UID] = e
	}
	return m
}()

// uid is the action as an entity.
func (a Action) uid() cedar.EntityUID { return cedar.NewEntityUID(typeAction, cedar.String(a)) }

// attributeTypes are the types that a principal's attribute may have.
var attributeTypes = []string{"String", "Long", "Bool", "datetime", "decimal", "ipaddr", "Set<String>", "Set<Long>"}

// Schema is what policies may speak of: the entities, the actions, and the
// attributes that identity providers give to principals.
type Schema struct {
	attributes map[string]string
	general    *validate.Validator // without a table: context.row is empty
	resolved   *resolved.Schema
}

// NewSchema returns the schema in which principals have these attributes
// beside the organisation: name to Cedar type, one of String, Long, Bool,
// datetime, decimal, ipaddr, Set<String>, Set<Long>. All are optional, since
// not every issuer tells each.
func NewSchema(attributes map[string]string) (*Schema, error) {
	for name, typ := range attributes {
		if !slices.Contains(attributeTypes, typ) {
			return nil, fmt.Errorf("attribute %q: unknown type %q; known are %s", name, typ, strings.Join(attributeTypes, ", "))
		}
		if name == "organisation" {
			return nil, fmt.Errorf("attribute %q is there already", name)
		}
	}
	s := &Schema{attributes: maps.Clone(attributes)}
	var err error
	if s.resolved, err = resolve(s.Text(nil)); err != nil {
		return nil, err
	}
	s.general = validate.New(s.resolved)
	return s, nil
}

func resolve(text string) (*resolved.Schema, error) {
	var parsed schema.Schema
	if err := parsed.UnmarshalCedar([]byte(text)); err != nil {
		return nil, fmt.Errorf("policy schema: %w", err)
	}
	r, err := parsed.Resolve()
	if err != nil {
		return nil, fmt.Errorf("policy schema: %w", err)
	}
	return r, nil
}

// Text is the schema in Cedar's own syntax, for editors and other tools. With
// a table, context.row has that table's columns; without, it has none.
func (s *Schema) Text(t *Table) string {
	var b strings.Builder
	b.WriteString("entity Organisation tags String;\nentity Group in [Group, Organisation];\n")
	b.WriteString("entity User, Service in [Group, Organisation] {\n  organisation: Organisation")
	for _, name := range slices.Sorted(maps.Keys(s.attributes)) {
		fmt.Fprintf(&b, ",\n  %s?: %s", quote(name), s.attributes[name])
	}
	b.WriteString("\n} tags String;\n")
	const owned = " { organisation: Organisation, name: String } tags String;\n"
	b.WriteString("entity Warehouse" + owned)
	b.WriteString("entity Namespace in [Namespace, Warehouse, Share]" + owned)
	b.WriteString("entity Share in [Organisation]" + owned)
	b.WriteString("entity Table, View in [Namespace, Share]" + owned)
	b.WriteString("entity Column in [Table, View] { name: String, type: String, required: Bool } tags String;\n")
	b.WriteString("action read, write, manage;\n")
	for _, a := range actions {
		fmt.Fprintf(&b, "action %s", a.name)
		if a.group != "" {
			fmt.Fprintf(&b, " in [%s]", a.group)
		}
		b.WriteString(" appliesTo {\n  principal: [User, Service],\n  resource: [")
		for i, r := range a.resources {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(string(r))
		}
		b.WriteString("],\n  context: { now: datetime, ip?: ipaddr")
		if a.row {
			b.WriteString(", row: ")
			root := &node{}
			if t != nil {
				root = t.row
			}
			root.write(&b, "  ")
		}
		b.WriteString(" }\n};\n")
	}
	return b.String()
}

// write writes the record type of a struct.
func (n *node) write(b *strings.Builder, indent string) {
	b.WriteString("{")
	comma := ""
	for _, f := range n.fields {
		if f.refusal != "" {
			continue
		}
		fmt.Fprintf(b, "%s\n%s  %s", comma, indent, quote(f.name))
		comma = ","
		if f.optional {
			b.WriteByte('?')
		}
		b.WriteString(": ")
		if f.column.Kind == Null {
			f.write(b, indent+"  ")
		} else {
			b.WriteString(f.column.Kind.String())
		}
	}
	b.WriteString("\n" + indent + "}")
}

// quote returns a name as a string of Cedar's syntax.
func quote(name string) string { return string(types.String(name).MarshalCedar()) }
