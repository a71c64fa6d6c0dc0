// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package viewmeta

import (
	"errors"
	"fmt"
)

// ErrInvalid is matched by every error that says that metadata, an update or
// their combination is not valid (400). Asking again cannot help.
var ErrInvalid = errors.New("invalid view metadata")

// ErrDialects is matched, with ErrInvalid, by errors about the SQL dialects of
// a version; Java's clients are told of them by an exception of its own.
var ErrDialects = errors.New("invalid view dialects")

// InvalidError says what is wrong and where. Path is a JSON path below the
// document ("versions[3].schema-id") or the request
// ("updates[2].view-version.representations[0].sql"); it is empty when the
// whole is meant.
type InvalidError struct {
	Path, Problem string
	dialects      bool
}

// Error returns path and problem.
func (e *InvalidError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Is makes errors.Is hold for ErrInvalid and ErrDialects.
func (e *InvalidError) Is(target error) bool {
	return target == ErrInvalid || e.dialects && target == ErrDialects
}

func invalid(path, format string, args ...any) error {
	return &InvalidError{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// invalidDialects has no path: Java's clients compare the whole message.
func invalidDialects(format string, args ...any) error {
	return &InvalidError{Problem: fmt.Sprintf(format, args...), dialects: true}
}

// RequirementFailedError says that the view is not in the state that a commit
// asserted. The client may refresh and try again (409).
type RequirementFailedError struct{ Problem string }

// Error returns the problem as Java words it.
func (e *RequirementFailedError) Error() string { return "Requirement failed: " + e.Problem }
