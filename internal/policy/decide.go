// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// Request is a question to a [Stack].
type Request struct {
	Principal *Principal
	Now       time.Time
	IP        netip.Addr // the zero Addr when it is not known
}

// context is what every decision knows beside the row.
func (r Request) context() cedar.RecordMap {
	context := cedar.RecordMap{"now": cedar.NewDatetime(r.Now)}
	if r.IP.IsValid() {
		context["ip"] = types.IPAddr(netip.PrefixFrom(r.IP, r.IP.BitLen()))
	}
	return context
}

// Layer is one owner's policy set.
type Layer struct {
	// Name is whose set it is, for reasons: "platform", "provider" or
	// "recipient".
	Name string
	// Owner is the organisation whose set it is; "" for the platform.
	Owner string
	// Version is the set's version; 0 for the set that stands where an owner
	// has activated none.
	Version int64
	Set     *Set
	// Bindings are what the set's names meant when it was activated; nil: what
	// they mean now.
	Bindings *Bindings
}

// Stack is the sets that apply to a request: a decision is their intersection.
// It is not changed once made.
type Stack struct{ layers []Layer }

// NewStack returns the stack of some layers. Without any it denies everything.
func NewStack(layers ...Layer) (*Stack, error) {
	for _, l := range layers {
		if l.Set == nil {
			return nil, fmt.Errorf("policy: the %s layer has no set", l.Name)
		}
	}
	return &Stack{slices.Clone(layers)}, nil
}

// Open reports whether every set of the stack permits everything to everyone:
// where no owner has activated one.
func (s *Stack) Open() bool {
	for i := range s.layers {
		if !s.layers[i].Set.open {
			return false
		}
	}
	return len(s.layers) > 0
}

// OpenSet returns the set that stands where an owner has activated none. It
// permits everything, so that what is allowed is what the other layers, and
// what lies before policies, allow.
func OpenSet(s *Schema) *Set {
	set, err := Parse(s, Source{File: "built-in", Text: []byte(`@id("no-policy-set-is-active") permit(principal, action, resource);`)})
	if err != nil { // cannot be: the text is a constant
		panic(err)
	}
	set.open = true
	return set
}

// MayRead reports whether some row of a table could be seen, as far as that can
// be told without the table's schema: conditions on the row are taken to hold
// in a permit, and not in a forbid.
func (s *Stack) MayRead(req Request, resource *Resource) bool {
	for i := range s.layers {
		var buffer [16]*rule
		may := false
		resource := s.layers[i].place(resource)
		f := &folder{req: req, known: &Table{resource: resource.Resource}}
		for _, r := range s.layers[i].Set.index.candidates(buffer[:0], bitOf(ReadTable), req.Principal.keys, resource.keys) {
			if !req.Principal.matches(r.ast.Principal) || !resource.matches(r.ast.Resource) || resource.madeForAnother(r) {
				continue
			}
			if r.usesRow {
				may = may || !r.forbid
				continue
			}
			v, ok, _ := settled(f.fold(closedRule(r)))
			if r.forbid && (!ok || !v.isFalse()) {
				return false
			}
			may = may || !r.forbid && ok && v.isTrue()
		}
		if !may {
			return false
		}
	}
	return len(s.layers) > 0
}

// Layers are the stack's layers.
func (s *Stack) Layers() []Layer { return slices.Clone(s.layers) }

// Reason names a policy that determined a decision, and where it stands.
type Reason struct {
	Layer        string
	Owner        string
	Version      int64
	Policy       string
	File         string
	Line, Column int
}

func (l *Layer) reason(r *rule) Reason {
	return Reason{Layer: l.Name, Owner: l.Owner, Version: l.Version, Policy: r.id, File: r.position.Filename, Line: r.position.Line, Column: r.position.Column}
}

// Decision is what a stack says of an action, and of reading a table.
type Decision struct {
	// Allowed is false when nothing of what was asked for can be done: no row
	// or no column can be seen.
	Allowed bool
	// Filter tells which rows can be seen; nil when all can be.
	Filter *Filter
	// Columns are the table's top-level columns, in the schema's order. None
	// for other actions and for views.
	Columns []ColumnDecision
	// Reasons are the permits that allow, or let rows through, of every layer;
	// or the forbids that deny. When no permit of a layer applies, Lacking is
	// the name of that layer, and there are no reasons.
	Reasons []Reason
	Lacking string
	// Varies says that the decision may be another at another time or for
	// another address, and must not be kept.
	Varies bool
}

