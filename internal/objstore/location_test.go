// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"errors"
	"path"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestParseLocation holds the shapes that clients and administrators may
// choose, and the attacks on them with their neighbours.
func TestParseLocation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, key, spelling string }{
		{"file:///srv/w", "file:///srv/w", "file:///srv/w"},
		{"file:/srv/w", "file:///srv/w", "file:/srv/w"},
		{"file:///srv/w/", "file:///srv/w", "file:///srv/w"},
		{"file:///", "file://", "file://"},
		{"file:/", "file://", "file://"},
		{"file://", "file://", "file://"},
		{"s3://lake-wh", "s3://lake-wh", "s3://lake-wh"},
		{"s3://lake-wh/", "s3://lake-wh", "s3://lake-wh"},
		{"s3://lake-wh/w/t", "s3://lake-wh/w/t", "s3://lake-wh/w/t"},
		{"s3a://lake-wh/w/t/", "s3://lake-wh/w/t", "s3a://lake-wh/w/t"},
		{"s3n://lake-wh/w/t", "s3://lake-wh/w/t", "s3n://lake-wh/w/t"},
		{"s3a://lake-wh/", "s3://lake-wh", "s3a://lake-wh"},
		{"gs://lake_wh.example/w", "gs://lake_wh.example/w", "gs://lake_wh.example/w"},
		{"abfss://c@acct.dfs.core.windows.net/w", "abfss://c@acct.dfs.core.windows.net/w", "abfss://c@acct.dfs.core.windows.net/w"},
		{"abfs://c@ACCT.dfs.core.windows.net/w", "abfss://c@acct.dfs.core.windows.net/w", "abfs://c@ACCT.dfs.core.windows.net/w"},
		{"wasbs://c@acct.blob.core.windows.net/w", "abfss://c@acct.dfs.core.windows.net/w", "wasbs://c@acct.blob.core.windows.net/w"},
		{"wasb://c@acct.blob.core.windows.net", "abfss://c@acct.dfs.core.windows.net", "wasb://c@acct.blob.core.windows.net"},
		{"s3://b/a-b_c.d=e/f.g", "s3://b/a-b_c.d=e/f.g", "s3://b/a-b_c.d=e/f.g"},
		{"s3://b/" + strings.Repeat("a", MaxDirectoryBytes-7), "s3://b/" + strings.Repeat("a", MaxDirectoryBytes-7), "s3://b/" + strings.Repeat("a", MaxDirectoryBytes-7)},
	} {
		l, err := ParseLocation(c.in)
		if err != nil {
			t.Errorf("ParseLocation(%q): %v", c.in, err)
			continue
		}
		if l.Key() != c.key || l.String() != c.spelling {
			t.Errorf("ParseLocation(%q) = key %q, spelling %q; want %q, %q", c.in, l.Key(), l, c.key, c.spelling)
		}
	}

	const own = "s3://lake-wh/w/uuid-m"
	refused := map[string][]string{
		"dot segments": {
			own + "/../uuid-v", own + "/..", own + "/./x", own + "/.", own + "/../", "s3://lake-wh/..", "s3://lake-wh/../other", "file:///srv/../etc", "file:/..",
		},
		"end with a dot": {own + "/...", own + ".", own + "./data", own + "/x../y", "file:///srv/w.", "abfss://c@a.dfs.core.windows.net/w./t"},
		"empty path segments": {
			own + "//data", own + "//", "s3://lake-wh//", "s3://lake-wh//w", "file:////etc", "file:////", "file:///a//b", "s3a://lake-wh///",
		},
		"dot segments are not allowed": {own + "/%2e%2e", own + "/%2E%2E%2F", own + "/..%2f", own + "/%2e%2e/uuid-v", own + "/.%2e", own + "/a%2f..%2fb", own + "/a%5c..", "s3://lake-wh/%2e"},
		"not allowed": {
			own + "/a%20b", own + "/%", own + "/%252e", own + `/\..\`, own + `\`, own + "/*", own + "/f*", own + "/?", own + "?x=1", own + "/$", own + "/${aws:username}", own + "/a'b", own + `/"`,
			own + "/#frag", own + "#", own + "/a b", own + "/a\tb", own + "/a\nb", own + "/a\x00", own + "/a\x7f", own + "/\u2028", own + "/é", own + "/ａ", own + "/\xff", own + "/<a>", own + "/{a}",
			own + "/[a]", own + "/a|b", own + "/a^b", own + "/a`b", own + "/q') || true || resource.name.startsWith('",
			"s3://user@lake-wh/w", "s3://user:pass@lake-wh/w", "s3://lake-wh:9000/w", "s3://[::1]/w", "s3://lake%2dwh/w", "s3://lake wh/w", "s3://läke/w", "s3://lake-wh?x/w", "s3://lake-wh#x/w",
			"gs://b@c/w", "abfss://c:d@a.dfs.core.windows.net/w", "abfss://c@a.dfs.core.windows.net:443/w", "s3://.lake/w",
		},
		"bucket's name": {"s3://", "s3:///w", "gs:///", "s3://a..b/w", "s3://" + strings.Repeat("b", 256) + "/w", "abfss://@a.dfs.core.windows.net/w"},
		"container@account": {
			"abfss://c/w", "abfss://c@/w", "abfss://a@b@c/w", "wasbs://acct.blob.core.windows.net/w",
		},
		"must begin with": {
			"", "w/t", "/etc/passwd", "http://169.254.169.254/latest", "https://lake-wh/w", "jar:file:///x!/y", "hdfs://nn/w", "S3://lake-wh/w", "FILE:///x", " s3://lake-wh/w", "s3 ://lake-wh/w", "s3", "mem://x/y", "ftp://[::1]:25/",
			"\u017f3://b", "s3x://b/w", "data:text/plain,x",
		},
		"names no host":      {"file://etc/passwd", "file://localhost/etc", "file://host"},
		"must be absolute":   {"file:", "file:etc", "file:../x", "file:~/x"},
		"must have the form": {"s3:lake-wh/w", "s3:/lake-wh/w", "gs:b"},
		"too long":           {"s3://b/" + strings.Repeat("a", MaxDirectoryBytes-6), "s3://b" + strings.Repeat("/a", 500), strings.Repeat("s", 1<<20)},
	}
	for why, list := range refused {
		for _, in := range list {
			l, err := ParseLocation(in)
			if !errors.Is(err, ErrGrammar) || !strings.Contains(err.Error(), why) {
				t.Errorf("ParseLocation(%.80q) = %q, %v; want an error with %q", in, l, err, why)
			}
			if err != nil && len(err.Error()) > 1200 {
				t.Errorf("the error of a long location is %d bytes long", len(err.Error()))
			}
		}
	}
}

