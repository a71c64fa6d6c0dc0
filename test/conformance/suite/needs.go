// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// operation is an endpoint of the protocol. assumed operations count as
// served when the configuration lists no endpoints (spec getConfig); always
// ones are never listed there.
type operation struct {
	id, method, path string
	assumed, always  bool
}

// operations lists the protocol's endpoints by their operationId.
func operations() []operation {
	const (
		ns    = "/v1/{prefix}/namespaces"
		one   = ns + "/{namespace}"
		table = one + "/tables/{table}"
		view  = one + "/views/{view}"
	)
	return []operation{
		{id: "getConfig", method: "GET", path: "/v1/config", always: true},
		{id: "getToken", method: "POST", path: "/v1/oauth/tokens", always: true},
		{id: "listNamespaces", method: "GET", path: ns, assumed: true},
		{id: "createNamespace", method: "POST", path: ns, assumed: true},
		{id: "loadNamespaceMetadata", method: "GET", path: one, assumed: true},
		{id: "namespaceExists", method: "HEAD", path: one},
		{id: "dropNamespace", method: "DELETE", path: one, assumed: true},
		{id: "updateProperties", method: "POST", path: one + "/properties", assumed: true},
		{id: "listTables", method: "GET", path: one + "/tables", assumed: true},
		{id: "createTable", method: "POST", path: one + "/tables", assumed: true},
		{id: "loadTable", method: "GET", path: table, assumed: true},
		{id: "updateTable", method: "POST", path: table, assumed: true},
		{id: "dropTable", method: "DELETE", path: table, assumed: true},
		{id: "tableExists", method: "HEAD", path: table},
		{id: "unregisterTable", method: "POST", path: table + "/unregister"},
		{id: "loadCredentials", method: "GET", path: table + "/credentials"},
		{id: "signRequest", method: "POST", path: table + "/sign"},
		{id: "reportMetrics", method: "POST", path: table + "/metrics", assumed: true},
		{id: "planTableScan", method: "POST", path: table + "/plan"},
		{id: "registerTable", method: "POST", path: one + "/register", assumed: true},
		{id: "renameTable", method: "POST", path: "/v1/{prefix}/tables/rename", assumed: true},
		{id: "commitTransaction", method: "POST", path: "/v1/{prefix}/transactions/commit", assumed: true},
		{id: "listFunctions", method: "GET", path: one + "/functions"},
		{id: "loadFunction", method: "GET", path: one + "/functions/{function}"},
		{id: "listViews", method: "GET", path: one + "/views"},
		{id: "createView", method: "POST", path: one + "/views"},
		{id: "loadView", method: "GET", path: view},
		{id: "replaceView", method: "POST", path: view},
		{id: "dropView", method: "DELETE", path: view},
		{id: "viewExists", method: "HEAD", path: view},
		{id: "renameView", method: "POST", path: "/v1/{prefix}/views/rename"},
		{id: "registerView", method: "POST", path: one + "/register-view"},
	}
}

// operationOf returns the id of the operation that a request of a case asks
// for, "" when it is none. path is the case's template, e.g.
// "${p}/namespaces/${ns}/tables/t".
func operationOf(method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	path = strings.Replace(path, "${p}", "/v1/{prefix}", 1)
	got := strings.Split(path, "/")
	for _, op := range operations() {
		want := strings.Split(op.path, "/")
		if op.method != method || len(want) != len(got) {
			continue
		}
		same := true
		for i := range want {
			same = same && (want[i] == got[i] || strings.HasPrefix(want[i], "{") && got[i] != "")
		}
		if same {
			return op.id
		}
	}
	return ""
}

// feature is an optional ability that is found out by asking, once a run. The
// probe returns nil when the server has it and the reason when it has not.
type feature struct {
	name  string
	probe func(context.Context, *session) error
}

