// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/session"
)

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Servers that sharectl knows"}
	cmd.AddCommand(a.contextList(), a.contextShow(), a.contextUse(), a.contextSet(), a.contextRemove())
	return cmd
}

// contextValue is a context for programs.
type contextValue struct {
	Name      string `json:"name"`
	Current   bool   `json:"current"`
	URI       string `json:"uri"`
	Warehouse string `json:"warehouse,omitempty"`
	AdminURI  string `json:"adminUri,omitempty"`
	Method    string `json:"method,omitempty"`
	ClientID  string `json:"clientId,omitempty"`
	Issuer    string `json:"issuer,omitempty"`
	Store     string `json:"store,omitempty"`
	SignedIn  *bool  `json:"signedIn,omitempty"` // when it was looked at
	Expiry    string `json:"expiry,omitempty"`
	File      string `json:"file,omitempty"`
}

func (a *app) describe(name string, c *session.Context) contextValue {
	return contextValue{
		Name: name, Current: name != "" && name == a.settings.Current, URI: c.URI, Warehouse: c.Warehouse, AdminURI: c.AdminURI,
		Method: c.SignIn.Method, ClientID: c.SignIn.ClientID, Issuer: c.SignIn.Issuer, Store: c.SignIn.Store,
	}
}

func (a *app) contextList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List them; * is the current one", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := a.open(); err != nil {
				return err
			}
			l := list{columns: []string{"", "NAME", "URI", "WAREHOUSE", "SIGN-IN"}, none: "There is none yet: sharectl login URI"}
			values := []contextValue{}
			for _, name := range a.settings.Names() {
				v := a.describe(name, a.settings.Contexts[name])
				mark := ""
				if v.Current {
					mark = "*"
				}
				l.rows = append(l.rows, []string{mark, name, v.URI, v.Warehouse, v.Method})
				values = append(values, v)
			}
			l.value = values
			return a.print(l)
		},
	}
}

func (a *app) contextShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show the server that is used, and as whom you are signed in", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, err := a.use()
			if err != nil {
				return err
			}
			v := a.describe(n.name, &n.ctx)
			v.File = a.settings.Path()
			until, in := "", false
			v.SignedIn = &in
			switch {
			case n.fixed != "":
				in, v.Method = true, "$SHARECTL_TOKEN"
			case n.secret != "":
				in, v.Method = true, "$SHARECTL_CLIENT_SECRET"
			case n.name != "" && n.ctx.SignIn.Method != "":
				k, err := a.vault.Get(n.ctx.SignIn.Store, n.name)
				if err != nil {
					return err
				}
				in = k.AccessToken != ""
				if !k.Expiry.IsZero() && in {
					v.Expiry = k.Expiry.UTC().Format(time.RFC3339)
					until = "until " + v.Expiry
					renewable := k.RefreshToken != "" || k.ClientSecret != ""
					switch {
					case renewable:
						until += ", then renewed"
					case !a.Now().Before(k.Expiry):
						until, in = "no more, since "+v.Expiry, false
					}
				}
			}
			signedIn := "no"
			if in {
				signedIn = first(until, "yes")
			} else if until != "" {
				signedIn = until
			}
			return a.show(sheet{value: v, pairs: [][2]string{
				{"Context", v.Name},
				{"URI", v.URI},
				{"Warehouse", v.Warehouse},
				{"Sharing API", v.AdminURI},
				{"Sign-in", v.Method},
				{"Client", v.ClientID},
				{"Issuer", v.Issuer},
				{"Signed in", signedIn},
				{"Token kept in", v.Store},
				{"Authorities", n.ctx.TLS.CAFile},
				{"Certificate", n.ctx.TLS.CertFile},
				{"File", v.File},
			}})
		},
	}
}

// known completes the names of contexts.
func (a *app) known(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.open() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.settings.Names(), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) lookUp(name string) (*session.Context, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	c, ok := a.settings.Contexts[name]
	if !ok {
		return nil, &failure{err: fmt.Errorf("there is no context %q", name), code: codeNotFound, next: "sharectl context list"}
	}
	return c, nil
}

func (a *app) contextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make one the current one", Args: cobra.ExactArgs(1), ValidArgsFunction: a.known,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.lookUp(args[0])
			if err != nil {
				return err
			}
			a.settings.Current = args[0]
			if err := a.settings.Save(); err != nil {
				return err
			}
			a.hint("Now using %s at %s.", args[0], c.URI)
			return nil
		},
	}
}

func (a *app) contextSet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set", Short: "Choose another warehouse, or where the sharing API listens", Args: cobra.NoArgs,
		Example: "  sharectl context set --warehouse sales",
	}
	var admin string
	cmd.Flags().StringVar(&admin, "admin-uri", "", `where the sharing API listens; "" is at the catalog's URI`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.open(); err != nil {
			return err
		}
		name := first(a.contextName, a.Env("SHARECTL_CONTEXT"), a.settings.Current)
		c, err := a.lookUp(name)
		if err != nil {
			return err
		}
		changed := false
		if cmd.Flags().Changed("warehouse") {
			c.Warehouse, changed = a.warehouse, true
		}
		if cmd.Flags().Changed("admin-uri") {
			if admin != "" {
				if admin, err = session.ParseURI(admin); err != nil {
					return usage(err, "")
				}
			}
			c.AdminURI, changed = admin, true
		}
		if !changed {
			return usage(errors.New("what is to be set?"), "sharectl context set --warehouse NAME")
		}
		return a.settings.Save()
	}
	return cmd
}

func (a *app) contextRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Forget a server and its token", Args: cobra.ExactArgs(1), ValidArgsFunction: a.known,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.lookUp(args[0])
			if err != nil {
				return err
			}
			if err := a.confirm(fmt.Sprintf("Forget context %q and its token", args[0])); err != nil {
				return err
			}
			if a.dryRun {
				a.hint("Would forget context %q.", args[0])
				return nil
			}
			if err := a.vault.Remove(c.SignIn.Store, args[0]); err != nil {
				return err
			}
			delete(a.settings.Contexts, args[0])
			if a.settings.Current == args[0] {
				a.settings.Current = ""
			}
			return a.settings.Save()
		},
	}
}
