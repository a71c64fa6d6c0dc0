// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import "github.com/sluice-data/sluice/internal/identity"

// OwnIssuer is the iss and aud of the tokens that the catalog signs; "" when
// it signs none.
func (c *Config) OwnIssuer() string {
	switch {
	case c.Tokens.SigningKey.Value.Empty():
		return ""
	case c.Tokens.Issuer != "":
		return c.Tokens.Issuer
	case c.PublicURI != "":
		return c.PublicURI
	}
	return "sluice"
}

// Identity is the issuer as package identity has it.
func (i *Issuer) Identity() identity.Issuer {
	o := i.Claims.Organisation
	to := identity.Issuer{
		Name: i.Name, Kind: identity.IssuerKind(i.Kind), URL: i.Issuer, Audiences: i.Audiences, Algorithms: i.Algorithms,
		Claims: identity.ClaimMapping{
			Subject: i.Claims.Subject, Organisation: identity.OrganisationMapping{Fixed: o.Fixed, Claim: o.Claim, Allowed: o.Allowed},
			Groups: i.Claims.Groups,
		},
		JWKSURI: i.JWKSURI, CAFile: i.CAFile, Refresh: i.Refresh, MaxStale: i.MaxStale,
	}
	for _, a := range i.Claims.Attributes {
		to.Claims.Attributes = append(to.Claims.Attributes, identity.AttributeMapping{
			Name: a.Name, Claim: a.Claim, Type: identity.AttributeType(a.Type), Required: a.Required,
		})
	}
	for _, g := range i.Grants {
		to.Grants = append(to.Grants, identity.IssuerGrant{
			Subject: g.Subject, Group: g.Group, Everyone: g.Everyone,
			Grant: identity.Grant{Warehouse: g.Warehouse, Access: AccessOf(g.Access)},
		})
	}
	if n := i.Introspection; n != nil {
		to.Introspection = &identity.Introspection{
			Endpoint: n.Endpoint, ClientID: n.ClientID, ClientSecret: n.ClientSecret.Value, InForm: n.Auth == "form",
			TokenPrefix: n.TokenPrefix, TTL: n.TTL, NegativeTTL: n.NegativeTTL,
		}
	}
	if k := i.Kubernetes; k != nil {
		to.Kubernetes = &identity.Kubernetes{API: k.API, TokenFile: k.TokenFile, Review: k.Review, TTL: k.TTL}
	}
	if m := i.MTLS; m != nil {
		to.MTLS = &identity.MTLS{CAFile: m.CAFile, TrustDomain: m.TrustDomain}
	}
	return to
}

// AccessOf is what a grant's word stands for.
func AccessOf(word string) identity.Access {
	if word == "write" {
		return identity.AccessWrite
	}
	return identity.AccessRead
}
