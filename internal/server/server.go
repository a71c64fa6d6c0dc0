// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/sluice-data/sluice/internal/admin"
	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/audittable"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/rest"
	"github.com/sluice-data/sluice/internal/server/config"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
	"github.com/sluice-data/sluice/internal/telemetry"
)

// Options are what a [Server] is made of.
type Options struct {
	Config *config.Config
	// StaticTokens are fixed bearer tokens, for development.
	StaticTokens []identity.StaticToken
	// MetricsOnCatalog serves /metrics on the catalog's listener, to
	// principals that have access to any warehouse.
	MetricsOnCatalog bool
	// Log is where logs go, and the audit log if it goes to stderr.
	Log io.Writer
}

// Server is an open catalogd. Serve it, then it is closed.
type Server struct {
	cfg     *config.Config
	log     *slog.Logger
	metrics *telemetry.Metrics
	tracer  *telemetry.Tracer
	reads   *audit.Log // nil when reads are not recorded
	// signer signs checkpoints of the audit log, nil without a key; auditKeys
	// verify them.
	signer    *audit.Signer
	auditKeys audit.Keys
	exports   []export
	// auditTable is nil when audit.table is not configured.
	auditTable *audittable.Table

	store  *measuredStore
	ids    *identity.Service
	health *health
	// policies decide on what is done in warehouses.
	policies *enforce.Enforcer

	// sqlStore is what store measures; shareStore lies in the same database.
	sqlStore   *sqlstore.Store
	shareStore *store.Store
	sharing    *sharing.Service
	configured map[string]bool // client ids of accounts of the configuration
	stopping   chan struct{}   // closed when requests that have no end should end

	warehouses []*catalog.Warehouse
	servers    []*endpoint // the catalog's first
	// cleanup are what must be undone, newest last.
	cleanup []func(context.Context) error
}

// endpoint is one listener with its server.
type endpoint struct {
	name  string
	http  *http.Server
	l     net.Listener
	certs *certificates // nil without TLS
}

// Open opens everything that the configuration names and listens; requests
// wait until Serve. On an error nothing is left open.
func Open(ctx context.Context, o Options) (*Server, error) {
	s := &Server{cfg: o.Config, configured: map[string]bool{}, stopping: make(chan struct{})}
	for _, a := range o.Config.Accounts {
		s.configured[a.ClientID] = true
	}
	for _, step := range []func(context.Context, Options) error{
		s.openTelemetry, s.openAudit, s.openStore, s.openShares, s.openIdentity, s.openPolicies, s.openWarehouses, s.openSharing, s.openExports, s.openListeners,
	} {
		if err := step(ctx, o); err != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
			defer cancel()
			return nil, errors.Join(err, s.close(closing))
		}
	}
	return s, nil
}

func (s *Server) onClose(f func(context.Context) error) { s.cleanup = append(s.cleanup, f) }

// close undoes what was opened, newest first.
func (s *Server) close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(s.cleanup) {
		errs = append(errs, f(ctx))
	}
	s.cleanup = nil
	return errors.Join(errs...)
}

func (s *Server) openTelemetry(ctx context.Context, o Options) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.cfg.Logging.Level)); err != nil {
		return fmt.Errorf("logging.level: %w", err)
	}
	var err error
	if s.log, err = telemetry.NewLogger(o.Log, s.cfg.Logging.Format, level); err != nil {
		return err
	}
	build, t := BuildInfo(), s.cfg.Telemetry
	s.metrics = telemetry.NewMetrics(telemetry.MetricsOptions{Version: build.Version, Commit: build.Commit, ReportsByTable: t.ReportsByTable})
	trace := telemetry.TraceOptions{
		Endpoint: t.OTLPEndpoint, SampleRatio: t.SampleRatio, Service: t.ServiceName, Version: build.Version, Headers: secretsOf(t.OTLPHeaders),
	}
	if s.tracer, err = telemetry.NewTracer(ctx, trace); err != nil {
		return err
	}
	s.onClose(s.tracer.Close)
	if s.tracer.Enabled() {
		// The library reports failed exports through a global only, and
		// would print them. The process has one server.
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { s.log.Warn("traces could not be exported", "error", err) }))
	}
	return nil
}

