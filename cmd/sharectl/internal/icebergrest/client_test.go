// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package icebergrest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestParseIdent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"a":           {"a"},
		"a.b.c":       {"a", "b", "c"},
		`"a.b".c`:     {"a.b", "c"},
		`a."b""c"`:    {"a", `b"c`},
		`a." b "`:     {"a", " b "},
		"ü.日本":        {"ü", "日本"},
		`"""".x`:      {`"`, "x"},
		"":            nil,
		"a.":          nil,
		".a":          nil,
		`"a`:          nil,
		`"a"b`:        nil,
		`""`:          nil,
		`a.""`:        nil,
		`a."b"".c`:    nil,
		`x.y z.w"w.v`: {"x", "y z", `w"w`, "v"},
	} {
		got, err := ParseIdent(text)
		if (err != nil) != (want == nil) || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, got, err)
			continue
		}
		if want != nil {
			if again, err := ParseIdent(Namespace(got).String()); err != nil || !slices.Equal(again, want) {
				t.Errorf("%q comes back as %q, %v", text, again, err)
			}
		}
	}
}

func FuzzParseIdent(f *testing.F) {
	for _, s := range []string{"a.b", `"a.b".c`, `a."b""c"`, `"`, "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		parts, err := ParseIdent(s)
		if err != nil {
			return
		}
		again, err := ParseIdent(Namespace(parts).String())
		if err != nil || !slices.Equal(parts, again) {
			t.Errorf("%q: %q, then %q, %v", s, parts, again, err)
		}
	})
}

// TestServers drives the client with what servers that are not ours answer.
func TestServers(t *testing.T) {
	t.Parallel()
	var keys, paths []string
	pages := map[string]string{"": `{"namespaces":[["a"]],"next-page-token":"2"}`, "2": `{"namespaces":[["b c"]],"next-page-token":null}`, "loop": `{"namespaces":[],"next-page-token":"loop"}`}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys, paths = append(keys, r.Header.Get("Idempotency-Key")), append(paths, r.URL.RequestURI())
		switch {
		case r.URL.Path == "/v1/config" && r.URL.Query().Get("warehouse") == "html":
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>hello</html>"))
		case r.URL.Path == "/v1/config":
			_, _ = w.Write([]byte(`{"defaults":{"prefix":"no"},"overrides":{"prefix":"a/b c"}}`))
		case strings.HasSuffix(r.URL.Path, "/namespaces") && r.URL.Query().Get("parent") == "x\x1fy":
			_, _ = w.Write([]byte(pages["loop"]))
		case strings.HasSuffix(r.URL.Path, "/namespaces"):
			_, _ = w.Write([]byte(pages[r.URL.Query().Get("pageToken")]))
		case strings.HasSuffix(r.URL.Path, "/proxy"):
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("<html>bad gateway</html>"))
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer s.Close()
	c := &Client{URI: s.URL, HTTP: s.Client()}
	if _, err := c.Config(t.Context(), "html"); err == nil || !strings.Contains(err.Error(), "is this an Iceberg REST catalog?") {
		t.Errorf("a page of HTML: %v", err)
	}
	w, err := c.Warehouse(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Path(Ident{Namespace{"x", "y/z"}, "t u"}, "tables"); got != "/v1/a/b%20c/namespaces/x%1Fy%2Fz/tables/t%20u" {
		t.Errorf("path %s", got)
	}
	all, err := w.Namespaces(t.Context(), nil)
	if raw, _ := json.Marshal(all); err != nil || string(raw) != `[["a"],["b c"]]` {
		t.Errorf("%s, %v", raw, err)
	}
	if _, err := w.Namespaces(t.Context(), Namespace{"x", "y"}); err == nil || !strings.Contains(err.Error(), "same next page") {
		t.Errorf("pages that go round: %v", err)
	}
	_, err = w.Post(t.Context(), "/proxy", nil)
	if !IsStatus(err, http.StatusBadGateway) || err.(*Error).RetryAfter.Seconds() != 7 { //nolint:errorlint // it is that type, or the test fails
		t.Errorf("a proxy's page: %v", err)
	}
	if err := w.Delete(t.Context(), "/x", nil); err != nil {
		t.Error(err)
	}
	n := len(keys)
	if keys[n-1] == "" || keys[n-2] == "" || keys[n-1] == keys[n-2] || keys[0] != "" {
		t.Errorf("idempotency keys %q of %q", keys, paths)
	}
}
