// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package icebergrest is a small client of the Iceberg REST catalog protocol,
// for a command line: it hands on what servers answer, and adds what a person
// needs to know of a failure.
package icebergrest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxAnswer bounds an answer in bytes; the metadata of a table with many
// snapshots is large.
const maxAnswer = 1 << 30

// Error is a refusal by the server: the protocol's error model.
type Error struct {
	Status     int    `json:"code"`
	Type       string `json:"type"`
	Message    string `json:"message"`
	RetryAfter time.Duration
	RequestID  string // as the server logs it; "" when it tells none
}

func (e *Error) Error() string {
	text := e.Message
	if text == "" {
		text = http.StatusText(e.Status)
	}
	return fmt.Sprintf("%s (%d %s)", text, e.Status, e.Type)
}

// IsStatus reports whether an error is the server's answer with that status.
func IsStatus(err error, status int) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == status
}

// Client speaks to one server.
type Client struct {
	URI   string // without "/v1"
	HTTP  *http.Client
	Token func(context.Context) (string, error)
}

// Config is what the server says of a warehouse.
type Config struct {
	Defaults  map[string]string `json:"defaults"`
	Overrides map[string]string `json:"overrides"`
	Endpoints []string          `json:"endpoints,omitempty"`
	Lifetime  string            `json:"idempotency-key-lifetime,omitempty"`
}

// setting is an override, or else a default.
func (c *Config) setting(key string) string {
	if v, ok := c.Overrides[key]; ok {
		return v
	}
	return c.Defaults[key]
}

// Config asks for a warehouse's configuration; "" is the only one that the
// caller may see.
func (c *Client) Config(ctx context.Context, warehouse string) (*Config, error) {
	q := url.Values{}
	if warehouse != "" {
		q.Set("warehouse", warehouse)
	}
	var config Config
	return &config, c.do(ctx, http.MethodGet, "/v1/config", q, nil, &config)
}

// Warehouse is a warehouse of a server.
type Warehouse struct {
	client    *Client
	Config    *Config
	base      string // path up to the prefix
	separator string // of levels, URL-encoded
}

// Warehouse opens one.
func (c *Client) Warehouse(ctx context.Context, name string) (*Warehouse, error) {
	config, err := c.Config(ctx, name)
	if err != nil {
		return nil, err
	}
	w := &Warehouse{client: c, Config: config, base: "/v1", separator: "%1F"}
	if p := config.setting("prefix"); p != "" {
		w.base += "/" + strings.ReplaceAll(url.PathEscape(p), "%2F", "/")
	}
	if s := config.setting("namespace-separator"); s != "" {
		w.separator = s
	}
	return w, nil
}

// Namespace is the levels of a namespace's name.
type Namespace []string

// Ident names a table or view.
type Ident struct {
	Namespace Namespace `json:"namespace"`
	Name      string    `json:"name"`
}

// escape is a path segment as the protocol's clients write it
// (java.net.URLEncoder, but %20 for a space, which all servers read alike).
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func (w *Warehouse) namespacePath(ns Namespace) string {
	levels := make([]string, len(ns))
	for i, l := range ns {
		levels[i] = escape(l)
	}
	return w.base + "/namespaces/" + strings.Join(levels, w.separator)
}

// Path is where a namespace is (kind ""), or a table or view in it (kind
// "tables" or "views").
func (w *Warehouse) Path(id Ident, kind string) string {
	p := w.namespacePath(id.Namespace)
	if kind == "" {
		return p
	}
	p += "/" + kind
	if id.Name != "" {
		p += "/" + escape(id.Name)
	}
	return p
}

// Base is the path of the warehouse.
func (w *Warehouse) Base() string { return w.base }

// Get asks for something, and returns the answer as it came.
func (w *Warehouse) Get(ctx context.Context, path string, q url.Values) (json.RawMessage, error) {
	var raw json.RawMessage
	return raw, w.client.do(ctx, http.MethodGet, path, q, nil, &raw)
}

// Load loads a table as an engine does that wants the catalog's credentials
// for its files.
func (w *Warehouse) Load(ctx context.Context, id Ident) (json.RawMessage, error) {
	var raw json.RawMessage
	h := http.Header{"X-Iceberg-Access-Delegation": {"vended-credentials"}}
	return raw, w.client.do(ctx, http.MethodGet, w.Path(id, "tables"), url.Values{"snapshots": {"refs"}}, nil, &raw, h)
}

// Post sends a change. It carries an Idempotency-Key, so that repeating it
// after a lost answer is safe.
func (w *Warehouse) Post(ctx context.Context, path string, body any) (json.RawMessage, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	var answer json.RawMessage
	return answer, w.client.do(ctx, http.MethodPost, path, nil, raw, &answer)
}

// Delete removes something.
func (w *Warehouse) Delete(ctx context.Context, path string, q url.Values) error {
	return w.client.do(ctx, http.MethodDelete, path, q, nil, nil)
}

