// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	cedar "github.com/cedar-policy/cedar-go"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/sluice-data/sluice/internal/identity"
)

// Cases are what a policy set is expected to decide, read from a YAML file that
// a reviewer can read: principals, tables, and per case who asks for what and
// what they get. docs/policy.md has the form.
type Cases struct {
	file       string
	Principals map[string]CasePrincipal `yaml:"principals"`
	Tables     map[string]CaseTable     `yaml:"tables"`
	Cases      []Case                   `yaml:"cases"`
	tables     map[string]*Table
	lines      []int // of Cases
}

// CasePrincipal is who asks: a user (the id of an issuer's principal,
// "corp:alice") or a service ("account:etl").
type CasePrincipal struct {
	User         string         `yaml:"user"`
	Service      string         `yaml:"service"`
	Organisation string         `yaml:"organisation"`
	Groups       []string       `yaml:"groups"`
	Attributes   map[string]any `yaml:"attributes"`
}

// CaseTable is a table; its key is its id, "demo/sales/orders".
type CaseTable struct {
	Organisation string            `yaml:"organisation"`
	Shares       []string          `yaml:"shares"`
	Tags         map[string]string `yaml:"tags"`
	Columns      []CaseColumn      `yaml:"columns"`
}

// CaseColumn is a column. Type is Iceberg's name of it; a struct has Fields
// instead.
type CaseColumn struct {
	Name     string            `yaml:"name"`
	Type     string            `yaml:"type"`
	Fields   []CaseColumn      `yaml:"fields"`
	Required bool              `yaml:"required"`
	Tags     map[string]string `yaml:"tags"`
}

// Case is one question with the answer that is expected. Of the answer only
// what is written is compared.
type Case struct {
	Name      string `yaml:"name"`
	Principal string `yaml:"principal"`
	// Table is read when there is no Action. With an Action it, or one of
	// the others, is the resource.
	Table        string    `yaml:"table"`
	Action       Action    `yaml:"action"`
	Warehouse    string    `yaml:"warehouse"`
	Namespace    string    `yaml:"namespace"`
	View         string    `yaml:"view"`
	Share        string    `yaml:"share"`
	Organisation string    `yaml:"organisation"` // the resource, or the owner of the one that is named
	Now          time.Time `yaml:"now"`
	IP           string    `yaml:"ip"`
	Expect       Expect    `yaml:"expect"`
}

// Expect is what a case expects.
type Expect struct {
	Allow bool `yaml:"allow"`
	// Filter is the row filter as [Filter.String] writes it, "" for every row.
	Filter *string `yaml:"filter"`
	// Visible and Hidden are rows, by column; what is left out is null.
	Visible []map[string]any `yaml:"visible"`
	Hidden  []map[string]any `yaml:"hidden"`
	// Columns are "plain", "absent" or the name of a mask. Those that are not
	// named are not compared, unless Others says what they all are.
	Columns map[string]string `yaml:"columns"`
	Others  string            `yaml:"other-columns"`
	// Policies are the ids of the policies that determine the answer.
	Policies []string `yaml:"policies"`
}

// MaxCases bounds a file of cases in bytes.
const MaxCases = 4 << 20

