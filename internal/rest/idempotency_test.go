// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/rest"
)

func newKey(t testing.TB) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// TestReplay sends every change twice with one key: the second answer is the
// first one, and the change happens once.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, "t", "gone", "purged")
	const view = `{"name":%q,"schema":{"type":"struct","fields":[]},"view-version":{"version-id":1,"timestamp-ms":1600000000001,"schema-id":0,"summary":{},"representations":[{"type":"sql","sql":"select 1","dialect":"spark"}],"default-namespace":["m"]}}`
	const setX = `{"requirements":[],"updates":[{"action":"set-properties","updates":{"x":"1"}}]}`
	var unregistered string
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/demo/namespaces", `{"namespace":["n"],"properties":{"a":"b"}}`, 200},
		{"POST", "/v1/demo/namespaces/n/properties", `{"removals":["a","z"],"updates":{"c":"d"}}`, 200},
		{"POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "u"), 200},
		{"POST", "/v1/demo/namespaces/m/tables", strings.Replace(fmt.Sprintf(tableBody, "staged"), "{", `{"stage-create":true,`, 1), 200},
		{"POST", "/v1/demo/namespaces/m/tables/t", setX, 200},
		{"POST", "/v1/demo/transactions/commit", `{"table-changes":[{"identifier":{"namespace":["m"],"name":"t"},"requirements":[],"updates":[{"action":"set-properties","updates":{"y":"1"}}]}]}`, 204},
		{"POST", "/v1/demo/tables/rename", `{"source":{"namespace":["m"],"name":"t"},"destination":{"namespace":["m"],"name":"r"}}`, 204},
		{"DELETE", "/v1/demo/namespaces/m/tables/purged?purgeRequested=true", "", 204},
		{"POST", "/v1/demo/namespaces/m/tables/gone/unregister", "", 200},
		{"POST", "/v1/demo/namespaces/m/register", `{"name":"back","metadata-location":"$unregistered"}`, 200},
		{"POST", "/v1/demo/namespaces/m/views", fmt.Sprintf(view, "v"), 200},
		{"POST", "/v1/demo/namespaces/m/views/v", `{"updates":[{"action":"set-properties","updates":{"x":"1"}}]}`, 200},
		{"POST", "/v1/demo/views/rename", `{"source":{"namespace":["m"],"name":"v"},"destination":{"namespace":["m"],"name":"w"}}`, 204},
		{"DELETE", "/v1/demo/namespaces/m/views/w", "", 204},
		{"DELETE", "/v1/demo/namespaces/n", "", 204},
		// Refusals that are final are replayed like successes.
		{"DELETE", "/v1/demo/namespaces/none", "", 404},
		{"POST", "/v1/demo/namespaces", `{"namespace":["m"]}`, 409},
		{"POST", "/v1/demo/namespaces", `{"namespace":[]}`, 400},
		{"POST", "/v1/demo/namespaces/m/properties", `{"removals":["a"],"updates":{"a":"d"}}`, 422},
		{"DELETE", "/v1/demo/namespaces/%00", "", 400},
	} {
		k, name := newKey(t), c.method+" "+c.path
		body := strings.ReplaceAll(c.body, "$unregistered", unregistered)
		first := s.do(t, c.method, c.path, body, key(k))
		if first.status != c.status {
			t.Fatalf("%s: status %d, want %d: %s", name, first.status, c.status, first.body)
		}
		again := s.do(t, c.method, c.path, body, key(k))
		if again.status != first.status || !bytes.Equal(again.body, first.body) || again.header.Get("ETag") != first.header.Get("ETag") {
			t.Errorf("%s: the replay differs:\n%d %s %s\n%d %s %s", name, first.status, first.header.Get("ETag"), first.body, again.status, again.header.Get("ETag"), again.body)
		}
		if strings.HasSuffix(c.path, "/unregister") {
			unregistered = first.metadataLocation(t)
		}
		if other := s.do(t, c.method, c.path+"?x=1", body, key(k)); other.status != 400 {
			t.Errorf("%s: the key served another request: %d %s", name, other.status, other.body)
		}
	}
	// A key belongs to a principal.
	k := newKey(t)
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["p"]}`, key(k)).want(t, 200)
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["p"]}`, key(k), header{"Authorization", "Bearer other"}).want(t, 409)
	// The same body compressed is the same request.
	s.do(t, "POST", "/v1/demo/namespaces", gzipped(t, `{"namespace":["p"]}`), key(k), header{"Content-Encoding", "gzip"}).want(t, 200)
	// Refusals of who asks are never recorded.
	k = newKey(t)
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["q"]}`, key(k), header{"Authorization", "Bearer reader"}).want(t, 403)
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["q"]}`, key(k)).want(t, 200)
}

