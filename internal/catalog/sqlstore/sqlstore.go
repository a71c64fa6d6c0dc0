// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package sqlstore is catalog.Store in SQL that both of its engines speak; the
// packages sqlite and postgres bring connections, locks, migrations and the
// meaning of errors.
//
// Queries are written with PostgreSQL's numbered placeholders; times are
// milliseconds since the epoch; text compares bytewise in both engines.
package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Engine is a database.
type Engine interface {
	Conn // outside transactions
	// Transact runs fn in one transaction, as catalog.Store.Update demands.
	Transact(ctx context.Context, fn func(Conn) error) error
	// LockLocations makes transactions that reserve overlapping locations
	// wait for each other.
	LockLocations(ctx context.Context, c Conn, warehouse uuid.UUID, locations []string) error
	// ForUpdate and SkipLocked are the engine's row-lock clauses, "" where
	// transactions exclude each other anyway.
	ForUpdate() string
	SkipLocked() string
	Migrate(ctx context.Context) error
	Version(ctx context.Context) (current, newest int, err error)
	Ping(ctx context.Context) error
	Close() error
}

// Store implements catalog.Store over an [Engine].
type Store struct {
	Engine
	reader
}

// New returns the store of an engine.
func New(e Engine) *Store { return &Store{Engine: e, reader: reader{e}} }

var _ catalog.Store = (*Store)(nil)

// Update implements catalog.Store.
func (s *Store) Update(ctx context.Context, fn func(catalog.Tx) error) error {
	return s.Transact(ctx, func(c Conn) error {
		return fn(&tx{reader: reader{c}, engine: s.Engine})
	})
}

// reader implements catalog.Reader over a connection.
type reader struct{ c Conn }

type tx struct {
	reader
	engine Engine
}

// class is the name space of a kind: tables and views share one.
func class(k catalog.Kind) int {
	if k == catalog.KindFunction {
		return 2
	}
	return 1
}

func millis(t time.Time) int64 { return t.UnixMilli() }

