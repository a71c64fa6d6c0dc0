// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// configCases look at /v1/config and at what its promises mean for paths.
func configCases() []Case {
	const section = "Configuration"
	return []Case{
		{
			ID: "config.shape", Section: section, Severity: Must, NoNamespace: true,
			Title: "defaults and overrides are objects of strings, content type is JSON",
			Ref:   "spec CatalogConfig (required: defaults, overrides)",
			Check: func(_ context.Context, t *Trial) error {
				doc, err := t.s.config.JSON()
				if err != nil {
					return err
				}
				for _, name := range []string{"defaults", "overrides"} {
					v, ok := lookup(doc, name)
					if wrong := match(v, ok, map[string]any{"$type": "object"}); wrong != "" {
						t.report(Must, "%s %s", name, wrong)
						continue
					}
					for k, s := range v.(map[string]any) {
						if _, isString := s.(string); !isString {
							t.report(Must, "%s/%s is %s, want a string", name, k, show(s))
						}
					}
				}
				t.wantJSON("GET /v1/config", &t.s.config)
				return nil
			},
		},
		{
			ID: "config.endpoints", Section: section, Severity: Must, NoNamespace: true,
			Title: "each endpoint is \"VERB /v1/…\" with the placeholders of the specification",
			Ref:   "spec CatalogConfig.endpoints; Java Endpoint.fromString",
			Check: func(_ context.Context, t *Trial) error {
				var config struct {
					Endpoints []string `json:"endpoints"`
				}
				if err := json.Unmarshal(t.s.config.Body, &config); err != nil {
					return err
				}
				if len(config.Endpoints) == 0 {
					return skip("/v1/config lists no endpoints, so clients assume the 14 of the specification")
				}
				grammar := regexp.MustCompile(`^(GET|HEAD|POST|PUT|DELETE) /v\d+/\S+$`)
				for _, e := range config.Endpoints {
					if !grammar.MatchString(e) {
						t.report(Must, "endpoint %q is not of the form \"VERB /v1/path\"", e)
					}
				}
				return nil
			},
		},
		{
			ID: "config.idempotency-lifetime", Section: section, Severity: Must, NoNamespace: true,
			Needs: []string{"idempotency"},
			Title: "idempotency-key-lifetime is an ISO-8601 duration that Java parses (no weeks, months, years)",
			Ref:   "spec CatalogConfig.idempotency-key-lifetime; lakekeeper 1952; Java Duration.parse",
			Check: func(_ context.Context, t *Trial) error {
				v := t.s.config.at("idempotency-key-lifetime")
				if !regexp.MustCompile(`^P(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?$`).MatchString(v) || v == "P" || strings.HasSuffix(v, "T") {
					t.report(Must, "idempotency-key-lifetime is %q", v)
				}
				return nil
			},
		},
		{
			ID: "config.unknown-warehouse", Section: section, Severity: Must, NoNamespace: true,
			Title: "an unknown warehouse is 404 NoSuchWarehouseException",
			Ref:   "spec getConfig 404; rustfs 4788",
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := t.get(ctx, "/v1/config?warehouse=no-such-"+random(6))
				if err != nil {
					return err
				}
				if t.wantStatus(Must, "GET /v1/config with an unknown warehouse", resp, http.StatusNotFound) {
					t.wantError("GET /v1/config with an unknown warehouse", resp, "NoSuchWarehouseException", Should)
				}
				return nil
			},
		},
		{
			ID: "config.prefix", Section: section, Severity: Must, NoNamespace: true,
			Title: "the path that /v1/config leads to lists namespaces",
			Ref:   "spec parameter prefix; rustfs 4788",
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := t.get(ctx, "${p}/namespaces")
				if err != nil {
					return err
				}
				if t.wantStatus(Must, "GET /namespaces under the configured prefix", resp, http.StatusOK) && resp.at("namespaces") == "" {
					t.report(Must, "the answer lists no namespaces: %s", excerpt(resp.Body))
				}
				return nil
			},
		},
		{
			ID: "config.separator-escaped", Section: section, Severity: Must, NoNamespace: true,
			Needs: []string{"separator"},
			Title: "namespace-separator is given URL-encoded",
			Ref:   "spec parameter namespace (\"should be provided in a url encoded form\")",
			Check: func(_ context.Context, t *Trial) error {
				sep := t.s.separator()
				plain, err := url.QueryUnescape(sep)
				if err != nil {
					t.report(Must, "namespace-separator %q is no URL-encoded text: %v", sep, err)
					return nil
				}
				if plain == sep && url.QueryEscape(sep) != sep {
					t.report(Must, "namespace-separator %q is not URL-encoded", sep)
				}
				return nil
			},
		},
		{
			ID: "config.no-secrets", Section: section, Severity: Must, NoNamespace: true,
			Title: "the configuration sends no storage secret and no token server of another origin",
			Ref:   "attack: reconfiguration of clients through /v1/config",
			Check: func(_ context.Context, t *Trial) error {
				for _, k := range []string{"s3.secret-access-key", "s3.session-token", "adls.token", "gcs.oauth2.token", "credential"} {
					if t.s.setting(k) != "" {
						t.report(Must, "the configuration holds %s", k)
					}
				}
				if server := t.s.setting("oauth2-server-uri"); server != "" {
					u, err := t.s.base.Parse(server)
					if err != nil || u.Host != t.s.base.Host {
						t.report(Should, "oauth2-server-uri %q is on another host than the catalog", server)
					}
				}
				return nil
			},
		},
	}
}
