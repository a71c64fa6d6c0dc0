// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// span is a half-open range of byte offsets. Documents are limited to less
// than 4 GiB so that an index stays small.
type span struct{ start, end uint32 }

func (s span) of(b []byte) []byte { return b[s.start:s.end] }

// cursor reads JSON once, left to right, without building values. The first
// fault sticks: from then on every method returns a zero value and every loop
// ends, so that callers check once.
//
//	for c.object(); c.member(); {
//		switch string(c.key) {
//		case "snapshot-id":
//			c.once(&seen, 0)
//			id = c.int64()
//		default:
//			c.skip()
//		}
//	}
type cursor struct {
	b        []byte
	i        int
	key      []byte // of the member just begun, unescaped
	keyAt    int
	first    bool // no element of the innermost container was read yet
	depth    int
	maxDepth int
	fault    *fault
}

// fault is a problem at an offset; pathAt turns the offset into a JSON path.
type fault struct {
	at      int
	problem string
}

func newCursor(b []byte, maxDepth int) *cursor { return &cursor{b: b, maxDepth: maxDepth} }

func (c *cursor) fail(at int, format string, args ...any) {
	if c.fault == nil {
		c.fault = &fault{at, fmt.Sprintf(format, args...)}
	}
	c.i = len(c.b)
}

func (c *cursor) ok() bool { return c.fault == nil }

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\n', '\r', '\t':
			c.i++
		default:
			return
		}
	}
}

// peek returns the first byte of the next value, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.i >= len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// unexpected fails with what stands where something else was needed.
func (c *cursor) unexpected(want string) {
	if c.fault != nil {
		return
	}
	if c.i >= len(c.b) {
		c.fail(c.i, "the JSON ends where %s is expected", want)
		return
	}
	c.fail(c.i, "expected %s, found %s", want, kindName(c.b[c.i]))
}

func kindName(b byte) string {
	switch {
	case b == '{':
		return "an object"
	case b == '[':
		return "an array"
	case b == '"':
		return "a string"
	case b == 't' || b == 'f':
		return "a boolean"
	case b == 'n':
		return "null"
	case b == '-' || b >= '0' && b <= '9':
		return "a number"
	}
	return strconv.QuoteRune(rune(b))
}

func (c *cursor) open(delim byte, what string) {
	if c.peek() != delim {
		c.unexpected(what)
		return
	}
	if c.depth++; c.depth > c.maxDepth {
		c.fail(c.i, "JSON is nested deeper than %d levels", c.maxDepth)
		return
	}
	c.i++
	c.first = true
}

// object enters an object; read its members with member.
func (c *cursor) object() { c.open('{', "an object") }

// array enters an array; read its elements while element returns true.
func (c *cursor) array() { c.open('[', "an array") }

// next moves to the next entry of the innermost container, or leaves it.
func (c *cursor) next(closing byte) bool {
	if c.fault != nil {
		return false
	}
	b := c.peek()
	if b == closing {
		c.i++
		c.depth--
		c.first = false
		return false
	}
	if !c.first {
		if b != ',' {
			c.unexpected(fmt.Sprintf("',' or '%c'", closing))
			return false
		}
		c.i++
		c.space()
	}
	c.first = false
	return true
}

func (c *cursor) element() bool { return c.next(']') }

// member reads the key of the next member of the current object.
func (c *cursor) member() bool {
	if !c.next('}') {
		return false
	}
	if c.peek() != '"' {
		c.unexpected("a key")
		return false
	}
	c.keyAt = c.i
	raw, escaped := c.stringBody()
	if !c.ok() {
		return false
	}
	c.key = raw
	if escaped {
		c.key = []byte(c.unescape(c.keyAt, raw))
	}
	if c.peek() != ':' {
		c.unexpected("':'")
		return false
	}
	c.i++
	c.space()
	return c.ok()
}

