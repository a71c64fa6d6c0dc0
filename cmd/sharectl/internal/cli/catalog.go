// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
)

// request is a change that is sent, or with --dry-run printed.
type request struct {
	method, path string
	query        url.Values
	body         any
}

// send sends a change; what a dry run prints is a result, on stdout.
func (a *app) send(ctx context.Context, w *icebergrest.Warehouse, r request) (json.RawMessage, error) {
	if a.dryRun {
		path := r.path
		if len(r.query) > 0 {
			path += "?" + r.query.Encode()
		}
		if a.format != "table" {
			return nil, a.encode(map[string]any{"method": r.method, "path": path, "body": r.body})
		}
		text := r.method + " " + path + "\n"
		if r.body != nil {
			raw, err := json.MarshalIndent(r.body, "", "  ")
			if err != nil {
				return nil, err
			}
			text += string(raw) + "\n"
		}
		a.hint("Nothing was sent. It would be:")
		return nil, a.write(text)
	}
	if r.method == http.MethodDelete {
		return nil, w.Delete(ctx, r.path, r.query)
	}
	return w.Post(ctx, r.path, r.body)
}

// done says what was done, unless it was not.
func (a *app) done(format string, args ...any) {
	if !a.dryRun {
		a.hint(format, args...)
	}
}

func namespaceOf(s string) (icebergrest.Namespace, error) {
	parts, err := icebergrest.ParseIdent(s)
	if err != nil {
		return nil, usage(err, `name a namespace as a.b, and what has dots itself in quotes: 'a."b.c"'`)
	}
	return parts, nil
}

func identOf(s, what string) (icebergrest.Ident, error) {
	parts, err := icebergrest.ParseIdent(s)
	if err == nil && len(parts) < 2 {
		err = fmt.Errorf("%q names no namespace", s)
	}
	if err != nil {
		return icebergrest.Ident{}, usage(err, "name a "+what+" as namespace."+what+", and what has dots itself in quotes")
	}
	last := len(parts) - 1
	return icebergrest.Ident{Namespace: parts[:last], Name: parts[last]}, nil
}

// pairs reads KEY=VALUE.
func pairsOf(flag string, given []string) (map[string]string, error) {
	all := map[string]string{}
	for _, p := range given {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usage(fmt.Errorf("--%s %q is not KEY=VALUE", flag, p), "")
		}
		if _, twice := all[k]; twice {
			return nil, usage(fmt.Errorf("--%s gives %s twice", flag, k), "")
		}
		all[k] = v
	}
	return all, nil
}

