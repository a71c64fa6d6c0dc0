// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/objstore"
)

// CreateNamespace creates a namespace with properties. Its parent must exist.
func (w *Warehouse) CreateNamespace(ctx context.Context, m Mutation, ns Namespace, properties map[string]string) (NamespaceRecord, error) {
	if err := checkNamespace(ns); err != nil {
		return NamespaceRecord{}, err
	}
	if err := checkProperties("properties", properties); err != nil {
		return NamespaceRecord{}, err
	}
	if err := w.checkNamespaceLocation("properties", properties); err != nil {
		return NamespaceRecord{}, err
	}
	at := w.stamp()
	rec := NamespaceRecord{Warehouse: w.id, Namespace: ns, Properties: maps.Clone(properties), CreatedAt: at, UpdatedAt: at}
	if rec.Properties == nil {
		rec.Properties = map[string]string{}
	}
	body, err := json.Marshal(struct {
		Namespace  Namespace         `json:"namespace"`
		Properties map[string]string `json:"properties"`
	}{ns, rec.Properties})
	if err != nil {
		return NamespaceRecord{}, err
	}
	err = w.store.Update(ctx, func(tx Tx) error {
		if err := tx.CreateNamespace(ctx, rec); err != nil {
			switch {
			case errors.Is(err, ErrExists):
				return Errorf(AlreadyExists, "Namespace already exists: %s", ns)
			case errors.Is(err, ErrNoNamespace):
				return noNamespace(ns.Parent())
			}
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: "namespace.created", resource: ns.Resource(), namespace: ns,
			replay: Replay{Status: 200, Body: body},
		})
	})
	if err != nil {
		return NamespaceRecord{}, storeError(err)
	}
	return rec, nil
}

// ListNamespaces returns the direct children of parent. next is the last
// name of the page, "" when there are no more.
func (w *Warehouse) ListNamespaces(ctx context.Context, parent Namespace, page Page) (children []Namespace, next string, err error) {
	if len(parent) > 0 {
		if _, err := w.LoadNamespace(ctx, parent); err != nil {
			return nil, "", err
		}
	}
	children, err = w.store.ListNamespaces(ctx, w.id, parent, oneMore(page))
	if err != nil {
		return nil, "", storeError(err)
	}
	if page.Limit > 0 && len(children) > page.Limit {
		children = children[:page.Limit]
		last := children[page.Limit-1]
		next = last[len(last)-1]
	}
	return children, next, nil
}

// LoadNamespace returns a namespace with its properties.
func (w *Warehouse) LoadNamespace(ctx context.Context, ns Namespace) (NamespaceRecord, error) {
	rec, err := w.store.Namespace(ctx, w.id, ns)
	if errors.Is(err, ErrNoNamespace) {
		return NamespaceRecord{}, noNamespace(ns)
	}
	return rec, storeError(err)
}

// locationProperty tells engines where the tables of a namespace go that do
// not ask the catalog for a place.
const locationProperty = "location"

// namespacePart is the part of a warehouse below which every namespace that
// has no location of its own is given one. Tables lie in it two levels deep,
// so that none can take a whole namespace's place.
const namespacePart = "by-namespace"

// NamespaceLocation returns the location of a namespace: the one that was set
// as its property, or <root>/by-namespace/<uuid>, with a UUID made from the
// namespace's name (RFC 9562, version 5). Trino places new tables below it,
// and cannot create any where a namespace tells no location.
func (w *Warehouse) NamespaceLocation(rec NamespaceRecord) string {
	if l, ok := rec.Properties[locationProperty]; ok {
		return l
	}
	id := uuid.NewSHA1(w.id, []byte(rec.Namespace.Path()))
	return w.root.String() + "/" + namespacePart + "/" + id.String()
}

// checkNamespaceLocation refuses a location below which no table could be
// created.
func (w *Warehouse) checkNamespaceLocation(field string, properties map[string]string) error {
	location, ok := properties[locationProperty]
	if !ok {
		return nil
	}
	field += "." + locationProperty
	l, err := objstore.ParseLocation(location)
	if err != nil {
		return Errorf(BadRequest, "%s: %s", field, err.Error())
	}
	for _, root := range w.roots {
		if root.Key() == l.Key() {
			return nil
		}
	}
	// The location need not be free, but a place below it must be allowed.
	_, err = w.checkLocation(field, trimSlashes(location)+"/table")
	return err
}

// DropNamespace removes an empty namespace.
func (w *Warehouse) DropNamespace(ctx context.Context, m Mutation, ns Namespace) error {
	at := w.stamp()
	return storeError(w.store.Update(ctx, func(tx Tx) error {
		if w.watcher != nil {
			if err := w.watcher.DroppingNamespace(ctx, tx, m, at, w.id, ns); err != nil {
				return err
			}
		}
		switch err := tx.DropNamespace(ctx, w.id, ns); {
		case errors.Is(err, ErrNoNamespace):
			return noNamespace(ns)
		case errors.Is(err, ErrNotEmpty):
			return Errorf(NamespaceNotEmpty, "Namespace %s is not empty", ns)
		case errors.Is(err, ErrHoldsDropped):
			return Errorf(NamespaceNotEmpty, "Namespace %s is not empty: it holds dropped tables or views that can still be restored", ns)
		case err != nil:
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: "namespace.dropped", resource: ns.Resource(), namespace: ns,
			replay: Replay{Status: 204},
		})
	}))
}

