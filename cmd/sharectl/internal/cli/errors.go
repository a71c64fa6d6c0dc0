// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
	"github.com/sluice-data/sluice/cmd/sharectl/internal/session"
)

// The exit codes; scripts rely on them.
const (
	codeOK          = 0
	codeFailed      = 1
	codeUsage       = 2
	codeRefused     = 3
	codeNotFound    = 4
	codeConflict    = 5
	codeWanting     = 6
	codeUnreachable = 7
	codeInterrupted = 130
)

const exitCodes = `  0    done
  1    failed
  2    used in a wrong way: flags, arguments, files that are not what they should be
  3    not signed in, or not allowed
  4    there is no such thing, or none that you may see
  5    exists already, is not empty, or was changed meanwhile
  6    checked, and found wanting: audit verify, policy check and test, doctor
  7    the server cannot be reached or is overloaded; trying again later may help
  130  interrupted
`

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What sharectl's exit codes mean", Long: "The exit codes of sharectl:\n\n" + exitCodes}
}

// failure is an error with an exit code, and what to do about it.
type failure struct {
	err  error
	code int
	next string // a command to try
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// usage is the error of a command that was used in a wrong way.
func usage(err error, next string) error { return &failure{err: err, code: codeUsage, next: next} }

// wanting is the error of a check that found something.
func wanting(format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), code: codeWanting}
}

// nextFor adds a command to try to an error of a status.
func nextFor(err error, status int, next string) error {
	if icebergrest.IsStatus(err, status) {
		return &failure{err: err, next: next}
	}
	return err
}

// report prints an error and returns the exit code.
func (a *app) report(ctx context.Context, err error) int {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(a.Stderr, "sharectl: interrupted")
		return codeInterrupted
	}
	f := classify(err)
	for line := range strings.SplitSeq(f.Error(), "\n") {
		fmt.Fprintf(a.Stderr, "%s %s\n", a.paint(a.ErrTerminal, red, "sharectl:"), clean(line))
	}
	if f.next != "" {
		fmt.Fprintf(a.Stderr, "  try: %s\n", clean(f.next))
	}
	return f.code
}

// classify gives an error its exit code, and a command to try if it has none.
func classify(err error) *failure {
	f := &failure{err: err}
	var given *failure
	if errors.As(err, &given) {
		f.code, f.next = given.code, given.next
	}
	code, next := codeFailed, ""
	var refused *icebergrest.Error
	var network *url.Error
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, fs.ErrNotExist), strings.HasPrefix(err.Error(), "required flag(s) "): // cobra's has no type
		code = codeUsage
	case errors.As(err, &refused):
		code, next = statusCode(refused.Status)
		if refused.RequestID != "" && refused.Status >= 500 {
			f.err = fmt.Errorf("%w; request id %s", err, refused.RequestID)
		}
	case errors.Is(err, session.ErrSignIn):
		code, next = codeRefused, "sharectl login"
	case errors.As(err, &authority):
		code, next = codeUnreachable, "sharectl login URI --ca-file FILE, with the authority that signed the server's certificate"
	case errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &record):
		code, next = codeUnreachable, "sharectl doctor"
	case errors.Is(err, session.ErrPlain):
		code = codeUsage
	case errors.As(err, &network):
		// Its text repeats the method and the URI.
		f.err = fmt.Errorf("%s does not answer: %w", hostOf(network.URL), network.Err)
		code, next = codeUnreachable, "sharectl doctor"
		var resolve *net.DNSError
		if errors.As(err, &resolve) && resolve.IsNotFound {
			f.err = fmt.Errorf("there is no host %s", resolve.Name)
			next = "sharectl context show"
		}
	}
	if f.code == 0 {
		f.code = code
	}
	if f.next == "" {
		f.next = next
	}
	return f
}

func hostOf(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return "the server"
}

func statusCode(status int) (code int, next string) {
	switch status {
	case http.StatusUnauthorized:
		return codeRefused, "sharectl login"
	case http.StatusForbidden:
		return codeRefused, "sharectl whoami"
	case http.StatusNotFound:
		return codeNotFound, ""
	case http.StatusConflict, http.StatusPreconditionFailed:
		return codeConflict, ""
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		return codeUnreachable, "sharectl doctor"
	}
	return codeFailed, ""
}
