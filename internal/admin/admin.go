// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/sharing"
	connectv1 "github.com/sluice-data/sluice/proto/sluice/admin/v1/adminv1connect"
)

// Prefix begins the path of every operation.
const Prefix = "/sluice.admin.v1."

// Config is what the handler is made of. Sharing and Authenticate are
// required.
type Config struct {
	Sharing *sharing.Service
	// Authenticate returns who sent a request, or an *identity.Refusal.
	Authenticate func(*http.Request) (identity.Principal, error)
	// Address tells where a request comes from; optional.
	Address func(*http.Request) netip.Addr
	// Administrators are the ids of principals that may do everything.
	Administrators []string
	// Audit is what the audit service reads; nil: it is not served.
	Audit *AuditSource
	// Record is told each decision before it is answered; an error is the
	// answer then. Optional.
	Record func(context.Context, Access) error
	// Stopping ends streams when it is closed; optional.
	Stopping <-chan struct{}
	// Version is the server's, for WhoAmI.
	Version string
	// MaxMessageBytes bounds a request; 20 MiB when zero.
	MaxMessageBytes int
	Logger          *slog.Logger
	Now             func() time.Time
}

// Access is a decision on an operation.
type Access struct {
	RequestID string
	Principal identity.Principal
	Address   netip.Addr
	Procedure string
	Resource  Resource
	Decision  audit.Decision
	Changes   bool // whether the operation changes something
}

// Operation is the name in records: "createShare".
func (a Access) Operation() string { return operationOf(a.Procedure) }

func operationOf(procedure string) string {
	name := procedure[strings.LastIndexByte(procedure, '/')+1:]
	if name == "" {
		return ""
	}
	return strings.ToLower(name[:1]) + name[1:]
}

const defaultMaxMessage = 20 << 20

// server implements every service.
type server struct {
	cfg     Config
	sharing *sharing.Service
	admins  map[string]bool
	log     *slog.Logger
	errors  *connect.ErrorWriter
}

var errNobody = errors.New("credentials are required: send a bearer token, or a client certificate")

// New returns the handler of all services, for paths that begin with Prefix.
func New(cfg Config) (http.Handler, error) {
	if cfg.Sharing == nil || cfg.Authenticate == nil {
		return nil, errors.New("admin: sharing and authentication are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxMessageBytes <= 0 {
		cfg.MaxMessageBytes = defaultMaxMessage
	}
	s := &server{cfg: cfg, sharing: cfg.Sharing, admins: map[string]bool{}, log: cfg.Logger}
	for _, id := range cfg.Administrators {
		s.admins[id] = true
	}
	options := []connect.HandlerOption{
		connect.WithInterceptors(connect.UnaryInterceptorFunc(s.intercept)),
		connect.WithReadMaxBytes(cfg.MaxMessageBytes),
		connect.WithRecover(s.recovered),
		connect.WithCompressMinBytes(1024),
	}
	s.errors = connect.NewErrorWriter(options...)
	mux := http.NewServeMux()
	handle := func(path string, h http.Handler) { mux.Handle(path, h) }
	handle(connectv1.NewOrganisationServiceHandler(s, options...))
	handle(connectv1.NewPrincipalServiceHandler(s, options...))
	handle(connectv1.NewServiceAccountServiceHandler(s, options...))
	handle(connectv1.NewWarehouseServiceHandler(s, options...))
	handle(connectv1.NewShareServiceHandler(s, options...))
	handle(connectv1.NewRecipientServiceHandler(s, options...))
	handle(connectv1.NewGrantServiceHandler(s, options...))
	handle(connectv1.NewPolicyServiceHandler(s, options...))
	if cfg.Audit != nil {
		handle(connectv1.NewAuditServiceHandler(s, options...))
	}
	return s.authenticated(mux), nil
}

// authenticated finds out who asks before anything of the request is read.
func (s *server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := requestID(r)
		w.Header().Set("X-Request-Id", id)
		c, err := s.identify(r, id)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		if streams[r.URL.Path] {
			// A stream lasts as long as its reader.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// streams are the operations whose answer has no end.
var streams = map[string]bool{connectv1.AuditServiceTailAuditProcedure: true, connectv1.AuditServiceExportAuditProcedure: true}

// refuse answers a request whose sender is not known.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var refusal *identity.Refusal
	out := s.wireError(r.Context(), err)
	if errors.As(err, &refusal) {
		code := map[int]connect.Code{
			http.StatusUnauthorized: connect.CodeUnauthenticated, http.StatusForbidden: connect.CodePermissionDenied,
			http.StatusTooManyRequests: connect.CodeResourceExhausted, http.StatusServiceUnavailable: connect.CodeUnavailable,
		}[refusal.Status]
		if code == 0 {
			code = connect.CodeUnauthenticated
		}
		if refusal.Challenge != "" {
			w.Header().Set("WWW-Authenticate", refusal.Challenge)
		}
		out = connect.NewError(code, errors.New(refusal.Message))
	}
	if !s.errors.IsSupported(r) {
		http.Error(w, out.Error(), http.StatusUnsupportedMediaType)
		return
	}
	_ = s.errors.Write(w, r, out)
}

// intercept applies the operation's rule to each unary call, and gives its
// error the form of the wire.
func (s *server) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := s.authorise(ctx, req.Spec().Procedure, req.Any()); err != nil {
			return nil, s.wireError(ctx, err)
		}
		res, err := next(ctx, req)
		return res, s.wireError(ctx, err)
	}
}

func (s *server) recovered(ctx context.Context, spec connect.Spec, _ http.Header, p any) error {
	s.log.ErrorContext(ctx, "administration: panic", "operation", operationOf(spec.Procedure), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	return connectError(&sharing.Error{Code: sharing.Internal, Reason: "INTERNAL", Message: "Internal error"})
}

// requestID is the caller's, when it is plain and short, or a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	plain := len(id) > 0 && len(id) <= 128
	for i := 0; plain && i < len(id); i++ {
		c := id[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	}
	if plain {
		return id
	}
	var raw [16]byte
	rand.Read(raw[:]) //nolint:errcheck // never fails (crypto/rand)
	return hex.EncodeToString(raw[:])
}
