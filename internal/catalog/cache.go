// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/objstore"
)

// DefaultMetadataCacheBytes bounds the cache unless configured.
const DefaultMetadataCacheBytes = 256 << 20

// MetadataCache keeps parsed metadata by its location and digest, so that an
// entry is never stale; the bound is in bytes.
type MetadataCache struct {
	tables *otter.Cache[fileKey, *metadata.Document]
	views  *otter.Cache[fileKey, []byte]

	replaced   atomic.Int64 // bytes of versions that commits have replaced since the last collection
	collecting atomic.Bool
}

// fileKey names a metadata document: a file, and what must be in it.
type fileKey struct {
	location string
	digest   Digest
}

// file is the document that a row points to.
func (o *Object) file() fileKey { return fileKey{o.MetadataLocation, o.MetadataDigest} }

// NewMetadataCache returns an empty cache of at most maxBytes, of which an
// eighth is for views.
func NewMetadataCache(maxBytes int64) *MetadataCache {
	const perEntry = 256 // key, node, and index of a small document
	views := uint64(maxBytes) / 8
	return &MetadataCache{
		tables: otter.Must(&otter.Options[fileKey, *metadata.Document]{
			MaximumWeight: uint64(maxBytes) - views,
			Weigher: func(key fileKey, d *metadata.Document) uint32 {
				// A Document's index is a fraction of its bytes; see package metadata.
				return uint32(min(int64(d.Size())*5/4+int64(len(key.location))+perEntry, 1<<32-1))
			},
		}),
		views: otter.Must(&otter.Options[fileKey, []byte]{
			MaximumWeight: views,
			Weigher: func(key fileKey, b []byte) uint32 {
				return uint32(min(len(b)+len(key.location)+perEntry, 1<<32-1))
			},
		}),
	}
}

// replace puts a new version of a table in the place of the one before it,
// which few will ask for again.
//
// A table of 10,000 snapshots makes 10 MB of garbage with every commit. Left
// alone, the collector waits until the whole heap has doubled, so that memory
// is a multiple of what is in use. Metadata holds next to no pointers, so a
// collection costs about a millisecond; one is started for every 8 MB replaced,
// or for a quarter of the cache where that is more.
func (c *MetadataCache) replace(before fileKey, size int, after fileKey, d *metadata.Document) {
	c.tables.Set(after, d)
	c.tables.Invalidate(before)
	if c.replaced.Add(int64(size)) < max(8<<20, int64(c.tables.WeightedSize()/4)) || !c.collecting.CompareAndSwap(false, true) {
		return
	}
	c.replaced.Store(0)
	go func() {
		defer c.collecting.Store(false)
		runtime.GC()
	}()
}

// WeightedSize returns the bytes held.
func (c *MetadataCache) WeightedSize() uint64 {
	return c.tables.WeightedSize() + c.views.WeightedSize()
}

// readTimeout bounds one read of a metadata file that several callers may
// wait for, so that none of them can cancel it for the others.
const readTimeout = 30 * time.Second

// table returns the document that a row points to, reading it at most once at
// a time however many ask for it.
func (w *Warehouse) table(ctx context.Context, file fileKey) (*metadata.Document, error) {
	if d, ok := w.cache.tables.GetIfPresent(file); ok {
		w.observer.MetadataRead(true, d.Size())
		return d, nil
	}
	return w.cache.tables.Get(ctx, file, otter.LoaderFunc[fileKey, *metadata.Document](
		func(ctx context.Context, file fileKey) (*metadata.Document, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
			defer cancel()
			raw, err := w.readVerified(ctx, file)
			if err != nil {
				return nil, err
			}
			w.observer.MetadataRead(false, len(raw))
			d, err := metadata.Parse(raw, metadata.Limits{})
			if err != nil {
				return nil, fmt.Errorf("metadata file %s: %w", file.location, err)
			}
			return d, nil
		}))
}

// view is table for view metadata, which is small and kept as bytes.
func (w *Warehouse) view(ctx context.Context, file fileKey) ([]byte, error) {
	if b, ok := w.cache.views.GetIfPresent(file); ok {
		w.observer.MetadataRead(true, len(b))
		return b, nil
	}
	return w.cache.views.Get(ctx, file, otter.LoaderFunc[fileKey, []byte](
		func(ctx context.Context, file fileKey) ([]byte, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
			defer cancel()
			raw, err := w.readVerified(ctx, file)
			if err == nil {
				w.observer.MetadataRead(false, len(raw))
			}
			return raw, err
		}))
}

