// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
)

// What an administrator changes beside the protocol: dropped objects,
// protection, labels.

// ListDropped returns dropped tables and views that can still be restored,
// oldest first. Page.After is the last object's id.
func (w *Warehouse) ListDropped(ctx context.Context, page Page) ([]Object, error) {
	objects, err := w.store.ListDropped(ctx, w.id, page)
	return objects, storeError(err)
}

// Undrop restores a dropped table or view, under a new name when to is not
// nil.
func (w *Warehouse) Undrop(ctx context.Context, m Mutation, id uuid.UUID, to *Ident) (Object, error) {
	at := w.stamp()
	var obj Object
	err := w.store.Update(ctx, func(tx Tx) error {
		var err error
		obj, err = tx.RestoreObject(ctx, w.id, id, to, at)
		switch {
		case errors.Is(err, ErrNoObject):
			return Errorf(NotFound, "No dropped table or view has the id %s; it may have expired", id)
		case errors.Is(err, ErrExists):
			return Errorf(AlreadyExists, "The name is taken; restore it under another one")
		case errors.Is(err, ErrNoNamespace):
			return Errorf(NoSuchNamespace, "The namespace does not exist any more; restore it into another one")
		case err != nil:
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: obj.Kind.String() + ".restored", resource: obj.Ident().Resource(), namespace: obj.Namespace, object: obj,
			payload: map[string]any{"uuid": obj.UUID, "metadata-location": obj.MetadataLocation}, replay: Replay{Status: 204},
		})
	})
	return obj, storeError(err)
}

// SetProtected protects a table or view from being dropped, or takes the
// protection off.
func (w *Warehouse) SetProtected(ctx context.Context, m Mutation, kind Kind, id Ident, protected bool) error {
	return w.setState(ctx, m, kind, id, "protection-changed", map[string]any{"protected": protected}, func(tx Tx) error {
		return tx.SetProtected(ctx, w.id, kind, id, protected)
	})
}

// SetLabels sets the labels that load answers of a table or view carry:
// {"object-labels":{…},"fields":[{"field-id":3,"labels":{…}}]}. Nil removes
// them. Labels are catalog state and never become part of the metadata.
func (w *Warehouse) SetLabels(ctx context.Context, m Mutation, kind Kind, id Ident, labels json.RawMessage) error {
	if err := checkLabels(labels); err != nil {
		return err
	}
	return w.setState(ctx, m, kind, id, "labels-changed", map[string]any{"labels": labels}, func(tx Tx) error {
		return tx.SetLabels(ctx, w.id, kind, id, labels)
	})
}

func (w *Warehouse) setState(ctx context.Context, m Mutation, kind Kind, id Ident, event string, payload map[string]any, set func(Tx) error) error {
	at := w.stamp()
	return storeError(w.store.Update(ctx, func(tx Tx) error {
		obj, err := tx.Object(ctx, w.id, id.Namespace, id.Name, kind)
		if errors.Is(err, ErrNoObject) || err == nil && obj.Kind != kind {
			return noObject(id, kind)
		}
		if err != nil {
			return err
		}
		if err := set(tx); err != nil {
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: kind.String() + "." + event, resource: id.Resource(), namespace: id.Namespace, object: obj,
			payload: payload, replay: Replay{Status: 204},
		})
	}))
}

func checkLabels(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	var labels struct {
		Object map[string]string `json:"object-labels"`
		Fields []struct {
			ID     *int              `json:"field-id"`
			Labels map[string]string `json:"labels"`
		} `json:"fields"`
	}
	if err := json.Unmarshal(raw, &labels); err != nil {
		return Errorf(BadRequest, "labels: %s", err.Error())
	}
	for i, f := range labels.Fields {
		if f.ID == nil {
			return Errorf(BadRequest, "labels.fields[%d].field-id: required", i)
		}
	}
	return nil
}
