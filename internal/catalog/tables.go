// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/objstore"
)

// ListTables returns the names of a namespace's tables in bytewise order.
// next is the last name of the page, "" when there are no more.
func (w *Warehouse) ListTables(ctx context.Context, ns Namespace, page Page) (names []string, next string, err error) {
	return w.listObjects(ctx, ns, KindTable, page)
}

func (w *Warehouse) listObjects(ctx context.Context, ns Namespace, kind Kind, page Page) ([]string, string, error) {
	if err := w.requireNamespace(ctx, ns); err != nil {
		return nil, "", err
	}
	names, err := w.store.ListObjects(ctx, w.id, ns, kind, oneMore(page))
	if err != nil {
		return nil, "", storeError(err)
	}
	if page.Limit > 0 && len(names) > page.Limit {
		return names[:page.Limit], names[page.Limit-1], nil
	}
	return names, "", nil
}

// LookupTable returns a table's row. Concurrent look-ups of one name share a
// query that starts after all of them have asked.
func (w *Warehouse) LookupTable(ctx context.Context, id Ident) (Object, error) {
	return w.lookup(ctx, id, KindTable)
}

// lookup finds a live object of exactly that kind.
func (w *Warehouse) lookup(ctx context.Context, id Ident, kind Kind) (Object, error) {
	obj, err := w.lookups.get(ctx, lookupKey{id.Namespace.Path(), id.Name, kind})
	switch {
	case errors.Is(err, ErrNoObject), err == nil && obj.Kind != kind:
		return Object{}, noObject(id, kind)
	case err != nil:
		return Object{}, storeError(err)
	}
	return obj, nil
}

func (w *Warehouse) fetchObject(ctx context.Context, key lookupKey) (Object, error) {
	return w.store.Object(ctx, w.id, NamespaceFromPath(key.namespace), key.name, key.kind)
}

func noObject(id Ident, kind Kind) *Error {
	switch kind {
	case KindView:
		return Errorf(NoSuchView, "View does not exist: %s", id)
	case KindFunction:
		return Errorf(NoSuchFunction, "Function does not exist: %s", id)
	default:
		return Errorf(NoSuchTable, "Table does not exist: %s", id)
	}
}

// title is how messages begin that clients and their tests compare.
var title = map[Kind]string{KindTable: "Table", KindView: "View", KindFunction: "Function"}

// nameTaken says that holder has the name that an object of a kind wants.
func nameTaken(id Ident, wanted, holder Kind) *Error {
	if holder != wanted {
		return Errorf(AlreadyExists, "%s with same name already exists: %s", title[holder], id)
	}
	return Errorf(AlreadyExists, "%s already exists: %s", title[wanted], id)
}

// holder looks up which kind has a name, for the message.
func (w *Warehouse) holder(ctx context.Context, tx Tx, id Ident, wanted Kind) Kind {
	if obj, err := tx.Object(ctx, w.id, id.Namespace, id.Name, wanted); err == nil {
		return obj.Kind
	}
	return wanted
}

// TableMetadata returns the metadata that a row points to.
func (w *Warehouse) TableMetadata(ctx context.Context, obj Object) (*metadata.Document, error) {
	doc, err := w.table(ctx, obj.file())
	if errors.Is(err, objstore.ErrNotFound) || err == nil && w.missing(obj.MetadataLocation) {
		return nil, missingFile(obj, err)
	}
	if err == nil && obj.unlike(doc.UUID(), doc.Location()) {
		return nil, foreignFile(obj)
	}
	return doc, filesError(err)
}

// unlike reports whether a document is not the object's. It is for rows from
// before digests were kept; with one, the bytes are known.
func (o *Object) unlike(id uuid.UUID, location string) bool {
	return o.MetadataDigest.IsZero() && o.UUID != uuid.Nil && (id != o.UUID || trimSlashes(location) != trimSlashes(o.Location))
}

func foreignFile(obj Object) *Error {
	return Errorf(Internal, "The metadata file %s is another object's, so it is not used; restore it, or register the file anew with overwrite", obj.MetadataLocation)
}

