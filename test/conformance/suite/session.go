// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxAnswer is the most bytes of an answer that are read.
const maxAnswer = 64 << 20

// session is one run against one target.
type session struct {
	target Target
	base   *url.URL
	client *http.Client
	// prefix is "/v1" or "/v1/<prefix>".
	prefix     string
	config     Response
	advertised map[string]bool // by operation id
	run        string          // random part of all names
	count      atomic.Int64

	mu     sync.Mutex
	probes map[string]error // by feature: nil when the server has it
}

// open asks the target for its configuration.
func open(ctx context.Context, target Target, opts Options) (*session, error) {
	base, err := url.Parse(strings.TrimRight(target.URI, "/"))
	if err != nil {
		return nil, fmt.Errorf("target URI: %w", err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("target URI %q: want http://host[:port][/path] or https://…", target.URI)
	}
	transport := target.Transport
	if transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.DisableCompression = true // cases ask for gzip themselves
		own.MaxIdleConnsPerHost = 128
		transport = own
	}
	s := &session{
		target: target,
		base:   base,
		client: &http.Client{
			Transport:     transport,
			Timeout:       cmp.Or(opts.Timeout, 30*time.Second),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		run:    random(4),
		probes: map[string]error{},
	}
	path := "/v1/config"
	if target.Warehouse != "" {
		path += "?warehouse=" + url.QueryEscape(target.Warehouse)
	}
	resp, err := s.send(ctx, Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return nil, fmt.Errorf("ask the target for its configuration: %w", err)
	}
	if resp.Status != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %d, want 200: %s", path, resp.Status, excerpt(resp.Body))
	}
	var config struct {
		Defaults  map[string]*string `json:"defaults"`
		Overrides map[string]*string `json:"overrides"`
		Endpoints []string           `json:"endpoints"`
	}
	if err := json.Unmarshal(resp.Body, &config); err != nil {
		return nil, fmt.Errorf("GET %s: the answer is no configuration: %w", path, err)
	}
	s.config = *resp
	s.prefix = "/v1"
	for _, settings := range []map[string]*string{config.Defaults, config.Overrides} {
		if p := settings["prefix"]; p != nil && *p != "" {
			s.prefix = "/v1/" + strings.Trim(*p, "/")
		}
	}
	s.advertised = map[string]bool{}
	listed := map[string]bool{}
	for _, e := range config.Endpoints {
		listed[normalEndpoint(e)] = true
	}
	for _, op := range operations() {
		s.advertised[op.id] = opts.AssumeAll || op.always ||
			len(config.Endpoints) == 0 && op.assumed ||
			listed[op.method+" "+op.path]
	}
	return s, nil
}

// normalEndpoint forgives a missing leading slash, which one case reports, so
// that it does not hide what the other cases find.
func normalEndpoint(e string) string {
	verb, path, _ := strings.Cut(strings.TrimSpace(e), " ")
	return strings.ToUpper(verb) + " /" + strings.TrimLeft(path, "/")
}

// Request is one HTTP request. Path follows the target's base URI and is
// already escaped; it may be malformed on purpose.
type Request struct {
	Method string
	Path   string
	Header http.Header
	Body   []byte
	// Auth replaces the Authorization header; nil sends the target's token,
	// a pointer to "" sends none.
	Auth *string
}

// Response is the whole answer to a Request.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// JSON decodes the body, keeping numbers exact.
func (r *Response) JSON() (any, error) {
	d := json.NewDecoder(bytes.NewReader(r.Body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("the body is no JSON (%w): %s", err, excerpt(r.Body))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the JSON value: %s", excerpt(r.Body))
	}
	return v, nil
}

// at returns the string at a path of the body, "" when there is none.
func (r *Response) at(path string) string {
	doc, err := r.JSON()
	if err != nil {
		return ""
	}
	v, ok := lookup(doc, path)
	if !ok || v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// send sends one request. A 429 is obeyed (up to three times, at most five
// seconds each) as every client does.
func (s *session) send(ctx context.Context, r Request) (*Response, error) {
	for attempt := 0; ; attempt++ {
		resp, err := s.sendOnce(ctx, r)
		if err != nil || resp.Status != http.StatusTooManyRequests || attempt == 3 {
			return resp, err
		}
		wait := time.Second
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			wait = time.Duration(n) * time.Second
		}
		select {
		case <-time.After(min(wait, 5*time.Second)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *session) sendOnce(ctx context.Context, r Request) (*Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, s.base.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	if len(r.Body) == 0 {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	// Opaque sends the path as it is: the URL type would repair or refuse
	// escapes that a case has on purpose.
	path, query, asked := strings.Cut(r.Path, "?")
	req.URL = &url.URL{
		Scheme: s.base.Scheme, Host: s.base.Host, Opaque: s.base.EscapedPath() + path,
		RawQuery: query, ForceQuery: asked && query == "",
	}
	for k, v := range r.Header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if r.Body != nil && req.Header["Content-Type"] == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	switch {
	case r.Auth != nil && *r.Auth != "":
		req.Header.Set("Authorization", *r.Auth)
	case r.Auth == nil && s.target.Token != "":
		req.Header.Set("Authorization", "Bearer "+s.target.Token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		var wrapped *url.Error // its text repeats the method and the URL
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("%s %s: %w", r.Method, excerpt([]byte(r.Path)), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", r.Method, excerpt([]byte(r.Path)), err)
	}
	return &Response{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

// excerpt shortens text for one line of a report.
func excerpt(b []byte) string {
	const most = 200
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "�")), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
