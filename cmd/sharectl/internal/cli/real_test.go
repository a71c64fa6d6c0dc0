// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/admin"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
)

// startAdmin serves the sharing API on SQLite. A token is a principal's id and
// organisation: "account:root", "corp:alice@acme".
func startAdmin(t *testing.T) string {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := policy.NewSchema(map[string]string{"regions": "Set<String>", "clearance": "Long"})
	if err != nil {
		t.Fatal(err)
	}
	service, err := sharing.New(sharing.Config{Store: st, Schema: schema, Issuers: map[string]identity.IssuerKind{"corp": identity.IssuerJWT}})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := admin.New(admin.Config{
		Sharing: service, Administrators: []string{"account:root"}, Version: "1.0",
		Authenticate: func(r *http.Request) (identity.Principal, error) {
			id, organisation, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "@")
			kind, issuer := identity.KindToken, "corp"
			if strings.HasPrefix(id, "account:") {
				kind, issuer = identity.KindService, ""
			}
			_, subject, _ := strings.Cut(id, ":")
			return identity.Principal{ID: id, Subject: subject, Kind: kind, Issuer: issuer, Organisation: organisation}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// TestAgainstTheServer plays two organisations on the sharing API itself.
func TestAgainstTheServer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.env["SHARECTL_URI"] = startAdmin(t)
	s.words["uri"] = s.env["SHARECTL_URI"]
	s.play("organisations.txt")
}
