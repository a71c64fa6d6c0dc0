// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/postgres"
	"github.com/sluice-data/sluice/internal/catalog/postgres/pgtest"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/identity/activationtest"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
)

// server is the PostgreSQL of this test binary, migrated the database on it
// that tests copy.
var (
	server   *pgtest.Server
	migrated string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	ctx := context.Background()
	var err error
	if server, err = pgtest.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop PostgreSQL:", err)
			code = 1
		}
	}()
	var s *sqlstore.Store
	if migrated, _, err = server.Database(ctx); err == nil {
		if s, err = postgres.Open(ctx, migrated, postgres.Options{MaxConns: 2}); err == nil {
			err = errors.Join(s.Migrate(ctx), s.Close())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "migrate the database that tests copy:", err)
		return 1
	}
	return m.Run()
}

// onBoth runs a test on each engine.
func onBoth(t *testing.T, test func(h *house)) {
	for name, open := range map[string]func(*testing.T) *sqlstore.Store{
		"sqlite": func(t *testing.T) *sqlstore.Store {
			s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"), sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"postgres": func(t *testing.T) *sqlstore.Store {
			dsn, drop, err := server.Copy(t.Context(), migrated)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = drop() })
			s, err := postgres.Open(t.Context(), dsn, postgres.Options{MaxConns: 8})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			t.Cleanup(func() { s.Close() })
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			test(furnish(t, s))
		})
	}
}

// house is a service with two warehouses of acme, and one of another.
type house struct {
	*testing.T
	*sharing.Service
	ctx     context.Context
	catalog *sqlstore.Store
	store   *store.Store
	main    *catalog.Warehouse
	second  *catalog.Warehouse
	foreign *catalog.Warehouse
	clock   atomic.Int64
}

func (h *house) now() time.Time { return time.Now().Add(time.Duration(h.clock.Load())) }

