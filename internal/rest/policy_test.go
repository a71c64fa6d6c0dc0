// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/rest"
)

// rolesSet is a provider's policy set with a principal per role.
const rolesSet = `
@id("reads") permit(principal == Service::"account:reader", action in Action::"read", resource);
@id("writes") permit(principal == Service::"account:writer", action in [Action::"read", Action::"write"], resource);
@id("loads") permit(principal == Service::"account:loader", action in Action::"write", resource);
@id("loads-names") permit(principal == Service::"account:loader", action in [Action::"useWarehouse", Action::"listNamespace"], resource);
@id("some-rows") permit(principal == Service::"account:filtered", action == Action::"readTable", resource)
	when { context.row has id && context.row.id > 5 };
@id("some-rows-names") permit(principal == Service::"account:filtered", action in [Action::"useWarehouse", Action::"listNamespace", Action::"readColumn", Action::"readView"], resource);
@id("masked") @mask("replace-with-null") permit(principal == Service::"account:masked", action == Action::"readColumn", resource);
@id("masked-names") permit(principal == Service::"account:masked", action in [Action::"useWarehouse", Action::"listNamespace", Action::"readTable", Action::"readView"], resource);
@id("owns") permit(principal == Service::"account:owner", action, resource);
@id("names") permit(principal == Service::"account:names", action == Action::"useWarehouse", resource);
`

// sets is a source of policy sets that tests change.
type sets struct {
	mu       sync.Mutex
	revision int64
	active   map[enforce.Owner]string
	err      error
}

func (s *sets) Revision(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision, s.err
}

func (s *sets) Active(_ context.Context, o enforce.Owner) (enforce.Active, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.active[o]
	if !ok {
		return enforce.Active{}, nil
	}
	return enforce.Active{Version: s.revision, Sources: []policy.Source{{File: "p.cedar", Text: []byte(text)}}}, nil
}

func (s *sets) activate(o enforce.Owner, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	s.active[o] = text
}

var acme = enforce.Owner{Layer: enforce.Provider, Organisation: "acme"}

// governed starts a server under policies. The token of a request is the name
// of an account of acme that may write, as far as grants go; "guest" is globex's.
func governed(t testing.TB, changes ...func(*rest.Config)) (*server, *sets) {
	t.Helper()
	source := &sets{active: map[enforce.Owner]string{acme: rolesSet}, revision: 1}
	schema, err := policy.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	stacks, err := enforce.NewSets(schema, source)
	if err != nil {
		t.Fatal(err)
	}
	enforcer, err := enforce.New(stacks, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, append([]func(*rest.Config){func(c *rest.Config) {
		c.Owners, c.Policies = map[string]string{"demo": "acme"}, enforcer
		c.Authenticate = func(r *http.Request) (identity.Principal, error) {
			token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok {
				return authenticate(r)
			}
			p := identity.Principal{ID: "account:" + token, Kind: identity.KindService, Organisation: "acme", Grants: []identity.Grant{{Warehouse: "demo", Access: identity.AccessWrite}}}
			if token == "guest" {
				p.Organisation = "globex"
			}
			if token == "stranger" {
				p.Grants = nil
			}
			return p, nil
		}
	}}, changes...)...)
	return s, source
}

func as(name string) header {
	if name == "" {
		return header{"Authorization", ""}
	}
	return header{"Authorization", "Bearer " + name}
}

const tableSchema = `{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":false,"type":"long"},{"id":2,"name":"note","required":false,"type":"string"}]}`

const viewVersion = `{"version-id":1,"timestamp-ms":1,"schema-id":0,"summary":{},"default-namespace":["n"],"representations":[{"type":"sql","sql":"select 1","dialect":"spark"}]}`

// fixture makes a namespace with a table and a view of its own, past all
// policies.
func (s *server) fixture(t testing.TB, ns string) (tableMetadata, viewMetadata string) {
	t.Helper()
	m := catalog.Mutation{Caller: catalog.Caller{Principal: "test"}, Operation: "test"}
	if _, err := s.warehouse.CreateNamespace(t.Context(), m, catalog.Namespace{ns}, nil); err != nil {
		t.Fatal(err)
	}
	table, err := s.warehouse.CreateTable(t.Context(), m, catalog.Namespace{ns}, catalog.NewTable{Name: "t", Schema: json.RawMessage(tableSchema)})
	if err != nil {
		t.Fatal(err)
	}
	view, err := s.warehouse.CreateView(t.Context(), m, catalog.Namespace{ns}, catalog.NewView{Name: "v", Schema: json.RawMessage(tableSchema), Version: json.RawMessage(viewVersion)})
	if err != nil {
		t.Fatal(err)
	}
	return table.Object.MetadataLocation, view.Object.MetadataLocation
}

