// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/gzip"

	"github.com/sluice-data/sluice/internal/catalog"
)

// minCompressed is the size from which answers are compressed; below it the
// work costs more than the bytes. minKept is the size from which a compressed
// load answer is kept for the next caller.
const (
	minCompressed = 2 << 10
	minKept       = 32 << 10
)

// audit records a read or a refusal before it is answered. Changes that
// happened have been recorded with themselves.
func (c *call) audit(status int) error {
	if c.h.cfg.Audit == nil || c.route.mutation && status < 400 {
		return nil
	}
	a := Access{Request: c.r, RequestID: c.requestID, Principal: c.principal, Operation: c.route.operation, Resource: c.resource, Status: status}
	if c.warehouse != nil {
		a.Warehouse = c.warehouse.Name()
	}
	return c.h.cfg.Audit(c.ctx, a)
}

// admit records the answer in the audit log, or refuses to give it.
func (c *call) admit(status int) error {
	if err := c.audit(status); err != nil {
		return &catalog.Error{Reason: catalog.Unavailable, Message: auditError.message, Cause: err, RetryAfter: auditError.retryAfter}
	}
	return nil
}

// send answers with JSON.
func (c *call) send(status int, body []byte) error {
	if err := c.admit(status); err != nil {
		return err
	}
	c.write(status, body)
	return nil
}

// sendValue answers with the JSON of v.
func (c *call) sendValue(status int, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	return c.send(status, body)
}

// empty answers without a body.
func (c *call) empty(status int) error {
	if err := c.admit(status); err != nil {
		return err
	}
	c.status = status
	c.w.WriteHeader(status)
	return nil
}

// write writes a JSON answer, compressed when the client takes it and it pays.
func (c *call) write(status int, body []byte) {
	c.private()
	if len(body) >= minCompressed {
		c.w.Header().Add("Vary", "Accept-Encoding")
		if c.acceptsGzip() {
			if compressed, err := compress(body); err == nil {
				c.w.Header().Set("Content-Encoding", "gzip")
				body = compressed
			}
		}
	}
	c.writeRaw(status, body)
}

// private keeps answers out of shared caches: all of them depend on who asks.
func (c *call) private() {
	h := c.w.Header()
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "private, no-cache")
	}
	if h.Get("Vary") == "" {
		h.Set("Vary", "Authorization, X-Iceberg-Access-Delegation")
	}
}

// writeRaw writes the parts of a body as they are.
func (c *call) writeRaw(status int, parts ...[]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(size))
	c.status = status
	c.w.WriteHeader(status)
	if c.r.Method == http.MethodHead {
		return
	}
	for _, p := range parts {
		if _, err := c.w.Write(p); err != nil {
			return // the client is gone
		}
	}
}

func compress(parts ...[]byte) ([]byte, error) {
	var buf bytes.Buffer
	zw, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if _, err := zw.Write(p); err != nil {
			return nil, err
		}
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// acceptsGzip reports whether Accept-Encoding allows gzip (RFC 9110 section
// 12.5.3).
func (c *call) acceptsGzip() bool {
	for _, line := range c.r.Header.Values("Accept-Encoding") {
		for item := range strings.SplitSeq(line, ",") {
			coding, weight, _ := strings.Cut(item, ";")
			coding = strings.ToLower(strings.TrimSpace(coding))
			if coding != "gzip" && coding != "x-gzip" && coding != "*" {
				continue
			}
			q := strings.TrimSpace(weight)
			return q != "q=0" && q != "q=0.0" && q != "q=0.00" && q != "q=0.000"
		}
	}
	return false
}

// delegation parses X-Iceberg-Access-Delegation, a list. Mechanisms that this
// server does not know are left out, as the protocol lets a server choose.
func (c *call) delegation() (string, error) {
	lines := c.r.Header.Values("X-Iceberg-Access-Delegation")
	if len(lines) == 0 {
		return "", nil
	}
	var vended, signing bool
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			item = strings.TrimSpace(item)
			for i := range len(item) {
				if item[i] <= ' ' || item[i] >= 0x7f {
					return "", catalog.Errorf(catalog.BadRequest, "X-Iceberg-Access-Delegation: must be a list of mechanisms in ASCII")
				}
			}
			switch item {
			case "vended-credentials":
				vended = true
			case "remote-signing":
				signing = true
			}
		}
	}
	switch {
	case vended && signing:
		return "vended-credentials,remote-signing", nil
	case vended:
		return "vended-credentials", nil
	case signing:
		return "remote-signing", nil
	}
	return "", nil
}

