// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/server/config"
)

// checkTimeout bounds each thing that Check opens.
const checkTimeout = 15 * time.Second

// Check opens what a valid configuration names, proves that it works, and
// writes one line for each thing. It returns how many do not work. Listeners
// are not opened, since a server may be running.
func Check(ctx context.Context, c *config.Config, out io.Writer) (failed int) {
	report := func(what string, f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		if err := f(ctx); err != nil {
			failed++
			fmt.Fprintf(out, "FAIL %s: %v\n", what, err)
			return
		}
		fmt.Fprintf(out, "ok   %s\n", what)
	}
	report("store", func(ctx context.Context) (err error) {
		store, err := openStore(ctx, c.Store)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		if err := store.Ping(ctx); err != nil {
			return err
		}
		if err := checkSchema(ctx, store, false); err != nil && !(c.Store.AutoMigrate && errors.Is(err, ErrMigrate)) {
			return err
		}
		return nil
	})
	for _, w := range c.Warehouses {
		report("warehouse "+w.Name, func(ctx context.Context) (err error) {
			bucket, err := objstore.Open(ctx, profileOf(w.Storage), objstore.Options{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, bucket.Close()) }()
			return bucket.Check(ctx)
		})
	}
	var ids *identity.Service
	report("accounts and keys", func(context.Context) error {
		ic, err := identityConfig(c)
		if err != nil {
			return err
		}
		ids, err = identity.New(ic)
		return err
	})
	if ids != nil {
		probing, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		ids.Probe(probing, func(issuer string, err error) {
			report("issuer "+issuer, func(context.Context) error { return err })
		})
	}
	if len(c.Policies) > 0 {
		report("policies and their cases", func(context.Context) error {
			_, err := policySets(c)
			return err
		})
	}
	if file := c.Audit.Reads; file != "off" && file != "stderr" {
		report("audit log", func(ctx context.Context) error {
			log, err := audit.OpenFile(file, audit.Options{})
			if err != nil {
				return err
			}
			return log.Close(ctx)
		})
	}
	checkExports(c, report)
	for name, l := range map[string]config.Listener{"catalog": c.Listeners.Catalog, "metrics": config.Listener(c.Listeners.Metrics)} {
		if l.TLS == nil {
			continue
		}
		report("TLS of listener "+name, func(context.Context) error {
			_, err := newCertificates(*l.TLS, false, slog.New(slog.DiscardHandler))
			return err
		})
	}
	return failed
}
