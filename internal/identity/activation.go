// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// An activation link ties a recipient, which an owner of data knows by an
// agreement, to an identity, which an issuer knows: whoever holds the link
// redeems it while signed in, and the recipient is bound to the issuer and
// subject of that caller. The link itself gives no access to anything.
//
// A link is "slact_", an id of 16 bytes and a secret of 32 bytes, both random
// and in unpadded base64url, with a dot between. The id finds the link; the
// secret is stored as its SHA-256 only. 256 random bits need no slow hash.

// How long a link may be redeemed.
const (
	DefaultActivationLifetime = 24 * time.Hour
	MinActivationLifetime     = time.Minute
	MaxActivationLifetime     = 7 * 24 * time.Hour
)

const (
	activationPrefix    = "slact_"
	activationIDBytes   = 16
	activationSumBytes  = sha256.Size
	activationIDChars   = 22 // of 16 bytes in base64
	activationLinkChars = len(activationPrefix) + activationIDChars + 1 + 43
)

// What [Activations.Redeem] and an [ActivationStore] return; match with
// errors.Is. Messages are written for the caller.
var (
	// ErrActivationUnknown is for a link that does not exist, or whose secret
	// is wrong: which of them is not told.
	ErrActivationUnknown = errors.New("the activation link is not valid; copy the whole of it, or ask for a new one")
	// ErrActivationExpired and ErrActivationUsed are told to who has the
	// secret.
	ErrActivationExpired = errors.New("the activation link has expired; ask for a new one")
	ErrActivationUsed    = errors.New("the activation link was used already, and works once; ask for a new one")
	// ErrActivationForbidden is for a caller who may not redeem the link.
	ErrActivationForbidden = errors.New("the activation link cannot be redeemed by this caller")
)

// ActivationThrottledError is that a caller or an address has tried too many
// links that are not valid.
type ActivationThrottledError struct{ RetryAfter time.Duration }

// Error returns the message, which is written for the caller.
func (e *ActivationThrottledError) Error() string {
	return "too many activation links that are not valid come from this caller or address; try again later"
}

// Binding is the identity that a recipient is bound to: the name of a
// configured issuer, "" for accounts of the catalog itself, and the subject as
// the issuer knows it.
type Binding struct{ Issuer, Subject string }

// Activation is a link as it is stored, without its secret.
type Activation struct {
	// ID is unique; it is in the link and no secret.
	ID string
	// Sum is the SHA-256 of the secret's 32 bytes.
	Sum [sha256.Size]byte
	// Recipient is what is activated, by the id that the store knows.
	Recipient string
	// Organisation, when it is not "", must be that of the caller.
	Organisation string
	// Created and Expires are whole seconds in UTC. From Expires on the link
	// is of no use.
	Created, Expires time.Time
	// UsedBy is who has redeemed the link, at Used; both are zero before.
	UsedBy Binding
	Used   time.Time
}

// ActivationStore keeps links, beside the recipients that they are for. It is
// implemented where recipients are; package activationtest has the tests that
// an implementation must pass.
type ActivationStore interface {
	// AddActivation stores a new link.
	AddActivation(ctx context.Context, a Activation) error
	// Activation returns the link with an id, used and expired ones too, or
	// ErrActivationUnknown.
	Activation(ctx context.Context, id string) (Activation, error)
	// UseActivation, in one transaction, sets UsedBy and Used of a link that
	// is not used and has not expired at the time at, binds its recipient to
	// the caller, and records the change in the audit log. Of several at once,
	// for one link, one succeeds. Otherwise it changes nothing and returns
	// ErrActivationUnknown, ErrActivationUsed or ErrActivationExpired, in
	// this order of importance. It may refuse a binding with an error of its
	// own, as when the identity is another recipient's: then the link stays
	// unused.
	UseActivation(ctx context.Context, id string, by Binding, at time.Time) error
}

