// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"

	"github.com/sluice-data/sluice/internal/catalog"
)

// maxDepth bounds how deeply a request's JSON may nest.
const maxDepth = 500

// maxOuter bounds the entries of the lists and maps in a request, and maxValues
// what it holds in all: a decoded value can take a hundred times the bytes that
// it has in the text. A commit of 50,000 updates stays below.
const (
	maxOuter  = 100_000
	maxValues = 1_000_000
)

// freeBytes is how much of a body is held without asking; the rest counts
// against what all requests together may hold, bodiesAtOnce of the longest.
const (
	freeBytes    = 1 << 20
	bodiesAtOnce = 4
)

// believedLength bounds what is allocated on the strength of Content-Length
// alone.
const believedLength = 256 << 10

// readBody reads the whole body within the limit, inflated where the client
// sent it compressed.
func (c *call) readBody() error {
	if c.r.Method == http.MethodGet || c.r.Method == http.MethodHead || c.r.Body == nil || c.r.Body == http.NoBody {
		return nil
	}
	limit := min(c.h.cfg.MaxBodyBytes, c.route.maxBody())
	if c.r.ContentLength > limit {
		return tooLarge(limit)
	}
	var body io.Reader = http.MaxBytesReader(c.w, c.r.Body, limit)
	switch encoding := strings.ToLower(strings.TrimSpace(c.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		zr, err := gzip.NewReader(body)
		if err != nil {
			return bodyError(err, limit, "the body is not valid gzip data")
		}
		body = zr
	default:
		return catalog.Errorf(catalog.BadRequest, "Content-Encoding: %q is not supported; use gzip or none", clip(encoding))
	}
	var buf bytes.Buffer
	if c.r.ContentLength > 0 {
		// No more than this is believed before it has arrived.
		buf.Grow(int(min(c.r.ContentLength, believedLength)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(&accountant{c, io.LimitReader(body, limit+1), 0})
	if err != nil {
		return bodyError(err, limit, "the body could not be read to its end")
	}
	if n > limit {
		return tooLarge(limit)
	}
	c.body = buf.Bytes()
	return nil
}

// accountant counts what is read of a body against what all may hold.
type accountant struct {
	c    *call
	from io.Reader
	read int64
}

var errCrowded = errors.New("too many large requests at once")

// Read implements io.Reader.
func (a *accountant) Read(p []byte) (int, error) {
	n, err := a.from.Read(p)
	a.read += int64(n)
	if due := a.read - freeBytes - a.c.held; due > 0 {
		if !a.c.h.bodies.TryAcquire(due) {
			return 0, errCrowded
		}
		a.c.held += due
	}
	return n, err
}

// release gives back what the body held.
func (c *call) release() {
	if c.held > 0 {
		c.h.bodies.Release(c.held)
	}
}

func bodyError(err error, limit int64, what string) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return tooLarge(limit)
	}
	if errors.Is(err, errCrowded) {
		return &catalog.Error{Reason: catalog.Unavailable, Message: "Too many large requests at once; nothing was changed", RetryAfter: 2 * time.Second}
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return &statusError{status: http.StatusRequestTimeout, kind: "RequestTimeoutException", message: "The request's body did not arrive in time"}
	}
	return &catalog.Error{Reason: catalog.BadRequest, Message: "Malformed request: " + what, Cause: err}
}

func tooLarge(limit int64) error {
	return catalog.Errorf(catalog.TooLarge, "The request's body is larger than %d bytes", limit)
}

// decode decodes the body into v. Keys are case-sensitive and occur once;
// unknown ones are ignored, since the protocol grows. Every error names the
// field.
func (c *call) decode(v any) error {
	if ct := c.r.Header.Get("Content-Type"); ct != "" {
		if t, _, err := mime.ParseMediaType(ct); err != nil || t != "application/json" && !strings.HasSuffix(t, "+json") {
			return catalog.Errorf(catalog.BadRequest, "Content-Type: %q is not supported; send application/json", clip(ct))
		}
	}
	switch body := bytes.TrimSpace(c.body); {
	case len(body) == 0:
		return catalog.Errorf(catalog.BadRequest, "Malformed request: the body is empty; a JSON object is required")
	case string(body) == "null": // which decodes into anything
		return catalog.Errorf(catalog.BadRequest, "body: expected an object, found null")
	}
	switch s := shapeOf(c.body); {
	case s.depth > maxDepth:
		return catalog.Errorf(catalog.BadRequest, "Malformed request: nested deeper than %d levels", maxDepth)
	case s.outer > maxOuter || s.values > maxValues:
		return catalog.Errorf(catalog.BadRequest, "Malformed request: more than %d entries in a list, or %d values in all", maxOuter, maxValues)
	}
	return decodeJSON(c.body, v)
}

// shape is what a JSON text is made of, told without decoding it.
type shape struct {
	depth int // how deeply it nests
	// outer counts the separators in the text's outermost object and in what
	// lies directly in it, values those of the whole text. Each stands for a
	// value beside the first of its object or array.
	outer, values int
}

func shapeOf(raw []byte) shape {
	var s shape
	now := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			now++
			s.depth = max(s.depth, now)
		case '}', ']':
			now--
		case ',':
			s.values++
			if now <= 2 {
				s.outer++
			}
		}
	}
	return s
}

