// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// checkpointDomain keeps signatures of checkpoints apart from all others that
// the same key could make.
const checkpointDomain = "sluice audit checkpoint v1\x00"

// checkpointType is the type of a checkpoint's line.
const checkpointType = "audit.checkpoint"

// Checkpoint is a signed statement that a partition reached a record. Since
// that record's hash depends on all before it, the signature covers them all.
// Whoever keeps one elsewhere can prove later that nothing up to it has gone.
type Checkpoint struct {
	Ref
	// Count is how many records the partition had up to there.
	Count int64
	// Final says that the partition ends here.
	Final bool
	Time  time.Time
	// Key is the id of the key that signed.
	Key string
	// Signature is Ed25519 (RFC 8032) over the domain and the line up to
	// ,"signature":
	Signature [ed25519.SignatureSize]byte
}

// Signer signs checkpoints. It prints as its key's id.
type Signer struct {
	key ed25519.PrivateKey
	id  string
}

// ParseSigner reads an Ed25519 private key: PKCS#8 in PEM, or its 32-byte seed
// in base64.
func ParseSigner(s secret.Value) (*Signer, error) {
	key, err := s.Ed25519()
	if err != nil {
		return nil, err
	}
	return &Signer{key: key, id: keyID(key.Public().(ed25519.PublicKey))}, nil
}

// String is the key's id.
func (s *Signer) String() string { return "audit key " + s.id }

// GoString is String, so that %#v does not print the key.
func (s *Signer) GoString() string { return s.String() }

// Public returns the key that verifies what s signs.
func (s *Signer) Public() VerifyKey { return VerifyKey{s.key.Public().(ed25519.PublicKey)} }

// VerifyKey verifies checkpoints.
type VerifyKey struct{ public ed25519.PublicKey }

// ParseVerifyKey reads an Ed25519 public key in PEM, or what ParseSigner does.
func ParseVerifyKey(s secret.Value) (VerifyKey, error) {
	public, err := s.Ed25519Public()
	return VerifyKey{public}, err
}

// ID is the first 12 bytes of the SHA-256 of the public key, in base64url.
func (k VerifyKey) ID() string { return keyID(k.public) }

func keyID(k ed25519.PublicKey) string {
	sum := sha256.Sum256(k)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// Keys are what verifies checkpoints, by id: the current key and those that it
// replaced.
type Keys map[string]VerifyKey

// NewKeys collects keys.
func NewKeys(list ...VerifyKey) Keys {
	keys := Keys{}
	for _, k := range list {
		keys[k.ID()] = k
	}
	return keys
}

// Sign makes the checkpoint of a partition's record.
func (s *Signer) Sign(at Ref, final bool, now time.Time) Checkpoint {
	c := Checkpoint{Ref: at, Count: at.Seq, Final: final, Time: now.UTC().Truncate(time.Microsecond), Key: s.id}
	copy(c.Signature[:], ed25519.Sign(s.key, c.signed()))
	return c
}

// signed is what the signature is over.
func (c *Checkpoint) signed() []byte { return c.appendSigned([]byte(checkpointDomain)) }

func (c *Checkpoint) appendSigned(b []byte) []byte {
	b = append(b, `{"type":"`+checkpointType+`","partition":`...)
	b = appendString(b, c.Partition)
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, c.Seq, 10)
	b = append(b, hashMember...)
	b = hex.AppendEncode(b, c.Hash[:])
	b = append(b, `","count":`...)
	b = strconv.AppendInt(b, c.Count, 10)
	if c.Final {
		b = append(b, `,"final":true`...)
	}
	b = append(b, `,"time":"`...)
	b = c.Time.UTC().AppendFormat(b, timeForm)
	b = append(b, `","key":`...)
	return appendString(b, c.Key)
}

// Append appends the checkpoint's line.
func (c *Checkpoint) Append(b []byte) []byte {
	b = append(c.appendSigned(b), `,"signature":"`...)
	b = hex.AppendEncode(b, c.Signature[:])
	return append(b, lineEnd+"\n"...)
}

// ParseCheckpoint reads a checkpoint's line, with or without its newline. It
// takes no other spelling of one than Append's. The signature is not verified.
func ParseCheckpoint(line []byte) (Checkpoint, error) {
	if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:n-1]
	}
	var m struct {
		Type string `json:"type"`
		Ref
		Count     int64     `json:"count"`
		Final     bool      `json:"final"`
		Time      time.Time `json:"time"`
		Key       string    `json:"key"`
		Signature string    `json:"signature"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return Checkpoint{}, fmt.Errorf("not a checkpoint: %w", err)
	}
	c := Checkpoint{Ref: m.Ref, Count: m.Count, Final: m.Final, Time: m.Time, Key: m.Key}
	if m.Type != checkpointType || !parseHex(c.Signature[:], []byte(m.Signature)) || c.Seq < 1 || c.Partition == "" {
		return Checkpoint{}, fmt.Errorf("not a checkpoint: its type is %q", m.Type)
	}
	if again := c.Append(nil); string(again[:len(again)-1]) != string(line) {
		return Checkpoint{}, fmt.Errorf("not a checkpoint as it is written: members are out of order, or unknown")
	}
	return c, nil
}

// Verify reports what is wrong with the signature, nil when nothing is.
func (c *Checkpoint) Verify(keys Keys) error {
	k, ok := keys[c.Key]
	if !ok {
		return fmt.Errorf("checkpoint %d of %s was signed by key %s, which is not among those given", c.Seq, c.Partition, c.Key)
	}
	if c.Count != c.Seq || !ed25519.Verify(k.public, c.signed(), c.Signature[:]) {
		return fmt.Errorf("the signature of checkpoint %d of %s does not match: the checkpoint was altered, or made by somebody without the key", c.Seq, c.Partition)
	}
	return nil
}
