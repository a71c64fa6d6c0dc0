// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command conformance checks an Apache Iceberg REST catalog against the
// protocol and prints one line per case. See README.md.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-data/sluice/test/conformance/suite"
)

// Exit codes.
const (
	exitPassed = 0
	exitFailed = 1 // at least one case failed
	exitCannot = 2 // nothing could be checked: flags, or no catalog at the URI
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var target suite.Target
	flags.StringVar(&target.URI, "uri", "", "base `URI` of the catalog, to which /v1/config is appended (required)")
	flags.StringVar(&target.Token, "token", "", "bearer `token`; also from CONFORMANCE_TOKEN")
	flags.StringVar(&target.Token2, "token2", "", "`token` of a second principal without rights on what the first makes; also from CONFORMANCE_TOKEN2")
	flags.StringVar(&target.Credential, "credential", "", "`id:secret` for the oauth/tokens cases; also from CONFORMANCE_CREDENTIAL")
	flags.StringVar(&target.Warehouse, "warehouse", "", "`name` of the warehouse, as in /v1/config?warehouse=")
	only := flags.String("only", "", "run only the cases whose id matches this regular `expression`")
	parallel := flags.Int("parallel", 1, "how many cases run at once")
	timeout := flags.Duration("timeout", 30*time.Second, "most time for one request")
	assumeAll := flags.Bool("assume-all", false, "check every endpoint, also those that /v1/config does not list")
	atLeast := flags.String("severity", "may", "mildest `severity` (must, should, may) whose failures are reported as such")
	jsonFile := flags.String("json", "", "write the results to this `file` as a JSON array")
	list := flags.Bool("list", false, "print the cases and exit")
	quiet := flags.Bool("quiet", false, "print failures only, then the summary")
	if err := flags.Parse(args); err != nil {
		return exitCannot
	}
	// Not as defaults of the flags: -help would print them.
	target.Token = cmp.Or(target.Token, os.Getenv("CONFORMANCE_TOKEN"))
	target.Token2 = cmp.Or(target.Token2, os.Getenv("CONFORMANCE_TOKEN2"))
	target.Credential = cmp.Or(target.Credential, os.Getenv("CONFORMANCE_CREDENTIAL"))
	fail := func(format string, a ...any) int {
		fmt.Fprintf(stderr, "conformance: "+format+"\n", a...)
		return exitCannot
	}
	if flags.NArg() > 0 {
		return fail("unexpected argument %q", flags.Arg(0))
	}
	if !slices.Contains([]string{"must", "should", "may"}, *atLeast) {
		return fail("-severity %q: want must, should or may", *atLeast)
	}
	var filter *regexp.Regexp
	if *only != "" {
		re, err := regexp.Compile(*only)
		if err != nil {
			return fail("-only: %v", err)
		}
		filter = re
	}
	if *list {
		if err := printCases(stdout, filter); err != nil {
			return fail("%v", err)
		}
		return exitPassed
	}
	if target.URI == "" {
		return fail("-uri is required, e.g. -uri http://127.0.0.1:8181")
	}
	results, err := suite.Run(ctx, target, suite.Options{
		Only: filter, Parallel: *parallel, AssumeAll: *assumeAll, Timeout: *timeout,
		Done: func(r suite.Result) {
			if !*quiet || r.Outcome == suite.Fail && r.Severity.AtLeast(suite.Severity(*atLeast)) {
				fmt.Fprintln(stdout, line(r))
			}
			for _, ns := range r.LeftBehind {
				fmt.Fprintf(stderr, "conformance: %s: could not remove namespace %s\n", r.ID, ns)
			}
		},
	})
	if err != nil {
		return fail("%v", err)
	}
	if len(results) == 0 {
		return fail("no case matches -only %q", *only)
	}
	if *jsonFile != "" {
		if err := writeJSON(*jsonFile, results); err != nil {
			return fail("%v", err)
		}
	}
	return summarise(stdout, results, suite.Severity(*atLeast))
}

// line is the report of one case.
func line(r suite.Result) string {
	mark := string(r.Outcome)
	if r.Outcome == suite.Fail {
		mark = "FAIL"
	}
	s := fmt.Sprintf("%-4s %s: %s", mark, r.ID, r.Title)
	switch {
	case r.Outcome == suite.Fail:
		s += fmt.Sprintf(" [%s; %s] %s", r.Severity, r.Ref, strings.Join(r.Reasons, "; "))
	case len(r.Reasons) > 0:
		s += " (" + strings.Join(r.Reasons, "; ") + ")"
	}
	return s
}

// summarise prints the counts by section and the closing line. Failures that
// are milder than atLeast are in the table but count neither as passed nor as
// failed.
func summarise(w io.Writer, results []suite.Result, atLeast suite.Severity) int {
	type count struct{ pass, must, should, may, na int }
	sections := map[string]*count{}
	var order []string
	var passed, failed, skipped, milder int
	for _, r := range results {
		c := sections[r.Section]
		if c == nil {
			c = &count{}
			sections[r.Section] = c
			order = append(order, r.Section)
		}
		switch r.Outcome {
		case suite.Pass:
			c.pass++
			passed++
		case suite.NotApplicable:
			c.na++
			skipped++
		case suite.Fail:
			switch r.Severity {
			case suite.Must:
				c.must++
			case suite.Should:
				c.should++
			case suite.May:
				c.may++
			}
			if r.Severity.AtLeast(atLeast) {
				failed++
			} else {
				milder++
			}
		}
	}
	fmt.Fprintf(w, "\n%-34s %6s %6s %6s %6s %6s\n", "section", "pass", "must", "should", "may", "n/a")
	for _, s := range order {
		c := sections[s]
		fmt.Fprintf(w, "%-34s %6d %6d %6d %6d %6d\n", s, c.pass, c.must, c.should, c.may, c.na)
	}
	fmt.Fprintln(w)
	if milder > 0 {
		fmt.Fprintf(w, "%d failures milder than %q are not counted\n", milder, atLeast)
	}
	closing := fmt.Sprintf("%d passed, %d failed", passed, failed)
	if skipped > 0 {
		closing += fmt.Sprintf(", %d skipped", skipped)
	}
	fmt.Fprintln(w, closing)
	if failed > 0 {
		return exitFailed
	}
	return exitPassed
}

func printCases(w io.Writer, filter *regexp.Regexp) error {
	all, err := suite.Cases()
	if err != nil {
		return err
	}
	for _, c := range all {
		if filter == nil || filter.MatchString(c.ID) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.ID, c.Severity, c.Title, c.Ref)
		}
	}
	return nil
}

func writeJSON(name string, results []suite.Result) error {
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.WriteFile(name, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
