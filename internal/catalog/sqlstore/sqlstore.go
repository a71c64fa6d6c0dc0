// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package sqlstore is catalog.Store in SQL that both of its engines speak; the
// packages sqlite and postgres bring connections, locks, migrations and the
// meaning of errors.
//
// Queries are written with PostgreSQL's numbered placeholders; times are
// milliseconds since the epoch; text compares bytewise in both engines.
//
// Invariants: every look-up and page is a probe or a range of an index; a
// transaction of which one write has failed can still be read from, but never
// commits; no query is put together from what a caller sent.
package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// Rows is the result of a query.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}

// Conn runs statements, inside or outside a transaction. Errors that carry a
// meaning have been through the engine's classification: ErrUnique and
// ErrForeignKey, or catalog.ErrUnavailable.
type Conn interface {
	Exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	// TryExec is Exec for a statement that may meet a constraint: after
	// ErrUnique or ErrForeignKey the transaction is as before.
	TryExec(ctx context.Context, query string, args ...any) (rows int64, err error)
	// QueryRow scans one row; ErrNoRows when there is none.
	QueryRow(ctx context.Context, query string, args []any, dest ...any) error
	Query(ctx context.Context, query string, args ...any) (Rows, error)
}

// What a [Conn] returns for violated constraints and empty results.
var (
	ErrUnique     = errors.New("unique constraint violated")
	ErrForeignKey = errors.New("foreign key violated")
	ErrNoRows     = errors.New("no rows")
)

// RowLocks are an engine's clauses that lock selected rows until the
// transaction ends; "" where transactions exclude each other anyway.
type RowLocks struct {
	Update     string // to change columns that no foreign key refers to
	Delete     string // to delete a row, or to keep others from referring to it
	SkipLocked string // Delete, leaving out rows that others have locked
}

// Engine is a database.
type Engine interface {
	Conn // outside transactions
	// Transact runs fn in one transaction, as catalog.Store.Update demands.
	Transact(ctx context.Context, fn func(Conn) error) error
	// LockLocations makes transactions that reserve overlapping locations
	// wait for each other.
	LockLocations(ctx context.Context, c Conn, warehouse uuid.UUID, locations []string) error
	// NumberAudit gives the audit rows of a warehouse with these ids the
	// numbers from first on, and their hashes, which stand one after the other.
	NumberAudit(ctx context.Context, c Conn, ids []int64, first int64, hashes []byte) error
	RowLocks() RowLocks
	Migrate(ctx context.Context) error
	Version(ctx context.Context) (current, newest int, err error)
	Ping(ctx context.Context) error
	Close() error
}

// Store implements catalog.Store over an [Engine].
type Store struct {
	reader
	engine Engine
	locks  RowLocks
}

// New returns the store of an engine.
func New(e Engine) *Store { return &Store{reader: reader{e}, engine: e, locks: e.RowLocks()} }

var _ catalog.Store = (*Store)(nil)

// Update implements catalog.Store.
func (s *Store) Update(ctx context.Context, fn func(catalog.Tx) error) error {
	return s.engine.Transact(ctx, func(c Conn) error {
		t := s.tx(c)
		if err := fn(t); err != nil {
			return err
		}
		return t.failed
	})
}

func (s *Store) tx(c Conn) *tx { return &tx{reader: reader{c}, engine: s.engine, locks: s.locks} }

// Migrate implements catalog.Store.
func (s *Store) Migrate(ctx context.Context) error { return s.engine.Migrate(ctx) }

// Version implements catalog.Store.
func (s *Store) Version(ctx context.Context) (current, newest int, err error) {
	return s.engine.Version(ctx)
}

// Ping implements catalog.Store.
func (s *Store) Ping(ctx context.Context) error { return s.engine.Ping(ctx) }

// Close implements catalog.Store.
func (s *Store) Close() error { return s.engine.Close() }

// reader implements catalog.Reader over a connection.
type reader struct{ c Conn }

// class is the name space of a kind: tables and views share one.
func class(k catalog.Kind) int {
	if k == catalog.KindFunction {
		return 2
	}
	return 1
}

func millis(t time.Time) int64 { return t.UnixMilli() }

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func fromOptMillis(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return fromMillis(*ms)
}

func optText(raw json.RawMessage) *string {
	if len(raw) == 0 {
		return nil
	}
	s := string(raw)
	return &s
}

