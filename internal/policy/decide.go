// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"net/netip"
	"slices"
	"time"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// Resource is an entity and those above it, which a decision is about.
type Resource struct {
	UID cedar.EntityUID
	// Entities are the entity itself and every one above it.
	Entities cedar.EntityMap
}

// Principal is who asks, with every group and organisation above.
type Principal Resource

// Request is a question to a [Set].
type Request struct {
	Principal Principal
	Now       time.Time
	IP        netip.Addr // the zero Addr when it is not known
}

// Reason names a policy that determined a decision, and where it stands.
type Reason struct {
	Policy       string
	File         string
	Line, Column int
}

// TableDecision is what a set says of reading a table.
type TableDecision struct {
	// Allowed is false when no row can be seen.
	Allowed bool
	// Filter tells which rows; nil when all can be seen.
	Filter *Filter
	// Reasons are the permits that let rows through, or the forbids that hide
	// all; none when nothing permits.
	Reasons []Reason
}

// entities looks in one map after the other.
type entities []cedar.EntityMap

// Get implements cedar.EntityGetter.
func (e entities) Get(uid cedar.EntityUID) (cedar.Entity, bool) {
	for _, m := range e {
		if found, ok := m[uid]; ok {
			return found, true
		}
	}
	return cedar.Entity{}, false
}

// above lists the entities above one.
func above(self cedar.EntityUID, all cedar.EntityMap) []cedar.EntityUID {
	list := make([]cedar.EntityUID, 0, len(all))
	for uid := range all {
		if uid != self {
			list = append(list, uid)
		}
	}
	return list
}

func (r *rule) reason() Reason {
	return Reason{Policy: r.id, File: r.position.Filename, Line: r.position.Line, Column: r.position.Column}
}

