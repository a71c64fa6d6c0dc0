// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharecatalog_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/rest"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/sharecatalog"
	"github.com/sluice-data/sluice/internal/sharing/store"
)

const schema = `{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":false,"type":"long"},{"id":2,"name":"note","required":false,"type":"string"}]}`

// fixture is a provider, acme, with two warehouses, and what it shares with
// globex, known by its tokens' organisation.
type fixture struct {
	*httptest.Server
	sharing    *sharing.Service
	warehouses map[string]*catalog.Warehouse
	share      sharing.Share
	grant      sharing.Granted

	mu     sync.Mutex
	policy string // of acme; "" for none
	rev    int64
	last   rest.Access
}

// Revision and Active make it the source of policy sets.
func (f *fixture) Revision(context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rev, nil
}

func (f *fixture) Active(_ context.Context, o enforce.Owner) (enforce.Active, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.policy == "" || o != (enforce.Owner{Layer: enforce.Provider, Organisation: "acme"}) {
		return enforce.Active{}, nil
	}
	return enforce.Active{Version: f.rev, Sources: []policy.Source{{File: "p.cedar", Text: []byte(f.policy)}}}, nil
}

func (f *fixture) activate(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policy, f.rev = text, f.rev+1
}

func mutation() sharing.Mutation {
	return sharing.Mutation{Mutation: catalog.Mutation{Caller: catalog.Caller{Principal: "test"}, Operation: "test"}}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func start(t *testing.T) *fixture {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	db := must(sqlite.Open(ctx, filepath.Join(dir, "catalog.db"), sqlite.Options{}))(t)
	t.Cleanup(func() { db.Close() })
	if err := db.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	shares := must(store.Open(ctx, db))(t)
	f := &fixture{warehouses: map[string]*catalog.Warehouse{}}
	policySchema := must(policy.NewSchema(nil))(t)
	f.sharing = must(sharing.New(sharing.Config{Store: shares, Schema: policySchema, Issuers: map[string]identity.IssuerKind{"sso": identity.IssuerJWT}}))(t)
	must(f.sharing.CreateOrganisation(ctx, mutation(), sharing.Organisation{Name: "acme"}))(t)
	enforcer := must(enforce.New(must(enforce.NewSets(policySchema, f))(t), nil))(t)
	cfg := rest.Config{
		Owners: map[string]string{"east": "acme", "west": "acme"}, Policies: enforcer, Authenticate: authenticate,
		Audit: func(_ context.Context, a rest.Access) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.last = a
			return nil
		},
	}
	var list []sharecatalog.Warehouse
	for _, name := range []string{"east", "west"} {
		root := "file://" + filepath.Join(dir, name)
		bucket := must(objstore.Open(ctx, objstore.Profile{Type: objstore.TypeFile, Root: root}, objstore.Options{}))(t)
		t.Cleanup(func() { bucket.Close() })
		w := must(catalog.OpenWarehouse(ctx, catalog.Config{
			Options: catalog.Options{Name: name}, Root: root, Store: db, Files: bucket, ClientConfig: map[string]string{"client.region": name},
			Watcher: sharing.NewWatcher(shares),
		}))(t)
		t.Cleanup(w.Close)
		f.warehouses[name] = w
		list = append(list, w)
		cfg.Warehouses = append(cfg.Warehouses, w)
		if err := f.sharing.AdoptWarehouse(ctx, name, w.ID(), "acme", root); err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"sales", "internal"} {
			must(w.CreateNamespace(ctx, mutation().Mutation, catalog.Namespace{ns}, map[string]string{"contact": "secret-person"}))(t)
			for _, table := range []string{"orders", "people"} {
				f.table(t, name, ns, table)
			}
		}
	}
	cfg.Shares = sharecatalog.New(f.sharing, enforcer, list)
	f.Server = httptest.NewServer(must(rest.New(cfg))(t))
	t.Cleanup(f.Close)

	f.share = must(f.sharing.CreateShare(ctx, mutation(), sharing.Share{Name: "partners", Organisation: "acme", OnDrop: sharing.OnDropRemove}))(t)
	must(f.sharing.ModifyMembers(ctx, mutation(), "partners", []sharing.NewMember{
		{Kind: sharing.MemberTable, Warehouse: "east", Namespace: catalog.Namespace{"sales"}, Name: "orders", AliasNamespace: catalog.Namespace{"public"}, Alias: "eastern_orders"},
		{Kind: sharing.MemberTable, Warehouse: "west", Namespace: catalog.Namespace{"sales"}, Name: "orders", AliasNamespace: catalog.Namespace{"public"}, Alias: "western_orders"},
		{Kind: sharing.MemberNamespace, Warehouse: "west", Namespace: catalog.Namespace{"sales"}, AliasNamespace: catalog.Namespace{"west"}},
	}, nil))(t)
	must(f.sharing.CreateRecipient(ctx, mutation(), sharing.Recipient{
		Provider: "acme", Name: "globex", Binding: sharing.Binding{Kind: sharing.BoundByToken, Issuer: "sso", Claim: sharing.ClaimOrganisation, Value: "globex"},
	}, 0))(t)
	f.grant = must(f.sharing.CreateGrant(ctx, mutation(), "partners", "globex", sharing.Grant{}))(t)
	return f
}

