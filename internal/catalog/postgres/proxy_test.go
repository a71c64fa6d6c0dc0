// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package postgres

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy stands between a store and PostgreSQL and can cut connections.
type proxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu sync.Mutex
	// cutAt ends a connection at the first packet from the client that holds
	// it, before it is passed on or, with cutAfter, before PostgreSQL's answer
	// to it is.
	cutAt    []byte
	cutAfter bool
	cuts     int
}

// newProxy returns a proxy for the server of a URL, and the URL through it.
func newProxy(t *testing.T, dsn string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: u.Host}
	u.Host = l.Addr().String()
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	return p, u.String()
}

// cut arms the proxy for one connection.
func (p *proxy) cut(at string, after bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt, p.cutAfter = []byte(at), after
}

func (p *proxy) times() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		silent := make(chan struct{}) // closed when answers are to be dropped
		p.wg.Go(func() { p.forward(client, server, silent) })
		p.wg.Go(func() { answer(client, server, silent) })
	}
}

// forward passes on what the client says, up to the cut.
func (p *proxy) forward(client, server net.Conn, silent chan struct{}) {
	defer client.Close()
	defer server.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		hit, after := p.cutAt != nil && bytes.Contains(buf[:n], p.cutAt), p.cutAfter
		if hit {
			p.cutAt = nil
			p.cuts++
		}
		p.mu.Unlock()
		if hit && !after {
			return
		}
		if hit {
			close(silent)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answer passes on what PostgreSQL says. Once silent, it waits for its answer,
// which proves that it has done its work, and ends the connection instead.
func answer(client, server net.Conn, silent chan struct{}) {
	defer client.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := server.Read(buf)
		select {
		case <-silent:
			return
		default:
		}
		if err != nil {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
