// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/secret"
)

// provider is an OpenID provider that gives device codes. Its access token is
// the catalog's own, which takes no others here.
type provider struct {
	*httptest.Server
	token    string
	outcome  atomic.Value // of polling: "" gives the token
	polls    atomic.Int64
	renewals atomic.Int64
}

func startProvider(t *testing.T, token string) *provider {
	t.Helper()
	p := &provider{token: token}
	p.outcome.Store("")
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		send(w, 200, map[string]string{"issuer": p.URL, "token_endpoint": p.URL + "/token", "device_authorization_endpoint": p.URL + "/device", "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("POST /device", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("client_id") != "sharectl" || r.FormValue("scope") != "openid offline_access" || r.FormValue("audience") != "sluice" {
			send(w, 400, map[string]string{"error": "invalid_request", "error_description": r.Form.Encode()})
			return
		}
		send(w, 200, map[string]any{"device_code": "device-code-secret", "user_code": "WDJB-MJHT", "verification_uri": p.URL + "/go", "verification_uri_complete": p.URL + "/go?user_code=WDJB-MJHT", "expires_in": 600, "interval": 1})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		switch r.FormValue("grant_type") {
		case "urn:ietf:params:oauth:grant-type:device_code":
			if outcome := p.outcome.Load().(string); outcome != "" {
				send(w, 400, map[string]string{"error": outcome})
				return
			}
			if p.polls.Add(1) == 1 {
				send(w, 400, map[string]string{"error": "authorization_pending"})
				return
			}
		case "refresh_token":
			p.renewals.Add(1)
			if r.FormValue("refresh_token") != "refresh-secret" {
				send(w, 400, map[string]string{"error": "invalid_grant"})
				return
			}
		default:
			send(w, 400, map[string]string{"error": "unsupported_grant_type"})
			return
		}
		send(w, 200, map[string]any{"access_token": p.token, "token_type": "Bearer", "expires_in": 300, "refresh_token": "refresh-secret"})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func TestDeviceCode(t *testing.T) {
	t.Parallel()
	c := startCatalog(t)
	p := startProvider(t, c.ready.Token)
	s := newStage(t)
	login := []string{"login", c.ready.URI, "--device", "--issuer", p.URL, "--client-id", "sharectl", "--scope", "openid,offline_access", "--audience", "sluice", "--name", "me"}
	for outcome, want := range map[string]string{"access_denied": "it was refused on the other device", "expired_token": "nobody confirmed the code in time", "invalid_client": "invalid_client"} {
		p.outcome.Store(outcome)
		if code, _, stderr := s.run("", login...); code != codeRefused || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s", outcome, code, stderr)
		}
	}
	p.outcome.Store("")
	code, stdout, stderr := s.run("", login...)
	if code != 0 || stdout != "" {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	for _, want := range []string{"Open  " + p.URL + "/go\n", "Enter WDJB-MJHT\n", "/go?user_code=WDJB-MJHT\n", "Waiting for you to confirm (10m0s left)", `as context "me"`} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in\n%s", want, stderr)
		}
	}
	if strings.Contains(stderr, "secret") || strings.Contains(stderr, c.ready.Token) {
		t.Errorf("a secret in\n%s", stderr)
	}
	// Later the token is renewed, and the new one is kept.
	s.now = func() time.Time { return time.Now().Add(10 * time.Minute) }
	if code, _, stderr := s.run("", "namespace", "list"); code != 0 || p.renewals.Load() == 0 {
		t.Errorf("renewed: %d %d %s", code, p.renewals.Load(), stderr)
	}
	s.now = time.Now
	renewed := p.renewals.Load()
	if code, _, stderr := s.run("", "namespace", "list"); code != 0 || p.renewals.Load() != renewed {
		t.Errorf("not renewed again: %d %d %s", code, p.renewals.Load(), stderr)
	}
	if code, stdout, stderr := s.run("", "doctor"); code != 0 || !strings.Contains(stdout, p.URL+" answers") {
		t.Errorf("doctor: %d %s%s", code, stdout, stderr)
	}
	for _, name := range []string{"config.yaml", "tokens.json"} {
		path := filepath.Join(s.home, ".config", "sharectl", name)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
		raw, err := os.ReadFile(path)
		if holds := strings.Contains(string(raw), c.ready.Token); err != nil || holds != (name == "tokens.json") {
			t.Errorf("%s holds the token: %v %v", name, holds, err)
		}
	}
	// Others can read it: it is not used.
	if err := os.Chmod(filepath.Join(s.home, ".config", "sharectl", "tokens.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := s.run("", "namespace", "list"); code != codeFailed || !strings.Contains(stderr, "can be read by others (mode 0644): chmod 600 it") {
		t.Errorf("readable by others: %d %s", code, stderr)
	}
}

// TestSecretIsTyped asks on a terminal.
func TestSecretIsTyped(t *testing.T) {
	t.Parallel()
	c := startCatalog(t)
	s := newStage(t)
	s.secret = func() ([]byte, error) { return []byte(c.ready.ClientSecret), nil }
	if code, _, stderr := s.run("", "login", c.ready.URI, "--client-id", c.ready.ClientID, "--keep-secret"); code != 0 || !strings.HasPrefix(stderr, "Client secret: \n") {
		t.Fatalf("%d %s", code, stderr)
	}
	s.secret = func() ([]byte, error) { return nil, errors.New("asked again") }
	s.now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	if code, _, stderr := s.run("", "namespace", "list"); code != 0 {
		t.Errorf("renewed with the kept secret: %d %s", code, stderr)
	}
	// On a terminal it asks, and "no" is no.
	if code, _, stderr := s.run("no\n", "namespace", "drop", "x"); code != codeFailed || !strings.Contains(stderr, "Drop namespace x? [y/N]") {
		t.Errorf("%d %s", code, stderr)
	}
	if code, _, stderr := s.run("y\n", "namespace", "drop", "x"); code != codeNotFound {
		t.Errorf("%d %s", code, stderr)
	}
}

// TestElsewhere has servers that would lead a token astray.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			got.Add(1)
		}
	}))
	defer thief.Close()
	redirecting := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer redirecting.Close()
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/other/"):
			fmt.Fprint(w, `{"issuer":"https://another.example.com","token_endpoint":"https://another.example.com/t"}`)
		case strings.HasPrefix(r.URL.Path, "/plain/"):
			fmt.Fprintf(w, `{"issuer":"http://%s/plain","token_endpoint":"http://another.example.com/t"}`, r.Host)
		case strings.HasPrefix(r.URL.Path, "/none/"):
			fmt.Fprintf(w, `{"issuer":"http://%s/none"}`, r.Host)
		default:
			http.NotFound(w, r)
		}
	}))
	defer odd.Close()
	s := newStage(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"login", redirecting.URL, "--with-token"}, "the server sends elsewhere"},
		{[]string{"login", odd.URL, "--client-id", "x", "--client-secret-file", "-", "--issuer", odd.URL + "/other"}, `calls itself "https://another.example.com"`},
		{[]string{"login", odd.URL, "--client-id", "x", "--client-secret-file", "-", "--issuer", odd.URL + "/plain"}, "is plain HTTP to another machine"},
		{[]string{"login", odd.URL, "--client-id", "x", "--client-secret-file", "-", "--issuer", odd.URL + "/none"}, "names no token endpoint"},
		{[]string{"login", odd.URL, "--client-id", "x", "--client-secret-file", "-", "--issuer", odd.URL}, "is this an OpenID provider's URI?"},
		{[]string{"login", odd.URL, "--client-id", "x", "--client-secret-file", "-", "--token-uri", "http://another.example.com/t"}, "is plain HTTP to another machine"},
		{[]string{"login", "https://127.0.0.1:1", "--with-token"}, "https://127.0.0.1:1 does not answer"},
	} {
		code, stdout, stderr := s.run("token-token", c.args...)
		if code == 0 || stdout != "" || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "token-token") {
			t.Errorf("%q: %d %s%s", c.args, code, stdout, stderr)
		}
	}
	if got.Load() != 0 {
		t.Error("a token went elsewhere")
	}
	if _, err := os.Stat(filepath.Join(s.home, ".config", "sharectl", "tokens.json")); !os.IsNotExist(err) {
		t.Errorf("something was kept: %v", err)
	}
}

