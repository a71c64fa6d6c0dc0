// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/maypok86/otter/v2"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

// What a row points to never changes (its digest says so), but what stands around it in an answer does:
// configuration, labels, the kind of answer. So the middle is compressed once
// per file and kept, as a run of deflate blocks that ends on a byte, and each
// answer is a gzip stream (RFC 1952) of its own: the beginning and the end in
// stored blocks, which are a copy, and the kept run between them. The checksum
// of the whole follows from those of the parts.

// deflated is a compressed run in the middle of a gzip stream.
type deflated struct {
	blocks []byte // deflate blocks (RFC 1951), none of them final
	size   uint32 // of the plain bytes, modulo 2^32
	crc    uint32 // of the plain bytes
	shift  uint32 // x^(8·length) modulo the CRC's polynomial
}

// compressor makes and keeps compressed runs.
type compressor struct {
	writers sync.Pool // of *flate.Writer
	kept    *otter.Cache[runKey, *deflated]
}

type runKey struct {
	location  string
	digest    catalog.Digest
	snapshots string
}

func newCompressor(maxBytes int64) *compressor {
	return &compressor{kept: otter.Must(&otter.Options[runKey, *deflated]{
		MaximumWeight: uint64(maxBytes),
		Weigher: func(key runKey, d *deflated) uint32 {
			const perEntry = 256
			return uint32(min(len(key.location)+cap(d.blocks)+perEntry, 1<<32-1))
		},
	})}
}

// table returns the compressed form of a table's metadata. However many ask
// for it at once, it is made once.
func (z *compressor) table(ctx context.Context, obj *catalog.Object, snapshots string, doc *metadata.Document) (*deflated, error) {
	return z.kept.Get(ctx, runKey{obj.MetadataLocation, obj.MetadataDigest, snapshots}, otter.LoaderFunc[runKey, *deflated](
		func(context.Context, runKey) (*deflated, error) { return z.deflate(shown(doc, snapshots)) }))
}

// shown returns the JSON of a table's metadata with all snapshots or with
// those that refs name.
func shown(doc *metadata.Document, snapshots string) []byte {
	if snapshots == snapshotsRefs {
		return doc.RefsOnly()
	}
	return doc.Bytes()
}

// deflate compresses plain at the fastest level.
func (z *compressor) deflate(plain []byte) (*deflated, error) {
	var buf bytes.Buffer
	w, ok := z.writers.Get().(*flate.Writer)
	if ok {
		w.Reset(&buf)
	} else {
		var err error
		if w, err = flate.NewWriter(&buf, flate.BestSpeed); err != nil {
			return nil, fmt.Errorf("compress: %w", err)
		}
	}
	if _, err := w.Write(plain); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := w.Flush(); err != nil { // ends the run on a byte
		return nil, fmt.Errorf("compress: %w", err)
	}
	w.Reset(nil) // must not keep buf alive
	z.writers.Put(w)
	return &deflated{
		blocks: bytes.Clone(buf.Bytes()), size: uint32(len(plain)),
		crc: crc32.ChecksumIEEE(plain), shift: crcShift(len(plain)),
	}, nil
}

// stream returns what goes before and after the run in a gzip stream of
// head, the run's plain bytes, and tail.
func (d *deflated) stream(head, tail []byte) (before, after []byte) {
	const header, block, trailer = 10, 5, 8
	before = append(make([]byte, 0, header+block+len(head)), 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255)
	before = appendStored(before, head, false)
	after = appendStored(make([]byte, 0, block+len(tail)+trailer), tail, true)
	sum := crcProduct(crc32.ChecksumIEEE(head), d.shift) ^ d.crc
	sum = crc32.Update(sum, crc32.IEEETable, tail)
	after = binary.LittleEndian.AppendUint32(after, sum)
	return before, binary.LittleEndian.AppendUint32(after, uint32(len(head))+d.size+uint32(len(tail)))
}

// appendStored appends plain as stored blocks (RFC 1951 section 3.2.4); the
// stream must stand on a byte.
func appendStored(b, plain []byte, final bool) []byte {
	const most = 1<<16 - 1
	for {
		n := min(len(plain), most)
		last := byte(0)
		if final && n == len(plain) {
			last = 1
		}
		b = append(b, last)
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
		b = binary.LittleEndian.AppendUint16(b, ^uint16(n))
		b = append(b, plain[:n]...)
		if plain = plain[n:]; len(plain) == 0 {
			return b
		}
	}
}

// A CRC-32 is the remainder of a polynomial over GF(2), the highest bit the
// coefficient of x^0. Bytes that follow multiply it by x^8 each, which gives
// the checksum of two parts from theirs: crc(a)·x^(8·len(b)) + crc(b).

// crcProduct multiplies two remainders.
func crcProduct(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.IEEE
		}
	}
	return product
}

// crcShift returns x^(8n).
func crcShift(n int) uint32 {
	power, square := uint32(1)<<31, uint32(1)<<23 // x^0, x^8
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			power = crcProduct(power, square)
		}
		square = crcProduct(square, square)
	}
	return power
}

// acceptsGzip reports whether Accept-Encoding allows gzip (RFC 9110 section
// 12.5.3): the coding's own weight counts, or else that of "*".
func acceptsGzip(lines []string) bool {
	others := false
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			coding, parameters, _ := strings.Cut(item, ";")
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				return positiveWeight(parameters)
			case "*":
				others = positiveWeight(parameters)
			}
		}
	}
	return others
}

// positiveWeight reports whether q is absent or more than zero. What is no
// number counts as zero: plain bytes suit every client.
func positiveWeight(parameters string) bool {
	key, value, ok := strings.Cut(strings.TrimSpace(parameters), "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(key), "q") {
		return strings.TrimSpace(parameters) == ""
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	return err == nil && q > 0
}
