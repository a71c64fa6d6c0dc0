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
// and s3://, file:/x and file:///x) have the same Key; String keeps the
// spelling that was given, without trailing slashes.
type Location struct {
	Scheme    string // canonical: file, s3, gs, abfss, wasbs, mem
	Authority string // bucket, container@account host; "" for files
	Path      string // without leading or trailing slash
	spelling  string
}

// schemes maps what clients write to the canonical scheme.
var schemes = map[string]string{
	"file": "file",
	"s3":   "s3", "s3a": "s3", "s3n": "s3",
	"gs":   "gs",
	"abfs": "abfss", "abfss": "abfss", "wasb": "wasbs", "wasbs": "wasbs",
}

// ParseLocation parses a directory that a client or an administrator chose:
// scheme://authority/path in printable ASCII without any character that has
// a meaning in a URI, a glob or a storage policy. Dot segments, empty
// segments, escapes, user info (but Azure's container@account), ports,
// queries and fragments are refused.
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
	return l, nil
}

// ParseFile parses the location of a file or directory that an engine wrote,
// whose path may hold what partition values hold: '=', '%', spaces and other
// Unicode. Nothing is decoded. Dot segments, empty segments, backslashes and
// control characters are refused.
func ParseFile(s string) (Location, error) {
	l, err := parse(s, MaxFileBytes)
	if err != nil {
		return Location{}, err
	}
	if !utf8.ValidString(l.Path) {
		return Location{}, grammarError(s, "it is not valid UTF-8")
	}
	for _, r := range l.Path {
		if r < ' ' || r == 0x7f || r == '\\' || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' {
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
		// file:/x, file:///x; a host is refused.
		switch {
		case strings.HasPrefix(rest, "///"):
			rest = rest[3:]
		case strings.HasPrefix(rest, "//"):
			return Location{}, grammarError(s, "a file location names no host")
		case strings.HasPrefix(rest, "/"):
			rest = rest[1:]
		default:
			return Location{}, grammarError(s, "a file location must be absolute")
		}
		l.Path = rest
	case !strings.HasPrefix(rest, "//"):
		return Location{}, grammarError(s, "it must have the form "+scheme+"://name/path")
	default:
		l.Authority, l.Path, _ = strings.Cut(rest[2:], "/")
		if err := checkAuthority(canonical, l.Authority); err != nil {
			return Location{}, grammarError(s, err.Error())
		}
	}
	l.Path = strings.TrimRight(l.Path, "/")
	if l.Path != "" {
		for segment := range strings.SplitSeq(l.Path, "/") {
			if err := checkSegment(segment); err != nil {
				return Location{}, grammarError(s, err.Error())
			}
		}
	}
	l.spelling = strings.TrimRight(s, "/")
	if l.Path == "" {
		l.spelling = scheme + "://" + l.Authority
	}
	return l, nil
}

func checkSegment(segment string) error {
	switch strings.ToLower(segment) {
	case "":
		return errors.New("empty path segments are not allowed")
	case ".", "..", "%2e", "%2e%2e", ".%2e", "%2e.":
		return errors.New("dot segments are not allowed")
	}
	lower := strings.ToLower(segment)
	if strings.Contains(lower, "..%2f") || strings.Contains(lower, "%2f..") || strings.Contains(lower, "%2e%2e%2f") || strings.Contains(lower, "%00") {
		return errors.New("escaped dot segments are not allowed")
	}
	return nil
}

// checkAuthority applies the rules for bucket names; Azure's has the form
// container@account.host.
func checkAuthority(scheme, authority string) error {
	name := authority
	if scheme == "abfss" || scheme == "wasbs" {
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
	return checkBucketName(name)
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

// String returns the location as it was given, without trailing slashes.
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

// Overlaps reports whether one is the other or contains it.
func (l Location) Overlaps(o Location) bool {
	return l.Key() == o.Key() || l.Contains(o) || o.Contains(l)
}
