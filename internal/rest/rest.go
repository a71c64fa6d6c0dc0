// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/telemetry"
)

// Warehouse is what a client can do in one warehouse.
type Warehouse = catalog.Operations

// Config is what the handler is made of. Warehouses and Authenticate are
// required.
type Config struct {
	// Warehouses are all that are served.
	Warehouses []Warehouse
	// Owners are the organisations that own the warehouses, by name. Policies
	// decides on every operation in a warehouse; nil: who has access to it may do
	// all that the access allows.
	Owners   map[string]string
	Policies *enforce.Enforcer
	// Shares opens shares for their recipients; nil: there are none.
	Shares Shares
	// Authenticate returns who sent a request, or an *identity.Refusal.
	Authenticate func(*http.Request) (identity.Principal, error)
	// Tokens serves oauth/tokens; nil: not served and not advertised.
	Tokens http.Handler
	// Metrics and Tracer are optional.
	Metrics *telemetry.Metrics
	Tracer  *telemetry.Tracer
	// Address tells where a request comes from, for records; optional.
	Address func(*http.Request) netip.Addr
	// Audit records a read, or a refused change, before it is answered; an
	// error turns the answer into a 503. Changes that happen are recorded
	// with themselves. Optional.
	Audit  func(context.Context, Access) error
	Logger *slog.Logger
	// MaxBodyBytes bounds a request's body, and its inflated form; 64 MiB
	// when zero.
	MaxBodyBytes int64
	// CompressedCacheBytes bounds the cache of compressed metadata; 64 MiB
	// when zero.
	CompressedCacheBytes int64
	Now                  func() time.Time
}

// Shares opens shares.
type Shares interface {
	// ShareOf returns the share that a warehouse parameter or a path's prefix
	// names, false when it names none.
	ShareOf(warehouse string) (share string, ok bool)
	// Open returns a share as a principal may use it for one request. Who has
	// no grant gets a NoSuchWarehouse.
	Open(ctx context.Context, p identity.Principal, address netip.Addr, operation, share string) (catalog.Operations, error)
}

// Access is what the audit log hears of a request.
type Access struct {
	RequestID string
	Principal identity.Principal
	Address   netip.Addr
	Operation string
	Warehouse string
	Resource  string
	Status    int
	Decision  audit.Decision
	// Policies determined the decision.
	Policies []audit.Policy
}

// Handler serves the protocol.
type Handler struct {
	cfg        Config
	root       *node
	unrouted   *route // stands for requests that no route takes
	endpoints  []string
	warehouses map[string]*served
	names      []string
	compressor *compressor
	bodies     *semaphore.Weighted // bytes of large bodies
	log        *slog.Logger
}

// served is a warehouse with what answers about it have in common.
type served struct {
	catalog.Operations
	configJSON []byte // "config" of load answers
}

const (
	defaultMaxBody         = 64 << 20
	defaultCompressedCache = 64 << 20
)

