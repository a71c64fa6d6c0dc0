// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxAnswerBytes bounds what is read of an issuer's answer.
	maxAnswerBytes = 1 << 20
	// fetchTimeout bounds one request to an issuer, from the connection to
	// the end of the answer.
	fetchTimeout = 5 * time.Second
	maxRedirects = 3
)

// isLoopback reports whether a URL's host is this machine.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// web asks one issuer. It verifies the issuer's certificate, bounds time and
// size, follows redirects within one host only, and connects to no link-local
// address, where clouds keep their metadata services.
type web struct {
	caFile string // "" for the system's authorities

	mu     sync.Mutex
	client *http.Client
	stamp  string
}

// get returns the body of a 200 answer. bearer is sent when not empty.
func (w *web) get(ctx context.Context, uri, bearer string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	status, body, err := w.do(r)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d", uri, status)
	}
	return body, err
}

// do sends a request. Errors hold neither headers nor bodies.
func (w *web) do(r *http.Request) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), fetchTimeout)
	defer cancel()
	client, err := w.current()
	if err != nil {
		return 0, nil, err
	}
	// The API server of Kubernetes serves its keys as the second only, and
	// answers 406 to who does not name that.
	r.Header.Set("Accept", "application/json, application/jwk-set+json")
	answer, err := client.Do(r.WithContext(ctx))
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes+1))
	if err != nil {
		return 0, nil, fmt.Errorf("read the answer of %s: %w", r.URL.Redacted(), err)
	}
	if len(body) > maxAnswerBytes {
		return 0, nil, fmt.Errorf("the answer of %s is larger than %d bytes", r.URL.Redacted(), maxAnswerBytes)
	}
	return answer.StatusCode, body, nil
}

// current returns the client, made anew when the file of authorities changed.
func (w *web) current() (*http.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.caFile == "" {
		if w.client == nil {
			w.client = newClient(nil)
		}
		return w.client, nil
	}
	stamp, err := fileStamp(w.caFile)
	if err != nil {
		return nil, err
	}
	if w.client == nil || stamp != w.stamp {
		pool, err := loadPool(w.caFile)
		if err != nil {
			return nil, err
		}
		if w.client != nil {
			w.client.CloseIdleConnections()
		}
		w.client, w.stamp = newClient(pool), stamp
	}
	return w.client, nil
}

// close ends idle connections.
func (w *web) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil {
		w.client.CloseIdleConnections()
	}
}

func newClient(roots *x509.CertPool) *http.Client {
	dialer := &net.Dialer{Timeout: fetchTimeout, Control: refuseLinkLocal}
	return &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: fetchTimeout,
			MaxIdleConnsPerHost: 4, MaxConnsPerHost: 32, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			first := via[0]
			if r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host || r.Method != first.Method {
				return errors.New("a redirect to another host is not followed")
			}
			if first.Method != http.MethodGet || len(via) > maxRedirects {
				return errors.New("this redirect is not followed")
			}
			return nil
		},
	}
}

func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if ip := a.Addr().Unmap(); ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
		return fmt.Errorf("no connection is made to %s: a link-local or multicast address is no issuer's", ip)
	}
	return nil
}

// fileStamp changes whenever a file does.
func fileStamp(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %d", info.ModTime().UnixNano(), info.Size()), nil
}

// loadPool reads authorities from a PEM file.
func loadPool(name string) (*x509.CertPool, error) {
	raw, err := readBounded(name)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", name)
	}
	return pool, nil
}

// readToken reads a bearer token from a file.
func readToken(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	raw, err := readBounded(name)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsAny(token, " \r\n") {
		return "", fmt.Errorf("%s does not hold one token", name)
	}
	return token, nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxAnswerBytes+1))
	if err == nil && len(raw) > maxAnswerBytes {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxAnswerBytes)
	}
	return raw, err
}