// once refuses a key that was seen before in the same object; bit names the
// key in the object's set.
func (c *cursor) once(seen *uint64, bit uint) {
	if *seen&(1<<bit) != 0 {
		c.fail(c.keyAt, "key %q appears twice", c.key)
	}
	*seen |= 1 << bit
}

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// stringBody reads a string and returns what is between the quotes.
func (c *cursor) stringBody() (body []byte, escaped bool) {
	b := c.b
	i := c.i + 1
	start := i
	for {
		// Eight bytes at a time until one is a quote, a backslash or a control
		// character.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			quote, slash := w^(lows*'"'), w^(lows*'\\')
			hit := ((quote - lows) & ^quote) | ((slash - lows) & ^slash) | ((w - lows*0x20) & ^w)
			if hit &= highs; hit != 0 {
				i += bits.TrailingZeros64(hit) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			c.fail(c.i, "string does not end")
			return nil, false
		}
		switch ch := b[i]; {
		case ch == '"':
			c.i = i + 1
			return b[start:i], escaped
		case ch == '\\':
			escaped = true
			n := escapeLen(b[i:])
			if n == 0 {
				c.fail(i, "string has an escape that JSON does not know")
				return nil, false
			}
			i += n
		case ch < 0x20:
			c.fail(i, "string holds an unescaped control character")
			return nil, false
		default:
			i++
		}
	}
}

// escapeLen returns the length of the escape sequence at the start of b, 0
// when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 {
			if _, ok := hex4(b[2:6]); ok {
				return 6
			}
		}
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	n, err := strconv.ParseUint(string(b), 16, 16)
	return rune(n), err == nil
}

// unescape decodes a string body whose escapes were checked. A lone
// surrogate is refused: readers disagree about what it means.
func (c *cursor) unescape(at int, body []byte) string {
	var out strings.Builder
	out.Grow(len(body))
	for i := 0; i < len(body); {
		if body[i] != '\\' {
			j := bytes.IndexByte(body[i:], '\\')
			if j < 0 {
				j = len(body) - i
			}
			out.Write(body[i : i+j])
			i += j
			continue
		}
		switch ch := body[i+1]; ch {
		case 'u':
			r, _ := hex4(body[i+2 : i+6])
			i += 6
			if utf16.IsSurrogate(r) {
				var low rune
				if i+6 <= len(body) && body[i] == '\\' && body[i+1] == 'u' {
					low, _ = hex4(body[i+2 : i+6])
					i += 6
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					c.fail(at, "string holds half of a surrogate pair")
					return ""
				}
			}
			out.WriteRune(r)
			continue
		case 'b':
			out.WriteByte('\b')
		case 'f':
			out.WriteByte('\f')
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 't':
			out.WriteByte('\t')
		default:
			out.WriteByte(ch)
		}
		i += 2
	}
	return out.String()
}

// str reads a string value.
func (c *cursor) str() string {
	if c.peek() != '"' {
		c.unexpected("a string")
		return ""
	}
	at := c.i
	body, escaped := c.stringBody()
	if escaped {
		return c.unescape(at, body)
	}
	return string(body)
}

// nonEmpty reads a string value that must not be empty.
func (c *cursor) nonEmpty() string {
	c.space()
	at := c.i
	s := c.str()
	if s == "" {
		c.fail(at, "must not be empty")
	}
	return s
}

// int64 reads a whole number. 1.0 and 1e3 are refused, as Java does.
func (c *cursor) int64() int64 {
	if b := c.peek(); b != '-' && (b < '0' || b > '9') {
		c.unexpected("a whole number")
		return 0
	}
	at := c.i
	i, neg := c.i, false
	if c.b[i] == '-' {
		neg = true
		i++
	}
	digits := i
	var n uint64
	for i < len(c.b) && c.b[i] >= '0' && c.b[i] <= '9' {
		if i-digits >= 19 {
			c.fail(at, "number does not fit 64 bits")
			return 0
		}
		n = n*10 + uint64(c.b[i]-'0')
		i++
	}
	limit := uint64(math.MaxInt64)
	if neg {
		limit++
	}
	switch {
	case i == digits || c.b[digits] == '0' && i > digits+1:
		c.fail(at, "not a JSON number")
		return 0
	case i < len(c.b) && (c.b[i] == '.' || c.b[i] == 'e' || c.b[i] == 'E'):
		c.fail(at, "expected a whole number, found a fraction or an exponent")
		return 0
	case n > limit:
		c.fail(at, "number does not fit 64 bits")
		return 0
	}
	c.i = i
	if neg {
		return -int64(n) //nolint:gosec // n ≤ 2^63, so the negation is exact
	}
	return int64(n)
}

// int reads a whole number of 32 bits: what the specification calls an int.
func (c *cursor) int() int {
	c.space()
	at := c.i
	n := c.int64()
	if n < math.MinInt32 || n > math.MaxInt32 {
		c.fail(at, "number does not fit 32 bits")
		return 0
	}
	return int(n)
}

