// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"encoding/json"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-data/sluice/internal/catalog"
)

func (c *call) listViews() error { return c.listNames(c.warehouse.ListViews) }

func (c *call) createView() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	var req struct {
		Name       *string            `json:"name"`
		Location   *string            `json:"location"`
		Schema     jsontext.Value     `json:"schema"`
		Version    jsontext.Value     `json:"view-version"`
		Properties map[string]*string `json:"properties"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	v := catalog.NewView{Schema: given(req.Schema), Version: given(req.Version)}
	switch {
	case req.Name == nil:
		return missing("name")
	case v.Schema == nil:
		return missing("schema")
	case v.Version == nil:
		return missing("view-version")
	}
	v.Name = *req.Name
	if v.Location, err = chosenLocation(req.Location); err != nil {
		return err
	}
	if v.Properties, err = stringMap(req.Properties, "properties"); err != nil {
		return err
	}
	c.resource = catalog.Ident{Namespace: ns, Name: v.Name}.Resource()
	view, err := c.warehouse.CreateView(c.ctx, c.mutation, ns, v)
	if err != nil {
		return err
	}
	return c.sendView(&view.Object, view.Metadata)
}

// sendView answers with LoadViewResult.
func (c *call) sendView(obj *catalog.Object, raw []byte) error {
	body := appendString([]byte(`{"metadata-location":`), obj.MetadataLocation)
	body = append(body, `,"metadata":`...)
	body = append(body, raw...)
	body = append(body, `,"config":{}`...)
	if obj.Labels != nil && !c.share {
		body = append(append(body, `,"labels":`...), obj.Labels...)
	}
	return c.send(http.StatusOK, append(body, '}'))
}

func (c *call) loadView() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	obj, err := c.warehouse.LookupView(c.ctx, id)
	if err != nil {
		return err
	}
	raw, err := c.warehouse.ViewMetadata(c.ctx, obj)
	if err != nil {
		return err
	}
	return c.sendView(&obj, raw)
}

func (c *call) viewExists() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	if _, err := c.warehouse.LookupView(c.ctx, id); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

func (c *call) replaceView() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	var req struct {
		Identifier   *identifier       `json:"identifier"`
		Requirements []json.RawMessage `json:"requirements"`
		Updates      []json.RawMessage `json:"updates"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	if req.Identifier != nil {
		named, err := req.Identifier.ident("identifier")
		if err != nil {
			return err
		}
		if named.Name != id.Name || !named.Namespace.Equal(id.Namespace) {
			return catalog.Errorf(catalog.BadRequest, "identifier: %s is not the view of the path, %s", named, id)
		}
	}
	if req.Updates == nil {
		return missing("updates")
	}
	view, err := c.warehouse.ReplaceView(c.ctx, c.mutation, id, catalog.ViewCommit{Requirements: req.Requirements, Updates: req.Updates})
	if err != nil {
		return err
	}
	return c.sendView(&view.Object, view.Metadata)
}

func (c *call) dropView() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	if err := c.warehouse.DropView(c.ctx, c.mutation, id); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

func (c *call) renameView() error { return c.rename(c.warehouse.RenameView) }

func (c *call) registerView() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	name, location, _, err := c.decodeRegister(ns)
	if err != nil {
		return err
	}
	view, err := c.warehouse.RegisterView(c.ctx, c.mutation, ns, name, location)
	if err != nil {
		return err
	}
	return c.sendView(&view.Object, view.Metadata)
}