// UpdateNamespaceProperties removes and sets properties. A key in both lists
// is Unprocessable.
func (w *Warehouse) UpdateNamespaceProperties(ctx context.Context, m Mutation, ns Namespace, removals []string, updates map[string]string) (PropertyChanges, error) {
	for _, key := range removals {
		if _, ok := updates[key]; ok {
			return PropertyChanges{}, Errorf(Unprocessable, "The property %q is in both removals and updates; name it in one", key)
		}
	}
	if err := checkProperties("updates", updates); err != nil {
		return PropertyChanges{}, err
	}
	if err := w.checkNamespaceLocation("updates", updates); err != nil {
		return PropertyChanges{}, err
	}
	at := w.stamp()
	var done PropertyChanges
	err := w.store.Update(ctx, func(tx Tx) error {
		done = PropertyChanges{Updated: slices.Sorted(maps.Keys(updates)), Removed: []string{}, Missing: []string{}}
		if done.Updated == nil {
			done.Updated = []string{}
		}
		var tooMany error
		err := tx.UpdateNamespaceProperties(ctx, w.id, ns, at, func(current map[string]string) map[string]string {
			next := maps.Clone(current)
			if next == nil {
				next = map[string]string{}
			}
			for _, key := range removals {
				if _, ok := current[key]; !ok {
					done.Missing = append(done.Missing, key)
					continue
				}
				delete(next, key)
				done.Removed = append(done.Removed, key)
			}
			maps.Copy(next, updates)
			if len(next) > maxProperties {
				tooMany = Errorf(BadRequest, "A namespace holds at most %d properties", maxProperties)
			}
			return next
		})
		switch {
		case errors.Is(err, ErrNoNamespace):
			return noNamespace(ns)
		case err != nil:
			return err
		case tooMany != nil:
			return tooMany
		}
		slices.Sort(done.Removed)
		slices.Sort(done.Missing)
		done.Removed, done.Missing = slices.Compact(done.Removed), slices.Compact(done.Missing)
		body, err := json.Marshal(done)
		if err != nil {
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: "namespace.updated", resource: ns.Resource(), namespace: ns,
			replay: Replay{Status: 200, Body: body},
		})
	})
	if err != nil {
		return PropertyChanges{}, storeError(err)
	}
	return done, nil
}

func noNamespace(ns Namespace) *Error {
	return Errorf(NoSuchNamespace, "Namespace does not exist: %s", ns)
}

// requireNamespace tells whether a missing object is missing because its
// namespace is.
func (w *Warehouse) requireNamespace(ctx context.Context, ns Namespace) error {
	_, err := w.LoadNamespace(ctx, ns)
	return err
}

// oneMore asks for one row beyond the page, to know whether more follow.
func oneMore(p Page) Page {
	if p.Limit > 0 {
		p.Limit++
	}
	return p
}

// checkNamespace refuses a namespace that no client could name again.
func checkNamespace(ns Namespace) error {
	if len(ns) == 0 {
		return Errorf(BadRequest, "namespace: at least one level is required")
	}
	if len(ns) > maxNamespaceLevels {
		return Errorf(BadRequest, "namespace: %d levels; at most %d are allowed", len(ns), maxNamespaceLevels)
	}
	if n := len(ns.Path()); n > maxNamespaceBytes {
		return Errorf(BadRequest, "namespace: %d bytes in all levels; at most %d are allowed", n, maxNamespaceBytes)
	}
	for i, level := range ns {
		if err := CheckName(level); err != nil {
			return Errorf(BadRequest, "namespace[%d]: %s", i, err.Error())
		}
	}
	return nil
}

// CheckName applies the rule for names of namespaces' levels, tables, views
// and functions: 1 to 255 bytes of valid UTF-8 without control characters,
// line or paragraph separators, or the character | (the advertised namespace
// separator), and not "." or "..". Names are compared bytewise: case, and
// composed and decomposed forms, differ. Names never become part of a
// storage path.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a name must not be empty")
	case len(name) > maxNameBytes:
		return Errorf(BadRequest, "a name of %d bytes is too long; at most %d are allowed", len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return errors.New("a name must be valid UTF-8")
	case name == "." || name == "..":
		return errors.New(`a name must not be "." or ".."`)
	}
	for _, r := range name {
		switch {
		case r == '|':
			return errors.New("a name must not hold | (the namespace separator)")
		case unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError || unicode.Is(unicode.Cs, r):
			return Errorf(BadRequest, "a name must not hold the character %U", r)
		}
	}
	return nil
}

// checkProperties bounds a property map.
func checkProperties(field string, properties map[string]string) error {
	if len(properties) > maxProperties {
		return Errorf(BadRequest, "%s: %d entries; at most %d are allowed", field, len(properties), maxProperties)
	}
	for k, v := range properties {
		switch {
		case k == "":
			return Errorf(BadRequest, "%s: a key must not be empty", field)
		case len(k)+len(v) > maxPropertyBytes:
			return Errorf(BadRequest, "%s.%.64s: %d bytes; at most %d are allowed", field, k, len(k)+len(v), maxPropertyBytes)
		case !utf8.ValidString(k) || !utf8.ValidString(v):
			return Errorf(BadRequest, "%s: keys and values must be valid UTF-8", field)
		}
	}
	return nil
}

// change is what record writes beside the change itself.
type change struct {
	at        time.Time
	event     string
	resource  string
	namespace Namespace
	object    Object // zero for namespaces
	payload   map[string]any
	replay    Replay
}
