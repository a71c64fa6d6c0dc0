// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// testKeys are made once: RSA keys take their time.
var testKeys = sync.OnceValue(func() map[string]crypto.Signer {
	must := func(k crypto.Signer, err error) crypto.Signer {
		if err != nil {
			panic(err)
		}
		return k
	}
	_, ed, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	keys := map[string]crypto.Signer{"ed": ed}
	for _, id := range []string{"rsa", "rsa2", "rsa3"} {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		keys[id] = must(k, err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	keys["weak"] = must(weak, err)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	keys["ec"] = must(p256, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	keys["ec384"] = must(p384, err)
	return keys
})

func jwkOf(id string, key crypto.PublicKey) map[string]any {
	b64 := base64.RawURLEncoding.EncodeToString
	m := map[string]any{"kid": id, "use": "sig"}
	switch k := key.(type) {
	case *rsa.PublicKey:
		m["kty"], m["n"], m["e"] = "RSA", b64(k.N.Bytes()), b64(big.NewInt(int64(k.E)).Bytes())
	case *ecdsa.PublicKey:
		point, err := k.Bytes() // 4, then x and y (SEC 1, section 2.3.3)
		if err != nil {
			panic(err)
		}
		half := len(point) / 2
		m["kty"], m["crv"] = "EC", k.Curve.Params().Name
		m["x"], m["y"] = b64(point[1:1+half]), b64(point[1+half:])
	case ed25519.PublicKey:
		m["kty"], m["crv"], m["x"] = "OKP", "Ed25519", b64(k)
	}
	return m
}

// provider is an OpenID Connect provider whose keys and answers tests change.
type provider struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []map[string]any
	issuer  string // that the discovery document says; the URL when ""
	jwksURI string // likewise
	down    bool
	answer  func(w http.ResponseWriter, r *http.Request) bool // true when it has answered

	fetches  atomic.Int32 // of keys
	requests atomic.Int32
}

func newProvider(t testing.TB, ids ...string) *provider {
	p := &provider{}
	p.publish(ids...)
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

// publish replaces the keys.
func (p *provider) publish(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = nil
	for _, id := range ids {
		p.keys = append(p.keys, jwkOf(id, testKeys()[id].Public()))
	}
}

func (p *provider) set(change func(p *provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	if p.answer != nil && p.answer(w, r) {
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		d := map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys"}
		if p.issuer != "" {
			d["issuer"] = p.issuer
		}
		if p.jwksURI != "" {
			d["jwks_uri"] = p.jwksURI
		}
		json.NewEncoder(w).Encode(d)
	case "/keys":
		p.fetches.Add(1)
		json.NewEncoder(w).Encode(map[string]any{"keys": p.keys})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

var methodOf = map[string]jwt.SigningMethod{
	"rsa": jwt.SigningMethodRS256, "rsa2": jwt.SigningMethodRS256, "rsa3": jwt.SigningMethodRS256, "weak": jwt.SigningMethodRS256,
	"ec": jwt.SigningMethodES256, "ec384": jwt.SigningMethodES384, "ed": jwt.SigningMethodEdDSA,
}

// claimsAt are claims that are accepted at a time. change has those to
// replace; nil removes one.
func (p *provider) claimsAt(now time.Time, change map[string]any) jwt.MapClaims {
	c := jwt.MapClaims{"iss": p.URL, "aud": "sluice", "sub": "alice", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	maps.Copy(c, change)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func sign(t testing.TB, id string, claims jwt.MapClaims, header map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(methodOf[id], claims)
	token.Header["kid"] = id
	for k, v := range header {
		if token.Header[k] = v; v == nil {
			delete(token.Header, k)
		}
	}
	s, err := token.SignedString(testKeys()[id])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *provider) config() Issuer {
	return Issuer{
		Name: "corp", Kind: IssuerJWT, URL: p.URL, Audiences: []string{"sluice", "sluice-too"}, Algorithms: []string{"RS256", "ES256", "EdDSA"},
		Claims: ClaimMapping{
			Organisation: OrganisationMapping{Fixed: "acme"}, Groups: "/realm_access/roles",
			Attributes: []AttributeMapping{
				{Name: "region", Type: TypeString},
				{Name: "clearance", Claim: "https://corp/clearance", Type: TypeLong},
				{Name: "contractor", Type: TypeBoolean},
				{Name: "projects", Type: TypeSet},
			},
		},
		Grants: []IssuerGrant{
			{Everyone: true, Grant: Grant{"public", AccessRead}},
			{Group: "analysts", Grant: Grant{"sales", AccessRead}},
			{Subject: "etl", Grant: Grant{"sales", AccessWrite}},
		},
	}
}

// withProvider is a service with one issuer.
func withProvider(t testing.TB, p *provider, change func(*Config)) *fixture {
	t.Helper()
	return newFixture(t, func(c *Config) {
		c.Issuers = []Issuer{p.config()}
		c.Limits.TokenFailures = 10_000
		if change != nil {
			change(c)
		}
	})
}

func statusOf(err error) int {
	var refusal *Refusal
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refusal):
		return refusal.Status
	}
	return 0
}

func TestIssuerPrincipal(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa", "ec", "ed")
	f := withProvider(t, p, nil)
	for _, key := range []string{"rsa", "ec", "ed"} {
		token := sign(t, key, p.claimsAt(f.clock.Now(), map[string]any{
			"aud": []string{"other", "sluice-too"}, "realm_access": map[string]any{"roles": []string{"b", "analysts", "b"}},
			"region": "EU", "https://corp/clearance": int64(9007199254740993), "contractor": false, "projects": []string{"y", "x", "y"}, "more": 1,
		}), nil)
		for range 2 {
			got, err := f.withToken(token)
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			want := Principal{
				ID: "corp:alice", Issuer: "corp", Subject: "alice", Kind: KindToken, Organisation: "acme", Groups: []string{"corp:analysts", "corp:b"},
				Attributes: map[string]AttributeValue{
					"region": {Type: TypeString, String: "EU"}, "clearance": {Type: TypeLong, Long: 9007199254740993},
					"contractor": {Type: TypeBoolean}, "projects": {Type: TypeSet, Set: []string{"x", "y"}},
				},
				Grants: []Grant{{"public", AccessRead}, {"sales", AccessRead}},
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Errorf("%s:\ngot  %+v\nwant %+v", key, got, want)
			}
			if got.Access("sales") != AccessRead || got.Access("public") != AccessRead || got.Access("hr") != AccessNone {
				t.Errorf("access is not that of the grants: %+v", got.Grants)
			}
		}
	}
	// Without claims there are no groups and no attributes.
	got, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil))
	if err != nil || got.Groups != nil || got.Attributes != nil || got.Access("sales") != AccessNone {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestIssuerActor(t *testing.T) {
	t.Parallel()
	p, q := newProvider(t, "rsa"), newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) {
		other := q.config()
		other.Name, other.Grants = "other", []IssuerGrant{{Subject: "engine", Grant: Grant{"sales", AccessRead}}}
		c.Issuers = append(c.Issuers, other)
	})
	for name, test := range map[string]struct {
		act    any
		actor  string
		access Access
	}{
		"same issuer":                   {map[string]any{"sub": "etl"}, "corp:etl", AccessWrite},
		"without rights":                {map[string]any{"sub": "engine"}, "corp:engine", AccessNone},
		"another configured issuer":     {map[string]any{"sub": "engine", "iss": q.URL}, "other:engine", AccessRead},
		"an actor before it":            {map[string]any{"sub": "etl", "act": map[string]any{"sub": "x"}}, "corp:etl", AccessWrite},
		"an issuer that is not there":   {map[string]any{"sub": "etl", "iss": "https://evil"}, "", AccessNone},
		"an issuer that is no text":     {map[string]any{"sub": "etl", "iss": 1}, "", AccessNone},
		"no subject":                    {map[string]any{}, "", AccessNone},
		"not an object":                 {"etl", "", AccessNone},
		"a subject that does not print": {map[string]any{"sub": "a\nb"}, "", AccessNone},
	} {
		got, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": "etl", "act": test.act}), nil))
		if (err == nil) != (test.actor != "") || got.Actor != test.actor || got.Access("sales") != test.access {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if err != nil && statusOf(err) != http.StatusUnauthorized {
			t.Errorf("%s: status %d", name, statusOf(err))
		}
	}
}

// TestIssuerRefusedTokens has attacks 70 and 71 and their neighbours.
func TestIssuerRefusedTokens(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa", "ec", "ed", "ec384")
	p.keys = append(p.keys, map[string]any{"kid": "oct", "kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"})
	f := withProvider(t, p, func(c *Config) {
		c.Issuers[0].Claims.Organisation = OrganisationMapping{Claim: "org", Allowed: []string{"acme"}}
		c.Issuers[0].Claims.Attributes = append(c.Issuers[0].Claims.Attributes, AttributeMapping{Name: "must", Type: TypeString, Required: true})
	})
	now := f.clock.Now()
	claims := func(change map[string]any) jwt.MapClaims {
		c := map[string]any{"org": "acme", "must": "be"}
		maps.Copy(c, change)
		return p.claimsAt(now, c)
	}
	text := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	good := sign(t, "rsa", claims(nil), nil)
	if _, err := f.withToken(good); err != nil {
		t.Fatalf("the good token: %v", err)
	}
	public := testKeys()["rsa"].Public().(*rsa.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	hs := func(key []byte) func([]byte) []byte {
		return func(in []byte) []byte { m := hmac.New(sha256.New, key); m.Write(in); return m.Sum(nil) }
	}
	rs := func(in []byte) []byte {
		sum := sha256.Sum256(in)
		s, err := testKeys()["rsa"].Sign(rand.Reader, sum[:], crypto.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	with := func(change map[string]any) string { return sign(t, "rsa", claims(change), nil) }
	head := func(change map[string]any) string { return sign(t, "rsa", claims(nil), change) }
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	pss := jwt.NewWithClaims(jwt.SigningMethodPS256, claims(nil))
	pss.Header["kid"] = "rsa"
	ps256, err := pss.SignedString(testKeys()["rsa"])
	if err != nil {
		t.Fatal(err)
	}
	es384 := jwt.NewWithClaims(jwt.SigningMethodES384, claims(nil))
	es384.Header["kid"] = "ec384"
	p384, err := es384.SignedString(testKeys()["ec384"])
	if err != nil {
		t.Fatal(err)
	}
	signature := good[strings.LastIndexByte(good, '.'):]
	tests := map[string]string{
		"alg none":                      forge(`{"alg":"none","kid":"rsa"}`, text(claims(nil)), func([]byte) []byte { return nil }),
		"alg None":                      forge(`{"alg":"None","kid":"rsa"}`, text(claims(nil)), func([]byte) []byte { return nil }),
		"HS256 with the public key":     forge(`{"alg":"HS256","kid":"rsa"}`, text(claims(nil)), hs(der)),
		"HS256 with the public PEM":     forge(`{"alg":"HS256","kid":"rsa"}`, text(claims(nil)), hs(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))),
		"HS256 with a published secret": forge(`{"alg":"HS256","kid":"oct"}`, text(claims(nil)), hs([]byte("secret-secret-secret-secret"))),
		"PS256, not allowed":            ps256,
		"ES384, not allowed":            p384,
		"ES256 said, key of RSA":        forge(`{"alg":"ES256","kid":"rsa"}`, text(claims(nil)), rs),
		"RS256 said, key of P-256":      forge(`{"alg":"RS256","kid":"ec"}`, text(claims(nil)), rs),
		"EdDSA said, key of RSA":        forge(`{"alg":"EdDSA","kid":"rsa"}`, text(claims(nil)), rs),
		"ES256 said, key of P-384":      forge(`{"alg":"ES256","kid":"ec384"}`, text(claims(nil)), func([]byte) []byte { return make([]byte, 64) }),
		"another key":                   sign(t, "rsa2", claims(nil), map[string]any{"kid": "rsa"}),
		"an unknown key":                sign(t, "rsa2", claims(nil), nil),
		"no kid":                        head(map[string]any{"kid": nil}),
		"empty kid":                     head(map[string]any{"kid": ""}),
		"kid is a path":                 head(map[string]any{"kid": "../../etc/passwd"}),
		"kid is a number":               head(map[string]any{"kid": 1}),
		"kid too long":                  head(map[string]any{"kid": strings.Repeat("k", maxKeyID+1)}),
		"jku":                           head(map[string]any{"jku": p.URL + "/evil"}),
		"x5u":                           head(map[string]any{"x5u": p.URL + "/evil"}),
		"jwk":                           head(map[string]any{"jwk": jwkOf("rsa", public)}),
		"crit":                          head(map[string]any{"crit": []string{"x"}}),
		"b64":                           head(map[string]any{"b64": false}),
		"expired":                       with(map[string]any{"exp": at(-31 * time.Second)}),
		"no expiry":                     with(map[string]any{"exp": nil}),
		"expiry is text":                with(map[string]any{"exp": fmt.Sprint(at(time.Hour))}),
		"expiry beyond numbers":         with(map[string]any{"exp": json.Number("1e400")}),
		"expiry is negative":            with(map[string]any{"exp": -1}),
		"not yet valid":                 with(map[string]any{"nbf": at(31 * time.Second)}),
		"issued in the future":          with(map[string]any{"iat": at(31 * time.Second)}),
		"wrong audience":                with(map[string]any{"aud": "other"}),
		"no audience":                   with(map[string]any{"aud": nil}),
		"empty audience":                with(map[string]any{"aud": []string{}}),
		"audience of another type":      with(map[string]any{"aud": 1}),
		"wrong issuer":                  with(map[string]any{"iss": "https://evil.example"}),
		"issuer with a slash":           with(map[string]any{"iss": p.URL + "/"}),
		"issuer in capitals":            with(map[string]any{"iss": strings.ToUpper(p.URL)}),
		"no issuer":                     with(map[string]any{"iss": nil}),
		"issuer is a list":              with(map[string]any{"iss": []string{p.URL}}),
		"no subject":                    with(map[string]any{"sub": nil}),
		"empty subject":                 with(map[string]any{"sub": ""}),
		"subject is a number":           with(map[string]any{"sub": 1}),
		"subject with a line's end":     with(map[string]any{"sub": "a\nb"}),
		"subject with hidden text":      with(map[string]any{"sub": "alice\u200b"}),
		"subject too long":              with(map[string]any{"sub": strings.Repeat("a", maxNameBytes+1)}),
		"organisation of another":       with(map[string]any{"org": "globex"}),
		"no organisation":               with(map[string]any{"org": nil}),
		"group is a number":             with(map[string]any{"realm_access": map[string]any{"roles": []any{1}}}),
		"attribute of another type":     with(map[string]any{"https://corp/clearance": "5"}),
		"attribute with a fraction":     with(map[string]any{"https://corp/clearance": 5.5}),
		"boolean as text":               with(map[string]any{"contractor": "true"}),
		"set with a number":             with(map[string]any{"projects": []any{"a", 1}}),
		"required attribute missing":    with(map[string]any{"must": nil}),
		"bound to a key (DPoP)":         with(map[string]any{"cnf": map[string]any{"jkt": "x"}}),
		"bound to something":            with(map[string]any{"cnf": "x"}),
		"a claim twice":                 forge(`{"alg":"RS256","kid":"rsa"}`, strings.Replace(text(claims(nil)), `{`, `{"sub":"root",`, 1), rs),
		"not an object":                 forge(`{"alg":"RS256","kid":"rsa"}`, `[]`, rs),
		"claims in capitals":            forge(`{"alg":"RS256","kid":"rsa"}`, strings.Replace(text(claims(nil)), `"iss"`, `"ISS"`, 1), rs),
		"payload changed":               sign(t, "rsa2", claims(map[string]any{"sub": "root"}), map[string]any{"kid": "rsa"})[:len(good)-len(signature)] + signature,
		"signature missing":             strings.TrimSuffix(good, signature) + ".",
		"signature cut":                 good[:len(good)-8],
		"oversize":                      with(map[string]any{"pad": strings.Repeat("x", MaxTokenBytes)}),
		"four parts":                    good + ".x",
		"opaque, nobody to ask":         "opaque-token-0123456789",
	}
	f.Observe(t)
	before := p.requests.Load()
	evil := newProvider(t, "rsa2")
	tests["attacker's issuer"] = sign(t, "rsa2", evil.claimsAt(now, nil), map[string]any{"jku": evil.URL + "/keys"})
	for name, token := range tests {
		got, err := f.withToken(token)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Status != http.StatusUnauthorized || got.ID != "" {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		if refusal.Message != "Not authorized: the token is not valid or has expired" || !strings.HasPrefix(refusal.Challenge, "Bearer ") {
			t.Errorf("%s: the answer tells why: %s, %s", name, refusal.Message, refusal.Challenge)
		}
		if parts := strings.Split(token, "."); len(parts) > 1 && strings.Contains(err.Error(), parts[1]) {
			t.Errorf("%s: the error quotes the token", name)
		}
	}
	if n := evil.requests.Load(); n != 0 {
		t.Errorf("%d requests to the attacker's issuer", n)
	}
	if n := p.requests.Load() - before; n > 2 {
		t.Errorf("%d requests for forged tokens", n)
	}
	// Within the allowance for clocks.
	for name, token := range map[string]string{
		"just expired": with(map[string]any{"exp": at(-29 * time.Second)}), "almost issued": with(map[string]any{"iat": at(29 * time.Second)}),
		"almost valid": with(map[string]any{"nbf": at(29 * time.Second)}),
	} {
		if _, err := f.withToken(token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Observe does nothing but hold the log against secrets at the end.
func (f *fixture) Observe(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if strings.Contains(f.logs.String(), "eyJ") {
			t.Error("the log holds a token")
		}
	})
}

func TestIdsDoNotCollide(t *testing.T) {
	t.Parallel()
	p, q := newProvider(t, "rsa"), newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) {
		other := q.config()
		other.Name = "corp-b"
		c.Issuers = append(c.Issuers, other)
	})
	ids := map[string]string{}
	for what, token := range map[string]string{
		"account":                          f.issueFor(t, nil),
		"issuer":                           sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil),
		"other issuer":                     sign(t, "rsa", q.claimsAt(f.clock.Now(), nil), nil),
		"subject like an id":               sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": "account:alice"}), nil),
		"subject with a name":              sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": "b:alice"}), nil),
		"subject of other's id":            sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": "corp-b:alice"}), nil),
		"subject in other case":            sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": "Alice"}), nil),
		"subject with a decomposed letter": sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": "alicé"}), nil),
	} {
		got, err := f.withToken(token)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if other, ok := ids[got.ID]; ok {
			t.Errorf("%s and %s are both %s", what, other, got.ID)
		}
		ids[got.ID] = what
	}
	for _, name := range append([]string{"", "A", "a:b", "a_b", "a b", strings.Repeat("a", 64)}, reservedNames...) {
		if CheckIssuerName(name) == nil {
			t.Errorf("an issuer may be called %q", name)
		}
	}
}

func TestForgedKeyIdsCauseOneFetch(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, nil)
	if _, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)); err != nil {
		t.Fatal(err)
	}
	f.clock.Add(time.Hour - time.Minute)
	before := p.fetches.Load()
	var wg sync.WaitGroup
	for n := range 300 {
		token := sign(t, "ed", p.claimsAt(f.clock.Now(), nil), map[string]any{"kid": fmt.Sprintf("forged-%d", n)})
		wg.Go(func() {
			if _, err := f.withToken(token); statusOf(err) != http.StatusUnauthorized {
				t.Errorf("a forged key id: %v", err)
			}
		})
	}
	wg.Wait()
	if n := p.fetches.Load() - before; n > 1 {
		t.Errorf("300 forged key ids caused %d fetches", n)
	}
	// The timer does not make room for more of them.
	keys := f.issuers[0].verifier.(*jwtVerifier).keys
	for range 3 {
		f.clock.Add(5 * time.Second)
		if err := keys.update(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := f.withToken(sign(t, "ed", p.claimsAt(f.clock.Now(), nil), map[string]any{"kid": "forged-again"})); statusOf(err) != http.StatusUnauthorized {
			t.Errorf("a forged key id: %v", err)
		}
	}
	if n := p.fetches.Load() - before; n != 4 {
		t.Errorf("%d fetches, want one for a forged id and three by the timer", n)
	}
}

func TestIssuerKeyRotation(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, nil)
	old := sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)
	if _, err := f.withToken(old); err != nil {
		t.Fatal(err)
	}
	// A new key is accepted at its first use, by all who come with it at once,
	// even when the keys were fetched a moment ago.
	keys := f.issuers[0].verifier.(*jwtVerifier).keys
	if err := keys.update(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.publish("rsa", "rsa2")
	before := p.fetches.Load()
	fresh := sign(t, "rsa2", p.claimsAt(f.clock.Now(), nil), nil)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := f.withToken(fresh); err != nil {
				t.Errorf("the first use of a new key: %v", err)
			}
		})
	}
	wg.Wait()
	if n := p.fetches.Load() - before; n != 1 {
		t.Errorf("%d fetches for one new key", n)
	}
	// A removed key is used no more once the keys were fetched, by tokens that
	// were verified with it neither.
	p.publish("rsa2")
	if _, err := f.withToken(old); err != nil {
		t.Fatalf("before the keys are fetched again: %v", err)
	}
	f.clock.Add(time.Minute)
	if err := keys.update(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := f.withToken(old); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a cached token of a removed key: %v", err)
	}
	if _, err := f.withToken(fresh); err != nil {
		t.Errorf("a token of the key that stays: %v", err)
	}
	// A key that keeps its id and changes is a removed one, too.
	p.set(func(p *provider) { p.keys = []map[string]any{jwkOf("rsa2", testKeys()["rsa3"].Public())} })
	f.clock.Add(time.Minute)
	if err := keys.update(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := f.withToken(fresh); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a cached token of a replaced key: %v", err)
	}
}

