// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is what a record is about. Its line's type is "audit." and the kind.
type Kind uint8

// The kinds of records. The zero Kind is a decision.
const (
	KindDecision   Kind = iota // a request was let through or refused
	KindChange                 // the catalog was changed
	KindCredential             // a storage credential was vended
	KindGoverned               // a governed file was published or removed
	KindStream                 // rows were streamed
)

var kinds = [...]string{"decision", "change", "credential", "governed", "stream"}

// String is the word in lines.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return "unknown"
}

// Decision is what was decided about a request.
type Decision uint8

// The decisions. A request that ended before one was made, such as one for an
// unknown warehouse by nobody in particular, has none.
const (
	Undecided Decision = iota
	Allow
	Deny
)

var decisions = [...]string{"", "allow", "deny"}

// String is the word in lines.
func (d Decision) String() string {
	if int(d) < len(decisions) {
		return decisions[d]
	}
	return ""
}

// ParseDecision is the inverse of [Decision.String]; Undecided for any other
// word.
func ParseDecision(s string) Decision {
	for i, word := range decisions {
		if s == word {
			return Decision(i)
		}
	}
	return Undecided
}

// Policy names a policy that determined a decision, or with an empty ID a
// policy set that was asked and had none that did.
type Policy struct {
	Set     string `json:"set"`              // owner and name of the policy set
	Version int64  `json:"version"`          // of the set
	ID      string `json:"policy,omitempty"` // of the policy in it
}

// String is "<set>@<version>/<policy>", without the last part where none
// determined.
func (p Policy) String() string {
	s := p.Set + "@" + strconv.FormatInt(p.Version, 10)
	if p.ID != "" {
		s += "/" + p.ID
	}
	return s
}

// Record is one thing that happened: a request that was answered, a change, a
// credential, a file, a stream. Fields that do not apply are empty, and left
// out of its line. None of them ever holds a secret or a value of a table's
// data: they are names, numbers and, in Detail, locations and grant types.
type Record struct {
	Kind      Kind
	Time      time.Time
	RequestID string
	// Principal and Actor are ids; Actor is "" when the principal called by
	// itself, Principal is "" when it is not known.
	Principal, Actor string
	Address          netip.Addr
	Operation        string // operationId of the protocol: "loadTable"
	Warehouse        string // its name; in the store's rows the warehouse is the partition
	Resource         string // dotted identifier
	Status           int    // HTTP status of the answer; 0 for what is no answer
	Decision         Decision
	// Policies determined the decision. The slice is not copied: it must not
	// change after Append.
	Policies []Policy
	// Detail is a JSON object with what the kind adds.
	Detail json.RawMessage
}

// The outcomes, by which records are searched.
const (
	OutcomeOK     = "ok"
	OutcomeDenied = "denied"
	OutcomeFailed = "failed"
)

// Outcome sums decision and status up in one word.
func (r *Record) Outcome() string {
	switch {
	case r.Decision == Deny:
		return OutcomeDenied
	case r.Status >= http.StatusBadRequest:
		return OutcomeFailed
	}
	return OutcomeOK
}

// timeForm is RFC 3339 in UTC with microseconds.
const timeForm = "2006-01-02T15:04:05.000000Z07:00"

// appendRecord appends the members of a record to a line that has begun with
// its type and place in the chain.
func appendRecord(b []byte, r *Record) []byte {
	b = append(b, `,"time":"`...)
	b = r.Time.UTC().AppendFormat(b, timeForm)
	b = append(b, '"')
	b = appendField(b, "request_id", r.RequestID)
	b = appendField(b, "principal", r.Principal)
	b = appendField(b, "actor", r.Actor)
	if r.Address.IsValid() {
		b = append(b, `,"address":"`...)
		b = r.Address.AppendTo(b)
		b = append(b, '"')
	}
	b = appendField(b, "operation", r.Operation)
	b = appendField(b, "warehouse", r.Warehouse)
	b = appendField(b, "resource", r.Resource)
	if r.Status != 0 {
		b = append(b, `,"status":`...)
		b = strconv.AppendInt(b, int64(r.Status), 10)
	}
	b = appendField(b, "decision", r.Decision.String())
	for i, p := range r.Policies {
		if i == 0 {
			b = append(b, `,"policies":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, `{"set":`...)
		b = appendString(b, p.Set)
		b = append(b, `,"version":`...)
		b = strconv.AppendInt(b, p.Version, 10)
		b = appendField(b, "policy", p.ID)
		b = append(b, '}')
	}
	if len(r.Policies) > 0 {
		b = append(b, ']')
	}
	return appendDetail(b, r.Detail)
}

// appendDetail appends an object as it is; anything else, which only a changed
// row can hold, as the text that it is, so that no two details have one form.
func appendDetail(b []byte, detail json.RawMessage) []byte {
	if len(detail) == 0 {
		return b
	}
	b = append(b, `,"detail":`...)
	if detail[0] != '{' || strings.ContainsAny(string(detail), "\n\r") || !json.Valid(detail) {
		return appendString(b, string(detail))
	}
	return append(b, detail...)
}

// appendField appends a member; an empty value is left out.
func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendString(b, value)
}

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string that stays on its line whatever s holds.
// Bytes that are no UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1, r == '\u2028', r == '\u2029', r == '\u0085':
				b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			default:
				b = append(b, s[i:i+size]...)
			}
			i += size
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
		i++
	}
	return append(b, '"')
}
