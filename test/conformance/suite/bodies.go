// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// bodyCases look at how bodies travel: compression, size, HEAD.
func bodyCases() []Case {
	const section = "Bodies"
	squeeze := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(b) // a bytes.Buffer takes everything
		_ = w.Close()
		return out.Bytes()
	}
	namespace := func(t *Trial) []byte { return fmt.Appendf(nil, `{"namespace":[%q]}`, t.ns+"_gz") }
	gzipped := http.Header{"Content-Encoding": {"gzip"}}
	return []Case{
		{
			ID: "gzip.request", Section: section, Severity: Must, Needs: []string{"createNamespace"},
			Title: "a request with Content-Encoding: gzip is understood",
			Ref:   "Java HTTPClient compresses every request body",
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := t.do(ctx, Request{Method: http.MethodPost, Path: "${p}/namespaces", Header: gzipped, Body: squeeze(namespace(t))})
				if err != nil {
					return err
				}
				if resp.Status == http.StatusOK {
					// The suite could not read its own request back.
					t.made = append(t.made, []string{t.ns + "_gz"})
				}
				if t.wantStatus(Must, "createNamespace with a gzip body", resp, http.StatusOK) && resp.at("namespace/0") != t.ns+"_gz" {
					t.report(Must, "the answer is %s", excerpt(resp.Body))
				}
				return nil
			},
		},
		{
			ID: "gzip.not-gzip", Section: section, Severity: Must, Needs: []string{"createNamespace"},
			Title: "a body that says gzip and is not is 400",
			Ref:   "spec BadRequestErrorResponse",
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := t.do(ctx, Request{Method: http.MethodPost, Path: "${p}/namespaces", Header: gzipped, Body: namespace(t)})
				if err != nil {
					return err
				}
				if t.wantStatus(Must, "createNamespace with a broken gzip body", resp, http.StatusBadRequest) {
					t.wantError("createNamespace with a broken gzip body", resp, "", Should)
				}
				return nil
			},
		},
		{
			ID: "gzip.truncated", Section: section, Severity: Must, Needs: []string{"createNamespace"},
			Title: "a gzip body that ends early is 400",
			Ref:   "spec BadRequestErrorResponse",
			Check: func(ctx context.Context, t *Trial) error {
				whole := squeeze(namespace(t))
				resp, err := t.do(ctx, Request{Method: http.MethodPost, Path: "${p}/namespaces", Header: gzipped, Body: whole[:len(whole)-9]})
				if err != nil {
					return err
				}
				t.wantStatus(Must, "createNamespace with a truncated gzip body", resp, http.StatusBadRequest)
				return nil
			},
		},
		{
			ID: "gzip.bomb", Section: section, Severity: Must, Needs: []string{"createNamespace"},
			Title: "one megabyte that inflates to a gigabyte is refused (400 or 413), and the server lives on",
			Ref:   "attack: decompression bomb",
			Check: func(ctx context.Context, t *Trial) error {
				var out bytes.Buffer
				w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
				_, _ = io.WriteString(w, `{"namespace":["`)
				chunk := bytes.Repeat([]byte{'a'}, 1<<20)
				for range 1 << 10 {
					_, _ = w.Write(chunk)
				}
				_, _ = io.WriteString(w, `"]}`)
				_ = w.Close()
				resp, err := t.do(ctx, Request{Method: http.MethodPost, Path: "${p}/namespaces", Header: gzipped, Body: out.Bytes()})
				if err != nil {
					// A server may stop reading and close.
					return alive(ctx, t)
				}
				t.wantStatus(Must, "the bomb", resp, http.StatusBadRequest, http.StatusRequestEntityTooLarge)
				return alive(ctx, t)
			},
		},
		{
			ID: "encoding.unknown", Section: section, Severity: Should, Needs: []string{"createNamespace"},
			Title: "an unknown Content-Encoding is 415 or 400",
			Ref:   "RFC 9110 section 15.5.16",
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := t.do(ctx, Request{Method: http.MethodPost, Path: "${p}/namespaces", Header: http.Header{"Content-Encoding": {"rot13"}}, Body: namespace(t)})
				if err != nil {
					return err
				}
				t.wantStatus(Should, "createNamespace with Content-Encoding: rot13", resp, http.StatusUnsupportedMediaType, http.StatusBadRequest)
				return nil
			},
		},
		{
			ID: "gzip.response", Section: section, Severity: Should, Needs: []string{"createTable", "loadTable"},
			Title: "a large answer is compressed for a client that accepts gzip, and is the same",
			Ref:   "Java HTTPClient and PyIceberg send Accept-Encoding: gzip",
			Check: func(ctx context.Context, t *Trial) error {
				properties := map[string]any{}
				for i := range 500 {
					properties[fmt.Sprintf("conformance.key.%03d", i)] = strings.Repeat("v", 50)
				}
				if err := t.mustTable(ctx, "t", properties); err != nil {
					return err
				}
				const path = "${p}/namespaces/${ns}/tables/t"
				plain, err := t.do(ctx, Request{Method: http.MethodGet, Path: path, Header: http.Header{"Accept-Encoding": {"identity"}}})
				if err != nil {
					return err
				}
				if e := plain.Header.Get("Content-Encoding"); e != "" && e != "identity" {
					t.report(Must, "Accept-Encoding: identity is answered with Content-Encoding %s", e)
					return nil
				}
				small, err := t.do(ctx, Request{Method: http.MethodGet, Path: path, Header: http.Header{"Accept-Encoding": {"gzip"}}})
				if err != nil {
					return err
				}
				if e := small.Header.Get("Content-Encoding"); e != "gzip" {
					t.report(Should, "%d bytes came with Content-Encoding %q, want gzip", len(small.Body), e)
					return nil
				}
				r, err := gzip.NewReader(bytes.NewReader(small.Body))
				if err != nil {
					return fmt.Errorf("the answer says gzip and is not: %w", err)
				}
				inflated, err := io.ReadAll(r)
				if err != nil {
					return fmt.Errorf("the answer says gzip and breaks off: %w", err)
				}
				if !bytes.Equal(inflated, plain.Body) {
					t.report(Should, "the compressed answer is not the plain one")
				}
				if !strings.Contains(strings.ToLower(strings.Join(small.Header.Values("Vary"), ",")), "accept-encoding") {
					t.report(Should, "Vary does not name Accept-Encoding (RFC 9110 section 12.5.5)")
				}
				return nil
			},
		},
		{
			ID: "body.large", Section: section, Severity: Should, Needs: []string{"createTable", "updateTable"},
			Title: "a commit of two megabytes is taken, or refused with 413",
			Ref:   "RFC 9110 section 15.5.14; real commits carry thousands of updates",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				properties := map[string]any{}
				for i := range 2000 {
					properties[fmt.Sprintf("k%d", i)] = strings.Repeat("v", 1000)
				}
				resp, err := t.commit(ctx, "t", nil, []any{map[string]any{"action": "set-properties", "updates": properties}})
				if err != nil {
					return err
				}
				t.wantStatus(Should, "the commit", resp, http.StatusOK, http.StatusRequestEntityTooLarge)
				return nil
			},
		},
		{
			ID: "body.many-updates", Section: section, Severity: Must, Needs: []string{"createTable", "updateTable"},
			Title: "a commit of 20,000 updates is taken or refused (400, 413), never a 5xx",
			Ref:   "attack: many updates",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				updates := make([]any, 20000)
				for i := range updates {
					updates[i] = map[string]any{"action": "set-properties", "updates": map[string]any{"k": fmt.Sprint(i)}}
				}
				resp, err := t.commit(ctx, "t", nil, updates)
				if err != nil {
					return err
				}
				t.wantStatus(Must, "the commit", resp, http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge)
				return alive(ctx, t)
			},
		},
		{
			ID: "body.endless", Section: section, Severity: Should, Needs: []string{"createNamespace"},
			Title: "300 megabytes in chunks without a length are not read to the end",
			Ref:   "attack: body over the limit; RFC 9110 section 15.5.14",
			Check: func(ctx context.Context, t *Trial) error {
				const size = 300 << 20
				sent := &counter{r: io.LimitReader(endless{}, size)}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.s.base.String()+t.s.prefix+"/namespaces",
					io.MultiReader(strings.NewReader(`{"namespace":["`), sent))
				if err != nil {
					return err
				}
				req.Header.Set("Content-Type", "application/json")
				if t.s.target.Token != "" {
					req.Header.Set("Authorization", "Bearer "+t.s.target.Token)
				}
				// Whether the answer or the closed connection is seen first
				// is chance, so only how much was taken counts, and that it
				// was no success.
				resp, err := t.s.client.Do(req)
				if err == nil {
					body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
					_ = resp.Body.Close()
					if resp.StatusCode/100 == 2 {
						t.report(Should, "the body that never ends is answered with %d: %s", resp.StatusCode, excerpt(body))
					}
				}
				if n := sent.n.Load(); n >= size {
					t.report(Should, "all %d bytes were read", n)
				}
				return alive(ctx, t)
			},
		},
		headCase("head.namespace", "namespaceExists", "${p}/namespaces/${ns}", http.StatusNoContent, nil),
		headCase("head.table", "tableExists", "${p}/namespaces/${ns}/tables/t", http.StatusNoContent, func(ctx context.Context, t *Trial) error {
			return t.mustTable(ctx, "t", nil)
		}),
		headCase("head.view", "viewExists", "${p}/namespaces/${ns}/views/v", http.StatusNoContent, func(ctx context.Context, t *Trial) error {
			return t.mustView(ctx, "v")
		}),
		headCase("head.no-namespace", "namespaceExists", "${p}/namespaces/${ns}_none", http.StatusNotFound, nil),
		headCase("head.no-table", "tableExists", "${p}/namespaces/${ns}/tables/none", http.StatusNotFound, nil),
		headCase("head.no-view", "viewExists", "${p}/namespaces/${ns}/views/none", http.StatusNotFound, nil),
		{
			ID: "body.location-of-properties", Section: section, Severity: Must, Needs: []string{"createTable", "loadTable"},
			Title: "property values come back byte for byte: quotes, control characters, emoji, 60 KB",
			Ref:   "RFC 8259; spec TableMetadata.properties",
			Check: func(ctx context.Context, t *Trial) error {
				want := map[string]any{
					"q": `a"b\c/d`, "control": "a\tb\nc\u0001", "emoji": "🧊 é é \u2028", "html": "<a href='x'>&amp;</a>",
					"empty": "", "long": strings.Repeat("x", 60000), "key with ünïcode": "v",
				}
				if err := t.mustTable(ctx, "t", want); err != nil {
					return err
				}
				resp, err := t.get(ctx, "${p}/namespaces/${ns}/tables/t")
				if err != nil {
					return err
				}
				var body struct {
					Metadata struct {
						Properties map[string]string `json:"properties"`
					} `json:"metadata"`
				}
				if err := json.Unmarshal(resp.Body, &body); err != nil {
					return fmt.Errorf("load the table: %w", err)
				}
				for k, v := range want {
					if got, ok := body.Metadata.Properties[k]; !ok || got != v {
						t.report(Must, "property %q is %s, want %s", k, show(got), show(v))
					}
				}
				return nil
			},
		},
	}
}