// missing reports whether the store can tell at little cost that a file is
// gone, as local files can; then the cache does not hide what an operator has
// to know.
func (w *Warehouse) missing(file string) bool {
	p, ok := w.files.(interface{ Missing(location string) bool })
	return ok && p.Missing(file)
}

// missingFile begins with the words that Java's clients know.
func missingFile(obj Object, cause error) *Error {
	return &Error{
		Reason: NotFound, Cause: cause,
		Message: fmt.Sprintf("Failed to open input stream for file: %s (the metadata file of %s %s is missing)", obj.MetadataLocation, obj.Kind, obj.Ident()),
	}
}

// filesError turns a failure of the object store into an Error.
func filesError(err error) error {
	var e *Error
	switch {
	case err == nil, errors.As(err, &e), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, objstore.ErrTooLarge):
		return &Error{Reason: BadRequest, Message: "The metadata file is larger than this server reads", Cause: err}
	case errors.Is(err, objstore.ErrOutside):
		return &Error{Reason: Forbidden, Message: "The metadata file lies outside the warehouse", Cause: err}
	case errors.Is(err, metadata.ErrInvalid):
		return &Error{Reason: Internal, Message: "The stored metadata is not valid", Cause: err}
	}
	return &Error{Reason: Unavailable, Message: "The object store is not available; nothing was changed", Cause: err, RetryAfter: 2 * time.Second}
}

// CreateTable creates a table, or with Stage builds and returns the metadata
// of one that a later commit creates.
func (w *Warehouse) CreateTable(ctx context.Context, m Mutation, ns Namespace, t NewTable) (*Table, error) {
	id := Ident{ns, t.Name}
	if err := CheckName(t.Name); err != nil {
		return nil, Errorf(BadRequest, "name: %s", err.Error())
	}
	if err := checkTableProperties("properties", t.Properties); err != nil {
		return nil, err
	}
	within, err := w.requireFree(ctx, id, KindTable)
	if err != nil {
		return nil, err
	}
	tableUUID, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("make table uuid: %w", err)
	}
	at := w.stamp()
	location := w.defaultLocation(within, tableUUID)
	if t.Location != "" {
		location = trimSlashes(t.Location)
	}
	doc, err := metadata.New(metadata.Create{
		UUID: tableUUID, Location: location, Schema: t.Schema, PartitionSpec: t.PartitionSpec,
		SortOrder: t.SortOrder, Properties: t.Properties, At: at,
	})
	if err != nil {
		return nil, metadataError(err)
	}
	own, err := w.place("location", doc.Location(), doc.Property)
	if err != nil {
		return nil, err
	}
	if t.Location != "" || len(own) > 1 {
		if err := w.requireUnoccupied(ctx, uuid.Nil, own); err != nil {
			return nil, err
		}
	}
	obj := w.newObject(KindTable, id, doc.UUID(), doc.Location(), at)
	if t.Stage {
		// DuckDB writes manifests there before the table exists.
		if d, ok := w.files.(interface{ MakeDirectory(location string) error }); ok {
			if err := d.MakeDirectory(metadataDir(doc.Location(), doc.Property)); err != nil {
				return nil, filesError(fmt.Errorf("make the metadata directory: %w", err))
			}
		}
		if err := w.recordStaged(ctx, m, obj, doc); err != nil {
			return nil, err
		}
		obj.Version = 0
		return &Table{Object: obj, Metadata: doc}, nil
	}
	if err := w.createObject(ctx, m, obj, doc, own, 0); err != nil {
		return nil, err
	}
	return w.created(ctx, obj.ID, doc)
}

// newObject prepares a row; its metadata location is filled in when the file
// has been written.
func (w *Warehouse) newObject(kind Kind, id Ident, objectUUID uuid.UUID, location string, at time.Time) Object {
	return Object{
		ID: uuid.Must(uuid.NewV7()), Warehouse: w.id, Kind: kind, Namespace: id.Namespace, Name: id.Name,
		UUID: objectUUID, Location: location, Version: 1, Protected: w.opts.ProtectByDefault, CreatedAt: at, UpdatedAt: at,
	}
}

