// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// introspector is an introspection endpoint: what it says of each token.
type introspector struct {
	*httptest.Server
	mu     sync.Mutex
	says   map[string]map[string]any
	status int
	raw    string        // the whole answer, when not empty
	wait   chan struct{} // answers wait until it is closed
	asked  atomic.Int32
	forms  []url.Values
	basic  [][2]string
}

const introspectSecret = "introspection+secret/0123456789"

func newIntrospector(t testing.TB) *introspector {
	i := &introspector{says: map[string]map[string]any{}, status: http.StatusOK}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.asked.Add(1)
		r.ParseForm()
		i.mu.Lock()
		wait := i.wait
		id, password, _ := r.BasicAuth()
		i.forms, i.basic = append(i.forms, r.PostForm), append(i.basic, [2]string{id, password})
		says, ok := i.says[r.PostForm.Get("token")]
		status, raw := i.status, i.raw
		i.mu.Unlock()
		if wait != nil {
			<-wait
		}
		w.WriteHeader(status)
		if raw != "" {
			w.Write([]byte(raw))
			return
		}
		if !ok {
			says = map[string]any{"active": false}
		}
		json.NewEncoder(w).Encode(says)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *introspector) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// know makes the endpoint say that a token is alice's.
func (i *introspector) know(token string, now time.Time, change map[string]any) {
	says := map[string]any{"active": true, "sub": "alice", "aud": "sluice", "exp": now.Add(time.Hour).Unix(), "token_type": "Bearer"}
	for k, v := range change {
		if says[k] = v; v == nil {
			delete(says, k)
		}
	}
	i.set(func() { i.says[token] = says })
}

func (i *introspector) config() Issuer {
	return Issuer{
		Name: "partner", Kind: IssuerIntrospection, Audiences: []string{"sluice"},
		Claims: ClaimMapping{Organisation: OrganisationMapping{Fixed: "partner"}},
		Introspection: &Introspection{
			Endpoint: i.URL + "/introspect", ClientID: "slu ice", ClientSecret: secret.New(introspectSecret), TTL: time.Minute, NegativeTTL: 10 * time.Second,
		},
		Grants: []IssuerGrant{{Everyone: true, Grant: Grant{"sales", AccessRead}}},
	}
}

func withIntrospector(t testing.TB, i *introspector, change func(*Config)) *fixture {
	t.Helper()
	return newFixture(t, func(c *Config) {
		c.Issuers = []Issuer{i.config()}
		c.Limits.TokenFailures = 1000
		if change != nil {
			change(c)
		}
	})
}

func TestIntrospection(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, func(c *Config) { c.Issuers[0].URL = "https://login.partner.example" })
	now := f.clock.Now()
	tests := map[string]struct {
		change map[string]any
		want   int
	}{
		"good":              {nil, http.StatusOK},
		"no expiry":         {map[string]any{"exp": nil}, http.StatusOK},
		"no type":           {map[string]any{"token_type": nil}, http.StatusOK},
		"its issuer":        {map[string]any{"iss": "https://login.partner.example"}, http.StatusOK},
		"one of audiences":  {map[string]any{"aud": []string{"x", "sluice"}}, http.StatusOK},
		"inactive":          {map[string]any{"active": false}, http.StatusUnauthorized},
		"another issuer":    {map[string]any{"iss": "https://evil.example"}, http.StatusUnauthorized},
		"wrong audience":    {map[string]any{"aud": "other"}, http.StatusUnauthorized},
		"no audience":       {map[string]any{"aud": nil}, http.StatusUnauthorized},
		"expired":           {map[string]any{"exp": now.Add(-time.Minute).Unix()}, http.StatusUnauthorized},
		"expiry as text":    {map[string]any{"exp": "4000000000"}, http.StatusUnauthorized},
		"not yet valid":     {map[string]any{"nbf": now.Add(time.Minute).Unix()}, http.StatusUnauthorized},
		"from the future":   {map[string]any{"iat": now.Add(time.Minute).Unix()}, http.StatusUnauthorized},
		"another type":      {map[string]any{"token_type": "DPoP"}, http.StatusUnauthorized},
		"bound to a key":    {map[string]any{"cnf": map[string]any{"jkt": "x"}}, http.StatusUnauthorized},
		"no subject":        {map[string]any{"sub": nil}, http.StatusUnauthorized},
		"active as a text":  {map[string]any{"active": "true"}, http.StatusServiceUnavailable},
		"active is missing": {map[string]any{"active": nil}, http.StatusServiceUnavailable},
	}
	for name, test := range tests {
		token := "opaque." + strings.ReplaceAll(name, " ", "-")
		i.know(token, now, test.change)
		got, err := f.withToken(token)
		if statusOf(err) != test.want || (err == nil) != (got.ID == "partner:alice") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error quotes the token", name)
		}
	}
	if _, err := f.withToken("unknown-token"); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a token that the issuer does not know: %v", err)
	}
	if form, basic := i.forms[0], i.basic[0]; form.Get("token_type_hint") != "access_token" || form.Has("client_secret") || basic != [2]string{"slu+ice", url.QueryEscape(introspectSecret)} {
		t.Errorf("it is asked with %v, %v", form, basic)
	}
	if logs := f.logs.String(); strings.Contains(logs, introspectSecret) || strings.Contains(logs, "opaque.") {
		t.Error("the log holds a secret or a token")
	}
}

