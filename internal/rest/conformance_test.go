// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/rest"
	"github.com/sluice-data/sluice/test/conformance/suite"
)

// serve starts the handler over SQLite and local files, for the token
// "secret" with write access, "reader" with read access, and
// "stranger" with none.
func serve(t testing.TB) *httptest.Server {
	t.Helper()
	dir := t.TempDir()
	store, err := sqlite.Open(t.Context(), filepath.Join(dir, "catalog.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	root := "file://" + filepath.Join(dir, "w")
	bucket, err := objstore.Open(t.Context(), objstore.Profile{Type: objstore.TypeFile, Root: root}, objstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bucket.Close() })
	wh, err := catalog.OpenWarehouse(t.Context(), catalog.Config{Options: catalog.Options{Name: "demo"}, Root: root, Store: store, Files: bucket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wh.Close)
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	h, err := rest.New(rest.Config{Warehouses: []rest.Warehouse{wh}, Authenticate: authenticate, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func authenticate(r *http.Request) (identity.Principal, error) {
	write := []identity.Grant{{Warehouse: "demo", Access: identity.AccessWrite}}
	switch r.Header.Get("Authorization") {
	case "Bearer secret":
		return identity.Principal{ID: "account:a", Grants: write}, nil
	case "Bearer stranger":
		return identity.Principal{ID: "account:s"}, nil
	case "Bearer reader":
		return identity.Principal{ID: "account:r", Grants: []identity.Grant{{Warehouse: "demo", Access: identity.AccessRead}}}, nil
	}
	return identity.Principal{}, &identity.Refusal{Status: http.StatusUnauthorized, Message: "Not authenticated", Challenge: `Bearer realm="sluice"`, Cause: errors.New("test")}
}

// TestConformance runs the suite for any Iceberg REST catalog against ours.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := serve(t)
	results, err := suite.Run(t.Context(), suite.Target{URI: s.URL, Token: "secret", Token2: "stranger", Warehouse: "demo"}, suite.Options{Parallel: 2})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, r := range results {
		counts[string(r.Outcome)]++
		if r.Outcome == suite.Fail {
			t.Errorf("%s (%s): %s\n\t%s", r.ID, r.Severity, r.Title, strings.Join(r.Reasons, "\n\t"))
		}
	}
	t.Logf("%v", counts)
}
