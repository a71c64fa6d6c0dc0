// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-data/sluice/internal/catalog"
)

// listFunctions answers with CatalogObjectIdentifiers: levels and name in one
// list.
func (c *call) listFunctions() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	q, err := c.query()
	if err != nil {
		return err
	}
	p, err := page(q, c.listing(ns))
	if err != nil {
		return err
	}
	names, next, err := c.warehouse.ListFunctions(c.ctx, ns, p)
	if err != nil {
		return err
	}
	body := []byte(`{"identifiers":[`)
	for i, name := range names {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendLevels(body, append(ns[:len(ns):len(ns)], name))
	}
	return c.send(http.StatusOK, c.endList(body, next, ns))
}

func (c *call) loadFunction() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	f, err := c.warehouse.LoadFunction(c.ctx, id)
	if err != nil {
		return err
	}
	body := append([]byte(`{"metadata":`), f.Metadata...)
	return c.send(http.StatusOK, append(body, '}'))
}

// maxReport bounds a metrics report in bytes: real ones take some thousand.
const maxReport = 256 << 10

// reportMetrics stores a scan or commit report.
func (c *call) reportMetrics() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	var req struct {
		Type       *string           `json:"report-type"`
		TableName  *string           `json:"table-name"`
		SnapshotID *int64            `json:"snapshot-id"`
		Metrics    jsontext.Value    `json:"metrics"`
		Metadata   map[string]string `json:"metadata"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	switch {
	case req.Type == nil:
		return missing("report-type")
	case *req.Type != "scan-report" && *req.Type != "commit-report":
		return catalog.Errorf(catalog.BadRequest, "report-type: must be scan-report or commit-report, not %q", clip(*req.Type))
	case req.TableName == nil:
		return missing("table-name")
	case req.SnapshotID == nil:
		return missing("snapshot-id")
	case req.Metrics == nil || req.Metrics.Kind() == 'n':
		return missing("metrics")
	case req.Metrics.Kind() != '{':
		return catalog.Errorf(catalog.BadRequest, "metrics: expected an object, found %s", kindName(req.Metrics.Kind()))
	}
	if err := c.warehouse.ReportMetrics(c.ctx, c.mutation.Caller, id, *req.Type, c.body); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

// loadCredentials answers with what the warehouse vends for a table. Where
// nothing is vended the list is empty: an entry without a secret would make
// clients send unsigned requests.
func (c *call) loadCredentials() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	if _, err := c.query(); err != nil {
		return err
	}
	if _, err := c.warehouse.LookupTable(c.ctx, id); err != nil {
		return err
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(http.StatusOK, []byte(`{"storage-credentials":[]}`))
}

// signRequest refuses: no warehouse signs requests, and the answer says so to
// a client that was told otherwise by its own configuration.
func (c *call) signRequest() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	if _, err := c.warehouse.LookupTable(c.ctx, id); err != nil {
		return err
	}
	return catalog.Errorf(catalog.BadRequest, "The warehouse %s does not sign requests; configure the client with storage credentials of its own and without s3.remote-signing-enabled", c.warehouse.Name())
}
