// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

func (sh *Share) check() error {
	if err := firstError(checkName("name", sh.Name), checkText("display_name", sh.DisplayName, maxText, false), checkText("description", sh.Description, maxLongText, true)); err != nil {
		return err
	}
	if sh.OnDrop != OnDropBlock && sh.OnDrop != OnDropRemove {
		return invalid("on_drop", "must be block or remove")
	}
	return nil
}

func (sh *Share) change(detail map[string]any) change {
	return change{"share/" + sh.Name, sh.Organisation, detail}
}

// CreateShare creates an empty share of an organisation.
func (s *Service) CreateShare(ctx context.Context, m Mutation, sh Share) (Share, error) {
	if sh.OnDrop == 0 {
		sh.OnDrop = OnDropBlock
	}
	if err := sh.check(); err != nil {
		return sh, err
	}
	sh.ID, sh.Members, sh.Stamp = uuid.Must(uuid.NewV7()), 0, newStamp(s.stamp())
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Share, change, error) {
		err := holdOrganisation(ctx, tx, sh.Organisation)
		if err == nil {
			err = named(tx.PutShare(ctx, sh), "share", sh.Name)
		}
		return sh, sh.change(map[string]any{"on-drop": int(sh.OnDrop)}), err
	})
}

// Share returns a share.
func (s *Service) Share(ctx context.Context, name string) (Share, error) {
	return read(s.store.Share(ctx, name))("share", name)
}

// Shares lists those of one organisation, or of all, by name.
func (s *Service) Shares(ctx context.Context, organisation string, p Page) ([]Share, string, error) {
	all, err := s.store.Shares(ctx, organisation, oneMore(p))
	page, next := more(all, p.Limit, func(sh Share) string { return sh.Name })
	return page, next, storeError(err)
}

// UpdateShare lets apply change the display name, the description and the rule
// for drops.
func (s *Service) UpdateShare(ctx context.Context, m Mutation, name string, apply func(*Share) error) (Share, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Share, change, error) {
		sh, err := tx.HoldShare(ctx, name)
		if err != nil {
			return sh, change{}, named(err, "share", name)
		}
		if err := firstError(checkEtag(m, "share", name, sh.Stamp), apply(&sh), sh.check()); err != nil {
			return sh, change{}, err
		}
		sh.Stamp = sh.Stamp.next(s.stamp())
		return sh, sh.change(map[string]any{"on-drop": int(sh.OnDrop)}), named(tx.PutShare(ctx, sh), "share", name)
	})
}

// DeleteShare deletes a share with its members and grants; with grants that
// are in force only if force is set.
func (s *Service) DeleteShare(ctx context.Context, m Mutation, name string, force bool) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		sh, err := tx.HoldShare(ctx, name)
		if err != nil {
			return struct{}{}, change{}, named(err, "share", name)
		}
		if err := checkEtag(m, "share", name, sh.Stamp); err != nil {
			return struct{}{}, change{}, err
		}
		grants, err := tx.Grants(ctx, GrantFilter{Share: sh.ID}, Page{})
		if err != nil {
			return struct{}{}, change{}, err
		}
		if n := s.inForce(grants); n > 0 && !force {
			return struct{}{}, change{}, Errorf(FailedPrecondition, "SHARE_GRANTED", "share %q is granted to %d recipients", name, n).Try("revoke the grants first, or force the deletion")
		}
		return struct{}{}, sh.change(map[string]any{"grants": len(grants), "members": sh.Members}), tx.DeleteShare(ctx, sh.ID)
	})
	return err
}

func (s *Service) inForce(grants []Grant) (n int) {
	now := s.stamp()
	for i := range grants {
		if grants[i].inForce(now) {
			n++
		}
	}
	return n
}

// NewMember is a member to be added.
type NewMember struct {
	Kind      MemberKind
	Warehouse string
	Namespace catalog.Namespace
	Name      string    // of a table or view
	UUID      uuid.UUID // when it is not zero, it must be the object's
	// AliasNamespace and Alias default to the namespace and the name.
	AliasNamespace catalog.Namespace
	Alias          string
}

// MembersChanged is a share after members were added or removed.
type MembersChanged struct {
	Share Share
	Added []Member // in the order that was asked for
}

