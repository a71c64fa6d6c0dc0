// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
)

// TestPruneAtTheEdges compares columns of every type with values around
// those that they store, where the pruning expression is exact: a comparison
// holds in Iceberg when it holds in Cedar.
func TestPruneAtTheEdges(t *testing.T) {
	t.Parallel()
	type stored struct {
		raw   any
		value Value
	}
	edges := func(of func(int64) stored, ns ...int64) (all []stored) {
		for _, n := range ns {
			all = append(all, of(n))
		}
		return all
	}
	ints := []int64{math.MinInt32, math.MinInt32 + 1, -86_400_001, -1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, 86_399_999, math.MaxInt32 - 1, math.MaxInt32}
	longs := append([]int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64 - 1, math.MaxInt64}, ints...)
	decimals := func(scale int) []stored {
		return edges(func(n int64) stored {
			return stored{iceberg.Decimal{Val: decimal128.FromI64(n), Scale: scale}, DecimalValue(big.NewInt(n), scale)}
		}, ints...)
	}
	for _, c := range []struct {
		typ  iceberg.Type
		kind Kind
		rows []stored
	}{
		{iceberg.PrimitiveTypes.Int32, Long, edges(func(n int64) stored { return stored{int32(n), LongValue(n)} }, ints...)},
		{iceberg.PrimitiveTypes.Int64, Long, edges(func(n int64) stored { return stored{n, LongValue(n)} }, longs...)},
		{iceberg.PrimitiveTypes.Date, Datetime, edges(func(n int64) stored { return stored{iceberg.Date(n), DateValue(int32(n))} }, ints...)},
		{iceberg.PrimitiveTypes.Timestamp, Datetime, edges(func(n int64) stored { return stored{iceberg.Timestamp(n), MicrosValue(n)} }, longs...)},
		{iceberg.PrimitiveTypes.TimestampTzNs, Datetime, edges(func(n int64) stored { return stored{iceberg.TimestampNano(n), NanosValue(n)} }, longs...)},
		{iceberg.DecimalTypeOf(20, 0), Decimal, decimals(0)},
		{iceberg.DecimalTypeOf(20, 3), Decimal, decimals(3)},
		{iceberg.DecimalTypeOf(20, 4), Decimal, decimals(4)},
		{iceberg.PrimitiveTypes.Bool, Bool, []stored{{true, BoolValue(true)}, {false, BoolValue(false)}}},
		{iceberg.PrimitiveTypes.String, String, []stored{{"", StringValue("")}, {"a", StringValue("a")}, {"é", StringValue("é")}}},
	} {
		schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "c", Type: c.typ})
		n := &node{name: "c", optional: true, column: Column{FieldID: 1, Name: "c", Type: c.typ, Kind: c.kind}}
		var constants []Value
		for _, r := range c.rows {
			constants = append(constants, r.value)
			if r.value.kind != Bool && r.value.kind != String {
				for _, by := range []int64{-1, 1} {
					if sum, ok := addInt64(r.value.number, by); ok {
						constants = append(constants, Value{kind: c.kind, number: sum})
					}
				}
			}
		}
		ops := []operator{equal, notEqual, less, lessOrEqual, greater, greaterOrEqual}
		if c.kind == Bool || c.kind == String {
			ops = ops[:2]
		}
		for _, op := range ops {
			for _, k := range constants {
				e := comparison{op, column{ref: n}, constant{k}}
				mirrored := comparison{op.mirrored(), e.right, e.left}
				b := boundsOf(e)
				if m := boundsOf(mirrored); !m.holds.expr.Equals(b.holds.expr) || !m.fails.expr.Equals(b.fails.expr) {
					t.Errorf("%s: %v %d %v: mirrored it is %s, not %s", c.typ, "c", op, k, m.holds.expr, b.holds.expr)
				}
				for _, s := range []struct {
					expr iceberg.BooleanExpression
					want bool
				}{{b.holds.expr, true}, {b.fails.expr, false}} {
					eval, err := iceberg.ExpressionEvaluator(schema, s.expr, true)
					if err != nil {
						t.Fatal(err)
					}
					for _, r := range c.rows {
						v, ok := e.eval([]Value{r.value})
						got, err := eval(fields{r.raw})
						if want := ok && v.isTrue() == s.want; err != nil || got != want {
							t.Errorf("%s: %v (%v) op %d %v is %v, %v: %s says %v, %v", c.typ, r.raw, r.value, op, k, v, ok, s.expr, got, err)
						}
					}
				}
			}
		}
	}
}

// TestPruneIsBounded has conditions nested in tests of conditions, each of which
// stands twice in the expression of the one around it.
func TestPruneIsBounded(t *testing.T) {
	t.Parallel()
	table, schema := testTable(t), testSchema(t)
	condition := `context.row.id == 0`
	for i := range 200 {
		condition = fmt.Sprintf("(if %s then context.row.id > %d else context.row.id < %d)", condition, i, i)
	}
	wide := strings.TrimSuffix(strings.Repeat(`context.row.id == 7 || `, 1500), "|| ")
	for _, c := range []string{condition, wide} {
		set, err := Parse(schema, Source{"p.cedar", []byte(read(c))})
		if err != nil {
			t.Fatal(err)
		}
		d, err := stackOf(set).Rows(testRequest(), table)
		if err != nil || d.Filter == nil {
			t.Fatal(d, err)
		}
		f := d.Filter
		all := always
		for _, e := range f.layers[0].permits {
			all = boundsOf(e).holds
		}
		if all.size > maxPrune {
			t.Errorf("%d predicates", all.size)
		}
		if got := len(f.Prune().String()); got > 100*maxPrune {
			t.Errorf("the expression has %d characters", got)
		}
	}
}
