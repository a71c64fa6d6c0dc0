// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package enforce

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
	"github.com/sluice-data/sluice/internal/policy"
)

// Name implements catalog.Operations.
func (g *Guard) Name() string { return g.in.Name() }

// Options implements catalog.Operations.
func (g *Guard) Options() catalog.Options { return g.in.Options() }

// ClientConfig implements catalog.Operations.
func (g *Guard) ClientConfig() map[string]string { return g.in.ClientConfig() }

// ObjectConfig is what clients need for a table.
func (g *Guard) ObjectConfig(obj catalog.Object) map[string]string {
	if g.shared != nil {
		return g.shared.ObjectConfig(obj)
	}
	return g.in.ClientConfig()
}

// recorded is a change with the policies that let it through.
func (g *Guard) recorded(m catalog.Mutation) catalog.Mutation {
	m.Policies = slices.Clone(g.policies)
	return m
}

// CreateNamespace implements catalog.Operations: createNamespace on what it
// lies in.
func (g *Guard) CreateNamespace(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, properties map[string]string) (catalog.NamespaceRecord, error) {
	if err := g.onNamespace(policy.CreateNamespace, ns.Parent()); err != nil {
		return catalog.NamespaceRecord{}, err
	}
	return g.in.CreateNamespace(ctx, g.recorded(m), ns, properties)
}

// ListNamespaces implements catalog.Operations: listNamespace on the parent;
// what the principal cannot see is left out.
func (g *Guard) ListNamespaces(ctx context.Context, parent catalog.Namespace, page catalog.Page) ([]catalog.Namespace, string, error) {
	if err := g.onNamespace(policy.ListNamespace, parent); err != nil {
		return nil, "", err
	}
	if g.share != nil {
		return g.in.ListNamespaces(ctx, parent, page)
	}
	within := g.namespaceOf(parent)
	return visible(page, func(p catalog.Page) ([]catalog.Namespace, string, error) { return g.in.ListNamespaces(ctx, parent, p) },
		func(ns catalog.Namespace) bool { return g.seesNamespace(within.Namespace(ns[len(ns)-1], nil)) },
		func(ns catalog.Namespace) string { return ns[len(ns)-1] })
}

// visible pages through a listing and leaves out what cannot be seen. Where
// the next page begins is told by a name that can be seen, never by another.
func visible[T any](page catalog.Page, list func(catalog.Page) ([]T, string, error), sees func(T) bool, name func(T) string) ([]T, string, error) {
	for {
		all, next, err := list(page)
		if err != nil {
			return nil, "", err
		}
		shown := all[:0:0]
		for _, item := range all {
			if sees(item) {
				shown = append(shown, item)
			}
		}
		switch {
		case next == "":
			return shown, "", nil
		case len(shown) > 0:
			return shown, name(shown[len(shown)-1]), nil
		}
		page.After = next
	}
}

// LoadNamespace implements catalog.Operations: listNamespace.
func (g *Guard) LoadNamespace(ctx context.Context, ns catalog.Namespace) (catalog.NamespaceRecord, error) {
	if err := g.onNamespace(policy.ListNamespace, ns); err != nil {
		return catalog.NamespaceRecord{}, err
	}
	return g.in.LoadNamespace(ctx, ns)
}

// NamespaceLocation implements catalog.Operations.
func (g *Guard) NamespaceLocation(rec catalog.NamespaceRecord) string {
	return g.in.NamespaceLocation(rec)
}

// DropNamespace implements catalog.Operations: dropNamespace.
func (g *Guard) DropNamespace(ctx context.Context, m catalog.Mutation, ns catalog.Namespace) error {
	if err := g.onNamespace(policy.DropNamespace, ns); err != nil {
		return err
	}
	return g.in.DropNamespace(ctx, g.recorded(m), ns)
}

// UpdateNamespaceProperties implements catalog.Operations: updateNamespace.
func (g *Guard) UpdateNamespaceProperties(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, removals []string, updates map[string]string) (catalog.PropertyChanges, error) {
	if err := g.onNamespace(policy.UpdateNamespace, ns); err != nil {
		return catalog.PropertyChanges{}, err
	}
	return g.in.UpdateNamespaceProperties(ctx, g.recorded(m), ns, removals, updates)
}