func furnish(t *testing.T, s *sqlstore.Store) *house {
	h := &house{T: t, ctx: t.Context(), catalog: s}
	var err error
	if h.store, err = store.Open(h.ctx, s); err != nil {
		t.Fatal(err)
	}
	key, _ := identity.GenerateSigningKey()
	ids, err := identity.New(identity.Config{SigningKey: key, Issuer: "sluice", Audience: "sluice", Now: h.now})
	if err != nil {
		t.Fatal(err)
	}
	schema, err := policy.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	h.Service, err = sharing.New(sharing.Config{
		Store: h.store, Issuers: map[string]identity.IssuerKind{"corp": identity.IssuerJWT, "mesh": identity.IssuerMTLS}, Activations: ids.Activations,
		PublicURI: "https://sluice.example", Schema: schema, Table: h.policyTable, ReservedClient: func(id string) bool { return id == "fixed" }, Now: h.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]struct {
		at    **catalog.Warehouse
		owner string
	}{"main": {&h.main, "acme"}, "second": {&h.second, "acme"}, "foreign": {&h.foreign, "globex"}} {
		root := "file://" + t.TempDir()
		bucket, err := objstore.Open(h.ctx, objstore.Profile{Type: objstore.TypeFile, Root: root}, objstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { bucket.Close() })
		*w.at, err = catalog.OpenWarehouse(h.ctx, catalog.Config{Options: catalog.Options{Name: name}, Root: root, Store: s, Files: bucket, Watcher: sharing.NewWatcher(h.store)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*w.at).Close)
		if err := h.AdoptWarehouse(h.ctx, name, (*w.at).ID(), w.owner, root); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *house) ok(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// policyTable is what policies are checked against: tables of main alone.
func (h *house) policyTable(ctx context.Context, warehouse string, id catalog.Ident) (*policy.Table, error) {
	if warehouse != "main" {
		return nil, sharing.ErrNotFound
	}
	if _, err := h.main.LookupTable(ctx, id); err != nil {
		return nil, sharing.ErrNotFound
	}
	var schema iceberg.Schema
	if err := json.Unmarshal([]byte(tableSchema), &schema); err != nil {
		return nil, err
	}
	r := policy.NewWarehouse("acme", warehouse)
	for _, level := range id.Namespace {
		r = r.Namespace(level, nil)
	}
	return policy.NewTable(r.Table(id.Name, nil), &schema, policy.TableOptions{})
}

// refused fails the test when err has not that reason.
func (h *house) refused(err error, reason string) {
	h.Helper()
	var e *sharing.Error
	if !errors.As(err, &e) || e.Reason != reason {
		h.Errorf("error is %v, want one with the reason %s", err, reason)
	}
}

func m() sharing.Mutation {
	return sharing.Mutation{Mutation: catalog.Mutation{Caller: catalog.Caller{Principal: "corp:admin", RequestID: "r"}, Operation: "test"}}
}

const tableSchema = `{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","type":"long","required":true},{"id":2,"name":"region","type":"string","required":false}]}`

func (h *house) namespace(w *catalog.Warehouse, levels ...string) catalog.Namespace {
	h.Helper()
	_, err := w.CreateNamespace(h.ctx, catalog.Mutation{}, levels, nil)
	h.ok(err)
	return levels
}

func (h *house) table(w *catalog.Warehouse, ns catalog.Namespace, name string) catalog.Object {
	h.Helper()
	t, err := w.CreateTable(h.ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: name, Schema: json.RawMessage(tableSchema)})
	h.ok(err)
	return t.Object
}

func (h *house) share(name string, onDrop sharing.OnDrop, add ...sharing.NewMember) sharing.MembersChanged {
	h.Helper()
	_, err := h.CreateShare(h.ctx, m(), sharing.Share{Name: name, Organisation: "acme", OnDrop: onDrop})
	h.ok(err)
	changed, err := h.ModifyMembers(h.ctx, m(), name, add, nil)
	h.ok(err)
	return changed
}

// grant gives a share to the organisation globex, as corp knows it.
func (h *house) grant(share string, g sharing.Grant) sharing.Granted {
	h.Helper()
	_, err := h.CreateRecipient(h.ctx, m(), sharing.Recipient{Provider: "acme", Name: "globex", Binding: sharing.Binding{Kind: sharing.BoundByToken, Issuer: "corp", Claim: sharing.ClaimOrganisation, Value: "globex"}}, 0)
	if sharing.CodeOf(err) != sharing.AlreadyExists {
		h.ok(err)
	}
	granted, err := h.CreateGrant(h.ctx, m(), share, "globex", g)
	h.ok(err)
	return granted
}

// alice is of globex, bob of another.
var (
	alice = sharing.Caller{Principal: identity.Principal{ID: "corp:alice", Issuer: "corp", Subject: "alice", Kind: identity.KindToken, Organisation: "globex", Groups: []string{"corp:analysts"}}, Address: netip.MustParseAddr("192.0.2.7")}
	bob   = sharing.Caller{Principal: identity.Principal{ID: "corp:bob", Issuer: "corp", Subject: "bob", Kind: identity.KindToken, Organisation: "initech"}}
)

func tableMember(warehouse string, ns catalog.Namespace, name string, alias ...string) sharing.NewMember {
	n := sharing.NewMember{Kind: sharing.MemberTable, Warehouse: warehouse, Namespace: ns, Name: name}
	if len(alias) > 0 {
		n.AliasNamespace, n.Alias = alias[:len(alias)-1], alias[len(alias)-1]
	}
	return n
}

// names lists all that a caller finds in a share.
func (h *house) names(who sharing.Caller, share string) []string {
	h.Helper()
	view, err := h.Access(h.ctx, who, share)
	h.ok(err)
	all, err := view.All(h.ctx)
	h.ok(err)
	out := []string{}
	for _, s := range all {
		out = append(out, s.Ident.String()+"="+s.Warehouse+"/"+s.Object.Ident().String())
	}
	return out
}

func (h *house) finds(who sharing.Caller, share string, want ...string) {
	h.Helper()
	if got := h.names(who, share); !slices.Equal(got, want) {
		h.Errorf("found %q, want %q", got, want)
	}
}

func TestShareShowsWhatItsMembersSayAndNothingElse(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		a, other, open := h.namespace(h.main, "a"), h.namespace(h.second, "a"), h.namespace(h.main, "open")
		deep := h.namespace(h.main, "open", "deep")
		h.table(h.main, a, "t")
		h.table(h.main, a, "secret")
		h.table(h.second, other, "t")
		h.table(h.main, open, "one")
		h.table(h.main, deep, "two")
		h.share("sales", 0, tableMember("main", a, "t"), tableMember("second", other, "t", "a", "t2"),
			sharing.NewMember{Kind: sharing.MemberNamespace, Warehouse: "main", Namespace: open, AliasNamespace: catalog.Namespace{"all"}})
		h.grant("sales", sharing.Grant{})
		h.finds(alice, "sales", "a.t=main/a.t", "a.t2=second/a.t", "all.deep.two=main/open.deep.two", "all.one=main/open.one")

		view, err := h.Access(h.ctx, alice, "sales")
		h.ok(err)
		for _, id := range []catalog.Ident{
			{Namespace: a, Name: "secret"}, {Namespace: open, Name: "one"}, {Namespace: catalog.Namespace{"all", "none"}, Name: "x"}, {Namespace: catalog.Namespace{"a", "deep"}, Name: "t"}, {Name: "t"},
		} {
			if _, err := view.Lookup(h.ctx, id, catalog.KindTable); !errors.Is(err, sharing.ErrNotFound) {
				h.Errorf("%s: %v", id, err)
			}
		}
		if _, err := view.Lookup(h.ctx, catalog.Ident{Namespace: a, Name: "t"}, catalog.KindView); !errors.Is(err, sharing.ErrNotFound) {
			h.Errorf("a table as a view: %v", err)
		}
		for ns, want := range map[string]bool{"": true, "a": true, "all": true, "all\x1fdeep": true, "open": false, "a\x1fdeep": false, "all\x1fnone": false} {
			got, err := view.NamespaceExists(h.ctx, catalog.NamespaceFromPath(ns))
			if err != nil || got != want {
				h.Errorf("namespace %q exists: %v, %v", ns, got, err)
			}
		}
		if _, _, err := view.List(h.ctx, open, catalog.KindTable, sharing.Page{}); !errors.Is(err, sharing.ErrNotFound) {
			h.Errorf("a listing of a namespace that is not shown: %v", err)
		}
		// A whole namespace follows what is in it, from one request to the next.
		h.table(h.main, open, "later")
		h.ok(h.main.DropTable(h.ctx, catalog.Mutation{}, catalog.Ident{Namespace: open, Name: "one"}, false))
		h.namespace(h.main, "open", "new")
		h.finds(alice, "sales", "a.t=main/a.t", "a.t2=second/a.t", "all.deep.two=main/open.deep.two", "all.later=main/open.later")
		children, _, err := view.Namespaces(h.ctx, catalog.Namespace{"all"}, sharing.Page{})
		if err != nil || fmt.Sprint(children) != "[all.deep all.new]" {
			h.Errorf("children %v, %v", children, err)
		}
		// Others find nothing, and are told nothing.
		_, err = h.Access(h.ctx, bob, "sales")
		_, none := h.Access(h.ctx, bob, "nothing")
		if sharing.CodeOf(err) != sharing.NotFound || strings.ReplaceAll(err.Error(), "sales", "nothing") != none.Error() {
			h.Errorf("%v; and of a share that there is not: %v", err, none)
		}
	})
}

