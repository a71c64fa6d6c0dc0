// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sluice-data/sluice/internal/catalog"
)

// advertisedSeparator is the namespace separator of /v1/config, in its
// URL-encoded form as the protocol asks; %1F is accepted as well.
const advertisedSeparator = "%7C"

// decodeSegment decodes a path segment once, the way in which Java encodes
// it (java.net.URLEncoder): a plus is a space.
func decodeSegment(raw string) (string, error) {
	s, err := url.QueryUnescape(raw)
	if err != nil {
		return "", errors.New("it has an invalid percent escape")
	}
	if !utf8.ValidString(s) {
		return "", errors.New("it is not valid UTF-8")
	}
	return s, nil
}

// separators replaces both separators, in every spelling, by one that cannot
// occur in a raw segment.
var separators = strings.NewReplacer("%1F", "\x1f", "%1f", "\x1f", "%7C", "\x1f", "%7c", "\x1f", "|", "\x1f")

// maxLevels is how many levels a namespace has at most; package catalog
// creates none with more, and a longer one is not worth looking for.
const maxLevels = 32

// namespace decodes the path's namespace: split first, then decode, so that
// an escape inside a level cannot become a separator.
func (c *call) namespace() (catalog.Namespace, error) {
	ns, err := splitNamespace(separators.Replace(c.params.namespace), decodeSegment)
	if err != nil {
		return nil, catalog.Errorf(catalog.BadRequest, "namespace: %s", err.Error())
	}
	c.resource = ns.Resource()
	return ns, nil
}

// splitNamespace splits at the unit separator, and decodes and checks each
// level.
func splitNamespace(s string, decode func(string) (string, error)) (catalog.Namespace, error) {
	if n := strings.Count(s, catalog.Separator) + 1; n > maxLevels {
		return nil, fmt.Errorf("%d levels; at most %d are allowed", n, maxLevels)
	}
	var ns catalog.Namespace
	for level := range strings.SplitSeq(s, catalog.Separator) {
		level, err := decode(level)
		if err == nil {
			err = catalog.CheckName(level)
		}
		if err != nil {
			return nil, err
		}
		ns = append(ns, level)
	}
	return ns, nil
}

// ident decodes the path's namespace and name.
func (c *call) ident() (catalog.Ident, error) {
	ns, err := c.namespace()
	if err != nil {
		return catalog.Ident{}, err
	}
	name, err := decodeSegment(c.params.name)
	if err == nil {
		err = catalog.CheckName(name)
	}
	if err != nil {
		return catalog.Ident{}, catalog.Errorf(catalog.BadRequest, "name: %s", err.Error())
	}
	id := catalog.Ident{Namespace: ns, Name: name}
	c.resource = id.Resource()
	return id, nil
}

// query parses the query, which unlike url.Values' own parser must be valid,
// and refuses a parameter that is given twice.
func (c *call) query() (url.Values, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, catalog.Errorf(catalog.BadRequest, "The query string is malformed")
	}
	for key, values := range q {
		if len(values) > 1 {
			return nil, catalog.Errorf(catalog.BadRequest, "%s: given %d times; give it once", clip(key), len(values))
		}
		if !utf8.ValidString(values[0]) {
			return nil, catalog.Errorf(catalog.BadRequest, "%s: not valid UTF-8", clip(key))
		}
	}
	return q, nil
}

// parent decodes the parent parameter of listNamespaces; nil for none. The
// query has been decoded already, so separators stand as they are.
//
// Some clients encode the separator themselves and the query once more; what
// they mean is the second reading, nil for all others. It counts only where
// no namespace has the first one, so that a level may well hold "%1F".
func parent(q url.Values) (ns, second catalog.Namespace, err error) {
	s := q.Get("parent")
	if s == "" {
		return nil, nil, nil
	}
	asIs := func(level string) (string, error) { return level, nil }
	ns, err = splitNamespace(strings.ReplaceAll(s, "|", catalog.Separator), asIs)
	if err != nil {
		return nil, nil, catalog.Errorf(catalog.BadRequest, "parent: %s", err.Error())
	}
	if twice := separators.Replace(s); strings.Count(twice, catalog.Separator) >= len(ns) {
		if second, err = splitNamespace(twice, decodeSegment); err != nil {
			second = nil
		}
	}
	return ns, second, nil
}

const (
	defaultPageSize = 1000
	maxPageSize     = 1000
)

// page decodes pageToken and pageSize. Without pageToken the answer holds
// everything, as the protocol says, whatever pageSize is. listing identifies
// what is listed; a token is good for no other listing.
func page(q url.Values, listing string) (catalog.Page, error) {
	size := defaultPageSize
	if q.Has("pageSize") {
		n, err := strconv.Atoi(q.Get("pageSize"))
		if err != nil || n < 1 {
			return catalog.Page{}, catalog.Errorf(catalog.BadRequest, "pageSize: must be a whole number of at least 1, not %q", clip(q.Get("pageSize")))
		}
		size = min(n, maxPageSize)
	}
	if !q.Has("pageToken") {
		return catalog.Page{}, nil
	}
	after, err := decodePageToken(q.Get("pageToken"), listing)
	if err != nil {
		return catalog.Page{}, err
	}
	return catalog.Page{After: after, Limit: size}, nil
}

// A page token is version, checksum over listing and last name, and the last
// name, in base64url. It tells where to go on, not how far one has come, so
// rows that come and go in between are neither skipped nor repeated.
const (
	tokenVersion  = 1
	tokenChecksum = 8
)

func encodePageToken(last, listing string) string {
	sum := pageChecksum(last, listing)
	return base64.RawURLEncoding.EncodeToString(append(append([]byte{tokenVersion}, sum[:tokenChecksum]...), last...))
}

func decodePageToken(token, listing string) (last string, err error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil && len(raw) > 1+tokenChecksum && raw[0] == tokenVersion {
		last = string(raw[1+tokenChecksum:])
		sum := pageChecksum(last, listing)
		// The checksum is no secret: what it covers is checked like any name.
		if string(sum[:tokenChecksum]) == string(raw[1:1+tokenChecksum]) && catalog.CheckName(last) == nil {
			return last, nil
		}
	}
	return "", catalog.Errorf(catalog.BadRequest, "pageToken: this token is not from a page of this listing; start again with an empty pageToken")
}

func pageChecksum(last, listing string) [sha256.Size]byte {
	return sha256.Sum256([]byte("page\x00" + listing + "\x00" + last))
}

// listing identifies a listing for page tokens.
func (c *call) listing(ns catalog.Namespace) string {
	return c.warehouse.Name() + "\x00" + c.route.operation + "\x00" + ns.Path()
}

// boolean decodes a boolean parameter.
func boolean(q url.Values, key string) (bool, error) {
	switch s := q.Get(key); {
	case s == "" && !q.Has(key), strings.EqualFold(s, "false"):
		return false, nil
	case strings.EqualFold(s, "true"):
		return true, nil
	default:
		return false, catalog.Errorf(catalog.BadRequest, "%s: must be true or false, not %q", key, clip(s))
	}
}
