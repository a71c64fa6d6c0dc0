// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-data/sluice/test/conformance/cases"
)

// file is one YAML file of cases.
type file struct {
	Section string      `yaml:"section"`
	Define  any         `yaml:"define"` // a place for YAML anchors
	Cases   []dataCase  `yaml:"cases"`
	Tables  []dataTable `yaml:"tables"`
}

// dataCase is a case made of steps.
type dataCase struct {
	ID          string   `yaml:"id"`
	Title       string   `yaml:"title"`
	Ref         string   `yaml:"ref"`
	Severity    Severity `yaml:"severity"`
	Needs       []string `yaml:"needs"`
	NoNamespace bool     `yaml:"no-namespace"`
	Steps       []step   `yaml:"steps"`
}

// dataTable is one valid request and rows that each spoil it in one way; each
// row is a case of its own, "TABLE.ROW".
type dataTable struct {
	ID     string            `yaml:"id"`
	Title  string            `yaml:"title"` // "%s" is the row's what
	Ref    string            `yaml:"ref"`
	Needs  []string          `yaml:"needs"`
	Given  []step            `yaml:"given"`
	Do     string            `yaml:"do"`
	Header map[string]string `yaml:"headers"`
	Body   any               `yaml:"body"`
	Rows   []row             `yaml:"rows"`
}

type row struct {
	ID       string            `yaml:"id"`
	What     string            `yaml:"what"`
	Do       string            `yaml:"do"`    // replaces the table's request line
	Set      map[string]any    `yaml:"set"`   // by path, over the table's body
	Unset    []string          `yaml:"unset"` // by path
	Body     any               `yaml:"body"`  // replaces the table's body
	Raw      *string           `yaml:"raw"`   // replaces it by these bytes
	Header   map[string]string `yaml:"headers"`
	Status   statuses          `yaml:"status"` // default 400
	Error    string            `yaml:"error"`  // default BadRequestException with 400
	Names    string            `yaml:"names"`  // what the message should name
	Severity Severity          `yaml:"severity"`
	Ref      string            `yaml:"ref"`
}

// step is one action with its checks. Exactly one of Table, View, Snapshot,
// Commit and Do says what is done; the first three are set-up.
type step struct {
	Table      string         `yaml:"table"`
	Properties map[string]any `yaml:"properties"` // of Table
	View       string         `yaml:"view"`
	// Snapshot is the argument of the $snapshot macro; the snapshot is
	// committed and Branch (default main) set to it.
	Snapshot map[string]any `yaml:"snapshot"`
	Branch   string         `yaml:"branch"`

	Commit       string `yaml:"commit"`
	Requirements []any  `yaml:"requirements"`
	Updates      []any  `yaml:"updates"`

	Do      string            `yaml:"do"` // "METHOD PATH"
	Headers map[string]string `yaml:"headers"`
	Body    any               `yaml:"body"`
	Raw     *string           `yaml:"raw"`
	Auth    *string           `yaml:"auth"`

	Status    statuses       `yaml:"status"`
	Error     string         `yaml:"error"`      // the type should be this
	ErrorMust string         `yaml:"error-must"` // the type must be this: a client tells by it
	JSON      map[string]any `yaml:"json"`
	Response  map[string]any `yaml:"response-headers"`
	Empty     bool           `yaml:"empty"` // the answer has no body
	Names     string         `yaml:"names"`
	// Message is text that the error must hold because a released client or
	// the compatibility kit depends on it.
	Message  string            `yaml:"message"`
	Capture  map[string]string `yaml:"capture"` // variable: path, or "@Header"
	Severity Severity          `yaml:"severity"`
	// NotApplicable are statuses by which a server declines what the case
	// builds on, though it need not offer it.
	NotApplicable statuses `yaml:"na"`
	Note          string   `yaml:"note"` // why, for the reader of the file
}

// statuses is one status or a list of acceptable ones.
type statuses []int

func (s *statuses) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		return n.Decode((*[]int)(s))
	}
	var one int
	if err := n.Decode(&one); err != nil {
		return err
	}
	*s = statuses{one}
	return nil
}

// dataCases reads the embedded YAML files.
func dataCases() ([]Case, error) {
	files := cases.Files()
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Case
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		read, err := parse(content)
		if err != nil {
			return nil, fmt.Errorf("cases/%s: %w", name, err)
		}
		all = append(all, read...)
	}
	return all, nil
}

