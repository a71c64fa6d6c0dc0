// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

type answer struct {
	AccessToken     string `json:"access_token"`
	TokenType       string `json:"token_type"`
	ExpiresIn       int64  `json:"expires_in"`
	IssuedTokenType string `json:"issued_token_type"`
	Scope           string `json:"scope"`
	Error           string `json:"error"`
	Description     string `json:"error_description"`
}

func decode(t *testing.T, w *httptest.ResponseRecorder) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("headers are %v", w.Header())
	}
	if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
		t.Error("a 401 without a challenge")
	}
	if (w.Code == http.StatusTooManyRequests || w.Code == http.StatusServiceUnavailable) && w.Header().Get("Retry-After") == "" {
		t.Errorf("a %d without Retry-After", w.Code)
	}
	// RFC 6749 section 5.2: error_description excludes these.
	if strings.ContainsAny(a.Description, "\"\\\n") {
		t.Errorf("error_description holds a character that is not allowed: %q", a.Description)
	}
	return a
}

func basic(id, secret string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(id+":"+secret))
}

func credentials(id, secret string, more ...string) url.Values {
	v := url.Values{"grant_type": {grantClientCredentials}, "client_id": {id}, "client_secret": {secret}}
	for i := 0; i < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return v
}

func exchange(subject string, more ...string) url.Values {
	v := url.Values{"grant_type": {grantTokenExchange}, "subject_token": {subject}, "subject_token_type": {typeAccessToken}}
	for i := 0; i < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return v
}

func TestClientCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	tests := map[string]struct {
		form  url.Values
		auth  []string
		scope string
	}{
		"form, as Java and Trino":                    {credentials("alice", aliceSecret, "scope", "catalog"), nil, "catalog"},
		"form, second secret":                        {credentials("alice", aliceSecret2), nil, "catalog"},
		"form beside a bearer token":                 {credentials("alice", aliceSecret), []string{"Bearer whatever"}, "catalog"},
		"basic, as DuckDB and PyIceberg":             {url.Values{"grant_type": {grantClientCredentials}}, []string{basic("alice", aliceSecret)}, "catalog"},
		"basic, secret with escapes as it is":        {url.Values{"grant_type": {grantClientCredentials}}, []string{basic("alice", aliceSecret2)}, "catalog"},
		"basic, secret with escapes, form-encoded":   {url.Values{"grant_type": {grantClientCredentials}}, []string{basic("alice", url.QueryEscape(aliceSecret2))}, "catalog"},
		"basic and the same client_id in the form":   {url.Values{"grant_type": {grantClientCredentials}, "client_id": {"alice"}}, []string{basic("alice", aliceSecret)}, "catalog"},
		"scope of the signer":                        {credentials("alice", aliceSecret, "scope", "sign"), nil, "sign"},
		"scope of a role":                            {credentials("alice", aliceSecret, "scope", "PRINCIPAL_ROLE:ALL"), nil, "PRINCIPAL_ROLE:ALL"},
		"several scopes":                             {credentials("alice", aliceSecret, "scope", " catalog   sign "), nil, "catalog sign"},
		"parameters that are not known are ignored":  {credentials("alice", aliceSecret, "audience", "x", "resource", "y"), nil, "catalog"},
		"an empty parameter is an absent one (3.2.)": {credentials("alice", aliceSecret, "scope", ""), nil, "catalog"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := f.ask(test.form, test.auth...)
			a := decode(t, w)
			if w.Code != http.StatusOK || a.TokenType != "bearer" || a.ExpiresIn != 3600 || a.IssuedTokenType != typeAccessToken || a.Scope != test.scope {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			if p, err := f.withToken(a.AccessToken); err != nil || p.ID != "account:alice" {
				t.Errorf("the token stands for %+v, %v", p, err)
			}
		})
	}
}

