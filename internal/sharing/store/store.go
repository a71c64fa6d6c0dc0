// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package store is sharing.Store in the catalog's database, on every engine
// that package sqlstore knows.
//
// Invariants are those of sqlstore: every look-up and page is a probe or a
// range of an index, a transaction of which one write has failed never
// commits, and no query is put together from what a caller sent.
package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
)

// Store implements sharing.Store.
type Store struct {
	reader
	store *sqlstore.Store
}

var _ sharing.Store = (*Store)(nil)

// Open returns the store that lies in the database of a catalog, which has
// been migrated.
func Open(ctx context.Context, s *sqlstore.Store) (*Store, error) {
	id, err := s.EnsureWarehouse(ctx, sharing.AdministrationPartition)
	if err != nil {
		return nil, err
	}
	return &Store{reader: reader{c: s.Conn(), catalog: s, administration: id, locks: s.Locks()}, store: s}, nil
}

// Update implements sharing.Store.
func (s *Store) Update(ctx context.Context, fn func(sharing.Tx) error) error {
	return s.store.Update(ctx, func(ct catalog.Tx) error {
		t, err := s.Within(ct)
		if err != nil {
			return err
		}
		return fn(t)
	})
}

// Within implements sharing.Store.
func (s *Store) Within(ct catalog.Tx) (sharing.Tx, error) {
	c, err := sqlstore.ConnOf(ct)
	if err != nil {
		return nil, err
	}
	return &tx{reader: reader{c: c, catalog: ct, administration: s.administration, locks: s.locks}, ct: ct}, nil
}

// Administration implements sharing.Store.
func (s *Store) Administration() uuid.UUID { return s.administration }

// EnsureWarehouse implements sharing.Store.
func (s *Store) EnsureWarehouse(ctx context.Context, name string) (uuid.UUID, error) {
	return s.store.EnsureWarehouse(ctx, name)
}

// reader implements sharing.Reader.
type reader struct {
	c              sqlstore.Conn
	catalog        catalog.Reader
	administration uuid.UUID
	locks          sqlstore.RowLocks
}

func limit(n int) int64 {
	if n <= 0 {
		return 1<<63 - 1
	}
	return int64(n)
}

// after takes the key of a page apart into n parts; "" starts before all.
func after(page sharing.Page, n int) ([]string, error) {
	parts := make([]string, n)
	if page.After == "" {
		return parts, nil
	}
	given := catalog.NamespaceFromPath(page.After)
	if len(given) != n {
		return nil, fmt.Errorf("%w: a page's key has %d parts, not %d", sharing.ErrNotFound, len(given), n)
	}
	return given, nil
}

var organisations = stamped("organisations", func(o *sharing.Organisation) *sharing.Stamp { return &o.Stamp },
	field("name", func(o *sharing.Organisation) *string { return &o.Name }),
	field("id", func(o *sharing.Organisation) *uuid.UUID { return &o.ID }),
	field("display_name", func(o *sharing.Organisation) *string { return &o.DisplayName }),
	field("contact", func(o *sharing.Organisation) *string { return &o.Contact }),
)

func (r reader) Organisation(ctx context.Context, name string) (sharing.Organisation, error) {
	return organisations.one(ctx, r.c, `name = $1`, name)
}

func (r reader) Organisations(ctx context.Context, page sharing.Page) ([]sharing.Organisation, error) {
	return organisations.list(ctx, r.c, `name > $1 ORDER BY name LIMIT $2`, page.After, limit(page.Limit))
}

