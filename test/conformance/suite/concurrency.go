// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// concurrencyCases race requests against each other.
func concurrencyCases() []Case {
	const section = "Concurrency"
	table := func(name string) any {
		return map[string]any{"name": name, "schema": map[string]any{"$schema": []any{0, "1 id long!"}}}
	}
	ident := func(name string) any { return map[string]any{"namespace": []any{"${ns}"}, "name": name} }
	return []Case{
		{
			ID: "race.create-table", Section: section, Severity: Must, Needs: []string{"createTable", "listTables"},
			Title: "of a hundred concurrent creates of one table one is 200, the others 409",
			Ref:   "polaris 1076; spec createTable 409",
			Check: func(ctx context.Context, t *Trial) error {
				if err := oneWins(ctx, t, 100, func(int) (*Response, error) {
					return t.post(ctx, "${p}/namespaces/${ns}/tables", table("t"))
				}, http.StatusConflict); err != nil {
					return err
				}
				return wantListed(ctx, t, "tables", "t")
			},
		},
		{
			ID: "race.create-view", Section: section, Severity: Must, Needs: []string{"createView", "listViews"},
			Title: "of a hundred concurrent creates of one view one is 200, the others 409",
			Ref:   "polaris 1076; spec createView 409",
			Check: func(ctx context.Context, t *Trial) error {
				if err := oneWins(ctx, t, 100, func(int) (*Response, error) {
					return t.post(ctx, "${p}/namespaces/${ns}/views", viewBody("v"))
				}, http.StatusConflict); err != nil {
					return err
				}
				return wantListed(ctx, t, "views", "v")
			},
		},
		{
			ID: "race.create-table-and-view", Section: section, Severity: Must, Needs: []string{"createTable", "createView"},
			Title: "of concurrent creates of a table and a view of one name exactly one wins",
			Ref:   "polaris 1076; spec createTable 409 (\"already exists as a table or view\")",
			Check: func(ctx context.Context, t *Trial) error {
				return oneWins(ctx, t, 40, func(i int) (*Response, error) {
					if i%2 == 0 {
						return t.post(ctx, "${p}/namespaces/${ns}/tables", table("x"))
					}
					return t.post(ctx, "${p}/namespaces/${ns}/views", viewBody("x"))
				}, http.StatusConflict)
			},
		},
		{
			ID: "race.create-namespace", Section: section, Severity: Must, Needs: []string{"createNamespace"},
			Title: "of a hundred concurrent creates of one namespace one is 200, the others 409",
			Ref:   "polaris 1076; spec createNamespace 409",
			Check: func(ctx context.Context, t *Trial) error {
				return oneWins(ctx, t, 100, func(int) (*Response, error) {
					return t.post(ctx, "${p}/namespaces", map[string]any{"namespace": []any{"${ns}_race"}})
				}, http.StatusConflict)
			},
		},
		{
			ID: "race.drop-table", Section: section, Severity: Must, Needs: []string{"createTable", "dropTable"},
			Title: "of twenty concurrent drops one is 204, the others 404",
			Ref:   "polaris 4499; spec dropTable 204, 404",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				return oneWins(ctx, t, 20, func(int) (*Response, error) {
					return t.do(ctx, Request{Method: http.MethodDelete, Path: "${p}/namespaces/${ns}/tables/t"})
				}, http.StatusNotFound)
			},
		},
		{
			ID: "race.rename-onto-one-name", Section: section, Severity: Must, Needs: []string{"createTable", "renameTable", "listTables"},
			Title: "of ten tables renamed to one name at once one gets it, nine keep theirs",
			Ref:   "lakekeeper 1955; spec renameTable 409",
			Check: func(ctx context.Context, t *Trial) error {
				for i := range 10 {
					if err := t.mustTable(ctx, fmt.Sprintf("t%d", i), nil); err != nil {
						return err
					}
				}
				if err := oneWins(ctx, t, 10, func(i int) (*Response, error) {
					return t.post(ctx, "${p}/tables/rename", map[string]any{"source": ident(fmt.Sprintf("t%d", i)), "destination": ident("target")})
				}, http.StatusConflict); err != nil {
					return err
				}
				resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables")
				if err != nil {
					return err
				}
				if n := resp.at("identifiers/#"); n != "10" {
					t.report(Must, "%s tables are left of ten", n)
				}
				return nil
			},
		},
		{
			ID: "race.drop-namespace-and-create-table", Section: section, Severity: Must, Needs: []string{"createTable", "dropNamespace", "loadTable"},
			Title: "a table created while its namespace is dropped is there with its namespace, or refused",
			Ref:   "spec dropNamespace (\"Namespace must be empty\"), createTable 404",
			Check: func(ctx context.Context, t *Trial) error {
				for i := range 10 {
					ns := fmt.Sprintf("%s_%d", t.ns, i)
					if resp, err := t.post(ctx, "${p}/namespaces", map[string]any{"namespace": []any{ns}}); err != nil || resp.Status != http.StatusOK {
						return fmt.Errorf("set-up: create a namespace: %v %w", resp, err)
					}
					answers, err := together(2, func(i int) (*Response, error) {
						if i == 0 {
							return t.post(ctx, "${p}/namespaces/"+ns+"/tables", table("t"))
						}
						return t.do(ctx, Request{Method: http.MethodDelete, Path: "${p}/namespaces/" + ns})
					})
					if err != nil {
						return err
					}
					create, drop := answers[0], answers[1]
					t.wantStatus(Must, "create", create, http.StatusOK, http.StatusNotFound)
					t.wantStatus(Must, "drop", drop, http.StatusNoContent, http.StatusConflict)
					if create.Status == http.StatusOK && drop.Status == http.StatusNoContent {
						t.report(Must, "round %d: both the create and the drop of its namespace succeeded", i)
					}
				}
				return nil
			},
		},
		{
			ID: "race.commits-one-table", Section: section, Severity: Must, Needs: []string{"createTable", "updateTable", "loadTable"},
			Title: "ten writers commit ten times each: every 200 is in the table, none is lost, losers get 409",
			Ref:   "spec updateTable 409; issue lists of lost updates",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				acknowledged, err := writers(t, 10, 10, func(key string) (*Response, error) {
					return t.commit(ctx, "t", []any{map[string]any{"type": "assert-table-uuid", "uuid": "${uuid.t}"}},
						[]any{map[string]any{"action": "set-properties", "updates": map[string]any{key: "1"}}})
				}, http.StatusOK)
				if err != nil {
					return err
				}
				return wantProperties(ctx, t, "t", acknowledged)
			},
		},
		{
			ID: "race.compare-and-swap", Section: section, Severity: Must, Needs: []string{"createTable", "updateTable", "loadTable"},
			Title: "of twenty commits that require the same snapshot of main one is 200, the others 409 CommitFailedException",
			Ref:   "spec AssertRefSnapshotId, updateTable 409",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				return oneWins(ctx, t, 20, func(i int) (*Response, error) {
					return t.commit(ctx, "t",
						[]any{map[string]any{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": nil}},
						[]any{
							map[string]any{"action": "add-snapshot", "snapshot": map[string]any{"$snapshot": map[string]any{"table": "t", "id": 100 + i, "seq": 1}}},
							map[string]any{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 100 + i},
						})
				}, http.StatusConflict)
			},
		},
		{
			ID: "race.branches", Section: section, Severity: Must, Needs: []string{"createTable", "updateTable", "loadTable"},
			Title: "commits to different branches with the same sequence number are never a final 400: 200, or 409 to retry",
			Ref:   "polaris 5138; spec updateTable 409 (\"The client may retry\")",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				answers, err := together(8, func(i int) (*Response, error) {
					return t.commit(ctx, "t",
						[]any{map[string]any{"type": "assert-ref-snapshot-id", "ref": fmt.Sprintf("b%d", i), "snapshot-id": nil}},
						[]any{
							map[string]any{"action": "add-snapshot", "snapshot": map[string]any{"$snapshot": map[string]any{"table": "t", "id": 100 + i, "seq": 1}}},
							map[string]any{"action": "set-snapshot-ref", "ref-name": fmt.Sprintf("b%d", i), "type": "branch", "snapshot-id": 100 + i},
						})
				})
				if err != nil {
					return err
				}
				ok := 0
				for i, a := range answers {
					t.wantStatus(Must, fmt.Sprintf("commit to branch b%d", i), a, http.StatusOK, http.StatusConflict)
					if a.Status == http.StatusOK {
						ok++
					}
				}
				final, err := t.get(ctx, "${p}/namespaces/${ns}/tables/t")
				if err != nil {
					return err
				}
				if n := final.at("metadata/refs/#"); n != strconv.Itoa(ok) {
					t.report(Must, "%d commits were acknowledged, the table has %s branches", ok, n)
				}
				if ok == 0 {
					t.report(Must, "no commit got through")
				}
				return nil
			},
		},
		{
			ID: "race.transactions", Section: section, Severity: Must, Needs: []string{"createTable", "commitTransaction", "loadTable"},
			Title: "ten writers of four two-table transactions each: every acknowledged one is in both tables",
			Ref:   "spec commitTransaction (\"atomic\"); lost updates of the reference fixture, which DuckDB writes through",
			Check: func(ctx context.Context, t *Trial) error {
				for _, name := range []string{"a", "b"} {
					if err := t.mustTable(ctx, name, nil); err != nil {
						return err
					}
				}
				change := func(name, key string) any {
					return map[string]any{
						"identifier":   ident(name),
						"requirements": []any{map[string]any{"type": "assert-table-uuid", "uuid": "${uuid." + name + "}"}},
						"updates":      []any{map[string]any{"action": "set-properties", "updates": map[string]any{key: "1"}}},
					}
				}
				acknowledged, err := writers(t, 10, 4, func(key string) (*Response, error) {
					return t.post(ctx, "${p}/transactions/commit", map[string]any{"table-changes": []any{change("a", key), change("b", key)}})
				}, http.StatusNoContent)
				if err != nil {
					return err
				}
				for _, name := range []string{"a", "b"} {
					if err := wantProperties(ctx, t, name, acknowledged); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			ID: "race.transaction-compare-and-swap", Section: section, Severity: Must, Needs: []string{"createTable", "commitTransaction", "loadTable"},
			Title: "transactions that require the same snapshot: one wins, and only its snapshot is there",
			Ref:   "requirements hold for the version that is replaced; spec commitTransaction 409",
			Check: func(ctx context.Context, t *Trial) error {
				for _, name := range []string{"a", "b"} {
					if err := t.mustTable(ctx, name, nil); err != nil {
						return err
					}
				}
				change := func(name string, i int) any {
					return map[string]any{
						"identifier":   ident(name),
						"requirements": []any{map[string]any{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": nil}},
						"updates": []any{
							map[string]any{"action": "add-snapshot", "snapshot": map[string]any{"$snapshot": map[string]any{"table": name, "id": 100 + i, "seq": 1}}},
							map[string]any{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 100 + i},
						},
					}
				}
				winners := 0
				answers, err := together(10, func(i int) (*Response, error) {
					// Every second one names the tables the other way round,
					// which dead-locks a server that locks in that order.
					changes := []any{change("a", i), change("b", i)}
					if i%2 == 1 {
						slices.Reverse(changes)
					}
					return t.post(ctx, "${p}/transactions/commit", map[string]any{"table-changes": changes})
				})
				if err != nil {
					return err
				}
				for i, a := range answers {
					t.wantStatus(Must, fmt.Sprintf("transaction %d", i), a, http.StatusNoContent, http.StatusConflict)
					if a.Status == http.StatusNoContent {
						winners++
					}
				}
				if winners != 1 {
					t.report(Must, "%d transactions succeeded, want 1", winners)
				}
				var heads []string
				for _, name := range []string{"a", "b"} {
					resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables/"+name)
					if err != nil {
						return err
					}
					if n := resp.at("metadata/snapshots/#"); n != "1" {
						t.report(Must, "table %s has %s snapshots, want 1", name, n)
					}
					heads = append(heads, resp.at("metadata/current-snapshot-id"))
				}
				if heads[0] != heads[1] {
					t.report(Must, "the tables are at snapshots of two transactions: %v", heads)
				}
				return nil
			},
		},
		{
			ID: "race.namespace-properties", Section: section, Severity: Must, Needs: []string{"updateProperties", "loadNamespaceMetadata"},
			Title: "ten writers of namespace properties: every acknowledged one is there",
			Ref:   "spec updateProperties (\"Properties that are not in the request are not modified\")",
			Check: func(ctx context.Context, t *Trial) error {
				acknowledged, err := writers(t, 10, 4, func(key string) (*Response, error) {
					return t.post(ctx, "${p}/namespaces/${ns}/properties", map[string]any{"updates": map[string]any{key: "1"}})
				}, http.StatusOK)
				if err != nil {
					return err
				}
				resp, err := t.get(ctx, "${p}/namespaces/${ns}")
				if err != nil {
					return err
				}
				return wantKeys(t, resp, "properties", acknowledged)
			},
		},
	}
}

// oneWins races n requests and wants one success and n-1 times lose.
func oneWins(_ context.Context, t *Trial, n int, f func(i int) (*Response, error), lose int) error {
	answers, err := together(n, f)
	if err != nil {
		return err
	}
	won := 0
	for _, a := range answers {
		if a.Status/100 == 2 {
			won++
			continue
		}
		if t.wantStatus(Must, "a loser", a, lose) && lose == http.StatusConflict {
			t.wantError("a loser", a, "", Should)
		}
	}
	if won != 1 {
		t.report(Must, "%d of %d requests succeeded, want 1", won, n)
	}
	return nil
}

// writers runs count goroutines of rounds requests, each with a key of its
// own, repeated on 409 as clients do, and returns the acknowledged keys.
func writers(t *Trial, count, rounds int, f func(key string) (*Response, error), success int) ([]string, error) {
	keys := make([][]string, count)
	_, err := together(count, func(w int) (*Response, error) {
		for r := range rounds {
			key := fmt.Sprintf("w%d-%d", w, r)
			const attempts = 50
			for attempt := 1; ; attempt++ {
				resp, err := f(key)
				if err != nil {
					return nil, err
				}
				if resp.Status == success {
					keys[w] = append(keys[w], key)
					break
				}
				if resp.Status != http.StatusConflict || attempt == attempts {
					t.wantStatus(Must, fmt.Sprintf("writer %d, attempt %d", w, attempt), resp, success)
					break
				}
			}
		}
		return nil, nil
	})
	return slices.Concat(keys...), err
}

func wantProperties(ctx context.Context, t *Trial, table string, keys []string) error {
	resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables/"+table)
	if err != nil {
		return err
	}
	return wantKeys(t, resp, "metadata/properties", keys)
}

// wantKeys reports how many of the acknowledged keys are not in the object at
// the path.
func wantKeys(t *Trial, resp *Response, path string, keys []string) error {
	doc, err := resp.JSON()
	if err != nil {
		return err
	}
	v, _ := lookup(doc, path)
	have, _ := v.(map[string]any)
	lost := 0
	for _, k := range keys {
		if _, ok := have[k]; !ok {
			lost++
		}
	}
	if lost > 0 {
		t.report(Must, "%d of %d acknowledged changes are lost", lost, len(keys))
	}
	return nil
}

// wantListed reports a listing that is not exactly one object of that name.
func wantListed(ctx context.Context, t *Trial, kind, name string) error {
	resp, err := t.get(ctx, "${p}/namespaces/${ns}/"+kind)
	if err != nil {
		return err
	}
	var body struct {
		Identifiers []struct {
			Name string `json:"name"`
		} `json:"identifiers"`
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil {
		return fmt.Errorf("list %s: %w", kind, err)
	}
	if len(body.Identifiers) != 1 || body.Identifiers[0].Name != name {
		t.report(Must, "the listing shows %s, want %s once", excerpt(resp.Body), name)
	}
	return nil
}