func TestTokenExchange(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	alice := f.issueFor(t, nil)
	aliceSign := f.issueFor(t, func(c *claims) { c.Scope = "sign" })
	engine := f.issueFor(t, func(c *claims) { c.Subject = "engine" })
	expired := f.issueFor(t, func(c *claims) { c.IssuedAt -= 7200; c.Expires = c.IssuedAt + 3600 })
	delegated := f.issueFor(t, func(c *claims) { c.Actor = &actor{Subject: "engine"} })
	tests := map[string]struct {
		form  url.Values
		auth  []string
		actor string
		scope string
	}{
		"renewal, as Java and Trino":                   {exchange(alice, "scope", "catalog"), []string{"Bearer " + alice}, "", "catalog"},
		"renewal without the header":                   {exchange(alice), nil, "", "catalog"},
		"renewal of a jwt":                             {exchange(alice, "subject_token_type", typeJWT, "requested_token_type", typeJWT), nil, "", "catalog"},
		"a static token":                               {exchange(staticToken), nil, "", "catalog"},
		"narrower scope, as Java's signer":             {exchange(alice, "scope", "sign"), nil, "", "sign"},
		"the signer's token again":                     {exchange(aliceSign), nil, "", "sign"},
		"expired, with the client secret, as Java":     {exchange(expired), []string{basic("alice", aliceSecret)}, "", "catalog"},
		"on behalf of":                                 {exchange(alice, "actor_token", engine, "actor_token_type", typeAccessToken), []string{"Bearer " + engine}, "account:engine", "catalog"},
		"on behalf of, with the actor in no header":    {exchange(alice, "actor_token", engine, "actor_token_type", typeAccessToken), nil, "account:engine", "catalog"},
		"renewal of a delegated token":                 {exchange(delegated), nil, "account:engine", "catalog"},
		"the same actor again":                         {exchange(delegated, "actor_token", engine, "actor_token_type", typeAccessToken), nil, "account:engine", "catalog"},
		"an actor that is the subject is no actor":     {exchange(alice, "actor_token", alice, "actor_token_type", typeAccessToken), nil, "", "catalog"},
		"client credentials in the form, own subject":  {exchange(alice, "client_id", "alice", "client_secret", aliceSecret), nil, "", "catalog"},
		"a role is no wider than the catalog's scope":  {exchange(alice, "scope", "PRINCIPAL_ROLE:ALL"), nil, "", "PRINCIPAL_ROLE:ALL"},
		"a client id alone proves nothing and is fine": {exchange(alice, "client_id", "engine"), nil, "", "catalog"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := f.ask(test.form, test.auth...)
			a := decode(t, w)
			if w.Code != http.StatusOK || a.IssuedTokenType != typeAccessToken || a.ExpiresIn != 3600 || a.Scope != test.scope {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			p, err := f.withToken(a.AccessToken)
			if err != nil || p.ID != "account:alice" || p.Actor != test.actor {
				t.Fatalf("the token stands for %+v, %v", p, err)
			}
			if test.actor == "" {
				return
			}
			// With an actor, the least of what both may do.
			for warehouse, want := range map[string]Access{"sales": AccessRead, "hr": AccessNone, "ops": AccessNone} {
				if got := p.Access(warehouse); got != want {
					t.Errorf("access of the actor to %s is %s, want %s", warehouse, got, want)
				}
			}
		})
	}
}