func (r reader) Owns(ctx context.Context, organisation string) (owns bool, err error) {
	err = r.c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM shares WHERE organisation = $1) OR EXISTS (SELECT 1 FROM warehouse_profiles WHERE organisation = $1)
		OR EXISTS (SELECT 1 FROM recipients WHERE provider = $1) OR EXISTS (SELECT 1 FROM policy_sets WHERE organisation = $1)
		OR EXISTS (SELECT 1 FROM service_accounts WHERE organisation = $1) OR EXISTS (SELECT 1 FROM principals WHERE organisation = $1)`, []any{organisation}, &owns)
	return owns, wrap("look for what an organisation owns", err)
}

func wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

var principals = stamped("principals", func(p *sharing.Principal) *sharing.Stamp { return &p.Stamp },
	field("organisation", func(p *sharing.Principal) *string { return &p.Organisation }),
	field("id", func(p *sharing.Principal) *string { return &p.ID }),
	field("display_name", func(p *sharing.Principal) *string { return &p.DisplayName }),
	field("admin", func(p *sharing.Principal) *bool { return &p.Admin }),
	field("disabled", func(p *sharing.Principal) *bool { return &p.Disabled }),
).keyed(2)

func (r reader) Principal(ctx context.Context, organisation, id string) (sharing.Principal, error) {
	return principals.one(ctx, r.c, `organisation = $1 AND id = $2`, organisation, id)
}

// owned lists by a key column those of one organisation, or of all.
func owned[T any](ctx context.Context, c sqlstore.Conn, e *entity[T], owner, key, organisation string, page sharing.Page) ([]T, error) {
	if organisation == "" {
		return e.list(ctx, c, key+` > $1 ORDER BY `+key+` LIMIT $2`, page.After, limit(page.Limit))
	}
	return e.list(ctx, c, owner+` = $1 AND `+key+` > $2 ORDER BY `+key+` LIMIT $3`, organisation, page.After, limit(page.Limit))
}

func (r reader) Principals(ctx context.Context, organisation string, page sharing.Page) ([]sharing.Principal, error) {
	key, err := after(page, 2)
	if err != nil {
		return nil, err
	}
	const order = `(organisation, id) > ($1, $2) ORDER BY organisation, id LIMIT $3`
	if organisation == "" {
		return principals.list(ctx, r.c, order, key[0], key[1], limit(page.Limit))
	}
	return principals.list(ctx, r.c, `organisation = $4 AND `+order, key[0], key[1], limit(page.Limit), organisation)
}

var serviceAccounts = stamped("service_accounts", func(a *sharing.ServiceAccount) *sharing.Stamp { return &a.Stamp },
	field("client_id", func(a *sharing.ServiceAccount) *string { return &a.ClientID }),
	field("organisation", func(a *sharing.ServiceAccount) *string { return &a.Organisation }),
	field("display_name", func(a *sharing.ServiceAccount) *string { return &a.DisplayName }),
	field("disabled", func(a *sharing.ServiceAccount) *bool { return &a.Disabled }),
	document("secrets", func(a *sharing.ServiceAccount) *[]sharing.AccountSecret { return &a.Secrets }),
)

func (r reader) ServiceAccount(ctx context.Context, clientID string) (sharing.ServiceAccount, error) {
	return serviceAccounts.one(ctx, r.c, `client_id = $1`, clientID)
}

func (r reader) ServiceAccounts(ctx context.Context, organisation string, page sharing.Page) ([]sharing.ServiceAccount, error) {
	return owned(ctx, r.c, serviceAccounts, "organisation", "client_id", organisation, page)
}

var warehouses = stamped("warehouse_profiles", func(w *sharing.Warehouse) *sharing.Stamp { return &w.Stamp },
	field("name", func(w *sharing.Warehouse) *string { return &w.Name }),
	field("id", func(w *sharing.Warehouse) *uuid.UUID { return &w.ID }),
	field("organisation", func(w *sharing.Warehouse) *string { return &w.Organisation }),
	field("display_name", func(w *sharing.Warehouse) *string { return &w.DisplayName }),
	document("storage", func(w *sharing.Warehouse) *sharing.Storage { return &w.Storage }),
	number("source", func(w *sharing.Warehouse) *sharing.WarehouseSource { return &w.Source }),
)

func (r reader) Warehouse(ctx context.Context, name string) (sharing.Warehouse, error) {
	return warehouses.one(ctx, r.c, `name = $1`, name)
}

func (r reader) WarehouseByID(ctx context.Context, id uuid.UUID) (sharing.Warehouse, error) {
	return warehouses.one(ctx, r.c, `id = $1`, id)
}

func (r reader) Warehouses(ctx context.Context, organisation string, page sharing.Page) ([]sharing.Warehouse, error) {
	return owned(ctx, r.c, warehouses, "organisation", "name", organisation, page)
}

func (r reader) Activation(ctx context.Context, id string) (identity.Activation, error) {
	a, err := activations.one(ctx, r.c, `id = $1`, id)
	if errors.Is(err, sharing.ErrNotFound) {
		return identity.Activation{}, identity.ErrActivationUnknown
	}
	return a.Activation, err
}

func (r reader) PolicySet(ctx context.Context, key sharing.PolicyKey) (sharing.PolicySet, error) {
	return policySets.one(ctx, r.c, `layer = $1 AND organisation = $2 AND name = $3`, int64(key.Layer), key.Organisation, key.Name)
}

func (r reader) PolicySetOf(ctx context.Context, layer sharing.Layer, organisation string) (sharing.PolicySet, error) {
	return policySets.one(ctx, r.c, `layer = $1 AND organisation = $2`, int64(layer), organisation)
}

var policySets = stamped("policy_sets", func(s *sharing.PolicySet) *sharing.Stamp { return &s.Stamp },
	field("id", func(s *sharing.PolicySet) *uuid.UUID { return &s.ID }),
	number("layer", func(s *sharing.PolicySet) *sharing.Layer { return &s.Layer }),
	field("organisation", func(s *sharing.PolicySet) *string { return &s.Organisation }),
	field("name", func(s *sharing.PolicySet) *string { return &s.Name }),
	field("description", func(s *sharing.PolicySet) *string { return &s.Description }),
	field("active_version", func(s *sharing.PolicySet) *int64 { return &s.Active }),
	field("newest_version", func(s *sharing.PolicySet) *int64 { return &s.Newest }),
)

func (r reader) PolicySets(ctx context.Context, layer sharing.Layer, organisation string, page sharing.Page) ([]sharing.PolicySet, error) {
	key, err := after(page, 3)
	if err != nil {
		return nil, err
	}
	from := int64(0)
	if key[0] != "" {
		if from, err = strconv.ParseInt(key[0], 10, 64); err != nil {
			return nil, fmt.Errorf("%w: a page's key: %w", sharing.ErrNotFound, err)
		}
	}
	const order = `(layer, organisation, name) > ($1, $2, $3) ORDER BY layer, organisation, name LIMIT $4`
	args := []any{from, key[1], key[2], limit(page.Limit)}
	switch {
	case layer != 0 && organisation != "":
		return policySets.list(ctx, r.c, `layer = $5 AND organisation = $6 AND `+order, append(args, int64(layer), organisation)...)
	case layer != 0:
		return policySets.list(ctx, r.c, `layer = $5 AND `+order, append(args, int64(layer))...)
	case organisation != "":
		return policySets.list(ctx, r.c, `organisation = $5 AND `+order, append(args, organisation)...)
	}
	return policySets.list(ctx, r.c, order, args...)
}

// policyVersionHeads are the versions without their files.
var (
	policyVersionHeads = plain("policy_versions", policyVersionColumns...)
	policyVersions     = plain("policy_versions", append(policyVersionColumns[:len(policyVersionColumns):len(policyVersionColumns)],
		document("files", func(v *sharing.PolicyVersion) *[]sharing.PolicyFile { return &v.Files }))...)
	policyVersionColumns = []column[sharing.PolicyVersion]{
		field("policy_set", func(v *sharing.PolicyVersion) *uuid.UUID { return &v.Set }),
		field("version", func(v *sharing.PolicyVersion) *int64 { return &v.Version }),
		field("comment", func(v *sharing.PolicyVersion) *string { return &v.Comment }),
		field("principal", func(v *sharing.PolicyVersion) *string { return &v.Principal }),
		field("digest", func(v *sharing.PolicyVersion) *string { return &v.Digest }),
		number("policy_count", func(v *sharing.PolicyVersion) *int { return &v.Policies }),
		moment("created_at", func(v *sharing.PolicyVersion) *time.Time { return &v.CreatedAt }),
	}
)

func (r reader) PolicyVersion(ctx context.Context, set uuid.UUID, version int64) (sharing.PolicyVersion, error) {
	return policyVersions.one(ctx, r.c, `policy_set = $1 AND version = $2`, set, version)
}

// before is the number before which a page that goes down begins.
func before(page sharing.Page) (int64, error) {
	if page.After == "" {
		return 1<<63 - 1, nil
	}
	n, err := strconv.ParseInt(page.After, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: a page's key: %w", sharing.ErrNotFound, err)
	}
	return n, nil
}

func (r reader) PolicyVersions(ctx context.Context, set uuid.UUID, page sharing.Page) ([]sharing.PolicyVersion, error) {
	last, err := before(page)
	if err != nil {
		return nil, err
	}
	return policyVersionHeads.list(ctx, r.c, `policy_set = $1 AND version < $2 ORDER BY version DESC LIMIT $3`, set, last, limit(page.Limit))
}

var policyActivations = plain("policy_activations",
	field("policy_set", func(a *sharing.PolicyActivation) *uuid.UUID { return &a.Set }),
	field("version", func(a *sharing.PolicyActivation) *int64 { return &a.Version }),
	field("previous", func(a *sharing.PolicyActivation) *int64 { return &a.Previous }),
	field("principal", func(a *sharing.PolicyActivation) *string { return &a.Principal }),
	moment("at", func(a *sharing.PolicyActivation) *time.Time { return &a.Time }),
	field("rollback", func(a *sharing.PolicyActivation) *bool { return &a.Rollback }),
	document("bindings", func(a *sharing.PolicyActivation) *[]policy.Binding { return &a.Bindings }),
)

// numbered are the columns of a table with a number that the store gives.
func numbered[T any](e *entity[T], id func(*T) *int64) *entity[T] {
	return plain(e.table, append(e.columns[:len(e.columns):len(e.columns)], field("id", id))...)
}

var numberedActivations = numbered(policyActivations, func(a *sharing.PolicyActivation) *int64 { return &a.ID })

func (r reader) PolicyActivations(ctx context.Context, set uuid.UUID, page sharing.Page) ([]sharing.PolicyActivation, error) {
	last, err := before(page)
	if err != nil {
		return nil, err
	}
	return numberedActivations.list(ctx, r.c, `policy_set = $1 AND id < $2 ORDER BY id DESC LIMIT $3`, set, last, limit(page.Limit))
}

func (r reader) PoliciesRevision(ctx context.Context) (n int64, err error) {
	err = r.c.QueryRow(ctx, `SELECT value FROM counters WHERE name = 'policies'`, nil, &n)
	return n, wrap("read the policies' revision", err)
}

func (r reader) Object(ctx context.Context, warehouse uuid.UUID, id catalog.Ident, kind catalog.Kind) (catalog.Object, error) {
	return found(r.catalog.Object(ctx, warehouse, id.Namespace, id.Name, kind))
}

func (r reader) ObjectByID(ctx context.Context, warehouse, id uuid.UUID) (catalog.Object, error) {
	o, err := found(r.catalog.ObjectByID(ctx, warehouse, id))
	if err == nil && !o.DroppedAt.IsZero() {
		return catalog.Object{}, sharing.ErrNotFound
	}
	return o, err
}

func found(o catalog.Object, err error) (catalog.Object, error) {
	if errors.Is(err, catalog.ErrNoObject) {
		return catalog.Object{}, sharing.ErrNotFound
	}
	return o, err
}

func (r reader) NamespaceExists(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) (bool, error) {
	_, err := r.catalog.Namespace(ctx, warehouse, ns)
	if errors.Is(err, catalog.ErrNoNamespace) {
		return false, nil
	}
	return err == nil, err
}

func (r reader) HasNamespaces(ctx context.Context, warehouse uuid.UUID) (some bool, err error) {
	err = r.c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM namespaces WHERE warehouse = $1)`, []any{warehouse}, &some)
	return some, wrap("look for namespaces", err)
}

