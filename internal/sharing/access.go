// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
)

// Prefix begins the warehouse parameter by which recipients open a share:
// "share/sales".
const Prefix = "share/"

// compiled is a share at one revision, in the form in which it is looked up.
// It is not changed once made.
type compiled struct {
	share Share
	// objects are the members that are tables or views, by the path of their
	// alias namespace, each list in order of alias.
	objects map[string][]*shown
	// children are the names of the namespaces that lie in one, in order, as far
	// as members make them, by its path.
	children map[string][]string
	whole    []*shown // members that are namespaces
	// grants are those that are not revoked, by the binding of their recipient.
	grants map[bindingKey][]*grantOf
}

type bindingKey struct{ issuer, claim, value string }

// shown is a member with the name of its warehouse.
type shown struct {
	Member
	warehouse string
}

type grantOf struct {
	grant     Grant
	recipient Recipient
}

// compile reads a share's members and grants.
func (s *Service) compile(ctx context.Context, sh Share) (*compiled, error) {
	c := &compiled{share: sh, objects: map[string][]*shown{}, children: map[string][]string{}, grants: map[bindingKey][]*grantOf{}}
	members, err := s.store.Members(ctx, sh.ID, Page{})
	if err != nil {
		return nil, err
	}
	c.share.Members = len(members)
	names := map[uuid.UUID]string{}
	for _, m := range members {
		if _, ok := names[m.Warehouse]; !ok {
			w, err := s.store.WarehouseByID(ctx, m.Warehouse)
			if err != nil {
				return nil, err
			}
			names[m.Warehouse] = w.Name
		}
		one := &shown{m, names[m.Warehouse]}
		if m.Kind == MemberNamespace {
			c.whole = append(c.whole, one)
		} else {
			path := m.AliasNamespace.Path()
			c.objects[path] = append(c.objects[path], one)
		}
		for i := range m.AliasNamespace {
			parent := m.AliasNamespace[:i].Path()
			c.children[parent] = append(c.children[parent], m.AliasNamespace[i])
		}
	}
	for path, list := range c.objects {
		slices.SortFunc(list, func(a, b *shown) int { return strings.Compare(a.Alias, b.Alias) })
		c.objects[path] = list
	}
	for path, list := range c.children {
		slices.Sort(list)
		c.children[path] = slices.Compact(list)
	}
	grants, err := s.store.Grants(ctx, GrantFilter{Share: sh.ID}, Page{})
	if err != nil {
		return nil, err
	}
	for _, g := range grants {
		if !g.RevokedAt.IsZero() {
			continue
		}
		r, err := s.store.RecipientByID(ctx, g.Recipient)
		if err != nil {
			return nil, err
		}
		key := bindingKey{r.Binding.Issuer, r.Binding.Claim, r.Binding.Value}
		c.grants[key] = append(c.grants[key], &grantOf{g, r})
	}
	return c, nil
}

// view returns a share as it is now. What is kept is used only while the
// share's revision, which is read each time, is the one that it was made from.
func (s *Service) view(ctx context.Context, share string) (*compiled, error) {
	sh, err := s.store.ShareHead(ctx, share)
	if err != nil {
		return nil, storeError(named(err, "share", share))
	}
	if c, ok := s.views.Get(sh.ID); ok && c.share.Revision == sh.Revision {
		return c, nil
	}
	c, err := s.compile(ctx, sh)
	if errors.Is(err, ErrNotFound) {
		err = Errorf(Unavailable, "SHARE_CHANGING", "share %q is being changed", share).Try("try again")
	}
	if err != nil {
		return nil, storeError(err)
	}
	// What was read may be newer than the revision; then the next request
	// finds another revision and reads again.
	s.views.Add(sh.ID, c)
	return c, nil
}

// Access decides whether a principal has a share at this moment, and returns
// what it finds there. Somebody who is not a recipient, or not any more, gets a
// NotFound; a recipient whose grant does not give access yet, or from there,
// gets a PermissionDenied that says what is missing.
func (s *Service) Access(ctx context.Context, who Caller, share string) (*ShareView, error) {
	if who.ID == "" || who.SignOnly() {
		return nil, notFound("share", share)
	}
	if !nameForm.MatchString(share) {
		return nil, notFound("share", share)
	}
	c, err := s.view(ctx, share)
	if err != nil {
		return nil, err
	}
	if disabled, err := s.disabled(ctx, who.Principal); err != nil || disabled {
		return nil, firstError(err, notFound("share", share))
	}
	now := s.cfg.Now()
	refusal := notFound("share", share)
	for g := range c.grantsOf(who.Principal) {
		if !g.recipient.Is(who.Principal) {
			continue
		}
		switch state := g.grant.State(&g.recipient, now); {
		case state == StateActive && g.grant.Conditions.hold(who):
			return &ShareView{Share: c.share, Grant: g.grant, Recipient: g.recipient, c: c, store: s.store}, nil
		case state == StateActive:
			refusal = Errorf(PermissionDenied, "GRANT_CONDITIONS", "the grant of share %q has conditions that do not hold for this request", share).Try("use another network, group or way to sign in, or ask the provider")
		case state == StatePendingTerms:
			refusal = Errorf(PermissionDenied, "GRANT_PENDING_TERMS", "the terms of share %q have not been accepted", share).Try("read and accept them: sharectl grant accept %s", g.grant.ID)
		case state == StateNotYetValid:
			refusal = Errorf(PermissionDenied, "GRANT_NOT_YET_VALID", "the grant of share %q begins at %s", share, g.grant.Conditions.NotBefore.Format(time.RFC3339)).Try("wait until then, or ask the provider")
		}
	}
	return nil, refusal
}