// TestPagesOfAShare walks listings in pages of every size, where members stand
// among, before and in front of what a whole namespace brings.
func TestPagesOfAShare(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		ns, other := h.namespace(h.main, "ns"), h.namespace(h.second, "other")
		want := []string{}
		for i := range 12 {
			name := fmt.Sprintf("t%02d", i)
			h.table(h.main, ns, name)
			want = append(want, name)
		}
		members := []sharing.NewMember{{Kind: sharing.MemberNamespace, Warehouse: "main", Namespace: ns, AliasNamespace: catalog.Namespace{"x"}}}
		for _, alias := range []string{"a", "t03", "t055", "t11", "z"} {
			h.table(h.second, other, "s"+alias)
			members = append(members, tableMember("second", other, "s"+alias, "x", alias))
			want = append(want, alias)
		}
		slices.Sort(want)
		want = slices.Compact(want)
		h.share("pages", 0, members...)
		view, err := h.Preview(h.ctx, "pages")
		h.ok(err)
		for size := 1; size <= len(want)+1; size++ {
			var got []string
			page := sharing.Page{Limit: size}
			for range 40 {
				names, next, err := view.List(h.ctx, catalog.Namespace{"x"}, catalog.KindTable, page)
				h.ok(err)
				got = append(got, names...)
				if len(names) > size {
					h.Fatalf("%d names on a page of %d", len(names), size)
				}
				if page.After = next; next == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				h.Errorf("in pages of %d: %q, want %q", size, got, want)
			}
		}
		// A member stands in front of what has its name in the namespace.
		source, err := view.Lookup(h.ctx, catalog.Ident{Namespace: catalog.Namespace{"x"}, Name: "t03"}, catalog.KindTable)
		if err != nil || source.Warehouse != "second" {
			h.Errorf("t03 is %s/%s, %v", source.Warehouse, source.Object.Ident(), err)
		}
	})
}

func TestDroppedAndRenamedObjects(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		a, b := h.namespace(h.main, "a"), h.namespace(h.main, "b")
		gone := h.namespace(h.main, "gone")
		h.table(h.main, a, "kept")
		h.table(h.main, a, "loose")
		h.share("strict", sharing.OnDropBlock, tableMember("main", a, "kept"), sharing.NewMember{Kind: sharing.MemberNamespace, Warehouse: "main", Namespace: gone})
		h.share("lenient", sharing.OnDropRemove, tableMember("main", a, "loose"), tableMember("main", a, "kept", "shown", "as"))
		h.grant("strict", sharing.Grant{})
		h.grant("lenient", sharing.Grant{})
		kept, loose := catalog.Ident{Namespace: a, Name: "kept"}, catalog.Ident{Namespace: a, Name: "loose"}

		err := h.main.DropTable(h.ctx, catalog.Mutation{}, kept, false)
		if catalog.ReasonOf(err) != catalog.Forbidden || !strings.Contains(err.Error(), "strict") {
			h.Errorf("a drop of a shared table: %v", err)
		}
		if err := h.main.DropNamespace(h.ctx, catalog.Mutation{}, gone); catalog.ReasonOf(err) != catalog.Forbidden {
			h.Errorf("a drop of a shared namespace: %v", err)
		}
		h.finds(alice, "lenient", "a.loose=main/a.loose", "shown.as=main/a.kept")

		// A rename changes nothing for the recipient.
		moved := catalog.Ident{Namespace: b, Name: "moved"}
		h.ok(h.main.RenameTable(h.ctx, catalog.Mutation{Caller: catalog.Caller{Principal: "corp:dba"}}, kept, moved))
		h.finds(alice, "strict", "a.kept=main/b.moved")
		h.finds(alice, "lenient", "a.loose=main/a.loose", "shown.as=main/b.moved")
		// And who takes the old name is not shared.
		h.table(h.main, a, "kept")
		h.finds(alice, "strict", "a.kept=main/b.moved")
		if err := h.main.DropTable(h.ctx, catalog.Mutation{}, moved, false); catalog.ReasonOf(err) != catalog.Forbidden {
			h.Errorf("a drop under the new name: %v", err)
		}
		h.ok(h.main.DropTable(h.ctx, catalog.Mutation{}, kept, false))

		h.ok(h.main.DropTable(h.ctx, catalog.Mutation{Caller: catalog.Caller{Principal: "corp:dba"}}, loose, false))
		h.finds(alice, "lenient", "shown.as=main/b.moved")
		h.table(h.main, a, "loose")
		h.finds(alice, "lenient", "shown.as=main/b.moved")

		warnings, _, err := h.Warnings(h.ctx, "lenient", "", sharing.Page{})
		h.ok(err)
		if len(warnings) != 2 || warnings[0].Reason != sharing.WarnRemoved || warnings[0].Object != "main/a.loose" || warnings[0].Principal != "corp:dba" || warnings[1].Reason != sharing.WarnRenamed {
			h.Errorf("warnings %+v", warnings)
		}
		all, _, err := h.Warnings(h.ctx, "", "acme", sharing.Page{})
		if err != nil || len(all) != 3 { // the rename, in both shares, and the drop
			h.Errorf("%d warnings, %v", len(all), err)
		}
		events, err := h.catalog.Events(h.ctx, h.main.ID(), 0, 0)
		h.ok(err)
		if n := len(slices.DeleteFunc(events, func(e catalog.Event) bool { return e.Type != "share.warning" })); n != 3 {
			h.Errorf("%d events of warnings", n)
		}
	})
}

