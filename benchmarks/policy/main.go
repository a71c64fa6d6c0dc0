// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command policy measures what a decision costs, beside cedar.Authorize on the
// same policies, and prints a Markdown table of medians.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/secret"
)

// subject is one thing that is measured; its name is a row, or a column of a
// row.
type subject struct {
	row   string
	plain bool // cedar.Authorize
	run   func(b *testing.B)
	took  []float64 // ns per operation, one per round
}

func main() {
	testing.Init()
	rounds := flag.Int("rounds", 5, "rounds, of which the median is taken")
	each := flag.Duration("time", 300*time.Millisecond, "how long each subject runs in a round")
	flag.Parse()
	if err := flag.Set("test.benchtime", each.String()); err != nil {
		fail(err)
	}
	subjects, err := build()
	if err != nil {
		fail(err)
	}
	for round := range *rounds {
		order := rand.Perm(len(subjects))
		for _, i := range order {
			s := subjects[i]
			r := testing.Benchmark(s.run)
			if r.N == 0 {
				fail(fmt.Errorf("%s failed", s.row))
			}
			s.took = append(s.took, float64(r.T.Nanoseconds())/float64(r.N))
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	report(subjects)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench-policy:", err)
	os.Exit(1)
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func duration(ns float64) string {
	switch {
	case ns >= 1e6:
		return fmt.Sprintf("%.2f ms", ns/1e6)
	case ns >= 1e3:
		return fmt.Sprintf("%.2f µs", ns/1e3)
	default:
		return fmt.Sprintf("%.0f ns", ns)
	}
}

// report prints the table, and a line of JSON per goal.
func report(subjects []*subject) {
	own, plain := map[string]float64{}, map[string]float64{}
	var rows []string
	for _, s := range subjects {
		if !slices.Contains(rows, s.row) {
			rows = append(rows, s.row)
		}
		if s.plain {
			plain[s.row] = median(s.took)
		} else {
			own[s.row] = median(s.took)
		}
	}
	fmt.Println("| | Sluice | cedar.Authorize | times |\n|---|---:|---:|---:|")
	for _, row := range rows {
		p, times := "", ""
		if v, ok := plain[row]; ok {
			p, times = duration(v), fmt.Sprintf("%.1f", v/own[row])
		}
		fmt.Printf("| %s | %s | %s | %s |\n", row, duration(own[row]), p, times)
	}
	for _, goal := range []string{rowToken, rowDecision(10_000)} {
		line, err := json.Marshal(map[string]any{"goal": goal + ", at most", "want": 5, "got": own[goal] / 1000, "unit": "µs", "met": own[goal] <= 5000})
		if err != nil {
			fail(err)
		}
		fmt.Println(string(line))
	}
}

const rowToken = "token check, cached"

func rowDecision(n int) string { return fmt.Sprintf("readTable among %d policies", n) }

func build() ([]*subject, error) {
	schema, err := policy.NewSchema(map[string]string{"regions": "Set<String>"})
	if err != nil {
		return nil, err
	}
	table, err := policy.NewTable(policy.NewWarehouse("acme", "demo").Namespace("sales", nil).Table("orders", nil), iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		iceberg.NestedField{ID: 2, Name: "region", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 3, Name: "amount", Type: iceberg.PrimitiveTypes.Int64},
		iceberg.NestedField{ID: 4, Name: "phone", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 5, Name: "born", Type: iceberg.PrimitiveTypes.Date},
	), policy.TableOptions{ColumnTags: map[int]map[string]string{4: {"pii": "yes"}}})
	if err != nil {
		return nil, err
	}
	who := identity.Principal{
		ID: "corp:bob", Kind: identity.KindToken, Organisation: "acme", Groups: []string{"corp:analysts"},
		Attributes: map[string]identity.AttributeValue{"regions": {Type: identity.TypeSet, Set: []string{"EU", "US"}}},
	}
	req := policy.Request{Principal: policy.NewPrincipal(who), Now: time.UnixMilli(1_700_000_000_000)}
	var all []*subject
	add := func(row string, plain bool, run func(*testing.B)) {
		all = append(all, &subject{row: row, plain: plain, run: run})
	}
	token, err := tokenCheck()
	if err != nil {
		return nil, err
	}
	add(rowToken, false, token)
	add("principal of a token, made", false, func(b *testing.B) {
		for b.Loop() {
			policy.NewPrincipal(who)
		}
	})
	for _, n := range []int{10, 1000, 10_000} {
		text := others(n-1) + `permit(principal in Group::"corp:analysts", action == Action::"readTable", resource in Namespace::"demo/sales");`
		stack, plain, err := both(schema, text)
		if err != nil {
			return nil, err
		}
		add(rowDecision(n), false, func(b *testing.B) {
			for b.Loop() {
				if d, err := stack.Rows(req, table); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
		})
		add(rowDecision(n), true, plainly(plain, policy.ReadTable, req, table.Resource(), nil))
	}
	writes, plain, err := both(schema, others(9_999)+`permit(principal in Group::"corp:analysts", action in Action::"write", resource in Namespace::"demo/sales");`)
	if err != nil {
		return nil, err
	}
	add("writeTable among 10000 policies", false, func(b *testing.B) {
		for b.Loop() {
			if d := writes.Authorize(req, policy.WriteTable, table.Resource()); !d.Allowed {
				b.Fatal("denied")
			}
		}
	})
	add("writeTable among 10000 policies", true, plainly(plain, policy.WriteTable, req, table.Resource(), nil))
	const filter = `
		permit(principal in Group::"corp:analysts", action == Action::"readTable", resource in Namespace::"demo/sales")
		when { principal has regions && context.row has region && principal.regions.contains(context.row.region) };
		forbid(principal, action == Action::"readTable", resource) when { context.row has amount && context.row.amount > 900 };
		permit(principal in Group::"corp:analysts", action == Action::"readColumn", resource in Namespace::"demo/sales") unless { resource.hasTag("pii") };
		@mask("show-last-4") permit(principal in Group::"corp:analysts", action == Action::"readColumn", resource in Namespace::"demo/sales") when { resource.hasTag("pii") };`
	stack, plain, err := both(schema, others(9_996)+filter)
	if err != nil {
		return nil, err
	}
	add("rows and five columns, two layers, residual made", false, func(b *testing.B) {
		two, err := policy.NewStack(stack.Layers()[0], policy.Layer{Name: "platform", Set: policy.OpenSet(schema)})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if d, err := two.Read(req, table); err != nil || d.Filter == nil {
				b.Fatal(d, err)
			}
		}
	})
	d, err := stack.Read(req, table)
	if err != nil {
		return nil, err
	}
	rows, records := sample(d.Filter)
	add("a row under a filter", false, func(b *testing.B) {
		i := 0
		for b.Loop() {
			d.Filter.Visible(rows[i%len(rows)])
			i++
		}
	})
	add("a row under a filter", true, plainly(onlyRows(plain), policy.ReadTable, req, table.Resource(), records))
	return all, nil
}

// others are policies for users and namespaces that are not asked about.
func others(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `permit(principal == User::"corp:u%d", action == Action::"readTable", resource in Namespace::"demo/n%d");`+"\n", i, i%100)
	}
	return b.String()
}

