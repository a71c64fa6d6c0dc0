// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/identity"
)

// TestDocumentation keeps docs/configuration.md true: its table is the one
// that the fields make (UPDATE=1 writes it), and its examples are valid.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "..", "docs", "configuration.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "-run TestDocumentation -->\n", "<!-- end -->"
	head, rest, ok := strings.Cut(string(raw), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	if want := "\n" + Reference() + "\n"; table != want {
		if os.Getenv("UPDATE") == "" {
			t.Errorf("the table of %s is not that of the code; run UPDATE=1 go test ./internal/server/config -run TestDocumentation", path)
		} else if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	parseExamples(t, "docs/configuration.md", head, 3)
}

// TestIdentityGuide keeps the configurations of docs/identity.md valid: one of
// each kind of issuer, of accounts, and of acting for others.
func TestIdentityGuide(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "identity.md"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, c := range parseExamples(t, "docs/identity.md", string(raw), 6) {
		for _, i := range c.Issuers {
			kinds[i.Kind]++
			if i.Kind == "mtls" && i.MTLS.TrustDomain != "" {
				kinds["spiffe"]++
			}
		}
		for _, a := range c.Accounts {
			kinds["secrets"] = max(kinds["secrets"], len(a.Secrets))
			kinds["act for"] += len(a.ActFor)
		}
	}
	want := map[string]int{"jwt": 2, "introspection": 1, "kubernetes": 1, "mtls": 2, "spiffe": 1, "secrets": 2, "act for": 1}
	if !maps.Equal(kinds, want) {
		t.Errorf("the guide shows %v, want %v", kinds, want)
	}
}

// parseExamples parses the configurations in a document, all blocks of yaml.
func parseExamples(t *testing.T, name, text string, want int) (list []*Config) {
	t.Helper()
	examples := strings.Split(text, "```yaml\n")[1:]
	if len(examples) != want {
		t.Fatalf("%d examples, want %d", len(examples), want)
	}
	dir := t.TempDir()
	_, key := identity.GenerateSigningKey()
	for _, example := range examples {
		yaml, _, _ := strings.Cut(example, "```")
		// The files that the example names lie in a directory of the test's.
		yaml = strings.NewReplacer("{file: /", "{file: "+dir+"/", "{file: alice", "{file: "+dir+"/alice", "{file: signing", "{file: "+dir+"/signing").Replace(yaml)
		for _, part := range strings.Split(yaml, "{file: ")[1:] {
			file, _, _ := strings.Cut(part, "}")
			content := "a secret"
			switch {
			case strings.HasSuffix(file, ".hash"):
				content = testHash
			case strings.Contains(file, "signing"):
				content = key.Reveal()
			}
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := parse(name, []byte(yaml), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Errorf("%v\n%s", err, yaml)
			continue
		}
		list = append(list, c)
	}
	return list
}
