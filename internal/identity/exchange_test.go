// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestExchangeOfIssuersTokens has an engine that acts for users of an
// identity provider.
func TestExchangeOfIssuersTokens(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) {
		c.Accounts[1].ActFor = []string{"corp:*"}               // engine
		c.Accounts[2].ActFor = []string{"*", "corp:alice"}      // nobody
		c.Accounts[0].ActFor = []string{"*", "corp", "other:*"} // alice
	})
	now := f.clock.Now()
	engine := f.issueFor(t, func(c *claims) { c.Subject = "engine" })
	nobody := f.issueFor(t, func(c *claims) { c.Subject = "nobody" })
	account := f.issueFor(t, nil)
	user := func(change map[string]any) string {
		c := map[string]any{"sub": "bob", "realm_access": map[string]any{"roles": []string{"analysts"}}, "region": "EU", "exp": now.Add(10 * time.Minute).Unix()}
		for k, v := range change {
			c[k] = v
		}
		return sign(t, "rsa", p.claimsAt(now, c), nil)
	}
	actor := func(actor string) []string {
		return []string{"actor_token", actor, "actor_token_type", typeAccessToken}
	}
	w := f.ask(exchange(user(nil), actor(engine)...))
	a := decode(t, w)
	if w.Code != http.StatusOK || a.ExpiresIn != 600 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	got, err := f.withToken(a.AccessToken)
	if err != nil || got.ID != "corp:bob" || got.Issuer != "corp" || got.Kind != KindToken || got.Actor != "account:engine" || got.Organisation != "acme" ||
		!slices.Equal(got.Groups, []string{"corp:analysts"}) || got.Attributes["region"].String != "EU" {
		t.Errorf("the token stands for %+v, %v", got, err)
	}
	// No more than both may: the group reads sales and public, the engine
	// reads sales and writes ops.
	for warehouse, want := range map[string]Access{"sales": AccessRead, "public": AccessNone, "ops": AccessNone} {
		if got.Access(warehouse) != want {
			t.Errorf("access to %s is %s, want %s", warehouse, got.Access(warehouse), want)
		}
	}
	if logs := f.logs.String(); !strings.Contains(logs, "client=corp:bob") || !strings.Contains(logs, "actor=engine") {
		t.Errorf("the log does not name both: %s", logs)
	}
	// Renewed, it lasts no longer than the user's own.
	f.clock.Add(5 * time.Minute)
	if renewed := decode(t, f.ask(exchange(a.AccessToken))); renewed.ExpiresIn != 300 {
		t.Errorf("the renewed token lives %d s", renewed.ExpiresIn)
	} else if got, err := f.withToken(renewed.AccessToken); err != nil || got.ID != "corp:bob" || got.Actor != "account:engine" || got.Access("sales") != AccessRead {
		t.Errorf("the renewed token stands for %+v, %v", got, err)
	}
	f.clock.Add(-5 * time.Minute)
	// A token that lives for long is exchanged for the usual lifetime, once.
	long := decode(t, f.ask(exchange(user(map[string]any{"exp": now.Add(100 * time.Hour).Unix()}))))
	if got, err := f.withToken(long.AccessToken); long.ExpiresIn > 3600 || err != nil || got.ID != "corp:bob" || got.Actor != "" {
		t.Errorf("%d s, %+v, %v", long.ExpiresIn, got, err)
	}

	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("group-%012d", i)
	}
	const bad = http.StatusBadRequest
	for name, test := range map[string]struct {
		subject string
		actor   string
		code    int
		error   string
	}{
		"named in act_for":        {user(map[string]any{"sub": "alice"}), nobody, http.StatusOK, ""},
		"not named in act_for":    {user(nil), nobody, bad, "unauthorized_client"},
		"* is for accounts only":  {user(nil), account, bad, "unauthorized_client"},
		"the user as the actor":   {account, user(nil), bad, "unauthorized_client"},
		"expired":                 {user(map[string]any{"exp": now.Add(-time.Minute).Unix()}), engine, bad, "invalid_request"},
		"for another audience":    {user(map[string]any{"aud": "x"}), engine, bad, "invalid_request"},
		"of an unknown issuer":    {user(map[string]any{"iss": "https://evil"}), engine, bad, "invalid_request"},
		"with an actor already":   {user(map[string]any{"act": map[string]any{"sub": "x"}}), engine, bad, "invalid_request"},
		"forged":                  {sign(t, "rsa2", p.claimsAt(now, nil), map[string]any{"kid": "rsa"}), engine, bad, "invalid_request"},
		"more than a token holds": {user(map[string]any{"realm_access": map[string]any{"roles": many}}), engine, bad, "invalid_request"},
	} {
		w := f.ask(exchange(test.subject, actor(test.actor)...))
		if a := decode(t, w); w.Code != test.code || a.Error != test.error {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	// Our own token for a principal of an issuer that is configured no more,
	// or that may not speak for the organisation any longer, is worth nothing.
	for name, change := range map[string]func(*Config){
		"gone":         func(c *Config) { c.Issuers = nil },
		"another name": func(c *Config) { c.Issuers[0].Name = "corp2" },
		"organisation": func(c *Config) { c.Issuers[0].Claims.Organisation.Fixed = "globex" },
		"act_for gone": func(c *Config) { c.Accounts[1].ActFor = []string{"alice"} },
	} {
		later := withProvider(t, p, func(c *Config) {
			c.Accounts[1].ActFor = []string{"corp:*"}
			c.SigningKey = f.key
			change(c)
		})
		if got, err := later.withToken(a.AccessToken); statusOf(err) != http.StatusUnauthorized {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	// A token of ours whose subject has the form of an id, but which tells
	// nothing of the principal.
	if got, err := f.withToken(f.issueFor(t, func(c *claims) { c.Subject = "corp:bob" })); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestExchangeWhileTheIssuerIsAway(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	p.set(func(p *provider) { p.down = true })
	f := withProvider(t, p, nil)
	token := sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)
	if w := f.ask(exchange(token)); w.Code != http.StatusServiceUnavailable || decode(t, w).Error != "temporarily_unavailable" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := f.ask(exchange(f.issueFor(t, nil)), "Bearer "+token); w.Code != http.StatusServiceUnavailable {
		t.Errorf("with the token in the header: %d %s", w.Code, w.Body)
	}
}

func TestExchangedIntrospectedTokensEndSoon(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, func(c *Config) { c.Limits.TokenFailures = 3 })
	i.know("t", f.clock.Now(), nil)
	a := decode(t, f.ask(exchange("t")))
	if a.ExpiresIn != 60 {
		t.Errorf("it lives %d s; the answer is believed for 60", a.ExpiresIn)
	}
	codes := map[int]int{}
	for n := range 10 {
		codes[f.ask(exchange(fmt.Sprintf("rubbish-%d", n))).Code]++
	}
	if codes[http.StatusBadRequest] != 3 || codes[http.StatusTooManyRequests] != 7 || i.asked.Load() != 4 {
		t.Errorf("ten unknown subject tokens: %v, and %d questions", codes, i.asked.Load())
	}
}

func TestNoTokensOfOurOwn(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	f := withProvider(t, p, func(c *Config) { c.SigningKey, c.StaticTokens = SigningKey{}, nil })
	if got, err := f.withToken(sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil)); err != nil || got.ID != "corp:alice" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := f.withToken(newFixture(t, nil).issueFor(t, nil)); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a token of another catalog: %v", err)
	}
	if w := f.ask(credentials("alice", aliceSecret)); w.Code != http.StatusBadRequest {
		t.Errorf("the token endpoint: %d %s", w.Code, w.Body)
	}
}