func both(schema *policy.Schema, text string) (*policy.Stack, *cedar.PolicySet, error) {
	set, err := policy.Parse(schema, policy.Source{File: "bench.cedar", Text: []byte(text)})
	if err != nil {
		return nil, nil, err
	}
	stack, err := policy.NewStack(policy.Layer{Name: "provider", Version: 1, Set: set})
	if err != nil {
		return nil, nil, err
	}
	plain, err := cedar.NewPolicySetFromBytes("bench.cedar", []byte(text))
	return stack, plain, err
}

// onlyRows leaves out the policies that are about other users, so that the cost
// of a row is compared and not that of the set.
func onlyRows(all *cedar.PolicySet) *cedar.PolicySet {
	few := cedar.NewPolicySet()
	for id, p := range all.All() {
		if !strings.Contains(string(p.MarshalCedar()), `"corp:u`) {
			few.Add(id, p)
		}
	}
	return few
}

// plainly asks cedar.Authorize, once per record when there are some.
func plainly(set *cedar.PolicySet, action policy.Action, req policy.Request, resource *policy.Resource, records []cedar.Record) func(*testing.B) {
	entities := cedar.EntityMap{}
	for uid, e := range req.Principal.Entities() {
		entities[uid] = e
	}
	for uid, e := range resource.Entities() {
		entities[uid] = e
	}
	uid := cedar.NewEntityUID("Action", cedar.String(action))
	entities[uid] = cedar.Entity{UID: uid, Parents: cedar.NewEntityUIDSet(cedar.NewEntityUID("Action", "write"))}
	r := cedar.Request{Principal: req.Principal.UID(), Action: uid, Resource: resource.UID()}
	contexts := []cedar.Record{cedar.NewRecord(cedar.RecordMap{"now": cedar.NewDatetime(req.Now)})}
	if records != nil {
		contexts = contexts[:0]
		for _, row := range records {
			contexts = append(contexts, cedar.NewRecord(cedar.RecordMap{"now": cedar.NewDatetime(req.Now), "row": row}))
		}
	}
	return func(b *testing.B) {
		i := 0
		for b.Loop() {
			r.Context = contexts[i%len(contexts)]
			cedar.Authorize(set, entities, r)
			i++
		}
	}
}

// sample are rows, as the filter and as Cedar take them.
func sample(f *policy.Filter) (rows [][]policy.Value, records []cedar.Record) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		region, amount := []string{"EU", "US", "APAC"}[r.IntN(3)], r.Int64N(1000)
		var row []policy.Value
		for _, c := range f.Columns() {
			switch c.Name {
			case "region":
				row = append(row, policy.StringValue(region))
			case "amount":
				row = append(row, policy.LongValue(amount))
			}
		}
		rows = append(rows, row)
		records = append(records, cedar.NewRecord(cedar.RecordMap{"id": types.Long(1), "region": types.String(region), "amount": types.Long(amount)}))
	}
	return rows, records
}

// tokenCheck authenticates requests with one token of our own, again and again.
func tokenCheck() (func(*testing.B), error) {
	key, _ := identity.GenerateSigningKey()
	password := secret.New("a-secret-for-the-benchmark")
	ids, err := identity.New(identity.Config{
		SigningKey: key, Accounts: []identity.Account{{ClientID: "bench", Secrets: []identity.Hash{identity.NewHash(password)}}},
	})
	if err != nil {
		return nil, err
	}
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {"bench"}, "client_secret": {password.Reveal()}}
	ask := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/v1/oauth/tokens", strings.NewReader(form.Encode()))
	ask.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	ids.TokenEndpoint().ServeHTTP(w, ask)
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Token == "" {
		return nil, fmt.Errorf("no token: %d %w", w.Code, err)
	}
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/v1/config", nil)
	r.Header.Set("Authorization", "Bearer "+answer.Token)
	return func(b *testing.B) {
		for b.Loop() {
			if _, err := ids.Authenticate(r); err != nil {
				b.Fatal(err)
			}
		}
	}, nil
}
