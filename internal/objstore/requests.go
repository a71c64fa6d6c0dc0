// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// At most this many times is one request made, and this many deletions run
// side by side.
const (
	maxAttempts = 4
	maxParallel = 16
)

// requests makes the requests of one cloud store: each within its time,
// again after a failure that may pass, never again after a refusal. The
// libraries' own repetitions are off, so that this is the only rule.
type requests struct {
	timeout time.Duration
	pause   time.Duration // before the second attempt; doubles after
}

// do runs f until it succeeds, is refused, or time is out.
func (r requests) do(ctx context.Context, f func(context.Context) error) error {
	_, err := r.attempts(ctx, f)
	return err
}

// attempts is do; unsure tells that an attempt before the last may have
// reached the store although it failed here.
func (r requests) attempts(ctx context.Context, f func(context.Context) error) (unsure bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	for attempt := range maxAttempts {
		err = f(ctx)
		if err == nil || !passes(err) || attempt == maxAttempts-1 {
			return unsure, err
		}
		unsure = true
		select {
		case <-ctx.Done():
			return unsure, err
		case <-time.After(time.Duration(float64(r.pause<<attempt) * (0.5 + rand.Float64()))):
		}
		if ctx.Err() != nil {
			return unsure, err
		}
	}
	return unsure, err
}

// create runs put, which must fail with ErrExists when there is an object. If
// the answer to an attempt was lost, the object that is found then may be that
// attempt's own: it is, when it holds the same bytes. If no attempt had an
// answer, the store may have refused a large body before reading it and cut
// the connection: an object of other bytes is why, and ErrExists.
func (r requests) create(ctx context.Context, data []byte, put func(context.Context) error, get func(context.Context, int64) ([]byte, error)) error {
	unsure, err := r.attempts(ctx, put)
	var e *storeError
	lost := errors.As(err, &e) && e.status == 0 && ctx.Err() == nil
	if !lost && (!unsure || !errors.Is(err, ErrExists)) {
		return err
	}
	there, readErr := get(ctx, int64(len(data)))
	switch {
	case readErr == nil && bytes.Equal(there, data):
		return nil
	case readErr == nil, errors.Is(readErr, ErrTooLarge):
		return ErrExists
	}
	return err
}

// each runs f for every location, some side by side, and stops at the first
// error.
func each(ctx context.Context, list []Location, f func(context.Context, Location) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for _, l := range list {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return f(ctx, l) })
	}
	return g.Wait()
}

// storeError is a store's refusal in few words: the libraries' own errors
// hold whole response bodies, which repeat signatures.
type storeError struct {
	store   string
	status  int    // HTTP; 0 when there was no answer
	code    string // the store's word for it
	message string
	kind    error // one of this package's errors, or nil
	cause   error // without an answer
}

func (e *storeError) Error() string {
	s := e.store + ": "
	switch {
	case e.status == 0 && e.cause != nil:
		return s + "no answer: " + e.cause.Error()
	case e.code == "":
		s += fmt.Sprintf("%d %s", e.status, http.StatusText(e.status))
	default:
		s += fmt.Sprintf("%d %s", e.status, e.code)
	}
	if e.message != "" {
		s += ": " + e.message
	}
	return s
}

// Unwrap gives the kind and, of causes, only the end of the caller's context:
// a connection's io.ErrUnexpectedEOF must not look like an object's.
func (e *storeError) Unwrap() []error {
	var chain []error
	for _, err := range []error{e.kind, contextError(e.cause)} {
		if err != nil {
			chain = append(chain, err)
		}
	}
	return chain
}

func contextError(err error) error {
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) {
			return end
		}
	}
	return nil
}

// passes reports whether the same request may succeed later.
func passes(err error) bool {
	var e *storeError
	return errors.As(err, &e) && errors.Is(e.kind, ErrUnavailable) && !errors.Is(err, context.Canceled)
}

// answered makes the error of an HTTP status and the store's code for it.
func answered(store string, status int, code, message string) *storeError {
	e := &storeError{store: store, status: status, code: code, message: clip(message)}
	switch {
	case noBucketCodes[code]:
		e.kind = ErrNoBucket
	case status == http.StatusNotFound:
		e.kind = ErrNotFound
	case status == http.StatusPreconditionFailed, code == "BlobAlreadyExists":
		e.kind = ErrExists
	case status == http.StatusUnauthorized, status == http.StatusForbidden, refusedCodes[code]:
		e.kind = ErrForbidden
	case status == http.StatusRequestedRangeNotSatisfiable:
		e.kind = io.ErrUnexpectedEOF
	case status == http.StatusMovedPermanently, status == http.StatusFound, status == http.StatusTemporaryRedirect, status == http.StatusPermanentRedirect:
		e.message = "the store answers with a redirect: the bucket lies in another region or behind another endpoint"
	case status >= 500 && status != http.StatusNotImplemented, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, passingCodes[code]:
		e.kind = ErrUnavailable
	}
	return e
}

// unanswered makes the error of a request that got no (whole) answer.
func unanswered(store string, cause error) error {
	return &storeError{store: store, kind: ErrUnavailable, cause: cause}
}

var (
	noBucketCodes = map[string]bool{"NoSuchBucket": true, "ContainerNotFound": true}
	// S3, and the last Azure, answer these with 400.
	refusedCodes = map[string]bool{"ExpiredToken": true, "InvalidToken": true, "TokenRefreshRequired": true, "InvalidAuthenticationInfo": true}
	// Passing troubles behind a 400 or 409: two conditional writes at once,
	// a slow client.
	passingCodes = map[string]bool{"ConditionalRequestConflict": true, "OperationAborted": true, "RequestTimeout": true, "SlowDown": true}
)

func clip(s string) string {
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// unexpectedEnd is the error of a range that reaches past the object.
func unexpectedEnd(got, want int64) error {
	return fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, got, want)
}

// readBody reads a response of at most limit bytes; size is the announced
// length, or negative.
func readBody(store string, body io.Reader, size, limit int64) ([]byte, error) {
	if size > limit {
		return nil, ErrTooLarge
	}
	data, err := readSized(body, size, limit)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return nil, unanswered(store, err)
	}
	return data, err
}
