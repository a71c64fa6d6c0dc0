// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"

	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

// Operations is what a client can do in a warehouse, under the names of the
// protocol. A [Warehouse] does it; what stands between it and a client,
// policies and shares, has the same methods, so that none can be left out.
type Operations interface {
	Name() string
	Options() Options
	ClientConfig() map[string]string

	CreateNamespace(context.Context, Mutation, Namespace, map[string]string) (NamespaceRecord, error)
	ListNamespaces(context.Context, Namespace, Page) ([]Namespace, string, error)
	LoadNamespace(context.Context, Namespace) (NamespaceRecord, error)
	NamespaceLocation(NamespaceRecord) string
	DropNamespace(context.Context, Mutation, Namespace) error
	UpdateNamespaceProperties(context.Context, Mutation, Namespace, []string, map[string]string) (PropertyChanges, error)

	ListTables(context.Context, Namespace, Page) ([]string, string, error)
	CreateTable(context.Context, Mutation, Namespace, NewTable) (*Table, error)
	LookupTable(context.Context, Ident) (Object, error)
	TableMetadata(context.Context, Object) (*metadata.Document, error)
	CommitTable(context.Context, Mutation, Ident, Commit) (*Table, error)
	CommitTransaction(context.Context, Mutation, []TableChange) error
	DropTable(context.Context, Mutation, Ident, bool) error
	UnregisterTable(context.Context, Mutation, Ident) (*Table, error)
	RegisterTable(context.Context, Mutation, Namespace, string, string, bool) (*Table, error)
	RenameTable(context.Context, Mutation, Ident, Ident) error

	ListViews(context.Context, Namespace, Page) ([]string, string, error)
	CreateView(context.Context, Mutation, Namespace, NewView) (*View, error)
	LookupView(context.Context, Ident) (Object, error)
	ViewMetadata(context.Context, Object) (json.RawMessage, error)
	ReplaceView(context.Context, Mutation, Ident, ViewCommit) (*View, error)
	DropView(context.Context, Mutation, Ident) error
	RenameView(context.Context, Mutation, Ident, Ident) error
	RegisterView(context.Context, Mutation, Namespace, string, string) (*View, error)

	ListFunctions(context.Context, Namespace, Page) ([]string, string, error)
	LoadFunction(context.Context, Ident) (*Function, error)
	ReportMetrics(context.Context, Caller, Ident, string, json.RawMessage) error

	Replay(context.Context, Mutation) (*Replay, error)
	FinishFailed(context.Context, Mutation, int, json.RawMessage) error
}

var _ Operations = (*Warehouse)(nil)
