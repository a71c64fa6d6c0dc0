// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// Skew is how far clocks may be apart when a token's times are compared.
	Skew = 30 * time.Second
	// maxTokenBytes refuses what cannot be one of our tokens before any work.
	maxTokenBytes = 4096
)

// claims are those of an access token. Times are whole seconds; a number in
// quotes, which RFC 7519 does not allow, does not decode.
type claims struct {
	Issuer   string `json:"iss"`
	Audience string `json:"aud"`
	Subject  string `json:"sub"` // client id, or the id of an issuer's principal
	Expires  int64  `json:"exp"`
	IssuedAt int64  `json:"iat"`
	NotAfter int64  `json:"session_exp,omitempty"` // exchanges end here
	ID       string `json:"jti"`
	Scope    string `json:"scope"`
	Actor    *actor `json:"act,omitempty"` // RFC 8693 section 4.1
	// External is what an issuer said of a subject that is not an account.
	External *external `json:"ext,omitempty"`
}

type external struct {
	Organisation string                    `json:"org"`
	Groups       []string                  `json:"groups,omitempty"` // as the issuer knows them
	Attributes   map[string]AttributeValue `json:"attributes,omitempty"`
}

type actor struct {
	Subject string `json:"sub"`
}

// subjectID is the id of the principal that the token is for.
func (c *claims) subjectID() string {
	if c.External != nil {
		return c.Subject
	}
	return principalID(c.Subject)
}

// actorID is the id of who acts for it; "" for nobody.
func (c *claims) actorID() string {
	if c.Actor == nil {
		return ""
	}
	return principalID(c.Actor.Subject)
}

// The methods of jwt.Claims.

func (c *claims) GetExpirationTime() (*jwt.NumericDate, error) { return numericDate(c.Expires), nil }

func (c *claims) GetIssuedAt() (*jwt.NumericDate, error)  { return numericDate(c.IssuedAt), nil }
func (c *claims) GetNotBefore() (*jwt.NumericDate, error) { return nil, nil }
func (c *claims) GetIssuer() (string, error)              { return c.Issuer, nil }
func (c *claims) GetSubject() (string, error)             { return c.Subject, nil }
func (c *claims) GetAudience() (jwt.ClaimStrings, error)  { return jwt.ClaimStrings{c.Audience}, nil }

func numericDate(seconds int64) *jwt.NumericDate {
	if seconds == 0 {
		return nil
	}
	return jwt.NewNumericDate(time.Unix(seconds, 0))
}

// tokens signs and checks access tokens.
type tokens struct {
	signer   SigningKey
	keys     map[string]VerifyKey // by id
	issuer   string
	audience string
	now      func() time.Time
	parser   *jwt.Parser
}

func newTokens(signer SigningKey, previous []VerifyKey, issuer, audience string, now func() time.Time) *tokens {
	t := &tokens{signer: signer, keys: map[string]VerifyKey{}, issuer: issuer, audience: audience, now: now}
	for _, k := range append(slices.Clone(previous), signer.Public()) {
		t.keys[k.ID()] = k
	}
	t.parser = jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithLeeway(Skew), jwt.WithTimeFunc(now), jwt.WithStrictDecoding(),
	)
	return t
}

// sign completes and signs claims.
func (t *tokens) sign(c claims) (string, error) {
	id := make([]byte, 15)
	rand.Read(id) //nolint:errcheck // never fails (crypto/rand)
	c.ID = base64.RawURLEncoding.EncodeToString(id)
	c.Issuer, c.Audience = t.issuer, t.audience
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, &c)
	token.Header["typ"] = "at+jwt" // RFC 9068
	token.Header["kid"] = t.signer.Public().ID()
	signed, err := token.SignedString(t.signer.private)
	if err != nil {
		return "", fmt.Errorf("sign an access token: %w", err)
	}
	return signed, nil
}

// errExpired is in the chain of verify's error when the token is genuine and
// has only expired; the claims are valid then.
var errExpired = jwt.ErrTokenExpired

// verify checks a token's signature and every claim. Errors hold no part of
// the token.
func (t *tokens) verify(raw string) (*claims, error) {
	if len(raw) > maxTokenBytes {
		return nil, fmt.Errorf("a token of %d bytes is too long", len(raw))
	}
	c := &claims{}
	_, err := t.parser.ParseWithClaims(raw, c, t.key)
	switch {
	case err == nil:
	case errors.Is(err, jwt.ErrTokenExpired) && onlyExpired(err):
		return c, errExpired
	case errors.Is(err, jwt.ErrTokenMalformed), errors.Is(err, jwt.ErrTokenUnverifiable):
		// The library quotes input in some of these.
		return nil, errors.New("not one of this catalog's tokens")
	default:
		return nil, err
	}
	if c.Subject == "" || c.IssuedAt == 0 {
		return nil, errors.New("the token lacks sub or iat")
	}
	return c, nil
}

// onlyExpired reports whether expiry is all that is wrong: the signature is
// checked before the claims, and each wrong claim has an error of its own.
func onlyExpired(err error) bool {
	for _, other := range []error{
		jwt.ErrTokenSignatureInvalid, jwt.ErrTokenMalformed, jwt.ErrTokenUnverifiable, jwt.ErrTokenInvalidAudience,
		jwt.ErrTokenInvalidIssuer, jwt.ErrTokenUsedBeforeIssued, jwt.ErrTokenNotValidYet, jwt.ErrTokenRequiredClaimMissing,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// key picks the key by the exact id in the header, which may hold nothing
// else: no key, URL or critical extension that a verifier could be led by.
func (t *tokens) key(token *jwt.Token) (any, error) {
	for name := range token.Header {
		if name != "alg" && name != "typ" && name != "kid" {
			return nil, errors.New("unexpected header")
		}
	}
	id, _ := token.Header["kid"].(string)
	k, ok := t.keys[id]
	if !ok {
		return nil, errors.New("unknown key")
	}
	return k.public, nil
}
