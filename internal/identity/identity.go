// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/sluice-data/sluice/internal/secret"
)

// Config is what a [Service] is made of.
type Config struct {
	Accounts []Account
	// LookupAccount finds accounts beside those, such as an administrator's; nil
	// when there is none. An error counts as none. A token that has been verified
	// is believed for some time without asking again: whoever deletes accounts
	// sees to it that their requests are refused.
	LookupAccount func(ctx context.Context, clientID string) (*Account, error)
	// Issuers are the external authorities whose principals are let in.
	Issuers []Issuer
	// SigningKey signs tokens; tokens of PreviousKeys are still accepted. With
	// Issuers it may be left out: then there are no tokens of our own.
	SigningKey   SigningKey
	PreviousKeys []VerifyKey
	// Issuer and Audience are the iss and aud of tokens: by default both are
	// "sluice". Deployments that share a key share these.
	Issuer, Audience string
	// TokenLifetime is how long a token is valid; an hour when zero.
	TokenLifetime time.Duration
	// MaxSession bounds how long a token can be renewed by exchanging it,
	// counted from the client secret's use; zero means without bound.
	MaxSession time.Duration
	// StaticTokens are fixed bearer tokens, for development.
	StaticTokens []StaticToken
	// TrustedProxies are believed about where a request comes from.
	TrustedProxies []netip.Prefix
	Limits         Limits
	// Observe is called after each attempt: kind "bearer", "certificate",
	// "client" or "activation", outcome "ok", "refused", "throttled" or
	// "unavailable".
	// ObserveIssuer is called after each request to an issuer, outcome "ok" or
	// "error". They must not block.
	Observe       func(kind, outcome string)
	ObserveIssuer func(issuer, outcome string)
	// Record is called with each request for a token, before it is answered;
	// an error turns the answer into a 503.
	Record func(context.Context, TokenRequest) error
	Logger *slog.Logger
	Now    func() time.Time
}

// StaticToken is a fixed token of an account.
type StaticToken struct {
	Token    secret.Value
	ClientID string
}

// Limits bound failing attempts. Each count is per Window; zero takes the
// default.
type Limits struct {
	Window time.Duration // 1 minute
	// ClientFailures are wrong secrets per client id and address, and
	// activation links that are not valid per caller (10).
	ClientFailures int
	// AddressFailures are wrong secrets per address, and such links (100).
	AddressFailures int
	// TokenFailures are invalid bearer tokens per address (600). A valid
	// token is never refused for the failures of others.
	TokenFailures int
	// HashConcurrency is how many secrets are checked at once, each with the
	// memory of its hash (19 MiB): the number of CPUs, at most 4.
	HashConcurrency int
}

func (l Limits) orDefaults() Limits {
	def := func(n *int, d int) {
		if *n <= 0 {
			*n = d
		}
	}
	def(&l.ClientFailures, 10)
	def(&l.AddressFailures, 100)
	def(&l.TokenFailures, 600)
	def(&l.HashConcurrency, min(runtime.GOMAXPROCS(0), 4))
	if l.Window <= 0 {
		l.Window = time.Minute
	}
	return l
}

// Service authenticates requests and issues tokens. It is safe for concurrent
// use.
type Service struct {
	cfg      Config
	accounts *accounts
	tokens   *tokens // nil without a signing key
	issuers  []*issuer
	byName   map[string]*issuer
	byURL    map[string]*issuer // by iss
	opaque   []*issuer          // asked about tokens that are no JWTs; longest prefix first
	byCert   []*issuer          // that verify client certificates
	// flights coalesce verifications of one token.
	flights singleflight.Group
	// certificates are like verified, by the SHA-256 of a certificate. They
	// are apart, since a certificate is no secret.
	certificates *lru.Cache[[sha256.Size]byte, verified]
	// verified holds what tokens stand for, by their SHA-256. Static tokens
	// are in static.
	verified *lru.Cache[[sha256.Size]byte, verified]
	static   map[[sha256.Size]byte]Principal

	perClient, perAddress, perTokenAddress *throttle
}

type verified struct {
	principal Principal
	expires   time.Time // when it must be verified again
	// issuer is who vouches for it, nil for our own tokens; what it said in
	// another epoch counts no more.
	issuer *issuer
	epoch  uint64
	trust  *authorities // of a certificate
	// bound is the certificate that a token may be used with only (RFC 8705);
	// nil for none.
	bound *[sha256.Size]byte
	// of is what the issuer said.
	of identityOf
}

// current reports whether v can be believed without verifying again.
func (v *verified) current(now time.Time) bool {
	if !now.Before(v.expires) {
		return false
	}
	switch {
	case v.issuer == nil:
		return true
	case v.issuer.certs != nil:
		return v.trust == v.issuer.certs.trusted.Load()
	}
	epoch, ok := v.issuer.verifier.epoch(now)
	return ok && epoch == v.epoch
}

const (
	verifiedTokens = 8192
	// verifyTimeout bounds a verification with all that it asks for.
	verifyTimeout = 10 * time.Second
	// verifiedAtMost bounds how long a verification is believed.
	verifiedAtMost = time.Hour
	defaultName    = "sluice"
	realm          = `realm="sluice"`
)

