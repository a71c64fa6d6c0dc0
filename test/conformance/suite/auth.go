// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// authCases look at who may ask, and at the deprecated token endpoint.
func authCases() []Case {
	const section = "Authentication"
	var all []Case
	refused := func(id, title, auth, ref string, severity Severity) Case {
		return Case{
			ID: "auth." + id, Section: section, Severity: severity, Needs: []string{"authentication"},
			Title: title, Ref: ref,
			Check: func(ctx context.Context, t *Trial) error {
				for _, r := range []Request{
					{Method: http.MethodGet, Path: "${p}/namespaces"},
					{Method: http.MethodGet, Path: "/v1/config?warehouse=" + url.QueryEscape(t.s.target.Warehouse)},
					{Method: http.MethodGet, Path: "${p}/namespaces/${ns}/tables/none"},
					{Method: http.MethodPost, Path: "${p}/namespaces", Body: []byte(`{"namespace":["` + t.ns + `_stolen"]}`)},
					{Method: http.MethodDelete, Path: "${p}/namespaces/${ns}"},
					{Method: http.MethodPost, Path: "${p}/transactions/commit", Body: []byte(`{"table-changes":[]}`)},
				} {
					r.Auth = &auth
					resp, err := t.do(ctx, r)
					if err != nil {
						return err
					}
					what := r.Method + " " + strings.Replace(r.Path, "${p}", "", 1)
					if !t.wantStatus(Must, what, resp, http.StatusUnauthorized) {
						continue
					}
					t.wantError(what, resp, "NotAuthorizedException", Should)
					if resp.Header.Get("WWW-Authenticate") == "" {
						t.report(Should, "%s: the 401 has no WWW-Authenticate (RFC 9110 section 15.5.2; gravitino 10978)", what)
					}
				}
				return nil
			},
		}
	}
	const spec = "spec UnauthorizedResponse (\"expired, revoked, malformed, or invalid for other reasons\")"
	all = append(
		all,
		refused("no-token", "without a token everything is 401 with the error model", "", spec+"; polaris 4404", Must),
		refused("wrong-token", "with a token that nobody issued everything is 401", "Bearer "+random(16), spec, Must),
		refused("bearer-none", "\"Bearer None\", which PyIceberg sends without a credential, is 401", "Bearer None", spec+"; PyIceberg 0.12", Must),
		refused("empty-bearer", "an empty bearer token is 401", "Bearer ", spec, Must),
		refused("other-scheme", "another authorization scheme is 401", "Basic eDp5", spec, Must),
		refused("unsigned-jwt", "an unsigned JWT (alg none) is 401", "Bearer "+unsignedJWT(), "RFC 8725 section 3.2; CVE class alg=none", Must),
		refused("foreign-jwt", "a signed JWT of an issuer that the server does not trust is 401, with a challenge", "Bearer "+foreignJWT(),
			"RFC 6750 section 3; gravitino 10978, iceberg 12363", Must),
		Case{
			ID: "auth.token-case", Section: section, Severity: Should, Needs: []string{"authentication"},
			Title: "the scheme's name is case-insensitive (\"bearer TOKEN\")",
			Ref:   "RFC 9110 section 11.1",
			Check: func(ctx context.Context, t *Trial) error {
				auth := "bearer " + t.s.target.Token
				resp, err := t.do(ctx, Request{Method: http.MethodGet, Path: "${p}/namespaces/${ns}", Auth: &auth})
				if err != nil {
					return err
				}
				t.wantStatus(Should, "GET with \"bearer\" in lower case", resp, http.StatusOK)
				return nil
			},
		},
		Case{
			ID: "auth.second-principal", Section: section, Severity: Must,
			Needs: []string{"authentication", "second-principal", "createTable", "loadTable"},
			Title: "another principal without rights gets neither a table, nor a 304 for its ETag, nor its name confirmed",
			Ref:   "iceberg 17801; RFC 9110 section 15.5.4 (a 404 may hide)",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				tag, err := t.variable("etag.t")
				if err != nil {
					return err
				}
				other := "Bearer " + t.s.target.Token2
				for _, match := range []string{"", fmt.Sprint(tag), "*"} {
					h := http.Header{}
					if match != "" {
						h.Set("If-None-Match", match)
					}
					resp, err := t.do(ctx, Request{Method: http.MethodGet, Path: "${p}/namespaces/${ns}/tables/t", Header: h, Auth: &other})
					if err != nil {
						return err
					}
					t.wantStatus(Must, fmt.Sprintf("load with the other token and If-None-Match %q", match), resp, http.StatusForbidden, http.StatusNotFound)
				}
				drop, err := t.do(ctx, Request{Method: http.MethodDelete, Path: "${p}/namespaces/${ns}/tables/t", Auth: &other})
				if err != nil {
					return err
				}
				t.wantStatus(Must, "drop with the other token", drop, http.StatusForbidden, http.StatusNotFound)
				return nil
			},
		},
	)
	return append(all, tokenCases()...)
}

