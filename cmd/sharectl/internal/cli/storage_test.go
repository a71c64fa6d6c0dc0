// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestReach tries what catalogs give for a table's files.
func TestReach(t *testing.T) {
	t.Parallel()
	s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch auth := r.Header.Get("Authorization"); {
		case r.Method != http.MethodHead || r.URL.Path != "/lake/t/metadata/1.json":
			w.WriteHeader(http.StatusNotFound)
		case !strings.Contains(auth, "Credential=NARROW/") || !strings.Contains(auth, "/eu-central-1/s3/") || r.Header.Get("X-Amz-Security-Token") != "session":
			w.WriteHeader(http.StatusForbidden)
		default:
			w.Header().Set("Content-Length", "1234")
		}
	}))
	defer s3.Close()
	give := func(location, narrow string) json.RawMessage {
		raw, err := json.Marshal(message{
			"metadata-location": location, "metadata": message{"location": "s3://lake/t"},
			"config": message{"client.region": "eu-central-1", "s3.endpoint": s3.URL, "s3.path-style-access": "true", "s3.access-key-id": "WIDE", "s3.secret-access-key": "wide-secret"},
			"storage-credentials": []any{
				message{"prefix": "s3://lake/t", "config": message{"s3.access-key-id": narrow, "s3.secret-access-key": "narrow-secret", "s3.session-token": "session"}},
				message{"prefix": "s3://lake", "config": message{"s3.access-key-id": "LESS", "s3.secret-access-key": "less-secret"}},
				message{"prefix": "s3://other", "config": message{"s3.access-key-id": "OTHER"}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if what, err := reach(t.Context(), give("s3://lake/t/metadata/1.json", "NARROW")); err != nil || what != "the catalog's credentials read the metadata file (1234 bytes)" {
		t.Errorf("%q, %v", what, err)
	}
	for name, raw := range map[string]json.RawMessage{
		"absent": give("s3://lake/t/metadata/2.json", "NARROW"), "refused": give("s3://lake/t/metadata/1.json", "WRONG"),
	} {
		if what, err := reach(t.Context(), raw); err == nil || !strings.Contains(err.Error(), "do not read s3://lake/t/metadata/") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %q, %v", name, what, err)
		}
	}
	for answer, want := range map[string]string{
		`{"metadata-location":"s3://lake/x"}`: "warning", `{"metadata-location":"gs://lake/x"}`: "warning",
		`{"metadata-location":"gs://lake/x","config":{"gcs.oauth2.token":"t"}}`:                        "skipped",
		`{"metadata-location":"abfss://c@a.dfs.core.windows.net/x","config":{"adls.sas-token.a":"t"}}`: "skipped",
		`{"metadata-location":"file:///no/such/file"}`:                                                 "failure", `{"metadata-location":"tape://1"}`: "other",
	} {
		_, err := reach(t.Context(), json.RawMessage(answer))
		var warned warning
		var skipped errSkipped
		var failed *failure
		got := "nothing"
		switch {
		case errors.As(err, &warned):
			got = "warning"
		case errors.As(err, &skipped):
			got = "skipped"
		case errors.As(err, &failed):
			got = "failure"
		case err != nil:
			got = "other"
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", answer, got, err, want)
		}
	}
}