// TestReplacedTable: another table that is registered over a shared one is
// not shared.
func TestReplacedTable(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		a := h.namespace(h.main, "a")
		h.table(h.main, a, "t")
		h.table(h.main, a, "u")
		other, err := h.main.UnregisterTable(h.ctx, catalog.Mutation{}, catalog.Ident{Namespace: a, Name: "u"})
		h.ok(err)
		h.share("strict", sharing.OnDropBlock, tableMember("main", a, "t"))
		replace := func() error {
			_, err := h.main.RegisterTable(h.ctx, catalog.Mutation{}, a, "t", other.Object.MetadataLocation, true)
			return err
		}
		if err := replace(); catalog.ReasonOf(err) != catalog.Forbidden {
			h.Errorf("a shared table was replaced: %v", err)
		}
		_, err = h.UpdateShare(h.ctx, m(), "strict", func(s *sharing.Share) error { s.OnDrop = sharing.OnDropRemove; return nil })
		h.ok(err)
		h.grant("strict", sharing.Grant{})
		h.finds(alice, "strict", "a.t=main/a.t")
		h.ok(replace())
		h.finds(alice, "strict")
	})
}

func TestGrantsGiveAccessAsLongAsNothingSpeaksAgainstThem(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		h.table(h.main, h.namespace(h.main, "a"), "t")
		h.share("sales", 0, tableMember("main", catalog.Namespace{"a"}, "t"))
		reaches := func(who sharing.Caller, reason string) {
			h.Helper()
			_, err := h.Access(h.ctx, who, "sales")
			if reason == "" {
				h.ok(err)
			} else {
				h.refused(err, reason)
			}
		}
		reaches(alice, "SHARE_NOT_FOUND")
		now := h.now()
		g := h.grant("sales", sharing.Grant{
			ExpiresAt: now.Add(2 * time.Hour), Terms: "be nice",
			Conditions: sharing.Conditions{NotBefore: now.Add(time.Hour), Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Groups: []string{"corp:analysts"}, Kinds: []string{"token"}},
		})
		if g.State != sharing.StateNotYetValid {
			h.Errorf("state %s", g.State)
		}
		reaches(alice, "GRANT_NOT_YET_VALID")
		h.clock.Store(int64(time.Hour + time.Second))
		reaches(alice, "GRANT_PENDING_TERMS")
		received, _, err := h.ReceivedGrants(h.ctx, alice.Principal, sharing.Page{})
		if err != nil || len(received) != 1 || received[0].Terms != "be nice" || received[0].State != sharing.StatePendingTerms {
			h.Fatalf("received %+v, %v", received, err)
		}
		if others, _, err := h.ReceivedGrants(h.ctx, bob.Principal, sharing.Page{}); err != nil || len(others) != 0 {
			h.Errorf("another has received %+v, %v", others, err)
		}
		digest := sharing.TermsDigest("be nice")
		_, err = h.AcceptTerms(h.ctx, m(), bob.Principal, g.ID, digest)
		h.refused(err, "GRANT_NOT_FOUND")
		_, err = h.AcceptTerms(h.ctx, m(), alice.Principal, g.ID, sharing.TermsDigest("other terms"))
		h.refused(err, "TERMS_CHANGED")
		behalf := alice.Principal
		behalf.Actor = "account:etl"
		_, err = h.AcceptTerms(h.ctx, m(), behalf, g.ID, digest)
		h.refused(err, "ACTOR_REFUSED")
		_, err = h.AcceptTerms(h.ctx, m(), alice.Principal, g.ID, digest)
		h.ok(err)
		reaches(alice, "")
		elsewhere, ungrouped, service := alice, alice, alice
		elsewhere.Address = netip.MustParseAddr("198.51.100.1")
		ungrouped.Groups = nil
		service.Kind = identity.KindWorkload
		for _, who := range []sharing.Caller{elsewhere, ungrouped, service, {Principal: alice.Principal}} {
			reaches(who, "GRANT_CONDITIONS")
		}
		mapped := alice
		mapped.Address = netip.MustParseAddr("::ffff:192.0.2.9")
		reaches(mapped, "")
		// New terms want accepting anew.
		_, err = h.UpdateGrant(h.ctx, m(), g.ID, func(g *sharing.Grant) error { g.Terms = "be very nice"; return nil })
		h.ok(err)
		reaches(alice, "GRANT_PENDING_TERMS")
		_, err = h.UpdateGrant(h.ctx, m(), g.ID, func(g *sharing.Grant) error { g.Terms = ""; return nil })
		h.ok(err)
		reaches(alice, "")
		// A disabled recipient, a disabled principal, and back.
		set := func(disabled bool) {
			_, err := h.UpdateRecipient(h.ctx, m(), "acme", "globex", func(r *sharing.Recipient) error { r.Disabled = disabled; return nil })
			h.ok(err)
		}
		set(true)
		reaches(alice, "SHARE_NOT_FOUND")
		set(false)
		reaches(alice, "")
		_, err = h.CreatePrincipal(h.ctx, m(), sharing.Principal{ID: "corp:alice", Organisation: "acme", Disabled: true})
		h.ok(err)
		reaches(alice, "") // another organisation's record says nothing about her
		_, err = h.CreatePrincipal(h.ctx, m(), sharing.Principal{ID: "corp:alice", Organisation: "globex", Disabled: true})
		h.ok(err)
		reaches(alice, "SHARE_NOT_FOUND")
		h.ok(h.DeletePrincipal(h.ctx, m(), "globex", "corp:alice"))
		reaches(alice, "")
		// Its time, and the next request after a revocation.
		h.clock.Store(int64(2*time.Hour + time.Second))
		reaches(alice, "SHARE_NOT_FOUND")
		_, err = h.UpdateGrant(h.ctx, m(), g.ID, func(g *sharing.Grant) error { g.ExpiresAt = time.Time{}; return nil })
		h.ok(err)
		reaches(alice, "")
		revoked, err := h.RevokeGrant(h.ctx, m(), g.ID, "over")
		h.ok(err)
		reaches(alice, "SHARE_NOT_FOUND")
		again, err := h.RevokeGrant(h.ctx, m(), g.ID, "again")
		if err != nil || !again.RevokedAt.Equal(revoked.RevokedAt) || again.RevokeReason != "over" {
			h.Errorf("revoked again: %+v, %v", again.Grant, err)
		}
		_, err = h.UpdateGrant(h.ctx, m(), g.ID, func(*sharing.Grant) error { return nil })
		h.refused(err, "GRANT_REVOKED")
		second := h.grant("sales", sharing.Grant{})
		reaches(alice, "")
		_, err = h.CreateGrant(h.ctx, m(), "sales", "globex", sharing.Grant{})
		h.refused(err, "GRANT_EXISTS")
		h.refused(h.DeleteGrant(h.ctx, m(), second.ID), "GRANT_IN_FORCE")
		h.refused(h.DeleteShare(h.ctx, m(), "sales", false), "SHARE_GRANTED")
		h.refused(h.DeleteRecipient(h.ctx, m(), "acme", "globex", false), "RECIPIENT_GRANTED")
		h.ok(h.DeleteGrant(h.ctx, m(), g.ID))
		h.ok(h.DeleteRecipient(h.ctx, m(), "acme", "globex", true))
		reaches(alice, "SHARE_NOT_FOUND")
		h.ok(h.DeleteShare(h.ctx, m(), "sales", true))
		// A share of the same name that is made later is another one.
		h.share("sales", 0)
		reaches(alice, "SHARE_NOT_FOUND")
	})
}

