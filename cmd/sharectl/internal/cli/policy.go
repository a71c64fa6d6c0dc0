// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/internal/policy"
)

const policyFilesText = `Policies are files: *.cedar are policies, and *.yaml (or *.yml) are cases, which
also say which tables and which attributes of principals there are. A directory
stands for all that are in it and below. docs/policy.md has their form.`

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Check, test and explain policies; upload and activate them",
		Long: "Checks, tests and explains policies from files, without a server, and keeps\npolicy sets on the server. A set there is named LAYER/NAME: platform/base,\nprovider/main, recipient/main.\n\n" + policyFilesText,
	}
	cmd.AddCommand(a.policyCheck(), a.policyTest(), a.policyExplain(), a.policySimulate())
	cmd.AddCommand(a.policySetCommands()...)
	return cmd
}

// policyFile is a file of a policy set: where it is, and what a server calls
// it, which is its path below the directory that was named.
type policyFile struct {
	path, name string
	text       []byte
}

// readPolicyFiles reads files and directories; paths are relative to a
// directory that was named, or as they were named.
func (a *app) readPolicyFiles(paths []string) (policies, cases []policyFile, err error) {
	add := func(name, path string, must bool) error {
		kind := strings.ToLower(filepath.Ext(path))
		switch {
		case path == "-":
			kind = ".cedar"
		case kind == ".cedar", kind == ".yaml", kind == ".yml":
		case must:
			return usage(fmt.Errorf("%s is neither *.cedar nor *.yaml", path), "")
		default:
			return nil
		}
		text, err := a.readFile(path)
		if err != nil {
			return err
		}
		f := policyFile{filepath.ToSlash(path), name, text}
		if kind == ".cedar" {
			policies = append(policies, f)
		} else {
			cases = append(cases, f)
		}
		return nil
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if path == "-" || err == nil && !info.IsDir() {
			if err := add(filepath.Base(path), path, true); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		err = filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				if err == nil && p != path && strings.HasPrefix(e.Name(), ".") {
					return fs.SkipDir
				}
				return err
			}
			name, err := filepath.Rel(path, p)
			if err != nil {
				return err
			}
			return add(filepath.ToSlash(name), p, false)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return policies, cases, nil
}

// policySet is what files hold: a set, its cases, and the tables it is checked
// against. Problems are all that is wrong so far; with any, set may be nil.
type policySet struct {
	set      *policy.Set
	cases    []*policy.Cases
	tables   []*policy.Table
	problems policy.Problems
	files    int
}

// loadPolicies reads and parses files.
func (a *app) loadPolicies(paths, attributes []string) (*policySet, error) {
	policies, cases, err := a.readPolicyFiles(paths)
	if err != nil {
		return nil, err
	}
	if len(policies) == 0 {
		return nil, usage(fmt.Errorf("there is no *.cedar in %s", strings.Join(paths, ", ")), "")
	}
	p := &policySet{files: len(policies)}
	types, err := pairsOf("attribute", attributes)
	if err != nil {
		return nil, err
	}
	for _, f := range cases {
		c, err := policy.ParseCases(f.path, f.text)
		var problems policy.Problems
		switch {
		case errors.As(err, &problems):
			p.problems = append(p.problems, problems...)
			continue
		case err != nil:
			return nil, err
		}
		if err := c.Attributes(types); err != nil {
			p.problems = append(p.problems, policy.Problem{File: f.path, Message: err.Error()})
			continue
		}
		p.cases = append(p.cases, c)
		p.tables = append(p.tables, c.AllTables()...)
	}
	schema, err := policy.NewSchema(types)
	if err != nil {
		return nil, usage(fmt.Errorf("--attribute: %w", err), "--attribute NAME=String, or Long, Bool, Set<String>")
	}
	sources := make([]policy.Source, len(policies))
	for i, f := range policies {
		sources[i] = policy.Source{File: f.path, Text: f.text}
	}
	p.set, err = policy.Parse(schema, sources...)
	var problems policy.Problems
	switch {
	case errors.As(err, &problems):
		p.problems = append(p.problems, problems...)
	case err != nil:
		return nil, err
	}
	return p, nil
}

// check checks the set against the tables.
func (p *policySet) check() error {
	if p.set == nil {
		return nil
	}
	for _, t := range p.tables {
		found, err := p.set.Check(t)
		if err != nil {
			return fmt.Errorf("table %s: %w", t.ID(), err)
		}
		p.problems = append(p.problems, found...)
	}
	return nil
}

// problemJSON is a problem for programs.
type problemJSON struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Policy  string `json:"policy,omitempty"`
	Table   string `json:"table,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// reportProblems prints problems, each once.
func (a *app) reportProblems(all policy.Problems, summary map[string]any) error {
	seen := map[policy.Problem]bool{}
	values := []problemJSON{}
	for _, p := range all {
		if seen[p] {
			continue
		}
		seen[p] = true
		values = append(values, problemJSON(p))
		if a.format == "table" {
			if err := a.writeProblem(p); err != nil {
				return err
			}
		}
	}
	if a.format == "table" {
		return nil
	}
	summary["problems"] = values
	return a.encode(summary)
}

// writeProblem prints a problem as compilers do, with its hint below.
func (a *app) writeProblem(p policy.Problem) error {
	hint := p.Hint
	p.Hint = ""
	if err := a.write(clean(p.String()) + "\n"); err != nil {
		return err
	}
	if hint == "" {
		return nil
	}
	return a.write("    " + clean(hint) + "\n")
}

func (a *app) policyCheck() *cobra.Command {
	var attributes, tables []string
	var on onServer
	cmd := &cobra.Command{
		Use: "check PATH...", Short: "Parse and validate policies; exit code 6 if anything is wrong", Args: on.args,
		Long: "Parses policies and validates them, also against the tables of the cases and\nthose that --table names in the catalog.\n\n" + policyFilesText,
		Example: `  sharectl policy check policies/
  sharectl policy check provider.cedar --table sales.orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if on.set != "" {
				return a.checkOnServer(cmd.Context(), &on, args)
			}
			p, err := a.loadPolicies(args, attributes)
			if err != nil {
				return err
			}
			for _, name := range tables {
				t, err := a.catalogTable(cmd.Context(), name)
				if err != nil {
					return err
				}
				p.tables = append(p.tables, t)
			}
			if err := p.check(); err != nil {
				return err
			}
			count := 0
			if p.set != nil {
				count = p.set.Len()
			}
			var ids []string
			for _, t := range p.tables {
				ids = append(ids, t.ID())
			}
			slices.Sort(ids)
			ids = slices.Compact(ids)
			if err := a.reportProblems(p.problems, map[string]any{"policies": count, "files": p.files, "tables": append([]string{}, ids...)}); err != nil {
				return err
			}
			if len(p.problems) > 0 {
				return wanting("the policies are not as they must be")
			}
			a.hint("%d policies in %d files fit %d tables.", count, p.files, len(ids))
			if len(ids) == 0 {
				a.hint("Conditions on rows and masks are checked against tables: give cases, or --table.")
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&attributes, "attribute", nil, "attribute of principals, as NAME=TYPE (String, Long, Bool, Set<String>); can be given again")
	cmd.Flags().StringArrayVar(&tables, "table", nil, "table of the catalog to check against; can be given again")
	on.flags(cmd)
	return cmd
}

