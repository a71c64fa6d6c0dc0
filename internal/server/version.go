// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"runtime"
	"runtime/debug"
)

// Version is set by the linker (-X); a plain go build has "dev".
var Version = "dev"

// Build tells what runs.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// BuildInfo returns what the linker and the toolchain have recorded.
func BuildInfo() Build {
	b := Build{Version: Version, Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	modified := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+modified"
			}
		}
	}
	b.Commit += modified
	return b
}