// TestUnknownAuthority meets a certificate that nobody vouches for.
func TestUnknownAuthority(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	s := newStage(t)
	code, _, stderr := s.run("x", "login", server.URL, "--with-token")
	if code != codeUnreachable || !strings.Contains(stderr, "--ca-file FILE") {
		t.Errorf("%d %s", code, stderr)
	}
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = server.URL, "x"
	if code, stdout, _ := s.run("", "doctor"); code != codeWanting || !strings.Contains(stdout, "connection     FAIL") {
		t.Errorf("doctor: %d %s", code, stdout)
	}
}

// TestControlCharacters has a server put into names what a terminal obeys.
func TestControlCharacters(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/v1/config":
			fmt.Fprint(w, `{"defaults":{},"overrides":{}}`)
		case strings.HasSuffix(r.URL.Path, "/namespaces"):
			fmt.Fprint(w, `{"namespaces":[["a\u001b]0;x\u0007\u202eb"]]}`)
		default:
			w.WriteHeader(404)
			fmt.Fprint(w, `{"error":{"message":"no \u001b[31mnamespace","type":"NoSuchNamespaceException","code":404}}`)
		}
	}))
	defer server.Close()
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = server.URL, "x"
	if _, stdout, stderr := s.run("", "namespace", "list"); stdout != "NAMESPACE\na\\x1b]0;x\\a\\u202eb\n" {
		t.Errorf("%q %s", stdout, stderr)
	}
	if code, _, stderr := s.run("", "namespace", "show", "a"); code != codeNotFound || !strings.Contains(stderr, `no \x1b[31mnamespace`) {
		t.Errorf("%d %q", code, stderr)
	}
}