// created returns the row as it was stored, with the metadata it points to.
func (w *Warehouse) created(ctx context.Context, id uuid.UUID, doc *metadata.Document) (*Table, error) {
	obj, err := w.store.ObjectByID(ctx, w.id, id)
	if err != nil {
		return nil, storeError(err)
	}
	return &Table{Object: obj, Metadata: doc}, nil
}

// requireFree refuses early, before anything is written, what the
// transaction would refuse late. It returns the namespace.
func (w *Warehouse) requireFree(ctx context.Context, id Ident, kind Kind) (NamespaceRecord, error) {
	obj, err := w.store.Object(ctx, w.id, id.Namespace, id.Name, kind)
	switch {
	case err == nil:
		return NamespaceRecord{}, nameTaken(id, kind, obj.Kind)
	case errors.Is(err, ErrNoObject):
		return w.LoadNamespace(ctx, id.Namespace)
	}
	return NamespaceRecord{}, storeError(err)
}

// recordStaged records the answer of a staged create for its key. Nothing
// else is stored: a staged table exists in the client alone.
func (w *Warehouse) recordStaged(ctx context.Context, m Mutation, obj Object, doc *metadata.Document) error {
	if m.Key == nil {
		return nil
	}
	return storeError(w.store.Update(ctx, func(tx Tx) error {
		return w.recordKey(ctx, tx, m, Replay{Status: 200, Staged: json.RawMessage(doc.Bytes())})
	}))
}

// createObject writes the first metadata file and inserts the row. The file
// is deleted again when the row could not be inserted.
func (w *Warehouse) createObject(ctx context.Context, m Mutation, obj Object, doc *metadata.Document, own placement, version int) error {
	file, digest, err := w.writeMetadata(ctx, doc, version)
	if err != nil {
		return err
	}
	obj.MetadataLocation, obj.MetadataDigest = file, digest
	err = w.store.Update(ctx, func(tx Tx) error {
		if err := w.insertObject(ctx, tx, obj, own); err != nil {
			return err
		}
		return w.record(ctx, tx, m, change{
			at: obj.CreatedAt, event: obj.Kind.String() + ".created", resource: obj.Ident().Resource(), namespace: obj.Namespace, object: obj,
			payload: map[string]any{"uuid": obj.UUID, "metadata-location": file},
			replay:  Replay{Status: 200, Object: obj.ID, MetadataLocation: file, MetadataDigest: digest},
		})
	})
	return w.settle(ctx, err, obj.ID, file)
}

// insertObject is CreateObject with this package's errors.
func (w *Warehouse) insertObject(ctx context.Context, tx Tx, obj Object, own placement) error {
	err := tx.CreateObject(ctx, obj, own.keys())
	switch {
	case errors.Is(err, ErrExists):
		return nameTaken(obj.Ident(), obj.Kind, w.holder(ctx, tx, obj.Ident(), obj.Kind))
	case errors.Is(err, ErrNoNamespace):
		return noNamespace(obj.Namespace)
	case errors.Is(err, ErrLocationTaken):
		return locationConflict(obj.Location)
	}
	return err
}

// settle decides what the end of a transaction means for metadata files
// written before it: kept when the pointer was moved or may have been,
// deleted when it surely was not. It returns the error for the caller.
func (w *Warehouse) settle(ctx context.Context, err error, object uuid.UUID, files ...string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnknownOutcome):
		// Reading back can prove that the change happened, never that it
		// did not: the store may still be working on the COMMIT.
		if w.pointsTo(ctx, object, files[0]) {
			return nil
		}
		w.observer.CommitAttempt("unknown")
		return storeError(err)
	}
	w.tidy.delete(w, files...)
	return storeError(err)
}

// pointsTo reports whether the object's current pointer is file.
func (w *Warehouse) pointsTo(ctx context.Context, object uuid.UUID, file string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	obj, err := w.store.ObjectByID(ctx, w.id, object)
	return err == nil && obj.MetadataLocation == file
}

