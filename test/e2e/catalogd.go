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
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// target is a running catalogd and how to reach it.
type target struct {
	*process
	URI          string `json:"uri"`
	Warehouse    string `json:"warehouse"`
	Token        string `json:"token"`
	ClientID     string `json:"client-id"`
	ClientSecret string `json:"client-secret"`
}

// dev starts catalogd on SQLite and local files.
func (r *run) dev(ctx context.Context, dir string, port int, args ...string) (*target, error) {
	all := append([]string{"dev", "--data-dir", dir, "--http", fmt.Sprintf("127.0.0.1:%d", port)}, args...)
	p, err := start(r.root, nil, filepath.Join(r.root, "bin", "catalogd"), all...)
	if err != nil {
		return nil, err
	}
	t := &target{process: p}
	select {
	case line := <-p.stdout.ready:
		if err := json.Unmarshal([]byte(line), t); err != nil {
			p.kill()
			return nil, fmt.Errorf("catalogd printed %q: %w", line, err)
		}
		return t, nil
	case <-p.done:
		return nil, fmt.Errorf("catalogd ended: %v\n%s", p.err, p.log)
	case <-ctx.Done():
		p.kill()
		return nil, fmt.Errorf("catalogd was not ready: %w\n%s", ctx.Err(), p.log)
	}
}

// production is the configuration of `catalogd serve` for PostgreSQL.
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
`))

// deployment is what the template needs.
type deployment struct {
	Port     int
	Root     string
	Allow    string
	Endpoint string
	KeyID    string
	secret   string // of the S3 key
	dsn      string
}

const (
	clientID     = "e2e"
	clientSecret = "e2e-client-secret-0123456789"
	// signingKey is a fixed Ed25519 seed: tokens must survive a restart.
	signingKey = "c2x1aWNlLWUyZS1zaWduaW5nLWtleS0wMTIzNDU2Nzg="
)

// serve starts catalogd on PostgreSQL and gets a token for it.
func (r *run) serve(ctx context.Context, name string, d deployment) (*target, error) {
	binary := filepath.Join(r.root, "bin", "catalogd")
	hash, err := r.clientHash(ctx, binary)
	if err != nil {
		return nil, err
	}
	var cfg bytes.Buffer
	if err := production.Execute(&cfg, d); err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, name+".yaml")
	if err := os.WriteFile(file, cfg.Bytes(), 0o600); err != nil {
		return nil, err
	}
	p, err := start(r.root, []string{
		"E2E_DSN=" + d.dsn, "E2E_S3_SECRET=" + d.secret, "E2E_CLIENT_HASH=" + hash, "E2E_SIGNING_KEY=" + signingKey,
	}, binary, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	t := &target{process: p, URI: fmt.Sprintf("http://127.0.0.1:%d", d.Port), Warehouse: "demo", ClientID: clientID, ClientSecret: clientSecret}
	if err := p.until(ctx, "catalogd", func() bool { return t.ready(ctx) }); err != nil {
		p.kill()
		return nil, err
	}
	if t.Token, err = t.fetchToken(ctx); err != nil {
		p.kill()
		return nil, err
	}
	return t, nil
}

var hashed string

func (r *run) clientHash(ctx context.Context, binary string) (string, error) {
	if hashed != "" {
		return hashed, nil
	}
	out, err := command(ctx, r.root, nil, "sh", "-c", fmt.Sprintf("printf %%s %s | %s hash-secret", clientSecret, binary))
	hashed = strings.TrimSpace(out)
	return hashed, err
}

func (t *target) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URI+"/health/ready", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (t *target) fetchToken(ctx context.Context) (string, error) {
	form := strings.NewReader("grant_type=client_credentials&scope=catalog&client_id=" + t.ClientID + "&client_secret=" + t.ClientSecret)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URI+"/v1/oauth/tokens", form)
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("oauth/tokens: %s %s %v", resp.Status, body, err)
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", err
	}
	return answer.Token, nil
}

// postgres starts a private PostgreSQL and returns its connection string.
func (r *run) postgres(ctx context.Context) (*process, string, error) {
	bin, err := install.PostgresBin()
	if err != nil {
		return nil, "", err
	}
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	// PostgreSQL refuses to run as root and wants a folder of its own, which
	// its user must be able to reach.
	dir, err := os.MkdirTemp("", "sluice-pg-")
	if err != nil {
		return nil, "", err
	}
	script := fmt.Sprintf(`set -e
dir=%s bin=%s port=%d
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups "$@"; else "$@"; fi; }
user=postgres
if [ "$(id -u)" = 0 ]; then id "$user" >/dev/null 2>&1 || useradd -r -m "$user"; chown "$user" "$dir"; fi
cd "$dir"
as "$bin/initdb" -D "$dir/data" -A trust -U sluice --locale=C.UTF-8 >/dev/null
trap 'kill -INT $pid; wait $pid; rm -rf "$dir"' TERM INT
as "$bin/postgres" -D "$dir/data" -p "$port" -k "$dir" -c listen_addresses=127.0.0.1 &
pid=$!
wait $pid
`, dir, bin, port)
	p, err := start(dir, nil, "bash", "-c", script)
	if err != nil {
		return nil, "", err
	}
	if err := p.until(ctx, "PostgreSQL", func() bool { return listening(port) && strings.Contains(p.log.String(), "ready to accept connections") }); err != nil {
		p.kill()
		return nil, "", err
	}
	return p, fmt.Sprintf("postgres://sluice@127.0.0.1:%d/postgres?sslmode=disable", port), nil
}

// store is a running SeaweedFS: an S3-compatible store with one account.
type store struct {
	*process
	endpoint, keyID, secret, bucket string
}

// s3 starts SeaweedFS with one bucket.
func (r *run) s3(ctx context.Context) (*store, error) {
	weed, err := install.Weed(ctx, r.root)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.dir, fmt.Sprintf("weed-%d", time.Now().UnixNano()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &store{keyID: "admin", secret: "admin-secret-key-0123456789", bucket: "lake"}
	iam := fmt.Sprintf(`{"identities":[{"name":"admin","credentials":[{"accessKey":%q,"secretKey":%q}],"actions":["Admin","Read","Write","List","Tagging"]}]}`, s.keyID, s.secret)
	for name, content := range map[string]string{"iam.json": iam, "security.toml": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	args := []string{"mini", "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-dir", dir, "-s3.config", "iam.json", "-webdav=false", "-s3.port.lance=0", "-s3.port.iceberg=0"}
	var port int
	for _, name := range []string{"master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc"} {
		p, err := freePort()
		if err != nil {
			return nil, err
		}
		if name == "s3.port" {
			port = p
		}
		args = append(args, "-"+name, fmt.Sprint(p))
	}
	if s.process, err = start(dir, nil, weed, args...); err != nil {
		return nil, err
	}
	s.endpoint = fmt.Sprintf("http://127.0.0.1:%d", port)
	if err := s.until(ctx, "SeaweedFS", func() bool { return listening(port) }); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}
