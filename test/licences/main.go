// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command licences fails when a module that ends up in a binary of this
// repository has no licence file, or one that is not on the list below of
// OSI-approved licences. It reads the licence texts in the module cache, so it
// needs no network beyond what a build needs.
//
// With -list it prints every module with its licence, for
// docs/dependencies.md.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// licence is recognised by phrases that its text must hold.
type licence struct {
	name string
	all  []string
}

// licences are OSI-approved and accepted here. Order matters: a stricter text
// comes before one that it contains.
var licences = []licence{
	{name: "Apache-2.0", all: []string{"apache license", "version 2.0"}},
	{name: "MPL-2.0", all: []string{"mozilla public license", "version 2.0"}},
	{name: "BSD-3-Clause", all: []string{"redistribution and use in source and binary forms", "neither the name"}},
	{name: "BSD-3-Clause", all: []string{"redistribution and use in source and binary forms", "may not be used to endorse"}},
	{name: "BSD-2-Clause", all: []string{"redistribution and use in source and binary forms", "this list of conditions"}},
	{name: "ISC", all: []string{"permission to use, copy, modify, and", "distribute this software for any purpose"}},
	{name: "MIT", all: []string{"permission is hereby granted, free of charge", "without restriction"}},
	{name: "Unlicense", all: []string{"this is free and unencumbered software released into the public domain"}},
	{name: "0BSD", all: []string{"permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"}},
}

// refused are texts that are source-available or copyleft beyond the file:
// they must never be linked in, whatever else the file says.
var refused = []string{
	"business source license", "server side public license", "gnu affero general public license", "elastic license",
	"commons clause", "gnu general public license",
}

func main() {
	list := flag.Bool("list", false, "print every module with its licence")
	flag.Parse()
	if err := run(*list, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(list bool, out io.Writer) error {
	modules, err := linkedModules()
	if err != nil {
		return err
	}
	if len(modules) < 10 {
		return fmt.Errorf("only %d modules found: the list cannot be right", len(modules))
	}
	var problems []error
	for _, m := range modules {
		name, err := identify(m.Dir)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", m.Path, m.Version, err))
			continue
		}
		if list {
			fmt.Fprintf(out, "| `%s` | %s | %s |\n", m.Path, m.Version, name)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if !list {
		fmt.Fprintf(out, "%d modules, all under accepted licences\n", len(modules))
	}
	return nil
}

type module struct {
	Path, Version, Dir string
	Main               bool
}

// linkedModules are the modules of all packages that the commands import.
func linkedModules() ([]module, error) {
	cmd := exec.Command("go", "list", "-deps", "-json=Module", "./cmd/...")
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	seen := map[string]module{}
	for dec := json.NewDecoder(bytes.NewReader(raw)); ; {
		var p struct{ Module *module }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Module != nil && !p.Module.Main {
			seen[p.Module.Path] = *p.Module
		}
	}
	var modules []module
	for _, m := range seen {
		modules = append(modules, m)
	}
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return modules, nil
}

// identify reads the licence files of a module, looking upwards when a module
// of a larger repository keeps its licence at the repository's root.
func identify(dir string) (string, error) {
	files, err := licenceFiles(dir)
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", errors.New("no licence file")
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		text := strings.ToLower(strings.Join(strings.Fields(string(raw)), " "))
		for _, phrase := range refused {
			if strings.HasPrefix(text, phrase) || strings.Contains(text[:min(len(text), 400)], phrase) {
				return "", fmt.Errorf("%s: %s", filepath.Base(f), phrase)
			}
		}
		for _, l := range licences {
			if holdsAll(text, l.all) {
				return l.name, nil
			}
		}
	}
	return "", fmt.Errorf("licence not recognised: %s", strings.Join(files, ", "))
}

func holdsAll(text string, phrases []string) bool {
	for _, p := range phrases {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

func licenceFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.Type().IsRegular() && (strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "LICENCE") || strings.HasPrefix(name, "COPYING") || name == "UNLICENSE") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}