func TestBindings(t *testing.T) {
	t.Parallel()
	person := identity.Principal{
		ID: "corp:alice", Issuer: "corp", Subject: "alice", Kind: identity.KindToken, Organisation: "globex", Groups: []string{"corp:analysts", "other:admins"},
		Attributes: map[string]identity.AttributeValue{
			"team": {Type: identity.TypeString, String: "risk"}, "level": {Type: identity.TypeLong, Long: 3}, "staff": {Type: identity.TypeBoolean, Boolean: true}, "roles": {Type: identity.TypeSet, Set: []string{"a", "b"}},
		},
	}
	workload := identity.Principal{ID: "mesh:spiffe://x/y", Issuer: "mesh", Subject: "spiffe://x/y", Kind: identity.KindCertificate}
	account := identity.Principal{ID: "account:etl", Subject: "etl", Kind: identity.KindService, Organisation: "globex"}
	token := func(issuer, claim, value string) sharing.Binding {
		return sharing.Binding{Kind: sharing.BoundByToken, Issuer: issuer, Claim: claim, Value: value}
	}
	for _, c := range []struct {
		binding sharing.Binding
		p       identity.Principal
		want    bool
	}{
		{token("corp", "organisation", "globex"), person, true},
		{token("corp", "organisation", "Globex"), person, false},
		{token("mesh", "organisation", "globex"), person, false},
		{token("account", "organisation", "globex"), account, true},
		{token("account", "organisation", "globex"), person, false},
		{token("corp", "subject", "alice"), person, true},
		{token("corp", "subject", "corp:alice"), person, false},
		{token("account", "subject", "etl"), account, true},
		{token("corp", "group", "analysts"), person, true},
		{token("corp", "group", "admins"), person, false}, // another issuer's group
		{token("corp", "team", "risk"), person, true},
		{token("corp", "level", "3"), person, true},
		{token("corp", "staff", "true"), person, true},
		{token("corp", "roles", "b"), person, true},
		{token("corp", "roles", "a,b"), person, false},
		{token("corp", "missing", ""), person, false},
		{token("", "", ""), identity.Principal{}, false},
		{token("account", "organisation", ""), identity.Principal{ID: "account:x", Subject: "x", Kind: identity.KindService}, false},
		{sharing.Binding{Kind: sharing.BoundByCertificate, Issuer: "mesh", Claim: "subject", Value: "spiffe://x/y"}, workload, true},
		{sharing.Binding{Kind: sharing.BoundByCertificate, Issuer: "mesh", Claim: "subject", Value: "spiffe://x/y"}, identity.Principal{ID: "x", Issuer: "mesh", Subject: "spiffe://x/y", Kind: identity.KindToken}, false},
		{sharing.Binding{Kind: sharing.BoundByActivation}, person, false},
		{sharing.Binding{Kind: sharing.BoundByActivation, Issuer: "corp", Claim: "subject", Value: "alice"}, person, true},
		{token("corp", "organisation", "globex"), identity.Principal{Issuer: "corp", Organisation: "globex", Kind: identity.KindAnonymous}, false},
	} {
		if got := c.binding.Matches(c.p); got != c.want {
			t.Errorf("%+v matches %s: %v", c.binding, c.p.ID, got)
		}
	}
	r := sharing.Recipient{Organisation: "initech", Binding: token("corp", "subject", "alice")}
	if r.Is(person) {
		t.Error("a recipient's organisation is not looked at")
	}
}