// ListTables implements catalog.Operations: listNamespace; tables that the
// principal cannot see are left out.
func (g *Guard) ListTables(ctx context.Context, ns catalog.Namespace, page catalog.Page) ([]string, string, error) {
	return g.listObjects(ctx, ns, page, catalog.KindTable, g.in.ListTables)
}

// ListViews implements catalog.Operations, as ListTables does.
func (g *Guard) ListViews(ctx context.Context, ns catalog.Namespace, page catalog.Page) ([]string, string, error) {
	return g.listObjects(ctx, ns, page, catalog.KindView, g.in.ListViews)
}

func (g *Guard) listObjects(ctx context.Context, ns catalog.Namespace, page catalog.Page, kind catalog.Kind,
	list func(context.Context, catalog.Namespace, catalog.Page) ([]string, string, error),
) ([]string, string, error) {
	if err := g.onNamespace(policy.ListNamespace, ns); err != nil {
		return nil, "", err
	}
	// What is not told by the name takes a look-up each: labels, the place of what
	// is shared, the object that a policy was made for.
	look := g.share != nil || g.stack.Bound() || g.stack.AsksTags(kind == catalog.KindView)
	return visible(page, func(p catalog.Page) ([]string, string, error) { return list(ctx, ns, p) },
		func(name string) bool {
			obj := catalog.Object{Kind: kind, Namespace: ns, Name: name}
			if look {
				var err error
				if obj, err = g.lookup(ctx, kind, catalog.Ident{Namespace: ns, Name: name}); err != nil {
					return false
				}
			}
			r, err := g.objectOf(obj)
			return err == nil && g.sees(kind, r)
		},
		func(name string) string { return name })
}

func (g *Guard) lookup(ctx context.Context, kind catalog.Kind, id catalog.Ident) (catalog.Object, error) {
	if kind == catalog.KindView {
		return g.in.LookupView(ctx, id)
	}
	return g.in.LookupTable(ctx, id)
}

// CreateTable implements catalog.Operations: createTable on the namespace.
func (g *Guard) CreateTable(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, t catalog.NewTable) (*catalog.Table, error) {
	if err := g.onNamespace(policy.CreateTable, ns); err != nil {
		return nil, err
	}
	return g.in.CreateTable(ctx, g.recorded(m), ns, t)
}

// loads are the operations that give what a look-up finds: they need all of
// a table before they answer that nothing has changed.
var loads = []string{"loadTable", "loadCredentials", "signRequest"}

// LookupTable implements catalog.Operations: a table that the principal can
// see, and read as a whole where the operation gives its metadata or its files.
func (g *Guard) LookupTable(ctx context.Context, id catalog.Ident) (catalog.Object, error) {
	g.looked = id
	obj, err := g.in.LookupTable(ctx, id)
	if err != nil {
		return obj, err
	}
	if slices.Contains(loads, g.operation) {
		if err := g.whole(ctx, id, obj); err != nil {
			return catalog.Object{}, err
		}
		return obj, nil
	}
	return obj, g.seen(id, obj)
}

// seen lets an object through that the principal can see.
func (g *Guard) seen(id catalog.Ident, obj catalog.Object) error {
	r, err := g.objectOf(obj)
	if err != nil {
		return err
	}
	if !g.sees(obj.Kind, r) {
		g.denied = true
		return noObject(obj.Kind, id)
	}
	return nil
}

// TableMetadata implements catalog.Operations: all of the table is to be
// seen. An object without a name is a version of what was looked up last.
func (g *Guard) TableMetadata(ctx context.Context, obj catalog.Object) (*metadata.Document, error) {
	named := obj
	if named.Name == "" {
		named.Kind, named.Namespace, named.Name = catalog.KindTable, g.looked.Namespace, g.looked.Name
	}
	if err := g.whole(ctx, g.looked, named); err != nil {
		return nil, err
	}
	return g.in.TableMetadata(ctx, obj)
}

