// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/identity"
)

// grantKinds are the ways to prove who one is that a condition may name.
var grantKinds = []string{
	identity.KindService.String(), identity.KindToken.String(), identity.KindWorkload.String(), identity.KindCertificate.String(),
}

func (g *Grant) check() error {
	if err := firstError(checkText("comment", g.Comment, maxText, false), checkText("terms", g.Terms, maxTerms, true)); err != nil {
		return err
	}
	c := &g.Conditions
	if len(c.Networks) > maxList || len(c.Groups) > maxList || len(c.Kinds) > maxList {
		return invalid("conditions", "a list has more than %d entries", maxList)
	}
	c.Networks = maskedNetworks(c.Networks)
	for _, group := range c.Groups {
		if !strings.Contains(group, ":") || len(group) > maxValue+64 || strings.ContainsFunc(group, unicode.IsControl) {
			return invalid("conditions.groups", "%q is not the id of a group", clip(group)).Try(`write "<issuer>:<group>"`)
		}
	}
	for _, kind := range c.Kinds {
		if !slices.Contains(grantKinds, kind) {
			return invalid("conditions.kinds", "%q is not one of %s", clip(kind), strings.Join(grantKinds, ", "))
		}
	}
	if !g.ExpiresAt.IsZero() && !c.NotBefore.IsZero() && !c.NotBefore.Before(g.ExpiresAt) {
		return invalid("expire_time", "the grant would end before it begins")
	}
	return nil
}

func (g *Grant) change() change {
	detail := map[string]any{"share": g.ShareName, "recipient": g.RecipientName}
	if !g.ExpiresAt.IsZero() {
		detail["expires"] = g.ExpiresAt
	}
	if g.Terms != "" {
		detail["terms"] = TermsDigest(g.Terms)
	}
	return change{"grant/" + g.ID.String(), g.Provider, detail}
}

// TermsDigest is what is accepted: the SHA-256 of the terms, hexadecimal.
func TermsDigest(terms string) string {
	sum := sha256.Sum256([]byte(terms))
	return hex.EncodeToString(sum[:])
}

// Granted is a grant with its recipient, of which its state depends.
type Granted struct {
	Grant
	Recipient Recipient
	State     State // at the time of the answer
}

func (s *Service) granted(g Grant, r Recipient) Granted {
	return Granted{g, r, g.State(&r, s.stamp())}
}

// CreateGrant gives a share to a recipient of the same organisation. A
// recipient has one grant of a share that is in force.
func (s *Service) CreateGrant(ctx context.Context, m Mutation, share, recipient string, g Grant) (Granted, error) {
	now := s.stamp()
	g.ExpiresAt, g.Conditions.NotBefore = truncate(g.ExpiresAt), truncate(g.Conditions.NotBefore)
	if err := g.check(); err != nil {
		return Granted{}, err
	}
	if !g.ExpiresAt.IsZero() && !g.ExpiresAt.After(now) {
		return Granted{}, invalid("expire_time", "lies in the past")
	}
	g.ID, g.Stamp = uuid.Must(uuid.NewV7()), newStamp(now)
	g.AcceptedBy, g.AcceptedAt, g.RevokedAt, g.RevokeReason = "", time.Time{}, time.Time{}, ""
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Granted, change, error) {
		sh, err := tx.HoldShare(ctx, share)
		if err != nil {
			return Granted{}, change{}, named(err, "share", share)
		}
		r, err := tx.Recipient(ctx, sh.Organisation, recipient)
		if err != nil {
			return Granted{}, change{}, named(err, "recipient", recipient)
		}
		others, err := tx.Grants(ctx, GrantFilter{Share: sh.ID, Recipient: r.ID}, Page{})
		if err != nil {
			return Granted{}, change{}, err
		}
		for i := range others {
			if others[i].inForce(now) {
				return Granted{}, change{}, Errorf(AlreadyExists, "GRANT_EXISTS", "recipient %q has a grant of share %q already: %s", recipient, share, others[i].ID).Try("update that one, or revoke it first")
			}
		}
		g.Share, g.Recipient, g.Provider, g.ShareName, g.RecipientName = sh.ID, r.ID, sh.Organisation, share, recipient
		err = firstError(tx.PutGrant(ctx, g), tx.TouchShares(ctx, sh.ID, uuid.Nil))
		return s.granted(g, r), g.change(), named(err, "recipient", recipient)
	})
}

