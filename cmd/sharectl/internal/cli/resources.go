// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// resource is a kind of thing that the sharing API administers: what its
// commands are called and what they show.
type resource struct {
	noun, short string
	service     string // ShareService
	typ         string // Share: messages and methods are named after it
	plural      string // Shares
	id          string // field that names it: name
	scope       string // field of whose it is; "" for none
	keyed       bool   // its id is unique within its scope alone
	columns     []column
	fields      []fieldFlag
	// more adds to a message what flags of its own say; set is false for a new
	// one. It returns the fields that are to change.
	more func(a *app, cmd *cobra.Command, m message, set bool) ([]string, error)
	// flags adds them.
	flags func(cmd *cobra.Command, set bool)
	// made tells what else an answer to Create holds.
	made func(a *app, answer message) error
	// request adds to CreateRequest.
	request func(cmd *cobra.Command, body message) error
	// force says that there is a force that deletes it with what hangs on it.
	force bool
	// noSet, noCreate and noDelete leave commands out.
	noSet, noCreate, noDelete bool
	args                      string // what create takes: NAME
}

// column is one of a table's.
type column struct{ title, path string }

// fieldFlag is a flag that is a field of the message.
type fieldFlag struct {
	flag, field, usage string
	kind               string            // "", "bool", "list", "time", "map" or "words"
	words              map[string]string // what is written for the values of an enumeration
	newOnly            bool              // only when it is made
}

// lower is a name as JSON has it.
func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func (r *resource) field() string { return lower(r.typ) }

// key is the part of a request that names one.
func (r *resource) key(id, scope string) message {
	m := message{r.id: id}
	if r.keyed && scope != "" {
		m[r.scope] = scope
	}
	return m
}

// get returns one as it is.
func (a *app) get(ctx context.Context, r *resource, id, scope string) (message, error) {
	answer, err := a.ask(ctx, r.service, "Get"+r.typ, r.key(id, scope))
	if err != nil {
		return nil, r.missing(err)
	}
	m, _ := answer[r.field()].(message)
	return m, nil
}

// missing tells what to try when one is not there.
func (r *resource) missing(err error) error {
	var f *failure
	if errors.As(err, &f) && f.code == codeNotFound && f.next == "" {
		f.next = "sharectl " + r.noun + " list"
	}
	return err
}

func (r *resource) scopeFlag(cmd *cobra.Command, to *string) {
	if r.scope != "" {
		cmd.Flags().StringVar(to, "organisation", "", "whose it is (default: your own)")
	}
}

// commands are list, show, create, set and delete.
func (a *app) commands(r *resource) *cobra.Command {
	cmd := &cobra.Command{Use: r.noun, Short: r.short}
	cmd.AddCommand(a.resourceList(r), a.resourceShow(r))
	if !r.noCreate {
		cmd.AddCommand(a.resourceCreate(r))
	}
	if !r.noSet {
		cmd.AddCommand(a.resourceSet(r))
	}
	if !r.noDelete {
		cmd.AddCommand(a.resourceDelete(r))
	}
	return cmd
}

// table prints messages in columns.
func (a *app) table(columns []column, all []message, none string) error {
	l := list{value: all, none: none}
	for _, c := range columns {
		l.columns = append(l.columns, c.title)
	}
	for _, m := range all {
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = word(text(m, c.path))
		}
		l.rows = append(l.rows, row)
	}
	return a.print(l)
}

// word is a value of an enumeration as people write it, or the text itself.
func word(s string) string {
	for _, prefix := range enumPrefixes {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			return strings.ReplaceAll(strings.ToLower(rest), "_", "-")
		}
	}
	return s
}

var enumPrefixes = []string{"ON_DROP_", "MEMBER_KIND_", "GRANT_STATE_", "ROLE_", "POLICY_LAYER_", "WAREHOUSE_SOURCE_"}