// TestColour is for terminals.
func TestColour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal bool
		env      map[string]string
		want     bool
	}{
		{true, nil, true}, {false, nil, false}, {true, map[string]string{"NO_COLOR": "1"}, false}, {true, map[string]string{"TERM": "dumb"}, false},
	} {
		var out strings.Builder
		a := &app{System: System{Stdout: &out, OutTerminal: c.terminal, Env: func(k string) string { return c.env[k] }}, format: "table"}
		if err := a.print(list{columns: []string{"X"}, rows: [][]string{{"FAIL"}}}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "\x1b["); got != c.want {
			t.Errorf("%+v: %q", c, out.String())
		}
	}
}

// TestColumns looks at what the scripts do not hold: the gaps.
func TestColumns(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	a := &app{System: System{Stdout: &out, Env: func(string) string { return "" }}, format: "table"}
	if err := a.print(list{columns: []string{"A", "LONG NAME", "C"}, rows: [][]string{{"日本語", "x", ""}, {"b", "", "c"}}}); err != nil {
		t.Fatal(err)
	}
	if want := "A    LONG NAME  C\n日本語  x\nb               c\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// TestAudit writes a log, verifies it and changes it.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	path, keyFile := filepath.Join(s.home, "reads.log"), filepath.Join(s.home, "key")
	const seed = "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXowMTIzNDU="
	if err := os.WriteFile(keyFile, []byte(seed), 0o600); err != nil {
		t.Fatal(err)
	}
	signer, err := audit.ParseSigner(secret.New(seed))
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.OpenFile(path, audit.Options{Signer: signer})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"sales.orders", "sales.none", "hr.people"} {
		r := audit.Record{Time: time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC), Principal: "account:alice", Operation: "loadTable", Warehouse: "demo", Resource: name, Status: 200, Decision: audit.Allow}
		if i == 2 {
			r.Status, r.Decision, r.Actor = 403, audit.Deny, "account:engine"
		}
		if err := log.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.home, "altered.log"), []byte(strings.Replace(string(raw), "hr.people", "hr.nobody", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.play("audit.txt")
	if code, stdout, stderr := s.run("", "audit", "export", path); code != 0 || stdout != string(raw) {
		t.Errorf("export: %d %s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := s.run(string(raw), "audit", "verify", "--key", keyFile, "-"); code != 0 || !strings.HasPrefix(stdout, "ok   -: 4 records") {
		t.Errorf("from stdin: %d %s%s", code, stdout, stderr)
	}
}