// TestKeysAreRefreshed is the timer, on a real clock.
func TestKeysAreRefreshed(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) {
		c.Issuers[0].Refresh = 20 * time.Millisecond
		c.Now = time.Now
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { f.Run(ctx); close(ended) }()
	token := sign(t, "rsa", p.claimsAt(time.Now(), nil), nil)
	if _, err := f.withToken(token); err != nil {
		t.Fatal(err)
	}
	p.publish("rsa2")
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := f.withToken(token); statusOf(err) == http.StatusUnauthorized {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a removed key is still used after 10 s, with a refresh every 20 ms")
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	<-ended
}

func TestIssuerUnreachable(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	p.set(func(p *provider) { p.down = true })
	var outcomes sync.Map
	f := withProvider(t, p, func(c *Config) {
		c.Issuers[0].MaxStale = 30 * time.Minute
		c.ObserveIssuer = func(issuer, outcome string) {
			n, _ := outcomes.LoadOrStore(issuer+" "+outcome, new(atomic.Int32))
			n.(*atomic.Int32).Add(1)
		}
		c.Limits.TokenFailures = 3
	})
	token := sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)
	for range 10 {
		_, err := f.withToken(token)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Status != http.StatusServiceUnavailable || refusal.RetryAfter <= 0 || refusal.Challenge != "" {
			t.Fatalf("without keys: %v", err)
		}
	}
	if n := p.requests.Load(); n != 1 {
		t.Errorf("ten tokens without keys caused %d requests", n)
	}
	if _, ok := outcomes.Load("corp error"); !ok {
		t.Error("the failed fetch is not counted")
	}
	if !strings.Contains(f.logs.String(), "keys of an issuer cannot be fetched") {
		t.Error("the failed fetch is not logged")
	}
	// Our own tokens are no concern of the issuer.
	if _, err := f.withToken(f.issueFor(t, nil)); err != nil {
		t.Errorf("an account while an issuer is away: %v", err)
	}
	p.set(func(p *provider) { p.down = false })
	f.clock.Add(firstKeysEvery)
	if _, err := f.withToken(token); err != nil {
		t.Fatalf("once the issuer is back: %v", err)
	}
	// Away again: the keys are used for as long as they may.
	p.set(func(p *provider) { p.down = true })
	f.clock.Add(29 * time.Minute)
	if _, err := f.withToken(token); err != nil {
		t.Errorf("with keys that are not too old: %v", err)
	}
	if _, err := f.withToken(sign(t, "rsa2", p.claimsAt(f.clock.Now(), nil), nil)); statusOf(err) != http.StatusServiceUnavailable {
		t.Errorf("an unknown key while the issuer is away: %v", err)
	}
	f.clock.Add(2 * time.Minute)
	if _, err := f.withToken(token); statusOf(err) != http.StatusServiceUnavailable {
		t.Errorf("with keys that are too old: %v", err)
	}
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	elsewhere := newProvider(t, "rsa")
	for name, test := range map[string]struct {
		change func(p *provider)
		want   string
	}{
		"another issuer":            {func(p *provider) { p.issuer = p.URL + "/" }, "is that of another issuer"},
		"keys by http":              {func(p *provider) { p.jwksURI = "http://id.example.com/keys" }, "must be an https URL"},
		"keys by file":              {func(p *provider) { p.jwksURI = "file:///etc/passwd" }, "not a URL"},
		"keys with a password":      {func(p *provider) { p.jwksURI = "https://u:p@id.example.com/keys" }, "no user or password"},
		"link-local keys":           {func(p *provider) { p.jwksURI = "https://169.254.169.254/latest" }, "link-local"},
		"not JSON":                  {func(p *provider) { p.answer = respond(200, "<html>") }, "not JSON"},
		"too large":                 {func(p *provider) { p.answer = respond(200, strings.Repeat(" ", maxAnswerBytes+1)) }, "larger than"},
		"an error":                  {func(p *provider) { p.answer = respond(500, "") }, "answers 500"},
		"redirect elsewhere":        {func(p *provider) { p.answer = redirect(elsewhere.URL + "/.well-known/openid-configuration") }, "redirect to another host"},
		"redirect for ever":         {func(p *provider) { p.answer = redirect("/again") }, "redirect is not followed"},
		"no keys":                   {func(p *provider) { p.keys = nil }, "no key that can check a signature"},
		"a weak key only":           {func(p *provider) { p.keys = []map[string]any{jwkOf("weak", testKeys()["weak"].Public())} }, "no key that can check a signature"},
		"a secret only":             {func(p *provider) { p.keys = []map[string]any{{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}} }, "no key that can check a signature"},
		"a key without an id":       {func(p *provider) { delete(p.keys[0], "kid") }, "no key that can check a signature"},
		"a key for encryption only": {func(p *provider) { p.keys[0]["use"] = "enc" }, "no key that can check a signature"},
		"more keys than are read":   {func(p *provider) { p.keys = slices.Repeat(p.keys, maxKeys+1) }, "at most"},
	} {
		p := newProvider(t, "rsa")
		p.set(test.change)
		f := withProvider(t, p, nil)
		if _, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)); statusOf(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		f.Probe(t.Context(), func(issuer string, err error) {
			if err == nil {
				t.Errorf("%s: a probe finds nothing", name)
			}
		})
	}
	if n := elsewhere.requests.Load(); n != 0 {
		t.Errorf("a redirect to another host was followed %d times", n)
	}
	// A document of an issuer elsewhere cannot make us ask this machine.
	d := &discovery{web: &web{}, issuer: "https://id.example.com"}
	d.web.client = &http.Client{Transport: answering(`{"issuer":"https://id.example.com","jwks_uri":"http://127.0.0.1:1/keys"}`)}
	if uri, err := d.discover(t.Context()); err == nil || !strings.Contains(err.Error(), "on this machine") {
		t.Errorf("got %s, %v", uri, err)
	}
	// A redirect within the host is followed, and keys that are of no use are
	// left out.
	p := newProvider(t, "weak", "rsa")
	moved := false
	p.set(func(p *provider) {
		p.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/keys" && !moved {
				moved = true
				http.Redirect(w, r, p.URL+"/keys?moved", http.StatusFound)
				return true
			}
			return false
		}
	})
	f := withProvider(t, p, nil)
	if _, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)); err != nil || !moved {
		t.Errorf("after a redirect within the host: %v", err)
	}
	if _, err := f.withToken(sign(t, "weak", p.claimsAt(f.clock.Now(), nil), nil)); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a token of a weak key: %v", err)
	}
}

