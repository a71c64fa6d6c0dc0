// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// vended asks for the case's table t with credentials, once by loadTable and,
// where it is served, once by loadCredentials.
func vended(ctx context.Context, t *Trial) (answers []*Response, err error) {
	if err := t.mustTable(ctx, "t", nil); err != nil {
		return nil, err
	}
	paths := []string{"${p}/namespaces/${ns}/tables/t"}
	if t.s.advertised["loadCredentials"] {
		paths = append(paths, paths[0]+"/credentials")
	}
	for _, path := range paths {
		resp, err := t.do(ctx, Request{Method: http.MethodGet, Path: path, Header: http.Header{"X-Iceberg-Access-Delegation": {"vended-credentials"}}})
		if err != nil {
			return nil, err
		}
		if t.wantStatus(Must, "GET "+path, resp, http.StatusOK) {
			answers = append(answers, resp)
		}
	}
	return answers, nil
}

// storageCredential is an entry of storage-credentials.
type storageCredential struct {
	Prefix string            `json:"prefix"`
	Config map[string]string `json:"config"`
}

func credentialsOf(resp *Response) ([]storageCredential, error) {
	var body struct {
		Credentials []storageCredential `json:"storage-credentials"`
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil {
		return nil, fmt.Errorf("decode storage-credentials: %w", err)
	}
	return body.Credentials, nil
}

// vendingCases look at credentials from the outside: their scope as far as it
// is declared, their life, their caching. They never use them.
func vendingCases() []Case {
	const section = "Vended credentials"
	needs := []string{"vending", "createTable", "loadTable"}
	each := func(ctx context.Context, t *Trial, check func(resp *Response, c storageCredential)) error {
		answers, err := vended(ctx, t)
		if err != nil {
			return err
		}
		for _, a := range answers {
			list, err := credentialsOf(a)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				t.report(Must, "an answer of %d bytes has no credentials", len(a.Body)) // never the body: it may hold others
			}
			for _, c := range list {
				check(a, c)
			}
		}
		return nil
	}
	return []Case{
		{
			ID: "vending.prefix", Section: section, Severity: Must, Needs: needs,
			Title: "the prefix of each credential lies in the table's own location",
			Ref:   "spec StorageCredential; lakekeeper 1925; CVE-2026-42809",
			Check: func(ctx context.Context, t *Trial) error {
				return each(ctx, t, func(_ *Response, c storageCredential) {
					v, err := t.variable("loc.t")
					location := fmt.Sprint(v)
					if err != nil || c.Prefix != location && !strings.HasPrefix(c.Prefix, location+"/") {
						t.report(Must, "prefix %q, location %q", c.Prefix, location)
					}
				})
			},
		},
		{
			ID: "vending.complete", Section: section, Severity: Must, Needs: needs,
			Title: "each credential holds a secret; one for S3 its id, secret and session token",
			Ref:   "spec LoadTableResult (AWS configurations); lakekeeper 1923",
			Check: func(ctx context.Context, t *Trial) error {
				return each(ctx, t, func(_ *Response, c storageCredential) {
					secret := false
					for k, v := range c.Config {
						secret = secret || v != "" && (k == "s3.secret-access-key" || k == "gcs.oauth2.token" || strings.HasPrefix(k, "adls.sas-token") || k == "adls.token")
					}
					if !secret {
						t.report(Must, "the credential for %q holds no secret", c.Prefix)
					}
					if strings.HasPrefix(c.Prefix, "s3") {
						for _, k := range []string{"s3.access-key-id", "s3.secret-access-key", "s3.session-token"} {
							if c.Config[k] == "" {
								t.report(Must, "the credential for %q has no %s", c.Prefix, k)
							}
						}
					}
				})
			},
		},
		{
			ID: "vending.lifetime", Section: section, Severity: Should, Needs: needs,
			Title: "each credential says when it expires, at least 15 minutes and at most 36 hours ahead",
			Ref:   "trino 25827, iceberg-python 3506, duckdb-iceberg 1352 (clients that refresh late or never); AWS STS GetSessionToken limit",
			Check: func(ctx context.Context, t *Trial) error {
				return each(ctx, t, func(_ *Response, c storageCredential) {
					found := false
					for k, v := range c.Config {
						if !strings.Contains(k, "expires-at") {
							continue
						}
						found = true
						ms, err := strconv.ParseInt(v, 10, 64)
						left := time.Until(time.UnixMilli(ms))
						// A minute of grace for clocks that differ.
						if err != nil || left < 14*time.Minute || left > 36*time.Hour+time.Minute {
							t.report(Should, "%s is %q, %s ahead", k, v, left.Round(time.Second))
						}
					}
					if !found {
						t.report(Should, "the credential for %q has no key with expires-at", c.Prefix)
					}
				})
			},
		},
		{
			ID: "vending.no-store", Section: section, Severity: Must, Needs: needs,
			Title: "answers with secrets are no-store, or private",
			Ref:   "lakekeeper 1947; RFC 9111 section 5.2.2",
			Check: func(ctx context.Context, t *Trial) error {
				answers, err := vended(ctx, t)
				if err != nil {
					return err
				}
				for _, a := range answers {
					control := strings.ToLower(a.Header.Get("Cache-Control"))
					if !strings.Contains(control, "no-store") && !strings.Contains(control, "private") {
						t.report(Must, "Cache-Control is %q", control)
					}
				}
				return nil
			},
		},
		{
			ID: "vending.second-principal", Section: section, Severity: Must,
			Needs: append([]string{"authentication", "second-principal", "loadCredentials"}, needs...),
			Title: "another principal without rights gets no credentials",
			Ref:   "attack list; spec loadCredentials 403",
			Check: func(ctx context.Context, t *Trial) error {
				if err := t.mustTable(ctx, "t", nil); err != nil {
					return err
				}
				other := "Bearer " + t.s.target.Token2
				for _, path := range []string{"", "/credentials"} {
					resp, err := t.do(ctx, Request{
						Method: http.MethodGet, Path: "${p}/namespaces/${ns}/tables/t" + path, Auth: &other,
						Header: http.Header{"X-Iceberg-Access-Delegation": {"vended-credentials"}},
					})
					if err != nil {
						return err
					}
					t.wantStatus(Must, "GET table"+path, &Response{Status: resp.Status}, http.StatusForbidden, http.StatusNotFound)
				}
				return nil
			},
		},
	}
}