// TestReplayWhenFilesAreGone covers answers whose metadata file was cleaned up
// between the request and its repetition.
func TestReplayWhenFilesAreGone(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t)
	remove := func(a answer) {
		t.Helper()
		if err := os.Remove(strings.TrimPrefix(a.metadataLocation(t), "file://")); err != nil {
			t.Fatal(err)
		}
	}
	const commit = `{"requirements":[],"updates":[{"action":"set-properties","updates":{"x":%q}}]}`
	createKey, commitKey := newKey(t), newKey(t)
	created := s.do(t, "POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "t"), key(createKey)).want(t, 200)
	committed := s.do(t, "POST", "/v1/demo/namespaces/m/tables/t", fmt.Sprintf(commit, "1"), key(commitKey)).want(t, 200)
	current := s.do(t, "POST", "/v1/demo/namespaces/m/tables/t", fmt.Sprintf(commit, "2")).want(t, 200)
	remove(created)
	remove(committed)
	for _, again := range []answer{
		s.do(t, "POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "t"), key(createKey)).want(t, 200),
		s.do(t, "POST", "/v1/demo/namespaces/m/tables/t", fmt.Sprintf(commit, "1"), key(commitKey)).want(t, 200),
	} {
		if again.metadataLocation(t) != current.metadataLocation(t) || again.header.Get("ETag") != current.header.Get("ETag") {
			t.Errorf("the replay shows %s, want the current %s", again.metadataLocation(t), current.metadataLocation(t))
		}
	}
	// Another table of that name is not what the request made.
	s.do(t, "DELETE", "/v1/demo/namespaces/m/tables/t", "").want(t, 204)
	s.do(t, "POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "t")).want(t, 200)
	if a := s.do(t, "POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "t"), key(createKey)); a.status != 404 {
		t.Errorf("status %d, want 404: %s", a.status, a.body)
	}
}

// TestOneKeyInFlight sends one change many times at once: all get the one
// outcome.
func TestOneKeyInFlight(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, "t")
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/demo/namespaces/m/tables", fmt.Sprintf(tableBody, "u")},
		{"POST", "/v1/demo/namespaces", `{"namespace":["n"]}`},
		{"DELETE", "/v1/demo/namespaces/m/tables/t", ""},
	} {
		k := newKey(t)
		answers := make([]answer, 8)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() { answers[i] = s.do(t, c.method, c.path, c.body, key(k)) })
		}
		wg.Wait()
		for i, a := range answers {
			if a.status >= 300 || !bytes.Equal(a.body, answers[0].body) {
				t.Errorf("%s %s: answer %d is %d %s, the first is %d %s", c.method, c.path, i, a.status, a.body, answers[0].status, answers[0].body)
			}
		}
	}
}

// overtaken is a warehouse in which another request with the same key always
// commits while this one works.
type overtaken struct {
	rest.Warehouse
	first func(m catalog.Mutation)
}

func (o overtaken) DropNamespace(ctx context.Context, m catalog.Mutation, ns catalog.Namespace) error {
	o.first(m)
	return o.Warehouse.DropNamespace(ctx, m, ns)
}

// TestLostRace makes sure that the loser of a race does not answer with the
// failure that the winner's success causes.
func TestLostRace(t *testing.T) {
	t.Parallel()
	var s *server
	s = start(t, func(c *rest.Config) {
		c.Warehouses[0] = overtaken{c.Warehouses[0], func(m catalog.Mutation) {
			if err := s.warehouse.DropNamespace(context.Background(), m, catalog.Namespace{"m"}); err != nil {
				t.Error(err)
			}
		}}
	})
	s.create(t)
	s.do(t, "DELETE", "/v1/demo/namespaces/m", "", key(newKey(t))).want(t, 204)
}

// unlucky is a warehouse whose store loses the answer of a commit, or cannot
// be reached.
type unlucky struct {
	rest.Warehouse
	mu   sync.Mutex
	errs []error
}

func (u *unlucky) CreateNamespace(ctx context.Context, m catalog.Mutation, ns catalog.Namespace, p map[string]string) (catalog.NamespaceRecord, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.errs) > 0 {
		err := u.errs[0]
		u.errs = u.errs[1:]
		return catalog.NamespaceRecord{}, err
	}
	return u.Warehouse.CreateNamespace(ctx, m, ns, p)
}

// TestFailuresAreNotFinal makes sure that what may end otherwise is tried
// again under the same key.
func TestFailuresAreNotFinal(t *testing.T) {
	t.Parallel()
	w := &unlucky{errs: []error{
		&catalog.Error{Reason: catalog.CommitStateUnknown, Message: "unknown"},
		&catalog.Error{Reason: catalog.Unavailable, Message: "busy", RetryAfter: 2e9},
		&catalog.Error{Reason: catalog.Forbidden, Message: "protected"},
		fmt.Errorf("a secret of the store"),
		context.DeadlineExceeded,
		context.Canceled,
	}}
	s := start(t, func(c *rest.Config) { w.Warehouse = c.Warehouses[0]; c.Warehouses[0] = w })
	k := newKey(t)
	for _, want := range []struct {
		status     int
		kind, text string
		retry      string
	}{
		{500, "CommitStateUnknownException", "unknown", ""},
		{503, "ServiceUnavailableException", "busy", "2"},
		{403, "ForbiddenException", "protected", ""},
		{500, "InternalServerError", "Internal error; the logs have more under request id ", ""},
		{500, "CommitStateUnknownException", "The request took too long; its outcome is unknown", ""},
		{500, "CommitStateUnknownException", "The request took too long; its outcome is unknown", ""},
	} {
		a := s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["n"]}`, key(k)).want(t, want.status)
		kind, message := a.kind(t)
		if kind != want.kind || !strings.HasPrefix(message, want.text) || strings.Contains(message, "secret") || a.header.Get("Retry-After") != want.retry {
			t.Errorf("got %s %q Retry-After %q, want %+v", kind, message, a.header.Get("Retry-After"), want)
		}
	}
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["n"]}`, key(k)).want(t, 200)
	s.do(t, "POST", "/v1/demo/namespaces", `{"namespace":["n"]}`, key(k)).want(t, 200)
}
