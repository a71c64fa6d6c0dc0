// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
)

// The protocol lists and loads functions but has no way to create them; an
// administrator registers them with PutFunction.

// ListFunctions returns the names of a namespace's functions; see ListTables.
func (w *Warehouse) ListFunctions(ctx context.Context, ns Namespace, page Page) (names []string, next string, err error) {
	return w.listObjects(ctx, ns, KindFunction, page)
}

// LoadFunction returns a registered function with all its definitions.
func (w *Warehouse) LoadFunction(ctx context.Context, id Ident) (*Function, error) {
	obj, err := w.lookup(ctx, id, KindFunction)
	if err != nil {
		return nil, err
	}
	return &Function{Object: obj, Metadata: obj.Metadata}, nil
}

// PutFunction registers a function or replaces the metadata of the one with
// that name. raw is FunctionMetadata of the protocol, format version 1.
func (w *Warehouse) PutFunction(ctx context.Context, m Mutation, id Ident, raw json.RawMessage) (*Function, error) {
	if err := CheckName(id.Name); err != nil {
		return nil, Errorf(BadRequest, "name: %s", err.Error())
	}
	functionUUID, err := checkFunction(raw)
	if err != nil {
		return nil, err
	}
	at := w.stamp()
	obj := w.newObject(KindFunction, id, functionUUID, "", at)
	obj.Metadata, obj.Protected = raw, false
	err = w.store.Update(ctx, func(tx Tx) error {
		event := "function.created"
		existing, err := tx.Object(ctx, w.id, id.Namespace, id.Name, KindFunction)
		switch {
		case err == nil && existing.UUID != functionUUID:
			return nameTaken(id, KindFunction, KindFunction)
		case err == nil:
			event = "function.replaced"
			obj.ID, obj.CreatedAt, obj.Version = existing.ID, existing.CreatedAt, existing.Version+1
			if err := tx.SetFunctionMetadata(ctx, existing.ID, raw, at); err != nil {
				return err
			}
		case errors.Is(err, ErrNoObject):
			if err := w.insertObject(ctx, tx, obj, nil); err != nil {
				return err
			}
		default:
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: event, resource: id.Resource(), namespace: id.Namespace, object: obj,
			payload: map[string]any{"uuid": functionUUID}, replay: Replay{Status: 204},
		})
	})
	if err != nil {
		return nil, storeError(err)
	}
	return &Function{Object: obj, Metadata: raw}, nil
}

// DropFunction removes a function.
func (w *Warehouse) DropFunction(ctx context.Context, m Mutation, id Ident) error {
	at := w.stamp()
	return storeError(w.store.Update(ctx, func(tx Tx) error {
		gone, err := w.drop(ctx, tx, m, id, KindFunction, at, time.Time{}, false)
		if err != nil {
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: "function.dropped", resource: id.Resource(), namespace: id.Namespace, object: gone,
			payload: map[string]any{"uuid": gone.UUID}, replay: Replay{Status: 204},
		})
	}))
}

// checkFunction applies the required parts of FunctionMetadata.
func checkFunction(raw json.RawMessage) (uuid.UUID, error) {
	var f struct {
		UUID          *string            `json:"function-uuid"`
		FormatVersion *int               `json:"format-version"`
		Definitions   *[]json.RawMessage `json:"definitions"`
		DefinitionLog *[]json.RawMessage `json:"definition-log"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return uuid.Nil, &Error{Reason: BadRequest, Message: "function metadata is not valid JSON: " + err.Error()}
	}
	switch {
	case f.UUID == nil:
		return uuid.Nil, Errorf(BadRequest, "function-uuid: required")
	case f.FormatVersion == nil || *f.FormatVersion != 1:
		return uuid.Nil, Errorf(BadRequest, "format-version: must be 1")
	case f.Definitions == nil || len(*f.Definitions) == 0:
		return uuid.Nil, Errorf(BadRequest, "definitions: at least one is required")
	case f.DefinitionLog == nil:
		return uuid.Nil, Errorf(BadRequest, "definition-log: required")
	}
	id, err := uuid.Parse(*f.UUID)
	if err != nil {
		return uuid.Nil, Errorf(BadRequest, "function-uuid: %q is not a UUID", *f.UUID)
	}
	return id, nil
}
