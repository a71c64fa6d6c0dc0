// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/identity/activationtest"
	"github.com/sluice-data/sluice/internal/secret"
)

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	activationtest.Run(t, func(*testing.T) activationtest.Subject {
		m := &activationtest.Memory{}
		return activationtest.Subject{
			ActivationStore: m, Recipients: [2]string{"r-1", "r-2"},
			Bound: func(_ context.Context, recipient string) (identity.Binding, error) {
				if len(m.Bound[recipient]) == 0 {
					return identity.Binding{}, nil
				}
				return m.Bound[recipient][0], nil
			},
		}
	})
}

const bobSecret = "bob-secret-0123456789"

var bobHash = sync.OnceValue(func() identity.Hash { return identity.NewHash(secret.New(bobSecret)) })

type desk struct {
	*identity.Activations
	store    *activationtest.Memory
	service  *identity.Service
	now      atomic.Int64 // Unix seconds
	outcomes []string
}

func newDesk(t testing.TB, limits identity.Limits) *desk {
	t.Helper()
	d := &desk{store: &activationtest.Memory{}}
	d.now.Store(1_800_000_000)
	key, _ := identity.GenerateSigningKey()
	var mu sync.Mutex
	s, err := identity.New(identity.Config{
		SigningKey: key, Limits: limits, Now: func() time.Time { return time.Unix(d.now.Load(), 0) },
		Accounts:     []identity.Account{{ClientID: "bob", Secrets: []identity.Hash{bobHash()}}},
		StaticTokens: []identity.StaticToken{{Token: secret.New("bob-token-0123456789"), ClientID: "bob"}},
		Observe: func(kind, outcome string) {
			mu.Lock()
			defer mu.Unlock()
			d.outcomes = append(d.outcomes, kind+" "+outcome)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.service, d.Activations = s, s.Activations(d.store)
	return d
}

func (d *desk) create(t testing.TB, n identity.NewActivation) (identity.Activation, string) {
	t.Helper()
	if n.Recipient == "" {
		n.Recipient = "r-1"
	}
	a, link, err := d.Create(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return a, link.Reveal()
}

var home = netip.MustParseAddr("192.0.2.7")

func person(subject string) identity.Principal {
	return identity.Principal{ID: "corp:" + subject, Issuer: "corp", Subject: subject, Kind: identity.KindToken, Organisation: "acme"}
}

func (d *desk) redeem(t testing.TB, p identity.Principal, link string) (identity.Activation, error) {
	t.Helper()
	return d.Redeem(t.Context(), p, home, link)
}

func TestActivation(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{})
	a, link := d.create(t, identity.NewActivation{Organisation: "acme"})
	if got := a.Expires.Sub(a.Created); got != identity.DefaultActivationLifetime || !a.Created.Equal(time.Unix(1_800_000_000, 0)) {
		t.Errorf("it lives %v from %v", got, a.Created)
	}
	// 256 bits, of which only a hash is stored.
	_, encoded, _ := strings.Cut(link, ".")
	key, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(key) != 32 || !strings.HasPrefix(link, "slact_"+a.ID+".") {
		t.Fatalf("the link has %d bytes of secret: %v", len(key), err)
	}
	if stored, err := d.store.Activation(t.Context(), a.ID); err != nil || strings.Contains(fmt.Sprintf("%+v %x", stored, stored), encoded) || strings.Contains(fmt.Sprintf("%x", stored.Sum), fmt.Sprintf("%x", key)) {
		t.Errorf("the secret is stored: %+v, %v", stored, err)
	}
	if _, other := d.create(t, identity.NewActivation{}); other == link || other[:20] == link[:20] {
		t.Error("two links are alike")
	}
	if text := fmt.Sprint(secret.New(link)); text != secret.Redacted {
		t.Errorf("a link prints as %s", text)
	}

	got, err := d.redeem(t, person("alice"), link)
	want := identity.Binding{Issuer: "corp", Subject: "alice"}
	if err != nil || got.Recipient != "r-1" || got.UsedBy != want || !got.Used.Equal(time.Unix(1_800_000_000, 0)) {
		t.Fatalf("%+v, %v", got, err)
	}
	if !slices.Equal(d.store.Bound["r-1"], []identity.Binding{want}) {
		t.Errorf("bound to %+v", d.store.Bound)
	}
	// Once; to the same caller again it says what it said.
	d.now.Add(3600 * 48)
	if again, err := d.redeem(t, person("alice"), link); err != nil || again.UsedBy != want || !again.Used.Equal(got.Used) {
		t.Errorf("the same caller again: %+v, %v", again, err)
	}
	other := person("alice")
	other.ID, other.Issuer = "partner:alice", "partner"
	for _, p := range []identity.Principal{person("bob"), other} {
		if _, err := d.redeem(t, p, link); !errors.Is(err, identity.ErrActivationUsed) {
			t.Errorf("%s: %v", p.ID, err)
		}
	}
	if len(d.store.Bound["r-1"]) != 1 {
		t.Errorf("bound to %+v", d.store.Bound)
	}
	if want := []string{"activation ok", "activation ok", "activation refused", "activation refused"}; !slices.Equal(d.outcomes, want) {
		t.Errorf("counted %v, want %v", d.outcomes, want)
	}
}

func TestActivationLifetime(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{})
	_, link := d.create(t, identity.NewActivation{Lifetime: identity.MinActivationLifetime})
	d.now.Add(60)
	if _, err := d.redeem(t, person("alice"), link); !errors.Is(err, identity.ErrActivationExpired) || len(d.store.Bound["r-1"]) != 0 {
		t.Errorf("at its end: %v, %v", err, d.store.Bound)
	}
	d.now.Add(-1)
	if _, err := d.redeem(t, person("alice"), link); err != nil {
		t.Errorf("a second before: %v", err)
	}
	for name, n := range map[string]identity.NewActivation{
		"too short":      {Recipient: "r", Lifetime: identity.MinActivationLifetime - 1},
		"too long":       {Recipient: "r", Lifetime: identity.MaxActivationLifetime + 1},
		"negative":       {Recipient: "r", Lifetime: -time.Hour},
		"nobody":         {},
		"does not print": {Recipient: "r\n"},
		"organisation":   {Recipient: "r", Organisation: " acme"},
	} {
		if _, link, err := d.Create(t.Context(), n); err == nil || !link.Empty() {
			t.Errorf("%s: a link is made", name)
		}
	}
}

// TestActivationCallers has who may redeem a link.
func TestActivationCallers(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{})
	certificate := person("spiffe://prod.example/loader")
	certificate.Kind = identity.KindCertificate
	workload := person("system:serviceaccount:jobs:loader")
	workload.Kind = identity.KindWorkload
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer bob-token-0123456789")
	account, err := d.service.Authenticate(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []identity.Principal{person("alice"), certificate, workload, account} {
		_, link := d.create(t, identity.NewActivation{Recipient: "for " + p.ID})
		got, err := d.redeem(t, p, link)
		if want := (identity.Binding{Issuer: p.Issuer, Subject: p.Subject}); err != nil || got.UsedBy != want {
			t.Errorf("%s: %+v, %v", p.ID, got, err)
		}
	}
	// A token that signs requests to storage is no sign-in.
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {"bob"}, "client_secret": {bobSecret}, "scope": {"sign"}}
	ask := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form.Encode()))
	ask.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	d.service.TokenEndpoint().ServeHTTP(w, ask)
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	r.Header.Set("Authorization", "Bearer "+answer.Token)
	signer, err := d.service.Authenticate(r)
	if err != nil {
		t.Fatal(err)
	}
	acting, anonymous, elsewhere := person("alice"), person("alice"), person("alice")
	acting.Actor, anonymous.Kind, elsewhere.Organisation = "account:engine", identity.KindAnonymous, "globex"
	for name, p := range map[string]identity.Principal{
		"nobody": {}, "without a kind": anonymous, "by an actor": acting, "of another organisation": elsewhere, "for the signer": signer,
	} {
		a, link := d.create(t, identity.NewActivation{Organisation: "acme"})
		if _, err := d.redeem(t, p, link); !errors.Is(err, identity.ErrActivationForbidden) {
			t.Errorf("%s: %v", name, err)
		}
		if stored, err := d.store.Activation(t.Context(), a.ID); err != nil || !stored.Used.IsZero() {
			t.Errorf("%s: the link is spent: %+v, %v", name, stored, err)
		}
	}
}

