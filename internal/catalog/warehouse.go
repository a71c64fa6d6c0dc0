// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/objstore"
)

// Files is the object store of one warehouse, as far as the catalog needs
// it; *objstore.Bucket is the implementation. Every location outside the
// warehouse's roots is refused by it with objstore.ErrOutside.
type Files interface {
	// Read returns a whole object of at most limit bytes, or
	// objstore.ErrNotFound or objstore.ErrTooLarge.
	Read(ctx context.Context, location string, limit int64) ([]byte, error)
	// WriteNew is durable when it returns; objstore.ErrExists when the
	// object is already there.
	WriteNew(ctx context.Context, location string, data []byte) error
	// Delete removes an object; an absent one is no error.
	Delete(ctx context.Context, location string) error
	// List calls fn for every object under a directory.
	List(ctx context.Context, directory string, fn func(location string, size int64) error) error
}

// Observer receives what the catalog counts. Its methods are called on hot
// paths and must not block.
type Observer interface {
	// CommitAttempt is called once per attempt: "committed", "conflict" (the
	// pointer moved; tried again), "requirement-failed", "unchanged",
	// "unknown" or "error".
	CommitAttempt(outcome string)
	// MetadataRead is called per metadata look-up: hit tells whether the
	// cache had it, size is the length in bytes.
	MetadataRead(hit bool, size int)
	// MetricsReport is called per report that a client sent.
	MetricsReport(reportType string, report []byte)
}

// Config is what a [Warehouse] is made of. Name, Root, Store and Files are
// required; Cache is shared by all warehouses of a process.
type Config struct {
	Options
	// Root is the location under which the catalog places tables.
	Root string
	// AllowedRoots are further locations where clients may place tables.
	AllowedRoots []string
	Store        Store
	Files        Files
	Cache        *MetadataCache
	// ClientConfig tells clients how to reach the storage (region, endpoint,
	// path style). It never holds a secret.
	ClientConfig map[string]string
	Observer     Observer
	// Watcher hears of drops and renames; optional.
	Watcher Watcher
	Logger  *slog.Logger
	Now     func() time.Time
}

// Warehouse is a named root with its namespaces and all operations on them.
// It is safe for concurrent use.
type Warehouse struct {
	id       uuid.UUID
	opts     Options
	root     objstore.Location
	roots    []objstore.Location // root first
	store    Store
	files    Files
	cache    *MetadataCache
	client   map[string]string
	observer Observer
	watcher  Watcher
	log      *slog.Logger
	now      func() time.Time

	lookups lookups
	locks   keyedMutex
	tidy    tidier
}

// Limits of what clients may ask for.
const (
	maxNameBytes       = 255
	maxNamespaceLevels = 32
	// maxNamespaceBytes keeps a namespace and a name within what an index row
	// of PostgreSQL holds (2,704 bytes).
	maxNamespaceBytes = 2000
	maxProperties     = 4096
	maxPropertyBytes  = 64 << 10
	// maxMetadataBytes bounds one metadata file, inflated.
	maxMetadataBytes = 256 << 20
)

// OpenWarehouse registers the warehouse in the store when it is new and
// returns it ready for use. Close it before the store.
func OpenWarehouse(ctx context.Context, cfg Config) (*Warehouse, error) {
	root, err := objstore.ParseLocation(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("warehouse %s: root: %w", cfg.Name, err)
	}
	w := &Warehouse{
		opts:     cfg.Options,
		root:     root,
		roots:    []objstore.Location{root},
		store:    cfg.Store,
		files:    cfg.Files,
		cache:    cfg.Cache,
		client:   maps.Clone(cfg.ClientConfig),
		observer: cfg.Observer,
		watcher:  cfg.Watcher,
		log:      cfg.Logger,
		now:      cfg.Now,
	}
	for _, s := range cfg.AllowedRoots {
		l, err := objstore.ParseLocation(s)
		if err != nil {
			return nil, fmt.Errorf("warehouse %s: allowed root: %w", cfg.Name, err)
		}
		w.roots = append(w.roots, l)
	}
	if w.cache == nil {
		w.cache = NewMetadataCache(DefaultMetadataCacheBytes)
	}
	if w.observer == nil {
		w.observer = noObserver{}
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.now == nil {
		w.now = time.Now
	}
	if w.opts.IdempotencyLifetime <= 0 {
		w.opts.IdempotencyLifetime = DefaultIdempotencyLifetime
	}
	if w.id, err = cfg.Store.EnsureWarehouse(ctx, cfg.Name); err != nil {
		return nil, fmt.Errorf("warehouse %s: %w", cfg.Name, err)
	}
	w.lookups.fetch = w.fetchObject
	return w, nil
}

// DefaultIdempotencyLifetime is how long an Idempotency-Key is remembered
// unless configured.
const DefaultIdempotencyLifetime = 24 * time.Hour

// Close waits for clean-up that commits have left running.
func (w *Warehouse) Close() { w.tidy.wait() }

// ID returns the warehouse's id in the store.
func (w *Warehouse) ID() uuid.UUID { return w.id }

// Name returns the warehouse's name.
func (w *Warehouse) Name() string { return w.opts.Name }

// Options returns the warehouse's settings.
func (w *Warehouse) Options() Options { return w.opts }

// ClientConfig returns what clients need to reach the storage. The map is
// shared; callers do not change it.
func (w *Warehouse) ClientConfig() map[string]string { return w.client }

// stamp returns the current time in the precision that stores keep.
func (w *Warehouse) stamp() time.Time { return w.now().UTC().Truncate(time.Millisecond) }

// storeError turns what a Store returned into an Error when the sentinel
// says nothing about what the caller asked for. Errors that are already an
// Error, and context errors, pass unchanged.
func storeError(err error) error {
	var e *Error
	switch {
	case err == nil, errors.As(err, &e), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, ErrUnknownOutcome):
		return &Error{Reason: CommitStateUnknown, Message: "The outcome of the change is unknown: the store's answer was lost", Cause: err}
	case errors.Is(err, ErrUnavailable):
		return &Error{Reason: Unavailable, Message: "The catalog's store is not available; nothing was changed", Cause: err, RetryAfter: 2 * time.Second}
	}
	return &Error{Reason: Internal, Message: "Internal error", Cause: err}
}

type noObserver struct{}

func (noObserver) CommitAttempt(string)         {}
func (noObserver) MetadataRead(bool, int)       {}
func (noObserver) MetricsReport(string, []byte) {}
