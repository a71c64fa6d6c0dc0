// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// Check finds which policies do not fit a table: types that differ, columns
// that are not there, whatever could not be evaluated exactly on its rows, and
// masks that do not fit a column. Policies whose scope cannot match the table
// are passed over.
func (s *Set) Check(t *Table) (Problems, error) {
	validator, err := t.validator(s.schema)
	if err != nil {
		return nil, err
	}
	var problems Problems
	for _, r := range s.policies {
		if r.mask != "" {
			problems = append(problems, t.checkMask(r)...)
		}
		if !r.usesRow || r.actions&bitOf(ReadTable) == 0 || !t.resource.matches(r.ast.Resource) {
			continue
		}
		if _, p := compileRule(r, t); p != nil { // it knows places, the validator does not
			problems = append(problems, *p)
		} else if err := validator.Policy("", r.ast); err != nil {
			for _, p := range validationProblems(r, err) {
				p.Table = t.ID()
				problems = append(problems, p)
			}
		}
	}
	return problems, nil
}

// checkMask finds the columns that a policy would mask and cannot.
func (t *Table) checkMask(r *rule) (problems Problems) {
	for i := range t.columns {
		c := &t.columns[i]
		refusal := r.mask.refusal(c.field)
		if refusal == "" || !c.lineage.matches(r.ast.Resource) || !t.mayApply(r, c) {
			continue
		}
		p := r.problem(refusal, "add a condition that leaves the column out, or another mask for it")
		p.Table = t.ID()
		problems = append(problems, p)
	}
	return problems
}

// mayApply reports whether a policy's conditions can hold for a column,
// whoever asks. A condition, or a side of an &&, that speaks of the resource
// alone decides that; any other is taken to hold.
func (t *Table) mayApply(r *rule, c *tableColumn) bool {
	env := eval.Env{Entities: entities{c.lineage.entities}, Resource: c.entity.UID, Context: cedar.NewRecord(nil)}
	var holds func(n ast.IsNode, want bool) bool
	holds = func(n ast.IsNode, want bool) bool {
		if and, ok := n.(ast.NodeTypeAnd); ok && want {
			return holds(and.Left, true) && holds(and.Right, true)
		}
		if or, ok := n.(ast.NodeTypeOr); ok && !want {
			return holds(or.Left, false) && holds(or.Right, false)
		}
		if !resourceAlone(n) {
			return true
		}
		v, err := eval.Eval(n, env)
		return err == nil && v == cedar.Boolean(want)
	}
	for _, condition := range r.ast.Conditions {
		if !holds(condition.Body, condition.Condition == ast.ConditionWhen) {
			return false
		}
	}
	return true
}

// resourceAlone reports whether a part names no other variable than resource.
func resourceAlone(n ast.IsNode) bool {
	alone := true
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		if v, ok := n.(ast.NodeTypeVariable); ok && v.Name != "resource" {
			alone = false
		}
		return alone
	})
	return alone
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
