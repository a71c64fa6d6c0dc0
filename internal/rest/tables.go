// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

func (c *call) listTables() error { return c.listNames(c.warehouse.ListTables) }

// listNames lists identifiers of tables or views.
func (c *call) listNames(list func(ctx context.Context, ns catalog.Namespace, p catalog.Page) ([]string, string, error)) error {
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
	names, next, err := list(c.ctx, ns, p)
	if err != nil {
		return err
	}
	before := append(appendLevels([]byte(`{"namespace":`), ns), `,"name":`...)
	body := append(make([]byte, 0, 64+(len(before)+24)*len(names)), `{"identifiers":[`...)
	for i, name := range names {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, before...)
		body = appendString(body, name)
		body = append(body, '}')
	}
	return c.send(http.StatusOK, c.endList(body, next, ns))
}

func (c *call) createTable() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	delegation, err := c.delegation()
	if err != nil {
		return err
	}
	var req struct {
		Name       *string            `json:"name"`
		Location   *string            `json:"location"`
		Schema     jsontext.Value     `json:"schema"`
		Spec       jsontext.Value     `json:"partition-spec"`
		Order      jsontext.Value     `json:"write-order"`
		Stage      bool               `json:"stage-create"`
		Properties map[string]*string `json:"properties"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	t := catalog.NewTable{Schema: given(req.Schema), PartitionSpec: given(req.Spec), SortOrder: given(req.Order), Stage: req.Stage}
	switch {
	case req.Name == nil:
		return missing("name")
	case t.Schema == nil:
		return missing("schema")
	}
	t.Name = *req.Name
	if t.Location, err = chosenLocation(req.Location); err != nil {
		return err
	}
	if t.Properties, err = stringMap(req.Properties, "properties"); err != nil {
		return err
	}
	c.resource = catalog.Ident{Namespace: ns, Name: t.Name}.Resource()
	table, err := c.warehouse.CreateTable(c.ctx, c.mutation, ns, t)
	if err != nil {
		return err
	}
	if t.Stage {
		return c.sendStaged(table.Metadata.Bytes())
	}
	return c.sendTable(&table.Object, table.Metadata, snapshotsAll, c.etag(&table.Object, snapshotsAll, delegation))
}

// chosenLocation is the location that a client may choose for what it creates.
func chosenLocation(given *string) (string, error) {
	switch {
	case given == nil:
		return "", nil
	case *given == "":
		return "", catalog.Errorf(catalog.BadRequest, "location: must not be empty; leave it out to let the catalog choose")
	}
	return *given, nil
}

// given returns the JSON of an optional member; null is none.
func given(v jsontext.Value) json.RawMessage {
	if len(v) == 0 || v.Kind() == 'n' {
		return nil
	}
	return json.RawMessage(v)
}

// snapshots decodes which snapshots a load answer holds.
func (c *call) snapshots() (string, error) {
	q, err := c.query()
	if err != nil {
		return "", err
	}
	switch s := q.Get("snapshots"); {
	case !q.Has("snapshots"):
		return snapshotsAll, nil
	case s == snapshotsAll || s == snapshotsRefs:
		return s, nil
	default:
		return "", catalog.Errorf(catalog.BadRequest, "snapshots: must be all or refs, not %q", clip(s))
	}
}

func (c *call) loadTable() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	snapshots, err := c.snapshots()
	if err != nil {
		return err
	}
	delegation, err := c.delegation()
	if err != nil {
		return err
	}
	obj, err := c.warehouse.LookupTable(c.ctx, id)
	if err != nil {
		return err
	}
	etag := c.etag(&obj, snapshots, delegation)
	if condition := c.r.Header["If-None-Match"]; len(condition) > 0 && matches(condition, etag) {
		c.w.Header().Set("ETag", etag)
		c.private()
		return c.empty(http.StatusNotModified)
	}
	doc, err := c.warehouse.TableMetadata(c.ctx, obj)
	if err != nil {
		return err
	}
	return c.sendTable(&obj, doc, snapshots, etag)
}

func (c *call) tableExists() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	if _, err := c.warehouse.LookupTable(c.ctx, id); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

// commitBody is CommitTableRequest.
type commitBody struct {
	Identifier   *identifier    `json:"identifier"`
	Requirements jsontext.Value `json:"requirements"`
	Updates      jsontext.Value `json:"updates"`
}

// commit decodes requirements and updates. The protocol requires both; a
// client that leaves the requirements out asserts nothing, which is the same
// as an empty list.
func (b *commitBody) commit() (catalog.Commit, error) {
	requirements, err := metadata.DecodeRequirements(json.RawMessage(b.Requirements))
	if err != nil {
		return catalog.Commit{}, badRequest(err)
	}
	if given(b.Updates) == nil {
		return catalog.Commit{}, missing("updates")
	}
	updates, err := metadata.DecodeUpdates(json.RawMessage(b.Updates))
	if err != nil {
		return catalog.Commit{}, badRequest(err)
	}
	return catalog.Commit{Requirements: requirements, Updates: updates}, nil
}

func badRequest(err error) error {
	return catalog.Errorf(catalog.BadRequest, "%s", err.Error())
}

func (c *call) updateTable() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	delegation, err := c.delegation()
	if err != nil {
		return err
	}
	var req commitBody
	if err := c.decode(&req); err != nil {
		return err
	}
	if req.Identifier != nil {
		named, err := req.Identifier.ident("identifier")
		if err != nil {
			return err
		}
		if named.Name != id.Name || !named.Namespace.Equal(id.Namespace) {
			return catalog.Errorf(catalog.BadRequest, "identifier: %s is not the table of the path, %s", named, id)
		}
	}
	commit, err := req.commit()
	if err != nil {
		return err
	}
	table, err := c.warehouse.CommitTable(c.ctx, c.mutation, id, commit)
	if err != nil {
		return err
	}
	return c.sendCommitted(&table.Object, table.Metadata, c.etag(&table.Object, snapshotsAll, delegation))
}

// maxTransaction bounds the tables of one transaction: all of them are locked
// and written together.
const maxTransaction = 1000

func (c *call) commitTransaction() error {
	var req struct {
		Changes *[]commitBody `json:"table-changes"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	if req.Changes == nil {
		return missing("table-changes")
	}
	if len(*req.Changes) == 0 {
		return catalog.Errorf(catalog.BadRequest, "table-changes: at least one is required")
	}
	if n := len(*req.Changes); n > maxTransaction {
		return catalog.Errorf(catalog.BadRequest, "table-changes: %d tables; at most %d may change in one transaction", n, maxTransaction)
	}
	var changes []catalog.TableChange
	for i := range *req.Changes {
		field := "table-changes[" + strconv.Itoa(i) + "]"
		b := &(*req.Changes)[i]
		id, err := b.Identifier.ident(field + ".identifier")
		if err != nil {
			return err
		}
		commit, err := b.commit()
		if err != nil {
			return catalog.Errorf(catalog.BadRequest, "%s.%s", field, err.Error())
		}
		changes = append(changes, catalog.TableChange{Table: id, Commit: commit})
		if i > 0 {
			c.resource += ","
		}
		c.resource += id.String()
	}
	if err := c.warehouse.CommitTransaction(c.ctx, c.mutation, changes); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

func (c *call) dropTable() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	q, err := c.query()
	if err != nil {
		return err
	}
	purge, err := boolean(q, "purgeRequested")
	if err != nil {
		return err
	}
	if err := c.warehouse.DropTable(c.ctx, c.mutation, id, purge); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}

