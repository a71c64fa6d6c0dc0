// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/server/config"
	"github.com/sluice-data/sluice/internal/sharing"
)

// auditKeys returns what signs checkpoints, nil without a key, and all that
// verifies them.
func auditKeys(c config.Audit) (*audit.Signer, audit.Keys, error) {
	keys := audit.Keys{}
	add := func(k audit.VerifyKey) { keys[k.ID()] = k }
	var signer *audit.Signer
	if !c.SigningKey.Value.Empty() {
		var err error
		if signer, err = audit.ParseSigner(c.SigningKey.Value); err != nil {
			return nil, nil, fmt.Errorf("audit.signing_key: %w", err)
		}
		add(signer.Public())
	}
	for i, k := range c.PreviousKeys {
		key, err := audit.ParseVerifyKey(k.Value)
		if err != nil {
			return nil, nil, fmt.Errorf("audit.previous_keys[%d]: %w", i, err)
		}
		add(key)
	}
	return signer, keys, nil
}

// AuditKeys returns what verifies the checkpoints of a deployment.
func AuditKeys(c *config.Config) (audit.Keys, error) {
	_, keys, err := auditKeys(c.Audit)
	return keys, err
}

// AuditStore opens the store of a configuration and gives use its audit
// chains, one a warehouse, and that of administration. With SQLite no server may run meanwhile.
func AuditStore(ctx context.Context, c *config.Config, use func(store catalog.Store, warehouses map[string]uuid.UUID, administration uuid.UUID) error) (err error) {
	store, err := openStore(ctx, c.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := checkSchema(ctx, store, false); err != nil {
		return err
	}
	ids := map[string]uuid.UUID{}
	for _, w := range c.Warehouses {
		if ids[w.Name], err = store.EnsureWarehouse(ctx, w.Name); err != nil {
			return err
		}
	}
	administrationID, err := store.EnsureWarehouse(ctx, sharing.AdministrationPartition)
	if err != nil {
		return err
	}
	return use(store, ids, administrationID)
}

// KeptSince is the time before which audit rows may have been removed; zero
// when they are kept for ever.
func KeptSince(c *config.Config, now time.Time) time.Time {
	if c.Audit.KeepChanges <= 0 {
		return time.Time{}
	}
	return now.Add(-c.Audit.KeepChanges)
}
