// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/objstore"
)

const schema = `{"type":"struct","fields":[{"id":1,"name":"x","required":true,"type":"long"},{"id":2,"name":"y","required":false,"type":"string"}]}`

var ns = catalog.Namespace{"m"}

// house is a warehouse on SQLite and local files, with what tests want to
// reach behind its back.
type house struct {
	*catalog.Warehouse
	store  catalog.Store
	bucket *objstore.Bucket
	root   string // location
	dir    string // the same as a path
	clock  *atomic.Int64
}

type change func(*catalog.Config)

func open(t *testing.T, changes ...change) *house {
	t.Helper()
	dir := t.TempDir()
	store, err := sqlite.Open(t.Context(), filepath.Join(dir, "catalog.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return openOn(t, store, filepath.Join(dir, "w"), changes...)
}

func openOn(t *testing.T, store catalog.Store, dir string, changes ...change) *house {
	t.Helper()
	h := &house{store: store, dir: dir, root: "file://" + dir, clock: new(atomic.Int64)}
	bucket, err := objstore.Open(t.Context(), objstore.Profile{Type: objstore.TypeFile, Root: h.root}, objstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.bucket = bucket
	cfg := catalog.Config{
		Options: catalog.Options{Name: "demo"}, Root: h.root, Store: store, Files: bucket,
		Now: func() time.Time { return time.Now().Add(time.Duration(h.clock.Load())) },
	}
	for _, c := range changes {
		c(&cfg)
	}
	if h.Warehouse, err = catalog.OpenWarehouse(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(); bucket.Close() })
	_, err = h.CreateNamespace(t.Context(), catalog.Mutation{}, ns, nil)
	if err != nil && catalog.ReasonOf(err) != catalog.AlreadyExists {
		t.Fatal(err)
	}
	return h
}

func (h *house) create(t *testing.T, name string) *catalog.Table {
	t.Helper()
	table, err := h.CreateTable(t.Context(), catalog.Mutation{}, ns, catalog.NewTable{Name: name, Schema: json.RawMessage(schema)})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func id(name string) catalog.Ident { return catalog.Ident{Namespace: ns, Name: name} }

func updates(t testing.TB, format string, args ...any) []metadata.Update {
	t.Helper()
	u, err := metadata.DecodeUpdates(json.RawMessage(fmt.Sprintf(format, args...)))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func requirements(t testing.TB, format string, args ...any) []metadata.Requirement {
	t.Helper()
	r, err := metadata.DecodeRequirements(json.RawMessage(fmt.Sprintf(format, args...)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files returns the names of all files of the warehouse.
func (h *house) files(t *testing.T) []string {
	t.Helper()
	h.Close() // what is being tidied is tidied
	var all []string
	err := filepath.WalkDir(h.dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, strings.TrimPrefix(p, h.dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func wantReason(t *testing.T, err error, want catalog.Reason, part string) {
	t.Helper()
	if catalog.ReasonOf(err) != want || err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("got %v (reason %d), want reason %d with %q", err, catalog.ReasonOf(err), want, part)
	}
}

func TestTableLife(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	table := h.create(t, "t")
	if want := h.root + "/" + table.Object.UUID.String(); table.Object.Location != want || table.Metadata.Location() != want {
		t.Errorf("location %s, want %s", table.Object.Location, want)
	}
	if table.Metadata.UUID() != table.Object.UUID {
		t.Error("the row and the metadata have different UUIDs")
	}
	_, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema)})
	wantReason(t, err, catalog.AlreadyExists, "Table already exists: m.t")
	_, err = h.CreateTable(ctx, catalog.Mutation{}, catalog.Namespace{"none"}, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema)})
	wantReason(t, err, catalog.NoSuchNamespace, "Namespace does not exist: none")

	next, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{
		Requirements: requirements(t, `[{"type":"assert-table-uuid","uuid":%q}]`, table.Object.UUID),
		Updates:      updates(t, `[{"action":"set-properties","updates":{"owner":"a"}}]`),
	})
	if err != nil {
		t.Fatal(err)
	}
	row, err := h.LookupTable(ctx, id("t"))
	if err != nil || row.MetadataLocation != next.Object.MetadataLocation || row.Version != 2 || next.Object.Version != 2 {
		t.Errorf("row %+v after commit %+v, %v", row, next.Object, err)
	}
	doc, err := h.TableMetadata(ctx, row)
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := doc.Property("owner"); v != "a" {
		t.Errorf("owner is %q", v)
	}
	if log := doc.MetadataLog(); len(log) != 1 || log[0].File != table.Object.MetadataLocation {
		t.Errorf("metadata log %+v", log)
	}
	if base := filepath.Base(row.MetadataLocation); !strings.HasPrefix(base, "00001-") {
		t.Errorf("second metadata file is called %s", base)
	}

	// What changes nothing writes nothing.
	same, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"owner":"a"}}]`)})
	if err != nil || same.Object.MetadataLocation != row.MetadataLocation {
		t.Errorf("a commit without effect moved the pointer: %v", err)
	}

	_, err = h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{
		Requirements: requirements(t, `[{"type":"assert-table-uuid","uuid":%q}]`, uuid.New()),
		Updates:      updates(t, `[{"action":"set-properties","updates":{"owner":"b"}}]`),
	})
	wantReason(t, err, catalog.CommitFailed, "Requirement failed")
	_, err = h.CommitTable(ctx, catalog.Mutation{}, id("u"), catalog.Commit{})
	wantReason(t, err, catalog.NoSuchTable, "Table does not exist: m.u")
	if files := h.files(t); len(files) != 2 {
		t.Errorf("files %v, want the two metadata files", files)
	}

	if err := h.RenameTable(ctx, catalog.Mutation{}, id("t"), id("u")); err != nil {
		t.Fatal(err)
	}
	_, err = h.LookupTable(ctx, id("t"))
	wantReason(t, err, catalog.NoSuchTable, "")
	moved, err := h.LookupTable(ctx, id("u"))
	if err != nil || moved.Location != row.Location || moved.ID != row.ID {
		t.Errorf("after rename: %+v, %v", moved, err)
	}
	if err := h.DropTable(ctx, catalog.Mutation{}, id("u"), false); err != nil {
		t.Fatal(err)
	}
	wantReason(t, h.DropTable(ctx, catalog.Mutation{}, id("u"), false), catalog.NoSuchTable, "m.u")
	if files := h.files(t); len(files) != 2 {
		t.Errorf("a drop without purge removed files: %v", files)
	}
	if err := h.DropNamespace(ctx, catalog.Mutation{}, ns); err != nil {
		t.Errorf("the namespace is empty: %v", err)
	}
}

func TestStagedCreate(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	staged, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema), Stage: true})
	if err != nil {
		t.Fatal(err)
	}
	if staged.Object.MetadataLocation != "" || len(h.files(t)) != 0 {
		t.Errorf("staging stored something: %q, %v", staged.Object.MetadataLocation, h.files(t))
	}
	if s, err := os.Stat(strings.TrimPrefix(staged.Object.Location, "file://") + "/metadata"); err != nil || !s.IsDir() {
		t.Errorf("no directory for the manifests of the first commit: %v", err)
	}
	_, err = h.LookupTable(ctx, id("t"))
	wantReason(t, err, catalog.NoSuchTable, "")
	commit := catalog.Commit{
		Requirements: requirements(t, `[{"type":"assert-create"}]`),
		Updates: updates(t, `[{"action":"assign-uuid","uuid":%q},{"action":"upgrade-format-version","format-version":2},
			{"action":"add-schema","schema":%s},{"action":"set-current-schema","schema-id":-1},{"action":"add-spec","spec":{"fields":[]}},
			{"action":"set-default-spec","spec-id":-1},{"action":"add-sort-order","sort-order":{"order-id":0,"fields":[]}},
			{"action":"set-default-sort-order","sort-order-id":-1},{"action":"set-location","location":%q}]`,
			staged.Object.UUID, schema, staged.Object.Location),
	}
	table, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), commit)
	if err != nil {
		t.Fatal(err)
	}
	if table.Object.UUID != staged.Object.UUID || table.Object.Location != staged.Object.Location {
		t.Errorf("created %+v from staged %+v", table.Object, staged.Object)
	}
	_, err = h.CommitTable(ctx, catalog.Mutation{}, id("t"), commit)
	wantReason(t, err, catalog.CommitFailed, "Requirement failed")
}

// TestConcurrentWriters runs ten writers over two replicas that share the
// store but no memory. Every acknowledged commit must be in the history.
func TestConcurrentWriters(t *testing.T) {
	t.Parallel()
	a := open(t)
	b := openOn(t, a.store, a.dir)
	table := a.create(t, "t")
	const writers, each = 10, 10
	var wg sync.WaitGroup
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	for writer := range writers {
		h := []*house{a, b}[writer%2]
		wg.Go(func() {
			for n := range each {
				key := fmt.Sprintf("w%d-%d", writer, n)
				_, err := h.CommitTable(t.Context(), catalog.Mutation{}, id("t"), catalog.Commit{
					Requirements: requirements(t, `[{"type":"assert-table-uuid","uuid":%q}]`, table.Object.UUID),
					Updates:      updates(t, `[{"action":"set-properties","updates":{%q:"1"}}]`, key),
				})
				switch {
				case err == nil:
					mu.Lock()
					acknowledged[key] = true
					mu.Unlock()
				case catalog.ReasonOf(err) != catalog.CommitFailed:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	row, err := a.LookupTable(t.Context(), id("t"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := a.TableMetadata(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	for key := range acknowledged {
		if _, ok := doc.Property(key); !ok {
			t.Errorf("acknowledged commit %s is lost", key)
		}
	}
	if len(acknowledged) < writers*each/2 || int(row.Version) != len(acknowledged)+1 {
		t.Errorf("%d acknowledged, version %d", len(acknowledged), row.Version)
	}
	b.Close()
	if files := a.files(t); len(files) != len(acknowledged)+1 {
		t.Errorf("%d files for %d versions: orphans were left", len(files), row.Version)
	}
}

func TestTransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	first, second := h.create(t, "a"), h.create(t, "b")
	set := func(name, key string, reqs []metadata.Requirement) catalog.TableChange {
		return catalog.TableChange{Table: id(name), Commit: catalog.Commit{Requirements: reqs, Updates: updates(t, `[{"action":"set-properties","updates":{%q:"1"}}]`, key)}}
	}
	err := h.CommitTransaction(ctx, catalog.Mutation{}, []catalog.TableChange{
		set("a", "k", nil), set("b", "k", requirements(t, `[{"type":"assert-table-uuid","uuid":%q}]`, uuid.New())),
	})
	wantReason(t, err, catalog.CommitFailed, "Requirement failed")
	err = h.CommitTransaction(ctx, catalog.Mutation{}, []catalog.TableChange{set("a", "k", nil), set("none", "k", nil)})
	wantReason(t, err, catalog.NoSuchTable, "m.none")
	err = h.CommitTransaction(ctx, catalog.Mutation{}, []catalog.TableChange{set("a", "k", nil), set("a", "l", nil)})
	wantReason(t, err, catalog.BadRequest, "named twice")
	for _, table := range []*catalog.Table{first, second} {
		row, err := h.LookupTable(ctx, table.Object.Ident())
		if err != nil || row.MetadataLocation != table.Object.MetadataLocation {
			t.Errorf("%s moved although the transaction failed: %v", table.Object.Ident(), err)
		}
	}
	if files := h.files(t); len(files) != 2 {
		t.Errorf("failed transactions left %v", files)
	}
	if err := h.CommitTransaction(ctx, catalog.Mutation{}, []catalog.TableChange{set("b", "k", nil), set("a", "k", nil)}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if row, err := h.LookupTable(ctx, id(name)); err != nil || row.Version != 2 {
			t.Errorf("%s has version %d, %v", name, row.Version, err)
		}
	}
}

// faulty lets a test decide how transactions end.
type faulty struct {
	catalog.Store
	before func() error // instead of the transaction
	after  func() error // instead of its success
}

func (f *faulty) Update(ctx context.Context, fn func(catalog.Tx) error) error {
	if f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	err := f.Store.Update(ctx, fn)
	if err == nil && f.after != nil {
		return f.after()
	}
	return err
}

func TestOutcomeOfFailedTransactions(t *testing.T) {
	t.Parallel()
	base := open(t)
	f := &faulty{Store: base.store}
	h := openOn(t, f, base.dir)
	ctx := t.Context()
	h.create(t, "t")
	commit := func(key string) (*catalog.Table, error) {
		return h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{%q:"1"}}]`, key)})
	}

	// The store could not be reached: surely nothing happened.
	f.before = func() error { return fmt.Errorf("%w: down", catalog.ErrUnavailable) }
	_, err := commit("a")
	wantReason(t, err, catalog.Unavailable, "")
	_, err = h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "u", Schema: json.RawMessage(schema)})
	wantReason(t, err, catalog.Unavailable, "")
	if files := h.files(t); len(files) != 1 {
		t.Errorf("unreferenced files left: %v", files)
	}

	// COMMIT failed, and it had not happened when we looked: unknown, so the
	// file must stay.
	f.before = func() error { return fmt.Errorf("%w: lost", catalog.ErrUnknownOutcome) }
	_, err = commit("b")
	wantReason(t, err, catalog.CommitStateUnknown, "")
	if files := h.files(t); len(files) != 2 {
		t.Errorf("a file that a commit in flight may need was removed: %v", files)
	}

	// COMMIT succeeded and its answer was lost: reading back proves it.
	f.before, f.after = nil, func() error { return fmt.Errorf("%w: lost", catalog.ErrUnknownOutcome) }
	table, err := commit("c")
	if err != nil || table.Object.Version != 2 {
		t.Errorf("a commit that happened was answered with %v", err)
	}
	if _, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "u", Schema: json.RawMessage(schema)}); err != nil {
		t.Errorf("a create that happened was answered with %v", err)
	}
}

