// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
)

// Stamp is what all nouns have: how often and when it was changed. Times are
// in UTC with milliseconds.
type Stamp struct {
	Version              int64 // counts changes, from 1
	CreatedAt, UpdatedAt time.Time
}

// Etag names this state: another state of the same noun, or of one of the same
// name that was made later, has another.
func (s Stamp) Etag() string {
	return strconv.FormatInt(s.CreatedAt.UnixMilli(), 36) + "-" + strconv.FormatInt(s.Version, 36)
}

func newStamp(at time.Time) Stamp { return Stamp{Version: 1, CreatedAt: at, UpdatedAt: at} }

// next is the stamp after one more change.
func (s Stamp) next(at time.Time) Stamp { return Stamp{s.Version + 1, s.CreatedAt, at} }

// Organisation is a provider or recipient of shares, or both.
type Organisation struct {
	Name        string // unique, and never changed
	ID          uuid.UUID
	DisplayName string
	Contact     string
	Stamp
}

// Principal is what an organisation has recorded of a principal beside its
// token. It counts only for one whose token says that organisation.
type Principal struct {
	ID           string // identity.Principal.ID
	Organisation string
	DisplayName  string
	Admin        bool // administers its organisation
	Disabled     bool
	Stamp
}

// ServiceAccount is an account whose secrets this server keeps, hashed.
type ServiceAccount struct {
	ClientID     string
	Organisation string
	DisplayName  string
	Disabled     bool
	Secrets      []AccountSecret // at most identity.MaxSecrets
	Stamp
}

// AccountSecret is one secret of an account.
type AccountSecret struct {
	ID        string    `json:"id"`
	Hash      string    `json:"hash"` // argon2id, in PHC form
	CreatedAt time.Time `json:"created-at"`
	ExpiresAt time.Time `json:"expires-at,omitzero"`
}

// WarehouseSource says where a warehouse comes from.
type WarehouseSource int

// The sources.
const (
	SourceConfiguration WarehouseSource = 1
	SourceAPI           WarehouseSource = 2
)

// Warehouse is what an administrator says of a warehouse.
type Warehouse struct {
	Name         string
	ID           uuid.UUID // as in the catalog
	Organisation string    // "" when nobody owns it; then it cannot be shared
	DisplayName  string
	Storage      Storage
	Source       WarehouseSource
	Stamp
}

// Storage says where a warehouse's files lie and how they are reached. It
// holds references to secrets, never secrets.
type Storage struct {
	Root         string            `json:"root"`
	AllowedRoots []string          `json:"allowed-roots,omitempty"`
	Region       string            `json:"region,omitempty"`
	Endpoint     string            `json:"endpoint,omitempty"`
	PathStyle    bool              `json:"path-style,omitempty"`
	Secrets      map[string]string `json:"secrets,omitempty"`
}

// OnDrop says what happens when a shared object is to be dropped.
type OnDrop int

// The rules.
const (
	OnDropBlock  OnDrop = 1 // the drop is refused
	OnDropRemove OnDrop = 2 // the member goes with it, and the owner is warned
)

// Share is a named, read-only set of tables, views and namespaces.
type Share struct {
	Name         string // unique over all organisations
	ID           uuid.UUID
	Organisation string
	DisplayName  string
	Description  string
	OnDrop       OnDrop
	// Revision counts all that shapes what recipients get: the share, its
	// members, its grants and their recipients. Version leaves the latter out.
	Revision int64
	Members  int // how many; not stored
	Stamp
}

// MemberKind tells what a [Member] is.
type MemberKind int

// The kinds. The first two are those of the catalog.
const (
	MemberTable     = MemberKind(catalog.KindTable)
	MemberView      = MemberKind(catalog.KindView)
	MemberNamespace = MemberKind(3)
)

// String is the word in messages.
func (k MemberKind) String() string {
	switch k {
	case MemberTable:
		return "table"
	case MemberView:
		return "view"
	case MemberNamespace:
		return "namespace"
	}
	return "unknown"
}

// Member is a table, view or namespace in a share.
type Member struct {
	ID        uuid.UUID
	Share     uuid.UUID
	Kind      MemberKind
	Warehouse uuid.UUID
	// Namespace and Name are where it is at this moment; Name is "" for a
	// namespace.
	Namespace catalog.Namespace
	Name      string
	// Object is the catalog's row, and UUID the object's own; both zero for a
	// namespace.
	Object, UUID uuid.UUID
	// AliasNamespace and Alias are how recipients see it: the former is where
	// it lies, or for a namespace what it is called.
	AliasNamespace catalog.Namespace
	Alias          string
	CreatedAt      time.Time
}

// source is the member as its warehouse calls it.
func (m *Member) source() string {
	if m.Kind == MemberNamespace {
		return m.Namespace.Resource()
	}
	return catalog.Ident{Namespace: m.Namespace, Name: m.Name}.Resource()
}

