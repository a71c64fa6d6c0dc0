// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestDiffIsUnified(t *testing.T) {
	t.Parallel()
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintln(&b, i)
		}
		return b.String()
	}
	for _, c := range []struct{ name, before, after, want string }{
		{"a changed line", "a\nb\nc\n", "a\nB\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{"a new file", "", "a\n", "@@ -0,0 +1 @@\n+a\n"},
		{"no newline at the end", "a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		{"far from the beginning", lines(20), strings.Replace(lines(20), "10\n", "x\n", 1), "@@ -8,7 +8,7 @@\n 7\n 8\n 9\n-10\n+x\n 11\n 12\n 13\n"},
		{"two places", lines(20), strings.Replace(strings.Replace(lines(20), "2\n", "x\n", 1), "19\n", "y\n", 1), "@@ -1,6 +1,6 @@\n 0\n 1\n-2\n+x\n 3\n 4\n 5\n@@ -17,4 +17,4 @@\n 16\n 17\n 18\n-19\n+y\n"},
	} {
		var b strings.Builder
		writeHunks(&b, diffLines(linesOf(c.before), linesOf(c.after)))
		if b.String() != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, b.String(), c.want)
		}
	}
	if d := diffFiles([]PolicyFile{{"a", "x"}, {"b", "y"}}, []PolicyFile{{"a", "x"}, {"c", "z"}}); !strings.HasPrefix(d, "--- a/b\n+++ /dev/null\n") || !strings.Contains(d, "--- /dev/null\n+++ b/c\n") {
		t.Errorf("files that come and go:\n%s", d)
	}
}

// TestPatchTakesTheDiff applies diffs of random files with patch(1).
func TestPatchTakesTheDiff(t *testing.T) {
	t.Parallel()
	patch, err := exec.LookPath("patch")
	if err != nil {
		t.Skip("patch(1) is not installed")
	}
	r := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	for range 60 {
		var before, after []string
		for range r.IntN(40) {
			line := fmt.Sprintln(r.IntN(5))
			if r.IntN(4) > 0 {
				before = append(before, line)
			}
			if r.IntN(4) > 0 {
				after = append(after, line)
			}
		}
		from, to := strings.Join(before, ""), strings.Join(after, "")
		var b strings.Builder
		writeHunks(&b, diffLines(linesOf(from), linesOf(to)))
		file := filepath.Join(dir, "f")
		if err := os.WriteFile(file, []byte(from), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), patch, "-s", "-p0", file)
		cmd.Stdin = strings.NewReader("--- f\n+++ f\n" + b.String())
		if out, err := cmd.CombinedOutput(); err != nil && b.Len() > 0 {
			t.Fatalf("%v: %s\n%s", err, out, b.String())
		}
		got, err := os.ReadFile(file)
		if err != nil && len(to) > 0 {
			t.Fatal(err)
		}
		if string(got) != to {
			t.Fatalf("patched is\n%s\nwant\n%s\nby\n%s", got, to, b.String())
		}
	}
}
