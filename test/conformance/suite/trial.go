// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// Trial is one run of one case: its namespace, its variables, what it found.
// Requests may be sent from several goroutines; findings too.
type Trial struct {
	s *session
	c Case
	// ns is the name of the case's own top-level namespace.
	ns string

	mu       sync.Mutex
	vars     map[string]any
	findings []finding
	made     [][]string // namespaces to remove, as levels
}

type finding struct {
	severity Severity
	text     string
}

func (s *session) newTrial(c Case) *Trial {
	ns := fmt.Sprintf("cf_%s_%d", s.run, s.count.Add(1))
	return &Trial{s: s, c: c, ns: ns, vars: map[string]any{
		"p":         s.prefix,
		"ns":        ns,
		"warehouse": s.target.Warehouse,
		"s":         s.joiner(),
	}}
}

func (t *Trial) run(ctx context.Context) error {
	for _, n := range t.c.Needs {
		if err := t.s.have(ctx, n); err != nil {
			return err
		}
	}
	if !t.c.NoNamespace {
		if err := t.createOwnNamespace(ctx); err != nil {
			return err
		}
	}
	return t.c.Check(ctx, t)
}

func (t *Trial) createOwnNamespace(ctx context.Context) error {
	resp, err := t.post(ctx, "${p}/namespaces", map[string]any{"namespace": []any{t.ns}})
	if err != nil {
		return fmt.Errorf("set-up: create the case's namespace: %w", err)
	}
	if resp.Status != http.StatusOK {
		return fmt.Errorf("set-up: create the case's namespace: status %d: %s", resp.Status, excerpt(resp.Body))
	}
	return nil
}

// report records a finding of the given severity, never graver than the case.
// Secrets that an answer may hold are blotted out.
func (t *Trial) report(s Severity, format string, args ...any) {
	text := t.s.redact(fmt.Sprintf(format, args...))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.findings = append(t.findings, finding{milder(s, t.c.Severity), text})
}

// redact blots out the target's tokens and the values of members that hold
// secrets, in text that may be cut off or escaped.
func (s *session) redact(text string) string {
	_, secret, _ := strings.Cut(s.target.Credential, ":")
	for _, known := range []string{s.target.Token, s.target.Token2, secret} {
		// Very short ones would blot out ordinary words, and are no secrets.
		if len(known) >= 8 {
			text = strings.ReplaceAll(text, known, "[redacted]")
		}
	}
	member := regexp.MustCompile(`(?i)(\\?"[^"\\]*(?:access_token|refresh_token|id_token|secret|session-token|sas-token|oauth2\.token|adls\.token|account-key)[^"\\]*\\?"\s*:\s*\\?")[^"\\]*`)
	return member.ReplaceAllString(text, "${1}[redacted]")
}

// set gives a variable its value.
func (t *Trial) set(name string, value any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vars[name] = value
}

// get sends a GET; path may hold variables, as in YAML cases.
func (t *Trial) get(ctx context.Context, path string) (*Response, error) {
	return t.do(ctx, Request{Method: http.MethodGet, Path: path})
}

// post sends a POST of body as JSON. Both may hold variables.
func (t *Trial) post(ctx context.Context, path string, body any) (*Response, error) {
	expanded, err := t.expand(body)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(expanded)
	if err != nil {
		return nil, fmt.Errorf("encode the body of POST %s: %w", path, err)
	}
	return t.do(ctx, Request{Method: http.MethodPost, Path: path, Body: b})
}