func TestActivation(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		h.share("sales", 0)
		made, err := h.CreateRecipient(h.ctx, m(), sharing.Recipient{Provider: "acme", Name: "new", Organisation: "globex", Binding: sharing.Binding{Kind: sharing.BoundByActivation, Issuer: "corp", Claim: "subject", Value: "mallory"}}, time.Hour)
		h.ok(err)
		if made.Recipient.Binding.Issuer != "" || !strings.HasPrefix(made.URL.Reveal(), "https://sluice.example/activate#slact_") {
			h.Errorf("made %+v", made)
		}
		_, err = h.CreateGrant(h.ctx, m(), "sales", "new", sharing.Grant{})
		h.ok(err)
		_, err = h.Access(h.ctx, alice, "sales")
		h.refused(err, "SHARE_NOT_FOUND")
		_, err = h.Activate(h.ctx, m(), bob, made.Token.Reveal())
		h.refused(err, "LINK_FORBIDDEN") // of another organisation
		_, err = h.Activate(h.ctx, m(), alice, made.Token.Reveal()+"x")
		h.refused(err, "LINK_UNKNOWN")
		// A new link voids the one before.
		again, err := h.CreateLink(h.ctx, m(), "acme", "new", 0)
		h.ok(err)
		_, err = h.Activate(h.ctx, m(), alice, made.Token.Reveal())
		h.refused(err, "LINK_UNKNOWN")
		r, err := h.Activate(h.ctx, m(), alice, again.Token.Reveal())
		if err != nil || r.Binding.Issuer != "corp" || r.Binding.Value != "alice" || r.Binding.ActivatedAt.IsZero() {
			h.Errorf("activated %+v, %v", r, err)
		}
		_, err = h.Access(h.ctx, alice, "sales")
		h.ok(err)
		carol := alice
		carol.ID, carol.Subject = "corp:carol", "carol"
		_, err = h.Activate(h.ctx, m(), carol, again.Token.Reveal())
		h.refused(err, "LINK_SPENT")
		_, err = h.Access(h.ctx, carol, "sales")
		h.refused(err, "SHARE_NOT_FOUND")
		// What was dry stays dry.
		dry := m()
		dry.ValidateOnly = true
		ghost, err := h.CreateRecipient(h.ctx, dry, sharing.Recipient{Provider: "acme", Name: "ghost", Binding: sharing.Binding{Kind: sharing.BoundByActivation}}, 0)
		h.ok(err)
		_, err = h.Activate(h.ctx, m(), alice, ghost.Token.Reveal())
		h.refused(err, "LINK_UNKNOWN")
		rows, err := h.catalog.Audit(h.ctx, h.store.Administration(), 100)
		h.ok(err)
		for _, row := range rows {
			if strings.Contains(string(row.Detail)+row.Resource, "slact_") {
				h.Errorf("a link in the audit log: %s", row.Detail)
			}
		}
	})
}

func TestActivationStore(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		n := 0
		activationtest.Run(h.T, func(t *testing.T) activationtest.Subject {
			s := activationtest.Subject{ActivationStore: h.ActivationStore()}
			for i := range s.Recipients {
				n++
				made, err := h.CreateRecipient(t.Context(), m(), sharing.Recipient{Provider: "acme", Name: fmt.Sprintf("r%d", n), Binding: sharing.Binding{Kind: sharing.BoundByActivation}}, 0)
				if err != nil {
					t.Fatal(err)
				}
				s.Recipients[i] = made.Recipient.ID.String()
			}
			// The links of a test have the same ids as those of another.
			if err := h.forgetLinks(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			s.Bound = func(ctx context.Context, recipient string) (identity.Binding, error) {
				r, err := h.store.RecipientByID(ctx, uuid.MustParse(recipient))
				b := identity.Binding{Issuer: r.Binding.Issuer, Subject: r.Binding.Value}
				if b.Issuer == sharing.AccountIssuer {
					b.Issuer = ""
				}
				return b, err
			}
			return s
		})
	})
}

// forgetLinks deletes the recipients of tests before, with their links.
func (h *house) forgetLinks(ctx context.Context, n int) error {
	for i := 1; i <= n-2; i++ {
		if err := h.DeleteRecipient(ctx, m(), "acme", fmt.Sprintf("r%d", i), true); err != nil && sharing.CodeOf(err) != sharing.NotFound {
			return err
		}
	}
	return nil
}

func TestMembersAreChecked(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		a, deep := h.namespace(h.main, "a"), h.namespace(h.main, "a", "deep")
		f := h.namespace(h.foreign, "f")
		one := h.table(h.main, a, "one")
		h.table(h.main, a, "two")
		h.table(h.foreign, f, "t")
		h.share("s", 0)
		add := func(reason string, members ...sharing.NewMember) sharing.MembersChanged {
			h.Helper()
			c, err := h.ModifyMembers(h.ctx, m(), "s", members, nil)
			if reason == "" {
				h.ok(err)
			} else {
				h.refused(err, reason)
			}
			return c
		}
		whole := func(warehouse string, ns catalog.Namespace, alias ...string) sharing.NewMember {
			return sharing.NewMember{Kind: sharing.MemberNamespace, Warehouse: warehouse, Namespace: ns, AliasNamespace: alias}
		}
		add("WAREHOUSE_NOT_FOUND", tableMember("foreign", f, "t")) // another's is as if it were not there
		add("WAREHOUSE_NOT_FOUND", tableMember("none", f, "t"))
		add("TABLE_NOT_FOUND", tableMember("main", a, "none"))
		add("NAMESPACE_NOT_FOUND", whole("main", catalog.Namespace{"none"}))
		add("INVALID_ADD", sharing.NewMember{Kind: 9, Warehouse: "main", Namespace: a})
		add("INVALID_ADD", tableMember("main", nil, "one"))
		add("INVALID_ADD", tableMember("main", a, "one", "x", "bad\x00name"))
		add("INVALID_ADD", tableMember("main", a, "one", "x", ".."))
		add("INVALID_ADD", sharing.NewMember{Kind: sharing.MemberNamespace, Warehouse: "main", Namespace: a, Alias: "x"})
		view := tableMember("main", a, "one")
		view.Kind = sharing.MemberView
		add("VIEW_NOT_FOUND", view)
		wrong := tableMember("main", a, "one")
		wrong.UUID = uuid.New()
		add("UUID_MISMATCH", wrong)
		right := wrong
		right.UUID = one.UUID
		first := add("", right)
		if first.Share.Members != 1 || first.Share.Version != 2 {
			h.Errorf("share %+v", first.Share)
		}
		// What is there already stays as it is, and changes nothing.
		again := add("", tableMember("main", a, "one"))
		if again.Added[0].ID != first.Added[0].ID || again.Share.Version != first.Share.Version {
			h.Errorf("added again: %+v after %+v", again, first)
		}
		add("MEMBER_EXISTS", tableMember("main", a, "one", "elsewhere", "one"))
		add("ALIAS_TAKEN", tableMember("main", a, "two", "a", "one"))
		add("", whole("main", a, "w"))
		add("ALIAS_TAKEN", whole("main", deep, "w", "deep"))
		add("ALIAS_TAKEN", whole("main", deep, "w"))
		// All or none.
		add("TABLE_NOT_FOUND", tableMember("main", a, "two"), tableMember("main", a, "none"))
		members, _, err := h.Members(h.ctx, "s", sharing.Page{})
		if err != nil || len(members) != 2 {
			h.Errorf("members %+v, %v", members, err)
		}
		// A new alias in one request.
		c, err := h.ModifyMembers(h.ctx, m(), "s", []sharing.NewMember{tableMember("main", a, "one", "b", "uno")}, []uuid.UUID{first.Added[0].ID, uuid.New()})
		if err != nil || c.Share.Members != 2 || c.Added[0].Alias != "uno" {
			h.Errorf("renamed: %+v, %v", c, err)
		}
		// A warehouse of which something is shared keeps its owner.
		_, err = h.UpdateWarehouse(h.ctx, m(), "main", func(w *sharing.Warehouse) error { w.Organisation = "globex"; return nil })
		h.refused(err, "WAREHOUSE_SHARED")
		_, err = h.UpdateWarehouse(h.ctx, m(), "second", func(w *sharing.Warehouse) error { w.Organisation = "globex"; return nil })
		h.ok(err)
	})
}

