// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/sluice-data/sluice/internal/admin"
	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
)

// openShares opens what is kept of organisations, shares and policies. It
// comes before identity, which knows its service accounts.
func (s *Server) openShares(ctx context.Context, _ Options) error {
	own, ok := s.store.Store.(*sqlstore.Store)
	if !ok {
		return fmt.Errorf("shares cannot be kept in a %T", s.store.Store)
	}
	var err error
	s.sqlStore = own
	s.shareStore, err = store.Open(ctx, own)
	return err
}

// openSharing opens the service of shares. It comes after identity, which
// makes activation links, and after the warehouses.
func (s *Server) openSharing(ctx context.Context, _ Options) error {
	schema, err := policySchema(s.cfg)
	if err != nil {
		return err
	}
	issuers := map[string]identity.IssuerKind{}
	for i := range s.cfg.Issuers {
		issuers[s.cfg.Issuers[i].Name] = identity.IssuerKind(s.cfg.Issuers[i].Kind)
	}
	accounts := map[string]bool{}
	for _, a := range s.cfg.Accounts {
		accounts[a.ClientID] = true
	}
	s.sharing, err = sharing.New(sharing.Config{
		Store: s.shareStore, Issuers: issuers, Activations: s.ids.Activations, PublicURI: s.cfg.PublicURI, Schema: schema, Table: s.policyTable,
		ReservedClient: func(id string) bool { return accounts[id] }, Logger: s.log,
	})
	if err != nil {
		return err
	}
	for i, w := range s.warehouses {
		c := s.cfg.Warehouses[i]
		if err := s.sharing.AdoptWarehouse(ctx, w.Name(), w.ID(), c.Organisation, c.Storage.Root); err != nil {
			return fmt.Errorf("warehouse %s: %w", w.Name(), err)
		}
	}
	return nil
}

// policyTable finds a table that policies are checked against.
func (s *Server) policyTable(ctx context.Context, warehouse string, id catalog.Ident) (*policy.Table, error) {
	for _, w := range s.warehouses {
		if w.Name() != warehouse {
			continue
		}
		obj, err := w.LookupTable(ctx, id)
		if r := catalog.ReasonOf(err); err != nil && (r == catalog.NoSuchTable || r == catalog.NoSuchNamespace) {
			return nil, sharing.ErrNotFound
		}
		if err != nil {
			return nil, err
		}
		owner, err := s.ownerOf(ctx, warehouse)
		if err != nil {
			return nil, err
		}
		return s.policies.Table(ctx, w, owner, obj)
	}
	return nil, sharing.ErrNotFound
}

// ownerOf is the organisation of a warehouse, "" for none.
func (s *Server) ownerOf(ctx context.Context, warehouse string) (string, error) {
	w, err := s.shareStore.Warehouse(ctx, warehouse)
	if errors.Is(err, sharing.ErrNotFound) {
		return "", nil
	}
	return w.Organisation, err
}

// lookupAccount finds a service account that an administrator has made.
func (s *Server) lookupAccount(ctx context.Context, clientID string) (*identity.Account, error) {
	a, err := s.shareStore.ServiceAccount(ctx, clientID)
	if errors.Is(err, sharing.ErrNotFound) || err == nil && a.Disabled {
		return nil, nil
	}
	if err != nil {
		s.log.WarnContext(ctx, "a service account cannot be looked up", "error", err)
		return nil, err
	}
	account := &identity.Account{ClientID: a.ClientID, Organisation: a.Organisation}
	now := time.Now()
	for _, k := range a.Secrets {
		if !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) {
			continue
		}
		h, err := identity.ParseHash(k.Hash)
		if err != nil {
			return nil, fmt.Errorf("secret %s of service account %s: %w", k.ID, a.ClientID, err)
		}
		account.Secrets = append(account.Secrets, h)
	}
	return account, nil
}

// authenticate returns who sent a request. Tokens of accounts that were
// deleted or disabled are refused at once, though they have been verified
// before.
func (s *Server) authenticate(r *http.Request) (identity.Principal, error) {
	p, err := s.ids.Authenticate(r)
	if err != nil || p.Kind != identity.KindService || s.configured[p.Subject] {
		return p, err
	}
	account, err := s.lookupAccount(r.Context(), p.Subject)
	switch {
	case err != nil:
		return identity.Principal{}, &identity.Refusal{
			Status: http.StatusServiceUnavailable, RetryAfter: time.Second, Cause: err, Message: "The token's account cannot be looked up now; try again",
		}
	case account == nil || account.Organisation != p.Organisation:
		return identity.Principal{}, &identity.Refusal{
			Status: http.StatusUnauthorized, Message: "Not authorized: the token is not valid or has expired",
			Challenge: `Bearer realm="sluice", error="invalid_token", error_description="The access token is not valid or has expired"`,
		}
	}
	return p, nil
}

// adminHandler serves the administration interface.
func (s *Server) adminHandler(address func(*http.Request) netip.Addr) (http.Handler, error) {
	admins := append([]string(nil), s.cfg.Admin...)
	for _, a := range s.cfg.Accounts {
		if a.Admin {
			admins = append(admins, "account:"+a.ClientID)
		}
	}
	c := admin.Config{
		Sharing: s.sharing, Authenticate: s.authenticate, Address: address, Administrators: admins,
		Audit: &admin.AuditSource{
			Store: s.store, Before: s.sqlStore.AuditBefore, Administration: s.shareStore.Administration(), Keys: s.auditKeys,
			KeptSince: func(now time.Time) time.Time { return KeptSince(s.cfg, now) },
		},
		Stopping: s.stopping, Version: BuildInfo().Version, Logger: s.log,
	}
	if s.reads != nil {
		c.Record = s.recordAdmin
	}
	return admin.New(c)
}

// recordAdmin hands decisions on the administration interface to the audit log:
// those on reads, and refusals. Changes that happen are recorded with
// themselves.
func (s *Server) recordAdmin(ctx context.Context, a admin.Access) error {
	if a.Decision == audit.Allow && a.Changes {
		return nil
	}
	err := s.reads.Append(ctx, audit.Record{
		Kind: audit.KindDecision, Time: time.Now(), RequestID: a.RequestID, Principal: a.Principal.ID, Actor: a.Principal.Actor, Address: a.Address,
		Operation: a.Operation(), Resource: a.Resource.String(), Decision: a.Decision,
	})
	if err != nil {
		return &sharing.Error{Code: sharing.Unavailable, Reason: "AUDIT_FULL", Message: "The request cannot be recorded in the audit log now", Next: "try again", Cause: err}
	}
	return nil
}

// chains are the warehouses' audit chains, and that of the administration.
func (s *Server) chains() []catalog.AuditChain {
	all := make([]catalog.AuditChain, 0, len(s.warehouses)+1)
	for _, w := range s.warehouses {
		all = append(all, w.AuditChain())
	}
	return append(all, catalog.AuditChain{ID: s.shareStore.Administration(), Source: administration})
}

// policySources are the sets in force: those of the configuration, and for who
// has none there those that were activated.
type policySources struct {
	configured enforce.Fixed
	activated  sharing.ActivePolicies
}

func (p policySources) Revision(ctx context.Context) (int64, error) { return p.activated.Revision(ctx) }

func (p policySources) Active(ctx context.Context, o enforce.Owner) (enforce.Active, error) {
	if a, ok := p.configured[o]; ok {
		return a, nil
	}
	return p.activated.Active(ctx, o)
}
