// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
)

// Reader is what can be read inside and outside a transaction. All look-ups
// are by index. Timestamps come back in UTC with at least millisecond
// precision.
type Reader interface {
	// Namespace returns ErrNoNamespace when it is absent. The root namespace
	// (no levels) is never stored.
	Namespace(ctx context.Context, warehouse uuid.UUID, ns Namespace) (NamespaceRecord, error)
	// ListNamespaces returns the direct children of parent (root: no levels)
	// in bytewise order of their last level; Page.After is a last level.
	// It does not check that parent exists.
	ListNamespaces(ctx context.Context, warehouse uuid.UUID, parent Namespace, page Page) ([]Namespace, error)
	// Object finds a live table or view (kind table or view: whichever has
	// the name, since they share one name space; the caller compares
	// Object.Kind) or a live function (KindFunction). One query on one unique
	// index. ErrNoObject when absent, whether or not the namespace exists.
	Object(ctx context.Context, warehouse uuid.UUID, ns Namespace, name string, kind Kind) (Object, error)
	// ObjectByID finds a live or dropped object.
	ObjectByID(ctx context.Context, warehouse, id uuid.UUID) (Object, error)
	// ListObjects returns the names of live objects of one kind in bytewise
	// order. It does not check that the namespace exists.
	ListObjects(ctx context.Context, warehouse uuid.UUID, ns Namespace, kind Kind, page Page) ([]string, error)
	// ListDropped returns soft-deleted objects of a warehouse, oldest first: in
	// order of their ids, which grow with time. Page.After is the id of the last
	// object of the page before.
	ListDropped(ctx context.Context, warehouse uuid.UUID, page Page) ([]Object, error)
	// Locations returns every location reserved for an object, base first.
	Locations(ctx context.Context, object uuid.UUID) ([]string, error)
	// Overlaps reports whether a location equals, contains or lies inside one
	// that is reserved for an object other than the given one.
	Overlaps(ctx context.Context, warehouse, object uuid.UUID, locations []string) (bool, error)
	// Idempotency returns the unexpired record, or ErrNoObject.
	Idempotency(ctx context.Context, warehouse uuid.UUID, principal string, key uuid.UUID, now time.Time) (IdempotencyRecord, error)
}