func (f *fixture) table(t *testing.T, warehouse, ns, name string) {
	t.Helper()
	must(f.warehouses[warehouse].CreateTable(t.Context(), mutation().Mutation, catalog.Namespace{ns}, catalog.NewTable{Name: name, Schema: json.RawMessage(schema)}))(t)
}

// authenticate knows acme's administrator, "owner", and people of other
// organisations by these names; nobody but the owner has access to warehouses.
func authenticate(r *http.Request) (identity.Principal, error) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token == "owner" {
		return identity.Principal{ID: "account:owner", Subject: "owner", Kind: identity.KindService, Organisation: "acme", Grants: []identity.Grant{{Warehouse: identity.AnyWarehouse, Access: identity.AccessWrite}}}, nil
	}
	return identity.Principal{ID: "sso:someone-of-" + token, Issuer: "sso", Subject: "someone-of-" + token, Kind: identity.KindToken, Organisation: token}, nil
}

func (f *fixture) do(t *testing.T, who, method, path, body string) (int, string) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), method, f.URL+path, strings.NewReader(body)))(t)
	r.Header.Set("Authorization", "Bearer "+who)
	a := must(http.DefaultClient.Do(r))(t)
	defer a.Body.Close()
	return a.StatusCode, string(must(io.ReadAll(a.Body))(t))
}

func (f *fixture) want(t *testing.T, status int, who, method, path, body string) string {
	t.Helper()
	got, answer := f.do(t, who, method, path, body)
	if got != status {
		t.Fatalf("%s %s as %s: %d, want %d: %.400s", method, path, who, got, status, answer)
	}
	return answer
}

