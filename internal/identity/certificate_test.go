// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

func newAuthority(t testing.TB, now time.Time, under *authority) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority " + rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
	parent, signer := template, key
	if under != nil {
		parent, signer = under.cert, under.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, now}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue signs a client certificate.
func (a *authority) issue(t testing.TB, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "trino", Organization: []string{"acme"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: a.now.Add(-time.Minute), NotAfter: a.now.Add(time.Hour), BasicConstraintsValid: true,
	}
	if change != nil {
		change(template)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func spiffe(uris ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, u := range uris {
			parsed, err := url.Parse(u)
			if err != nil {
				panic(err)
			}
			c.URIs = append(c.URIs, parsed)
		}
	}
}

// withCertificate authenticates a connection with certificates.
func (f *fixture) withCertificate(header http.Header, chain ...*x509.Certificate) (Principal, error) {
	r := httptest.NewRequest(http.MethodGet, "/v1/config", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: chain}
	for k, v := range header {
		r.Header[k] = v
	}
	return f.Authenticate(r)
}

func withAuthority(t testing.TB, a *authority, change func(*Config)) (*fixture, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, a.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	return newFixture(t, func(c *Config) {
		c.Issuers = []Issuer{{
			Name: "mesh", Kind: IssuerMTLS, MTLS: &MTLS{CAFile: file},
			Claims: ClaimMapping{
				Organisation: OrganisationMapping{Fixed: "acme"}, Groups: "ou",
				Attributes: []AttributeMapping{{Name: "dns", Claim: "san_dns", Type: TypeSet}},
			},
			Grants: []IssuerGrant{{Subject: "trino", Grant: Grant{"sales", AccessRead}}, {Subject: "spiffe://prod.example/trino", Grant: Grant{"sales", AccessRead}}},
		}}
		c.Limits.TokenFailures = 1000
		if change != nil {
			change(c)
		}
	}), file
}

var testTime = time.Unix(1_800_000_000, 0)

// TestClientCertificates has attack 78.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, testTime, nil)
	stranger := newAuthority(t, testTime, nil)
	below := newAuthority(t, testTime, a)
	f, _ := withAuthority(t, a, nil)
	server := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		want  int
	}{
		"good":                      {[]*x509.Certificate{a.issue(t, nil)}, http.StatusOK},
		"with an intermediate":      {[]*x509.Certificate{below.issue(t, nil), below.cert}, http.StatusOK},
		"without it":                {[]*x509.Certificate{below.issue(t, nil)}, http.StatusUnauthorized},
		"another authority's":       {[]*x509.Certificate{stranger.issue(t, nil)}, http.StatusUnauthorized},
		"another's, with ours":      {[]*x509.Certificate{stranger.issue(t, nil), a.cert}, http.StatusUnauthorized},
		"for servers":               {[]*x509.Certificate{a.issue(t, server)}, http.StatusUnauthorized},
		"for nothing in particular": {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = nil })}, http.StatusUnauthorized},
		"for anything":              {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })}, http.StatusUnauthorized},
		"expired":                   {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) { c.NotAfter = testTime.Add(-time.Second) })}, http.StatusUnauthorized},
		"not yet valid":             {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) { c.NotBefore = testTime.Add(time.Minute) })}, http.StatusUnauthorized},
		"the authority itself":      {[]*x509.Certificate{a.cert}, http.StatusUnauthorized},
		"no common name":            {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) { c.Subject.CommonName = "" })}, http.StatusUnauthorized},
		"two common names": {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) {
			c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: commonName, Value: "other"}, {Type: commonName, Value: "trino"}}
		})}, http.StatusUnauthorized},
		"a name that does not print": {[]*x509.Certificate{a.issue(t, func(c *x509.Certificate) { c.Subject.CommonName = "tri\nno" })}, http.StatusUnauthorized},
		"too many":                   {slices.Repeat([]*x509.Certificate{a.issue(t, nil)}, maxChain+1), http.StatusUnauthorized},
	} {
		for range 2 {
			got, err := f.withCertificate(nil, test.chain...)
			if statusOf(err) != test.want || (err == nil) != (got.ID == "mesh:trino" && got.Kind == KindCertificate && got.Access("sales") == AccessRead) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			var refusal *Refusal
			if errors.As(err, &refusal) && (refusal.Message != "Not authorized: the client certificate is not accepted" || refusal.Challenge == "") {
				t.Errorf("%s: the answer is %q", name, refusal.Message)
			}
		}
	}
	got, err := f.withCertificate(nil, a.issue(t, func(c *x509.Certificate) {
		c.Subject.OrganizationalUnit, c.DNSNames = []string{"etl", "analysts"}, []string{"b", "a"}
	}))
	if err != nil || !slices.Equal(got.Groups, []string{"mesh:analysts", "mesh:etl"}) || !slices.Equal(got.Attributes["dns"].Set, []string{"a", "b"}) {
		t.Errorf("%+v, %v", got, err)
	}
	// A header is no certificate, whoever sends it.
	good := a.issue(t, nil)
	for _, header := range []string{"X-Forwarded-Client-Cert", "X-Ssl-Client-Cert", "Client-Cert"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(header, base64.StdEncoding.EncodeToString(good.Raw))
		if _, err := f.Authenticate(r); statusOf(err) != http.StatusUnauthorized {
			t.Errorf("%s is believed: %v", header, err)
		}
	}
	// A certificate is public: as a token it is worth nothing, even when it
	// was verified just now.
	if _, err := f.withCertificate(nil, good); err != nil {
		t.Fatal(err)
	}
	if _, err := f.withToken(string(good.Raw)); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a certificate as a bearer token: %v", err)
	}
	// A token counts before the certificate; a bad one is not made good by it.
	if got, err := f.withCertificate(http.Header{"Authorization": {"Bearer " + f.issueFor(t, nil)}}, good); err != nil || got.ID != "account:alice" {
		t.Errorf("a token and a certificate: %+v, %v", got, err)
	}
	if _, err := f.withCertificate(http.Header{"Authorization": {"Bearer x"}}, good); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a bad token and a certificate: %v", err)
	}
}

