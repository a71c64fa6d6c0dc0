// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command tools builds a pinned Go tool into the cache, once, and prints its
// path: go run ./test/tools golangci-lint
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sluice-data/sluice/test/install"
)

func main() {
	if len(os.Args) != 2 || install.GoTools[os.Args[1]][0] == "" {
		fmt.Fprintln(os.Stderr, "usage: tools", strings.Join(slices.Sorted(maps.Keys(install.GoTools)), "|"))
		os.Exit(2)
	}
	tool := install.GoTools[os.Args[1]]
	path, err := install.GoTool(context.Background(), tool[0], tool[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}