// unsignedJWT is a token that anyone can make.
func unsignedJWT() string {
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return encode(`{"alg":"none","typ":"JWT"}`) + "." + encode(`{"sub":"admin","exp":4102444800}`) + "."
}

// foreignJWT is in order in all respects but that nobody trusts its key.
func foreignJWT() string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"EdDSA","typ":"JWT","kid":"foreign"}`)) + "." +
		encode([]byte(`{"iss":"https://issuer.invalid","aud":"catalog","sub":"admin","iat":1700000000,"exp":4102444800}`))
	// A fixed seed: the case is the same in every run, and the key is secret to nobody.
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	return signed + "." + encode(ed25519.Sign(key, []byte(signed)))
}

// tokenCases look at POST /v1/oauth/tokens.
func tokenCases() []Case {
	const (
		section = "Token endpoint"
		spec    = "spec getToken; RFC 6749 section 5.2"
		form    = "application/x-www-form-urlencoded"
	)
	ask := func(ctx context.Context, t *Trial, contentType, auth string, values url.Values) (*Response, error) {
		return t.do(ctx, Request{
			Method: http.MethodPost, Path: "/v1/oauth/tokens", Auth: &auth,
			Header: http.Header{"Content-Type": {contentType}}, Body: []byte(values.Encode()),
		})
	}
	// wantToken checks a success and returns the token.
	wantToken := func(t *Trial, what string, resp *Response) string {
		if !t.wantStatus(Must, what, resp, http.StatusOK) {
			return ""
		}
		token := resp.at("access_token")
		if token == "" {
			t.report(Must, "%s: no access_token", what)
		}
		if !strings.EqualFold(resp.at("token_type"), "bearer") {
			t.report(Must, "%s: token_type is %q, want bearer", what, resp.at("token_type"))
		}
		if control := resp.Header.Get("Cache-Control"); !strings.Contains(control, "no-store") {
			t.report(Should, "%s: Cache-Control is %q, want no-store (RFC 6749 section 5.1)", what, control)
		}
		return token
	}
	usable := func(ctx context.Context, t *Trial, token string) error {
		auth := "Bearer " + token
		resp, err := t.do(ctx, Request{Method: http.MethodGet, Path: "${p}/namespaces", Auth: &auth})
		if err != nil {
			return err
		}
		// 403: the client may exist without rights here.
		t.wantStatus(Must, "list namespaces with the new token", resp, http.StatusOK, http.StatusForbidden)
		return nil
	}
	credential := func(t *Trial) (id, secret string) {
		id, secret, _ = strings.Cut(t.s.target.Credential, ":")
		return id, secret
	}
	basic := func(id, secret string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(id)+":"+url.QueryEscape(secret)))
	}
	bad := func(id, title string, want []int, code, auth, contentType string, values url.Values) Case {
		return Case{
			ID: "oauth." + id, Section: section, Severity: Must, NoNamespace: true, Needs: []string{"oauth-tokens"},
			Title: title, Ref: spec,
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := ask(ctx, t, contentType, auth, values)
				if err != nil {
					return err
				}
				if !t.wantStatus(Must, "POST oauth/tokens", resp, want...) {
					return nil
				}
				if got := resp.at("error"); got == "" || strings.HasPrefix(got, "map[") {
					t.report(Must, "the body is not the OAuth error {\"error\":\"…\"}: %s", excerpt(resp.Body))
				} else if code != "" && got != code {
					t.report(Should, "error is %q, want %q", got, code)
				}
				return nil
			},
		}
	}
	refuse := []int{http.StatusBadRequest, http.StatusUnauthorized}
	const exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	return []Case{
		{
			ID: "oauth.form", Section: section, Severity: Must, NoNamespace: true, Needs: []string{"oauth-tokens", "client-credential"},
			Title: "client credentials in the form body give a token that works", Ref: "spec OAuthClientCredentialsRequest; Java, Trino, PyIceberg",
			Check: func(ctx context.Context, t *Trial) error {
				id, secret := credential(t)
				resp, err := ask(ctx, t, form, "", url.Values{"grant_type": {"client_credentials"}, "client_id": {id}, "client_secret": {secret}, "scope": {"catalog"}})
				if err != nil {
					return err
				}
				if token := wantToken(t, "form body", resp); token != "" {
					return usable(ctx, t, token)
				}
				return nil
			},
		},
		{
			ID: "oauth.basic", Section: section, Severity: Must, NoNamespace: true, Needs: []string{"oauth-tokens", "client-credential"},
			Title: "client credentials by HTTP Basic give a token that works", Ref: "spec OAuthClientCredentialsRequest; DuckDB sends only this; RFC 6749 section 2.3.1",
			Check: func(ctx context.Context, t *Trial) error {
				id, secret := credential(t)
				resp, err := ask(ctx, t, form, basic(id, secret), url.Values{"grant_type": {"client_credentials"}})
				if err != nil {
					return err
				}
				if token := wantToken(t, "HTTP Basic", resp); token != "" {
					return usable(ctx, t, token)
				}
				return nil
			},
		},
		{
			ID: "oauth.exchange", Section: section, Severity: Should, NoNamespace: true, Needs: []string{"oauth-tokens", "client-credential"},
			Title: "a token can be exchanged for a fresh one", Ref: "spec OAuthTokenExchangeRequest (use 3); Java and Trino refresh so",
			Check: func(ctx context.Context, t *Trial) error {
				id, secret := credential(t)
				first, err := ask(ctx, t, form, "", url.Values{"grant_type": {"client_credentials"}, "client_id": {id}, "client_secret": {secret}})
				if err != nil {
					return err
				}
				token := wantToken(t, "client credentials", first)
				resp, err := ask(ctx, t, form, "Bearer "+token, url.Values{
					"grant_type": {exchange}, "subject_token": {token}, "scope": {"catalog"},
					"subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
				})
				if err != nil {
					return err
				}
				if fresh := wantToken(t, "exchange", resp); fresh != "" {
					return usable(ctx, t, fresh)
				}
				return nil
			},
		},
		bad("wrong-secret", "a wrong secret is the OAuth error invalid_client", refuse, "invalid_client", "", form,
			url.Values{"grant_type": {"client_credentials"}, "client_id": {"no-such-client"}, "client_secret": {"x"}}),
		bad("wrong-basic", "a wrong secret by HTTP Basic is 401 invalid_client", []int{http.StatusUnauthorized}, "invalid_client", basic("no-such-client", "x"), form,
			url.Values{"grant_type": {"client_credentials"}}),
		bad("unknown-grant", "an unknown grant type is unsupported_grant_type", []int{http.StatusBadRequest}, "unsupported_grant_type", "", form,
			url.Values{"grant_type": {"password"}, "username": {"u"}, "password": {"p"}}),
		bad("no-grant", "a missing grant type is invalid_request", []int{http.StatusBadRequest}, "invalid_request", "", form,
			url.Values{"client_id": {"x"}, "client_secret": {"y"}}),
		bad("empty", "an empty body is invalid_request", []int{http.StatusBadRequest}, "invalid_request", "", form, url.Values{}),
		bad("repeated", "a repeated parameter is invalid_request", []int{http.StatusBadRequest}, "invalid_request", "", form,
			url.Values{"grant_type": {"client_credentials", "client_credentials"}, "client_id": {"x"}, "client_secret": {"y"}}),
		bad("json-body", "a body that is not a form is refused", []int{http.StatusBadRequest, http.StatusUnsupportedMediaType}, "", "", "application/json",
			url.Values{"grant_type": {"client_credentials"}}),
		bad("exchange-garbage", "an exchange of a token that nobody issued is refused", refuse, "", "", form,
			url.Values{"grant_type": {exchange}, "subject_token": {"garbage"}, "subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"}}),
		bad("exchange-unsigned", "an exchange of an unsigned JWT is refused", refuse, "", "", form,
			url.Values{"grant_type": {exchange}, "subject_token": {unsignedJWT()}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"}}),
		bad("exchange-no-subject", "an exchange without a subject token is invalid_request", []int{http.StatusBadRequest}, "", "", form,
			url.Values{"grant_type": {exchange}}),
	}
}
