// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// openIssuers makes the verifiers. It asks nobody.
func (s *Service) openIssuers() error {
	own := ""
	if s.tokens != nil {
		own = s.cfg.Issuer
	}
	for n := range s.cfg.Issuers {
		if field, err := s.cfg.Issuers[n].Check(); err != nil {
			return fmt.Errorf("issuer %q: %s %w", s.cfg.Issuers[n].Name, field, err)
		}
	}
	if at, field, err := CheckIssuers(s.cfg.Issuers, own); err != nil {
		return fmt.Errorf("issuer %q: %s %w", s.cfg.Issuers[at].Name, field, err)
	}
	for _, one := range s.cfg.Issuers {
		i := &issuer{Issuer: one}
		if err := s.openIssuer(i); err != nil {
			return fmt.Errorf("issuer %q: %w", i.Name, err)
		}
		s.issuers = append(s.issuers, i)
		s.byName[i.Name] = i
		if i.URL != "" {
			s.byURL[i.URL] = i
		}
		if i.Introspection != nil {
			s.opaque = append(s.opaque, i)
		}
		if i.certs != nil {
			s.byCert = append(s.byCert, i)
		}
	}
	slices.SortStableFunc(s.opaque, func(a, b *issuer) int {
		return len(b.Introspection.TokenPrefix) - len(a.Introspection.TokenPrefix)
	})
	return nil
}

func (s *Service) openIssuer(i *issuer) error {
	now, w := s.cfg.Now, &web{caFile: i.CAFile}
	if i.CAFile != "" {
		if _, err := w.current(); err != nil {
			return fmt.Errorf("ca_file: %w", err)
		}
	}
	observe := func(outcome string) { s.cfg.ObserveIssuer(i.Name, outcome) }
	var err error
	switch {
	case i.Kind == IssuerMTLS:
		if i.certs, err = newCertVerifier(&i.Issuer, now, s.cfg.Logger); err != nil {
			return fmt.Errorf("mtls.ca_file: %w", err)
		}
	case i.Kind == IssuerIntrospection:
		ask := &introspection{*i.Introspection, i.Name, i.URL, i.Audiences, w, now}
		v, err := newRemoteVerifier(i.Name, w, ask.NegativeTTL, now, observe)
		if err != nil {
			return err
		}
		v.ask, v.check, i.verifier = ask.ask, ask.probe, v
	case i.Kubernetes != nil && i.Kubernetes.Review:
		ask := &review{*i.Kubernetes, i.Name, i.URL, i.Audiences, w, now}
		v, err := newRemoteVerifier(i.Name, w, 0, now, observe)
		if err != nil {
			return err
		}
		v.ask, v.check, i.verifier = ask.ask, ask.probe, v
	default:
		i.verifier, err = s.openJWT(i, w, observe)
	}
	return err
}

func (s *Service) openJWT(i *issuer, w *web, observe func(string)) (verifier, error) {
	d := &discovery{web: w, issuer: i.URL, jwksURI: i.JWKSURI}
	if k := i.Kubernetes; k != nil && k.API != "" {
		// The cluster's document names addresses that may be reached from
		// within only; the API server itself serves the keys.
		d.jwksURI, d.tokenFile = strings.TrimSuffix(k.API, "/")+"/openid/v1/jwks", k.TokenFile
	}
	keys := newKeySet(&i.Issuer, d.keys, s.cfg.Now, s.cfg.Logger, observe)
	return newJWTVerifier(&i.Issuer, keys, w, s.cfg.Now)
}

// Run keeps keys and authorities up to date until ctx ends.
func (s *Service) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, i := range s.issuers {
		if i.verifier != nil {
			wg.Go(func() { i.verifier.run(ctx) })
		}
	}
	if len(s.byCert) > 0 {
		wg.Go(func() {
			ticker := time.NewTicker(authoritiesEvery)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
					s.Reload()
				}
			}
		})
	}
	wg.Wait()
}

// Reload reads the authorities of client certificates again.
func (s *Service) Reload() {
	for _, i := range s.byCert {
		i.certs.reload()
	}
}

// AsksForCertificates reports whether listeners should ask clients for
// certificates.
func (s *Service) AsksForCertificates() bool { return len(s.byCert) > 0 }

// Probe asks each issuer for what the configuration needs of it, and reports
// the result by its name.
func (s *Service) Probe(ctx context.Context, report func(issuer string, err error)) {
	for _, i := range s.issuers {
		if i.verifier != nil {
			report(i.Name, i.verifier.probe(ctx))
		}
	}
}

// issuerOf picks who checks a token: by its exact iss among those that are
// configured, or by its prefix when it is no JWT. own is set for our own
// tokens. Nothing is asked of anybody here, and nothing that the token says
// is believed.
func (s *Service) issuerOf(token string) (i *issuer, own bool, err error) {
	if len(token) > MaxTokenBytes {
		return nil, false, fmt.Errorf("a token of %d bytes is too long", len(token))
	}
	if claims, ok := payload(token); ok {
		iss, _ := claims["iss"].(string)
		if s.tokens != nil && iss == s.cfg.Issuer {
			return nil, true, nil
		}
		if i := s.byURL[iss]; iss != "" && i != nil {
			return i, false, nil
		}
		return nil, false, errors.New("the token's issuer is not configured")
	}
	if !isTokenText(token) {
		return nil, false, errors.New("the token holds characters that no token has")
	}
	for _, i := range s.opaque {
		if strings.HasPrefix(token, i.Introspection.TokenPrefix) {
			return i, false, nil
		}
	}
	return nil, false, errors.New("not a JWT, and no issuer is asked about other tokens")
}

