// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"fmt"
	"regexp"
)

// Severity tells how much a finding matters.
type Severity string

// The severities, gravest first.
const (
	Must   Severity = "must"
	Should Severity = "should"
	May    Severity = "may"
)

// rank orders severities; the gravest has the highest rank.
func (s Severity) rank() int {
	switch s {
	case Must:
		return 3
	case Should:
		return 2
	case May:
		return 1
	}
	return 0
}

// AtLeast reports whether s is as grave as other, or graver.
func (s Severity) AtLeast(other Severity) bool { return s.rank() >= other.rank() }

func graver(a, b Severity) Severity {
	if a.rank() >= b.rank() {
		return a
	}
	return b
}

func milder(a, b Severity) Severity {
	if a.rank() <= b.rank() {
		return a
	}
	return b
}

// Case is one thing that a catalog gets right or wrong.
type Case struct {
	// ID is unique, lower case, "area.name" or "area.group.name".
	ID      string
	Section string
	Title   string
	// Ref is where the expectation comes from.
	Ref      string
	Severity Severity
	// Needs are operation ids of the protocol that must be advertised and
	// names of features (see feature) that the server must have.
	Needs []string
	// NoNamespace leaves out the namespace that a case gets by default.
	NoNamespace bool
	// Check does the work. It reports findings on t and returns an error when
	// it cannot go on, or the error of skip when there is nothing to check.
	Check func(ctx context.Context, t *Trial) error
}

// Cases returns every case: the YAML files in the order of their names, then
// those in Go by area.
func Cases() ([]Case, error) {
	all, err := dataCases()
	if err != nil {
		return nil, err
	}
	all = append(all, configCases()...)
	all = append(all, nameCases()...)
	all = append(all, pagingCases()...)
	all = append(all, cachingCases()...)
	all = append(all, idempotencyCases()...)
	all = append(all, concurrencyCases()...)
	all = append(all, bodyCases()...)
	all = append(all, vendingCases()...)
	all = append(all, authCases()...)
	return all, validate(all)
}

// validate checks what every case must have.
func validate(all []Case) error {
	grammar := regexp.MustCompile(`^[a-z0-9]+(\.[a-z0-9-]+)+$`)
	known := map[string]bool{}
	for _, op := range operations() {
		known[op.id] = true
	}
	for _, f := range features() {
		known[f.name] = true
	}
	seen := map[string]bool{}
	for _, c := range all {
		switch {
		case !grammar.MatchString(c.ID):
			return fmt.Errorf("case %q: id is not of the form area.name", c.ID)
		case seen[c.ID]:
			return fmt.Errorf("case %s: id is used twice", c.ID)
		case c.Title == "" || c.Section == "" || c.Ref == "":
			return fmt.Errorf("case %s: title, section and ref are required", c.ID)
		case c.Severity.rank() == 0:
			return fmt.Errorf("case %s: severity %q is not must, should or may", c.ID, c.Severity)
		case c.Check == nil:
			return fmt.Errorf("case %s: nothing to check", c.ID)
		}
		for _, n := range c.Needs {
			if !known[n] {
				return fmt.Errorf("case %s: need %q is neither an operation nor a feature", c.ID, n)
			}
		}
		seen[c.ID] = true
	}
	return nil
}
