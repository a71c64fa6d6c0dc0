// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/sharing"
)

var shares = stamped("shares", func(s *sharing.Share) *sharing.Stamp { return &s.Stamp },
	field("id", func(s *sharing.Share) *uuid.UUID { return &s.ID }),
	field("name", func(s *sharing.Share) *string { return &s.Name }),
	field("organisation", func(s *sharing.Share) *string { return &s.Organisation }),
	field("display_name", func(s *sharing.Share) *string { return &s.DisplayName }),
	field("description", func(s *sharing.Share) *string { return &s.Description }),
	number("on_drop", func(s *sharing.Share) *sharing.OnDrop { return &s.OnDrop }),
	field("revision", func(s *sharing.Share) *int64 { return &s.Revision }),
)

// count adds the number of a share's members.
func (r reader) count(ctx context.Context, s sharing.Share, err error) (sharing.Share, error) {
	if err != nil {
		return s, err
	}
	err = r.c.QueryRow(ctx, `SELECT COUNT(*) FROM share_members WHERE share = $1`, []any{s.ID}, &s.Members)
	return s, wrap("count the members of a share", err)
}

func (r reader) Share(ctx context.Context, name string) (sharing.Share, error) {
	s, err := shares.one(ctx, r.c, `name = $1`, name)
	return r.count(ctx, s, err)
}

func (r reader) ShareHead(ctx context.Context, name string) (sharing.Share, error) {
	return shares.one(ctx, r.c, `name = $1`, name)
}

func (r reader) ShareByID(ctx context.Context, id uuid.UUID) (sharing.Share, error) {
	s, err := shares.one(ctx, r.c, `id = $1`, id)
	return r.count(ctx, s, err)
}

func (r reader) Shares(ctx context.Context, organisation string, page sharing.Page) ([]sharing.Share, error) {
	all, err := owned(ctx, r.c, shares, "organisation", "name", organisation, page)
	for i := range all {
		if all[i], err = r.count(ctx, all[i], err); err != nil {
			return nil, err
		}
	}
	return all, err
}

// orNull is NULL for the zero id.
func orNull(id uuid.UUID) any {
	if id == uuid.Nil {
		return nil
	}
	return id
}

// members has no column for what only constraints need: see AddMember.
var members = plain("share_members",
	field("id", func(m *sharing.Member) *uuid.UUID { return &m.ID }),
	field("share", func(m *sharing.Member) *uuid.UUID { return &m.Share }),
	number("kind", func(m *sharing.Member) *sharing.MemberKind { return &m.Kind }),
	field("warehouse", func(m *sharing.Member) *uuid.UUID { return &m.Warehouse }),
	mapped("namespace", func(m *sharing.Member) string { return m.Namespace.Path() }, func(m *sharing.Member, s string) { m.Namespace = catalog.NamespaceFromPath(s) }),
	field("name", func(m *sharing.Member) *string { return &m.Name }),
	field("uuid", func(m *sharing.Member) *uuid.UUID { return &m.UUID }),
	mapped("alias_namespace", func(m *sharing.Member) string { return m.AliasNamespace.Path() }, func(m *sharing.Member, s string) { m.AliasNamespace = catalog.NamespaceFromPath(s) }),
	field("alias", func(m *sharing.Member) *string { return &m.Alias }),
	moment("created_at", func(m *sharing.Member) *time.Time { return &m.CreatedAt }),
	// A namespace's is its own id, since a column of both engines that may be
	// NULL cannot be read the same way.
	column[sharing.Member]{
		"COALESCE(object, id)", nil,
		func(m *sharing.Member) (any, func() error) {
			return &m.Object, func() error {
				if m.Kind == sharing.MemberNamespace {
					m.Object = uuid.Nil
				}
				return nil
			}
		},
	},
)

func (r reader) Member(ctx context.Context, share, id uuid.UUID) (sharing.Member, error) {
	return members.one(ctx, r.c, `id = $1 AND share = $2`, id, share)
}

func (r reader) Members(ctx context.Context, share uuid.UUID, page sharing.Page) ([]sharing.Member, error) {
	// The alias has no separator in it; the namespace may have any number.
	var ns, alias string
	if page.After != "" {
		key := catalog.NamespaceFromPath(page.After)
		ns, alias = key[:len(key)-1].Path(), key[len(key)-1]
	}
	return members.list(ctx, r.c, `share = $1 AND (alias_namespace, alias) > ($2, $3) ORDER BY alias_namespace, alias LIMIT $4`, share, ns, alias, limit(page.Limit))
}

func (r reader) MembersOf(ctx context.Context, object uuid.UUID) ([]sharing.Member, error) {
	return members.list(ctx, r.c, `object = $1 ORDER BY share`, object)
}

