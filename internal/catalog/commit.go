// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/gzip"

	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/objstore"
)

// maxCommitAttempts bounds how often a commit is tried again when another
// replica has moved the pointer in between. Commits of one process to one
// table queue up and do not conflict.
const maxCommitAttempts = 20

// CommitTable applies updates to a table, or creates it when the
// requirements hold an assert-create. A commit whose requirements still hold
// after a concurrent one is applied to the newer version.
func (w *Warehouse) CommitTable(ctx context.Context, m Mutation, id Ident, c Commit) (*Table, error) {
	tables, err := w.commit(ctx, m, []TableChange{{Table: id, Commit: c}}, true)
	if err != nil {
		return nil, err
	}
	return tables[0], nil
}

// CommitTransaction commits to several tables, all or nothing. Each table
// may be named once.
func (w *Warehouse) CommitTransaction(ctx context.Context, m Mutation, changes []TableChange) error {
	seen := make(map[string]bool, len(changes))
	for i, c := range changes {
		key := c.Table.Namespace.Path() + Separator + c.Table.Name
		if seen[key] {
			return Errorf(BadRequest, "table-changes[%d].identifier: %s is named twice; put all of a table's updates in one change", i, c.Table)
		}
		seen[key] = true
	}
	_, err := w.commit(ctx, m, changes, false)
	return err
}

// commit is the one way in which tables change.
func (w *Warehouse) commit(ctx context.Context, m Mutation, changes []TableChange, single bool) ([]*Table, error) {
	for _, c := range changes {
		if err := checkUpdates(c.Updates); err != nil {
			return nil, err
		}
	}
	unlock, err := w.lockTables(ctx, changes)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for attempt := 1; ; attempt++ {
		tables, err := w.tryCommit(ctx, m, changes, single)
		switch {
		case err == nil:
			return tables, nil
		case !errors.Is(err, ErrStale):
			return nil, storeError(err)
		}
		w.observer.CommitAttempt("conflict")
		if attempt == maxCommitAttempts {
			return nil, Errorf(CommitFailed, "The table was changed concurrently %d times in a row; try again", attempt)
		}
	}
}

// lockTables makes commits of this process to the same tables wait for each
// other, in name order, so that they do not do the same work in vain. It is
// no part of correctness: the transaction compares and swaps.
func (w *Warehouse) lockTables(ctx context.Context, changes []TableChange) (unlock func(), err error) {
	keys := make([]string, len(changes))
	for i, c := range changes {
		keys[i] = c.Table.Namespace.Path() + Separator + c.Table.Name
	}
	slices.Sort(keys)
	held := make([]func(), 0, len(keys))
	unlock = func() {
		for _, f := range slices.Backward(held) {
			f()
		}
	}
	for _, key := range keys {
		f, err := w.locks.lock(ctx, key)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, f)
	}
	return unlock, nil
}

// prepared is one table's change, ready to be put in place.
type prepared struct {
	id      Ident
	current Object             // zero when the table is created
	before  *metadata.Document // nil when the table is created
	after   *metadata.Document
	object  Object // as it will be
	own     placement
	added   placement // locations to reserve in addition
	file    string    // "" when nothing changes
	// repeated is why the change would be refused, were it not the repetition of
	// one that was applied.
	repeated error
}

