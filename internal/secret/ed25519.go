// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package secret

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
)

var errKeyForm = errors.New("not an Ed25519 key: give a PKCS#8 PEM (openssl genpkey -algorithm ed25519) or the base64 of a 32-byte seed")

// Ed25519 reads an Ed25519 private key: PKCS#8 in PEM, or its 32-byte seed in
// base64. The error does not quote it.
func (v Value) Ed25519() (ed25519.PrivateKey, error) {
	text := strings.TrimSpace(v.Reveal())
	if block, _ := pem.Decode([]byte(text)); block != nil {
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if private, ok := key.(ed25519.PrivateKey); ok && err == nil {
			return private, nil
		}
		return nil, errKeyForm
	}
	seed, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, errKeyForm
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// Ed25519Public reads what Ed25519 does, or a public key in PEM.
func (v Value) Ed25519Public() (ed25519.PublicKey, error) {
	if block, _ := pem.Decode([]byte(strings.TrimSpace(v.Reveal()))); block != nil && block.Type == "PUBLIC KEY" {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if public, ok := key.(ed25519.PublicKey); ok && err == nil {
			return public, nil
		}
		return nil, errKeyForm
	}
	private, err := v.Ed25519()
	if err != nil {
		return nil, err
	}
	return private.Public().(ed25519.PublicKey), nil
}