// fileNames are what engines make of partition values and hidden files. They
// must keep every byte on every store.
var fileNames = []string{
	"plain.parquet",
	"p=a%3Ab/f.parquet",
	"p=..%2F..%2Fb/f.parquet",
	"p=%00/f.parquet",
	"p=100%25/f.parquet",
	"p=100%/f.parquet",
	"with spaces /f g.parquet",
	"p=a#b/f.parquet",
	"p=a?b=c&d/f.parquet",
	"p=a+b/f.parquet",
	"p=Zürich/東京/🦆.parquet",
	"p=e\u0301/nfd.parquet",
	"p=x./f.parquet",
	"p=x../f.parquet",
	"trailing.",
	"a__0x2f__b",
	`p="q"/f.parquet`,
	"p='q'/$f*.parquet",
	"p=<x>&amp;/f.parquet",
	"p=a:b;c,d@e/f.parquet",
	"_hidden/.f.crc",
	"~tilde/{a}[b]|c^d`e",
}

func TestParseFile(t *testing.T) {
	t.Parallel()
	root := mustParse(t, "s3://lake-wh/w")
	for _, name := range fileNames {
		in := "s3://lake-wh/w/" + name
		l, err := ParseFile(in)
		if err != nil {
			t.Errorf("ParseFile(%q): %v", in, err)
			continue
		}
		if l.String() != in || l.Path != "w/"+name || !root.Contains(l) {
			t.Errorf("ParseFile(%q) = %q, path %q", in, l, l.Path)
		}
		if joined, err := root.Join(name); err != nil || joined != l {
			t.Errorf("Join(%q) = %v, %v", name, joined, err)
		}
	}
	for why, list := range map[string][]string{
		"dot segments": {
			"../v/f", "a/../f", "./f", "a/.", "a/..", "%2e%2e/f", "%2E%2e", ".%2E/f", "%2e/f", "..%2ff", "a%2f..%2fb", "x%2F%2E%2E", "..%5cf", "%5c..%5c",
			// An equals sign after the escape makes no partition value.
			"%2e%2e%2fp=1",
		},
		"empty path segments": {"a//f", "/f", "f//"},
		"not allowed":         {"a\\..\\f", "a\x00", "a\nf", "a\x1f", "a\x7f", "a\u0085", "a\u2028", "a\u2029", "a\uffff", "a\ufffe"},
		"control characters":  {"%00", "f%00.parquet"},
		"not valid UTF-8":     {"\xff", "a\xc3", "\xed\xa0\x80"},
		"too long":            {strings.Repeat("a", MaxFileBytes)},
	} {
		for _, name := range list {
			in := "s3://lake-wh/w/" + name
			if l, err := ParseFile(in); !errors.Is(err, ErrGrammar) || !strings.Contains(err.Error(), why) {
				t.Errorf("ParseFile(%.80q) = %q, %v; want an error with %q", in, l, err, why)
			}
		}
	}
	if _, err := root.Join("a", ".."); !errors.Is(err, ErrGrammar) {
		t.Errorf("Join(a, ..): %v", err)
	}
	if l, err := root.Join("a", "b/c"); err != nil || l.String() != "s3://lake-wh/w/a/b/c" {
		t.Errorf("Join(a, b/c) = %v, %v", l, err)
	}
}

