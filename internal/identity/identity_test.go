// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

const (
	aliceSecret  = "alice-secret-0123456789"
	aliceSecret2 = "alice-second+secret%2Fabc"
	engineSecret = "engine-secret-0123456789"
	staticToken  = "static-development-token"
)

// cheapHash keeps tests quick: the least that ParseHash accepts.
func cheapHash(t testing.TB, s string) Hash {
	t.Helper()
	h := Hash{memory: minHashMemory, time: 1, threads: 1, salt: []byte("saltsaltsaltsalt")}
	h.key = h.derive(s, keyBytes)
	parsed, err := ParseHash(h.PHC())
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

type fixture struct {
	*Service
	clock *clock
	logs  *bytes.Buffer
	key   SigningKey
}

func newFixture(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	key, _ := GenerateSigningKey()
	f := &fixture{clock: &clock{now: time.Unix(1_800_000_000, 0)}, logs: &bytes.Buffer{}, key: key}
	cfg := Config{
		Accounts: []Account{
			{
				ClientID: "alice", Secrets: []Hash{cheapHash(t, aliceSecret), cheapHash(t, aliceSecret2)},
				Grants: []Grant{{"sales", AccessWrite}, {"hr", AccessRead}},
			},
			{
				ClientID: "engine", Secrets: []Hash{cheapHash(t, engineSecret)},
				Grants: []Grant{{"sales", AccessRead}, {"ops", AccessWrite}}, ActFor: []string{"alice"},
			},
			{ClientID: "nobody", Grants: nil},
		},
		SigningKey:   key,
		StaticTokens: []StaticToken{{Token: secret.New(staticToken), ClientID: "alice"}},
		Logger:       slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Now:          f.clock.Now,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Service = s
	return f
}

func (f *fixture) withToken(token string) (Principal, error) {
	r := httptest.NewRequest(http.MethodGet, "/v1/config", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return f.Authenticate(r)
}

// issueFor signs claims as the service would.
func (f *fixture) issueFor(t testing.TB, change func(*claims)) string {
	t.Helper()
	now := f.clock.Now().Unix()
	c := claims{Subject: "alice", Scope: "catalog", IssuedAt: now, Expires: now + 3600}
	if change != nil {
		change(&c)
	}
	token, err := f.tokens.sign(c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// forge signs any header and payload with sign.
func forge(header, payload string, sign func(input []byte) []byte) string {
	input := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return input + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(input)))
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	good := f.issueFor(t, nil)
	for range 2 { // verified, then from the cache
		p, err := f.withToken(good)
		if err != nil {
			t.Fatal(err)
		}
		if p.ID != "account:alice" || p.Subject != "alice" || p.Kind != KindService || p.Actor != "" {
			t.Errorf("principal is %+v", p)
		}
		for warehouse, want := range map[string]Access{"sales": AccessWrite, "hr": AccessRead, "ops": AccessNone, "": AccessNone, "*": AccessNone} {
			if got := p.Access(warehouse); got != want {
				t.Errorf("access to %q is %s, want %s", warehouse, got, want)
			}
		}
	}
	if p, err := f.withToken(staticToken); err != nil || p.ID != "account:alice" {
		t.Errorf("static token: %+v, %v", p, err)
	}
	if p, err := f.withToken(f.issueFor(t, func(c *claims) { c.Scope = "sign" })); err != nil || p.Access("sales") != AccessNone {
		t.Errorf("a token for the signer alone reaches the catalog: %+v, %v", p, err)
	}
	f.clock.Add(time.Hour + Skew - time.Second)
	if _, err := f.withToken(good); err != nil {
		t.Errorf("within the clock skew: %v", err)
	}
	f.clock.Add(2 * time.Second)
	if _, err := f.withToken(good); err == nil {
		t.Error("a cached token outlives its expiry")
	}
	if (Principal{}).Access("sales") != AccessNone || (Principal{Grants: []Grant{{AnyWarehouse, AccessRead}}}).Access("x") != AccessRead {
		t.Error("the zero principal has access, or * is not every warehouse")
	}
}

// TestRefusedTokens has attacks 70 to 72 and their neighbours.
func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.TokenFailures = 1000 })
	now := f.clock.Now().Unix()
	kid := f.key.Public().ID()
	header := fmt.Sprintf(`{"alg":"EdDSA","typ":"at+jwt","kid":%q}`, kid)
	payload := func(change string) string {
		m := map[string]any{"iss": "sluice", "aud": "sluice", "sub": "alice", "exp": now + 60, "iat": now, "scope": "catalog", "jti": "x"}
		if change != "" {
			var c map[string]any
			if err := json.Unmarshal([]byte(change), &c); err != nil {
				t.Fatal(err)
			}
			for k, v := range c {
				if m[k] = v; v == nil {
					delete(m, k)
				}
			}
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	ed := func(input []byte) []byte { return ed25519.Sign(f.key.private, input) }
	otherKey, _ := GenerateSigningKey()
	public := []byte(f.key.Public().public)
	publicDER, err := x509.MarshalPKIXPublicKey(f.key.Public().public)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER})
	hs256 := func(key []byte) func([]byte) []byte {
		return func(input []byte) []byte {
			m := hmac.New(sha256.New, key)
			m.Write(input)
			return m.Sum(nil)
		}
	}
	none := func([]byte) []byte { return nil }
	if _, err := f.withToken(forge(header, payload(""), ed)); err != nil {
		t.Fatalf("the forge does not make good tokens: %v", err)
	}
	withHeader := func(extra string) string {
		return fmt.Sprintf(`{"alg":"EdDSA","kid":%q,%s}`, kid, extra)
	}
	good := forge(header, payload(""), ed)
	tests := map[string]string{
		"alg none":                      forge(`{"alg":"none","typ":"JWT"}`, payload(""), none),
		"alg none with kid":             forge(fmt.Sprintf(`{"alg":"none","kid":%q}`, kid), payload(""), none),
		"alg None in capitals":          forge(fmt.Sprintf(`{"alg":"NONE","kid":%q}`, kid), payload(""), none),
		"alg empty":                     forge(fmt.Sprintf(`{"alg":"","kid":%q}`, kid), payload(""), ed),
		"alg missing":                   forge(fmt.Sprintf(`{"kid":%q}`, kid), payload(""), ed),
		"HS256 with the public key":     forge(fmt.Sprintf(`{"alg":"HS256","kid":%q}`, kid), payload(""), hs256(public)),
		"HS256 with the public key PEM": forge(fmt.Sprintf(`{"alg":"HS256","kid":%q}`, kid), payload(""), hs256(publicPEM)),
		"RS256 said, Ed25519 signed":    forge(fmt.Sprintf(`{"alg":"RS256","kid":%q}`, kid), payload(""), ed),
		"another key, our kid":          forge(header, payload(""), func(in []byte) []byte { return ed25519.Sign(otherKey.private, in) }),
		"another key, its kid":          forge(fmt.Sprintf(`{"alg":"EdDSA","kid":%q}`, otherKey.Public().ID()), payload(""), func(in []byte) []byte { return ed25519.Sign(otherKey.private, in) }),
		"no kid":                        forge(`{"alg":"EdDSA"}`, payload(""), ed),
		"empty kid":                     forge(`{"alg":"EdDSA","kid":""}`, payload(""), ed),
		"kid is a path":                 forge(`{"alg":"EdDSA","kid":"../../etc/passwd"}`, payload(""), ed),
		"kid is a number":               forge(`{"alg":"EdDSA","kid":1}`, payload(""), ed),
		"jku":                           forge(withHeader(`"jku":"http://127.0.0.1:1/keys"`), payload(""), ed),
		"x5u":                           forge(withHeader(`"x5u":"http://127.0.0.1:1/keys"`), payload(""), ed),
		"jwk":                           forge(withHeader(`"jwk":{"kty":"OKP","crv":"Ed25519","x":"AA"}`), payload(""), ed),
		"crit":                          forge(withHeader(`"crit":["b64"],"b64":false`), payload(""), ed),
		"wrong issuer":                  forge(header, payload(`{"iss":"evil"}`), ed),
		"issuer with a slash":           forge(header, payload(`{"iss":"sluice/"}`), ed),
		"no issuer":                     forge(header, payload(`{"iss":null}`), ed),
		"wrong audience":                forge(header, payload(`{"aud":"other"}`), ed),
		"no audience":                   forge(header, payload(`{"aud":null}`), ed),
		"a list of audiences":           forge(header, payload(`{"aud":["sluice","other"]}`), ed),
		"no expiry":                     forge(header, payload(`{"exp":null}`), ed),
		"expiry zero":                   forge(header, payload(`{"exp":0}`), ed),
		"expiry as text":                forge(header, payload(fmt.Sprintf(`{"exp":"%d"}`, now+60)), ed),
		"expired":                       forge(header, payload(fmt.Sprintf(`{"exp":%d}`, now-31)), ed),
		"issued in the future":          forge(header, payload(fmt.Sprintf(`{"iat":%d}`, now+31)), ed),
		"no issue time":                 forge(header, payload(`{"iat":null}`), ed),
		"no subject":                    forge(header, payload(`{"sub":null}`), ed),
		"unknown subject":               forge(header, payload(`{"sub":"mallory"}`), ed),
		"unknown scope":                 forge(header, payload(`{"scope":"root"}`), ed),
		"actor without right":           forge(header, payload(`{"act":{"sub":"nobody"}}`), ed),
		"actor that does not exist":     forge(header, payload(`{"act":{"sub":"mallory"}}`), ed),
		"payload changed":               good[:len(good)/2] + "A" + good[len(good)/2+1:],
		"signature cut":                 good[:len(good)-4],
		"signature missing":             good[:strings.LastIndexByte(good, '.')+1],
		"two parts":                     good[:strings.LastIndexByte(good, '.')],
		"four parts":                    good + ".x",
		"oversize":                      forge(header, payload(`{"jti":"`+strings.Repeat("x", maxTokenBytes)+`"}`), ed),
		"garbage":                       "garbage",
		"None":                          "None",
		"static token, cut":             staticToken[:len(staticToken)-1],
		"payload is not an object":      forge(header, `[]`, ed),
		"payload with trailing data":    forge(header, payload("")+"{}", ed),
	}
	for name, token := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 {
				p, err := f.withToken(token)
				var refusal *Refusal
				if !errors.As(err, &refusal) || refusal.Status != http.StatusUnauthorized || !strings.HasPrefix(refusal.Challenge, "Bearer ") {
					t.Fatalf("got %+v, %v", p, err)
				}
				if p.ID != "" || p.Access("sales") != AccessNone {
					t.Errorf("a refused token has a principal: %+v", p)
				}
				if len(token) > 20 && strings.Contains(err.Error(), token[:20]) {
					t.Errorf("the error quotes the token: %v", err)
				}
			}
		})
	}
}

func TestAuthorizationHeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	good := f.issueFor(t, nil)
	for name, test := range map[string]struct {
		values []string
		ok     bool
	}{
		"none":             {nil, false},
		"empty":            {[]string{""}, false},
		"scheme only":      {[]string{"Bearer"}, false},
		"scheme and space": {[]string{"Bearer "}, false},
		"lower case":       {[]string{"bearer " + good}, true},
		"two spaces":       {[]string{"Bearer  " + good}, true},
		"basic":            {[]string{"Basic " + good}, false},
		"two headers":      {[]string{"Bearer " + good, "Bearer " + good}, false},
		"token alone":      {[]string{good}, false},
		"trailing text":    {[]string{"Bearer " + good + " x"}, false},
		"comma list":       {[]string{"Bearer " + good + ", Bearer " + good}, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/?access_token="+good, strings.NewReader("access_token="+good))
		r.Header["Authorization"] = test.values
		if _, err := f.Authenticate(r); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInvalidTokensAreThrottledByAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.TokenFailures = 5 })
	from := func(address, token string) int {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = address
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := f.Authenticate(r)
		var refusal *Refusal
		if errors.As(err, &refusal) {
			if (refusal.Status == http.StatusTooManyRequests) != (refusal.RetryAfter > 0) {
				t.Errorf("status %d with RetryAfter %s", refusal.Status, refusal.RetryAfter)
			}
			return refusal.Status
		}
		return http.StatusOK
	}
	for i := range 5 {
		if got := from("192.0.2.1:1", "x"); got != http.StatusUnauthorized {
			t.Fatalf("attempt %d: %d", i, got)
		}
	}
	good := f.issueFor(t, nil)
	for _, step := range []struct {
		address, token string
		want           int
	}{
		{"192.0.2.1:2", "x", http.StatusTooManyRequests},
		{"192.0.2.1:2", good, http.StatusOK},
		{"192.0.2.2:2", "x", http.StatusUnauthorized},
		{"[2001:db8::1]:2", "x", http.StatusUnauthorized},
	} {
		if got := from(step.address, step.token); got != step.want {
			t.Errorf("%s: %d, want %d", step.address, got, step.want)
		}
	}
	f.clock.Add(time.Minute)
	if got := from("192.0.2.1:3", "x"); got != http.StatusUnauthorized {
		t.Errorf("after the window: %d", got)
	}
}

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	old := newFixture(t, nil)
	token := old.issueFor(t, nil)
	rotated := newFixture(t, func(c *Config) { c.PreviousKeys = []VerifyKey{old.key.Public()} })
	if _, err := rotated.withToken(token); err != nil {
		t.Errorf("a token of the previous key: %v", err)
	}
	without := newFixture(t, nil)
	if _, err := without.withToken(token); err == nil {
		t.Error("a token of a key that is gone is accepted")
	}
}

