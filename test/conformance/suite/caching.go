// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// cachingCases look at ETag, If-None-Match, Cache-Control and Vary.
func cachingCases() []Case {
	const section = "Caching"
	const table = "${p}/namespaces/${ns}/tables/t"
	load := func(ctx context.Context, t *Trial, query string, header ...string) (*Response, error) {
		h := http.Header{}
		for i := 0; i+1 < len(header); i += 2 {
			h.Add(header[i], header[i+1])
		}
		return t.do(ctx, Request{Method: http.MethodGet, Path: table + query, Header: h})
	}
	etagNeeds := []string{"etag", "createTable", "loadTable"}
	all := []Case{
		{
			ID: "etag.syntax", Section: section, Severity: Should, Needs: etagNeeds,
			Title: "the ETag is a quoted string, possibly weak",
			Ref:   "RFC 9110 section 8.8.3",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				resp, err := load(ctx, t, "")
				if err != nil {
					return err
				}
				if tag := resp.Header.Get("ETag"); !regexp.MustCompile(`^(W/)?"[!#-~\x80-\xff]*"$`).MatchString(tag) {
					t.report(Should, "ETag is %s", tag)
				}
				return nil
			},
		},
		{
			ID: "etag.create-load-commit-agree", Section: section, Severity: Must, Needs: append(etagNeeds, "updateTable"),
			Title: "create, commit and load of one version send the same ETag",
			Ref:   "spec If-None-Match (\"ETag received in a CreateTableResponse, LoadTableResponse or CommitTableResponse\"); gravitino 10536",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				created, err := t.variable("etag.t")
				if err != nil {
					return err
				}
				loaded, err := load(ctx, t, "")
				if err != nil {
					return err
				}
				if created != loaded.Header.Get("ETag") {
					t.report(Should, "createTable sends %v, loadTable %s", created, loaded.Header.Get("ETag"))
				}
				committed, err := t.commit(ctx, "t", nil, []any{map[string]any{"action": "set-properties", "updates": map[string]any{"k": "v"}}})
				if err != nil {
					return err
				}
				if !t.wantStatus(Must, "commit", committed, http.StatusOK) {
					return nil
				}
				again, err := load(ctx, t, "")
				if err != nil {
					return err
				}
				if committed.Header.Get("ETag") != again.Header.Get("ETag") {
					t.report(Should, "updateTable sends %s, loadTable %s", committed.Header.Get("ETag"), again.Header.Get("ETag"))
				}
				if again.Header.Get("ETag") == loaded.Header.Get("ETag") {
					t.report(Must, "the ETag is the same before and after a commit")
				}
				stale, err := load(ctx, t, "", "If-None-Match", loaded.Header.Get("ETag"))
				if err != nil {
					return err
				}
				t.wantStatus(Must, "load with the ETag of the version before", stale, http.StatusOK)
				return nil
			},
		},
		{
			ID: "etag.differs-by-snapshots", Section: section, Severity: Must, Needs: append(etagNeeds, "updateTable"),
			Title: "snapshots=refs and snapshots=all have distinct ETags, and one does not satisfy the other",
			Ref:   "spec header etag (\"should have distinct ETags\")",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				for id := 1; id <= 2; id++ {
					if err := t.mustSnapshot(ctx, map[string]any{"table": "t", "id": id, "seq": id}, "main"); err != nil {
						return err
					}
				}
				whole, err := load(ctx, t, "?snapshots=all")
				if err != nil {
					return err
				}
				refs, err := load(ctx, t, "?snapshots=refs")
				if err != nil {
					return err
				}
				if whole.Header.Get("ETag") == refs.Header.Get("ETag") {
					t.report(Must, "both are %s", refs.Header.Get("ETag"))
				}
				crossed, err := load(ctx, t, "?snapshots=refs", "If-None-Match", whole.Header.Get("ETag"))
				if err != nil {
					return err
				}
				t.wantStatus(Must, "load refs with the ETag of all", crossed, http.StatusOK)
				plain, err := load(ctx, t, "", "If-None-Match", whole.Header.Get("ETag"))
				if err != nil {
					return err
				}
				t.wantStatus(Should, "load without snapshots, which means all, with the ETag of all", plain, http.StatusNotModified)
				return nil
			},
		},
		{
			ID: "etag.recreated-table", Section: section, Severity: Must, Needs: append(etagNeeds, "dropTable"),
			Title: "the ETag of a dropped table does not fit a new one of the same name",
			Ref:   "spec header etag (\"a unique version of the table metadata\")",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				if resp, err := t.do(ctx, Request{Method: http.MethodDelete, Path: table}); err != nil || resp.Status/100 != 2 {
					return fmt.Errorf("set-up: drop the table: %v %w", resp, err)
				}
				old, err := t.variable("etag.t")
				if err != nil {
					return err
				}
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				resp, err := load(ctx, t, "", "If-None-Match", fmt.Sprint(old))
				if err != nil {
					return err
				}
				t.wantStatus(Must, "load with the dropped table's ETag", resp, http.StatusOK)
				return nil
			},
		},
		{
			ID: "etag.missing-table", Section: section, Severity: Must, Needs: etagNeeds,
			Title: "If-None-Match on a table that is gone is 404, not 304",
			Ref:   "spec loadTable 404",
			Check: func(ctx context.Context, t *Trial) error {
				resp, err := load(ctx, t, "", "If-None-Match", `"x"`)
				if err != nil {
					return err
				}
				t.wantStatus(Must, "load a missing table with If-None-Match", resp, http.StatusNotFound)
				star, err := load(ctx, t, "", "If-None-Match", "*")
				if err != nil {
					return err
				}
				t.wantStatus(Must, "load a missing table with If-None-Match: *", star, http.StatusNotFound)
				return nil
			},
		},
		{
			ID: "caching.private", Section: section, Severity: Should, Needs: []string{"authentication", "createTable", "loadTable"},
			Title: "loadTable forbids shared caches and varies by Authorization",
			Ref:   "lakekeeper 1947, iceberg 17801",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				resp, err := load(ctx, t, "")
				if err != nil {
					return err
				}
				control := strings.ToLower(resp.Header.Get("Cache-Control"))
				if !strings.Contains(control, "private") && !strings.Contains(control, "no-store") {
					t.report(Should, "Cache-Control is %q, want private or no-store", control)
				}
				vary := strings.ToLower(strings.Join(resp.Header.Values("Vary"), ","))
				for _, name := range []string{"authorization", "x-iceberg-access-delegation"} {
					if !strings.Contains(vary, name) && vary != "*" {
						t.report(Should, "Vary is %q, want it to name %s", vary, name)
					}
				}
				return nil
			},
		},
	}
	for _, form := range []struct {
		id, title string
		// tag is made of the table's ETag.
		tag      func(string) string
		want     int
		severity Severity
	}{
		{"exact", "If-None-Match with the ETag is 304 without a body", func(s string) string { return s }, http.StatusNotModified, Must},
		{"list", "If-None-Match with a list that holds the ETag is 304", func(s string) string { return `"other", ` + s + `, "third"` }, http.StatusNotModified, Should},
		{"weak", "If-None-Match compares weakly", func(s string) string { return "W/" + strings.TrimPrefix(s, "W/") }, http.StatusNotModified, Should},
		{"star", "If-None-Match: * is 304 for a table that exists", func(string) string { return "*" }, http.StatusNotModified, Should},
		{"other", "If-None-Match with another tag is 200", func(string) string { return `"no-such-tag"` }, http.StatusOK, Must},
		{"part", "If-None-Match with a part of the ETag is 200", func(s string) string { return s[:len(s)/2] + `"` }, http.StatusOK, Must},
		{"empty", "an empty If-None-Match is 200", func(string) string { return "" }, http.StatusOK, Should},
	} {
		all = append(all, Case{
			ID: "etag.if-none-match-" + form.id, Section: section, Severity: form.severity, Needs: etagNeeds,
			Title: form.title,
			Ref:   "spec loadTable If-None-Match, 304; RFC 9110 section 13.1.2",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				first, err := load(ctx, t, "")
				if err != nil {
					return err
				}
				resp, err := load(ctx, t, "", "If-None-Match", form.tag(first.Header.Get("ETag")))
				if err != nil {
					return err
				}
				if !t.wantStatus(Must, "load with If-None-Match", resp, form.want) {
					return nil
				}
				if form.want == http.StatusNotModified && len(resp.Body) > 0 {
					t.report(Must, "the 304 has a body: %s", excerpt(resp.Body))
				}
				if form.want == http.StatusNotModified && resp.Header.Get("ETag") != first.Header.Get("ETag") {
					t.report(Should, "the 304 sends ETag %q, the 200 sent %q (RFC 9110 section 15.4.5)", resp.Header.Get("ETag"), first.Header.Get("ETag"))
				}
				return nil
			},
		})
	}
	return all
}
