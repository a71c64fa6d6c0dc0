// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package enforce stands between a principal and a warehouse: every operation is
// decided by the policy sets that apply, and what the principal may not see does
// not exist for it.
//
// Invariants:
//
//   - A [Guard] has every operation of [catalog.Operations] and lets none
//     through undecided, but where each set that applies permits everything.
//   - What cannot be decided is refused, with nothing done.
//   - A table is shown whole or not at all: metadata names every file, column
//     and snapshot.
//   - Names of what is hidden stand in no listing, page token or message.
package enforce

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
)

// Stacks tells which policy sets apply to a principal's request about what an
// organisation owns. An error refuses the request.
type Stacks interface {
	Stack(ctx context.Context, owner string, p identity.Principal) (*policy.Stack, error)
}

// Enforcer makes guards. It is safe for concurrent use.
type Enforcer struct {
	stacks     Stacks
	now        func() time.Time
	principals *lru.Cache[[sha256.Size]byte, *policy.Principal]
	tables     *lru.Cache[tableKey, *policy.Table]
	decisions  *lru.Cache[decisionKey, policy.Decision]
}

// tableKey is all that a table's part in a decision is made of. The row of the
// object has one warehouse.
type tableKey struct {
	object             uuid.UUID
	metadataLocation   string
	owner, share, path string
	labels             [sha256.Size]byte
}

type decisionKey struct {
	stack     *policy.Stack
	table     *policy.Table
	principal [sha256.Size]byte
}

// How many of each are kept. One is some kilobytes.
const (
	keptPrincipals = 8192
	keptTables     = 4096
	keptDecisions  = 16384
)

// New returns an Enforcer. A stack that is equal should be the same, so that its
// decisions are found again.
func New(stacks Stacks, now func() time.Time) (*Enforcer, error) {
	if now == nil {
		now = time.Now
	}
	tables, err := lru.New[tableKey, *policy.Table](keptTables)
	if err != nil {
		return nil, err
	}
	decisions, err := lru.New[decisionKey, policy.Decision](keptDecisions)
	if err != nil {
		return nil, err
	}
	principals, err := lru.New[[sha256.Size]byte, *policy.Principal](keptPrincipals)
	if err != nil {
		return nil, err
	}
	return &Enforcer{stacks, now, principals, tables, decisions}, nil
}

// principal returns a principal as policies see it.
func (e *Enforcer) principal(p identity.Principal) *policy.Principal {
	key := policy.FingerprintOf(&p)
	if known, ok := e.principals.Get(key); ok {
		return known
	}
	made := policy.NewPrincipal(p)
	e.principals.Add(key, made)
	return made
}

// Request is who asks for what.
type Request struct {
	Principal identity.Principal
	Address   netip.Addr
	// Operation is the operationId of the protocol.
	Operation string
	// Owner is the organisation that owns the warehouse.
	Owner string
}

// Enter returns the warehouse as a principal may use it for one request: the
// warehouse itself when every set permits everything, else a [*Guard]. One that
// the principal may not use does not exist for it.
func (e *Enforcer) Enter(ctx context.Context, w catalog.Operations, r Request) (catalog.Operations, error) {
	stack, err := e.stacks.Stack(ctx, r.Owner, r.Principal)
	if err != nil {
		return nil, unavailable(err)
	}
	if stack.Open() {
		return w, nil
	}
	g := e.guard(w, stack, r)
	g.warehouse = policy.NewWarehouse(r.Owner, w.Name())
	if !g.may(policy.UseWarehouse, g.warehouse) {
		g.denied = true
		return g, catalog.Errorf(catalog.NoSuchWarehouse, "Warehouse does not exist: %s", w.Name())
	}
	return g, nil
}

// Shared is a share as a catalog, whose objects lie in warehouses of one owner.
type Shared interface {
	catalog.Operations
	// ObjectConfig is what clients need for a table.
	ObjectConfig(obj catalog.Object) map[string]string
	// Place is the name of an object's warehouse.
	Place(obj catalog.Object) (warehouse string, err error)
}

// EnterShare is [Enforcer.Enter] for a share: useShare on it, and for what is in
// it the decisions on what it is in its warehouse, where it lies in the share,
// too.
func (e *Enforcer) EnterShare(ctx context.Context, in Shared, r Request, share *policy.Resource) (catalog.Operations, error) {
	stack, err := e.stacks.Stack(ctx, r.Owner, r.Principal)
	if err != nil {
		return nil, unavailable(err)
	}
	if stack.Open() {
		return in, nil
	}
	g := e.guard(in, stack, r)
	g.share, g.shared = share, in
	if !g.may(policy.UseShare, share) {
		g.denied = true
		return g, catalog.Errorf(catalog.NoSuchWarehouse, "Warehouse does not exist: share/%s", share.Name())
	}
	return g, nil
}

func unavailable(err error) error {
	return &catalog.Error{
		Reason: catalog.Unavailable, Message: "The policies that decide on this request cannot be read now; try again", Cause: err, RetryAfter: 5 * time.Second,
	}
}