// BindingKind tells how a recipient is known.
type BindingKind int

// The kinds of binding.
const (
	BoundByToken       BindingKind = 1
	BoundByCertificate BindingKind = 2
	BoundByActivation  BindingKind = 3
)

// Claims of a [Binding] that are not attributes.
const (
	ClaimSubject      = "subject"
	ClaimOrganisation = "organisation"
	ClaimGroup        = "group"
)

// AccountIssuer stands for service accounts of this server.
const AccountIssuer = "account"

// Binding says which principals are a recipient: those of an issuer of which a
// claim has a value. One by certificate or activation has ClaimSubject.
type Binding struct {
	Kind BindingKind
	// Issuer is the name in the configuration, or AccountIssuer. With a binding
	// by activation all three are "" until the link is spent.
	Issuer, Claim, Value string
	// LinkExpires is when the newest activation link ends, ActivatedAt when
	// one was spent; zero for none.
	LinkExpires, ActivatedAt time.Time
}

// issuerOf is how a [Binding] calls the issuer of a principal.
func issuerOf(p identity.Principal) string {
	if p.Issuer == "" {
		return AccountIssuer
	}
	return p.Issuer
}

// Matches reports whether a principal is who is bound.
func (b *Binding) Matches(p identity.Principal) bool {
	if b.Issuer == "" || b.Value == "" || p.Kind == identity.KindAnonymous || b.Issuer != issuerOf(p) {
		return false
	}
	if b.Kind == BoundByCertificate && p.Kind != identity.KindCertificate {
		return false
	}
	switch b.Claim {
	case ClaimSubject:
		return p.Subject == b.Value
	case ClaimOrganisation:
		return p.Organisation == b.Value
	case ClaimGroup:
		return slices.Contains(p.Groups, b.Issuer+":"+b.Value)
	}
	a, ok := p.Attributes[b.Claim]
	if !ok {
		return false
	}
	switch a.Type {
	case identity.TypeString:
		return a.String == b.Value
	case identity.TypeLong:
		return strconv.FormatInt(a.Long, 10) == b.Value
	case identity.TypeBoolean:
		return strconv.FormatBool(a.Boolean) == b.Value
	case identity.TypeSet:
		return slices.Contains(a.Set, b.Value)
	}
	return false
}