// etag is the tag of an answer that holds metadata. It is made of everything
// that shapes the answer: warehouse, version, which snapshots, how access is
// delegated, what the principal may do, and labels; so the same state has one
// tag whether it was created, committed or loaded, and no tag is good for
// another principal's answer.
func (c *call) etag(obj *catalog.Object, snapshots, delegation string) string {
	sum := sha256.New()
	for _, part := range []string{
		c.warehouse.Name(), obj.MetadataLocation, snapshots, delegation, c.principal.Access(c.warehouse.Name()).String(), string(obj.Labels),
	} {
		sum.Write([]byte(part))
		sum.Write([]byte{0})
	}
	return `"` + hex.EncodeToString(sum.Sum(nil)[:16]) + `"`
}

// matches reports whether If-None-Match names the tag (RFC 9110 section
// 13.1.2): a list, compared weakly, or "*".
func matches(header []string, etag string) bool {
	for _, line := range header {
		for item := range strings.SplitSeq(line, ",") {
			item = strings.TrimSpace(item)
			if item == "*" || strings.TrimPrefix(item, "W/") == etag {
				return true
			}
			// Some clients send the tag without its quotes.
			if `"`+item+`"` == etag {
				return true
			}
		}
	}
	return false
}

// sendTable answers with a table: its stored metadata as it is, between the
// few bytes that go around it.
func (c *call) sendTable(obj *catalog.Object, metadata []byte, etag string) error {
	if err := c.admit(http.StatusOK); err != nil {
		return err
	}
	h := c.w.Header()
	if etag != "" {
		h.Set("ETag", etag)
	}
	c.private()
	head := append(make([]byte, 0, 256), '{')
	if obj.MetadataLocation != "" {
		head = append(head, `"metadata-location":`...)
		head = appendString(head, obj.MetadataLocation)
		head = append(head, ',')
	}
	head = append(head, `"metadata":`...)
	tail := make([]byte, 0, 64+len(c.warehouse.configJSON)+len(obj.Labels))
	tail = append(tail, `,"config":`...)
	tail = append(tail, c.warehouse.configJSON...)
	if obj.Labels != nil {
		tail = append(tail, `,"labels":`...)
		tail = append(tail, obj.Labels...)
	}
	tail = append(tail, '}')
	size := len(head) + len(metadata) + len(tail)
	if size >= minCompressed {
		h.Add("Vary", "Accept-Encoding")
		if c.acceptsGzip() {
			compressed, err := c.compressed(etag, size, head, metadata, tail)
			if err == nil {
				h.Set("Content-Encoding", "gzip")
				c.writeRaw(http.StatusOK, compressed)
				return nil
			}
		}
	}
	if size <= 16<<10 {
		// One write, one packet.
		c.writeRaw(http.StatusOK, append(append(append(make([]byte, 0, size), head...), metadata...), tail...))
		return nil
	}
	c.writeRaw(http.StatusOK, head, metadata, tail)
	return nil
}

// compressed returns the compressed form of a large answer from the cache, or
// makes it.
func (c *call) compressed(etag string, size int, parts ...[]byte) ([]byte, error) {
	if etag != "" && size >= minKept {
		if b, ok := c.h.compressed.GetIfPresent(etag); ok {
			return b, nil
		}
	}
	b, err := compress(parts...)
	if err == nil && etag != "" && size >= minKept {
		c.h.compressed.Set(etag, b)
	}
	return b, err
}

// appendString appends a JSON string.
func appendString(b []byte, s string) []byte {
	raw, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // not valid UTF-8: stores hold none
	}
	return append(b, raw...)
}
