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

// conclude ends a change that failed. One with a key whose failure is final
// is recorded, so that its repetition fails in the same way; when another
// request with the key was first, that one's outcome is the answer to both.
func (c *call) conclude(err error) error {
	if c.mutation.Key == nil {
		return err
	}
	failed := err
	if !catalog.IsReplayed(err) {
		e := c.toWire(err)
		if !final(e.status) {
			return err
		}
		switch ferr := c.warehouse.FinishFailed(c.ctx, c.mutation, e.status, errorBody(e)); {
		case ferr == nil:
			return err
		case !catalog.IsReplayed(ferr):
			// Without the record the same request might end otherwise later.
			return ferr
		}
	}
	if done, err := c.replay(); err != nil || done {
		return err
	}
	return failed
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
// current state, as the protocol allows.
func (c *call) sendReplay(r *catalog.Replay) error {
	switch {
	case r.Status == http.StatusNoContent:
		return c.empty(http.StatusNoContent)
	case r.Body != nil:
		if r.Status >= http.StatusBadRequest {
			c.w.Header().Set("Cache-Control", "no-store")
		}
		return c.send(r.Status, r.Body)
	case r.Staged != nil:
		return c.sendStaged(r.Staged)
	}
	id, err := c.subject()
	if err != nil {
		return err
	}
	switch c.route.operation {
	case "createView", "replaceView", "registerView":
		return c.replayView(r, id)
	}
	return c.replayTable(r, id)
}

func (c *call) replayTable(r *catalog.Replay, id catalog.Ident) error {
	delegation, err := c.delegation()
	if err != nil {
		return err
	}
	obj := catalog.Object{ID: r.Object, MetadataLocation: r.MetadataLocation, MetadataDigest: r.MetadataDigest}
	current, err := c.warehouse.LookupTable(c.ctx, id)
	gone := catalog.ReasonOf(err) == catalog.NoSuchTable || err == nil && current.ID != r.Object
	switch {
	case gone:
	case err != nil:
		return err
	default:
		obj.Labels = current.Labels
	}
	doc, err := c.warehouse.TableMetadata(c.ctx, obj)
	if catalog.ReasonOf(err) == catalog.NotFound && !gone {
		obj = current
		doc, err = c.warehouse.TableMetadata(c.ctx, obj)
	}
	if err != nil {
		return err
	}
	switch c.route.operation {
	case "updateTable":
		return c.sendCommitted(&obj, doc, c.etag(&obj, snapshotsAll, delegation))
	case "unregisterTable":
		return c.sendCommitted(&obj, doc, "")
	}
	return c.sendTable(&obj, doc, snapshotsAll, c.etag(&obj, snapshotsAll, delegation))
}

func (c *call) replayView(r *catalog.Replay, id catalog.Ident) error {
	obj := catalog.Object{ID: r.Object, MetadataLocation: r.MetadataLocation, MetadataDigest: r.MetadataDigest}
	current, err := c.warehouse.LookupView(c.ctx, id)
	gone := catalog.ReasonOf(err) == catalog.NoSuchView || err == nil && current.ID != r.Object
	switch {
	case gone:
	case err != nil:
		return err
	default:
		obj.Labels = current.Labels
	}
	raw, err := c.warehouse.ViewMetadata(c.ctx, obj)
	if catalog.ReasonOf(err) == catalog.NotFound && !gone {
		obj = current
		raw, err = c.warehouse.ViewMetadata(c.ctx, obj)
	}
	if err != nil {
		return err
	}
	return c.sendView(&obj, raw)
}

// subject returns the table or view that the request is about: named by the
// path, or, for one that is made, by the body.
func (c *call) subject() (catalog.Ident, error) {
	if c.params.name != "" {
		return c.ident()
	}
	ns, err := c.namespace()
	if err != nil {
		return catalog.Ident{}, err
	}
	var req struct {
		Name string `json:"name"`
	}
	if err := c.decode(&req); err != nil {
		return catalog.Ident{}, err
	}
	id := catalog.Ident{Namespace: ns, Name: req.Name}
	c.resource = id.Resource()
	return id, nil
}