func (s *Server) openAudit(_ context.Context, o Options) error {
	c := s.cfg.Audit
	var err error
	if s.signer, s.auditKeys, err = auditKeys(c); err != nil {
		return err
	}
	if s.signer == nil {
		s.log.Warn("the audit log is chained but not signed: who can write it can rewrite it; set audit.signing_key")
	}
	opts := audit.Options{
		Capacity: c.Queue, Wait: c.OnFull == "wait", Logger: s.log, Signer: s.signer,
		CheckpointRecords: c.CheckpointRecords, CheckpointInterval: c.CheckpointInterval,
	}
	switch c.Reads {
	case "off":
		return nil
	case "stderr":
		s.reads, err = audit.NewWriter(o.Log, opts)
	default:
		s.reads, err = audit.OpenFile(c.Reads, opts)
	}
	if err != nil {
		return err
	}
	s.onClose(s.reads.Close)
	s.metrics.Gauge("sluice_audit_queue_length", "Audit records of reads that wait to be written.", func() float64 {
		waiting, _, _ := s.reads.Stats()
		return float64(waiting)
	})
	s.metrics.Counter("sluice_audit_records_total", "Audit records of reads that were written.", func() float64 {
		_, written, _ := s.reads.Stats()
		return float64(written)
	})
	s.metrics.Counter("sluice_audit_refused_total", "Requests refused because the audit queue was full.", func() float64 {
		_, _, refused := s.reads.Stats()
		return float64(refused)
	})
	return nil
}

func (s *Server) openStore(ctx context.Context, _ Options) error {
	store, err := openStore(ctx, s.cfg.Store)
	if err != nil {
		return err
	}
	s.onClose(func(context.Context) error { return store.Close() })
	if err := checkSchema(ctx, store, s.cfg.Store.AutoMigrate); err != nil {
		return err
	}
	s.store = measureStore(store, s.metrics, s.tracer)
	s.health = &health{ping: s.store.Ping, log: s.log}
	return nil
}

func (s *Server) openIdentity(_ context.Context, o Options) error {
	c, err := identityConfig(s.cfg)
	if err != nil {
		return err
	}
	c.StaticTokens, c.Logger, c.Observe, c.ObserveIssuer = o.StaticTokens, s.log, s.metrics.Authentication, s.metrics.IssuerRequest
	if s.reads != nil {
		c.Record = s.recordToken
	}
	c.LookupAccount = s.lookupAccount
	if s.ids, err = identity.New(c); err != nil {
		return fmt.Errorf("accounts: %w", err)
	}
	return nil
}

