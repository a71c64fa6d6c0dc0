// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// edit rewrites a deployment's configuration.
func edit(t *testing.T, d *deployment, r *strings.Replacer) {
	t.Helper()
	raw, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, filepath.Base(d.config), r.Replace(string(raw)))
}

// TestNoSecretIsPrinted runs the server at debug level through what goes well
// and what fails, and looks for every secret in logs, metrics, audit log,
// answers and stored files.
func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	const (
		s3Secret    = "s3-secret-key-Zq81"
		s3Token     = "s3-session-token-Xk27"
		otlpKey     = "otlp-header-key-Pd55"
		wrongSecret = "wrong-secret-Lm93-Lm93"
		wrongToken  = "wrong-token-Vb64-Vb64"
	)
	d := deploy(t, anyPorts+`logging: {level: debug}
audit: {reads: DIR/reads.jsonl}
telemetry: {otlp_endpoint: "http://127.0.0.1:1", sample_ratio: 1, otlp_headers: {x-key: {env: OTLP_KEY}}}
`)
	edit(t, &d, strings.NewReplacer("DIR", d.dir, "accounts:", `  - name: remote
    storage:
      type: s3
      root: s3://bucket/w
      s3:
        endpoint: http://127.0.0.1:1
        region: any
        path_style: true
        access_key_id: AKIDEXAMPLE
        secret_access_key: {env: S3_SECRET}
        session_token: {env: S3_TOKEN}
accounts:`, "{warehouse: main,", `{warehouse: "*",`))
	env := []string{"S3_SECRET=" + s3Secret, "S3_TOKEN=" + s3Token, "OTLP_KEY=" + otlpKey}
	var seen strings.Builder // everything that anybody could see
	look := func(what string) { seen.WriteString(what + "\n") }

	if code, stdout, stderr := once(t, env, "", "migrate", "--config", d.config); code != 0 {
		t.Fatalf("migrate: %s%s", stdout, stderr)
	}
	code, stdout, stderr := once(t, env, "", "config", "check", "--config", d.config)
	if code != 1 || !strings.Contains(stdout, "FAIL warehouse remote") {
		t.Errorf("config check reaches a store that is not there: %s", stdout)
	}
	look(stdout + stderr)

	p := start(t, env, "serve", "--config", d.config)
	base, metrics := "http://"+p.address("catalog"), "http://"+p.address("metrics")
	token := d.token(t, http.DefaultClient, base)
	answers := map[int]int{}
	try := func(method, path, token, body string) {
		status, answer := send(t, http.DefaultClient, method, base+path, token, strings.NewReader(body))
		answers[status]++
		look(fmt.Sprintf("%d %s", status, answer))
	}
	table := `{"name":"t","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"x","required":false,"type":"long"}]}}`
	for _, warehouse := range []string{"main", "remote"} {
		try(http.MethodGet, "/v1/config?warehouse="+warehouse, token, "")
		try(http.MethodPost, "/v1/"+warehouse+"/namespaces", token, `{"namespace":["a"]}`)
		if warehouse == "main" {
			try(http.MethodPost, "/v1/main/namespaces/a/tables", token, table)
			try(http.MethodGet, "/v1/main/namespaces/a/tables/t", token, "")
			try(http.MethodGet, "/v1/main/namespaces/a/tables/t/credentials", token, "")
		} else {
			// This one fails in the storage.
			try(http.MethodPost, "/v1/remote/namespaces/a/register", token, `{"name":"t","metadata-location":"s3://bucket/w/x/metadata/v1.metadata.json"}`)
		}
	}
	try(http.MethodGet, "/v1/config", wrongToken, "")
	try(http.MethodGet, "/v1/config?token="+wrongToken, token, "")
	form := func(v ...string) string {
		values := url.Values{}
		for i := 0; i < len(v); i += 2 {
			values.Set(v[i], v[i+1])
		}
		return values.Encode()
	}
	const exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	try(http.MethodPost, "/v1/oauth/tokens", "", form("grant_type", "client_credentials", "client_id", "alice", "client_secret", wrongSecret))
	try(http.MethodPost, "/v1/oauth/tokens", "", form("grant_type", "client_credentials", "client_id", wrongSecret, "client_secret", d.secret))
	try(http.MethodPost, "/v1/oauth/tokens", "", form("grant_type", exchange, "subject_token", wrongToken, "subject_token_type", "urn:ietf:params:oauth:token-type:access_token"))
	status, body := send(t, http.DefaultClient, http.MethodGet, metrics+"/metrics", "", nil)
	if status != 200 {
		t.Errorf("metrics: %d", status)
	}
	look(body)
	p.signal(syscall.SIGTERM)
	p.exit()
	look(p.stderr.String() + p.stdout.String())
	for _, name := range []string{"reads.jsonl", "catalog.db", "catalog.db-wal"} {
		raw, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil && name != "catalog.db-wal" {
			t.Fatal(err)
		}
		look(string(raw))
	}
	// The test must have gone through success and failure, at debug level.
	for _, status := range []int{200, 400, 401} {
		if answers[status] == 0 {
			t.Errorf("no answer was %d: %v", status, answers)
		}
	}
	if !strings.Contains(seen.String(), `"level":"DEBUG"`) || !strings.Contains(seen.String(), "sluice_http_requests_total") {
		t.Error("nothing was looked at")
	}

	signature := token[strings.LastIndexByte(token, '.')+1:]
	for name, secret := range map[string]string{
		"client secret": d.secret, "wrong secret": wrongSecret, "wrong token": wrongToken, "access token": token, "its signature": signature,
		"signing key": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "signing key, decoded": "01234567890123456789012345678901",
		"S3 secret key": s3Secret, "S3 session token": s3Token, "OTLP header": otlpKey,
	} {
		for form, s := range map[string]string{"as it is": secret, "in base64": base64.StdEncoding.EncodeToString([]byte(secret)), "in hex": hex.EncodeToString([]byte(secret)), "escaped": url.QueryEscape(secret)} {
			if i := strings.Index(seen.String(), s); i >= 0 {
				t.Errorf("the %s shows, %s: …%s…", name, form, seen.String()[max(i-200, 0):i])
			}
		}
	}
}

// TestDSNIsNotPrinted has a database that cannot be reached.
func TestDSNIsNotPrinted(t *testing.T) {
	t.Parallel()
	const password = "pg-password-Tr38"
	d := deploy(t, anyPorts)
	edit(t, &d, strings.NewReplacer("sqlite: {path: "+d.dir+"/catalog.db}", "postgres: {dsn: {env: DSN}}"))
	for _, dsn := range []string{
		"postgres://sluice:" + password + "@127.0.0.1:1/sluice?connect_timeout=2",
		"host=127.0.0.1 port=1 user=sluice password=" + password,
		"postgres://sluice:" + password + "@127.0.0.1:bad/x", "password='" + password, password,
	} {
		for _, command := range [][]string{{"serve"}, {"migrate"}, {"config", "check"}} {
			code, stdout, stderr := once(t, []string{"DSN=" + dsn}, "", append(command, "--config", d.config)...)
			if code != 1 || strings.Contains(stdout+stderr, password) {
				t.Errorf("%v: %d\n%s%s", command, code, stdout, stderr)
			}
		}
	}
}
