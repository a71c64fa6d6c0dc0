// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package session

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// requestLimit bounds one request with its answer.
const requestLimit = 2 * time.Minute

// ParseURI checks the URI of a server and returns it without a slash at its
// end, or "/v1".
func ParseURI(raw string) (string, error) {
	if !strings.Contains(raw, "://") {
		return "", fmt.Errorf("%q is no URI; write https://%s", raw, raw)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("%q is no URI: %w", raw, errors.Unwrap(err))
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%q is neither http nor https", raw)
	case u.Host == "":
		return "", fmt.Errorf("%q names no host", raw)
	case u.User != nil:
		return "", errors.New("a URI must hold no password; sign in instead")
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%q has more than scheme, host and path", raw)
	}
	if err := plainOnlyHere(u); err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/v1"), nil
}

// ErrPlain is in the chain when a secret would have gone over plain HTTP.
var ErrPlain = errors.New("refused")

// plainOnlyHere refuses plain HTTP to anything but this machine.
func plainOnlyHere(u *url.URL) error {
	if u.Scheme != "http" {
		return nil
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: %s is plain HTTP to another machine, and tokens would go there unprotected; use https", ErrPlain, u.Redacted())
}

// UserAgent is what servers see.
var UserAgent = "sharectl"

// HTTPClient returns a client that trusts and presents what a context says.
func (c *Context) HTTPClient() (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	config, err := c.TLS.Config()
	if err != nil {
		return nil, err
	}
	t.TLSClientConfig = config
	return &http.Client{
		Transport: guarded{t},
		Timeout:   requestLimit,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			// A redirect could lead a request, with its token, elsewhere.
			return fmt.Errorf("the server sends elsewhere, to %s; give that URI if it is right", r.URL.Redacted())
		},
	}, nil
}

// Config is TLS as the files say.
func (t TLS) Config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		raw, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// guarded sends nothing over plain HTTP to other machines.
type guarded struct{ next http.RoundTripper }

func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := plainOnlyHere(r.URL); err != nil {
		return nil, err
	}
	if r.Header.Get("User-Agent") == "" {
		r = r.Clone(r.Context())
		r.Header.Set("User-Agent", UserAgent)
	}
	return g.next.RoundTrip(r)
}
