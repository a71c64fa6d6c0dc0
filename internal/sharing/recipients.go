// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/secret"
)

// maxValue bounds the value of a claim in bytes, as package identity does.
const maxValue = 512

func (s *Service) checkRecipient(r *Recipient) error {
	if err := firstError(checkName("name", r.Name), checkText("display_name", r.DisplayName, maxText, false)); err != nil {
		return err
	}
	if r.Organisation != "" {
		if err := checkName("organisation", r.Organisation); err != nil {
			return err
		}
	}
	b := &r.Binding
	kind, known := s.cfg.Issuers[b.Issuer]
	switch b.Kind {
	case BoundByToken:
		if !known && b.Issuer != AccountIssuer {
			return invalid("token.issuer", "%q is not an issuer of this server", clip(b.Issuer)).Try(`name one of the configuration, or "account" for service accounts of this server`)
		}
		if b.Claim != ClaimSubject && b.Claim != ClaimOrganisation && b.Claim != ClaimGroup {
			if err := identity.CheckAttribute(b.Claim, identity.TypeString); err != nil {
				return invalid("token.claim", "%q is neither organisation, subject or group nor the name of an attribute", clip(b.Claim))
			}
		}
		return checkValue("token.value", b.Value)
	case BoundByCertificate:
		if !known || kind != identity.IssuerMTLS {
			return invalid("certificate.issuer", "%q is not an issuer of certificates of this server", clip(b.Issuer)).Try("name an issuer of kind mtls of the configuration")
		}
		b.Claim = ClaimSubject
		return checkValue("certificate.subject", b.Value)
	case BoundByActivation:
		if s.activations == nil {
			return Errorf(FailedPrecondition, "ACTIVATION_OFF", "this server makes no activation links").Try("bind the recipient to a token or a certificate")
		}
		return nil
	}
	return invalid("binding", "a recipient is bound by a token, a certificate or an activation link: give one").Try("set token, certificate or activation")
}

func checkValue(field, v string) error {
	if v == "" {
		return invalid(field, "is required")
	}
	return checkText(field, v, maxValue, false)
}

func (r *Recipient) change() change {
	return change{"recipient/" + r.Provider + "/" + r.Name, r.Provider, map[string]any{
		"issuer": r.Binding.Issuer, "claim": r.Binding.Claim, "value": r.Binding.Value, "recipient-organisation": r.Organisation, "disabled": r.Disabled,
	}}
}

// NewLink is an activation link that was made, to be shown once.
type NewLink struct {
	Recipient Recipient
	Token     secret.Value
	URL       secret.Value // empty without a public URI
	Expires   time.Time
}

// CreateRecipient creates a recipient; with a binding by activation it makes
// its link.
func (s *Service) CreateRecipient(ctx context.Context, m Mutation, r Recipient, lifetime time.Duration) (NewLink, error) {
	if r.Binding.Kind == BoundByActivation {
		r.Binding = Binding{Kind: BoundByActivation}
	} else if lifetime != 0 {
		return NewLink{}, invalid("activation_lifetime", "is for a binding by activation")
	}
	if err := s.checkRecipient(&r); err != nil {
		return NewLink{}, err
	}
	r.ID, r.Stamp = uuid.Must(uuid.NewV7()), newStamp(s.stamp())
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (NewLink, change, error) {
		if err := holdOrganisation(ctx, tx, r.Provider); err != nil {
			return NewLink{}, change{}, err
		}
		if err := named(tx.PutRecipient(ctx, r), "recipient", r.Name); err != nil {
			return NewLink{}, change{}, err
		}
		if r.Binding.Kind != BoundByActivation {
			return NewLink{Recipient: r}, r.change(), nil
		}
		link, err := s.link(ctx, tx, r, lifetime)
		return link, r.change(), err
	})
}

// link makes the one link of a recipient that can be used.
func (s *Service) link(ctx context.Context, tx Tx, r Recipient, lifetime time.Duration) (NewLink, error) {
	n := identity.NewActivation{Recipient: r.ID.String(), Organisation: r.Organisation, Lifetime: lifetime}
	if err := n.Check(); err != nil {
		return NewLink{}, invalid("activation_lifetime", "%s", err.Error())
	}
	if err := tx.VoidActivations(ctx, r.ID); err != nil {
		return NewLink{}, err
	}
	a, token, err := s.activations.Create(context.WithValue(ctx, txKey{}, tx), n)
	if err != nil {
		return NewLink{}, err
	}
	r.Binding.LinkExpires = a.Expires
	r.Stamp = r.Stamp.next(s.stamp())
	link := NewLink{Recipient: r, Token: token, Expires: a.Expires}
	if s.cfg.PublicURI != "" {
		link.URL = secret.New(s.cfg.PublicURI + "/activate#" + token.Reveal())
	}
	return link, tx.PutRecipient(ctx, r)
}

