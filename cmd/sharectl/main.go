// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command sharectl is the command line of Sluice: catalogs, shares, policies
// and the audit log. See docs/sharectl.md, and `sharectl help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/cli"
)

// version is set by the linker.
var version = ""

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return cli.Run(ctx, os.Args[1:], cli.System{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Getenv, Now: time.Now, Version: buildVersion(),
		InTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		OutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		ReadSecret:  func() ([]byte, error) { return term.ReadPassword(int(os.Stdin.Fd())) },
	})
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
