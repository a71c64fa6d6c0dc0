// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/server/config"
)

// Maintain opens one warehouse without serving it, for what an operator
// changes beside the protocol. With PostgreSQL servers may run meanwhile; with
// SQLite none may. An empty name stands for the only warehouse.
func Maintain(ctx context.Context, c *config.Config, name string, change func(context.Context, *catalog.Warehouse) error) (err error) {
	w, err := findWarehouse(c, name)
	if err != nil {
		return err
	}
	store, err := openStore(ctx, c.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := checkSchema(ctx, store, false); err != nil {
		return err
	}
	bucket, err := objstore.Open(ctx, profileOf(w.Storage), objstore.Options{})
	if err != nil {
		return fmt.Errorf("warehouse %s: %w", w.Name, err)
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()
	warehouse, err := catalog.OpenWarehouse(ctx, warehouseConfig(w, store, bucket))
	if err != nil {
		return err
	}
	defer warehouse.Close()
	return change(ctx, warehouse)
}

func findWarehouse(c *config.Config, name string) (config.Warehouse, error) {
	names := make([]string, 0, len(c.Warehouses))
	for _, w := range c.Warehouses {
		if w.Name == name || name == "" && len(c.Warehouses) == 1 {
			return w, nil
		}
		names = append(names, w.Name)
	}
	if name == "" {
		return config.Warehouse{}, fmt.Errorf("there are several warehouses; name one with --warehouse: %s", strings.Join(names, ", "))
	}
	return config.Warehouse{}, fmt.Errorf("there is no warehouse %q; the configuration has %s", name, strings.Join(names, ", "))
}

// warehouseConfig is what follows from the configuration of a warehouse alone.
func warehouseConfig(w config.Warehouse, store catalog.Store, files catalog.Files) catalog.Config {
	return catalog.Config{
		Options: catalog.Options{
			Name: w.Name, SoftDelete: w.SoftDelete, ProtectByDefault: w.ProtectByDefault, IdempotencyLifetime: w.IdempotencyLifetime,
		},
		Root: w.Storage.Root, AllowedRoots: w.Storage.AllowedRoots,
		Store: store, Files: files, ClientConfig: clientConfig(w),
	}
}