func TestOrganisationsAndAccounts(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		for _, bad := range []string{"", "A", "1a", "a.b", "a/b", "a b", strings.Repeat("a", 64), "ä", "-a"} {
			_, err := h.CreateOrganisation(h.ctx, m(), sharing.Organisation{Name: bad})
			h.refused(err, "INVALID_NAME")
		}
		_, err := h.CreateOrganisation(h.ctx, m(), sharing.Organisation{Name: "acme"})
		h.refused(err, "ORGANISATION_EXISTS")
		h.refused(h.DeleteOrganisation(h.ctx, m(), "acme"), "ORGANISATION_NOT_EMPTY")
		o, err := h.CreateOrganisation(h.ctx, m(), sharing.Organisation{Name: "umbrella", DisplayName: "Umbrella"})
		h.ok(err)
		changed := m()
		changed.Etag = o.Etag()
		o2, err := h.UpdateOrganisation(h.ctx, changed, "umbrella", func(o *sharing.Organisation) error { o.Contact = "x"; return nil })
		h.ok(err)
		_, err = h.UpdateOrganisation(h.ctx, changed, "umbrella", func(o *sharing.Organisation) error { o.Contact = "y"; return nil })
		h.refused(err, "ETAG_MISMATCH")
		if o2.Etag() == o.Etag() || o2.ID != o.ID {
			h.Errorf("%+v after %+v", o2, o)
		}
		_, err = h.UpdateOrganisation(h.ctx, m(), "umbrella", func(o *sharing.Organisation) error { o.Contact = "a\nb"; return nil })
		h.refused(err, "INVALID_CONTACT")

		_, err = h.CreateServiceAccount(h.ctx, m(), sharing.ServiceAccount{ClientID: "fixed", Organisation: "umbrella"}, true)
		h.refused(err, "SERVICE_ACCOUNT_EXISTS")
		_, err = h.CreateServiceAccount(h.ctx, m(), sharing.ServiceAccount{ClientID: "x:y", Organisation: "umbrella"}, true)
		h.refused(err, "INVALID_CLIENT_ID")
		_, err = h.CreateServiceAccount(h.ctx, m(), sharing.ServiceAccount{ClientID: "etl", Organisation: "none"}, true)
		h.refused(err, "ORGANISATION_NOT_FOUND")
		made, err := h.CreateServiceAccount(h.ctx, m(), sharing.ServiceAccount{ClientID: "etl", Organisation: "umbrella"}, true)
		h.ok(err)
		hash, err := identity.ParseHash(made.Account.Secrets[0].Hash)
		if err != nil || strings.Contains(hash.PHC(), made.Value.Reveal()) || len(made.Value.Reveal()) < 40 {
			h.Errorf("hash %v", err)
		}
		second, err := h.CreateSecret(h.ctx, m(), "etl", h.now().Add(time.Hour))
		h.ok(err)
		_, err = h.CreateSecret(h.ctx, m(), "etl", time.Time{})
		h.refused(err, "TOO_MANY_SECRETS")
		h.refused(h.DeleteSecret(h.ctx, m(), "etl", "none"), "SECRET_NOT_FOUND")
		h.clock.Store(int64(2 * time.Hour)) // the second has ended, and makes room
		third, err := h.CreateSecret(h.ctx, m(), "etl", time.Time{})
		h.ok(err)
		a, err := h.ServiceAccount(h.ctx, "etl")
		if err != nil || len(a.Secrets) != 2 || a.Secrets[1].ID != third.Secret.ID || second.Secret.ID == third.Secret.ID {
			h.Errorf("secrets %+v, %v", a.Secrets, err)
		}
		// With a key the answer is kept, which holds nothing of the account.
		keyed := m()
		keyed.Key = &catalog.IdempotencyKey{Key: uuid.New()}
		keyed.Answer = func(result any) (json.RawMessage, error) {
			if result != struct{}{} {
				h.Errorf("a deletion is answered with a %T", result)
			}
			return json.RawMessage("{}"), nil
		}
		h.ok(h.DeleteSecret(h.ctx, keyed, "etl", third.Secret.ID))
		h.refused(h.DeleteOrganisation(h.ctx, m(), "umbrella"), "ORGANISATION_NOT_EMPTY")
		h.ok(h.DeleteServiceAccount(h.ctx, m(), "etl"))
		h.ok(h.DeleteOrganisation(h.ctx, m(), "umbrella"))
		_, err = h.Organisation(h.ctx, "umbrella")
		h.refused(err, "ORGANISATION_NOT_FOUND")
	})
}

