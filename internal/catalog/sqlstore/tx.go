// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// tx implements catalog.Tx.
type tx struct {
	reader
	engine Engine
	locks  RowLocks
	failed error // the first write that failed
}

// note remembers that a write failed: what it had done before that must not
// be committed, even when the caller goes on.
func (t *tx) note(err *error) {
	if *err != nil && t.failed == nil {
		t.failed = *err
	}
}

func (t *tx) CreateNamespace(ctx context.Context, rec catalog.NamespaceRecord) (err error) {
	defer t.note(&err)
	if len(rec.Namespace) == 0 {
		return catalog.ErrExists // the root always does
	}
	properties, err := encodeProperties(rec.Properties)
	if err != nil {
		return err
	}
	var parent *string // the foreign key; NULL at the top
	if p := rec.Namespace.Parent(); len(p) > 0 {
		path := p.Path()
		parent = &path
	}
	_, err = t.c.TryExec(ctx, `INSERT INTO namespaces (warehouse, path, parent, parent_path, name, properties, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		rec.Warehouse, rec.Namespace.Path(), parent, rec.Namespace.Parent().Path(), rec.Namespace[len(rec.Namespace)-1],
		properties, millis(rec.CreatedAt), millis(rec.UpdatedAt))
	return named("create namespace", err)
}

// named is what a violated constraint means to a write that gives something
// its name.
func named(doing string, err error) error {
	switch {
	case errors.Is(err, ErrUnique):
		return catalog.ErrExists
	case errors.Is(err, ErrForeignKey):
		return catalog.ErrNoNamespace
	}
	return wrap(doing, err)
}

func encodeProperties(properties map[string]string) (string, error) {
	if properties == nil {
		return "{}", nil
	}
	raw, err := json.Marshal(properties)
	return string(raw), wrap("encode properties", err)
}

func (t *tx) UpdateNamespaceProperties(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, at time.Time, change func(map[string]string) map[string]string) (err error) {
	defer t.note(&err)
	var raw string
	err = t.c.QueryRow(ctx, `SELECT properties FROM namespaces WHERE warehouse = $1 AND path = $2`+t.locks.Update,
		[]any{warehouse, ns.Path()}, &raw)
	if errors.Is(err, ErrNoRows) {
		return catalog.ErrNoNamespace
	}
	if err != nil {
		return fmt.Errorf("read namespace: %w", err)
	}
	var properties map[string]string
	if err := json.Unmarshal([]byte(raw), &properties); err != nil {
		return fmt.Errorf("decode properties of namespace %s: %w", ns, err)
	}
	next, err := encodeProperties(change(properties))
	if err != nil {
		return err
	}
	_, err = t.c.Exec(ctx, `UPDATE namespaces SET properties = $3, updated_at = $4 WHERE warehouse = $1 AND path = $2`,
		warehouse, ns.Path(), next, millis(at))
	return wrap("update namespace", err)
}

func (t *tx) DropNamespace(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) (err error) {
	defer t.note(&err)
	// With this lock nobody can put anything into the namespace any more.
	var path string
	err = t.c.QueryRow(ctx, `SELECT path FROM namespaces WHERE warehouse = $1 AND path = $2`+t.locks.Delete, []any{warehouse, ns.Path()}, &path)
	if errors.Is(err, ErrNoRows) {
		return catalog.ErrNoNamespace
	}
	if err != nil {
		return fmt.Errorf("read namespace: %w", err)
	}
	var live, dropped bool
	err = t.c.QueryRow(ctx, `SELECT
		EXISTS (SELECT 1 FROM namespaces WHERE warehouse = $1 AND parent = $2) OR
		EXISTS (SELECT 1 FROM objects WHERE warehouse = $1 AND namespace = $2 AND dropped_at IS NULL),
		EXISTS (SELECT 1 FROM objects WHERE warehouse = $1 AND namespace = $2 AND dropped_at IS NOT NULL)`,
		[]any{warehouse, path}, &live, &dropped)
	switch {
	case err != nil:
		return fmt.Errorf("look into namespace: %w", err)
	case live:
		return catalog.ErrNotEmpty
	case dropped:
		return catalog.ErrHoldsDropped
	}
	_, err = t.c.TryExec(ctx, `DELETE FROM namespaces WHERE warehouse = $1 AND path = $2`, warehouse, path)
	if errors.Is(err, ErrForeignKey) {
		return catalog.ErrNotEmpty
	}
	return wrap("drop namespace", err)
}

func (t *tx) CreateObject(ctx context.Context, obj catalog.Object, locations []string) (err error) {
	defer t.note(&err)
	_, err = t.c.TryExec(ctx, `INSERT INTO objects (warehouse, class, purge, `+objectColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, NULL, NULL)`,
		obj.Warehouse, class(obj.Kind), false, obj.ID, int(obj.Kind), obj.Namespace.Path(), obj.Name, obj.UUID, obj.Location, obj.MetadataLocation, optDigest(obj.MetadataDigest),
		optText(obj.Metadata), optText(obj.Labels), 1, obj.Protected, millis(obj.CreatedAt), millis(obj.UpdatedAt))
	if err != nil {
		return named("create object", err)
	}
	return t.reserve(ctx, obj.Warehouse, obj.ID, locations, 0)
}

// addedPosition orders locations that were added later behind the first ones.
const addedPosition = 1 << 16

func (t *tx) SwapMetadata(ctx context.Context, id uuid.UUID, expected, next string, digest catalog.Digest, location string, addLocations []string, at time.Time) (err error) {
	defer t.note(&err)
	var warehouse uuid.UUID
	err = t.c.QueryRow(ctx, `UPDATE objects SET metadata_location = $3, metadata_digest = $4, location = $5, updated_at = $6, version = version + 1
		WHERE id = $1 AND metadata_location = $2 AND dropped_at IS NULL RETURNING warehouse`,
		[]any{id, expected, next, optDigest(digest), location, millis(at)}, &warehouse)
	if errors.Is(err, ErrNoRows) {
		return catalog.ErrStale
	}
	if err != nil {
		return fmt.Errorf("swap metadata: %w", err)
	}
	return t.reserve(ctx, warehouse, id, addLocations, addedPosition)
}

func (t *tx) ReplaceObject(ctx context.Context, id uuid.UUID, expected string, next catalog.Object, locations []string) (err error) {
	defer t.note(&err)
	var warehouse uuid.UUID
	err = t.c.QueryRow(ctx, `UPDATE objects SET metadata_location = $3, metadata_digest = $4, location = $5, uuid = $6, updated_at = $7, version = version + 1
		WHERE id = $1 AND metadata_location = $2 AND dropped_at IS NULL RETURNING warehouse`,
		[]any{id, expected, next.MetadataLocation, optDigest(next.MetadataDigest), next.Location, next.UUID, millis(next.UpdatedAt)}, &warehouse)
	if errors.Is(err, ErrNoRows) {
		return catalog.ErrStale
	}
	if err != nil {
		return fmt.Errorf("replace object: %w", err)
	}
	if _, err := t.c.Exec(ctx, `DELETE FROM locations WHERE object = $1`, id); err != nil {
		return fmt.Errorf("release locations: %w", err)
	}
	return t.reserve(ctx, warehouse, id, locations, 0)
}

// live finds a live object of exactly one kind and locks its row.
func (t *tx) live(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident) (catalog.Object, error) {
	obj, err := t.object(ctx, warehouse, selectLive+t.locks.Delete, warehouse, class(kind), id.Namespace.Path(), id.Name)
	if err == nil && obj.Kind != kind {
		return catalog.Object{}, catalog.ErrNoObject
	}
	return obj, err
}

func (t *tx) RenameObject(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, from, to catalog.Ident, at time.Time) (_ catalog.Object, err error) {
	defer t.note(&err)
	obj, err := t.live(ctx, warehouse, kind, from)
	if err != nil {
		return catalog.Object{}, err
	}
	if obj.Namespace.Equal(to.Namespace) && obj.Name == to.Name {
		return catalog.Object{}, catalog.ErrExists // its own name is taken, too
	}
	if _, err := t.c.TryExec(ctx, `UPDATE objects SET namespace = $2, name = $3, updated_at = $4 WHERE id = $1`,
		obj.ID, to.Namespace.Path(), to.Name, millis(at)); err != nil {
		return catalog.Object{}, named("rename object", err)
	}
	obj.Namespace, obj.Name, obj.UpdatedAt = to.Namespace, to.Name, at
	return obj, nil
}

func (t *tx) DropObject(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, at, expires time.Time, purge bool) (_ catalog.Object, err error) {
	defer t.note(&err)
	obj, err := t.live(ctx, warehouse, kind, id)
	if err != nil {
		return catalog.Object{}, err
	}
	if obj.Protected {
		return catalog.Object{}, catalog.ErrProtected
	}
	if expires.IsZero() {
		return obj, t.remove(ctx, obj, purge, at)
	}
	if _, err := t.c.Exec(ctx, `UPDATE objects SET dropped_at = $2, expires_at = $3, purge = $4 WHERE id = $1`,
		obj.ID, millis(at), millis(expires), purge); err != nil {
		return catalog.Object{}, fmt.Errorf("drop object: %w", err)
	}
	obj.DroppedAt, obj.ExpiresAt = at, expires
	return obj, nil
}

// remove deletes a row for good and releases its locations or queues them
// for purge.
func (t *tx) remove(ctx context.Context, obj catalog.Object, purge bool, at time.Time) error {
	if purge {
		if err := t.queuePurge(ctx, obj, at); err != nil {
			return err
		}
	} else if _, err := t.c.Exec(ctx, `DELETE FROM locations WHERE object = $1`, obj.ID); err != nil {
		return fmt.Errorf("release locations: %w", err)
	}
	_, err := t.c.Exec(ctx, `DELETE FROM objects WHERE id = $1`, obj.ID)
	return wrap("drop object", err)
}

func (t *tx) queuePurge(ctx context.Context, obj catalog.Object, at time.Time) error {
	locations, err := t.Locations(ctx, obj.ID)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(locations)
	if err != nil {
		return fmt.Errorf("encode locations: %w", err)
	}
	_, err = t.c.Exec(ctx, `INSERT INTO purges (warehouse, object, locations, metadata_location, attempts, not_before, created_at) VALUES ($1, $2, $3, $4, 0, $5, $6)`,
		obj.Warehouse, obj.ID, string(raw), obj.MetadataLocation, millis(at), millis(at))
	return wrap("queue purge", err)
}

func (t *tx) RestoreObject(ctx context.Context, warehouse, id uuid.UUID, to *catalog.Ident, at time.Time) (_ catalog.Object, err error) {
	defer t.note(&err)
	obj, err := t.object(ctx, warehouse, `SELECT `+objectColumns+` FROM objects WHERE warehouse = $1 AND id = $2 AND dropped_at IS NOT NULL AND expires_at > $3`+t.locks.Delete,
		warehouse, id, millis(at))
	if err != nil {
		return catalog.Object{}, err
	}
	if to != nil {
		obj.Namespace, obj.Name = to.Namespace, to.Name
	}
	if _, err := t.c.TryExec(ctx, `UPDATE objects SET dropped_at = NULL, expires_at = NULL, purge = $2, namespace = $3, name = $4, updated_at = $5 WHERE id = $1`,
		id, false, obj.Namespace.Path(), obj.Name, millis(at)); err != nil {
		return catalog.Object{}, named("restore object", err)
	}
	obj.DroppedAt, obj.ExpiresAt, obj.UpdatedAt = time.Time{}, time.Time{}, at
	return obj, nil
}

func (t *tx) SetProtected(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, protected bool) (err error) {
	defer t.note(&err)
	return t.set(ctx, warehouse, kind, id, `protected`, protected)
}

func (t *tx) SetLabels(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, labels json.RawMessage) (err error) {
	defer t.note(&err)
	return t.set(ctx, warehouse, kind, id, `labels`, optText(labels))
}

// set writes one column, whose name is this package's own.
func (t *tx) set(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, column string, value any) error {
	n, err := t.c.Exec(ctx, `UPDATE objects SET `+column+` = $6 WHERE warehouse = $1 AND class = $2 AND namespace = $3 AND name = $4 AND kind = $5 AND dropped_at IS NULL`,
		warehouse, class(kind), id.Namespace.Path(), id.Name, int(kind), value)
	if err == nil && n == 0 {
		return catalog.ErrNoObject
	}
	return wrap("set "+column, err)
}

func (t *tx) SetFunctionMetadata(ctx context.Context, id uuid.UUID, metadata json.RawMessage, at time.Time) (err error) {
	defer t.note(&err)
	n, err := t.c.Exec(ctx, `UPDATE objects SET metadata = $2, updated_at = $3, version = version + 1 WHERE id = $1 AND class = 2 AND dropped_at IS NULL`,
		id, string(metadata), millis(at))
	if err == nil && n == 0 {
		return catalog.ErrNoObject
	}
	return wrap("set function metadata", err)
}

func (t *tx) PutIdempotency(ctx context.Context, rec catalog.IdempotencyRecord) (err error) {
	defer t.note(&err)
	n, err := t.c.Exec(ctx, `INSERT INTO idempotency (warehouse, principal, key, operation, request_hash, response, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (warehouse, principal, key) DO UPDATE SET operation = excluded.operation, request_hash = excluded.request_hash,
			response = excluded.response, created_at = excluded.created_at, expires_at = excluded.expires_at
		WHERE idempotency.expires_at <= excluded.created_at`,
		rec.Warehouse, rec.Principal, rec.Key, rec.Operation, rec.RequestHash[:], string(rec.Response), millis(rec.CreatedAt), millis(rec.ExpiresAt))
	if err == nil && n == 0 {
		return catalog.ErrIdempotencyUsed
	}
	return wrap("record idempotency key", err)
}

func (t *tx) PutEvent(ctx context.Context, e catalog.Event) (err error) {
	defer t.note(&err)
	_, err = t.c.Exec(ctx, `INSERT INTO events (warehouse, at, type, object, namespace, name, payload) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		e.Warehouse, millis(e.Time), e.Type, e.Object, e.Namespace, e.Name, string(e.Payload))
	return wrap("put event", err)
}

func (t *tx) PutAudit(ctx context.Context, row catalog.AuditRow) (err error) {
	defer t.note(&err)
	address, policies := "", ""
	if row.Address.IsValid() {
		address = row.Address.String()
	}
	if len(row.Policies) > 0 {
		raw, err := json.Marshal(row.Policies)
		if err != nil {
			return fmt.Errorf("encode policies: %w", err)
		}
		policies = string(raw)
	}
	_, err = t.c.Exec(ctx, `INSERT INTO audit (warehouse, kind, at, request_id, principal, actor, address, operation, resource, status, decision, policies, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		row.Warehouse, int64(row.Kind), millis(row.Time), row.RequestID, row.Principal, row.Actor, address, row.Operation, row.Resource,
		int64(row.Status), int64(row.Decision), policies, string(row.Detail))
	return wrap("put audit row", err)
}