func (r reader) Namespaces(ctx context.Context, warehouse uuid.UUID, parent catalog.Namespace, page sharing.Page) ([]catalog.Namespace, error) {
	return r.catalog.ListNamespaces(ctx, warehouse, parent, page)
}

func (r reader) Objects(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, kind catalog.Kind, page sharing.Page) ([]string, error) {
	return r.catalog.ListObjects(ctx, warehouse, ns, kind, page)
}

func (r reader) Idempotency(ctx context.Context, principal string, key uuid.UUID, now time.Time) (catalog.IdempotencyRecord, error) {
	rec, err := r.catalog.Idempotency(ctx, r.administration, principal, key, now)
	if errors.Is(err, catalog.ErrNoObject) {
		return rec, sharing.ErrNotFound
	}
	return rec, err
}

// tx implements sharing.Tx.
type tx struct {
	reader
	ct catalog.Tx
}

// note keeps a transaction of which a write failed from being committed.
func (t *tx) note(err *error) {
	if *err != nil {
		sqlstore.Fail(t.ct, *err)
	}
}

func put[T any](ctx context.Context, t *tx, e *entity[T], v T) (err error) {
	defer t.note(&err)
	return e.put(ctx, t.c, v)
}

func remove[T any](ctx context.Context, t *tx, e *entity[T], where string, args ...any) (err error) {
	defer t.note(&err)
	return e.delete(ctx, t.c, where, args...)
}