// New returns the handler of the protocol, for paths that begin with /v1/.
func New(cfg Config) (*Handler, error) {
	if cfg.Authenticate == nil || len(cfg.Warehouses) == 0 {
		return nil, errors.New("rest: warehouses and authentication are required")
	}
	if cfg.MaxBodyBytes <= 0 {
		cfg.MaxBodyBytes = defaultMaxBody
	}
	if cfg.CompressedCacheBytes <= 0 {
		cfg.CompressedCacheBytes = defaultCompressedCache
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &Handler{cfg: cfg, warehouses: map[string]*served{}, log: cfg.Logger}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	for _, w := range cfg.Warehouses {
		raw, err := json.Marshal(w.ClientConfig())
		if err != nil {
			return nil, err
		}
		if len(w.ClientConfig()) == 0 {
			raw = []byte("{}")
		}
		h.warehouses[w.Name()] = &served{w, raw}
		h.names = append(h.names, w.Name())
	}
	h.compressor = newCompressor(cfg.CompressedCacheBytes)
	h.bodies = semaphore.NewWeighted(bodiesAtOnce * cfg.MaxBodyBytes)
	h.root = h.buildRoutes()
	h.endpoints = endpoints()
	return h, nil
}

// call is one request on its way through the handler.
type call struct {
	h         *Handler
	w         http.ResponseWriter
	r         *http.Request
	ctx       context.Context
	route     *route
	params    params
	requestID string
	principal identity.Principal
	warehouse *served
	share     bool           // warehouse is a share, whose owner's labels are not for recipients
	guard     *enforce.Guard // of the warehouse; nil when no policy restricts it
	resource  string
	body      []byte
	held      int64 // bytes of the body that count against Handler.bodies
	mutation  catalog.Mutation
	decision  audit.Decision // undecided until identity and access have been looked at
	status    int            // of the answer, once sent
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{h: h, w: w, r: r, requestID: requestID(r)}
	w.Header().Set("X-Request-Id", c.requestID)
	c.ctx = telemetry.WithRequestID(r.Context(), c.requestID)
	var routeErr error
	c.route, c.params, routeErr = h.match(r)
	defer c.observe()()
	defer c.recover()
	defer c.release()
	if err := c.serve(routeErr); err != nil {
		c.fail(err)
	}
}

// observe starts to measure the request; the function that it returns ends
// that, however the request has ended.
func (c *call) observe() (end func()) {
	start := c.h.cfg.Now()
	ctx, span := c.h.cfg.Tracer.Request(c.ctx, c.r, c.route.pattern)
	c.ctx = ctx
	if c.route.metrics != nil {
		c.route.metrics.Begin()
	}
	return func() {
		took := c.h.cfg.Now().Sub(start)
		if c.route.metrics != nil {
			c.route.metrics.End(c.status, took)
		}
		telemetry.EndRequest(span, c.status)
		if c.h.log.Enabled(c.ctx, slog.LevelDebug) {
			c.h.log.DebugContext(c.ctx, "request", "operation", c.route.operation, "method", c.r.Method, "status", c.status,
				c.who(), "took", took)
		}
	}
}

// recover turns a panic into a 500 that says nothing of it but where to look.
func (c *call) recover() {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // a sentinel that is compared, by its documentation
		panic(p)
	}
	if c.h.cfg.Metrics != nil {
		c.h.cfg.Metrics.Panicked()
	}
	c.h.log.ErrorContext(c.ctx, "panic", "operation", c.route.operation, "panic", p, "stack", stack())
	c.fail(catalog.Errorf(catalog.Internal, "Internal error"))
}

// serve takes the steps that all operations have in common.
func (c *call) serve(routeErr error) error {
	if c.route.handler != nil { // oauth/tokens brings its own everything
		rec := &statusWriter{ResponseWriter: c.w}
		c.route.handler.ServeHTTP(rec, c.r.WithContext(c.ctx))
		c.status = rec.status
		return nil
	}
	if routeErr != nil {
		return routeErr
	}
	var err error
	if c.principal, err = c.h.cfg.Authenticate(c.r); err != nil {
		var refusal *identity.Refusal
		if errors.As(err, &refusal) {
			c.decision = audit.Deny
		}
		return err
	}
	if c.route.warehouse {
		if err := c.enterWarehouse(); err != nil {
			return err
		}
	}
	c.decision = audit.Allow
	if err := c.readBody(); err != nil {
		return err
	}
	if !c.route.mutation {
		return c.route.serve(c)
	}
	done, err := c.replay()
	if err != nil || done {
		return err
	}
	if err := c.route.serve(c); err != nil {
		return c.conclude(err)
	}
	return nil
}

