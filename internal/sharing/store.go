// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
)

// Page asks for one page of a listing. After is the key of the last row of the
// page before, as [Key] writes it; "" starts.
type Page = catalog.Page

// Key joins the parts of a listing's key.
func Key(parts ...string) string {
	return catalog.Namespace(parts).Path()
}

// Reader is what can be read inside and outside a transaction. Single rows are
// ErrNotFound when they are absent. Lists are in the order of the key that each
// names, bytewise.
type Reader interface {
	Organisation(ctx context.Context, name string) (Organisation, error)
	// Organisations lists all by name.
	Organisations(ctx context.Context, page Page) ([]Organisation, error)
	// Owns reports whether anything belongs to an organisation.
	Owns(ctx context.Context, organisation string) (bool, error)

	// Principal returns what an organisation has recorded of a principal.
	Principal(ctx context.Context, organisation, id string) (Principal, error)
	// Principals lists those of one organisation, or with "" of all, by
	// organisation and id; ServiceAccounts, by client id, and Warehouses, by name,
	// likewise.
	Principals(ctx context.Context, organisation string, page Page) ([]Principal, error)
	ServiceAccount(ctx context.Context, clientID string) (ServiceAccount, error)
	ServiceAccounts(ctx context.Context, organisation string, page Page) ([]ServiceAccount, error)
	Warehouse(ctx context.Context, name string) (Warehouse, error)
	WarehouseByID(ctx context.Context, id uuid.UUID) (Warehouse, error)
	Warehouses(ctx context.Context, organisation string, page Page) ([]Warehouse, error)

	// Share counts the members, too; ShareHead is one look-up of one row.
	Share(ctx context.Context, name string) (Share, error)
	ShareHead(ctx context.Context, name string) (Share, error)
	ShareByID(ctx context.Context, id uuid.UUID) (Share, error)
	// Shares lists those of one organisation, or with "" of all, by name.
	Shares(ctx context.Context, organisation string, page Page) ([]Share, error)
	Member(ctx context.Context, share, id uuid.UUID) (Member, error)
	// Members lists by alias namespace and alias.
	Members(ctx context.Context, share uuid.UUID, page Page) ([]Member, error)
	// MembersOf returns the members, of all shares, that are an object.
	MembersOf(ctx context.Context, object uuid.UUID) ([]Member, error)
	// MembersWhole returns the members, of all shares, that are a namespace.
	MembersWhole(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) ([]Member, error)
	// SharesFrom reports whether a warehouse has members in any share.
	SharesFrom(ctx context.Context, warehouse uuid.UUID) (bool, error)

	Recipient(ctx context.Context, provider, name string) (Recipient, error)
	RecipientByID(ctx context.Context, id uuid.UUID) (Recipient, error)
	// Recipients lists those of one provider, or with "" of all, by provider
	// and name.
	Recipients(ctx context.Context, provider string, page Page) ([]Recipient, error)
	// RecipientsBound returns the ids of recipients with a binding.
	RecipientsBound(ctx context.Context, issuer, claim, value string) ([]uuid.UUID, error)
	// Activation returns identity.ErrActivationUnknown when it is absent.
	Activation(ctx context.Context, id string) (identity.Activation, error)

	Grant(ctx context.Context, id uuid.UUID) (Grant, error)
	// Grants lists by id. What is not "" or zero in the filter must be so.
	Grants(ctx context.Context, f GrantFilter, page Page) ([]Grant, error)

	// Warnings lists newest first, those of one share or, with a zero share,
	// of an organisation.
	Warnings(ctx context.Context, share uuid.UUID, organisation string, page Page) ([]Warning, error)

	PolicySet(ctx context.Context, key PolicyKey) (PolicySet, error)
	// PolicySetOf returns the one set that an owner has in a layer.
	PolicySetOf(ctx context.Context, layer Layer, organisation string) (PolicySet, error)
	// PolicySets lists by layer, organisation and name those that are of the
	// layer, unless it is 0, and of the organisation, unless it is "".
	PolicySets(ctx context.Context, layer Layer, organisation string, page Page) ([]PolicySet, error)
	PolicyVersion(ctx context.Context, set uuid.UUID, version int64) (PolicyVersion, error)
	// PolicyVersions and PolicyActivations list newest first; the former
	// without files.
	PolicyVersions(ctx context.Context, set uuid.UUID, page Page) ([]PolicyVersion, error)
	PolicyActivations(ctx context.Context, set uuid.UUID, page Page) ([]PolicyActivation, error)
	// PoliciesRevision counts activations of all sets: what a cache of parsed
	// policies compares.
	PoliciesRevision(ctx context.Context) (int64, error)

	// Object and ObjectByID are those of the catalog, and NamespaceExists asks
	// it. They return ErrNotFound.
	Object(ctx context.Context, warehouse uuid.UUID, id catalog.Ident, kind catalog.Kind) (catalog.Object, error)
	ObjectByID(ctx context.Context, warehouse, id uuid.UUID) (catalog.Object, error)
	NamespaceExists(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) (bool, error)
	// HasNamespaces reports whether a warehouse holds any.
	HasNamespaces(ctx context.Context, warehouse uuid.UUID) (bool, error)
	// Namespaces and Objects list what is in a namespace of the catalog.
	Namespaces(ctx context.Context, warehouse uuid.UUID, parent catalog.Namespace, page Page) ([]catalog.Namespace, error)
	Objects(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace, kind catalog.Kind, page Page) ([]string, error)

	// Idempotency returns the response of an unexpired record, or ErrNotFound.
	Idempotency(ctx context.Context, principal string, key uuid.UUID, now time.Time) (catalog.IdempotencyRecord, error)
}

