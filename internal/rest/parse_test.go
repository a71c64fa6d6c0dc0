// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/catalog"
)

// FuzzPath sends any path through the router and the decoding of its names:
// what comes out is a name that the rules allow, and encoding it again leads
// to the same.
func FuzzPath(f *testing.F) {
	for _, s := range []string{
		"/v1/config", "/v1/demo/namespaces/a%1Fb", "/v1/demo/namespaces/a|b/tables/t+x", "/v1/demo/namespaces/%7C", "/v1//namespaces/%00",
		"/v1/demo/namespaces/a%7cb%1f%C3%A9/views/%2F..%2F", "/v1/../v1/config", "//", "/v1/demo/tables/rename", "/v1/demo/namespaces/%ff/register",
	} {
		f.Add("GET", s)
	}
	h := &Handler{}
	h.root = h.buildRoutes()
	f.Fuzz(func(t *testing.T, method, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		r := &http.Request{Method: method, URL: u}
		route, p, err := h.match(r)
		if route == nil || (err == nil) != (route != h.unrouted) {
			t.Fatalf("route %v with error %v", route, err)
		}
		if err != nil || p.namespace == "" {
			return
		}
		c := &call{h: h, r: r, route: route, params: p}
		ns, err := c.namespace()
		if err != nil {
			return
		}
		if len(ns) == 0 || len(ns) > maxLevels {
			t.Fatalf("%d levels", len(ns))
		}
		var again []string
		for _, level := range ns {
			if err := catalog.CheckName(level); err != nil {
				t.Fatalf("level %q: %v", level, err)
			}
			again = append(again, url.QueryEscape(level))
		}
		for _, separator := range []string{"%1F", "%7C", "|", "%7c"} {
			c.params.namespace = strings.Join(again, separator)
			if got, err := c.namespace(); err != nil || !got.Equal(ns) {
				t.Fatalf("%q became %q, %v", ns, got, err)
			}
		}
		if p.name != "" {
			if id, err := c.ident(); err == nil && catalog.CheckName(id.Name) != nil {
				t.Fatalf("name %q", id.Name)
			}
		}
	})
}

// FuzzParent decodes any parent parameter, and finds a namespace by either
// separator.
func FuzzParent(f *testing.F) {
	for _, s := range []string{"", "a", "a\x1fb", "a|b", "a%1Fb", "a%7Cb+c", "|", "\x1f", "%", "a%zz|b", "é\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ns, second, err := parent(url.Values{"parent": {s}})
		if err != nil {
			if ns != nil || second != nil {
				t.Fatal("an error and a namespace")
			}
			return
		}
		for _, n := range []catalog.Namespace{ns, second} {
			for _, level := range n {
				if err := catalog.CheckName(level); err != nil {
					t.Fatalf("level %q: %v", level, err)
				}
			}
		}
		for _, separator := range []string{"\x1f", "|"} {
			if got, _, err := parent(url.Values{"parent": {strings.Join(ns, separator)}}); err != nil || !got.Equal(ns) {
				t.Fatalf("%q became %q, %v", ns, got, err)
			}
		}
	})
}

// FuzzPageToken decodes any token; those that are accepted are those that
// were given out for the listing.
func FuzzPageToken(f *testing.F) {
	f.Add("", "a")
	f.Add(encodePageToken("t1", "demo\x00listTables\x00m"), "demo\x00listTables\x00m")
	f.Add(encodePageToken("\x00", "l"), "l")
	f.Add("AQ", "l")
	f.Fuzz(func(t *testing.T, token, listing string) {
		last, err := decodePageToken(token, listing)
		if err != nil || token == "" {
			return
		}
		if catalog.CheckName(last) != nil {
			t.Fatalf("the token leads to the name %q", last)
		}
		again, err := decodePageToken(encodePageToken(last, listing), listing)
		if err != nil || again != last {
			t.Fatalf("%q became %q, %v", last, again, err)
		}
		if _, err := decodePageToken(token, listing+"x"); err == nil {
			t.Fatal("the token is good for another listing")
		}
	})
}

// FuzzHeaders gives any text to the parsers of headers; a refusal is a 400.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{
		"", ",", "vended-credentials", "vended-credentials, remote-signing", "é", "*", `"x"`, `W/"x", "y"`, "gzip;q=0", "*;q=0, gzip", "br, *;q=0.5",
		"gzip;q=é", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "application/json; charset=x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/demo/namespaces", nil)
		for _, name := range []string{"X-Iceberg-Access-Delegation", "Idempotency-Key", "Content-Type", "X-Request-Id"} {
			r.Header[name] = []string{s}
		}
		c := &call{r: r, body: []byte("{}")}
		delegation, err := c.delegation()
		if err != nil && catalog.ReasonOf(err) != catalog.BadRequest {
			t.Fatal(err)
		}
		if !slices.Contains([]string{"", "vended-credentials", "remote-signing", "vended-credentials,remote-signing"}, delegation) {
			t.Fatalf("delegation %q", delegation)
		}
		if key, err := c.idempotencyKey([]string{s}); err == nil && (key.Key.Version() != 7 || !strings.EqualFold(key.Key.String(), s)) {
			t.Fatalf("key %v from %q", key.Key, s)
		}
		if err := c.decode(&struct{}{}); err != nil && catalog.ReasonOf(err) != catalog.BadRequest {
			t.Fatal(err)
		}
		if id := requestID(r); len(id) > 64 || strings.ContainsAny(id, "\r\n\" =") {
			t.Fatalf("request id %q", id)
		}
		matches([]string{s}, `"tag"`)
		acceptsGzip([]string{s})
	})
}

