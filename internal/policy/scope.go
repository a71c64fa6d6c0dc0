// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"errors"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// errMismatch stands for a policy that does not fit the table.
var errMismatch = errors.New("the policy does not fit the table")

// scopeOf is a permit for a policy's principals and resources without
// conditions; its actions are the index's to compare.
func scopeOf(p *ast.Policy) *cedar.Policy {
	return cedar.NewPolicyFromAST((*publicast.Policy)(&ast.Policy{Effect: ast.EffectPermit, Principal: p.Principal, Action: ast.ScopeTypeAll{}, Resource: p.Resource}))
}

// inScope reports whether a policy's scope matches. The index has found it by
// an entity; its type, and who lies in whom, are for Cedar to say.
func (r *rule) inScope(principal, resource cedar.EntityUID, all cedar.EntityGetter) bool {
	decision, _ := cedar.Authorize(cedar.PolicyMap{"scope": r.scope}, all, cedar.Request{
		Principal: principal, Action: ReadTable.uid(), Resource: resource,
	})
	return decision == cedar.Allow
}

// closedRule is the conjunction of conditions that do not mention the row.
func closedRule(r *rule) expr {
	var all expr = constant{BoolValue(true)}
	for i, c := range r.ast.Conditions {
		var e expr = closed{c.Body}
		if c.Condition == ast.ConditionUnless {
			e = not{e}
		}
		if i == 0 {
			all = e
		} else {
			all = and{all, e}
		}
	}
	return all
}

// hintFor says what to write instead of what the validator refuses.
func hintFor(message string) string {
	switch {
	case strings.Contains(message, "unable to guarantee safety of access to optional attribute"):
		return "a column that may be null is asked for first: context.row has c && context.row.c == …, or if context.row has c then … else …; a negated test does not count"
	case strings.Contains(message, "datetime, or duration, or Long but saw decimal"):
		return `decimals are compared by methods: a.lessThan(decimal("1.0"))`
	case strings.Contains(message, "datetime, or duration, or Long but saw String"):
		return "Cedar does not order strings; use ==, like or a set's contains"
	case strings.Contains(message, "unable to find an applicable action"):
		return "the action does not apply to that kind of principal or resource"
	default:
		return ""
	}
}
