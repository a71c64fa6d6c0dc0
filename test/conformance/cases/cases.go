// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package cases holds the conformance cases that are data: one YAML file per
// area. Package suite reads, checks and runs them; the README one folder up
// describes the format. This package holds no logic.
package cases

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files returns the YAML files, read-only.
func Files() fs.FS { return files }
