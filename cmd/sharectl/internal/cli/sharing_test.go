// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sharingStage plays on a server that has the table sales.orders and the view
// sales.recent in the warehouse demo.
func sharingStage(t *testing.T) *stage {
	t.Helper()
	c := startCatalog(t)
	c.fill()
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"], s.env["SHARECTL_WAREHOUSE"] = c.ready.URI, c.ready.Token, "demo"
	s.words["uri"], s.words["data"] = c.ready.URI, filepath.Join(c.dir, "data")
	return s
}

func TestSharing(t *testing.T) {
	t.Parallel()
	s := sharingStage(t)
	s.play("sharing.txt")
	// The chain as the server keeps it verifies here, too. What is sealed and
	// signed when differs from run to run.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		code, chain, stderr := s.run("", "audit", "export", "--chain", "administration")
		if code != 0 {
			t.Fatal(stderr)
		}
		if strings.Contains(chain, `"deleteShare"`) {
			if code, stdout, stderr := s.run(chain, "audit", "verify", "-"); code != 0 || !strings.HasPrefix(stdout, "ok   -: ") {
				t.Errorf("%d %s%s", code, stdout, stderr)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the chain has no end:\n%s", chain)
		}
	}
	if code, stdout, stderr := s.run("", "audit", "verify"); code != 0 || !strings.Contains(stdout, "administration  ok") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
}

func TestPolicySets(t *testing.T) {
	t.Parallel()
	sharingStage(t).play("policysets.txt")
}

func TestApply(t *testing.T) {
	t.Parallel()
	sharingStage(t).play("apply.txt")
}

// TestPages follows page tokens, and none that goes round.
func TestPages(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ PageToken, Organisation string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, map[string]string{
			"": `{"shares":[{"name":"a"},{"name":"b"}],"nextPageToken":"2"}`, "2": `{"shares":[{"name":"c"}],"nextPageToken":"3"}`, "3": `{"nextPageToken":"4"}`, "4": `{"shares":[{"name":"d"}]}`,
		}[body.PageToken])
		if body.Organisation == "round" {
			t.Error("asked again")
		}
	}))
	defer server.Close()
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = server.URL, "x"
	if code, stdout, stderr := s.run("", "__complete", "share", "show", ""); code != 0 || !strings.HasPrefix(stdout, "a\nb\nc\nd\n") {
		t.Errorf("%d %q %s", code, stdout, stderr)
	}
	round := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"shares":[{"name":"a"}],"nextPageToken":"1"}`)
	}))
	defer round.Close()
	s.env["SHARECTL_URI"] = round.URL
	if code, _, stderr := s.run("", "share", "list"); code != codeFailed || !strings.Contains(stderr, "names the same next page again") {
		t.Errorf("%d %s", code, stderr)
	}
}
