// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/engines"
	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
	"github.com/sluice-data/sluice/cmd/sharectl/internal/session"
)

func (a *app) connectCommand() *cobra.Command {
	var as, auth, storage, keys, share, file, scope string
	var write, withSecret bool
	cmd := &cobra.Command{
		Use:   "connect {" + strings.Join(engines.Names(), "|") + "}",
		Short: "Print an engine's settings, or write them into its own file",
		Long: `Prints ready settings with which an engine uses the context's warehouse, or a
share. With --write they go into the engine's own configuration file; what else
is there stays.

The token or the client's secret is left to the environment unless --with-secret
is given. A file that a secret is written into gets mode 0600.`,
		Example: `  sharectl connect pyiceberg
  sharectl connect duckdb --share flights --write
  sharectl connect trino --write --file /etc/trino/catalog/sluice.properties`,
		Args: cobra.ExactArgs(1), ValidArgs: engines.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.IndexFunc(engines.All, func(e engines.Engine) bool { return e.Name == args[0] })
			if i < 0 {
				return usage(fmt.Errorf("engine %q is not known; there are %s", args[0], strings.Join(engines.Names(), ", ")), "sharectl connect "+engines.Names()[0])
			}
			engine := engines.All[i]
			s, err := a.engineSettings(cmd.Context(), as, auth, storage, keys, share, scope, withSecret)
			if err != nil {
				return err
			}
			if err := s.Check(); err != nil {
				return usage(err, "")
			}
			if !write {
				if file != "" {
					return usage(errors.New("--file needs --write"), "")
				}
				if a.format != "table" {
					return a.encode(map[string]any{"engine": engine.Name, "settings": engine.Text(s)})
				}
				return a.write(engine.Text(s))
			}
			return a.writeSettings(engine, s, file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&as, "as", "sluice", "name of the catalog in the engine")
	f.StringVar(&share, "share", "", "the share to use, instead of a warehouse")
	f.StringVar(&auth, "auth", "", "how the engine signs in: token, credentials or none (default: as the context does)")
	f.StringVar(&scope, "scope", "catalog", "scope that the engine asks for, with credentials")
	f.StringVar(&storage, "storage", "", "where the files lie: "+strings.Join(engines.Storages, ", ")+" (default: what the catalog tells)")
	f.StringVar(&keys, "keys", "", "whose keys for the files: vended by the catalog, or the engine's own (default: what the catalog does for a table)")
	f.BoolVar(&withSecret, "with-secret", false, "write the token or the client's secret, too")
	f.BoolVar(&write, "write", false, "write into the engine's own file")
	f.StringVar(&file, "file", "", "the file to write into")
	_ = cmd.RegisterFlagCompletionFunc("auth", cobra.FixedCompletions([]string{"token", "credentials", "none"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("keys", cobra.FixedCompletions([]string{"vended", "own"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("storage", cobra.FixedCompletions(engines.Storages, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// engineSettings are what the context says.
func (a *app) engineSettings(ctx context.Context, as, auth, storage, keys, share, scope string, withSecret bool) (*engines.Settings, error) {
	n, err := a.use()
	if err != nil {
		return nil, err
	}
	s := &engines.Settings{Name: as, URI: n.ctx.URI, Warehouse: n.ctx.Warehouse, Auth: engines.Auth(auth), ClientID: n.ctx.SignIn.ClientID, TokenURI: n.ctx.SignIn.TokenURI, Scope: scope, Storage: storage}
	if share != "" {
		s.Warehouse = "share/" + share
	}
	if s.Warehouse == "" {
		return nil, usage(errors.New("which warehouse, or which share?"), "sharectl connect ENGINE --warehouse NAME, or --share NAME")
	}
	if s.Auth == "" {
		switch {
		case n.ctx.SignIn.Method == session.MethodCredentials && n.fixed == "":
			s.Auth = engines.AuthCredentials
		case n.ctx.SignIn.Method == "" && n.ctx.TLS.CertFile != "" && n.fixed == "":
			s.Auth = engines.AuthNone
		default:
			s.Auth = engines.AuthToken
		}
	}
	switch s.Auth {
	case engines.AuthToken:
		if withSecret {
			if s.Token, err = a.bearer(ctx); err != nil {
				return nil, err
			}
		}
	case engines.AuthCredentials:
		if s.ClientID == "" {
			return nil, usage(errors.New("no client id is known"), "sharectl login URI --client-id ID")
		}
		if s.TokenURI == "" {
			s.TokenURI = s.URI + "/v1/oauth/tokens"
		}
		if withSecret {
			if s.Secret = n.secret; s.Secret == "" && n.name != "" {
				k, err := a.vault.Get(n.ctx.SignIn.Store, n.name)
				if err != nil {
					return nil, err
				}
				s.Secret = k.ClientSecret
			}
			if s.Secret == "" {
				return nil, usage(errors.New("the client's secret is not kept here"), "sharectl login --keep-secret, or the variable SHARECTL_CLIENT_SECRET")
			}
		}
	case engines.AuthNone:
	default:
		return nil, usage(fmt.Errorf("--auth %q is not token, credentials or none", auth), "")
	}
	if s.Storage != "" && !slices.Contains(engines.Storages, s.Storage) {
		return nil, usage(fmt.Errorf("--storage %q is not one of %s", s.Storage, strings.Join(engines.Storages, ", ")), "")
	}
	switch keys {
	case "":
	case "own", "vended":
		s.Vended = keys == "vended"
	default:
		return nil, usage(fmt.Errorf("--keys %q is not own or vended", keys), "")
	}
	if s.Storage == "" || keys == "" {
		kind, vended, err := a.findStorage(ctx, s.Warehouse)
		if s.Storage == "" {
			if s.Storage = kind; kind == "" {
				a.hint("Where the files lie cannot be told (%s); the settings are without it. --storage says it.", clean(fmt.Sprint(err)))
			}
		}
		if keys == "" {
			s.Vended = vended
		}
	}
	if !s.Vended && s.Storage != "file" && s.Storage != "" {
		a.hint("The catalog gives no keys for the files, as far as can be told: the engine needs its own. --keys vended says otherwise.")
	}
	return s, nil
}

// errNoLocation is why it cannot be told where files lie.
var errNoLocation = errors.New("there is nothing in it yet that tells")

// looked bounds the namespaces in which a table is looked for.
const looked = 20

// findStorage asks where a warehouse's files lie, and whether the catalog gives
// keys for them: of a table if there is one, else of a namespace.
func (a *app) findStorage(ctx context.Context, warehouse string) (kind string, vended bool, err error) {
	c, err := a.client()
	if err != nil {
		return "", false, err
	}
	w, err := c.Warehouse(ctx, warehouse)
	if err != nil {
		return "", false, err
	}
	all, err := w.Namespaces(ctx, nil)
	if err != nil {
		return "", false, err
	}
	err = errNoLocation
	for i, ns := range all {
		if i == looked {
			break
		}
		if kind == "" {
			raw, err := w.Get(ctx, w.Path(icebergrest.Ident{Namespace: ns}, ""), nil)
			if err != nil {
				return "", false, err
			}
			var n struct{ Properties map[string]string }
			if err := json.Unmarshal(raw, &n); err != nil {
				return "", false, err
			}
			kind = storageOf(n.Properties["location"])
		}
		tables, err := w.List(ctx, ns, "tables")
		if err != nil || len(tables) == 0 {
			continue
		}
		raw, err := w.Load(ctx, tables[0])
		if err != nil {
			continue // perhaps another may be read
		}
		var l loadedStorage
		if err := json.Unmarshal(raw, &l); err != nil {
			return kind, false, err
		}
		return storageOf(l.Metadata.Location), l.vends(), nil
	}
	if kind != "" {
		err = nil
	}
	return kind, false, err
}

// storageOf is the kind of storage of a location.
func storageOf(location string) string {
	scheme, _, _ := strings.Cut(location, ":")
	switch scheme {
	case "file":
		return "file"
	case "s3", "s3a", "s3n":
		return "s3"
	case "gs":
		return "gcs"
	case "abfs", "abfss", "wasb", "wasbs":
		return "azure"
	}
	return ""
}

// writeSettings merges settings into a file.
func (a *app) writeSettings(engine engines.Engine, s *engines.Settings, file string) error {
	if file == "" {
		var err error
		if file, err = engine.File(s, a.Env); err != nil {
			return usage(err, "sharectl connect "+engine.Name+" --write --file FILE")
		}
	}
	// Many keep such files as links to others.
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := engine.Merge(old, s)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if a.dryRun {
		a.hint("Nothing was written. %s would be:", file)
		return a.write(string(content))
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	if s.HasSecret() {
		mode = 0o600
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := replaceFile(file, content, mode); err != nil {
		return err
	}
	a.hint("Wrote catalog %q into %s.", s.Name, file)
	if note := engine.Note(s); note != "" {
		a.hint("%s", note)
	}
	return nil
}

// replaceFile writes a file whole or not at all.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