// TestMatrix walks every operation as every role and compares the status of
// each. An operation that is not in the matrix fails it.
func TestMatrix(t *testing.T) {
	t.Parallel()
	roles := []string{"", "stranger", "guest", "names", "reader", "filtered", "masked", "loader", "writer", "owner"}
	// nothing and others are what most columns are: 401 without a token, 404
	// where the warehouse does not exist for the principal.
	const empty = "empty" // a namespace without anything
	matrix := map[string]struct {
		body string // %[1]s is the namespace, %[2]s and %[3]s metadata files of a table and a view
		want string // names, reader, filtered, masked, loader, writer, owner
	}{
		"getConfig":             {"", "200 200 200 200 200 200 200"},
		"listNamespaces":        {"", "403 200 200 200 200 200 200"},
		"createNamespace":       {`{"namespace":["%[1]snew"]}`, "403 403 403 403 200 200 200"},
		"loadNamespaceMetadata": {"", "404 200 200 200 200 200 200"},
		"namespaceExists":       {"", "404 204 204 204 204 204 204"},
		"dropNamespace":         {empty, "404 403 403 403 204 204 204"},
		"updateProperties":      {`{"updates":{"a":"b"}}`, "404 403 403 403 200 200 200"},
		"listTables":            {"", "404 200 200 200 200 200 200"},
		"createTable":           {`{"name":"new","schema":` + tableSchema + `}`, "404 403 403 403 200 200 200"},
		"listFunctions":         {"", "404 200 200 200 200 200 200"},
		"loadFunction":          {"", "404 404 404 404 404 404 404"},
		"registerTable":         {`{"name":"again","metadata-location":"%[2]s"}`, "404 403 403 403 200 200 200"},
		"loadTable":             {"", "404 200 403 403 403 200 200"},
		"updateTable":           {`{"requirements":[],"updates":[{"action":"set-properties","updates":{"a":"b"}}]}`, "404 403 403 403 403 200 200"},
		"dropTable":             {"", "404 403 403 403 204 204 204"},
		"tableExists":           {"", "404 204 204 204 204 204 204"},
		"unregisterTable":       {"", "404 403 403 403 403 200 200"},
		"loadCredentials":       {"", "404 200 403 403 403 200 200"},
		"signRequest":           {`{"region":"r","uri":"https://x/y","method":"GET","headers":{}}`, "404 400 403 403 403 400 400"}, // no warehouse signs
		"renameTable":           {`{"source":{"namespace":["%[1]s"],"name":"t"},"destination":{"namespace":["%[1]s"],"name":"u"}}`, "404 403 403 403 204 204 204"},
		"reportMetrics":         {`{"report-type":"scan-report","table-name":"t","snapshot-id":1,"metrics":{}}`, "404 204 204 204 204 204 204"},
		"commitTransaction":     {`{"table-changes":[{"identifier":{"namespace":["%[1]s"],"name":"t"},"requirements":[],"updates":[{"action":"set-properties","updates":{"a":"b"}}]}]}`, "404 403 403 403 403 204 204"},
		"listViews":             {"", "404 200 200 200 200 200 200"},
		"createView":            {`{"name":"new","schema":` + tableSchema + `,"view-version":` + viewVersion + `}`, "404 403 403 403 200 200 200"},
		"loadView":              {"", "404 200 200 200 403 200 200"},
		"replaceView":           {`{"requirements":[],"updates":[{"action":"set-properties","updates":{"a":"b"}}]}`, "404 403 403 403 403 200 200"},
		"dropView":              {"", "404 403 403 403 204 204 204"},
		"viewExists":            {"", "404 204 204 204 204 204 204"},
		"renameView":            {`{"source":{"namespace":["%[1]s"],"name":"v"},"destination":{"namespace":["%[1]s"],"name":"w"}}`, "404 403 403 403 204 204 204"},
		"registerView":          {`{"name":"again","metadata-location":"%[3]s"}`, "404 403 403 403 200 200 200"},
	}
	s, _ := governed(t)
	for n, route := range rest.Routes() {
		operation, method, pattern := route[0], route[1], route[2]
		row, ok := matrix[operation]
		if !ok {
			t.Errorf("%s is not in the matrix: say who may do it", operation)
			continue
		}
		want := append([]string{"401", "404", "404"}, strings.Fields(row.want)...)
		if len(want) != len(roles) {
			t.Fatalf("%s: %d columns", operation, len(want))
		}
		for i, role := range roles {
			ns := fmt.Sprintf("n%d_%d", n, i)
			table, view := s.fixture(t, ns)
			body := row.body
			if body == empty || strings.HasPrefix(operation, "register") {
				m := catalog.Mutation{Operation: "test"}
				if err := errors.Join(s.warehouse.DropTable(t.Context(), m, catalog.Ident{Namespace: catalog.Namespace{ns}, Name: "t"}, false),
					s.warehouse.DropView(t.Context(), m, catalog.Ident{Namespace: catalog.Namespace{ns}, Name: "v"})); err != nil {
					t.Fatal(err)
				}
			}
			if body == empty {
				body = ""
			} else if body != "" {
				body = strings.NewReplacer("%[1]s", ns, "%[2]s", table, "%[3]s", view).Replace(body)
			}
			path := strings.NewReplacer("{prefix}", "demo", "{namespace}", ns, "{table}", "t", "{view}", "v", "{function}", "f").Replace(pattern)
			if operation == "getConfig" {
				path += "?warehouse=demo"
			}
			a := s.do(t, method, path, body, as(role))
			if fmt.Sprint(a.status) != want[i] {
				t.Errorf("%s as %q: %d, want %s: %.300s", operation, role, a.status, want[i], a.body)
			}
		}
	}
}

