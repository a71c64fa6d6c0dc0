// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"errors"
	"fmt"
)

// ErrInvalid is matched by every error that says a document, an update or
// their combination is not valid. Asking again cannot help.
var ErrInvalid = errors.New("invalid table metadata")

// InvalidError says what is wrong and where. Path is a JSON path below the
// document ("snapshots[3].timestamp-ms") or the request
// ("updates[2].schema"); it is empty when the whole is meant.
type InvalidError struct {
	Path    string
	Problem string
}

func (e *InvalidError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Is makes errors.Is(err, ErrInvalid) hold.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// BadRequestError says that a list of updates or requirements could not be
// decoded. It matches ErrInvalid too.
type BadRequestError struct {
	Path    string
	Problem string
}

func (e *BadRequestError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Is makes errors.Is(err, ErrInvalid) hold.
func (e *BadRequestError) Is(target error) bool { return target == ErrInvalid }

// RequirementFailedError says that the table is not in the state that a
// commit asserted. The client may refresh and try again (409).
type RequirementFailedError struct{ Problem string }

func (e *RequirementFailedError) Error() string { return "Requirement failed: " + e.Problem }

// StaleError says that a new snapshot was prepared on an older version of the
// table: its sequence number or first row id has been overtaken. The client
// may refresh and try again (409).
type StaleError struct{ Problem string }

func (e *StaleError) Error() string { return e.Problem }

func invalidf(path, format string, args ...any) error {
	return &InvalidError{Path: path, Problem: fmt.Sprintf(format, args...)}
}
