// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"

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

// ParseSigningKey reads an Ed25519 private key: PKCS#8 in PEM, or its 32-byte
// seed in base64.
func ParseSigningKey(s secret.Value) (SigningKey, error) {
	private, err := s.Ed25519()
	return SigningKey{private}, err
}

// ParseVerifyKey reads what ParseSigningKey does, or a public key in PEM.
func ParseVerifyKey(s secret.Value) (VerifyKey, error) {
	public, err := s.Ed25519Public()
	return VerifyKey{public}, err
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