// sheetOf is a message with a line for each field, in a fixed order.
func sheetOf(m message) sheet {
	s := sheet{value: m}
	names := slices.Sorted(maps.Keys(m))
	rank := func(n string) int {
		switch n {
		case "name", "id", "clientId":
			return 0
		case "uid", "etag", "createTime", "updateTime":
			return 2
		}
		return 1
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	for _, n := range names {
		switch v := m[n].(type) {
		case message:
			var b strings.Builder
			for _, k := range slices.Sorted(maps.Keys(v)) {
				fmt.Fprintf(&b, "%s = %s\n", k, valueText(v[k]))
			}
			s.pairs = append(s.pairs, [2]string{title(n), b.String()})
		default:
			s.pairs = append(s.pairs, [2]string{title(n), word(valueText(v))})
		}
	}
	return s
}

// title is a field's name for people: "displayName" is "Display name".
func title(field string) string {
	var b strings.Builder
	for i, r := range field {
		switch {
		case i == 0:
			b.WriteString(strings.ToUpper(string(r)))
		case r >= 'A' && r <= 'Z':
			b.WriteString(" " + strings.ToLower(string(r)))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// completeResource completes ids.
func (a *app) completeResource(r *resource) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := a.pages(cmd.Context(), r.service, "List"+r.plural, lower(r.plural), message{}, 1000)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var ids []string
		for _, m := range all {
			ids = append(ids, text(m, r.id))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) resourceList(r *resource) *cobra.Command {
	var scope string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List them", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body := message{}
			if scope != "" {
				body[r.scope] = scope
			}
			all, err := a.pages(cmd.Context(), r.service, "List"+r.plural, lower(r.plural), body, 0)
			if err != nil {
				return err
			}
			return a.table(r.columns, all, "There is none that you may see.")
		},
	}
	if r.scope != "" {
		cmd.Flags().StringVar(&scope, "organisation", "", "those of this organisation alone")
	}
	return cmd
}

func (a *app) resourceShow(r *resource) *cobra.Command {
	var scope string
	cmd := &cobra.Command{
		Use: "show " + first(r.args, "NAME"), Short: "Show one", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(r),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.get(cmd.Context(), r, args[0], scope)
			if err != nil {
				return err
			}
			return a.show(sheetOf(m))
		},
	}
	if r.keyed {
		r.scopeFlag(cmd, &scope)
	}
	return cmd
}

// addFields adds flags for fields.
func (r *resource) addFields(cmd *cobra.Command, set bool) {
	for _, f := range r.fields {
		if set && f.newOnly {
			continue
		}
		switch f.kind {
		case "bool":
			cmd.Flags().Bool(f.flag, false, f.usage)
		case "list":
			cmd.Flags().StringSlice(f.flag, nil, f.usage+"; can be given again")
		case "map":
			cmd.Flags().StringArray(f.flag, nil, f.usage+", as KEY=VALUE; can be given again")
		default:
			cmd.Flags().String(f.flag, "", f.usage)
			if f.words != nil {
				_ = cmd.RegisterFlagCompletionFunc(f.flag, cobra.FixedCompletions(slices.Sorted(maps.Keys(f.words)), cobra.ShellCompDirectiveNoFileComp))
			}
		}
	}
	if r.flags != nil {
		r.flags(cmd, set)
	}
}

// fill puts what flags say into a message, and returns the fields that were
// given.
func (r *resource) fill(a *app, cmd *cobra.Command, m message, set bool) ([]string, error) {
	var given []string
	for _, f := range r.fields {
		if !cmd.Flags().Changed(f.flag) {
			continue
		}
		v, err := f.value(a, cmd)
		if err != nil {
			return nil, err
		}
		put(m, f.field, v)
		given = append(given, f.field)
	}
	if r.more != nil {
		more, err := r.more(a, cmd, m, set)
		if err != nil {
			return nil, err
		}
		given = append(given, more...)
	}
	return given, nil
}

// put sets a field; path has dots between its levels.
func put(m message, path string, v any) {
	parts := strings.Split(path, ".")
	for _, p := range parts[:len(parts)-1] {
		next, ok := m[p].(message)
		if !ok {
			next = message{}
			m[p] = next
		}
		m = next
	}
	m[parts[len(parts)-1]] = v
}

func (f *fieldFlag) value(a *app, cmd *cobra.Command) (any, error) {
	switch f.kind {
	case "bool":
		return cmd.Flags().GetBool(f.flag)
	case "list":
		return cmd.Flags().GetStringSlice(f.flag)
	case "map":
		given, err := cmd.Flags().GetStringArray(f.flag)
		if err != nil {
			return nil, err
		}
		return pairsOf(f.flag, given)
	}
	v, err := cmd.Flags().GetString(f.flag)
	if err != nil {
		return nil, err
	}
	switch {
	case f.kind == "time":
		return moment(a.Now(), f.flag, v)
	case f.words != nil:
		if w, ok := f.words[v]; ok {
			return w, nil
		}
		return nil, usage(fmt.Errorf("--%s %q is not one of %s", f.flag, v, strings.Join(slices.Sorted(maps.Keys(f.words)), ", ")), "")
	}
	return v, nil
}

// moment reads a time, or how long from now; "" and "never" are no time.
func moment(now time.Time, flag, s string) (any, error) {
	if s == "" || s == "never" {
		return nil, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days, "%d", &n); err == nil && fmt.Sprint(n) == days {
			return now.AddDate(0, 0, n).UTC().Format(time.RFC3339), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(d).UTC().Format(time.RFC3339), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return nil, usage(fmt.Errorf("--%s %q is neither a time such as 2026-12-31T00:00:00Z, nor a span such as 90d or 12h, nor never", flag, s), "")
	}
	return t.UTC().Format(time.RFC3339Nano), nil
}

func (a *app) resourceCreate(r *resource) *cobra.Command {
	var scope string
	cmd := &cobra.Command{Use: "create " + first(r.args, "NAME"), Short: "Make one", Args: cobra.ExactArgs(1)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m := message{r.id: args[0]}
		if scope == "" && r.scope != "" {
			who, err := a.ask(cmd.Context(), "PrincipalService", "WhoAmI", message{})
			if err != nil {
				return err
			}
			scope = text(who, "organisation")
		}
		if scope != "" {
			m[r.scope] = scope
		}
		if _, err := r.fill(a, cmd, m, false); err != nil {
			return err
		}
		body := message{r.field(): m}
		if r.request != nil {
			if err := r.request(cmd, body); err != nil {
				return err
			}
		}
		answer, err := a.change(cmd.Context(), r.service, "Create"+r.typ, body)
		if err != nil {
			return err
		}
		return a.changed(r, "Created", args[0], answer)
	}
	r.scopeFlag(cmd, &scope)
	r.addFields(cmd, false)
	return cmd
}

// changed says what was done; what was made is a result where a program reads.
func (a *app) changed(r *resource, done, id string, answer message) error {
	if a.dryRun {
		a.hint("Nothing was changed; the server would take it.")
	} else {
		a.hint("%s %s %s.", done, r.noun, clean(id))
	}
	if a.format != "table" {
		return a.encode(answer)
	}
	if r.made != nil && !a.dryRun {
		return r.made(a, answer)
	}
	return nil
}

func (a *app) resourceSet(r *resource) *cobra.Command {
	var scope string
	cmd := &cobra.Command{Use: "set " + first(r.args, "NAME"), Short: "Change it", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(r)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m := message{}
		given, err := r.fill(a, cmd, m, true)
		if err != nil {
			return err
		}
		if len(given) == 0 {
			return usage(errors.New("what is to be set?"), cmd.CommandPath()+" --help")
		}
		answer, err := a.update(cmd.Context(), r, args[0], scope, m, given)
		if err != nil {
			return err
		}
		return a.changed(r, "Changed", args[0], answer)
	}
	if r.keyed {
		r.scopeFlag(cmd, &scope)
	}
	r.addFields(cmd, true)
	return cmd
}

// update changes fields. The mask is JSON's: names as in messages, with commas.
func (a *app) update(ctx context.Context, r *resource, id, scope string, m message, fields []string) (message, error) {
	for i, f := range fields {
		// Conditions are one field: what is not given stays as it is.
		if strings.HasPrefix(f, "conditions.") {
			if err := a.keepConditions(ctx, r, id, scope, m, fields); err != nil {
				return nil, err
			}
			fields[i] = "conditions"
		}
	}
	for k, v := range r.key(id, scope) {
		m[k] = v
	}
	dropNil(m)
	slices.Sort(fields)
	answer, err := a.change(ctx, r.service, "Update"+r.typ, message{r.field(): m, "updateMask": strings.Join(slices.Compact(fields), ",")})
	return answer, r.missing(err)
}

// keepConditions adds to a message's conditions those that there are.
func (a *app) keepConditions(ctx context.Context, r *resource, id, scope string, m message, fields []string) error {
	now, err := a.get(ctx, r, id, scope)
	if err != nil {
		return err
	}
	m["etag"] = now["etag"] // or somebody else's change would be undone
	given, _ := m["conditions"].(message)
	there, _ := now["conditions"].(message)
	for k, v := range there {
		if !slices.Contains(fields, "conditions."+k) {
			if _, ok := given[k]; !ok {
				given[k] = v
			}
		}
	}
	return nil
}

// dropNil takes out what has no value: with a mask, absent is empty.
func dropNil(m message) {
	for k, v := range m {
		if below, ok := v.(message); ok {
			dropNil(below)
		}
		if v == nil {
			delete(m, k)
		}
	}
}

func (a *app) resourceDelete(r *resource) *cobra.Command {
	var scope string
	var force bool
	cmd := &cobra.Command{
		Use: "delete " + first(r.args, "NAME"), Short: "Delete it", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(r),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.confirm("Delete " + r.noun + " " + args[0]); err != nil {
				return err
			}
			if err := a.remove(cmd.Context(), r, args[0], scope, force); err != nil {
				return err
			}
			if a.dryRun {
				a.hint("Nothing was deleted; the server would do it.")
			} else {
				a.hint("Deleted %s %s.", r.noun, clean(args[0]))
			}
			return nil
		},
	}
	if r.keyed {
		r.scopeFlag(cmd, &scope)
	}
	if r.force {
		cmd.Flags().BoolVar(&force, "force", false, "with the grants that are in force")
	}
	return cmd
}

func (a *app) remove(ctx context.Context, r *resource, id, scope string, force bool) error {
	body := r.key(id, scope)
	if force {
		body["force"] = true
	}
	_, err := a.change(ctx, r.service, "Delete"+r.typ, body)
	return r.missing(err)
}