// RegisterTable adds a table by the location of its metadata file, or with
// overwrite makes an existing one point to it.
func (w *Warehouse) RegisterTable(ctx context.Context, m Mutation, ns Namespace, name, metadataLocation string, overwrite bool) (*Table, error) {
	id := Ident{ns, name}
	if err := CheckName(name); err != nil {
		return nil, Errorf(BadRequest, "name: %s", err.Error())
	}
	if err := w.checkInside("metadata-location", metadataLocation); err != nil {
		return nil, err
	}
	existing, err := w.store.Object(ctx, w.id, ns, name, KindTable)
	switch {
	case errors.Is(err, ErrNoObject):
		if err := w.requireNamespace(ctx, ns); err != nil {
			return nil, err
		}
		overwrite = false
	case err != nil:
		return nil, storeError(err)
	case existing.Kind != KindTable || !overwrite:
		return nil, nameTaken(id, KindTable, existing.Kind)
	}
	raw, err := w.readForRegister(ctx, metadataLocation)
	if err != nil {
		return nil, err
	}
	doc, err := metadata.Parse(raw, metadata.Limits{})
	if err != nil {
		return nil, Errorf(BadRequest, "metadata-location: %s is not valid table metadata: %s", metadataLocation, err.Error())
	}
	own, err := w.place("metadata.location", doc.Location(), doc.Property)
	if err != nil {
		return nil, err
	}
	if err := w.requireUnoccupied(ctx, existing.ID, own); err != nil {
		return nil, err
	}
	if err := checkRegistered(doc, metadataLocation, own); err != nil {
		return nil, err
	}
	at := w.stamp()
	obj := w.newObject(KindTable, id, doc.UUID(), doc.Location(), at)
	obj.MetadataLocation, obj.MetadataDigest = metadataLocation, DigestOf(raw)
	if overwrite {
		obj.ID, obj.CreatedAt = existing.ID, existing.CreatedAt
	}
	err = w.store.Update(ctx, func(tx Tx) error {
		if overwrite {
			err := tx.ReplaceObject(ctx, existing.ID, existing.MetadataLocation, obj, own.keys())
			switch {
			case errors.Is(err, ErrStale):
				return Errorf(CommitFailed, "Table %s was changed concurrently; try again", id)
			case errors.Is(err, ErrLocationTaken):
				return locationConflict(obj.Location)
			case err != nil:
				return err
			}
			if w.watcher != nil {
				if err := w.watcher.Replaced(ctx, tx, m, at, existing, obj); err != nil {
					return err
				}
			}
		} else if err := w.insertObject(ctx, tx, obj, own); err != nil {
			return err
		}
		return w.record(ctx, tx, m, change{
			at: at, event: "table.registered", resource: id.Resource(), namespace: ns, object: obj,
			payload: map[string]any{"uuid": obj.UUID, "metadata-location": metadataLocation, "overwrite": overwrite},
			replay:  Replay{Status: 200, Object: obj.ID, MetadataLocation: metadataLocation, MetadataDigest: obj.MetadataDigest},
		})
	})
	if err != nil {
		// The file is the caller's: it stays whatever happened.
		return nil, storeError(err)
	}
	return w.created(ctx, obj.ID, doc)
}

// checkInside refuses a file outside the warehouse before it is read.
func (w *Warehouse) checkInside(field, file string) error {
	l, err := objstore.ParseFile(file)
	if err != nil {
		return Errorf(BadRequest, "%s: %s", field, err.Error())
	}
	if !slices.ContainsFunc(w.roots, func(root objstore.Location) bool { return root.Contains(l) }) {
		return Errorf(BadRequest, "%s: %s lies outside the warehouse %s", field, file, w.opts.Name)
	}
	return nil
}

