// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// keyed is a mutation that is sent twice with one Idempotency-Key.
type keyed struct {
	id     string
	op     string
	needs  []string
	given  func(context.Context, *Trial) error
	method string
	path   string
	body   any
	// want is the status of both answers.
	want int
}

func keyedMutations() []keyed {
	table := func(ctx context.Context, t *Trial) error { return t.mustTable(ctx, "t", nil) }
	view := func(ctx context.Context, t *Trial) error { return t.mustView(ctx, "v") }
	name := func(n string) map[string]any {
		return map[string]any{"namespace": []any{"${ns}"}, "name": n}
	}
	properties := []any{map[string]any{"action": "set-properties", "updates": map[string]any{"k": "v"}}}
	return []keyed{
		{id: "create-namespace", op: "createNamespace", method: "POST", path: "${p}/namespaces", body: map[string]any{"namespace": []any{"${ns}_k"}}, want: 200},
		{id: "update-properties", op: "updateProperties", method: "POST", path: "${p}/namespaces/${ns}/properties", body: map[string]any{"updates": map[string]any{"k": "v"}}, want: 200},
		{
			id: "create-table", op: "createTable", method: "POST", path: "${p}/namespaces/${ns}/tables", want: 200,
			body: map[string]any{"name": "t", "schema": map[string]any{"$schema": []any{0, "1 id long!"}}},
		},
		{id: "commit", op: "updateTable", given: table, method: "POST", path: "${p}/namespaces/${ns}/tables/t", body: commitBody(nil, properties), want: 200},
		{
			id: "transaction", op: "commitTransaction", given: table, method: "POST", path: "${p}/transactions/commit", want: 204,
			body: map[string]any{"table-changes": []any{map[string]any{"identifier": name("t"), "requirements": []any{}, "updates": properties}}},
		},
		{id: "rename-table", op: "renameTable", given: table, method: "POST", path: "${p}/tables/rename", body: map[string]any{"source": name("t"), "destination": name("u")}, want: 204},
		{id: "drop-table", op: "dropTable", given: table, method: "DELETE", path: "${p}/namespaces/${ns}/tables/t", want: 204},
		{id: "drop-namespace", op: "dropNamespace", method: "DELETE", path: "${p}/namespaces/${ns}", want: 204},
		{id: "unregister-table", op: "unregisterTable", given: table, method: "POST", path: "${p}/namespaces/${ns}/tables/t/unregister", want: 200},
		{id: "drop-view", op: "dropView", needs: []string{"createView"}, given: view, method: "DELETE", path: "${p}/namespaces/${ns}/views/v", want: 204},
		{id: "rename-view", op: "renameView", needs: []string{"createView"}, given: view, method: "POST", path: "${p}/views/rename", body: map[string]any{"source": name("v"), "destination": name("w")}, want: 204},
		{
			id: "replace-view", op: "replaceView", needs: []string{"createView"}, given: view, method: "POST", path: "${p}/namespaces/${ns}/views/v", want: 200,
			body: map[string]any{"requirements": []any{}, "updates": properties},
		},
		{
			id: "conflict", op: "createTable", given: table, method: "POST", path: "${p}/namespaces/${ns}/tables", want: 409,
			body: map[string]any{"name": "t", "schema": map[string]any{"$schema": []any{0, "1 id long!"}}},
		},
	}
}

// send sends the mutation with a key.
func (k keyed) send(ctx context.Context, t *Trial, key string) (*Response, error) {
	r := Request{Method: k.method, Path: k.path, Header: http.Header{"Idempotency-Key": {key}}}
	if k.body != nil {
		x, err := t.expand(k.body)
		if err != nil {
			return nil, err
		}
		if r.Body, err = json.Marshal(x); err != nil {
			return nil, err
		}
	}
	return t.do(ctx, r)
}