func TestSPIFFE(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, testTime, nil)
	f, _ := withAuthority(t, a, func(c *Config) { c.Issuers[0].MTLS.TrustDomain = "prod.example" })
	for _, test := range []struct {
		uris []string
		ok   bool
	}{
		{[]string{"spiffe://prod.example/trino"}, true},
		{nil, false},
		{[]string{"spiffe://prod.example/trino", "spiffe://prod.example/other"}, false},
		{[]string{"spiffe://prod.example/trino", "https://prod.example/trino"}, false},
		{[]string{"spiffe://dev.example/trino"}, false},
		{[]string{"spiffe://prod.example.evil/trino"}, false},
		{[]string{"spiffe://PROD.example/trino"}, false},
		{[]string{"https://prod.example/trino"}, false},
		{[]string{"spiffe://prod.example"}, false},
		{[]string{"spiffe://prod.example/"}, false},
		{[]string{"spiffe://prod.example/trino/"}, false},
		{[]string{"spiffe://prod.example//trino"}, false},
		{[]string{"spiffe://prod.example/a/../trino"}, false},
		{[]string{"spiffe://prod.example/%74rino"}, false},
		{[]string{"spiffe://prod.example:443/trino"}, false},
		{[]string{"spiffe://u@prod.example/trino"}, false},
		{[]string{"spiffe://prod.example/trino?x"}, false},
		{[]string{"spiffe://prod.example/trino#x"}, false},
	} {
		got, err := f.withCertificate(nil, a.issue(t, spiffe(test.uris...)))
		if (err == nil) != test.ok || test.ok && (got.ID != "mesh:spiffe://prod.example/trino" || got.Access("sales") != AccessRead) {
			t.Errorf("%v: %+v, %v", test.uris, got, err)
		}
	}
	signs := a.issue(t, func(c *x509.Certificate) {
		spiffe("spiffe://prod.example/trino")(c)
		c.KeyUsage |= x509.KeyUsageCertSign
	})
	if _, err := f.withCertificate(nil, signs); err == nil {
		t.Error("a certificate that may sign others is a workload's")
	}
	for _, domain := range []string{"spiffe://prod.example", "Prod.example", "prod.example/x"} {
		i := Issuer{Name: "m", Kind: IssuerMTLS, MTLS: &MTLS{CAFile: "x", TrustDomain: domain}, Claims: ClaimMapping{Organisation: OrganisationMapping{Fixed: "a"}}}
		if field, err := i.Check(); err == nil || field != "mtls.trust_domain" {
			t.Errorf("trust domain %q: %s, %v", domain, field, err)
		}
	}
}

