// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write manual pages into a directory", Args: cobra.ExactArgs(1), GroupID: "start",
		Example: "  sharectl man ~/.local/share/man/man1 && man sharectl-table",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			// A fixed date: the same version writes the same pages.
			date := time.Unix(0, 0).UTC()
			header := &doc.GenManHeader{Section: "1", Source: "sharectl " + a.Version, Manual: "Sluice", Date: &date}
			if err := doc.GenManTree(cmd.Root(), header, args[0]); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			a.hint("Wrote the manual pages into %s.", args[0])
			return nil
		},
	}
}
