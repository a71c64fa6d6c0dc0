// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"maps"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/telemetry"
)

// route is one operation of the protocol.
type route struct {
	method    string
	pattern   string // as the OpenAPI file writes it
	operation string // its operationId
	serve     func(*call) error
	warehouse bool  // has a prefix
	mutation  bool  // takes an Idempotency-Key
	write     bool  // needs write access
	hidden    bool  // served but not advertised: it has nothing to offer yet
	body      int64 // bounds a body in bytes, where less than the limit of all will do; 0: that limit
	handler   http.Handler
	metrics   *telemetry.Route
}

// maxBody is the bound of a route's own.
func (r *route) maxBody() int64 {
	if r.body > 0 {
		return r.body
	}
	return math.MaxInt64
}

// params are the raw path segments that a pattern names.
type params struct{ prefix, namespace, name string }

const tokensPath = "/v1/oauth/tokens"

// operations is every route; the order is that of the OpenAPI file.
func operations() []*route {
	read := func(method, pattern, operation string, serve func(*call) error) *route {
		return &route{method: method, pattern: pattern, operation: operation, serve: serve, warehouse: strings.Contains(pattern, "{prefix}")}
	}
	change := func(method, pattern, operation string, serve func(*call) error) *route {
		return &route{method: method, pattern: pattern, operation: operation, serve: serve, warehouse: true, mutation: true, write: true}
	}
	const (
		namespaces = "/v1/{prefix}/namespaces"
		namespace  = namespaces + "/{namespace}"
		table      = namespace + "/tables/{table}"
		view       = namespace + "/views/{view}"
	)
	sign := read(http.MethodPost, table+"/sign", "signRequest", (*call).signRequest)
	sign.hidden = true
	report := read(http.MethodPost, table+"/metrics", "reportMetrics", (*call).reportMetrics)
	report.body = maxReport
	return []*route{
		read(http.MethodGet, "/v1/config", "getConfig", (*call).getConfig),
		read(http.MethodGet, namespaces, "listNamespaces", (*call).listNamespaces),
		change(http.MethodPost, namespaces, "createNamespace", (*call).createNamespace),
		read(http.MethodGet, namespace, "loadNamespaceMetadata", (*call).loadNamespace),
		read(http.MethodHead, namespace, "namespaceExists", (*call).namespaceExists),
		change(http.MethodDelete, namespace, "dropNamespace", (*call).dropNamespace),
		change(http.MethodPost, namespace+"/properties", "updateProperties", (*call).updateProperties),
		read(http.MethodGet, namespace+"/tables", "listTables", (*call).listTables),
		change(http.MethodPost, namespace+"/tables", "createTable", (*call).createTable),
		read(http.MethodGet, namespace+"/functions", "listFunctions", (*call).listFunctions),
		read(http.MethodGet, namespace+"/functions/{function}", "loadFunction", (*call).loadFunction),
		change(http.MethodPost, namespace+"/register", "registerTable", (*call).registerTable),
		read(http.MethodGet, table, "loadTable", (*call).loadTable),
		change(http.MethodPost, table, "updateTable", (*call).updateTable),
		change(http.MethodDelete, table, "dropTable", (*call).dropTable),
		read(http.MethodHead, table, "tableExists", (*call).tableExists),
		change(http.MethodPost, table+"/unregister", "unregisterTable", (*call).unregisterTable),
		read(http.MethodGet, table+"/credentials", "loadCredentials", (*call).loadCredentials),
		sign,
		change(http.MethodPost, "/v1/{prefix}/tables/rename", "renameTable", (*call).renameTable),
		report,
		change(http.MethodPost, "/v1/{prefix}/transactions/commit", "commitTransaction", (*call).commitTransaction),
		read(http.MethodGet, namespace+"/views", "listViews", (*call).listViews),
		change(http.MethodPost, namespace+"/views", "createView", (*call).createView),
		read(http.MethodGet, view, "loadView", (*call).loadView),
		change(http.MethodPost, view, "replaceView", (*call).replaceView),
		change(http.MethodDelete, view, "dropView", (*call).dropView),
		read(http.MethodHead, view, "viewExists", (*call).viewExists),
		change(http.MethodPost, "/v1/{prefix}/views/rename", "renameView", (*call).renameView),
		change(http.MethodPost, namespace+"/register-view", "registerView", (*call).registerView),
	}
}