// readForRegister reads a metadata file that a caller names: what is wrong
// with it is the caller's error.
func (w *Warehouse) readForRegister(ctx context.Context, file string) ([]byte, error) {
	raw, err := w.readMetadataFile(ctx, file)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, Errorf(BadRequest, "metadata-location: %s does not exist", file)
	case errors.Is(err, objstore.ErrTooLarge):
		return nil, Errorf(BadRequest, "metadata-location: %s is larger than %d bytes", file, maxMetadataBytes)
	case errors.Is(err, objstore.ErrInvalidGzip):
		return nil, Errorf(BadRequest, "metadata-location: %s is not valid gzip", file)
	}
	return raw, filesError(err)
}

// checkRegistered refuses metadata whose files lie elsewhere than with the
// table itself, and properties that no table may have.
func checkRegistered(doc *metadata.Document, metadataLocation string, own placement) error {
	if err := checkOwnFile("metadata-location", metadataLocation, own); err != nil {
		return err
	}
	if err := checkTableProperties("metadata.properties", doc.Properties()); err != nil {
		return err
	}
	for path, location := range doc.Locations() {
		if isFileReference(path) {
			if err := checkOwnFile("metadata."+path, location, own); err != nil {
				return err
			}
		}
	}
	return nil
}

// UnregisterTable forgets a table and leaves its files; it returns the last
// version. A commit that comes later finds no table.
func (w *Warehouse) UnregisterTable(ctx context.Context, m Mutation, id Ident) (*Table, error) {
	obj, err := w.lookup(ctx, id, KindTable)
	if err != nil {
		return nil, err
	}
	doc, err := w.TableMetadata(ctx, obj)
	if err != nil {
		return nil, err
	}
	at := w.stamp()
	for {
		var gone Object
		err := w.store.Update(ctx, func(tx Tx) error {
			var err error
			if gone, err = w.drop(ctx, tx, m, id, KindTable, at, time.Time{}, false); err != nil {
				return err
			}
			if gone.MetadataLocation != obj.MetadataLocation {
				return ErrStale // the answer must hold the last commit
			}
			return w.record(ctx, tx, m, change{
				at: at, event: "table.unregistered", resource: id.Resource(), namespace: id.Namespace, object: gone,
				payload: map[string]any{"uuid": gone.UUID, "metadata-location": gone.MetadataLocation},
				replay:  Replay{Status: 200, Object: gone.ID, MetadataLocation: gone.MetadataLocation, MetadataDigest: gone.MetadataDigest},
			})
		})
		if errors.Is(err, ErrStale) {
			obj = gone
			if doc, err = w.TableMetadata(ctx, obj); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, storeError(err)
		}
		return &Table{Object: gone, Metadata: doc}, nil
	}
}

// DropTable removes a table. With purge its files are deleted later by the
// server, durably and only inside the table's own locations; where the
// warehouse keeps dropped tables, when the time to restore it is over.
//
// A table with gc.enabled=false shares files with others: purging it is
// refused, as engines refuse it.
func (w *Warehouse) DropTable(ctx context.Context, m Mutation, id Ident, purge bool) error {
	if !purge {
		return w.dropObject(ctx, m, id, KindTable, nil)
	}
	for {
		obj, err := w.lookup(ctx, id, KindTable)
		if err != nil {
			return err
		}
		doc, err := w.TableMetadata(ctx, obj)
		if err != nil {
			if ReasonOf(err) == Unavailable {
				return err
			}
			return &Error{Reason: BadRequest, Cause: err, Message: fmt.Sprintf(
				"Cannot purge table %s: its metadata cannot be read, so what may be deleted is not known; drop it without purge (%s)", id, err.Error())}
		}
		if v, _ := doc.Property("gc.enabled"); strings.EqualFold(v, "false") {
			return Errorf(BadRequest, "Cannot purge table %s: gc.enabled is false, so its files may belong to other tables; drop it without purge", id)
		}
		if err := w.dropObject(ctx, m, id, KindTable, &obj); !errors.Is(err, ErrStale) {
			return err
		}
	}
}

