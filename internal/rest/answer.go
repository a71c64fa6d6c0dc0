// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

// minCompressed is the size from which answers are compressed; below it the
// work costs more than the bytes. Up to onePart an answer is put together and
// written at once, which takes one packet's way through the server.
const (
	minCompressed = 2 << 10
	onePart       = 16 << 10
)

// audit records a read or a refusal before it is answered. Changes that
// happened have been recorded with themselves, and what no route takes has
// touched nothing.
func (c *call) audit(status int) error {
	if c.h.cfg.Audit == nil || c.route == c.h.unrouted || c.route.mutation && status < 400 {
		return nil
	}
	a := Access{
		RequestID: c.requestID, Principal: c.principal, Address: c.address(), Operation: c.route.operation,
		Resource: c.resource, Status: status, Decision: c.decision,
	}
	if c.warehouse != nil {
		a.Warehouse = c.warehouse.Name()
	}
	if c.guard != nil {
		a.Policies = c.guard.Policies()
		if c.guard.Denied() {
			a.Decision = audit.Deny
		}
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
	if len(body) >= minCompressed && c.mayCompress() {
		if run, err := c.h.compressor.deflate(body); err == nil {
			before, after := run.stream(nil, nil)
			c.writeGzip(status, before, run.blocks, after)
			return
		}
	}
	c.writeRaw(status, body)
}

// mayCompress reports whether the client takes gzip, and tells caches that
// the answer depends on it.
func (c *call) mayCompress() bool {
	c.w.Header().Add("Vary", "Accept-Encoding")
	return acceptsGzip(c.r.Header["Accept-Encoding"])
}

func (c *call) writeGzip(status int, parts ...[]byte) {
	c.w.Header().Set("Content-Encoding", "gzip")
	c.writeRaw(status, parts...)
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

// Which snapshots a load answer holds.
const (
	snapshotsAll  = "all"
	snapshotsRefs = "refs"
)

// etag is the tag of an answer that holds metadata. It is made of everything
// that shapes the answer: warehouse, version, which snapshots, how access is
// delegated, what the principal may do, and labels; so the same state has one
// tag whether it was created, committed or loaded, and no tag is good for
// another principal's answer. It names the state, not its coding: caches tell
// the codings apart by Vary.
func (c *call) etag(obj *catalog.Object, snapshots, delegation string) string {
	b := make([]byte, 0, 512)
	for _, part := range [...]string{
		c.warehouse.Name(), obj.MetadataLocation, string(obj.MetadataDigest[:]), snapshots, delegation, c.principal.ID, c.principal.Access(c.warehouse.Name()).String(),
	} {
		b = append(append(b, part...), 0)
	}
	sum := sha256.Sum256(append(b, obj.Labels...))
	b = append(b[:0], '"')
	return string(append(hex.AppendEncode(b, sum[:16]), '"'))
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

// sendTable answers with LoadTableResult.
func (c *call) sendTable(obj *catalog.Object, doc *metadata.Document, snapshots, etag string) error {
	config, err := c.configOf(obj)
	if err != nil {
		return err
	}
	tail := make([]byte, 0, 64+len(config)+len(obj.Labels))
	tail = append(tail, `,"config":`...)
	tail = append(tail, config...)
	if obj.Labels != nil && !c.share {
		tail = append(tail, `,"labels":`...)
		tail = append(tail, obj.Labels...)
	}
	return c.sendMetadata(obj, doc, snapshots, append(tail, '}'), etag)
}

// configOf is what clients need for a table: its warehouse's settings, which
// in a share are not all the same.
func (c *call) configOf(obj *catalog.Object) ([]byte, error) {
	shared, ok := c.warehouse.Operations.(interface {
		ObjectConfig(obj catalog.Object) map[string]string
	})
	if !ok {
		return c.warehouse.configJSON, nil
	}
	config := shared.ObjectConfig(*obj)
	if len(config) == 0 {
		return []byte("{}"), nil
	}
	return json.Marshal(config, json.Deterministic(true))
}

// sendCommitted answers with CommitTableResponse, which unlike a load has no
// config.
func (c *call) sendCommitted(obj *catalog.Object, doc *metadata.Document, etag string) error {
	return c.sendMetadata(obj, doc, snapshotsAll, []byte{'}'}, etag)
}

// sendStaged answers with LoadTableResult for a table that no file holds yet.
func (c *call) sendStaged(raw []byte) error {
	body := append(make([]byte, 0, 64+len(raw)+len(c.warehouse.configJSON)), `{"metadata":`...)
	body = append(body, raw...)
	body = append(body, `,"config":`...)
	body = append(body, c.warehouse.configJSON...)
	return c.send(http.StatusOK, append(body, '}'))
}

// sendMetadata answers with a table's metadata as it is stored, between the
// few bytes that go around it.
func (c *call) sendMetadata(obj *catalog.Object, doc *metadata.Document, snapshots string, tail []byte, etag string) error {
	if err := c.admit(http.StatusOK); err != nil {
		return err
	}
	head := append(make([]byte, 0, 64+len(obj.MetadataLocation)), `{"metadata-location":`...)
	head = appendString(head, obj.MetadataLocation)
	head = append(head, `,"metadata":`...)
	if etag != "" {
		c.w.Header().Set("ETag", etag)
	}
	c.private()
	if doc.Size() >= minCompressed && c.mayCompress() {
		if run, err := c.h.compressor.table(c.ctx, obj, snapshots, doc); err == nil {
			before, after := run.stream(head, tail)
			c.writeGzip(http.StatusOK, before, run.blocks, after)
			return nil
		}
	}
	raw := shown(doc, snapshots)
	if size := len(head) + len(raw) + len(tail); size <= onePart {
		c.writeRaw(http.StatusOK, append(append(append(make([]byte, 0, size), head...), raw...), tail...))
		return nil
	}
	c.writeRaw(http.StatusOK, head, raw, tail)
	return nil
}

// appendString appends a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			return appendAnyString(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendAnyString is appendString for strings that need a closer look. Stores
// hold valid UTF-8 only; should one not, a replacement character shows it.
func appendAnyString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, strings.ToValidUTF8(s, "\ufffd")) // nothing else can fail
	return b
}
