// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package cli is the commands of sharectl.
//
// Results go to stdout and nothing else does; what is said to a person goes to
// stderr. There is colour and progress only where a terminal is. What a server
// sends is printed without control characters in tables. A token or secret is
// printed only by commands that are asked for it by name.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
	"github.com/sluice-data/sluice/cmd/sharectl/internal/session"
)

// System is what a command line has around it.
type System struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            func(string) string
	Now            func() time.Time
	Version        string
	// Which of the three are terminals.
	InTerminal, OutTerminal, ErrTerminal bool
	// ReadSecret reads a line from the terminal without showing it.
	ReadSecret func() ([]byte, error)
}

// app is one run of sharectl.
type app struct {
	System
	// Flags of every command.
	format      string
	contextName string
	warehouse   string
	dryRun      bool
	yes         bool

	home     string
	settings *session.Settings
	vault    *session.Vault
	active   *active
}

// active is the context that a command uses, with its client and its token.
type active struct {
	name   string
	ctx    session.Context
	http   *http.Client
	fixed  string // SHARECTL_TOKEN
	secret string // SHARECTL_CLIENT_SECRET
	token  session.Kept
}

// Run runs a command line and returns the exit code.
func Run(ctx context.Context, args []string, s System) int {
	a := &app{System: s}
	session.UserAgent = "sharectl/" + s.Version
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return codeOK
	}
	return a.report(ctx, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sharectl",
		Short: "Share Iceberg tables under policies",
		Long: `sharectl is the command line of Sluice: it administers catalogs, shares and
policies, connects engines, and verifies the audit log.

Start with "sharectl login URI". Exit codes are in "sharectl help exit-codes".`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           a.Version,
		DisableAutoGenTag: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetVersionTemplate("sharectl {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(err, cmd.CommandPath()+" --help")
	})
	f := root.PersistentFlags()
	f.StringVarP(&a.format, "output", "o", "table", "form of the output: table, json or yaml")
	f.StringVar(&a.contextName, "context", "", "context to use (default: the current one, or $SHARECTL_CONTEXT)")
	f.StringVarP(&a.warehouse, "warehouse", "w", "", "warehouse, or share/NAME (default: the context's, or $SHARECTL_WAREHOUSE)")
	f.BoolVar(&a.dryRun, "dry-run", false, "print what would be sent, and send no change")
	f.BoolVarP(&a.yes, "yes", "y", false, "do not ask before something is removed")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		if a.open() != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return a.settings.Names(), cobra.ShellCompDirectiveNoFileComp
	})
	root.AddGroup(
		&cobra.Group{ID: "start", Title: "To begin:"},
		&cobra.Group{ID: "catalog", Title: "The catalog:"},
		&cobra.Group{ID: "share", Title: "Sharing:"},
		&cobra.Group{ID: "govern", Title: "Policies and proof:"},
	)
	root.SetHelpCommandGroupID("start")
	root.SetCompletionCommandGroupID("start")
	for group, commands := range map[string][]*cobra.Command{
		"start":   {a.loginCommand(), a.logoutCommand(), a.contextCommand(), a.tokenCommand(), a.whoamiCommand(), a.connectCommand(), a.doctorCommand()},
		"catalog": {a.warehouseNoun(), a.namespaceCommand(), a.tableCommand(), a.viewCommand()},
		"share":   {a.applyCommand(), a.shareCommand(), a.recipientCommand(), a.grantCommand(), a.commands(organisations), a.commands(principals), a.serviceAccountCommand()},
		"govern":  {a.policyCommand(), a.auditCommand()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(a.manCommand(), exitCodesTopic())
	strict(root)
	return root
}

// strict makes a group of commands refuse what it does not have, where cobra
// would show its help and end well.
func strict(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil && c.Run == nil {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			text := fmt.Sprintf("there is no %q in %s", args[0], cmd.CommandPath())
			cmd.SuggestionsMinimumDistance = 2
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				return usage(errors.New(text), cmd.CommandPath()+" "+s[0])
			}
			return usage(errors.New(text), cmd.CommandPath()+" --help")
		}
	}
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage(fmt.Errorf("%w; the form is: %s", err, cmd.UseLine()), cmd.CommandPath()+" --help")
			}
			return nil
		}
	}
	for _, child := range c.Commands() {
		strict(child)
	}
}

// prepare checks the flags of every command.
func (a *app) prepare(cmd *cobra.Command) error {
	switch a.format {
	case "table", "json", "yaml":
	default:
		return usage(fmt.Errorf("-o %q is not table, json or yaml", a.format), cmd.CommandPath()+" -o json")
	}
	return nil
}

// open reads settings once.
func (a *app) open() error {
	if a.settings != nil {
		return nil
	}
	home, err := session.Home(a.Env)
	if err != nil {
		return err
	}
	s, err := session.Load(home)
	if err != nil {
		return err
	}
	a.home, a.settings, a.vault = home, s, session.NewVault(home)
	return nil
}