func idempotencyCases() []Case {
	const section = "Idempotency-Key"
	const spec = "spec parameter idempotency-key"
	var all []Case
	for _, k := range keyedMutations() {
		all = append(all, Case{
			ID: "idempotency.replay." + k.id, Section: section, Severity: Must,
			Needs: append([]string{"idempotency", k.op}, k.needs...),
			Title: k.id + " sent again with its key answers as the first time",
			Ref:   spec + " (\"the server returns an equivalent final response without re-running the operation\"); ClickHouse fork 2003",
			Check: func(ctx context.Context, t *Trial) error {
				if k.given != nil {
					if err := k.given(ctx, t); err != nil {
						return err
					}
				}
				key := newKey()
				first, err := k.send(ctx, t, key)
				if err != nil {
					return err
				}
				if !t.wantStatus(Must, "the first request", first, k.want) {
					return nil
				}
				for range 2 {
					again, err := k.send(ctx, t, key)
					if err != nil {
						return err
					}
					if !t.wantStatus(Must, "the same request again", again, k.want) {
						return nil
					}
					told := ""
					for _, path := range []string{"metadata-location", "metadata/table-uuid", "metadata/view-uuid", "namespace", "updated"} {
						told += first.at(path)
						if first.at(path) != again.at(path) {
							t.report(Must, "%s is %s first and %s again: the operation ran twice", path, first.at(path), again.at(path))
						}
					}
					if k.want == http.StatusOK && told == "" {
						t.report(Must, "the answer tells nothing: %s", excerpt(first.Body))
					}
				}
				return nil
			},
		})
	}
	commit := keyed{method: "POST", path: "${p}/namespaces/${ns}/tables/t"}
	commit.body = commitBody(nil, []any{map[string]any{"action": "set-properties", "updates": map[string]any{"k": "v"}}})
	return append(
		all,
		Case{
			ID: "idempotency.applied-once", Section: section, Severity: Must,
			Needs: []string{"idempotency", "createTable", "updateTable", "loadTable"},
			Title: "twenty concurrent commits with one key are applied once, and all answers agree",
			Ref:   spec + " (\"no additional effects\")",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				key := newKey()
				answers, err := together(20, func(int) (*Response, error) { return commit.send(ctx, t, key) })
				if err != nil {
					return err
				}
				locations := map[string]bool{}
				for _, a := range answers {
					// 409 and 503 tell a client to come back; they are no
					// second effect.
					if a.Status == http.StatusOK {
						locations[a.at("metadata-location")] = true
					} else if a.Status != http.StatusConflict && a.Status != http.StatusServiceUnavailable {
						t.report(Must, "one answer is %d: %s", a.Status, excerpt(a.Body))
					}
				}
				if len(locations) != 1 {
					t.report(Must, "the commit made %d versions", len(locations))
				}
				final, err := t.get(ctx, "${p}/namespaces/${ns}/tables/t")
				if err != nil {
					return err
				}
				if n := final.at("metadata/metadata-log/#"); n != "1" {
					t.report(Must, "metadata-log has %s entries after one commit", n)
				}
				return nil
			},
		},
		Case{
			ID: "idempotency.after-newer-state", Section: section, Severity: Must,
			Needs: []string{"idempotency", "createTable", "dropTable"},
			Title: "a create that is sent again after the table was dropped does not make it anew",
			Ref:   spec + " (\"the server returns an equivalent final response without re-running the operation\")",
			Check: func(ctx context.Context, t *Trial) error {
				create := keyed{method: "POST", path: "${p}/namespaces/${ns}/tables", body: map[string]any{
					"name": "t", "schema": map[string]any{"$schema": []any{0, "1 id long!"}},
				}}
				key := newKey()
				first, err := create.send(ctx, t, key)
				if err != nil {
					return err
				}
				if !t.wantStatus(Must, "create", first, http.StatusOK) {
					return nil
				}
				if _, err := t.do(ctx, Request{Method: http.MethodDelete, Path: "${p}/namespaces/${ns}/tables/t"}); err != nil {
					return err
				}
				if _, err := create.send(ctx, t, key); err != nil {
					return err
				}
				resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables/t")
				if err != nil {
					return err
				}
				t.wantStatus(Must, "load the table that was dropped", resp, http.StatusNotFound)
				return nil
			},
		},
		reuseCase("other-body", "a key used again with another body is refused", commit, keyed{
			method: "POST", path: commit.path,
			body: commitBody(nil, []any{map[string]any{"action": "set-properties", "updates": map[string]any{"k": "other"}}}),
		}),
		reuseCase("other-operation", "a key used again for another operation is refused", commit, keyed{
			method: "POST", path: "${p}/namespaces/${ns}/properties", body: map[string]any{"updates": map[string]any{"a": "b"}},
		}),
		malformedKeyCase("not-a-uuid", "an Idempotency-Key that is no UUID is 400", "not-a-uuid"),
		malformedKeyCase("empty", "an empty Idempotency-Key is 400", ""),
		malformedKeyCase("too-long", "an Idempotency-Key of 10,000 characters is 400", strings.Repeat("a", 10000)),
		Case{
			ID: "idempotency.upper-case", Section: section, Severity: Should,
			Needs: []string{"idempotency", "createTable", "updateTable"},
			Title: "the same UUID in upper and lower case is the same key",
			Ref:   spec + " (example in upper case); RFC 9562 section 4 (case-insensitive on input)",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				key := newKey()
				first, err := commit.send(ctx, t, strings.ToUpper(key))
				if err != nil {
					return err
				}
				again, err := commit.send(ctx, t, key)
				if err != nil {
					return err
				}
				if t.wantStatus(Should, "the first request", first, http.StatusOK) &&
					t.wantStatus(Should, "the same request again", again, http.StatusOK) &&
					first.at("metadata-location") != again.at("metadata-location") {
					t.report(Should, "the commit ran twice")
				}
				return nil
			},
		},
	)
}