// identityConfig turns the configuration into that of package identity.
func identityConfig(c *config.Config) (identity.Config, error) {
	var err error
	ic := identity.Config{
		Issuer: c.OwnIssuer(), TokenLifetime: c.Tokens.Lifetime, MaxSession: c.Tokens.MaxSession,
		Limits: identity.Limits{
			Window: c.Limits.Failures.Window, ClientFailures: c.Limits.Failures.PerClient,
			AddressFailures: c.Limits.Failures.PerAddress, TokenFailures: c.Limits.Failures.Tokens,
		},
	}
	ic.Audience = ic.Issuer
	if !c.Tokens.SigningKey.Value.Empty() {
		if ic.SigningKey, err = identity.ParseSigningKey(c.Tokens.SigningKey.Value); err != nil {
			return ic, fmt.Errorf("tokens.signing_key: %w", err)
		}
	}
	for i := range c.Issuers {
		ic.Issuers = append(ic.Issuers, c.Issuers[i].Identity())
	}
	for i, k := range c.Tokens.PreviousKeys {
		key, err := identity.ParseVerifyKey(k.Value)
		if err != nil {
			return ic, fmt.Errorf("tokens.previous_keys[%d]: %w", i, err)
		}
		ic.PreviousKeys = append(ic.PreviousKeys, key)
	}
	for _, p := range c.Limits.TrustedProxies {
		prefix, err := netip.ParsePrefix(p)
		if err != nil {
			return ic, fmt.Errorf("limits.trusted_proxies: %w", err)
		}
		ic.TrustedProxies = append(ic.TrustedProxies, prefix)
	}
	for _, a := range c.Accounts {
		account := identity.Account{ClientID: a.ClientID, Organisation: a.Organisation, ActFor: a.ActFor}
		for _, h := range a.Secrets {
			account.Secrets = append(account.Secrets, h.Value)
		}
		for _, g := range a.Grants {
			account.Grants = append(account.Grants, identity.Grant{Warehouse: g.Warehouse, Access: config.AccessOf(g.Access)})
		}
		ic.Accounts = append(ic.Accounts, account)
	}
	return ic, nil
}

func (s *Server) openWarehouses(ctx context.Context, _ Options) error {
	cache := catalog.NewMetadataCache(int64(s.cfg.Cache.MetadataBytes))
	s.metrics.Gauge("sluice_metadata_cache_bytes", "Bytes of table and view metadata in the cache.", func() float64 { return float64(cache.WeightedSize()) })
	observe := objectObserver(s.metrics)
	for _, w := range s.cfg.Warehouses {
		bucket, err := objstore.Open(ctx, profileOf(w.Storage), objstore.Options{Observe: observe})
		if err != nil {
			return fmt.Errorf("warehouse %s: %w", w.Name, err)
		}
		s.onClose(func(context.Context) error { return bucket.Close() })
		cfg := warehouseConfig(w, s.store, bucket)
		cfg.Watcher = sharing.NewWatcher(s.shareStore)
		cfg.Cache, cfg.Observer, cfg.Logger = cache, s.metrics, s.log.With("warehouse", w.Name)
		table := s.cfg.Audit.Table
		if table != nil && table.Warehouse == w.Name {
			cfg.Reserved = audittable.Ident
		}
		warehouse, err := catalog.OpenWarehouse(ctx, cfg)
		if err != nil {
			return err
		}
		s.onClose(func(context.Context) error { warehouse.Close(); return nil })
		s.warehouses = append(s.warehouses, warehouse)
		if cfg.Reserved.Name != "" {
			s.auditTable = &audittable.Table{Warehouse: warehouse, Files: bucket, Keep: table.Keep, Logger: s.log}
		}
	}
	return nil
}

func (s *Server) openListeners(ctx context.Context, o Options) error {
	handler, err := s.catalogHandler(o.MetricsOnCatalog)
	if err != nil {
		return err
	}
	if err := s.listen(ctx, "catalog", s.cfg.Listeners.Catalog, handler, s.ids.AsksForCertificates()); err != nil {
		return err
	}
	if s.cfg.Listeners.Metrics.Address == "" {
		return nil
	}
	mux := http.NewServeMux()
	s.health.register(mux)
	mux.Handle("GET /metrics", s.metrics.Handler())
	return s.listen(ctx, "metrics", config.Listener(s.cfg.Listeners.Metrics), mux, false)
}