// endless reads as the letter a for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// counter counts what is read through it.
type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// alive checks that the server still answers.
func alive(ctx context.Context, t *Trial) error {
	resp, err := t.get(ctx, "${p}/namespaces/${ns}")
	if err != nil {
		t.report(Must, "the server does not answer any more: %v", err)
		return nil
	}
	t.wantStatus(Must, "the next request", resp, http.StatusOK)
	return nil
}

// headCase sends a HEAD over a connection of its own, because an HTTP client
// hides a body that must not be there.
func headCase(id, op, path string, want int, given func(context.Context, *Trial) error) Case {
	return Case{
		ID: id, Section: "Bodies", Severity: Must, Needs: []string{op},
		Title: fmt.Sprintf("HEAD %s is %d without a body", strings.NewReplacer("${p}", "", "${ns}", "NS").Replace(path), want),
		Ref:   "spec " + op + " (\"The response does not contain a body\"); RFC 9110 section 9.3.2; iceberg 12283",
		Check: func(ctx context.Context, t *Trial) error {
			if given != nil {
				if err := given(ctx, t); err != nil {
					return err
				}
			}
			expanded, err := t.expandString(path)
			if err != nil {
				return err
			}
			status, rest, err := t.s.head(ctx, fmt.Sprint(expanded))
			if err != nil {
				return fmt.Errorf("HEAD: %w", err)
			}
			t.wantStatus(Must, "HEAD", &Response{Status: status, Body: rest}, want)
			if len(rest) > 0 {
				t.report(Must, "%d bytes follow the headers: %s", len(rest), excerpt(rest))
			}
			return nil
		},
	}
}

// head sends a HEAD that closes the connection and returns the status and all
// bytes after the header.
func (s *session) head(ctx context.Context, path string) (status int, rest []byte, err error) {
	address := s.base.Host
	if s.base.Port() == "" {
		address = net.JoinHostPort(s.base.Hostname(), map[string]string{"http": "80", "https": "443"}[s.base.Scheme])
	}
	var conn net.Conn
	if s.base.Scheme == "https" {
		d := &tls.Dialer{}
		if transport, ok := s.client.Transport.(*http.Transport); ok && transport.TLSClientConfig != nil {
			d.Config = transport.TLSClientConfig.Clone()
			d.Config.NextProtos = nil // HTTP/1.1
		}
		conn, err = d.DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return 0, nil, err
	}
	auth := ""
	if s.target.Token != "" {
		auth = "Authorization: Bearer " + s.target.Token + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "HEAD %s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", s.base.EscapedPath()+path, s.base.Host, auth); err != nil {
		return 0, nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodHead})
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	rest, err = io.ReadAll(io.LimitReader(r, 1<<16))
	return resp.StatusCode, rest, err
}
