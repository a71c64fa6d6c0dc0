// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
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

	examples := strings.Split(head, "```yaml\n")[1:]
	if len(examples) != 3 {
		t.Fatalf("%d examples, want 3", len(examples))
	}
	dir := t.TempDir()
	_, key := identity.GenerateSigningKey()
	for _, example := range examples {
		yaml, _, _ := strings.Cut(example, "```")
		// The files that the example names lie in a directory of the test's.
		yaml = strings.NewReplacer("{file: /", "{file: "+dir+"/", "{file: alice", "{file: "+dir+"/alice", "{file: signing", "{file: "+dir+"/signing").Replace(yaml)
		for _, part := range strings.Split(yaml, "{file: ")[1:] {
			name, _, _ := strings.Cut(part, "}")
			content := "a secret"
			switch {
			case strings.HasSuffix(name, ".hash"):
				content = testHash
			case strings.Contains(name, "signing"):
				content = key.Reveal()
			}
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := parse("docs/configuration.md", []byte(yaml), func(string) (string, bool) { return "", false }); err != nil {
			t.Errorf("%v\n%s", err, yaml)
		}
	}
}