// FuzzBody decodes any body as each request: a refusal is a 400 whose message
// is valid text, and what is accepted is valid JSON.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{}`, `null`, `{"namespace":["a",null]}`, `{"source":{"namespace":["a"],"name":"t"},"destination":{"namespace":[],"name":"t"}}`,
		`{"table-changes":[{"identifier":{"namespace":["a"],"name":"t"},"requirements":[],"updates":[]}]}`, `{"a":1,"a":2}`, `{"name":1e999}`,
		`{"updates":{"a":{"b":[]}}}`, "{\"name\":\"\xff\"}", `{"report-type":"scan-report","snapshot-id":-1.0e0}`, `[[[[`, `{"name":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		c := &call{r: r, body: body}
		var rename struct {
			Source      *identifier        `json:"source"`
			Namespace   *[]*string         `json:"namespace"`
			Properties  map[string]*string `json:"properties"`
			TableChange *[]commitBody      `json:"table-changes"`
			SnapshotID  *int64             `json:"snapshot-id"`
			Stage       bool               `json:"stage-create"`
		}
		err := c.decode(&rename)
		if err == nil {
			if !json.Valid(body) {
				t.Fatal("accepted what is no JSON")
			}
			_, err = rename.Source.ident("source")
			if err == nil {
				_, err = levels(rename.Namespace, "namespace")
			}
		}
		if err == nil {
			return
		}
		if catalog.ReasonOf(err) != catalog.BadRequest {
			t.Fatal(err)
		}
		e := c.toWireForTest(err)
		if !json.Valid(errorBody(e)) || e.status != http.StatusBadRequest || e.message == "" {
			t.Fatalf("%+v", e)
		}
	})
}

func (c *call) toWireForTest(err error) wireError {
	c.route = &route{}
	return c.toWire(err)
}

// FuzzStream puts short gzip streams together from parts and inflates them with
// another implementation, which checks lengths and checksum; TestStreamLengths
// has the long ones.
func FuzzStream(f *testing.F) {
	f.Add([]byte(""), []byte(""), []byte(""))
	f.Add([]byte("head"), []byte("middle middle middle"), []byte("tail"))
	z := newCompressor(1 << 20)
	f.Fuzz(func(t *testing.T, head, middle, tail []byte) {
		checkStream(t, z, head, middle, tail)
	})
}

func checkStream(t *testing.T, z *compressor, head, middle, tail []byte) {
	t.Helper()
	run, err := z.deflate(middle)
	if err != nil {
		t.Fatal(err)
	}
	before, after := run.stream(head, tail)
	zr, err := gzip.NewReader(bytes.NewReader(slices.Concat(before, run.blocks, after)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(zr)
	if want := slices.Concat(head, middle, tail); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes became %d, %v", len(want), len(got), err)
	}
}

// TestStreamLengths covers lengths around those of stored blocks and windows.
func TestStreamLengths(t *testing.T) {
	t.Parallel()
	z := newCompressor(1 << 20)
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 65534, 65535, 65536, 131070, 131071, 200_000} {
		head, middle, tail := make([]byte, n), make([]byte, n*3), make([]byte, n)
		for _, part := range [][]byte{head, middle, tail} {
			for i := range part {
				part[i] = byte(random.IntN(7)) // some repetition
			}
		}
		checkStream(t, z, head, middle, tail)
	}
}

func TestCRCShift(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 3, 100, 65536, 1_234_567} {
		a, b := []byte("begin"), bytes.Repeat([]byte{7}, n)
		want := crc32.ChecksumIEEE(slices.Concat(a, b))
		if got := crcProduct(crc32.ChecksumIEEE(a), crcShift(n)) ^ crc32.ChecksumIEEE(b); got != want {
			t.Errorf("after %d bytes %08x, want %08x", n, got, want)
		}
	}
}

func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "x-gzip": true, "deflate": false, "deflate, gzip": true, "gzip;q=0": false, "gzip; q=0.000": false,
		"gzip;q=0.001": true, "gzip;Q=1": true, "gzip;q=x": false, "*": true, "*;q=0": false, "*;q=0, gzip": true, "gzip;q=0, *": false, "br;q=1, *;q=0.1": true,
		"identity": false, "gzip;": true, "gzipx": false, "gzip;level=9": false,
	} {
		if got := acceptsGzip([]string{s}); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
	if !acceptsGzip([]string{"br", "gzip"}) || acceptsGzip(nil) {
		t.Error("several lines, or none, are read wrongly")
	}
}

func TestIsoDuration(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]string{0: "PT0S", 1: "PT1S", 90: "PT1M30S", 3600: "PT1H", 86400: "PT24H", 7*86400 + 61: "PT168H1M1S"} {
		if got := isoDuration(time.Duration(seconds) * time.Second); got != want {
			t.Errorf("%d s: %s, want %s", seconds, got, want)
		}
	}
}

func TestAppendString(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "plain", `"`, `\`, "\n\x00\x1f\x7f", "é\u2028\U0001f600", "bad \xff\xfe", strings.Repeat("x", 300)} {
		raw := appendString([]byte("x:"), s)
		var got string
		if err := json.Unmarshal(raw[2:], &got); err != nil || got != strings.ToValidUTF8(s, "\ufffd") || string(raw[:2]) != "x:" {
			t.Errorf("%q became %s, %v", s, raw, err)
		}
	}
}
