// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluice-data/sluice/internal/server/config"
)

// listen opens a listener. What it refuses the configuration has refused
// before; a listener is made in one place, so it is checked here too. With
// askClients, clients of a TLS listener are asked for a certificate; whether
// it is believed is decided with each request.
func listen(ctx context.Context, c config.Listener, askClients bool, log *slog.Logger) (net.Listener, *certificates, error) {
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %q: %w", c.Address, err)
	}
	if c.TLS == nil && !c.Insecure && !config.IsLoopback(host) {
		return nil, nil, fmt.Errorf("listen on %s: a plain listener off loopback needs tls or insecure: true", c.Address)
	}
	var certs *certificates
	if c.TLS != nil {
		if certs, err = newCertificates(*c.TLS, askClients, log); err != nil {
			return nil, nil, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	if certs != nil {
		l = tls.NewListener(l, &tls.Config{
			MinVersion:         certs.minVersion,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return certs.current(), nil },
			NextProtos:         []string{"h2", "http/1.1"},
		})
	}
	return l, certs, nil
}

// certificates holds a listener's TLS configuration and reads the files again
// when they change. Files that do not fit together leave what works in place.
type certificates struct {
	files      config.TLS
	minVersion uint16
	askClients bool
	log        *slog.Logger

	mu      sync.Mutex
	config  *tls.Config
	stamp   string
	checked time.Time
}

// certificateCheck is how often the files are looked at, at most.
const certificateCheck = time.Second

func newCertificates(files config.TLS, askClients bool, log *slog.Logger) (*certificates, error) {
	c := &certificates{files: files, minVersion: tls.VersionTLS12, askClients: askClients, log: log}
	if files.MinVersion == "1.3" {
		c.minVersion = tls.VersionTLS13
	}
	stamp, err := c.stampOf()
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	if c.config, err = c.load(); err != nil {
		return nil, err
	}
	c.stamp, c.checked = stamp, time.Now()
	return c, nil
}

// current returns the configuration for a connection.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= certificateCheck {
		c.checked = now
		if stamp, err := c.stampOf(); err != nil {
			c.log.Error("TLS files cannot be looked at; the loaded ones stay in use", "error", err)
		} else if stamp != c.stamp {
			c.reloadLocked(stamp)
		}
	}
	return c.config
}

// reload reads the files now.
func (c *certificates) reload() {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp, err := c.stampOf()
	if err != nil {
		c.log.Error("TLS files cannot be looked at; the loaded ones stay in use", "error", err)
		return
	}
	c.reloadLocked(stamp)
}

func (c *certificates) reloadLocked(stamp string) {
	next, err := c.load()
	if err != nil {
		// While files are being replaced they may not fit; the next
		// connection looks again.
		c.log.Error("TLS files cannot be loaded; the loaded ones stay in use", "error", err)
		return
	}
	c.config, c.stamp = next, stamp
	c.log.Info("TLS files loaded", "cert", c.files.Cert)
}

// stampOf changes whenever a file does.
func (c *certificates) stampOf() (string, error) {
	stamp := ""
	for _, name := range []string{c.files.Cert, c.files.Key, c.files.ClientCA} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		stamp += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
	}
	return stamp, nil
}

func (c *certificates) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate %s with key %s: %w", c.files.Cert, c.files.Key, err)
	}
	t := &tls.Config{MinVersion: c.minVersion, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if c.askClients {
		t.ClientAuth = tls.RequestClientCert
	}
	if c.files.ClientCA != "" {
		raw, err := os.ReadFile(c.files.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("TLS client_ca: %w", err)
		}
		t.ClientCAs = x509.NewCertPool()
		if !t.ClientCAs.AppendCertsFromPEM(raw) {
			return nil, errors.New("TLS client_ca: no certificate in " + c.files.ClientCA)
		}
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return t, nil
}
