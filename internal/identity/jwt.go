// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"
)

const (
	// MaxTokenBytes is the longest token that is looked at.
	MaxTokenBytes = 16 << 10
	// maxKeyID is the longest key id.
	maxKeyID = 256
)

// jwtVerifier checks tokens by their issuer's keys.
type jwtVerifier struct {
	keys   *keySet
	web    *web
	keyOf  keyfunc.Keyfunc
	parser *jwt.Parser
}

func newJWTVerifier(i *Issuer, keys *keySet, w *web, now func() time.Time) (*jwtVerifier, error) {
	keyOf, err := keyfunc.New(keyfunc.Options{Storage: keys, UseWhitelist: []jwkset.USE{jwkset.UseSig, ""}})
	if err != nil {
		return nil, err
	}
	methods := i.Algorithms
	if len(methods) == 0 {
		methods = []string{"RS256", "ES256"}
	}
	return &jwtVerifier{keys: keys, web: w, keyOf: keyOf, parser: jwt.NewParser(
		jwt.WithValidMethods(methods), jwt.WithIssuer(i.URL), jwt.WithAudience(i.Audiences...),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(Skew), jwt.WithTimeFunc(now),
		jwt.WithStrictDecoding(), jwt.WithJSONNumber(),
	)}, nil
}

func (v *jwtVerifier) verify(ctx context.Context, raw string) (map[string]any, time.Time, error) {
	if err := v.keys.ready(ctx); err != nil {
		return nil, time.Time{}, err
	}
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(raw, claims, func(t *jwt.Token) (any, error) { return v.key(ctx, t) })
	var away *unavailableError
	switch {
	case err == nil:
	case errors.As(err, &away):
		return nil, time.Time{}, away
	case errors.Is(err, jwt.ErrTokenMalformed):
		return nil, time.Time{}, errors.New("not a JWT") // the library quotes input
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return nil, time.Time{}, errors.New("the token's header, or the key that it names, is not accepted")
	default:
		return nil, time.Time{}, err
	}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires == nil {
		return nil, time.Time{}, errors.New("the token does not expire")
	}
	return claims, expires.Add(Skew), nil
}

// misleading are headers that point to keys, or change what a signature is of
// (RFC 7515 sections 4.1.2 to 4.1.5 and 4.1.11, RFC 7797).
var misleading = []string{"jku", "jwk", "x5u", "crit", "b64", "enc", "zip"}

// key finds the key that a token names.
func (v *jwtVerifier) key(ctx context.Context, t *jwt.Token) (any, error) {
	for _, name := range misleading {
		if _, ok := t.Header[name]; ok {
			return nil, errors.New("a header that is not accepted")
		}
	}
	if id, _ := t.Header["kid"].(string); id == "" || len(id) > maxKeyID {
		return nil, errors.New("no key id, or one that is too long")
	}
	key, err := v.keyOf.KeyfuncCtx(ctx)(t)
	if err != nil {
		return nil, err
	}
	if !fits(t.Method.Alg(), key) {
		return nil, errors.New("the key is not one of the token's algorithm")
	}
	return key, nil
}

func (v *jwtVerifier) remote() bool { return false }

func (v *jwtVerifier) epoch(now time.Time) (uint64, bool) {
	return v.keys.generation.Load(), v.keys.usable(now)
}

func (v *jwtVerifier) run(ctx context.Context) {
	v.keys.run(ctx)
	v.web.close()
}

func (v *jwtVerifier) probe(ctx context.Context) error {
	if err := v.keys.update(ctx, 0); err != nil {
		return &unavailableError{v.keys.name, err}
	}
	return nil
}

// payload decodes the payload of a JWT in compact form without believing it.
// ok is false when the token does not look like one. Names that occur twice,
// of which different readers would see different ones, make it none.
func payload(token string) (claims map[string]any, ok bool) {
	header, rest, ok := strings.Cut(token, ".")
	body, signature, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || header == "" || strings.Contains(signature, ".") {
		return nil, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return nil, false
	}
	return object(raw)
}

// object decodes a JSON object, numbers as they are written. One in which a
// name occurs twice is refused: readers differ in which they see.
func object(raw []byte) (map[string]any, bool) {
	if !jsontext.Value(raw).IsValid() {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var o map[string]any
	err := d.Decode(&o)
	return o, err == nil && o != nil
}

// audienceOf reports whether aud (RFC 7519 section 4.1.3: a string or a list
// of strings) has one of ours.
func audienceOf(aud any, ours []string) bool {
	list, ok := stringsOf(aud)
	if !ok {
		return false
	}
	for _, a := range list {
		for _, o := range ours {
			if a == o {
				return true
			}
		}
	}
	return false
}

// secondsIn reads a time of a claim; ok is false when it is there and is none.
func secondsIn(claims map[string]any, name string) (at time.Time, there, ok bool) {
	v, there := claims[name]
	if !there || v == nil {
		return time.Time{}, false, true
	}
	n, isNumber := v.(json.Number)
	if !isNumber {
		return time.Time{}, true, false
	}
	f, err := n.Float64()
	if err != nil || f < 0 || f > 1<<40 {
		return time.Time{}, true, false
	}
	return time.Unix(int64(f), 0), true, true
}

// checkTimes checks exp, nbf and iat as far as they are there.
func checkTimes(claims map[string]any, now time.Time) error {
	exp, hasExp, ok1 := secondsIn(claims, "exp")
	nbf, hasNbf, ok2 := secondsIn(claims, "nbf")
	iat, hasIat, ok3 := secondsIn(claims, "iat")
	switch {
	case !ok1 || !ok2 || !ok3:
		return errors.New("exp, nbf or iat is not a time")
	case hasExp && !now.Before(exp.Add(Skew)):
		return jwt.ErrTokenExpired
	case hasNbf && now.Before(nbf.Add(-Skew)):
		return jwt.ErrTokenNotValidYet
	case hasIat && now.Before(iat.Add(-Skew)):
		return jwt.ErrTokenUsedBeforeIssued
	}
	return nil
}
