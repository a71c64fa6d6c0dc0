// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

// Caller is who asks, as far as records need it.
type Caller struct {
	Principal string // stable id; never a token
	Actor     string // stable id of who acts for the principal, "" when nobody does
	RequestID string
	Address   netip.Addr // where the request comes from; zero when unknown
}

// Mutation is what every change records with its effect.
type Mutation struct {
	Caller
	// Operation is the operationId of the protocol, e.g. "updateTable".
	Operation string
	// Decision let the change through, and Policies determined it.
	Decision audit.Decision
	Policies []audit.Policy
	// Key is nil when the request had no Idempotency-Key.
	Key *IdempotencyKey

	system bool // see System
}

// SystemPrincipal is the principal of what the server changes by itself. No
// issuer of identities can have its name.
const SystemPrincipal = "system:audit"

// System is a change that the server makes by itself, and alone may make to
// what [Options] reserve.
func System(operation string) Mutation {
	return Mutation{Caller: Caller{Principal: SystemPrincipal}, Operation: operation, Decision: audit.Allow, system: true}
}

// IdempotencyKey identifies a request that may be sent again.
type IdempotencyKey struct {
	Key uuid.UUID
	// RequestHash is the SHA-256 of method, path, query and body.
	RequestHash [32]byte
}

// Replay is the stored outcome of a mutation, small enough to keep: metadata
// is named by its location, never copied.
type Replay struct {
	// Status is the HTTP status of the answer, 2xx or a final 4xx.
	Status int `json:"status"`
	// Object and MetadataLocation tell how to build the answer again when it
	// holds metadata; MetadataLocation is "" otherwise.
	Object           uuid.UUID `json:"object,omitzero"`
	MetadataLocation string    `json:"metadata-location,omitempty"`
	MetadataDigest   Digest    `json:"metadata-digest,omitzero"`
	// Staged is the answer of a staged create, which no file holds.
	Staged json.RawMessage `json:"staged,omitempty"`
	// Body is the answer when it is small JSON (namespaces, errors).
	Body json.RawMessage `json:"body,omitempty"`
}

// Table is a table at one version.
type Table struct {
	Object   Object
	Metadata *metadata.Document
}

// View is a view at one version; Metadata is the JSON of its metadata file.
type View struct {
	Object   Object
	Metadata json.RawMessage
}

// Function is a registered function.
type Function struct {
	Object   Object
	Metadata json.RawMessage
}

// NewTable is a create request, already decoded. Schema, PartitionSpec and
// SortOrder are the client's JSON; the latter two may be nil.
type NewTable struct {
	Name          string
	Location      string // "" lets the catalog choose <warehouse>/<table uuid>
	Schema        json.RawMessage
	PartitionSpec json.RawMessage
	SortOrder     json.RawMessage
	Properties    map[string]string
	Stage         bool // build and return metadata, create nothing
}

// Commit is one table's part of a commit.
type Commit struct {
	Requirements []metadata.Requirement
	Updates      []metadata.Update
}

// TableChange is one table's part of a transaction.
type TableChange struct {
	Table Ident
	Commit
}

// NewView is a create-view request; Schema and Version are the client's JSON.
type NewView struct {
	Name       string
	Location   string
	Schema     json.RawMessage
	Version    json.RawMessage
	Properties map[string]string
}

// ViewCommit is a replace-view request: the raw JSON objects of the request.
type ViewCommit struct {
	Requirements []json.RawMessage
	Updates      []json.RawMessage
}

// PropertyChanges tells what an update of namespace properties did. The lists
// are sorted and never nil.
type PropertyChanges struct {
	Updated []string `json:"updated"`
	Removed []string `json:"removed"`
	Missing []string `json:"missing"`
}

// Options are the settings of one warehouse.
type Options struct {
	// Name is the warehouse's name, which is also its prefix in paths.
	Name string
	// SoftDelete keeps dropped tables and views restorable for this long;
	// zero drops for good at once.
	SoftDelete time.Duration
	// ProtectByDefault makes new tables and views protected from dropping.
	ProtectByDefault bool
	// IdempotencyLifetime is how long keys are kept; see config.
	IdempotencyLifetime time.Duration
	// Reserved is a table or view that only the server itself changes (see
	// System); none when zero.
	Reserved Ident
}
