// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command catalogd serves Iceberg tables by the Iceberg REST catalog
// protocol. See docs/configuration.md, and `catalogd help`.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/secret"
	"github.com/sluice-data/sluice/internal/server"
	"github.com/sluice-data/sluice/internal/server/config"
)

const usage = `catalogd serves Iceberg tables by the Iceberg REST catalog protocol.

  catalogd dev [flags]               a catalog on this machine, with nothing to configure
  catalogd serve --config FILE       the server
  catalogd migrate --config FILE     bring the store's schema to the newest version
  catalogd config check --config F   check a configuration, and open all that it names
  catalogd config schema             print the configuration's JSON Schema
  catalogd hash-secret               read a client secret from stdin, print its hash
  catalogd version [-o json]         print the version

Flags of dev:
  --data-dir DIR          where everything is kept (default ./sluice-data)
  --http HOST:PORT        where to listen, on loopback (default 127.0.0.1:8181; port 0 picks one)
  --allow-location URI    a further location for tables; can be given again
  --token TOKEN           the bearer token (default: one that is kept in the data directory)
  --log-level LEVEL       debug, info, warn or error (default info)
  --log-format FORMAT     text or json (default text)

Exit codes: 0 done; 1 failed; 2 used in a wrong way; 3 requests were cut off while draining.

Without a server, on one warehouse:
`

// The exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitCut    = 3
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// errUsage is in the chain when the command line is wrong.
var errUsage = errors.New("see catalogd help")

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := dispatch(args, stdin, stdout, stderr)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage, maintainUsage, auditUsage)
		return 0
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(stderr, "catalogd:", line)
	}
	switch {
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, server.ErrCut):
		return exitCut
	}
	return exitFailed
}

func dispatch(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("a command is missing: %w", errUsage)
	}
	command, args := args[0], args[1:]
	if command == "config" {
		if len(args) == 0 {
			return fmt.Errorf("config needs check or schema: %w", errUsage)
		}
		command, args = "config "+args[0], args[1:]
	}
	switch command {
	case "dev":
		return dev(args, stdout, stderr)
	case "serve":
		return serve(args, stderr)
	case "migrate":
		return migrate(args, stdout, stderr)
	case "config check":
		return configCheck(args, stdout, stderr)
	case "config schema":
		if err := parse(newFlags(command), args); err != nil {
			return err
		}
		_, err := stdout.Write(config.Schema())
		return err
	case "hash-secret":
		return hashSecret(args, stdin, stdout)
	case "dropped":
		return dropped(args, stdout)
	case "undrop":
		return undrop(args, stdout)
	case "protect", "unprotect":
		return protect(command, command == "protect", args)
	case "labels":
		return labels(args, stdin)
	case "function":
		return function(args, stdin)
	case "audit":
		return auditCommand(args, stdin, stdout)
	case "version", "--version":
		return version(args, stdout)
	case "help", "-h", "--help":
		return flag.ErrHelp
	}
	return fmt.Errorf("there is no command %q: %w", command, errUsage)
}

func newFlags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	return f
}

// parse reads flags; there are no further arguments.
func parse(f *flag.FlagSet, args []string) error {
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return fmt.Errorf("%s: %w: %w", f.Name(), err, errUsage)
	case f.NArg() > 0:
		return fmt.Errorf("%s: unexpected %q: %w", f.Name(), f.Arg(0), errUsage)
	}
	return nil
}

// loadConfig reads the file that --config names, and warns of variables that
// look like keys but are none.
func loadConfig(name string, args []string, stderr io.Writer) (*config.Config, string, error) {
	f := newFlags(name)
	path := f.String("config", "", "")
	if err := parse(f, args); err != nil {
		return nil, "", err
	}
	if *path == "" {
		return nil, "", fmt.Errorf("%s: --config is missing: %w", name, errUsage)
	}
	env := config.NewEnvironment(os.Environ())
	c, err := config.Load(*path, env.Lookup)
	for _, line := range env.Unknown() {
		fmt.Fprintln(stderr, "catalogd: warning:", line)
	}
	return c, *path, err
}

// locations is a flag that can be given again.
type locations []string

func (l *locations) String() string     { return strings.Join(*l, ",") }
func (l *locations) Set(s string) error { *l = append(*l, s); return nil }