func TestAuthoritiesAreReloaded(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t, testTime, nil), newAuthority(t, testTime, nil)
	f, file := withAuthority(t, a, nil)
	ofA, ofB := a.issue(t, nil), b.issue(t, nil)
	check := func(what string, c *x509.Certificate, want int) {
		t.Helper()
		if _, err := f.withCertificate(nil, c); statusOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("before", ofA, http.StatusOK)
	check("before", ofB, http.StatusUnauthorized)
	if err := os.WriteFile(file, append(b.pem(), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Reload()
	check("a certificate of the authority that is gone, verified before", ofA, http.StatusUnauthorized)
	check("of the new authority", ofB, http.StatusOK)
	if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Reload()
	check("a file that is none leaves what is loaded", ofB, http.StatusOK)
	if !strings.Contains(f.logs.String(), "stay in use") {
		t.Error("nothing is logged of the file")
	}
	f.clock.Add(2 * time.Hour)
	check("a certificate that has expired since", ofB, http.StatusUnauthorized)
}

// TestBoundTokens has RFC 8705: a token is good on connections with its
// certificate alone, also when it is known already.
func TestBoundTokens(t *testing.T) {
	t.Parallel()
	a, p := newAuthority(t, testTime, nil), newProvider(t, "rsa")
	mine, other := a.issue(t, nil), a.issue(t, nil)
	f := withProvider(t, p, nil)
	sum := thumbprint(mine)
	token := sign(t, "rsa", p.claimsAt(f.clock.Now(), map[string]any{"cnf": map[string]any{"x5t#S256": base64.RawURLEncoding.EncodeToString(sum[:])}}), nil)
	bearer := http.Header{"Authorization": {"Bearer " + token}}
	for range 2 {
		if _, err := f.withCertificate(bearer, other); statusOf(err) != http.StatusUnauthorized {
			t.Errorf("with another certificate: %v", err)
		}
		if _, err := f.withToken(token); statusOf(err) != http.StatusUnauthorized {
			t.Errorf("without a certificate: %v", err)
		}
		if got, err := f.withCertificate(bearer, mine); err != nil || got.ID != "corp:alice" {
			t.Errorf("with its certificate: %+v, %v", got, err)
		}
	}
	if w := f.ask(exchange(token)); w.Code != http.StatusBadRequest {
		t.Errorf("a bound token is exchanged for one that is not: %d %s", w.Code, w.Body)
	}
}

func TestInvalidCertificatesAreThrottled(t *testing.T) {
	t.Parallel()
	a, stranger := newAuthority(t, testTime, nil), newAuthority(t, testTime, nil)
	f, _ := withAuthority(t, a, func(c *Config) { c.Limits.TokenFailures = 3 })
	codes := map[int]int{}
	bad := stranger.issue(t, nil)
	for range 10 {
		_, err := f.withCertificate(nil, bad)
		codes[statusOf(err)]++
	}
	if codes[http.StatusUnauthorized] != 3 || codes[http.StatusTooManyRequests] != 7 {
		t.Errorf("ten bad certificates: %v", codes)
	}
	if _, err := f.withCertificate(nil, a.issue(t, nil)); err != nil {
		t.Errorf("a good one of the same address: %v", err)
	}
}

func BenchmarkVerifyCertificateCached(b *testing.B) {
	a := newAuthority(b, testTime, nil)
	f, _ := withAuthority(b, a, nil)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{a.issue(b, nil)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Authenticate(r); err != nil {
			b.Fatal(err)
		}
	}
}
