// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"

	"github.com/sluice-data/sluice/internal/secret"
)

// SigningKey signs tokens. It prints as nothing but its id.
type SigningKey struct{ private ed25519.PrivateKey }

// VerifyKey checks tokens that a SigningKey signed.
type VerifyKey struct{ public ed25519.PublicKey }

// GenerateSigningKey returns a new key and its form for ParseSigningKey.
func GenerateSigningKey() (SigningKey, secret.Value) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err) // the system has no randomness: crypto/rand itself stops the program first
	}
	return SigningKey{private}, secret.New(base64.StdEncoding.EncodeToString(private.Seed()))
}

var errKeyForm = errors.New("not an Ed25519 key: give a PKCS#8 PEM (openssl genpkey -algorithm ed25519) or the base64 of a 32-byte seed")

// ParseSigningKey reads an Ed25519 private key: PKCS#8 in PEM, or its 32-byte
// seed in base64.
func ParseSigningKey(s secret.Value) (SigningKey, error) {
	text := strings.TrimSpace(s.Reveal())
	if block, _ := pem.Decode([]byte(text)); block != nil {
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if private, ok := key.(ed25519.PrivateKey); ok && err == nil {
			return SigningKey{private}, nil
		}
		return SigningKey{}, errKeyForm
	}
	seed, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(seed) != ed25519.SeedSize {
		return SigningKey{}, errKeyForm
	}
	return SigningKey{ed25519.NewKeyFromSeed(seed)}, nil
}

// ParseVerifyKey reads what ParseSigningKey does, or a public key in PEM.
func ParseVerifyKey(s secret.Value) (VerifyKey, error) {
	if block, _ := pem.Decode([]byte(strings.TrimSpace(s.Reveal()))); block != nil && block.Type == "PUBLIC KEY" {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if public, ok := key.(ed25519.PublicKey); ok && err == nil {
			return VerifyKey{public}, nil
		}
		return VerifyKey{}, errKeyForm
	}
	k, err := ParseSigningKey(s)
	if err != nil {
		return VerifyKey{}, err
	}
	return k.Public(), nil
}

// Public returns the key that checks what k signs.
func (k SigningKey) Public() VerifyKey {
	return VerifyKey{k.private.Public().(ed25519.PublicKey)}
}

// String is the key's id.
func (k SigningKey) String() string { return "signing key " + k.Public().ID() }

// GoString is String, so that %#v does not print the key.
func (k SigningKey) GoString() string { return k.String() }

// ID is the key id in tokens: the first 12 bytes of the SHA-256 of the public
// key, in base64url.
func (k VerifyKey) ID() string {
	sum := sha256.Sum256(k.public)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}
