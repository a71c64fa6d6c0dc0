// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-data/sluice/internal/catalog"
)

// Code classifies an [Error]; the edge turns it into a wire error once.
type Code int

// The codes.
const (
	Internal           Code = iota
	InvalidArgument         // the request is wrong, whatever the state
	NotFound                // it does not exist, or the caller may not see it
	AlreadyExists           // the name or binding is taken
	FailedPrecondition      // the state does not allow it
	Aborted                 // somebody else was faster: read again
	PermissionDenied        // the caller may see it but not do this
	ResourceExhausted       // a bound is reached
	Unavailable             // nothing was changed; try again
	Unknown                 // the change may or may not have happened
)

// Error is a failure that has a meaning on the wire. Reason is a word for
// programs ("SHARE_NOT_FOUND"), Message and Next are for people: what is wrong
// and what to do. None holds a secret. Cause is for logs.
type Error struct {
	Code    Code
	Reason  string
	Message string
	Next    string
	Cause   error
}

// Error returns the message, and the cause when there is one.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an [Error] without a next step.
func Errorf(c Code, reason, format string, args ...any) *Error {
	return &Error{Code: c, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Try adds what the caller should do next.
func (e *Error) Try(format string, args ...any) *Error {
	e.Next = fmt.Sprintf(format, args...)
	return e
}

// CodeOf returns the code of the first [Error] in err's chain, and Internal
// when there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// Sentinels that a [Store] returns, possibly wrapped, beside those of package
// catalog for a store that fails.
var (
	ErrNotFound = errors.New("no such row")
	ErrExists   = errors.New("the key is taken")
	ErrStale    = errors.New("the row has changed")
)

// invalid is the error of a field of a request.
func invalid(field, format string, args ...any) *Error {
	return Errorf(InvalidArgument, "INVALID_"+upper(field), field+": "+format, args...)
}

// upper writes a field's name as a reason does.
func upper(field string) string {
	out := make([]byte, 0, len(field))
	for _, c := range []byte(field) {
		switch {
		case c >= 'a' && c <= 'z':
			out = append(out, c-'a'+'A')
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z':
			out = append(out, c)
		default:
			out = append(out, '_')
		}
	}
	return string(out)
}

func notFound(kind, name string) *Error {
	return Errorf(NotFound, upper(kind)+"_NOT_FOUND", "%s %q does not exist, or you may not see it", kind, clip(name))
}

func exists(kind, name string) *Error {
	return Errorf(AlreadyExists, upper(kind)+"_EXISTS", "%s %q exists already", kind, clip(name))
}

func stale(kind, name string) *Error {
	return Errorf(Aborted, "ETAG_MISMATCH", "%s %q was changed by somebody else meanwhile", kind, clip(name)).Try("read it again, and send its new etag")
}

// clip bounds what a message repeats of a request.
func clip(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}

// storeError gives failures of the store a meaning. An [Error] passes
// unchanged.
func storeError(err error) error {
	var e *Error
	switch {
	case err == nil, errors.As(err, &e):
		return err
	case errors.Is(err, catalog.ErrUnknownOutcome):
		return &Error{Code: Unknown, Reason: "OUTCOME_UNKNOWN", Message: "The outcome of the change is unknown: the store's answer was lost", Next: "read what was to be changed, or repeat the request with the same request_id", Cause: err}
	case errors.Is(err, catalog.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: Unavailable, Reason: "STORE_UNAVAILABLE", Message: "The store is not available; nothing was changed", Next: "try again", Cause: err}
	}
	return &Error{Code: Internal, Reason: "INTERNAL", Message: "Internal error", Cause: err}
}

// Missing is the error of what does not exist, for whoever may not know that
// it does.
func Missing(kind, name string) error { return notFound(kind, name) }
