// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (a *authority) issue(serial int64) (cert, key string) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// client trusts the authority; it shows certificates if it is given any.
func (a *authority) client(maxVersion uint16, certs ...tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, MaxVersion: maxVersion, MinVersion: tls.VersionTLS10, Certificates: certs}, //nolint:gosec // old versions are what is tested
	}}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	d := deploy(t, `listeners:
  catalog: {address: "127.0.0.1:0", tls: {cert: CERT, key: KEY}}
  metrics: {address: "127.0.0.1:0", tls: {cert: CERT, key: KEY, client_ca: CA, min_version: "1.3"}}
`)
	cert, key := filepath.Join(d.dir, "tls.crt"), filepath.Join(d.dir, "tls.key")
	edit(t, &d, strings.NewReplacer("CERT", cert, "KEY", key, "CA", filepath.Join(d.dir, "ca.crt")))
	install := func(serial int64) {
		c, k := a.issue(serial)
		d.write(t, "tls.crt", c)
		d.write(t, "tls.key", k)
	}
	install(100)
	d.write(t, "ca.crt", a.pem)
	d.migrate(t)
	if code, stdout, stderr := once(t, nil, "", "config", "check", "--config", d.config); code != 0 || strings.Count(stdout, "ok   TLS of listener") != 2 {
		t.Errorf("config check: %d\n%s%s", code, stdout, stderr)
	}
	p := start(t, nil, "serve", "--config", d.config)
	base, metrics := "https://"+p.address("catalog"), "https://"+p.address("metrics")
	get := func(c *http.Client, uri string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, uri, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	token := d.token(t, a.client(0), base)
	if code, body := send(t, a.client(0), http.MethodGet, base+"/v1/config", token, nil); code != 200 {
		t.Errorf("config over TLS: %d %s", code, body)
	}
	resp, err := get(a.client(0), base+"/health/ready")
	if err != nil || resp.ProtoMajor != 2 || resp.TLS.Version != tls.VersionTLS13 {
		t.Fatalf("%+v, %v", resp, err)
	}
	if resp, err := get(a.client(tls.VersionTLS12), base+"/health/ready"); err != nil || resp.StatusCode != 200 {
		t.Errorf("TLS 1.2: %v", err)
	}
	if _, err := get(a.client(tls.VersionTLS11), base+"/health/ready"); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	if resp, err := get(http.DefaultClient, strings.Replace(base, "https", "http", 1)+"/health/ready"); err == nil && resp.StatusCode == 200 {
		t.Error("plain HTTP is answered on a TLS listener")
	}

	// Client certificates.
	clientPair := func(from *authority) tls.Certificate {
		c, k := from.issue(7)
		pair, err := tls.X509KeyPair([]byte(c), []byte(k))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	if resp, err := get(a.client(0, clientPair(a)), metrics+"/metrics"); err != nil || resp.StatusCode != 200 {
		t.Errorf("with a client certificate: %v", err)
	}
	if _, err := get(a.client(0), metrics+"/metrics"); err == nil {
		t.Error("without a client certificate it is answered")
	}
	if _, err := get(a.client(0, clientPair(newAuthority(t))), metrics+"/metrics"); err == nil {
		t.Error("with a certificate of another authority it is answered")
	}
	if _, err := get(a.client(tls.VersionTLS12, clientPair(a)), metrics+"/metrics"); err == nil {
		t.Error("TLS 1.2 is accepted where 1.3 is the least")
	}

	// New files are found without being told, and at once with SIGHUP; broken
	// ones change nothing.
	serial := func() int64 {
		resp, err := get(a.client(0), base+"/health/live")
		if err != nil {
			t.Fatal(err)
		}
		return resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	install(101)
	p.until("the new certificate", func() bool { return serial() == 101 })
	install(102)
	p.signal(syscall.SIGHUP)
	p.until("the next certificate", func() bool { return serial() == 102 })
	d.write(t, "tls.key", "broken")
	p.signal(syscall.SIGHUP)
	p.until("the complaint", func() bool { return strings.Contains(p.stderr.String(), "the loaded ones stay in use") })
	if serial() != 102 {
		t.Error("broken files took the certificate away")
	}
	if code, stdout, _ := once(t, nil, "", "config", "check", "--config", d.config); code != 1 || !strings.Contains(stdout, "FAIL TLS of listener catalog") {
		t.Errorf("config check of broken files: %d\n%s", code, stdout)
	}
}
