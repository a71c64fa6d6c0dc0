// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/secret"
)

// served is minimal with a TLS listener, which client certificates need.
const served = minimal + "listeners: {catalog: {tls: {cert: a, key: b}}}\n"

// TestIssuers has every key of an issuer arrive where it belongs.
func TestIssuers(t *testing.T) {
	t.Parallel()
	c, err := parse("/etc/sluice/f.yaml", []byte(served+`issuers:
  - name: corp
    kind: jwt
    issuer: https://id.example.com
    audiences: [a, b]
    algorithms: [PS256, EdDSA]
    jwks_uri: https://id.example.com/keys
    ca_file: id.pem
    refresh: 1m
    max_stale: 1h
    claims:
      subject: oid
      organisation: {claim: tenant, allowed: [x, y]}
      groups: /r/g
      attributes: [{name: level, claim: "https://c/level", type: long, required: true}, {name: regions, type: set}]
    grants: [{group: g, warehouse: demo, access: read}, {subject: s, warehouse: demo, access: write}, {everyone: true, warehouse: "*", access: read}]
  - name: opaque
    kind: introspection
    audiences: [a]
    claims: {organisation: {fixed: o}}
    introspection: {endpoint: "https://i.example.com/i", client_id: c, client_secret: {env: HIDDEN}, auth: form, token_prefix: p_, ttl: 2s, negative_ttl: 3s}
  - name: cluster
    kind: kubernetes
    issuer: https://kubernetes.default.svc
    audiences: [a]
    claims: {organisation: {fixed: o}}
    kubernetes: {api: "https://10.0.0.1:6443", token_file: tok, review: true, ttl: 4s}
  - name: mesh
    kind: mtls
    claims: {organisation: {fixed: o}}
    mtls: {ca_file: mesh.pem, trust_domain: prod.example.com}
`), environment(t))
	if err != nil {
		t.Fatal(err)
	}
	fixed := identity.ClaimMapping{Subject: "sub", Organisation: identity.OrganisationMapping{Fixed: "o"}}
	want := []identity.Issuer{
		{
			Name: "corp", Kind: identity.IssuerJWT, URL: "https://id.example.com", Audiences: []string{"a", "b"}, Algorithms: []string{"PS256", "EdDSA"},
			JWKSURI: "https://id.example.com/keys", CAFile: "/etc/sluice/id.pem", Refresh: time.Minute, MaxStale: time.Hour,
			Claims: identity.ClaimMapping{
				Subject: "oid", Organisation: identity.OrganisationMapping{Claim: "tenant", Allowed: []string{"x", "y"}}, Groups: "/r/g",
				Attributes: []identity.AttributeMapping{{Name: "level", Claim: "https://c/level", Type: identity.TypeLong, Required: true}, {Name: "regions", Type: identity.TypeSet}},
			},
			Grants: []identity.IssuerGrant{
				{Group: "g", Grant: identity.Grant{Warehouse: "demo", Access: identity.AccessRead}},
				{Subject: "s", Grant: identity.Grant{Warehouse: "demo", Access: identity.AccessWrite}},
				{Everyone: true, Grant: identity.Grant{Warehouse: "*", Access: identity.AccessRead}},
			},
		},
		{
			Name: "opaque", Kind: identity.IssuerIntrospection, Audiences: []string{"a"}, Claims: fixed,
			Introspection: &identity.Introspection{
				Endpoint: "https://i.example.com/i", ClientID: "c", ClientSecret: secret.New(hidden), InForm: true, TokenPrefix: "p_", TTL: 2 * time.Second, NegativeTTL: 3 * time.Second,
			},
		},
		{
			Name: "cluster", Kind: identity.IssuerKubernetes, URL: "https://kubernetes.default.svc", Audiences: []string{"a"}, Claims: fixed,
			Kubernetes: &identity.Kubernetes{API: "https://10.0.0.1:6443", TokenFile: "/etc/sluice/tok", Review: true, TTL: 4 * time.Second},
		},
		{
			Name: "mesh", Kind: identity.IssuerMTLS, Claims: fixed,
			MTLS: &identity.MTLS{CAFile: "/etc/sluice/mesh.pem", TrustDomain: "prod.example.com"},
		},
	}
	for i := range want {
		if i > 0 { // the defaults of what is not given
			want[i].Algorithms, want[i].Refresh, want[i].MaxStale = []string{"RS256", "ES256"}, 5*time.Minute, 12*time.Hour
		}
		if got := c.Issuers[i].Identity(); !reflect.DeepEqual(got, want[i]) {
			t.Errorf("got  %+v\nwant %+v", got, want[i])
		}
	}
}