func TestTokenEndpointErrors(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.Limits = Limits{ClientFailures: 1000, AddressFailures: 1000, TokenFailures: 1000}
	})
	alice := f.issueFor(t, nil)
	engine := f.issueFor(t, func(c *claims) { c.Subject = "engine" })
	nobody := f.issueFor(t, func(c *claims) { c.Subject = "nobody" })
	sign := f.issueFor(t, func(c *claims) { c.Scope = "sign" })
	expired := f.issueFor(t, func(c *claims) { c.IssuedAt -= 7200; c.Expires = c.IssuedAt + 3600 })
	delegated := f.issueFor(t, func(c *claims) { c.Actor = &actor{Subject: "engine"} })
	foreign := newFixture(t, nil).issueFor(t, nil)
	twice := credentials("alice", aliceSecret)
	twice["scope"] = []string{"catalog", "catalog"}
	grant := url.Values{"grant_type": {grantClientCredentials}}
	const bad, unauthorized = http.StatusBadRequest, http.StatusUnauthorized
	tests := map[string]struct {
		form   url.Values
		auth   []string
		status int
		code   string
	}{
		"empty":                            {url.Values{}, nil, bad, "invalid_request"},
		"no grant type":                    {url.Values{"client_id": {"alice"}, "client_secret": {aliceSecret}}, nil, bad, "invalid_request"},
		"unknown grant type":               {url.Values{"grant_type": {"password"}}, nil, bad, "unsupported_grant_type"},
		"a parameter twice":                {twice, nil, bad, "invalid_request"},
		"wrong secret":                     {credentials("alice", "x"), nil, unauthorized, "invalid_client"},
		"unknown client":                   {credentials("mallory", "x"), nil, unauthorized, "invalid_client"},
		"client without secrets":           {credentials("nobody", "x"), nil, unauthorized, "invalid_client"},
		"another client's secret":          {credentials("engine", aliceSecret), nil, unauthorized, "invalid_client"},
		"client id in another case":        {credentials("Alice", aliceSecret), nil, unauthorized, "invalid_client"},
		"impossible client id":             {credentials("a\nb", "x"), nil, unauthorized, "invalid_client"},
		"no secret":                        {credentials("alice", ""), nil, unauthorized, "invalid_client"},
		"no client id":                     {credentials("", aliceSecret), nil, unauthorized, "invalid_client"},
		"neither":                          {grant, nil, unauthorized, "invalid_client"},
		"a bearer token is no credential":  {grant, []string{"Bearer " + alice}, unauthorized, "invalid_client"},
		"basic, wrong secret":              {grant, []string{basic("alice", "x")}, unauthorized, "invalid_client"},
		"basic, not base64":                {grant, []string{"Basic ???"}, unauthorized, "invalid_client"},
		"basic, no colon":                  {grant, []string{"Basic YWxpY2U="}, unauthorized, "invalid_client"},
		"basic, no secret":                 {grant, []string{basic("alice", "")}, unauthorized, "invalid_client"},
		"another scheme":                   {grant, []string{"Digest x"}, unauthorized, "invalid_client"},
		"basic and form":                   {credentials("alice", aliceSecret), []string{basic("alice", aliceSecret)}, bad, "invalid_request"},
		"basic and another client id":      {url.Values{"grant_type": {grantClientCredentials}, "client_id": {"engine"}}, []string{basic("alice", aliceSecret)}, bad, "invalid_request"},
		"two headers":                      {grant, []string{basic("alice", aliceSecret), "Bearer x"}, bad, "invalid_request"},
		"unknown scope":                    {credentials("alice", aliceSecret, "scope", "admin"), nil, bad, "invalid_scope"},
		"role without a name":              {credentials("alice", aliceSecret, "scope", "PRINCIPAL_ROLE:"), nil, bad, "invalid_scope"},
		"scope with a quote":               {credentials("alice", aliceSecret, "scope", `PRINCIPAL_ROLE:"x`), nil, bad, "invalid_scope"},
		"scope too long":                   {credentials("alice", aliceSecret, "scope", strings.Repeat("catalog ", 200)), nil, bad, "invalid_scope"},
		"exchange, no subject":             {url.Values{"grant_type": {grantTokenExchange}}, nil, bad, "invalid_request"},
		"exchange, no type":                {url.Values{"grant_type": {grantTokenExchange}, "subject_token": {alice}}, nil, bad, "invalid_request"},
		"exchange, other type":             {exchange(alice, "subject_token_type", "urn:ietf:params:oauth:token-type:saml2"), nil, bad, "invalid_request"},
		"exchange, other requested type":   {exchange(alice, "requested_token_type", "urn:ietf:params:oauth:token-type:refresh_token"), nil, bad, "invalid_request"},
		"exchange, garbage":                {exchange("garbage"), nil, bad, "invalid_request"},
		"exchange, unsigned":               {exchange("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."), nil, bad, "invalid_request"},
		"exchange, another catalog's":      {exchange(foreign), nil, bad, "invalid_request"},
		"exchange, expired":                {exchange(expired), nil, bad, "invalid_request"},
		"exchange, expired, other client":  {exchange(expired), []string{basic("engine", engineSecret)}, bad, "invalid_request"},
		"exchange, expired, wrong secret":  {exchange(expired), []string{basic("alice", "x")}, unauthorized, "invalid_client"},
		"exchange, other client's subject": {exchange(alice), []string{basic("engine", engineSecret)}, bad, "unauthorized_client"},
		"exchange, bad bearer":             {exchange(alice), []string{"Bearer garbage"}, unauthorized, "invalid_client"},
		"exchange, scope too wide":         {exchange(sign, "scope", "catalog"), nil, bad, "invalid_scope"},
		"exchange, unknown scope":          {exchange(alice, "scope", "admin"), nil, bad, "invalid_scope"},
		"actor without right":              {exchange(alice, "actor_token", nobody, "actor_token_type", typeAccessToken), nil, bad, "unauthorized_client"},
		"actor the other way round":        {exchange(engine, "actor_token", alice, "actor_token_type", typeAccessToken), nil, bad, "unauthorized_client"},
		"actor, garbage":                   {exchange(alice, "actor_token", "x", "actor_token_type", typeAccessToken), nil, bad, "invalid_request"},
		"actor, no type":                   {exchange(alice, "actor_token", engine), nil, bad, "invalid_request"},
		"actor type, no actor":             {exchange(alice, "actor_token_type", typeAccessToken), nil, bad, "invalid_request"},
		"actor that has an actor":          {exchange(alice, "actor_token", delegated, "actor_token_type", typeAccessToken), nil, bad, "unauthorized_client"},
		"second actor in a chain":          {exchange(delegated, "actor_token", nobody, "actor_token_type", typeAccessToken), nil, bad, "unauthorized_client"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := f.ask(test.form, test.auth...)
			a := decode(t, w)
			if w.Code != test.status || a.Error != test.code || a.Description == "" || a.AccessToken != "" {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, test.status, test.code)
			}
			if len(test.auth) > 0 && strings.HasPrefix(test.auth[0], "Basic") && w.Code == unauthorized && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic") {
				t.Errorf("RFC 6749 section 5.2 wants the client's scheme in the challenge, not %q", w.Header().Get("WWW-Authenticate"))
			}
		})
	}
	t.Cleanup(func() {
		for _, hidden := range []string{aliceSecret, aliceSecret2, engineSecret, alice, engine, expired, foreign} {
			if strings.Contains(f.logs.String(), hidden) {
				t.Errorf("the log holds %q", hidden)
			}
		}
	})
}

func TestTokenEndpointRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	const form = "application/x-www-form-urlencoded"
	good := credentials("alice", aliceSecret).Encode()
	for name, test := range map[string]struct {
		method, target, contentType, body string
		status                            int
	}{
		"charset parameter":    {http.MethodPost, "/", form + "; charset=UTF-8", good, 200},
		"capitals":             {http.MethodPost, "/", "Application/X-WWW-Form-URLEncoded", good, 200},
		"GET":                  {http.MethodGet, "/", form, "", 405},
		"secret in the URI":    {http.MethodPost, "/?" + good, form, "", 400},
		"JSON":                 {http.MethodPost, "/", "application/json", `{"grant_type":"client_credentials"}`, 400},
		"no content type":      {http.MethodPost, "/", "", good, 400},
		"invalid escape":       {http.MethodPost, "/", form, "grant_type=%zz", 400},
		"semicolons":           {http.MethodPost, "/", form, "a=b;grant_type=client_credentials", 400},
		"too large":            {http.MethodPost, "/", form, strings.Repeat("a", maxFormBytes+1), 413},
		"more than it can use": {http.MethodPost, "/", form, good + "&x=" + strings.Repeat("a", 1000), 200},
	} {
		r := httptest.NewRequest(test.method, test.target, strings.NewReader(test.body))
		r.Header.Set("Content-Type", test.contentType)
		w := httptest.NewRecorder()
		f.TokenEndpoint().ServeHTTP(w, r)
		if w.Code != test.status {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, test.status)
		}
		decode(t, w)
	}
}

