// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// list is a result with rows; value is the same for programs.
type list struct {
	columns []string
	rows    [][]string
	value   any
	none    string // what to say to a person when there are no rows
}

// sheet is a result that is one thing: pairs of a name and a value.
type sheet struct {
	pairs [][2]string
	value any
}

// print prints a list in the chosen form.
func (a *app) print(l list) error {
	if a.format != "table" {
		return a.encode(l.value)
	}
	if len(l.rows) == 0 {
		if l.none != "" {
			a.hint("%s", l.none)
		}
		return nil
	}
	widths := make([]int, len(l.columns))
	rows := make([][]string, 0, len(l.rows)+1)
	rows = append(rows, l.columns)
	for _, r := range l.rows {
		cells := make([]string, len(r))
		for i, c := range r {
			cells[i] = clean(c)
		}
		rows = append(rows, cells)
	}
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for n, r := range rows {
		for i, c := range r {
			padded := c
			if i < len(r)-1 {
				padded += strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+2)
			}
			switch {
			case n == 0:
				padded = a.paint(a.OutTerminal, bold, padded)
			case c == "FAIL":
				padded = a.paint(a.OutTerminal, red, padded)
			case c == "ok":
				padded = a.paint(a.OutTerminal, green, padded)
			}
			b.WriteString(padded)
		}
		trimmed := strings.TrimRight(b.String(), " ")
		b.Reset()
		if _, err := fmt.Fprintln(a.Stdout, trimmed); err != nil {
			return err
		}
	}
	return nil
}

// show prints a sheet in the chosen form. A value with several lines is
// indented below its name.
func (a *app) show(s sheet) error {
	if a.format != "table" {
		return a.encode(s.value)
	}
	width := 0
	for _, p := range s.pairs {
		width = max(width, utf8.RuneCountInString(p[0]))
	}
	for _, p := range s.pairs {
		if p[1] == "" {
			continue
		}
		name := a.paint(a.OutTerminal, bold, p[0]+":")
		if strings.Contains(p[1], "\n") {
			if _, err := fmt.Fprintln(a.Stdout, name); err != nil {
				return err
			}
			for line := range strings.SplitSeq(strings.TrimRight(p[1], "\n"), "\n") {
				if _, err := fmt.Fprintln(a.Stdout, "  "+clean(line)); err != nil {
					return err
				}
			}
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s%s %s\n", name, strings.Repeat(" ", width-utf8.RuneCountInString(p[0])), clean(p[1])); err != nil {
			return err
		}
	}
	return nil
}

// encode prints a value as JSON or YAML.
func (a *app) encode(value any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // this is no page
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return err
	}
	raw := b.Bytes()
	if a.format == "yaml" {
		var err error
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return err
		}
	}
	_, err := a.Stdout.Write(raw)
	return err
}

// write prints text as it is.
func (a *app) write(text string) error {
	_, err := io.WriteString(a.Stdout, text)
	return err
}

// clean shows what a terminal would obey, or what would break a line, as Go
// escapes it: names and messages come from elsewhere.
func clean(s string) string {
	if !strings.ContainsFunc(s, hidden) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			q := fmt.Sprintf("%+q", string(r))
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// hidden are control characters, and what reorders or hides text.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// Colours, as ECMA-48 selects them.
const (
	bold  = "1"
	red   = "31"
	green = "32"
)

// paint colours text where a terminal is and nobody has said no
// (no-color.org).
func (a *app) paint(terminal bool, colour, text string) string {
	if !terminal || a.Env("NO_COLOR") != "" || a.Env("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
