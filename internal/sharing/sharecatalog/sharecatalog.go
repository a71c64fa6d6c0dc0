// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package sharecatalog presents a share to a recipient as a catalog of its own:
// what the share shows exists under the names that the share gives it, nothing
// else exists, and nothing can be changed.
package sharecatalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/sharing"
)

// prefix begins the prefix of a share's paths. No warehouse has a name with a
// colon, and unlike a slash it is one segment of a path for every client.
const prefix = "share:"

// ShareOf returns the share that a warehouse parameter ("share/sales") or a
// path's prefix ("share:sales") names.
func (s *Shares) ShareOf(warehouse string) (share string, ok bool) {
	if share, ok := strings.CutPrefix(warehouse, sharing.Prefix); ok {
		return share, true
	}
	return strings.CutPrefix(warehouse, prefix)
}

// Shares opens shares.
type Shares struct {
	service    *sharing.Service
	policies   *enforce.Enforcer
	warehouses map[uuid.UUID]catalog.Operations
}

// Warehouse is one whose tables can be shared; *catalog.Warehouse is one.
type Warehouse interface {
	catalog.Operations
	ID() uuid.UUID
}

// New returns the shares of a service, whose members lie in warehouses.
func New(service *sharing.Service, policies *enforce.Enforcer, warehouses []Warehouse) *Shares {
	s := &Shares{service, policies, map[uuid.UUID]catalog.Operations{}}
	for _, w := range warehouses {
		s.warehouses[w.ID()] = w
	}
	return s
}

// Open returns a share as a principal may use it for one request. Who has no
// grant finds no share.
func (s *Shares) Open(ctx context.Context, p identity.Principal, address netip.Addr, operation, share string) (catalog.Operations, error) {
	view, err := s.service.Access(ctx, sharing.Caller{Principal: p, Address: address}, share)
	if err != nil {
		return nil, wire(err, catalog.Errorf(catalog.NoSuchWarehouse, "Warehouse does not exist: %s%s", sharing.Prefix, clip(share)))
	}
	c := &shareCatalog{shares: s, view: view}
	resource := policy.NewShare(view.Share.Organisation, view.Share.Name)
	request := enforce.Request{Principal: p, Address: address, Operation: operation, Owner: view.Share.Organisation}
	return s.policies.EnterShare(ctx, c, request, resource)
}

func clip(s string) string {
	if len(s) > 128 {
		return s[:128] + "…"
	}
	return s
}

// wire turns a failure of package sharing into one of the catalog; missing
// stands for what is not found.
func wire(err error, missing error) error {
	var e *sharing.Error
	if !errors.As(err, &e) {
		return err
	}
	message := e.Message
	if e.Next != "" {
		message += ": " + e.Next
	}
	switch e.Code {
	case sharing.NotFound:
		return missing
	case sharing.PermissionDenied:
		return catalog.Errorf(catalog.Forbidden, "%s", message)
	case sharing.Unavailable, sharing.Aborted:
		return &catalog.Error{Reason: catalog.Unavailable, Message: message, Cause: err, RetryAfter: time.Second}
	case sharing.InvalidArgument:
		return catalog.Errorf(catalog.BadRequest, "%s", message)
	}
	return &catalog.Error{Reason: catalog.Internal, Message: "The share cannot be read", Cause: err}
}

// shareCatalog is a share for one request.
type shareCatalog struct {
	shares *Shares
	view   *sharing.ShareView
}

var _ enforce.Shared = (*shareCatalog)(nil)

// Name is the prefix of the share's paths.
func (c *shareCatalog) Name() string { return prefix + c.view.Share.Name }

// Options implements catalog.Operations.
func (c *shareCatalog) Options() catalog.Options {
	return catalog.Options{Name: c.Name(), IdempotencyLifetime: catalog.DefaultIdempotencyLifetime}
}

// ClientConfig implements catalog.Operations: what clients need follows from
// each table's warehouse.
func (c *shareCatalog) ClientConfig() map[string]string { return nil }

// ObjectConfig is what clients need for a table.
func (c *shareCatalog) ObjectConfig(obj catalog.Object) map[string]string {
	if w := c.shares.warehouses[obj.Warehouse]; w != nil {
		return w.ClientConfig()
	}
	return nil
}

// Place implements enforce.Shared.
func (c *shareCatalog) Place(obj catalog.Object) (warehouse string, err error) {
	w, err := c.source(obj)
	if err != nil {
		return "", err
	}
	return w.Name(), nil
}