// use opens the context of this command: the one that --context or
// SHARECTL_CONTEXT names, else one that SHARECTL_URI describes, else the
// current one. Variables of the environment complete it.
func (a *app) use() (*active, error) {
	if a.active != nil {
		return a.active, nil
	}
	if err := a.open(); err != nil {
		return nil, err
	}
	n := &active{name: first(a.contextName, a.Env("SHARECTL_CONTEXT")), fixed: a.Env("SHARECTL_TOKEN"), secret: a.Env("SHARECTL_CLIENT_SECRET")}
	uri := a.Env("SHARECTL_URI")
	if n.name == "" && uri == "" {
		n.name = a.settings.Current
	}
	switch {
	case n.name != "":
		c, ok := a.settings.Contexts[n.name]
		if !ok {
			return nil, &failure{err: fmt.Errorf("there is no context %q in %s", n.name, a.settings.Path()), code: codeUsage, next: "sharectl context list"}
		}
		n.ctx = *c
	case uri == "":
		return nil, &failure{err: errors.New("no server is chosen"), code: codeUsage, next: "sharectl login https://catalog.example.com"}
	}
	if uri != "" && a.contextName == "" {
		clean, err := session.ParseURI(uri)
		if err != nil {
			return nil, usage(fmt.Errorf("SHARECTL_URI: %w", err), "")
		}
		if clean != n.ctx.URI { // what is kept is for the other server
			n.ctx = session.Context{URI: clean, TLS: n.ctx.TLS}
			n.name = ""
		}
	}
	if v := a.Env("SHARECTL_CA_FILE"); v != "" {
		n.ctx.TLS.CAFile = v
	}
	if v := first(a.warehouse, a.Env("SHARECTL_WAREHOUSE")); v != "" {
		n.ctx.Warehouse = v
	}
	if id := a.Env("SHARECTL_CLIENT_ID"); id != "" && n.secret != "" {
		s := session.SignIn{Method: session.MethodCredentials, ClientID: id, TokenURI: a.Env("SHARECTL_TOKEN_URI"), Scopes: n.ctx.SignIn.Scopes, Audience: n.ctx.SignIn.Audience}
		if s.TokenURI == "" {
			s.TokenURI = first(n.ctx.SignIn.TokenURI, n.ctx.URI+"/v1/oauth/tokens")
		}
		n.ctx.SignIn = s
	} else {
		n.secret = ""
	}
	client, err := n.ctx.HTTPClient()
	if err != nil {
		return nil, err
	}
	n.http = client
	a.active = n
	return n, nil
}

func first(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}

// bearer is the token to send; a certificate alone may do without one.
func (a *app) bearer(ctx context.Context) (string, error) {
	n, err := a.use()
	if err != nil {
		return "", err
	}
	if n.fixed != "" {
		return n.fixed, nil
	}
	now := a.Now()
	if k := n.token; k.AccessToken != "" && (k.Expiry.IsZero() || now.Before(k.Expiry.Add(-10*time.Second))) {
		return k.AccessToken, nil
	}
	if n.secret != "" {
		n.token, err = n.ctx.ByCredentials(ctx, n.http, n.secret)
		return n.token.AccessToken, err
	}
	if n.name == "" || n.ctx.SignIn.Method == "" {
		if n.ctx.TLS.CertFile != "" {
			return "", nil
		}
		return "", session.ErrSignIn
	}
	n.token, err = n.ctx.Token(ctx, n.http, a.vault, n.name, now)
	return n.token.AccessToken, err
}

// client is the Iceberg client of the context.
func (a *app) client() (*icebergrest.Client, error) {
	n, err := a.use()
	if err != nil {
		return nil, err
	}
	return &icebergrest.Client{URI: n.ctx.URI, HTTP: n.http, Token: a.bearer}, nil
}

// openWarehouse opens the context's warehouse.
func (a *app) openWarehouse(ctx context.Context) (*icebergrest.Warehouse, error) {
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	w, err := c.Warehouse(ctx, a.active.ctx.Warehouse)
	var refused *icebergrest.Error
	if errors.As(err, &refused) && refused.Status == http.StatusBadRequest && a.active.ctx.Warehouse == "" {
		return nil, &failure{err: errors.New("you may see several warehouses, or none: name one"), code: codeUsage, next: "the same with --warehouse NAME"}
	}
	if refused != nil && refused.Type == "NoSuchWarehouseException" {
		return nil, &failure{err: err, next: "sharectl context set --warehouse NAME"}
	}
	return w, err
}

// hint tells a person something that is not the result.
func (a *app) hint(format string, args ...any) {
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// confirm asks before something is removed. Without a terminal --yes is
// needed.
func (a *app) confirm(what string) error {
	if a.yes || a.dryRun {
		return nil
	}
	if !a.InTerminal {
		return &failure{err: fmt.Errorf("%s: nobody is here to confirm it", what), code: codeUsage, next: "the same with --yes"}
	}
	fmt.Fprintf(a.Stderr, "%s? [y/N] ", what)
	answer, err := readLine(a.Stdin)
	if err != nil {
		return err
	}
	if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
		return &failure{err: errors.New("nothing was done"), code: codeFailed}
	}
	return nil
}

// readLine reads a line and nothing after it.
func readLine(r io.Reader) (string, error) {
	var line []byte
	b := make([]byte, 1)
	for len(line) < 64<<10 {
		n, err := r.Read(b)
		if n == 1 {
			if b[0] == '\n' {
				return strings.TrimSuffix(string(line), "\r"), nil
			}
			line = append(line, b[0])
			continue
		}
		if errors.Is(err, io.EOF) {
			return string(line), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", errors.New("the line is too long")
}

// readFile reads a file, or stdin for "-".
func (a *app) readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.Stdin)
	}
	return os.ReadFile(filepath.Clean(name))
}