// tryCommit checks and applies all changes against the current versions,
// writes the metadata files, and moves all pointers in one transaction.
// ErrStale means that a pointer moved in between and nothing was changed.
func (w *Warehouse) tryCommit(ctx context.Context, m Mutation, changes []TableChange, single bool) (tables []*Table, err error) {
	at := w.stamp()
	all := make([]*prepared, 0, len(changes))
	for i, c := range changes {
		p, err := w.prepare(ctx, c, at)
		if err != nil {
			if !single {
				err = inChange(err, i, c.Table)
			}
			return nil, err
		}
		all = append(all, p)
	}
	if err := repeatedInPart(all); err != nil {
		w.observer.CommitAttempt("requirement-failed")
		return nil, err
	}
	written, err := w.writeAll(ctx, all)
	if err != nil {
		w.tidy.delete(w, written...)
		return nil, err
	}
	// One order for all replicas, so that row locks cannot cross.
	ordered := slices.SortedFunc(slices.Values(all), func(a, b *prepared) int {
		return cmp.Compare(a.object.ID.String(), b.object.ID.String())
	})
	err = w.store.Update(ctx, func(tx Tx) error {
		for _, p := range ordered {
			if err := w.put(ctx, tx, p, at); err != nil {
				return err
			}
		}
		return w.recordCommit(ctx, tx, m, all, at, single)
	})
	if err != nil {
		if len(written) == 0 {
			return nil, err
		}
		last := all[slices.IndexFunc(all, func(p *prepared) bool { return p.file != "" })]
		switch {
		case !errors.Is(err, ErrUnknownOutcome):
			w.tidy.delete(w, written...)
			return nil, err
		case !w.pointsTo(ctx, last.object.ID, last.file):
			w.observer.CommitAttempt("unknown")
			return nil, err
		}
	}
	for _, p := range all {
		tables = append(tables, w.committed(p))
	}
	return tables, nil
}

// repeatedInPart refuses a transaction that would be applied in part: when one
// of its changes is a repetition, the others must have nothing to do either.
func repeatedInPart(all []*prepared) error {
	i := slices.IndexFunc(all, func(p *prepared) bool { return p.repeated != nil })
	if i >= 0 && slices.ContainsFunc(all, func(p *prepared) bool { return p.after != p.before }) {
		return all[i].repeated
	}
	return nil
}

// inChange says which part of a transaction an error is about.
func inChange(err error, i int, id Ident) error {
	var e *Error
	if errors.As(err, &e) && e.Reason == BadRequest {
		return &Error{Reason: e.Reason, Message: fmt.Sprintf("table-changes[%d] (%s): %s", i, id, e.Message), Cause: e.Cause}
	}
	return err
}

// prepare reads the current version of a table, checks the requirements
// against it and applies the updates.
func (w *Warehouse) prepare(ctx context.Context, c TableChange, at time.Time) (*prepared, error) {
	obj, err := w.store.Object(ctx, w.id, c.Table.Namespace, c.Table.Name, KindTable)
	switch {
	case errors.Is(err, ErrNoObject):
		return w.prepareCreate(ctx, c, at)
	case err != nil:
		return nil, err
	case obj.Kind != KindTable:
		if createsTable(c.Requirements) {
			return nil, nameTaken(c.Table, KindTable, obj.Kind)
		}
		return nil, noObject(c.Table, KindTable)
	}
	before, err := w.TableMetadata(ctx, obj)
	if err != nil {
		return nil, err
	}
	p := &prepared{id: c.Table, current: obj, before: before, after: before, object: obj}
	if err := before.Check(c.Requirements); err != nil {
		if before.Repeats(c.Requirements, c.Updates) {
			p.repeated = metadataError(err)
			return p, nil
		}
		w.observer.CommitAttempt("requirement-failed")
		return nil, metadataError(err)
	}
	after, changed, err := before.Apply(c.Updates, metadata.ApplyOptions{
		At: at, PreviousMetadataLocation: obj.MetadataLocation,
	})
	if err != nil {
		if before.Repeats(c.Requirements, c.Updates) {
			p.repeated = metadataError(err)
			return p, nil
		}
		return nil, metadataError(err)
	}
	if !changed {
		return p, nil
	}
	p.after = after
	return p, w.placeCommit(ctx, p, c.Updates)
}