// TestHiddenIsMissing compares answers about what a principal may not see with
// those about what is not there.
func TestHiddenIsMissing(t *testing.T) {
	t.Parallel()
	s, source := governed(t)
	s.fixture(t, "open")
	s.fixture(t, "secret")
	source.activate(acme, `
		permit(principal, action == Action::"useWarehouse", resource);
		permit(principal, action in [Action::"read", Action::"write"], resource in Namespace::"demo/open");
		permit(principal, action == Action::"listNamespace", resource == Warehouse::"demo");`)
	for _, c := range [][3]string{
		{"GET", "/v1/demo/namespaces/%s", ""},
		{"HEAD", "/v1/demo/namespaces/%s", ""},
		{"GET", "/v1/demo/namespaces?parent=%s", ""},
		{"POST", "/v1/demo/namespaces", `{"namespace":["%s","x"]}`},
		{"DELETE", "/v1/demo/namespaces/%s", ""},
		{"POST", "/v1/demo/namespaces/%s/properties", `{"updates":{"a":"b"}}`},
		{"GET", "/v1/demo/namespaces/%s/tables", ""},
		{"GET", "/v1/demo/namespaces/%s/views", ""},
		{"GET", "/v1/demo/namespaces/%s/functions", ""},
		{"GET", "/v1/demo/namespaces/%s/functions/f", ""},
		{"POST", "/v1/demo/namespaces/%s/tables", `{"name":"t","schema":` + tableSchema + `}`},
		{"GET", "/v1/demo/namespaces/%s/tables/t", ""},
		{"HEAD", "/v1/demo/namespaces/%s/tables/t", ""},
		{"GET", "/v1/demo/namespaces/%s/tables/t/credentials", ""},
		{"POST", "/v1/demo/namespaces/%s/tables/t", `{"requirements":[],"updates":[]}`},
		{"POST", "/v1/demo/namespaces/%s/tables/t/unregister", ""},
		{"DELETE", "/v1/demo/namespaces/%s/tables/t", ""},
		{"POST", "/v1/demo/tables/rename", `{"source":{"namespace":["%s"],"name":"t"},"destination":{"namespace":["open"],"name":"u"}}`},
		{"POST", "/v1/demo/tables/rename", `{"source":{"namespace":["open"],"name":"t"},"destination":{"namespace":["%s"],"name":"u"}}`},
		{"GET", "/v1/demo/namespaces/%s/views/v", ""},
		{"DELETE", "/v1/demo/namespaces/%s/views/v", ""},
		{"POST", "/v1/demo/views/rename", `{"source":{"namespace":["%s"],"name":"v"},"destination":{"namespace":["open"],"name":"u"}}`},
	} {
		ask := func(ns string) answer {
			return s.do(t, c[0], strings.Replace(c[1], "%s", ns, 1), strings.Replace(c[2], "%s", ns, 1), as("anyone"))
		}
		hidden, missing := ask("secret"), ask("absent")
		if hidden.status != http.StatusNotFound || hidden.status != missing.status || strings.ReplaceAll(string(hidden.body), "secret", "absent") != string(missing.body) {
			t.Errorf("%s: hidden %d %s\nmissing %d %s", c, hidden.status, hidden.body, missing.status, missing.body)
		}
	}
	for _, c := range [][2]string{{"/v1/demo/namespaces", "open"}, {"/v1/demo/namespaces?pageToken=&pageSize=1", "open"}} {
		if body := string(s.do(t, "GET", c[0], "", as("anyone")).want(t, 200).body); strings.Contains(body, "secret") || !strings.Contains(body, c[1]) {
			t.Errorf("%s: %s", c[0], body)
		}
	}
}

