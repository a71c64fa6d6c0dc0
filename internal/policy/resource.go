// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"github.com/sluice-data/sluice/internal/identity"
)

// lineage is an entity with every one above it, and what the index asks of it.
// It is not changed once made.
type lineage struct {
	uid      cedar.EntityUID
	entities cedar.EntityMap
	above    map[cedar.EntityUID]struct{} // without itself
	keys     []scopeKey
}

// newLineage takes all entities that may lie above self, and keeps those that do.
func newLineage(self cedar.Entity, all cedar.EntityMap) lineage {
	l := lineage{uid: self.UID, entities: cedar.EntityMap{self.UID: self}, above: map[cedar.EntityUID]struct{}{}}
	next := slices.Collect(self.Parents.All())
	for len(next) > 0 {
		uid := next[len(next)-1]
		next = next[:len(next)-1]
		if _, ok := l.above[uid]; ok || uid == l.uid {
			continue
		}
		l.above[uid] = struct{}{}
		if e, ok := all[uid]; ok {
			l.entities[uid] = e
			next = slices.AppendSeq(next, e.Parents.All())
		}
	}
	l.keys = keys(l.uid, l.above)
	return l
}

// matches reports whether a part of a policy's scope takes the entity (Cedar's
// == , in and is).
func (l *lineage) matches(scope ast.IsScopeNode) bool {
	within := func(uid cedar.EntityUID) bool {
		_, ok := l.above[uid]
		return ok || uid == l.uid
	}
	switch s := scope.(type) {
	case ast.ScopeTypeAll:
		return true
	case ast.ScopeTypeEq:
		return s.Entity == l.uid
	case ast.ScopeTypeIn:
		return within(s.Entity)
	case ast.ScopeTypeIs:
		return s.Type == l.uid.Type
	case ast.ScopeTypeIsIn:
		return s.Type == l.uid.Type && within(s.Entity)
	default:
		return false
	}
}

// Principal is who asks, with the groups and the organisation that it is in.
type Principal struct {
	lineage
	fingerprint [sha256.Size]byte // of all that a decision can depend on
}

// Entities are the principal and all above it. They are not to be changed.
func (p *Principal) Entities() cedar.EntityMap { return p.entities }

// UID is the principal's entity.
func (p *Principal) UID() cedar.EntityUID { return p.uid }

// Fingerprint is the SHA-256 of all of a principal that a decision can depend
// on: equal principals are decided alike.
func (p *Principal) Fingerprint() [sha256.Size]byte { return p.fingerprint }