// grantsOf are the grants of recipients that a principal's claims could make it.
func (c *compiled) grantsOf(p identity.Principal) iter.Seq[*grantOf] {
	return func(yield func(*grantOf) bool) {
		for _, key := range bindingsOf(p) {
			for _, g := range c.grants[bindingKey{issuerOf(p), key[0], key[1]}] {
				if !yield(g) {
					return
				}
			}
		}
	}
}

// ShareView is what a recipient finds in a share: names, and where what they
// name is. It is for one request, and safe for concurrent use.
type ShareView struct {
	Share     Share
	Grant     Grant
	Recipient Recipient

	c     *compiled
	store Store
}

// Source is what a name in a share stands for.
type Source struct {
	Warehouse   string // its name
	WarehouseID uuid.UUID
	Object      catalog.Object // as it is in the warehouse, at this moment
	Member      uuid.UUID      // by which it is in the share
}

// Preview is a share as its recipients see it, for its owner.
func (s *Service) Preview(ctx context.Context, share string) (*ShareView, error) {
	c, err := s.view(ctx, share)
	if err != nil {
		return nil, err
	}
	return &ShareView{Share: c.share, c: c, store: s.store}, nil
}

// wholeAt returns the namespace of a warehouse that is shown as ns, nil when
// there is none.
func (v *ShareView) wholeAt(ns catalog.Namespace) (*shown, catalog.Namespace) {
	for _, m := range v.c.whole {
		if within(ns, m.AliasNamespace) {
			return m, append(slices.Clone(m.Namespace), ns[len(m.AliasNamespace):]...)
		}
	}
	return nil, nil
}

// NamespaceExists reports whether the share shows a namespace.
func (v *ShareView) NamespaceExists(ctx context.Context, ns catalog.Namespace) (bool, error) {
	if len(ns) == 0 {
		return true, nil
	}
	if m, source := v.wholeAt(ns); m != nil {
		exists, err := v.store.NamespaceExists(ctx, m.Warehouse, source)
		if err != nil || exists {
			return exists, storeError(err)
		}
	}
	_, ok := slices.BinarySearch(v.c.children[ns.Parent().Path()], ns[len(ns)-1])
	return ok, nil
}

// Namespaces lists the namespaces that lie directly in one, in order, and the
// name to go on after, "" at the end. It is ErrNotFound, wrapped, when the
// share does not show the parent; so are the other methods.
func (v *ShareView) Namespaces(ctx context.Context, parent catalog.Namespace, p Page) ([]catalog.Namespace, string, error) {
	if err := v.mustExist(ctx, parent); err != nil {
		return nil, "", err
	}
	names, next, err := v.merge(v.c.children[parent.Path()], nil, p, func(p Page) ([]string, error) {
		m, source := v.wholeAt(parent)
		if m == nil {
			return nil, nil
		}
		all, err := v.store.Namespaces(ctx, m.Warehouse, source, p)
		names := make([]string, len(all))
		for i, ns := range all {
			names[i] = ns[len(ns)-1]
		}
		return names, err
	})
	out := make([]catalog.Namespace, len(names))
	for i, name := range names {
		out[i] = append(slices.Clone(parent), name)
	}
	return out, next, err
}

func (v *ShareView) mustExist(ctx context.Context, ns catalog.Namespace) error {
	exists, err := v.NamespaceExists(ctx, ns)
	if err == nil && !exists {
		return &Error{Code: NotFound, Reason: "NAMESPACE_NOT_FOUND", Message: "namespace " + clip(ns.String()) + " does not exist", Cause: ErrNotFound}
	}
	return err
}