// do expands the path, sends the request, and remembers a namespace that it
// made, for cleanUp.
func (t *Trial) do(ctx context.Context, r Request) (*Response, error) {
	path, err := t.expandString(r.Path)
	if err != nil {
		return nil, err
	}
	r.Path = fmt.Sprint(path)
	resp, err := t.s.send(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodPost && r.Path == t.s.prefix+"/namespaces" && resp.Status/100 == 2 {
		var made struct {
			Namespace []string `json:"namespace"`
		}
		// The answer tells what was made even when the request was odd.
		if json.Unmarshal(resp.Body, &made) != nil || len(made.Namespace) == 0 {
			_ = json.Unmarshal(r.Body, &made)
		}
		if len(made.Namespace) > 0 {
			t.mu.Lock()
			t.made = append(t.made, made.Namespace)
			t.mu.Unlock()
		}
	}
	return resp, nil
}

// createTable creates a table with the columns "id long required" and
// "data string" in the case's namespace. On success it sets the variables
// uuid.NAME, loc.NAME, meta.NAME (metadata location) and etag.NAME.
func (t *Trial) createTable(ctx context.Context, name string, properties map[string]any) (*Response, error) {
	body := map[string]any{"name": name, "schema": map[string]any{"$schema": []any{0, "1 id long!", "2 data string"}}}
	if properties != nil {
		body["properties"] = properties
	}
	resp, err := t.post(ctx, "${p}/namespaces/${ns}/tables", body)
	if err != nil {
		return nil, err
	}
	t.remember(name, resp)
	return resp, nil
}

// remember sets the variables of a table or view from an answer that holds
// its metadata.
func (t *Trial) remember(name string, resp *Response) {
	if resp.Status != http.StatusOK {
		return
	}
	id := resp.at("metadata/table-uuid")
	if id == "" {
		id = resp.at("metadata/view-uuid")
	}
	t.set("uuid."+name, id)
	t.set("loc."+name, strings.TrimRight(resp.at("metadata/location"), "/"))
	t.set("meta."+name, resp.at("metadata-location"))
	t.set("etag."+name, resp.Header.Get("ETag"))
}

// mustTable is createTable for a set-up: anything but 200 is an error.
func (t *Trial) mustTable(ctx context.Context, name string, properties map[string]any) error {
	resp, err := t.createTable(ctx, name, properties)
	if err != nil {
		return fmt.Errorf("set-up: create table %s: %w", name, err)
	}
	if resp.Status != http.StatusOK {
		return fmt.Errorf("set-up: create table %s: status %d: %s", name, resp.Status, excerpt(resp.Body))
	}
	return wantIdentity("table", name, resp)
}

// mustView creates a view for a set-up.
func (t *Trial) mustView(ctx context.Context, name string) error {
	resp, err := t.post(ctx, "${p}/namespaces/${ns}/views", viewBody(name))
	if err != nil {
		return fmt.Errorf("set-up: create view %s: %w", name, err)
	}
	if resp.Status != http.StatusOK {
		return fmt.Errorf("set-up: create view %s: status %d: %s", name, resp.Status, excerpt(resp.Body))
	}
	t.remember(name, resp)
	return wantIdentity("view", name, resp)
}

// wantIdentity checks that the answer to a create has what the cases build on.
func wantIdentity(kind, name string, resp *Response) error {
	for _, path := range []string{"metadata-location", "metadata/location", "metadata/" + kind + "-uuid"} {
		if resp.at(path) == "" {
			return fmt.Errorf("set-up: create %s %s: the answer has no %s: %s", kind, name, path, excerpt(resp.Body))
		}
	}
	return nil
}

func viewBody(name string) map[string]any {
	return map[string]any{
		"name":         name,
		"schema":       map[string]any{"$schema": []any{0, "1 id long"}},
		"view-version": map[string]any{"$view-version": map[string]any{"version-id": 1}},
		"properties":   map[string]any{},
	}
}

// commit sends a commit of one table in the case's namespace.
func (t *Trial) commit(ctx context.Context, table string, requirements, updates []any) (*Response, error) {
	return t.post(ctx, "${p}/namespaces/${ns}/tables/"+table, commitBody(requirements, updates))
}

func commitBody(requirements, updates []any) map[string]any {
	if requirements == nil {
		requirements = []any{}
	}
	if updates == nil {
		updates = []any{}
	}
	return map[string]any{"requirements": requirements, "updates": updates}
}

// wantStatus reports a status that is not among want.
func (t *Trial) wantStatus(s Severity, what string, resp *Response, want ...int) bool {
	if slices.Contains(want, resp.Status) {
		return true
	}
	t.report(s, "%s: status %d, want %s: %s", what, resp.Status, orList(want), excerpt(resp.Body))
	return false
}

// wantError reports an answer that is not the protocol's error model, and a
// type other than want; typeSeverity is how much the type matters.
func (t *Trial) wantError(what string, resp *Response, want string, typeSeverity Severity) {
	shape := Must
	if resp.Status == http.StatusBadRequest {
		// "in some cases simple text/plain content might be returned by the
		// server's middleware" (spec BadRequestErrorResponse).
		shape = Should
	}
	var body struct {
		Error *struct {
			Message *string `json:"message"`
			Type    *string `json:"type"`
			Code    *int    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil || body.Error == nil ||
		body.Error.Message == nil || body.Error.Type == nil || body.Error.Code == nil {
		t.report(shape, "%s: the body of the %d is not {\"error\":{message,type,code}}: %s", what, resp.Status, excerpt(resp.Body))
		return
	}
	if *body.Error.Code != resp.Status {
		t.report(shape, "%s: error.code is %d, the status %d", what, *body.Error.Code, resp.Status)
	}
	if *body.Error.Message == "" {
		t.report(Should, "%s: error.message is empty", what)
	}
	if want != "" && *body.Error.Type != want && !sameBadRequest(want, *body.Error.Type) {
		t.report(typeSeverity, "%s: error.type is %q, want %q", what, *body.Error.Type, want)
	}
}

// sameBadRequest tells whether both types mean a 400 to released clients: Java
// makes IllegalArgumentException of that type and BadRequestException of every
// other (ErrorHandlers.DefaultErrorHandler), and the reference server sends
// ValidationException for updates that contradict the metadata.
func sameBadRequest(a, b string) bool {
	kinds := []string{"BadRequestException", "IllegalArgumentException", "ValidationException"}
	return slices.Contains(kinds, a) && slices.Contains(kinds, b)
}

// wantJSON checks that a successful answer with a body says that it is JSON.
func (t *Trial) wantJSON(what string, resp *Response) {
	if len(resp.Body) == 0 {
		return
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		t.report(Should, "%s: Content-Type is %q, want application/json", what, resp.Header.Get("Content-Type"))
	}
}

func orList(codes []int) string {
	words := make([]string, len(codes))
	for i, c := range codes {
		words[i] = fmt.Sprint(c)
	}
	return strings.Join(words, " or ")
}

// cleanUp removes everything in the namespaces that the trial made and returns
// those that would not go.
func (t *Trial) cleanUp(ctx context.Context) (left []string) {
	// Children before parents.
	slices.SortFunc(t.made, func(a, b []string) int { return len(b) - len(a) })
	done := map[string]bool{}
	for _, levels := range t.made {
		path := t.s.escapeLevels(levels)
		if done[path] {
			continue
		}
		done[path] = true
		err := t.removeNamespace(ctx, levels, 0)
		if err != nil {
			// Once more: a server may have closed the connection after a
			// malformed request.
			err = t.removeNamespace(ctx, levels, 0)
		}
		if err != nil {
			left = append(left, strings.Join(levels, "."))
		}
	}
	return left
}

// sweep removes top-level namespaces of this run that are still there, such as
// one that a server made unasked.
func (s *session) sweep(ctx context.Context) {
	list, err := s.send(ctx, Request{Method: http.MethodGet, Path: s.prefix + "/namespaces"})
	if err != nil {
		return
	}
	var names struct {
		Namespaces [][]string `json:"namespaces"`
	}
	if json.Unmarshal(list.Body, &names) != nil {
		return
	}
	t := s.newTrial(Case{ID: "sweep", Severity: Must})
	for _, levels := range names.Namespaces {
		if len(levels) == 1 && strings.HasPrefix(levels[0], "cf_"+s.run+"_") {
			t.made = append(t.made, levels)
		}
	}
	t.cleanUp(ctx)
}

func (t *Trial) removeNamespace(ctx context.Context, levels []string, depth int) error {
	const deepest = 8
	if depth > deepest {
		return errors.New("namespaces are nested too deep to remove")
	}
	ns := t.s.prefix + "/namespaces/" + t.s.escapeLevels(levels)
	send := func(method, path string) (*Response, error) {
		return t.s.send(ctx, Request{Method: method, Path: path})
	}
	resp, err := send(http.MethodDelete, ns)
	if err != nil {
		return err
	}
	if resp.Status/100 == 2 || resp.Status == http.StatusNotFound {
		return nil
	}
	for _, kind := range []string{"tables", "views"} {
		list, err := send(http.MethodGet, ns+"/"+kind)
		if err != nil {
			return err
		}
		var names struct {
			Identifiers []struct {
				Name string `json:"name"`
			} `json:"identifiers"`
		}
		if list.Status != http.StatusOK || json.Unmarshal(list.Body, &names) != nil {
			continue // no views here, or none that can be listed
		}
		for _, n := range names.Identifiers {
			if _, err := send(http.MethodDelete, ns+"/"+kind+"/"+escapeName(n.Name)); err != nil {
				return err
			}
		}
	}
	list, err := send(http.MethodGet, t.s.prefix+"/namespaces?parent="+t.s.escapeLevels(levels))
	if err != nil {
		return err
	}
	var children struct {
		Namespaces [][]string `json:"namespaces"`
	}
	if list.Status == http.StatusOK && json.Unmarshal(list.Body, &children) == nil {
		for _, child := range children.Namespaces {
			// Only what lies below: a server that ignores parent must not
			// make the suite delete what others own.
			if len(child) <= len(levels) || !slices.Equal(child[:len(levels)], levels) {
				continue
			}
			if err := t.removeNamespace(ctx, child, depth+1); err != nil {
				return err
			}
		}
	}
	resp, err = send(http.MethodDelete, ns)
	if err != nil {
		return err
	}
	if resp.Status/100 != 2 && resp.Status != http.StatusNotFound {
		return fmt.Errorf("status %d", resp.Status)
	}
	return nil
}

// escapeName escapes a name for one segment of a path. Spaces become %20: "+"
// means a space only to clients that form-encode, which one case looks at.
func escapeName(name string) string {
	return strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
}

// escapeLevels joins levels for a path or a query.
func (s *session) escapeLevels(levels []string) string {
	escaped := make([]string, len(levels))
	for i, l := range levels {
		escaped[i] = escapeName(l)
	}
	return strings.Join(escaped, s.joiner())
}

// newKey returns a fresh Idempotency-Key: UUIDv7 (spec parameter
// idempotency-key).
func newKey() string { return uuid.Must(uuid.NewV7()).String() }