func TestIntrospectionInForm(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, func(c *Config) { c.Issuers[0].Introspection.InForm = true })
	i.know("t", f.clock.Now(), nil)
	if _, err := f.withToken("t"); err != nil || i.forms[0].Get("client_secret") != introspectSecret || i.basic[0][0] != "" {
		t.Errorf("%v: %v, %v", err, i.forms, i.basic)
	}
	f.Probe(t.Context(), func(_ string, err error) {
		if err != nil {
			t.Error(err)
		}
	})
}

func TestIntrospectionIsCached(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, nil)
	asked := func(token string, want int, n int32) {
		t.Helper()
		before := i.asked.Load()
		if _, err := f.withToken(token); statusOf(err) != want {
			t.Errorf("status %d, want %d: %v", statusOf(err), want, err)
		}
		if got := i.asked.Load() - before; got != n {
			t.Errorf("the issuer was asked %d times, want %d", got, n)
		}
	}
	i.know("long", f.clock.Now(), nil)
	i.know("short", f.clock.Now(), map[string]any{"exp": f.clock.Now().Add(20 * time.Second).Unix()})
	asked("long", http.StatusOK, 1)
	asked("long", http.StatusOK, 0)
	asked("short", http.StatusOK, 1)
	asked("rubbish", http.StatusUnauthorized, 1)
	asked("rubbish", http.StatusUnauthorized, 0)
	i.set(func() { delete(i.says, "long") }) // revoked
	f.clock.Add(11 * time.Second)
	asked("rubbish", http.StatusUnauthorized, 1)
	f.clock.Add(48 * time.Second)
	asked("long", http.StatusOK, 0)
	asked("short", http.StatusUnauthorized, 1) // no longer than it lives
	f.clock.Add(2 * time.Second)
	asked("long", http.StatusUnauthorized, 1) // no longer than the TTL
}

func TestIntrospectionIsCoalesced(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, nil)
	i.know("t", f.clock.Now(), nil)
	i.wait = make(chan struct{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := f.withToken("t"); err != nil {
				t.Error(err)
			}
		})
	}
	for i.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(i.wait)
	wg.Wait()
	if n := i.asked.Load(); n != 1 {
		t.Errorf("fifty requests with one token asked %d times", n)
	}
}

