// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Longest locations: of a directory that a client may choose, which must fit
// into storage policies several times over, and of a file that an engine
// wrote.
const (
	MaxDirectoryBytes = 512
	MaxFileBytes      = 2048
)

// ErrGrammar is in the chain of every error of ParseLocation and ParseFile.
var ErrGrammar = errors.New("invalid location")

// Location is a parsed storage location. Two spellings of one place (s3a://
// and s3://, file:/x and file:///x, Azure's blob and dfs hosts) have the same
// Key; String keeps the spelling that was given, without a trailing slash.
type Location struct {
	Scheme    string // canonical: file, s3, gs, abfss
	Authority string // bucket, container@account host; "" for files
	Path      string // without leading or trailing slash; never decoded
	spelling  string
}

// schemes maps what clients write to the canonical scheme.
var schemes = map[string]string{
	"file": "file",
	"s3":   "s3", "s3a": "s3", "s3n": "s3",
	"gs":   "gs",
	"abfs": "abfss", "abfss": "abfss", "wasb": "abfss", "wasbs": "abfss",
}

// ParseLocation parses a directory that a client or an administrator chose:
// scheme://authority/path in printable ASCII without any character that has
// a meaning in a URI, a glob or a storage policy. Dot segments, segments that
// end with a dot (Azure drops it), empty segments, escapes, user info (but
// Azure's container@account), ports, queries and fragments are refused.
func ParseLocation(s string) (Location, error) {
	l, err := parse(s, MaxDirectoryBytes)
	if err != nil {
		return Location{}, err
	}
	for i := range len(l.Path) {
		switch c := l.Path[i]; {
		case c == '%':
			return Location{}, grammarError(s, "percent escapes are not allowed")
		case c <= ' ' || c >= 0x7f || strings.IndexByte(`*?$'"\#<>|{}[]^`+"`", c) >= 0:
			return Location{}, grammarError(s, fmt.Sprintf("the character %q is not allowed", rune(c)))
		}
	}
	if strings.HasSuffix(l.Path, ".") || strings.Contains(l.Path, "./") {
		return Location{}, grammarError(s, "a path segment must not end with a dot")
	}
	return l, nil
}

// ParseFile parses the location of a file or directory that an engine wrote,
// whose path may hold what partition values hold: '=', '%', spaces and other
// Unicode. Nothing is decoded. Dot segments, empty segments, backslashes,
// control characters and what XML cannot carry (so that no listing could name
// it) are refused.
func ParseFile(s string) (Location, error) {
	l, err := parse(s, MaxFileBytes)
	if err != nil {
		return Location{}, err
	}
	for i, r := range l.Path {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(l.Path[i:], "\uFFFD"):
			return Location{}, grammarError(s, "it is not valid UTF-8")
		case r < ' ' || r == '\\' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r == '\uFFFE' || r == '\uFFFF':
			return Location{}, grammarError(s, fmt.Sprintf("the character %q is not allowed", r))
		}
	}
	return l, nil
}

func parse(s string, limit int) (Location, error) {
	if len(s) > limit {
		return Location{}, fmt.Errorf("%w: %d bytes are too long; at most %d are allowed", ErrGrammar, len(s), limit)
	}
	scheme, rest, ok := strings.Cut(s, ":")
	canonical := schemes[scheme]
	if !ok || canonical == "" {
		return Location{}, grammarError(s, "it must begin with file:, s3://, gs://, abfss:// or wasbs://")
	}
	l := Location{Scheme: canonical}
	switch {
	case canonical == "file":
		// file:/x and file:///x; a host is refused. The root of the file
		// system is file:/, file:/// or, as String gives it, file://.
		switch {
		case rest == "//":
		case strings.HasPrefix(rest, "///"):
			l.Path = rest[3:]
		case strings.HasPrefix(rest, "//"):
			return Location{}, grammarError(s, "a file location names no host; write file:///path")
		case strings.HasPrefix(rest, "/"):
			l.Path = rest[1:]
		default:
			return Location{}, grammarError(s, "a file location must be absolute; write file:///path")
		}
	case !strings.HasPrefix(rest, "//"):
		return Location{}, grammarError(s, "it must have the form "+scheme+"://name/path")
	default:
		l.Authority, l.Path, _ = strings.Cut(rest[2:], "/")
		if err := checkAuthority(canonical, l.Authority); err != nil {
			return Location{}, grammarError(s, err.Error())
		}
		if canonical == "abfss" {
			l.Authority = canonicalAzure(l.Authority)
		}
	}
	if l.Path == "/" {
		return Location{}, grammarError(s, "empty path segments are not allowed")
	}
	l.Path = strings.TrimSuffix(l.Path, "/")
	if l.Path == "" {
		l.spelling = scheme + "://" + strings.TrimSuffix(strings.TrimPrefix(rest, "//"), "/")
		if canonical == "file" {
			l.spelling = "file://"
		}
		return l, nil
	}
	l.spelling = strings.TrimSuffix(s, "/")
	for segment := range strings.SplitSeq(l.Path, "/") {
		if err := checkSegment(segment); err != nil {
			return Location{}, grammarError(s, err.Error())
		}
	}
	return l, nil
}

