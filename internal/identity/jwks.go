// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"golang.org/x/sync/singleflight"
)

const (
	// unknownKeyEvery is how often an unknown key id may cause a fetch.
	unknownKeyEvery = 30 * time.Second
	// firstKeysEvery is how often a token may cause one while there are no
	// keys.
	firstKeysEvery = 2 * time.Second
	// retryAtMost is the longest pause after a failed fetch.
	retryAtMost = 30 * time.Second
	// maxKeys bounds a set of keys.
	maxKeys = 100
	// RSA keys outside of these are not used: too weak, or too slow to check.
	minRSABits, maxRSABits = 2048, 8192
)

// keySet holds an issuer's public keys. It is the storage that keyfunc reads:
// a key that is not there is looked for at the issuer, within limits.
type keySet struct {
	*jwkset.MemoryJWKSet
	name     string
	fetch    func(context.Context) ([]jwkset.JWK, error)
	refresh  time.Duration
	maxStale time.Duration
	now      func() time.Time
	log      *slog.Logger
	observe  func(outcome string)

	flight singleflight.Group
	// fetched is when the keys were last fetched, in Unix nanoseconds; 0 when
	// never.
	fetched atomic.Int64
	// generation changes when a key is removed or replaced.
	generation atomic.Uint64

	mu        sync.Mutex // guards what is below, and fetching
	attempted time.Time  // by whomever
	looked    time.Time  // for an unknown key id
	failed    error      // of the last attempt
	// prints are of the keys, by id.
	prints map[string][sha256.Size]byte
}

// usable reports whether there are keys that are not too old.
func (k *keySet) usable(now time.Time) bool {
	at := k.fetched.Load()
	return at != 0 && now.Sub(time.Unix(0, at)) <= k.maxStale
}

// ready makes sure that there are keys. Those who wait for the first ones
// share one fetch.
func (k *keySet) ready(ctx context.Context) error {
	if k.usable(k.now()) {
		return nil
	}
	if err := k.update(ctx, firstKeysEvery); err != nil {
		return &unavailableError{k.name, err}
	}
	if !k.usable(k.now()) {
		return &unavailableError{k.name, errors.New("there are no keys yet")}
	}
	return nil
}

// KeyRead returns the key with an id. It overrides the storage's own.
func (k *keySet) KeyRead(ctx context.Context, id string) (jwkset.JWK, error) {
	key, err := k.MemoryJWKSet.KeyRead(ctx, id)
	if err == nil {
		return key, nil
	}
	// The issuer may have a new key; or the id is forged.
	if err := k.look(ctx); err != nil {
		return jwkset.JWK{}, &unavailableError{k.name, err}
	}
	return k.MemoryJWKSet.KeyRead(ctx, id)
}

// update fetches the keys unless that was tried less than every ago; then it
// returns how that ended. Callers at the same time share one fetch.
func (k *keySet) update(ctx context.Context, every time.Duration) error {
	return k.share(ctx, &k.attempted, every)
}

// look fetches the keys for an unknown id, unless that was done less than
// unknownKeyEvery ago. A fetch by the timer does not count: the first token of
// a new key is accepted, however short a time before the timer went off.
func (k *keySet) look(ctx context.Context) error {
	return k.share(ctx, &k.looked, unknownKeyEvery)
}