// source returns the warehouse of an object.
func (c *shareCatalog) source(obj catalog.Object) (catalog.Operations, error) {
	if w := c.shares.warehouses[obj.Warehouse]; w != nil {
		return w, nil
	}
	return nil, &catalog.Error{Reason: catalog.Unavailable, Message: "The share has a table of a warehouse that this server does not serve", RetryAfter: time.Minute}
}

func noNamespace(ns catalog.Namespace) error {
	return catalog.Errorf(catalog.NoSuchNamespace, "Namespace does not exist: %s", ns)
}

// ListNamespaces implements catalog.Operations.
func (c *shareCatalog) ListNamespaces(ctx context.Context, parent catalog.Namespace, p catalog.Page) ([]catalog.Namespace, string, error) {
	list, next, err := c.view.Namespaces(ctx, parent, p)
	if err != nil {
		return nil, "", wire(err, noNamespace(parent))
	}
	return list, next, nil
}

// LoadNamespace implements catalog.Operations. A namespace of a share has no
// properties: its owner's are not for recipients.
func (c *shareCatalog) LoadNamespace(ctx context.Context, ns catalog.Namespace) (catalog.NamespaceRecord, error) {
	exists, err := c.view.NamespaceExists(ctx, ns)
	if err == nil && !exists {
		err = noNamespace(ns)
	}
	if err != nil {
		return catalog.NamespaceRecord{}, wire(err, noNamespace(ns))
	}
	return catalog.NamespaceRecord{Namespace: ns, Properties: map[string]string{}}, nil
}

// NamespaceLocation implements catalog.Operations: nothing can be created in
// one, so it has no location.
func (c *shareCatalog) NamespaceLocation(catalog.NamespaceRecord) string { return "" }

func (c *shareCatalog) list(ctx context.Context, ns catalog.Namespace, kind catalog.Kind, p catalog.Page) ([]string, string, error) {
	names, next, err := c.view.List(ctx, ns, kind, p)
	if err != nil {
		return nil, "", wire(err, noNamespace(ns))
	}
	return names, next, nil
}

// ListTables implements catalog.Operations.
func (c *shareCatalog) ListTables(ctx context.Context, ns catalog.Namespace, p catalog.Page) ([]string, string, error) {
	return c.list(ctx, ns, catalog.KindTable, p)
}

// ListViews implements catalog.Operations.
func (c *shareCatalog) ListViews(ctx context.Context, ns catalog.Namespace, p catalog.Page) ([]string, string, error) {
	return c.list(ctx, ns, catalog.KindView, p)
}

func (c *shareCatalog) lookup(ctx context.Context, id catalog.Ident, kind catalog.Kind, missing error) (catalog.Object, error) {
	source, err := c.view.Lookup(ctx, id, kind)
	if err != nil {
		return catalog.Object{}, wire(err, missing)
	}
	return source.Object, nil
}

// LookupTable implements catalog.Operations. The object has the names that it
// has in its warehouse.
func (c *shareCatalog) LookupTable(ctx context.Context, id catalog.Ident) (catalog.Object, error) {
	return c.lookup(ctx, id, catalog.KindTable, catalog.Errorf(catalog.NoSuchTable, "Table does not exist: %s", id))
}

// TableMetadata implements catalog.Operations.
func (c *shareCatalog) TableMetadata(ctx context.Context, obj catalog.Object) (*metadata.Document, error) {
	w, err := c.source(obj)
	if err != nil {
		return nil, err
	}
	return w.TableMetadata(ctx, obj)
}

// LookupView implements catalog.Operations, as LookupTable does.
func (c *shareCatalog) LookupView(ctx context.Context, id catalog.Ident) (catalog.Object, error) {
	return c.lookup(ctx, id, catalog.KindView, catalog.Errorf(catalog.NoSuchView, "View does not exist: %s", id))
}

// ViewMetadata implements catalog.Operations.
func (c *shareCatalog) ViewMetadata(ctx context.Context, obj catalog.Object) (json.RawMessage, error) {
	w, err := c.source(obj)
	if err != nil {
		return nil, err
	}
	return w.ViewMetadata(ctx, obj)
}

// ListFunctions implements catalog.Operations: functions are not shared.
func (c *shareCatalog) ListFunctions(ctx context.Context, ns catalog.Namespace, _ catalog.Page) ([]string, string, error) {
	_, err := c.LoadNamespace(ctx, ns)
	return nil, "", err
}

// LoadFunction implements catalog.Operations.
func (c *shareCatalog) LoadFunction(_ context.Context, id catalog.Ident) (*catalog.Function, error) {
	return nil, catalog.Errorf(catalog.NoSuchFunction, "Function does not exist: %s", id)
}