// Check finds which policies do not fit a table: types that differ, columns
// that are not there, and whatever could not be evaluated exactly on its rows.
func (s *Set) Check(t *Table) (Problems, error) {
	validator, err := s.schema.validator(t)
	if err != nil {
		return nil, err
	}
	var problems Problems
	for _, r := range s.policies {
		if !r.usesRow || r.actions&bitOf(ReadTable) == 0 {
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

// ReadTable decides on reading a table. A policy that does not fit the table
// does not permit, and forbids if it is a forbid. The cost is that of the
// policies whose scope can match; see [index].
func (s *Set) ReadTable(req Request, t *Table) (TableDecision, error) {
	candidates := s.index.candidates(nil, bitOf(ReadTable),
		keys(req.Principal.UID, above(req.Principal.UID, req.Principal.Entities)),
		keys(t.resource.UID, above(t.resource.UID, t.resource.Entities)))
	context := req.context()
	context["row"] = cedar.NewRecord(nil)
	all := entities{req.Principal.Entities, t.resource.Entities}
	f := &folder{
		env:   eval.Env{Entities: all, Principal: req.Principal.UID, Action: ReadTable.uid(), Resource: t.resource.UID, Context: cedar.NewRecord(context)},
		slots: map[*node]int{},
	}
	filter := &Filter{}
	var d TableDecision
	for _, r := range candidates {
		if !r.inScope(req.Principal.UID, t.resource.UID, all) {
			continue
		}
		rows, err := s.onTable(r, t)
		if err != nil {
			return TableDecision{}, err
		}
		e := f.fold(rows)
		v, ok, known := settled(e)
		switch {
		case r.forbid && known && (!ok || !v.isFalse()):
			return TableDecision{Reasons: []Reason{r.reason()}}, nil
		case r.forbid && !known:
			filter.forbids = append(filter.forbids, e)
		case !r.forbid && known && ok && v.isTrue():
			filter.everyRow = true
			d.Reasons = append(d.Reasons, r.reason())
		case !r.forbid && !known:
			filter.permits = append(filter.permits, e)
			d.Reasons = append(d.Reasons, r.reason())
		}
	}
	if !filter.everyRow && len(filter.permits) == 0 {
		return TableDecision{}, nil
	}
	d.Allowed = true
	if !filter.everyRow || len(filter.forbids) > 0 {
		for _, n := range f.cols {
			filter.columns = append(filter.columns, n.column)
		}
		d.Filter = filter
	}
	return d, nil
}

// onTable returns a policy's conditions as an expression on a table's rows, made
// when first asked for.
func (s *Set) onTable(r *rule, t *Table) (expr, error) {
	if e, ok := t.compiled.Load(r); ok {
		return e.(expr), nil
	}
	var e expr = failed{errMismatch}
	if !r.usesRow {
		e = closedRule(r)
	} else {
		validator, err := s.schema.validator(t)
		if err != nil {
			return nil, err
		}
		if compiled, p := compileRule(r, t); p == nil && validator.Policy("", r.ast) == nil {
			e = compiled
		}
	}
	t.compiled.Store(r, e)
	return e, nil
}

// ColumnDecision is how a column is shown.
type ColumnDecision struct {
	FieldID int
	Absent  bool // it does not exist for the principal
	Mask    Mask // "" when it is shown plain
	Reasons []Reason
}

// ReadColumns decides on each top-level column of a table, in the schema's
// order: plain when a permit without @mask applies, masked by the strictest
// mask when only such with one do, absent when none does, a forbid does, a
// forbid fails, or the mask does not fit the column.
func (s *Set) ReadColumns(req Request, t *Table) []ColumnDecision {
	principal := keys(req.Principal.UID, above(req.Principal.UID, req.Principal.Entities))
	context := req.context()
	decisions := make([]ColumnDecision, len(t.columns))
	for i, c := range t.columns {
		over := append(above(t.resource.UID, t.resource.Entities), t.resource.UID)
		candidates := s.index.candidates(nil, bitOf(ReadColumn), principal, keys(c.entity.UID, over))
		decision, diagnostic := cedar.Authorize(ruleList(candidates), entities{req.Principal.Entities, t.resource.Entities, {c.entity.UID: c.entity}}, cedar.Request{
			Principal: req.Principal.UID, Action: ReadColumn.uid(), Resource: c.entity.UID, Context: cedar.NewRecord(context),
		})
		d := ColumnDecision{FieldID: c.field.ID, Absent: decision != cedar.Allow}
		byID := make(map[cedar.PolicyID]*rule, len(candidates))
		for _, r := range candidates {
			byID[cedar.PolicyID(r.id)] = r
		}
		for _, e := range diagnostic.Errors {
			d.Absent = d.Absent || byID[e.PolicyID].forbid
		}
		plain := false
		for _, reason := range diagnostic.Reasons {
			r := byID[reason.PolicyID]
			d.Reasons = append(d.Reasons, r.reason())
			plain = plain || r.mask == ""
			d.Mask = strictest(d.Mask, r.mask)
		}
		if plain || d.Absent {
			d.Mask = ""
		}
		d.Absent = d.Absent || d.Mask.refusal(c.field) != ""
		decisions[i] = d
	}
	return decisions
}

// context is what every decision knows beside the row.
func (r Request) context() cedar.RecordMap {
	context := cedar.RecordMap{"now": cedar.NewDatetime(r.Now)}
	if r.IP.IsValid() {
		context["ip"] = types.IPAddr(netip.PrefixFrom(r.IP, r.IP.BitLen()))
	}
	return context
}

// Filter tells which rows of a table can be seen: those that a permit lets
// through and no forbid hides, where a forbid that fails hides, too. It is not
// changed once made, and is safe for concurrent use.
type Filter struct {
	everyRow         bool // a permit lets every row through
	permits, forbids []expr
	columns          []Column
}

// Columns are those whose values [Filter.Visible] wants, in that order. A
// struct among them is asked for its presence alone.
func (f *Filter) Columns() []Column { return slices.Clone(f.columns) }

// Visible reports whether a row can be seen. row has a value for each of
// [Filter.Columns], the zero [Value] for null; for a struct any other. It
// allocates nothing.
func (f *Filter) Visible(row []Value) bool {
	visible := f.everyRow
	for _, e := range f.permits {
		if visible {
			break
		}
		v, ok := e.eval(row)
		visible = ok && v.isTrue()
	}
	if !visible {
		return false
	}
	for _, e := range f.forbids {
		if v, ok := e.eval(row); !ok || !v.isFalse() {
			return false
		}
	}
	return true
}