// TestRepeatedSnapshot is the client that lost the answer to its commit and
// has no Idempotency-Key: it must not be told to delete its files.
func TestRepeatedSnapshot(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	table := h.create(t, "t")
	list := table.Object.Location + "/metadata/snap-7.avro"
	commit := catalog.Commit{
		Requirements: requirements(t, `[{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":null}]`),
		Updates: updates(t, `[{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":1,"timestamp-ms":%d,"manifest-list":%q,"summary":{"operation":"append"},"schema-id":0}},
			{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":7}]`, time.Now().UnixMilli(), list),
	}
	first, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), commit)
	if err != nil {
		t.Fatal(err)
	}
	again, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), commit)
	if err != nil || again.Object.MetadataLocation != first.Object.MetadataLocation {
		t.Errorf("the repetition was answered with %v", err)
	}
	other := commit
	other.Updates = updates(t, `[{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":2,"timestamp-ms":%d,"manifest-list":%q,"summary":{"operation":"append"},"schema-id":0}}]`,
		time.Now().UnixMilli(), table.Object.Location+"/metadata/other.avro")
	_, err = h.CommitTable(ctx, catalog.Mutation{}, id("t"), other)
	wantReason(t, err, catalog.CommitFailed, "Requirement failed")
}

func TestLocations(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	victim := h.create(t, "v").Object
	mine := h.create(t, "mine").Object
	before := h.files(t)
	create := func(location string, properties map[string]string, stage bool) error {
		_, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "x", Schema: json.RawMessage(schema), Location: location, Properties: properties, Stage: stage})
		return err
	}
	parent := h.root[:strings.LastIndex(h.root, "/")]
	for location, want := range map[string]catalog.Reason{
		victim.Location:                          catalog.Forbidden,
		victim.Location + "/":                    catalog.Forbidden,
		victim.Location + "/data":                catalog.Forbidden,
		h.root:                                   catalog.Forbidden,
		h.root + "/":                             catalog.Forbidden,
		parent:                                   catalog.Forbidden,
		h.root + "/_governed/x":                  catalog.Forbidden,
		h.root + "/a/../" + victim.UUID.String(): catalog.BadRequest,
		h.root + "/./a":                          catalog.BadRequest,
		h.root + "//a":                           catalog.BadRequest,
		h.root + "/%2e%2e/a":                     catalog.BadRequest,
		h.root + "/..%2fa":                       catalog.BadRequest,
		h.root + `/a\..\b`:                       catalog.BadRequest,
		h.root + "/a*":                           catalog.BadRequest,
		h.root + "/a?b":                          catalog.BadRequest,
		h.root + "/a'b":                          catalog.BadRequest,
		h.root + "/é":                            catalog.BadRequest,
		h.root + "/" + strings.Repeat("a", 600):  catalog.BadRequest,
		"file:///etc/passwd":                     catalog.BadRequest,
		"http://169.254.169.254/latest":          catalog.BadRequest,
		"gs://b/x":                               catalog.BadRequest,
		"s3://other/x":                           catalog.BadRequest,
		"relative":                               catalog.BadRequest,
		"file://host" + h.dir + "/x":             catalog.BadRequest,
		strings.Replace(h.root, "file:///", "FILE:///", 1) + "/x": catalog.BadRequest,
	} {
		wantReason(t, create(location, nil, false), want, "")
		if strings.HasPrefix(location, h.root+"/") && location != victim.Location && !strings.HasPrefix(location, victim.Location) {
			wantReason(t, create(location, nil, true), want, "")
		}
	}
	for _, property := range []string{"write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"} {
		wantReason(t, create("", map[string]string{property: victim.Location + "/data"}, false), catalog.Forbidden, "properties."+property+": ")
		wantReason(t, create("", map[string]string{property: "s3://other/x"}, false), catalog.BadRequest, property)
		_, err := h.CommitTable(ctx, catalog.Mutation{}, id("mine"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{%q:%q}}]`, property, victim.Location)})
		wantReason(t, err, catalog.Forbidden, "properties."+property+": ")
	}
	_, err := h.CommitTable(ctx, catalog.Mutation{}, id("mine"), catalog.Commit{Updates: updates(t, `[{"action":"set-location","location":%q}]`, victim.Location)})
	wantReason(t, err, catalog.Forbidden, "overlaps")
	_, err = h.CommitTable(ctx, catalog.Mutation{}, id("mine"), catalog.Commit{Updates: updates(t, `[{"action":"set-statistics","statistics":{"snapshot-id":1,"statistics-path":%q,"file-size-in-bytes":1,"file-footer-size-in-bytes":1,"blob-metadata":[]}}]`, victim.Location+"/metadata/s.puffin")})
	wantReason(t, err, catalog.Forbidden, "outside the locations of this table")
	for _, key := range []string{"s3.endpoint", "io-impl", "gcs.keypath", "token"} {
		wantReason(t, create("", map[string]string{key: "x"}, false), catalog.BadRequest, key)
		_, err := h.CommitTable(ctx, catalog.Mutation{}, id("mine"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{%q:"x"}}]`, key)})
		wantReason(t, err, catalog.BadRequest, key)
	}
	wantReason(t, create(victim.Location+"/data", nil, true), catalog.Forbidden, "overlaps") // staged
	if after := h.files(t); !slices.Equal(before, after) {
		t.Errorf("refused requests left files: %v, before %v", after, before)
	}

	// A client's own choice inside the warehouse; a sibling with the same
	// beginning is no overlap; the place of a moved table stays its own.
	if err := create(h.root+"/own/place", nil, false); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("mine"), catalog.Commit{Updates: updates(t, `[{"action":"set-location","location":%q}]`, h.root+"/own/place2")}); err != nil {
		t.Fatal(err)
	}
	_, err = h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "y", Schema: json.RawMessage(schema), Location: mine.Location})
	wantReason(t, err, catalog.Forbidden, "overlaps")
}