// ReportMetrics implements catalog.Operations: the report goes to the table's
// warehouse.
func (c *shareCatalog) ReportMetrics(ctx context.Context, caller catalog.Caller, id catalog.Ident, reportType string, raw json.RawMessage) error {
	obj, err := c.LookupTable(ctx, id)
	if err != nil {
		return err
	}
	w, err := c.source(obj)
	if err != nil {
		return err
	}
	return w.ReportMetrics(ctx, caller, obj.Ident(), reportType, raw)
}

// readOnly refuses a change.
func (c *shareCatalog) readOnly() error {
	return catalog.Errorf(catalog.Forbidden, "A share is read-only: nothing in %s%s can be changed", sharing.Prefix, c.view.Share.Name)
}

// CreateNamespace implements catalog.Operations, and like all changes refuses.
func (c *shareCatalog) CreateNamespace(context.Context, catalog.Mutation, catalog.Namespace, map[string]string) (catalog.NamespaceRecord, error) {
	return catalog.NamespaceRecord{}, c.readOnly()
}

// DropNamespace implements catalog.Operations.
func (c *shareCatalog) DropNamespace(context.Context, catalog.Mutation, catalog.Namespace) error {
	return c.readOnly()
}

// UpdateNamespaceProperties implements catalog.Operations.
func (c *shareCatalog) UpdateNamespaceProperties(context.Context, catalog.Mutation, catalog.Namespace, []string, map[string]string) (catalog.PropertyChanges, error) {
	return catalog.PropertyChanges{}, c.readOnly()
}

// CreateTable implements catalog.Operations.
func (c *shareCatalog) CreateTable(context.Context, catalog.Mutation, catalog.Namespace, catalog.NewTable) (*catalog.Table, error) {
	return nil, c.readOnly()
}

// CommitTable implements catalog.Operations.
func (c *shareCatalog) CommitTable(context.Context, catalog.Mutation, catalog.Ident, catalog.Commit) (*catalog.Table, error) {
	return nil, c.readOnly()
}

// CommitTransaction implements catalog.Operations.
func (c *shareCatalog) CommitTransaction(context.Context, catalog.Mutation, []catalog.TableChange) error {
	return c.readOnly()
}

// DropTable implements catalog.Operations.
func (c *shareCatalog) DropTable(context.Context, catalog.Mutation, catalog.Ident, bool) error {
	return c.readOnly()
}

// UnregisterTable implements catalog.Operations.
func (c *shareCatalog) UnregisterTable(context.Context, catalog.Mutation, catalog.Ident) (*catalog.Table, error) {
	return nil, c.readOnly()
}

// RegisterTable implements catalog.Operations.
func (c *shareCatalog) RegisterTable(context.Context, catalog.Mutation, catalog.Namespace, string, string, bool) (*catalog.Table, error) {
	return nil, c.readOnly()
}

// RenameTable implements catalog.Operations.
func (c *shareCatalog) RenameTable(context.Context, catalog.Mutation, catalog.Ident, catalog.Ident) error {
	return c.readOnly()
}

// CreateView implements catalog.Operations.
func (c *shareCatalog) CreateView(context.Context, catalog.Mutation, catalog.Namespace, catalog.NewView) (*catalog.View, error) {
	return nil, c.readOnly()
}

// ReplaceView implements catalog.Operations.
func (c *shareCatalog) ReplaceView(context.Context, catalog.Mutation, catalog.Ident, catalog.ViewCommit) (*catalog.View, error) {
	return nil, c.readOnly()
}

// DropView implements catalog.Operations.
func (c *shareCatalog) DropView(context.Context, catalog.Mutation, catalog.Ident) error {
	return c.readOnly()
}

// RenameView implements catalog.Operations.
func (c *shareCatalog) RenameView(context.Context, catalog.Mutation, catalog.Ident, catalog.Ident) error {
	return c.readOnly()
}

// RegisterView implements catalog.Operations.
func (c *shareCatalog) RegisterView(context.Context, catalog.Mutation, catalog.Namespace, string, string) (*catalog.View, error) {
	return nil, c.readOnly()
}

// Replay implements catalog.Operations: nothing has been changed.
func (c *shareCatalog) Replay(context.Context, catalog.Mutation) (*catalog.Replay, error) {
	return nil, nil
}

// FinishFailed implements catalog.Operations: each repetition fails alike.
func (c *shareCatalog) FinishFailed(context.Context, catalog.Mutation, int, json.RawMessage) error {
	return nil
}

// String names the share in logs.
func (c *shareCatalog) String() string { return fmt.Sprintf("%s%s", sharing.Prefix, c.view.Share.Name) }
