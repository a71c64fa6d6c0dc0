// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/identity/activationtest"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
)

// TestLinks holds what keeps activation links, the service on each engine, to
// the contract of package identity.
func TestLinks(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *sqlstore.Store{"sqlite": openSQLite, "postgres": openPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			activationtest.Run(t, func(t *testing.T) activationtest.Subject { return links(t, open(t)) })
		})
	}
}

func links(t *testing.T, engine *sqlstore.Store) activationtest.Subject {
	t.Helper()
	s, err := store.Open(t.Context(), engine)
	if err != nil {
		t.Fatal(err)
	}
	var kept identity.ActivationStore
	if _, err := sharing.New(sharing.Config{Store: s, Activations: func(a identity.ActivationStore) *identity.Activations {
		kept = a
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	subject := activationtest.Subject{ActivationStore: kept}
	for i, name := range []string{"one", "two"} {
		r := sharing.Recipient{
			ID: uuid.New(), Provider: "acme", Name: name, Binding: sharing.Binding{Kind: sharing.BoundByActivation, LinkExpires: now.Add(time.Hour)},
			Stamp: sharing.Stamp{Version: 1, CreatedAt: now, UpdatedAt: now},
		}
		if err := s.Update(t.Context(), func(tx sharing.Tx) error { return tx.PutRecipient(t.Context(), r) }); err != nil {
			t.Fatal(err)
		}
		subject.Recipients[i] = r.ID.String()
	}
	subject.Bound = func(ctx context.Context, recipient string) (identity.Binding, error) {
		r, err := s.RecipientByID(ctx, uuid.MustParse(recipient))
		issuer := r.Binding.Issuer
		if issuer == sharing.AccountIssuer {
			issuer = ""
		}
		return identity.Binding{Issuer: issuer, Subject: r.Binding.Value}, err
	}
	return subject
}