// parse reads one YAML file of cases. Unknown keys are errors.
func parse(content []byte) ([]Case, error) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	var f file
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	var all []Case
	for _, c := range f.Cases {
		read, err := c.compile(f.Section)
		if err != nil {
			return nil, fmt.Errorf("case %s: %w", c.ID, err)
		}
		all = append(all, read)
	}
	for _, table := range f.Tables {
		for _, r := range table.Rows {
			c, err := table.expandRow(r)
			if err != nil {
				return nil, fmt.Errorf("case %s.%s: %w", table.ID, r.ID, err)
			}
			read, err := c.compile(f.Section)
			if err != nil {
				return nil, fmt.Errorf("case %s: %w", c.ID, err)
			}
			all = append(all, read)
		}
	}
	return all, nil
}

// compile checks the steps and adds the operations that they use to the needs.
func (c dataCase) compile(section string) (Case, error) {
	if len(c.Steps) == 0 {
		return Case{}, errors.New("no steps")
	}
	needs := slices.Clone(c.Needs)
	checked := false
	for i, st := range c.Steps {
		kinds := 0
		for _, has := range []bool{st.Table != "", st.View != "", st.Snapshot != nil, st.Commit != "", st.Do != ""} {
			if has {
				kinds++
			}
		}
		if kinds != 1 {
			return Case{}, fmt.Errorf("step %d: want exactly one of table, view, snapshot, commit, do", i+1)
		}
		switch {
		case st.Table != "":
			needs = append(needs, "createTable")
		case st.View != "":
			needs = append(needs, "createView")
		case st.Snapshot != nil:
			needs = append(needs, "updateTable")
		case st.Commit != "":
			needs = append(needs, "updateTable")
			if len(st.Status) == 0 {
				return Case{}, fmt.Errorf("step %d: no status", i+1)
			}
			checked = true
		case st.Do != "":
			method, path, ok := strings.Cut(st.Do, " ")
			if !ok || !strings.HasPrefix(path, "${p}/") && !strings.HasPrefix(path, "/") {
				return Case{}, fmt.Errorf("step %d: %q is not \"METHOD PATH\"", i+1, st.Do)
			}
			if len(st.Status) == 0 {
				return Case{}, fmt.Errorf("step %d: no status", i+1)
			}
			if op := operationOf(method, path); op != "" {
				needs = append(needs, op)
			}
			checked = true
		}
	}
	if !checked {
		return Case{}, errors.New("no step checks anything")
	}
	seen := map[string]bool{}
	unique := needs[:0]
	for _, n := range needs {
		if !seen[n] {
			seen[n] = true
			unique = append(unique, n)
		}
	}
	severity := c.Severity
	if severity == "" {
		severity = Must
	}
	return Case{
		ID: c.ID, Section: section, Title: c.Title, Ref: c.Ref, Severity: severity,
		Needs: unique, NoNamespace: c.NoNamespace,
		Check: func(ctx context.Context, t *Trial) error {
			for i, st := range c.Steps {
				if err := t.step(ctx, st); err != nil {
					return fmt.Errorf("step %d: %w", i+1, err)
				}
			}
			return nil
		},
	}, nil
}

// expandRow makes the case of one row.
func (table dataTable) expandRow(r row) (dataCase, error) {
	request := step{Do: table.Do, Names: r.Names, Status: r.Status, Error: r.Error, Raw: r.Raw}
	if r.Do != "" {
		request.Do = r.Do
	}
	request.Headers = maps.Clone(table.Header)
	for k, v := range r.Header {
		if request.Headers == nil {
			request.Headers = map[string]string{}
		}
		request.Headers[k] = v
	}
	if len(request.Status) == 0 {
		request.Status = statuses{http.StatusBadRequest}
	}
	if request.Error == "" && slices.Equal(request.Status, statuses{http.StatusBadRequest}) {
		request.Error = "BadRequestException"
	}
	if r.Raw == nil {
		body := r.Body
		if body == nil {
			body = deepCopy(table.Body)
		}
		for path, v := range r.Set {
			if err := assign(&body, path, v, false); err != nil {
				return dataCase{}, err
			}
		}
		for _, path := range r.Unset {
			if err := assign(&body, path, nil, true); err != nil {
				return dataCase{}, err
			}
		}
		request.Body = body
	}
	ref := table.Ref
	if r.Ref != "" {
		ref = r.Ref
	}
	what := r.What
	if what == "" {
		what = strings.ReplaceAll(r.ID, "-", " ")
	}
	return dataCase{
		ID:       table.ID + "." + r.ID,
		Title:    strings.Replace(table.Title, "%s", what, 1),
		Ref:      ref,
		Severity: r.Severity,
		Needs:    table.Needs,
		Steps:    append(slices.Clone(table.Given), request),
	}, nil
}

