// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var fence = regexp.MustCompile("(?ms)^```(\\w+)( \\w+)?\n(.*?)^```$")

// TestGuide runs the examples of docs/policy.md: each Cedar block with the
// cases after it, in the setting that they share.
func TestGuide(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := NewSchema(map[string]string{"region": "String", "clearance": "Long"})
	if err != nil {
		t.Fatal(err)
	}
	var setting, cedar string
	examples, cases := 0, 0
	for _, m := range fence.FindAllStringSubmatch(string(guide), -1) {
		language, info, text := m[1], m[2], m[3]
		switch {
		case info == " setting":
			setting = text
		case info != "":
		case language == "cedar":
			cedar = text
		case language == "yaml":
			examples++
			set, err := Parse(schema, Source{"example.cedar", []byte(cedar)})
			if err != nil {
				t.Errorf("example %d:\n%v", examples, err)
				continue
			}
			c, err := ParseCases("example.yaml", []byte(setting+text))
			if err != nil {
				t.Errorf("example %d:\n%v", examples, err)
				continue
			}
			if problems := c.Run(set); len(problems) > 0 {
				t.Errorf("example %d:\n%v", examples, problems)
			}
			cases += len(c.Cases)
			// The cases say something: they do not hold under no policies and
			// under one that permits all.
			if none, err := Parse(schema); err != nil || len(c.Run(none)) == 0 {
				t.Errorf("example %d holds without policies: %v", examples, err)
			}
			if len(c.Run(OpenSet(schema))) == 0 {
				t.Errorf("example %d holds when all is permitted", examples)
			}
		}
	}
	if headings := strings.Count(string(guide), "\n### "); examples != 10 || headings != 10 || cases < 18 {
		t.Errorf("%d examples under %d headings with %d cases", examples, headings, cases)
	}
}