// FingerprintOf is the [Principal.Fingerprint] of what [NewPrincipal] makes of a
// principal: written over all that it reads, each part with its length so that
// no two principals run into each other.
func FingerprintOf(p *identity.Principal) [sha256.Size]byte {
	var buffer [512]byte
	b := buffer[:0]
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	texts := func(list []string) {
		if !slices.IsSorted(list) {
			list = slices.Sorted(slices.Values(list))
		}
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			text(s)
		}
	}
	if p.Kind == identity.KindToken {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	text(p.ID)
	text(p.Organisation)
	texts(p.Groups)
	for _, name := range slices.Sorted(maps.Keys(p.Attributes)) {
		v := p.Attributes[name]
		text(name)
		text(string(v.Type))
		text(v.String)
		b = binary.AppendVarint(b, v.Long)
		if v.Boolean {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		texts(v.Set)
	}
	return sha256.Sum256(b)
}

// NewPrincipal returns the entity of who calls: a Service for a built-in
// account, a Kubernetes service account or a certificate, a User for a token of
// an issuer. Its id is the principal's. A principal without an organisation is
// in the Organisation "", which owns nothing.
func NewPrincipal(p identity.Principal) *Principal {
	typ := typeService
	if p.Kind == identity.KindToken {
		typ = typeUser
	}
	organisation := cedar.Entity{UID: cedar.NewEntityUID(typeOrganisation, cedar.String(p.Organisation))}
	attributes := cedar.RecordMap{"organisation": organisation.UID}
	for name, v := range p.Attributes {
		attributes[cedar.String(name)] = attribute(v)
	}
	parents := []cedar.EntityUID{organisation.UID}
	all := cedar.EntityMap{organisation.UID: organisation}
	for _, g := range p.Groups {
		group := cedar.Entity{UID: cedar.NewEntityUID(typeGroup, cedar.String(g))}
		parents = append(parents, group.UID)
		all[group.UID] = group
	}
	return &Principal{fingerprint: FingerprintOf(&p), lineage: newLineage(cedar.Entity{
		UID: cedar.NewEntityUID(typ, cedar.String(p.ID)), Attributes: cedar.NewRecord(attributes), Parents: cedar.NewEntityUIDSet(parents...),
	}, all)}
}

func attribute(v identity.AttributeValue) cedar.Value {
	switch v.Type {
	case identity.TypeLong:
		return types.Long(v.Long)
	case identity.TypeBoolean:
		return types.Boolean(v.Boolean)
	case identity.TypeSet:
		members := make([]types.Value, len(v.Set))
		for i, s := range v.Set {
			members[i] = types.String(s)
		}
		return types.NewSet(members...)
	default:
		return types.String(v.String)
	}
}

// AttributeType is the Cedar type of an attribute that a mapping declares.
func AttributeType(t identity.AttributeType) string {
	return map[identity.AttributeType]string{
		identity.TypeString: "String", identity.TypeLong: "Long", identity.TypeBoolean: "Bool", identity.TypeSet: "Set<String>",
	}[t]
}

// Resource is what a decision is about, with all that it lies in.
type Resource struct {
	lineage
	uuid string // of a table or view; see Bindings
}

// WithUUID is a table or view with its own UUID, by which it is known after a
// rename; see [Bindings].
func (r *Resource) WithUUID(uuid string) *Resource {
	return &Resource{r.lineage, uuid}
}

// Name is the resource's own name, without what it lies in.
func (r *Resource) Name() string {
	v, _ := r.entities[r.uid].Attributes.Get("name")
	name, _ := v.(types.String)
	return string(name)
}

// Entities are the resource and all above it. They are not to be changed.
func (r *Resource) Entities() cedar.EntityMap { return r.entities }

// UID is the resource's entity.
func (r *Resource) UID() cedar.EntityUID { return r.uid }

// NewOrganisation returns an organisation as a resource.
func NewOrganisation(name string) *Resource {
	return &Resource{lineage: newLineage(cedar.Entity{UID: cedar.NewEntityUID(typeOrganisation, cedar.String(name))}, nil)}
}

// NewWarehouse returns a warehouse of an organisation.
func NewWarehouse(organisation, name string) *Resource {
	return owned(typeWarehouse, EntityID(name), name, cedar.NewEntityUID(typeOrganisation, cedar.String(organisation)), nil, nil)
}

// NewShare returns a share of an organisation.
func NewShare(organisation, name string) *Resource {
	o := NewOrganisation(organisation)
	return owned(typeShare, EntityID(name), name, o.uid, nil, []*Resource{o})
}

// Namespace returns a namespace of a warehouse, or a child of a namespace.
func (r *Resource) Namespace(name string, tags map[string]string) *Resource {
	return r.child(typeNamespace, name, tags, nil)
}

// Table returns a table of a namespace, which also lies in shares.
func (r *Resource) Table(name string, tags map[string]string, shares ...*Resource) *Resource {
	return r.child(typeTable, name, tags, shares)
}

// View returns a view of a namespace, which also lies in shares.
func (r *Resource) View(name string, tags map[string]string, shares ...*Resource) *Resource {
	return r.child(typeView, name, tags, shares)
}

func (r *Resource) child(typ cedar.EntityType, name string, tags map[string]string, shares []*Resource) *Resource {
	organisation, _ := r.entities[r.uid].Attributes.Get("organisation")
	owner, _ := organisation.(cedar.EntityUID)
	return owned(typ, string(r.uid.ID)+"/"+EntityID(name), name, owner, tags, append([]*Resource{r}, shares...))
}

func owned(typ cedar.EntityType, id, name string, organisation cedar.EntityUID, tags map[string]string, parents []*Resource) *Resource {
	all := cedar.EntityMap{}
	uids := make([]cedar.EntityUID, len(parents))
	for i, p := range parents {
		maps.Copy(all, p.entities)
		uids[i] = p.uid
	}
	return &Resource{lineage: newLineage(cedar.Entity{
		UID:        cedar.NewEntityUID(typ, cedar.String(id)),
		Parents:    cedar.NewEntityUIDSet(uids...),
		Attributes: cedar.NewRecord(cedar.RecordMap{"organisation": organisation, "name": cedar.String(name)}),
		Tags:       tagRecord(tags),
	}, all)}
}

func tagRecord(tags map[string]string) cedar.Record {
	record := cedar.RecordMap{}
	for k, v := range tags {
		record[cedar.String(k)] = cedar.String(v)
	}
	return cedar.NewRecord(record)
}
