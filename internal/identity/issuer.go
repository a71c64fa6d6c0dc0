// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// IssuerKind is how the principals of an issuer are verified.
type IssuerKind string

// The kinds of issuers.
const (
	IssuerJWT           IssuerKind = "jwt"           // signed tokens, by the issuer's published keys
	IssuerIntrospection IssuerKind = "introspection" // tokens that the issuer is asked about (RFC 7662)
	IssuerKubernetes    IssuerKind = "kubernetes"    // service-account tokens of a cluster
	IssuerMTLS          IssuerKind = "mtls"          // client certificates
)

// Issuer is an external authority whose principals are let in.
type Issuer struct {
	// Name names the issuer in principals' ids and must never be given to
	// another authority.
	Name string
	Kind IssuerKind
	// URL is the iss of its tokens, compared byte by byte. Introspection may
	// leave it out, mtls has none.
	URL string
	// Audiences are the aud values that are accepted; a token needs one of
	// them. Certificates have none.
	Audiences []string
	// Algorithms are the signatures that are accepted: RS256 and ES256 when
	// empty.
	Algorithms []string
	Claims     ClaimMapping
	Grants     []IssuerGrant
	// JWKSURI is where the keys are; found by OpenID Connect discovery when
	// empty.
	JWKSURI string
	// CAFile has the authorities that the issuer's own certificate is checked
	// against; the system's when empty.
	CAFile string
	// Refresh is how often keys are fetched (5 minutes when zero), and
	// MaxStale how long they are used when that fails (12 hours when zero).
	Refresh, MaxStale time.Duration

	Introspection *Introspection
	Kubernetes    *Kubernetes
	MTLS          *MTLS
}

// Introspection is how an issuer is asked about a token (RFC 7662).
type Introspection struct {
	Endpoint     string
	ClientID     string
	ClientSecret secret.Value
	// InForm sends the client's credentials in the form, not by HTTP Basic.
	InForm bool
	// TokenPrefix is what the issuer's opaque tokens begin with. A token goes
	// to the issuer with the longest prefix that fits, and to no other.
	TokenPrefix string
	// TTL bounds how long an answer is believed (1 minute when zero), and
	// NegativeTTL a refusal (10 seconds when zero).
	TTL, NegativeTTL time.Duration
}

// Kubernetes is a cluster.
type Kubernetes struct {
	// API is the URL of the API server. When it is empty the cluster's issuer
	// publishes its keys as any other.
	API string
	// TokenFile has the bearer token for the API server; read for each
	// request, since Kubernetes replaces it.
	TokenFile string
	// Review asks the API server about each token (TokenReview) instead of
	// checking its signature.
	Review bool
	// TTL bounds how long a review's answer is believed; 1 minute when zero.
	TTL time.Duration
}

// MTLS is an authority of client certificates.
type MTLS struct {
	CAFile string
	// TrustDomain makes the subject the SPIFFE id, which must be of this trust
	// domain. When it is empty, the subject is the common name.
	TrustDomain string
}

// IssuerGrant gives access to the principals of an issuer: exactly one of
// Subject, Group and Everyone says to which.
type IssuerGrant struct {
	Subject, Group string
	Everyone       bool
	Grant
}

// The algorithms that an issuer may sign with: those with a public key.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

const (
	defaultRefresh     = 5 * time.Minute
	defaultMaxStale    = 12 * time.Hour
	defaultTTL         = time.Minute
	defaultNegativeTTL = 10 * time.Second
)

// issuerForm has no colon, which ends the name in a principal's id.
var issuerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// reservedNames begin ids of principals that are no issuer's.
var reservedNames = []string{"account", "operator", "anonymous", "system"}

// CheckIssuerName reports what is wrong with an issuer's name.
func CheckIssuerName(name string) error {
	if !issuerForm.MatchString(name) {
		return fmt.Errorf("issuer name %q must begin with a small letter and hold at most 63 small letters, digits and -", clip(name))
	}
	if slices.Contains(reservedNames, name) {
		return fmt.Errorf("issuer name %q is taken by the catalog itself", name)
	}
	return nil
}

// CheckEndpoint reports what is wrong with a URL that will be asked: it must
// be https, or http on this machine, and hold no credentials.
func CheckEndpoint(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return fmt.Errorf("%q is not a URL", clip(s))
	case u.User != nil:
		return errors.New("a URL must hold no user or password")
	case u.Fragment != "":
		return fmt.Errorf("%q must have no fragment", clip(s))
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("%q must be an https URL: what it answers decides who is let in", clip(s))
}