func (r reader) MembersWhole(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) ([]sharing.Member, error) {
	return members.list(ctx, r.c, `warehouse = $1 AND whole = $2 ORDER BY share`, warehouse, ns.Path())
}

func (r reader) SharesFrom(ctx context.Context, warehouse uuid.UUID) (some bool, err error) {
	err = r.c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM share_members WHERE warehouse = $1)`, []any{warehouse}, &some)
	return some, wrap("look for members of a warehouse", err)
}

var recipients = stamped("recipients", func(r *sharing.Recipient) *sharing.Stamp { return &r.Stamp },
	field("id", func(r *sharing.Recipient) *uuid.UUID { return &r.ID }),
	field("provider", func(r *sharing.Recipient) *string { return &r.Provider }),
	field("name", func(r *sharing.Recipient) *string { return &r.Name }),
	field("display_name", func(r *sharing.Recipient) *string { return &r.DisplayName }),
	field("organisation", func(r *sharing.Recipient) *string { return &r.Organisation }),
	number("binding", func(r *sharing.Recipient) *sharing.BindingKind { return &r.Binding.Kind }),
	field("issuer", func(r *sharing.Recipient) *string { return &r.Binding.Issuer }),
	field("claim", func(r *sharing.Recipient) *string { return &r.Binding.Claim }),
	field("value", func(r *sharing.Recipient) *string { return &r.Binding.Value }),
	moment("link_expires", func(r *sharing.Recipient) *time.Time { return &r.Binding.LinkExpires }),
	moment("activated_at", func(r *sharing.Recipient) *time.Time { return &r.Binding.ActivatedAt }),
	field("disabled", func(r *sharing.Recipient) *bool { return &r.Disabled }),
)

func (r reader) Recipient(ctx context.Context, provider, name string) (sharing.Recipient, error) {
	return recipients.one(ctx, r.c, `provider = $1 AND name = $2`, provider, name)
}

func (r reader) RecipientByID(ctx context.Context, id uuid.UUID) (sharing.Recipient, error) {
	return recipients.one(ctx, r.c, `id = $1`, id)
}

func (r reader) Recipients(ctx context.Context, provider string, page sharing.Page) ([]sharing.Recipient, error) {
	key, err := after(page, 2)
	if err != nil {
		return nil, err
	}
	const order = `(provider, name) > ($1, $2) ORDER BY provider, name LIMIT $3`
	if provider == "" {
		return recipients.list(ctx, r.c, order, key[0], key[1], limit(page.Limit))
	}
	return recipients.list(ctx, r.c, `provider = $4 AND `+order, key[0], key[1], limit(page.Limit), provider)
}

func (r reader) RecipientsBound(ctx context.Context, issuer, claim, value string) ([]uuid.UUID, error) {
	rows, err := r.c.Query(ctx, `SELECT id FROM recipients WHERE issuer = $1 AND claim = $2 AND value = $3 ORDER BY id`, issuer, claim, value)
	if err != nil {
		return nil, wrap("find recipients", err)
	}
	defer rows.Close()
	var all []uuid.UUID
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, wrap("find recipients", err)
		}
		all = append(all, id)
	}
	return all, wrap("find recipients", rows.Err())
}

// activation is identity.Activation with columns that the drivers know.
type activation struct{ identity.Activation }

var activations = plain("activations",
	field("id", func(a *activation) *string { return &a.ID }),
	mapped("sum", func(a *activation) []byte { return a.Sum[:] }, func(a *activation, b []byte) {
		if len(b) == sha256.Size {
			a.Sum = [sha256.Size]byte(b)
		}
	}),
	mapped("recipient", func(a *activation) uuid.UUID { id, _ := uuid.Parse(a.Recipient); return id }, func(a *activation, id uuid.UUID) { a.Recipient = id.String() }),
	field("organisation", func(a *activation) *string { return &a.Organisation }),
	moment("created_at", func(a *activation) *time.Time { return &a.Created }),
	moment("expires_at", func(a *activation) *time.Time { return &a.Expires }),
	field("used_issuer", func(a *activation) *string { return &a.UsedBy.Issuer }),
	field("used_subject", func(a *activation) *string { return &a.UsedBy.Subject }),
	moment("used_at", func(a *activation) *time.Time { return &a.Used }),
)

var grants = stamped("grants", func(g *sharing.Grant) *sharing.Stamp { return &g.Stamp },
	field("id", func(g *sharing.Grant) *uuid.UUID { return &g.ID }),
	field("share", func(g *sharing.Grant) *uuid.UUID { return &g.Share }),
	field("recipient", func(g *sharing.Grant) *uuid.UUID { return &g.Recipient }),
	field("provider", func(g *sharing.Grant) *string { return &g.Provider }),
	field("comment", func(g *sharing.Grant) *string { return &g.Comment }),
	moment("expires_at", func(g *sharing.Grant) *time.Time { return &g.ExpiresAt }),
	document("conditions", func(g *sharing.Grant) *sharing.Conditions { return &g.Conditions }),
	field("terms", func(g *sharing.Grant) *string { return &g.Terms }),
	field("accepted_by", func(g *sharing.Grant) *string { return &g.AcceptedBy }),
	moment("accepted_at", func(g *sharing.Grant) *time.Time { return &g.AcceptedAt }),
	moment("revoked_at", func(g *sharing.Grant) *time.Time { return &g.RevokedAt }),
	field("revoke_reason", func(g *sharing.Grant) *string { return &g.RevokeReason }),
)

// name adds the names of a grant's share and recipient.
func (r reader) name(ctx context.Context, g *sharing.Grant) error {
	if err := r.c.QueryRow(ctx, `SELECT name FROM shares WHERE id = $1`, []any{g.Share}, &g.ShareName); err != nil {
		return wrap("name a grant's share", err)
	}
	return wrap("name a grant's recipient", r.c.QueryRow(ctx, `SELECT name FROM recipients WHERE id = $1`, []any{g.Recipient}, &g.RecipientName))
}

func (r reader) Grant(ctx context.Context, id uuid.UUID) (sharing.Grant, error) {
	g, err := grants.one(ctx, r.c, `id = $1`, id)
	if err != nil {
		return g, err
	}
	return g, r.name(ctx, &g)
}

func (r reader) Grants(ctx context.Context, f sharing.GrantFilter, page sharing.Page) ([]sharing.Grant, error) {
	last := uuid.Nil
	if page.After != "" {
		var err error
		if last, err = uuid.Parse(page.After); err != nil {
			return nil, fmt.Errorf("%w: a page's key: %w", sharing.ErrNotFound, err)
		}
	}
	where, args := `id > $1`, []any{last, limit(page.Limit)}
	and := func(column string, value any) {
		args = append(args, value)
		where += fmt.Sprintf(" AND %s = $%d", column, len(args))
	}
	if f.Provider != "" {
		and("provider", f.Provider)
	}
	if f.Share != uuid.Nil {
		and("share", f.Share)
	}
	if f.Recipient != uuid.Nil {
		and("recipient", f.Recipient)
	}
	all, err := grants.list(ctx, r.c, where+` ORDER BY id LIMIT $2`, args...)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := r.name(ctx, &all[i]); err != nil {
			// One that was deleted since the list was read.
			if errors.Is(err, sqlstore.ErrNoRows) {
				continue
			}
			return nil, err
		}
	}
	return all, nil
}

var (
	warnings = plain("share_warnings",
		field("organisation", func(w *sharing.Warning) *string { return &w.Organisation }),
		field("share", func(w *sharing.Warning) *uuid.UUID { return &w.Share }),
		moment("at", func(w *sharing.Warning) *time.Time { return &w.Time }),
		field("reason", func(w *sharing.Warning) *string { return &w.Reason }),
		field("message", func(w *sharing.Warning) *string { return &w.Message }),
		field("object", func(w *sharing.Warning) *string { return &w.Object }),
		field("principal", func(w *sharing.Warning) *string { return &w.Principal }),
	)
	numberedWarnings = numbered(warnings, func(w *sharing.Warning) *int64 { return &w.ID })
)

func (r reader) Warnings(ctx context.Context, share uuid.UUID, organisation string, page sharing.Page) ([]sharing.Warning, error) {
	last, err := before(page)
	if err != nil {
		return nil, err
	}
	var all []sharing.Warning
	if share != uuid.Nil {
		all, err = numberedWarnings.list(ctx, r.c, `share = $1 AND id < $2 ORDER BY id DESC LIMIT $3`, share, last, limit(page.Limit))
	} else {
		all, err = numberedWarnings.list(ctx, r.c, `organisation = $1 AND id < $2 ORDER BY id DESC LIMIT $3`, organisation, last, limit(page.Limit))
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		err := r.c.QueryRow(ctx, `SELECT name FROM shares WHERE id = $1`, []any{all[i].Share}, &all[i].ShareName)
		if err != nil && !errors.Is(err, sqlstore.ErrNoRows) { // the share may be gone
			return nil, wrap("name a warning's share", err)
		}
	}
	return all, nil
}

func (t *tx) PutShare(ctx context.Context, s sharing.Share) (err error) {
	defer t.note(&err)
	if s.Version > 1 {
		err = t.c.QueryRow(ctx, `SELECT revision FROM shares WHERE id = $1`+t.locks.Update, []any{s.ID}, &s.Revision)
		if errors.Is(err, sqlstore.ErrNoRows) {
			return sharing.ErrStale
		}
		if err != nil {
			return wrap("lock a share", err)
		}
	}
	s.Revision++
	return shares.put(ctx, t.c, s)
}

func (t *tx) DeleteShare(ctx context.Context, id uuid.UUID) error {
	return remove(ctx, t, shares, `id = $1`, id)
}

func (t *tx) HoldShare(ctx context.Context, name string) (sharing.Share, error) {
	if err := t.hold(ctx, `SELECT name FROM shares WHERE name = $1`+t.locks.Update, name); err != nil {
		return sharing.Share{}, err
	}
	return t.Share(ctx, name)
}

func (t *tx) TouchShares(ctx context.Context, share, recipient uuid.UUID) (err error) {
	defer t.note(&err)
	if share != uuid.Nil {
		_, err = t.c.Exec(ctx, `UPDATE shares SET revision = revision + 1 WHERE id = $1`, share)
	} else {
		_, err = t.c.Exec(ctx, `UPDATE shares SET revision = revision + 1 WHERE id IN (SELECT share FROM grants WHERE recipient = $1)`, recipient)
	}
	return wrap("count a share's revision", err)
}

func (t *tx) AddMember(ctx context.Context, m sharing.Member) (err error) {
	defer t.note(&err)
	var whole any
	if m.Kind == sharing.MemberNamespace {
		whole = m.Namespace.Path()
	}
	_, err = t.c.TryExec(ctx, `INSERT INTO share_members (id, share, kind, warehouse, namespace, name, object, whole, uuid, alias_namespace, alias, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		m.ID, m.Share, int64(m.Kind), m.Warehouse, m.Namespace.Path(), m.Name, orNull(m.Object), whole, m.UUID, m.AliasNamespace.Path(), m.Alias, millis(m.CreatedAt))
	switch {
	case errors.Is(err, sqlstore.ErrUnique):
		return sharing.ErrExists
	case errors.Is(err, sqlstore.ErrForeignKey):
		return sharing.ErrNotFound
	case err != nil:
		return wrap("add a member", err)
	}
	if m.Kind == sharing.MemberNamespace {
		return nil
	}
	// The foreign key holds the row from here on; before, the object may have
	// been dropped in a way that can be undone.
	_, err = t.ObjectByID(ctx, m.Warehouse, m.Object)
	return err
}

