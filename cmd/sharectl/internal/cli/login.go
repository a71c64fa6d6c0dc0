// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
	"github.com/sluice-data/sluice/cmd/sharectl/internal/session"
)

// contextName is what a context may be called: it is a key in files.
var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func (a *app) loginCommand() *cobra.Command {
	var c session.Context
	var name, secretFile string
	var device, withToken, keep bool
	cmd := &cobra.Command{
		Use:   "login [URI]",
		Short: "Sign in to a server, and keep it as a context",
		Long: `Signs in to a server and keeps server and way to sign in as a context, which
becomes the current one. Without URI it signs in again to the context.

There are three ways:

  client credentials   --client-id ID, with the secret asked for, from
                       --client-secret-file or from $SHARECTL_CLIENT_SECRET
  device code          --device --issuer URI --client-id ID: you confirm a code
                       in a browser on any machine (RFC 8628)
  a token              --with-token reads one from stdin

The token goes into the keyring of the operating system, or where there is none
into a file with mode 0600 beside the configuration. With $SHARECTL_URI and
$SHARECTL_TOKEN, or $SHARECTL_CLIENT_ID and $SHARECTL_CLIENT_SECRET, no login is
needed and nothing is kept.`,
		Example: `  sharectl login https://catalog.example.com --client-id analyst --warehouse sales
  sharectl login https://catalog.example.com --device --issuer https://id.example.com/realms/corp --client-id sharectl
  sharectl login http://127.0.0.1:8181 --with-token < token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.open(); err != nil {
				return err
			}
			if device && withToken {
				return usage(errors.New("--device and --with-token are two ways to sign in: choose one"), "")
			}
			name = first(a.contextName, name)
			given := c
			if len(args) == 0 {
				known, ok := a.settings.Contexts[first(name, a.Env("SHARECTL_CONTEXT"), a.settings.Current)]
				if !ok {
					return usage(errors.New("which server?"), "sharectl login https://catalog.example.com")
				}
				name = first(name, a.Env("SHARECTL_CONTEXT"), a.settings.Current)
				c = *known
				overlay(cmd, &c, given)
			} else {
				uri, err := session.ParseURI(args[0])
				if err != nil {
					return usage(err, "")
				}
				c.URI = uri
				if name == "" {
					u, err := url.Parse(uri)
					if err != nil {
						return usage(err, "")
					}
					name = strings.ReplaceAll(u.Host, ":", "-")
				}
			}
			if !contextName.MatchString(name) {
				return usage(fmt.Errorf("a context cannot be called %q: letters, digits, '.', '_' and '-', at most 63", name), "sharectl login URI --context NAME")
			}
			c.Warehouse = first(a.warehouse, c.Warehouse)
			if err := absolute(&c.TLS); err != nil {
				return err
			}
			switch {
			case device:
				c.SignIn.Method = session.MethodDevice
			case withToken:
				c.SignIn.Method = session.MethodToken
			case c.SignIn.ClientID != "" && (len(args) > 0 || c.SignIn.Method != session.MethodDevice):
				c.SignIn.Method = session.MethodCredentials
			case c.SignIn.Method == "" && c.TLS.CertFile == "":
				return usage(errors.New("how do you want to sign in?"), "sharectl login "+c.URI+" --client-id ID, or --device, or --with-token")
			}
			return a.login(cmd.Context(), name, c, secretFile, keep)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "name of the context (default: the server's host)")
	f.StringVar(&c.AdminURI, "admin-uri", "", "where the sharing API listens, if not at URI")
	f.StringVar(&c.SignIn.ClientID, "client-id", "", "client to sign in as")
	f.StringVar(&secretFile, "client-secret-file", "", "file with the client's secret; - is stdin")
	f.BoolVar(&keep, "keep-secret", false, "keep the client's secret beside the token, to renew it without asking")
	f.BoolVar(&device, "device", false, "sign in in a browser, on this machine or another")
	f.BoolVar(&withToken, "with-token", false, "read a token from stdin")
	f.StringVar(&c.SignIn.Issuer, "issuer", "", "OpenID provider that issues the tokens")
	f.StringVar(&c.SignIn.TokenURI, "token-uri", "", "token endpoint (default: the issuer's, or the server's own)")
	f.StringSliceVar(&c.SignIn.Scopes, "scope", nil, "scope to ask for; can be given again")
	f.StringVar(&c.SignIn.Audience, "audience", "", "audience to ask for")
	f.StringVar(&c.SignIn.Store, "store", "", "keyring or file (default: the keyring if there is one)")
	f.StringVar(&c.TLS.CAFile, "ca-file", "", "authorities to trust, in PEM, instead of the system's")
	f.StringVar(&c.TLS.CertFile, "cert-file", "", "client certificate, in PEM")
	f.StringVar(&c.TLS.KeyFile, "key-file", "", "its key")
	return cmd
}

// overlay puts the flags that were given over what a context has.
func overlay(cmd *cobra.Command, c *session.Context, given session.Context) {
	for flag, set := range map[string]func(){
		"admin-uri": func() { c.AdminURI = given.AdminURI },
		"client-id": func() { c.SignIn.ClientID = given.SignIn.ClientID },
		"issuer":    func() { c.SignIn.Issuer, c.SignIn.TokenURI = given.SignIn.Issuer, "" },
		"scope":     func() { c.SignIn.Scopes = given.SignIn.Scopes },
		"audience":  func() { c.SignIn.Audience = given.SignIn.Audience },
		"store":     func() { c.SignIn.Store = given.SignIn.Store },
		"ca-file":   func() { c.TLS.CAFile = given.TLS.CAFile },
		"cert-file": func() { c.TLS.CertFile = given.TLS.CertFile },
		"key-file":  func() { c.TLS.KeyFile = given.TLS.KeyFile },
	} {
		if cmd.Flags().Changed(flag) {
			set()
		}
	}
	if cmd.Flags().Changed("token-uri") {
		c.SignIn.TokenURI = given.SignIn.TokenURI
	}
}

func absolute(t *session.TLS) error {
	for _, p := range []*string{&t.CAFile, &t.CertFile, &t.KeyFile} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// login signs in, asks the server whether it takes the token, and only then
// keeps anything.
func (a *app) login(ctx context.Context, name string, c session.Context, secretFile string, keep bool) error {
	switch c.SignIn.Store {
	case "", session.StoreKeyring, session.StoreFile:
	default:
		return usage(fmt.Errorf("--store %q is not keyring or file", c.SignIn.Store), "")
	}
	client, err := c.HTTPClient()
	if err != nil {
		return err
	}
	k, err := a.obtain(ctx, client, &c, secretFile, keep)
	if err != nil {
		return err
	}
	rest := &icebergrest.Client{URI: c.URI, HTTP: client, Token: func(context.Context) (string, error) { return k.AccessToken, nil }}
	config, err := rest.Config(ctx, c.Warehouse)
	var refused *icebergrest.Error
	switch {
	case err == nil && c.Warehouse == "":
		// The only one that this principal may see.
		c.Warehouse = config.Overrides["prefix"]
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest && c.Warehouse == "":
		// Signed in, with several warehouses to choose from, or none.
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		return &failure{err: fmt.Errorf("%s does not take the token: %w", c.URI, err), code: codeRefused, next: "sharectl login --help"}
	case err != nil:
		return err
	}
	if c.SignIn.Method != "" {
		where, err := a.vault.Put(c.SignIn.Store, name, k)
		if err != nil {
			return err
		}
		if where == session.StoreFile && c.SignIn.Store == "" {
			a.hint("There is no keyring here: the token is in %s, which only you can read.", a.vault.Path())
		}
		c.SignIn.Store = where
	}
	a.settings.Contexts[name] = &c
	a.settings.Current = name
	if err := a.settings.Save(); err != nil {
		return err
	}
	a.hint("Signed in to %s as context %q.", c.URI, name)
	if c.Warehouse == "" {
		a.hint("No warehouse is chosen yet: sharectl context set --warehouse NAME")
	}
	return nil
}

// obtain gets a token in the context's way.
func (a *app) obtain(ctx context.Context, client *http.Client, c *session.Context, secretFile string, keep bool) (session.Kept, error) {
	var deviceEndpoint string
	if c.SignIn.Issuer != "" && (c.SignIn.TokenURI == "" || c.SignIn.Method == session.MethodDevice) {
		d, err := session.Discover(ctx, client, c.SignIn.Issuer)
		if err != nil {
			return session.Kept{}, err
		}
		if c.SignIn.TokenURI == "" {
			c.SignIn.TokenURI = d.TokenEndpoint
		}
		deviceEndpoint = d.DeviceEndpoint
	}
	switch c.SignIn.Method {
	case session.MethodToken:
		raw, err := a.readSecret("Token: ", "-")
		if err != nil {
			return session.Kept{}, err
		}
		if raw == "" || strings.ContainsAny(raw, " \t\r\n") {
			return session.Kept{}, usage(errors.New("stdin holds no token: one word is wanted"), "sharectl login URI --with-token < FILE")
		}
		return session.Kept{AccessToken: raw}, nil
	case session.MethodCredentials:
		if c.SignIn.TokenURI == "" {
			c.SignIn.TokenURI = c.URI + "/v1/oauth/tokens"
		}
		secret := ""
		if secretFile == "" {
			secret = a.Env("SHARECTL_CLIENT_SECRET")
		}
		if secret == "" {
			var err error
			if secret, err = a.readSecret("Client secret: ", secretFile); err != nil {
				return session.Kept{}, err
			}
		}
		if secret == "" {
			return session.Kept{}, usage(errors.New("the client's secret is empty"), "sharectl login URI --client-id ID --client-secret-file FILE")
		}
		k, err := c.ByCredentials(ctx, client, secret)
		if keep {
			k.ClientSecret = secret
		}
		return k, err
	case session.MethodDevice:
		switch {
		case c.SignIn.Issuer == "":
			return session.Kept{}, usage(errors.New("--device needs the OpenID provider"), "sharectl login URI --device --issuer https://… --client-id ID")
		case c.SignIn.ClientID == "":
			return session.Kept{}, usage(errors.New("--device needs the client that the OpenID provider knows"), "sharectl login URI --device --issuer https://… --client-id ID")
		case deviceEndpoint == "":
			return session.Kept{}, &failure{err: fmt.Errorf("%s offers no device codes", c.SignIn.Issuer), code: codeFailed, next: "sharectl login URI --client-id ID"}
		}
		return c.ByDevice(ctx, client, deviceEndpoint, func(p session.Prompt) error {
			a.hint("Open  %s", clean(p.URI))
			a.hint("Enter %s", clean(p.Code))
			if p.CompleteURI != "" {
				a.hint("or open %s", clean(p.CompleteURI))
			}
			left := ""
			if !p.Expires.IsZero() {
				left = fmt.Sprintf(" (%s left)", time.Until(p.Expires).Round(time.Minute))
			}
			a.hint("Waiting for you to confirm%s …", left)
			return nil
		})
	}
	return session.Kept{}, nil // a certificate is enough
}

// readSecret reads a secret from a file, from stdin (file "-"), or unseen from
// the terminal (file "").
func (a *app) readSecret(prompt, file string) (string, error) {
	if (file == "" || file == "-") && a.InTerminal {
		fmt.Fprint(a.Stderr, prompt)
		raw, err := a.ReadSecret()
		fmt.Fprintln(a.Stderr)
		return strings.TrimSpace(string(raw)), err
	}
	if file == "" {
		return "", usage(errors.New("nobody is here to type the secret"), "--client-secret-file FILE, or the variable SHARECTL_CLIENT_SECRET")
	}
	raw, err := a.readFile(file)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "Forget the context's token; the context stays",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, err := a.use()
			if err != nil {
				return err
			}
			if n.name == "" {
				return usage(errors.New("the environment names the server: there is nothing to forget"), "")
			}
			if err := a.vault.Remove(n.ctx.SignIn.Store, n.name); err != nil {
				return err
			}
			a.hint("Signed out of context %q.", n.name)
			return nil
		},
	}
}

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "The token that sharectl sends"}
	cmd.AddCommand(&cobra.Command{
		Use:     "show",
		Short:   "Print the token, renewed if it is old and can be",
		Example: `  export SLUICE_TOKEN="$(sharectl token show)"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := a.bearer(cmd.Context())
			if err != nil {
				return err
			}
			if token == "" {
				return &failure{err: errors.New("the context signs in by certificate: there is no token"), code: codeFailed}
			}
			return a.write(token + "\n")
		},
	})
	return cmd
}
