// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Source is a file of Cedar policies.
type Source struct {
	File string // for messages
	Text []byte
}

// Problem is one thing wrong with a policy, and where.
type Problem struct {
	File         string // empty when the whole set is meant
	Line, Column int    // from 1; zero when unknown
	Policy       string // the policy's id, when the text could be parsed
	Table        string // the table it does not fit, when it is one's
	Message      string
	Hint         string // what to write instead, when there is something
}

func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
		}
		b.WriteString(": ")
	}
	if p.Policy != "" {
		fmt.Fprintf(&b, "policy %q: ", p.Policy)
	}
	if p.Table != "" {
		fmt.Fprintf(&b, "on %s: ", p.Table)
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Problems is the error of [Parse]: all that is wrong, in the order of the
// sources.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// MaxPolicies bounds a set, MaxSource a set's text in bytes, and MaxTokens the
// words and signs of one policy.
const (
	MaxPolicies = 100_000
	MaxSource   = 32 << 20
	MaxTokens   = 20_000
)

// Set is a policy set: parsed, checked and indexed. It is not changed after
// [Parse], and is safe for concurrent use.
type Set struct {
	schema   *Schema
	policies []*rule
	index    index
	open     bool      // see OpenSet
	tagged   actionSet // actions of policies that ask for a resource's tags
}

// Len is the number of policies.
func (s *Set) Len() int { return len(s.policies) }

// rule is one policy.
type rule struct {
	id       string
	position cedar.Position
	forbid   bool
	mask     Mask // what a permit of readColumn gives
	actions  actionSet
	usesRow  bool
	varies   bool // depends on what differs from request to request: context.now, context.ip
	ast      *ast.Policy
	compiled *cedar.Policy
	places   []place // of the variable context, in the order of the syntax tree
}

type place struct{ line, column int }

func (r *rule) problem(message, hint string) Problem {
	return Problem{File: r.position.Filename, Line: r.position.Line, Column: r.position.Column, Policy: r.id, Message: message, Hint: hint}
}

// annotations are those that a policy may carry. Any other is refused: a
// mistyped @mask would show what it should hide.
var annotations = []string{"id", "mask", "description"}

// Parse parses policy sources into one set and checks all that can be told
// without a table: see [Set.Check] for the rest. The error is a [Problems].
func Parse(schema *Schema, sources ...Source) (*Set, error) {
	s := &Set{schema: schema}
	var problems Problems
	size := 0
	for _, source := range sources {
		if size += len(source.Text); size > MaxSource {
			return nil, Problems{{File: source.File, Message: fmt.Sprintf("the set is larger than %d MiB", MaxSource>>20)}}
		}
		problems = append(problems, s.parse(source)...)
	}
	if len(s.policies) > MaxPolicies {
		problems = append(problems, Problem{Message: fmt.Sprintf("%d policies in one set; at most %d", len(s.policies), MaxPolicies)})
	}
	byID := make(map[string]*rule, len(s.policies))
	for _, r := range s.policies {
		if other := byID[r.id]; other != nil {
			problems = append(problems, r.problem("the id is taken by the policy at "+where(other.position), "give each policy an @id of its own"))
		}
		byID[r.id] = r
		problems = append(problems, schema.check(r)...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	s.index = buildIndex(s.policies)
	return s, nil
}

func where(p cedar.Position) string { return fmt.Sprintf("%s:%d:%d", p.Filename, p.Line, p.Column) }

func (s *Set) parse(source Source) Problems {
	if !utf8.Valid(source.Text) {
		return Problems{{File: source.File, Message: "the text is not UTF-8"}}
	}
	if line := overlong(source.Text); line > 0 {
		return Problems{{File: source.File, Line: line, Column: 1, Message: fmt.Sprintf("a policy has more than %d words and signs", MaxTokens), Hint: "split it"}}
	}
	list, err := cedar.NewPolicyListFromBytes(source.File, source.Text)
	if err != nil {
		return Problems{parseProblem(source.File, err)}
	}
	starts := make([]int, 0, len(list)+1)
	for _, p := range list {
		starts = append(starts, p.Position().Offset)
	}
	starts = append(starts, len(source.Text))
	var problems Problems
	for i, p := range list {
		r := &rule{
			position: p.Position(), forbid: p.Effect() == cedar.Forbid, compiled: p,
			ast: (*ast.Policy)(p.AST()),
		}
		r.id = where(r.position)
		for _, a := range r.ast.Annotations {
			switch {
			case a.Key == "id" && a.Value == "":
				problems = append(problems, r.problem("the @id is empty", ""))
			case a.Key == "id":
				r.id = string(a.Value)
			case a.Key == "mask":
				r.mask = Mask(a.Value)
			case !slices.Contains(annotations, string(a.Key)):
				problems = append(problems, r.problem(fmt.Sprintf("unknown annotation @%s", a.Key), "known are @"+strings.Join(annotations, ", @")))
			}
		}
		r.places = contextPlaces(source.Text[starts[i]:starts[i+1]], r.position)
		r.actions = actionsOf(r.ast.Action)
		for _, c := range r.ast.Conditions {
			ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
				if name, ok := contextMember(n); ok {
					r.usesRow = r.usesRow || name == "row"
					r.varies = r.varies || name != "row"
				}
				switch n.(type) {
				case ast.NodeTypeGetTag, ast.NodeTypeHasTag:
					s.tagged |= r.actions
				}
				return true
			})
		}
		s.policies = append(s.policies, r)
	}
	return problems
}

// contextMember returns the name in context.<name> and in context has <name>.
func contextMember(n ast.IsNode) (string, bool) {
	switch n := n.(type) {
	case ast.NodeTypeAccess:
		return string(n.Value), isContext(n.Arg)
	case ast.NodeTypeHas:
		return string(n.Value), isContext(n.Arg)
	default:
		return "", false
	}
}

func isContext(n ast.IsNode) bool {
	v, ok := n.(ast.NodeTypeVariable)
	return ok && v.Name == "context"
}

// How the parser tells a position, and a surprise, within its message.
var (
	parsePlace = regexp.MustCompile(`^parser error: (?:parse error at )?<input>:(\d+):(\d+)(?: "(?:[^"\\]|\\.)*")?:? ?`)
	parseWants = regexp.MustCompile(`^exact got (.*) want (.+)$`)
)

func parseProblem(file string, err error) Problem {
	message := err.Error()
	p := Problem{File: file}
	if m := parsePlace.FindStringSubmatch(message); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.Column, _ = strconv.Atoi(m[2])
		message = message[len(m[0]):]
	}
	message = strings.TrimPrefix(message, "parser error: ")
	if m := parseWants.FindStringSubmatch(message); m != nil {
		found := strconv.Quote(m[1])
		if m[1] == "" {
			found = "the end"
		}
		message = fmt.Sprintf("found %s where %q belongs", found, m[2])
	}
	p.Message = message
	switch {
	case strings.Contains(message, `"/"`):
		p.Hint = "Cedar has no division"
	case strings.HasSuffix(message, "expected ident"):
		p.Hint = `a number with a point is written decimal("1.5")`
	}
	return p
}