func (t *tx) PutOrganisation(ctx context.Context, o sharing.Organisation) error {
	return put(ctx, t, organisations, o)
}

func (t *tx) DeleteOrganisation(ctx context.Context, name string) (err error) {
	defer t.note(&err)
	if err := t.hold(ctx, `SELECT name FROM organisations WHERE name = $1`+t.locks.Delete, name); err != nil {
		return err
	}
	return organisations.delete(ctx, t.c, `name = $1`, name)
}

func (t *tx) HoldOrganisation(ctx context.Context, name string) error {
	return t.hold(ctx, `SELECT name FROM organisations WHERE name = $1`+t.locks.Update, name)
}

// hold locks one row; the query reads one text column.
func (t *tx) hold(ctx context.Context, query string, args ...any) error {
	var name string
	err := t.c.QueryRow(ctx, query, args, &name)
	if errors.Is(err, sqlstore.ErrNoRows) {
		return sharing.ErrNotFound
	}
	return wrap("lock a row", err)
}

func (t *tx) PutPrincipal(ctx context.Context, p sharing.Principal) error {
	return put(ctx, t, principals, p)
}

func (t *tx) DeletePrincipal(ctx context.Context, organisation, id string) error {
	return remove(ctx, t, principals, `organisation = $1 AND id = $2`, organisation, id)
}