// blind is a store in which no location looks taken until a transaction wants
// it: what happens when two want one place at the same time.
type blind struct{ catalog.Store }

func (blind) Overlaps(context.Context, uuid.UUID, uuid.UUID, []string) (bool, error) {
	return false, nil
}

func TestLocationTakenMeanwhile(t *testing.T) {
	t.Parallel()
	h := open(t)
	victim := h.create(t, "v").Object
	h.create(t, "mine")
	late := openOn(t, blind{h.store}, h.dir)
	before := h.files(t)
	_, err := late.CreateTable(t.Context(), catalog.Mutation{}, ns, catalog.NewTable{Name: "x", Schema: json.RawMessage(schema), Location: victim.Location + "/x"})
	wantReason(t, err, catalog.CommitFailed, "at the same time")
	_, err = late.CommitTable(t.Context(), catalog.Mutation{}, id("mine"), catalog.Commit{Updates: updates(t, `[{"action":"set-location","location":%q}]`, victim.Location)})
	wantReason(t, err, catalog.CommitFailed, "at the same time")
	late.Close()
	if after := h.files(t); !slices.Equal(before, after) {
		t.Errorf("refused requests left files: %v, before %v", after, before)
	}
}

func TestNamespaceLocations(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	create := func(ns catalog.Namespace, name, location string) (*catalog.Table, error) {
		return h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: name, Schema: json.RawMessage(schema), Location: location})
	}

	// Without a location of its own: one is told, tables can lie below it and
	// none can take its place or the place of all.
	rec, err := h.LoadNamespace(ctx, ns)
	if err != nil {
		t.Fatal(err)
	}
	told := h.NamespaceLocation(rec)
	if !strings.HasPrefix(told, h.root+"/by-namespace/") || strings.Count(told[len(h.root):], "/") != 2 {
		t.Errorf("got the location %s, want %s/by-namespace/<uuid>", told, h.root)
	}
	if _, err := create(ns, "below", told+"/below-1"); err != nil {
		t.Error(err)
	}
	for _, location := range []string{told, told + "/", h.root + "/by-namespace"} {
		_, err := create(ns, "x", location)
		wantReason(t, err, catalog.Forbidden, "holds the tables of whole namespaces")
	}
	if table, err := create(ns, "default", ""); err != nil || table.Object.Location != h.root+"/"+table.Object.UUID.String() {
		t.Errorf("created at %v with error %v, want <root>/<table uuid>", table, err)
	}

	// With one: the server's own choice lies below it too.
	own := catalog.Namespace{"own"}
	if rec, err = h.CreateNamespace(ctx, catalog.Mutation{}, own, map[string]string{"location": h.root + "/finance/"}); err != nil {
		t.Fatal(err)
	}
	if got := h.NamespaceLocation(rec); got != h.root+"/finance/" {
		t.Errorf("got the location %s, want the one that was set", got)
	}
	if table, err := create(own, "t", ""); err != nil || table.Object.Location != h.root+"/finance/"+table.Object.UUID.String() {
		t.Errorf("created at %v with error %v, want it below the namespace's location", table, err)
	}
	if _, err := h.UpdateNamespaceProperties(ctx, catalog.Mutation{}, own, nil, map[string]string{"location": h.root}); err != nil {
		t.Errorf("the warehouse itself was refused: %v", err)
	}
	for location, want := range map[string]catalog.Reason{
		"s3://other/x": catalog.BadRequest, "": catalog.BadRequest, h.root + "/../x": catalog.BadRequest, h.root + "/_governed": catalog.Forbidden,
		h.root + "/by-namespace": catalog.Forbidden,
	} {
		_, err := h.CreateNamespace(ctx, catalog.Mutation{}, catalog.Namespace{"other"}, map[string]string{"location": location})
		wantReason(t, err, want, "properties.location")
		_, err = h.UpdateNamespaceProperties(ctx, catalog.Mutation{}, own, nil, map[string]string{"location": location})
		wantReason(t, err, want, "updates.location")
	}
}