func (t *tx) MoveMember(ctx context.Context, id uuid.UUID, ns catalog.Namespace, name string) (err error) {
	defer t.note(&err)
	_, err = t.c.Exec(ctx, `UPDATE share_members SET namespace = $2, name = $3 WHERE id = $1`, id, ns.Path(), name)
	return wrap("move a member", err)
}

func (t *tx) DeleteMember(ctx context.Context, share, id uuid.UUID) error {
	return remove(ctx, t, members, `id = $1 AND share = $2`, id, share)
}

func (t *tx) HoldObject(ctx context.Context, warehouse, object uuid.UUID) error {
	return t.hold(ctx, `SELECT name FROM objects WHERE warehouse = $1 AND id = $2`+t.locks.Delete, warehouse, object)
}

func (t *tx) HoldNamespace(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) error {
	return t.hold(ctx, `SELECT name FROM namespaces WHERE warehouse = $1 AND path = $2`+t.locks.Delete, warehouse, ns.Path())
}

func (t *tx) PutRecipient(ctx context.Context, r sharing.Recipient) error {
	return put(ctx, t, recipients, r)
}

func (t *tx) DeleteRecipient(ctx context.Context, id uuid.UUID) error {
	return remove(ctx, t, recipients, `id = $1`, id)
}

func (t *tx) AddActivation(ctx context.Context, a identity.Activation) error {
	return put(ctx, t, activations, activation{a})
}

func (t *tx) SpendActivation(ctx context.Context, id string, by identity.Binding, at time.Time) (err error) {
	defer t.note(&err)
	n, err := t.c.Exec(ctx, `UPDATE activations SET used_issuer = $2, used_subject = $3, used_at = $4 WHERE id = $1 AND used_at = 0`, id, by.Issuer, by.Subject, millis(at))
	if err == nil && n == 0 {
		return sharing.ErrStale
	}
	return wrap("spend an activation link", err)
}

func (t *tx) VoidActivations(ctx context.Context, recipient uuid.UUID) (err error) {
	defer t.note(&err)
	_, err = t.c.Exec(ctx, `DELETE FROM activations WHERE recipient = $1 AND used_at = 0`, recipient)
	return wrap("void activation links", err)
}

func (t *tx) PutGrant(ctx context.Context, g sharing.Grant) error { return put(ctx, t, grants, g) }

func (t *tx) DeleteGrant(ctx context.Context, id uuid.UUID) error {
	return remove(ctx, t, grants, `id = $1`, id)
}

func (t *tx) PutWarning(ctx context.Context, w sharing.Warning) error {
	return put(ctx, t, warnings, w)
}