func fromOptText(s *string) json.RawMessage {
	if s == nil {
		return nil
	}
	return json.RawMessage(*s)
}

// optDigest is NULL for an object whose metadata is no file.
func optDigest(d catalog.Digest) []byte {
	if d.IsZero() {
		return nil
	}
	return d[:]
}

func wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// limit turns "all" into a number that SQL takes.
func limit(n int) int64 {
	if n <= 0 {
		return 1<<63 - 1
	}
	return int64(n)
}

func (r reader) Namespace(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) (catalog.NamespaceRecord, error) {
	var properties string
	var created, updated int64
	err := r.c.QueryRow(ctx, `SELECT properties, created_at, updated_at FROM namespaces WHERE warehouse = $1 AND path = $2`,
		[]any{warehouse, ns.Path()}, &properties, &created, &updated)
	if errors.Is(err, ErrNoRows) {
		return catalog.NamespaceRecord{}, catalog.ErrNoNamespace
	}
	if err != nil {
		return catalog.NamespaceRecord{}, fmt.Errorf("read namespace: %w", err)
	}
	rec := catalog.NamespaceRecord{Warehouse: warehouse, Namespace: ns, CreatedAt: fromMillis(created), UpdatedAt: fromMillis(updated)}
	if err := json.Unmarshal([]byte(properties), &rec.Properties); err != nil {
		return catalog.NamespaceRecord{}, fmt.Errorf("decode properties of namespace %s: %w", ns, err)
	}
	return rec, nil
}

func (r reader) ListNamespaces(ctx context.Context, warehouse uuid.UUID, parent catalog.Namespace, page catalog.Page) ([]catalog.Namespace, error) {
	names, err := r.names(ctx, `SELECT name FROM namespaces WHERE warehouse = $1 AND parent_path = $2 AND name > $3 ORDER BY name LIMIT $4`,
		warehouse, parent.Path(), page.After, limit(page.Limit))
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	children := make([]catalog.Namespace, len(names))
	for i, name := range names {
		children[i] = append(slices.Clone(parent), name)
	}
	return children, nil
}