// share makes one fetch of several that are wanted at the same time. last is
// when the like was done before.
func (k *keySet) share(ctx context.Context, last *time.Time, every time.Duration) error {
	done := k.flight.DoChan("", func() (any, error) {
		// For all who wait, so no one's leaving ends it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*fetchTimeout)
		defer cancel()
		return nil, k.fetchNow(ctx, last, every)
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *keySet) fetchNow(ctx context.Context, last *time.Time, every time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if !last.IsZero() && now.Sub(*last) < every {
		return k.failed
	}
	k.attempted, *last = now, now
	keys, err := k.fetch(ctx)
	if k.failed = err; err != nil {
		k.observe("error")
		k.log.Warn("the keys of an issuer cannot be fetched", "issuer", k.name, "usable", k.usable(now), "error", err)
		return err
	}
	k.observe("ok")
	prints := make(map[string][sha256.Size]byte, len(keys))
	for _, key := range keys {
		m := key.Marshal()
		prints[m.KID] = sha256.Sum256([]byte(strings.Join([]string{m.KTY.String(), m.ALG.String(), m.CRV.String(), m.N, m.E, m.X, m.Y}, " ")))
	}
	removed := 0
	for id, print := range k.prints {
		if prints[id] != print {
			removed++
		}
	}
	if err := k.KeyReplaceAll(ctx, keys); err != nil {
		k.failed = err
		return err
	}
	if k.prints == nil || removed > 0 || len(prints) != len(k.prints) {
		k.log.Info("keys of an issuer loaded", "issuer", k.name, "keys", len(keys), "removed", removed)
	}
	k.prints = prints
	if removed > 0 {
		// Only now: whoever sees the new generation sees the new keys.
		k.generation.Add(1)
	}
	k.fetched.Store(now.UnixNano())
	return nil
}

// run fetches the keys on a timer until ctx ends, more often while that fails.
func (k *keySet) run(ctx context.Context) {
	pause := time.Second
	for {
		var wait time.Duration
		if err := k.update(ctx, min(time.Second, k.refresh/2)); err != nil {
			wait, pause = pause, min(2*pause, retryAtMost, k.refresh)
		} else {
			wait, pause = k.refresh, time.Second
		}
		// Replicas that started together do not ask together for ever.
		wait += time.Duration(rand.Int64N(int64(wait)/10 + 1))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// discovery finds and fetches the keys of an OpenID Connect issuer.
type discovery struct {
	web *web
	// issuer is the URL whose well-known document names the keys' place;
	// jwksURI is the place, when it is known.
	issuer, jwksURI string
	tokenFile       string // bearer token for the request; "" for none
}

// keys fetches the keys.
func (d *discovery) keys(ctx context.Context) ([]jwkset.JWK, error) {
	uri := d.jwksURI
	if uri == "" {
		var err error
		if uri, err = d.discover(ctx); err != nil {
			return nil, err
		}
	}
	bearer, err := readToken(d.tokenFile)
	if err != nil {
		return nil, err
	}
	raw, err := d.web.get(ctx, uri, bearer)
	if err != nil {
		return nil, err
	}
	return parseKeys(raw)
}

// discover reads the issuer's document (OpenID Connect Discovery, section 4).
func (d *discovery) discover(ctx context.Context) (string, error) {
	raw, err := d.web.get(ctx, strings.TrimSuffix(d.issuer, "/")+"/.well-known/openid-configuration", "")
	if err != nil {
		return "", err
	}
	var document struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return "", errors.New("the discovery document is not JSON")
	}
	if document.Issuer != d.issuer {
		return "", fmt.Errorf("the discovery document is that of another issuer, %q", clip(document.Issuer))
	}
	if err := CheckEndpoint(document.JWKSURI); err != nil {
		return "", fmt.Errorf("jwks_uri of the discovery document: %w", err)
	}
	// An issuer elsewhere has no say over what is asked on this machine.
	from, _ := url.Parse(d.issuer)
	to, _ := url.Parse(document.JWKSURI)
	if from == nil || to == nil || isLoopback(to.Hostname()) && !isLoopback(from.Hostname()) {
		return "", errors.New("jwks_uri of the discovery document is on this machine, the issuer is not")
	}
	return document.JWKSURI, nil
}

// parseKeys reads a JWK set (RFC 7517, section 5). Keys that cannot check a
// signature here are left out.
func parseKeys(raw []byte) ([]jwkset.JWK, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, errors.New("the set of keys is not JSON")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the set has %d keys; at most %d are read", len(set.Keys), maxKeys)
	}
	var keys []jwkset.JWK
	seen := map[string]bool{}
	for _, one := range set.Keys {
		var m jwkset.JWKMarshal
		if json.Unmarshal(one, &m) != nil || m.KID == "" || len(m.KID) > maxKeyID || seen[m.KID] || m.USE != "" && m.USE != jwkset.UseSig {
			continue
		}
		// A certificate or an address beside the key is of no interest.
		m.X5C, m.X5T, m.X5TS256, m.X5U = nil, "", "", ""
		key, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil || !soundKey(key.Key()) {
			continue
		}
		seen[m.KID] = true
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("the set holds no key that can check a signature: RSA of 2048 to 8192 bits, P-256, P-384, P-521 or Ed25519, with a kid")
	}
	return keys, nil
}

// soundKey reports whether a key is public, of a known kind and strong.
func soundKey(key any) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		bits := key.N.BitLen()
		return bits >= minRSABits && bits <= maxRSABits && key.E >= 3 && key.E%2 == 1
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// fits reports whether a key is one of an algorithm (RFC 7518, section 3.1:
// each ES algorithm has one curve).
func fits(algorithm string, key any) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")
	case *ecdsa.PublicKey:
		return algorithm == map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[key.Curve.Params().BitSize]
	case ed25519.PublicKey:
		return algorithm == "EdDSA"
	}
	return false
}

func newKeySet(i *Issuer, fetch func(context.Context) ([]jwkset.JWK, error), now func() time.Time, log *slog.Logger, observe func(string)) *keySet {
	k := &keySet{
		MemoryJWKSet: jwkset.NewMemoryStorage(), name: i.Name, fetch: fetch, now: now, log: log, observe: observe,
		refresh: i.Refresh, maxStale: i.MaxStale,
	}
	if k.refresh <= 0 {
		k.refresh = defaultRefresh
	}
	if k.maxStale <= 0 {
		k.maxStale = defaultMaxStale
	}
	return k
}
