// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// oddNames are names that a server takes whole or refuses with 400, but never
// changes, confuses or fails on.
func oddNames() []struct{ id, name string } {
	return []struct{ id, name string }{
		{"space", "a b"},
		{"plus", "a+b"},
		{"percent", "100%"},
		{"percent-25", "a%25b"},
		{"percent-1f", "a%1Fb"},
		{"slash", "a/b"},
		{"escaped-slash", "a%2Fb"},
		{"backslash", `a\b`},
		{"dot", "a.b"},
		{"question-mark", "a?b#c&d=e"},
		{"quotes", `a"b'c` + "`d"},
		{"unicode", "täble-表-🧊"},
		{"combining", "e\u0301"}, // NFD; the composed form is another name
		{"right-to-left", "\u05d0\u05d1"},
		{"line-separator", "a\u2028b"},
		{"upper-case", "TABLE"},
		{"like-underscore", "a_b"},
		{"like-percent", "%"},
		{"policy-star", "f*"},
		{"policy-variable", "${aws:username}"},
		{"policy-injection", `q') || true || resource.name.startsWith('`},
		{"html", "<script>"},
		{"trailing-space", "a "},
		{"trailing-dot", "a."},
		{"control-tab", "a\tb"},
		{"control-escape", "a\x1bb"},
		{"length-255", strings.Repeat("n", 255)},
		{"length-300", strings.Repeat("n", 300)},
		{"separator-colon", "a:b"},
		{"comma", "a,b"},
	}
}

// nameCases make, find, list and drop objects with odd names.
func nameCases() []Case {
	const section = "Names"
	var all []Case
	for _, odd := range oddNames() {
		for _, kind := range []struct {
			name  string
			needs []string
			list  string // the listing
			one   func(escaped string) string
			body  func(ns string) any
		}{
			{
				name: "table", needs: []string{"createTable", "loadTable", "listTables", "dropTable"},
				list: "${p}/namespaces/${ns}/tables",
				one:  func(e string) string { return "/namespaces/${ns}/tables/" + e },
				body: func(string) any {
					return map[string]any{"name": odd.name, "schema": json.RawMessage(`{"type":"struct","fields":[{"id":1,"name":"id","required":false,"type":"long"}]}`)}
				},
			},
			{
				name: "namespace", needs: []string{"nested", "loadNamespaceMetadata", "listNamespaces", "dropNamespace"},
				list: "${p}/namespaces?parent=${ns}",
				one:  func(e string) string { return "/namespaces/${ns}${s}" + e },
				body: func(ns string) any { return map[string]any{"namespace": []string{ns, odd.name}} },
			},
		} {
			all = append(all, Case{
				ID: "names." + kind.name + "." + odd.id, Section: section, Severity: Must, Needs: kind.needs,
				Title: fmt.Sprintf("a %s named %s is kept exactly, or refused with 400", kind.name, show(excerpt([]byte(odd.name)))),
				Ref:   "spec TableIdentifier, Namespace (any string); gravitino 9955; attack list of names",
				Check: func(ctx context.Context, t *Trial) error {
					body, err := json.Marshal(kind.body(t.ns))
					if err != nil {
						return err
					}
					post := "${p}/namespaces"
					if kind.name == "table" {
						post = kind.list
					}
					made, err := t.do(ctx, Request{Method: http.MethodPost, Path: post, Body: body})
					if err != nil {
						return err
					}
					if made.Status == http.StatusBadRequest || made.Status == http.StatusForbidden {
						t.wantError("the refusal", made, "", Should)
						return nil
					}
					if !t.wantStatus(Must, "create", made, http.StatusOK) {
						return nil
					}
					return oddNameLives(ctx, t, odd.name, kind.list, "${p}"+kind.one(strings.ReplaceAll(escapeName(odd.name), "$", "%24")))
				},
			})
		}
	}
	return all
}

// oddNameLives loads, lists and drops the object.
func oddNameLives(ctx context.Context, t *Trial, name, list, path string) error {
	loaded, err := t.get(ctx, path)
	if err != nil {
		return err
	}
	t.wantStatus(Must, "load by its escaped name", loaded, http.StatusOK)
	listed, err := t.get(ctx, list)
	if err != nil {
		return err
	}
	var names struct {
		Identifiers []struct {
			Name string `json:"name"`
		} `json:"identifiers"`
		Namespaces [][]string `json:"namespaces"`
	}
	if err := json.Unmarshal(listed.Body, &names); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	var got []string
	for _, i := range names.Identifiers {
		got = append(got, i.Name)
	}
	for _, n := range names.Namespaces {
		if len(n) > 0 {
			got = append(got, n[len(n)-1])
		}
	}
	if !slices.Equal(got, []string{name}) {
		t.report(Must, "the listing shows %q, want %q alone", got, name)
	}
	dropped, err := t.do(ctx, Request{Method: http.MethodDelete, Path: path})
	if err != nil {
		return err
	}
	t.wantStatus(Must, "drop by its escaped name", dropped, http.StatusNoContent)
	gone, err := t.get(ctx, path)
	if err != nil {
		return err
	}
	t.wantStatus(Must, "load after the drop", gone, http.StatusNotFound)
	return nil
}
