// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// idp is an OpenID Connect provider with one key.
type idp struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func newIDP(t *testing.T) *idp {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	p := &idp{key: key}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			answer = map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"}
		case "/keys":
			answer = map[string]any{"keys": []any{map[string]any{
				"kid": "k", "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "x": b64(point[1:33]), "y": b64(point[33:]),
			}}}
		}
		json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *idp) token(t *testing.T, subject, audience string) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": p.URL, "sub": subject, "aud": audience, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"loaders"},
	})
	token.Header["kid"] = "k"
	signed, err := token.SignedString(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// TestIssuers has users of an identity provider, an account that acts for one
// of them, and a client certificate, and reads the audit log of what they did.
func TestIssuers(t *testing.T) {
	t.Parallel()
	provider, ca, mesh := newIDP(t), newAuthority(t), newAuthority(t)
	d := deploy(t, `listeners:
  catalog: {address: "127.0.0.1:0", tls: {cert: tls.crt, key: tls.key}}
  metrics: {address: "127.0.0.1:0"}
audit: {reads: DIR/reads.jsonl}
issuers:
  - name: corp
    kind: jwt
    issuer: PROVIDER
    audiences: [sluice]
    claims: {organisation: {fixed: acme}, groups: groups}
    grants: [{group: loaders, warehouse: main, access: write}]
  - name: mesh
    kind: mtls
    mtls: {ca_file: mesh.pem}
    claims: {organisation: {fixed: acme}}
    grants: [{subject: localhost, warehouse: main, access: read}]
`)
	edit(t, &d, strings.NewReplacer("DIR", d.dir, "PROVIDER", provider.URL, "  - client_id: alice\n", "  - client_id: alice\n    act_for: [\"corp:bob\"]\n"))
	cert, key := ca.issue(100)
	d.write(t, "tls.crt", cert)
	d.write(t, "tls.key", key)
	d.write(t, "mesh.pem", mesh.pem)
	d.migrate(t)
	p := start(t, nil, "serve", "--config", d.config)
	base, metrics := "https://"+p.address("catalog"), "http://"+p.address("metrics")
	plain := ca.client(0)
	showing := func(from *authority) *http.Client {
		c, k := from.issue(7)
		pair, err := tls.X509KeyPair([]byte(c), []byte(k))
		if err != nil {
			t.Fatal(err)
		}
		return ca.client(0, pair)
	}
	create := func(client *http.Client, token, name string, want int) {
		t.Helper()
		if code, body := send(t, client, http.MethodPost, base+"/v1/main/namespaces", token, strings.NewReader(`{"namespace":["`+name+`"]}`)); code != want {
			t.Errorf("create %s: %d, want %d: %s", name, code, want, body)
		}
	}
	look := func(client *http.Client, token string, want int) {
		t.Helper()
		if code, body := send(t, client, http.MethodGet, base+"/v1/main/namespaces/by_bob", token, nil); code != want {
			t.Errorf("load a namespace: %d, want %d: %s", code, want, body)
		}
	}
	bob := provider.token(t, "bob", "sluice")
	create(plain, bob, "by_bob", http.StatusOK)
	create(plain, provider.token(t, "bob", "other"), "by_nobody", http.StatusUnauthorized)
	create(plain, bob+"x", "by_nobody", http.StatusUnauthorized)
	look(plain, "", http.StatusUnauthorized)
	look(showing(mesh), "", http.StatusOK)
	create(showing(mesh), "", "by_mesh", http.StatusForbidden)
	look(showing(newAuthority(t)), "", http.StatusUnauthorized)

	const kind = "urn:ietf:params:oauth:token-type:access_token"
	exchange := func(subject string) (int, string) {
		form := url.Values{
			"grant_type":    {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"subject_token": {subject}, "subject_token_type": {kind}, "actor_token": {d.token(t, plain, base)}, "actor_token_type": {kind},
		}
		code, body := send(t, plain, http.MethodPost, base+"/v1/oauth/tokens", "", strings.NewReader(form.Encode()))
		var answer struct {
			Token string `json:"access_token"`
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%d %s", code, body)
		}
		return code, answer.Token
	}
	if code, _ := exchange(provider.token(t, "carol", "sluice")); code != http.StatusBadRequest {
		t.Errorf("an account acts for one that it may not act for: %d", code)
	}
	code, acting := exchange(bob)
	if code != http.StatusOK {
		t.Fatalf("exchange: %d", code)
	}
	create(plain, acting, "for_bob", http.StatusOK)
	look(plain, acting, http.StatusOK)
	_, exposed := send(t, http.DefaultClient, http.MethodGet, metrics+"/metrics", "", nil)
	for _, want := range []string{
		`sluice_authentications_total{kind="certificate",outcome="ok"}`, `sluice_authentications_total{kind="certificate",outcome="refused"} 1`,
		`sluice_authentications_total{kind="bearer",outcome="refused"}`, `sluice_issuer_requests_total{issuer="corp",outcome="ok"}`,
	} {
		if !strings.Contains(exposed, want) {
			t.Errorf("no metric %s", want)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	// What the log holds, by principal, actor, operation and outcome.
	got := map[string]int{}
	code, out, stderr := once(t, nil, "", "audit", "query", "--config", d.config)
	if code != 0 {
		t.Fatalf("audit query: %d %s", code, stderr)
	}
	for line := range strings.Lines(out) {
		var r struct {
			Principal, Actor, Operation, Resource string
			Status                                int
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		outcome := "ok"
		if r.Status >= 400 {
			outcome = "no"
		}
		got[strings.Join([]string{r.Principal, r.Actor, r.Operation, r.Resource, outcome}, " ")]++
	}
	for _, want := range []string{
		"corp:bob  createNamespace by_bob ok",
		"corp:bob account:alice createNamespace for_bob ok",
		"corp:bob account:alice loadNamespaceMetadata by_bob ok",
		"mesh:localhost  loadNamespaceMetadata by_bob ok",
		"mesh:localhost  createNamespace  no",
		"corp:bob account:alice getToken  ok",
		"corp:carol account:alice getToken  no",
	} {
		if got[want] != 1 {
			t.Errorf("%d records %q, want 1", got[want], want)
		}
	}
	if want := "account:alice  getToken  ok"; got[want] != 2 {
		t.Errorf("%d records %q, want 2", got[want], want)
	}
	if !strings.Contains(out, `"operation":"getToken","status":200,"decision":"allow","detail":{"grant":"urn:ietf:params:oauth:grant-type:token-exchange"}`) {
		t.Error("no record names the grant of the exchange")
	}
	if t.Failed() {
		t.Logf("the log:\n%s", out)
	}
	for what, text := range map[string]string{"audit log": out, "reads": readText(t, filepath.Join(d.dir, "reads.jsonl")), "stderr": p.stderr.String()} {
		if strings.Contains(text, "eyJ") {
			t.Errorf("a token is in the %s", what)
		}
	}
}