// Namespaces lists the children of a namespace, or with nil the top ones.
func (w *Warehouse) Namespaces(ctx context.Context, parent Namespace) ([]Namespace, error) {
	q := url.Values{}
	if len(parent) > 0 {
		// In a query the separator is decoded once, as everything is.
		separator, err := url.PathUnescape(w.separator)
		if err != nil {
			return nil, fmt.Errorf("the server's namespace separator %q: %w", w.separator, err)
		}
		q.Set("parent", strings.Join(parent, separator))
	}
	var all []Namespace
	err := w.pages(ctx, w.base+"/namespaces", q, func(raw []byte) error {
		var page struct{ Namespaces []Namespace }
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Namespaces...)
		return err
	})
	return all, err
}

// List lists the tables or views of a namespace.
func (w *Warehouse) List(ctx context.Context, ns Namespace, kind string) ([]Ident, error) {
	var all []Ident
	err := w.pages(ctx, w.Path(Ident{Namespace: ns}, kind), url.Values{}, func(raw []byte) error {
		var page struct{ Identifiers []Ident }
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Identifiers...)
		return err
	})
	return all, err
}

// pages follows page tokens to the end.
func (w *Warehouse) pages(ctx context.Context, path string, q url.Values, use func([]byte) error) error {
	q.Set("pageToken", "")
	q.Set("pageSize", "1000")
	for {
		raw, err := w.Get(ctx, path, q)
		if err != nil {
			return err
		}
		if err := use(raw); err != nil {
			return fmt.Errorf("GET %s: the answer is not what the protocol says: %w", path, err)
		}
		var next struct {
			Token string `json:"next-page-token"`
		}
		if err := json.Unmarshal(raw, &next); err != nil {
			return err
		}
		switch next.Token {
		case "":
			return nil
		case q.Get("pageToken"):
			return fmt.Errorf("GET %s: the server names the same next page again", path)
		}
		q.Set("pageToken", next.Token)
	}
}

func (c *Client) do(ctx context.Context, method, path string, q url.Values, body []byte, answer any, more ...http.Header) error {
	uri := c.URI + path
	if len(q) > 0 {
		uri += "?" + q.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, uri, reader)
	if err != nil {
		return err
	}
	for _, h := range more {
		maps.Copy(r.Header, h)
	}
	if c.Token != nil {
		token, err := c.Token(ctx)
		if err != nil {
			return err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if method != http.MethodGet {
		key, err := uuid.NewV7()
		if err != nil {
			return err
		}
		r.Header.Set("Idempotency-Key", key.String())
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("%s %s: the answer broke off: %w", method, path, err)
	}
	if len(raw) > maxAnswer {
		return fmt.Errorf("%s %s: the answer has more than %d bytes", method, path, maxAnswer)
	}
	if resp.StatusCode/100 != 2 {
		return refusal(resp, raw)
	}
	if answer == nil || len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("%s %s: the answer is not what the protocol says (is this an Iceberg REST catalog?): %w", method, path, err)
	}
	return nil
}

func refusal(resp *http.Response, raw []byte) error {
	var body struct {
		Error Error `json:"error"`
	}
	e := &body.Error
	// A proxy's page is no reason to fail.
	if json.Unmarshal(raw, &body) != nil {
		*e = Error{Type: "not an Iceberg catalog's answer"}
	}
	e.Status = resp.StatusCode
	e.RequestID = resp.Header.Get("X-Request-Id")
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	return e
}

// ParseIdent reads a name as people write it: levels and the name with dots
// between them, and in double quotes what has dots itself. "" in quotes is one
// quote.
func ParseIdent(s string) ([]string, error) {
	var parts []string
	for rest := s; ; {
		var part string
		if quoted, ok := strings.CutPrefix(rest, `"`); ok {
			var b strings.Builder
			for {
				before, after, found := strings.Cut(quoted, `"`)
				if !found {
					return nil, fmt.Errorf("%s: a quote is not closed", s)
				}
				b.WriteString(before)
				more, doubled := strings.CutPrefix(after, `"`)
				if !doubled {
					rest = after
					break
				}
				b.WriteByte('"')
				quoted = more
			}
			part = b.String()
			if rest != "" && rest[0] != '.' {
				return nil, fmt.Errorf("%s: a dot is missing after %q", s, part)
			}
		} else if i := strings.IndexByte(rest, '.'); i >= 0 {
			part, rest = rest[:i], rest[i:]
		} else {
			part, rest = rest, ""
		}
		if part == "" {
			return nil, fmt.Errorf("%q has an empty level", s)
		}
		parts = append(parts, part)
		if rest == "" {
			return parts, nil
		}
		rest = rest[1:]
	}
}

// String is the inverse of ParseIdent.
func (n Namespace) String() string {
	parts := make([]string, len(n))
	for i, p := range n {
		if p == "" || strings.ContainsAny(p, `."`) {
			p = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
		}
		parts[i] = p
	}
	return strings.Join(parts, ".")
}

// String is the inverse of ParseIdent.
func (i Ident) String() string {
	return append(append(Namespace{}, i.Namespace...), i.Name).String()
}
