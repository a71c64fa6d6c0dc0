// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
)

// kinds are what a file can declare, in the order in which it is made. What is
// pruned goes the other way.
var kinds = []kind{
	{"Organisation", organisations, nil},
	{"Warehouse", warehouses, nil},
	{"Principal", principals, nil},
	{"ServiceAccount", serviceAccounts, []string{"secrets"}},
	{"Recipient", recipients, nil},
	{"Share", shares, []string{"memberCount"}},
	{"Grant", grants, []string{"id", "provider", "acceptedBy", "acceptTime", "state", "revokeTime", "revokeReason"}},
	{"PolicySet", nil, []string{"activeVersion", "newestVersion"}},
}

// kind is what a file calls a resource.
type kind struct {
	name     string
	resource *resource // nil for policy sets
	status   []string  // fields that the server alone sets
}

// statusFields are those of all kinds: what "show -o yaml" prints can be
// applied as it is.
var statusFields = []string{"uid", "etag", "createTime", "updateTime", "source"}

func kindRank(name string) int {
	return slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
}

// document is one thing that a file declares.
type document struct {
	kind  kind
	at    string  // file and line
	dir   string  // of the file, for paths in it
	m     message // as declared, with words of enumerations replaced
	empty []string
	// Of a share: its members, nil when the file says nothing of them.
	members []any
	// Of a policy set: its files, and whether they are to be active.
	files    []any
	activate bool
}

// id names what a document declares.
func (d *document) id() string {
	switch d.kind.name {
	case "Grant":
		return text(d.m, "share") + " to " + text(d.m, "recipient")
	case "PolicySet":
		return setName(d.m)
	}
	return text(d.m, d.kind.resource.id)
}

// scope is whose it is.
func (d *document) scope() string {
	if d.kind.resource == nil {
		return text(d.m, "organisation")
	}
	return text(d.m, d.kind.resource.scope)
}

// step is one difference between what is declared and what is.
type step struct {
	Action  string   `json:"action"` // create, update, delete or revoke
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Changes []string `json:"changes,omitempty"`
	rank    int
	do      func(ctx context.Context) error
}