// TestOnlyWhatIsShared is what a recipient finds, and that it finds no more.
func TestOnlyWhatIsShared(t *testing.T) {
	t.Parallel()
	f := start(t)
	config := f.want(t, 200, "globex", "GET", "/v1/config?warehouse=share/partners", "")
	if !strings.Contains(config, `"prefix":"share:partners"`) {
		t.Errorf("config: %s", config)
	}
	for _, prefix := range []string{"share:partners", "share%3Apartners"} {
		v1 := "/v1/" + prefix
		for path, want := range map[string]string{
			"/namespaces":                      `{"namespaces":[["public"],["west"]],"next-page-token":null}`,
			"/namespaces/public":               `{"namespace":["public"],"properties":{}}`,
			"/namespaces/west":                 `{"namespace":["west"],"properties":{}}`,
			"/namespaces/public/tables":        `{"identifiers":[{"namespace":["public"],"name":"eastern_orders"},{"namespace":["public"],"name":"western_orders"}],"next-page-token":null}`,
			"/namespaces/west/tables":          `{"identifiers":[{"namespace":["west"],"name":"orders"},{"namespace":["west"],"name":"people"}],"next-page-token":null}`,
			"/namespaces/west/views":           `{"identifiers":[],"next-page-token":null}`,
			"/namespaces/public/functions":     `{"identifiers":[],"next-page-token":null}`,
			"/namespaces?parent=public":        `{"namespaces":[],"next-page-token":null}`,
			"/namespaces?pageToken=&pageSize=": "",
		} {
			if strings.HasSuffix(path, "=") {
				f.want(t, 400, "globex", "GET", v1+path, "")
				continue
			}
			if got := f.want(t, 200, "globex", "GET", v1+path, ""); got != want {
				t.Errorf("%s: %s", path, got)
			}
		}
		// Each table with the settings of its own warehouse.
		for table, region := range map[string]string{"public/tables/eastern_orders": "east", "public/tables/western_orders": "west", "west/tables/people": "west"} {
			answer := f.want(t, 200, "globex", "GET", v1+"/namespaces/"+table, "")
			if !strings.Contains(answer, `"client.region":"`+region+`"`) || !strings.Contains(answer, `"format-version"`) {
				t.Errorf("%s: %s", table, answer)
			}
			f.want(t, 204, "globex", "HEAD", v1+"/namespaces/"+table, "")
			f.want(t, 204, "globex", "POST", v1+"/namespaces/"+table+"/metrics", `{"report-type":"scan-report","table-name":"x","snapshot-id":1,"metrics":{}}`)
		}
		for _, path := range []string{
			"/namespaces/sales", "/namespaces/internal", "/namespaces/internal/tables", "/namespaces/internal/tables/orders", "/namespaces/sales/tables/orders",
			"/namespaces/public/tables/orders", "/namespaces/public/tables/people", "/namespaces/west/tables/eastern_orders", "/namespaces/west/views/orders",
			"/namespaces/west/functions/f", "/namespaces?parent=internal",
		} {
			f.want(t, 404, "globex", "GET", v1+path, "")
		}
	}
	// Neither the warehouses nor another's share exist for it, and the share
	// not for others: not even for who owns it but was not granted it.
	for _, c := range [][2]string{{"globex", "east"}, {"globex", "share/other"}, {"initech", "share/partners"}, {"owner", "share/partners"}} {
		missing := f.want(t, 404, c[0], "GET", "/v1/config?warehouse="+c[1], "")
		if !strings.Contains(missing, "Warehouse does not exist: "+c[1]) {
			t.Errorf("%s: %s", c, missing)
		}
		f.want(t, 404, c[0], "GET", "/v1/"+strings.Replace(c[1], "/", ":", 1)+"/namespaces", "")
	}
}