type answering string

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.WriteString(string(a))
	return w.Result(), nil
}

func respond(status int, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(status)
		w.Write([]byte(body))
		return true
	}
}

func redirect(to string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, to, http.StatusFound)
		return true
	}
}

func TestExplicitKeys(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) { c.Issuers[0].URL, c.Issuers[0].JWKSURI = "https://id.example.com", p.URL+"/keys" })
	if _, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"iss": "https://id.example.com"}), nil)); err != nil {
		t.Error(err)
	}
	if n := p.requests.Load(); n != 1 {
		t.Errorf("%d requests, want one for the keys", n)
	}
}

func TestIssuerCA(t *testing.T) {
	t.Parallel()
	p := &provider{}
	p.publish("rsa")
	p.Server = httptest.NewTLSServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]int{"": http.StatusServiceUnavailable, ca: http.StatusOK} {
		f := withProvider(t, p, func(c *Config) { c.Issuers[0].CAFile = file })
		if _, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)); statusOf(err) != want {
			t.Errorf("authorities of %q: %v", file, err)
		}
	}
}

func TestInvalidIssuerTokensAreThrottled(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) { c.Limits.TokenFailures = 5 })
	good := sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)
	codes := map[int]int{}
	for n := range 20 {
		_, err := f.withToken(sign(t, "rsa2", p.claimsAt(f.clock.Now(), map[string]any{"n": n}), map[string]any{"kid": "rsa"}))
		codes[statusOf(err)]++
	}
	if codes[http.StatusUnauthorized] != 5 || codes[http.StatusTooManyRequests] != 15 {
		t.Errorf("twenty invalid tokens: %v", codes)
	}
	if _, err := f.withToken(good); err != nil {
		t.Errorf("a valid token of the same address: %v", err)
	}
}