// Activations makes and redeems activation links. It is safe for concurrent
// use.
type Activations struct {
	store   ActivationStore
	now     func() time.Time
	observe func(kind, outcome string)

	perPrincipal, perAddress *throttle
}

// Activations returns what makes and redeems the links of a store, with the
// clock, the limits and the metrics of the service: attempts are of kind
// "activation".
func (s *Service) Activations(store ActivationStore) *Activations {
	l := s.cfg.Limits
	return &Activations{
		store: store, now: s.cfg.Now, observe: s.cfg.Observe,
		perPrincipal: newThrottle(l.ClientFailures, l.Window, s.cfg.Now),
		perAddress:   newThrottle(l.AddressFailures, l.Window, s.cfg.Now),
	}
}

// NewActivation says what a link is for.
type NewActivation struct {
	Recipient string
	// Organisation, when it is known, keeps a link that has gone astray from
	// being redeemed by principals of others.
	Organisation string
	// Lifetime is DefaultActivationLifetime when zero.
	Lifetime time.Duration
}

// Check reports what is wrong with a request for a link.
func (n NewActivation) Check() error {
	if err := checkName(n.Recipient); err != nil {
		return fmt.Errorf("the recipient's id %w", err)
	}
	if n.Organisation != "" {
		if err := checkName(n.Organisation); err != nil {
			return fmt.Errorf("the organisation %w", err)
		}
	}
	if n.Lifetime != 0 && (n.Lifetime < MinActivationLifetime || n.Lifetime > MaxActivationLifetime) {
		return fmt.Errorf("the lifetime must be between %s and %s", MinActivationLifetime, MaxActivationLifetime)
	}
	return nil
}

// Create makes a link and stores it. The link's text is returned here and
// never again; it belongs to the recipient alone. Who may create one is for
// the caller to decide.
func (a *Activations) Create(ctx context.Context, n NewActivation) (Activation, secret.Value, error) {
	if err := n.Check(); err != nil {
		return Activation{}, secret.Value{}, err
	}
	lifetime := n.Lifetime
	if lifetime == 0 {
		lifetime = DefaultActivationLifetime
	}
	raw := make([]byte, activationIDBytes+activationSumBytes)
	rand.Read(raw) //nolint:errcheck // never fails (crypto/rand)
	id, key := base64.RawURLEncoding.EncodeToString(raw[:activationIDBytes]), raw[activationIDBytes:]
	created := a.now().UTC().Truncate(time.Second)
	link := Activation{
		ID: id, Sum: sha256.Sum256(key), Recipient: n.Recipient, Organisation: n.Organisation,
		Created: created, Expires: created.Add(lifetime),
	}
	if err := a.store.AddActivation(ctx, link); err != nil {
		return Activation{}, secret.Value{}, fmt.Errorf("store an activation link: %w", err)
	}
	return link, secret.New(activationPrefix + id + "." + base64.RawURLEncoding.EncodeToString(key)), nil
}

// Redeem binds the recipient of a link to a caller, who has been
// authenticated, and returns the link as it is then. A repetition by the same
// caller succeeds too, since the first answer may have been lost, and changes
// nothing. Errors are those above, an [*ActivationThrottledError], or the
// store's; none holds a part of the secret.
func (a *Activations) Redeem(ctx context.Context, p Principal, from netip.Addr, link string) (Activation, error) {
	if err := mayRedeem(p); err != nil {
		a.observe("activation", "refused")
		return Activation{}, err
	}
	// Taken ahead of the work, so that attempts at the same time all count.
	address := throttleAddress(from)
	wait := a.perAddress.take(address)
	if wait == 0 {
		if wait = a.perPrincipal.take(p.ID); wait > 0 {
			a.perAddress.refund(address)
		}
	}
	if wait > 0 {
		a.observe("activation", "throttled")
		return Activation{}, &ActivationThrottledError{RetryAfter: wait}
	}
	found, err := a.redeem(ctx, p, link)
	switch {
	case err == nil:
		a.observe("activation", "ok")
	case errors.Is(err, ErrActivationUnknown):
		a.observe("activation", "refused")
		return Activation{}, err
	case errors.Is(err, ErrActivationExpired), errors.Is(err, ErrActivationUsed), errors.Is(err, ErrActivationForbidden):
		a.observe("activation", "refused")
	default:
		a.observe("activation", "unavailable")
	}
	// The secret was right, or nothing was found out about it.
	a.perAddress.refund(address)
	a.perPrincipal.refund(p.ID)
	if err != nil {
		return Activation{}, err
	}
	return found, nil
}

