// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// listing is one of the paginated listings, with a way to fill it.
type listing struct {
	name  string
	needs []string
	path  string
	make  func(ctx context.Context, t *Trial, name string) error
}

func listings() []listing {
	return []listing{
		{
			name: "tables", needs: []string{"listTables", "createTable"}, path: "${p}/namespaces/${ns}/tables",
			make: func(ctx context.Context, t *Trial, name string) error { return t.mustTable(ctx, name, nil) },
		},
		{
			name: "views", needs: []string{"listViews", "createView"}, path: "${p}/namespaces/${ns}/views",
			make: func(ctx context.Context, t *Trial, name string) error { return t.mustView(ctx, name) },
		},
		{
			name: "namespaces", needs: []string{"listNamespaces", "nested"}, path: "${p}/namespaces?parent=${ns}",
			make: func(ctx context.Context, t *Trial, name string) error {
				resp, err := t.post(ctx, "${p}/namespaces", map[string]any{"namespace": []any{t.ns, name}})
				if err == nil && resp.Status != http.StatusOK {
					err = fmt.Errorf("set-up: create namespace %s: status %d: %s", name, resp.Status, excerpt(resp.Body))
				}
				return err
			},
		},
	}
}

// page is one answer of a listing.
type page struct {
	names []string
	// next is the token, nil when it is null or absent.
	next *string
	// said tells whether next-page-token was there at all.
	said bool
}

