// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// openapi sends what schemathesis makes of the protocol's OpenAPI file, for the
// operations that the catalog advertises: no 5xx, no status that the file does
// not document, no answer off its schema. The same seed makes the same requests.
func openapi(r *run) {
	var python string
	if !r.step("install schemathesis", 5*time.Minute, func(ctx context.Context) (err error) {
		python, err = install.Python(ctx, "schemathesis", install.Schemathesis)
		return err
	}) {
		return
	}
	r.step("schemathesis, sqlite", 9*time.Minute, func(ctx context.Context) error {
		t, err := r.sqlite(ctx, filepath.Join(r.dir, "openapi"), 0)
		if err != nil {
			return err
		}
		defer t.kill()
		return r.schemathesis(ctx, python, t)
	})
	r.step("schemathesis, postgresql", 9*time.Minute, func(ctx context.Context) error {
		db, err := r.postgres(ctx)
		if err != nil {
			return err
		}
		defer db.kill()
		port, err := freePort()
		if err != nil {
			return err
		}
		t, err := r.serve(ctx, "openapi", deployment{Port: port, Root: "file://" + filepath.Join(r.dir, "openapi-warehouse"), dsn: db.dsn})
		if err != nil {
			return err
		}
		defer t.kill()
		return r.schemathesis(ctx, python, t)
	})
}

// schemathesis fills a new catalog with a table and a view, sends it what is
// made of the file, and stops it.
func (r *run) schemathesis(ctx context.Context, python string, t *target) error {
	dir := filepath.Join(r.dir, "schemathesis")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// Real values for path parameters now and then, so that requests reach
	// further than a missing table.
	if err := t.do(ctx, "POST", "/namespaces", map[string]any{"namespace": []string{"accounting"}}, nil, ""); err != nil {
		return err
	}
	if err := t.do(ctx, "POST", "/namespaces/accounting/tables", map[string]any{
		"name": "sales", "schema": map[string]any{"type": "struct", "fields": []any{map[string]any{"id": 1, "name": "x", "required": false, "type": "long"}}},
	}, nil, ""); err != nil {
		return err
	}
	if err := t.do(ctx, "POST", "/namespaces/accounting/views", map[string]any{
		"name": "report", "schema": map[string]any{"type": "struct", "fields": []any{map[string]any{"id": 1, "name": "x", "required": false, "type": "long"}}},
		"view-version": map[string]any{
			"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": map[string]any{}, "default-namespace": []string{"accounting"},
			"representations": []any{map[string]any{"type": "sql", "sql": "SELECT x FROM sales", "dialect": "trino"}},
		},
		"properties": map[string]any{},
	}, nil, ""); err != nil {
		return err
	}
	for name, content := range map[string]string{"schemathesis.toml": "", "hooks.py": schemathesisHooks} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	out, err := command(ctx, dir, []string{
		"SCHEMATHESIS_HOOKS=hooks", "PYTHONPATH=" + dir, "E2E_PREFIX=" + strings.TrimPrefix(t.prefix, "/"), "E2E_ENDPOINTS=" + strings.Join(t.endpoints, "\n"),
	},
		python, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run",
		filepath.Join(r.root, "test", "openapi", "rest-catalog-open-api.yaml"), "--url", t.URI,
		"--header", "Authorization: Bearer "+t.Token, "--seed", "20261201", "--max-examples", "40", "--workers", "2", "--no-color",
		"--phases", "examples,coverage,fuzzing",
		"--checks", "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance",
		// Schemas of tables are deep; most of what is generated breaks some
		// constraint of theirs and is filtered out.
		"--suppress-health-check", "filter_too_much")
	if err != nil {
		return err
	}
	if n := generatedCases.FindStringSubmatch(out); n == nil || n[1] != n[2] {
		return fmt.Errorf("schemathesis does not say that every case passed\n%s", out)
	}
	return t.stop()
}

// generatedCases is how schemathesis counts: four digits at least, since a few
// cases would mean that it has tested almost nothing.
var generatedCases = regexp.MustCompile(`(\d{4,}) generated, (\d+) passed\n`)

// schemathesisHooks leaves out what is not advertised (the configuration and
// oauth/tokens never are, and are always there), steers path parameters to names that exist,
// most of the time, and adds the one status that the file forgets. What is
// HTTP's and not an operation's needs no entry: schemathesis itself expects 405
// of a method that a path has not, its bodies are too small for a 413, and its
// requests without a good token too few for a 429.
const schemathesisHooks = `
import os

import schemathesis

ADVERTISED = {line for line in os.environ["E2E_ENDPOINTS"].split("\n") if line} | {"GET /v1/config", "POST /v1/oauth/tokens"}
METHODS = ("get", "post", "put", "delete", "head")
# Every other operation below a warehouse that is advertised documents 404, which is the answer when the warehouse does not
# exist. Nothing that this one documents could say so.
UNDOCUMENTED = {"POST /v1/{prefix}/namespaces": (404,)}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    error = {"description": "HTTP", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/IcebergErrorResponse"}}}}
    for path, item in raw_schema["paths"].items():
        for method, operation in list(item.items()):
            if method in METHODS and f"{method.upper()} {path}" not in ADVERTISED:
                del item[method]
            for status in UNDOCUMENTED.get(f"{method.upper()} {path}", ()):
                if str(status) in {str(s) for s in operation["responses"]}:
                    raise AssertionError(f"{method} {path}: the file documents {status} by now")
                operation["responses"][status] = error
    # The file references ErrorModel where the documented examples, and every
    # client, have it wrapped in "error".
    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "schema" and isinstance(value, dict) and value.get("$ref") == "#/components/schemas/ErrorModel":
                    node[key] = {"$ref": "#/components/schemas/IcebergErrorResponse"}
                else:
                    walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(raw_schema["paths"])
    walk(raw_schema["components"]["responses"])


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if path_parameters:
        path_parameters["prefix"] = os.environ["E2E_PREFIX"]
        # What takes them away is left with the made-up names.
        if context.operation.method.lower() == "delete" or context.operation.path.endswith("/unregister"):
            return path_parameters
        known = {"namespace": "accounting", "table": "sales", "view": "report"}
        for key, value in known.items():
            if key in path_parameters and len(str(path_parameters[key])) % 4 != 0:
                path_parameters[key] = value
    return path_parameters
`