// enterWarehouse finds the warehouse that the prefix names. One that the
// principal may not see does not exist for it.
func (c *call) enterWarehouse() error {
	name, err := decodeSegment(c.params.prefix)
	if err != nil {
		return catalog.Errorf(catalog.BadRequest, "prefix: %s", err.Error())
	}
	if share, ok := c.shareOf(name); ok {
		return c.enterShare(share)
	}
	wh, ok := c.h.warehouses[name]
	access := c.principal.Access(name)
	if !ok || access == identity.AccessNone {
		c.decision = audit.Deny
		return catalog.Errorf(catalog.NoSuchWarehouse, "Warehouse does not exist: %s", clip(name))
	}
	if c.warehouse, err = c.enter(wh); err != nil {
		c.decision = audit.Deny
		return err
	}
	if c.route.write && access < identity.AccessWrite {
		c.nameResource()
		c.decision = audit.Deny
		return catalog.Errorf(catalog.Forbidden, "%s needs write access to the warehouse %s; %s has read access", c.route.operation, name, c.principal.ID)
	}
	c.setMutation()
	return nil
}

func (c *call) setMutation() {
	c.mutation = catalog.Mutation{
		Caller:    catalog.Caller{Principal: c.principal.ID, Actor: c.principal.Actor, RequestID: c.requestID},
		Operation: c.route.operation,
	}
	if c.route.mutation {
		c.mutation.Address, c.mutation.Decision = c.address(), audit.Allow
	}
}

// shareOf returns the share that a name stands for.
func (c *call) shareOf(name string) (string, bool) {
	if c.h.cfg.Shares == nil {
		return "", false
	}
	return c.h.cfg.Shares.ShareOf(name)
}

// enterShare opens a share, in which nothing can be changed.
func (c *call) enterShare(share string) error {
	ops, err := c.h.cfg.Shares.Open(c.ctx, c.principal, c.address(), c.route.operation, share)
	if guard, ok := ops.(*enforce.Guard); ok {
		c.guard = guard
	}
	if err != nil {
		c.decision = audit.Deny
		return err
	}
	c.warehouse, c.share = &served{ops, []byte("{}")}, true
	if c.route.write {
		c.nameResource()
		c.decision = audit.Deny
		return catalog.Errorf(catalog.Forbidden, "%s would change the share %s; a share is read-only", c.route.operation, share)
	}
	c.setMutation()
	return nil
}

// enter asks policy for a warehouse as the principal may use it.
func (c *call) enter(wh *served) (*served, error) {
	if c.h.cfg.Policies == nil {
		return wh, nil
	}
	ops, err := c.h.cfg.Policies.Enter(c.ctx, wh.Operations, enforce.Request{
		Principal: c.principal, Address: c.address(), Operation: c.route.operation, Owner: c.h.cfg.Owners[wh.Name()],
	})
	guard, guarded := ops.(*enforce.Guard)
	if guarded {
		c.guard = guard
	}
	switch {
	case err != nil:
		return nil, err
	case guarded:
		return &served{guard, wh.configJSON}, nil
	}
	return wh, nil
}

// address is where the request comes from.
func (c *call) address() netip.Addr {
	if c.h.cfg.Address == nil {
		return netip.Addr{}
	}
	return c.h.cfg.Address(c.r)
}

// who names the principal in a log line and, when there is one, who acts for
// it: a group without a name, whose attributes stand in the line itself.
func (c *call) who() slog.Attr {
	attrs := []any{slog.String("principal", c.principal.ID)}
	if c.principal.Actor != "" {
		attrs = append(attrs, slog.String("actor", c.principal.Actor))
	}
	return slog.Group("", attrs...)
}

// nameResource notes what the path is about, for the record of a refusal that
// comes before the path is decoded. A path that names nothing leaves it out.
func (c *call) nameResource() {
	switch {
	case c.params.name != "":
		_, _ = c.ident()
	case c.params.namespace != "":
		_, _ = c.namespace()
	}
}

// requestID takes over the client's id when it is harmless, or makes one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" && len(id) <= 64 && strings.IndexFunc(id, func(c rune) bool {
		return !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_' || c == '.')
	}) < 0 {
		return id
	}
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// statusWriter remembers the status of a handler that is not ours.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusWriter) WriteHeader(status int) {
	if s.status == 0 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *statusWriter) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(b)
}

// Unwrap serves http.ResponseController.
func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
