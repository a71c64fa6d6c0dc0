// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// TestCreateWithoutAnAnswer: a store that cuts every connection leaves only
// the object itself to tell what happened.
func TestCreateWithoutAnAnswer(t *testing.T) {
	cut := &storeError{store: "s3", cause: io.ErrUnexpectedEOF}
	refused := &storeError{store: "s3", status: 403, kind: ErrForbidden}
	for name, c := range map[string]struct {
		there   string
		put     error
		readErr error
		want    error
	}{
		"our own":        {"abc", cut, nil, nil},
		"another's":      {"xyz", cut, nil, ErrExists},
		"a larger one":   {"", cut, ErrTooLarge, ErrExists},
		"none":           {"", cut, ErrNotFound, cut},
		"unreadable":     {"", cut, ErrForbidden, cut},
		"refused, equal": {"abc", refused, nil, refused},
	} {
		t.Run(name, func(t *testing.T) {
			r := requests{timeout: time.Minute, pause: time.Microsecond}
			err := r.create(t.Context(), []byte("abc"),
				func(context.Context) error { return c.put },
				func(context.Context, int64) ([]byte, error) { return []byte(c.there), c.readErr })
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