func (t *tx) PutServiceAccount(ctx context.Context, a sharing.ServiceAccount) error {
	return put(ctx, t, serviceAccounts, a)
}

func (t *tx) DeleteServiceAccount(ctx context.Context, clientID string) error {
	return remove(ctx, t, serviceAccounts, `client_id = $1`, clientID)
}

func (t *tx) PutWarehouse(ctx context.Context, w sharing.Warehouse) error {
	return put(ctx, t, warehouses, w)
}

func (t *tx) DeleteWarehouse(ctx context.Context, name string) error {
	return remove(ctx, t, warehouses, `name = $1`, name)
}

func (t *tx) PutPolicySet(ctx context.Context, s sharing.PolicySet) error {
	return put(ctx, t, policySets, s)
}

func (t *tx) AddPolicyVersion(ctx context.Context, v sharing.PolicyVersion) error {
	return put(ctx, t, policyVersions, v)
}

func (t *tx) AddPolicyActivation(ctx context.Context, a sharing.PolicyActivation) (err error) {
	defer t.note(&err)
	if err := policyActivations.put(ctx, t.c, a); err != nil {
		return err
	}
	_, err = t.c.Exec(ctx, `UPDATE counters SET value = value + 1 WHERE name = 'policies'`)
	return wrap("count an activation", err)
}

func (t *tx) PutIdempotency(ctx context.Context, rec catalog.IdempotencyRecord) error {
	rec.Warehouse = t.administration
	return t.ct.PutIdempotency(ctx, rec)
}

func (t *tx) PutAudit(ctx context.Context, r audit.Record) error {
	return t.ct.PutAudit(ctx, catalog.AuditRow{Warehouse: t.administration, Record: r})
}