// CreateLink makes a new link of a recipient that is bound by activation; the
// one before is void. One that has been activated stays bound until the new
// link is spent.
func (s *Service) CreateLink(ctx context.Context, m Mutation, provider, name string, lifetime time.Duration) (NewLink, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (NewLink, change, error) {
		r, err := tx.Recipient(ctx, provider, name)
		if err != nil {
			return NewLink{}, change{}, named(err, "recipient", name)
		}
		if r.Binding.Kind != BoundByActivation || s.activations == nil {
			return NewLink{}, change{}, Errorf(FailedPrecondition, "NOT_BOUND_BY_ACTIVATION", "recipient %q is not bound by an activation link", name).Try("make a recipient with an activation binding")
		}
		link, err := s.link(ctx, tx, r, lifetime)
		return link, change{"recipient/" + provider + "/" + name, provider, map[string]any{"link-expires": link.Expires}}, named(err, "recipient", name)
	})
}

// Activate spends a link: the caller is the recipient from then on.
func (s *Service) Activate(ctx context.Context, m Mutation, who Caller, token string) (Recipient, error) {
	if s.activations == nil {
		return Recipient{}, Errorf(FailedPrecondition, "ACTIVATION_OFF", "this server makes no activation links")
	}
	a, err := s.activations.Redeem(context.WithValue(ctx, mutationKey{}, m), who.Principal, who.Address, token)
	var throttled *identity.ActivationThrottledError
	var own *Error
	switch {
	case errors.As(err, &own):
		return Recipient{}, own
	case errors.As(err, &throttled):
		return Recipient{}, Errorf(ResourceExhausted, "TOO_MANY_ATTEMPTS", "%s", throttled.Error()).Try("try again in %s", throttled.RetryAfter.Round(time.Second))
	case errors.Is(err, identity.ErrActivationUnknown):
		return Recipient{}, Errorf(NotFound, "LINK_UNKNOWN", "%s", identity.ErrActivationUnknown.Error())
	case errors.Is(err, identity.ErrActivationExpired), errors.Is(err, identity.ErrActivationUsed):
		return Recipient{}, Errorf(FailedPrecondition, "LINK_SPENT", "%s", err.Error())
	case errors.Is(err, identity.ErrActivationForbidden):
		return Recipient{}, Errorf(PermissionDenied, "LINK_FORBIDDEN", "%s", err.Error())
	case err != nil:
		return Recipient{}, storeError(err)
	}
	id, err := uuid.Parse(a.Recipient)
	if err != nil {
		return Recipient{}, storeError(err)
	}
	r, err := s.store.RecipientByID(ctx, id)
	return r, storeError(named(err, "recipient", a.Recipient))
}

type (
	txKey       struct{}
	mutationKey struct{}
)

// activationStore implements identity.ActivationStore. Links are made in the
// transaction that the context has, and spent with the mutation that it has.
type activationStore struct{ s *Service }

func (a activationStore) AddActivation(ctx context.Context, link identity.Activation) error {
	if tx, ok := ctx.Value(txKey{}).(Tx); ok {
		return tx.AddActivation(ctx, link)
	}
	return a.s.store.Update(ctx, func(tx Tx) error { return tx.AddActivation(ctx, link) })
}

func (a activationStore) Activation(ctx context.Context, id string) (identity.Activation, error) {
	return a.s.store.Activation(ctx, id)
}