func truncate(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}

// Grant returns a grant.
func (s *Service) Grant(ctx context.Context, id uuid.UUID) (Granted, error) {
	g, err := s.store.Grant(ctx, id)
	if err != nil {
		return Granted{}, storeError(named(err, "grant", id.String()))
	}
	r, err := s.store.RecipientByID(ctx, g.Recipient)
	return s.granted(g, r), storeError(named(err, "grant", id.String()))
}

// Grants lists grants by id: those of a share, of a recipient of the provider,
// of a provider, or all.
func (s *Service) Grants(ctx context.Context, provider, share, recipient string, p Page) ([]Granted, string, error) {
	f := GrantFilter{Provider: provider}
	if share != "" {
		sh, err := s.Share(ctx, share)
		if err != nil {
			return nil, "", err
		}
		f.Share = sh.ID
	}
	if recipient != "" {
		r, err := s.Recipient(ctx, provider, recipient)
		if err != nil {
			return nil, "", err
		}
		f.Recipient = r.ID
	}
	all, err := s.store.Grants(ctx, f, oneMore(p))
	if err != nil {
		return nil, "", storeError(err)
	}
	page, next := more(all, p.Limit, func(g Grant) string { return g.ID.String() })
	out := make([]Granted, 0, len(page))
	for _, g := range page {
		r, err := s.store.RecipientByID(ctx, g.Recipient)
		if err != nil {
			return nil, "", storeError(err)
		}
		out = append(out, s.granted(g, r))
	}
	return out, next, nil
}

// changeGrant changes a grant that is there.
func (s *Service) changeGrant(ctx context.Context, m Mutation, id uuid.UUID, fn func(*Grant, *Recipient) error) (Granted, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Granted, change, error) {
		g, err := tx.Grant(ctx, id)
		if err != nil {
			return Granted{}, change{}, named(err, "grant", id.String())
		}
		r, err := tx.RecipientByID(ctx, g.Recipient)
		if err != nil {
			return Granted{}, change{}, named(err, "grant", id.String())
		}
		if err := firstError(checkEtag(m, "grant", id.String(), g.Stamp), fn(&g, &r)); err != nil {
			return Granted{}, change{}, err
		}
		g.Stamp = g.Stamp.next(s.stamp())
		err = firstError(tx.PutGrant(ctx, g), tx.TouchShares(ctx, g.Share, uuid.Nil))
		return s.granted(g, r), g.change(), named(err, "grant", id.String())
	})
}

// UpdateGrant lets apply change the comment, the expiry, the conditions and
// the terms. Other terms are not accepted yet.
func (s *Service) UpdateGrant(ctx context.Context, m Mutation, id uuid.UUID, apply func(*Grant) error) (Granted, error) {
	return s.changeGrant(ctx, m, id, func(g *Grant, _ *Recipient) error {
		if !g.RevokedAt.IsZero() {
			return Errorf(FailedPrecondition, "GRANT_REVOKED", "the grant is revoked").Try("create another one")
		}
		terms := g.Terms
		if err := apply(g); err != nil {
			return err
		}
		g.ExpiresAt, g.Conditions.NotBefore = truncate(g.ExpiresAt), truncate(g.Conditions.NotBefore)
		if g.Terms != terms {
			g.AcceptedBy, g.AcceptedAt = "", time.Time{}
		}
		return g.check()
	})
}

// RevokeGrant ends a grant for good. To revoke a revoked one changes nothing
// but counts as a success.
func (s *Service) RevokeGrant(ctx context.Context, m Mutation, id uuid.UUID, reason string) (Granted, error) {
	if err := checkText("reason", reason, maxText, false); err != nil {
		return Granted{}, err
	}
	return s.changeGrant(ctx, m, id, func(g *Grant, _ *Recipient) error {
		if g.RevokedAt.IsZero() {
			g.RevokedAt, g.RevokeReason = s.stamp(), reason
		}
		return nil
	})
}

// DeleteGrant deletes a grant that is not in force.
func (s *Service) DeleteGrant(ctx context.Context, m Mutation, id uuid.UUID) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		g, err := tx.Grant(ctx, id)
		if err != nil {
			return struct{}{}, change{}, named(err, "grant", id.String())
		}
		if err := checkEtag(m, "grant", id.String(), g.Stamp); err != nil {
			return struct{}{}, change{}, err
		}
		if g.inForce(s.stamp()) {
			return struct{}{}, change{}, Errorf(FailedPrecondition, "GRANT_IN_FORCE", "the grant is in force").Try("revoke it first")
		}
		err = firstError(tx.TouchShares(ctx, g.Share, uuid.Nil), tx.DeleteGrant(ctx, id))
		return struct{}{}, g.change(), named(err, "grant", id.String())
	})
	return err
}