// Tx is one transaction of a [Store]. After a method has failed with one of
// the sentinels the transaction can still be read from, to say why; it cannot
// be committed any more: [Store.Update] returns that failure even when the
// function returns nil.
type Tx interface {
	Reader

	// CreateNamespace returns ErrExists, or ErrNoNamespace when a parent
	// level is missing. The parent cannot be dropped concurrently.
	CreateNamespace(ctx context.Context, rec NamespaceRecord) error
	// UpdateNamespaceProperties replaces the properties by what change makes
	// of the current ones, under a row lock.
	UpdateNamespaceProperties(ctx context.Context, warehouse uuid.UUID, ns Namespace, at time.Time, change func(map[string]string) map[string]string) error
	// DropNamespace returns ErrNoNamespace, ErrNotEmpty, or ErrHoldsDropped
	// when only soft-deleted objects are left in it.
	DropNamespace(ctx context.Context, warehouse uuid.UUID, ns Namespace) error

	// CreateObject inserts obj with Version 1 and reserves locations (base
	// first). ErrNoNamespace, ErrExists, ErrLocationTaken. The namespace
	// cannot be dropped concurrently.
	CreateObject(ctx context.Context, obj Object, locations []string) error
	// SwapMetadata moves the pointer of a live object from expected to next,
	// whose document has that digest,
	// and adds to its reservations; Version grows by one. ErrStale when the
	// pointer is not expected (or the object is gone); ErrLocationTaken.
	// location is the (possibly new) base location. Old locations stay
	// reserved for the object.
	SwapMetadata(ctx context.Context, id uuid.UUID, expected, next string, digest Digest, location string, addLocations []string, at time.Time) error
	// ReplaceObject is SwapMetadata for `register … overwrite`: the object
	// keeps its row and name, its UUID, locations and pointer change.
	ReplaceObject(ctx context.Context, id uuid.UUID, expected string, next Object, locations []string) error
	// RenameObject moves a live object of that kind. ErrNoObject,
	// ErrNoNamespace (destination), ErrExists.
	RenameObject(ctx context.Context, warehouse uuid.UUID, kind Kind, from, to Ident, at time.Time) (Object, error)
	// DropObject removes a live object of that kind. With expires zero it is
	// gone for good: its reservations go too, or, when purge is set, they are
	// kept and a Purge of all its locations is queued in this transaction.
	// With expires set it is soft-deleted until then and keeps its
	// reservations; Expire later removes it the way this call would have,
	// purging only if purge was set. ErrNoObject, ErrProtected.
	DropObject(ctx context.Context, warehouse uuid.UUID, kind Kind, id Ident, at, expires time.Time, purge bool) (Object, error)
	// RestoreObject undoes a soft delete under its old name or, when to is
	// not nil, a new one. ErrNoObject, ErrExists, ErrNoNamespace.
	RestoreObject(ctx context.Context, warehouse, id uuid.UUID, to *Ident, at time.Time) (Object, error)
	// SetProtected and SetLabels change catalog state of a live object.
	SetProtected(ctx context.Context, warehouse uuid.UUID, kind Kind, id Ident, protected bool) error
	SetLabels(ctx context.Context, warehouse uuid.UUID, kind Kind, id Ident, labels json.RawMessage) error
	// SetFunctionMetadata replaces the metadata of a live function.
	SetFunctionMetadata(ctx context.Context, id uuid.UUID, metadata json.RawMessage, at time.Time) error

	// PutIdempotency returns ErrIdempotencyUsed when an unexpired record with
	// that key exists; it waits for a concurrent transaction that inserts
	// the same key. An expired record is replaced.
	PutIdempotency(ctx context.Context, rec IdempotencyRecord) error
	PutEvent(ctx context.Context, e Event) error
	PutAudit(ctx context.Context, row AuditRow) error
}