func (a activationStore) UseActivation(ctx context.Context, id string, by identity.Binding, at time.Time) error {
	m, _ := ctx.Value(mutationKey{}).(Mutation)
	_, err := mutate(ctx, a.s, m, func(ctx context.Context, tx Tx) (Recipient, change, error) {
		link, err := tx.Activation(ctx, id)
		switch {
		case err != nil:
			return Recipient{}, change{}, err
		case link.UsedBy != (identity.Binding{}):
			return Recipient{}, change{}, identity.ErrActivationUsed
		case !at.Before(link.Expires):
			return Recipient{}, change{}, identity.ErrActivationExpired
		}
		if err := tx.SpendActivation(ctx, id, by, at); err != nil {
			if errors.Is(err, ErrStale) {
				err = identity.ErrActivationUsed
			}
			return Recipient{}, change{}, err
		}
		rid, err := uuid.Parse(link.Recipient)
		if err != nil {
			return Recipient{}, change{}, err
		}
		r, err := tx.RecipientByID(ctx, rid)
		if err != nil {
			return Recipient{}, change{}, err
		}
		if r.Disabled {
			return Recipient{}, change{}, Errorf(FailedPrecondition, "RECIPIENT_DISABLED", "the recipient that the link is for is disabled").Try("ask the provider")
		}
		r.Binding = Binding{
			Kind: BoundByActivation, Issuer: by.Issuer, Claim: ClaimSubject, Value: by.Subject,
			LinkExpires: r.Binding.LinkExpires, ActivatedAt: at.UTC().Truncate(time.Millisecond),
		}
		if by.Issuer == "" {
			r.Binding.Issuer = AccountIssuer
		}
		r.Stamp = r.Stamp.next(a.s.stamp())
		if err := tx.PutRecipient(ctx, r); err != nil {
			return Recipient{}, change{}, err
		}
		return r, r.change(), tx.TouchShares(ctx, uuid.Nil, r.ID)
	})
	// Others than an Error are as identity.ActivationStore wants them.
	var e *Error
	if errors.As(err, &e) && e.Cause != nil && (errors.Is(e.Cause, identity.ErrActivationUsed) || errors.Is(e.Cause, identity.ErrActivationUnknown) || errors.Is(e.Cause, identity.ErrActivationExpired)) {
		return e.Cause
	}
	return err
}

// Recipient returns a provider's recipient.
func (s *Service) Recipient(ctx context.Context, provider, name string) (Recipient, error) {
	return read(s.store.Recipient(ctx, provider, name))("recipient", name)
}

// Recipients lists those of one provider, or of all, by provider and name.
func (s *Service) Recipients(ctx context.Context, provider string, p Page) ([]Recipient, string, error) {
	all, err := s.store.Recipients(ctx, provider, oneMore(p))
	page, next := more(all, p.Limit, func(r Recipient) string { return Key(r.Provider, r.Name) })
	return page, next, storeError(err)
}

// UpdateRecipient lets apply change all but the provider, the name, and a
// binding by activation.
func (s *Service) UpdateRecipient(ctx context.Context, m Mutation, provider, name string, apply func(*Recipient) error) (Recipient, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Recipient, change, error) {
		r, err := tx.Recipient(ctx, provider, name)
		if err != nil {
			return r, change{}, named(err, "recipient", name)
		}
		if err := firstError(checkEtag(m, "recipient", name, r.Stamp), apply(&r), s.checkRecipient(&r)); err != nil {
			return r, change{}, err
		}
		r.Stamp = r.Stamp.next(s.stamp())
		if r.Binding.Kind != BoundByActivation {
			if err := tx.VoidActivations(ctx, r.ID); err != nil {
				return r, change{}, err
			}
		}
		err = firstError(tx.PutRecipient(ctx, r), tx.TouchShares(ctx, uuid.Nil, r.ID))
		return r, r.change(), named(err, "recipient", name)
	})
}

// DeleteRecipient deletes a recipient with its grants; with grants that are in
// force only if force is set.
func (s *Service) DeleteRecipient(ctx context.Context, m Mutation, provider, name string, force bool) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		r, err := tx.Recipient(ctx, provider, name)
		if err != nil {
			return struct{}{}, change{}, named(err, "recipient", name)
		}
		if err := checkEtag(m, "recipient", name, r.Stamp); err != nil {
			return struct{}{}, change{}, err
		}
		grants, err := tx.Grants(ctx, GrantFilter{Recipient: r.ID}, Page{})
		if err != nil {
			return struct{}{}, change{}, err
		}
		if n := s.inForce(grants); n > 0 && !force {
			return struct{}{}, change{}, Errorf(FailedPrecondition, "RECIPIENT_GRANTED", "recipient %q has %d grants", name, n).Try("revoke the grants first, or force the deletion")
		}
		err = firstError(tx.TouchShares(ctx, uuid.Nil, r.ID), tx.DeleteRecipient(ctx, r.ID))
		return struct{}{}, change{"recipient/" + provider + "/" + name, provider, map[string]any{"grants": len(grants)}}, named(err, "recipient", name)
	})
	return err
}

// maskedNetworks writes networks without bits below their length.
func maskedNetworks(networks []netip.Prefix) []netip.Prefix {
	for i, n := range networks {
		networks[i] = n.Masked()
	}
	return networks
}

// ActivationStore keeps activation links beside the recipients that they are
// for.
func (s *Service) ActivationStore() identity.ActivationStore { return activationStore{s} }