// verifyFor verifies a token for a request, within the bounds on failures. The
// error is a [*Refusal].
func (s *Service) verifyFor(r *http.Request, token string, sum [sha256.Size]byte) (verified, error) {
	i, own, err := s.issuerOf(token)
	if err != nil {
		_, err := s.refuse(r, "bearer", err)
		return verified{}, err
	}
	address := ""
	if !own && i.verifier.remote() {
		// The attempt is taken beforehand, so that whoever sends rubbish
		// cannot make us flood the issuer.
		address = throttleAddress(ClientAddress(r, s.cfg.TrustedProxies))
		if wait := s.perTokenAddress.take(address); wait > 0 {
			return verified{}, s.throttled("bearer", wait, errors.New("the token was not looked at"))
		}
	}
	v, err := s.verifyOnce(r.Context(), token, sum, i)
	var away *unavailableError
	switch {
	case err == nil || errors.As(err, &away):
		if address != "" {
			s.perTokenAddress.refund(address)
		}
		if err != nil {
			return verified{}, s.unavailable("bearer", err)
		}
		return v, nil
	case address != "":
		return verified{}, s.refusal("bearer", err)
	}
	_, err = s.refuse(r, "bearer", err)
	return verified{}, err
}

// verifyOnce verifies a token and keeps the result. Requests with the same
// token at the same time share one verification. i is nil for our own tokens.
func (s *Service) verifyOnce(ctx context.Context, token string, sum [sha256.Size]byte, i *issuer) (verified, error) {
	done := s.flights.DoChan(string(sum[:]), func() (v any, err error) {
		// A panic in a goroutine of its own would end the process.
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic while a token was verified: %v", p)
			}
		}()
		// Another flight may have ended since the caller looked.
		if v, ok := s.known(sum); ok {
			return v, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
		defer cancel()
		fresh, err := s.verify(ctx, token, i)
		if err == nil {
			s.verified.Add(sum, fresh)
		}
		return fresh, err
	})
	select {
	case r := <-done:
		v, _ := r.Val.(verified)
		return v, r.Err
	case <-ctx.Done():
		return verified{}, &unavailableError{"of the token", ctx.Err()}
	}
}

// verify verifies a token.
func (s *Service) verify(ctx context.Context, token string, i *issuer) (verified, error) {
	if i == nil {
		c, err := s.tokens.verify(token)
		if err != nil {
			return verified{}, err
		}
		p, err := s.principalOf(c)
		return verified{principal: p, expires: time.Unix(c.Expires, 0).Add(Skew)}, err
	}
	now := s.cfg.Now()
	// Before the keys are read: a change meanwhile makes the result an old one.
	epoch, _ := i.verifier.epoch(now)
	claims, until, err := i.verifier.verify(ctx, token)
	if err != nil {
		return verified{}, err
	}
	v := verified{expires: until, issuer: i, epoch: epoch}
	if most := now.Add(verifiedAtMost); v.expires.After(most) {
		v.expires = most
	}
	if v.of, err = i.Claims.identity(claims); err != nil {
		return verified{}, err
	}
	v.principal = i.principal(v.of)
	if v.bound, err = boundTo(claims); err != nil {
		return verified{}, err
	}
	if err := s.actorOf(claims, i, &v.principal); err != nil {
		return verified{}, err
	}
	return v, nil
}

// boundTo returns the certificate that a token is bound to (RFC 8705 section
// 3.1). A token that is bound to something else is not accepted as a bearer's.
func boundTo(claims map[string]any) (*[sha256.Size]byte, error) {
	v, ok := claims["cnf"]
	if !ok || v == nil {
		return nil, nil
	}
	cnf, _ := v.(map[string]any)
	text, _ := cnf["x5t#S256"].(string)
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != sha256.Size || len(cnf) != 1 {
		return nil, errors.New("the token is bound to a key in a way that cannot be checked here")
	}
	return (*[sha256.Size]byte)(raw), nil
}

// actorOf reads who acts for the token's subject (RFC 8693 section 4.1). Only
// the current actor counts; actors before are of no consequence.
func (s *Service) actorOf(claims map[string]any, i *issuer, p *Principal) error {
	v, ok := claims["act"]
	if !ok || v == nil {
		return nil
	}
	act, isObject := v.(map[string]any)
	if !isObject {
		return errors.New("the claim act is not an object")
	}
	subject, err := nameIn(act, "sub")
	if err != nil {
		return fmt.Errorf("the actor: %w", err)
	}
	if iss, ok := act["iss"]; ok {
		text, _ := iss.(string)
		if i = s.byURL[text]; text == "" || i == nil {
			return errors.New("the actor's issuer is not configured")
		}
	}
	p.Actor, p.actorGrants = i.id(subject), i.grantsOf(subject, nil)
	return nil
}

// authenticateCertificate returns who a connection's client certificate is of.
func (s *Service) authenticateCertificate(r *http.Request) (Principal, error) {
	chain := r.TLS.PeerCertificates
	sum := thumbprint(chain[0])
	if v, ok := s.certificates.Get(sum); ok && v.current(s.cfg.Now()) {
		s.cfg.Observe("certificate", "ok")
		return v.principal, nil
	}
	var causes []error
	for _, i := range s.byCert {
		trust := i.certs.trusted.Load()
		claims, until, err := i.certs.verify(chain)
		if err == nil {
			var of identityOf
			if of, err = i.Claims.identity(claims); err == nil {
				v := verified{principal: i.principal(of), expires: until, issuer: i, trust: trust, of: of}
				s.certificates.Add(sum, v)
				s.cfg.Observe("certificate", "ok")
				return v.principal, nil
			}
		}
		causes = append(causes, fmt.Errorf("issuer %s: %w", i.Name, err))
	}
	return s.refuse(r, "certificate", errors.Join(causes...))
}