// Store is the durable state of a catalog. One conformance suite
// (storetest.Run) holds for every implementation.
//
// A failure is one of the sentinels of this package, or wraps ErrUnavailable
// when nothing was applied, or wraps ErrUnknownOutcome when COMMIT itself
// failed; anything else is a fault of the program. When a caller's context
// ends before the COMMIT, the failure wraps ErrUnavailable and the context's
// error; from the COMMIT on it has no effect.
type Store interface {
	Reader

	// Update runs fn in one transaction, serialisable as far as the
	// documented errors of Tx need it, and commits when fn returns nil. It
	// retries fn on serialisation failures and deadlocks, so fn has no
	// effects outside the transaction. fn's own error comes back unchanged.
	Update(ctx context.Context, fn func(tx Tx) error) error

	// EnsureWarehouse returns the id of the warehouse with that name and
	// makes it when it is new.
	EnsureWarehouse(ctx context.Context, name string) (uuid.UUID, error)

	// PutMetricsReports appends reports in one transaction, and drops those of
	// their objects beyond the newest MaxReports.
	PutMetricsReports(ctx context.Context, reports []MetricsReport) error
	// MetricsReports returns the newest reports of an object first.
	MetricsReports(ctx context.Context, warehouse, object uuid.UUID, limit int) ([]MetricsReport, error)
	// Events returns events with ID > after, in order, at most limit, only
	// such that no smaller ID can still appear (a gap left by a transaction
	// in flight ends the answer).
	Events(ctx context.Context, warehouse uuid.UUID, after int64, limit int) ([]Event, error)
	// Audit returns audit rows of a warehouse, newest first.
	Audit(ctx context.Context, warehouse uuid.UUID, limit int) ([]AuditRow, error)

	// AuditState tells how far the warehouse's audit chain has come.
	AuditState(ctx context.Context, warehouse uuid.UUID) (AuditState, error)
	// SealAudit puts at most limit committed rows into the chain, in an order in
	// which none is ever skipped: a row that commits later comes later, however
	// early its transaction began. It returns the chain's end before and
	// after. When another caller seals the same warehouse at this moment it
	// does nothing, and both are zero.
	SealAudit(ctx context.Context, warehouse uuid.UUID, limit int) (before, after audit.Ref, err error)
	// AuditRows returns rows of the chain with Seq > after, in order.
	AuditRows(ctx context.Context, warehouse uuid.UUID, after int64, limit int) ([]AuditRow, error)
	// PutAuditCheckpoint keeps a checkpoint of the warehouse's chain; one of the
	// same record that is there stays.
	PutAuditCheckpoint(ctx context.Context, warehouse uuid.UUID, c audit.Checkpoint) error
	// AuditCheckpoints returns checkpoints with Seq >= from, in order.
	AuditCheckpoints(ctx context.Context, warehouse uuid.UUID, from int64, limit int) ([]audit.Checkpoint, error)
	// ExpireAudit removes rows from the chain's beginning up to the first
	// checkpoint that has any before it, if that checkpoint was made before a
	// time and is of no record after upTo. The checkpoint stays, so that what is left
	// can be verified. It returns how many rows went; call it until none does.
	ExpireAudit(ctx context.Context, warehouse uuid.UUID, before time.Time, upTo int64) (int, error)
	// ClaimAuditCursor takes the cursor of an export for this worker and hides
	// it from others until lease has passed: the number of the last row
	// that was exported. ErrNoObject when another worker has it.
	ClaimAuditCursor(ctx context.Context, warehouse uuid.UUID, name string, now time.Time, lease time.Duration) (AuditCursor, error)
	// MoveAuditCursor moves a claimed cursor to a row and its lease to a time.
	// ErrStale when another worker has claimed it since.
	MoveAuditCursor(ctx context.Context, c AuditCursor, seq int64, until time.Time) (AuditCursor, error)
	// AuditCursors returns how far the exports of a warehouse have come.
	AuditCursors(ctx context.Context, warehouse uuid.UUID) (map[string]int64, error)

	// ClaimPurge takes the oldest due purge for this worker and hides it from
	// others until lease has passed; ErrNoObject when none is due.
	ClaimPurge(ctx context.Context, now time.Time, lease time.Duration) (Purge, error)
	// RenewPurge makes the lease of a claimed purge last until a later time, and
	// returns the purge with its new NotBefore. Like the two that follow it
	// returns ErrStale, and does nothing, when another worker has claimed it since:
	// NotBefore is no longer what this one was given.
	RenewPurge(ctx context.Context, p Purge, until time.Time) (Purge, error)
	// FinishPurge removes a claimed purge and the reservations of its object.
	FinishPurge(ctx context.Context, p Purge) error
	// RetryPurge makes a claimed purge due again at notBefore and counts the
	// attempt.
	RetryPurge(ctx context.Context, p Purge, notBefore time.Time) error
	// Expire deletes what has outlived its time at now, at most limit rows of
	// each: idempotency records, metrics reports older than reportsBefore,
	// events older than eventsBefore, and soft-deleted objects (see
	// DropObject), whose files are queued for purge in the same transaction
	// where the drop asked for it. It returns how many rows went.
	Expire(ctx context.Context, now, reportsBefore, eventsBefore time.Time, limit int) (int, error)

	// Migrate brings the schema to the newest version, under a lock; Version
	// tells the schema's version and the newest that this program knows.
	Migrate(ctx context.Context) error
	Version(ctx context.Context) (current, newest int, err error)
	// Ping reports whether the store answers.
	Ping(ctx context.Context) error
	Close() error
}