func TestEmailAsSubject(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) { c.Issuers[0].Claims.Subject = "email" })
	for _, test := range []struct {
		verified any
		ok       bool
	}{{true, true}, {false, false}, {"true", false}, {nil, false}} {
		got, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"email": "a@example.com", "email_verified": test.verified}), nil))
		if (err == nil) != test.ok || test.ok && got.ID != "corp:a@example.com" {
			t.Errorf("email_verified %v: %+v, %v", test.verified, got, err)
		}
	}
}

func TestDistributedGroupsAreRefused(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) { c.Issuers[0].Claims.Groups = "groups" })
	if _, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"_claim_names": map[string]any{"groups": "src1"}}), nil)); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("groups that are elsewhere: %v", err)
	}
}

func TestIssuersAreChecked(t *testing.T) {
	t.Parallel()
	fine := func() Issuer { return (&provider{Server: &httptest.Server{URL: "https://id.example.com"}}).config() }
	key, _ := GenerateSigningKey()
	for name, change := range map[string]func(c *Config){
		"name":                    func(c *Config) { c.Issuers[0].Name = "Corp" },
		"reserved name":           func(c *Config) { c.Issuers[0].Name = "account" },
		"kind":                    func(c *Config) { c.Issuers[0].Kind = "saml" },
		"no iss":                  func(c *Config) { c.Issuers[0].URL = "" },
		"iss by http":             func(c *Config) { c.Issuers[0].URL = "http://id.example.com" },
		"iss with a query":        func(c *Config) { c.Issuers[0].URL = "https://id.example.com?x" },
		"no audience":             func(c *Config) { c.Issuers[0].Audiences = nil },
		"an empty audience":       func(c *Config) { c.Issuers[0].Audiences = []string{"a", ""} },
		"HS256":                   func(c *Config) { c.Issuers[0].Algorithms = []string{"HS256"} },
		"none":                    func(c *Config) { c.Issuers[0].Algorithms = []string{"none"} },
		"keys by http":            func(c *Config) { c.Issuers[0].JWKSURI = "http://id.example.com/keys" },
		"no organisation":         func(c *Config) { c.Issuers[0].Claims.Organisation = OrganisationMapping{} },
		"any organisation":        func(c *Config) { c.Issuers[0].Claims.Organisation = OrganisationMapping{Claim: "org"} },
		"two organisations":       func(c *Config) { c.Issuers[0].Claims.Organisation.Claim = "org" },
		"an attribute's name":     func(c *Config) { c.Issuers[0].Claims.Attributes[0].Name = "a-b" },
		"an attribute's type":     func(c *Config) { c.Issuers[0].Claims.Attributes[0].Type = "float" },
		"an attribute twice":      func(c *Config) { c.Issuers[0].Claims.Attributes[0].Name = "projects" },
		"a pointer":               func(c *Config) { c.Issuers[0].Claims.Groups = "/a~2" },
		"a grant to nobody":       func(c *Config) { c.Issuers[0].Grants[0].Everyone = false },
		"a grant to two":          func(c *Config) { c.Issuers[0].Grants[0].Subject = "a" },
		"a group without a claim": func(c *Config) { c.Issuers[0].Claims.Groups = "" },
		"another kind's section":  func(c *Config) { c.Issuers[0].MTLS = &MTLS{CAFile: "x"} },
		"an authority's file":     func(c *Config) { c.Issuers[0].CAFile = "/none/such" },
		"two of a name":           func(c *Config) { c.Issuers = append(c.Issuers, fine()); c.Issuers[1].URL += "/b" },
		"two of an iss":           func(c *Config) { c.Issuers = append(c.Issuers, fine()); c.Issuers[1].Name = "b" },
		"our own iss":             func(c *Config) { c.Issuer = c.Issuers[0].URL },
		"one attribute, two types": func(c *Config) {
			c.Issuers = append(c.Issuers, fine())
			c.Issuers[1].Name = "b"
			c.Issuers[1].URL += "/b"
			c.Issuers[1].Claims.Attributes[0].Type = TypeSet
		},
	} {
		c := Config{SigningKey: key, Issuers: []Issuer{fine()}}
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := New(Config{Issuers: []Issuer{fine()}}); err != nil {
		t.Errorf("an issuer without tokens of our own: %v", err)
	}
}

// FuzzIssuerOf looks at tokens of strangers: nothing is verified but what has
// the exact iss.
func FuzzIssuerOf(f *testing.F) {
	p := newProvider(f, "rsa")
	fix := withProvider(f, p, nil)
	f.Add(sign(f, "rsa", p.claimsAt(fix.clock.Now(), nil), nil))
	f.Add("eyJhbGciOiJub25lIn0.eyJpc3MiOiJ4In0.")
	f.Fuzz(func(t *testing.T, token string) {
		i, own, err := fix.issuerOf(token)
		if err == nil && !own && i == nil || err != nil && (own || i != nil) {
			t.Errorf("%v, %v, %v", i, own, err)
		}
		if claims, ok := payload(token); i != nil && (!ok || claims["iss"] != p.URL) {
			t.Errorf("%q goes to an issuer that it does not name", token)
		}
	})
}

func BenchmarkVerifyCached(b *testing.B) {
	p := newProvider(b, "rsa")
	f := withProvider(b, p, nil)
	token := sign(b, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"realm_access": map[string]any{"roles": []string{"analysts", "b", "c"}}, "region": "EU"}), nil)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if _, err := f.Authenticate(r); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Authenticate(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerifyRS256(b *testing.B) { benchmarkVerify(b, "rsa") }

func BenchmarkVerifyES256(b *testing.B) { benchmarkVerify(b, "ec") }

// benchmarkVerify is what a token costs that was not seen before.
func benchmarkVerify(b *testing.B, key string) {
	p := newProvider(b, key)
	f := withProvider(b, p, nil)
	token := sign(b, key, p.claimsAt(f.clock.Now(), nil), nil)
	ctx := b.Context()
	if _, err := f.verify(ctx, token, f.issuers[0]); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.verify(ctx, token, f.issuers[0]); err != nil {
			b.Fatal(err)
		}
	}
}