func TestIntrospectionOutage(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, func(c *Config) { c.Limits.TokenFailures = 2 })
	i.know("t", f.clock.Now(), nil)
	i.know("before", f.clock.Now(), nil)
	if _, err := f.withToken("before"); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"500":           func() { i.status = http.StatusInternalServerError },
		"401":           func() { i.status = http.StatusUnauthorized },
		"a redirect":    func() { i.status = http.StatusFound },
		"not JSON":      func() { i.status, i.raw = http.StatusOK, "<html>" },
		"a name twice":  func() { i.raw = `{"active":false,"active":true,"sub":"alice","aud":"sluice"}` },
		"not an object": func() { i.raw = `true` },
	} {
		i.set(func() { i.status, i.raw = http.StatusOK, ""; change() })
		for range 3 { // an outage is nobody's failure
			if _, err := f.withToken("t"); statusOf(err) != http.StatusServiceUnavailable {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := f.withToken("before"); err != nil {
		t.Errorf("a token whose answer is believed still: %v", err)
	}
	i.set(func() { i.status, i.raw = http.StatusOK, "" })
	if _, err := f.withToken("t"); err != nil {
		t.Errorf("after the outage: %v", err)
	}
	i.Close()
	f.clock.Add(2 * time.Minute)
	if _, err := f.withToken("before"); statusOf(err) != http.StatusServiceUnavailable {
		t.Errorf("with nobody there and an old answer: %v", err)
	}
}

// TestRubbishIsNotAskedAboutForEver holds that an address cannot make us
// flood an issuer.
func TestRubbishIsNotAskedAboutForEver(t *testing.T) {
	t.Parallel()
	i := newIntrospector(t)
	f := withIntrospector(t, i, func(c *Config) { c.Limits.TokenFailures = 5 })
	i.know("good", f.clock.Now(), nil)
	if _, err := f.withToken("good"); err != nil {
		t.Fatal(err)
	}
	codes := map[int]int{}
	for n := range 100 {
		_, err := f.withToken(fmt.Sprintf("rubbish-%d", n))
		codes[statusOf(err)]++
	}
	if codes[http.StatusUnauthorized] != 5 || codes[http.StatusTooManyRequests] != 95 || i.asked.Load() != 6 {
		t.Errorf("a hundred unknown tokens: %v, and %d questions", codes, i.asked.Load())
	}
	if _, err := f.withToken("good"); err != nil {
		t.Errorf("a token that is known: %v", err)
	}
	if _, err := f.withToken("with space"); statusOf(err) != http.StatusTooManyRequests || i.asked.Load() != 6 {
		t.Errorf("a token that is none: %v", err)
	}
}

// TestOpaqueTokensGoToOneIssuer holds that no issuer sees another's tokens.
func TestOpaqueTokensGoToOneIssuer(t *testing.T) {
	t.Parallel()
	a, b, p := newIntrospector(t), newIntrospector(t), newProvider(t, "rsa")
	f := withIntrospector(t, a, func(c *Config) {
		other := b.config()
		other.Name, other.Introspection.TokenPrefix, other.URL = "other", "ghp_", "https://b.example"
		c.Issuers = append(c.Issuers, other, p.config())
	})
	for token, want := range map[string][2]int32{
		"ghp_x":  {0, 1},
		"other":  {1, 0},
		"ghp":    {1, 0},
		"xghp_x": {1, 0},
		sign(t, "rsa", p.claimsAt(f.clock.Now(), nil), nil):                                        {0, 0},
		sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"iss": "https://c"}), nil):         {0, 0},
		sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"iss": nil}), nil):                 {0, 0},
		sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"iss": "https://b.example"}), nil): {0, 1},
	} {
		before := [2]int32{a.asked.Load(), b.asked.Load()}
		f.withToken(token)
		if got := [2]int32{a.asked.Load() - before[0], b.asked.Load() - before[1]}; got != want {
			t.Errorf("%.20s…: asked %v, want %v", token, got, want)
		}
	}
	one, two := a.config(), b.config()
	two.Name = "two"
	if _, field, err := CheckIssuers([]Issuer{one, two}, ""); err == nil || field != "introspection.token_prefix" {
		t.Errorf("two issuers of all opaque tokens: %s, %v", field, err)
	}
}

// cluster is the API server of one.
type cluster struct {
	*provider
	status func(spec reviewSpec) map[string]any
	code   int
	seen   []reviewSpec
	bearer []string
}

type reviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

