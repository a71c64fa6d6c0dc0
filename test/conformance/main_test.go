// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/test/conformance/suite"
)

// TestRun checks exit codes, the closing line and the JSON file.
func TestRun(t *testing.T) {
	t.Parallel()
	catalog := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/v1/config" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if name := r.URL.Query().Get("warehouse"); name != "" && name != "w" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"message":"no such warehouse","type":"NoSuchWarehouseException","code":404}}`))
			return
		}
		_, _ = w.Write([]byte(`{"defaults":{},"overrides":{}}`))
	}))
	t.Cleanup(catalog.Close)
	file := filepath.Join(t.TempDir(), "results.json")
	for name, tc := range map[string]struct {
		args []string
		code int
		last string // the closing line, a regular expression
	}{
		"passes":        {[]string{"-uri", catalog.URL, "-warehouse", "w", "-only", `^config\.(shape|unknown)`}, exitPassed, `^2 passed, 0 failed$`},
		"fails":         {[]string{"-uri", catalog.URL, "-only", `^config\.(shape|prefix|endpoints)$`, "-json", file}, exitFailed, `^1 passed, 1 failed, 1 skipped$`},
		"milder":        {[]string{"-uri", catalog.URL, "-only", `^route\.unknown-query$`, "-severity", "must"}, exitPassed, `^0 passed, 0 failed$`},
		"list":          {[]string{"-list", "-only", `^view\.create$`}, exitPassed, `^view\.create\tmust\t`},
		"no URI":        {nil, exitCannot, ``},
		"no match":      {[]string{"-uri", catalog.URL, "-only", "^nothing$"}, exitCannot, ``},
		"bad regexp":    {[]string{"-uri", catalog.URL, "-only", "("}, exitCannot, ``},
		"bad severity":  {[]string{"-uri", catalog.URL, "-severity", "fatal"}, exitCannot, ``},
		"not a catalog": {[]string{"-uri", catalog.URL + "/elsewhere"}, exitCannot, ``},
		"argument":      {[]string{"-uri", catalog.URL, "x"}, exitCannot, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			if code := run(t.Context(), tc.args, &out, &errs); code != tc.code {
				t.Fatalf("exit code %d, want %d\n%s%s", code, tc.code, out.String(), errs.String())
			}
			if tc.code == exitCannot {
				if errs.Len() == 0 {
					t.Error("nothing says why")
				}
				return
			}
			lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; !regexp.MustCompile(tc.last).MatchString(last) {
				t.Errorf("last line %q, want %s", last, tc.last)
			}
		})
	}
	t.Cleanup(func() {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var results []suite.Result
		if err := json.Unmarshal(b, &results); err != nil || len(results) != 3 {
			t.Errorf("the JSON file holds %d results: %v", len(results), err)
		}
	})
}