// dropObject drops an object. With purge its files go, too, if the object is
// still at that version; ErrStale otherwise.
func (w *Warehouse) dropObject(ctx context.Context, m Mutation, id Ident, kind Kind, purge *Object) error {
	at := w.stamp()
	var expires time.Time
	if w.opts.SoftDelete > 0 {
		expires = at.Add(w.opts.SoftDelete)
	}
	err := w.store.Update(ctx, func(tx Tx) error {
		gone, err := w.drop(ctx, tx, m, id, kind, at, expires, purge != nil)
		if err != nil {
			return err
		}
		if purge != nil && (gone.ID != purge.ID || gone.file() != purge.file()) {
			return ErrStale // what was checked is not what would be deleted
		}
		payload := map[string]any{"uuid": gone.UUID, "metadata-location": gone.MetadataLocation, "purge": purge != nil}
		if !expires.IsZero() {
			payload["restorable-until"] = expires
		}
		return w.record(ctx, tx, m, change{
			at: at, event: kind.String() + ".dropped", resource: id.Resource(), namespace: id.Namespace, object: gone,
			payload: payload, replay: Replay{Status: 204},
		})
	})
	if errors.Is(err, ErrStale) {
		return err
	}
	return storeError(err)
}

// drop is Tx.DropObject with this package's errors.
func (w *Warehouse) drop(ctx context.Context, tx Tx, m Mutation, id Ident, kind Kind, at, expires time.Time, purge bool) (Object, error) {
	if err := w.dropping(ctx, tx, m, at, id, kind); err != nil {
		return Object{}, err
	}
	obj, err := tx.DropObject(ctx, w.id, kind, id, at, expires, purge)
	switch {
	case errors.Is(err, ErrNoObject):
		return Object{}, noObject(id, kind)
	case errors.Is(err, ErrProtected):
		return Object{}, Errorf(Forbidden, "%s is protected from being dropped; take the protection off first", id)
	}
	return obj, err
}

// RenameTable gives a table a new name, possibly in another namespace. Its
// files, and what may read them, stay the same.
func (w *Warehouse) RenameTable(ctx context.Context, m Mutation, from, to Ident) error {
	return w.rename(ctx, m, from, to, KindTable)
}

func (w *Warehouse) rename(ctx context.Context, m Mutation, from, to Ident, kind Kind) error {
	if err := CheckName(to.Name); err != nil {
		return Errorf(BadRequest, "destination.name: %s", err.Error())
	}
	at := w.stamp()
	return storeError(w.store.Update(ctx, func(tx Tx) error {
		obj, err := tx.RenameObject(ctx, w.id, kind, from, to, at)
		switch {
		case errors.Is(err, ErrNoObject):
			return noObject(from, kind)
		case errors.Is(err, ErrNoNamespace):
			return noNamespace(to.Namespace)
		case errors.Is(err, ErrExists):
			return Errorf(AlreadyExists, "Cannot rename %s to %s. %s already exists", from, to, title[w.holder(ctx, tx, to, kind)])
		case err != nil:
			return err
		}
		if w.watcher != nil {
			if err := w.watcher.Renamed(ctx, tx, m, at, from, obj); err != nil {
				return err
			}
		}
		return w.record(ctx, tx, m, change{
			at: at, event: kind.String() + ".renamed", resource: from.Resource(), namespace: to.Namespace, object: obj,
			payload: map[string]any{"uuid": obj.UUID, "from": from, "to": to}, replay: Replay{Status: 204},
		})
	}))
}

// ReportMetrics stores a report that a client sent about a scan or commit of
// a table.
func (w *Warehouse) ReportMetrics(ctx context.Context, c Caller, id Ident, reportType string, raw json.RawMessage) error {
	obj, err := w.lookup(ctx, id, KindTable)
	if err != nil {
		return err
	}
	if err := w.store.PutMetricsReports(ctx, []MetricsReport{{
		Time: w.stamp(), Warehouse: w.id, Object: obj.ID, Principal: c.Principal, Type: reportType, Report: raw,
	}}); err != nil {
		return storeError(err)
	}
	w.observer.MetricsReport(reportType, raw)
	return nil
}