// TestTokensAreRecorded has what the audit log hears of requests for tokens:
// who was proved to ask, and nothing that was merely said.
func TestTokensAreRecorded(t *testing.T) {
	t.Parallel()
	p := newProvider(t, "rsa")
	var heard []TokenRequest
	var full error
	f := withProvider(t, p, func(c *Config) {
		c.Accounts[1].ActFor = []string{"corp:bob", "alice"}
		c.Limits.ClientFailures = 4
		c.Record = func(_ context.Context, r TokenRequest) error {
			if !r.Address.IsValid() {
				t.Error("no address")
			}
			r.Address = netip.Addr{}
			heard = append(heard, r)
			return full
		}
	})
	token := func(id string) string { return f.issueFor(t, func(c *claims) { c.Subject = id }) }
	acting := func(c *claims) { c.Actor = &actor{Subject: "engine"} }
	user := func(sub string) string {
		return sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"sub": sub}), nil)
	}
	by := func(id string) []string {
		return []string{"actor_token", token(id), "actor_token_type", typeAccessToken}
	}
	const cc, ex = grantClientCredentials, grantTokenExchange
	for name, test := range map[string]struct {
		form url.Values
		want TokenRequest
	}{
		"credentials":              {credentials("alice", aliceSecret), TokenRequest{Principal: "account:alice", Grant: cc, Status: 200}},
		"a wrong secret":           {credentials("alice", "wrong-secret-0123"), TokenRequest{Grant: cc, Status: 401, Denied: true}},
		"an unknown client":        {credentials("mallory", aliceSecret), TokenRequest{Grant: cc, Status: 401, Denied: true}},
		"no secret":                {credentials("alice", ""), TokenRequest{Grant: cc, Status: 401, Denied: true}},
		"a scope that is none":     {credentials("alice", aliceSecret, "scope", "root"), TokenRequest{Principal: "account:alice", Grant: cc, Status: 400}},
		"another grant":            {url.Values{"grant_type": {"password"}}, TokenRequest{Status: 400}},
		"no grant":                 {url.Values{}, TokenRequest{Status: 400}},
		"renewal":                  {exchange(token("alice")), TokenRequest{Principal: "account:alice", Grant: ex, Status: 200}},
		"renewal by an actor":      {exchange(f.issueFor(t, acting)), TokenRequest{Principal: "account:alice", Actor: "account:engine", Grant: ex, Status: 200}},
		"on behalf of an account":  {exchange(token("alice"), by("engine")...), TokenRequest{Principal: "account:alice", Actor: "account:engine", Grant: ex, Status: 200}},
		"on behalf of a user":      {exchange(user("bob"), by("engine")...), TokenRequest{Principal: "corp:bob", Actor: "account:engine", Grant: ex, Status: 200}},
		"on behalf of itself":      {exchange(token("engine"), by("engine")...), TokenRequest{Principal: "account:engine", Grant: ex, Status: 200}},
		"who may not":              {exchange(user("bob"), by("nobody")...), TokenRequest{Principal: "corp:bob", Actor: "account:nobody", Grant: ex, Status: 400, Denied: true}},
		"for whom it may not":      {exchange(user("eve"), by("engine")...), TokenRequest{Principal: "corp:eve", Actor: "account:engine", Grant: ex, Status: 400, Denied: true}},
		"a forged subject":         {exchange("x.y.z", by("engine")...), TokenRequest{Grant: ex, Status: 400, Denied: true}},
		"a forged actor":           {exchange(user("bob"), "actor_token", "x.y.z", "actor_token_type", typeAccessToken), TokenRequest{Principal: "corp:bob", Grant: ex, Status: 400, Denied: true}},
		"a wider scope":            {exchange(f.issueFor(t, func(c *claims) { c.Scope = "sign" }), "scope", "catalog"), TokenRequest{Principal: "account:alice", Grant: ex, Status: 400, Denied: true}},
		"a session that has ended": {exchange(f.issueFor(t, func(c *claims) { c.NotAfter = f.clock.Now().Unix() })), TokenRequest{Principal: "account:alice", Grant: ex, Status: 400, Denied: true}},
	} {
		heard = nil
		w := f.ask(test.form)
		if len(heard) != 1 || heard[0] != test.want || w.Code != test.want.Status {
			t.Errorf("%s: %d %s\ngot  %+v\nwant %+v", name, w.Code, w.Body, heard, test.want)
		}
	}
	heard = nil
	for range 5 {
		f.ask(credentials("engine", "wrong-secret-0123"))
	}
	if want := (TokenRequest{Grant: cc, Status: 429, Denied: true}); heard[len(heard)-1] != want {
		t.Errorf("throttled: got %+v, want %+v", heard[len(heard)-1], want)
	}
	// What is not recorded does not happen.
	full = errors.New("the log is full")
	w := f.ask(credentials("alice", aliceSecret))
	if a := decode(t, w); w.Code != http.StatusServiceUnavailable || a.AccessToken != "" || a.Error != "temporarily_unavailable" || w.Header().Get("Retry-After") == "" {
		t.Errorf("without a record: %d %s", w.Code, w.Body)
	}
}