// Received is a grant as its recipient sees it.
type Received struct {
	Granted
	Description string // of the share
}

// maxBindingKeys bounds how many bindings are looked up for one listing.
const maxBindingKeys = 1000

// ReceivedGrants lists what a principal has received, by id.
func (s *Service) ReceivedGrants(ctx context.Context, p identity.Principal, page Page) ([]Received, string, error) {
	if disabled, err := s.disabled(ctx, p); err != nil || disabled {
		return nil, "", err
	}
	recipients := map[uuid.UUID]bool{}
	keys := bindingsOf(p)
	for _, key := range keys[:min(len(keys), maxBindingKeys)] {
		ids, err := s.store.RecipientsBound(ctx, issuerOf(p), key[0], key[1])
		if err != nil {
			return nil, "", storeError(err)
		}
		for _, id := range ids {
			recipients[id] = true
		}
	}
	var all []Received
	for id := range recipients {
		r, err := s.store.RecipientByID(ctx, id)
		if err != nil {
			return nil, "", storeError(err)
		}
		if !r.Is(p) {
			continue
		}
		grants, err := s.store.Grants(ctx, GrantFilter{Recipient: id}, Page{After: page.After, Limit: oneMore(page).Limit})
		if err != nil {
			return nil, "", storeError(err)
		}
		for _, g := range grants {
			sh, err := s.store.ShareByID(ctx, g.Share)
			if err != nil {
				return nil, "", storeError(err)
			}
			all = append(all, Received{s.granted(g, r), sh.Description})
		}
	}
	slices.SortFunc(all, func(a, b Received) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	out, next := more(all, page.Limit, func(r Received) string { return r.ID.String() })
	return out, next, nil
}

// AcceptTerms accepts the terms of a grant that a principal has received, if
// they are the ones that have that digest.
func (s *Service) AcceptTerms(ctx context.Context, m Mutation, p identity.Principal, id uuid.UUID, digest string) (Received, error) {
	if disabled, err := s.disabled(ctx, p); err != nil || disabled {
		return Received{}, firstError(err, notFound("grant", id.String()))
	}
	if p.Actor != "" {
		return Received{}, Errorf(PermissionDenied, "ACTOR_REFUSED", "terms cannot be accepted on behalf of somebody").Try("use a token without an actor")
	}
	description := ""
	if encode := m.Answer; encode != nil {
		m.Answer = func(g any) (json.RawMessage, error) { return encode(Received{g.(Granted), description}) }
	}
	if g, err := s.store.Grant(ctx, id); err == nil {
		sh, err := s.store.ShareByID(ctx, g.Share)
		if err != nil {
			return Received{}, storeError(named(err, "grant", id.String()))
		}
		description = sh.Description
	}
	granted, err := s.changeGrant(ctx, m, id, func(g *Grant, r *Recipient) error {
		if !r.Is(p) || r.Disabled {
			return notFound("grant", id.String())
		}
		switch {
		case !g.inForce(s.stamp()):
			return Errorf(FailedPrecondition, "GRANT_ENDED", "the grant is %s", g.State(r, s.stamp())).Try("ask the provider")
		case g.Terms == "":
			return Errorf(FailedPrecondition, "NO_TERMS", "the grant has no terms")
		case digest != TermsDigest(g.Terms):
			return Errorf(FailedPrecondition, "TERMS_CHANGED", "the digest is not that of the grant's terms").Try("read the terms again: they may have changed")
		case g.AcceptedAt.IsZero():
			g.AcceptedBy, g.AcceptedAt = p.ID, s.stamp()
		}
		return nil
	})
	return Received{granted, description}, err
}

// disabled reports whether a principal is shut out.
func (s *Service) disabled(ctx context.Context, p identity.Principal) (bool, error) {
	if p.Organisation == "" {
		return false, nil
	}
	rec, err := s.store.Principal(ctx, p.Organisation, p.ID)
	if err == nil || CodeOf(named(err, "", "")) == NotFound {
		return rec.Disabled, nil
	}
	return true, storeError(err)
}
