// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// signedIn is the configuration of catalogd with issuers of each kind
// but kubernetes, which has a part of its own.
var signedIn = template.Must(template.New("").Parse(`
public_uri: {{.URI}}
listeners:
  catalog:
    address: "127.0.0.1:{{.Port}}"
    tls: {cert: {{.Cert}}, key: {{.Key}}}
  metrics: {address: ""}
store:
  auto_migrate: true
  sqlite: {path: {{.Dir}}/catalog.db}
audit:
  reads: {{.Dir}}/reads.jsonl
warehouses:
  - name: demo
    storage: {type: file, root: "file://{{.Dir}}/warehouse"}
accounts:
  - client_id: engine
    secrets: [{env: E2E_CLIENT_HASH}]
    act_for: ["idp:*"]
    grants: [{warehouse: demo, access: write}]
  - client_id: idle
    secrets: [{env: E2E_CLIENT_HASH}]
    grants: [{warehouse: demo, access: write}]
tokens:
  signing_key: {env: E2E_SIGNING_KEY}
  oauth_endpoint: true
issuers:
  - name: idp
    kind: jwt
    issuer: {{.Issuer}}
    audiences: [sluice]
    algorithms: [RS256]
    refresh: 10s
    claims:
      organisation: {fixed: acme}
      groups: {{.Groups}}
{{- if .Clearance}}
      attributes: [{name: clearance, type: long, required: true}]
{{- end}}
    grants:
      - {group: loaders, warehouse: demo, access: write}
      - {group: readers, warehouse: demo, access: read}
{{- if .Introspection}}
  - name: opaque
    kind: introspection
    audiences: [sluice]
    claims:
      subject: client_id
      organisation: {fixed: acme}
      groups: groups
    introspection:
      endpoint: {{.Introspection}}
      client_id: sluice
      client_secret: {env: E2E_IDP_SECRET}
      ttl: 1s
    grants:
      - {group: loaders, warehouse: demo, access: write}
  - name: mesh
    kind: mtls
    mtls: {ca_file: {{.Dir}}/mesh.pem, trust_domain: lake.example}
    claims:
      organisation: {fixed: acme}
    grants:
      - {subject: "spiffe://lake.example/loader", warehouse: demo, access: write}
  - name: office
    kind: mtls
    mtls: {ca_file: {{.Dir}}/office.pem}
    claims:
      organisation: {fixed: acme}
    grants:
      - {subject: reader, warehouse: demo, access: read}
{{- end}}
`))

// login is a catalog whose users come from an identity provider.
type login struct {
	r      *run
	cat    *target
	python string
	config string // file
	env    []string

	// What the configuration needs to know.
	URI, Cert, Key, Dir string
	Port                int
	Issuer, Groups      string
	Introspection       string // endpoint; "" for none
	Clearance           bool
	Review              bool // of kubernetes

	ca                   *authority
	tokenURL, revocation string
	// rotate has the provider sign with a new key, and forget has it publish
	// that key alone.
	rotate, forget func(ctx context.Context) error
}

// idpSecret is that of every client at the identity provider.
const idpSecret = "e2e-provider-secret-0123456789"