// TestPagesNameNoHiddenTable pages through tables of which few can be seen: all
// of these are found, and no page token holds the name of another.
func TestPagesNameNoHiddenTable(t *testing.T) {
	t.Parallel()
	s, source := governed(t)
	m := catalog.Mutation{Operation: "test"}
	ns := catalog.Namespace{"n"}
	if _, err := s.warehouse.CreateNamespace(t.Context(), m, ns, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		name := fmt.Sprintf("hidden%02d", i)
		if i%9 == 4 {
			name = fmt.Sprintf("h%02d", i)
		}
		if _, err := s.warehouse.CreateTable(t.Context(), m, ns, catalog.NewTable{Name: name, Schema: json.RawMessage(tableSchema)}); err != nil {
			t.Fatal(err)
		}
	}
	source.activate(acme, `
		permit(principal, action in [Action::"useWarehouse", Action::"listNamespace"], resource);
		permit(principal, action == Action::"readTable", resource) when { resource.name like "h0*" || resource.name like "h1*" || resource.name like "h2*" };`)
	var found []string
	token := ""
	for range 30 {
		var page struct {
			Identifiers []struct{ Name string }
			Next        *string `json:"next-page-token"`
		}
		body := s.do(t, "GET", "/v1/demo/namespaces/n/tables?pageSize=2&pageToken="+token, "", as("anyone")).want(t, 200).body
		if err := json.Unmarshal(body, &page); err != nil {
			t.Fatal(err)
		}
		for _, i := range page.Identifiers {
			found = append(found, i.Name)
		}
		if page.Next == nil {
			break
		}
		token = *page.Next
		if strings.Contains(decoded(t, token), "hidden") {
			t.Errorf("a page token names a hidden table: %q", decoded(t, token))
		}
	}
	if want := []string{"h04", "h13", "h22"}; !slices.Equal(found, want) {
		t.Errorf("found %q", found)
	}
}

// TestPolicyChanges is about what happens on the next request.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var last rest.Access
	s, source := governed(t, func(c *rest.Config) {
		c.Audit = func(_ context.Context, a rest.Access) error {
			mu.Lock()
			defer mu.Unlock()
			last = a
			return nil
		}
	})
	s.fixture(t, "n")
	const load = "/v1/demo/namespaces/n/tables/t"
	try := func(want int, decision audit.Decision, policies ...audit.Policy) answer {
		t.Helper()
		a := s.do(t, "GET", load, "", as("reader"))
		if a.status != want || last.Decision != decision || !slices.Equal(last.Policies, policies) {
			t.Errorf("%d, recorded %v by %v; want %d, %v by %v: %.200s", a.status, last.Decision, last.Policies, want, decision, policies, a.body)
		}
		return a
	}
	openPlatform := audit.Policy{Set: "platform", ID: "no-policy-set-is-active"}
	etag := try(200, audit.Allow, openPlatform, audit.Policy{Set: "provider/acme", Version: 1, ID: "reads"}).header.Get("ETag")
	source.activate(acme, rolesSet+`@id("closed") forbid(principal, action == Action::"readTable", resource);`)
	use, reads := audit.Policy{Set: "provider/acme", Version: 2, ID: "reads"}, audit.Policy{Set: "provider/acme", Version: 2, ID: "closed"}
	try(404, audit.Deny, openPlatform, use, reads)
	if a := s.do(t, "GET", load, "", as("reader"), header{"If-None-Match", etag}); a.status != 404 {
		t.Errorf("an old tag is answered %d after the table was closed", a.status)
	}
	source.activate(acme, "")
	try(404, audit.Deny, audit.Policy{Set: "provider/acme", Version: 3})
	source.activate(acme, "permit(principal, action, resource")
	try(503, audit.Deny)
	source.activate(acme, rolesSet)
	try(200, audit.Allow, openPlatform, audit.Policy{Set: "provider/acme", Version: 5, ID: "reads"})
	source.mu.Lock()
	source.err = errors.New("the store is away")
	source.mu.Unlock()
	if a := try(503, audit.Deny); strings.Contains(string(a.body), "away") {
		t.Errorf("the answer tells the cause: %s", a.body)
	}
}