func TestSigningKeyForms(t *testing.T) {
	t.Parallel()
	key, text := GenerateSigningKey()
	der, err := x509.MarshalPKCS8PrivateKey(crypto.PrivateKey(key.private))
	if err != nil {
		t.Fatal(err)
	}
	publicDER, err := x509.MarshalPKIXPublicKey(key.Public().public)
	if err != nil {
		t.Fatal(err)
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER})
	for _, s := range []string{text.Reveal(), text.Reveal() + "\n", string(private)} {
		got, err := ParseSigningKey(secret.New(s))
		if err != nil || got.Public().ID() != key.Public().ID() {
			t.Errorf("%v, %v", got, err)
		}
	}
	if got, err := ParseVerifyKey(secret.New(string(public))); err != nil || got.ID() != key.Public().ID() {
		t.Errorf("public key: %v", err)
	}
	for _, bad := range []string{"", "x", "AAAA", string(public), strings.Replace(string(private), "MC4", "MC5", 1)} {
		if _, err := ParseSigningKey(secret.New(bad)); err == nil || bad != "" && len(bad) > 8 && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	seed := text.Reveal()
	if printed := fmt.Sprintf("%v %+v %#v %s", key, key, key, key); strings.Contains(printed, seed) || strings.Contains(printed, "0x") {
		t.Errorf("the key prints: %s", printed)
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	h := NewHash(secret.New(aliceSecret))
	parsed, err := ParseHash(h.PHC())
	if err != nil {
		t.Fatal(err)
	}
	if !parsed.matches(aliceSecret) || parsed.matches(aliceSecret+"x") || parsed.matches("") {
		t.Error("a hash does not tell its secret from others")
	}
	// Made by the reference implementation: echo -n password | argon2 somesalt -id -t 2 -m 16 -p 1 -l 32
	reference, err := ParseHash("$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc")
	if err != nil || !reference.matches("password") {
		t.Errorf("the reference implementation's hash does not match: %v", err)
	}
	for _, bad := range []string{
		"", "password", "$2b$12$abcdefghijklmnopqrstuv", "$argon2i$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=16$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=1,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=4194304,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=1000,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=2,p=0$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$t=2,m=19456,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=2,p=1$$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$",
		"$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc$",
	} {
		if _, err := ParseHash(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzParseHash(f *testing.F) {
	f.Add("$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc")
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHash(s)
		if err != nil {
			return
		}
		again, err := ParseHash(h.PHC())
		if err != nil || again.PHC() != h.PHC() {
			t.Errorf("%q does not round-trip: %v", s, err)
		}
	})
}

func TestClientAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, test := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:80", nil, "192.0.2.1"},
		{"192.0.2.1:80", []string{"203.0.113.9"}, "192.0.2.1"},
		{"10.1.1.1:80", nil, "10.1.1.1"},
		{"10.1.1.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"10.1.1.1:80", []string{"198.51.100.7, 203.0.113.9"}, "203.0.113.9"},
		{"10.1.1.1:80", []string{"198.51.100.7", "203.0.113.9"}, "203.0.113.9"},
		{"10.1.1.1:80", []string{"203.0.113.9, 10.2.2.2"}, "203.0.113.9"},
		{"10.1.1.1:80", []string{"x, 10.2.2.2"}, "10.2.2.2"},
		{"[fd00::1]:80", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"@", nil, "invalid IP"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = test.peer
		r.Header["X-Forwarded-For"] = test.forwarded
		if got := ClientAddress(r, trusted).String(); got != test.want {
			t.Errorf("%s %v: %s, want %s", test.peer, test.forwarded, got, test.want)
		}
	}
	for in, want := range map[string]string{"192.0.2.1": "192.0.2.1", "2001:db8:1:2:3::4": "2001:db8:1:2::"} {
		if got := throttleAddress(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s is counted as %s, want %s", in, got, want)
		}
	}
}

func FuzzClientAddress(f *testing.F) {
	f.Add("10.1.1.1:80", "203.0.113.9, 10.2.2.2")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	f.Fuzz(func(t *testing.T, peer, forwarded string) {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {forwarded}}}
		got := ClientAddress(r, trusted)
		if direct := peerAddress(r); !contains(trusted, direct) && got != direct {
			t.Errorf("an untrusted peer %s passes as %s", direct, got)
		}
	})
}

