// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCases holds what every case must have: Cases checks it.
func TestCases(t *testing.T) {
	t.Parallel()
	all, err := Cases()
	if err != nil {
		t.Fatal(err)
	}
	areas := map[string]int{}
	for _, c := range all {
		area, _, _ := strings.Cut(c.ID, ".")
		areas[area]++
	}
	if areas["malformed"] < 120 {
		t.Errorf("%d malformed requests, want at least 120", areas["malformed"])
	}
}

// TestCasesAreRefused has one broken case file per rule of the format.
func TestCasesAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, want string }{
		"unknown key":   {"section: S\ncases: [{id: a.b, titel: T}]", "titel"},
		"no steps":      {"section: S\ncases: [{id: a.b, title: T}]", "no steps"},
		"checks nought": {"section: S\ncases: [{id: a.b, title: T, steps: [{table: t}]}]", "checks anything"},
		"two actions":   {"section: S\ncases: [{id: a.b, steps: [{table: t, view: v}]}]", "exactly one"},
		"no status":     {"section: S\ncases: [{id: a.b, steps: [{do: GET /v1/config}]}]", "no status"},
		"no method":     {"section: S\ncases: [{id: a.b, steps: [{do: /v1/config, status: 200}]}]", "METHOD PATH"},
		"bad path":      {"section: S\ntables: [{id: a.b, do: GET /x, body: {a: 1}, rows: [{id: r, unset: [b/c]}]}]", "is absent"},
		"two documents": {"section: S\n---\nsection: T", "more than one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse([]byte(tc.file))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that names %q", err, tc.want)
			}
		})
	}
}

// TestNothingPassesOnABrokenServer runs all cases against servers that answer
// every request in one wrong way: a case that passes there checks nothing.
func TestNothingPassesOnABrokenServer(t *testing.T) {
	t.Parallel()
	config := configOfEverything(t)
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		// may lists the cases that this answer is right for.
		may []string
	}{
		"500 for everything": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "out of order", http.StatusInternalServerError)
			},
		},
		"200 and an empty object for everything": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte("{}"))
			},
			may: []string{
				"auth.token-case", // asks for the status only
				// JSON and HTTP leave open whether these are refused; what
				// these cases say is that a server does not fail on them.
				"malformed.create-namespace.level-of-1000", "malformed.create-namespace.thousand-levels",
				"malformed.create-namespace.property-null", "malformed.create-namespace.lone-surrogate",
				"malformed.create-namespace.duplicate-key", "malformed.create-namespace.deep-object",
				"malformed.create-namespace.wrong-content-type", "malformed.update-properties.removals-repeated",
			},
		},
		"404 for everything": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write([]byte(`{"error":{"message":"no","type":"NoSuchWarehouseException","code":404}}`))
			},
			may: []string{"config.unknown-warehouse"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/config" && r.URL.Query().Get("warehouse") == "" {
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write(config)
					return
				}
				tc.handler(w, r)
			}))
			t.Cleanup(server.Close)
			results, err := Run(t.Context(), Target{
				URI: server.URL, Token: "t", Token2: "u", Credential: "a:b",
			}, Options{Parallel: 4, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if r.Outcome != Pass || strings.HasPrefix(r.ID, "config.") && r.ID != "config.prefix" && r.ID != "config.unknown-warehouse" {
					continue // the configuration is the one right answer
				}
				if !slices.Contains(tc.may, r.ID) {
					t.Errorf("%s passes", r.ID)
				}
			}
		})
	}
}

// configOfEverything advertises all endpoints and features.
func configOfEverything(t *testing.T) []byte {
	t.Helper()
	var endpoints []string
	for _, op := range operations() {
		endpoints = append(endpoints, op.method+" "+op.path)
	}
	b, err := json.Marshal(map[string]any{
		"defaults": map[string]string{}, "overrides": map[string]string{"namespace-separator": "%2E"},
		"endpoints": endpoints, "idempotency-key-lifetime": "PT1H",
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestNeedsMakeACaseNotApplicable checks that what is not advertised is not
// counted as passed.
func TestNeedsMakeACaseNotApplicable(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"defaults":{},"overrides":{},"endpoints":["GET /v1/{prefix}/namespaces"]}`))
	}))
	t.Cleanup(server.Close)
	results, err := Run(t.Context(), Target{URI: server.URL}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if strings.HasPrefix(r.ID, "view.") && r.Outcome != NotApplicable {
			t.Errorf("%s is %s, want n/a", r.ID, r.Outcome)
		}
		if r.Outcome == NotApplicable && len(r.Reasons) == 0 {
			t.Errorf("%s is n/a without a reason", r.ID)
		}
	}
}

// TestRunRefuses checks that a target that is no catalog is an error, not a
// list of failures.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	for _, uri := range []string{"", "localhost:8181", "ftp://x", server.URL} {
		if _, err := Run(t.Context(), Target{URI: uri}, Options{}); err == nil {
			t.Errorf("Run(%q) has no error", uri)
		}
	}
}

// TestOperationOf checks that paths of cases lead to their needs.
func TestOperationOf(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]string{
		"GET ${p}/namespaces?parent=x":                "listNamespaces",
		"HEAD ${p}/namespaces/${ns}":                  "namespaceExists",
		"POST ${p}/namespaces/${ns}/tables/t/metrics": "reportMetrics",
		"POST ${p}/namespaces/${ns}/tables/t":         "updateTable",
		"POST ${p}/tables/rename":                     "renameTable",
		"PUT ${p}/namespaces/${ns}":                   "",
		"GET ${p}/namespaces/${ns}/tables/":           "",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := operationOf(method, path); got != want {
			t.Errorf("operationOf(%s) is %q, want %q", request, got, want)
		}
	}
}