// ParseCases reads a file of cases. The error is a [Problems].
func ParseCases(file string, text []byte) (*Cases, error) {
	c := &Cases{file: file, tables: map[string]*Table{}}
	if len(text) > MaxCases {
		return nil, Problems{{File: file, Message: fmt.Sprintf("the file is larger than %d MiB", MaxCases>>20)}}
	}
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, Problems{yamlProblem(file, err)}
	}
	// An alias of an alias grows without bound when it is decoded.
	for _, d := range parsed.Docs {
		if d.Body == nil {
			continue
		}
		for _, kind := range []ast.NodeType{ast.AliasType, ast.AnchorType, ast.MergeKeyType} {
			if found := ast.Filter(kind, d.Body); len(found) > 0 {
				at := found[0].GetToken().Position
				return nil, Problems{{File: file, Line: at.Line, Column: at.Column, Message: "anchors and aliases are not used in cases", Hint: "write the value again"}}
			}
		}
	}
	err = yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(c)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, Problems{yamlProblem(file, err)}
	}
	c.lines = caseLines(parsed, len(c.Cases))
	var problems Problems
	if len(c.Cases) == 0 {
		problems = append(problems, Problem{File: file, Message: "there are no cases", Hint: "a file of cases has principals, tables and cases"})
	}
	for _, id := range slices.Sorted(maps.Keys(c.Tables)) {
		t, err := c.Tables[id].table(id)
		if err != nil {
			problems = append(problems, Problem{File: file, Table: id, Message: err.Error()})
			continue
		}
		c.tables[id] = t
	}
	names := map[string]bool{}
	for i := range c.Cases {
		if err := c.check(&c.Cases[i], names); err != nil {
			problems = append(problems, c.problem(i, err.Error()))
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// yamlProblem takes the place out of the library's error, whose own text quotes
// the source.
func yamlProblem(file string, err error) Problem {
	p := Problem{File: file, Message: err.Error()}
	var e yaml.Error
	if errors.As(err, &e) {
		p.Message = e.GetMessage()
		if t := e.GetToken(); t != nil {
			p.Line, p.Column = t.Position.Line, t.Position.Column
		}
	}
	return p
}

// caseLines finds the line of each case.
func caseLines(file *ast.File, n int) []int {
	lines := make([]int, n)
	for i := range lines {
		path, err := yaml.PathString(fmt.Sprintf("$.cases[%d].name", i))
		if err != nil {
			continue
		}
		if node, err := path.FilterFile(file); err == nil && node.GetToken() != nil {
			lines[i] = node.GetToken().Position.Line
		}
	}
	return lines
}

func (c *Cases) problem(i int, message string) Problem {
	p := Problem{File: c.file, Line: c.lines[i], Message: message}
	if p.Line > 0 {
		p.Column = 1
	}
	if name := c.Cases[i].Name; name != "" {
		p.Message = fmt.Sprintf("case %q: %s", name, message)
	}
	return p
}

// check finds what is wrong with a case whatever the policies.
func (c *Cases) check(k *Case, names map[string]bool) error {
	if k.Name == "" {
		return errors.New("a case needs a name")
	}
	if names[k.Name] {
		return errors.New("the name is taken by another case")
	}
	names[k.Name] = true
	p, ok := c.Principals[k.Principal]
	if !ok {
		return fmt.Errorf("there is no principal %q; known are %s", k.Principal, listed(c.Principals))
	}
	if _, err := p.principal(); err != nil {
		return fmt.Errorf("principal %q: %w", k.Principal, err)
	}
	if k.IP != "" {
		if _, err := netip.ParseAddr(k.IP); err != nil {
			return fmt.Errorf("ip: %q is no address", k.IP)
		}
	}
	if k.Action == "" && k.Table == "" {
		return errors.New("a case needs a table, which is read, or an action with its resource")
	}
	if k.Table != "" && c.tables[k.Table] == nil && c.Tables[k.Table].Columns == nil {
		return fmt.Errorf("there is no table %q; known are %s", k.Table, listed(c.Tables))
	}
	if t := c.tables[k.Table]; t != nil && k.reads() {
		for _, rows := range [][]map[string]any{k.Expect.Visible, k.Expect.Hidden} {
			for i, row := range rows {
				if _, err := t.parseRow(row); err != nil {
					return fmt.Errorf("row %d: %w", i+1, err)
				}
			}
		}
		for name := range k.Expect.Columns {
			if !slices.ContainsFunc(t.columns, func(c tableColumn) bool { return c.field.Name == name }) {
				return fmt.Errorf("the table has no column %q", name)
			}
		}
		return nil
	}
	if k.reads() {
		return nil // the table's own problem is reported
	}
	if _, err := c.resource(k); err != nil {
		return err
	}
	if e := k.Expect; e.Filter != nil || e.Visible != nil || e.Hidden != nil || e.Columns != nil || e.Others != "" {
		return fmt.Errorf("%s is allowed or not; rows and columns are expected of reading a table", k.Action)
	}
	return nil
}

// reads reports whether a case is about the rows and columns of a table.
func (k *Case) reads() bool { return k.Table != "" && (k.Action == "" || k.Action == ReadTable) }

func listed[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// tableList is the tables of the cases, which a set is checked against.
func (c *Cases) tableList() []*Table {
	list := make([]*Table, 0, len(c.tables))
	for _, id := range slices.Sorted(maps.Keys(c.tables)) {
		list = append(list, c.tables[id])
	}
	return list
}

// Run checks a set against the tables of the cases and asks it every case.
// The result is what is not as it should be, nothing when all is.
func (c *Cases) Run(set *Set) Problems {
	var problems Problems
	for _, t := range c.tableList() {
		found, err := set.Check(t)
		if err != nil {
			found = Problems{{File: c.file, Table: t.ID(), Message: err.Error()}}
		}
		problems = append(problems, found...)
	}
	stack := &Stack{[]Layer{{Name: "cases", Set: set}}}
	for i := range c.Cases {
		for _, message := range c.run(&c.Cases[i], stack) {
			problems = append(problems, c.problem(i, message))
		}
	}
	return problems
}

// Ask returns what a stack decides on a case's question; what the case expects
// plays no part.
func (c *Cases) Ask(k Case, stack *Stack) (Decision, error) {
	if k.Name == "" {
		k.Name = "question"
	}
	k.Expect = Expect{}
	if err := c.check(&k, map[string]bool{}); err != nil {
		return Decision{}, err
	}
	return c.decide(&k, stack)
}

// decide asks a stack what a case asks.
func (c *Cases) decide(k *Case, stack *Stack) (Decision, error) {
	p, err := c.Principals[k.Principal].principal()
	if err != nil {
		return Decision{}, err
	}
	req := Request{Principal: NewPrincipal(p), Now: k.Now}
	if req.Now.IsZero() {
		req.Now = time.Now()
	}
	if k.IP != "" {
		if req.IP, err = netip.ParseAddr(k.IP); err != nil {
			return Decision{}, err
		}
	}
	if k.reads() {
		return stack.Read(req, c.tables[k.Table])
	}
	resource, err := c.resource(k)
	if err != nil {
		return Decision{}, err
	}
	return stack.Authorize(req, k.Action, resource), nil
}

func (c *Cases) run(k *Case, stack *Stack) (wrong []string) {
	d, err := c.decide(k, stack)
	if err != nil {
		return []string{err.Error()}
	}
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	e := k.Expect
	if d.Allowed != e.Allow {
		say("allowed is %v, expected %v (%s)", d.Allowed, e.Allow, d.because())
		return wrong
	}
	if e.Policies != nil {
		var ids []string
		for _, r := range d.Reasons {
			ids = append(ids, r.Policy)
		}
		slices.Sort(ids)
		want := slices.Sorted(slices.Values(e.Policies))
		if !slices.Equal(slices.Compact(ids), slices.Compact(want)) {
			say("determined by %q, expected %q", ids, want)
		}
	}
	if !k.reads() {
		return wrong
	}
	t := c.tables[k.Table]
	text := ""
	if d.Filter != nil {
		text = d.Filter.String()
	}
	if e.Filter != nil && strings.Join(strings.Fields(*e.Filter), " ") != text {
		say("the filter is %q, expected %q", text, *e.Filter)
	}
	for want, rows := range map[bool][]map[string]any{true: e.Visible, false: e.Hidden} {
		for i, raw := range rows {
			row, err := t.parseRow(raw)
			if err != nil {
				say("row %d: %v", i+1, err)
				continue
			}
			if got := d.sees(row); got != want {
				say("row %d of those expected %s is %s; the filter is %q", i+1, visibility(want), visibility(got), text)
			}
		}
	}
	slices.Sort(wrong) // the rows come from a map
	for i, c := range d.Columns {
		name := t.columns[i].field.Name
		want, ok := e.Columns[name]
		if !ok {
			want = e.Others
		}
		if got := c.how(); want != "" && got != want {
			say("column %s is %s, expected %s", name, got, want)
		}
	}
	return wrong
}

func visibility(visible bool) string {
	if visible {
		return "visible"
	}
	return "hidden"
}

// how names what is done to a column.
func (c ColumnDecision) how() string {
	switch {
	case c.Absent:
		return "absent"
	case c.Mask != "":
		return string(c.Mask)
	}
	return "plain"
}

// because names the policies of a decision.
func (d *Decision) because() string {
	switch {
	case d.Lacking != "":
		return "no permit applies"
	case len(d.Reasons) == 0:
		return "no column can be seen"
	}
	ids := make([]string, len(d.Reasons))
	for i, r := range d.Reasons {
		ids[i] = r.Policy
	}
	return "by " + strings.Join(ids, ", ")
}

// sees reports whether a row, by field id, can be seen.
func (d *Decision) sees(row map[int]Value) bool {
	if !d.Allowed || d.Filter == nil {
		return d.Allowed
	}
	values := make([]Value, len(d.Filter.columns))
	for i, c := range d.Filter.columns {
		values[i] = row[c.FieldID]
	}
	return d.Filter.Visible(values)
}

// principal returns who a case's principal stands for.
func (p CasePrincipal) principal() (identity.Principal, error) {
	out := identity.Principal{ID: p.User, Kind: identity.KindToken, Organisation: p.Organisation, Groups: p.Groups}
	if p.Service != "" {
		out.ID, out.Kind = p.Service, identity.KindService
	}
	if (p.User == "") == (p.Service == "") {
		return out, errors.New("give a user or a service, by id")
	}
	out.Attributes = make(map[string]identity.AttributeValue, len(p.Attributes))
	for name, v := range p.Attributes {
		a, err := attributeValue(v)
		if err != nil {
			return out, fmt.Errorf("attribute %q: %w", name, err)
		}
		if err := identity.CheckAttribute(name, a.Type); err != nil {
			return out, err
		}
		out.Attributes[name] = a
	}
	return out, nil
}

func attributeValue(v any) (identity.AttributeValue, error) {
	switch v := v.(type) {
	case string:
		return identity.AttributeValue{Type: identity.TypeString, String: v}, nil
	case bool:
		return identity.AttributeValue{Type: identity.TypeBoolean, Boolean: v}, nil
	case []any:
		set := make([]string, len(v))
		for i, m := range v {
			text, ok := m.(string)
			if !ok {
				return identity.AttributeValue{}, errors.New("a set has texts alone")
			}
			set[i] = text
		}
		slices.Sort(set)
		return identity.AttributeValue{Type: identity.TypeSet, Set: slices.Compact(set)}, nil
	}
	if n, ok := whole(v); ok {
		return identity.AttributeValue{Type: identity.TypeLong, Long: n}, nil
	}
	return identity.AttributeValue{}, errors.New("a text, a whole number, true or false, or a list of texts is wanted")
}

func whole(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= 1<<63-1
	}
	return 0, false
}

// resource returns what a case's action is about.
func (c *Cases) resource(k *Case) (*Resource, error) {
	if !slices.ContainsFunc(actions, func(a actionDecl) bool { return a.name == k.Action }) {
		return nil, fmt.Errorf("there is no action %q", k.Action)
	}
	switch {
	case k.Table != "":
		if t := c.tables[k.Table]; t != nil {
			return t.resource, nil
		}
		return nil, fmt.Errorf("there is no table %q", k.Table)
	case k.View != "":
		return placeOf(k.Organisation, k.View, typeView, nil)
	case k.Namespace != "":
		return placeOf(k.Organisation, k.Namespace, typeNamespace, nil)
	case k.Warehouse != "":
		return NewWarehouse(k.Organisation, k.Warehouse), nil
	case k.Share != "":
		return NewShare(k.Organisation, k.Share), nil
	case k.Organisation != "":
		return NewOrganisation(k.Organisation), nil
	}
	return nil, errors.New("name the resource: table, view, namespace, warehouse, share or organisation")
}

// placeOf returns the resource of an id as policies write it.
func placeOf(organisation, id string, typ cedar.EntityType, tags map[string]string) (*Resource, error) {
	parts := strings.Split(id, "/")
	want := 2
	if typ != typeNamespace {
		want = 3
	}
	for i, p := range parts {
		parts[i] = idUnescaper.Replace(p)
		if parts[i] == "" {
			return nil, fmt.Errorf("%q has an empty part", id)
		}
	}
	if len(parts) < want {
		return nil, fmt.Errorf("%q should be <warehouse>/<namespace>…, for a table or view followed by its name", id)
	}
	r := NewWarehouse(organisation, parts[0])
	last := len(parts)
	if typ != typeNamespace {
		last--
	}
	for i, p := range parts[1:last] {
		own := tags
		if i < last-2 || typ != typeNamespace {
			own = nil
		}
		r = r.Namespace(p, own)
	}
	switch typ {
	case typeTable:
		r = r.Table(parts[last], tags)
	case typeView:
		r = r.View(parts[last], tags)
	}
	return r, nil
}

var idUnescaper = strings.NewReplacer("%2F", "/", "%25", "%")

// table returns the table of a case.
func (t CaseTable) table(id string) (*Table, error) {
	if len(t.Columns) == 0 {
		return nil, errors.New("a table needs columns")
	}
	place, err := placeOf(t.Organisation, id, typeTable, t.Tags)
	if err != nil {
		return nil, err
	}
	if len(t.Shares) > 0 {
		parts := strings.Split(id, "/")
		within, err := placeOf(t.Organisation, strings.Join(parts[:len(parts)-1], "/"), typeNamespace, nil)
		if err != nil {
			return nil, err
		}
		shares := make([]*Resource, len(t.Shares))
		for i, s := range t.Shares {
			shares[i] = NewShare(t.Organisation, s)
		}
		place = within.Table(idUnescaper.Replace(parts[len(parts)-1]), t.Tags, shares...)
	}
	next := 0
	fields, err := caseFields(t.Columns, &next)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(map[string]any{"type": "struct", "schema-id": 0, "fields": fields})
	if err != nil {
		return nil, err
	}
	var schema iceberg.Schema
	if err := json.Unmarshal(raw, &schema); err != nil {
		return nil, err
	}
	tags := map[int]map[string]string{}
	for i, c := range t.Columns {
		tags[schema.Field(i).ID] = c.Tags
	}
	return NewTable(place, &schema, TableOptions{ColumnTags: tags})
}

// caseFields are columns as Iceberg's JSON has them.
func caseFields(columns []CaseColumn, next *int) ([]map[string]any, error) {
	fields := make([]map[string]any, len(columns))
	for i, c := range columns {
		*next++
		f := map[string]any{"id": *next, "name": c.Name, "required": c.Required}
		switch {
		case c.Name == "":
			return nil, errors.New("a column needs a name")
		case len(c.Fields) > 0 && (c.Type == "" || c.Type == "struct"):
			inner, err := caseFields(c.Fields, next)
			if err != nil {
				return nil, err
			}
			f["type"] = map[string]any{"type": "struct", "fields": inner}
		default:
			var one iceberg.NestedField
			f["type"] = c.Type
			raw, err := json.Marshal(f)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(raw, &one); err != nil || one.Type == nil {
				return nil, fmt.Errorf("column %q: there is no type %q", c.Name, c.Type)
			}
		}
		fields[i] = f
	}
	return fields, nil
}

// parseRow returns the values of a row by field id.
func (t *Table) parseRow(row map[string]any) (map[int]Value, error) {
	values := map[int]Value{}
	return values, parseFields(t.row, row, values)
}

func parseFields(n *node, row map[string]any, values map[int]Value) error {
	for name, raw := range row {
		f := n.field(name)
		switch {
		case f == nil:
			return fmt.Errorf("there is no column %q", name)
		case raw == nil:
			continue
		case len(f.fields) > 0:
			inner, ok := raw.(map[string]any)
			if !ok {
				return fmt.Errorf("column %q is a struct", name)
			}
			values[f.column.FieldID] = BoolValue(true) // it is there
			if err := parseFields(f, inner, values); err != nil {
				return err
			}
			continue
		case f.refusal != "":
			continue // no policy can ask for it
		}
		v, err := parseValue(f.column, raw)
		if err != nil {
			return fmt.Errorf("column %q: %w", name, err)
		}
		values[f.column.FieldID] = v
	}
	return nil
}

// parseValue returns a value of a column. Times are written as RFC 3339 has
// them, dates as 2006-01-02, decimals as texts.
func parseValue(c Column, raw any) (Value, error) {
	wrong := fmt.Errorf("%v is no value of type %s", raw, c.Type)
	switch c.Kind {
	case Bool:
		if b, ok := raw.(bool); ok {
			return BoolValue(b), nil
		}
	case Long:
		if n, ok := whole(raw); ok {
			return LongValue(n), nil
		}
	case String:
		if s, ok := raw.(string); ok {
			return StringValue(s), nil
		}
	case Datetime:
		if at, ok := raw.(time.Time); ok {
			return Value{kind: Datetime, number: floorDiv(at.UnixMicro(), 1000)}, nil
		}
		s, _ := raw.(string)
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", time.DateOnly} {
			if at, err := time.Parse(layout, s); err == nil {
				return Value{kind: Datetime, number: floorDiv(at.UnixMicro(), 1000)}, nil
			}
		}
	case Decimal:
		scale := c.Type.(iceberg.DecimalType).Scale()
		text := fmt.Sprint(raw)
		if len(text) > 50 || strings.Trim(text, "-.0123456789") != "" {
			return Value{}, wrong
		}
		if r, ok := new(big.Rat).SetString(text); ok {
			r.Mul(r, new(big.Rat).SetInt64(pow10(scale)))
			if r.IsInt() {
				return DecimalValue(r.Num(), scale), nil
			}
			return Value{}, fmt.Errorf("%s has more than %d digits after the point", text, scale)
		}
	}
	return Value{}, wrong
}
