// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// These tests drive the built program.
package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "catalogd-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "catalogd")
		if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// output collects what a process writes; it can be read while it does.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a running catalogd.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{}
}

const patience = 30 * time.Second

func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code is looked at by those who care
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		if t.Failed() {
			t.Logf("stderr of %v:\n%s", args, p.stderr.String())
		}
	})
	return p
}

// until waits for what a process does.
func (p *process) until(what string, done func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		select {
		case <-p.ended:
			if !done() {
				p.t.Fatalf("ended before: %s\n%s", what, p.stderr.String())
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// exit waits for the end and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatal("does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// address waits for a listener and returns where it is. Logs are JSON.
func (p *process) address(listener string) string {
	p.t.Helper()
	var address string
	p.until("listener "+listener, func() bool {
		for s := bufio.NewScanner(strings.NewReader(p.stderr.String())); s.Scan(); {
			var line struct{ Msg, Listener, Address string }
			if json.Unmarshal(s.Bytes(), &line) == nil && line.Msg == "listening" && line.Listener == listener {
				address = line.Address
				return true
			}
		}
		return false
	})
	return address
}

// once runs a command to its end.
func once(t *testing.T, env []string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// get sends a request and returns status and body.
func send(t *testing.T, client *http.Client, method, uri, token string, body io.Reader) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, uri, body)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		if strings.HasSuffix(uri, "/oauth/tokens") {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

type ready struct {
	URI          string `json:"uri"`
	Warehouse    string `json:"warehouse"`
	Token        string `json:"token"`
	ClientID     string `json:"client-id"`
	ClientSecret string `json:"client-secret"`
}

func startDev(t *testing.T, args ...string) (*process, ready) {
	t.Helper()
	p := start(t, nil, append([]string{"dev", "--http", "127.0.0.1:0"}, args...)...)
	p.until("the line on stdout", func() bool { return strings.HasSuffix(p.stdout.String(), "\n") })
	var r ready
	if err := json.Unmarshal([]byte(p.stdout.String()), &r); err != nil {
		t.Fatalf("%q: %v", p.stdout.String(), err)
	}
	return p, r
}

func TestDev(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	p, r := startDev(t, "--data-dir", dir, "--allow-location", "file:///tmp/", "--allow-location", "file:///var/tmp/x")
	if r.Warehouse != "demo" || r.Token == "" || r.ClientID == "" || r.ClientSecret == "" || !strings.HasPrefix(r.URI, "http://127.0.0.1:") {
		t.Errorf("the line is %s", p.stdout.String())
	}
	for _, path := range []string{"/health/live", "/health/ready"} {
		if code, body := send(t, http.DefaultClient, http.MethodGet, r.URI+path, "", nil); code != 200 || body != `{"status":"ok"}` {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := send(t, http.DefaultClient, http.MethodGet, r.URI+"/v1/config?warehouse=demo", r.Token, nil); code != 200 || !strings.Contains(body, "endpoints") {
		t.Errorf("config: %d %s", code, body)
	}
	if code, body := send(t, http.DefaultClient, http.MethodGet, r.URI+"/nothing/here", r.Token, nil); code != 404 || !strings.Contains(body, `"code":404`) {
		t.Errorf("unknown path: %d %s", code, body)
	}
	for _, path := range []string{"/health/../v1/config", "/health//live", "/metrics/x"} {
		if code, body := send(t, http.DefaultClient, http.MethodGet, r.URI+path, r.Token, nil); code != 404 && code != 400 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, _ := send(t, http.DefaultClient, http.MethodGet, r.URI+"/metrics", "", nil); code != 401 {
		t.Errorf("metrics without a token: %d", code)
	}
	if code, body := send(t, http.DefaultClient, http.MethodGet, r.URI+"/metrics", r.Token, nil); code != 200 || !strings.Contains(body, "sluice_http_requests_total") {
		t.Errorf("metrics: %d", code)
	}
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {r.ClientID}, "client_secret": {r.ClientSecret}}
	code, body := send(t, http.DefaultClient, http.MethodPost, r.URI+"/v1/oauth/tokens", "", strings.NewReader(form.Encode()))
	var token struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(body), &token); err != nil || code != 200 {
		t.Fatalf("oauth: %d %s", code, body)
	}
	if code, body := send(t, http.DefaultClient, http.MethodPost, r.URI+"/v1/demo/namespaces", token.AccessToken, strings.NewReader(`{"namespace":["a"]}`)); code != 200 {
		t.Errorf("create a namespace: %d %s", code, body)
	}
	table := `{"name":"t","location":"file:///tmp/sluice-dev-test/t","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"x","required":false,"type":"long"}]}}`
	if code, body := send(t, http.DefaultClient, http.MethodPost, r.URI+"/v1/demo/namespaces/a/tables", r.Token, strings.NewReader(table)); code != 200 {
		t.Errorf("create a table in an allowed location: %d %s", code, body)
	}
	if code, body := send(t, http.DefaultClient, http.MethodDelete, r.URI+"/v1/demo/namespaces/a/tables/t?purgeRequested=true", r.Token, nil); code != 204 {
		t.Errorf("drop it: %d %s", code, body)
	}
	t.Cleanup(func() { os.RemoveAll("/tmp/sluice-dev-test") })

	// What it keeps is for its user alone.
	for name, want := range map[string]os.FileMode{"": 0o700, "dev.json": 0o600, "audit.log": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info, err)
		}
	}
	// One process per directory.
	if code, _, stderr := once(t, nil, "", "dev", "--http", "127.0.0.1:0", "--data-dir", dir); code != 1 || !strings.Contains(stderr, "in use") {
		t.Errorf("a second process: %d %s", code, stderr)
	}
	// One process per address, and the message speaks of the flag.
	if code, _, stderr := once(t, nil, "", "dev", "--http", strings.TrimPrefix(r.URI, "http://"), "--data-dir", t.TempDir()); code != 1 || !strings.Contains(stderr, "--http 127.0.0.1:") || !strings.Contains(stderr, "choose another port") {
		t.Errorf("an address that is taken: %d %s", code, stderr)
	}

	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(p.stdout.String(), "\n"); n != 1 {
		t.Errorf("%d lines on stdout: %s", n, p.stdout.String())
	}
	audit, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil || !strings.Contains(string(audit), `"principal":"account:dev"`) {
		t.Errorf("the audit log has no read: %s, %v", audit, err)
	}
	// Secrets and state outlive a restart.
	_, again := startDev(t, "--data-dir", dir)
	if again.Token != r.Token || again.ClientSecret != r.ClientSecret {
		t.Error("a restart changes the secrets")
	}
	for _, bearer := range []string{r.Token, token.AccessToken} {
		if code, body := send(t, http.DefaultClient, http.MethodGet, again.URI+"/v1/demo/namespaces", bearer, nil); code != 200 || !strings.Contains(body, `["a"]`) {
			t.Errorf("after a restart: %d %s", code, body)
		}
	}
}

func TestDevToken(t *testing.T) {
	t.Parallel()
	_, r := startDev(t, "--data-dir", t.TempDir(), "--token", "my-own-token-0123456789")
	if r.Token != "my-own-token-0123456789" {
		t.Errorf("token is %s", r.Token)
	}
	if code, _ := send(t, http.DefaultClient, http.MethodGet, r.URI+"/v1/demo/namespaces", r.Token, nil); code != 200 {
		t.Errorf("with the given token: %d", code)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	readable := t.TempDir()
	if err := os.WriteFile(filepath.Join(readable, "dev.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args           []string
		stdin          string
		code           int
		stdout, stderr string
	}{
		{[]string{}, "", 2, "", "a command is missing"},
		{[]string{"bogus"}, "", 2, "", `there is no command "bogus"`},
		{[]string{"help"}, "", 0, "catalogd serve --config FILE", ""},
		{[]string{"dev", "--help"}, "", 0, "Flags of dev", ""},
		{[]string{"dev", "--bogus"}, "", 2, "", "flag provided but not defined: -bogus"},
		{[]string{"dev", "extra"}, "", 2, "", `unexpected "extra"`},
		{[]string{"dev", "--http", "0.0.0.0:0"}, "", 1, "", "on loopback only"},
		{[]string{"dev", "--http", "localhost"}, "", 1, "", "is not host:port"},
		{[]string{"dev", "--http", "127.0.0.1:0", "--data-dir", t.TempDir(), "--token", "short"}, "", 1, "", "must be 16 to 512 characters"},
		{[]string{"dev", "--http", "127.0.0.1:0", "--data-dir", t.TempDir(), "--allow-location", "file:///tmp/../etc"}, "", 1, "", "dot segments are not allowed"},
		{[]string{"dev", "--http", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-level", "loud"}, "", 1, "", "logging.level"},
		{[]string{"dev", "--http", "127.0.0.1:0", "--data-dir", readable}, "", 1, "", "chmod 600"},
		{[]string{"serve"}, "", 2, "", "--config is missing"},
		{[]string{"serve", "--config", "/none.yaml"}, "", 1, "", "/none.yaml: stat /none.yaml: no such file"},
		{[]string{"config"}, "", 2, "", "config needs check or schema"},
		{[]string{"config", "schema"}, "", 0, `"$schema"`, ""},
		{[]string{"version"}, "", 0, "catalogd ", ""},
		{[]string{"version", "-o", "json"}, "", 0, `"version":`, ""},
		{[]string{"version", "-o", "xml"}, "", 2, "", "not json or text"},
		{[]string{"hash-secret"}, "0123456789abcdef\n", 0, "$argon2id$v=19$", ""},
		{[]string{"hash-secret"}, "short\n", 2, "", "at least 16 characters"},
	} {
		code, stdout, stderr := once(t, nil, test.stdin, test.args...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) || test.stdin != "" && strings.Contains(stderr, strings.TrimSpace(test.stdin)+"\n") {
			t.Errorf("%v: exit code %d (want %d)\nstdout: %s\nstderr: %s", test.args, code, test.code, stdout, stderr)
		}
		if test.code != 0 && stdout != "" {
			t.Errorf("%v: a failure writes to stdout: %s", test.args, stdout)
		}
	}
}

// deployment is a configuration on disk, with its secrets.
type deployment struct {
	dir, config string
	secret      string // alice's
}

// deploy writes a configuration: more is appended to it.
func deploy(t *testing.T, more string) deployment {
	t.Helper()
	d := deployment{dir: t.TempDir(), secret: "alice-secret-0123456789"}
	_, hash, _ := once(t, nil, d.secret, "hash-secret")
	d.config = filepath.Join(d.dir, "catalogd.yaml")
	d.write(t, "alice.hash", hash)
	d.write(t, "signing.key", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
	d.write(t, "catalogd.yaml", fmt.Sprintf(`store:
  sqlite: {path: %[1]s/catalog.db}
warehouses:
  - name: main
    storage: {type: file, root: "file://%[1]s/warehouse"}
accounts:
  - client_id: alice
    secrets: [{file: alice.hash}]
    grants: [{warehouse: main, access: write}]
tokens:
  signing_key: {file: signing.key}
  oauth_endpoint: true
%[2]s`, d.dir, more))
	return d
}

func readText(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (d deployment) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

const anyPorts = `listeners:
  catalog: {address: "127.0.0.1:0"}
  metrics: {address: "127.0.0.1:0"}
`

func (d deployment) migrate(t *testing.T) {
	t.Helper()
	if code, stdout, stderr := once(t, nil, "", "migrate", "--config", d.config); code != 0 || !strings.Contains(stdout, "migrated the schema from version 0") {
		t.Fatalf("migrate: %d %s %s", code, stdout, stderr)
	}
}

func (d deployment) token(t *testing.T, client *http.Client, base string) string {
	t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {"alice"}, "client_secret": {d.secret}}
	code, body := send(t, client, http.MethodPost, base+"/v1/oauth/tokens", "", strings.NewReader(form.Encode()))
	var token struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(body), &token); err != nil || code != 200 {
		t.Fatalf("oauth: %d %s", code, body)
	}
	return token.AccessToken
}

func TestServe(t *testing.T) {
	t.Parallel()
	d := deploy(t, anyPorts+"audit: {reads: "+filepath.Join(t.TempDir(), "reads.jsonl")+"}\n")
	if code, _, stderr := once(t, nil, "", "serve", "--config", d.config); code != 1 || !strings.Contains(stderr, "run `catalogd migrate --config FILE`") {
		t.Fatalf("on an empty store: %d %s", code, stderr)
	}
	d.migrate(t)
	if code, stdout, _ := once(t, nil, "", "migrate", "--config", d.config); code != 0 || !strings.Contains(stdout, "already") {
		t.Errorf("migrate again: %d %s", code, stdout)
	}
	if code, stdout, stderr := once(t, nil, "", "config", "check", "--config", d.config); code != 0 || !strings.HasSuffix(stdout, "OK\n") {
		t.Errorf("config check: %d\n%s%s", code, stdout, stderr)
	}
	p := start(t, nil, "serve", "--config", d.config)
	base, metrics := "http://"+p.address("catalog"), "http://"+p.address("metrics")
	token := d.token(t, http.DefaultClient, base)
	if code, body := send(t, http.DefaultClient, http.MethodGet, base+"/v1/config", token, nil); code != 200 || !strings.Contains(body, `"prefix":"main"`) {
		t.Errorf("config: %d %s", code, body)
	}
	if code, body := send(t, http.DefaultClient, http.MethodGet, metrics+"/metrics", "", nil); code != 200 || !strings.Contains(body, `sluice_http_requests_total{code="200"`) || !strings.Contains(body, `sluice_store_calls_total{op="ping"`) {
		t.Errorf("metrics: %d %s", code, body)
	}
	if code, _ := send(t, http.DefaultClient, http.MethodGet, base+"/metrics", token, nil); code != 404 {
		t.Errorf("metrics on the catalog's listener: %d", code)
	}
	if code, _ := send(t, http.DefaultClient, http.MethodGet, metrics+"/v1/config", token, nil); code != 404 {
		t.Errorf("the catalog on the metrics' listener: %d", code)
	}
	if code, _ := send(t, http.DefaultClient, http.MethodGet, metrics+"/health/ready", "", nil); code != 200 {
		t.Errorf("health on the metrics' listener: %d", code)
	}
	// The server must not be disturbed by a check.
	if code, stdout, stderr := once(t, nil, "", "config", "check", "--config", d.config); code != 1 || !strings.Contains(stdout, "is in use by another process") || !strings.Contains(stderr, "do not work") {
		t.Errorf("config check beside the server: %d\n%s%s", code, stdout, stderr)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestCheckOpensTheAuditLog(t *testing.T) {
	t.Parallel()
	d := deploy(t, "audit: {reads: /no/such/directory/reads.jsonl}\n")
	d.migrate(t)
	if code, stdout, _ := once(t, nil, "", "config", "check", "--config", d.config); code != 1 || !strings.Contains(stdout, "FAIL audit log: ") {
		t.Errorf("config check: %d\n%s", code, stdout)
	}
}

func TestConfigErrorsHaveLines(t *testing.T) {
	t.Parallel()
	d := deploy(t, "listeners: {catalog: {address: \"0.0.0.0:8181\"}}\nloging: {}\n")
	for _, command := range [][]string{{"serve"}, {"config", "check"}, {"migrate"}} {
		code, stdout, stderr := once(t, nil, "", append(command, "--config", d.config)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, d.config+":14:1: loging: there is no such key here; did you mean \"logging\"?") {
			t.Errorf("%v: %d %s%s", command, code, stdout, stderr)
		}
	}
	d = deploy(t, "listeners: {catalog: {address: \"0.0.0.0:8181\"}}\n")
	if code, _, stderr := once(t, nil, "", "serve", "--config", d.config); code != 1 || !strings.Contains(stderr, d.config+":13:32: listeners.catalog.address: 0.0.0.0:8181 is not on loopback") {
		t.Errorf("a plain listener off loopback: %d %s", code, stderr)
	}
	if code, _, stderr := once(t, []string{"SLUICE_LISTENERS_CATALOG_ADRESS=127.0.0.1:0"}, "", "config", "check", "--config", d.config); code != 1 || !strings.Contains(stderr, `warning: the environment variable SLUICE_LISTENERS_CATALOG_ADRESS is no key of the configuration, and has no effect; did you mean "SLUICE_LISTENERS_CATALOG_ADDRESS"?`) {
		t.Errorf("a misspelt variable: %d %s", code, stderr)
	}
	if code, _, stderr := once(t, []string{"SLUICE_LISTENERS_CATALOG_ADDRESS=:9999"}, "", "serve", "--config", d.config); code != 1 || !strings.Contains(stderr, "environment variable SLUICE_LISTENERS_CATALOG_ADDRESS: listeners.catalog.address: :9999 is not on loopback") {
		t.Errorf("the same by the environment: %d %s", code, stderr)
	}
}

// halfRequest sends all but the end of a request that creates a namespace.
func halfRequest(t *testing.T, address, token, name string) (finish func() (*http.Response, error)) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	body := `{"namespace":["` + name + `"]}`
	fmt.Fprintf(conn, "POST /v1/main/namespaces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", token, len(body), body[:5])
	time.Sleep(100 * time.Millisecond) // until the server has read it
	return func() (*http.Response, error) {
		if _, err := io.WriteString(conn, body[5:]); err != nil {
			return nil, err
		}
		return http.ReadResponse(bufio.NewReader(conn), nil)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	d := deploy(t, anyPorts+"drain: {delay: 1s, limit: 20s}\n")
	d.migrate(t)
	p := start(t, nil, "serve", "--config", d.config)
	address, metrics := p.address("catalog"), "http://"+p.address("metrics")
	finish := halfRequest(t, address, d.token(t, http.DefaultClient, "http://"+address), "late")
	p.signal(syscall.SIGTERM)
	p.until("not ready", func() bool {
		code, body := send(t, http.DefaultClient, http.MethodGet, metrics+"/health/ready", "", nil)
		return code == 503 && strings.Contains(body, "draining")
	})
	if code, _ := send(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, http.MethodGet, "http://"+address+"/health/live", "", nil); code != 200 {
		t.Errorf("a new connection within the delay: %d", code)
	}
	p.until("no more connections", func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	resp, err := finish()
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("the request in flight: %v, %v", resp, err)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestDrainCutsOff(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit  string
		second bool
		want   string
	}{
		"limit":         {"1s", false, "the limit of 1s is over"},
		"second signal": {"1h", true, "a second signal came"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, anyPorts+"drain: {limit: "+test.limit+"}\n")
			d.migrate(t)
			p := start(t, nil, "serve", "--config", d.config)
			address := p.address("catalog")
			halfRequest(t, address, d.token(t, http.DefaultClient, "http://"+address), "never")
			p.signal(syscall.SIGTERM)
			p.until("draining", func() bool { return strings.Contains(p.stderr.String(), `"draining"`) })
			if test.second {
				p.signal(syscall.SIGTERM)
			}
			if code := p.exit(); code != 3 || !strings.Contains(p.stderr.String(), test.want) {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

func TestReloadOpensTheAuditLogAnew(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "reads.jsonl")
	d := deploy(t, anyPorts+"audit: {reads: "+log+"}\n")
	d.migrate(t)
	p := start(t, nil, "serve", "--config", d.config)
	base := "http://" + p.address("catalog")
	token := d.token(t, http.DefaultClient, base)
	recorded := func(name string) func() bool {
		return func() bool {
			raw, err := os.ReadFile(name)
			return err == nil && strings.Contains(string(raw), `"operation":"listNamespaces"`)
		}
	}
	send(t, http.DefaultClient, http.MethodGet, base+"/v1/main/namespaces", token, nil)
	p.until("a record", recorded(log))
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.until("reloaded", func() bool { return strings.Contains(p.stderr.String(), `"reloaded"`) })
	send(t, http.DefaultClient, http.MethodGet, base+"/v1/main/namespaces", token, nil)
	p.until("a record in the new file", recorded(log))
}

// TestServeIsWired drives a server through what its parts are tested for one
// by one, and looks whether the parts are there: metrics of each, the limit of
// bodies, what a warehouse's settings say, and the work in the background.
func TestServeIsWired(t *testing.T) {
	t.Parallel()
	d := deploy(t, anyPorts+"audit: {reads: \"off\"}\nlimits: {body_bytes: 64KiB}\nmaintenance: {interval: 1s}\n")
	raw := readText(t, d.config)
	d.write(t, "catalogd.yaml", strings.Replace(raw, "  - name: main\n", "  - name: main\n    protect_by_default: true\n    idempotency_lifetime: 7h\n", 1))
	d.migrate(t)
	p := start(t, nil, "serve", "--config", d.config)
	base, metrics := "http://"+p.address("catalog"), "http://"+p.address("metrics")
	token := d.token(t, http.DefaultClient, base)
	call := func(method, path, body string, want int) string {
		t.Helper()
		code, answer := send(t, http.DefaultClient, method, base+path, token, strings.NewReader(body))
		if code != want {
			t.Fatalf("%s %s: %d %s", method, path, code, answer)
		}
		return answer
	}
	if got := call("GET", "/v1/config?warehouse=main", "", 200); !strings.Contains(got, `"idempotency-key-lifetime":"PT7H"`) {
		t.Errorf("idempotency_lifetime: %s", got)
	}
	call("POST", "/v1/main/namespaces", `{"namespace":["m"]}`, 200)
	call("POST", "/v1/main/namespaces/m/tables", `{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"x","required":false,"type":"long"}]}}`, 200)
	const table = "/v1/main/namespaces/m/tables/t"
	call("GET", table, "", 200)
	call("POST", table, `{"requirements":[],"updates":[{"action":"set-properties","updates":{"a":"b"}}]}`, 200)
	call("POST", table+"/metrics", `{"report-type":"scan-report","table-name":"t","snapshot-id":1,"filter":true,"schema-id":0,"projected-field-ids":[],"projected-field-names":[],"metrics":{"total-planning-duration":{"count":1,"time-unit":"nanoseconds","total-duration":5}}}`, 204)
	call("POST", table, `{"requirements":[],"updates":[],"x":"`+strings.Repeat("x", 65<<10)+`"}`, 413)
	_, exposed := send(t, http.DefaultClient, http.MethodGet, metrics+"/metrics", "", nil)
	for _, want := range []string{
		`sluice_store_calls_total{op="update",outcome="ok"}`, `sluice_object_store_calls_total{op="write`,
		`sluice_commit_attempts_total{outcome="committed"} 1`, `sluice_metadata_cache_lookups_total{result="hit"}`,
		`sluice_client_reports_total{type="scan-report"} 1`,
	} {
		if !strings.Contains(exposed, want) {
			t.Errorf("no metric %s", want)
		}
	}
	call("DELETE", table, "", 403) // protected
	p.signal(syscall.SIGTERM)
	p.exit()
	if code, _, stderr := once(t, nil, "", "unprotect", "--config", d.config, "table", "m.t"); code != 0 {
		t.Fatalf("unprotect: %s", stderr)
	}
	p = start(t, nil, "serve", "--config", d.config)
	base = "http://" + p.address("catalog")
	call("DELETE", table+"?purgeRequested=true", "", 204)
	left := func() (files []string) {
		_ = filepath.WalkDir(filepath.Join(d.dir, "warehouse"), func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				files = append(files, path)
			}
			return nil
		})
		return files
	}
	for range 100 {
		if len(left()) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("not purged within ten seconds: %v", left())
}