// New checks the configuration and returns its Service.
func New(cfg Config) (*Service, error) {
	if cfg.SigningKey.private == nil && len(cfg.Issuers) == 0 {
		return nil, errors.New("a signing key is required, or an issuer")
	}
	if cfg.Issuer == "" {
		cfg.Issuer = defaultName
	}
	if cfg.Audience == "" {
		cfg.Audience = defaultName
	}
	if cfg.TokenLifetime <= 0 {
		cfg.TokenLifetime = time.Hour
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, string) {}
	}
	if cfg.ObserveIssuer == nil {
		cfg.ObserveIssuer = func(string, string) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Limits = cfg.Limits.orDefaults()
	accounts, err := newAccounts(cfg.Accounts, cfg.Limits.HashConcurrency)
	if err != nil {
		return nil, err
	}
	if cfg.LookupAccount != nil {
		accounts.lookup, accounts.rounds = cfg.LookupAccount, MaxSecrets
	}
	cache, err := lru.New[[sha256.Size]byte, verified](verifiedTokens)
	if err != nil {
		return nil, fmt.Errorf("token cache: %w", err)
	}
	certificates, err := lru.New[[sha256.Size]byte, verified](verifiedTokens)
	if err != nil {
		return nil, fmt.Errorf("certificate cache: %w", err)
	}
	s := &Service{
		cfg:             cfg,
		accounts:        accounts,
		verified:        cache,
		certificates:    certificates,
		byName:          map[string]*issuer{},
		byURL:           map[string]*issuer{},
		static:          map[[sha256.Size]byte]Principal{},
		perClient:       newThrottle(cfg.Limits.ClientFailures, cfg.Limits.Window, cfg.Now),
		perAddress:      newThrottle(cfg.Limits.AddressFailures, cfg.Limits.Window, cfg.Now),
		perTokenAddress: newThrottle(cfg.Limits.TokenFailures, cfg.Limits.Window, cfg.Now),
	}
	if cfg.SigningKey.private != nil {
		s.tokens = newTokens(cfg.SigningKey, cfg.PreviousKeys, cfg.Issuer, cfg.Audience, cfg.Now)
	}
	if err := s.openIssuers(); err != nil {
		return nil, err
	}
	for _, t := range cfg.StaticTokens {
		account := accounts.byID[t.ClientID]
		if account == nil {
			return nil, fmt.Errorf("a static token names the client %q, which there is not", t.ClientID)
		}
		if err := CheckStaticToken(t.Token); err != nil {
			return nil, err
		}
		s.static[sha256.Sum256([]byte(t.Token.Reveal()))] = account.principal()
	}
	return s, nil
}

// CheckStaticToken reports what is wrong with a fixed bearer token: it must
// be a b64token of RFC 6750 of 16 to 512 bytes.
func CheckStaticToken(t secret.Value) error {
	s := t.Reveal()
	if len(s) < MinSecretBytes || len(s) > 512 {
		return fmt.Errorf("a static token must be %d to 512 characters long", MinSecretBytes)
	}
	if !isTokenText(s) {
		return errors.New("a static token may hold letters, digits and - . _ ~ + / = only")
	}
	return nil
}

// isTokenText reports whether s has the characters of a b64token (RFC 6750
// section 2.1).
func isTokenText(s string) bool {
	return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=") == ""
}

// principal is the account calling by itself.
func (a *Account) principal() Principal {
	return Principal{ID: principalID(a.ClientID), Subject: a.ClientID, Kind: KindService, Organisation: a.Organisation, Grants: a.Grants}
}

// Refusal is why a request has no principal. Message and Challenge are
// written for the caller and tell nothing about the token; Cause is for logs.
type Refusal struct {
	// Status is 401, 429, or 503 when the token's issuer cannot be asked.
	Status     int
	Message    string
	Challenge  string        // WWW-Authenticate, with 401
	RetryAfter time.Duration // with 429 and 503
	Cause      error
}

// Error returns the message and the cause.
func (e *Refusal) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Refusal) Unwrap() error { return e.Cause }

// Authenticate returns who sent a request: by its bearer token (RFC 6750
// section 2.1; in no other place of the request) or, when it has no
// Authorization header, by the client certificate of its connection. The
// error is a [*Refusal].
func (s *Service) Authenticate(r *http.Request) (Principal, error) {
	values := r.Header["Authorization"]
	if len(values) == 0 {
		if len(s.byCert) > 0 && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			return s.authenticateCertificate(r)
		}
		return Principal{}, &Refusal{
			Status: http.StatusUnauthorized, Challenge: "Bearer " + realm,
			Message: "Not authorized: send a bearer token in the Authorization header",
		}
	}
	token, ok := bearerToken(values)
	if !ok {
		return s.refuse(r, "bearer", errors.New("the Authorization header is not one bearer token"))
	}
	sum := digest(token)
	if p, ok := s.static[sum]; ok {
		s.cfg.Observe("bearer", "ok")
		return p, nil
	}
	v, ok := s.known(sum)
	if !ok {
		var err error
		if v, err = s.verifyFor(r, token, sum); err != nil {
			return Principal{}, err
		}
	}
	if v.bound != nil && !presents(r, *v.bound) {
		return s.refuse(r, "bearer", errors.New("the token is bound to a certificate that the connection does not have"))
	}
	s.cfg.Observe("bearer", "ok")
	return v.principal, nil
}

