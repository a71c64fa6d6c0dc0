// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"

	"github.com/sluice-data/sluice/internal/secret"
)

// Hash is an argon2id hash of a secret (RFC 9106).
type Hash struct {
	memory  uint32 // KiB
	time    uint32
	threads uint8
	salt    []byte
	key     []byte
}

// The parameters of new hashes (OWASP's first choice), and the bounds of
// those that are accepted: weaker ones protect nobody, costlier ones let a
// handful of requests occupy the machine.
const (
	hashMemory, hashTime, hashThreads = 19 << 10, 2, 1
	saltBytes, keyBytes               = 16, 32

	minHashMemory, maxHashMemory = 7 << 10, 256 << 10
	maxHashTime, maxHashThreads  = 16, 16
)

// MinSecretBytes is the shortest client secret that HashSecret takes.
const MinSecretBytes = 16

// NewHash hashes a secret with a random salt.
func NewHash(s secret.Value) Hash {
	h := Hash{memory: hashMemory, time: hashTime, threads: hashThreads, salt: make([]byte, saltBytes)}
	rand.Read(h.salt) //nolint:errcheck // never fails (crypto/rand)
	h.key = h.derive(s.Reveal(), keyBytes)
	return h
}

// unmatchedHash is a hash of no secret, made without the work of one.
func unmatchedHash() Hash {
	h := Hash{memory: hashMemory, time: hashTime, threads: hashThreads, salt: make([]byte, saltBytes), key: make([]byte, keyBytes)}
	rand.Read(h.salt) //nolint:errcheck // never fails (crypto/rand)
	rand.Read(h.key)  //nolint:errcheck // never fails (crypto/rand)
	return h
}

// ParseHash reads the PHC form,
// $argon2id$v=19$m=19456,t=2,p=1$<salt>$<key>, both in unpadded base64.
func ParseHash(phc string) (Hash, error) {
	parts := strings.Split(phc, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" {
		return Hash{}, errors.New("not an argon2id hash in PHC form ($argon2id$v=19$m=…,t=…,p=…$salt$key); make one with `catalogd hash-secret`")
	}
	if parts[2] != "v=19" {
		return Hash{}, fmt.Errorf("argon2 version %q is not supported; only v=19 is", clip(parts[2]))
	}
	var h Hash
	params := strings.Split(parts[3], ",")
	if len(params) != 3 {
		return Hash{}, errors.New("argon2id parameters must be m=…,t=…,p=…")
	}
	for i, p := range []struct {
		name     string
		min, max uint64
		set      func(uint64)
	}{
		{"m", minHashMemory, maxHashMemory, func(n uint64) { h.memory = uint32(n) }},
		{"t", 1, maxHashTime, func(n uint64) { h.time = uint32(n) }},
		{"p", 1, maxHashThreads, func(n uint64) { h.threads = uint8(n) }},
	} {
		value, ok := strings.CutPrefix(params[i], p.name+"=")
		if !ok {
			return Hash{}, errors.New("argon2id parameters must be m=…,t=…,p=…")
		}
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n < p.min || n > p.max {
			return Hash{}, fmt.Errorf("argon2id parameter %s must be between %d and %d", p.name, p.min, p.max)
		}
		p.set(n)
	}
	var err error
	if h.salt, err = base64.RawStdEncoding.Strict().DecodeString(parts[4]); err != nil || len(h.salt) < 8 || len(h.salt) > 64 {
		return Hash{}, errors.New("the argon2id salt must be 8 to 64 bytes of unpadded base64")
	}
	if h.key, err = base64.RawStdEncoding.Strict().DecodeString(parts[5]); err != nil || len(h.key) < 16 || len(h.key) > 64 {
		return Hash{}, errors.New("the argon2id key must be 16 to 64 bytes of unpadded base64")
	}
	return h, nil
}

// PHC is the inverse of [ParseHash].
func (h Hash) PHC() string {
	return fmt.Sprintf("$argon2id$v=19$m=%d,t=%d,p=%d$%s$%s", h.memory, h.time, h.threads,
		base64.RawStdEncoding.EncodeToString(h.salt), base64.RawStdEncoding.EncodeToString(h.key))
}

// String hides the hash: it is not a secret, but nothing good comes of
// printing it.
func (h Hash) String() string { return "argon2id hash" }

// matches reports whether s is the secret. It takes h.memory KiB while it
// runs.
func (h Hash) matches(s string) bool {
	return subtle.ConstantTimeCompare(h.key, h.derive(s, uint32(len(h.key)))) == 1
}

func (h Hash) derive(s string, n uint32) []byte {
	return argon2.IDKey([]byte(s), h.salt, h.time, h.memory, h.threads, n)
}

// cost orders hashes by the work that they take.
func (h Hash) cost() uint64 { return uint64(h.memory) * uint64(h.time) }

// clip bounds what an error message quotes.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