func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	key, _ := GenerateSigningKey()
	h := cheapHash(t, "x")
	for name, cfg := range map[string]Config{
		"no key":              {},
		"bad client id":       {SigningKey: key, Accounts: []Account{{ClientID: "a:b"}}},
		"client id twice":     {SigningKey: key, Accounts: []Account{{ClientID: "a"}, {ClientID: "a"}}},
		"three secrets":       {SigningKey: key, Accounts: []Account{{ClientID: "a", Secrets: []Hash{h, h, h}}}},
		"static for nobody":   {SigningKey: key, StaticTokens: []StaticToken{{Token: secret.New(staticToken), ClientID: "a"}}},
		"static too short":    {SigningKey: key, Accounts: []Account{{ClientID: "a"}}, StaticTokens: []StaticToken{{Token: secret.New("short"), ClientID: "a"}}},
		"static with a space": {SigningKey: key, Accounts: []Account{{ClientID: "a"}}, StaticTokens: []StaticToken{{Token: secret.New("0123456789 0123456789"), ClientID: "a"}}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// BenchmarkAuthenticate is a request whose token has been seen before.
func BenchmarkAuthenticate(b *testing.B) {
	f := newFixture(b, nil)
	for name, token := range map[string]string{"cached": f.issueFor(b, nil), "static": staticToken} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.Authenticate(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("new", func(b *testing.B) {
		token := f.issueFor(b, nil)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.tokens.verify(token); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// ask sends a form to the token endpoint.
func (f *fixture) ask(values url.Values, authorization ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/v1/oauth/tokens", strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header["Authorization"] = authorization
	w := httptest.NewRecorder()
	f.TokenEndpoint().ServeHTTP(w, r)
	return w
}