func newCluster(t *testing.T) (*cluster, Issuer, string) {
	c := &cluster{provider: newProvider(t, "rsa"), code: http.StatusCreated}
	c.answer = func(w http.ResponseWriter, r *http.Request) bool {
		c.bearer = append(c.bearer, r.Header.Get("Authorization"))
		switch r.URL.Path {
		case "/openid/v1/jwks":
			if !strings.Contains(r.Header.Get("Accept"), "application/jwk-set+json") {
				w.WriteHeader(http.StatusNotAcceptable)
				return true
			}
			json.NewEncoder(w).Encode(map[string]any{"keys": c.keys})
			return true
		case "/apis/authentication.k8s.io/v1/tokenreviews":
			var body struct{ Spec reviewSpec }
			json.NewDecoder(r.Body).Decode(&body)
			c.seen = append(c.seen, body.Spec)
			w.WriteHeader(c.code)
			json.NewEncoder(w).Encode(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": c.status(body.Spec)})
			return true
		}
		return false
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("api-token-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c, Issuer{
		Name: "cluster", Kind: IssuerKubernetes, URL: "https://kubernetes.default.svc.cluster.local", Audiences: []string{"sluice"},
		Claims: ClaimMapping{
			Organisation: OrganisationMapping{Fixed: "acme"}, Groups: "groups",
			Attributes: []AttributeMapping{{Name: "namespace", Claim: "/kubernetes.io/namespace", Type: TypeString}},
		},
		Kubernetes: &Kubernetes{API: c.URL + "/", TokenFile: file},
		Grants:     []IssuerGrant{{Subject: "system:serviceaccount:jobs:loader", Grant: Grant{"sales", AccessWrite}}},
	}, file
}

func (c *cluster) token(t *testing.T, f *fixture, change map[string]any) string {
	claims := map[string]any{
		"iss": "https://kubernetes.default.svc.cluster.local", "sub": "system:serviceaccount:jobs:loader",
		"kubernetes.io": map[string]any{"namespace": "jobs"},
	}
	for k, v := range change {
		claims[k] = v
	}
	return sign(t, "rsa", c.claimsAt(f.clock.Now(), claims), nil)
}

func TestKubernetesKeys(t *testing.T) {
	t.Parallel()
	c, issuer, file := newCluster(t)
	f := newFixture(t, func(cfg *Config) { cfg.Issuers = []Issuer{issuer} })
	got, err := f.withToken(c.token(t, f, nil))
	if err != nil || got.ID != "cluster:system:serviceaccount:jobs:loader" || got.Kind != KindWorkload || got.Attributes["namespace"].String != "jobs" || got.Access("sales") != AccessWrite {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := f.withToken(c.token(t, f, map[string]any{"aud": "https://kubernetes.default.svc.cluster.local"})); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a token for the API server itself: %v", err)
	}
	// The token for the API server is read for each request.
	if err := os.WriteFile(file, []byte("api-token-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Probe(t.Context(), func(_ string, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if !slices.Equal(c.bearer, []string{"Bearer api-token-1", "Bearer api-token-2"}) {
		t.Errorf("the API server was asked with %v", c.bearer)
	}
}

// TestKubernetesReview has attack 77.
func TestKubernetesReview(t *testing.T) {
	t.Parallel()
	c, issuer, file := newCluster(t)
	issuer.Kubernetes.Review = true
	f := newFixture(t, func(cfg *Config) { cfg.Issuers = []Issuer{issuer} })
	fine := func(change map[string]any) func(reviewSpec) map[string]any {
		return func(s reviewSpec) map[string]any {
			m := map[string]any{
				"authenticated": true, "audiences": s.Audiences,
				"user": map[string]any{"username": "system:serviceaccount:jobs:loader", "groups": []string{"system:serviceaccounts", "system:authenticated"}},
			}
			for k, v := range change {
				m[k] = v
			}
			return m
		}
	}
	for n, test := range []struct {
		name   string
		claims map[string]any
		status map[string]any
		want   int
	}{
		{"good", nil, nil, http.StatusOK},
		{"not authenticated", nil, map[string]any{"authenticated": false}, http.StatusUnauthorized},
		{"no audiences", nil, map[string]any{"audiences": nil}, http.StatusUnauthorized},
		{"other audiences", nil, map[string]any{"audiences": []string{"api"}}, http.StatusUnauthorized},
		{"another user", nil, map[string]any{"user": map[string]any{"username": "admin"}}, http.StatusUnauthorized},
		{"no user", map[string]any{"sub": ""}, map[string]any{"user": map[string]any{}}, http.StatusUnauthorized},
		{"without expiry", map[string]any{"exp": nil}, nil, http.StatusUnauthorized},
		{"expired", map[string]any{"exp": f.clock.Now().Add(-time.Hour).Unix()}, nil, http.StatusUnauthorized},
	} {
		c.status = fine(test.status)
		claims := map[string]any{"n": n}
		for k, v := range test.claims {
			claims[k] = v
		}
		token := c.token(t, f, claims)
		got, err := f.withToken(token)
		if statusOf(err) != test.want || err == nil && !slices.Equal(got.Groups, []string{"cluster:system:authenticated", "cluster:system:serviceaccounts"}) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
		if last := c.seen[len(c.seen)-1]; last.Token != token || !slices.Equal(last.Audiences, []string{"sluice"}) {
			t.Errorf("%s: the review is of %v", test.name, last.Audiences)
		}
	}
	c.code, c.status = http.StatusForbidden, fine(nil)
	if _, err := f.withToken(c.token(t, f, map[string]any{"n": "forbidden"})); statusOf(err) != http.StatusServiceUnavailable || strings.Contains(err.Error(), "api-token") {
		t.Errorf("without the right to review: %v", err)
	}
	c.code = http.StatusCreated
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := f.withToken(c.token(t, f, map[string]any{"n": "no file"})); statusOf(err) != http.StatusServiceUnavailable {
		t.Errorf("without a token for the API server: %v", err)
	}
}

func TestKubernetesIsChecked(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]Kubernetes{
		"review of nobody":       {Review: true},
		"token for nobody":       {TokenFile: "x"},
		"review without a token": {API: "https://kubernetes.default.svc", Review: true},
		"API by http":            {API: "http://kubernetes.default.svc"},
	} {
		i := Issuer{Name: "c", Kind: IssuerKubernetes, URL: "https://k", Audiences: []string{"a"}, Claims: ClaimMapping{Organisation: OrganisationMapping{Fixed: "a"}}, Kubernetes: &k}
		if field, err := i.Check(); err == nil || !strings.HasPrefix(field, "kubernetes.") {
			t.Errorf("%s: %s, %v", name, field, err)
		}
	}
}