// catalogTable loads the schema of a table of the context's warehouse.
func (a *app) catalogTable(ctx context.Context, name string) (*policy.Table, error) {
	id, err := identOf(name, "table")
	if err != nil {
		return nil, err
	}
	w, err := a.openWarehouse(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := w.Get(ctx, w.Path(id, "tables"), url.Values{"snapshots": {"refs"}})
	if err != nil {
		return nil, missing(err, "table", id)
	}
	var answer struct {
		Metadata struct {
			Current int               `json:"current-schema-id"`
			Schemas []json.RawMessage `json:"schemas"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, err
	}
	for _, s := range answer.Metadata.Schemas {
		schema := &iceberg.Schema{}
		if err := json.Unmarshal(s, schema); err != nil {
			return nil, fmt.Errorf("schema of table %s: %w", id, err)
		}
		if schema.ID != answer.Metadata.Current {
			continue
		}
		at := policy.NewWarehouse("", first(a.active.ctx.Warehouse, w.Config.Overrides["prefix"]))
		for _, level := range id.Namespace {
			at = at.Namespace(level, nil)
		}
		return policy.NewTable(at.Table(id.Name, nil), schema, policy.TableOptions{})
	}
	return nil, fmt.Errorf("table %s has no current schema", id)
}

func (a *app) policyTest() *cobra.Command {
	var attributes []string
	var on onServer
	cmd := &cobra.Command{
		Use: "test PATH...", Short: "Run the cases of policies; exit code 6 if one does not pass", Args: on.args,
		Long:    "Runs the cases: what the policies decide is compared with what is expected.\n\n" + policyFilesText,
		Example: "  sharectl policy test policies/",
		RunE: func(cmd *cobra.Command, args []string) error {
			if on.set != "" {
				return a.testOnServer(cmd.Context(), &on, args)
			}
			p, err := a.loadPolicies(args, attributes)
			if err != nil {
				return err
			}
			if len(p.cases) == 0 && len(p.problems) == 0 {
				return usage(fmt.Errorf("there are no cases in %s", strings.Join(args, ", ")), "sharectl policy check "+args[0])
			}
			count := 0
			broken := len(p.problems) > 0
			if !broken {
				for _, c := range p.cases {
					count += len(c.Cases)
					p.problems = append(p.problems, c.Run(p.set)...)
				}
			}
			if err := a.reportProblems(p.problems, map[string]any{"cases": count}); err != nil {
				return err
			}
			switch {
			case broken:
				return wanting("no case was run: the files are not as they must be")
			case len(p.problems) > 0:
				return wanting("%d cases were run, and not all passed", count)
			}
			a.hint("%d cases passed.", count)
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&attributes, "attribute", nil, "attribute of principals, as NAME=TYPE; can be given again")
	on.flags(cmd)
	return cmd
}

// onServer are the flags with which a server checks, not this machine.
type onServer struct {
	set, organisation string
	version           int64
}

func (o *onServer) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.set, "set", "", "let the server do it, for this policy set: LAYER/NAME")
	cmd.Flags().StringVar(&o.organisation, "organisation", "", "with --set: its owner (default: your own)")
	cmd.Flags().Int64Var(&o.version, "version", 0, "with --set and no PATH: this version (default: the active one)")
}

// args wants files unless the server has them.
func (o *onServer) args(cmd *cobra.Command, args []string) error {
	if o.set != "" {
		return nil
	}
	return cobra.MinimumNArgs(1)(cmd, args)
}

func (a *app) checkOnServer(ctx context.Context, o *onServer, paths []string) error {
	answer, err := a.serverCheck(ctx, "CheckPolicy", o.set, o.organisation, o.version, paths)
	if err != nil {
		return err
	}
	problems := serverProblems(answer)
	if a.format != "table" {
		err = a.encode(answer)
	} else {
		err = a.reportProblems(problems, nil)
	}
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return wanting("the policies are not as they must be")
	}
	tables, _ := answer["tables"].([]any)
	a.hint("%s policies fit %d tables of the server.", first(text(answer, "policyCount"), "0"), len(tables))
	return nil
}

func (a *app) testOnServer(ctx context.Context, o *onServer, paths []string) error {
	answer, err := a.serverCheck(ctx, "TestPolicy", o.set, o.organisation, o.version, paths)
	if err != nil {
		return err
	}
	problems := serverProblems(answer)
	results, _ := answer["results"].([]any)
	if a.format != "table" {
		if err := a.encode(answer); err != nil {
			return err
		}
	} else {
		if err := a.reportProblems(problems, nil); err != nil {
			return err
		}
		for _, x := range results {
			if m, ok := x.(message); ok && m["passed"] != true {
				if err := a.write(clean(fmt.Sprintf("%s: case %q: %s", text(m, "file"), text(m, "name"), text(m, "message"))) + "\n"); err != nil {
					return err
				}
			}
		}
	}
	switch failed := text(answer, "failedCount"); {
	case len(problems) > 0:
		return wanting("no case was run: the files are not as they must be")
	case failed != "" && failed != "0":
		return wanting("%s of %d cases did not pass", failed, len(results))
	}
	a.hint("%d cases passed.", len(results))
	return nil
}

// reasonJSON is a policy that determined a decision, for programs.
type reasonJSON struct {
	Policy string `json:"policy"`
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
}

func reasonsOf(all []policy.Reason) []reasonJSON {
	values := []reasonJSON{}
	for _, r := range all {
		values = append(values, reasonJSON{r.Policy, r.File, r.Line})
	}
	return values
}

func reasonsText(all []policy.Reason) string {
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.Policy
		if r.File != "" {
			texts[i] += fmt.Sprintf(" (%s:%d)", r.File, r.Line)
		}
	}
	return strings.Join(texts, ", ")
}

// explanation is a decision for programs.
type explanation struct {
	Allowed  bool             `json:"allowed"`
	Filter   *string          `json:"filter,omitempty"`
	Columns  []explainedField `json:"columns,omitempty"`
	Policies []reasonJSON     `json:"policies"`
	Varies   bool             `json:"varies,omitempty"`
}

type explainedField struct {
	Name     string       `json:"name"`
	How      string       `json:"how"`
	Policies []reasonJSON `json:"policies"`
}

func (a *app) policyExplain() *cobra.Command {
	var q policy.Case
	var caseName, action string
	cmd := &cobra.Command{
		Use: "explain PATH...", Short: "Say what policies decide, and which of them do", Args: cobra.MinimumNArgs(1),
		Long: "Says what the policies decide on a question: a case by its name, or a principal\nand a table of the cases. What is expected plays no part.\n\n" + policyFilesText,
		Example: `  sharectl policy explain policies/ --principal alice --table demo/sales/orders
  sharectl policy explain policies/ --case "the loader creates tables"`,
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := a.loadPolicies(args, nil)
			if err != nil {
				return err
			}
			if len(p.problems) > 0 {
				if err := a.reportProblems(p.problems, map[string]any{}); err != nil {
					return err
				}
				return wanting("the files are not as they must be")
			}
			q.Action = policy.Action(action)
			cases, question, err := findQuestion(p.cases, caseName, q)
			if err != nil {
				return err
			}
			stack, err := policy.NewStack(policy.Layer{Name: "files", Set: p.set})
			if err != nil {
				return err
			}
			d, err := cases.Ask(question, stack)
			if err != nil {
				return usage(err, "sharectl policy explain --help")
			}
			return a.explain(d, cases.Table(question.Table))
		},
	}
	f := cmd.Flags()
	f.StringVar(&caseName, "case", "", "name of a case")
	f.StringVar(&q.Principal, "principal", "", "principal of the cases")
	f.StringVar(&q.Table, "table", "", "table of the cases, as demo/sales/orders")
	f.StringVar(&action, "action", "", "action, if not reading the table")
	f.StringVar(&q.Warehouse, "resource-warehouse", "", "warehouse that the action is about")
	f.StringVar(&q.Namespace, "namespace", "", "namespace that the action is about, as demo/sales")
	f.StringVar(&q.View, "view", "", "view that the action is about")
	f.StringVar(&q.Share, "share", "", "share that the action is about")
	f.StringVar(&q.Organisation, "organisation", "", "organisation that the action is about, or that owns what it is about")
	f.StringVar(&q.IP, "ip", "", "address that the principal calls from")
	return cmd
}

// findQuestion finds the file of cases that knows the principal and the table,
// or a case.
func findQuestion(all []*policy.Cases, name string, q policy.Case) (*policy.Cases, policy.Case, error) {
	if len(all) == 0 {
		return nil, q, usage(errors.New("a question is about principals and tables of cases: there is no *.yaml"), "sharectl policy explain DIR")
	}
	if name != "" {
		var names []string
		for _, c := range all {
			for _, k := range c.Cases {
				if k.Name == name {
					return c, k, nil
				}
				names = append(names, k.Name)
			}
		}
		return nil, q, usage(fmt.Errorf("there is no case %q; there are %q", name, names), "")
	}
	if q.Principal == "" {
		return nil, q, usage(errors.New("who asks, and what for?"), "--principal NAME --table ID, or --case NAME")
	}
	// The one that knows most of the question; what is missing, Ask says.
	best := slices.MaxFunc(all, func(x, y *policy.Cases) int { return cmp.Compare(knows(x, q), knows(y, q)) })
	return best, q, nil
}

func knows(c *policy.Cases, q policy.Case) int {
	n := 0
	if _, ok := c.Principals[q.Principal]; ok {
		n += 2
	}
	if c.Table(q.Table) != nil {
		n++
	}
	return n
}

// explain prints a decision; t is the table that was read, if one was.
func (a *app) explain(d policy.Decision, t *policy.Table) error {
	e := explanation{Allowed: d.Allowed, Policies: reasonsOf(d.Reasons), Varies: d.Varies}
	answer := "denied"
	if d.Allowed {
		answer = "allowed"
	}
	if d.Lacking != "" {
		answer += ": no permit applies"
	} else if !d.Allowed && len(d.Reasons) == 0 {
		answer += ": no column can be seen"
	}
	pairs := [][2]string{{"Decision", answer}}
	if d.Filter != nil {
		text := d.Filter.String()
		e.Filter = &text
		pairs = append(pairs, [2]string{"Rows", text})
	} else if d.Allowed && len(d.Columns) > 0 {
		pairs = append(pairs, [2]string{"Rows", "all"})
	}
	var columns strings.Builder
	if t != nil && d.Allowed {
		width := 0
		for _, c := range d.Columns {
			name, _ := t.Schema().FindColumnName(c.FieldID)
			width = max(width, len([]rune(name)))
			e.Columns = append(e.Columns, explainedField{name, c.How(), reasonsOf(c.Reasons)})
		}
		for i, c := range e.Columns {
			line := fmt.Sprintf("%-*s  %s", width, c.Name, c.How)
			if by := reasonsText(d.Columns[i].Reasons); by != "" {
				line += "  by " + by
			}
			columns.WriteString(line + "\n")
		}
	}
	pairs = append(pairs, [2]string{"Columns", columns.String()}, [2]string{"Policies", reasonsText(d.Reasons)})
	if d.Varies {
		pairs = append(pairs, [2]string{"Note", "it may be another at another time, or from another address"})
	}
	return a.show(sheet{value: e, pairs: pairs})
}

func (a *app) policySimulate() *cobra.Command {
	var q policy.Case
	var rows string
	cmd := &cobra.Command{
		Use: "simulate PATH...", Short: "Show which rows and columns of a sample a principal would see", Args: cobra.MinimumNArgs(1),
		Long:    "Shows what a principal of the cases would see of rows of a table: those rows that\nthe policies let through, without the columns that are absent. A masked value is\nshown as the name of its mask. Rows are a YAML or JSON list, or JSON lines, in the\nform of the cases.\n\n" + policyFilesText,
		Example: "  sharectl policy simulate policies/ --as alice --table demo/sales/orders --rows sample.jsonl",
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := a.loadPolicies(args, nil)
			if err != nil {
				return err
			}
			if len(p.problems) > 0 {
				if err := a.reportProblems(p.problems, map[string]any{}); err != nil {
					return err
				}
				return wanting("the files are not as they must be")
			}
			cases, question, err := findQuestion(p.cases, "", q)
			if err != nil {
				return err
			}
			t := cases.Table(question.Table)
			if t == nil {
				return usage(fmt.Errorf("the cases have no table %q", question.Table), "--table, with a table of the cases")
			}
			stack, err := policy.NewStack(policy.Layer{Name: "files", Set: p.set})
			if err != nil {
				return err
			}
			d, err := cases.Ask(question, stack)
			if err != nil {
				return usage(err, "sharectl policy simulate --help")
			}
			raw, err := a.readFile(rows)
			if err != nil {
				return err
			}
			sample, err := parseRows(raw)
			if err != nil {
				return usage(fmt.Errorf("%s: %w", rows, err), "")
			}
			return a.simulate(d, t, sample, rows)
		},
	}
	cmd.Flags().StringVar(&q.Principal, "as", "", "principal of the cases")
	cmd.Flags().StringVar(&q.Table, "table", "", "table of the cases, as demo/sales/orders")
	cmd.Flags().StringVar(&q.IP, "ip", "", "address that the principal calls from")
	cmd.Flags().StringVar(&rows, "rows", "", "file with rows; - is stdin")
	for _, f := range []string{"as", "table", "rows"} {
		_ = cmd.MarkFlagRequired(f)
	}
	return cmd
}

// parseRows reads a list of rows, or a row on each line. YAML tells whole
// numbers from others, as the cases do.
func parseRows(raw []byte) ([]map[string]any, error) {
	var all []map[string]any
	if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] != '{' {
		if err := yaml.Unmarshal(raw, &all); err != nil {
			return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
		}
		return all, nil
	}
	n := 0
	for line := range bytes.Lines(raw) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var row map[string]any
		if err := yaml.Unmarshal(line, &row); err != nil {
			return nil, fmt.Errorf("line %d: %s", n, strings.TrimSpace(yaml.FormatError(err, false, false)))
		}
		all = append(all, row)
	}
	return all, nil
}

// simulate prints the rows of a sample that a decision lets through.
func (a *app) simulate(d policy.Decision, t *policy.Table, sample []map[string]any, file string) error {
	var l list
	var shown []policy.ColumnDecision
	for _, c := range d.Columns {
		if !c.Absent {
			name, _ := t.Schema().FindColumnName(c.FieldID)
			l.columns = append(l.columns, name)
			shown = append(shown, c)
		}
	}
	values := []map[string]any{}
	for i, row := range sample {
		visible, err := d.Sees(t, row)
		if err != nil {
			return usage(fmt.Errorf("%s: row %d: %w", file, i+1, err), "")
		}
		if !visible {
			continue
		}
		value, cells := map[string]any{}, make([]string, len(shown))
		for j, c := range shown {
			v := row[l.columns[j]]
			if c.Mask != "" && v != nil {
				v = "<" + string(c.Mask) + ">"
			}
			value[l.columns[j]], cells[j] = v, valueText(v)
			if u, ok := v.(bool); ok {
				cells[j] = fmt.Sprint(u)
			}
		}
		values, l.rows = append(values, value), append(l.rows, cells)
	}
	l.value = values
	if err := a.print(l); err != nil {
		return err
	}
	if !d.Allowed {
		a.hint("Denied: the table cannot be read.")
		return nil
	}
	a.hint("%d of %d rows, %d of %d columns.", len(values), len(sample), len(shown), len(d.Columns))
	return nil
}
