// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// certificateTTL bounds how long a certificate that was verified is
	// believed without looking again.
	certificateTTL = 5 * time.Minute
	// maxChain is how many certificates a client may send.
	maxChain = 8
	// authoritiesEvery is how often the file of authorities is looked at.
	authoritiesEvery = 10 * time.Second
)

// certVerifier checks client certificates of one issuer. TLS has proven that
// the client holds the key; nothing of the certificate was believed yet.
type certVerifier struct {
	name    string
	caFile  string
	domain  string // trust domain; "" when the subject is the common name
	now     func() time.Time
	log     *slog.Logger
	trusted atomic.Pointer[authorities]
}

// authorities are what certificates are checked against. Each load is a new
// one, and what was verified by another is verified again.
type authorities struct {
	pool  *x509.CertPool
	stamp string
}

func newCertVerifier(i *Issuer, now func() time.Time, log *slog.Logger) (*certVerifier, error) {
	v := &certVerifier{name: i.Name, caFile: i.MTLS.CAFile, domain: i.MTLS.TrustDomain, now: now, log: log}
	return v, v.load()
}

// load reads the authorities when their file has changed.
func (v *certVerifier) load() error {
	stamp, err := fileStamp(v.caFile)
	if err != nil {
		return err
	}
	if a := v.trusted.Load(); a != nil && a.stamp == stamp {
		return nil
	}
	pool, err := loadPool(v.caFile)
	if err != nil {
		return err
	}
	v.trusted.Store(&authorities{pool, stamp})
	return nil
}

// reload is load for a running server, where what is loaded stays in use when
// the file cannot be read.
func (v *certVerifier) reload() {
	before := v.trusted.Load()
	if err := v.load(); err != nil {
		v.log.Error("the authorities of client certificates cannot be loaded; the loaded ones stay in use", "issuer", v.name, "error", err)
	} else if v.trusted.Load() != before {
		v.log.Info("authorities of client certificates loaded", "issuer", v.name)
	}
}

// verify returns what a chain of certificates, the client's first, says of
// its holder, as claims, and until when that is believed.
func (v *certVerifier) verify(chain []*x509.Certificate) (map[string]any, time.Time, error) {
	leaf := chain[0]
	now := v.now()
	if len(chain) > maxChain {
		return nil, time.Time{}, errors.New("the client sent too many certificates")
	}
	// Verify takes a certificate without any extended key usage for one of
	// all; here it must be said.
	if leaf.IsCA || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return nil, time.Time{}, errors.New("the certificate is not one for client authentication")
	}
	opts := x509.VerifyOptions{
		Roots: v.trusted.Load().pool, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("the certificate does not verify: %w", err)
	}
	subject, err := v.subject(leaf)
	if err != nil {
		return nil, time.Time{}, err
	}
	until := now.Add(certificateTTL)
	for _, c := range chains[0] {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	uris := make([]string, 0, len(leaf.URIs))
	for _, u := range leaf.URIs {
		uris = append(uris, u.String())
	}
	return map[string]any{
		"sub": subject, "cn": leaf.Subject.CommonName, "o": leaf.Subject.Organization, "ou": leaf.Subject.OrganizationalUnit,
		"san_dns": leaf.DNSNames, "san_uri": uris, "san_email": leaf.EmailAddresses,
	}, until, nil
}

var commonName = asn1.ObjectIdentifier{2, 5, 4, 3}

func (v *certVerifier) subject(leaf *x509.Certificate) (string, error) {
	if v.domain != "" {
		return spiffeID(leaf, v.domain)
	}
	names := 0
	for _, n := range leaf.Subject.Names {
		if n.Type.Equal(commonName) {
			names++
		}
	}
	if names != 1 || leaf.Subject.CommonName == "" {
		return "", errors.New("the certificate has not exactly one common name")
	}
	return leaf.Subject.CommonName, nil
}

var (
	trustDomainForm = regexp.MustCompile(`^[a-z0-9._-]{1,255}$`)
	spiffePathForm  = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)
)

func isTrustDomain(s string) bool { return trustDomainForm.MatchString(s) }

// spiffeID returns a certificate's SPIFFE id (X.509-SVID, sections 2 and 5:
// exactly one URI, which is the id; SPIFFE-ID, section 2: its form).
func spiffeID(leaf *x509.Certificate, domain string) (string, error) {
	if len(leaf.URIs) != 1 {
		return "", fmt.Errorf("the certificate has %d URIs; a SPIFFE certificate has one", len(leaf.URIs))
	}
	if leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return "", errors.New("the certificate may sign others; a SPIFFE certificate of a workload may not")
	}
	u := leaf.URIs[0]
	switch {
	case u.Scheme != "spiffe" || u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || u.Port() != "":
		return "", errors.New("the certificate's URI is not a SPIFFE id")
	case u.Host != domain:
		return "", errors.New("the certificate is of another trust domain")
	case !spiffePathForm.MatchString(u.EscapedPath()) || dotSegment(u):
		return "", errors.New("the path of the certificate's SPIFFE id is not valid")
	}
	return u.String(), nil
}

func dotSegment(u *url.URL) bool {
	for s := range strings.SplitSeq(u.Path, "/") {
		if s == "." || s == ".." {
			return true
		}
	}
	return false
}

// thumbprint is a certificate's in RFC 8705 section 3.1: x5t#S256.
func thumbprint(c *x509.Certificate) [sha256.Size]byte { return sha256.Sum256(c.Raw) }