// GrantFilter says which grants are wanted.
type GrantFilter struct {
	Provider         string
	Share, Recipient uuid.UUID
}

// Tx is one transaction of a [Store]. A Put inserts what has Version 1, or
// ErrExists; else it replaces what has the version before, or ErrStale. A
// Delete is ErrNotFound when there is nothing. A transaction in which a write
// has failed cannot be committed.
type Tx interface {
	Reader

	PutOrganisation(ctx context.Context, o Organisation) error
	DeleteOrganisation(ctx context.Context, name string) error
	// HoldOrganisation keeps an organisation from being deleted until the
	// transaction ends; ErrNotFound when it is not there.
	HoldOrganisation(ctx context.Context, name string) error
	PutPrincipal(ctx context.Context, p Principal) error
	DeletePrincipal(ctx context.Context, organisation, id string) error
	PutServiceAccount(ctx context.Context, a ServiceAccount) error
	DeleteServiceAccount(ctx context.Context, clientID string) error
	PutWarehouse(ctx context.Context, w Warehouse) error
	DeleteWarehouse(ctx context.Context, name string) error

	// PutShare ignores Revision, which it counts itself.
	PutShare(ctx context.Context, s Share) error
	// DeleteShare deletes its members and grants, too.
	DeleteShare(ctx context.Context, id uuid.UUID) error
	// HoldShare locks a share's row and returns it.
	HoldShare(ctx context.Context, name string) (Share, error)
	// TouchShares counts the revisions of shares up: of the one with an id, or
	// with a zero id of all with grants of a recipient.
	TouchShares(ctx context.Context, share, recipient uuid.UUID) error
	// AddMember returns ErrExists when the share shows something else under
	// that name or has the object already, ErrNotFound when what it is bound to
	// is gone. The object or namespace cannot be dropped concurrently.
	AddMember(ctx context.Context, m Member) error
	// MoveMember writes where the object is now.
	MoveMember(ctx context.Context, id uuid.UUID, ns catalog.Namespace, name string) error
	DeleteMember(ctx context.Context, share, id uuid.UUID) error
	// HoldObject and HoldNamespace keep others from making members of it.
	HoldObject(ctx context.Context, warehouse, object uuid.UUID) error
	HoldNamespace(ctx context.Context, warehouse uuid.UUID, ns catalog.Namespace) error

	PutRecipient(ctx context.Context, r Recipient) error
	// DeleteRecipient deletes its grants and links, too.
	DeleteRecipient(ctx context.Context, id uuid.UUID) error
	AddActivation(ctx context.Context, a identity.Activation) error
	// SpendActivation sets who used a link that nobody has used.
	SpendActivation(ctx context.Context, id string, by identity.Binding, at time.Time) error
	// VoidActivations deletes links of a recipient that nobody has used.
	VoidActivations(ctx context.Context, recipient uuid.UUID) error
	PutGrant(ctx context.Context, g Grant) error
	DeleteGrant(ctx context.Context, id uuid.UUID) error
	PutWarning(ctx context.Context, w Warning) error

	PutPolicySet(ctx context.Context, s PolicySet) error
	AddPolicyVersion(ctx context.Context, v PolicyVersion) error
	// AddPolicyActivation counts PoliciesRevision up.
	AddPolicyActivation(ctx context.Context, a PolicyActivation) error

	// PutIdempotency returns catalog.ErrIdempotencyUsed; see catalog.Tx.
	PutIdempotency(ctx context.Context, rec catalog.IdempotencyRecord) error
	// PutAudit records a change in the chain [AdministrationPartition].
	PutAudit(ctx context.Context, r audit.Record) error
}

// AdministrationPartition is the name of the audit chain of changes that this
// package makes. No warehouse can have it.
const AdministrationPartition = "@administration"

// Store is the durable state of this package. One conformance suite
// (storetest.Run) holds for every implementation. Failures are as those of
// catalog.Store.
type Store interface {
	Reader

	// Update runs fn in one transaction; see catalog.Store.
	Update(ctx context.Context, fn func(tx Tx) error) error
	// Within gives a transaction of the catalog, on the same database, the
	// methods of this package.
	Within(tx catalog.Tx) (Tx, error)
	// Administration is the id of the audit chain.
	Administration() uuid.UUID
	// EnsureWarehouse is that of the catalog.
	EnsureWarehouse(ctx context.Context, name string) (uuid.UUID, error)
}
