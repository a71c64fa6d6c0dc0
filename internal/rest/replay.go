// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"crypto/sha256"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// replay reads the Idempotency-Key of a change and, when its outcome is
// known, answers with it; done tells that it has.
func (c *call) replay() (done bool, err error) {
	values := c.r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return false, nil
	}
	if c.mutation.Key == nil {
		if c.mutation.Key, err = c.idempotencyKey(values); err != nil {
			return false, err
		}
	}
	r, err := c.warehouse.Replay(c.ctx, c.mutation)
	if err != nil || r == nil {
		if err != nil {
			c.mutation.Key = nil // what is wrong with a key is not its outcome
		}
		return false, err
	}
	return true, c.sendReplay(r)
}

// idempotencyKey checks the key: a UUID of version 7 (RFC 9562), as the
// protocol demands.
func (c *call) idempotencyKey(values []string) (*catalog.IdempotencyKey, error) {
	key, err := uuid.Parse(values[0])
	if err != nil || len(values) > 1 || len(values[0]) != 36 || key.Version() != 7 || key.Variant() != uuid.RFC4122 {
		return nil, catalog.Errorf(catalog.BadRequest, "Idempotency-Key: must be one UUID of version 7 in its 36-character form")
	}
	sum := sha256.New()
	for _, part := range [][]byte{[]byte(c.r.Method), []byte(c.r.URL.EscapedPath()), []byte(c.r.URL.RawQuery), c.body} {
		sum.Write([]byte(strconv.Itoa(len(part))))
		sum.Write([]byte{0})
		sum.Write(part)
	}
	k := &catalog.IdempotencyKey{Key: key}
	sum.Sum(k.RequestHash[:0])
	return k, nil
}

// sendReplay answers with a recorded outcome. Metadata is read again by its
// location; should that file have been cleaned up since, the answer holds the
// table's current state, as the protocol allows.
func (c *call) sendReplay(r *catalog.Replay) error {
	switch {
	case r.Status == http.StatusNoContent:
		return c.empty(http.StatusNoContent)
	case r.Body != nil:
		return c.send(r.Status, r.Body)
	case r.Staged != nil:
		return c.sendTable(&catalog.Object{}, r.Staged, "")
	}
	obj := catalog.Object{ID: r.Object, MetadataLocation: r.MetadataLocation}
	switch c.route.operation {
	case "createView", "replaceView", "registerView":
		raw, err := c.warehouse.ViewMetadata(c.ctx, obj)
		if catalog.ReasonOf(err) == catalog.NotFound {
			return c.loadView()
		}
		if err != nil {
			return err
		}
		return c.sendView(&obj, raw)
	}
	delegation, err := c.delegation()
	if err != nil {
		return err
	}
	doc, err := c.warehouse.TableMetadata(c.ctx, obj)
	if catalog.ReasonOf(err) == catalog.NotFound && c.route.operation == "updateTable" {
		return c.loadTable()
	}
	if err != nil {
		return err
	}
	switch c.route.operation {
	case "updateTable":
		return c.sendCommitted(&obj, doc.Bytes(), c.etag(&obj, "all", delegation))
	case "unregisterTable":
		return c.sendCommitted(&obj, doc.Bytes(), "")
	}
	return c.sendTable(&obj, doc.Bytes(), c.etag(&obj, "all", delegation))
}