func features() []feature {
	return []feature{
		{"authentication", func(ctx context.Context, s *session) error {
			if s.target.Token == "" {
				return skip("no token was given, so the server seems to run without authentication (-token)")
			}
			return nil
		}},
		{"second-principal", func(_ context.Context, s *session) error {
			if s.target.Token2 == "" {
				return skip("needs the token of a second principal without rights (-token2)")
			}
			return nil
		}},
		{"client-credential", func(_ context.Context, s *session) error {
			if s.target.Credential == "" {
				return skip("needs a client id and secret (-credential)")
			}
			return nil
		}},
		{"oauth-tokens", probeOAuth},
		{"idempotency", func(_ context.Context, s *session) error {
			if s.config.at("idempotency-key-lifetime") == "" {
				return skip("/v1/config has no idempotency-key-lifetime")
			}
			return nil
		}},
		{"separator", func(_ context.Context, s *session) error {
			if s.separator() == "" {
				return skip("/v1/config advertises no namespace-separator")
			}
			return nil
		}},
		{"nested", func(ctx context.Context, s *session) error {
			return s.attempt(ctx, "nested namespaces", func(t *Trial) (*Response, error) {
				return t.post(ctx, "${p}/namespaces", map[string]any{"namespace": []any{t.ns, "child"}})
			})
		}},
		{"format-v3", func(ctx context.Context, s *session) error {
			return s.attempt(ctx, "tables of format version 3", func(t *Trial) (*Response, error) {
				return t.createTable(ctx, "probe", map[string]any{"format-version": "3"})
			})
		}},
		{"format-v1", func(ctx context.Context, s *session) error {
			return s.attempt(ctx, "tables of format version 1", func(t *Trial) (*Response, error) {
				return t.createTable(ctx, "probe", map[string]any{"format-version": "1"})
			})
		}},
		{"etag", func(ctx context.Context, s *session) error {
			return s.attempt(ctx, "ETag", func(t *Trial) (*Response, error) {
				if _, err := t.createTable(ctx, "probe", nil); err != nil {
					return nil, err
				}
				resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables/probe")
				if err == nil && resp.Header.Get("ETag") == "" {
					return nil, skip("loadTable sends no ETag")
				}
				return resp, err
			})
		}},
		{"vending", func(ctx context.Context, s *session) error {
			return s.attempt(ctx, "vended credentials", func(t *Trial) (*Response, error) {
				if resp, err := t.createTable(ctx, "probe", nil); err != nil || resp.Status != http.StatusOK {
					return resp, err
				}
				resp, err := t.do(ctx, Request{
					Method: http.MethodGet, Path: "${p}/namespaces/${ns}/tables/probe",
					Header: http.Header{"X-Iceberg-Access-Delegation": {"vended-credentials"}},
				})
				if err != nil {
					return nil, err
				}
				if list, err := credentialsOf(resp); err == nil && len(list) == 0 {
					return nil, skip("loadTable vends no credentials when asked")
				}
				return &Response{Status: resp.Status}, nil
			})
		}},
		{"paging", func(ctx context.Context, s *session) error {
			return s.attempt(ctx, "pagination", func(t *Trial) (*Response, error) {
				for _, name := range []string{"a", "b"} {
					if resp, err := t.createTable(ctx, name, nil); err != nil || resp.Status != http.StatusOK {
						return resp, err
					}
				}
				resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables?pageToken=&pageSize=1")
				if err == nil && resp.at("next-page-token") == "" {
					return nil, skip("listTables with pageSize=1 of two tables returns no next-page-token, so the server does not paginate")
				}
				return resp, err
			})
		}},
	}
}

// attempt runs one request in a namespace of its own: success means that the
// server has the feature, a refusal (400, 403, 406, 422, 501) that it has not.
// Any other answer counts as having it, so that the cases show what is wrong.
func (s *session) attempt(ctx context.Context, what string, try func(*Trial) (*Response, error)) error {
	t := s.newTrial(Case{ID: "probe", Severity: Must})
	defer t.cleanUp(context.WithoutCancel(ctx))
	if err := t.createOwnNamespace(ctx); err != nil {
		return err
	}
	resp, err := try(t)
	if err != nil {
		return err
	}
	switch resp.Status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotAcceptable, http.StatusUnprocessableEntity, http.StatusNotImplemented:
		return skip("the server refuses %s: %d %s", what, resp.Status, excerpt(resp.Body))
	}
	return nil
}

func probeOAuth(ctx context.Context, s *session) error {
	none := ""
	resp, err := s.send(ctx, Request{
		Method: http.MethodPost, Path: "/v1/oauth/tokens", Auth: &none,
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}},
		Body:   []byte("grant_type=conformance-probe"),
	})
	if err != nil {
		return err
	}
	switch resp.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusGone:
		return skip("the server does not serve /v1/oauth/tokens (status %d), which is deprecated", resp.Status)
	}
	return nil
}

// have returns nil when the server offers the operation or feature, the error
// of skip when it does not, or another error when that could not be found out.
func (s *session) have(ctx context.Context, need string) error {
	for _, op := range operations() {
		if op.id == need {
			if s.advertised[need] {
				return nil
			}
			return skip("%s %s is not among the endpoints of /v1/config", op.method, op.path)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err, known := s.probes[need]; known {
		return err
	}
	for _, f := range features() {
		if f.name == need {
			err := f.probe(ctx, s)
			s.probes[need] = err
			return err
		}
	}
	return fmt.Errorf("need %q is neither an operation nor a feature", need)
}

// setting returns a value of the configuration, overrides before defaults.
func (s *session) setting(name string) string {
	var config struct {
		Defaults  map[string]string `json:"defaults"`
		Overrides map[string]string `json:"overrides"`
	}
	if err := json.Unmarshal(s.config.Body, &config); err != nil {
		return ""
	}
	if v, ok := config.Overrides[name]; ok {
		return v
	}
	return config.Defaults[name]
}

// separator is the advertised namespace separator as it goes into a path
// (escaped), "" when none is advertised.
func (s *session) separator() string { return s.setting("namespace-separator") }

// joiner is what stands between the levels of a namespace in a path, as
// current clients send it: the advertised separator, else the unit separator.
func (s *session) joiner() string {
	if sep := s.separator(); sep != "" {
		return sep
	}
	return "%1F"
}