func TestStorageHoldsReferencesOnly(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		create := func(change func(*sharing.Warehouse)) error {
			w := sharing.Warehouse{Name: "lake", Organisation: "acme", Storage: sharing.Storage{Root: "s3://bucket/lake", Region: "eu", Secrets: map[string]string{"secret_access_key": "env:LAKE_KEY"}}}
			change(&w)
			_, err := h.CreateWarehouse(h.ctx, m(), w)
			return err
		}
		const key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
		for reason, change := range map[string]func(*sharing.Warehouse){
			"INVALID_STORAGE_ROOT":              func(w *sharing.Warehouse) { w.Storage.Root = "bucket" },
			"INVALID_STORAGE_ENDPOINT":          func(w *sharing.Warehouse) { w.Storage.Endpoint = "https://user:password@s3.example" },
			"INVALID_STORAGE_ALLOWED_ROOTS":     func(w *sharing.Warehouse) { w.Storage.AllowedRoots = []string{"../x"} },
			"INVALID_STORAGE_SECRET_REFERENCES": func(w *sharing.Warehouse) { w.Storage.Secrets["secret_access_key"] = key },
			"INVALID_NAME":                      func(w *sharing.Warehouse) { w.Name = "share/x" },
			"ORGANISATION_NOT_FOUND":            func(w *sharing.Warehouse) { w.Organisation = "none" },
			"WAREHOUSE_OVERLAPS":                func(w *sharing.Warehouse) { w.Storage.Root = h.rootOf("main") + "/below" },
			"WAREHOUSE_EXISTS":                  func(w *sharing.Warehouse) { w.Name = "main" },
		} {
			err := create(change)
			h.refused(err, reason)
			if err != nil && strings.Contains(err.Error(), key) {
				h.Errorf("a secret in an error: %v", err)
			}
		}
		h.ok(create(func(*sharing.Warehouse) {}))
		h.refused(h.DeleteWarehouse(h.ctx, m(), "main"), "WAREHOUSE_CONFIGURED")
		h.ok(h.DeleteWarehouse(h.ctx, m(), "lake"))
		// What the configuration says again changes nothing; what it says anew does.
		before, err := h.Warehouse(h.ctx, "main")
		h.ok(err)
		h.ok(h.AdoptWarehouse(h.ctx, "main", h.main.ID(), "", before.Storage.Root))
		same, err := h.Warehouse(h.ctx, "main")
		if err != nil || same.Version != before.Version {
			h.Errorf("adopted again: %+v after %+v, %v", same, before, err)
		}
	})
}

func (h *house) rootOf(warehouse string) string {
	w, err := h.Warehouse(h.ctx, warehouse)
	h.ok(err)
	return w.Storage.Root
}

func TestOneTransactionOneRecord(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		records := func() int {
			rows, err := h.catalog.Audit(h.ctx, h.store.Administration(), 1000)
			h.ok(err)
			return len(rows)
		}
		before := records()
		dry := m()
		dry.ValidateOnly = true
		dry.Key = &catalog.IdempotencyKey{Key: uuid.New()}
		sh, err := h.CreateShare(h.ctx, dry, sharing.Share{Name: "dry", Organisation: "acme"})
		if err != nil || sh.Name != "dry" {
			h.Errorf("a dry run: %+v, %v", sh, err)
		}
		_, err = h.Share(h.ctx, "dry")
		h.refused(err, "SHARE_NOT_FOUND")
		_, err = h.CreateShare(h.ctx, dry, sharing.Share{Name: "dry", Organisation: "none"})
		h.refused(err, "ORGANISATION_NOT_FOUND")
		if n := records(); n != before {
			h.Errorf("%d records of what was not done", n-before)
		}
		keyed := m()
		keyed.Operation, keyed.Key = "createShare", &catalog.IdempotencyKey{Key: uuid.New(), RequestHash: [32]byte{1}}
		keyed.Answer = func(result any) (json.RawMessage, error) { return json.Marshal(result.(sharing.Share).Name) }
		_, err = h.CreateShare(h.ctx, keyed, sharing.Share{Name: "once", Organisation: "acme"})
		h.ok(err)
		if n := records(); n != before+1 {
			h.Errorf("%d records of one change", n-before)
		}
		raw, err := h.Replay(h.ctx, keyed)
		if err != nil || string(raw) != `"once"` {
			h.Errorf("replayed %s, %v", raw, err)
		}
		// The same key, at the same time, for what could be done: it is not done.
		_, err = h.CreateShare(h.ctx, keyed, sharing.Share{Name: "twice", Organisation: "acme"})
		if !sharing.IsReplayed(err) {
			h.Errorf("a used key: %v", err)
		}
		_, err = h.Share(h.ctx, "twice")
		h.refused(err, "SHARE_NOT_FOUND")
		other := keyed
		other.Key = &catalog.IdempotencyKey{Key: keyed.Key.Key, RequestHash: [32]byte{2}}
		_, err = h.Replay(h.ctx, other)
		h.refused(err, "REQUEST_ID_REUSED")
		stranger := keyed
		stranger.Principal = "corp:other"
		if raw, err := h.Replay(h.ctx, stranger); err != nil || raw != nil {
			h.Errorf("another's key: %s, %v", raw, err)
		}
	})
}
