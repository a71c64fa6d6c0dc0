// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
)

// Role is the highest role of a caller.
type Role int

// The roles.
const (
	RoleNone Role = iota
	RoleOrganisation
	RolePlatform
)

// caller is who asks, for one request.
type caller struct {
	sharing.Caller
	role      Role
	disabled  bool
	requestID string
	since     time.Time // when the request came
}

type callerKey struct{}

// who returns the caller of a request; the zero caller is nobody.
func who(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{}
}

// identify finds out who asks and which role it has.
func (s *server) identify(r *http.Request, requestID string) (*caller, error) {
	p, err := s.cfg.Authenticate(r)
	if err != nil {
		return nil, err
	}
	c := &caller{Caller: sharing.Caller{Principal: p}, requestID: requestID, since: s.cfg.Now()}
	if s.cfg.Address != nil {
		c.Address = s.cfg.Address(r)
	}
	return c, s.giveRole(r.Context(), c)
}

// giveRole looks up what is recorded of a caller.
func (s *server) giveRole(ctx context.Context, c *caller) error {
	c.role, c.disabled = RoleNone, false
	if c.ID == "" || c.Kind == identity.KindAnonymous {
		return nil
	}
	var record sharing.Principal
	if c.Organisation != "" {
		var err error
		if record, err = s.sharing.Principal(ctx, c.Organisation, c.ID); err != nil && sharing.CodeOf(err) != sharing.NotFound {
			return err
		}
	}
	c.disabled = record.Disabled
	switch {
	case c.Actor != "" || c.SignOnly() || record.Disabled:
	case s.admins[c.ID]:
		c.role = RolePlatform
	case record.Admin:
		c.role = RoleOrganisation
	}
	return nil
}

// allows is the decision on an operation.
func allows(c *caller, action policy.Action, r Resource) bool {
	switch c.role {
	case RolePlatform:
		return true
	case RoleOrganisation:
		return action != ManagePlatform && r.Organisation != "" && r.Organisation == c.Organisation
	}
	return false
}

// authorise applies the rule of an operation, and records the decision.
func (s *server) authorise(ctx context.Context, procedure string, req any) error {
	c := who(ctx)
	access := Access{RequestID: c.requestID, Principal: c.Principal, Address: c.Address, Procedure: procedure, Decision: audit.Allow, Changes: changes(procedure)}
	err := s.check(ctx, procedure, req, &access.Resource)
	if err != nil {
		access.Decision = audit.Deny
	}
	if s.cfg.Record != nil {
		// What cannot be recorded is refused.
		if failed := s.cfg.Record(ctx, access); failed != nil {
			return failed
		}
	}
	return err
}

// check applies the rule of an operation; about, when it is not nil, gets what
// the operation is about.
func (s *server) check(ctx context.Context, procedure string, req any, about *Resource) error {
	c := who(ctx)
	rule, ok := rules[procedure]
	switch {
	case !ok:
		return &sharing.Error{Code: sharing.Internal, Reason: "INTERNAL", Message: "Internal error: the operation has no rule"}
	case c.ID == "" || c.Kind == identity.KindAnonymous:
		return connect.NewError(connect.CodeUnauthenticated, errNobody)
	case c.SignOnly():
		return &sharing.Error{Code: sharing.PermissionDenied, Reason: "TOKEN_SCOPE", Message: "the token is for the signer alone", Next: "use a token without that scope"}
	case c.disabled:
		return &sharing.Error{Code: sharing.PermissionDenied, Reason: "PRINCIPAL_DISABLED", Message: "the principal is disabled", Next: "ask an administrator of your organisation"}
	case rule.about == nil:
		return nil
	}
	r, err := rule.about(ctx, s, req)
	if err != nil {
		return err
	}
	if about != nil {
		*about = r
	}
	if !allows(c, rule.action, r) {
		return r.refusal()
	}
	return nil
}

// scope is the organisation that a listing is about: the one that is named,
// else the caller's, else, for a platform administrator, all ("").
func (s *server) scope(ctx context.Context, named string) string {
	if named != "" {
		return named
	}
	if c := who(ctx); c.role != RolePlatform {
		return c.Organisation
	}
	return ""
}

// ownOr is the organisation that something belongs to: the one that is named,
// else the caller's.
func (s *server) ownOr(ctx context.Context, named string) string {
	if named != "" {
		return named
	}
	return who(ctx).Organisation
}