// readVerified reads a metadata file and refuses one in which something else
// stands than when it became current. Whoever can write below a table can
// write there, too; without this they could lead readers, and the files that
// the server writes and deletes, to places of others.
func (w *Warehouse) readVerified(ctx context.Context, file fileKey) ([]byte, error) {
	raw, err := w.readMetadataFile(ctx, file.location)
	if err == nil && !file.digest.IsZero() && DigestOf(raw) != file.digest {
		return nil, &Error{Reason: Internal, Message: fmt.Sprintf(
			"The metadata file %s was changed after it was committed, so it is not used; restore it, or register the file anew with overwrite", file.location)}
	}
	return raw, err
}

// readMetadataFile reads and, where its name says so, inflates a metadata
// file.
func (w *Warehouse) readMetadataFile(ctx context.Context, location string) ([]byte, error) {
	raw, err := w.files.Read(ctx, location, maxMetadataBytes)
	if err != nil {
		return nil, fmt.Errorf("read metadata file %s: %w", location, err)
	}
	if isGzipName(location) {
		if raw, err = objstore.Gunzip(raw, maxMetadataBytes); err != nil {
			return nil, fmt.Errorf("inflate metadata file %s: %w", location, err)
		}
	}
	return raw, nil
}

// isGzipName reports whether a metadata file's name says that it is
// compressed: Java writes v1.gz.metadata.json, older writers
// v1.metadata.json.gz.
func isGzipName(location string) bool {
	return strings.HasSuffix(location, ".gz.metadata.json") || strings.HasSuffix(location, ".metadata.json.gz")
}

// lookups coalesces concurrent look-ups of one name into one query. A caller
// only ever joins a query that starts after it has asked, so what it gets is
// at least as new as any change that it has been told of.
type lookups struct {
	fetch func(ctx context.Context, key lookupKey) (Object, error)
	mu    sync.Mutex
	open  map[lookupKey]*lookup
}

type lookupKey struct {
	namespace string // stored path
	name      string
	kind      Kind
}

// lookup is a query that runs, and the one that will run after it for those
// who came in the meantime.
type lookup struct {
	next *pendingLookup
}

type pendingLookup struct {
	done chan struct{}
	obj  Object
	err  error
}

// get runs the query, or waits for the next one when one is running.
func (l *lookups) get(ctx context.Context, key lookupKey) (Object, error) {
	l.mu.Lock()
	running, ok := l.open[key]
	if !ok {
		if l.open == nil {
			l.open = make(map[lookupKey]*lookup)
		}
		running = &lookup{}
		l.open[key] = running
		l.mu.Unlock()
		defer l.finish(key, running)
		return l.fetch(ctx, key)
	}
	p := running.next
	if p == nil {
		p = &pendingLookup{done: make(chan struct{})}
		running.next = p
	}
	l.mu.Unlock()
	select {
	case <-p.done:
		return p.obj, p.err
	case <-ctx.Done():
		return Object{}, ctx.Err()
	}
}

// finish ends a query; when callers wait, it starts theirs.
func (l *lookups) finish(key lookupKey, running *lookup) {
	l.mu.Lock()
	p := running.next
	if p == nil {
		delete(l.open, key)
		l.mu.Unlock()
		return
	}
	running.next = nil
	l.mu.Unlock()
	// The query belongs to all who wait, so no single caller's context ends
	// it. The goroutine ends with the query and its followers'.
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		defer cancel()
		p.obj, p.err = l.fetch(ctx, key)
		close(p.done)
		l.finish(key, running)
	}()
}

const lookupTimeout = 30 * time.Second

// keyedMutex is one lock per key, kept only while it is held or waited for.
type keyedMutex struct {
	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	slot chan struct{} // holds a token while locked
	refs int
}

// lock waits for the key's lock until ctx ends; unlock releases it.
func (k *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[string]*keyedLock)
	}
	l := k.locks[key]
	if l == nil {
		l = &keyedLock{slot: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.refs++
	k.mu.Unlock()
	release := func() {
		k.mu.Lock()
		if l.refs--; l.refs == 0 {
			delete(k.locks, key)
		}
		k.mu.Unlock()
	}
	select {
	case l.slot <- struct{}{}:
		return func() { <-l.slot; release() }, nil
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
}