// identity drives catalogd with PyIceberg as a user of a real OpenID Connect
// server, and with client certificates.
func identity(r *run) {
	l := &login{r: r, Groups: "groups", Clearance: true}
	var provider *process
	if !r.step("install PyIceberg and oidc-provider", 20*time.Minute, func(ctx context.Context) (err error) {
		l.python, err = install.Python(ctx, "clients", install.Clients)
		if err == nil {
			_, err = install.Npm(ctx, "oidc-provider", install.OIDCProvider)
		}
		return err
	}) || !r.step("start oidc-provider", time.Minute, func(ctx context.Context) (err error) {
		provider, err = l.startProvider(ctx)
		return err
	}) {
		return
	}
	defer provider.kill()
	if !r.step("config check asks the issuers", time.Minute, func(ctx context.Context) error {
		if err := l.configure(ctx); err != nil {
			return err
		}
		if _, err := command(ctx, r.root, l.env, r.binary, "migrate", "--config", l.config); err != nil {
			return err
		}
		out, err := command(ctx, r.root, l.env, r.binary, "config", "check", "--config", l.config)
		for _, name := range []string{"idp", "opaque"} {
			if err == nil && !strings.Contains(out, "ok   issuer "+name) {
				err = fmt.Errorf("nothing of issuer %s in\n%s", name, out)
			}
		}
		return err
	}) || !r.step("start catalogd with four issuers", time.Minute, l.start) {
		return
	}
	defer l.cat.kill()
	var brief string
	r.step("a token of five seconds", time.Minute, func(ctx context.Context) (err error) {
		if brief, err = l.token(ctx, "etl", "urn:sluice:brief"); err != nil {
			return err
		}
		return l.expect(ctx, brief, http.StatusOK)
	})
	ended := time.Now().Add(5*time.Second + 30*time.Second) // with the allowance for clocks
	l.script("provider", "OIDC_PROVIDER=yes")
	l.script("certificate")
	l.delegation()
	r.step("wrong secrets of a client are throttled, another's right one is not", time.Minute, l.throttled)
	r.step("a revoked opaque token", time.Minute, l.revoked)
	l.rotation()
	r.step("an expired token, known before", time.Minute, func(ctx context.Context) error {
		time.Sleep(time.Until(ended.Add(time.Second)))
		return l.expect(ctx, brief, http.StatusUnauthorized)
	})
	l.outage(provider)
	l.audit()
}

// keycloak is the same with a Keycloak.
func keycloak(r *run) {
	l := &login{r: r, Groups: "/realm_access/roles"}
	var server *process
	var dir string
	if !r.step("install PyIceberg and Keycloak", 20*time.Minute, func(ctx context.Context) (err error) {
		if l.python, err = install.Python(ctx, "clients", install.Clients); err == nil {
			dir, err = install.Keycloak(ctx)
		}
		return err
	}) || !r.step("start Keycloak", 5*time.Minute, func(ctx context.Context) (err error) {
		server, err = l.startKeycloak(ctx, dir)
		return err
	}) {
		return
	}
	defer server.kill()
	if !r.step("start catalogd", time.Minute, func(ctx context.Context) error {
		if err := l.configure(ctx); err != nil {
			return err
		}
		return l.start(ctx)
	}) {
		return
	}
	defer l.cat.kill()
	l.script("provider")
	l.delegation()
	l.rotation()
	l.outage(server)
	l.audit()
}

// startProvider starts oidc-provider.
func (l *login) startProvider(ctx context.Context) (*process, error) {
	dir, err := install.Npm(ctx, "oidc-provider", install.OIDCProvider)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	l.Issuer = fmt.Sprintf("http://127.0.0.1:%d", port)
	l.tokenURL, l.Introspection, l.revocation = l.Issuer+"/token", l.Issuer+"/token/introspection", l.Issuer+"/token/revocation"
	p, err := start(l.r.root, l.r.logFile("oidc-provider"), []string{"OIDC_PROVIDER=" + dir, fmt.Sprintf("PORT=%d", port), "SECRET=" + idpSecret}, nil,
		"node", filepath.Join("test", "e2e", "identity", "provider.mjs"))
	if err != nil {
		return nil, err
	}
	change := func(what string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := ask(ctx, http.MethodPost, l.Issuer+"/test/"+what, "", nil, http.StatusOK)
			return err
		}
	}
	l.rotate, l.forget = change("rotate"), change("forget")
	if err := p.until(ctx, "oidc-provider", func() bool { return strings.Contains(p.log.String(), "ready at") }); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// configure writes catalogd's configuration, and the certificates of the