// mayRedeem refuses whoever has not proved to be the one to be bound.
func mayRedeem(p Principal) error {
	switch {
	case p.Kind == KindAnonymous || p.ID == "" || p.Subject == "":
		return fmt.Errorf("%w: sign in first, or use a client certificate", ErrActivationForbidden)
	case p.Actor != "":
		return fmt.Errorf("%w: it calls on behalf of another; use a token without an actor", ErrActivationForbidden)
	case p.signOnly:
		return fmt.Errorf("%w: its token is for the signer alone", ErrActivationForbidden)
	}
	return nil
}

func (a *Activations) redeem(ctx context.Context, p Principal, text string) (Activation, error) {
	id, key, err := parseActivation(text)
	if err != nil {
		return Activation{}, err
	}
	link, err := a.store.Activation(ctx, id)
	if err != nil && !errors.Is(err, ErrActivationUnknown) {
		return Activation{}, fmt.Errorf("look for an activation link: %w", err)
	}
	// Without a link this compares with a sum of zeros, which no secret has
	// that anybody knows.
	sum := sha256.Sum256(key)
	if right := subtle.ConstantTimeCompare(sum[:], link.Sum[:]) == 1; err != nil || !right || link.ID != id {
		return Activation{}, ErrActivationUnknown
	}
	by, now := Binding{Issuer: p.Issuer, Subject: p.Subject}, a.now()
	switch {
	case link.UsedBy == by:
		return link, nil
	case link.UsedBy != (Binding{}):
		return Activation{}, ErrActivationUsed
	case !now.Before(link.Expires):
		return Activation{}, ErrActivationExpired
	case link.Organisation != "" && link.Organisation != p.Organisation:
		return Activation{}, fmt.Errorf("%w: it is for principals of another organisation", ErrActivationForbidden)
	}
	err = a.store.UseActivation(ctx, id, by, now)
	switch {
	case errors.Is(err, ErrActivationUsed):
		// By the same caller, if both requests came at once.
		if again, err := a.store.Activation(ctx, id); err == nil && again.UsedBy == by {
			return again, nil
		}
		return Activation{}, ErrActivationUsed
	case errors.Is(err, ErrActivationUnknown), errors.Is(err, ErrActivationExpired):
		return Activation{}, err
	case err != nil:
		return Activation{}, fmt.Errorf("redeem an activation link: %w", err)
	}
	link.UsedBy, link.Used = by, now
	return link, nil
}

// parseActivation takes a link's text apart: exactly one text has an id and a
// secret.
func parseActivation(text string) (id string, key []byte, err error) {
	rest, ok := strings.CutPrefix(text, activationPrefix)
	if !ok || len(text) != activationLinkChars {
		return "", nil, ErrActivationUnknown
	}
	id, encoded, ok := strings.Cut(rest, ".")
	if !ok || len(id) != activationIDChars {
		return "", nil, ErrActivationUnknown
	}
	strict := base64.RawURLEncoding.Strict()
	if raw, err := strict.DecodeString(id); err != nil || len(raw) != activationIDBytes {
		return "", nil, ErrActivationUnknown
	}
	if key, err = strict.DecodeString(encoded); err != nil || len(key) != activationSumBytes {
		return "", nil, ErrActivationUnknown
	}
	return id, key, nil
}