// removes reports whether a step takes something away.
func (s *step) removes() bool {
	return s.Action == "delete" || s.Action == "revoke" || slices.ContainsFunc(s.Changes, func(c string) bool { return strings.HasPrefix(c, "- ") })
}

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var prune, exitCode bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Make the sharing state what YAML files say", Args: cobra.NoArgs,
		Long: `Compares what YAML files declare with what the server has, prints the
difference, and then makes it so. A file holds documents between lines "---",
each with a kind (Organisation, Warehouse, Principal, ServiceAccount, Recipient,
Share, Grant, PolicySet) and the fields that "show -o yaml" prints. Fields that
are not there stay as they are. docs/sharectl.md has an example.

With --dry-run only the difference is printed. With --prune shares, recipients,
service accounts and grants of the files' organisations that no file declares
are deleted (grants are revoked), for kinds that the files declare at all.`,
		Example: `  sharectl apply -f sharing/ --dry-run
  sharectl apply -f sharing/ --prune --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usage(errors.New("what is to be applied?"), "sharectl apply -f FILE")
			}
			return a.apply(cmd.Context(), files, prune, exitCode)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, or directory of *.yaml; - is stdin; can be given again")
	cmd.Flags().BoolVar(&prune, "prune", false, "delete what no file declares")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "with --dry-run: exit code 6 if there is a difference")
	return cmd
}

func (a *app) apply(ctx context.Context, files []string, prune, exitCode bool) error {
	docs, err := a.readDocuments(files)
	if err != nil {
		return err
	}
	if err := a.complete(ctx, docs); err != nil {
		return err
	}
	var plan []step
	for _, d := range docs {
		s, err := a.compare(ctx, d)
		if err != nil {
			return fmt.Errorf("%s: %s %s: %w", d.at, d.kind.name, d.id(), err)
		}
		if s != nil {
			plan = append(plan, *s)
		}
	}
	if prune {
		more, err := a.prune(ctx, docs)
		if err != nil {
			return err
		}
		plan = append(plan, more...)
	}
	// What is made goes from the first kind to the last, what goes the other way
	// comes before: a share's name can be given anew.
	slices.SortStableFunc(plan, func(x, y step) int { return cmp.Compare(x.rank, y.rank) })

	l := list{columns: []string{"ACTION", "KIND", "NAME", "CHANGES"}, value: append([]step{}, plan...), none: "Everything is as the files say."}
	removes := 0
	for _, s := range plan {
		l.rows = append(l.rows, []string{s.Action, s.Kind, s.Name, strings.Join(s.Changes, "; ")})
		if s.removes() {
			removes++
		}
	}
	if err := a.print(l); err != nil {
		return err
	}
	switch {
	case len(plan) == 0:
		return nil
	case a.dryRun:
		a.hint("Nothing was changed.")
		if exitCode {
			return wanting("%d things are not as the files say", len(plan))
		}
		return nil
	case removes > 0:
		if err := a.confirm(fmt.Sprintf("%d of these take something away: go ahead", removes)); err != nil {
			return err
		}
	}
	for i, s := range plan {
		if a.ErrTerminal {
			a.hint("%d/%d %s %s %s", i+1, len(plan), s.Action, s.Kind, clean(s.Name))
		}
		if err := s.do(ctx); err != nil {
			a.hint("%d of %d were done before this failed. Applying again goes on from there.", i, len(plan))
			return fmt.Errorf("%s %s %s: %w", s.Action, s.Kind, s.Name, err)
		}
	}
	a.hint("Applied %d changes.", len(plan))
	return nil
}

// readDocuments reads all files; each thing may be declared once.
func (a *app) readDocuments(paths []string) ([]*document, error) {
	var docs []*document
	read := func(path string) error {
		raw, err := a.readFile(path)
		if err != nil {
			return err
		}
		found, err := a.parseDocuments(path, raw)
		docs = append(docs, found...)
		return err
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if path == "-" || err == nil && !info.IsDir() {
			if err := read(path); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
				if err := read(filepath.Join(path, e.Name())); err != nil {
					return nil, err
				}
			}
		}
	}
	if len(docs) == 0 {
		return nil, usage(fmt.Errorf("nothing is declared in %s", strings.Join(paths, ", ")), "sharectl apply --help")
	}
	slices.SortStableFunc(docs, func(x, y *document) int { return cmp.Compare(kindRank(x.kind.name), kindRank(y.kind.name)) })
	return docs, nil
}

// maxDocuments bounds a file in bytes.
const maxDocuments = 16 << 20

func (a *app) parseDocuments(path string, raw []byte) ([]*document, error) {
	if len(raw) > maxDocuments {
		return nil, usage(fmt.Errorf("%s is larger than %d MiB", path, maxDocuments>>20), "")
	}
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, false))), "")
	}
	var docs []*document
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.GetToken() == nil {
			continue
		}
		at := fmt.Sprintf("%s:%d", path, doc.Body.GetToken().Position.Line)
		var m message
		if err := yaml.NodeToValue(doc.Body, &m); err != nil {
			return nil, usage(fmt.Errorf("%s: %s", at, strings.TrimSpace(yaml.FormatError(err, false, false))), "")
		}
		if len(m) == 0 {
			continue
		}
		d, err := a.parseDocument(m, path)
		if err != nil {
			var f *failure
			next := ""
			if errors.As(err, &f) {
				next = f.next
			}
			return nil, usage(fmt.Errorf("%s: %w", at, err), next)
		}
		d.at = at
		docs = append(docs, d)
	}
	return docs, nil
}

// enumWords are the fields whose values have words of their own.
var enumWords = map[string]map[string]string{"onDrop": onDropWords, "role": roleWords, "layer": layerWords}

func (a *app) parseDocument(m message, path string) (*document, error) {
	name, _ := m["kind"].(string)
	rank := kindRank(name)
	if rank < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, k.name)
		}
		return nil, fmt.Errorf("kind %q is not one of %s", name, strings.Join(names, ", "))
	}
	d := &document{kind: kinds[rank], dir: filepath.Dir(path), activate: true}
	delete(m, "kind")
	for _, f := range append(slices.Clone(d.kind.status), statusFields...) {
		delete(m, f)
	}
	for field, words := range enumWords {
		if s, ok := m[field].(string); ok && words[s] != "" {
			m[field] = words[s]
		}
	}
	switch name {
	case "Share":
		if err := d.shareMembers(m); err != nil {
			return nil, err
		}
	case "PolicySet":
		if err := a.policyFiles(d, m); err != nil {
			return nil, err
		}
	case "Grant":
		if err := a.termsOf(d, m); err != nil {
			return nil, err
		}
	}
	full, err := canonical(name, m)
	if err != nil {
		return nil, err
	}
	for k := range m {
		if _, ok := full[k]; !ok {
			d.empty = append(d.empty, k)
		}
	}
	d.m = full
	var needs []string
	switch name {
	case "Grant":
		needs = []string{"share", "recipient"}
	case "PolicySet":
		needs = []string{"layer", "name"}
	default:
		needs = []string{d.kind.resource.id}
	}
	for _, n := range needs {
		if text(full, n) == "" {
			return nil, fmt.Errorf("a %s needs %s", name, n)
		}
	}
	return d, nil
}

// shareMembers takes the members out of a share: each has a table, a view or a
// namespace, the warehouse, and perhaps the name that recipients see.
func (d *document) shareMembers(m message) error {
	raw, ok := m["members"]
	if !ok {
		return nil
	}
	delete(m, "members")
	list, ok := raw.([]any)
	if !ok && raw != nil {
		return errors.New("members is no list")
	}
	d.members = []any{}
	for i, x := range list {
		given, ok := x.(message)
		if !ok {
			return fmt.Errorf("members[%d] is no mapping", i)
		}
		var f memberFlags
		warehouse, _ := given["warehouse"].(string)
		named := 0
		as := ""
		for k, v := range given {
			s, ok := v.(string)
			if !ok || s == "" {
				return fmt.Errorf("members[%d].%s is no text", i, k)
			}
			switch k {
			case "table", "view", "namespace":
				named++
			case "as":
				as = "=" + s
			case "warehouse":
			default:
				return fmt.Errorf("members[%d] has %q; it has table, view or namespace, warehouse, and as", i, k)
			}
		}
		if named != 1 || warehouse == "" {
			return fmt.Errorf("members[%d] needs warehouse and exactly one of table, view and namespace", i)
		}
		for k, to := range map[string]*[]string{"table": &f.tables, "view": &f.views, "namespace": &f.namespaces} {
			if s, ok := given[k].(string); ok {
				*to = []string{s + as}
			}
		}
		found, err := f.members(warehouse)
		if err != nil {
			return fmt.Errorf("members[%d]: %w", i, err)
		}
		for _, member := range found {
			full, err := canonical("ShareMember", member.(message)) //nolint:forcetypeassert // members makes nothing else
			if err != nil {
				return err
			}
			d.members = append(d.members, full)
		}
	}
	return nil
}

// policyFiles reads a set's files, which are named relative to the document's.
func (a *app) policyFiles(d *document, m message) error {
	if v, ok := m["activate"]; ok {
		if d.activate, ok = v.(bool); !ok {
			return errors.New("activate is neither true nor false")
		}
		delete(m, "activate")
	}
	raw, ok := m["files"]
	if !ok {
		return nil
	}
	delete(m, "files")
	list, ok := raw.([]any)
	if !ok {
		return errors.New("files is no list of paths")
	}
	var paths []string
	for _, x := range list {
		s, ok := x.(string)
		if !ok || s == "" {
			return errors.New("files is no list of paths")
		}
		if !filepath.IsAbs(s) {
			s = filepath.Join(d.dir, s)
		}
		paths = append(paths, s)
	}
	var err error
	d.files, err = a.uploads(paths)
	return err
}

// termsOf reads the file with a grant's terms.
func (a *app) termsOf(d *document, m message) error {
	raw, ok := m["termsFile"]
	if !ok {
		return nil
	}
	delete(m, "termsFile")
	path, ok := raw.(string)
	if !ok || m["terms"] != nil {
		return errors.New("give terms, or termsFile with a path")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.dir, path)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("termsFile: there is no %s", path)
	}
	m["terms"] = string(text)
	return err
}

// complete gives documents without an owner the caller's organisation, and
// finds what is declared twice.
func (a *app) complete(ctx context.Context, docs []*document) error {
	own := ""
	seen := map[string]string{}
	for _, d := range docs {
		field := "organisation"
		if d.kind.resource != nil {
			field = d.kind.resource.scope
		}
		platform := d.kind.name == "PolicySet" && d.m["layer"] == layerWords["platform"]
		if field != "" && text(d.m, field) == "" && !platform {
			if own == "" {
				who, err := a.ask(ctx, "PrincipalService", "WhoAmI", message{})
				if err != nil {
					return err
				}
				if own = text(who, "organisation"); own == "" {
					return usage(fmt.Errorf("%s: %s %s needs %s, since you belong to no organisation", d.at, d.kind.name, d.id(), field), "")
				}
			}
			d.m[field] = own
		}
		name := d.kind.name + " " + d.id()
		if d.kind.name != "Share" && d.kind.name != "Grant" {
			name += " of " + d.scope()
		}
		if at, twice := seen[name]; twice {
			return usage(fmt.Errorf("%s: %s is declared at %s already", d.at, name, at), "")
		}
		seen[name] = d.at
	}
	return nil
}

// isNotFound reports whether an error is that there is no such thing.
func isNotFound(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.code == codeNotFound
}

// compare finds what is to be done for a document; nil for nothing.
func (a *app) compare(ctx context.Context, d *document) (*step, error) {
	s := &step{Kind: d.kind.name, Name: d.id(), rank: kindRank(d.kind.name)}
	if d.kind.name == "PolicySet" {
		return a.comparePolicies(ctx, d, s)
	}
	r := d.kind.resource
	var now message
	var err error
	if d.kind.name == "Grant" {
		now, err = a.currentGrant(ctx, d)
	} else {
		now, err = a.get(ctx, r, text(d.m, r.id), d.scope())
	}
	if err != nil && !isNotFound(err) {
		return nil, err
	}
	if now == nil {
		s.Action = "create"
		s.Changes = memberChanges(d.members, nil)
		s.do = func(ctx context.Context) error { return a.createDeclared(ctx, d) }
		return s, nil
	}
	fields, changes := differences(d, now)
	var added, removed []any
	if d.members != nil {
		there, err := a.listMembers(ctx, text(d.m, "name"))
		if err != nil {
			return nil, err
		}
		added, removed = memberDifferences(d.members, there)
		changes = append(changes, memberChanges(added, removed)...)
	}
	if len(changes) == 0 {
		return nil, nil
	}
	s.Action, s.Changes = "update", changes
	s.do = func(ctx context.Context) error {
		if len(fields) > 0 {
			m := maps.Clone(d.m)
			m["etag"] = now["etag"] // what was compared, or nothing
			id := text(now, r.id)
			if _, err := a.update(ctx, r, id, d.scope(), m, fields); err != nil {
				return err
			}
		}
		return a.modifyMembers(ctx, text(d.m, "name"), added, removed)
	}
	return s, nil
}

// differences are the fields that are not as declared.
func differences(d *document, now message) (fields, changes []string) {
	say := func(field string, was, is any) {
		fields = append(fields, field)
		changes = append(changes, fmt.Sprintf("%s: %s -> %s", field, shown(was), shown(is)))
	}
	for _, k := range slices.Sorted(maps.Keys(d.m)) {
		if k == d.kind.resource.id || k == "activation" && now[k] != nil {
			continue // made once, and then what became of it
		}
		want, have := d.m[k], now[k]
		below, nested := want.(message)
		if there, ok := have.(message); nested && ok && k == "storage" {
			for _, b := range slices.Sorted(maps.Keys(below)) {
				if !reflect.DeepEqual(below[b], there[b]) {
					say(k+"."+b, there[b], below[b])
				}
			}
			continue
		}
		if !reflect.DeepEqual(want, have) {
			say(k, have, want)
		}
	}
	for _, k := range d.empty {
		if have, ok := now[k]; ok {
			say(k, have, nil)
		}
	}
	return fields, changes
}

// shown is a value in a difference; long text is cut.
func shown(v any) string {
	const most = 60
	if v == nil {
		return "none"
	}
	s := word(valueText(v))
	if b, ok := v.(bool); ok {
		s = fmt.Sprint(b)
	}
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}

// memberKey tells members apart: what they are and what they are shown as.
func memberKey(m message) string {
	c := maps.Clone(m)
	memberNames([]message{c})
	return strings.Join([]string{text(c, "kind"), text(c, "warehouse"), text(c, "is"), text(c, "shown")}, "\x00")
}

// memberDifferences are members to add, and those to remove.
func memberDifferences(want []any, have []message) (added, removed []any) {
	there := map[string]bool{}
	for _, m := range have {
		there[memberKey(m)] = true
	}
	wanted := map[string]bool{}
	for _, x := range want {
		m, _ := x.(message)
		wanted[memberKey(m)] = true
		if !there[memberKey(m)] {
			added = append(added, m)
		}
	}
	for _, m := range have {
		if !wanted[memberKey(m)] {
			removed = append(removed, m)
		}
	}
	return added, removed
}

func memberChanges(added, removed []any) []string {
	var all []string
	for sign, list := range map[string][]any{"+": added, "-": removed} {
		for _, x := range list {
			m, _ := x.(message)
			c := maps.Clone(m)
			memberNames([]message{c})
			line := fmt.Sprintf("%s %s %s/%s", sign, word(text(c, "kind")), text(c, "warehouse"), text(c, "is"))
			if text(c, "shown") != text(c, "is") {
				line += " as " + text(c, "shown")
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

func (a *app) modifyMembers(ctx context.Context, share string, added, removed []any) error {
	if len(added)+len(removed) == 0 {
		return nil
	}
	var ids []any
	for _, x := range removed {
		m, _ := x.(message)
		ids = append(ids, text(m, "id"))
	}
	_, err := a.change(ctx, "ShareService", "ModifyShareMembers", message{"share": share, "add": added, "remove": ids})
	return err
}

// createDeclared makes what a document declares.
func (a *app) createDeclared(ctx context.Context, d *document) error {
	r := d.kind.resource
	body := message{r.field(): d.m}
	if d.kind.name == "ServiceAccount" {
		body["withoutSecret"] = true
	}
	answer, err := a.change(ctx, r.service, "Create"+r.typ, body)
	if err != nil {
		return err
	}
	switch d.kind.name {
	case "ServiceAccount":
		a.hint("Service account %s has no secret yet: sharectl serviceaccount add-secret %s", clean(d.id()), clean(d.id()))
	case "Recipient":
		if text(answer, "activationLink.url")+text(answer, "activationLink.token") != "" {
			a.hint("Recipient %s:", clean(d.id()))
			return a.showLink(answer)
		}
	case "Share":
		return a.modifyMembers(ctx, text(d.m, "name"), d.members, nil)
	}
	return nil
}

// liveGrants are grants of a share to a recipient that have not ended.
func (a *app) liveGrants(ctx context.Context, body message) ([]message, error) {
	all, err := a.pages(ctx, "GrantService", "ListGrants", "grants", body, 0)
	return slices.DeleteFunc(all, func(m message) bool {
		return m["state"] == "GRANT_STATE_REVOKED" || m["state"] == "GRANT_STATE_EXPIRED"
	}), err
}

// currentGrant finds the grant that a document means: the one of its share to
// its recipient that has not ended.
func (a *app) currentGrant(ctx context.Context, d *document) (message, error) {
	all, err := a.liveGrants(ctx, message{"share": d.m["share"], "recipient": d.m["recipient"]})
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, nil
	case len(all) > 1:
		return nil, usage(fmt.Errorf("there are %d grants of this share to this recipient", len(all)), "sharectl grant list --share "+text(d.m, "share"))
	}
	return all[0], nil
}

// comparePolicies compares a policy set's files with its newest version.
func (a *app) comparePolicies(ctx context.Context, d *document, s *step) (*step, error) {
	ref := message{"layer": d.m["layer"], "name": d.m["name"]}
	if o := text(d.m, "organisation"); o != "" {
		ref["organisation"] = o
	}
	answer, err := a.ask(ctx, policyService, "GetPolicySet", message{"policySet": ref})
	if err != nil && !isNotFound(err) {
		return nil, err
	}
	now, _ := answer["policySet"].(message)
	newest := text(now, "newestVersion")
	upload := len(d.files) > 0
	if upload && newest != "" && newest != "0" {
		there, err := a.ask(ctx, policyService, "GetPolicyVersion", message{"policySet": ref, "version": newest})
		if err != nil {
			return nil, err
		}
		v, _ := there["version"].(message)
		files, _ := v["files"].([]any)
		upload = !sameFiles(files, d.files)
	}
	var changes []string
	describe := now != nil && d.m["description"] != nil && d.m["description"] != now["description"]
	if describe {
		changes = append(changes, fmt.Sprintf("description: %s -> %s", shown(now["description"]), shown(d.m["description"])))
	}
	if upload {
		changes = append(changes, fmt.Sprintf("a new version of %d files", len(d.files)))
	}
	activate := d.activate && len(d.files) > 0 && (upload || text(now, "activeVersion") != newest)
	if activate {
		changes = append(changes, "activate it")
	}
	s.Action, s.Changes = "update", changes
	if now == nil {
		s.Action = "create"
	} else if len(changes) == 0 {
		return nil, nil
	}
	s.do = func(ctx context.Context) error {
		if now == nil {
			if _, err := a.change(ctx, policyService, "CreatePolicySet", message{"policySet": d.m}); err != nil {
				return err
			}
		} else if describe {
			if _, err := a.change(ctx, policyService, "UpdatePolicySet", message{"policySet": d.m, "updateMask": "description"}); err != nil {
				return err
			}
		}
		version := newest
		if upload {
			answer, err := a.change(ctx, policyService, "UploadPolicyVersion", message{"policySet": ref, "files": d.files, "comment": "sharectl apply"})
			if err != nil {
				return err
			}
			version = text(answer, "version.version")
			for _, p := range serverProblems(answer) {
				a.hint("%s", clean(p.String()))
			}
		}
		if !activate {
			return nil
		}
		_, err := a.change(ctx, policyService, "ActivatePolicyVersion", message{"policySet": ref, "version": version})
		return err
	}
	return s, nil
}

func sameFiles(have, want []any) bool {
	texts := func(list []any) map[string]string {
		m := map[string]string{}
		for _, x := range list {
			if f, ok := x.(message); ok {
				m[text(f, "path")] = text(f, "text")
			}
		}
		return m
	}
	return maps.Equal(texts(have), texts(want))
}

// prune finds what the files' organisations have and no file declares, of
// kinds that the files declare at all.
func (a *app) prune(ctx context.Context, docs []*document) ([]step, error) {
	declared := map[string]map[string]bool{}
	owners := map[string]map[string]bool{}
	for _, d := range docs {
		if declared[d.kind.name] == nil {
			declared[d.kind.name], owners[d.kind.name] = map[string]bool{}, map[string]bool{}
		}
		declared[d.kind.name][d.scope()+"\x00"+d.id()] = true
		owners[d.kind.name][d.scope()] = true
	}
	// A grant's owner is its share's.
	if declared["Grant"] != nil {
		owners["Grant"] = map[string]bool{}
		for _, d := range docs {
			if d.kind.name == "Share" || d.kind.name == "Recipient" {
				owners["Grant"][d.scope()] = true
			}
		}
	}
	var plan []step
	for _, name := range []string{"Grant", "Share", "Recipient", "ServiceAccount"} {
		if declared[name] == nil {
			continue
		}
		k := kinds[kindRank(name)]
		for _, owner := range slices.Sorted(maps.Keys(owners[name])) {
			more, err := a.pruneKind(ctx, k, owner, declared[name])
			if err != nil {
				return nil, fmt.Errorf("prune %ss of %s: %w", k.name, owner, err)
			}
			plan = append(plan, more...)
		}
	}
	for i := range plan {
		plan[i].rank = i - 1000 // before all that is made
	}
	return plan, nil
}

func (a *app) pruneKind(ctx context.Context, k kind, owner string, declared map[string]bool) ([]step, error) {
	var plan []step
	if k.name == "Grant" {
		all, err := a.liveGrants(ctx, message{"provider": owner})
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			name := text(m, "share") + " to " + text(m, "recipient")
			if declared["\x00"+name] {
				continue
			}
			id := text(m, "id")
			plan = append(plan, step{Action: "revoke", Kind: k.name, Name: name, do: func(ctx context.Context) error {
				_, err := a.change(ctx, "GrantService", "RevokeGrant", message{"id": id, "reason": "no longer declared"})
				return err
			}})
		}
		return plan, nil
	}
	r := k.resource
	all, err := a.pages(ctx, r.service, "List"+r.plural, lower(r.plural), message{r.scope: owner}, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		id := text(m, r.id)
		if declared[owner+"\x00"+id] {
			continue
		}
		plan = append(plan, step{Action: "delete", Kind: k.name, Name: id, do: func(ctx context.Context) error { return a.remove(ctx, r, id, owner, false) }})
	}
	return plan, nil
}
