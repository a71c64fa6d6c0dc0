// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// selectPacked returns a live object as one text of fields between 0x1F,
// which can occur in none of them: the driver's cost is per column (its name
// is read and allocated anew for each query), and this look-up is the hot
// path. The names are the caller's own.
const selectPacked = `SELECT id || char(31) || kind || char(31) || uuid || char(31) || location || char(31) || metadata_location
	|| char(31) || COALESCE(metadata, '') || char(31) || COALESCE(labels, '') || char(31) || version || char(31) || protected
	|| char(31) || created_at || char(31) || updated_at || char(31) || COALESCE(hex(metadata_digest), '')
	FROM objects WHERE warehouse = $1 AND class = $2 AND namespace = $3 AND name = $4 AND dropped_at IS NULL`

// LiveObject implements sqlstore.LiveReader. What it returns shares memory
// with other answers; callers do not change it in place.
func (e *engine) LiveObject(ctx context.Context, warehouse uuid.UUID, class int, ns catalog.Namespace, name string) (catalog.Object, error) {
	if e.isClosed() {
		return catalog.Object{}, errClosed()
	}
	key := liveKey{warehouse, class, ns.Path(), name}
	obj, state, ok := e.live.get(key)
	if ok {
		return obj, nil
	}
	obj, err := e.queryLive(ctx, key, ns)
	if err == nil {
		e.live.put(key, obj, state)
	}
	return obj, err
}

func (e *engine) queryLive(ctx context.Context, key liveKey, ns catalog.Namespace) (catalog.Object, error) {
	name := key.name
	var packed string
	if err := e.QueryRow(ctx, selectPacked, []any{key.warehouse.String(), key.class, key.namespace, name}, &packed); err != nil {
		return catalog.Object{}, err
	}
	var f [12]string
	for i := range f {
		var ok bool
		if f[i], packed, ok = strings.Cut(packed, "\x1f"); ok == (i == len(f)-1) {
			return catalog.Object{}, fmt.Errorf("object %s.%s: stored fields cannot be told apart", ns, name)
		}
	}
	obj := catalog.Object{Warehouse: key.warehouse, Namespace: slices.Clone(ns), Name: name, Location: f[3], MetadataLocation: f[4], Protected: f[8] == "1"}
	var err error
	if obj.ID, err = uuid.Parse(f[0]); err != nil {
		return catalog.Object{}, err
	}
	if obj.UUID, err = uuid.Parse(f[2]); err != nil {
		return catalog.Object{}, err
	}
	var n [4]int64
	for i, s := range []string{f[1], f[7], f[9], f[10]} {
		if n[i], err = strconv.ParseInt(s, 10, 64); err != nil {
			return catalog.Object{}, err
		}
	}
	obj.Kind, obj.Version = catalog.Kind(n[0]), n[1]
	obj.CreatedAt, obj.UpdatedAt = time.UnixMilli(n[2]).UTC(), time.UnixMilli(n[3]).UTC()
	if f[11] != "" {
		if err := obj.MetadataDigest.UnmarshalText([]byte(f[11])); err != nil {
			return catalog.Object{}, err
		}
	}
	if f[5] != "" {
		obj.Metadata = json.RawMessage(f[5])
	}
	if f[6] != "" {
		obj.Labels = json.RawMessage(f[6])
	}
	return obj, nil
}

// liveCache keeps what look-ups have found, which this process may do because
// it is the only one to write (decision 005). An entry is valid only in the
// state of the database in which it was read: states are numbered, and every
// COMMIT leads to a new one, whatever it wrote. An absent object is not kept.
//
// State is even at rest and odd from just before a COMMIT until just after it.
// A value is kept only if the state was even and the same before and after its
// query, and returned only in that same state; so a look-up sees every change
// that had been acknowledged when it began, and no two look-ups see changes in
// different orders.
type liveCache struct {
	state atomic.Uint64
	slots [liveSlots]atomic.Pointer[liveEntry]
}

// liveSlots bounds the memory: an entry takes about 600 bytes. A table whose
// slot another one took is queried again.
const liveSlots = 1 << 12

type liveKey struct {
	warehouse uuid.UUID
	class     int
	namespace string // stored path
	name      string
}

type liveEntry struct {
	state uint64
	key   liveKey
	obj   catalog.Object
}

var liveSeed = maphash.MakeSeed()

func (c *liveCache) slot(key liveKey) *atomic.Pointer[liveEntry] {
	return &c.slots[maphash.Comparable(liveSeed, key)%liveSlots]
}

// get returns what is kept of key, and the state in which to query it when
// nothing is.
func (c *liveCache) get(key liveKey) (obj catalog.Object, state uint64, ok bool) {
	state = c.state.Load()
	if e := c.slot(key).Load(); e != nil && e.state == state && e.key == key {
		return e.obj, state, true
	}
	return catalog.Object{}, state, false
}

// put keeps what a query found that began in state.
func (c *liveCache) put(key liveKey, obj catalog.Object, state uint64) {
	if state%2 == 0 && c.state.Load() == state {
		c.slot(key).Store(&liveEntry{state, key, obj})
	}
}

// change begins a change of the database's state; the function it returns ends
// it. The writing goroutine alone calls it.
func (c *liveCache) change() (end func()) {
	c.state.Add(1)
	return func() { c.state.Add(1) }
}
