// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/postgres"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/server/config"
	"github.com/sluice-data/sluice/internal/telemetry"
)

// openStore opens the configured store; it does not migrate it.
func openStore(ctx context.Context, c config.Store) (catalog.Store, error) {
	if c.SQLite != nil {
		return asStore(sqlite.Open(ctx, c.SQLite.Path, sqlite.Options{}))
	}
	return asStore(postgres.Open(ctx, c.Postgres.DSN.Value.Reveal(), postgres.Options{MaxConns: c.Postgres.MaxConnections}))
}

// asStore keeps a nil pointer from becoming a Store that is not nil.
func asStore[S interface {
	comparable
	catalog.Store
}](s S, err error) (catalog.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ErrMigrate is in the chain when the schema is older than the program.
var ErrMigrate = errors.New("the store's schema is older than this program")

// checkSchema migrates the store when it may, and refuses one that does not
// fit the program.
func checkSchema(ctx context.Context, store catalog.Store, migrate bool) error {
	current, newest, err := store.Version(ctx)
	if err != nil {
		return fmt.Errorf("read the store's schema version: %w", err)
	}
	switch {
	case current > newest:
		return fmt.Errorf("the store's schema is at version %d; this program knows %d: run a newer catalogd", current, newest)
	case current == newest:
		return nil
	case !migrate:
		return fmt.Errorf("%w (version %d, needed is %d): run `catalogd migrate --config FILE`, or set store.auto_migrate: true", ErrMigrate, current, newest)
	}
	if err := store.Migrate(ctx); err != nil {
		return fmt.Errorf("migrate the store: %w", err)
	}
	return nil
}

// Migrate brings the configured store's schema to the newest version and
// returns the versions before and after.
func Migrate(ctx context.Context, c *config.Config) (before, after int, err error) {
	store, err := openStore(ctx, c.Store)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if before, _, err = store.Version(ctx); err != nil {
		return 0, 0, fmt.Errorf("read the store's schema version: %w", err)
	}
	if err := store.Migrate(ctx); err != nil {
		return before, before, fmt.Errorf("migrate the store: %w", err)
	}
	after, _, err = store.Version(ctx)
	return before, after, err
}

// measuredStore counts and traces the calls that requests and workers make.
// Calls inside a transaction are part of its Update.
type measuredStore struct {
	catalog.Store
	tracer *telemetry.Tracer

	namespace, listNamespaces, object, objectByID, listObjects, locations,
	idempotency, update, putReports, claimPurge, expire, ping *telemetry.Call
}

var storeOutcomes = []string{"ok", "not-found", "refused", "cancelled", "unavailable", "unknown"}

func measureStore(s catalog.Store, m *telemetry.Metrics, tracer *telemetry.Tracer) *measuredStore {
	call := func(op string) *telemetry.Call { return m.StoreCall(op, storeOutcomes...) }
	return &measuredStore{
		Store: s, tracer: tracer,
		namespace: call("namespace"), listNamespaces: call("list-namespaces"), object: call("object"), objectByID: call("object-by-id"),
		listObjects: call("list-objects"), locations: call("locations"), idempotency: call("idempotency"), update: call("update"),
		putReports: call("put-metrics-reports"), claimPurge: call("claim-purge"), expire: call("expire"), ping: call("ping"),
	}
}

// storeOutcome classifies what a call returned.
func storeOutcome(err error) string {
	if err == nil {
		return "ok"
	}
	var refused *catalog.Error
	switch {
	case errors.Is(err, catalog.ErrNoObject), errors.Is(err, catalog.ErrNoNamespace):
		return "not-found"
	case errors.Is(err, catalog.ErrUnknownOutcome):
		return "unknown"
	case errors.Is(err, catalog.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	case errors.As(err, &refused), errors.Is(err, catalog.ErrExists), errors.Is(err, catalog.ErrStale), errors.Is(err, catalog.ErrNotEmpty),
		errors.Is(err, catalog.ErrHoldsDropped), errors.Is(err, catalog.ErrProtected), errors.Is(err, catalog.ErrLocationTaken), errors.Is(err, catalog.ErrIdempotencyUsed):
		return "refused"
	}
	return "error"
}

// running is one call that is being measured.
type running struct {
	call  *telemetry.Call
	start time.Time
	span  trace.Span
}

func (s *measuredStore) begin(ctx context.Context, c *telemetry.Call, name string) (context.Context, running) {
	r := running{call: c, start: time.Now()}
	ctx, r.span = s.tracer.Start(ctx, name)
	return ctx, r
}

func (r running) end(err *error) {
	r.call.Done(storeOutcome(*err), time.Since(r.start))
	r.span.End()
}

func (s *measuredStore) Namespace(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) (rec catalog.NamespaceRecord, err error) {
	ctx, r := s.begin(ctx, s.namespace, "store.namespace")
	defer r.end(&err)
	return s.Store.Namespace(ctx, warehouse, ns)
}

func (s *measuredStore) ListNamespaces(ctx context.Context, warehouse uuid.UUID, parent catalog.Namespace, page catalog.Page) (list []catalog.Namespace, err error) {
	ctx, r := s.begin(ctx, s.listNamespaces, "store.list-namespaces")
	defer r.end(&err)
	return s.Store.ListNamespaces(ctx, warehouse, parent, page)
}

func (s *measuredStore) Object(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, name string, kind catalog.Kind) (o catalog.Object, err error) {
	ctx, r := s.begin(ctx, s.object, "store.object")
	defer r.end(&err)
	return s.Store.Object(ctx, warehouse, ns, name, kind)
}

func (s *measuredStore) ObjectByID(ctx context.Context, warehouse, id uuid.UUID) (o catalog.Object, err error) {
	ctx, r := s.begin(ctx, s.objectByID, "store.object-by-id")
	defer r.end(&err)
	return s.Store.ObjectByID(ctx, warehouse, id)
}

func (s *measuredStore) ListObjects(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, kind catalog.Kind, page catalog.Page) (names []string, err error) {
	ctx, r := s.begin(ctx, s.listObjects, "store.list-objects")
	defer r.end(&err)
	return s.Store.ListObjects(ctx, warehouse, ns, kind, page)
}

func (s *measuredStore) Locations(ctx context.Context, object uuid.UUID) (list []string, err error) {
	ctx, r := s.begin(ctx, s.locations, "store.locations")
	defer r.end(&err)
	return s.Store.Locations(ctx, object)
}

func (s *measuredStore) Idempotency(ctx context.Context, warehouse uuid.UUID, principal string, key uuid.UUID, now time.Time) (rec catalog.IdempotencyRecord, err error) {
	ctx, r := s.begin(ctx, s.idempotency, "store.idempotency")
	defer r.end(&err)
	return s.Store.Idempotency(ctx, warehouse, principal, key, now)
}

func (s *measuredStore) Update(ctx context.Context, fn func(tx catalog.Tx) error) (err error) {
	ctx, r := s.begin(ctx, s.update, "store.update")
	defer r.end(&err)
	return s.Store.Update(ctx, fn)
}

func (s *measuredStore) PutMetricsReports(ctx context.Context, reports []catalog.MetricsReport) (err error) {
	ctx, r := s.begin(ctx, s.putReports, "store.put-metrics-reports")
	defer r.end(&err)
	return s.Store.PutMetricsReports(ctx, reports)
}

func (s *measuredStore) ClaimPurge(ctx context.Context, now time.Time, lease time.Duration) (p catalog.Purge, err error) {
	ctx, r := s.begin(ctx, s.claimPurge, "store.claim-purge")
	defer r.end(&err)
	return s.Store.ClaimPurge(ctx, now, lease)
}

func (s *measuredStore) Expire(ctx context.Context, now, reportsBefore, eventsBefore time.Time, limit int) (n int, err error) {
	ctx, r := s.begin(ctx, s.expire, "store.expire")
	defer r.end(&err)
	return s.Store.Expire(ctx, now, reportsBefore, eventsBefore, limit)
}

func (s *measuredStore) Ping(ctx context.Context) (err error) {
	ctx, r := s.begin(ctx, s.ping, "store.ping")
	defer r.end(&err)
	return s.Store.Ping(ctx)
}