// TestRecipientNarrows has a recipient organisation's own set for its people.
func TestRecipientNarrows(t *testing.T) {
	t.Parallel()
	s, source := governed(t)
	s.fixture(t, "n")
	load := func(who string, want int) {
		t.Helper()
		s.do(t, "GET", "/v1/demo/namespaces/n/tables/t", "", as(who)).want(t, want)
	}
	source.activate(acme, `permit(principal, action in Action::"read", resource);`)
	load("guest", 200)
	source.activate(enforce.Owner{Layer: enforce.Recipient, Organisation: "globex"}, `forbid(principal, action, resource);`)
	load("guest", 404)
	load("reader", 200)
	source.activate(enforce.Owner{Layer: enforce.Recipient, Organisation: "globex"}, `permit(principal, action, resource);`)
	source.activate(acme, `permit(principal in Organisation::"acme", action in Action::"read", resource);`)
	load("guest", 404)
	source.activate(enforce.Owner{Layer: enforce.Platform}, `forbid(principal, action, resource) when { resource is Table && resource.name == "t" };`)
	load("reader", 404)
}

// TestRefusalNamesPolicies only to who manages them.
func TestRefusalNamesPolicies(t *testing.T) {
	t.Parallel()
	s, source := governed(t)
	s.fixture(t, "n")
	source.activate(acme, `
		@id("some-rows") permit(principal, action == Action::"readTable", resource) when { context.row has id && context.row.id > 5 };
		@id("rest") permit(principal, action in [Action::"useWarehouse", Action::"readColumn"], resource);
		@id("boss") permit(principal == Service::"account:boss", action == Action::"managePolicy", resource);`)
	for who, want := range map[string]bool{"boss": true, "reader": false} {
		_, message := s.do(t, "GET", "/v1/demo/namespaces/n/tables/t", "", as(who)).want(t, 403).kind(t)
		if strings.Contains(message, "some-rows of provider/acme") != want || !strings.Contains(message, "some rows") {
			t.Errorf("%s: %s", who, message)
		}
	}
}

// TestTags hides a table by its label, in loads and listings.
func TestTags(t *testing.T) {
	t.Parallel()
	s, source := governed(t)
	s.fixture(t, "n")
	source.activate(acme, `
		permit(principal, action in Action::"read", resource);
		forbid(principal, action in Action::"read", resource is Table) when { resource.hasTag("level") && resource.getTag("level") == "secret" };`)
	id := catalog.Ident{Namespace: catalog.Namespace{"n"}, Name: "t"}
	see := func(want bool) {
		t.Helper()
		listed := strings.Contains(string(s.do(t, "GET", "/v1/demo/namespaces/n/tables", "", as("reader")).want(t, 200).body), `"t"`)
		loaded := s.do(t, "GET", "/v1/demo/namespaces/n/tables/t", "", as("reader")).status == 200
		exists := s.do(t, "HEAD", "/v1/demo/namespaces/n/tables/t", "", as("reader")).status == 204
		if listed != want || loaded != want || exists != want {
			t.Errorf("listed %v, loaded %v, exists %v, want %v", listed, loaded, exists, want)
		}
	}
	see(true)
	if err := s.warehouse.SetLabels(t.Context(), catalog.Mutation{Operation: "test"}, catalog.KindTable, id, json.RawMessage(`{"object-labels":{"level":"secret"}}`)); err != nil {
		t.Fatal(err)
	}
	see(false)
	if err := s.warehouse.SetLabels(t.Context(), catalog.Mutation{Operation: "test"}, catalog.KindTable, id, json.RawMessage(`{"object-labels":{"level":"low"}}`)); err != nil {
		t.Fatal(err)
	}
	see(true)
}

// TestReplayIsDecided repeats a create whose metadata the principal may not see
// any more.
func TestReplayIsDecided(t *testing.T) {
	t.Parallel()
	s, source := governed(t)
	s.fixture(t, "n")
	k := newKey(t)
	create := func() answer {
		return s.do(t, "POST", "/v1/demo/namespaces/n/tables", `{"name":"mine","schema":`+tableSchema+`}`, as("writer"), key(k))
	}
	create().want(t, 200)
	create().want(t, 200)
	source.activate(acme, `permit(principal, action in Action::"write", resource);permit(principal, action == Action::"useWarehouse", resource);`)
	create().want(t, 403)
	id := catalog.Ident{Namespace: catalog.Namespace{"n"}, Name: "mine"}
	if err := s.warehouse.DropTable(t.Context(), catalog.Mutation{Operation: "test"}, id, false); err != nil {
		t.Fatal(err)
	}
	create().want(t, 403)
}

func decoded(t testing.TB, token string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