// Check reports what is wrong with an issuer, without opening anything. Field
// is the configuration's key, "" for the issuer as a whole.
func (i *Issuer) Check() (field string, err error) {
	if err := CheckIssuerName(i.Name); err != nil {
		return "name", err
	}
	if field, err := i.checkKind(); err != nil {
		return field, err
	}
	for _, a := range i.Algorithms {
		if !slices.Contains(algorithms, a) {
			return "algorithms", fmt.Errorf("%q is not one of %s", clip(a), strings.Join(algorithms, ", "))
		}
	}
	if i.JWKSURI != "" {
		if i.Kind != IssuerJWT {
			return "jwks_uri", fmt.Errorf("does not belong to an issuer of kind %s", i.Kind)
		}
		if err := CheckEndpoint(i.JWKSURI); err != nil {
			return "jwks_uri", err
		}
	}
	if field, err := i.Claims.check(); err != nil {
		return "claims" + field, err
	}
	for n, g := range i.Grants {
		said := 0
		for _, there := range []bool{g.Subject != "", g.Group != "", g.Everyone} {
			if there {
				said++
			}
		}
		if said != 1 {
			return fmt.Sprintf("grants[%d]", n), errors.New("say to whom: exactly one of subject, group and everyone: true")
		}
		if g.Group != "" && i.Claims.Groups == "" {
			return fmt.Sprintf("grants[%d].group", n), errors.New("no claim gives groups; set claims.groups")
		}
	}
	return "", nil
}

func (i *Issuer) checkKind() (field string, err error) {
	for _, section := range []struct {
		key   string
		kind  IssuerKind
		there bool
	}{
		{"introspection", IssuerIntrospection, i.Introspection != nil},
		{"kubernetes", IssuerKubernetes, i.Kubernetes != nil},
		{"mtls", IssuerMTLS, i.MTLS != nil},
	} {
		if section.there && i.Kind != section.kind {
			return section.key, fmt.Errorf("does not belong to an issuer of kind %s", i.Kind)
		}
	}
	switch i.Kind {
	case IssuerJWT, IssuerKubernetes:
		if i.URL == "" {
			return "issuer", errors.New("is required: the iss of the tokens")
		}
	case IssuerIntrospection:
		if i.Introspection == nil {
			return "introspection", errors.New("is required for an issuer of kind introspection")
		}
		if err := CheckEndpoint(i.Introspection.Endpoint); err != nil {
			return "introspection.endpoint", err
		}
	case IssuerMTLS:
		return i.checkMTLS()
	default:
		return "kind", fmt.Errorf("%q is not one of jwt, introspection, kubernetes, mtls", clip(string(i.Kind)))
	}
	if i.URL != "" {
		if err := CheckEndpoint(i.URL); err != nil {
			return "issuer", err
		}
		if strings.Contains(i.URL, "?") {
			return "issuer", errors.New("must have no query (OpenID Connect Discovery, section 2)")
		}
	}
	if len(i.Audiences) == 0 || slices.Contains(i.Audiences, "") {
		return "audiences", errors.New("are required: without them a token for any other service of this issuer would be accepted here")
	}
	return i.checkKubernetes()
}

func (i *Issuer) checkKubernetes() (field string, err error) {
	k := i.Kubernetes
	switch {
	case k == nil:
		return "", nil
	case k.API == "" && (k.Review || k.TokenFile != ""):
		return "kubernetes.api", errors.New("is required with review and token_file: the URL of the API server")
	case k.API == "":
		return "", nil
	case k.Review && k.TokenFile == "":
		return "kubernetes.token_file", errors.New("is required with review: the token that may create TokenReviews")
	}
	if err := CheckEndpoint(k.API); err != nil {
		return "kubernetes.api", err
	}
	return "", nil
}

func (i *Issuer) checkMTLS() (field string, err error) {
	switch {
	case i.MTLS == nil:
		return "mtls", errors.New("is required for an issuer of kind mtls")
	case i.MTLS.CAFile == "":
		return "mtls.ca_file", errors.New("is required: the authorities that sign client certificates")
	case i.URL != "":
		return "issuer", errors.New("does not belong to an issuer of kind mtls")
	case len(i.Audiences) > 0:
		return "audiences", errors.New("do not belong to an issuer of kind mtls: certificates have none")
	case i.Claims.Subject != "" && i.Claims.Subject != "sub":
		return "claims.subject", errors.New("is fixed for an issuer of kind mtls: the common name, or with mtls.trust_domain the SPIFFE id")
	case i.MTLS.TrustDomain != "" && !isTrustDomain(i.MTLS.TrustDomain):
		return "mtls.trust_domain", errors.New("must be a name of small letters, digits and . - _ without scheme and path")
	}
	return "", nil
}

