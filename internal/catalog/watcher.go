// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Watcher hears what happens to objects and namespaces, in the transaction in
// which it happens. An error undoes it; an [Error] is the caller's answer.
type Watcher interface {
	// Dropping is called before a live table or view is dropped, be it for good
	// or not.
	Dropping(ctx context.Context, tx Tx, m Mutation, at time.Time, obj Object) error
	// DroppingNamespace is called before a namespace is dropped.
	DroppingNamespace(ctx context.Context, tx Tx, m Mutation, at time.Time, warehouse uuid.UUID, ns Namespace) error
	// Replaced is called after another table was registered over one.
	Replaced(ctx context.Context, tx Tx, m Mutation, at time.Time, before, after Object) error
	// Renamed is called after a table or view was renamed; obj has the new name.
	Renamed(ctx context.Context, tx Tx, m Mutation, at time.Time, from Ident, obj Object) error
}

// dropping tells the watcher that an object is about to be dropped. One that
// is not there, or not of that kind, is left to the drop to refuse.
func (w *Warehouse) dropping(ctx context.Context, tx Tx, m Mutation, at time.Time, id Ident, kind Kind) error {
	if w.watcher == nil || kind == KindFunction {
		return nil
	}
	obj, err := tx.Object(ctx, w.id, id.Namespace, id.Name, kind)
	if errors.Is(err, ErrNoObject) || err == nil && (obj.Kind != kind || obj.Protected) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.watcher.Dropping(ctx, tx, m, at, obj)
}