// placeCommit checks where the new version of a table says its files are.
func (w *Warehouse) placeCommit(ctx context.Context, p *prepared, updates []metadata.Update) error {
	moved := trimSlashes(p.after.Location()) != trimSlashes(p.current.Location) || changesPaths(p.before, p.after)
	if base, err := objstore.ParseLocation(p.current.Location); err == nil && !moved && !hasPaths(p.after) && checkUpdateFiles(updates, placement{{Location: base}}) == nil {
		p.own = placement{{Location: base}} // the usual case needs no query
		return nil
	}
	reserved, err := w.store.Locations(ctx, p.current.ID)
	if err != nil {
		return err
	}
	for _, s := range reserved {
		l, err := objstore.ParseLocation(s)
		if err != nil {
			return fmt.Errorf("reserved location of %s: %w", p.id, err)
		}
		p.own = append(p.own, place{Location: l})
	}
	if moved {
		next, err := w.place("location", p.after.Location(), p.after.Property)
		if err != nil {
			return err
		}
		for _, l := range next {
			if !p.own.contains(l.Location) {
				p.added = append(p.added, l)
			}
		}
		if len(p.added) > 0 {
			if err := w.requireUnoccupied(ctx, p.current.ID, p.added); err != nil {
				return err
			}
		}
		p.own = append(p.own, p.added...)
	}
	p.object.Location = p.after.Location()
	return checkUpdateFiles(updates, p.own)
}

// prepareCreate builds a table that does not exist from a commit that
// asserts so.
func (w *Warehouse) prepareCreate(ctx context.Context, c TableChange, at time.Time) (*prepared, error) {
	if !createsTable(c.Requirements) {
		return nil, noObject(c.Table, KindTable)
	}
	if err := CheckName(c.Table.Name); err != nil {
		return nil, Errorf(BadRequest, "name: %s", err.Error())
	}
	within, err := w.LoadNamespace(ctx, c.Table.Namespace)
	if err != nil {
		return nil, err
	}
	var none *metadata.Document
	if err := none.Check(c.Requirements); err != nil {
		w.observer.CommitAttempt("requirement-failed")
		return nil, metadataError(err)
	}
	tableUUID, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("make table uuid: %w", err)
	}
	after, err := metadata.CreateFromUpdates(c.Updates, metadata.CreateOptions{
		At: at, DefaultUUID: tableUUID, DefaultLocation: w.defaultLocation(within, tableUUID),
	})
	if err != nil {
		return nil, metadataError(err)
	}
	p := &prepared{id: c.Table, after: after, object: w.newObject(KindTable, c.Table, after.UUID(), after.Location(), at)}
	if p.own, err = w.place("location", after.Location(), after.Property); err != nil {
		return nil, err
	}
	if err := w.requireUnoccupied(ctx, uuid.Nil, p.own); err != nil {
		return nil, err
	}
	return p, checkUpdateFiles(c.Updates, p.own)
}

// createsTable reports whether the requirements hold an assert-create.
func createsTable(requirements []metadata.Requirement) bool {
	return slices.ContainsFunc(requirements, func(r metadata.Requirement) bool { return r.IsAssertCreate() })
}

