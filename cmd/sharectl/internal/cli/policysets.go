// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/internal/policy"
)

var layerWords = map[string]string{"platform": "POLICY_LAYER_PLATFORM", "provider": "POLICY_LAYER_PROVIDER", "recipient": "POLICY_LAYER_RECIPIENT"}

const policyService = "PolicyService"

// setRef reads LAYER/NAME.
func setRef(s, organisation string) (message, error) {
	layer, name, ok := strings.Cut(s, "/")
	word, known := layerWords[layer]
	if !ok || !known || name == "" {
		return nil, usage(fmt.Errorf("%q names no policy set: it is LAYER/NAME, with platform, provider or recipient as layer", s), "sharectl policy list")
	}
	m := message{"layer": word, "name": name}
	if organisation != "" {
		m["organisation"] = organisation
	}
	return m, nil
}

func setName(m message) string {
	return word(text(m, "layer")) + "/" + text(m, "name")
}

// missingSet tells what to try when a policy set is not there.
func missingSet(err error) error {
	return (&resource{noun: "policy"}).missing(err)
}

// completeSet completes LAYER/NAME.
func (a *app) completeSet(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	all, err := a.pages(cmd.Context(), policyService, "ListPolicySets", "policySets", message{}, 1000)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, m := range all {
		names = append(names, setName(m))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// setCommand is a command about one policy set.
func (a *app) setCommand(use, short string, check cobra.PositionalArgs, run func(ctx context.Context, cmd *cobra.Command, set message, args []string) error) *cobra.Command {
	var organisation string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: check, ValidArgsFunction: a.completeSet,
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := setRef(args[0], organisation)
			if err != nil {
				return err
			}
			return missingSet(run(cmd.Context(), cmd, set, args))
		},
	}
	cmd.Flags().StringVar(&organisation, "organisation", "", "the owner (default: your own)")
	return cmd
}

func (a *app) policySetCommands() []*cobra.Command {
	var organisation string
	ls := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List policy sets", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body := message{}
			if organisation != "" {
				body["organisation"] = organisation
			}
			all, err := a.pages(cmd.Context(), policyService, "ListPolicySets", "policySets", body, 0)
			if err != nil {
				return err
			}
			if a.format != "table" {
				return a.encode(all)
			}
			for _, m := range all {
				m["set"] = setName(m)
			}
			return a.table([]column{{"SET", "set"}, {"ORGANISATION", "organisation"}, {"ACTIVE", "activeVersion"}, {"NEWEST", "newestVersion"}, {"DESCRIPTION", "description"}}, all, "There is none that you may see.")
		},
	}
	ls.Flags().StringVar(&organisation, "organisation", "", "those of this organisation alone")

	show := a.setCommand("show SET", "Show a policy set", cobra.ExactArgs(1), func(ctx context.Context, _ *cobra.Command, set message, _ []string) error {
		answer, err := a.ask(ctx, policyService, "GetPolicySet", message{"policySet": set})
		if err != nil {
			return err
		}
		m, _ := answer["policySet"].(message)
		return a.show(sheetOf(m))
	})

	var description string
	create := a.setCommand("create SET", "Make an empty policy set", cobra.ExactArgs(1), func(ctx context.Context, _ *cobra.Command, set message, args []string) error {
		if err := a.ownSet(ctx, set); err != nil {
			return err
		}
		set["description"] = description
		answer, err := a.change(ctx, policyService, "CreatePolicySet", message{"policySet": set})
		if err != nil {
			return err
		}
		return a.changed(&resource{noun: "policy set"}, "Created", args[0], answer)
	})
	create.Flags().StringVar(&description, "description", "", "for people")

	return append([]*cobra.Command{ls, show, create}, a.policyVersionCommands()...)
}

// ownSet gives a set the caller's organisation when none was named.
func (a *app) ownSet(ctx context.Context, set message) error {
	if set["organisation"] != nil || set["layer"] == layerWords["platform"] {
		return nil
	}
	who, err := a.ask(ctx, "PrincipalService", "WhoAmI", message{})
	if err != nil {
		return err
	}
	set["organisation"] = text(who, "organisation")
	return nil
}

