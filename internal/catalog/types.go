// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
)

// Separator joins the levels of a namespace in its stored form: the unit
// separator that the REST protocol uses by default (%1F). It can never occur
// in a level.
const Separator = "\x1f"

// Namespace is a list of levels, outermost first. The empty list is the root.
type Namespace []string

// Path returns the stored form: the levels joined by [Separator]; "" for the
// root. Stored paths are compared bytewise.
func (n Namespace) Path() string { return strings.Join(n, Separator) }

// NamespaceFromPath is the inverse of [Namespace.Path].
func NamespaceFromPath(path string) Namespace {
	if path == "" {
		return nil
	}
	return strings.Split(path, Separator)
}

// Parent returns all levels but the last; the root for a top-level namespace.
func (n Namespace) Parent() Namespace {
	if len(n) == 0 {
		return nil
	}
	return n[:len(n)-1]
}

// String writes the levels joined by dots, as messages show them.
func (n Namespace) String() string { return strings.Join(n, ".") }

// Resource writes the levels joined by dots, as records name them: a level
// that could be taken for several, or for a quoted one, is a JSON string.
func (n Namespace) Resource() string { return resource(n) }

// Resource writes the identifier as [Namespace.Resource] does.
func (id Ident) Resource() string { return resource(append(slices.Clone(id.Namespace), id.Name)) }

func resource(levels []string) string {
	var b strings.Builder
	for i, level := range levels {
		if i > 0 {
			b.WriteByte('.')
		}
		if level == "" || strings.ContainsAny(level, `."`) {
			quoted, _ := json.Marshal(level) // a string always can be
			b.Write(quoted)
		} else {
			b.WriteString(level)
		}
	}
	return b.String()
}

// Equal reports whether both have the same levels.
func (n Namespace) Equal(o Namespace) bool { return slices.Equal(n, o) }

// Ident names a table, view or function.
type Ident struct {
	Namespace Namespace `json:"namespace"`
	Name      string    `json:"name"`
}

// String writes the identifier with dots, as messages show it.
func (id Ident) String() string {
	if len(id.Namespace) == 0 {
		return id.Name
	}
	return id.Namespace.String() + "." + id.Name
}

// Kind tells what an [Object] is.
type Kind int16

// The kinds of object. Tables and views share a name space.
const (
	KindTable    Kind = 1
	KindView     Kind = 2
	KindFunction Kind = 3
)

// String is the word used in messages, events and audit rows.
func (k Kind) String() string {
	switch k {
	case KindTable:
		return "table"
	case KindView:
		return "view"
	case KindFunction:
		return "function"
	}
	return "object"
}

// NamespaceRecord is a stored namespace.
type NamespaceRecord struct {
	Warehouse  uuid.UUID
	Namespace  Namespace
	Properties map[string]string // never nil
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// Object is a stored table, view or function: a name, and a pointer to the
// metadata file that is current.
type Object struct {
	ID        uuid.UUID // of the row; stable over renames
	Warehouse uuid.UUID
	Kind      Kind
	Namespace Namespace
	Name      string
	// UUID is the table-uuid, view-uuid or function-uuid of the metadata.
	UUID uuid.UUID
	// Location is the base location, without a trailing slash.
	Location string
	// MetadataLocation is the current metadata file; "" only for a function
	// whose metadata is kept in Metadata.
	MetadataLocation string
	// MetadataDigest is what MetadataLocation held when it became current:
	// clients that may write there cannot put something else in its place.
	MetadataDigest Digest
	// Metadata is the whole metadata of a function; nil for tables and views.
	Metadata json.RawMessage
	// Labels are catalog state shown in load answers; nil when there are none.
	Labels json.RawMessage
	// Version counts the changes of the pointer, from 1.
	Version   int64
	Protected bool // a protected object cannot be dropped
	CreatedAt time.Time
	UpdatedAt time.Time
	// DroppedAt and ExpiresAt are set while a soft-deleted object can be
	// restored; both zero otherwise.
	DroppedAt time.Time
	ExpiresAt time.Time
}

// Digest is the SHA-256 of a metadata document, inflated; zero for a row
// written before digests were kept.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a document.
func DigestOf(document []byte) Digest { return sha256.Sum256(document) }

// IsZero reports whether there is no digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText writes the digest in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText is the inverse of MarshalText.
func (d *Digest) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(d) {
		return errors.New("a digest has 64 hexadecimal digits")
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Ident returns the object's name.
func (o *Object) Ident() Ident { return Ident{Namespace: o.Namespace, Name: o.Name} }

// Page asks for one page of a listing in keyset order (bytewise by name).
type Page struct {
	After string // the last name of the page before; "" starts
	Limit int    // most rows; 0 means all
}

// Event is an outbox row: what changed, for consumers that follow the
// catalog. Payload is a JSON object.
type Event struct {
	ID        int64 // assigned by the store, increasing
	Time      time.Time
	Warehouse uuid.UUID
	Type      string // "table.created", "table.committed", "view.dropped", …
	Object    uuid.UUID
	Namespace string // stored path
	Name      string
	Payload   json.RawMessage
}

// AuditRow is the durable record of one change. Its warehouse is a partition
// of the audit log, named by its id; Record.Warehouse is not kept.
type AuditRow struct {
	Warehouse uuid.UUID
	audit.Record
	// Seq and Hash are the row's place in the warehouse's chain; zero until
	// SealAudit gives it one.
	Seq  int64
	Hash audit.Hash
}

// AuditState is how far a warehouse's audit chain has come.
type AuditState struct {
	Head audit.Ref // the last record; Seq 0 when there is none
	// Fresh is set when rows have committed that are not in the chain yet.
	Fresh bool
	// Checkpoint and CheckpointAt are those of the last checkpoint; zero when
	// there is none.
	Checkpoint   int64
	CheckpointAt time.Time
}

// AuditCursor is how far an export of a warehouse's chain has come.
type AuditCursor struct {
	Warehouse uuid.UUID
	Name      string
	Seq       int64     // of the last row that was exported; 0 for none
	HeldUntil time.Time // the end of the lease
}

// IdempotencyRecord is the outcome of a mutation that came with an
// Idempotency-Key. Its key is (Warehouse, Principal, Key).
type IdempotencyRecord struct {
	Warehouse uuid.UUID
	Principal string
	Key       uuid.UUID
	Operation string
	// RequestHash is the SHA-256 of method, path and body.
	RequestHash [32]byte
	// Response is a JSON [Replay].
	Response  json.RawMessage
	CreatedAt time.Time
	ExpiresAt time.Time
}

// Purge is a durable order to delete the files of a dropped object.
type Purge struct {
	ID        int64 // assigned by the store
	Warehouse uuid.UUID
	Object    uuid.UUID
	// Locations are the object's own; nothing outside them is deleted.
	Locations []string
	// MetadataLocation is the last metadata file, for files that lie outside
	// the base location but inside Locations.
	MetadataLocation string
	Attempts         int
	NotBefore        time.Time
	CreatedAt        time.Time
}

// MaxReports is how many metrics reports of an object are kept, the newest:
// whoever may read a table may send them.
const MaxReports = 256

// MetricsReport is a scan or commit report that a client sent.
type MetricsReport struct {
	Time      time.Time
	Warehouse uuid.UUID
	Object    uuid.UUID
	Principal string
	Type      string // "scan-report" or "commit-report"
	Report    json.RawMessage
}