func reuseCase(id, title string, first, second keyed) Case {
	return Case{
		ID: "idempotency." + id, Section: "Idempotency-Key", Severity: Should,
		Needs: []string{"idempotency", "createTable", "updateTable", "updateProperties"},
		Title: title,
		Ref:   "spec parameter idempotency-key (\"no reuse across different operations\")",
		Check: func(ctx context.Context, t *Trial) error {
			if err := t.mustTable(ctx, "t", nil); err != nil {
				return err
			}
			key := newKey()
			a, err := first.send(ctx, t, key)
			if err != nil {
				return err
			}
			if !t.wantStatus(Should, "the first use of the key", a, http.StatusOK) {
				return nil
			}
			b, err := second.send(ctx, t, key)
			if err != nil {
				return err
			}
			if t.wantStatus(Should, "the second use of the key", b, http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity) {
				t.wantError("the second use of the key", b, "", Should)
			}
			return nil
		},
	}
}

func malformedKeyCase(id, title, key string) Case {
	return Case{
		ID: "idempotency." + id, Section: "Idempotency-Key", Severity: Should,
		Needs: []string{"idempotency", "createNamespace"},
		Title: title,
		Ref:   "spec parameter idempotency-key (format: uuid, 36 characters)",
		Check: func(ctx context.Context, t *Trial) error {
			k := keyed{method: "POST", path: "${p}/namespaces", body: map[string]any{"namespace": []any{"${ns}_k"}}}
			resp, err := k.send(ctx, t, key)
			if err != nil {
				return err
			}
			what := fmt.Sprintf("createNamespace with the key %q", excerpt([]byte(key)))
			t.wantStatus(Should, what, resp, http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge)
			return nil
		},
	}
}

// together calls f n times at once and returns the answers in order.
func together(n int, f func(i int) (*Response, error)) ([]*Response, error) {
	answers, errs := make([]*Response, n), make([]error, n)
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			answers[i], errs[i] = f(i)
		})
	}
	close(start)
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return answers, nil
}