// known returns a verification that can be believed again.
func (s *Service) known(sum [sha256.Size]byte) (verified, bool) {
	v, ok := s.verified.Get(sum)
	if ok && v.current(s.cfg.Now()) {
		return v, true
	}
	return verified{}, false
}

// presents reports whether a request's connection has a certificate.
func presents(r *http.Request, want [sha256.Size]byte) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && thumbprint(r.TLS.PeerCertificates[0]) == want
}

// refuse counts a failure and answers it.
func (s *Service) refuse(r *http.Request, kind string, cause error) (Principal, error) {
	address := throttleAddress(ClientAddress(r, s.cfg.TrustedProxies))
	if wait := s.perTokenAddress.take(address); wait > 0 {
		return Principal{}, s.throttled(kind, wait, cause)
	}
	return Principal{}, s.refusal(kind, cause)
}

func (s *Service) throttled(kind string, wait time.Duration, cause error) *Refusal {
	s.cfg.Observe(kind, "throttled")
	return &Refusal{
		Status: http.StatusTooManyRequests, RetryAfter: wait, Cause: cause,
		Message: "Too many requests with invalid tokens come from this address; try again later",
	}
}

func (s *Service) refusal(kind string, cause error) *Refusal {
	s.cfg.Observe(kind, "refused")
	if kind == "certificate" {
		return &Refusal{
			Status: http.StatusUnauthorized, Cause: cause, Challenge: "Bearer " + realm,
			Message: "Not authorized: the client certificate is not accepted",
		}
	}
	return &Refusal{
		Status: http.StatusUnauthorized, Cause: cause,
		Message:   "Not authorized: the token is not valid or has expired",
		Challenge: "Bearer " + realm + `, error="invalid_token", error_description="The access token is not valid or has expired"`,
	}
}

// unavailable answers for a token of which nothing was found out.
func (s *Service) unavailable(kind string, cause error) *Refusal {
	s.cfg.Observe(kind, "unavailable")
	return &Refusal{
		Status: http.StatusServiceUnavailable, RetryAfter: 5 * time.Second, Cause: cause,
		Message: "The token cannot be checked now, since its issuer does not answer; try again",
	}
}

// principalOf looks a token's account and actor up, so that a token outlives
// neither.
func (s *Service) principalOf(c *claims) (Principal, error) {
	granted, err := parseScope(c.Scope)
	if err != nil {
		return Principal{}, errors.New("the token's scope is not known")
	}
	p, err := s.subjectOf(c)
	if err != nil {
		return Principal{}, err
	}
	p.signOnly = granted == scopeSign
	if c.Actor != nil {
		a := s.accounts.find(context.Background(), c.Actor.Subject)
		if a == nil || !a.mayActFor(c.Subject) {
			return Principal{}, fmt.Errorf("the token's actor %q may not act for its subject", clip(c.Actor.Subject))
		}
		p.Actor, p.actorGrants = principalID(a.ClientID), a.Grants
	}
	return p, nil
}

// subjectOf is the account of one of our tokens, or the issuer's principal
// whose token it was exchanged for.
func (s *Service) subjectOf(c *claims) (Principal, error) {
	if c.External == nil {
		account := s.accounts.find(context.Background(), c.Subject)
		if account == nil {
			return Principal{}, fmt.Errorf("the token's account %q does not exist", clip(c.Subject))
		}
		return account.principal(), nil
	}
	name, subject, ok := strings.Cut(c.Subject, ":")
	i := s.byName[name]
	if !ok || i == nil {
		return Principal{}, fmt.Errorf("the issuer of the token's subject %q is not configured", clip(c.Subject))
	}
	if !i.Claims.speaksFor(c.External.Organisation) {
		return Principal{}, errors.New("the token's organisation is not among those that the issuer may speak for")
	}
	return i.principal(identityOf{subject, c.External.Organisation, c.External.Groups, c.External.Attributes}), nil
}

// staticPrincipal returns the principal of a fixed token. Looking up its
// SHA-256 tells an attacker nothing that time could.
func (s *Service) staticPrincipal(token string) (Principal, bool) {
	p, ok := s.static[digest(token)]
	return p, ok
}

// digest is the SHA-256 of a token, without a copy on the heap for tokens of
// the usual size.
func digest(token string) [sha256.Size]byte {
	var buf [1024]byte
	return sha256.Sum256(append(buf[:0], token...))
}

// bearerToken returns the token of the one Authorization header.
func bearerToken(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.TrimLeft(token, " ")
	return token, ok && token != "" && strings.EqualFold(scheme, "Bearer")
}