// CheckIssuers reports what does not go together in a list of issuers that
// are each valid. own is the iss of the catalog's tokens, "" when it signs
// none. At is the index of the one that is wrong.
func CheckIssuers(list []Issuer, own string) (at int, field string, err error) {
	names, urls, prefixes := map[string]bool{}, map[string]bool{}, map[string]bool{}
	types := map[string]AttributeType{}
	for n := range list {
		i := &list[n]
		if names[i.Name] {
			return n, "name", fmt.Errorf("there are two issuers %q", i.Name)
		}
		names[i.Name] = true
		if i.URL != "" {
			if urls[i.URL] {
				return n, "issuer", fmt.Errorf("there are two issuers with the iss %q; a token must belong to one", clip(i.URL))
			}
			if i.URL == own {
				return n, "issuer", errors.New("is the iss of the catalog's own tokens")
			}
			urls[i.URL] = true
		}
		if i.Introspection != nil {
			if prefixes[i.Introspection.TokenPrefix] {
				return n, "introspection.token_prefix", errors.New("two issuers have the same prefix; an opaque token must belong to one, or one issuer would be shown the other's tokens")
			}
			prefixes[i.Introspection.TokenPrefix] = true
		}
		for m, a := range i.Claims.Attributes {
			if t, ok := types[a.Name]; ok && t != a.Type {
				return n, fmt.Sprintf("claims.attributes[%d].type", m), fmt.Errorf("attribute %q is a %s elsewhere; policies know one type of it", a.Name, t)
			}
			types[a.Name] = a.Type
		}
	}
	return 0, "", nil
}

// issuer verifies the principals of an [Issuer].
type issuer struct {
	Issuer
	verifier verifier      // nil with mtls
	certs    *certVerifier // with mtls only
}

// verifier checks tokens of one issuer.
type verifier interface {
	// verify returns a token's claims and until when they may be believed
	// without asking again. An [*unavailableError] is in the error's chain
	// when nothing was found out about the token. Errors hold no part of the
	// token.
	verify(ctx context.Context, token string) (claims map[string]any, until time.Time, err error)
	// remote reports whether each token costs a request to somebody else.
	remote() bool
	// epoch changes when what was verified before must be verified again; ok
	// is false when it must not be believed at all now.
	epoch(now time.Time) (epoch uint64, ok bool)
	// run keeps it up to date until ctx ends.
	run(ctx context.Context)
	// probe asks the issuer for what the configuration needs of it.
	probe(ctx context.Context) error
}

// unavailableError is that an issuer cannot be asked now.
type unavailableError struct {
	issuer string
	cause  error
}

func (e *unavailableError) Error() string {
	return fmt.Sprintf("issuer %s cannot be asked: %v", e.issuer, e.cause)
}

func (e *unavailableError) Unwrap() error { return e.cause }

// id names a subject of the issuer in records. Names of issuers have no
// colon, and none is "account": no two principals have one id.
func (i *issuer) id(subject string) string { return i.Name + ":" + subject }

// kind is how its principals prove who they are.
func (i *issuer) kind() Kind {
	switch i.Kind {
	case IssuerKubernetes:
		return KindWorkload
	case IssuerMTLS:
		return KindCertificate
	}
	return KindToken
}

// identityOf is what an issuer says of a principal.
type identityOf struct {
	subject      string
	organisation string
	groups       []string // names that the issuer knows
	attributes   map[string]AttributeValue
}

// principal makes the principal of what the issuer says.
func (i *issuer) principal(of identityOf) Principal {
	p := Principal{
		ID: i.id(of.subject), Issuer: i.Name, Subject: of.subject, Kind: i.kind(),
		Organisation: of.organisation, Attributes: of.attributes, Grants: i.grantsOf(of.subject, of.groups),
	}
	for _, g := range of.groups {
		p.Groups = append(p.Groups, i.id(g))
	}
	return p
}

// grantsOf is what the configuration gives a subject with these groups.
func (i *issuer) grantsOf(subject string, groups []string) []Grant {
	var grants []Grant
	for _, g := range i.Grants {
		if g.Everyone || g.Subject != "" && g.Subject == subject || g.Group != "" && slices.Contains(groups, g.Group) {
			grants = append(grants, g.Grant)
		}
	}
	return grants
}