// TestNothingCanBeChanged sends every change to a share.
func TestNothingCanBeChanged(t *testing.T) {
	t.Parallel()
	f := start(t)
	for _, c := range [][3]string{
		{"POST", "/namespaces", `{"namespace":["x"]}`},
		{"DELETE", "/namespaces/public", ""},
		{"POST", "/namespaces/public/properties", `{"updates":{"a":"b"}}`},
		{"POST", "/namespaces/public/tables", `{"name":"x","schema":` + schema + `}`},
		{"POST", "/namespaces/public/register", `{"name":"x","metadata-location":"file:///x"}`},
		{"POST", "/namespaces/public/tables/eastern_orders", `{"requirements":[],"updates":[{"action":"set-properties","updates":{"a":"b"}}]}`},
		{"DELETE", "/namespaces/public/tables/eastern_orders?purgeRequested=true", ""},
		{"POST", "/namespaces/public/tables/eastern_orders/unregister", ""},
		{"POST", "/tables/rename", `{"source":{"namespace":["public"],"name":"eastern_orders"},"destination":{"namespace":["public"],"name":"y"}}`},
		{"POST", "/transactions/commit", `{"table-changes":[{"identifier":{"namespace":["public"],"name":"eastern_orders"},"requirements":[],"updates":[]}]}`},
		{"POST", "/namespaces/public/views", `{"name":"x"}`},
		{"POST", "/namespaces/west/views/v", `{}`},
		{"DELETE", "/namespaces/west/views/v", ""},
		{"POST", "/views/rename", `{}`},
		{"POST", "/namespaces/public/register-view", `{}`},
	} {
		if answer := f.want(t, 403, "globex", c[0], "/v1/share:partners"+c[1], c[2]); !strings.Contains(answer, "read-only") {
			t.Errorf("%s: %s", c, answer)
		}
	}
	// Where the handler lets a change through, the share itself does not.
	shares := sharecatalog.New(f.sharing, must(enforce.New(must(enforce.NewSets(must(policy.NewSchema(nil))(t), enforce.Fixed{}))(t), nil))(t), []sharecatalog.Warehouse{f.warehouses["east"], f.warehouses["west"]})
	who := identity.Principal{ID: "sso:x", Issuer: "sso", Subject: "x", Kind: identity.KindToken, Organisation: "globex"}
	c := must(shares.Open(t.Context(), who, netip.Addr{}, "", "partners"))(t)
	ctx, m, ns, id := t.Context(), catalog.Mutation{}, catalog.Namespace{"public"}, catalog.Ident{Namespace: catalog.Namespace{"public"}, Name: "eastern_orders"}
	errs := []error{
		c.DropNamespace(ctx, m, ns), c.CommitTransaction(ctx, m, nil), c.DropTable(ctx, m, id, true), c.RenameTable(ctx, m, id, id), c.DropView(ctx, m, id), c.RenameView(ctx, m, id, id),
	}
	add := func(_ any, err error) { errs = append(errs, err) }
	add(c.CreateNamespace(ctx, m, ns, nil))
	add(c.UpdateNamespaceProperties(ctx, m, ns, nil, nil))
	add(c.CreateTable(ctx, m, ns, catalog.NewTable{}))
	add(c.CommitTable(ctx, m, id, catalog.Commit{}))
	add(c.UnregisterTable(ctx, m, id))
	add(c.RegisterTable(ctx, m, ns, "x", "y", true))
	add(c.CreateView(ctx, m, ns, catalog.NewView{}))
	add(c.ReplaceView(ctx, m, id, catalog.ViewCommit{}))
	add(c.RegisterView(ctx, m, ns, "x", "y"))
	if len(errs) != 15 {
		t.Errorf("%d changes", len(errs))
	}
	for i, err := range errs {
		if catalog.ReasonOf(err) != catalog.Forbidden {
			t.Errorf("change %d: %v", i, err)
		}
	}
}

// TestNextRequest has grants and members changed between requests.
func TestNextRequest(t *testing.T) {
	t.Parallel()
	f := start(t)
	const orders = "/v1/share:partners/namespaces/public/tables/eastern_orders"
	f.want(t, 200, "globex", "GET", orders, "")
	// Renamed, it stays where it is in the share; another in its old place
	// does not come in.
	id := catalog.Ident{Namespace: catalog.Namespace{"sales"}, Name: "orders"}
	moved := catalog.Ident{Namespace: catalog.Namespace{"internal"}, Name: "moved"}
	if err := f.warehouses["east"].RenameTable(t.Context(), mutation().Mutation, id, moved); err != nil {
		t.Fatal(err)
	}
	before := f.want(t, 200, "globex", "GET", orders, "")
	f.table(t, "east", "sales", "orders")
	if after := f.want(t, 200, "globex", "GET", orders, ""); after != before {
		t.Errorf("another table of the old name is shown: %s", after)
	}
	if err := f.warehouses["east"].DropTable(t.Context(), mutation().Mutation, moved, false); err != nil {
		t.Fatal(err)
	}
	f.want(t, 404, "globex", "GET", orders, "")
	// A namespace that is shared as a whole shows what comes into it.
	f.table(t, "west", "sales", "returns")
	f.want(t, 200, "globex", "GET", "/v1/share:partners/namespaces/west/tables/returns", "")
	must(f.sharing.RevokeGrant(t.Context(), mutation(), f.grant.Grant.ID, "over"))(t)
	f.want(t, 404, "globex", "GET", "/v1/share:partners/namespaces/west/tables/returns", "")
	f.want(t, 404, "globex", "GET", "/v1/config?warehouse=share/partners", "")
}