// server and the clients.
func (l *login) configure(ctx context.Context) (err error) {
	r := l.r
	l.Dir = filepath.Join(r.dir, r.part)
	if err := os.Mkdir(l.Dir, 0o755); err != nil {
		return err
	}
	if l.ca, err = newAuthority(l.Dir, "ca"); err != nil {
		return err
	}
	if l.Cert, l.Key, err = l.ca.server(); err != nil {
		return err
	}
	for name, clients := range map[string]map[string]string{
		"mesh":   {"loader": "spiffe://lake.example/loader", "stranger": "spiffe://lake.example/stranger"},
		"office": {"reader": ""},
		"rogue":  {"loader": "spiffe://lake.example/loader"},
	} {
		a, err := newAuthority(l.Dir, name)
		if err != nil {
			return err
		}
		for client, id := range clients {
			if _, _, err := a.client(client, id); err != nil {
				return err
			}
		}
	}
	if l.Port, err = freePort(); err != nil {
		return err
	}
	l.URI = fmt.Sprintf("https://127.0.0.1:%d", l.Port)
	hash, err := r.hash(ctx)
	if err != nil {
		return err
	}
	l.env = []string{"E2E_CLIENT_HASH=" + hash, "E2E_SIGNING_KEY=" + signingKey, "E2E_IDP_SECRET=" + idpSecret}
	return l.write(signedIn)
}

// write writes the configuration.
func (l *login) write(config *template.Template) error {
	var text bytes.Buffer
	if err := config.Execute(&text, l); err != nil {
		return err
	}
	l.config = filepath.Join(l.Dir, "catalogd.yaml")
	return os.WriteFile(l.config, text.Bytes(), 0o600)
}

// start starts catalogd.
func (l *login) start(ctx context.Context) error {
	r := l.r
	p, err := start(r.root, r.logFile("catalogd"), l.env, nil, r.binary, "serve", "--config", l.config)
	if err != nil {
		return err
	}
	l.cat = newTarget(p)
	l.cat.URI, l.cat.Warehouse = l.URI, "demo"
	pool := x509.NewCertPool()
	pool.AddCert(l.ca.cert)
	l.cat.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if err := p.until(ctx, "catalogd", func() bool {
		status, _, err := l.cat.send(ctx, http.MethodGet, l.URI+"/health/ready", nil)
		return err == nil && status == http.StatusOK
	}); err != nil {
		p.kill()
		return err
	}
	return nil
}

// script runs the steps of PyIceberg.
func (l *login) script(mode string, env ...string) {
	scripts := filepath.Join(l.r.root, "test", "e2e", "clients")
	l.r.script(mode, client{"pyiceberg", nil, []string{l.python, filepath.Join(scripts, "identity_client.py")}}, mode, append([]string{
		"URI=" + l.URI, "WAREHOUSE=demo", "CLIENT_ID=", "CLIENT_SECRET=" + idpSecret, "TOKEN=", "PYTHONPATH=" + scripts,
		"CA=" + l.ca.file, "TOKEN_URL=" + l.tokenURL, "CERTIFICATES=" + l.Dir,
		// Python's requests would take these before PyIceberg's ssl.cabundle.
		"REQUESTS_CA_BUNDLE=", "CURL_CA_BUNDLE=",
	}, env...))
}

// token gets one from the identity provider.
func (l *login) token(ctx context.Context, client, resource string) (string, error) {
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "client_secret": {idpSecret}, "scope": {"catalog"}}
	if resource != "" {
		form.Set("resource", resource)
	}
	answer, err := ask(ctx, http.MethodPost, l.tokenURL, "", form, http.StatusOK)
	token, _ := answer["access_token"].(string)
	return token, err
}

// ask sends a form, or JSON, and reads a JSON answer as far as it is one. It
// is for identity providers: errors hold no token.
func ask(ctx context.Context, method, uri, bearer string, body any, want int) (map[string]any, error) {
	return askWith(ctx, http.DefaultClient, method, uri, bearer, body, want)
}

func askWith(ctx context.Context, client *http.Client, method, uri, bearer string, body any, want int) (map[string]any, error) {
	var content io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case url.Values:
		content, kind = strings.NewReader(b.Encode()), "application/x-www-form-urlencoded"
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, uri, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		return nil, fmt.Errorf("%s %s: status %d, want %d: %.300s", method, uri, resp.StatusCode, want, raw)
	}
	var answer map[string]any
	if json.Unmarshal(raw, &answer) != nil {
		answer = nil // a list, or nothing: nobody looks at it
	}
	return answer, nil
}