func TestActivationLinksThatAreNone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{ClientFailures: 10_000, AddressFailures: 10_000})
	a, link := d.create(t, identity.NewActivation{})
	_, other := d.create(t, identity.NewActivation{Recipient: "r-2"})
	id, key, _ := strings.Cut(link, ".")
	_, otherKey, _ := strings.Cut(other, ".")
	flip := func(s string, at int) string {
		c := byte('A')
		if s[at] == c {
			c = 'B'
		}
		return s[:at] + string(c) + s[at+1:]
	}
	for name, text := range map[string]string{
		"empty": "", "the id": a.ID, "the prefix": "slact_", "the key": key, "without a key": id + ".",
		"another link's key": id + "." + otherKey, "first bit": id + "." + flip(key, 0), "last bits": id + "." + flip(key, 41),
		"key of zeros": id + "." + strings.Repeat("A", 43), "another id": flip(id, 10) + "." + key,
		"zeros": "slact_" + strings.Repeat("A", 22) + "." + strings.Repeat("A", 43), "cut": link[:len(link)-1], "longer": link + "A",
		"twice": link + link, "a space": link + " ", "padded": link + "=", "in capitals": strings.ToUpper(link), "another prefix": "slack_" + link[6:],
		"the hash as the key": id + "." + base64.RawURLEncoding.EncodeToString(a.Sum[:]),
		"bits that are spare": link[:len(link)-1] + string(link[len(link)-1]+1),
		"a line's end in it":  link[:40] + "\n" + link[41:],
	} {
		_, err := d.redeem(t, person("alice"), text)
		if !errors.Is(err, identity.ErrActivationUnknown) || err.Error() != identity.ErrActivationUnknown.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(d.store.Bound) != 0 {
		t.Errorf("bound: %v", d.store.Bound)
	}
	if _, err := d.redeem(t, person("alice"), link); err != nil {
		t.Errorf("the link itself: %v", err)
	}
}

