// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
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
	|| char(31) || created_at || char(31) || updated_at
	FROM objects WHERE warehouse = $1 AND class = $2 AND namespace = $3 AND name = $4 AND dropped_at IS NULL`

// LiveObject implements sqlstore.LiveReader.
func (e *engine) LiveObject(ctx context.Context, warehouse uuid.UUID, class int, ns catalog.Namespace, name string) (catalog.Object, error) {
	var packed string
	if err := e.QueryRow(ctx, selectPacked, []any{warehouse.String(), class, ns.Path(), name}, &packed); err != nil {
		return catalog.Object{}, err
	}
	var f [11]string
	for i := range f {
		var ok bool
		if f[i], packed, ok = strings.Cut(packed, "\x1f"); ok == (i == len(f)-1) {
			return catalog.Object{}, fmt.Errorf("object %s.%s: stored fields cannot be told apart", ns, name)
		}
	}
	obj := catalog.Object{Warehouse: warehouse, Namespace: ns, Name: name, Location: f[3], MetadataLocation: f[4], Protected: f[8] == "1"}
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
	if f[5] != "" {
		obj.Metadata = json.RawMessage(f[5])
	}
	if f[6] != "" {
		obj.Labels = json.RawMessage(f[6])
	}
	return obj, nil
}