func deepCopy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = deepCopy(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = deepCopy(e)
		}
		return out
	}
	return v
}

// assign sets or removes the value at a path of a body; all but the last step
// must be there.
func assign(doc *any, path string, value any, remove bool) error {
	steps := strings.Split(path, "/")
	at := *doc
	for i, s := range steps {
		last := i == len(steps)-1
		switch v := at.(type) {
		case map[string]any:
			switch next, ok := v[s]; {
			case last && remove && !ok:
				return fmt.Errorf("path %q: nothing to remove", path)
			case last && remove:
				delete(v, s)
			case last:
				v[s] = value
			case !ok:
				return fmt.Errorf("path %q: %q is absent", path, s)
			default:
				at = next
			}
		case []any:
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || n >= len(v) {
				return fmt.Errorf("path %q: %q is no index of the array", path, s)
			}
			if last && remove {
				return fmt.Errorf("path %q: elements of arrays cannot be removed", path)
			}
			if last {
				v[n] = value
			} else {
				at = v[n]
			}
		default:
			return fmt.Errorf("path %q: %q is inside neither an object nor an array", path, s)
		}
	}
	return nil
}

// step does one step and reports what its answer gets wrong. The error says
// that the case cannot go on.
func (t *Trial) step(ctx context.Context, st step) error {
	switch {
	case st.Table != "":
		return t.mustTable(ctx, st.Table, st.Properties)
	case st.View != "":
		return t.mustView(ctx, st.View)
	case st.Snapshot != nil:
		return t.mustSnapshot(ctx, st.Snapshot, st.Branch)
	case st.Commit != "":
		st.Do = "POST ${p}/namespaces/${ns}/tables/" + st.Commit
		st.Body = commitBody(st.Requirements, st.Updates)
	}
	resp, what, err := t.request(ctx, st)
	if err != nil {
		return err
	}
	return t.checkAnswer(st, what, resp)
}