// writes lets a change of a table through: writeTable, and all of it is to be
// seen, since a writer sees the files. For a table that is made by the commit
// createTable on its namespace decides.
func (g *Guard) writes(ctx context.Context, id catalog.Ident) error {
	if g.share != nil {
		return nil // a share refuses changes itself
	}
	obj, err := g.in.LookupTable(ctx, id)
	if catalog.ReasonOf(err) == catalog.NoSuchTable {
		if r := g.namespaceOf(id.Namespace); !g.may(policy.CreateTable, r) {
			g.denied = true
			return noObject(catalog.KindTable, id)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := g.onObject(policy.WriteTable, id, obj); err != nil {
		return err
	}
	return g.whole(ctx, id, obj)
}

// CommitTable implements catalog.Operations: writeTable.
func (g *Guard) CommitTable(ctx context.Context, m catalog.Mutation, id catalog.Ident, c catalog.Commit) (*catalog.Table, error) {
	if err := g.writes(ctx, id); err != nil {
		return nil, err
	}
	return g.in.CommitTable(ctx, g.recorded(m), id, c)
}

// CommitTransaction implements catalog.Operations: writeTable on each table.
func (g *Guard) CommitTransaction(ctx context.Context, m catalog.Mutation, changes []catalog.TableChange) error {
	for _, c := range changes {
		if err := g.writes(ctx, c.Table); err != nil {
			return err
		}
	}
	return g.in.CommitTransaction(ctx, g.recorded(m), changes)
}

// drops lets the removal of an object through.
func (g *Guard) drops(ctx context.Context, kind catalog.Kind, id catalog.Ident) (catalog.Object, error) {
	obj, err := g.lookup(ctx, kind, id)
	if err != nil || g.share != nil {
		return obj, err // a share refuses changes itself
	}
	action := policy.DropTable
	if kind == catalog.KindView {
		action = policy.DropView
	}
	return obj, g.onObject(action, id, obj)
}

// DropTable implements catalog.Operations: dropTable.
func (g *Guard) DropTable(ctx context.Context, m catalog.Mutation, id catalog.Ident, purge bool) error {
	if _, err := g.drops(ctx, catalog.KindTable, id); err != nil {
		return err
	}
	return g.in.DropTable(ctx, g.recorded(m), id, purge)
}

// UnregisterTable implements catalog.Operations: dropTable, and all of it is
// to be seen, since the answer holds its metadata.
func (g *Guard) UnregisterTable(ctx context.Context, m catalog.Mutation, id catalog.Ident) (*catalog.Table, error) {
	obj, err := g.drops(ctx, catalog.KindTable, id)
	if err != nil {
		return nil, err
	}
	if err := g.whole(ctx, id, obj); err != nil {
		return nil, err
	}
	return g.in.UnregisterTable(ctx, g.recorded(m), id)
}

// RegisterTable implements catalog.Operations: createTable on the namespace,
// and writeTable on a table that it replaces.
func (g *Guard) RegisterTable(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, name, location string, overwrite bool) (*catalog.Table, error) {
	if err := g.onNamespace(policy.CreateTable, ns); err != nil {
		return nil, err
	}
	if overwrite {
		if err := g.writes(ctx, catalog.Ident{Namespace: ns, Name: name}); err != nil {
			return nil, err
		}
	}
	return g.in.RegisterTable(ctx, g.recorded(m), ns, name, location, overwrite)
}

// RenameTable implements catalog.Operations: dropTable on the old name and
// createTable on the namespace of the new one.
func (g *Guard) RenameTable(ctx context.Context, m catalog.Mutation, from, to catalog.Ident) error {
	if _, err := g.drops(ctx, catalog.KindTable, from); err != nil {
		return err
	}
	if err := g.onNamespace(policy.CreateTable, to.Namespace); err != nil {
		return err
	}
	return g.in.RenameTable(ctx, g.recorded(m), from, to)
}

// CreateView implements catalog.Operations: createView on the namespace.
func (g *Guard) CreateView(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, v catalog.NewView) (*catalog.View, error) {
	if err := g.onNamespace(policy.CreateView, ns); err != nil {
		return nil, err
	}
	return g.in.CreateView(ctx, g.recorded(m), ns, v)
}

// LookupView implements catalog.Operations: a view that the principal can see,
// and read where the operation gives its text.
func (g *Guard) LookupView(ctx context.Context, id catalog.Ident) (catalog.Object, error) {
	g.looked = id
	obj, err := g.in.LookupView(ctx, id)
	if err != nil {
		return obj, err
	}
	if g.operation == "loadView" {
		return obj, g.onObject(policy.ReadView, id, obj)
	}
	return obj, g.seen(id, obj)
}

// ViewMetadata implements catalog.Operations: readView.
func (g *Guard) ViewMetadata(ctx context.Context, obj catalog.Object) (json.RawMessage, error) {
	named := obj
	if named.Name == "" {
		named.Kind, named.Namespace, named.Name = catalog.KindView, g.looked.Namespace, g.looked.Name
	}
	if err := g.onObject(policy.ReadView, g.looked, named); err != nil {
		return nil, err
	}
	return g.in.ViewMetadata(ctx, obj)
}

// ReplaceView implements catalog.Operations: updateView, and readView, since
// the answer holds all versions of its text.
func (g *Guard) ReplaceView(ctx context.Context, m catalog.Mutation, id catalog.Ident, c catalog.ViewCommit) (*catalog.View, error) {
	obj, err := g.in.LookupView(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, a := range []policy.Action{policy.UpdateView, policy.ReadView} {
		if err := g.onObject(a, id, obj); err != nil {
			return nil, err
		}
	}
	return g.in.ReplaceView(ctx, g.recorded(m), id, c)
}

// DropView implements catalog.Operations: dropView.
func (g *Guard) DropView(ctx context.Context, m catalog.Mutation, id catalog.Ident) error {
	if _, err := g.drops(ctx, catalog.KindView, id); err != nil {
		return err
	}
	return g.in.DropView(ctx, g.recorded(m), id)
}

// RenameView implements catalog.Operations: dropView on the old name and
// createView on the namespace of the new one.
func (g *Guard) RenameView(ctx context.Context, m catalog.Mutation, from, to catalog.Ident) error {
	if _, err := g.drops(ctx, catalog.KindView, from); err != nil {
		return err
	}
	if err := g.onNamespace(policy.CreateView, to.Namespace); err != nil {
		return err
	}
	return g.in.RenameView(ctx, g.recorded(m), from, to)
}

// RegisterView implements catalog.Operations: createView on the namespace.
func (g *Guard) RegisterView(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, name, location string) (*catalog.View, error) {
	if err := g.onNamespace(policy.CreateView, ns); err != nil {
		return nil, err
	}
	return g.in.RegisterView(ctx, g.recorded(m), ns, name, location)
}

// ListFunctions implements catalog.Operations: listNamespace.
func (g *Guard) ListFunctions(ctx context.Context, ns catalog.Namespace, page catalog.Page) ([]string, string, error) {
	if err := g.onNamespace(policy.ListNamespace, ns); err != nil {
		return nil, "", err
	}
	return g.in.ListFunctions(ctx, ns, page)
}

// LoadFunction implements catalog.Operations: listNamespace.
func (g *Guard) LoadFunction(ctx context.Context, id catalog.Ident) (*catalog.Function, error) {
	if err := g.onNamespace(policy.ListNamespace, id.Namespace); err != nil {
		if catalog.ReasonOf(err) == catalog.NoSuchNamespace {
			return nil, catalog.Errorf(catalog.NoSuchFunction, "Function does not exist: %s", id)
		}
		return nil, err
	}
	return g.in.LoadFunction(ctx, id)
}

// ReportMetrics implements catalog.Operations: a table that the principal can
// see.
func (g *Guard) ReportMetrics(ctx context.Context, c catalog.Caller, id catalog.Ident, reportType string, raw json.RawMessage) error {
	if _, err := g.LookupTable(ctx, id); err != nil {
		return err
	}
	return g.in.ReportMetrics(ctx, c, id, reportType, raw)
}

// Replay implements catalog.Operations. What it returns was the principal's own
// doing; metadata is read again, and decided on, by [Guard.TableMetadata].
func (g *Guard) Replay(ctx context.Context, m catalog.Mutation) (*catalog.Replay, error) {
	return g.in.Replay(ctx, m)
}

// FinishFailed implements catalog.Operations.
func (g *Guard) FinishFailed(ctx context.Context, m catalog.Mutation, status int, body json.RawMessage) error {
	return g.in.FinishFailed(ctx, m, status, body)
}
