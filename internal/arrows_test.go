// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package internal_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sluice-data/sluice/"

// rooms are the packages under internal, from the top down, as
// docs/architecture.md draws them. A room may import rooms of lower lines
// only.
var rooms = [][]string{
	{"server"},
	{"rest", "flight", "admin"},
	{"sharing"},
	{"govern"},
	{"provision"},
	{"scan"},
	{"vending"},
	{"policy"},
	{"catalog"},
	{"identity"},
	{"objstore"},
	{"audit"},
	{"telemetry"},
	{"secret"},
}

// engines may be named by the composition root alone: everyone else knows
// catalog.Store.
var engines = []string{"internal/catalog/postgres", "internal/catalog/sqlite"}

// TestArrowsPointDown fails when a package imports against the picture.
func TestArrowsPointDown(t *testing.T) {
	t.Parallel()
	rank := map[string]int{}
	for i, line := range rooms {
		for _, room := range line {
			rank[room] = i
		}
	}
	seen := 0
	for _, p := range listPackages(t) {
		path, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue
		}
		room := roomOf(path)
		if room != "" {
			seen++
			if _, ok := rank[room]; !ok {
				t.Errorf("%s is a room that docs/architecture.md does not draw; add it there and here", path)
				continue
			}
		}
		for _, imp := range p.Imports {
			imp, ok := strings.CutPrefix(imp, module)
			if !ok {
				continue
			}
			target := roomOf(imp)
			switch {
			case strings.HasPrefix(imp, "test/") && room != "":
				t.Errorf("%s imports %s: the product must not import tests", path, imp)
			case slices.Contains(engines, imp) && room != "server" && room != "catalog" && !isTool(path):
				t.Errorf("%s imports %s: only the composition root names a store's engine", path, imp)
			case room == "" || target == "" || room == target:
				// Commands, tests and benchmarks may import what they need.
			case rank[target] <= rank[room]:
				t.Errorf("%s imports %s: arrows point down only (%s is not below %s)", path, imp, target, room)
			}
		}
	}
	if seen < 5 {
		t.Fatalf("only %d packages seen: the check is not looking at the module", seen)
	}
}

// isTool reports whether a package is outside the product.
func isTool(path string) bool {
	return strings.HasPrefix(path, "benchmarks/") || strings.HasPrefix(path, "test/")
}

func roomOf(path string) string {
	rest, ok := strings.CutPrefix(path, "internal/")
	if !ok {
		return ""
	}
	room, _, _ := strings.Cut(rest, "/")
	return room
}

type listedPackage struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var packages []listedPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