func TestActivationHasOneWinner(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{})
	_, link := d.create(t, identity.NewActivation{})
	var wg sync.WaitGroup
	var won atomic.Int32
	for n := range 40 {
		// Each comes twice: who has won is told so both times.
		p := person(fmt.Sprint(n / 2))
		wg.Go(func() {
			switch _, err := d.redeem(t, p, link); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, identity.ErrActivationUsed):
				t.Errorf("%s: %v", p.ID, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 2 || len(d.store.Bound["r-1"]) != 1 {
		t.Errorf("%d of forty requests succeeded, want the two of one caller; bound %v", won.Load(), d.store.Bound)
	}
}

func TestActivationIsThrottled(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{ClientFailures: 3, AddressFailures: 5})
	_, link := d.create(t, identity.NewActivation{})
	wrong := link[:len(link)-2] + "AA"
	count := func(n int, p func(int) identity.Principal, from netip.Addr) (refused, throttled int) {
		for i := range n {
			_, err := d.Redeem(t.Context(), p(i), from, wrong)
			var slow *identity.ActivationThrottledError
			switch {
			case errors.As(err, &slow) && slow.RetryAfter > 0:
				throttled++
			case errors.Is(err, identity.ErrActivationUnknown):
				refused++
			}
		}
		return refused, throttled
	}
	alice := func(int) identity.Principal { return person("alice") }
	many := func(i int) identity.Principal { return person(fmt.Sprint(i)) }
	if refused, throttled := count(10, alice, home); refused != 3 || throttled != 7 {
		t.Errorf("ten wrong links of one caller: %d refused, %d throttled", refused, throttled)
	}
	// A caller's own limit is no other's, but the address has one.
	if refused, throttled := count(10, many, home); refused != 2 || throttled != 8 {
		t.Errorf("ten wrong links of ten callers: %d refused, %d throttled", refused, throttled)
	}
	elsewhere := netip.MustParseAddr("198.51.100.9")
	if _, throttled := count(1, alice, elsewhere); throttled != 1 {
		t.Error("the caller's limit does not follow to another address")
	}
	var slow *identity.ActivationThrottledError
	if _, err := d.redeem(t, person("bob"), link); !errors.As(err, &slow) {
		t.Errorf("the right link while the address is throttled: %v", err)
	}
	// Right links cost nothing, and time heals.
	for range 20 {
		if _, err := d.Redeem(t.Context(), person("bob"), elsewhere, link); err != nil {
			t.Fatal(err)
		}
	}
	d.now.Add(60)
	if refused, _ := count(1, alice, home); refused != 1 {
		t.Error("a minute later the caller is still throttled")
	}
	if !slices.Contains(d.outcomes, "activation throttled") {
		t.Error("throttled attempts are not counted")
	}
}

// broken fails.
type broken struct{ activationtest.Memory }

var errBroken = errors.New("the database is away")

func (b *broken) Activation(context.Context, string) (identity.Activation, error) {
	return identity.Activation{}, errBroken
}

func TestActivationStoreFails(t *testing.T) {
	t.Parallel()
	d := newDesk(t, identity.Limits{ClientFailures: 2})
	_, link := d.create(t, identity.NewActivation{})
	away := d.service.Activations(&broken{})
	for range 5 { // an outage is nobody's failure
		if _, err := away.Redeem(t.Context(), person("alice"), home, link); !errors.Is(err, errBroken) || errors.Is(err, identity.ErrActivationUnknown) {
			t.Errorf("an outage: %v", err)
		}
	}
	// A binding that the store does not take leaves the link as it was.
	taken := errors.New("this identity is another recipient's")
	d.store.Refuse = func(string, identity.Binding) error { return taken }
	for range 5 {
		if _, err := d.redeem(t, person("alice"), link); !errors.Is(err, taken) {
			t.Errorf("a binding that is not taken: %v", err)
		}
	}
	d.store.Refuse = nil
	if _, err := d.redeem(t, person("alice"), link); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// FuzzRedeem holds that nothing but a link is one.
func FuzzRedeem(f *testing.F) {
	d := newDesk(f, identity.Limits{ClientFailures: 1 << 30, AddressFailures: 1 << 30})
	_, link := d.create(f, identity.NewActivation{})
	f.Add(link)
	f.Add("slact_" + strings.Repeat("A", 22) + "." + strings.Repeat("A", 43))
	f.Add("slact_.")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := d.redeem(t, person("alice"), text)
		if (err == nil) != (text == link) || err != nil && !errors.Is(err, identity.ErrActivationUnknown) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