func TestTermsAndExpiry(t *testing.T) {
	t.Parallel()
	f := start(t)
	must(f.sharing.UpdateGrant(t.Context(), mutation(), f.grant.Grant.ID, func(g *sharing.Grant) error {
		g.Terms = "Do not redistribute."
		return nil
	}))(t)
	if answer := f.want(t, 403, "globex", "GET", "/v1/config?warehouse=share/partners", ""); !strings.Contains(answer, "sharectl grant accept") {
		t.Errorf("terms: %s", answer)
	}
	must(f.sharing.UpdateGrant(t.Context(), mutation(), f.grant.Grant.ID, func(g *sharing.Grant) error {
		g.Terms, g.ExpiresAt = "", time.Now().Add(300*time.Millisecond)
		return nil
	}))(t)
	f.want(t, 200, "globex", "GET", "/v1/config?warehouse=share/partners", "")
	time.Sleep(400 * time.Millisecond)
	f.want(t, 404, "globex", "GET", "/v1/config?warehouse=share/partners", "")
}

// TestPoliciesOnShares is the provider's set, which speaks of the share and of
// where tables are in their warehouses.
func TestPoliciesOnShares(t *testing.T) {
	t.Parallel()
	f := start(t)
	list := func() string {
		return f.want(t, 200, "globex", "GET", "/v1/share:partners/namespaces/public/tables", "")
	}
	f.activate(`@id("use") permit(principal in Organisation::"globex", action == Action::"useShare", resource == Share::"partners");
		@id("read") permit(principal in Organisation::"globex", action in [Action::"readTable", Action::"readColumn"], resource in Share::"partners");`)
	f.want(t, 200, "globex", "GET", "/v1/share:partners/namespaces/public/tables/eastern_orders", "")
	f.mu.Lock()
	if p := f.last.Policies; len(p) != 4 || p[1].ID != "use" || p[3].ID != "read" || p[1].Set != "provider/acme" || f.last.Warehouse != "share:partners" {
		t.Errorf("recorded: %s, %v", f.last.Warehouse, f.last.Policies)
	}
	f.mu.Unlock()
	f.activate(f.policy + `@id("east") forbid(principal, action == Action::"readTable", resource == Table::"east/sales/orders");`)
	f.want(t, 404, "globex", "GET", "/v1/share:partners/namespaces/public/tables/eastern_orders", "")
	if got := list(); strings.Contains(got, "eastern") || !strings.Contains(got, "western") {
		t.Errorf("listed: %s", got)
	}
	f.activate(f.policy + `@id("rows") forbid(principal, action == Action::"readTable", resource in Warehouse::"west") when { context.row has id && context.row.id > 5 };`)
	if answer := f.want(t, 403, "globex", "GET", "/v1/share:partners/namespaces/west/tables/people", ""); !strings.Contains(answer, "some rows") || !strings.Contains(answer, "west.people") {
		t.Errorf("a part: %s", answer)
	}
	f.want(t, 403, "globex", "DELETE", "/v1/share:partners/namespaces/west/tables/people", "")
	f.activate(`permit(principal in Organisation::"acme", action, resource);`)
	f.want(t, 404, "globex", "GET", "/v1/config?warehouse=share/partners", "")
}

// TestLabelsAreNotGivenOut: they are the provider's own words.
func TestLabelsAreNotGivenOut(t *testing.T) {
	t.Parallel()
	f := start(t)
	id := catalog.Ident{Namespace: catalog.Namespace{"sales"}, Name: "orders"}
	if err := f.warehouses["east"].SetLabels(t.Context(), mutation().Mutation, catalog.KindTable, id, json.RawMessage(`{"object-labels":{"level":"own-words"}}`)); err != nil {
		t.Fatal(err)
	}
	if a := f.want(t, 200, "owner", "GET", "/v1/east/namespaces/sales/tables/orders", ""); !strings.Contains(a, "own-words") {
		t.Errorf("to the owner: %s", a)
	}
	if a := f.want(t, 200, "globex", "GET", "/v1/share:partners/namespaces/public/tables/eastern_orders", ""); strings.Contains(a, "own-words") {
		t.Errorf("to a recipient: %s", a)
	}
}