// checkUpdates refuses what no table may be told, before anything is read.
func checkUpdates(updates []metadata.Update) error {
	for i, u := range updates {
		if set, ok := u.SetProperties(); ok {
			if err := checkTableProperties(fmt.Sprintf("updates[%d].updates", i), set); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkUpdateFiles refuses files of new snapshots and statistics that lie
// outside the table.
func checkUpdateFiles(updates []metadata.Update, own placement) error {
	for i, u := range updates {
		for field, file := range u.Files() {
			if err := checkOwnFile(fmt.Sprintf("updates[%d].%s", i, field), file, own); err != nil {
				return err
			}
		}
	}
	return nil
}

// changesPaths reports whether a path property differs between versions.
func changesPaths(before, after *metadata.Document) bool {
	return slices.ContainsFunc(pathProperties, func(key string) bool {
		b, inBefore := before.Property(key)
		a, inAfter := after.Property(key)
		return inBefore != inAfter || a != b
	})
}

// hasPaths reports whether a table's files lie elsewhere than below its base.
func hasPaths(doc *metadata.Document) bool {
	return slices.ContainsFunc(pathProperties, func(key string) bool {
		_, ok := doc.Property(key)
		return ok
	})
}

// isFileReference reports whether a path of Document.Locations names a file
// of the table, rather than a directory.
func isFileReference(path string) bool {
	return path != "location" && !strings.HasPrefix(path, "properties.")
}

// writeAll writes the new metadata files of a commit and returns those that
// were written, also when it fails in the middle.
func (w *Warehouse) writeAll(ctx context.Context, all []*prepared) (written []string, err error) {
	for _, p := range all {
		if p.after == p.before {
			continue
		}
		version := 0
		if p.before != nil {
			version = metadataVersion(p.current.MetadataLocation) + 1
		}
		if p.file, p.object.MetadataDigest, err = w.writeMetadata(ctx, p.after, version); err != nil {
			return written, err
		}
		written = append(written, p.file)
		p.object.MetadataLocation = p.file
	}
	return written, nil
}

// put moves one table's pointer, or inserts its row.
func (w *Warehouse) put(ctx context.Context, tx Tx, p *prepared, at time.Time) error {
	switch {
	case p.before == nil:
		err := w.insertObject(ctx, tx, p.object, p.own)
		if ReasonOf(err) == AlreadyExists {
			// Created concurrently: the assert-create no longer holds.
			return Errorf(CommitFailed, "Requirement failed: table already exists: %s", p.id)
		}
		return err
	case p.file == "":
		// Nothing changes here, but the rest of the transaction rests on
		// this version: it must still be the current one.
		obj, err := tx.ObjectByID(ctx, w.id, p.current.ID)
		if err == nil && (obj.MetadataLocation != p.current.MetadataLocation || !obj.DroppedAt.IsZero()) || errors.Is(err, ErrNoObject) {
			return ErrStale
		}
		return err
	}
	err := tx.SwapMetadata(ctx, p.current.ID, p.current.MetadataLocation, p.file, p.object.MetadataDigest, p.object.Location, p.added.keys(), at)
	if errors.Is(err, ErrLocationTaken) {
		return locationConflict(p.object.Location)
	}
	return err
}

// recordCommit writes events and audit rows for all tables and one
// idempotency record.
func (w *Warehouse) recordCommit(ctx context.Context, tx Tx, m Mutation, all []*prepared, at time.Time, single bool) error {
	key := m.Key
	m.Key = nil
	for _, p := range all {
		if p.file == "" {
			continue
		}
		event := "table.committed"
		if p.before == nil {
			event = "table.created"
		}
		payload := map[string]any{"uuid": p.object.UUID, "metadata-location": p.file}
		if p.before != nil {
			payload["previous-metadata-location"] = p.current.MetadataLocation
		}
		if err := w.record(ctx, tx, m, change{
			at: at, event: event, resource: p.id.Resource(), namespace: p.id.Namespace, object: p.object, payload: payload,
		}); err != nil {
			return err
		}
	}
	m.Key = key
	replay := Replay{Status: 204}
	if single {
		replay = Replay{Status: 200, Object: all[0].object.ID, MetadataLocation: all[0].object.MetadataLocation, MetadataDigest: all[0].object.MetadataDigest}
	}
	return w.recordKey(ctx, tx, m, replay)
}

// committed puts the new version in the cache in place of the one it
// replaced, which few will ask for again, and clears old files away where the
// table asks for it.
func (w *Warehouse) committed(p *prepared) *Table {
	obj := p.object
	if p.file == "" {
		w.observer.CommitAttempt("unchanged")
		return &Table{Object: obj, Metadata: p.after}
	}
	w.observer.CommitAttempt("committed")
	if p.before == nil {
		w.cache.tables.Set(obj.file(), p.after)
	} else {
		w.cache.replace(p.current.file(), p.before.Size(), obj.file(), p.after)
		obj.Version++
		if v, _ := p.after.Property("write.metadata.delete-after-commit.enabled"); strings.EqualFold(v, "true") {
			stale := p.before.DroppedMetadataFiles(p.after)
			stale = slices.DeleteFunc(stale, func(file string) bool { return checkOwnFile("", file, p.own) != nil })
			w.tidy.delete(w, stale...)
		}
	}
	return &Table{Object: obj, Metadata: p.after}
}

// defaultLocation is where a new object lies unless its creator says
// otherwise: <warehouse>/<uuid>, or <location>/<uuid> in a namespace that was
// given a location. Made by the server, so that no name ever reaches a path.
func (w *Warehouse) defaultLocation(within NamespaceRecord, id uuid.UUID) string {
	parent, ok := within.Properties[locationProperty]
	if !ok {
		parent = w.root.String()
	}
	return trimSlashes(parent) + "/" + id.String()
}

// trimSlashes takes trailing slashes off a location, but never the two of a
// scheme.
func trimSlashes(location string) string {
	for strings.HasSuffix(location, "/") && !strings.HasSuffix(location, "://") {
		location = strings.TrimSuffix(location, "/")
	}
	return location
}

// writeMetadata writes a new metadata file and returns its location and
// digest:
// <metadata dir>/<version>-<random uuid>[.gz].metadata.json, as every other
// Iceberg implementation names them.
func (w *Warehouse) writeMetadata(ctx context.Context, doc *metadata.Document, version int) (string, Digest, error) {
	data := doc.Bytes()
	digest := DigestOf(data)
	suffix := ".metadata.json"
	switch codec, _ := doc.Property("write.metadata.compression-codec"); strings.ToLower(codec) {
	case "", "none":
	case "gzip":
		var buf bytes.Buffer
		zw := gzip.NewWriter(&buf)
		if _, err := zw.Write(data); err != nil {
			return "", Digest{}, fmt.Errorf("compress metadata: %w", err)
		}
		if err := zw.Close(); err != nil {
			return "", Digest{}, fmt.Errorf("compress metadata: %w", err)
		}
		data, suffix = buf.Bytes(), ".gz.metadata.json"
	default:
		return "", Digest{}, Errorf(BadRequest, "properties.write.metadata.compression-codec: %q is not known; use none or gzip", codec)
	}
	file, err := w.writeNumbered(ctx, metadataDir(doc.Location(), doc.Property), version, suffix, data)
	return file, digest, err
}

// writeNumbered writes <dir>/<version>-<random uuid><suffix>.
func (w *Warehouse) writeNumbered(ctx context.Context, dir string, version int, suffix string, data []byte) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("name metadata file: %w", err)
	}
	file := fmt.Sprintf("%s/%05d-%s%s", dir, version, id, suffix)
	if err := w.files.WriteNew(ctx, file, data); err != nil {
		return "", filesError(fmt.Errorf("write metadata file %s: %w", file, err))
	}
	return file, nil
}

// metadataDir is the directory of metadata files: write.metadata.path, or
// "metadata" below the base location.
func metadataDir(location string, property func(string) (string, bool)) string {
	if dir, ok := property("write.metadata.path"); ok && dir != "" {
		return trimSlashes(dir)
	}
	return trimSlashes(location) + "/metadata"
}

// metadataVersion reads the number in front of a metadata file's name; -1
// when it has none (then the next file is number 0, as Java does).
func metadataVersion(file string) int {
	name := path.Base(file)
	digits, _, ok := strings.Cut(name, "-")
	if !ok {
		return -1
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// metadataError turns a failure of package metadata into an Error.
func metadataError(err error) error {
	var failed *metadata.RequirementFailedError
	var stale *metadata.StaleError
	switch {
	case errors.As(err, &failed):
		return &Error{Reason: CommitFailed, Message: failed.Error()}
	case errors.As(err, &stale):
		return &Error{Reason: CommitFailed, Message: stale.Error()}
	case errors.Is(err, metadata.ErrInvalid):
		return &Error{Reason: BadRequest, Message: err.Error()}
	}
	return err
}

// tidier deletes files that nothing refers to, after the answer is sent.
// What it misses is an unreferenced file, never a missing one.
type tidier struct {
	wg sync.WaitGroup
}

// delete starts deleting files. A failure is logged: the file is garbage.
func (t *tidier) delete(w *Warehouse, files ...string) {
	if len(files) == 0 {
		return
	}
	t.wg.Go(func() {
		for _, file := range files {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			if err := w.files.Delete(ctx, file); err != nil {
				w.log.Warn("delete unreferenced metadata file", "file", file, "error", err)
			}
			cancel()
		}
	})
}

func (t *tidier) wait() { t.wg.Wait() }
