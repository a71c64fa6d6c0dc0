// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/sluice-data/sluice/internal/identity"
)

var (
	orders = cedar.NewEntityUID(typeTable, "demo/sales/orders")
	bob    = cedar.NewEntityUID(typeUser, "bob")
)

func stackOf(sets ...*Set) *Stack {
	s := &Stack{}
	for i, set := range sets {
		s.layers = append(s.layers, Layer{Name: []string{"platform", "provider", "recipient"}[i], Version: 1, Set: set})
	}
	return s
}

func columnsOf(set *Set, req Request, t *Table) []ColumnDecision {
	d, _, err := stackOf(set).columns(req, t)
	if err != nil {
		panic(err)
	}
	return d
}

func testSchema(t testing.TB) *Schema {
	t.Helper()
	s, err := NewSchema(map[string]string{"regions": "Set<String>", "clearance": "Long", "region": "String"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testTable has a column of each kind, optional but for the first, and a
// struct.
func testTable(t testing.TB) *Table {
	t.Helper()
	table, err := NewTable(NewWarehouse("acme", "demo").Namespace("sales", nil).Table("orders", nil),
		iceberg.NewSchema(0,
			iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
			iceberg.NestedField{ID: 2, Name: "region", Type: iceberg.PrimitiveTypes.String},
			iceberg.NestedField{ID: 3, Name: "amount", Type: iceberg.PrimitiveTypes.Int32},
			iceberg.NestedField{ID: 4, Name: "open", Type: iceberg.PrimitiveTypes.Bool},
			iceberg.NestedField{ID: 5, Name: "at", Type: iceberg.PrimitiveTypes.TimestampTz},
			iceberg.NestedField{ID: 6, Name: "price", Type: iceberg.DecimalTypeOf(18, 2)},
			iceberg.NestedField{ID: 7, Name: "weight", Type: iceberg.PrimitiveTypes.Float64},
			iceberg.NestedField{ID: 8, Name: "address", Type: &iceberg.StructType{FieldList: []iceberg.NestedField{
				{ID: 9, Name: "city", Type: iceberg.PrimitiveTypes.String}, {ID: 10, Name: "zip", Type: iceberg.PrimitiveTypes.String, Required: true},
			}}},
		), TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func testRequest() Request {
	return Request{
		Principal: NewPrincipal(identity.Principal{
			ID: "bob", Kind: identity.KindToken, Organisation: "acme", Groups: []string{"analysts"}, Attributes: map[string]identity.AttributeValue{
				"clearance": {Type: identity.TypeLong, Long: 3}, "region": {Type: identity.TypeString, String: "EU"},
				"regions": {Type: identity.TypeSet, Set: []string{"EU", "US"}},
			},
		}),
		Now: time.UnixMilli(1_700_000_000_000),
	}
}

func read(condition string) string {
	return `permit(principal, action == Action::"readTable", resource) when { ` + condition + ` };`
}

// record is a row as cedar.Authorize is asked with it: null is absent.
func record(row map[string]Value) cedar.Record {
	m, address := cedar.RecordMap{}, cedar.RecordMap{}
	for name, v := range row {
		c, ok := v.toCedar()
		switch field, nested := strings.CutPrefix(name, "address."); {
		case ok && nested:
			address[cedar.String(field)] = c
		case ok && name != "address":
			m[cedar.String(name)] = c
		}
	}
	if row["address"].kind != Null {
		m["address"] = cedar.NewRecord(address)
	}
	return cedar.NewRecord(m)
}

// reference is what Cedar itself says of a row, with the one rule of our own:
// a forbid that fails hides.
func reference(s *Set, req Request, t *Table, row map[string]Value) bool {
	context := req.context()
	context["row"] = record(row)
	decision, diagnostic := cedar.Authorize(ruleList(s.policies), entities{req.Principal.entities, t.resource.entities}, cedar.Request{
		Principal: req.Principal.uid, Action: ReadTable.uid(), Resource: t.resource.uid, Context: cedar.NewRecord(context),
	})
	for _, e := range diagnostic.Errors {
		if slices.ContainsFunc(s.policies, func(r *rule) bool { return r.forbid && r.id == string(e.PolicyID) }) {
			return false
		}
	}
	return decision == cedar.Allow
}

func visible(d Decision, row map[string]Value) bool {
	if !d.Allowed || d.Filter == nil {
		return d.Allowed
	}
	values := make([]Value, 0, len(d.Filter.columns))
	for _, c := range d.Filter.columns {
		values = append(values, row[c.Name])
	}
	return d.Filter.Visible(values)
}

// generator makes up well-typed policies and rows.
type generator struct{ *rand.Rand }

func pick[T any](g generator, list ...T) T { return list[g.IntN(len(list))] }

// guard is a condition under which a column that may be null can be used.
func (g generator) guarded(depth int) string {
	column, condition := "", ""
	switch g.IntN(7) {
	case 0:
		column, condition = "region", g.strings("context.row.region")
	case 1:
		column, condition = "amount", g.longs("context.row.amount")
	case 2:
		column, condition = "open", pick(g, "context.row.open", "!context.row.open", "context.row.open == true")
	case 3:
		column, condition = "at", fmt.Sprintf(pick(g, `context.row.at < datetime("2024-01-%02d")`, `context.row.at.toDate() == datetime("2024-01-%02d")`,
			`context.row.at.offset(duration("1d")) >= datetime("2024-01-%02d")`, `context.now.durationSince(context.row.at) > duration("%dh")`), 1+g.IntN(28))
	case 4:
		column, condition = "price", fmt.Sprintf(pick(g, `context.row.price.lessThan(decimal("%d.5"))`, `context.row.price == decimal("%d.25")`, `context.row.price.greaterThanOrEqual(decimal("-%d.0"))`), g.IntN(5))
	case 5:
		column, condition = "address.city", g.strings("context.row.address.city")
	default:
		column, condition = "address", g.strings("context.row.address.zip")
	}
	if g.IntN(4) == 0 {
		return fmt.Sprintf("(if context.row has %s then %s else %s)", column, condition, g.condition(depth-1))
	}
	return fmt.Sprintf("(context.row has %s && %s)", column, condition)
}

func (g generator) strings(of string) string {
	return fmt.Sprintf(pick(g, `%s == "EU"`, `%s != "US"`, `%s like "*U*"`, `%s like "E*"`, `["EU", "APAC"].contains(%s)`,
		`(principal has regions && principal.regions.contains(%s))`, `(principal has region && principal.region == %s)`, `!(%s like "*S")`), of)
}

func (g generator) longs(of string) string {
	limit := pick(g, "3", "-2", "9223372036854775807", "principal.clearance")
	c := fmt.Sprintf(pick(g, "%s < %s", "%s + 9223372036854775800 > %s", "%s * 3 >= %s", "-%s == %s", "%s - 1 != %s"), of, limit)
	if limit == "principal.clearance" {
		return "(principal has clearance && " + c + ")"
	}
	return c
}

func (g generator) condition(depth int) string {
	if depth <= 0 {
		return g.guarded(0)
	}
	switch g.IntN(9) {
	case 0, 1:
		return "(" + g.condition(depth-1) + " && " + g.condition(depth-1) + ")"
	case 2, 3:
		return "(" + g.condition(depth-1) + " || " + g.condition(depth-1) + ")"
	case 4:
		return "!" + g.condition(depth-1)
	case 5:
		return "(if " + g.condition(depth-1) + " then " + g.condition(depth-1) + " else " + g.condition(depth-1) + ")"
	case 6:
		return pick(g, `(principal in Group::"analysts")`, `(principal in Group::"others")`, "(context.row.id > 2)", "(9223372036854775807 + 1 > context.row.id)", "(principal has clearance && principal.clearance > 2)")
	default:
		return g.guarded(depth)
	}
}

func (g generator) row() map[string]Value {
	row := map[string]Value{"id": LongValue(g.Int64N(5))}
	set := func(name string, v Value) {
		if g.IntN(3) > 0 {
			row[name] = v
		}
	}
	set("region", StringValue(pick(g, "EU", "US", "APAC", "")))
	set("amount", LongValue(g.Int64N(20)-10))
	set("open", BoolValue(g.IntN(2) == 0))
	set("at", MicrosValue(time.Date(2024, 1, 1+g.IntN(28), g.IntN(24), 0, 0, g.IntN(2)*1000, time.UTC).UnixMicro()))
	set("price", DecimalValue(big.NewInt(g.Int64N(1000)-500), 2))
	if set("address", BoolValue(true)); row["address"].kind != Null {
		row["address.zip"] = StringValue(pick(g, "EU", "US"))
		set("address.city", StringValue(pick(g, "EU", "US", "USA")))
	}
	return row
}

// TestFilterIsCedar holds filters equal to cedar.Authorize, called row by row,
// over random pairs of policy set and row: ten thousand, or as many as
// SLUICE_POLICY_PAIRS says.
func TestFilterIsCedar(t *testing.T) {
	t.Parallel()
	pairs := 10_000
	if s := os.Getenv("SLUICE_POLICY_PAIRS"); s != "" {
		var err error
		if pairs, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	g := generator{rand.New(rand.NewPCG(seed, 1))}
	schema, table, req := testSchema(t), testTable(t), testRequest()
	const rows = 20
	seen := map[bool]int{}
	pruned := 0
	for range pairs / rows {
		var text strings.Builder
		for i := range 1 + g.IntN(3) {
			effect := "permit"
			if i > 0 && g.IntN(2) == 0 {
				effect = "forbid"
			}
			fmt.Fprintf(&text, `%s(principal%s, action == Action::"readTable", resource%s) %s { %s };`+"\n", effect,
				pick(g, "", ` in Group::"analysts"`, ` is User`, ` is User in Organisation::"acme"`, ` == User::"bob"`, ` == User::"eve"`),
				pick(g, "", ` in Namespace::"demo/sales"`, ` == Table::"demo/sales/orders"`, ` is Table in Warehouse::"demo"`, ` in Warehouse::"other"`),
				pick(g, "when", "when", "unless"), g.condition(3))
		}
		set, err := Parse(schema, Source{"test.cedar", []byte(text.String())})
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, &text)
		}
		if problems, err := set.Check(table); err != nil || len(problems) > 0 {
			t.Fatalf("seed %d: %v %v\n%s", seed, problems, err, &text)
		}
		d, err := stackOf(set).Rows(req, table)
		if err != nil {
			t.Fatal(err)
		}
		keep := pruning(t, d, table)
		for range rows {
			row := g.row()
			got, want := visible(d, row), reference(set, req, table, row)
			if kept := keep(g.stored(row)); !kept && want {
				t.Fatalf("seed %d: row %v is visible and pruned\n%s\n%s", seed, row, d.Filter.Prune(), &text)
			} else if !kept {
				pruned++
			}
			if got != want {
				t.Fatalf("seed %d: row %v is visible: %v, Cedar says %v\n%s", seed, row, got, want, &text)
			}
			seen[got]++
		}
	}
	if seen[true] < pairs/20 || seen[false] < pairs/20 {
		t.Errorf("%d visible and %d hidden rows: the policies are too much alike", seen[true], seen[false])
	}
	if pruned < seen[false]/3 {
		t.Errorf("of %d hidden rows %d are pruned", seen[false], pruned)
	}
}

// pruning evaluates a decision's pruning expression as Iceberg does.
func pruning(t *testing.T, d Decision, table *Table) func(iceberg.StructLike) bool {
	t.Helper()
	if !d.Allowed || d.Filter == nil {
		return func(iceberg.StructLike) bool { return d.Allowed }
	}
	expression := d.Filter.Prune()
	eval, err := iceberg.ExpressionEvaluator(table.Schema(), expression, true)
	if err != nil {
		t.Fatalf("%v\n%s", err, expression)
	}
	return func(row iceberg.StructLike) bool {
		keep, err := eval(row)
		if err != nil {
			t.Fatalf("%v\n%s", err, expression)
		}
		return keep
	}
}

// fields is a row as iceberg-go evaluates it.
type fields []any

func (f fields) Size() int            { return len(f) }
func (f fields) Get(pos int) any      { return f[pos] }
func (f fields) Set(pos int, val any) { f[pos] = val }

// stored is a row of testTable as a data file has it, with the microseconds
// that Cedar does not see.
func (g generator) stored(row map[string]Value) fields {
	out := make(fields, 8)
	set := func(i int, name string, of func(Value) any) {
		if v, ok := row[name]; ok {
			out[i] = of(v)
		}
	}
	text := func(v Value) any { return v.text }
	set(0, "id", func(v Value) any { return v.number })
	set(1, "region", text)
	set(2, "amount", func(v Value) any { return int32(v.number) })
	set(3, "open", func(v Value) any { return v.number == 1 })
	set(4, "at", func(v Value) any { return iceberg.Timestamp(v.number*1000 + g.Int64N(1000)) })
	set(5, "price", func(v Value) any { return iceberg.Decimal{Val: decimal128.FromI64(v.number / 100), Scale: 2} })
	set(7, "address", func(Value) any {
		inner := make(fields, 2)
		for i, name := range []string{"address.city", "address.zip"} {
			if v, ok := row[name]; ok {
				inner[i] = v.text
			}
		}
		return inner
	})
	return out
}

// TestRefused is what is refused when a policy is written, and where.
func TestRefused(t *testing.T) {
	t.Parallel()
	schema, table := testSchema(t), testTable(t)
	for _, c := range []struct{ text, want string }{
		{"permit(", `p.cedar:1:8: found the end where "principal" belongs`},
		{read(`context.row.amount / 2 > 1`), "Cedar has no division"},
		{`@msak("replace-with-null") permit(principal, action, resource);`, "unknown annotation @msak"},
		{`@mask("hide") permit(principal, action == Action::"readColumn", resource);`, `unknown mask "hide"`},
		{`@mask("replace-with-null") permit(principal, action, resource);`, "@mask belongs to readColumn alone"},
		{`@mask("replace-with-null") forbid(principal, action == Action::"readColumn", resource);`, "a forbid cannot carry @mask"},
		{`@id("a") permit(principal, action, resource); @id("a") forbid(principal, action, resource);`, "the id is taken by the policy at p.cedar:1:1"},
		{`permit(principal, action == Action::"readTables", resource);`, "action `Action::\"readTables\"`"},
		{`permit(principal, action == Action::"readTable", resource) when { principal.shoe == 3 };`, "shoe"},
		{"permit(principal, action == Action::\"readTable\", resource)\nwhen { context.row has regoin };", `p.cedar:2:8: policy "p.cedar:1:1": on demo/sales/orders: there is no column "regoin"`},
		{read(`context.row has Region && true`), `there is "region"`},
		{read(`context.row has weight && true`), `column "weight" is double: Cedar has no floating-point numbers`},
		{read(`context.row.region == "EU"`), "context.row has c &&"},
		{read(`!(context.row has region) || context.row.region like "x*"`), "a negated test does not count"},
		{read(`context.row == context.row`), "is a record"},
		{read(`context.row has amount && [context.row.amount].containsAny([1])`), "a set cannot be made of columns"},
		{read(`context.row has amount && context.row.amount == "x"`), "not compatible"},
		{read(`context.row has price && context.row.price < decimal("1.0")`), "decimals are compared by methods"},
		{read(strings.Repeat("true && ", MaxTokens) + "true"), "split it"},
	} {
		set, err := Parse(schema, Source{"p.cedar", []byte(c.text)})
		got := fmt.Sprint(err)
		if err == nil {
			problems, err := set.Check(table)
			if err != nil {
				t.Fatal(err)
			}
			got = problems.Error()
			if d, err := stackOf(set).Rows(testRequest(), table); err != nil || d.Allowed {
				t.Errorf("%.80s: does not fit the table, and permits: %v, %v", c.text, d, err)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%.80s\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

// TestFailsClosed is about what cannot be evaluated.
func TestFailsClosed(t *testing.T) {
	t.Parallel()
	schema, table, req := testSchema(t), testTable(t), testRequest()
	all := `permit(principal, action == Action::"readTable", resource);`
	huge := DecimalValue(new(big.Int).Exp(big.NewInt(10), big.NewInt(17), nil), 2)
	for _, c := range []struct {
		name, text string
		row        map[string]Value
		want       bool
	}{
		{"no policy", "", nil, false},
		{"a forbid that overflows", all + `forbid(principal, action == Action::"readTable", resource) when { context.row.id + 9223372036854775807 > 0 };`, map[string]Value{"id": LongValue(1)}, false},
		{"the same, not overflowing", all + `forbid(principal, action == Action::"readTable", resource) when { context.row.id + 9223372036854775807 < 0 };`, map[string]Value{"id": LongValue(0)}, true},
		{"a permit that overflows", read(`context.row.id + 9223372036854775807 > 0`), map[string]Value{"id": LongValue(1)}, false},
		{"a forbid that does not fit the table", all + `forbid(principal, action == Action::"readTable", resource) when { context.row has nothing && true };`, nil, false},
		{"a forbid without the row that fails", all + `forbid(principal, action == Action::"readTable", resource) when { 9223372036854775807 + 1 > 0 };`, nil, false},
		{"null is not compared", read(`context.row has region && context.row.region != "EU"`), map[string]Value{"id": LongValue(1)}, false},
		{"a decimal without room, permitted", read(`context.row has price && context.row.price != decimal("1.0")`), map[string]Value{"price": huge}, false},
		{"a decimal without room, forbidden", all + `forbid(principal, action == Action::"readTable", resource) when { context.row has price && context.row.price == decimal("1.0") };`, map[string]Value{"price": huge}, false},
		{"a required column that is null", read(`!(context.row.id == 3)`), nil, false},
	} {
		set, err := Parse(schema, Source{"p.cedar", []byte(c.text)})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		d, err := stackOf(set).Rows(req, table)
		if err != nil || visible(d, c.row) != c.want {
			t.Errorf("%s: visible %v, want %v; %v", c.name, visible(d, c.row), c.want, err)
		}
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	schema, table, req := testSchema(t), testTable(t), testRequest()
	set, err := Parse(schema, Source{"p.cedar", []byte(`
		permit(principal in Group::"analysts", action == Action::"readColumn", resource in Namespace::"demo/sales") unless { ["region", "amount", "price", "at", "id"].contains(resource.name) };
		@mask("mask-alphanum") permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/region");
		@mask("show-last-4") permit(principal, action == Action::"readColumn", resource) when { resource.type == "string" };
		@mask("replace-with-null") permit(principal, action == Action::"readColumn", resource) when { ["amount", "id"].contains(resource.name) };
		@mask("truncate-to-year") permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/price");
		permit(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/at");
		forbid(principal, action == Action::"readColumn", resource == Column::"demo/sales/orders/open") when { 9223372036854775807 + 1 > 0 };`)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range columnsOf(set, req, table) {
		how := string(d.Mask)
		if d.Absent {
			how = "absent"
		}
		got = append(got, fmt.Sprint(d.FieldID, " ", how))
	}
	want := []string{"1 absent", "2 mask-alphanum", "3 replace-with-null", "4 absent", "5 ", "6 absent", "7 ", "8 "}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// BenchmarkDecision is readTable for one user among sets of policies that each
// name another user and namespace; plain is cedar.Authorize on the same set.
func BenchmarkDecision(b *testing.B) {
	schema, table, req := testSchema(b), testTable(b), testRequest()
	for _, n := range []int{10, 1000, 10_000} {
		var text strings.Builder
		for i := range n - 1 {
			fmt.Fprintf(&text, `permit(principal == User::"u%d", action == Action::"readTable", resource in Namespace::"demo/n%d");`+"\n", i, i%100)
		}
		text.WriteString(`permit(principal in Group::"analysts", action == Action::"readTable", resource in Namespace::"demo/sales");`)
		set, err := Parse(schema, Source{"p.cedar", []byte(text.String())})
		if err != nil {
			b.Fatal(err)
		}
		stack := stackOf(set)
		b.Run(fmt.Sprintf("policies=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, err := stack.Rows(req, table); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
		})
		b.Run(fmt.Sprintf("plain/policies=%d", n), func(b *testing.B) {
			context := req.context()
			context["row"] = cedar.NewRecord(types.RecordMap{})
			r := cedar.Request{Principal: bob, Action: ReadTable.uid(), Resource: orders, Context: cedar.NewRecord(context)}
			for b.Loop() {
				if d, _ := cedar.Authorize(ruleList(set.policies), entities{req.Principal.entities, table.resource.entities}, r); d != cedar.Allow {
					b.Fatal(d)
				}
			}
		})
	}
}