// uploads reads files as the server wants them.
func (a *app) uploads(paths []string) ([]any, error) {
	policies, cases, err := a.readPolicyFiles(paths)
	if err != nil {
		return nil, err
	}
	if len(policies) == 0 {
		return nil, usage(fmt.Errorf("there is no *.cedar in %s", strings.Join(paths, ", ")), "")
	}
	var all []any
	seen := map[string]string{}
	for _, f := range append(policies, cases...) {
		if other, twice := seen[f.name]; twice {
			return nil, usage(fmt.Errorf("%s and %s would both be %s in the set: name their directory instead", other, f.path, f.name), "")
		}
		seen[f.name] = f.path
		all = append(all, message{"path": f.name, "text": string(f.text)})
	}
	return all, nil
}

// serverProblems turns a server's problems into our own.
func serverProblems(answer message) policy.Problems {
	var all policy.Problems
	list, _ := answer["problems"].([]any)
	for _, x := range list {
		m, ok := x.(message)
		if !ok {
			continue
		}
		p := policy.Problem{File: text(m, "file"), Policy: text(m, "policy"), Table: text(m, "table"), Message: text(m, "message"), Hint: text(m, "hint")}
		if n, ok := m["line"].(float64); ok {
			p.Line = int(n)
		}
		if n, ok := m["column"].(float64); ok {
			p.Column = int(n)
		}
		all = append(all, p)
	}
	return all
}

func version(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, usage(fmt.Errorf("version %q is no number from 1 on", s), "sharectl policy versions SET")
	}
	return n, nil
}

func (a *app) policyVersionCommands() []*cobra.Command {
	var comment string
	upload := a.setCommand("upload SET PATH...", "Keep files as a new version; it is not activated", cobra.MinimumNArgs(2), func(ctx context.Context, _ *cobra.Command, set message, args []string) error {
		files, err := a.uploads(args[1:])
		if err != nil {
			return err
		}
		answer, err := a.change(ctx, policyService, "UploadPolicyVersion", message{"policySet": set, "files": files, "comment": comment})
		if err != nil {
			return err
		}
		if a.format != "table" {
			return a.encode(answer)
		}
		for _, p := range serverProblems(answer) {
			if err := a.writeProblem(p); err != nil {
				return err
			}
		}
		number := text(answer, "version.version")
		switch {
		case a.dryRun:
			a.hint("Nothing was kept; the server would take the files.")
		case answer["unchanged"] == true:
			a.hint("The files are those of version %s already.", number)
		default:
			a.hint("Kept as version %s; to use it: sharectl policy activate %s %s", number, args[0], number)
		}
		return nil
	})
	upload.Flags().StringVar(&comment, "comment", "", "for the record")
	upload.Example = "  sharectl policy upload provider/main policies/ --comment 'EU rows for analysts'"

	versions := a.setCommand("versions SET", "List versions, the newest first", cobra.ExactArgs(1), func(ctx context.Context, _ *cobra.Command, set message, _ []string) error {
		all, err := a.pages(ctx, policyService, "ListPolicyVersions", "versions", message{"policySet": set}, 0)
		if err != nil {
			return err
		}
		return a.table([]column{{"VERSION", "version"}, {"TIME", "createTime"}, {"POLICIES", "policyCount"}, {"BY", "principal"}, {"COMMENT", "comment"}}, all, "There is no version yet.")
	})
	history := a.setCommand("history SET", "List what was active when, the newest first", cobra.ExactArgs(1), func(ctx context.Context, _ *cobra.Command, set message, _ []string) error {
		all, err := a.pages(ctx, policyService, "ListPolicyActivations", "activations", message{"policySet": set}, 0)
		if err != nil {
			return err
		}
		return a.table([]column{{"TIME", "time"}, {"VERSION", "version"}, {"BEFORE", "previousVersion"}, {"ROLLBACK", "rollback"}, {"BY", "principal"}}, all, "No version was ever active.")
	})

	var number int64
	pull := a.setCommand("pull SET DIR", "Write the files of the active version into a directory", cobra.ExactArgs(2), func(ctx context.Context, _ *cobra.Command, set message, args []string) error {
		answer, err := a.ask(ctx, policyService, "GetPolicyVersion", message{"policySet": set, "version": number})
		if err != nil {
			return err
		}
		return a.writePolicyFiles(answer, args[1])
	})
	pull.Flags().Int64Var(&number, "version", 0, "this version (default: the active one)")

	var from, to int64
	diff := a.setCommand("diff SET [PATH...]", "Compare two versions, or a version with files", cobra.MinimumNArgs(1), func(ctx context.Context, _ *cobra.Command, set message, args []string) error {
		body := message{"policySet": set, "fromVersion": from, "toVersion": to}
		if len(args) > 1 {
			files, err := a.uploads(args[1:])
			if err != nil {
				return err
			}
			body["files"] = files
		}
		answer, err := a.ask(ctx, policyService, "DiffPolicy", body)
		if err != nil {
			return err
		}
		if a.format != "table" {
			return a.encode(answer)
		}
		return a.showDiff(answer)
	})
	diff.Flags().Int64Var(&from, "from", 0, "from this version (default: the active one)")
	diff.Flags().Int64Var(&to, "to", 0, "to this version (default: the newest one, or the files)")

	activate := a.setCommand("activate SET VERSION", "Make a version the active one, if it fits all tables and passes its cases", cobra.ExactArgs(2), func(ctx context.Context, _ *cobra.Command, set message, args []string) error {
		v, err := version(args[1])
		if err != nil {
			return err
		}
		answer, err := a.change(ctx, policyService, "ActivatePolicyVersion", message{"policySet": set, "version": v})
		if err != nil {
			return err
		}
		return a.activated(args[0], answer)
	})
	rollback := a.setCommand("rollback SET", "Make the version active that was before the present one", cobra.ExactArgs(1), func(ctx context.Context, _ *cobra.Command, set message, args []string) error {
		answer, err := a.change(ctx, policyService, "RollbackPolicySet", message{"policySet": set})
		if err != nil {
			return err
		}
		return a.activated(args[0], answer)
	})
	return []*cobra.Command{upload, versions, history, pull, diff, activate, rollback}
}