func (e *Enforcer) guard(in catalog.Operations, stack *policy.Stack, r Request) *Guard {
	return &Guard{
		e: e, in: in, stack: stack, operation: r.Operation, owner: r.Owner, who: r.Principal.ID,
		req: policy.Request{Principal: e.principal(r.Principal), Now: e.now(), IP: r.Address},
	}
}

// Guard is a warehouse as one principal may use it, for one request. It is not
// safe for concurrent use.
type Guard struct {
	e         *Enforcer
	in        catalog.Operations
	stack     *policy.Stack
	req       policy.Request
	who       string
	operation string
	owner     string
	warehouse *policy.Resource
	// share and shared are set where in is a share: names are the share's, and
	// objects are what they are in their warehouses.
	share    *policy.Resource
	shared   Shared
	looked   catalog.Ident // what was looked up last
	policies []audit.Policy
	denied   bool
}

var _ catalog.Operations = (*Guard)(nil)

// Policies are those that determined the decisions so far, for the audit log.
func (g *Guard) Policies() []audit.Policy { return g.policies }

// Denied reports whether a policy has refused the request.
func (g *Guard) Denied() bool { return g.denied }

// maxPolicies bounds what a record says of a request about many tables.
const maxPolicies = 64

// note remembers what determined a decision that counts.
func (g *Guard) note(d *policy.Decision) {
	add := func(p audit.Policy) {
		for _, known := range g.policies {
			if known == p {
				return
			}
		}
		if len(g.policies) < maxPolicies {
			g.policies = append(g.policies, p)
		}
	}
	for _, r := range d.Reasons {
		add(audit.Policy{Set: setName(r.Layer, r.Owner), Version: r.Version, ID: r.Policy})
	}
	if d.Lacking != "" {
		for _, l := range g.stack.Layers() {
			if l.Name == d.Lacking {
				add(audit.Policy{Set: setName(l.Name, l.Owner), Version: l.Version})
			}
		}
	}
}

func setName(layer, owner string) string {
	if owner == "" {
		return layer
	}
	return layer + "/" + owner
}

// may decides on an action, and notes why.
func (g *Guard) may(a policy.Action, r *policy.Resource) bool {
	d := g.stack.Authorize(g.req, a, r)
	g.note(&d)
	return d.Allowed
}

// could decides on an action without a note: whether something can be seen.
func (g *Guard) could(r *policy.Resource, any ...policy.Action) bool {
	for _, a := range any {
		if d := g.stack.Authorize(g.req, a, r); d.Allowed {
			return true
		}
	}
	return false
}

func (g *Guard) namespaceOf(ns catalog.Namespace) *policy.Resource {
	r := g.warehouse
	for _, level := range ns {
		r = r.Namespace(level, nil)
	}
	return r
}

func (g *Guard) seesNamespace(r *policy.Resource) bool {
	return g.could(r, policy.ListNamespace, policy.CreateTable, policy.CreateView, policy.CreateNamespace, policy.UpdateNamespace, policy.DropNamespace)
}

func (g *Guard) seesTable(r *policy.Resource) bool {
	return g.stack.MayRead(g.req, r) || g.could(r, policy.WriteTable, policy.DropTable, policy.ReadRestricted, policy.ManageGrants)
}

func (g *Guard) seesView(r *policy.Resource) bool {
	return g.could(r, policy.ReadView, policy.UpdateView, policy.DropView, policy.ManageGrants)
}

// onNamespace lets an action on a namespace, or on the warehouse itself,
// through, or says what the principal may know about why not.
func (g *Guard) onNamespace(a policy.Action, ns catalog.Namespace) error {
	if g.share != nil {
		return nil // useShare has decided on its names, and it refuses changes itself
	}
	r := g.namespaceOf(ns)
	if g.may(a, r) {
		return nil
	}
	g.denied = true
	if len(ns) > 0 && !g.seesNamespace(r) {
		return noNamespace(ns)
	}
	return g.forbidden(a, ns.String())
}

// onObject does the same for a table or view; id is what the principal calls it.
func (g *Guard) onObject(a policy.Action, id catalog.Ident, obj catalog.Object) error {
	r, err := g.objectOf(obj)
	if err != nil {
		return err
	}
	if g.may(a, r) {
		return nil
	}
	return g.hide(a, obj.Kind, id, r)
}

func (g *Guard) hide(a policy.Action, kind catalog.Kind, id catalog.Ident, r *policy.Resource) error {
	g.denied = true
	if !g.sees(kind, r) {
		return noObject(kind, id)
	}
	return g.forbidden(a, id.String())
}

func (g *Guard) sees(kind catalog.Kind, r *policy.Resource) bool {
	if kind == catalog.KindView {
		return g.seesView(r)
	}
	return g.seesTable(r)
}

func (g *Guard) forbidden(a policy.Action, what string) error {
	if what == "" {
		what = "the warehouse " + g.in.Name()
	}
	return catalog.Errorf(catalog.Forbidden, "Policy does not allow %s to %s on %s%s", g.who, a, what, g.because())
}