func decodeJSON(raw []byte, v any) error {
	err := json.Unmarshal(raw, v)
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntactic):
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return catalog.Errorf(catalog.BadRequest, "%s: the key occurs twice", fieldPath(syntactic.JSONPointer))
		}
		where := ""
		if p := fieldPath(syntactic.JSONPointer); p != "" {
			where = " in " + p
		}
		return &catalog.Error{Reason: catalog.BadRequest, Message: fmt.Sprintf("Malformed request: invalid JSON at byte %d%s", syntactic.ByteOffset, where), Cause: err}
	case errors.As(err, &semantic):
		field := fieldPath(semantic.JSONPointer)
		if field == "" {
			field = "body"
		}
		return &catalog.Error{Reason: catalog.BadRequest, Message: fmt.Sprintf("%s: expected %s, found %s", field, typeName(semantic.GoType), kindName(semantic.JSONKind)), Cause: err}
	}
	return &catalog.Error{Reason: catalog.BadRequest, Message: "Malformed request", Cause: err}
}

// fieldPath writes a JSON pointer as the protocol's documents name fields:
// table-changes[0].identifier.name.
func fieldPath(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if token != "" && strings.Trim(token, "0123456789") == "" && b.Len() > 0 {
			b.WriteString("[" + token + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return clip(b.String())
}

func typeName(t reflect.Type) string {
	if t == nil {
		return "another value"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "an integer"
	case reflect.Slice:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "another value"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "something else"
}

// identifier is TableIdentifier of the protocol.
type identifier struct {
	Namespace *[]*string `json:"namespace"`
	Name      *string    `json:"name"`
}

// ident checks an identifier of a body; null is no value of its parts.
func (i *identifier) ident(field string) (catalog.Ident, error) {
	if i == nil {
		return catalog.Ident{}, missing(field)
	}
	ns, err := levels(i.Namespace, field+".namespace")
	if err != nil {
		return catalog.Ident{}, err
	}
	if i.Name == nil {
		return catalog.Ident{}, missing(field + ".name")
	}
	if err := catalog.CheckName(*i.Name); err != nil {
		return catalog.Ident{}, catalog.Errorf(catalog.BadRequest, "%s.name: %s", field, err.Error())
	}
	return catalog.Ident{Namespace: ns, Name: *i.Name}, nil
}

// levels checks a namespace of a body.
func levels(raw *[]*string, field string) (catalog.Namespace, error) {
	if raw == nil {
		return nil, missing(field)
	}
	if len(*raw) == 0 {
		return nil, catalog.Errorf(catalog.BadRequest, "%s: at least one level is required", field)
	}
	if len(*raw) > maxLevels {
		return nil, catalog.Errorf(catalog.BadRequest, "%s: %d levels; at most %d are allowed", field, len(*raw), maxLevels)
	}
	var ns catalog.Namespace
	for i, level := range *raw {
		if level == nil {
			return nil, catalog.Errorf(catalog.BadRequest, "%s[%d]: expected a string, found null", field, i)
		}
		if err := catalog.CheckName(*level); err != nil {
			return nil, catalog.Errorf(catalog.BadRequest, "%s[%d]: %s", field, i, err.Error())
		}
		ns = append(ns, *level)
	}
	return ns, nil
}

// stringMap checks that no value of a property map is null.
func stringMap(raw map[string]*string, field string) (map[string]string, error) {
	out := make(map[string]string, len(raw))
	for k, v := range raw {
		if v == nil {
			return nil, catalog.Errorf(catalog.BadRequest, "%s.%s: expected a string, found null", field, clip(k))
		}
		out[k] = *v
	}
	return out, nil
}

func missing(field string) error {
	return catalog.Errorf(catalog.BadRequest, "%s: required", field)
}