// node is a segment in the tree of routes.
type node struct {
	literal map[string]*node
	any     *node
	methods map[string]*route
}

func (h *Handler) buildRoutes() *node {
	all := operations()
	if h.cfg.Tokens != nil {
		all = append(all, &route{method: http.MethodPost, pattern: tokensPath, operation: "getToken", handler: h.cfg.Tokens})
	}
	h.unrouted = &route{pattern: "unknown", operation: "unknown"}
	if h.cfg.Metrics != nil {
		// The method is the client's choice and so no label.
		h.unrouted.metrics = h.cfg.Metrics.Route("unknown", "any")
	}
	root := &node{}
	for _, r := range all {
		if h.cfg.Metrics != nil {
			r.metrics = h.cfg.Metrics.Route(r.operation, r.method)
		}
		n := root
		for segment := range strings.SplitSeq(strings.TrimPrefix(r.pattern, "/"), "/") {
			n = n.child(segment)
		}
		if n.methods == nil {
			n.methods = map[string]*route{}
		}
		n.methods[r.method] = r
	}
	return root
}

func (n *node) child(segment string) *node {
	if strings.HasPrefix(segment, "{") {
		if n.any == nil {
			n.any = &node{}
		}
		return n.any
	}
	if n.literal == nil {
		n.literal = map[string]*node{}
	}
	if n.literal[segment] == nil {
		n.literal[segment] = &node{}
	}
	return n.literal[segment]
}

// endpoints lists what is served, as /v1/config advertises it.
func endpoints() []string {
	var all []string
	for _, r := range operations() {
		if !r.hidden && r.warehouse {
			all = append(all, r.method+" "+r.pattern)
		}
	}
	return all
}

// match finds the route of a request by its escaped path, and what the path
// holds in the places that the pattern names. It always returns a route,
// since metrics and logs want one: with an error, the one that stands for
// requests that no route takes.
func (h *Handler) match(r *http.Request) (*route, params, error) {
	path := r.URL.EscapedPath()
	var p params
	if rest, ok := strings.CutPrefix(path, "/"); ok {
		if n := h.root.find(rest, 0, &p); n != nil {
			if route := n.methods[r.Method]; route != nil {
				return route, p, nil
			}
			allow := strings.Join(slices.Sorted(maps.Keys(n.methods)), ", ")
			return h.unrouted, p, &methodError{allow: allow, method: clip(r.Method), path: clip(path)}
		}
	}
	if path == tokensPath {
		return h.unrouted, p, catalog.Errorf(catalog.NotFound, "This catalog issues no tokens; configure the client with one from elsewhere")
	}
	return h.unrouted, p, catalog.Errorf(catalog.NotFound, "No such route: %s %s", clip(r.Method), clip(path))
}

// find descends along the segments of path. A literal goes before a name, but
// when it leads nowhere the name is tried: a warehouse may be called "config".
// depth is how many names the way has already taken.
func (n *node) find(path string, depth int, p *params) *node {
	segment, rest, more := strings.Cut(path, "/")
	if next := n.literal[segment]; next != nil {
		if found := next.end(rest, more, depth, p); found != nil {
			return found
		}
	}
	if n.any == nil {
		return nil
	}
	// Patterns hold prefix, namespace and one more name, in this order.
	switch depth {
	case 0:
		p.prefix = segment
	case 1:
		p.namespace = segment
	case 2:
		p.name = segment
	}
	return n.any.end(rest, more, depth+1, p)
}

// end goes on when more segments follow, and else stops at n if that is the
// end of any route.
func (n *node) end(rest string, more bool, depth int, p *params) *node {
	if more {
		return n.find(rest, depth, p)
	}
	if len(n.methods) == 0 {
		return nil
	}
	return n
}

// methodError is a 405.
type methodError struct{ allow, method, path string }

func (e *methodError) Error() string {
	return "The method " + e.method + " is not allowed for " + e.path + "; allowed: " + e.allow
}

// clip shortens what a client sent for a message, at the start of a rune.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func stack() string { return string(debug.Stack()) }
