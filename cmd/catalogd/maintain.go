// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/server"
	"github.com/sluice-data/sluice/internal/server/config"
)

const maintainUsage = `
  catalogd dropped [flags] [-o text|json]    list the tables and views that can be restored
  catalogd undrop [flags] [--as NAME] ID     restore one of them
  catalogd protect [flags] KIND NAME         a table or view cannot be dropped any more
  catalogd unprotect [flags] KIND NAME       it can again
  catalogd labels [flags] KIND NAME FILE     set the labels that clients see: JSON; {} removes them
  catalogd function [flags] NAME FILE        register a function: its metadata as JSON
  catalogd function [flags] --drop NAME      forget it

Flags of these: --config FILE or --data-dir DIR (of dev), and --warehouse NAME where there are several.
With SQLite the server has to be stopped meanwhile. KIND is table or view, NAME the namespace's levels and the
name joined by dots (or by | where one of them holds a dot), FILE - for standard input.
`

// upkeep is a command that changes a warehouse beside the protocol.
type upkeep struct {
	flags     *flag.FlagSet
	config    string
	dataDir   string
	warehouse string
}

func newUpkeep(name string) *upkeep {
	u := &upkeep{flags: newFlags(name)}
	u.flags.StringVar(&u.config, "config", "", "")
	u.flags.StringVar(&u.dataDir, "data-dir", "", "")
	u.flags.StringVar(&u.warehouse, "warehouse", "", "")
	return u
}

// parse returns the arguments after the flags, of which there must be as many
// as there are names.
func (u *upkeep) parse(args []string, names ...string) ([]string, error) {
	return u.parseThen(args, func() []string { return names })
}

// parseThen is parse for a command whose flags decide what follows.
func (u *upkeep) parseThen(args []string, want func() []string) ([]string, error) {
	if err := u.flags.Parse(args); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", u.flags.Name(), err, errUsage)
	}
	names := want()
	if u.flags.NArg() != len(names) {
		if i := slices.IndexFunc(u.flags.Args(), func(a string) bool { return len(a) > 1 && a[0] == '-' }); i > 0 {
			return nil, fmt.Errorf("%s: flags stand before the arguments: move %s to the front: %w", u.flags.Name(), u.flags.Arg(i), errUsage)
		}
		return nil, fmt.Errorf("%s: expected %d arguments after the flags (%s), found %d: %w",
			u.flags.Name(), len(names), strings.Join(names, " "), u.flags.NArg(), errUsage)
	}
	return u.flags.Args(), nil
}

// load reads the configuration that one of --config and --data-dir names.
func (u *upkeep) load() (*config.Config, error) {
	var c *config.Config
	switch {
	case (u.config == "") == (u.dataDir == ""):
		return nil, fmt.Errorf("%s: give one of --config and --data-dir: %w", u.flags.Name(), errUsage)
	case u.config != "":
		var err error
		if c, err = config.Load(u.config, os.LookupEnv); err != nil {
			return nil, err
		}
	default:
		if _, err := os.Stat(u.dataDir); err != nil {
			return nil, err
		}
		o, _, err := server.Dev(server.DevOptions{DataDir: u.dataDir, Address: "127.0.0.1:0", LogLevel: "error", LogFormat: "text"}, io.Discard)
		if err != nil {
			return nil, err
		}
		c = o.Config
	}
	return c, nil
}

// run opens the warehouse. What is done is recorded as the operating system's
// user.
func (u *upkeep) run(change func(context.Context, *catalog.Warehouse, catalog.Mutation) error) error {
	c, err := u.load()
	if err != nil {
		return err
	}
	who := "uid:" + fmt.Sprint(os.Getuid())
	if account, err := user.Current(); err == nil {
		who = account.Username
	}
	m := catalog.Mutation{Operation: u.flags.Name(), Caller: catalog.Caller{Principal: "operator:" + who, RequestID: uuid.NewString()}}
	return server.Maintain(context.Background(), c, u.warehouse, func(ctx context.Context, w *catalog.Warehouse) error {
		return change(ctx, w, m)
	})
}

// parseIdent splits a name at |, or at dots when it holds none.
func parseIdent(s string) (catalog.Ident, error) {
	separator := "."
	if strings.Contains(s, "|") {
		separator = "|"
	}
	levels := strings.Split(s, separator)
	if len(levels) < 2 {
		return catalog.Ident{}, fmt.Errorf("%q names no namespace; write namespace.name: %w", s, errUsage)
	}
	return catalog.Ident{Namespace: levels[:len(levels)-1], Name: levels[len(levels)-1]}, nil
}