func TestLongestNames(t *testing.T) {
	t.Parallel()
	h := open(t)
	level := strings.Repeat("n", 255)
	var deep catalog.Namespace
	for range 7 {
		deep = append(deep, level)
		if _, err := h.CreateNamespace(t.Context(), catalog.Mutation{}, deep, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.CreateTable(t.Context(), catalog.Mutation{}, deep, catalog.NewTable{Name: level, Schema: json.RawMessage(schema)}); err != nil {
		t.Error(err)
	}
	_, err := h.CreateNamespace(t.Context(), catalog.Mutation{}, append(deep, level), nil)
	wantReason(t, err, catalog.BadRequest, "at most 2000")
}

func TestOverlappingCreatesRace(t *testing.T) {
	t.Parallel()
	h := open(t)
	for round := range 30 {
		var won atomic.Int32
		var wg sync.WaitGroup
		base := fmt.Sprintf("%s/r%d", h.root, round)
		for i, location := range []string{base, base + "/a", base, base + "/a/b"} {
			wg.Go(func() {
				_, err := h.CreateTable(t.Context(), catalog.Mutation{}, ns, catalog.NewTable{Name: fmt.Sprintf("t%d-%d", round, i), Schema: json.RawMessage(schema), Location: location})
				if err == nil {
					won.Add(1)
				} else if reason := catalog.ReasonOf(err); reason != catalog.CommitFailed && reason != catalog.Forbidden {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of four overlapping creates won", round, won.Load())
		}
	}
}

func TestRegisterAndUnregister(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	table := h.create(t, "t")
	victim := h.create(t, "v")
	_, err := h.RegisterTable(ctx, catalog.Mutation{}, ns, "u", table.Object.MetadataLocation, false)
	wantReason(t, err, catalog.Forbidden, "overlaps")
	gone, err := h.UnregisterTable(ctx, catalog.Mutation{}, id("t"))
	if err != nil || gone.Object.MetadataLocation != table.Object.MetadataLocation {
		t.Fatalf("unregister: %v", err)
	}
	_, err = h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"a":"b"}}]`)})
	wantReason(t, err, catalog.NoSuchTable, "")
	_, err = h.RegisterTable(ctx, catalog.Mutation{}, ns, "v", table.Object.MetadataLocation, false)
	wantReason(t, err, catalog.AlreadyExists, "Table already exists: m.v")
	back, err := h.RegisterTable(ctx, catalog.Mutation{}, ns, "t2", table.Object.MetadataLocation, false)
	if err != nil || back.Object.UUID != table.Object.UUID {
		t.Fatalf("register: %v", err)
	}
	// Overwrite: t2 becomes what another metadata file of its own says.
	next, err := h.CommitTable(ctx, catalog.Mutation{}, id("t2"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"a":"b"}}]`)})
	if err != nil {
		t.Fatal(err)
	}
	over, err := h.RegisterTable(ctx, catalog.Mutation{}, ns, "t2", table.Object.MetadataLocation, true)
	if err != nil || over.Object.MetadataLocation != table.Object.MetadataLocation || over.Object.ID != next.Object.ID || over.Object.Version != 3 {
		t.Errorf("register with overwrite: %+v, %v", over, err)
	}

	// Files that say they are somebody else's, or lie elsewhere.
	write := func(name string, data []byte) string {
		location := h.root + "/foreign/metadata/" + name
		if err := h.bucket.WriteNew(ctx, location, data); err != nil {
			t.Fatal(err)
		}
		return location
	}
	_, err = h.RegisterTable(ctx, catalog.Mutation{}, ns, "x", write("a.metadata.json", victim.Metadata.Bytes()), false)
	wantReason(t, err, catalog.Forbidden, "")
	_, err = h.RegisterTable(ctx, catalog.Mutation{}, ns, "x", write("b.metadata.json", []byte(`{"format-version":2}`)), false)
	wantReason(t, err, catalog.BadRequest, "not valid table metadata")
	for _, location := range []string{"file:///etc/passwd", "https://example.com/x", "jar:file:/x!/y", h.root + "/../x", h.root + "/none.metadata.json"} {
		_, err = h.RegisterTable(ctx, catalog.Mutation{}, ns, "x", location, false)
		wantReason(t, err, catalog.BadRequest, "metadata-location")
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	table, other := h.create(t, "t"), h.create(t, "other")
	for _, name := range []string{"/data/a.parquet", "/data/p=a%3Ab/b c.parquet", "/metadata/x.avro"} {
		if err := h.bucket.WriteNew(ctx, table.Object.Location+name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.DropTable(ctx, catalog.Mutation{}, id("t"), true); err != nil {
		t.Fatal(err)
	}
	// Until the files are gone nobody else may have the place.
	_, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "n", Schema: json.RawMessage(schema), Location: table.Object.Location})
	wantReason(t, err, catalog.Forbidden, "overlaps")
	m := &catalog.Maintenance{Store: h.store, Warehouses: []*catalog.Warehouse{h.Warehouse}}
	if err := m.Round(ctx); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(other.Object.MetadataLocation, h.root+"/")
	if files := h.files(t); !slices.Equal(files, []string{want}) {
		t.Errorf("after the purge: %v, want only %s", files, want)
	}
	if _, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "n", Schema: json.RawMessage(schema), Location: table.Object.Location}); err != nil {
		t.Errorf("the place is free after the purge: %v", err)
	}

	shared, err := h.CommitTable(ctx, catalog.Mutation{}, id("other"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"gc.enabled":"false"}}]`)})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, h.DropTable(ctx, catalog.Mutation{}, id("other"), true), catalog.BadRequest, "gc.enabled")
	if _, err := os.Stat(strings.TrimPrefix(shared.Object.MetadataLocation, "file://")); err != nil {
		t.Error(err)
	}
}

// brokenFiles fails deletions until told otherwise.
type brokenFiles struct {
	catalog.Files
	broken atomic.Bool
}

func (b *brokenFiles) Delete(ctx context.Context, location string) error {
	if b.broken.Load() {
		return errors.New("the store is down")
	}
	return b.Files.Delete(ctx, location)
}

func TestPurgeSurvivesFailures(t *testing.T) {
	t.Parallel()
	var files *brokenFiles
	h := open(t, func(c *catalog.Config) {
		files = &brokenFiles{Files: c.Files}
		c.Files = files
	})
	ctx := t.Context()
	h.create(t, "t")
	if err := h.DropTable(ctx, catalog.Mutation{}, id("t"), true); err != nil {
		t.Fatal(err)
	}
	m := &catalog.Maintenance{
		Store: h.store, Warehouses: []*catalog.Warehouse{h.Warehouse},
		Now: func() time.Time { return time.Now().Add(time.Duration(h.clock.Load())) },
	}
	files.broken.Store(true)
	if err := m.Round(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(h.files(t)); n != 1 {
		t.Fatalf("%d files", n)
	}
	files.broken.Store(false)
	if err := m.Round(ctx); err != nil || len(h.files(t)) != 1 {
		t.Fatalf("the purge was tried again before its pause was over: %v", err)
	}
	h.clock.Add(int64(2 * time.Minute))
	if err := m.Round(ctx); err != nil || len(h.files(t)) != 0 {
		t.Errorf("the purge was forgotten: %v, %v", err, h.files(t))
	}
}

func TestSoftDelete(t *testing.T) {
	t.Parallel()
	h := open(t, func(c *catalog.Config) { c.SoftDelete = time.Hour })
	ctx := t.Context()
	table := h.create(t, "t")
	if err := h.DropTable(ctx, catalog.Mutation{}, id("t"), true); err != nil {
		t.Fatal(err)
	}
	_, err := h.LookupTable(ctx, id("t"))
	wantReason(t, err, catalog.NoSuchTable, "")
	wantReason(t, h.DropNamespace(ctx, catalog.Mutation{}, ns), catalog.NamespaceNotEmpty, "restored")
	dropped, err := h.ListDropped(ctx, catalog.Page{})
	if err != nil || len(dropped) != 1 || dropped[0].ID != table.Object.ID {
		t.Fatalf("dropped: %+v, %v", dropped, err)
	}
	second := h.create(t, "t") // the name is free
	_, err = h.Undrop(ctx, catalog.Mutation{}, table.Object.ID, nil)
	wantReason(t, err, catalog.AlreadyExists, "taken")
	to := id("back")
	if _, err := h.Undrop(ctx, catalog.Mutation{}, table.Object.ID, &to); err != nil {
		t.Fatal(err)
	}
	if row, err := h.LookupTable(ctx, to); err != nil || row.MetadataLocation != table.Object.MetadataLocation {
		t.Errorf("restored %+v, %v", row, err)
	}
	// Expiry: with purge the files go, without they stay.
	if err := h.DropTable(ctx, catalog.Mutation{}, to, true); err != nil {
		t.Fatal(err)
	}
	if err := h.DropTable(ctx, catalog.Mutation{}, id("t"), false); err != nil {
		t.Fatal(err)
	}
	h.clock.Add(int64(2 * time.Hour))
	m := &catalog.Maintenance{
		Store: h.store, Warehouses: []*catalog.Warehouse{h.Warehouse},
		Now: func() time.Time { return time.Now().Add(time.Duration(h.clock.Load())) },
	}
	if err := m.Round(ctx); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(second.Object.MetadataLocation, h.root+"/")
	if files := h.files(t); !slices.Equal(files, []string{want}) {
		t.Errorf("after expiry: %v, want %s", files, want)
	}
	_, err = h.Undrop(ctx, catalog.Mutation{}, table.Object.ID, nil)
	wantReason(t, err, catalog.NotFound, "expired")
	if err := h.DropNamespace(ctx, catalog.Mutation{}, ns); err != nil {
		t.Error(err)
	}
}

func TestProtection(t *testing.T) {
	t.Parallel()
	h := open(t, func(c *catalog.Config) { c.ProtectByDefault = true })
	ctx := t.Context()
	h.create(t, "t")
	wantReason(t, h.DropTable(ctx, catalog.Mutation{}, id("t"), false), catalog.Forbidden, "protected")
	if err := h.SetProtected(ctx, catalog.Mutation{}, catalog.KindTable, id("t"), false); err != nil {
		t.Fatal(err)
	}
	if err := h.DropTable(ctx, catalog.Mutation{}, id("t"), false); err != nil {
		t.Error(err)
	}
	wantReason(t, h.SetProtected(ctx, catalog.Mutation{}, catalog.KindTable, id("t"), true), catalog.NoSuchTable, "m.t")
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	mutation := func(op string, hash byte) catalog.Mutation {
		return catalog.Mutation{
			Caller: catalog.Caller{Principal: "p"}, Operation: op,
			Key: &catalog.IdempotencyKey{Key: uuid.MustParse("0190f5a0-0000-7000-8000-000000000001"), RequestHash: [32]byte{hash}},
		}
	}
	m := mutation("createTable", 1)
	if r, err := h.Replay(ctx, m); r != nil || err != nil {
		t.Fatalf("before: %v, %v", r, err)
	}
	var won, replayed atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := h.CreateTable(ctx, m, ns, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema)})
			switch {
			case err == nil:
				won.Add(1)
			case catalog.IsReplayed(err) || catalog.ReasonOf(err) == catalog.AlreadyExists:
				replayed.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d creates with one key succeeded", won.Load())
	}
	row, err := h.LookupTable(ctx, id("t"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.Replay(ctx, m)
	if err != nil || r == nil || r.Status != 200 || r.MetadataLocation != row.MetadataLocation || r.Object != row.ID {
		t.Errorf("replay %+v, %v", r, err)
	}
	for _, other := range []catalog.Mutation{mutation("createTable", 2), mutation("dropTable", 1)} {
		_, err := h.Replay(ctx, other)
		wantReason(t, err, catalog.BadRequest, "already used")
	}
	stranger := m
	stranger.Principal = "q"
	if r, err := h.Replay(ctx, stranger); r != nil || err != nil {
		t.Errorf("another principal's key was answered: %+v, %v", r, err)
	}
	h.clock.Add(int64(25 * time.Hour))
	if r, err := h.Replay(ctx, m); r != nil || err != nil {
		t.Errorf("an expired key was answered: %+v, %v", r, err)
	}
}

func TestMetadataFileProperties(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	_, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema), Location: h.root + "/t", Properties: map[string]string{
		"write.metadata.compression-codec":           "gzip",
		"write.metadata.path":                        h.root + "/meta/t",
		"write.metadata.previous-versions-max":       "2",
		"write.metadata.delete-after-commit.enabled": "true",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"n":"%d"}}]`, n)}); err != nil {
			t.Fatal(err)
		}
	}
	files := h.files(t)
	if len(files) != 3 {
		t.Errorf("%d metadata files, want the current and two previous ones: %v", len(files), files)
	}
	for _, f := range files {
		if !strings.HasPrefix(f, "meta/t/") || !strings.HasSuffix(f, ".gz.metadata.json") {
			t.Errorf("metadata file %s", f)
		}
	}
	// Another server, with an empty cache, reads what was written.
	fresh := openOn(t, h.store, h.dir)
	row, err := fresh.LookupTable(ctx, id("t"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := fresh.TableMetadata(ctx, row)
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := doc.Property("n"); v != "4" {
		t.Errorf("n = %q", v)
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	m := catalog.Mutation{Caller: catalog.Caller{Principal: "alice", RequestID: "r1"}, Operation: "createTable"}
	if _, err := h.CreateTable(ctx, m, ns, catalog.NewTable{Name: "t", Schema: json.RawMessage(schema)}); err != nil {
		t.Fatal(err)
	}
	if err := h.ReportMetrics(ctx, m.Caller, id("t"), "scan-report", json.RawMessage(`{"report-type":"scan-report"}`)); err != nil {
		t.Fatal(err)
	}
	audit, err := h.store.Audit(ctx, h.ID(), 10)
	if err != nil || len(audit) != 2 || audit[0].Principal != "alice" || audit[0].RequestID != "r1" || audit[0].Resource != "m.t" {
		t.Errorf("audit %+v, %v", audit, err)
	}
	events, err := h.store.Events(ctx, h.ID(), 0, 10)
	if err != nil || len(events) != 2 || events[1].Type != "table.created" || events[1].ID <= events[0].ID {
		t.Errorf("events %+v, %v", events, err)
	}
	row, err := h.LookupTable(ctx, id("t"))
	if err != nil {
		t.Fatal(err)
	}
	reports, err := h.store.MetricsReports(ctx, h.ID(), row.ID, 10)
	if err != nil || len(reports) != 1 || reports[0].Principal != "alice" {
		t.Errorf("reports %+v, %v", reports, err)
	}
}

func TestFunctions(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	if names, next, err := h.ListFunctions(ctx, ns, catalog.Page{}); err != nil || len(names) != 0 || next != "" {
		t.Errorf("empty list: %v, %q, %v", names, next, err)
	}
	raw := json.RawMessage(`{"function-uuid":"11111111-2222-4333-8444-555555555555","format-version":1,"definitions":[{"definition-id":"a"}],"definition-log":[],"x":1}`)
	if _, err := h.PutFunction(ctx, catalog.Mutation{}, id("f"), raw); err != nil {
		t.Fatal(err)
	}
	h.create(t, "f") // functions have a name space of their own
	f, err := h.LoadFunction(ctx, id("f"))
	if err != nil || string(f.Metadata) != string(raw) {
		t.Errorf("loaded %s, %v", f.Metadata, err)
	}
	_, err = h.LoadFunction(ctx, id("g"))
	wantReason(t, err, catalog.NoSuchFunction, "m.g")
	_, err = h.PutFunction(ctx, catalog.Mutation{}, id("g"), json.RawMessage(`{"format-version":1}`))
	wantReason(t, err, catalog.BadRequest, "function-uuid")
}

// forgetful is a store with rows from before digests were kept.
type forgetful struct{ catalog.Store }

func (f forgetful) Object(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, name string, kind catalog.Kind) (catalog.Object, error) {
	obj, err := f.Store.Object(ctx, warehouse, ns, name, kind)
	obj.MetadataDigest = catalog.Digest{}
	return obj, err
}

// TestChangedMetadataFile is about whoever can write below their own table and
// so over its metadata file: nothing is read from what they put there.
func TestChangedMetadataFile(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	table, victim := h.create(t, "t"), h.create(t, "victim")
	view, err := h.CreateView(ctx, catalog.Mutation{}, ns, catalog.NewView{
		Name: "v", Schema: json.RawMessage(schema),
		Version: json.RawMessage(`{"version-id":1,"timestamp-ms":1,"schema-id":0,"summary":{},"default-namespace":["m"],"representations":[{"type":"sql","sql":"SELECT 1","dialect":"spark"}]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(location, old, with string) {
		t.Helper()
		path := strings.TrimPrefix(location, "file://")
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), old) {
			t.Fatalf("%s has no %s: %v", path, old, err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), old, with)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(table.Object.MetadataLocation, table.Object.Location, victim.Object.Location)
	rewrite(view.Object.MetadataLocation, "SELECT 1", "SELECT 2")
	set := catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"a":"b"}}]`)}
	before := h.files(t)

	// Another replica has nothing in its cache.
	other := openOn(t, h.store, h.dir)
	for _, replica := range []*house{other, openOn(t, forgetful{h.store}, h.dir)} {
		obj, err := replica.LookupTable(ctx, id("t"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = replica.TableMetadata(ctx, obj)
		wantReason(t, err, catalog.Internal, "is not used")
		_, err = replica.CommitTable(ctx, catalog.Mutation{}, id("t"), set)
		wantReason(t, err, catalog.Internal, "is not used")
		if after := replica.files(t); !slices.Equal(after, before) {
			t.Errorf("files were written: %v, before %v", after, before)
		}
	}
	obj, err := other.LookupView(ctx, id("v"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.ViewMetadata(ctx, obj)
	wantReason(t, err, catalog.Internal, "is not used")

	// What is registered is what is loaded, also where a file of that name was
	// loaded before.
	rewrite(table.Object.MetadataLocation, victim.Object.Location, table.Object.Location)
	rewrite(table.Object.MetadataLocation, `"properties":{}`, `"properties":{"new":"yes"}`)
	if _, err := other.RegisterTable(ctx, catalog.Mutation{}, ns, "t", table.Object.MetadataLocation, true); err != nil {
		t.Fatal(err)
	}
	for _, replica := range []*house{h, other} {
		obj, err := replica.LookupTable(ctx, id("t"))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := replica.TableMetadata(ctx, obj)
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := doc.Property("new"); v != "yes" {
			t.Errorf("loaded is not what was registered: %s", doc.Bytes())
		}
	}
	if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), set); err != nil {
		t.Error(err)
	}
}

// pausedList stops in the middle of a listing.
type pausedList struct {
	catalog.Files
	once         sync.Once
	paused, goOn chan struct{}
}

func (p *pausedList) List(ctx context.Context, dir string, fn func(string, int64) error) error {
	return p.Files.List(ctx, dir, func(file string, size int64) error {
		p.once.Do(func() { close(p.paused); <-p.goOn })
		return fn(file, size)
	})
}

// TestPurgeOutlivesItsLease has a second worker finish the purge, and a new
// table take the place, while the first is in the middle of it.
func TestPurgeOutlivesItsLease(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	slow := &pausedList{paused: make(chan struct{}), goOn: make(chan struct{})}
	first := openOn(t, h.store, h.dir, func(c *catalog.Config) { slow.Files = c.Files; c.Files = slow })
	create := func(name string) *catalog.Table {
		t.Helper()
		table, err := h.CreateTable(ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: name, Schema: json.RawMessage(schema), Location: h.root + "/place"})
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	create("old")
	if err := h.bucket.WriteNew(ctx, h.root+"/place/aa/1.parquet", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := h.DropTable(ctx, catalog.Mutation{}, id("old"), true); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		done <- (&catalog.Maintenance{Store: h.store, Warehouses: []*catalog.Warehouse{first.Warehouse}}).Round(ctx)
	}()
	<-slow.paused
	second := &catalog.Maintenance{
		Store: h.store, Warehouses: []*catalog.Warehouse{h.Warehouse}, Now: func() time.Time { return time.Now().Add(11 * time.Minute) },
	}
	if err := second.Round(ctx); err != nil {
		t.Fatal(err)
	}
	table := create("new")
	close(slow.goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(strings.TrimPrefix(table.Object.MetadataLocation, "file://")); err != nil {
		t.Errorf("the first worker deleted the new table: %v", err)
	}
}

// interrupted runs something just before the next transaction.
type interrupted struct {
	catalog.Store
	before func()
}

func (i *interrupted) Update(ctx context.Context, fn func(catalog.Tx) error) error {
	if f := i.before; f != nil {
		i.before = nil
		f()
	}
	return i.Store.Update(ctx, fn)
}

func TestPurgeDropsWhatWasChecked(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	store := &interrupted{Store: h.store}
	other := openOn(t, store, h.dir)
	h.create(t, "t")
	store.before = func() {
		if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("t"), catalog.Commit{Updates: updates(t, `[{"action":"set-properties","updates":{"gc.enabled":"false"}}]`)}); err != nil {
			t.Error(err)
		}
	}
	wantReason(t, other.DropTable(ctx, catalog.Mutation{}, id("t"), true), catalog.BadRequest, "gc.enabled")

	table := h.create(t, "u")
	if err := os.Remove(strings.TrimPrefix(table.Object.MetadataLocation, "file://")); err != nil {
		t.Fatal(err)
	}
	wantReason(t, h.DropTable(ctx, catalog.Mutation{}, id("u"), true), catalog.BadRequest, "drop it without purge")
	if err := h.DropTable(ctx, catalog.Mutation{}, id("u"), false); err != nil {
		t.Error(err)
	}
}

// TestRepetitionInPart is about commits that only look like repetitions:
// nothing of what they ask for may be dropped silently.
func TestRepetitionInPart(t *testing.T) {
	t.Parallel()
	h := open(t)
	ctx := t.Context()
	a, b := h.create(t, "a"), h.create(t, "b")
	snapshot := func(table *catalog.Table, more string) []metadata.Update {
		return updates(t, `[{"action":"add-snapshot","snapshot":{"snapshot-id":7,"sequence-number":1,"timestamp-ms":%d,"manifest-list":%q,"summary":{"operation":"append"},"schema-id":0}},
			{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":7}%s]`, time.Now().UnixMilli(), table.Object.Location+"/metadata/snap-7.avro", more)
	}
	asserted := requirements(t, `[{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":null}]`)
	if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("a"), catalog.Commit{Requirements: asserted, Updates: snapshot(a, "")}); err != nil {
		t.Fatal(err)
	}
	next := updates(t, `[{"action":"add-snapshot","snapshot":{"snapshot-id":8,"parent-snapshot-id":7,"sequence-number":2,"timestamp-ms":%d,"manifest-list":%q,"summary":{"operation":"append"},"schema-id":0}},
		{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":8}]`, time.Now().UnixMilli(), a.Object.Location+"/metadata/snap-8.avro")
	if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("a"), catalog.Commit{Updates: next}); err != nil {
		t.Fatal(err)
	}
	// The branch has moved on, and still this is the same commit.
	if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("a"), catalog.Commit{Requirements: asserted, Updates: snapshot(a, "")}); err != nil {
		t.Errorf("a repetition was refused: %v", err)
	}
	for name, c := range map[string]catalog.Commit{
		"another property": {Requirements: asserted, Updates: snapshot(a, `,{"action":"set-properties","updates":{"k":"v"}}`)},
		"no requirement":   {Updates: snapshot(a, `,{"action":"set-properties","updates":{"k":"v"}}`)},
		"another ref":      {Requirements: asserted, Updates: snapshot(a, `,{"action":"set-snapshot-ref","ref-name":"audit","type":"branch","snapshot-id":7}`)},
		"another table":    {Requirements: append(requirements(t, `[{"type":"assert-table-uuid","uuid":%q}]`, uuid.NewString()), asserted...), Updates: snapshot(a, "")},
	} {
		if _, err := h.CommitTable(ctx, catalog.Mutation{}, id("a"), c); err == nil {
			t.Errorf("%s: acknowledged, but not applied", name)
		}
	}
	err := h.CommitTransaction(ctx, catalog.Mutation{}, []catalog.TableChange{
		{Table: id("a"), Commit: catalog.Commit{Requirements: asserted, Updates: snapshot(a, "")}},
		{Table: id("b"), Commit: catalog.Commit{Requirements: asserted, Updates: snapshot(b, "")}},
	})
	wantReason(t, err, catalog.CommitFailed, "main")
	obj, err := h.LookupTable(ctx, id("b"))
	if err != nil || obj.MetadataLocation != b.Object.MetadataLocation {
		t.Errorf("half of a transaction was applied: %v, %v", obj, err)
	}
}

func TestResource(t *testing.T) {
	t.Parallel()
	for want, levels := range map[string][]string{
		"a.b": {"a", "b"}, `"a.b"`: {"a.b"}, `"a\"b".c`: {`a"b`, "c"}, `a."b.c"`: {"a", "b.c"},
	} {
		if got := catalog.Namespace(levels).Resource(); got != want {
			t.Errorf("%q is named %s, want %s", levels, got, want)
		}
	}
	if got := (catalog.Ident{Namespace: catalog.Namespace{"a.b"}, Name: "t.u"}).Resource(); got != `"a.b"."t.u"` {
		t.Error(got)
	}
}

// TestServersCommitToOneTable has two servers change one table through one
// store: a commit that another server's has overtaken is applied again, and
// its sender hears nothing of it.
func TestServersCommitToOneTable(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.create(t, "t")
	const each = 30
	var wg sync.WaitGroup
	for s, server := range []*house{h, openOn(t, h.store, h.dir)} {
		wg.Go(func() {
			for i := range each {
				if _, err := server.CommitTable(t.Context(), catalog.Mutation{}, id("t"), catalog.Commit{
					Updates: updates(t, `[{"action":"set-properties","updates":{"k%d-%d":"v"}}]`, s, i),
				}); err != nil {
					t.Errorf("server %d, commit %d: %v", s, i, err)
				}
			}
		})
	}
	wg.Wait()
	obj, err := h.LookupTable(t.Context(), id("t"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := h.TableMetadata(t.Context(), obj)
	if err != nil || len(doc.Properties()) != 2*each || obj.Version != 2*each+1 {
		t.Errorf("%d properties at version %d, want %d: %v", len(doc.Properties()), obj.Version, 2*each, err)
	}
}