// escapes are the percent escapes of '.', '/' and '\'.
var escapes = strings.NewReplacer("%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/", `\`, "/")

// checkSegment refuses what is a dot segment, also to somebody who decodes
// escapes. Engines escape partition values, so name=..%2Fx is a directory of
// a table partitioned by a path, and stays one: no store decodes it.
func checkSegment(segment string) error {
	switch segment {
	case "":
		return errors.New("empty path segments are not allowed")
	case ".", "..":
		return errors.New("dot segments are not allowed")
	}
	escape := strings.IndexByte(segment, '%')
	if escape < 0 {
		return nil
	}
	if equals := strings.IndexByte(segment, '='); equals > 0 && equals < escape {
		return nil
	}
	if strings.Contains(segment, "%00") {
		return errors.New("escaped control characters are not allowed")
	}
	for part := range strings.SplitSeq(escapes.Replace(segment), "/") {
		if part == "." || part == ".." {
			return errors.New("escaped dot segments are not allowed")
		}
	}
	return nil
}

// canonicalAzure gives the one authority of an Azure container: the account's
// dfs host in lower case.
func canonicalAzure(authority string) string {
	container, host, _ := strings.Cut(strings.ToLower(authority), "@")
	if account, domain, ok := strings.Cut(host, ".blob."); ok {
		host = account + ".dfs." + domain
	}
	return container + "@" + host
}

// checkAuthority applies the rules for bucket names; Azure's has the form
// container@account.host.
func checkAuthority(scheme, authority string) error {
	if scheme == "abfss" {
		container, host, ok := strings.Cut(authority, "@")
		if !ok || host == "" || strings.Contains(host, "@") {
			return errors.New("it must name container@account")
		}
		for _, part := range []string{container, host} {
			if err := checkBucketName(part); err != nil {
				return err
			}
		}
		return nil
	}
	return checkBucketName(authority)
}

func checkBucketName(name string) error {
	if name == "" || len(name) > 255 {
		return errors.New("the bucket's name is missing or too long")
	}
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0 {
			continue
		}
		return fmt.Errorf("the character %q is not allowed in a bucket's name", rune(c))
	}
	if strings.Contains(name, "..") {
		return errors.New("the bucket's name is invalid")
	}
	return nil
}

func grammarError(s, why string) error {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return fmt.Errorf("%w %q: %s", ErrGrammar, s, why)
}

// String returns the location as it was given, without a trailing slash.
func (l Location) String() string { return l.spelling }

// Key returns the one spelling in which locations are stored and compared.
func (l Location) Key() string {
	if l.Path == "" {
		return l.Scheme + "://" + l.Authority
	}
	return l.Scheme + "://" + l.Authority + "/" + l.Path
}

// Contains reports whether o lies strictly inside l.
func (l Location) Contains(o Location) bool {
	if l.Scheme != o.Scheme || l.Authority != o.Authority {
		return false
	}
	if l.Path == "" {
		return o.Path != ""
	}
	return len(o.Path) > len(l.Path) && o.Path[len(l.Path)] == '/' && o.Path[:len(l.Path)] == l.Path
}

// Join returns the location below l that the elements name, each one or more
// path segments, in l's spelling. What ParseFile refuses is refused.
func (l Location) Join(elements ...string) (Location, error) {
	return ParseFile(l.spelling + "/" + strings.Join(elements, "/"))
}

// Overlaps reports whether one is the other or contains it.
func (l Location) Overlaps(o Location) bool {
	return l.Key() == o.Key() || l.Contains(o) || o.Contains(l)
}