// names runs a query of one text column.
func (r reader) names(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := r.c.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names := []string{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

const objectColumns = `id, kind, namespace, name, uuid, location, metadata_location, metadata_digest, metadata, labels, version, protected, created_at, updated_at, dropped_at, expires_at`

// objectRow is the destination of objectColumns.
type objectRow struct {
	obj              catalog.Object
	namespace        string
	digest           []byte
	metadata, labels *string
	created, updated int64
	dropped, expires *int64
}

func (o *objectRow) dest() []any {
	return []any{
		&o.obj.ID, &o.obj.Kind, &o.namespace, &o.obj.Name, &o.obj.UUID, &o.obj.Location, &o.obj.MetadataLocation, &o.digest, &o.metadata, &o.labels,
		&o.obj.Version, &o.obj.Protected, &o.created, &o.updated, &o.dropped, &o.expires,
	}
}

func (o *objectRow) object(warehouse uuid.UUID) catalog.Object {
	copy(o.obj.MetadataDigest[:], o.digest)
	o.obj.Warehouse = warehouse
	o.obj.Namespace = catalog.NamespaceFromPath(o.namespace)
	o.obj.Metadata, o.obj.Labels = fromOptText(o.metadata), fromOptText(o.labels)
	o.obj.CreatedAt, o.obj.UpdatedAt = fromMillis(o.created), fromMillis(o.updated)
	o.obj.DroppedAt, o.obj.ExpiresAt = fromOptMillis(o.dropped), fromOptMillis(o.expires)
	return o.obj
}

func (r reader) object(ctx context.Context, warehouse uuid.UUID, query string, args ...any) (catalog.Object, error) {
	var row objectRow
	err := r.c.QueryRow(ctx, query, args, row.dest()...)
	if errors.Is(err, ErrNoRows) {
		return catalog.Object{}, catalog.ErrNoObject
	}
	if err != nil {
		return catalog.Object{}, fmt.Errorf("read object: %w", err)
	}
	return row.object(warehouse), nil
}

const selectLive = `SELECT ` + objectColumns + ` FROM objects WHERE warehouse = $1 AND class = $2 AND namespace = $3 AND name = $4 AND dropped_at IS NULL`

// LiveReader is a [Conn] that has a cheaper way to look up a live object than
// selectLive; the look-up is the hot path of loading a table.
type LiveReader interface {
	// LiveObject returns ErrNoRows when there is none.
	LiveObject(ctx context.Context, warehouse uuid.UUID, class int, ns catalog.Namespace, name string) (catalog.Object, error)
}

func (r reader) Object(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, name string, kind catalog.Kind) (catalog.Object, error) {
	if fast, ok := r.c.(LiveReader); ok {
		obj, err := fast.LiveObject(ctx, warehouse, class(kind), ns, name)
		if errors.Is(err, ErrNoRows) {
			return catalog.Object{}, catalog.ErrNoObject
		}
		return obj, wrap("read object", err)
	}
	return r.object(ctx, warehouse, selectLive, warehouse, class(kind), ns.Path(), name)
}

func (r reader) ObjectByID(ctx context.Context, warehouse, id uuid.UUID) (catalog.Object, error) {
	return r.object(ctx, warehouse, `SELECT `+objectColumns+` FROM objects WHERE warehouse = $1 AND id = $2`, warehouse, id)
}

const selectNames = `SELECT name FROM objects WHERE warehouse = $1 AND kind = $2 AND namespace = $3 AND name > $4 AND dropped_at IS NULL ORDER BY name LIMIT $5`

func (r reader) ListObjects(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, kind catalog.Kind, page catalog.Page) ([]string, error) {
	names, err := r.names(ctx, selectNames, warehouse, int(kind), ns.Path(), page.After, limit(page.Limit))
	if err != nil {
		return nil, fmt.Errorf("list objects: %w", err)
	}
	return names, nil
}

func (r reader) ListDropped(ctx context.Context, warehouse uuid.UUID, page catalog.Page) ([]catalog.Object, error) {
	after := page.After
	if after == "" {
		after = uuid.Nil.String()
	}
	id, err := uuid.Parse(after)
	if err != nil {
		return nil, fmt.Errorf("page after %q: %w", page.After, err)
	}
	rows, err := r.c.Query(ctx, `SELECT `+objectColumns+` FROM objects WHERE warehouse = $1 AND dropped_at IS NOT NULL AND id > $2 ORDER BY id LIMIT $3`,
		warehouse, id, limit(page.Limit))
	if err != nil {
		return nil, fmt.Errorf("list dropped objects: %w", err)
	}
	defer rows.Close()
	var objects []catalog.Object
	for rows.Next() {
		var row objectRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, fmt.Errorf("list dropped objects: %w", err)
		}
		objects = append(objects, row.object(warehouse))
	}
	return objects, rows.Err()
}

func (r reader) Locations(ctx context.Context, object uuid.UUID) ([]string, error) {
	names, err := r.names(ctx, `SELECT l.location FROM locations l LEFT JOIN objects o ON o.id = l.object
		WHERE l.object = $1 ORDER BY CASE WHEN o.location = l.location THEN 0 ELSE 1 END, l.position, l.location`, object)
	if err != nil {
		return nil, fmt.Errorf("read locations: %w", err)
	}
	return names, nil
}

func (r reader) Idempotency(ctx context.Context, warehouse uuid.UUID, principal string, key uuid.UUID, now time.Time) (catalog.IdempotencyRecord, error) {
	rec := catalog.IdempotencyRecord{Warehouse: warehouse, Principal: principal, Key: key}
	var hash []byte
	var response string
	var created, expires int64
	err := r.c.QueryRow(ctx, `SELECT operation, request_hash, response, created_at, expires_at FROM idempotency WHERE warehouse = $1 AND principal = $2 AND key = $3 AND expires_at > $4`,
		[]any{warehouse, principal, key, millis(now)}, &rec.Operation, &hash, &response, &created, &expires)
	if errors.Is(err, ErrNoRows) {
		return catalog.IdempotencyRecord{}, catalog.ErrNoObject
	}
	if err != nil {
		return catalog.IdempotencyRecord{}, fmt.Errorf("read idempotency record: %w", err)
	}
	if copy(rec.RequestHash[:], hash) != len(rec.RequestHash) {
		return catalog.IdempotencyRecord{}, errors.New("read idempotency record: hash of wrong length")
	}
	rec.Response = json.RawMessage(response)
	rec.CreatedAt, rec.ExpiresAt = fromMillis(created), fromMillis(expires)
	return rec, nil
}
