// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog/viewmeta"
	"github.com/sluice-data/sluice/internal/objstore"
)

// ListViews returns the names of a namespace's views; see ListTables.
func (w *Warehouse) ListViews(ctx context.Context, ns Namespace, page Page) (names []string, next string, err error) {
	return w.listObjects(ctx, ns, KindView, page)
}

// LookupView returns a view's row; see LookupTable.
func (w *Warehouse) LookupView(ctx context.Context, id Ident) (Object, error) {
	return w.lookup(ctx, id, KindView)
}

// ViewMetadata returns the JSON of the metadata file that a row points to.
// It is shared; callers do not change it.
func (w *Warehouse) ViewMetadata(ctx context.Context, obj Object) (json.RawMessage, error) {
	raw, err := w.view(ctx, obj.file())
	if errors.Is(err, objstore.ErrNotFound) || err == nil && w.missing(obj.MetadataLocation) {
		return nil, missingFile(obj, err)
	}
	if err == nil && obj.MetadataDigest.IsZero() {
		info, err := viewmeta.Parse(raw)
		if err != nil {
			return nil, &Error{Reason: Internal, Message: "The stored metadata is not valid", Cause: err}
		}
		if obj.unlike(info.UUID, info.Location) {
			return nil, foreignFile(obj)
		}
	}
	return raw, filesError(err)
}

// CreateView creates a view.
func (w *Warehouse) CreateView(ctx context.Context, m Mutation, ns Namespace, v NewView) (*View, error) {
	id := Ident{ns, v.Name}
	if err := CheckName(v.Name); err != nil {
		return nil, Errorf(BadRequest, "name: %s", err.Error())
	}
	if err := checkTableProperties("properties", v.Properties); err != nil {
		return nil, err
	}
	within, err := w.requireFree(ctx, id, KindView)
	if err != nil {
		return nil, err
	}
	viewUUID, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("make view uuid: %w", err)
	}
	at := w.stamp()
	location := w.defaultLocation(within, viewUUID)
	if v.Location != "" {
		location = trimSlashes(v.Location)
	}
	raw, err := viewmeta.New(viewmeta.Create{
		UUID: viewUUID, Location: location, Schema: v.Schema, Version: v.Version, Properties: v.Properties,
	})
	if err != nil {
		return nil, viewError(err)
	}
	own, err := w.place("location", location, mapProperty(v.Properties))
	if err != nil {
		return nil, err
	}
	if v.Location != "" || len(own) > 1 {
		if err := w.requireUnoccupied(ctx, uuid.Nil, own); err != nil {
			return nil, err
		}
	}
	obj := w.newObject(KindView, id, viewUUID, location, at)
	return w.insertView(ctx, m, obj, raw, own, mapProperty(v.Properties))
}

// insertView writes the first metadata file and inserts the row.
func (w *Warehouse) insertView(ctx context.Context, m Mutation, obj Object, raw []byte, own placement, property func(string) (string, bool)) (*View, error) {
	file, err := w.writeNumbered(ctx, metadataDir(obj.Location, property), 0, ".metadata.json", raw)
	if err != nil {
		return nil, err
	}
	obj.MetadataLocation, obj.MetadataDigest = file, DigestOf(raw)
	err = w.store.Update(ctx, func(tx Tx) error {
		if err := w.insertObject(ctx, tx, obj, own); err != nil {
			return err
		}
		return w.record(ctx, tx, m, viewChange(obj, "view.created"))
	})
	if err := w.settle(ctx, err, obj.ID, file); err != nil {
		return nil, err
	}
	w.cache.views.Set(obj.file(), raw)
	return &View{Object: obj, Metadata: raw}, nil
}

// viewChange is what is recorded of a new version of a view.
func viewChange(obj Object, event string) change {
	return change{
		at: obj.UpdatedAt, event: event, resource: obj.Ident().Resource(), namespace: obj.Namespace, object: obj,
		payload: map[string]any{"uuid": obj.UUID, "metadata-location": obj.MetadataLocation},
		replay:  Replay{Status: 200, Object: obj.ID, MetadataLocation: obj.MetadataLocation, MetadataDigest: obj.MetadataDigest},
	}
}

