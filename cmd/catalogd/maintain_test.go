// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestMaintain restores, protects, labels and registers with the server
// stopped, and sees the effect when it runs again.
func TestMaintain(t *testing.T) {
	t.Parallel()
	d := deploy(t, anyPorts)
	d.write(t, "catalogd.yaml", strings.Replace(readText(t, d.config), "    storage:", "    soft_delete: 1h\n    storage:", 1))
	d.migrate(t)

	// do runs one command without a server.
	do := func(code int, part string, args ...string) string {
		t.Helper()
		args = append([]string{args[0], "--config", d.config}, args[1:]...)
		got, stdout, stderr := once(t, nil, "", args...)
		if got != code || !strings.Contains(stdout+stderr, part) {
			t.Errorf("%v: exit code %d, want %d and %q\n%s%s", args, got, code, part, stdout, stderr)
		}
		return stdout
	}
	// during sends requests to a server that runs only for them.
	type ask struct {
		method, path, body string
		code               int
		part               string
	}
	during := func(asks ...ask) {
		t.Helper()
		p := start(t, nil, "serve", "--config", d.config)
		base := "http://" + p.address("catalog")
		token := d.token(t, http.DefaultClient, base)
		for _, a := range asks {
			if code, body := send(t, http.DefaultClient, a.method, base+"/v1/main"+a.path, token, strings.NewReader(a.body)); code != a.code || !strings.Contains(body, a.part) {
				t.Errorf("%s %s: %d %s; want %d and %q", a.method, a.path, code, body, a.code, a.part)
			}
		}
		if code, _, stderr := once(t, nil, "", "dropped", "--config", d.config); code != 1 || !strings.Contains(stderr, "is in use by another process") {
			t.Errorf("beside a server on SQLite: %d %s", code, stderr)
		}
		p.signal(syscall.SIGTERM)
		if code := p.exit(); code != 0 {
			t.Errorf("the server ended with %d", code)
		}
	}
	const table = `{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":false,"type":"long"}]}}`

	during(
		ask{"POST", "/namespaces", `{"namespace":["a.b"]}`, 200, ""},
		ask{"POST", "/namespaces/a.b/tables", table, 200, ""},
		ask{"DELETE", "/namespaces/a.b/tables/t", "", 204, ""},
		ask{"GET", "/namespaces/a.b/tables/t", "", 404, ""},
	)
	do(0, "a.b.t", "dropped")
	var gone struct{ ID, Kind, Name string }
	if err := json.Unmarshal([]byte(do(0, `"restorable-until":`, "dropped", "-o", "json")), &gone); err != nil || gone.Kind != "table" || gone.Name != "t" {
		t.Fatalf("dropped -o json: %+v, %v", gone, err)
	}
	do(2, "is not an id", "undrop", "t")
	do(1, "No dropped table or view has the id", "undrop", "01890000-0000-7000-8000-000000000000")
	do(1, "The namespace does not exist", "undrop", "--as", "nowhere.t", gone.ID)
	do(0, "restored table a.b.u", "undrop", "--as", "a.b|u", gone.ID)
	do(1, "No dropped table or view", "undrop", gone.ID)
	do(1, "Table does not exist: a.b.u", "protect", "table", "a.b.u") // the dots make it a, b, u
	do(0, "", "protect", "table", "a.b|u")
	do(2, "flags stand before the arguments: move --warehouse to the front", "protect", "table", "a.b|u", "--warehouse", "demo")
	do(2, "neither table nor view", "protect", "function", "a.b|u")
	d.write(t, "labels.json", `{"object-labels":{"owner":"finance"}}`)
	do(0, "", "labels", "table", "a.b|u", d.dir+"/labels.json")
	d.write(t, "function.json", `{"function-uuid":"11111111-2222-4333-8444-555555555555","format-version":1,"definitions":[{"definition-id":"a"}],"definition-log":[]}`)
	do(0, "", "function", "a.b|f", d.dir+"/function.json")

	during(
		ask{"GET", "/namespaces/a.b/tables/u", "", 200, `"labels":{"object-labels":{"owner":"finance"}}`},
		ask{"DELETE", "/namespaces/a.b/tables/u", "", 403, "is protected"},
		ask{"GET", "/namespaces/a.b/functions", "", 200, `"f"`},
	)
	do(0, "", "unprotect", "table", "a.b|u")
	do(2, "expected 1 arguments", "function", "--drop", "a.b|f", "more")
	do(0, "", "function", "--drop", "a.b|f")
	d.write(t, "labels.json", `{}`)
	do(0, "", "labels", "table", "a.b|u", d.dir+"/labels.json")
	during(
		ask{"GET", "/namespaces/a.b/functions/f", "", 404, ""},
		ask{"DELETE", "/namespaces/a.b/tables/u", "", 204, ""},
	)
	do(1, "there is no warehouse", "dropped", "--warehouse", "other")
}
