// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// authority issues certificates for servers and clients, as files.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its own certificate
}

// newAuthority makes an authority with files in dir, which begin with name.
func newAuthority(dir, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(24 * time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key, file: filepath.Join(dir, name+".pem")}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	return a, writePEM(a.file, "CERTIFICATE", raw)
}

// server issues the certificate of 127.0.0.1.
func (a *authority) server() (cert, key string, err error) {
	return a.issue("server", &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

// client issues a client's certificate with a common name or, when id is not
// "", with a SPIFFE id.
func (a *authority) client(name, id string) (cert, key string, err error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if id != "" {
		u, err := url.Parse(id)
		if err != nil {
			return "", "", err
		}
		template.Subject, template.URIs = pkix.Name{}, []*url.URL{u}
	}
	return a.issue(name, template)
}

func (a *authority) issue(name string, template *x509.Certificate) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template.SerialNumber, template.BasicConstraintsValid, template.KeyUsage = big.NewInt(time.Now().UnixNano()), true, x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = a.cert.NotBefore, a.cert.NotAfter
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	prefix := filepath.Join(a.dir, a.cert.Subject.CommonName+"-"+name)
	if err := writePEM(prefix+".crt", "CERTIFICATE", raw); err != nil {
		return "", "", err
	}
	return prefix + ".crt", prefix + ".key", writePEM(prefix+".key", "PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