// status asks the catalog with a token.
func (l *login) status(ctx context.Context, token string) (int, string, error) {
	l.cat.Token = token
	status, body, err := l.cat.send(ctx, http.MethodGet, l.URI+"/v1/config?warehouse=demo", nil)
	return status, string(body), err
}

func (l *login) expect(ctx context.Context, token string, want int) error {
	status, body, err := l.status(ctx, token)
	if err == nil && status != want {
		err = fmt.Errorf("status %d, want %d: %s", status, want, body)
	}
	return err
}

// exchange asks the catalog for a token with which an account acts for the
// subject of a token.
func (l *login) exchange(ctx context.Context, account, subject string) (string, error) {
	own := *l.cat
	own.ClientID, own.ClientSecret = account, clientSecret
	if err := own.login(ctx); err != nil {
		return "", err
	}
	const kind = "urn:ietf:params:oauth:token-type:access_token"
	form := url.Values{
		"grant_type":    {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"subject_token": {subject}, "subject_token_type": {kind}, "actor_token": {own.Token}, "actor_token_type": {kind},
	}
	own.Token = ""
	status, body, err := own.send(ctx, http.MethodPost, l.URI+"/v1/oauth/tokens", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", &statusError{status, string(body)}
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	return answer.Token, json.Unmarshal(body, &answer)
}

// delegation has an account of the catalog act for a user of the provider.
func (l *login) delegation() {
	var token string
	if l.r.step("exchange a token, as an account that may act for its subject", time.Minute, func(ctx context.Context) error {
		subject, err := l.token(ctx, "etl", "")
		if err == nil {
			token, err = l.exchange(ctx, "engine", subject)
		}
		return err
	}) {
		l.script("delegated", "TOKEN="+token)
	}
	l.r.step("an account that may not act for it gets none", time.Minute, func(ctx context.Context) error {
		subject, err := l.token(ctx, "etl", "")
		if err != nil {
			return err
		}
		_, err = l.exchange(ctx, "idle", subject)
		var refused *statusError
		if !errors.As(err, &refused) || refused.status != http.StatusBadRequest || !strings.Contains(refused.body, "unauthorized_client") {
			return fmt.Errorf("got %w, want unauthorized_client", err)
		}
		return nil
	})
}

// throttled sends more wrong secrets than limits.failures.per_client.
func (l *login) throttled(ctx context.Context) error {
	own := *l.cat
	codes := map[int]int{}
	for range 12 {
		form := url.Values{"grant_type": {"client_credentials"}, "client_id": {"idle"}, "client_secret": {"wrong-secret-0123456789"}}
		own.Token = ""
		status, _, err := own.send(ctx, http.MethodPost, l.URI+"/v1/oauth/tokens", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
		if err != nil {
			return err
		}
		codes[status]++
	}
	if codes[http.StatusUnauthorized] < 10 || codes[http.StatusTooManyRequests] == 0 || len(codes) != 2 {
		return fmt.Errorf("twelve wrong secrets were answered %v", codes)
	}
	own.ClientID, own.ClientSecret = "engine", clientSecret
	return own.login(ctx)
}

// revoked holds that a token works no longer than an answer is believed.
func (l *login) revoked(ctx context.Context) error {
	token, err := l.token(ctx, "etl", "urn:sluice:opaque")
	if err != nil {
		return err
	}
	if err := l.expect(ctx, token, http.StatusOK); err != nil {
		return err
	}
	if _, err := ask(ctx, http.MethodPost, l.revocation, "", url.Values{"client_id": {"etl"}, "client_secret": {idpSecret}, "token": {token}}, http.StatusOK); err != nil {
		return err
	}
	time.Sleep(1100 * time.Millisecond) // introspection.ttl
	return l.expect(ctx, token, http.StatusUnauthorized)
}

// rotation replaces the provider's key.
func (l *login) rotation() {
	var before, after string
	if !l.r.step("a new key's first token, at once", time.Minute, func(ctx context.Context) (err error) {
		if before, err = l.token(ctx, "etl", ""); err != nil {
			return err
		}
		if err := l.expect(ctx, before, http.StatusOK); err != nil {
			return err
		}
		if err := l.rotate(ctx); err != nil {
			return err
		}
		if after, err = l.token(ctx, "etl", ""); err != nil {
			return err
		}
		if strings.HasPrefix(after, before[:strings.IndexByte(before, '.')+1]) {
			return errors.New("the provider signs with the old key still")
		}
		if err := l.expect(ctx, after, http.StatusOK); err != nil {
			return fmt.Errorf("the new key: %w", err)
		}
		if err := l.expect(ctx, before, http.StatusOK); err != nil {
			return fmt.Errorf("the old key, still published: %w", err)
		}
		return nil
	}) {
		return
	}
	l.r.step("a removed key's token, known before, within the refresh", time.Minute, func(ctx context.Context) error {
		if err := l.forget(ctx); err != nil {
			return err
		}
		for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			status, body, err := l.status(ctx, before)
			switch {
			case err != nil:
				return err
			case status == http.StatusUnauthorized:
				return l.expect(ctx, after, http.StatusOK)
			case status != http.StatusOK || time.Since(start) > 15*time.Second:
				return fmt.Errorf("after %s: status %d: %s", time.Since(start), status, body)
			}
		}
	})
}

// outage ends the provider.
func (l *login) outage(provider *process) {
	l.r.step("the provider is away: known tokens work, opaque ones that are not are answered 503", time.Minute, func(ctx context.Context) error {
		known, err := l.token(ctx, "etl", "")
		if err != nil {
			return err
		}
		fresh, err := l.token(ctx, "etl", "")
		if err != nil {
			return err
		}
		if err := l.expect(ctx, known, http.StatusOK); err != nil {
			return err
		}
		provider.kill()
		if err := l.expect(ctx, known, http.StatusOK); err != nil {
			return fmt.Errorf("a known token: %w", err)
		}
		if err := l.expect(ctx, fresh, http.StatusOK); err != nil {
			return fmt.Errorf("a token of a known key: %w", err)
		}
		if l.Introspection != "" {
			return l.expect(ctx, "an-opaque-token-that-nobody-can-be-asked-about", http.StatusServiceUnavailable)
		}
		return nil
	})
}

// audit reads the log of what was done.
func (l *login) audit() {
	l.r.step("stop catalogd", time.Minute, func(context.Context) error { return l.cat.stop() })
	l.r.step("the audit log names actor and subject of each record", time.Minute, func(ctx context.Context) error {
		out, err := command(ctx, l.r.root, l.env, l.r.binary, "audit", "query", "--config", l.config, "--actor", "account:engine")
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for line := range strings.Lines(out) {
			var record struct{ Type, Principal, Actor, Operation, Decision string }
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			if !strings.HasPrefix(record.Principal, "idp:") || record.Actor != "account:engine" {
				return fmt.Errorf("a record of another: %s", line)
			}
			seen[record.Type+" "+record.Operation] = true
		}
		for _, want := range []string{"audit.decision getToken", "audit.decision getConfig", "audit.decision loadTable", "audit.change createNamespace"} {
			if !seen[want] {
				err = errors.Join(err, fmt.Errorf("no record %s by the actor", want))
			}
		}
		if err != nil {
			return fmt.Errorf("%w in\n%s", err, out)
		}
		return nil
	})
	l.r.step("no token or secret is in the audit log or the server's", time.Minute, func(context.Context) error {
		for _, file := range []string{filepath.Join(l.Dir, "reads.jsonl"), l.r.logFile("catalogd")} {
			raw, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, secret := range []string{"eyJ", idpSecret, clientSecret, "an-opaque-token"} {
				if bytes.Contains(raw, []byte(secret)) {
					return fmt.Errorf("%s holds %.6s…", file, secret)
				}
			}
		}
		return nil
	})
}