// because names the policies that decided to those who manage them.
func (g *Guard) because() string {
	if !g.could(policy.NewOrganisation(g.owner), policy.ManagePolicy) {
		return ""
	}
	text := ""
	for _, p := range g.policies {
		if p.ID == "" {
			text += ", no permit of " + p.Set + " applies"
		} else {
			text += ", " + p.ID + " of " + p.Set
		}
	}
	if text == "" {
		return ""
	}
	return " (decided by:" + text[1:] + ")"
}

// objectOf returns a table or view as policies know it.
func (g *Guard) objectOf(obj catalog.Object) (*policy.Resource, error) {
	tags, _ := tagsOf(obj.Labels)
	within := g.warehouse
	var shares []*policy.Resource
	if g.share != nil {
		warehouse, err := g.shared.Place(obj)
		if err != nil {
			return nil, err
		}
		within, shares = policy.NewWarehouse(g.owner, warehouse), []*policy.Resource{g.share}
	}
	for _, level := range obj.Namespace {
		within = within.Namespace(level, nil)
	}
	r := within.Table
	if obj.Kind == catalog.KindView {
		r = within.View
	}
	if obj.UUID == uuid.Nil {
		return r(obj.Name, tags, shares...), nil
	}
	return r(obj.Name, tags, shares...).WithUUID(obj.UUID.String()), nil
}

// tagsOf are an object's labels, and its columns' by field id.
func tagsOf(labels json.RawMessage) (object map[string]string, columns map[int]map[string]string) {
	if labels == nil {
		return nil, nil
	}
	var l struct {
		Object map[string]string `json:"object-labels"`
		Fields []struct {
			ID     int               `json:"field-id"`
			Labels map[string]string `json:"labels"`
		} `json:"fields"`
	}
	if json.Unmarshal(labels, &l) != nil { // checked when they were set
		return nil, nil
	}
	columns = make(map[int]map[string]string, len(l.Fields))
	for _, f := range l.Fields {
		columns[f.ID] = f.Labels
	}
	return l.Object, columns
}

// table returns a table as policies see it.
func (g *Guard) table(ctx context.Context, obj catalog.Object) (*policy.Table, error) {
	share := ""
	if g.share != nil {
		share = g.share.Name()
	}
	key := tableKey{obj.ID, obj.MetadataLocation, g.owner, share, obj.Namespace.Path() + catalog.Separator + obj.Name, sha256.Sum256(obj.Labels)}
	if t, ok := g.e.tables.Get(key); ok {
		return t, nil
	}
	r, err := g.objectOf(obj)
	if err != nil {
		return nil, err
	}
	doc, err := g.in.TableMetadata(ctx, obj)
	if err != nil {
		return nil, err
	}
	var schema iceberg.Schema
	if err := json.Unmarshal(doc.CurrentSchema(), &schema); err != nil {
		return nil, &catalog.Error{Reason: catalog.Internal, Message: "The table's schema cannot be read, so no policy can decide on it", Cause: err}
	}
	_, columns := tagsOf(obj.Labels)
	t, err := policy.NewTable(r, &schema, policy.TableOptions{ColumnTags: columns})
	if err != nil {
		return nil, &catalog.Error{Reason: catalog.Internal, Message: "No policy can decide on the table", Cause: err}
	}
	g.e.tables.Add(key, t)
	return t, nil
}

// read decides on reading a table.
func (g *Guard) read(t *policy.Table) (policy.Decision, error) {
	key := decisionKey{g.stack, t, g.req.Principal.Fingerprint()}
	if d, ok := g.e.decisions.Get(key); ok {
		return d, nil
	}
	d, err := g.stack.Read(g.req, t)
	if err != nil {
		return d, &catalog.Error{Reason: catalog.Internal, Message: "Policy cannot decide on the table", Cause: err}
	}
	if !d.Varies {
		g.e.decisions.Add(key, d)
	}
	return d, nil
}

// whole lets a principal that may see all of a table through; id is what the
// principal calls it.
func (g *Guard) whole(ctx context.Context, id catalog.Ident, obj catalog.Object) error {
	t, err := g.table(ctx, obj)
	if err != nil {
		return err
	}
	d, err := g.read(t)
	if err != nil {
		g.denied = true
		return err
	}
	g.note(&d)
	switch {
	case d.Whole():
		return nil
	case !d.Allowed:
		return g.hide(policy.ReadTable, catalog.KindTable, id, t.Resource())
	}
	g.denied = true
	return catalog.Errorf(catalog.Forbidden, "Policy lets %s see a part of %s: %s. This way of reading gives a table whole or not at all%s",
		g.who, id, d.Summary(), g.because())
}

func noNamespace(ns catalog.Namespace) error {
	return catalog.Errorf(catalog.NoSuchNamespace, "Namespace does not exist: %s", ns)
}

func noObject(kind catalog.Kind, id catalog.Ident) error {
	if kind == catalog.KindView {
		return catalog.Errorf(catalog.NoSuchView, "View does not exist: %s", id)
	}
	return catalog.Errorf(catalog.NoSuchTable, "Table does not exist: %s", id)
}