func TestContainsAndOverlaps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b                         string
		contains, contained, overlap bool
	}{
		{"s3://b/w/a", "s3://b/w/a", false, false, true},
		{"s3://b/w/a", "s3://b/w/a/", false, false, true},
		{"s3://b/w/a", "s3://b/w/a/b", true, false, true},
		{"s3://b/w/a", "s3a://b/w/a/b", true, false, true},
		{"s3://b/w/a", "s3n://b/w/a", false, false, true},
		{"s3://b/w/a", "s3://b/w/ab", false, false, false},
		{"s3://b/w/a", "s3://b/w", false, true, true},
		{"s3://b", "s3://b/w", true, false, true},
		{"s3://b", "s3://b2/w", false, false, false},
		{"s3://b", "s3://B/w", false, false, false},
		{"s3://b/w", "gs://b/w/a", false, false, false},
		{"file:///", "file:/x", true, false, true},
		{"file:/x", "file:///x/y", true, false, true},
		{"file:///x", "file:///X/y", false, false, false},
		{"abfss://c@a.dfs.core.windows.net/w", "wasbs://c@A.blob.core.windows.net/w/t", true, false, true},
		{"abfss://c@a.dfs.core.windows.net/w", "abfss://d@a.dfs.core.windows.net/w/t", false, false, false},
	} {
		a, b := mustParse(t, c.a), mustParse(t, c.b)
		if a.Contains(b) != c.contains || b.Contains(a) != c.contained || a.Overlaps(b) != c.overlap || b.Overlaps(a) != c.overlap {
			t.Errorf("%s, %s: contains %t, contained %t, overlaps %t", a, b, a.Contains(b), b.Contains(a), a.Overlaps(b))
		}
	}
}

func mustParse(t testing.TB, s string) Location {
	t.Helper()
	l, err := ParseLocation(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// FuzzParseLocation holds the grammar against what it promises: spellings and
// keys parse again to the same place, the strict grammar is a part of the
// other, and what a root contains stays inside it for whoever cleans paths.
func FuzzParseLocation(f *testing.F) {
	for _, s := range []string{
		"s3://lake-wh/w/t", "s3a://b/", "file:/x", "file:///", "file://", "gs://b/a//b", "abfss://c@A.dfs.core.windows.net/w", "wasbs://c@a.blob.core.windows.net/x",
		"s3://lake-wh/w/../v", "s3://lake-wh/w/%2e%2e/v", "s3://lake-wh/w/p=..%2Fx/f", "s3://lake-wh/w/a\\..", "s3://lake-wh/w/é", "s3://lake-wh/w//", "file:////x", "s3://lake-wh/w/...", "s3://b/w/\xff",
	} {
		f.Add(s)
	}
	roots := []Location{mustParse(f, "s3://lake-wh/w"), mustParse(f, "file:///srv/w"), mustParse(f, "file:///"), mustParse(f, "s3://lake-wh"), mustParse(f, "abfss://c@a.dfs.core.windows.net/w")}
	f.Fuzz(func(t *testing.T, s string) {
		strict, strictErr := ParseLocation(s)
		l, err := ParseFile(s)
		if strictErr == nil && (err != nil || l != strict) {
			t.Fatalf("ParseFile(%q) = %v, %v; ParseLocation accepts it", s, l, err)
		}
		if err != nil {
			if !errors.Is(err, ErrGrammar) || l != (Location{}) {
				t.Fatalf("ParseFile(%q) = %v, %v", s, l, err)
			}
			return
		}
		for _, spelling := range []string{l.String(), l.Key()} {
			again, err := ParseFile(spelling)
			if err != nil || again.Key() != l.Key() || again.Scheme != l.Scheme || again.Authority != l.Authority || again.Path != l.Path {
				t.Fatalf("%q gives %q, which gives %v, %v", s, spelling, again, err)
			}
		}
		if again, _ := ParseFile(l.String()); again.String() != l.String() {
			t.Fatalf("%q: the spelling %q changes to %q", s, l, again)
		}
		if !utf8.ValidString(l.Path) || strings.Trim(l.Path, "/") != l.Path || l.Path != "" && path.Clean("/"+l.Path) != "/"+l.Path {
			t.Fatalf("%q: the path %q is not clean", s, l.Path)
		}
		if !l.Overlaps(l) || l.Contains(l) {
			t.Fatalf("%q contains itself, or does not overlap itself", l)
		}
		for _, root := range roots {
			if inside := strings.HasPrefix(path.Clean("/"+l.Path), strings.TrimSuffix("/"+root.Path, "/")+"/"); root.Contains(l) && !inside {
				t.Fatalf("%s contains %q", root, l)
			}
			if root.Contains(l) == (root.Key() == l.Key() || l.Contains(root)) && root.Overlaps(l) {
				t.Fatalf("%s and %q: Contains and Overlaps disagree", root, l)
			}
		}
		if strictErr == nil {
			for i := range len(strict.Path) {
				if c := strict.Path[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`%*?$'"\`, c) >= 0 {
					t.Fatalf("ParseLocation accepts %q", s)
				}
			}
		}
	})
}
