// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the answers that were seen into testdata; review them")

// TestScripts runs the requests of every file of testdata/scripts on a server
// of its own and compares the answers. A file is made of
//
//	# a comment
//	POST /v1/demo/namespaces {"namespace":["a"]}
//	+ Header: value            a request header; without a value, it is left out
//	= 200 {"namespace":…}      the answer: status and body
//	= 404 NoSuch… message      or, of an error, status, type and message
//	= 204                      or nothing more
//	  Header: value            a header of the answer that must be so
//	> uuid metadata.table-uuid a part of the answer to keep as $uuid
//
// A path or body that begins with a quote is a Go string literal, for bytes
// that a text file should not hold. In answers the parts that differ from run
// to run are written as ROOT, UUID, MS and HEX, and control characters as Go
// escapes.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := &script{t: t, s: start(t), file: file, vars: map[string]string{}}
			p.vars["root"] = p.s.root
			p.run(strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n"))
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(p.out, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

type script struct {
	t    *testing.T
	s    *server
	file string
	vars map[string]string
	out  []string
	sent int
}

func (p *script) run(lines []string) {
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		p.out = append(p.out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := fmt.Sprintf("%s:%d", p.file, i+1)
		method, rest, _ := strings.Cut(line, " ")
		path, body := p.arguments(at, rest)
		var headers []header
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "+ ") {
			i++
			p.out = append(p.out, lines[i])
			name, value, _ := strings.Cut(lines[i][2:], ":")
			headers = append(headers, header{name, p.expand(strings.TrimSpace(value))})
		}
		a := p.s.do(p.t, method, path, body, headers...)
		p.sent++
		got := "= " + p.show(a)
		if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "= ") {
			i++
			if lines[i] != got && !*update {
				p.t.Errorf("%s: %s\n got %s\nwant %s", at, line, got, lines[i])
			}
		} else if !*update {
			p.t.Errorf("%s: says no answer", at)
		}
		p.out = append(p.out, got)
		for i+1 < len(lines) && (strings.HasPrefix(lines[i+1], "  ") || strings.HasPrefix(lines[i+1], "> ")) {
			i++
			p.out = append(p.out, lines[i])
			p.after(at, lines[i], a)
		}
	}
	if p.sent == 0 {
		p.t.Error("the script sends nothing")
	}
}

// arguments splits path and body, and decodes literals.
func (p *script) arguments(at, rest string) (path, body string) {
	next := func() string {
		if !strings.HasPrefix(rest, `"`) {
			word, tail, _ := strings.Cut(rest, " ")
			rest = tail
			return word
		}
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			p.t.Fatalf("%s: %v", at, err)
		}
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
		s, err := strconv.Unquote(quoted)
		if err != nil {
			p.t.Fatalf("%s: %v", at, err)
		}
		return s
	}
	path = next()
	if strings.HasPrefix(rest, `"`) {
		return p.expand(path), p.expand(next())
	}
	return p.expand(path), p.expand(rest)
}

var variable = regexp.MustCompile(`\$[a-z]+[0-9]*`)

func (p *script) expand(s string) string {
	return variable.ReplaceAllStringFunc(s, func(name string) string {
		if v, ok := p.vars[name[1:]]; ok {
			return v
		}
		return name
	})
}

// after checks a header of the answer, or keeps a part of it.
func (p *script) after(at, line string, a answer) {
	if name, ok := strings.CutPrefix(line, "> "); ok {
		name, field, _ := strings.Cut(name, " ")
		var v any
		if err := json.Unmarshal(a.body, &v); err != nil {
			p.t.Fatalf("%s: %v", at, err)
		}
		if header, ok := strings.CutPrefix(field, "@"); ok {
			v = a.header.Get(header)
		} else {
			for key := range strings.SplitSeq(field, ".") {
				object, _ := v.(map[string]any)
				v = object[key]
			}
		}
		text, ok := v.(string)
		if !ok || text == "" {
			p.t.Fatalf("%s: the answer has no %s", at, field)
		}
		p.vars[name] = text
		return
	}
	name, want, _ := strings.Cut(strings.TrimSpace(line), ":")
	if got := p.mask(strings.Join(a.header.Values(name), ", ")); got != strings.TrimSpace(want) {
		p.t.Errorf("%s: %s is %q, want %q", at, name, got, strings.TrimSpace(want))
	}
}

// show writes an answer as scripts do.
func (p *script) show(a answer) string {
	if a.status < 400 || len(a.body) == 0 {
		if len(a.body) > 0 && !json.Valid(a.body) {
			p.t.Errorf("status %d: the body is not JSON: %q", a.status, a.body)
		}
		return strings.TrimSpace(strconv.Itoa(a.status) + " " + p.mask(string(a.body)))
	}
	kind, message := a.kind(p.t)
	return fmt.Sprintf("%d %s %s", a.status, kind, p.mask(message))
}

var (
	anyUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anyTime = regexp.MustCompile(`\b1[0-9]{12}\b`)
	control = regexp.MustCompile(`[\x00-\x1f\x7f\x{80}-\x{9f}\x{2028}\x{2029}]`)
	anyHex  = regexp.MustCompile(`\b[0-9a-f]{24,32}\b`)
)

func (p *script) mask(s string) string {
	s = strings.ReplaceAll(s, p.s.root, "ROOT")
	s = strings.ReplaceAll(s, p.s.dir, "ROOT")
	s = anyUUID.ReplaceAllString(s, "UUID")
	s = anyTime.ReplaceAllString(s, "MS")
	s = anyHex.ReplaceAllString(s, "HEX")
	return control.ReplaceAllStringFunc(s, func(c string) string { return strings.Trim(strconv.QuoteToASCII(c), `"`) })
}
