// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"strconv"
	"time"
)

// The chain. Records belong to partitions. Inside one they are numbered from 1
// without gaps, and the line of each ends with
//
//	hash = SHA-256("sluice audit record v1" 00 ‖ hash before ‖ line up to ,"hash":)
//
// where the hash before the first record is 32 zero bytes. What is hashed are
// the very bytes of the line, partition and number among them, so that there
// is nothing to agree on about how a record is written.
//
// A partition of a log file begins with a record of type audit.partition. It
// names the last record of the partition that the log ended with before, so
// that a whole partition cannot go missing between two others.

const recordDomain = "sluice audit record v1\x00"

// Hash is a record's hash; zero before the first.
type Hash [sha256.Size]byte

// IsZero reports whether there is none.
func (h Hash) IsZero() bool { return h == Hash{} }

// String is the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText is String.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText is the inverse of MarshalText, which writes small letters only.
func (h *Hash) UnmarshalText(text []byte) error {
	if !parseHex(h[:], text) {
		return errors.New("a hash has 64 hexadecimal digits in small letters")
	}
	return nil
}

// parseHex reads exactly what hex.EncodeToString writes.
func parseHex(to, text []byte) bool {
	if len(text) != hex.EncodedLen(len(to)) || bytes.ContainsAny(text, "ABCDEF") {
		return false
	}
	_, err := hex.Decode(to, text)
	return err == nil
}

// Ref names a record of a partition.
type Ref struct {
	Partition string `json:"partition"`
	Seq       int64  `json:"seq"`
	Hash      Hash   `json:"hash"`
}

// Chain is the end of a partition, to which records are added. It is not safe
// for concurrent use.
type Chain struct {
	ref    Ref
	digest hash.Hash
}

// NewChain continues a partition after a record; Seq 0 and a zero Hash begin
// it.
func NewChain(last Ref) *Chain { return &Chain{ref: last, digest: sha256.New()} }

// Last names the last record.
func (c *Chain) Last() Ref { return c.ref }

// Append appends the line of a record, which becomes the last.
func (c *Chain) Append(b []byte, r *Record) []byte {
	start := len(b)
	b = c.begin(b, r.Kind.String())
	return c.end(appendRecord(b, r), start)
}

// AppendSealed appends the line of a record that has its place in a chain
// already, without a newline. It hashes nothing: whether the hash is right is
// for [Verify] to say.
func AppendSealed(b []byte, r *Record, at Ref) []byte {
	b = appendRecord(appendBegin(b, r.Kind.String(), at.Partition, at.Seq), r)
	b = append(b, hashMember...)
	b = hex.AppendEncode(b, at.Hash[:])
	return append(b, lineEnd...)
}

func (c *Chain) begin(b []byte, kind string) []byte {
	return appendBegin(b, kind, c.ref.Partition, c.ref.Seq+1)
}

func appendBegin(b []byte, kind, partition string, seq int64) []byte {
	b = append(b, `{"type":"audit.`...)
	b = append(b, kind...)
	b = append(b, `","partition":`...)
	b = appendString(b, partition)
	b = append(b, `,"seq":`...)
	return strconv.AppendInt(b, seq, 10)
}

// The end of a record's line.
const (
	hashMember = `,"hash":"`
	lineEnd    = `"}`
	hashSuffix = len(hashMember) + 2*sha256.Size + len(lineEnd)
)

func (c *Chain) end(b []byte, start int) []byte {
	c.link(b[start:])
	b = append(b, hashMember...)
	b = hex.AppendEncode(b, c.ref.Hash[:])
	return append(b, lineEnd+"\n"...)
}

// link makes a line, without its hash, the last of the chain.
func (c *Chain) link(line []byte) {
	c.digest.Reset()
	c.digest.Write(recordDomainBytes) //nolint:errcheck // never fails (hash.Hash)
	c.digest.Write(c.ref.Hash[:])     //nolint:errcheck // as above
	c.digest.Write(line)              //nolint:errcheck // as above
	c.digest.Sum(c.ref.Hash[:0])
	c.ref.Seq++
}

var recordDomainBytes = []byte(recordDomain)

// open appends the record that begins a partition of a log. before is the last
// record of the log's partition before, if there is one, and whether a line
// after it was left unfinished.
func (c *Chain) open(b []byte, at time.Time, before end) []byte {
	start := len(b)
	b = c.begin(b, "partition")
	b = append(b, `,"time":"`...)
	b = at.UTC().AppendFormat(b, timeForm)
	b = append(b, '"')
	if before.torn {
		b = append(b, `,"unfinished":true`...)
	}
	if before := before.last; before != nil {
		b = append(b, `,"previous":{"partition":`...)
		b = appendString(b, before.Partition)
		b = append(b, `,"seq":`...)
		b = strconv.AppendInt(b, before.Seq, 10)
		b = append(b, hashMember...)
		b = hex.AppendEncode(b, before.Hash[:])
		b = append(b, lineEnd...)
	}
	return c.end(b, start)
}

// place is what the chain needs to know of a record's line.
type place struct {
	Type      string `json:"type"`
	Partition string `json:"partition"`
	Seq       int64  `json:"seq"`
	Previous  *Ref   `json:"previous"`
	// Unfinished says that the line before was left so.
	Unfinished bool `json:"unfinished"`
}

// openType is the type of the record that begins a log's partition.
const openType = "audit.partition"

// splitLine takes a record's line, without its newline, apart: the bytes that
// were hashed, and the hash.
func splitLine(line []byte) (hashed []byte, h Hash, ok bool) {
	n := len(line) - hashSuffix
	if n < 0 || string(line[n:n+len(hashMember)]) != hashMember || string(line[len(line)-len(lineEnd):]) != lineEnd {
		return nil, h, false
	}
	ok = parseHex(h[:], line[n+len(hashMember):len(line)-len(lineEnd)])
	return line[:n], h, ok
}

// parsePlace reads a record's line.
func parsePlace(line []byte) (p place, hashed []byte, h Hash, ok bool) {
	if hashed, h, ok = splitLine(line); !ok || json.Unmarshal(line, &p) != nil || p.Partition == "" || p.Seq < 1 {
		return p, nil, h, false
	}
	return p, hashed, h, true
}