func (s *Server) listen(ctx context.Context, name string, c config.Listener, handler http.Handler, askClients bool) error {
	l, certs, err := listen(ctx, c, askClients, s.log)
	if err != nil {
		return fmt.Errorf("listeners.%s: %w", name, err)
	}
	limits := s.cfg.Limits
	e := &endpoint{name: name, l: l, certs: certs, http: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: limits.ReadHeaderTimeout,
		ReadTimeout:       limits.ReadTimeout,
		WriteTimeout:      limits.WriteTimeout,
		IdleTimeout:       limits.IdleTimeout,
		MaxHeaderBytes:    int(limits.HeaderBytes),
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 250},
		// gRPC without TLS begins with HTTP/2 at once.
		Protocols: new(http.Protocols),
	}}
	e.http.Protocols.SetHTTP1(true)
	e.http.Protocols.SetHTTP2(true)
	e.http.Protocols.SetUnencryptedHTTP2(true)
	s.servers = append(s.servers, e)
	s.onClose(func(context.Context) error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	if c.Insecure {
		s.log.Warn("this listener serves plain HTTP off loopback, as insecure: true asks", "listener", name, "address", l.Addr().String())
	}
	return nil
}

// catalogHandler is the protocol, probes and, on request, metrics.
func (s *Server) catalogHandler(metrics bool) (http.Handler, error) {
	c := rest.Config{
		Authenticate: s.authenticate, Metrics: s.metrics, Tracer: s.tracer, Logger: s.log,
		MaxBodyBytes: int64(s.cfg.Limits.BodyBytes),
	}
	accounts, err := identityConfig(s.cfg)
	if err != nil {
		return nil, err
	}
	c.Address = func(r *http.Request) netip.Addr { return identity.ClientAddress(r, accounts.TrustedProxies) }
	for _, w := range s.warehouses {
		c.Warehouses = append(c.Warehouses, w)
	}
	if s.cfg.Tokens.OAuthEndpoint {
		c.Tokens = s.ids.TokenEndpoint()
	}
	if s.reads != nil {
		c.Audit = s.recordRead
	}
	c.Owners, c.Policies = owners(s.cfg), s.policies
	protocol, err := rest.New(c)
	if err != nil {
		return nil, err
	}
	administration, err := s.adminHandler(c.Address)
	if err != nil {
		return nil, err
	}
	probes := http.NewServeMux()
	s.health.register(probes)
	if metrics {
		probes.Handle("GET /metrics", s.authenticated(s.metrics.Handler()))
	}
	// The protocol has its own rules for paths, which a ServeMux in front
	// would clean and redirect.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p := r.URL.Path; {
		case strings.HasPrefix(p, "/health/") && path.Clean(p) == p, p == "/metrics" && metrics:
			probes.ServeHTTP(w, r)
		case strings.HasPrefix(p, admin.Prefix):
			administration.ServeHTTP(w, r)
		default:
			protocol.ServeHTTP(w, r)
		}
	}), nil
}

// recordRead hands what the protocol reports to the audit log.
func (s *Server) recordRead(ctx context.Context, a rest.Access) error {
	err := s.reads.Append(ctx, audit.Record{
		Kind: audit.KindDecision, Time: time.Now(), RequestID: a.RequestID, Principal: a.Principal.ID, Actor: a.Principal.Actor,
		Address: a.Address, Operation: a.Operation, Warehouse: a.Warehouse, Resource: a.Resource, Status: a.Status, Decision: a.Decision,
		Policies: a.Policies,
	})
	if err != nil {
		return &catalog.Error{Reason: catalog.Unavailable, Message: "The request cannot be recorded in the audit log now; try again", Cause: err, RetryAfter: time.Second}
	}
	return nil
}

// recordToken hands what the token endpoint reports to the audit log.
func (s *Server) recordToken(ctx context.Context, t identity.TokenRequest) error {
	r := audit.Record{
		Kind: audit.KindDecision, Time: time.Now(), RequestID: telemetry.RequestID(ctx), Principal: t.Principal, Actor: t.Actor,
		Address: t.Address, Operation: "getToken", Status: t.Status,
	}
	switch {
	case t.Denied:
		r.Decision = audit.Deny
	case t.Status == http.StatusOK:
		r.Decision = audit.Allow
	}
	if t.Grant != "" {
		detail, err := json.Marshal(map[string]string{"grant": t.Grant})
		if err != nil {
			return err
		}
		r.Detail = detail
	}
	return s.reads.Append(ctx, r)
}