func dev(args []string, stdout, stderr io.Writer) error {
	f := newFlags("dev")
	var o server.DevOptions
	f.StringVar(&o.DataDir, "data-dir", "./sluice-data", "")
	f.StringVar(&o.Address, "http", "127.0.0.1:8181", "")
	f.Var((*locations)(&o.AllowLocations), "allow-location", "")
	f.StringVar(&o.Token, "token", "", "")
	f.StringVar(&o.LogLevel, "log-level", "info", "")
	f.StringVar(&o.LogFormat, "log-format", "text", "")
	if err := parse(f, args); err != nil {
		return err
	}
	options, ready, err := server.Dev(o, stderr)
	if err != nil {
		return err
	}
	err = serveUntilSignal(options, func(s *server.Server) error {
		return json.NewEncoder(stdout).Encode(ready.At(s.Address()))
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--http %s: something listens there already, perhaps another catalogd; choose another port (127.0.0.1:0 picks a free one)", o.Address)
	}
	return err
}

func serve(args []string, stderr io.Writer) error {
	c, _, err := loadConfig("serve", args, stderr)
	if err != nil {
		return err
	}
	return serveUntilSignal(server.Options{Config: c, Log: stderr}, func(*server.Server) error { return nil })
}

// serveUntilSignal runs a server: SIGTERM and SIGINT drain it, a second one
// ends it at once, SIGHUP reloads. open is called when it listens.
func serveUntilSignal(o server.Options, opened func(*server.Server) error) error {
	ctx, drain := context.WithCancel(context.Background())
	defer drain()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	s, err := server.Open(ctx, o)
	if err != nil {
		return err
	}
	now := make(chan struct{})
	done := make(chan struct{})
	defer close(done)
	go func() {
		terminating := 0
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				if sig == syscall.SIGHUP {
					s.Reload(ctx)
					continue
				}
				switch terminating++; terminating {
				case 1:
					drain()
				case 2:
					close(now)
				}
			}
		}
	}()
	if err := opened(s); err != nil {
		drain()
		return errors.Join(err, s.Serve(ctx, now))
	}
	return s.Serve(ctx, now)
}

func migrate(args []string, stdout, stderr io.Writer) error {
	c, _, err := loadConfig("migrate", args, stderr)
	if err != nil {
		return err
	}
	before, after, err := server.Migrate(context.Background(), c)
	if err != nil {
		return err
	}
	if before == after {
		_, err = fmt.Fprintf(stdout, "the schema is at version %d already\n", after)
	} else {
		_, err = fmt.Fprintf(stdout, "migrated the schema from version %d to %d\n", before, after)
	}
	return err
}

func configCheck(args []string, stdout, stderr io.Writer) error {
	c, path, err := loadConfig("config check", args, stderr)
	if err != nil {
		return err
	}
	if failed := server.Check(context.Background(), c, stdout); failed > 0 {
		return fmt.Errorf("%s: %d of the things that it names do not work", path, failed)
	}
	_, err = fmt.Fprintln(stdout, "OK")
	return err
}

func hashSecret(args []string, stdin io.Reader, stdout io.Writer) error {
	if err := parse(newFlags("hash-secret"), args); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(stdin, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the secret: %w", err)
	}
	line = strings.TrimRight(line, "\r\n")
	if len(line) < identity.MinSecretBytes {
		return fmt.Errorf("hash-secret: the secret must have at least %d characters; make one with `openssl rand -base64 32`: %w", identity.MinSecretBytes, errUsage)
	}
	_, err = fmt.Fprintln(stdout, identity.NewHash(secret.New(line)).PHC())
	return err
}

func version(args []string, stdout io.Writer) error {
	f := newFlags("version")
	format := f.String("o", "text", "")
	if err := parse(f, args); err != nil {
		return err
	}
	b := server.BuildInfo()
	switch *format {
	case "json":
		return json.NewEncoder(stdout).Encode(b)
	case "text":
		_, err := fmt.Fprintf(stdout, "catalogd %s (commit %s, %s)\n", b.Version, b.Commit, b.Go)
		return err
	}
	return fmt.Errorf("version: -o %q is not json or text: %w", *format, errUsage)
}