// overlong returns the line of the first policy with more than MaxTokens
// words and signs, or zero. The parser and all that walks the tree recurse, and
// are not asked about what is too deep for them.
func overlong(text []byte) int {
	count, line := 0, 1
	for t := range tokens(text) {
		if count++; count > MaxTokens {
			return line
		}
		if t.text == ";" {
			count, line = 0, t.line+1
		}
	}
	return 0
}

// token is a word, a string or a sign of Cedar's syntax.
type token struct {
	text         string
	offset       int
	line, column int // from 0, relative to the start of the text; in characters
}

// tokens yields the tokens of a text that has been parsed without error.
func tokens(text []byte) func(func(token) bool) {
	return func(yield func(token) bool) {
		line, lineStart := 0, 0
		for i := 0; i < len(text); {
			c, size := utf8.DecodeRune(text[i:])
			start := i
			switch {
			case c == '\n':
				line++
				i++
				lineStart = i
				continue
			case unicode.IsSpace(c):
				i += size
				continue
			case c == '/' && i+1 < len(text) && text[i+1] == '/':
				for i < len(text) && text[i] != '\n' {
					i++
				}
				continue
			case c == '"':
				startLine, startOfLine := line, lineStart
				for i++; i < len(text) && text[i] != '"'; i++ {
					switch text[i] {
					case '\\':
						i++
					case '\n':
						line++
						lineStart = i + 1
					}
				}
				i = min(i+1, len(text))
				if !yield(token{`"`, start, startLine, utf8.RuneCount(text[startOfLine:start])}) {
					return
				}
				continue
			case isWord(c):
				for i < len(text) && isWord(rune(text[i])) {
					i++
				}
			case (c == '&' || c == '|' || c == ':') && i+1 < len(text) && text[i+1] == byte(c):
				i += 2
			default:
				i += size
			}
			if !yield(token{string(text[start:i]), start, line, utf8.RuneCount(text[lineStart:start])}) {
				return
			}
		}
	}
}

func isWord(c rune) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// contextPlaces finds the variable context in the text of a policy that
// starts at a position. The syntax tree carries no positions, but it has
// these variables in the order of the text; "x has a.b" stands in it as
// "x has a && x.a has b".
func contextPlaces(text []byte, at cedar.Position) []place {
	var all []token
	for t := range tokens(text) {
		all = append(all, t)
	}
	word := func(i int) string {
		if i < 0 || i >= len(all) {
			return ""
		}
		return all[i].text
	}
	var places []place
	for i, t := range all {
		if t.text != "context" || slices.Contains([]string{".", "has", "@", "::"}, word(i-1)) || slices.Contains([]string{":", "::"}, word(i+1)) {
			continue
		}
		p := place{at.Line + t.line, t.column + 1}
		if t.line == 0 {
			p.column += at.Column - 1
		}
		end := i + 1
		for word(end) == "." || word(end) == ")" || (word(end-1) == "." && word(end) != "(") {
			end++
		}
		times := 1
		if word(end) == "has" {
			for j := end + 2; word(j) == "."; j += 2 {
				times++
			}
		}
		for range times {
			places = append(places, p)
		}
	}
	return places
}

// check finds what is wrong with a policy whatever the table.
func (s *Schema) check(r *rule) Problems {
	var problems Problems
	problems = append(problems, checkMask(r)...)
	if r.usesRow {
		return problems // its types are the table's: Set.Check
	}
	if err := s.general.Policy("", r.ast); err != nil {
		problems = append(problems, validationProblems(r, err)...)
	}
	for _, c := range r.ast.Conditions {
		if bareContext(c.Body) {
			problems = append(problems, r.problem("context cannot be used as a value", "name one of its attributes: context.now"))
			break
		}
	}
	return problems
}

// bareContext reports whether the variable is used other than by name of an
// attribute.
func bareContext(n ast.IsNode) (found bool) {
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		if _, ok := contextMember(n); ok {
			return false
		}
		found = found || isContext(n)
		return !found
	})
	return found
}

// validationProblems turns the validator's errors into problems.
func validationProblems(r *rule, err error) Problems {
	var problems Problems
	for _, e := range flatten(err) {
		problems = append(problems, r.problem(e.Error(), hintFor(e.Error())))
	}
	return problems
}

func flatten(err error) []error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}
