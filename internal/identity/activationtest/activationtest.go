// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package activationtest has the tests that every [identity.ActivationStore]
// must pass, and the simplest one that does.
package activationtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/identity"
)

// Memory keeps links in memory. The zero Memory is empty.
type Memory struct {
	mu    sync.Mutex
	links map[string]identity.Activation
	// Bound are the recipients' bindings; read it when nobody else does.
	Bound map[string][]identity.Binding
	// Refuse, when it is set, is what UseActivation returns for a binding that
	// it does not take.
	Refuse func(recipient string, by identity.Binding) error
}

// AddActivation implements [identity.ActivationStore].
func (m *Memory) AddActivation(_ context.Context, a identity.Activation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.links[a.ID]; ok {
		return errors.New("there is a link with this id")
	}
	if m.links == nil {
		m.links, m.Bound = map[string]identity.Activation{}, map[string][]identity.Binding{}
	}
	m.links[a.ID] = a
	return nil
}

// Activation implements [identity.ActivationStore].
func (m *Memory) Activation(_ context.Context, id string) (identity.Activation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.links[id]
	if !ok {
		return identity.Activation{}, identity.ErrActivationUnknown
	}
	return a, nil
}

// UseActivation implements [identity.ActivationStore].
func (m *Memory) UseActivation(_ context.Context, id string, by identity.Binding, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.links[id]
	switch {
	case !ok:
		return identity.ErrActivationUnknown
	case !a.Used.IsZero():
		return identity.ErrActivationUsed
	case !at.Before(a.Expires):
		return identity.ErrActivationExpired
	}
	if m.Refuse != nil {
		if err := m.Refuse(a.Recipient, by); err != nil {
			return err
		}
	}
	a.UsedBy, a.Used = by, at
	m.links[id] = a
	m.Bound[a.Recipient] = append(m.Bound[a.Recipient], by)
	return nil
}

// Subject is a store under test. Recipients returns the ids of two recipients
// that exist in it and are not bound; Bound tells what one is bound to, the
// zero Binding for nothing.
type Subject struct {
	identity.ActivationStore
	Recipients [2]string
	Bound      func(ctx context.Context, recipient string) (identity.Binding, error)
}

// Run holds a store to the contract. open returns a new empty one.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	link := func(s Subject, n int) identity.Activation {
		return identity.Activation{
			ID: fmt.Sprintf("id-%d-AAAAAAAAAAAAAAAAA", n), Sum: sha256.Sum256([]byte{byte(n)}), Recipient: s.Recipients[n%2], Organisation: "acme",
			Created: now, Expires: now.Add(time.Hour),
		}
	}
	alice, bob := identity.Binding{Issuer: "corp", Subject: "alice"}, identity.Binding{Subject: "bob"}

	t.Run("keeps what it is given", func(t *testing.T) {
		s, ctx := open(t), t.Context()
		first, second := link(s, 0), link(s, 1)
		second.Organisation = ""
		for _, a := range []identity.Activation{first, second} {
			if err := s.AddActivation(ctx, a); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []identity.Activation{first, second} {
			got, err := s.Activation(ctx, want.ID)
			if err != nil || !equal(got, want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, want)
			}
		}
		if err := s.AddActivation(ctx, first); err == nil {
			t.Error("two links have one id")
		}
		if got, err := s.Activation(ctx, "id-2-AAAAAAAAAAAAAAAAA"); !errors.Is(err, identity.ErrActivationUnknown) {
			t.Errorf("a link that there is not: %+v, %v", got, err)
		}
	})

	t.Run("is used once", func(t *testing.T) {
		s, ctx := open(t), t.Context()
		a, other := link(s, 0), link(s, 1)
		for _, a := range []identity.Activation{a, other} {
			if err := s.AddActivation(ctx, a); err != nil {
				t.Fatal(err)
			}
		}
		at := now.Add(time.Minute)
		if err := s.UseActivation(ctx, a.ID, alice, at); err != nil {
			t.Fatal(err)
		}
		if err := s.UseActivation(ctx, a.ID, bob, at); !errors.Is(err, identity.ErrActivationUsed) {
			t.Errorf("a second use: %v", err)
		}
		// Used is more important than expired: it tells that there is nothing
		// left to be done.
		if err := s.UseActivation(ctx, a.ID, bob, a.Expires); !errors.Is(err, identity.ErrActivationUsed) {
			t.Errorf("a second use after the end: %v", err)
		}
		got, err := s.Activation(ctx, a.ID)
		if want := a; err != nil || got.UsedBy != alice || !got.Used.Equal(at) {
			t.Errorf("after its use: %+v, %v; was %+v", got, err, want)
		}
		for recipient, want := range map[string]identity.Binding{a.Recipient: alice, other.Recipient: {}} {
			if got, err := s.Bound(ctx, recipient); err != nil || got != want {
				t.Errorf("%s is bound to %+v, %v; want %+v", recipient, got, err, want)
			}
		}
		if got, err := s.Activation(ctx, other.ID); err != nil || !equal(got, other) {
			t.Errorf("another link: %+v, %v", got, err)
		}
	})

	t.Run("expires", func(t *testing.T) {
		s, ctx := open(t), t.Context()
		a := link(s, 0)
		if err := s.AddActivation(ctx, a); err != nil {
			t.Fatal(err)
		}
		if err := s.UseActivation(ctx, a.ID, alice, a.Expires); !errors.Is(err, identity.ErrActivationExpired) {
			t.Errorf("at its end: %v", err)
		}
		if err := s.UseActivation(ctx, "id-2-AAAAAAAAAAAAAAAAA", alice, now); !errors.Is(err, identity.ErrActivationUnknown) {
			t.Errorf("a link that there is not: %v", err)
		}
		if got, err := s.Bound(ctx, a.Recipient); err != nil || got != (identity.Binding{}) {
			t.Errorf("bound to %+v, %v", got, err)
		}
		if err := s.UseActivation(ctx, a.ID, alice, a.Expires.Add(-time.Second)); err != nil {
			t.Errorf("just before its end: %v", err)
		}
	})

	t.Run("has one winner", func(t *testing.T) {
		s, ctx := open(t), t.Context()
		a := link(s, 0)
		if err := s.AddActivation(ctx, a); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var won atomic.Pointer[identity.Binding]
		for n := range 20 {
			by := identity.Binding{Issuer: "corp", Subject: fmt.Sprint(n)}
			wg.Go(func() {
				switch err := s.UseActivation(ctx, a.ID, by, now); {
				case err == nil:
					if before := won.Swap(&by); before != nil {
						t.Errorf("%+v and %+v have both redeemed one link", *before, by)
					}
				case !errors.Is(err, identity.ErrActivationUsed):
					t.Errorf("%+v: %v", by, err)
				}
			})
		}
		wg.Wait()
		by := won.Load()
		if by == nil {
			t.Fatal("of twenty at once none has redeemed the link")
		}
		if got, err := s.Bound(ctx, a.Recipient); err != nil || got != *by {
			t.Errorf("bound to %+v, %v; want %+v", got, err, *by)
		}
	})
}

// equal compares links, times as instants.
func equal(a, b identity.Activation) bool {
	same := a.Created.Equal(b.Created) && a.Expires.Equal(b.Expires) && a.Used.Equal(b.Used)
	a.Created, a.Expires, a.Used, b.Created, b.Expires, b.Used = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return same && a == b
}