// list asks for one page; query is appended to the path.
func (l listing) list(ctx context.Context, t *Trial, query string) (page, error) {
	path := l.path
	if query != "" {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		path += sep + query
	}
	resp, err := t.get(ctx, path)
	if err != nil {
		return page{}, err
	}
	if resp.Status != http.StatusOK {
		return page{}, fmt.Errorf("list %s with %q: status %d: %s", l.name, query, resp.Status, excerpt(resp.Body))
	}
	var body struct {
		Next        json.RawMessage `json:"next-page-token"`
		Identifiers []struct {
			Name string `json:"name"`
		} `json:"identifiers"`
		Namespaces [][]string `json:"namespaces"`
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil {
		return page{}, fmt.Errorf("list %s: %w", l.name, err)
	}
	p := page{said: body.Next != nil}
	if p.said {
		if err := json.Unmarshal(body.Next, &p.next); err != nil {
			return page{}, fmt.Errorf("list %s: next-page-token is neither a string nor null: %s", l.name, body.Next)
		}
	}
	for _, i := range body.Identifiers {
		p.names = append(p.names, i.Name)
	}
	for _, n := range body.Namespaces {
		if len(n) == 0 {
			return page{}, errors.New("list namespaces: an empty namespace is listed")
		}
		p.names = append(p.names, n[len(n)-1])
	}
	return p, nil
}

// walk reads all pages of the given size; between, when set, runs after each.
func (l listing) walk(ctx context.Context, t *Trial, size int, between func(page int) error) (names []string, pages int, err error) {
	token := ""
	for {
		variable := fmt.Sprintf("page-token-%d", pages)
		t.set(variable, token)
		p, err := l.list(ctx, t, fmt.Sprintf("pageToken=${%s|escape}&pageSize=%d", variable, size))
		if err != nil {
			return nil, pages, err
		}
		pages++
		if len(p.names) > size {
			t.report(Must, "page %d has %d results, pageSize is %d", pages, len(p.names), size)
		}
		names = append(names, p.names...)
		if p.next == nil {
			return names, pages, nil
		}
		if *p.next == "" {
			return nil, pages, errors.New("next-page-token is empty text, which would start again")
		}
		if pages > 1000 {
			return nil, pages, errors.New("a thousand pages and no end")
		}
		token = *p.next
		if between != nil {
			if err := between(pages); err != nil {
				return nil, pages, err
			}
		}
	}
}

func pagingCases() []Case {
	const section = "Pagination"
	var all []Case
	for _, l := range listings() {
		fill := func(ctx context.Context, t *Trial, n int) ([]string, error) {
			var names []string
			for i := range n {
				// Names whose order differs between alphabets, and which are
				// patterns of SQL LIKE.
				name := fmt.Sprintf("%c_%02d", "aZb_c"[i%5], i)
				if err := l.make(ctx, t, name); err != nil {
					return nil, err
				}
				names = append(names, name)
			}
			slices.Sort(names)
			return names, nil
		}
		id := func(name string) string { return "paging." + l.name + "." + name }
		all = append(
			all,
			Case{
				ID: id("all-without-token"), Section: section, Severity: Must, Needs: l.needs,
				Title: "without pageToken all " + l.name + " come in one answer, with no next token",
				Ref:   "spec PageToken; unitycatalog 1791",
				Check: func(ctx context.Context, t *Trial) error {
					want, err := fill(ctx, t, 7)
					if err != nil {
						return err
					}
					for _, query := range []string{"", "pageSize=2"} {
						p, err := l.list(ctx, t, query)
						if err != nil {
							return err
						}
						if p.next != nil {
							t.report(Must, "list %s with %q: next-page-token is %q, want null", l.name, query, *p.next)
						}
						wantNames(t, fmt.Sprintf("list %s with %q", l.name, query), p.names, want)
					}
					return nil
				},
			},
			Case{
				ID: id("walk"), Section: section, Severity: Must, Needs: append([]string{"paging"}, l.needs...),
				Title: "pages of " + l.name + " of every size hold each result once; the last has a null token",
				Ref:   "spec PageToken; unitycatalog 1791",
				Check: func(ctx context.Context, t *Trial) error {
					want, err := fill(ctx, t, 7)
					if err != nil {
						return err
					}
					for _, size := range []int{1, 2, 6, 7, 8, 1000} {
						names, pages, err := l.walk(ctx, t, size, nil)
						if err != nil {
							return err
						}
						wantNames(t, fmt.Sprintf("pages of size %d", size), names, want)
						if most := (len(want)+size-1)/size + 1; pages > most {
							t.report(Should, "%d results in pages of %d took %d pages", len(want), size, pages)
						}
					}
					p, err := l.list(ctx, t, "pageToken=&pageSize=1000")
					if err != nil {
						return err
					}
					if !p.said {
						t.report(Must, "the last page leaves next-page-token out, the specification wants null")
					}
					return nil
				},
			},
			Case{
				ID: id("concurrent-change"), Section: section, Severity: Should, Needs: append([]string{"paging"}, l.needs...),
				Title: l.name + " that exist during the whole walk come exactly once, whatever is made meanwhile",
				Ref:   "opaque tokens must not be offsets; spec PageToken",
				Check: func(ctx context.Context, t *Trial) error {
					want, err := fill(ctx, t, 8)
					if err != nil {
						return err
					}
					made := 0
					names, _, err := l.walk(ctx, t, 2, func(int) error {
						if made == 4 {
							return nil
						}
						made++
						// Before and behind whatever the position is.
						for _, first := range []string{"0", "zz"} {
							if err := l.make(ctx, t, fmt.Sprintf("%snew%d", first, made)); err != nil {
								return err
							}
						}
						return nil
					})
					if err != nil {
						return err
					}
					old := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return strings.Contains(n, "new") })
					wantNames(t, "the names that were there all the time", old, want)
					return nil
				},
			},
			Case{
				ID: id("deleted-position"), Section: section, Severity: Should,
				Needs: append([]string{"paging"}, append(l.needs, "dropTable", "dropNamespace")...),
				Title: "a walk over " + l.name + " goes on when the result where a page ended is dropped",
				Ref:   "opaque tokens must not be offsets; spec PageToken",
				Check: func(ctx context.Context, t *Trial) error {
					want, err := fill(ctx, t, 6)
					if err != nil {
						return err
					}
					first, err := l.list(ctx, t, "pageToken=&pageSize=2")
					if err != nil {
						return err
					}
					if first.next == nil || len(first.names) == 0 {
						return errors.New("the first page of two of six has no next token")
					}
					gone := first.names[len(first.names)-1]
					path := "${p}/namespaces/${ns}/" + l.name + "/" + gone
					if l.name == "namespaces" {
						path = "${p}/namespaces/${ns}${s}" + gone
					}
					resp, err := t.do(ctx, Request{Method: http.MethodDelete, Path: path})
					if err != nil {
						return err
					}
					if resp.Status/100 != 2 {
						return fmt.Errorf("set-up: drop %s: status %d: %s", gone, resp.Status, excerpt(resp.Body))
					}
					t.set("token", *first.next)
					rest, err := l.list(ctx, t, "pageToken=${token|escape}&pageSize=100")
					if err != nil {
						return err
					}
					wantNames(t, "both pages", append(first.names, rest.names...), want)
					return nil
				},
			},
		)
		for _, bad := range []struct{ id, query, ref string }{
			{"garbage-token", "pageToken=%21%21not-a-token%21%21&pageSize=2", "spec PageToken (opaque; only values from answers are valid)"},
			{"size-zero", "pageToken=&pageSize=0", "spec parameter page-size (minimum: 1)"},
			{"size-negative", "pageToken=&pageSize=-1", "spec parameter page-size (minimum: 1)"},
			{"size-word", "pageToken=&pageSize=abc", "spec parameter page-size (type: integer)"},
			{"size-fraction", "pageToken=&pageSize=1.5", "spec parameter page-size (type: integer)"},
			{"size-huge", "pageToken=&pageSize=99999999999999999999", "spec parameter page-size (type: integer)"},
		} {
			all = append(all, Case{
				ID: id(bad.id), Section: section, Severity: Should, Needs: append([]string{"paging"}, l.needs...),
				Title: "list " + l.name + " with " + bad.query + " is 400",
				Ref:   bad.ref,
				Check: func(ctx context.Context, t *Trial) error {
					if _, err := fill(ctx, t, 3); err != nil {
						return err
					}
					sep := "?"
					if strings.Contains(l.path, "?") {
						sep = "&"
					}
					resp, err := t.get(ctx, l.path+sep+bad.query)
					if err != nil {
						return err
					}
					what := "list " + l.name + " with " + bad.query
					if t.wantStatus(Should, what, resp, http.StatusBadRequest) {
						t.wantError(what, resp, "BadRequestException", Should)
					}
					return nil
				},
			})
		}
	}
	return append(all, Case{
		ID: "paging.token-of-another-listing", Section: section, Severity: Should,
		Needs: []string{"paging", "listTables", "createTable"},
		Title: "a page token used for another namespace never shows what is not in it (400, or only that namespace's tables)",
		Ref:   "spec PageToken",
		Check: func(ctx context.Context, t *Trial) error {
			for _, name := range []string{"a", "b", "c"} {
				if err := t.mustTable(ctx, name, nil); err != nil {
					return err
				}
			}
			other := t.ns + "_other"
			if resp, err := t.post(ctx, "${p}/namespaces", map[string]any{"namespace": []any{other}}); err != nil || resp.Status != http.StatusOK {
				return fmt.Errorf("set-up: create the other namespace: %w", err)
			}
			first, err := t.get(ctx, "${p}/namespaces/${ns}/tables?pageToken=&pageSize=1")
			if err != nil {
				return err
			}
			t.set("token", first.at("next-page-token"))
			resp, err := t.get(ctx, "${p}/namespaces/"+other+"/tables?pageToken=${token|escape}&pageSize=5")
			if err != nil {
				return err
			}
			t.wantStatus(Should, "list another namespace with the token", resp, http.StatusBadRequest, http.StatusOK)
			if resp.Status == http.StatusOK && resp.at("identifiers/#") != "0" {
				t.report(Should, "the empty namespace lists %s", excerpt(resp.Body))
			}
			return nil
		},
	})
}

// wantNames compares names without order and says what is missing, too many
// or repeated.
func wantNames(t *Trial, what string, got, want []string) {
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.report(Must, "%s: got %v, want %v", what, got, want)
	}
}