// mustSnapshot adds a snapshot and sets a branch to it, as a set-up.
func (t *Trial) mustSnapshot(ctx context.Context, snapshot map[string]any, branch string) error {
	if branch == "" {
		branch = "main"
	}
	table := fmt.Sprint(snapshot["table"])
	resp, err := t.commit(ctx, table, nil, []any{
		map[string]any{"action": "add-snapshot", "snapshot": map[string]any{"$snapshot": snapshot}},
		map[string]any{"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot["id"]},
	})
	if err != nil {
		return fmt.Errorf("set-up: add snapshot %v: %w", snapshot["id"], err)
	}
	if resp.Status != http.StatusOK {
		return fmt.Errorf("set-up: add snapshot %v: status %d: %s", snapshot["id"], resp.Status, excerpt(resp.Body))
	}
	return nil
}

// request sends the request of a step; what describes it in findings.
func (t *Trial) request(ctx context.Context, st step) (resp *Response, what string, err error) {
	method, path, _ := strings.Cut(st.Do, " ")
	what = excerpt([]byte(method + " " + strings.NewReplacer("${p}", "", "${ns}", "NS").Replace(path)))
	r := Request{Method: method, Path: path, Header: http.Header{}}
	for k, v := range st.Headers {
		x, err := t.expandString(v)
		if err != nil {
			return nil, what, err
		}
		r.Header.Set(k, fmt.Sprint(x))
	}
	if st.Auth != nil {
		x, err := t.expandString(*st.Auth)
		if err != nil {
			return nil, what, err
		}
		auth := fmt.Sprint(x)
		r.Auth = &auth
	}
	switch {
	case st.Raw != nil:
		x, err := t.expandString(*st.Raw)
		if err != nil {
			return nil, what, err
		}
		r.Body = []byte(fmt.Sprint(x))
	case st.Body != nil:
		x, err := t.expand(st.Body)
		if err != nil {
			return nil, what, err
		}
		if r.Body, err = json.Marshal(x); err != nil {
			return nil, what, fmt.Errorf("encode the body of %s: %w", what, err)
		}
	}
	resp, err = t.do(ctx, r)
	return resp, what, err
}

// checkAnswer compares the answer with what the step wants.
func (t *Trial) checkAnswer(st step, what string, resp *Response) error {
	severity := st.Severity
	if severity == "" {
		severity = Must
	}
	if slices.Contains(st.NotApplicable, resp.Status) {
		return skip("the server declines %s: %d %s", what, resp.Status, excerpt([]byte(resp.at("error/message"))))
	}
	if !t.wantStatus(severity, what, resp, st.Status...) {
		return errStop
	}
	if resp.Status >= 400 && resp.Status != http.StatusNotModified && !strings.HasPrefix(st.Do, "HEAD ") {
		wanted, grave := st.Error, Should
		if st.ErrorMust != "" {
			wanted, grave = st.ErrorMust, severity
		}
		t.wantError(what, resp, wanted, grave)
		for _, text := range []struct {
			text     string
			severity Severity
		}{{st.Names, Should}, {st.Message, severity}} {
			want, err := t.expandString(text.text)
			if err != nil {
				return err
			}
			if message := resp.at("error/message"); !strings.Contains(message, fmt.Sprint(want)) {
				t.report(text.severity, "%s: the message does not name %q: %s", what, want, excerpt([]byte(message)))
			}
		}
	}
	if resp.Status == http.StatusOK {
		t.wantJSON(what, resp)
	}
	if st.Empty && len(resp.Body) > 0 {
		t.report(severity, "%s: the %d has a body: %s", what, resp.Status, excerpt(resp.Body))
	}
	for _, name := range slices.Sorted(maps.Keys(st.Response)) {
		values := resp.Header.Values(name)
		var got any
		if len(values) > 0 {
			got = strings.Join(values, ", ")
		}
		want, err := t.expandWant(st.Response[name])
		if err != nil {
			return err
		}
		if wrong := match(got, len(values) > 0, want); wrong != "" {
			t.report(severity, "%s: header %s %s", what, name, wrong)
		}
	}
	return t.checkJSON(st, what, resp, severity)
}

// checkJSON compares the body and captures from it.
func (t *Trial) checkJSON(st step, what string, resp *Response, severity Severity) error {
	var doc any
	if len(st.JSON) > 0 || len(st.Capture) > 0 {
		var err error
		if doc, err = resp.JSON(); err != nil && len(st.JSON) > 0 {
			t.report(severity, "%s: %v", what, err)
			return errStop
		}
	}
	for _, path := range slices.Sorted(maps.Keys(st.JSON)) {
		want, err := t.expandWant(st.JSON[path])
		if err != nil {
			return err
		}
		got, present := lookup(doc, path)
		if wrong := match(got, present, want); wrong != "" {
			if strings.Contains(path, "secret") || strings.Contains(path, "token") {
				wrong = "is not as wanted (its value is not shown)"
			}
			t.report(severity, "%s: %s %s", what, path, wrong)
		}
	}
	for name, path := range st.Capture {
		if header, ok := strings.CutPrefix(path, "@"); ok {
			t.set(name, resp.Header.Get(header))
			continue
		}
		v, ok := lookup(doc, path)
		if !ok {
			return fmt.Errorf("%s: the answer has no %s", what, path)
		}
		if n, isNumber := v.(json.Number); isNumber {
			if i, err := n.Int64(); err == nil {
				v = i
			}
		}
		t.set(name, v)
	}
	return nil
}

// expandWant expands variables in what a case wants; operators are kept.
func (t *Trial) expandWant(v any) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			x, err := t.expandWant(e)
			if err != nil {
				return nil, err
			}
			out[k] = x
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			x, err := t.expandWant(e)
			if err != nil {
				return nil, err
			}
			out[i] = x
		}
		return out, nil
	case string:
		return t.expandString(v)
	}
	return v, nil
}