// TestFailuresAreThrottled is attack 74: a thousand wrong secrets.
func TestFailuresAreThrottled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.AddressFailures = 50 })
	from := func(address string, values url.Values) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(values.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = address + ":1"
		w := httptest.NewRecorder()
		f.TokenEndpoint().ServeHTTP(w, r)
		return w
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i := range 1000 {
		wg.Go(func() {
			w := from("192.0.2.1", credentials("alice", fmt.Sprintf("wrong-%d", i)))
			mu.Lock()
			codes[w.Code]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if codes[http.StatusUnauthorized] != 10 || codes[http.StatusTooManyRequests] != 990 {
		t.Errorf("a thousand wrong secrets at once: %v", codes)
	}
	if w := from("192.0.2.1", credentials("alice", aliceSecret)); w.Code != http.StatusTooManyRequests {
		t.Errorf("the right secret while throttled: %d; guessing goes on", w.Code)
	}
	if w := from("192.0.2.9", credentials("alice", aliceSecret)); w.Code != http.StatusOK {
		t.Errorf("alice is locked out from elsewhere: %d", w.Code)
	}
	if w := from("192.0.2.1", credentials("engine", engineSecret)); w.Code != http.StatusOK {
		t.Errorf("another client of the address is locked out: %d", w.Code)
	}
	// Many client ids from one address.
	codes = map[int]int{}
	for i := range 100 {
		codes[from("198.51.100.1", credentials(fmt.Sprintf("c%d", i), "x")).Code]++
	}
	if codes[http.StatusUnauthorized] != 50 || codes[http.StatusTooManyRequests] != 50 {
		t.Errorf("a hundred unknown clients: %v", codes)
	}
	f.clock.Add(time.Minute)
	if w := from("192.0.2.1", credentials("alice", aliceSecret)); w.Code != http.StatusOK {
		t.Errorf("after the window: %d", w.Code)
	}
	// Successes use nothing up.
	for range 30 {
		if w := from("192.0.2.1", credentials("alice", aliceSecret)); w.Code != http.StatusOK {
			t.Fatalf("a right secret again and again: %d", w.Code)
		}
	}
}

// TestUnknownClientsLookLikeWrongSecrets compares the answers, and counts
// that both do the same work.
func TestUnknownClientsLookLikeWrongSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	unknown, wrong := f.ask(credentials("mallory", "x")), f.ask(credentials("engine", "x"))
	if unknown.Code != wrong.Code || unknown.Body.String() != wrong.Body.String() || fmt.Sprint(unknown.Header()) != fmt.Sprint(wrong.Header()) {
		t.Errorf("answers differ: %d %s %v and %d %s %v", unknown.Code, unknown.Body, unknown.Header(), wrong.Code, wrong.Body, wrong.Header())
	}
	// engine has one secret, alice two: every failing attempt computes two.
	if f.accounts.rounds != 2 {
		t.Errorf("%d hashes per failing attempt, want 2", f.accounts.rounds)
	}
	if f.accounts.dummy.cost() < f.accounts.byID["alice"].Secrets[0].cost() {
		t.Error("the dummy hash is cheaper than a real one")
	}
}

func TestBusyWithSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.HashConcurrency = 1 })
	f.accounts.slots <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(credentials("alice", aliceSecret).Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	f.TokenEndpoint().ServeHTTP(w, r)
	if a := decode(t, w); w.Code != http.StatusServiceUnavailable || a.AccessToken != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	<-f.accounts.slots
	if w := f.ask(credentials("alice", aliceSecret)); w.Code != http.StatusOK {
		t.Errorf("after the wait: %d", w.Code)
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.MaxSession = 90 * time.Minute })
	first := decode(t, f.ask(credentials("alice", aliceSecret)))
	f.clock.Add(45 * time.Minute)
	second := decode(t, f.ask(exchange(first.AccessToken)))
	if second.ExpiresIn != 45*60 {
		t.Errorf("the renewed token lives %d s; the session ends in 45 minutes", second.ExpiresIn)
	}
	f.clock.Add(45*time.Minute + time.Second)
	if w := f.ask(exchange(second.AccessToken)); w.Code != http.StatusBadRequest {
		t.Errorf("a renewal after the session's end: %d %s", w.Code, w.Body)
	}
	if w := f.ask(exchange(second.AccessToken), basic("alice", aliceSecret)); w.Code != http.StatusOK {
		t.Errorf("a renewal with the client secret: %d %s", w.Code, w.Body)
	}
}

func FuzzTokenEndpoint(f *testing.F) {
	fix := newFixture(f, func(c *Config) {
		c.Accounts = nil
		c.StaticTokens = nil
		c.Limits = Limits{ClientFailures: 1, AddressFailures: 1, TokenFailures: 1}
	})
	f.Add("Basic YTpi", credentials("a", "b", "scope", "catalog").Encode())
	f.Add("Bearer x", exchange("x.y.z", "actor_token", "x").Encode())
	f.Fuzz(func(t *testing.T, authorization, body string) {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		fix.TokenEndpoint().ServeHTTP(w, r)
		if a := decode(t, w); w.Code < 400 || w.Code >= 500 || a.Error == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
