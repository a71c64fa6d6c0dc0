// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/apache/iceberg-go"
	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

// EntityID joins the parts of a name (warehouse, levels of a namespace, table,
// column) into the id that policies write: "demo/nyc/flights". A "/" or "%" of
// a part is written %2F or %25.
func EntityID(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = idEscaper.Replace(p)
	}
	return strings.Join(escaped, "/")
}

var idEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

// Kind is how the values of a column are compared: the Cedar type that they
// have in context.row.
type Kind uint8

// The kinds of values. Decimals are counted in ten-thousandths, datetimes in
// milliseconds since 1970-01-01T00:00:00Z, durations in milliseconds.
const (
	Null Kind = iota
	Bool
	Long
	String
	Datetime
	Decimal
	Duration
)

func (k Kind) String() string {
	return [...]string{"null", "Bool", "Long", "String", "datetime", "decimal", "duration"}[k]
}

// Column is a column, or a field of a struct column, that a row filter can
// speak of.
type Column struct {
	FieldID int
	// Name is the full name in the table's current schema: "address.city".
	Name string
	Type iceberg.Type
	// Required says that no row lacks it: neither it nor a struct it lies in
	// is optional.
	Required bool
	Kind     Kind
}

// Table is what a decision needs to know of a table or view. It is not
// changed after [NewTable], and is safe for concurrent use.
type Table struct {
	resource *Resource
	options  TableOptions
	schema   *iceberg.Schema
	row      *node         // what context.row is
	columns  []tableColumn // top-level columns, in the schema's order
	compiled sync.Map      // *rule -> expr, of the rules that have been asked about the table
	// validators are of schemas with the table's row, by the schema without.
	validators sync.Map // *Schema -> *validate.Validator
	variants   sync.Map // *Bindings -> *Table, as the set of these knows it
}

type tableColumn struct {
	field   iceberg.NestedField
	entity  cedar.Entity
	lineage lineage
}

// validator returns the validator for policies on the table.
func (t *Table) validator(s *Schema) (*validate.Validator, error) {
	if v, ok := t.validators.Load(s); ok {
		return v.(*validate.Validator), nil
	}
	r, err := resolve(s.Text(t))
	if err != nil {
		return nil, err
	}
	v, _ := t.validators.LoadOrStore(s, validate.New(r))
	return v.(*validate.Validator), nil
}

// node is a column as policies see it: a value, a struct, or one of a type
// that cannot be compared.
type node struct {
	column   Column
	optional bool // this field alone, whatever it lies in
	fields   []*node
	name     string // the attribute's name
	refusal  string // why it cannot be compared, when it cannot
}

func (n *node) field(name string) *node {
	i := slices.IndexFunc(n.fields, func(f *node) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return n.fields[i]
}

// TableOptions describe a [Table] further.
type TableOptions struct {
	// ColumnTags are tags by field id.
	ColumnTags map[int]map[string]string
	// Names are the names by which the policies know columns, by field id,
	// where these differ from the schema's: a column that was renamed after the
	// policies were activated keeps its rules.
	Names map[int]string
}

// NewTable returns what is decided on: resource is the table's or view's own
// entity with those above it. It fails when two columns would have one name.
func NewTable(resource *Resource, schema *iceberg.Schema, o TableOptions) (*Table, error) {
	t := &Table{resource: resource, options: o, schema: schema, row: &node{}}
	if err := t.row.add(schema.Fields(), "", true, o.Names); err != nil {
		return nil, fmt.Errorf("%s: %w", resource.uid.ID, err)
	}
	for _, f := range schema.Fields() {
		name := f.Name
		if n, ok := o.Names[f.ID]; ok {
			name = n
		}
		e := cedar.Entity{
			UID:     cedar.NewEntityUID(typeColumn, cedar.String(string(resource.uid.ID)+"/"+EntityID(name))),
			Parents: cedar.NewEntityUIDSet(resource.uid),
			Attributes: cedar.NewRecord(cedar.RecordMap{
				"name": cedar.String(name), "type": cedar.String(f.Type.String()), "required": cedar.Boolean(f.Required),
			}),
			Tags: tagRecord(o.ColumnTags[f.ID]),
		}
		t.columns = append(t.columns, tableColumn{f, e, newLineage(e, resource.entities)})
	}
	return t, nil
}

// Resource is the table's entity with those above it.
func (t *Table) Resource() *Resource { return t.resource }

// ID is the table's id in policies.
func (t *Table) ID() string { return string(t.resource.uid.ID) }

// Schema is the table's current schema.
func (t *Table) Schema() *iceberg.Schema { return t.schema }

func (n *node) add(fields []iceberg.NestedField, prefix string, required bool, names map[int]string) error {
	for _, f := range fields {
		name := f.Name
		if known, ok := names[f.ID]; ok {
			name = known
		}
		if n.field(name) != nil {
			return fmt.Errorf("two columns are %q to the policies", prefix+name)
		}
		child := &node{name: name, optional: !f.Required, column: Column{
			FieldID: f.ID, Name: prefix + f.Name, Type: f.Type, Required: required && f.Required,
		}}
		switch typ := f.Type.(type) {
		case *iceberg.StructType:
			if err := child.add(typ.FieldList, prefix+f.Name+".", child.column.Required, names); err != nil {
				return err
			}
		default:
			child.column.Kind, child.refusal = kindOf(typ)
		}
		n.fields = append(n.fields, child)
	}
	return nil
}

// kindOf returns the Cedar type for values of an Iceberg type, or why there
// is none.
func kindOf(typ iceberg.Type) (kind Kind, refusal string) {
	switch typ := typ.(type) {
	case iceberg.BooleanType:
		return Bool, ""
	case iceberg.Int32Type, iceberg.Int64Type:
		return Long, ""
	case iceberg.StringType:
		return String, ""
	case iceberg.DateType, iceberg.TimestampType, iceberg.TimestampTzType, iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return Datetime, ""
	case iceberg.DecimalType:
		if typ.Scale() > 4 {
			return Null, "Cedar's decimal has four digits after the point"
		}
		return Decimal, ""
	case iceberg.Float32Type, iceberg.Float64Type:
		return Null, "Cedar has no floating-point numbers, since they do not compare exactly"
	case iceberg.TimeType:
		return Null, "Cedar has no time of day"
	case *iceberg.ListType, *iceberg.MapType:
		return Null, "lists and maps cannot be compared"
	default:
		return Null, "Cedar has no such type"
	}
}