func sortedPairs(m map[string]string) [][2]string {
	var all [][2]string
	for k, v := range m {
		all = append(all, [2]string{k, v})
	}
	slices.SortFunc(all, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return all
}

func lines(m map[string]string) string {
	var b strings.Builder
	for _, p := range sortedPairs(m) {
		fmt.Fprintf(&b, "%s = %s\n", p[0], p[1])
	}
	if b.Len() == 0 {
		return ""
	}
	return b.String()
}

// inNamespace tells what to try when a namespace is not there.
func inNamespace(err error) error {
	return nextFor(err, http.StatusNotFound, "sharectl namespace list")
}

func (a *app) namespaceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "namespace", Aliases: []string{"ns"}, Short: "Namespaces of a warehouse"}

	var recursive bool
	ls := &cobra.Command{
		Use: "list [PARENT]", Aliases: []string{"ls"}, Short: "List namespaces", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			var parent icebergrest.Namespace
			if len(args) == 1 {
				if parent, err = namespaceOf(args[0]); err != nil {
					return err
				}
			}
			all, err := walk(cmd.Context(), w, parent, recursive)
			if err != nil {
				return inNamespace(err)
			}
			l := list{columns: []string{"NAMESPACE"}, value: append([]icebergrest.Namespace{}, all...), none: "There is no namespace."}
			for _, ns := range all {
				l.rows = append(l.rows, []string{ns.String()})
			}
			return a.print(l)
		},
	}
	ls.Flags().BoolVarP(&recursive, "recursive", "r", false, "those below, too")

	show := &cobra.Command{
		Use: "show NAMESPACE", Short: "Show a namespace's properties", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := namespaceOf(args[0])
			if err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			raw, err := w.Get(cmd.Context(), w.Path(icebergrest.Ident{Namespace: ns}, ""), nil)
			if err != nil {
				return inNamespace(err)
			}
			var answer struct {
				Namespace  icebergrest.Namespace `json:"namespace"`
				Properties map[string]string     `json:"properties"`
			}
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			return a.show(sheet{value: raw, pairs: [][2]string{{"Namespace", answer.Namespace.String()}, {"Properties", lines(answer.Properties)}}})
		},
	}

	var properties []string
	create := &cobra.Command{
		Use: "create NAMESPACE", Short: "Create a namespace", Args: cobra.ExactArgs(1),
		Example: "  sharectl namespace create sales.emea --property owner=sales",
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := namespaceOf(args[0])
			if err != nil {
				return err
			}
			p, err := pairsOf("property", properties)
			if err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodPost, path: w.Base() + "/namespaces", body: map[string]any{"namespace": ns, "properties": p}}); err != nil {
				return inNamespace(err)
			}
			a.done("Created namespace %s.", ns)
			return nil
		},
	}
	create.Flags().StringArrayVar(&properties, "property", nil, "KEY=VALUE; can be given again")

	var set, remove []string
	change := &cobra.Command{
		Use: "set NAMESPACE", Short: "Set and remove properties", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeNamespace,
		Example: "  sharectl namespace set sales --property owner=emea --remove comment",
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := namespaceOf(args[0])
			if err != nil {
				return err
			}
			p, err := pairsOf("property", set)
			if err != nil {
				return err
			}
			if len(p)+len(remove) == 0 {
				return usage(errors.New("what is to be set?"), cmd.CommandPath()+" "+args[0]+" --property KEY=VALUE")
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			raw, err := a.send(cmd.Context(), w, request{
				method: http.MethodPost, path: w.Path(icebergrest.Ident{Namespace: ns}, "") + "/properties",
				body: map[string]any{"updates": p, "removals": append([]string{}, remove...)},
			})
			if err != nil || a.dryRun {
				return inNamespace(err)
			}
			var answer struct{ Updated, Removed, Missing []string }
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			a.done("Set %d, removed %d properties of %s.", len(answer.Updated), len(answer.Removed), ns)
			for _, m := range answer.Missing {
				a.hint("There was no property %s.", clean(m))
			}
			return nil
		},
	}
	change.Flags().StringArrayVar(&set, "property", nil, "KEY=VALUE; can be given again")
	change.Flags().StringArrayVar(&remove, "remove", nil, "KEY to remove; can be given again")

	drop := &cobra.Command{
		Use: "drop NAMESPACE", Short: "Drop an empty namespace", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := namespaceOf(args[0])
			if err != nil {
				return err
			}
			if err := a.confirm("Drop namespace " + ns.String()); err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodDelete, path: w.Path(icebergrest.Ident{Namespace: ns}, "")}); err != nil {
				return inNamespace(nextFor(err, http.StatusConflict, "sharectl table list "+ns.String()))
			}
			a.done("Dropped namespace %s.", ns)
			return nil
		},
	}
	cmd.AddCommand(ls, show, create, change, drop)
	return cmd
}

// walk lists namespaces, parents first.
func walk(ctx context.Context, w *icebergrest.Warehouse, parent icebergrest.Namespace, recursive bool) ([]icebergrest.Namespace, error) {
	children, err := w.Namespaces(ctx, parent)
	if err != nil || !recursive {
		return children, err
	}
	var all []icebergrest.Namespace
	for _, c := range children {
		below, err := walk(ctx, w, c, true)
		if err != nil {
			return nil, err
		}
		all = append(append(all, c), below...)
	}
	return all, nil
}

// completeNamespace completes the name of a namespace.
func (a *app) completeNamespace(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	w, err := a.openWarehouse(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var parent icebergrest.Namespace
	if i := strings.LastIndexByte(typed, '.'); i > 0 {
		if parent, err = icebergrest.ParseIdent(typed[:i]); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
	}
	children, err := w.Namespaces(cmd.Context(), parent)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, c := range children {
		names = append(names, c.String())
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeIdent completes the name of a table or view: first its namespace.
func (a *app) completeIdent(kind string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		names, directive := a.completeNamespace(cmd, args, typed)
		if directive == cobra.ShellCompDirectiveError || len(args) > 0 {
			return nil, directive
		}
		if i := strings.LastIndexByte(typed, '.'); i > 0 {
			ns, err := icebergrest.ParseIdent(typed[:i])
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			found, err := w.List(cmd.Context(), ns, kind)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			for _, id := range found {
				names = append(names, id.String())
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// warehouseConfig shows what engines are told of a warehouse.
func (a *app) warehouseConfig() *cobra.Command {
	return &cobra.Command{
		Use: "config [NAME]", Short: "Show what engines are told of a warehouse or share", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeResource(warehouses),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			name := a.active.ctx.Warehouse
			if len(args) == 1 {
				name = args[0]
			}
			config, err := c.Config(cmd.Context(), name)
			if err != nil {
				return nextFor(err, http.StatusBadRequest, "sharectl warehouse config NAME")
			}
			return a.show(sheet{value: config, pairs: [][2]string{
				{"Warehouse", first(name, config.Overrides["prefix"])},
				{"Defaults", lines(config.Defaults)},
				{"Overrides", lines(config.Overrides)},
				{"Idempotency keys live", config.Lifetime},
				{"Endpoints", strings.Join(config.Endpoints, "\n")},
			}})
		},
	}
}
