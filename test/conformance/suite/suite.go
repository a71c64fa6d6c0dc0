// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"time"
)

// Target is the catalog to check.
type Target struct {
	// URI is the base that "/v1/config" is appended to, e.g.
	// "http://127.0.0.1:8181" or "https://host/api/catalog".
	URI string
	// Token is sent as a bearer token; "" sends no Authorization header.
	Token string
	// Token2 belongs to another principal without rights on what Token
	// creates; cases that need it are n/a when it is empty.
	Token2 string
	// Credential is "client-id:client-secret" for the oauth/tokens cases; ""
	// makes those that need one n/a.
	Credential string
	// Warehouse is the query parameter of "/v1/config"; "" sends none.
	Warehouse string
	// Transport sends the requests; nil uses one of the suite's own.
	Transport http.RoundTripper
}

// Options choose what is run and how.
type Options struct {
	// Only keeps the cases whose id matches; nil keeps all.
	Only *regexp.Regexp
	// Parallel is how many cases run at once; less than one means one.
	Parallel int
	// AssumeAll treats every endpoint as advertised.
	AssumeAll bool
	// Timeout bounds one request; zero means 30 seconds.
	Timeout time.Duration
	// Done, when set, is called once for each result, in the order of Cases,
	// from one goroutine at a time.
	Done func(Result)
}

// Outcome of a case.
type Outcome string

// The outcomes. NotApplicable is never counted as passed.
const (
	Pass          Outcome = "pass"
	Fail          Outcome = "fail"
	NotApplicable Outcome = "n/a"
)

// Result is what one case found.
type Result struct {
	ID      string  `json:"id"`
	Section string  `json:"section"`
	Title   string  `json:"title"`
	Ref     string  `json:"ref"`
	Outcome Outcome `json:"outcome"`
	// Severity is the case's; for a failed case that of its gravest finding.
	Severity Severity `json:"severity"`
	// Reasons say what was wrong, or why the case is n/a.
	Reasons  []string      `json:"reasons,omitempty"`
	Duration time.Duration `json:"duration-ns"`
	// LeftBehind names namespaces that could not be removed.
	LeftBehind []string `json:"left-behind,omitempty"`
}

// Run runs all cases that opts select against the target and returns their
// results in the order of [Cases]. The error is not nil only when nothing
// could be checked: the cases are broken, or the target does not answer
// GET /v1/config with a configuration.
func Run(ctx context.Context, target Target, opts Options) ([]Result, error) {
	all, err := Cases()
	if err != nil {
		return nil, fmt.Errorf("read the cases: %w", err)
	}
	return RunCases(ctx, target, opts, all)
}

// RunCases is [Run] for the given cases.
func RunCases(ctx context.Context, target Target, opts Options, all []Case) ([]Result, error) {
	var chosen []Case
	for _, c := range all {
		if opts.Only == nil || opts.Only.MatchString(c.ID) {
			chosen = append(chosen, c)
		}
	}
	s, err := open(ctx, target, opts)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(chosen))
	finished := make([]chan struct{}, len(chosen))
	for i := range finished {
		finished[i] = make(chan struct{})
	}
	next := make(chan int)
	var workers sync.WaitGroup
	for range max(1, opts.Parallel) {
		workers.Go(func() {
			for i := range next {
				results[i] = s.runCase(ctx, chosen[i])
				close(finished[i])
			}
		})
	}
	workers.Go(func() {
		for i := range chosen {
			next <- i
		}
		close(next)
	})
	for i := range chosen {
		<-finished[i]
		if opts.Done != nil {
			opts.Done(results[i])
		}
	}
	workers.Wait()
	s.sweep(context.WithoutCancel(ctx))
	return results, nil
}

// notApplicable is the error by which a case says that it has nothing to
// check on this server.
type notApplicable struct{ reason string }

func (e *notApplicable) Error() string { return e.reason }

// errStop ends a case after a finding that was reported already.
var errStop = errors.New("the case stops here")

// skip returns the error that makes a case n/a for the given reason.
func skip(format string, args ...any) error {
	return &notApplicable{fmt.Sprintf(format, args...)}
}

// runCase runs one case in its own namespace and removes what it left.
func (s *session) runCase(ctx context.Context, c Case) Result {
	start := time.Now()
	r := Result{ID: c.ID, Section: c.Section, Title: c.Title, Ref: c.Ref, Severity: c.Severity, Outcome: Pass}
	t := s.newTrial(c)
	err := t.run(ctx)
	r.LeftBehind = t.cleanUp(context.WithoutCancel(ctx))
	r.Duration = time.Since(start)

	var na *notApplicable
	switch {
	case errors.As(err, &na) && len(t.findings) == 0:
		r.Outcome, r.Reasons = NotApplicable, []string{s.redact(na.reason)}
		return r
	case errors.As(err, &na), errors.Is(err, errStop):
	case err != nil:
		t.report(c.Severity, "%v", err)
	}
	if len(t.findings) == 0 {
		return r
	}
	r.Outcome, r.Severity = Fail, May
	for _, f := range t.findings {
		r.Reasons = append(r.Reasons, f.text)
		r.Severity = graver(r.Severity, f.severity)
	}
	return r
}

// random returns n random bytes in hexadecimal.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