// Whole reports whether everything can be seen: all rows, and all columns as
// they are.
func (d *Decision) Whole() bool {
	return d.Allowed && d.Filter == nil && !slices.ContainsFunc(d.Columns, func(c ColumnDecision) bool { return c.Absent || c.Mask != "" })
}

// ColumnDecision is how a column is shown.
type ColumnDecision struct {
	FieldID int
	Absent  bool // it does not exist for the principal
	Mask    Mask // "" when it is shown plain
	// Reasons are the permits that show it, or the forbids that hide it.
	Reasons []Reason
}

// Authorize decides on an action other than readTable and readColumn, whose
// answer is a yes or a no. The cost is that of the policies whose scope can
// match; see [index].
func (s *Stack) Authorize(req Request, action Action, resource *Resource) Decision {
	d := Decision{Allowed: len(s.layers) > 0}
	for i := range s.layers {
		l := &s.layers[i]
		var buffer [16]*rule
		resource := l.place(resource)
		all := entities{req.Principal.entities, resource.entities}
		candidates := resource.applicable(l.Set.index.candidates(buffer[:0], bitOf(action), req.Principal.keys, resource.keys))
		d.Varies = d.Varies || slices.ContainsFunc(candidates, func(r *rule) bool { return r.varies })
		allowed, reasons := l.authorize(candidates, all, cedar.Request{
			Principal: req.Principal.uid, Action: action.uid(), Resource: resource.uid, Context: cedar.NewRecord(req.context()),
		})
		if !allowed {
			return l.denial(d.Varies, reasons)
		}
		d.Reasons = append(d.Reasons, reasons...)
	}
	return d
}

// denial is the decision of a layer that denies.
func (l *Layer) denial(varies bool, forbids []Reason) Decision {
	d := Decision{Varies: varies, Reasons: forbids}
	if len(forbids) == 0 {
		d.Lacking = l.Name
	}
	return d
}

// authorize asks Cedar, and takes a forbid that fails for one that forbids.
// The reasons are those of the answer: none when no permit applies.
func (l *Layer) authorize(candidates []*rule, all entities, r cedar.Request) (allowed bool, reasons []Reason) {
	if len(candidates) == 0 {
		return false, nil
	}
	decision, diagnostic := cedar.Authorize(ruleList(candidates), append(all, actionEntities), r)
	byID := func(id cedar.PolicyID) *rule {
		return candidates[slices.IndexFunc(candidates, func(r *rule) bool { return r.id == string(id) })]
	}
	var failed []Reason
	for _, e := range diagnostic.Errors {
		if r := byID(e.PolicyID); r.forbid {
			failed = append(failed, l.reason(r))
		}
	}
	for _, reason := range diagnostic.Reasons {
		r := byID(reason.PolicyID)
		if r.forbid || len(failed) == 0 {
			reasons = append(reasons, l.reason(r))
		}
	}
	return decision == cedar.Allow && len(failed) == 0, append(reasons, failed...)
}

// Read decides on reading a table: its rows and its columns. A policy that
// does not fit the table does not permit, and forbids if it is a forbid. The
// error is that no decision can be made, and denies.
func (s *Stack) Read(req Request, t *Table) (Decision, error) {
	d, err := s.Rows(req, t)
	if err != nil || !d.Allowed {
		return d, err
	}
	var varies bool
	if d.Columns, varies, err = s.columns(req, t); err != nil {
		return Decision{}, err
	}
	d.Varies = d.Varies || varies
	if !slices.ContainsFunc(d.Columns, func(c ColumnDecision) bool { return !c.Absent }) {
		d.Allowed, d.Filter, d.Lacking, d.Reasons = false, nil, "", nil
		for _, c := range d.Columns {
			d.Reasons = append(d.Reasons, c.Reasons...)
		}
	}
	return d, nil
}