// ModifyMembers adds members to a share and removes others, all or none. A
// member that is there already stays; one that is not there needs no removing.
func (s *Service) ModifyMembers(ctx context.Context, m Mutation, share string, add []NewMember, remove []uuid.UUID) (MembersChanged, error) {
	if len(add) > maxChanges || len(remove) > maxChanges {
		return MembersChanged{}, invalid("add", "at most %d members can be added or removed at once", maxChanges)
	}
	for i := range add {
		if err := add[i].check(i); err != nil {
			return MembersChanged{}, err
		}
	}
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (MembersChanged, change, error) {
		sh, err := tx.HoldShare(ctx, share)
		if err != nil {
			return MembersChanged{}, change{}, named(err, "share", share)
		}
		if err := checkEtag(m, "share", share, sh.Stamp); err != nil {
			return MembersChanged{}, change{}, err
		}
		detail := map[string]any{}
		var removed, added []string
		for _, id := range remove {
			old, err := tx.Member(ctx, sh.ID, id)
			if err == nil {
				err = tx.DeleteMember(ctx, sh.ID, id)
				removed = append(removed, old.source())
			}
			if err != nil && !errors.Is(err, ErrNotFound) {
				return MembersChanged{}, change{}, err
			}
		}
		there, err := tx.Members(ctx, sh.ID, Page{})
		if err != nil {
			return MembersChanged{}, change{}, err
		}
		result := MembersChanged{}
		for i := range add {
			one, fresh, err := s.addMember(ctx, tx, &sh, there, &add[i], i)
			if err != nil {
				return MembersChanged{}, change{}, err
			}
			if fresh {
				there = append(there, one)
				added = append(added, add[i].Warehouse+"/"+one.source())
			}
			result.Added = append(result.Added, one)
		}
		if len(there) > maxMembers {
			return MembersChanged{}, change{}, Errorf(ResourceExhausted, "TOO_MANY_MEMBERS", "a share has at most %d members", maxMembers).Try("share whole namespaces")
		}
		if len(added) == 0 && len(removed) == 0 {
			result.Share = sh
			return result, sh.change(detail), nil
		}
		detail["added"], detail["removed"] = added, removed
		sh.Stamp, sh.Members = sh.Stamp.next(s.stamp()), len(there)
		result.Share = sh
		return result, sh.change(detail), named(tx.PutShare(ctx, sh), "share", share)
	})
}

func (n *NewMember) check(i int) error {
	field := fmt.Sprintf("add[%d]", i)
	if n.Kind != MemberTable && n.Kind != MemberView && n.Kind != MemberNamespace {
		return invalid("add", "entry %d: kind must be table, view or namespace", i)
	}
	if len(n.Namespace) == 0 {
		return invalid("add", "entry %d: a namespace is required", i)
	}
	if len(n.AliasNamespace) == 0 {
		n.AliasNamespace = n.Namespace
	}
	names := append(slices.Clone(n.Namespace), n.AliasNamespace...)
	switch {
	case n.Kind == MemberNamespace && (n.Name != "" || n.Alias != ""):
		return invalid("add", "entry %d: a whole namespace has no object and no alias; alias_namespace is what it is called", i)
	case n.Kind == MemberNamespace:
	case n.Alias == "":
		n.Alias = n.Name
		fallthrough
	default:
		names = append(names, n.Name, n.Alias)
	}
	for _, name := range names {
		if err := catalog.CheckName(name); err != nil {
			return invalid("add", "%s: name %q: %s", field, clip(name), err.Error())
		}
	}
	if len(n.Namespace) > 32 || len(n.AliasNamespace) > 32 || len(n.AliasNamespace.Path()) > 2000 {
		return invalid("add", "entry %d: a namespace has at most 32 levels and 2,000 bytes", i)
	}
	return nil
}

