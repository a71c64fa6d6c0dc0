// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"iter"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// actionSet has a bit for each of [actions].
type actionSet uint64

func bitOf(a Action) actionSet {
	for i, d := range actions {
		if d.name == a {
			return 1 << i
		}
	}
	return 0
}

// actionsOf returns the actions that a policy's scope names, itself or by
// their group.
func actionsOf(scope ast.IsActionScopeNode) actionSet {
	var set actionSet
	add := func(uid cedar.EntityUID, in bool) {
		for i, d := range actions {
			if uid.Type == typeAction && (string(uid.ID) == string(d.name) || in && d.group != "" && string(uid.ID) == d.group) {
				set |= 1 << i
			}
		}
	}
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		add(s.Entity, false)
	case ast.ScopeTypeIn:
		add(s.Entity, true)
	case ast.ScopeTypeInSet:
		for _, e := range s.Entities {
			add(e, true)
		}
	default:
		set = ^actionSet(0)
	}
	return set
}

// scopeKey is what a part of a policy's scope asks for: an entity, itself or
// as an ancestor; or a type, when the id is empty and any is set; or anything.
type scopeKey struct {
	entity cedar.EntityUID
	kind   scopeKind
}

type scopeKind uint8

const (
	scopeAny  scopeKind = iota
	scopeType           // entity.Type alone
	scopeSelf
	scopeIn
)

// index finds the policies whose scope can match a request, by principal and
// then by resource. A look-up costs one map access per entity above the
// principal and, where a policy names one of these, one per entity above the
// resource, however many policies there are. Policies whose scope names
// neither are found together, and cost as many evaluations as there are.
type index map[scopeKey]map[scopeKey][]*rule

func buildIndex(rules []*rule) index {
	x := index{}
	for _, r := range rules {
		p, q := keyOf(r.ast.Principal), keyOf(r.ast.Resource)
		if x[p] == nil {
			x[p] = map[scopeKey][]*rule{}
		}
		x[p][q] = append(x[p][q], r)
	}
	return x
}

func keyOf(scope ast.IsScopeNode) scopeKey {
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		return scopeKey{s.Entity, scopeSelf}
	case ast.ScopeTypeIn:
		return scopeKey{s.Entity, scopeIn}
	case ast.ScopeTypeIsIn: // its type is left to the evaluation
		return scopeKey{s.Entity, scopeIn}
	case ast.ScopeTypeIs:
		return scopeKey{cedar.EntityUID{Type: s.Type}, scopeType}
	default:
		return scopeKey{}
	}
}

// keys yields every key that a scope matching an entity can have. above are
// the entities it lies in, itself left out.
func keys(self cedar.EntityUID, above map[cedar.EntityUID]struct{}) []scopeKey {
	all := make([]scopeKey, 0, 4+len(above))
	all = append(all, scopeKey{}, scopeKey{cedar.EntityUID{Type: self.Type}, scopeType}, scopeKey{self, scopeSelf}, scopeKey{self, scopeIn})
	for a := range above {
		all = append(all, scopeKey{a, scopeIn})
	}
	return all
}

// candidates appends the policies that can apply.
func (x index) candidates(to []*rule, action actionSet, principal, resource []scopeKey) []*rule {
	for _, p := range principal {
		byResource := x[p]
		if len(byResource) == 0 {
			continue
		}
		for _, q := range resource {
			for _, r := range byResource[q] {
				if r.actions&action != 0 {
					to = append(to, r)
				}
			}
		}
	}
	return to
}

// ruleList lets cedar.Authorize walk some policies of a set.
type ruleList []*rule

func (l ruleList) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, r := range l {
			if !yield(cedar.PolicyID(r.id), r.compiled) {
				return
			}
		}
	}
}