func optMillis(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func fromOptMillis(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return fromMillis(*ms)
}

func optText(raw json.RawMessage) *string {
	if raw == nil {
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

const objectColumns = `id, kind, namespace, name, uuid, location, metadata_location, metadata, labels, version, protected, created_at, updated_at, dropped_at, expires_at`

// objectRow is the destination of objectColumns.
type objectRow struct {
	obj              catalog.Object
	namespace        string
	metadata, labels *string
	created, updated int64
	dropped, expires *int64
}

func (o *objectRow) dest() []any {
	return []any{
		&o.obj.ID, &o.obj.Kind, &o.namespace, &o.obj.Name, &o.obj.UUID, &o.obj.Location, &o.obj.MetadataLocation, &o.metadata, &o.labels,
		&o.obj.Version, &o.obj.Protected, &o.created, &o.updated, &o.dropped, &o.expires,
	}
}

func (o *objectRow) object(warehouse uuid.UUID) catalog.Object {
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

func (r reader) ListObjects(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, kind catalog.Kind, page catalog.Page) ([]string, error) {
	names, err := r.names(ctx, `SELECT name FROM objects WHERE warehouse = $1 AND class = $2 AND namespace = $3 AND name > $4 AND dropped_at IS NULL AND kind = $5 ORDER BY name LIMIT $6`,
		warehouse, class(kind), ns.Path(), page.After, int(kind), limit(page.Limit))
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
	// Ids are time-ordered, so this is the order in which they were made.
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
	names, err := r.names(ctx, `SELECT location FROM locations WHERE object = $1 ORDER BY position, location`, object)
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

func (t *tx) CreateNamespace(ctx context.Context, rec catalog.NamespaceRecord) error {
	properties, err := json.Marshal(rec.Properties)
	if err != nil {
		return fmt.Errorf("encode properties: %w", err)
	}
	var parent *string // the foreign key; NULL at the top
	if p := rec.Namespace.Parent(); len(p) > 0 {
		path := p.Path()
		parent = &path
	}
	_, err = t.c.Exec(ctx, `INSERT INTO namespaces (warehouse, path, parent, parent_path, name, properties, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		rec.Warehouse, rec.Namespace.Path(), parent, rec.Namespace.Parent().Path(), rec.Namespace[len(rec.Namespace)-1],
		string(properties), millis(rec.CreatedAt), millis(rec.UpdatedAt))
	switch {
	case errors.Is(err, ErrUnique):
		return catalog.ErrExists
	case errors.Is(err, ErrForeignKey):
		return catalog.ErrNoNamespace
	}
	return wrap("create namespace", err)
}

func wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func (t *tx) UpdateNamespaceProperties(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, at time.Time, change func(map[string]string) map[string]string) error {
	var raw string
	err := t.c.QueryRow(ctx, `SELECT properties FROM namespaces WHERE warehouse = $1 AND path = $2`+t.engine.ForUpdate(),
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
	next, err := json.Marshal(change(properties))
	if err != nil {
		return fmt.Errorf("encode properties: %w", err)
	}
	_, err = t.c.Exec(ctx, `UPDATE namespaces SET properties = $3, updated_at = $4 WHERE warehouse = $1 AND path = $2`,
		warehouse, ns.Path(), string(next), millis(at))
	return wrap("update namespace", err)
}

func (t *tx) DropNamespace(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) error {
	var live, dropped bool
	err := t.c.QueryRow(ctx, `SELECT
		EXISTS (SELECT 1 FROM namespaces WHERE warehouse = $1 AND parent = $2) OR
		EXISTS (SELECT 1 FROM objects WHERE warehouse = $1 AND namespace = $2 AND dropped_at IS NULL),
		EXISTS (SELECT 1 FROM objects WHERE warehouse = $1 AND namespace = $2 AND dropped_at IS NOT NULL)`,
		[]any{warehouse, ns.Path()}, &live, &dropped)
	switch {
	case err != nil:
		return fmt.Errorf("look into namespace: %w", err)
	case live:
		return catalog.ErrNotEmpty
	case dropped:
		return catalog.ErrHoldsDropped
	}
	n, err := t.c.Exec(ctx, `DELETE FROM namespaces WHERE warehouse = $1 AND path = $2`, warehouse, ns.Path())
	switch {
	case errors.Is(err, ErrForeignKey):
		return catalog.ErrNotEmpty // something came in between
	case err != nil:
		return fmt.Errorf("drop namespace: %w", err)
	case n == 0:
		return catalog.ErrNoNamespace
	}
	return nil
}

func (t *tx) CreateObject(ctx context.Context, obj catalog.Object, locations []string) error {
	_, err := t.c.Exec(ctx, `INSERT INTO objects (warehouse, class, purge, `+objectColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, NULL, NULL)`,
		obj.Warehouse, class(obj.Kind), false, obj.ID, int(obj.Kind), obj.Namespace.Path(), obj.Name, obj.UUID, obj.Location, obj.MetadataLocation,
		optText(obj.Metadata), optText(obj.Labels), 1, obj.Protected, millis(obj.CreatedAt), millis(obj.UpdatedAt))
	switch {
	case errors.Is(err, ErrUnique):
		return catalog.ErrExists
	case errors.Is(err, ErrForeignKey):
		return catalog.ErrNoNamespace
	case err != nil:
		return fmt.Errorf("create object: %w", err)
	}
	return t.reserve(ctx, obj.Warehouse, obj.ID, locations, 0)
}

// reserve inserts locations for an object, or ErrLocationTaken when one
// equals, contains or lies inside another object's.
func (t *tx) reserve(ctx context.Context, warehouse, object uuid.UUID, locations []string, from int) error {
	if len(locations) == 0 {
		return nil
	}
	if err := t.engine.LockLocations(ctx, t.c, warehouse, locations); err != nil {
		return fmt.Errorf("lock locations: %w", err)
	}
	for i, location := range locations {
		taken, own, err := t.overlap(ctx, warehouse, object, location)
		switch {
		case err != nil:
			return fmt.Errorf("look for overlapping locations: %w", err)
		case taken:
			return catalog.ErrLocationTaken
		case own:
			continue
		}
		if _, err := t.c.Exec(ctx, `INSERT INTO locations (warehouse, location, object, position) VALUES ($1, $2, $3, $4)`,
			warehouse, location, object, from+i); err != nil {
			if errors.Is(err, ErrUnique) {
				return catalog.ErrLocationTaken
			}
			return fmt.Errorf("reserve location: %w", err)
		}
	}
	return nil
}

// overlap looks for other objects' reservations that meet location, and
// whether this very location is the object's already. Two index probes: one
// for the location and all its ancestors, one for the range of descendants.
func (t *tx) overlap(ctx context.Context, warehouse, object uuid.UUID, location string) (taken, own bool, err error) {
	args := []any{warehouse}
	var in strings.Builder
	for _, a := range Ancestors(location) {
		args = append(args, a)
		if len(args) > 2 {
			in.WriteString(", ")
		}
		fmt.Fprintf(&in, "$%d", len(args))
	}
	rows, err := t.c.Query(ctx, `SELECT object, location FROM locations WHERE warehouse = $1 AND location IN (`+in.String()+`)`, args...)
	if err != nil {
		return false, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var holder uuid.UUID
		var at string
		if err := rows.Scan(&holder, &at); err != nil {
			return false, false, err
		}
		if holder != object {
			taken = true
		} else if at == location {
			own = true
		}
	}
	if err := rows.Err(); err != nil || taken {
		return taken, own, err
	}
	rows.Close()
	// '0' is the byte after '/': the range of all that begins with location/.
	err = t.c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM locations WHERE warehouse = $1 AND location > $2 AND location < $3 AND object <> $4)`,
		[]any{warehouse, location + "/", location + "0", object}, &taken)
	return taken, own, err
}

// Ancestors returns a location and everything above it, down from the scheme:
// s3://b/x/y gives s3://b, s3://b/x, s3://b/x/y.
func Ancestors(location string) []string {
	start := 0
	if i := strings.Index(location, "://"); i >= 0 {
		start = i + 3
	}
	var all []string
	for i := start; i < len(location); i++ {
		if location[i] == '/' && i > start {
			all = append(all, location[:i])
		}
	}
	return append(all, location)
}

func (t *tx) SwapMetadata(ctx context.Context, id uuid.UUID, expected, next, location string, addLocations []string, at time.Time) error {
	var warehouse uuid.UUID
	err := t.c.QueryRow(ctx, `UPDATE objects SET metadata_location = $3, location = $4, updated_at = $5, version = version + 1
		WHERE id = $1 AND metadata_location = $2 AND dropped_at IS NULL RETURNING warehouse`,
		[]any{id, expected, next, location, millis(at)}, &warehouse)
	if errors.Is(err, ErrNoRows) {
		return catalog.ErrStale
	}
	if err != nil {
		return fmt.Errorf("swap metadata: %w", err)
	}
	return t.reserve(ctx, warehouse, id, addLocations, 1<<16)
}

func (t *tx) ReplaceObject(ctx context.Context, id uuid.UUID, expected string, next catalog.Object, locations []string) error {
	n, err := t.c.Exec(ctx, `UPDATE objects SET metadata_location = $3, location = $4, uuid = $5, updated_at = $6, version = version + 1
		WHERE id = $1 AND metadata_location = $2 AND dropped_at IS NULL`,
		id, expected, next.MetadataLocation, next.Location, next.UUID, millis(next.UpdatedAt))
	switch {
	case err != nil:
		return fmt.Errorf("replace object: %w", err)
	case n == 0:
		return catalog.ErrStale
	}
	if _, err := t.c.Exec(ctx, `DELETE FROM locations WHERE object = $1`, id); err != nil {
		return fmt.Errorf("release locations: %w", err)
	}
	return t.reserve(ctx, next.Warehouse, id, locations, 0)
}

// live finds a live object of exactly one kind and locks its row.
func (t *tx) live(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident) (catalog.Object, error) {
	obj, err := t.object(ctx, warehouse, selectLive+t.engine.ForUpdate(), warehouse, class(kind), id.Namespace.Path(), id.Name)
	if err == nil && obj.Kind != kind {
		return catalog.Object{}, catalog.ErrNoObject
	}
	return obj, err
}

func (t *tx) RenameObject(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, from, to catalog.Ident, at time.Time) (catalog.Object, error) {
	obj, err := t.live(ctx, warehouse, kind, from)
	if err != nil {
		return catalog.Object{}, err
	}
	if obj.Namespace.Equal(to.Namespace) && obj.Name == to.Name {
		return catalog.Object{}, catalog.ErrExists
	}
	_, err = t.c.Exec(ctx, `UPDATE objects SET namespace = $2, name = $3, updated_at = $4 WHERE id = $1`, obj.ID, to.Namespace.Path(), to.Name, millis(at))
	switch {
	case errors.Is(err, ErrUnique):
		return catalog.Object{}, catalog.ErrExists
	case errors.Is(err, ErrForeignKey):
		return catalog.Object{}, catalog.ErrNoNamespace
	case err != nil:
		return catalog.Object{}, fmt.Errorf("rename object: %w", err)
	}
	obj.Namespace, obj.Name, obj.UpdatedAt = to.Namespace, to.Name, at
	return obj, nil
}

func (t *tx) DropObject(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, at, expires time.Time, purge bool) (catalog.Object, error) {
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
	_, err = t.c.Exec(ctx, `UPDATE objects SET dropped_at = $2, expires_at = $3, purge = $4 WHERE id = $1`, obj.ID, millis(at), millis(expires), purge)
	obj.DroppedAt, obj.ExpiresAt = at, expires
	return obj, wrap("drop object", err)
}

// remove deletes a row for good and releases its locations or queues them
// for purge.
func (t *tx) remove(ctx context.Context, obj catalog.Object, purge bool, at time.Time) error {
	if purge {
		locations, err := t.Locations(ctx, obj.ID)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(locations)
		if err != nil {
			return err
		}
		if _, err := t.c.Exec(ctx, `INSERT INTO purges (warehouse, object, locations, metadata_location, attempts, not_before, created_at) VALUES ($1, $2, $3, $4, 0, $5, $5)`,
			obj.Warehouse, obj.ID, string(raw), obj.MetadataLocation, millis(at)); err != nil {
			return fmt.Errorf("queue purge: %w", err)
		}
	} else if _, err := t.c.Exec(ctx, `DELETE FROM locations WHERE object = $1`, obj.ID); err != nil {
		return fmt.Errorf("release locations: %w", err)
	}
	_, err := t.c.Exec(ctx, `DELETE FROM objects WHERE id = $1`, obj.ID)
	return wrap("drop object", err)
}

func (t *tx) RestoreObject(ctx context.Context, warehouse, id uuid.UUID, to *catalog.Ident, at time.Time) (catalog.Object, error) {
	obj, err := t.object(ctx, warehouse, `SELECT `+objectColumns+` FROM objects WHERE warehouse = $1 AND id = $2 AND dropped_at IS NOT NULL AND expires_at > $3`+t.engine.ForUpdate(),
		warehouse, id, millis(at))
	if err != nil {
		return catalog.Object{}, err
	}
	if to != nil {
		obj.Namespace, obj.Name = to.Namespace, to.Name
	}
	_, err = t.c.Exec(ctx, `UPDATE objects SET dropped_at = NULL, expires_at = NULL, purge = $2, namespace = $3, name = $4, updated_at = $5 WHERE id = $1`,
		id, false, obj.Namespace.Path(), obj.Name, millis(at))
	switch {
	case errors.Is(err, ErrUnique):
		return catalog.Object{}, catalog.ErrExists
	case errors.Is(err, ErrForeignKey):
		return catalog.Object{}, catalog.ErrNoNamespace
	case err != nil:
		return catalog.Object{}, fmt.Errorf("restore object: %w", err)
	}
	obj.DroppedAt, obj.ExpiresAt, obj.UpdatedAt = time.Time{}, time.Time{}, at
	return obj, nil
}

func (t *tx) SetProtected(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, protected bool) error {
	return t.set(ctx, warehouse, kind, id, `protected`, protected)
}

func (t *tx) SetLabels(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, labels json.RawMessage) error {
	return t.set(ctx, warehouse, kind, id, `labels`, optText(labels))
}

func (t *tx) set(ctx context.Context, warehouse uuid.UUID, kind catalog.Kind, id catalog.Ident, column string, value any) error {
	n, err := t.c.Exec(ctx, `UPDATE objects SET `+column+` = $6 WHERE warehouse = $1 AND class = $2 AND namespace = $3 AND name = $4 AND kind = $5 AND dropped_at IS NULL`,
		warehouse, class(kind), id.Namespace.Path(), id.Name, int(kind), value)
	if err == nil && n == 0 {
		return catalog.ErrNoObject
	}
	return wrap("set "+column, err)
}

func (t *tx) SetFunctionMetadata(ctx context.Context, id uuid.UUID, metadata json.RawMessage, at time.Time) error {
	n, err := t.c.Exec(ctx, `UPDATE objects SET metadata = $2, updated_at = $3, version = version + 1 WHERE id = $1 AND dropped_at IS NULL`, id, string(metadata), millis(at))
	if err == nil && n == 0 {
		return catalog.ErrNoObject
	}
	return wrap("set function metadata", err)
}

func (t *tx) PutIdempotency(ctx context.Context, rec catalog.IdempotencyRecord) error {
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

func (t *tx) PutEvent(ctx context.Context, e catalog.Event) error {
	_, err := t.c.Exec(ctx, `INSERT INTO events (warehouse, at, type, object, namespace, name, payload) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		e.Warehouse, millis(e.Time), e.Type, e.Object, e.Namespace, e.Name, string(e.Payload))
	return wrap("put event", err)
}

func (t *tx) PutAudit(ctx context.Context, row catalog.AuditRow) error {
	_, err := t.c.Exec(ctx, `INSERT INTO audit (warehouse, at, request_id, principal, operation, resource, detail) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		row.Warehouse, millis(row.Time), row.RequestID, row.Principal, row.Operation, row.Resource, string(row.Detail))
	return wrap("put audit row", err)
}