// addMember adds one member, unless it is there.
func (s *Service) addMember(ctx context.Context, tx Tx, sh *Share, there []Member, n *NewMember, i int) (Member, bool, error) {
	w, err := tx.Warehouse(ctx, n.Warehouse)
	if err == nil && w.Organisation != sh.Organisation {
		err = ErrNotFound // another's warehouse is none of this share's business
	}
	if err != nil {
		return Member{}, false, tryWarehouse(named(err, "warehouse", n.Warehouse), sh)
	}
	one := Member{
		ID: uuid.Must(uuid.NewV7()), Share: sh.ID, Kind: n.Kind, Warehouse: w.ID, Namespace: n.Namespace, Name: n.Name,
		AliasNamespace: n.AliasNamespace, Alias: n.Alias, CreatedAt: s.stamp(),
	}
	if n.Kind == MemberNamespace {
		if exists, err := tx.NamespaceExists(ctx, w.ID, n.Namespace); err != nil || !exists {
			if err == nil {
				err = notFound("namespace", n.Warehouse+"/"+n.Namespace.Resource())
			}
			return Member{}, false, err
		}
	} else {
		obj, err := tx.Object(ctx, w.ID, catalog.Ident{Namespace: n.Namespace, Name: n.Name}, catalog.Kind(n.Kind))
		if err == nil && obj.Kind != catalog.Kind(n.Kind) {
			err = ErrNotFound
		}
		if err != nil {
			return Member{}, false, named(err, n.Kind.String(), n.Warehouse+"/"+one.source())
		}
		if n.UUID != uuid.Nil && n.UUID != obj.UUID {
			return Member{}, false, Errorf(FailedPrecondition, "UUID_MISMATCH", "%s %s has the UUID %s, not %s: it was replaced by another of its name", n.Kind, one.source(), obj.UUID, n.UUID).
				Try("look at the object, and send its UUID or none")
		}
		one.Object, one.UUID = obj.ID, obj.UUID
	}
	for j := range there {
		o := &there[j]
		same := o.Warehouse == one.Warehouse && o.Kind == one.Kind && o.Object == one.Object && (o.Kind != MemberNamespace || o.Namespace.Equal(one.Namespace))
		shown := o.AliasNamespace.Equal(one.AliasNamespace) && o.Alias == one.Alias
		switch {
		case same && shown:
			return *o, false, nil
		case same:
			return Member{}, false, Errorf(AlreadyExists, "MEMBER_EXISTS", "%s %s is in share %q already, under another name", one.Kind, one.source(), sh.Name).Try("remove member %s in the same request to give it the new name", o.ID)
		case shown:
			return Member{}, false, taken(sh, &one)
		case o.Kind == MemberNamespace && one.Kind == MemberNamespace && (within(o.AliasNamespace, one.AliasNamespace) || within(one.AliasNamespace, o.AliasNamespace)):
			return Member{}, false, taken(sh, &one)
		}
	}
	err = tx.AddMember(ctx, one)
	if errors.Is(err, ErrExists) {
		return Member{}, false, taken(sh, &one)
	}
	return one, err == nil, named(err, one.Kind.String(), n.Warehouse+"/"+one.source())
}

func tryWarehouse(err error, sh *Share) error {
	var e *Error
	if errors.As(err, &e) && e.Code == NotFound {
		e.Next = fmt.Sprintf("a share takes from warehouses of its own organisation, %s: see the list of warehouses", sh.Organisation)
	}
	return err
}

func taken(sh *Share, m *Member) error {
	shown := m.AliasNamespace.Resource()
	if m.Alias != "" {
		shown = catalog.Ident{Namespace: m.AliasNamespace, Name: m.Alias}.Resource()
	}
	return Errorf(AlreadyExists, "ALIAS_TAKEN", "share %q shows something else as %s", sh.Name, shown).Try("give one of them an alias, or remove the other")
}

// within reports whether ns is outer or lies in it.
func within(ns, outer catalog.Namespace) bool {
	return len(ns) >= len(outer) && ns[:len(outer)].Equal(outer)
}

// Members lists a share's members by alias namespace and alias.
func (s *Service) Members(ctx context.Context, share string, p Page) ([]Member, string, error) {
	sh, err := s.Share(ctx, share)
	if err != nil {
		return nil, "", err
	}
	all, err := s.store.Members(ctx, sh.ID, oneMore(p))
	page, next := more(all, p.Limit, func(m Member) string { return Key(append(slices.Clone(m.AliasNamespace), m.Alias)...) })
	return page, next, storeError(err)
}

// WarehouseName returns the name of a warehouse by its id.
func (s *Service) WarehouseName(ctx context.Context, id uuid.UUID) (string, error) {
	w, err := s.store.WarehouseByID(ctx, id)
	if err != nil {
		return "", storeError(named(err, "warehouse", id.String()))
	}
	return w.Name, nil
}

// Warnings lists warnings, newest first, about one share or, with "", about
// all of an organisation.
func (s *Service) Warnings(ctx context.Context, share, organisation string, p Page) ([]Warning, string, error) {
	id := uuid.Nil
	if share != "" {
		sh, err := s.Share(ctx, share)
		if err != nil {
			return nil, "", err
		}
		id = sh.ID
	}
	all, err := s.store.Warnings(ctx, id, organisation, oneMore(p))
	page, next := more(all, p.Limit, func(w Warning) string { return strconv.FormatInt(w.ID, 10) })
	return page, next, storeError(err)
}