func (c *call) unregisterTable() error {
	id, err := c.ident()
	if err != nil {
		return err
	}
	table, err := c.warehouse.UnregisterTable(c.ctx, c.mutation, id)
	if err != nil {
		return err
	}
	return c.sendCommitted(&table.Object, table.Metadata, "")
}

func (c *call) registerTable() error {
	ns, err := c.namespace()
	if err != nil {
		return err
	}
	delegation, err := c.delegation()
	if err != nil {
		return err
	}
	name, location, overwrite, err := c.decodeRegister(ns)
	if err != nil {
		return err
	}
	table, err := c.warehouse.RegisterTable(c.ctx, c.mutation, ns, name, location, overwrite)
	if err != nil {
		return err
	}
	return c.sendTable(&table.Object, table.Metadata, snapshotsAll, c.etag(&table.Object, snapshotsAll, delegation))
}

func (c *call) decodeRegister(ns catalog.Namespace) (name, location string, overwrite bool, err error) {
	var req struct {
		Name      *string `json:"name"`
		Location  *string `json:"metadata-location"`
		Overwrite bool    `json:"overwrite"`
	}
	if err := c.decode(&req); err != nil {
		return "", "", false, err
	}
	switch {
	case req.Name == nil:
		return "", "", false, missing("name")
	case req.Location == nil || *req.Location == "":
		return "", "", false, missing("metadata-location")
	}
	c.resource = catalog.Ident{Namespace: ns, Name: *req.Name}.Resource()
	return *req.Name, *req.Location, req.Overwrite, nil
}

func (c *call) renameTable() error { return c.rename(c.warehouse.RenameTable) }

func (c *call) rename(do func(context.Context, catalog.Mutation, catalog.Ident, catalog.Ident) error) error {
	var req struct {
		Source      *identifier `json:"source"`
		Destination *identifier `json:"destination"`
	}
	if err := c.decode(&req); err != nil {
		return err
	}
	from, err := req.Source.ident("source")
	if err != nil {
		return err
	}
	to, err := req.Destination.ident("destination")
	if err != nil {
		return err
	}
	c.resource = from.Resource()
	if err := do(c.ctx, c.mutation, from, to); err != nil {
		return err
	}
	return c.empty(http.StatusNoContent)
}