func (a *app) activated(set string, answer message) error {
	if a.format != "table" {
		return a.encode(answer)
	}
	v, before := text(answer, "policySet.activeVersion"), first(text(answer, "previousVersion"), "none")
	if a.dryRun {
		a.hint("Nothing was changed; the server would take it.")
	} else {
		a.hint("Version %s of %s is active; before it was %s.", v, set, before)
	}
	return nil
}

// showDiff prints a unified diff, in colour on terminals.
func (a *app) showDiff(answer message) error {
	for line := range strings.Lines(text(answer, "diff")) {
		line = clean(strings.TrimSuffix(line, "\n"))
		switch {
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"), strings.HasPrefix(line, "@@"):
			line = a.paint(a.OutTerminal, bold, line)
		case strings.HasPrefix(line, "+"):
			line = a.paint(a.OutTerminal, green, line)
		case strings.HasPrefix(line, "-"):
			line = a.paint(a.OutTerminal, red, line)
		}
		if err := a.write(line + "\n"); err != nil {
			return err
		}
	}
	said := false
	for _, x := range [][2]string{{"addedPolicies", "Added"}, {"removedPolicies", "Removed"}, {"changedPolicies", "Changed"}} {
		if ids := text(answer, x[0]); ids != "" {
			a.hint("%s: %s", x[1], clean(ids))
			said = true
		}
	}
	if !said && text(answer, "diff") == "" {
		a.hint("There is no difference.")
	}
	return nil
}

// writePolicyFiles writes a version's files below a directory. A path that
// would lead out of it is refused.
func (a *app) writePolicyFiles(answer message, dir string) error {
	v, _ := answer["version"].(message)
	files, _ := v["files"].([]any)
	if len(files) == 0 {
		return errors.New("the version has no files")
	}
	if a.dryRun {
		a.hint("Nothing was written. It would be:")
		for _, x := range files {
			if f, ok := x.(message); ok {
				if err := a.write(clean(filepath.Join(dir, filepath.FromSlash(text(f, "path")))) + "\n"); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // files have been closed
	for _, x := range files {
		f, ok := x.(message)
		if !ok {
			continue
		}
		path := filepath.FromSlash(text(f, "path"))
		if !filepath.IsLocal(path) {
			return fmt.Errorf("the server names a file %q, which would lie outside %s", path, dir)
		}
		if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(path, []byte(text(f, "text")), 0o644); err != nil {
			return err
		}
	}
	a.hint("Wrote %d files of version %s into %s.", len(files), text(v, "version"), dir)
	return nil
}

// serverCheck checks or tests on the server, against its own tables.
func (a *app) serverCheck(ctx context.Context, method, ref, organisation string, number int64, paths []string) (message, error) {
	set, err := setRef(ref, organisation)
	if err != nil {
		return nil, err
	}
	body := message{"policySet": set, "version": number}
	if len(paths) > 0 {
		if body["files"], err = a.uploads(paths); err != nil {
			return nil, err
		}
	}
	answer, err := a.ask(ctx, policyService, method, body)
	return answer, missingSet(err)
}