// bindingsOf returns every claim and value by which a principal could be
// bound.
func bindingsOf(p identity.Principal) [][2]string {
	if p.Kind == identity.KindAnonymous {
		return nil
	}
	keys := [][2]string{{ClaimSubject, p.Subject}, {ClaimOrganisation, p.Organisation}}
	for _, g := range p.Groups {
		if name, ok := cutIssuer(g, issuerOf(p)); ok {
			keys = append(keys, [2]string{ClaimGroup, name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Attributes)) {
		a := p.Attributes[name]
		switch a.Type {
		case identity.TypeString:
			keys = append(keys, [2]string{name, a.String})
		case identity.TypeLong:
			keys = append(keys, [2]string{name, strconv.FormatInt(a.Long, 10)})
		case identity.TypeBoolean:
			keys = append(keys, [2]string{name, strconv.FormatBool(a.Boolean)})
		case identity.TypeSet:
			for _, v := range a.Set {
				keys = append(keys, [2]string{name, v})
			}
		}
	}
	return slices.DeleteFunc(keys, func(k [2]string) bool { return k[1] == "" })
}

func cutIssuer(group, issuer string) (string, bool) {
	if len(group) > len(issuer) && group[:len(issuer)] == issuer && group[len(issuer)] == ':' {
		return group[len(issuer)+1:], true
	}
	return "", false
}

// Recipient is to whom an organisation shares.
type Recipient struct {
	ID          uuid.UUID
	Provider    string // the organisation that shares; never changed
	Name        string // unique among the provider's, never changed
	DisplayName string
	// Organisation, when it is not "", must be that of the principal.
	Organisation string
	Binding      Binding
	Disabled     bool
	Stamp
}

// Is reports whether a principal is this recipient.
func (r *Recipient) Is(p identity.Principal) bool {
	return (r.Organisation == "" || r.Organisation == p.Organisation) && r.Binding.Matches(p)
}

// Grant is a share given to a recipient.
type Grant struct {
	ID        uuid.UUID // version 7: in order of creation
	Share     uuid.UUID
	Recipient uuid.UUID
	// ShareName and RecipientName are not stored.
	ShareName, RecipientName string
	Provider                 string
	Comment                  string
	ExpiresAt                time.Time // zero: never
	Conditions               Conditions
	Terms                    string
	AcceptedBy               string // who accepted the present terms
	AcceptedAt               time.Time
	RevokedAt                time.Time
	RevokeReason             string
	Stamp
}

// Conditions are what else must be so for a grant to give access. All that
// are given must hold.
type Conditions struct {
	NotBefore time.Time      `json:"not-before,omitzero"`
	Networks  []netip.Prefix `json:"networks,omitempty"`
	Groups    []string       `json:"groups,omitempty"` // ids: the issuer's name, a colon, the group
	Kinds     []string       `json:"kinds,omitempty"`  // words of identity.Kind
}

// State is what a grant comes to at a moment.
type State int

// The states. Only StateActive gives access.
const (
	StatePendingTerms State = iota + 1
	StateNotYetValid
	StateActive
	StateExpired
	StateRevoked
	StateSuspended // the recipient is disabled
)

// String is the word in messages.
func (s State) String() string {
	words := [...]string{"unknown", "pending acceptance of its terms", "not yet valid", "active", "expired", "revoked", "suspended"}
	if s < 0 || int(s) >= len(words) {
		return words[0]
	}
	return words[s]
}

// State returns what a grant of a recipient comes to. Of several things that
// speak against it, that which is hardest to undo is told.
func (g *Grant) State(r *Recipient, now time.Time) State {
	switch {
	case !g.RevokedAt.IsZero():
		return StateRevoked
	case !g.ExpiresAt.IsZero() && !now.Before(g.ExpiresAt):
		return StateExpired
	case r.Disabled:
		return StateSuspended
	case now.Before(g.Conditions.NotBefore):
		return StateNotYetValid
	case g.Terms != "" && g.AcceptedAt.IsZero():
		return StatePendingTerms
	}
	return StateActive
}

// inForce reports whether a grant may give access, now or later.
func (g *Grant) inForce(now time.Time) bool {
	return g.RevokedAt.IsZero() && (g.ExpiresAt.IsZero() || now.Before(g.ExpiresAt))
}

// Caller is who asks for a share, and from where.
type Caller struct {
	identity.Principal
	Address netip.Addr // zero when unknown
}

// hold reports whether the conditions hold for a caller. An address that is
// not known is in no network.
func (c *Conditions) hold(who Caller) bool {
	if len(c.Networks) > 0 && !slices.ContainsFunc(c.Networks, func(n netip.Prefix) bool { return n.Contains(who.Address.Unmap()) }) {
		return false
	}
	if len(c.Groups) > 0 && !slices.ContainsFunc(c.Groups, func(g string) bool { return slices.Contains(who.Groups, g) }) {
		return false
	}
	return len(c.Kinds) == 0 || slices.Contains(c.Kinds, who.Kind.String())
}

// Warning tells a share's owner what happened to a shared object.
type Warning struct {
	ID           int64 // assigned by the store, increasing
	Time         time.Time
	Organisation string
	Share        uuid.UUID
	ShareName    string // not stored
	Reason       string // one of the Warn constants
	Message      string
	Object       string // as its warehouse calls it, with the warehouse in front
	Principal    string // who did it
}

// Reasons of warnings.
const (
	WarnRemoved  = "MEMBER_REMOVED"
	WarnRenamed  = "MEMBER_RENAMED"
	WarnReplaced = "MEMBER_REPLACED"
)

// Layer is where a policy set decides.
type Layer int

// The layers.
const (
	LayerPlatform  Layer = 1
	LayerProvider  Layer = 2
	LayerRecipient Layer = 3
)

// String is the word in messages and records.
func (l Layer) String() string {
	switch l {
	case LayerPlatform:
		return "platform"
	case LayerProvider:
		return "provider"
	case LayerRecipient:
		return "recipient"
	}
	return "unknown"
}

// PolicyKey names a policy set.
type PolicyKey struct {
	Layer        Layer
	Organisation string // "" for LayerPlatform
	Name         string
}

// String is how records name the set: "provider/acme/main".
func (k PolicyKey) String() string {
	if k.Layer == LayerPlatform {
		return "platform/" + k.Name
	}
	return fmt.Sprintf("%s/%s/%s", k.Layer, k.Organisation, k.Name)
}

// PolicySet is a policy set of one owner.
type PolicySet struct {
	PolicyKey
	ID          uuid.UUID
	Description string
	Active      int64 // the version in force; 0 for none
	Newest      int64 // the last version; 0 for none
	Stamp
}

// PolicyFile is a file of a version: policies (*.cedar) or cases (*.yaml).
type PolicyFile struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// PolicyVersion is a version of a policy set. It never changes.
type PolicyVersion struct {
	Set       uuid.UUID
	Version   int64 // from 1, without gaps
	Comment   string
	Principal string // who uploaded it
	Digest    string // SHA-256 of all files, hexadecimal
	Files     []PolicyFile
	Policies  int // how many
	CreatedAt time.Time
}

// PolicyActivation is one time that a version became active.
type PolicyActivation struct {
	ID        int64
	Set       uuid.UUID
	Version   int64
	Previous  int64
	Principal string
	Time      time.Time
	Rollback  bool
	// Bindings are what the names of tables and columns meant at that time.
	Bindings []policy.Binding
}
