// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// Watcher tells the shares of a store what the catalog does to what they
// share, in the catalog's own transaction, so that neither is ever ahead of the
// other. It implements catalog.Watcher.
type Watcher struct{ store Store }

var _ catalog.Watcher = Watcher{}

// NewWatcher returns the watcher of a store.
func NewWatcher(s Store) Watcher { return Watcher{s} }

// Dropping implements catalog.Watcher: members that are the object go, or keep
// it from being dropped.
func (w Watcher) Dropping(ctx context.Context, ct catalog.Tx, m catalog.Mutation, at time.Time, obj catalog.Object) error {
	tx, err := w.store.Within(ct)
	if err != nil {
		return err
	}
	// Nobody can make it a member from here on.
	if err := tx.HoldObject(ctx, obj.Warehouse, obj.ID); errors.Is(err, ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	members, err := tx.MembersOf(ctx, obj.ID)
	if err != nil {
		return err
	}
	return lose(ctx, tx, ct, m, at, members, WarnRemoved, "was dropped")
}

// DroppingNamespace implements catalog.Watcher.
func (w Watcher) DroppingNamespace(ctx context.Context, ct catalog.Tx, m catalog.Mutation, at time.Time, warehouse uuid.UUID, ns catalog.Namespace) error {
	tx, err := w.store.Within(ct)
	if err != nil {
		return err
	}
	if err := tx.HoldNamespace(ctx, warehouse, ns); errors.Is(err, ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	members, err := tx.MembersWhole(ctx, warehouse, ns)
	if err != nil {
		return err
	}
	return lose(ctx, tx, ct, m, at, members, WarnRemoved, "was dropped")
}

// Replaced implements catalog.Watcher: what stands under the name is another
// table now, which nobody has shared.
func (w Watcher) Replaced(ctx context.Context, ct catalog.Tx, m catalog.Mutation, at time.Time, before, after catalog.Object) error {
	if before.UUID == after.UUID {
		return nil
	}
	tx, err := w.store.Within(ct)
	if err != nil {
		return err
	}
	members, err := tx.MembersOf(ctx, before.ID)
	if err != nil {
		return err
	}
	return lose(ctx, tx, ct, m, at, members, WarnReplaced, "was replaced by a table with another UUID")
}

// Renamed implements catalog.Watcher: the object stays shared as what it was
// shared as.
func (w Watcher) Renamed(ctx context.Context, ct catalog.Tx, m catalog.Mutation, at time.Time, from catalog.Ident, obj catalog.Object) error {
	tx, err := w.store.Within(ct)
	if err != nil {
		return err
	}
	members, err := tx.MembersOf(ctx, obj.ID)
	if err != nil {
		return err
	}
	for i := range members {
		one := &members[i]
		sh, err := tx.ShareByID(ctx, one.Share)
		if err != nil {
			return err
		}
		if err := tx.MoveMember(ctx, one.ID, obj.Namespace, obj.Name); err != nil {
			return err
		}
		shown := catalog.Ident{Namespace: one.AliasNamespace, Name: one.Alias}.Resource()
		if err := warn(ctx, tx, ct, m, at, &sh, one, obj.Ident().Resource(), WarnRenamed,
			fmt.Sprintf("%s %s is now called %s. Share %q goes on showing it as %s; give it another alias if recipients should see the new name", one.Kind, from.Resource(), obj.Ident().Resource(), sh.Name, shown)); err != nil {
			return err
		}
	}
	return nil
}

// lose removes members with what they are bound to, or refuses.
func lose(ctx context.Context, tx Tx, ct catalog.Tx, m catalog.Mutation, at time.Time, members []Member, reason, what string) error {
	var blocking []string
	shares := make([]Share, len(members))
	for i := range members {
		var err error
		if shares[i], err = tx.ShareByID(ctx, members[i].Share); err != nil {
			return err
		}
		if shares[i].OnDrop != OnDropRemove {
			blocking = append(blocking, shares[i].Name)
		}
	}
	if len(blocking) > 0 {
		return catalog.Errorf(catalog.Forbidden, "%s %s is shared (%s); remove it from the share first, or set the share's on_drop to remove",
			members[0].Kind, members[0].source(), strings.Join(blocking, ", "))
	}
	for i := range members {
		one := &members[i]
		if err := tx.DeleteMember(ctx, one.Share, one.ID); err != nil {
			return err
		}
		if err := tx.TouchShares(ctx, one.Share, uuid.Nil); err != nil {
			return err
		}
		if err := warn(ctx, tx, ct, m, at, &shares[i], one, one.source(), reason,
			fmt.Sprintf("%s %s %s and is no longer in share %q; what is made or restored under its name is not shared until it is added", one.Kind, one.source(), what, shares[i].Name)); err != nil {
			return err
		}
	}
	return nil
}

// warn writes a warning to the owner, and an event for those who follow the
// catalog.
func warn(ctx context.Context, tx Tx, ct catalog.Tx, m catalog.Mutation, at time.Time, sh *Share, one *Member, object, reason, message string) error {
	w, err := tx.WarehouseByID(ctx, one.Warehouse)
	if err != nil {
		return err
	}
	if err := tx.PutWarning(ctx, Warning{
		Time: at, Organisation: sh.Organisation, Share: sh.ID, Reason: reason, Message: message, Object: w.Name + "/" + object, Principal: m.Principal,
	}); err != nil {
		return err
	}
	payload, err := json.Marshal(map[string]any{"share": sh.Name, "organisation": sh.Organisation, "reason": reason, "message": message, "object": object})
	if err != nil {
		return err
	}
	return ct.PutEvent(ctx, catalog.Event{
		Time: at, Warehouse: one.Warehouse, Type: "share.warning", Object: one.Object, Namespace: one.Namespace.Path(), Name: one.Name, Payload: payload,
	})
}