// natural reads a whole number that is not negative.
func (c *cursor) natural() int64 {
	c.space()
	at := c.i
	n := c.int64()
	if n < 0 {
		c.fail(at, "must not be negative, is %d", n)
		return 0
	}
	return n
}

func (c *cursor) bool() bool {
	switch c.peek() {
	case 't':
		c.literal("true")
		return c.ok()
	case 'f':
		c.literal("false")
	default:
		c.unexpected("true or false")
	}
	return false
}

// null consumes a null and reports whether there was one.
func (c *cursor) null() bool {
	if c.peek() != 'n' {
		return false
	}
	c.literal("null")
	return c.ok()
}

func (c *cursor) literal(word string) {
	if !bytes.HasPrefix(c.b[c.i:], []byte(word)) {
		c.fail(c.i, "not JSON")
		return
	}
	c.i += len(word)
}

// skip passes one value of any kind and returns where it is.
func (c *cursor) skip() span {
	b := c.peek()
	start := c.i
	switch {
	case b == '{':
		// Keys are not looked at: what we do not interpret may repeat them.
		for c.object(); c.next('}'); {
			if c.peek() != '"' {
				c.unexpected("a key")
				break
			}
			c.stringBody()
			if c.peek() != ':' {
				c.unexpected("':'")
				break
			}
			c.i++
			c.skip()
		}
	case b == '[':
		for c.array(); c.element(); {
			c.skip()
		}
	case b == '"':
		c.stringBody()
	case b == 't':
		c.literal("true")
	case b == 'f':
		c.literal("false")
	case b == 'n':
		c.literal("null")
	case b == '-' || b >= '0' && b <= '9':
		c.number()
	default:
		c.unexpected("a value")
	}
	if !c.ok() {
		return span{}
	}
	return span{uint32(start), uint32(c.i)} //nolint:gosec // inputs are limited to less than 4 GiB
}

// number passes a JSON number of any form.
func (c *cursor) number() {
	b, i, at := c.b, c.i, c.i
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if b[i] == '-' {
		i++
	}
	lead := i
	good := digits() && (b[lead] != '0' || i == lead+1)
	if good && i < len(b) && b[i] == '.' {
		i++
		good = digits()
	}
	if good && i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		good = digits()
	}
	if !good {
		c.fail(at, "not a JSON number")
		return
	}
	c.i = i
}

// end refuses anything but white space after the value.
func (c *cursor) end() {
	if c.peek(); c.ok() && c.i < len(c.b) {
		c.fail(c.i, "the JSON goes on after its end")
	}
}

// at returns the offset of the next value.
func (c *cursor) at() int {
	c.space()
	return c.i
}

// since returns the span from a start to where the cursor is.
func (c *cursor) since(start int) span {
	return span{uint32(start), uint32(c.i)} //nolint:gosec // inputs are limited to less than 4 GiB
}

// pathAt returns the JSON path of the value (or the key) at an offset, by
// reading the JSON again up to it. It is only used to report faults.
func pathAt(b []byte, offset int) string {
	type level struct {
		key   string
		index int
		array bool
	}
	var stack []level
	c := newCursor(b, math.MaxInt)
	c.first = true
	for c.ok() && c.peek() != 0 && c.i <= offset {
		switch ch := c.b[c.i]; ch {
		case '{', '[':
			if c.i == offset {
				offset = -1
				break
			}
			stack = append(stack, level{array: ch == '['})
			c.i++
		case '}', ']':
			if len(stack) > 0 {
				stack = stack[:len(stack)-1]
			}
			c.i++
		case ',':
			if n := len(stack); n > 0 {
				stack[n-1].index++
				stack[n-1].key = ""
			}
			c.i++
		case ':':
			c.i++
		case '"':
			at := c.i
			body, escaped := c.stringBody()
			if !c.ok() || c.i > offset && c.peek() != ':' {
				offset = -1
				break
			}
			if n := len(stack); n > 0 && !stack[n-1].array && stack[n-1].key == "" && c.peek() == ':' {
				stack[n-1].key = string(body)
				if escaped {
					stack[n-1].key = c.unescape(at, body)
				}
			}
			if at == offset {
				offset = -1
			}
		default:
			c.i++
		}
	}
	var out strings.Builder
	for _, l := range stack {
		switch {
		case l.array:
			fmt.Fprintf(&out, "[%d]", l.index)
		case l.key != "":
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(printable(l.key))
		}
	}
	return out.String()
}

// printable shortens and quotes what a message takes from untrusted input.
func printable(s string) string {
	const most = 100
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