func parseObject(kind, name string) (catalog.Kind, catalog.Ident, error) {
	id, err := parseIdent(name)
	switch kind {
	case "table":
		return catalog.KindTable, id, err
	case "view":
		return catalog.KindView, id, err
	}
	return 0, id, fmt.Errorf("%q is neither table nor view: %w", kind, errUsage)
}

// readArgument reads a file, or standard input for -.
func readArgument(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(file)
}

func dropped(args []string, stdout io.Writer) error {
	u := newUpkeep("dropped")
	format := u.flags.String("o", "text", "")
	if _, err := u.parse(args); err != nil {
		return err
	}
	if *format != "text" && *format != "json" {
		return fmt.Errorf("dropped: -o %q is not json or text: %w", *format, errUsage)
	}
	return u.run(func(ctx context.Context, w *catalog.Warehouse, _ catalog.Mutation) error {
		table := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
		if *format == "text" {
			fmt.Fprintln(table, "ID\tKIND\tNAME\tDROPPED\tRESTORABLE UNTIL")
		}
		const pageSize = 1000
		for page := (catalog.Page{Limit: pageSize}); ; {
			objects, err := w.ListDropped(ctx, page)
			if err != nil {
				return err
			}
			for _, o := range objects {
				if *format == "json" {
					err = json.NewEncoder(stdout).Encode(map[string]any{
						"id": o.ID, "kind": o.Kind.String(), "namespace": o.Namespace, "name": o.Name, "dropped": o.DroppedAt, "restorable-until": o.ExpiresAt,
					})
				} else {
					_, err = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", o.ID, o.Kind, o.Ident(), o.DroppedAt.Format(time.RFC3339), o.ExpiresAt.Format(time.RFC3339))
				}
				if err != nil {
					return err
				}
			}
			if len(objects) < pageSize {
				return table.Flush()
			}
			page.After = objects[len(objects)-1].ID.String()
		}
	})
}

func undrop(args []string, stdout io.Writer) error {
	u := newUpkeep("undrop")
	as := u.flags.String("as", "", "")
	given, err := u.parse(args, "ID")
	if err != nil {
		return err
	}
	id, err := uuid.Parse(given[0])
	if err != nil {
		return fmt.Errorf("undrop: %q is not an id; catalogd dropped lists them: %w", given[0], errUsage)
	}
	var to *catalog.Ident
	if *as != "" {
		ident, err := parseIdent(*as)
		if err != nil {
			return err
		}
		to = &ident
	}
	return u.run(func(ctx context.Context, w *catalog.Warehouse, m catalog.Mutation) error {
		obj, err := w.Undrop(ctx, m, id, to)
		if err == nil {
			_, err = fmt.Fprintf(stdout, "restored %s %s\n", obj.Kind, obj.Ident())
		}
		return err
	})
}

func protect(name string, protected bool, args []string) error {
	u := newUpkeep(name)
	given, err := u.parse(args, "KIND", "NAME")
	if err != nil {
		return err
	}
	kind, id, err := parseObject(given[0], given[1])
	if err != nil {
		return err
	}
	return u.run(func(ctx context.Context, w *catalog.Warehouse, m catalog.Mutation) error {
		return w.SetProtected(ctx, m, kind, id, protected)
	})
}

func labels(args []string, stdin io.Reader) error {
	u := newUpkeep("labels")
	given, err := u.parse(args, "KIND", "NAME", "FILE")
	if err != nil {
		return err
	}
	kind, id, err := parseObject(given[0], given[1])
	if err != nil {
		return err
	}
	raw, err := readArgument(given[2], stdin)
	if err != nil {
		return err
	}
	var set map[string]json.RawMessage
	if err := json.Unmarshal(raw, &set); err != nil {
		return fmt.Errorf("labels: %s is not a JSON object: %w", given[2], err)
	}
	if len(set) == 0 {
		raw = nil
	}
	return u.run(func(ctx context.Context, w *catalog.Warehouse, m catalog.Mutation) error {
		return w.SetLabels(ctx, m, kind, id, raw)
	})
}

func function(args []string, stdin io.Reader) error {
	u := newUpkeep("function")
	drop := u.flags.Bool("drop", false, "")
	given, err := u.parseThen(args, func() []string {
		if *drop {
			return []string{"NAME"}
		}
		return []string{"NAME", "FILE"}
	})
	if err != nil {
		return err
	}
	id, err := parseIdent(given[0])
	if err != nil {
		return err
	}
	if *drop {
		return u.run(func(ctx context.Context, w *catalog.Warehouse, m catalog.Mutation) error {
			return w.DropFunction(ctx, m, id)
		})
	}
	raw, err := readArgument(given[1], stdin)
	if err != nil {
		return err
	}
	return u.run(func(ctx context.Context, w *catalog.Warehouse, m catalog.Mutation) error {
		_, err := w.PutFunction(ctx, m, id, raw)
		return err
	})
}