// Rows is the part of [Stack.Read] that is about rows: no columns are decided.
func (s *Stack) Rows(req Request, t *Table) (Decision, error) {
	f := &folder{req: req, table: t}
	filter := &Filter{}
	d := Decision{Allowed: len(s.layers) > 0}
	for i := range s.layers {
		l := &s.layers[i]
		p, forbids, err := l.rows(f, &d)
		if err != nil {
			return Decision{}, err
		}
		if len(forbids) > 0 || !p.everyRow && len(p.permits) == 0 {
			return l.denial(d.Varies, forbids), nil
		}
		if !p.everyRow || len(p.forbids) > 0 {
			filter.layers = append(filter.layers, p)
		}
	}
	if len(filter.layers) > 0 {
		for _, n := range f.cols {
			filter.columns = append(filter.columns, n.column)
		}
		d.Filter = filter
	}
	return d, nil
}

// rows returns what a layer lets through, or the forbids that hide all.
func (l *Layer) rows(f *folder, d *Decision) (p part, forbids []Reason, err error) {
	var buffer [16]*rule
	table, err := l.on(f.table)
	if err != nil {
		return p, nil, err
	}
	f.known, f.env = table.table, nil
	principal, resource := f.req.Principal, table.place
	for _, r := range l.Set.index.candidates(buffer[:0], bitOf(ReadTable), principal.keys, resource.keys) {
		if !principal.matches(r.ast.Principal) || !resource.matches(r.ast.Resource) || resource.madeForAnother(r) {
			continue
		}
		d.Varies = d.Varies || r.varies
		rows, err := l.Set.onTable(r, table.table)
		if err != nil {
			return p, nil, err
		}
		e := f.fold(rows)
		v, ok, known := settled(e)
		switch {
		case r.forbid && known && (!ok || !v.isFalse()):
			forbids = append(forbids, l.reason(r))
		case r.forbid && !known:
			p.forbids = append(p.forbids, e)
		case !r.forbid && known && ok && v.isTrue():
			p.everyRow = true
			d.Reasons = append(d.Reasons, l.reason(r))
		case !r.forbid && !known:
			p.permits = append(p.permits, e)
			d.Reasons = append(d.Reasons, l.reason(r))
		}
	}
	return p, forbids, nil
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
		validator, err := t.validator(s.schema)
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

// columns decides on each top-level column: plain when in every layer a permit
// without @mask applies, masked by the strictest mask of the layers, absent
// when in one of them no permit does, a forbid does, a forbid fails, or when
// the mask does not fit the column.
func (s *Stack) columns(req Request, t *Table) (decisions []ColumnDecision, varies bool, err error) {
	decisions = make([]ColumnDecision, len(t.columns))
	context := cedar.NewRecord(req.context())
	// What is asked of the table's level and above is the same for every column.
	shared, tables := make([][]*rule, len(s.layers)), make([]seenTable, len(s.layers))
	for i := range s.layers {
		l := &s.layers[i]
		if tables[i], err = l.on(t); err != nil {
			return nil, false, err
		}
		shared[i] = tables[i].place.applicable(l.Set.index.candidates(nil, bitOf(ReadColumn), req.Principal.keys, columnKeys(tables[i].place.keys)))
	}
	var buffer []*rule
	for i := range t.columns {
		field := t.columns[i].field
		d := ColumnDecision{FieldID: field.ID, Absent: len(s.layers) == 0}
		for j := range s.layers {
			l, place := &s.layers[j], &tables[j].place
			c := &tables[j].table.columns[i]
			own := [...]scopeKey{{c.entity.UID, scopeSelf}, {c.entity.UID, scopeIn}}
			buffer = append(buffer[:0], shared[j]...)
			buffer = place.applicable(l.Set.index.candidates(buffer, bitOf(ReadColumn), req.Principal.keys, own[:]))
			varies = varies || slices.ContainsFunc(buffer, func(r *rule) bool { return r.varies })
			allowed, reasons := l.authorize(buffer, entities{req.Principal.entities, place.entities, {c.entity.UID: c.entity}}, cedar.Request{
				Principal: req.Principal.uid, Action: ReadColumn.uid(), Resource: c.entity.UID, Context: context,
			})
			if !allowed {
				d = ColumnDecision{FieldID: field.ID, Absent: true, Reasons: reasons}
				break
			}
			d.Reasons = append(d.Reasons, reasons...)
			mask := l.mask(reasons, buffer)
			if mask.refusal(field) != "" {
				d.Absent, d.Mask = true, ""
				break
			}
			d.Mask = strictest(d.Mask, mask)
		}
		decisions[i] = d
	}
	return decisions, varies, nil
}

// columnKeys are the keys of a column's scope that its table decides.
func columnKeys(table []scopeKey) []scopeKey {
	own := make([]scopeKey, 0, len(table))
	for _, k := range table {
		if k.kind == scopeAny || k.kind == scopeIn {
			own = append(own, k)
		}
	}
	return append(own, scopeKey{cedar.EntityUID{Type: typeColumn}, scopeType})
}

// mask is the strictest mask of the permits that apply, none when one of them
// has none.
func (l *Layer) mask(reasons []Reason, candidates []*rule) (m Mask) {
	for _, reason := range reasons {
		r := candidates[slices.IndexFunc(candidates, func(r *rule) bool { return r.id == reason.Policy })]
		if r.mask == "" {
			return ""
		}
		m = strictest(m, r.mask)
	}
	return m
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

// environment is what closed parts of conditions are evaluated in, made when
// one asks for it.
func (f *folder) environment() eval.Env {
	if f.env == nil {
		context := f.req.context()
		context["row"] = cedar.NewRecord(nil)
		f.env = &eval.Env{
			Entities:  entities{f.req.Principal.entities, f.known.resource.entities},
			Principal: f.req.Principal.uid, Action: ReadTable.uid(), Resource: f.known.resource.uid, Context: cedar.NewRecord(context),
		}
	}
	return *f.env
}

// Filter tells which rows of a table can be seen: those that in every layer a
// permit lets through and no forbid hides, where a forbid that fails hides,
// too. It is not changed once made, and is safe for concurrent use.
type Filter struct {
	layers  []part
	columns []Column
}

// part is what one layer lets through.
type part struct {
	everyRow         bool // a permit lets every row through
	permits, forbids []expr
}

// Columns are those whose values [Filter.Visible] wants, in that order. A
// struct among them is asked for its presence alone.
func (f *Filter) Columns() []Column { return slices.Clone(f.columns) }

// Visible reports whether a row can be seen. row has a value for each of
// [Filter.Columns], the zero [Value] for null; for a struct any other. It
// allocates nothing.
func (f *Filter) Visible(row []Value) bool {
	for i := range f.layers {
		if !f.layers[i].visible(row) {
			return false
		}
	}
	return true
}

func (p *part) visible(row []Value) bool {
	visible := p.everyRow
	for _, e := range p.permits {
		if visible {
			break
		}
		v, ok := e.eval(row)
		visible = ok && v.isTrue()
	}
	if !visible {
		return false
	}
	for _, e := range p.forbids {
		if v, ok := e.eval(row); !ok || !v.isFalse() {
			return false
		}
	}
	return true
}

// errMismatch stands for a policy that does not fit the table.
var errMismatch = errors.New("the policy does not fit the table")

// Summary says what of a table is shown, without a value or a name.
func (d *Decision) Summary() string {
	absent, masked := 0, 0
	for _, c := range d.Columns {
		switch {
		case c.Absent:
			absent++
		case c.Mask != "":
			masked++
		}
	}
	var parts []string
	if d.Filter != nil {
		parts = append(parts, "some rows")
	} else {
		parts = append(parts, "all rows")
	}
	if absent > 0 {
		parts = append(parts, fmt.Sprintf("without %d of %d columns", absent, len(d.Columns)))
	}
	if masked > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d columns masked", masked, len(d.Columns)))
	}
	return strings.Join(parts, ", ")
}

// AsksTags reports whether a policy that speaks of reading, writing or dropping
// tables, or views, asks for the resource's tags.
func (s *Stack) AsksTags(views bool) bool {
	actions := bitOf(ReadTable) | bitOf(WriteTable) | bitOf(DropTable) | bitOf(ReadRestricted) | bitOf(ManageGrants)
	if views {
		actions = bitOf(ReadView) | bitOf(UpdateView) | bitOf(DropView) | bitOf(ManageGrants)
	}
	for i := range s.layers {
		if s.layers[i].Set.tagged&actions != 0 {
			return true
		}
	}
	return false
}