func TestProblemsOfIssuers(t *testing.T) {
	t.Parallel()
	jwt := func(change string) string {
		text := "issuers:\n  - {name: corp, kind: jwt, issuer: \"https://id.example.com\", audiences: [a], claims: {organisation: {fixed: o}}, grants: [{everyone: true, warehouse: demo, access: read}]}\n"
		old, replacement, _ := strings.Cut(change, " => ")
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the issuer", old)
		}
		return strings.Replace(text, old, replacement, 1)
	}
	for name, test := range map[string]struct{ yaml, want string }{
		"name":               {jwt("name: corp => name: account"), "issuers[0].name: issuer name \"account\" is taken"},
		"kind":               {jwt("kind: jwt => kind: saml"), `issuers[0].kind: "saml" is not one of`},
		"iss":                {jwt("https://id => http://id"), "issuers[0].issuer: \"http://id.example.com\" must be an https URL"},
		"no audience":        {jwt("audiences: [a], => "), "issuers[0].audiences: are required: without them"},
		"HS256":              {jwt("audiences: [a] => audiences: [a], algorithms: [HS256]"), `issuers[0].algorithms`},
		"none":               {jwt("audiences: [a] => audiences: [a], algorithms: [none]"), `issuers[0].algorithms`},
		"organisation":       {jwt("{fixed: o} => {claim: org}"), "issuers[0].claims.organisation.allowed: is required with claim"},
		"attribute":          {jwt("{organisation => {attributes: [{name: a-b, type: long}], organisation"), "issuers[0].claims.attributes[0]"},
		"grant to nobody":    {jwt("everyone: true, => "), "issuers[0].grants[0]: say to whom"},
		"grant to a group":   {jwt("everyone: true => group: g"), "issuers[0].grants[0].group: no claim gives groups"},
		"grant of nothing":   {jwt("warehouse: demo => warehouse: dmeo"), `issuers[0].grants[0].warehouse: there is no warehouse "dmeo"; did you mean "demo"?`},
		"a section too many": {jwt("audiences: [a] => audiences: [a], mtls: {ca_file: x}"), "issuers[0].mtls: does not belong to an issuer of kind jwt"},
		"a literal secret":   {jwt("kind: jwt => kind: introspection, introspection: {endpoint: \"https://x\", client_id: c, client_secret: " + hidden + "}"), "issuers[0].introspection.client_secret: a secret is not written here"},
		"refresh":            {jwt("audiences: [a] => audiences: [a], refresh: 1s"), "issuers[0].refresh: must be at least 10s"},
		"two of a name":      {jwt("[a] => [a]") + strings.TrimPrefix(jwt("id.example => di.example"), "issuers:\n"), `issuers[1].name: there are two issuers "corp"`},
		"two of an iss":      {jwt("[a] => [a]") + strings.TrimPrefix(jwt("name: corp => name: too"), "issuers:\n"), "issuers[1].issuer: there are two issuers with the iss"},
		"our own iss":        {"public_uri: \"https://id.example.com\"\n" + jwt("[a] => [a]"), "issuers[0].issuer: is the iss of the catalog's own tokens"},
		"plain certificates": {"issuers: [{name: m, kind: mtls, mtls: {ca_file: x}, claims: {organisation: {fixed: o}}}]\n", "issuers[0].kind: client certificates need listeners.catalog.tls"},
	} {
		_, err := parse("f.yaml", []byte(minimal+test.yaml), environment(t))
		var problems Problems
		if !errors.As(err, &problems) || len(problems) != 1 || !strings.Contains(problems[0].String(), test.want) {
			t.Errorf("%s: got  %v\nwant %s", name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), hidden) {
			t.Errorf("%s: the secret is repeated", name)
		}
	}
	// On whose behalf an account may act.
	for to, ok := range map[string]bool{"corp:*": true, "corp:alice": true, "*": true, "crop:*": false, "corp:": false} {
		yaml := strings.Replace(minimal, "  - client_id: alice\n", "  - client_id: alice\n    act_for: [\""+to+"\"]\n", 1) + jwt("[a] => [a]")
		if _, err := parse("f.yaml", []byte(yaml), environment(t)); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "accounts[0].act_for[0]: there is no issuer") {
			t.Errorf("act_for %s: %v", to, err)
		}
	}
}
