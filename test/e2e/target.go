// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// running is something that serves until it is ended.
type running interface {
	stop() error // asks it to end; an error when it does not, or badly
	kill()       // ends it as a crash would
}

// target is a running catalog and how to reach it. Its exported fields are the
// line that catalogd dev prints.
type target struct {
	running
	URI          string `json:"uri"`
	Warehouse    string `json:"warehouse"`
	Token        string `json:"token"`
	ClientID     string `json:"client-id"`
	ClientSecret string `json:"client-secret"`

	prefix     string   // what comes after /v1 in paths: "" or "/demo"
	endpoints  []string // as the catalog advertises them, "GET /v1/{prefix}/namespaces"
	idempotent bool     // it advertises the lifetime of an Idempotency-Key
	client     *http.Client
}

// newTarget is a target whose requests share connections with each other only:
// those of a killed server are never used for its successor.
func newTarget(p running) *target {
	return &target{running: p, client: &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2 * writerCount},
	}}
}

// sqlite starts the catalog under test on SQLite and local files below dir.
// A second start on the same dir and port serves the same catalog. Tables may
// also lie below the locations in allow.
func (r *run) sqlite(ctx context.Context, dir string, port int, allow ...string) (*target, error) {
	if r.fixture {
		return r.reference(ctx, dir, port)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{"dev", "--data-dir", dir, "--http", fmt.Sprintf("127.0.0.1:%d", port)}
	for _, location := range allow {
		args = append(args, "--allow-location", location)
	}
	p, err := start(r.root, r.logFile("catalogd"), nil, nil, r.binary, args...)
	if err != nil {
		return nil, fmt.Errorf("start catalogd (make build makes it): %w", err)
	}
	t := newTarget(p)
	select {
	case line := <-p.firstLine:
		err = json.Unmarshal([]byte(line), t)
		if err != nil {
			err = fmt.Errorf("catalogd printed %q: %w", line, err)
		}
	case <-p.done:
		return nil, fmt.Errorf("catalogd ended: %w\n%s", p.err, p.log)
	case <-ctx.Done():
		err = fmt.Errorf("catalogd was not ready: %w\n%s", ctx.Err(), p.log)
	}
	if err == nil {
		err = t.discover(ctx)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return t, nil
}

// production is the configuration of catalogd serve.
var production = template.Must(template.New("").Parse(`
public_uri: http://127.0.0.1:{{.Port}}
listeners:
  catalog: {address: "127.0.0.1:{{.Port}}"}
  metrics: {address: ""}
store:
  auto_migrate: true
  postgres:
    dsn: {env: E2E_DSN}
warehouses:
  - name: demo
    storage:
      root: {{.Root}}
{{- if .Allow}}
      allowed_roots: ["{{.Allow}}"]
{{- end}}
{{- if .Endpoint}}
      type: s3
      s3:
        endpoint: {{.Endpoint}}
        region: us-east-1
        path_style: true
        access_key_id: {{.KeyID}}
        secret_access_key: {env: E2E_S3_SECRET}
{{- else}}
      type: file
{{- end}}
accounts:
  - client_id: e2e
    secrets:
      - {env: E2E_CLIENT_HASH}
    grants:
      - {warehouse: demo, access: write}
tokens:
  signing_key: {env: E2E_SIGNING_KEY}
  oauth_endpoint: true
  lifetime: 1h
{{.Audit}}
`))

// deployment is what the configuration needs to know.
type deployment struct {
	Port     int
	Root     string // of the warehouse
	Allow    string // a further root of tables, or ""
	Endpoint string // of S3, or "" for local files
	KeyID    string
	Audit    string // section of the configuration, or ""
	secret   string // of the S3 key
	dsn      string
}

const (
	clientID     = "e2e"
	clientSecret = "e2e-client-secret-0123456789"
	// signingKey is a fixed Ed25519 seed: tokens must survive a restart.
	signingKey = "c2x1aWNlLWUyZS1zaWduaW5nLWtleS0wMTIzNDU2Nzg="
)

// hash returns the hash of clientSecret.
func (r *run) hash(ctx context.Context) (string, error) {
	if r.clientHash == "" {
		out, err := command(ctx, r.root, nil, "sh", "-c", `printf %s "$0" | "$1" hash-secret`, clientSecret, r.binary)
		if err != nil {
			return "", err
		}
		r.clientHash = strings.TrimSpace(out)
	}
	return r.clientHash, nil
}

// serve starts catalogd on PostgreSQL and gets a token from it.
func (r *run) serve(ctx context.Context, name string, d deployment) (*target, error) {
	hash, err := r.hash(ctx)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := production.Execute(&text, d); err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, name+".yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return nil, err
	}
	p, err := start(r.root, r.logFile("catalogd"), []string{
		"E2E_DSN=" + d.dsn, "E2E_S3_SECRET=" + d.secret, "E2E_CLIENT_HASH=" + hash, "E2E_SIGNING_KEY=" + signingKey, "E2E_AUDIT_KEY=" + auditKey,
	}, nil, r.binary, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	t := newTarget(p)
	t.URI, t.Warehouse, t.ClientID, t.ClientSecret = fmt.Sprintf("http://127.0.0.1:%d", d.Port), "demo", clientID, clientSecret
	err = p.until(ctx, "catalogd", func() bool {
		status, _, err := t.send(ctx, http.MethodGet, t.URI+"/health/ready", nil)
		return err == nil && status == http.StatusOK
	})
	if err == nil {
		err = t.login(ctx)
	}
	if err == nil {
		err = t.discover(ctx)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return t, nil
}

// reference starts the reference server of the compatibility kit, on SQLite
// and local files.
func (r *run) reference(ctx context.Context, dir string, port int) (*target, error) {
	jars, err := install.Jars(ctx, "kit", install.Kit)
	if err != nil {
		return nil, err
	}
	java, err := install.JavaHome(ctx, 17)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if port == 0 {
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	p, err := start(dir, r.logFile("reference"), []string{
		"CATALOG_WAREHOUSE=file://" + filepath.Join(dir, "warehouse"),
		"CATALOG_URI=jdbc:sqlite:file:" + filepath.Join(dir, "catalog.db") + "?busy_timeout=60000&journal_mode=WAL&synchronous=FULL&transaction_mode=IMMEDIATE",
		"CATALOG_REST_PORT=" + strconv.Itoa(port), "REST_PORT=" + strconv.Itoa(port),
	}, nil, filepath.Join(java, "bin", "java"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", install.Classpath(jars), "org.apache.iceberg.rest.RESTCatalogServer")
	if err != nil {
		return nil, err
	}
	// It asks nobody for a token, and takes any.
	t := newTarget(p)
	t.URI, t.Warehouse, t.Token, t.ClientID, t.ClientSecret = fmt.Sprintf("http://127.0.0.1:%d", port), "demo", "any", clientID, clientSecret
	if err := p.until(ctx, "the reference server", func() bool { return t.discover(ctx) == nil }); err != nil {
		p.kill()
		return nil, err
	}
	return t, nil
}

// discover reads the catalog's configuration.
func (t *target) discover(ctx context.Context) error {
	var answer struct {
		Overrides map[string]string `json:"overrides"`
		Endpoints []string          `json:"endpoints"`
		Lifetime  string            `json:"idempotency-key-lifetime"`
	}
	status, body, err := t.send(ctx, http.MethodGet, t.URI+"/v1/config?warehouse="+url.QueryEscape(t.Warehouse), nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("GET /v1/config: status %d: %s", status, body)
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("GET /v1/config: %w", err)
	}
	t.endpoints, t.idempotent = answer.Endpoints, answer.Lifetime != ""
	if prefix := answer.Overrides["prefix"]; prefix != "" {
		t.prefix = "/" + prefix
	}
	return nil
}

// login gets a token with the client's credentials.
func (t *target) login(ctx context.Context) error {
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {"catalog"}, "client_id": {t.ClientID}, "client_secret": {t.ClientSecret}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URI+"/v1/oauth/tokens", strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("POST /v1/oauth/tokens: status %d: %s", resp.StatusCode, body)
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("POST /v1/oauth/tokens: %w", err)
	}
	t.Token = answer.Token
	return nil
}

// statusError is an answer that is not 2xx.
type statusError struct {
	status int
	body   string
}

// Error implements error.
func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// do sends one request of the protocol, below the prefix, and reads its
// answer. An answer that is not 2xx is a [*statusError]; any other error means
// that there was no whole answer. key is an Idempotency-Key, or "".
func (t *target) do(ctx context.Context, method, path string, body, into any, key string) error {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	var headers []string
	if key != "" {
		headers = []string{"Idempotency-Key", key}
	}
	status, answer, err := t.send(ctx, method, t.URI+"/v1"+t.prefix+path, raw, headers...)
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return &statusError{status, string(answer)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// send sends one request and reads its whole answer. Headers are names and
// values in turn.
func (t *target) send(ctx context.Context, method, uri string, body []byte, headers ...string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, uri, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if t.Token != "" {
		req.Header.Set("Authorization", "Bearer "+t.Token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for header := range slices.Chunk(headers, 2) {
		req.Header.Set(header[0], header[1])
	}
	// A request is sent once: net/http would send one with an Idempotency-Key
	// again by itself when the connection breaks.
	req.GetBody = nil
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, answer, nil
}
