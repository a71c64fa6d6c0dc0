// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"maps"
	"net/http"

	"github.com/sluice-data/sluice/internal/catalog"
)

func (c *call) listNamespaces() error {
	q, err := c.query()
	if err != nil {
		return err
	}
	under, second, err := parent(q)
	if err != nil {
		return err
	}
	if second != nil {
		_, err := c.warehouse.LoadNamespace(c.ctx, under)
		if catalog.ReasonOf(err) == catalog.NoSuchNamespace {
			under = second
		} else if err != nil {
			return err
		}
	}
	c.resource = under.Resource()
	p, err := page(q, c.listing(under))
	if err != nil {
		return err
	}
	children, next, err := c.warehouse.ListNamespaces(c.ctx, under, p)
	if err != nil {
		return err
	}
	body := append(make([]byte, 0, 64+24*len(children)), `{"namespaces":[`...)
	for i, ns := range children {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendLevels(body, ns)
	}
	return c.send(http.StatusOK, c.endList(body, next, under))
}

// endList closes a listing: the array and the token of the next page.
func (c *call) endList(body []byte, next string, ns catalog.Namespace) []byte {
	body = append(body, `],"next-page-token":`...)
	if next == "" {
		return append(body, `null}`...)
	}
	body = append(body, '"')
	body = append(body, encodePageToken(next, c.listing(ns))...)
	return append(body, `"}`...)
}

func appendLevels(b []byte, ns catalog.Namespace) []byte {
	b = append(b, '[')
	for i, level := range ns {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, level)
	}
	return append(b, ']')
}

// namespaceBody is GetNamespaceResponse and CreateNamespaceResponse.
type namespaceBody struct {
	Namespace  catalog.Namespace `json:"namespace"`
	Properties map[string]string `json:"properties"`
}

func (c *call) createNamespace() error {
	var req struct {
		Namespace  *[]*string         `json:"namespace"`
		Properties map[string]*string `json:"properties"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	ns, err := levels(req.Namespace, "namespace")
	if err != nil {
		return err
	}
	properties, err := stringMap(req.Properties, "properties")
	if err != nil {
		return err
	}
	c.resource = ns.Resource()
	rec, err := c.warehouse.CreateNamespace(c.ctx, c.mutation, ns, properties)
	if err != nil {
		return err
	}
	return c.sendValue(http.StatusOK, namespaceBody{rec.Namespace, rec.Properties})
}

func (c *call) loadNamespace() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	rec, err := c.warehouse.LoadNamespace(c.ctx, ns)
	if err != nil {
		return err
	}
	properties := maps.Clone(rec.Properties)
	if location := c.warehouse.NamespaceLocation(rec); location != "" {
		properties["location"] = location
	}
	return c.sendValue(http.StatusOK, namespaceBody{rec.Namespace, properties})
}

func (c *call) namespaceExists() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	if _, err := c.warehouse.LoadNamespace(c.ctx, ns); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

func (c *call) dropNamespace() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	if err := c.warehouse.DropNamespace(c.ctx, c.mutation, ns); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

func (c *call) updateProperties() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	var req struct {
		Removals []*string          `json:"removals"`
		Updates  map[string]*string `json:"updates"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	var removals []string
	for i, r := range req.Removals {
		if r == nil {
			return catalog.Errorf(catalog.BadRequest, "removals[%d]: expected a string, found null", i)
		}
		removals = append(removals, *r)
	}
	updates, err := stringMap(req.Updates, "updates")
	if err != nil {
		return err
	}
	done, err := c.warehouse.UpdateNamespaceProperties(c.ctx, c.mutation, ns, removals, updates)
	if err != nil {
		return err
	}
	return c.sendValue(http.StatusOK, done)
}