// List lists the names of the tables or of the views in a namespace.
func (v *ShareView) List(ctx context.Context, ns catalog.Namespace, kind catalog.Kind, p Page) ([]string, string, error) {
	if err := v.mustExist(ctx, ns); err != nil {
		return nil, "", err
	}
	var own []string
	hidden := map[string]bool{} // what a member stands in front of
	for _, m := range v.c.objects[ns.Path()] {
		hidden[m.Alias] = true
		if catalog.Kind(m.Kind) == kind {
			own = append(own, m.Alias)
		}
	}
	return v.merge(own, hidden, p, func(p Page) ([]string, error) {
		m, source := v.wholeAt(ns)
		if m == nil {
			return nil, nil
		}
		return v.store.Objects(ctx, m.Warehouse, source, kind, p)
	})
}

// merge is one page of the names that members bring, in order, and those that
// list returns and that are not hidden.
func (v *ShareView) merge(own []string, hidden map[string]bool, p Page, list func(Page) ([]string, error)) ([]string, string, error) {
	ask := oneMore(p)
	others, err := list(ask)
	if err != nil {
		return nil, "", storeError(err)
	}
	// Behind the end of a list that goes on, nothing can be told yet.
	full := ask.Limit > 0 && len(others) == ask.Limit
	var horizon string
	if full {
		horizon = others[len(others)-1]
	}
	names := make([]string, 0, len(own)+len(others))
	for _, name := range own {
		if name > p.After && (!full || name <= horizon) {
			names = append(names, name)
		}
	}
	for _, name := range others {
		if !hidden[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	page, next := more(names, p.Limit, func(s string) string { return s })
	if next == "" && full {
		next = horizon
	}
	return page, next, nil
}

// Lookup returns what a name stands for. A table or view that was dropped or
// replaced since it was shared is not there.
func (v *ShareView) Lookup(ctx context.Context, id catalog.Ident, kind catalog.Kind) (Source, error) {
	list := v.c.objects[id.Namespace.Path()]
	i, ok := slices.BinarySearchFunc(list, id.Name, func(m *shown, name string) int { return strings.Compare(m.Alias, name) })
	if ok {
		m := list[i]
		obj, err := v.store.ObjectByID(ctx, m.Warehouse, m.Object)
		if err == nil && (obj.UUID != m.UUID || obj.Kind != kind) {
			err = ErrNotFound
		}
		return Source{m.warehouse, m.Warehouse, obj, m.ID}, v.notThere(err, id, kind)
	}
	m, source := v.wholeAt(id.Namespace)
	if m == nil {
		return Source{}, v.notThere(ErrNotFound, id, kind)
	}
	obj, err := v.store.Object(ctx, m.Warehouse, catalog.Ident{Namespace: source, Name: id.Name}, kind)
	if err == nil && obj.Kind != kind {
		err = ErrNotFound
	}
	return Source{m.warehouse, m.Warehouse, obj, m.ID}, v.notThere(err, id, kind)
}

func (v *ShareView) notThere(err error, id catalog.Ident, kind catalog.Kind) error {
	if errors.Is(err, ErrNotFound) {
		return &Error{Code: NotFound, Reason: upper(kind.String()) + "_NOT_FOUND", Message: kind.String() + " " + clip(id.String()) + " does not exist", Cause: ErrNotFound}
	}
	return storeError(err)
}

// Shown is an object in a share with the name that it has there.
type Shown struct {
	Ident catalog.Ident
	Source
}

// maxPreview bounds how many objects All looks at.
const maxPreview = 100_000

// All returns all tables and views of the share, in order of their names.
func (v *ShareView) All(ctx context.Context) ([]Shown, error) {
	var all []Shown
	queue := []catalog.Namespace{{}}
	for len(queue) > 0 {
		ns := queue[0]
		queue = queue[1:]
		children, _, err := v.Namespaces(ctx, ns, Page{})
		if err != nil {
			return nil, err
		}
		queue = append(queue, children...)
		if len(ns) == 0 {
			continue
		}
		for _, kind := range []catalog.Kind{catalog.KindTable, catalog.KindView} {
			names, _, err := v.List(ctx, ns, kind, Page{})
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				id := catalog.Ident{Namespace: ns, Name: name}
				source, err := v.Lookup(ctx, id, kind)
				if CodeOf(err) == NotFound {
					continue // dropped since it was listed
				}
				if err != nil {
					return nil, err
				}
				all = append(all, Shown{id, source})
			}
		}
		if len(all) > maxPreview {
			return nil, Errorf(ResourceExhausted, "TOO_MANY_OBJECTS", "the share shows more than %d objects", maxPreview)
		}
	}
	slices.SortFunc(all, func(a, b Shown) int { return strings.Compare(shownKey(a), shownKey(b)) })
	return all, nil
}

func shownKey(s Shown) string { return Key(append(slices.Clone(s.Ident.Namespace), s.Ident.Name)...) }
