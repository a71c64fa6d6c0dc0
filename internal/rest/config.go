// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
)

// getConfig tells a client how to speak to the warehouse that it names, or to
// the only one that it may see.
func (c *call) getConfig() error {
	q, err := c.query()
	if err != nil {
		return err
	}
	name := q.Get("warehouse")
	if name == "" {
		var visible []string
		for _, n := range c.h.names {
			if c.principal.Access(n) == identity.AccessNone {
				continue
			}
			_, err := c.enter(c.h.warehouses[n])
			if err != nil && catalog.ReasonOf(err) != catalog.NoSuchWarehouse {
				return err
			}
			if err == nil {
				visible = append(visible, n)
			}
		}
		if len(visible) != 1 {
			return catalog.Errorf(catalog.BadRequest, "warehouse: required; name the warehouse to use")
		}
		name = visible[0]
	}
	if share, ok := c.shareOf(name); ok {
		c.resource = name
		if err := c.enterShare(share); err != nil {
			return err
		}
		return c.sendConfig(c.warehouse)
	}
	wh, ok := c.h.warehouses[name]
	if !ok || c.principal.Access(name) == identity.AccessNone {
		return catalog.Errorf(catalog.NoSuchWarehouse, "Warehouse does not exist: %s", clip(name))
	}
	c.resource = name
	if wh, err = c.enter(wh); err != nil {
		c.decision = audit.Deny
		return err
	}
	return c.sendConfig(wh)
}

func (c *call) sendConfig(wh *served) error {
	return c.sendValue(http.StatusOK, struct {
		Defaults  map[string]string `json:"defaults"`
		Overrides map[string]string `json:"overrides"`
		Endpoints []string          `json:"endpoints"`
		Lifetime  string            `json:"idempotency-key-lifetime"`
	}{
		Defaults:  map[string]string{},
		Overrides: map[string]string{"prefix": wh.Name(), "namespace-separator": advertisedSeparator},
		Endpoints: c.h.endpoints,
		Lifetime:  isoDuration(wh.Options().IdempotencyLifetime),
	})
}

// isoDuration writes a duration as ISO 8601 does, in hours, minutes and
// seconds: Java's Duration reads no weeks, and reads days as 24 hours.
func isoDuration(d time.Duration) string {
	d = d.Truncate(time.Second)
	s := "PT"
	if h := d / time.Hour; h > 0 {
		s += fmt.Sprintf("%dH", h)
	}
	if m := d % time.Hour / time.Minute; m > 0 {
		s += fmt.Sprintf("%dM", m)
	}
	if sec := d % time.Minute / time.Second; sec > 0 || s == "PT" {
		s += fmt.Sprintf("%dS", sec)
	}
	return s
}