// authenticated lets principals through that have access to any warehouse.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := s.authenticate(r)
		var refusal *identity.Refusal
		if errors.As(err, &refusal) {
			if refusal.Challenge != "" {
				w.Header().Set("WWW-Authenticate", refusal.Challenge)
			}
			http.Error(w, refusal.Message, refusal.Status)
			return
		}
		for _, wh := range s.warehouses {
			if err == nil && p.Access(wh.Name()) > identity.AccessNone {
				next.ServeHTTP(w, r)
				return
			}
		}
		http.Error(w, "Forbidden", http.StatusForbidden)
	})
}

// Address is where the catalog listens.
func (s *Server) Address() net.Addr { return s.servers[0].l.Addr() }

// Reload reads certificates again and opens the audit log's file anew, as
// SIGHUP asks.
func (s *Server) Reload(ctx context.Context) {
	for _, e := range s.servers {
		if e.certs != nil {
			e.certs.reload()
		}
	}
	s.ids.Reload()
	if s.reads != nil {
		if err := s.reads.Reopen(ctx); err != nil {
			s.log.Error("the audit log cannot be opened anew; the open one stays in use", "error", err)
		}
	}
	s.log.Info("reloaded")
}

// Serve answers requests until ctx ends, drains, and closes everything. While
// it drains, now ends the waiting. The error is nil when every request was
// finished.
func (s *Server) Serve(ctx context.Context, now <-chan struct{}) error {
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	var workers sync.WaitGroup
	maintenance := &catalog.Maintenance{
		Store: s.store, Warehouses: s.warehouses, Interval: s.cfg.Maintenance.Interval,
		KeepReports: s.cfg.Maintenance.KeepReports, KeepEvents: s.cfg.Maintenance.KeepEvents, Logger: s.log,
	}
	workers.Go(func() { maintenance.Run(background) })
	workers.Go(func() { s.ids.Run(background) })
	sealer := s.sealer()
	s.runExports(background, workers.Go)
	workers.Go(func() { sealer.Run(background) })

	failed := make(chan error, len(s.servers))
	for _, e := range s.servers {
		workers.Go(func() {
			if err := e.http.Serve(e.l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("listener %s: %w", e.name, err)
			}
		})
		s.log.Info("listening", "listener", e.name, "address", e.l.Addr().String(), "tls", e.certs != nil)
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		s.log.Error("a listener failed; the server ends", "error", err)
	}
	err = errors.Join(err, s.drain(now))
	stopBackground()
	workers.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	err = errors.Join(err, s.close(closing))
	if err == nil {
		s.log.Info("ended")
	}
	return err
}

// closeLimit is how long closing may take after the requests have ended: the
// audit queue and the last traces.
const closeLimit = 10 * time.Second

// ErrCut is in the chain when requests were cut off.
var ErrCut = errors.New("requests were cut off")

// drain stops accepting and waits for the requests that run, within the
// limit and until now.
func (s *Server) drain(now <-chan struct{}) error {
	s.health.draining.Store(true)
	s.log.Info("draining", "delay", s.cfg.Drain.Delay.String(), "limit", s.cfg.Drain.Limit.String())
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-now:
			cancel(errors.New("a second signal came"))
		case <-time.After(s.cfg.Drain.Delay + s.cfg.Drain.Limit):
			cancel(fmt.Errorf("the limit of %s is over", s.cfg.Drain.Limit))
		case <-ended:
		}
	}()
	select {
	case <-time.After(s.cfg.Drain.Delay):
	case <-ctx.Done():
	}
	close(s.stopping)
	var errs []error
	// The catalog first: probes and metrics are answered until it has ended.
	for _, e := range s.servers {
		if err := e.http.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%w on listener %s: %w", ErrCut, e.name, context.Cause(ctx)), e.http.Close())
		}
	}
	return errors.Join(errs...)
}