// ReplaceView commits updates to a view.
func (w *Warehouse) ReplaceView(ctx context.Context, m Mutation, id Ident, c ViewCommit) (*View, error) {
	requirements, err := viewmeta.DecodeRequirements(c.Requirements)
	if err != nil {
		return nil, viewError(err)
	}
	updates, err := viewmeta.DecodeUpdates(c.Updates)
	if err != nil {
		return nil, viewError(err)
	}
	unlock, err := w.locks.lock(ctx, id.Namespace.Path()+Separator+id.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for attempt := 1; ; attempt++ {
		v, err := w.tryReplaceView(ctx, m, id, requirements, updates)
		switch {
		case err == nil:
			return v, nil
		case !errors.Is(err, ErrStale):
			return nil, storeError(err)
		}
		w.observer.CommitAttempt("conflict")
		if attempt == maxCommitAttempts {
			return nil, Errorf(CommitFailed, "The view was changed concurrently %d times in a row; try again", attempt)
		}
	}
}

func (w *Warehouse) tryReplaceView(ctx context.Context, m Mutation, id Ident, requirements []viewmeta.Requirement, updates []viewmeta.Update) (*View, error) {
	obj, err := w.store.Object(ctx, w.id, id.Namespace, id.Name, KindView)
	switch {
	case errors.Is(err, ErrNoObject), err == nil && obj.Kind != KindView:
		return nil, noObject(id, KindView)
	case err != nil:
		return nil, err
	}
	before, err := w.ViewMetadata(ctx, obj)
	if err != nil {
		return nil, err
	}
	info, err := viewmeta.Parse(before)
	if err != nil {
		return nil, &Error{Reason: Internal, Message: "The stored metadata is not valid", Cause: err}
	}
	if err := viewmeta.Check(info, requirements); err != nil {
		w.observer.CommitAttempt("requirement-failed")
		return nil, viewError(err)
	}
	at := w.stamp()
	after, changed, err := viewmeta.Apply(before, updates, at)
	if err != nil {
		return nil, viewError(err)
	}
	if !changed {
		if m.Key != nil {
			if err := w.store.Update(ctx, func(tx Tx) error {
				return w.recordKey(ctx, tx, m, viewChange(obj, "").replay)
			}); err != nil {
				return nil, err
			}
		}
		w.observer.CommitAttempt("unchanged")
		return &View{Object: obj, Metadata: before}, nil
	}
	next, err := viewmeta.Parse(after)
	if err != nil {
		return nil, viewError(err)
	}
	if err := checkTableProperties("properties", next.Properties); err != nil {
		return nil, err
	}
	property := mapProperty(next.Properties)
	own, err := w.place("location", next.Location, property)
	if err != nil {
		return nil, err
	}
	if next.Location != obj.Location || len(own) > 1 {
		if err := w.requireUnoccupied(ctx, obj.ID, own); err != nil {
			return nil, err
		}
	}
	file, err := w.writeNumbered(ctx, metadataDir(next.Location, property), metadataVersion(obj.MetadataLocation)+1, ".metadata.json", after)
	if err != nil {
		return nil, err
	}
	previous := obj.file()
	obj.MetadataLocation, obj.MetadataDigest, obj.Location, obj.UpdatedAt = file, DigestOf(after), next.Location, at
	obj.Version++
	err = w.store.Update(ctx, func(tx Tx) error {
		err := tx.SwapMetadata(ctx, obj.ID, previous.location, file, obj.MetadataDigest, next.Location, own.keys(), at)
		if errors.Is(err, ErrLocationTaken) {
			return locationConflict(next.Location)
		}
		if err != nil {
			return err
		}
		return w.record(ctx, tx, m, viewChange(obj, "view.replaced"))
	})
	if errors.Is(err, ErrStale) {
		w.tidy.delete(w, file)
		return nil, err
	}
	if err := w.settle(ctx, err, obj.ID, file); err != nil {
		return nil, err
	}
	w.observer.CommitAttempt("committed")
	w.cache.views.Set(obj.file(), after)
	w.cache.views.Invalidate(previous)
	return &View{Object: obj, Metadata: after}, nil
}

// DropView removes a view.
func (w *Warehouse) DropView(ctx context.Context, m Mutation, id Ident) error {
	return w.dropObject(ctx, m, id, KindView, nil)
}

// RenameView gives a view a new name, possibly in another namespace.
func (w *Warehouse) RenameView(ctx context.Context, m Mutation, from, to Ident) error {
	return w.rename(ctx, m, from, to, KindView)
}

// RegisterView adds a view by the location of its metadata file.
func (w *Warehouse) RegisterView(ctx context.Context, m Mutation, ns Namespace, name, metadataLocation string) (*View, error) {
	id := Ident{ns, name}
	if err := CheckName(name); err != nil {
		return nil, Errorf(BadRequest, "name: %s", err.Error())
	}
	if err := w.checkInside("metadata-location", metadataLocation); err != nil {
		return nil, err
	}
	if _, err := w.requireFree(ctx, id, KindView); err != nil {
		return nil, err
	}
	raw, err := w.readForRegister(ctx, metadataLocation)
	if err != nil {
		return nil, err
	}
	info, err := viewmeta.Parse(raw)
	if err != nil {
		return nil, Errorf(BadRequest, "metadata-location: %s is not valid view metadata: %s", metadataLocation, err.Error())
	}
	if err := checkTableProperties("metadata.properties", info.Properties); err != nil {
		return nil, err
	}
	own, err := w.place("metadata.location", info.Location, mapProperty(info.Properties))
	if err != nil {
		return nil, err
	}
	if err := w.requireUnoccupied(ctx, uuid.Nil, own); err != nil {
		return nil, err
	}
	if err := checkOwnFile("metadata-location", metadataLocation, own); err != nil {
		return nil, err
	}
	obj := w.newObject(KindView, id, info.UUID, info.Location, w.stamp())
	obj.MetadataLocation, obj.MetadataDigest = metadataLocation, DigestOf(raw)
	err = w.store.Update(ctx, func(tx Tx) error {
		if err := w.insertObject(ctx, tx, obj, own); err != nil {
			return err
		}
		return w.record(ctx, tx, m, viewChange(obj, "view.registered"))
	})
	if err != nil {
		return nil, storeError(err)
	}
	return &View{Object: obj, Metadata: raw}, nil
}

// mapProperty looks properties up in a map.
func mapProperty(properties map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		v, ok := properties[key]
		return v, ok
	}
}

// viewError turns a failure of package viewmeta into an Error.
func viewError(err error) error {
	var failed *viewmeta.RequirementFailedError
	switch {
	case errors.As(err, &failed):
		return &Error{Reason: CommitFailed, Message: failed.Error()}
	case errors.Is(err, viewmeta.ErrDialects):
		return &Error{Reason: InvalidArgument, Message: err.Error()}
	case errors.Is(err, viewmeta.ErrInvalid):
		return &Error{Reason: BadRequest, Message: err.Error()}
	}
	return err
}
