// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"errors"
	"fmt"
	"time"
)

// Reason classifies an [Error]; the edge turns it into a wire error once.
type Reason int

// The reasons. Each names the exception that the protocol's clients map.
const (
	Internal           Reason = iota // 500
	BadRequest                       // 400 BadRequestException
	InvalidArgument                  // 400 IllegalArgumentException
	NotAuthenticated                 // 401 NotAuthorizedException
	Forbidden                        // 403 ForbiddenException
	NoSuchWarehouse                  // 404 NoSuchWarehouseException
	NoSuchNamespace                  // 404 NoSuchNamespaceException
	NoSuchTable                      // 404 NoSuchTableException
	NoSuchView                       // 404 NoSuchViewException
	NoSuchFunction                   // 404 NoSuchFunctionException
	NotFound                         // 404 NotFoundException
	Unsupported                      // 406 UnsupportedOperationException
	AlreadyExists                    // 409 AlreadyExistsException
	NamespaceNotEmpty                // 409 NamespaceNotEmptyException
	CommitFailed                     // 409 CommitFailedException
	TooLarge                         // 413 RequestTooLargeException
	Unprocessable                    // 422 UnprocessableEntityException
	TooManyRequests                  // 429 TooManyRequestsException
	CommitStateUnknown               // 500 CommitStateUnknownException
	Unavailable                      // 503 ServiceUnavailableException; nothing was applied
)

// Error is a failure that has a meaning on the wire. Message is written for
// the caller and holds no secret; Cause is for logs only.
type Error struct {
	Reason     Reason
	Message    string
	Cause      error
	RetryAfter time.Duration // with Unavailable and TooManyRequests
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

// Errorf makes an [Error] without a cause.
func Errorf(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// ReasonOf returns the reason of the first [Error] in err's chain, and
// Internal when there is none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return Internal
}

// Sentinels that a [Store] returns, possibly wrapped. The catalog turns them
// into an [Error] that names what the caller asked for.
var (
	ErrNoNamespace     = errors.New("namespace does not exist")
	ErrNoObject        = errors.New("object does not exist")
	ErrExists          = errors.New("name is taken")          // namespace or object
	ErrNotEmpty        = errors.New("namespace is not empty") // holds namespaces or objects
	ErrHoldsDropped    = errors.New("namespace holds dropped objects that can be restored")
	ErrStale           = errors.New("object has changed")        // compare-and-swap lost
	ErrProtected       = errors.New("object is protected")       // drop refused
	ErrLocationTaken   = errors.New("location overlaps another") // reservation refused
	ErrIdempotencyUsed = errors.New("idempotency key is already recorded")
	// ErrUnavailable means that the store could not be reached or was too
	// busy and that nothing was applied.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnknownOutcome means that a transaction may or may not have been
	// committed (connection lost during COMMIT).
	ErrUnknownOutcome = errors.New("outcome of the transaction is unknown")
)
