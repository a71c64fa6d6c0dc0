// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ClaimMapping says which claims make a principal. A claim is named as it
// stands in the token or, with a slash in front, by a JSON pointer (RFC 6901)
// into it: "/realm_access/roles".
type ClaimMapping struct {
	Subject      string // "sub" when empty
	Organisation OrganisationMapping
	Groups       string // a list of strings, or one; none when empty
	Attributes   []AttributeMapping
}

// OrganisationMapping is either Fixed, or what Claim holds when that is among
// Allowed: otherwise an issuer could speak for another's organisation.
type OrganisationMapping struct {
	Fixed   string
	Claim   string
	Allowed []string
}

// AttributeMapping takes an attribute from a claim.
type AttributeMapping struct {
	Name  string
	Claim string // Name when empty
	Type  AttributeType
	// Required refuses tokens without the claim.
	Required bool
}

// Bounds on what a token may say of its principal.
const (
	maxNameBytes  = 512 // of a subject, organisation or group
	maxGroups     = 1024
	maxSetEntries = 256
	maxTextBytes  = 2048 // of a string attribute
)

// check reports what is wrong; field begins with a dot or bracket.
func (m *ClaimMapping) check() (field string, err error) {
	o := m.Organisation
	switch {
	case o.Fixed == "" && o.Claim == "":
		return ".organisation", errors.New("say which organisation the principals belong to: fixed, or claim with allowed")
	case o.Fixed != "" && (o.Claim != "" || len(o.Allowed) > 0):
		return ".organisation", errors.New("give either fixed, or claim with allowed")
	case o.Claim != "" && len(o.Allowed) == 0:
		return ".organisation.allowed", errors.New("is required with claim: the organisations that this issuer may speak for")
	}
	for n, name := range append(slices.Clone(o.Allowed), o.Fixed) {
		if err := checkName(name); err != nil && (n < len(o.Allowed) || name != "") {
			return ".organisation", fmt.Errorf("organisation: %w", err)
		}
	}
	for _, c := range []struct{ field, claim string }{{".subject", m.Subject}, {".groups", m.Groups}, {".organisation.claim", o.Claim}} {
		if err := checkClaim(c.claim); err != nil {
			return c.field, err
		}
	}
	if len(m.Attributes) > 64 {
		return ".attributes", errors.New("there are more than 64")
	}
	seen := map[string]bool{}
	for n, a := range m.Attributes {
		field := fmt.Sprintf(".attributes[%d]", n)
		if err := CheckAttribute(a.Name, a.Type); err != nil {
			return field, err
		}
		if err := checkClaim(a.Claim); err != nil {
			return field + ".claim", err
		}
		if seen[a.Name] {
			return field + ".name", fmt.Errorf("attribute %q is given twice", a.Name)
		}
		seen[a.Name] = true
	}
	return "", nil
}

// checkClaim checks a claim's name, which may be empty.
func checkClaim(name string) error {
	for _, part := range strings.Split(name, "~")[1:] {
		if strings.HasPrefix(name, "/") && !strings.HasPrefix(part, "0") && !strings.HasPrefix(part, "1") {
			return fmt.Errorf("%q is no JSON pointer: after ~ comes 0 or 1 (RFC 6901)", clip(name))
		}
	}
	return nil
}

// checkName checks what names a principal, group or organisation: it comes
// into logs, records and policies, where it must look like what it is.
func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxNameBytes:
		return fmt.Errorf("is longer than %d bytes", maxNameBytes)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("holds characters that do not print")
	case strings.TrimSpace(s) != s:
		return errors.New("begins or ends with a space")
	}
	return nil
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// claim finds a claim. A null is as good as none.
func claim(claims map[string]any, name string) (any, bool) {
	if !strings.HasPrefix(name, "/") {
		v, ok := claims[name]
		return v, ok && v != nil
	}
	var at any = claims
	for part := range strings.SplitSeq(name[1:], "/") {
		object, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = object[unescape.Replace(part)]; !ok {
			return nil, false
		}
	}
	return at, at != nil
}

// identity maps verified claims. Its errors name claims, never their values.
func (m *ClaimMapping) identity(claims map[string]any) (identityOf, error) {
	var of identityOf
	name := m.Subject
	if name == "" {
		name = "sub"
	}
	var err error
	if of.subject, err = nameIn(claims, name); err != nil {
		return of, err
	}
	if name == "email" {
		// Whoever may write an address into a profile is not its owner yet.
		if verified, _ := claims["email_verified"].(bool); !verified {
			return of, errors.New("the claim email is the subject, and email_verified is not true")
		}
	}
	if of.organisation = m.Organisation.Fixed; of.organisation == "" {
		if of.organisation, err = nameIn(claims, m.Organisation.Claim); err != nil {
			return of, err
		}
	}
	if !m.speaksFor(of.organisation) {
		return of, errors.New("the token's organisation is not among those that the issuer may speak for")
	}
	if of.groups, err = m.groups(claims); err != nil {
		return of, err
	}
	for _, a := range m.Attributes {
		from := a.Claim
		if from == "" {
			from = a.Name
		}
		v, ok := claim(claims, from)
		if !ok {
			if a.Required {
				return of, fmt.Errorf("the claim %s is missing", from)
			}
			continue
		}
		value, err := attributeOf(v, a.Type)
		if err != nil {
			// Left out, it could be one that a policy forbids something for.
			return of, fmt.Errorf("the claim %s %w", from, err)
		}
		if of.attributes == nil {
			of.attributes = make(map[string]AttributeValue, len(m.Attributes))
		}
		of.attributes[a.Name] = value
	}
	return of, nil
}

// speaksFor reports whether principals may be of an organisation.
func (m *ClaimMapping) speaksFor(organisation string) bool {
	if m.Organisation.Fixed != "" {
		return organisation == m.Organisation.Fixed
	}
	return slices.Contains(m.Organisation.Allowed, organisation)
}

func nameIn(claims map[string]any, name string) (string, error) {
	v, ok := claim(claims, name)
	if !ok {
		return "", fmt.Errorf("the claim %s is missing", name)
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("the claim %s is not a string", name)
	}
	if err := checkName(s); err != nil {
		return "", fmt.Errorf("the claim %s %w", name, err)
	}
	return s, nil
}

func (m *ClaimMapping) groups(claims map[string]any) ([]string, error) {
	if m.Groups == "" {
		return nil, nil
	}
	// OpenID Connect, section 5.6.2: the value is elsewhere, as Entra ID says
	// of a principal in many groups. To go on without would lose a group for
	// which something is forbidden.
	if names, ok := claims["_claim_names"].(map[string]any); ok && names[m.Groups] != nil {
		return nil, fmt.Errorf("the claim %s is distributed: it does not fit into the token", m.Groups)
	}
	v, ok := claim(claims, m.Groups)
	if !ok {
		return nil, nil
	}
	list, ok := stringsOf(v)
	if !ok {
		return nil, fmt.Errorf("the claim %s is neither a string nor a list of strings", m.Groups)
	}
	if len(list) > maxGroups {
		return nil, fmt.Errorf("the claim %s has more than %d entries", m.Groups, maxGroups)
	}
	for _, g := range list {
		if err := checkName(g); err != nil {
			return nil, fmt.Errorf("an entry of the claim %s %w", m.Groups, err)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// stringsOf reads a list of strings, or one string.
func stringsOf(v any) ([]string, bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, true
	case []string:
		return slices.Clone(v), true
	case []any:
		list := make([]string, 0, len(v))
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, false
			}
			list = append(list, s)
		}
		return list, true
	}
	return nil, false
}

// attributeOf reads a value of a type. Nothing is converted: a number in
// quotes is no number.
func attributeOf(v any, t AttributeType) (AttributeValue, error) {
	value := AttributeValue{Type: t}
	switch t {
	case TypeString:
		s, ok := v.(string)
		if !ok {
			return value, errors.New("is not a string")
		}
		if len(s) > maxTextBytes || !utf8.ValidString(s) {
			return value, fmt.Errorf("is longer than %d bytes, or not UTF-8", maxTextBytes)
		}
		value.String = s
	case TypeLong:
		n, ok := v.(json.Number)
		if !ok {
			return value, errors.New("is not a number")
		}
		long, err := strconv.ParseInt(n.String(), 10, 64)
		if err != nil {
			return value, errors.New("is not a whole number of 64 bits")
		}
		value.Long = long
	case TypeBoolean:
		b, ok := v.(bool)
		if !ok {
			return value, errors.New("is not true or false")
		}
		value.Boolean = b
	case TypeSet:
		list, ok := stringsOf(v)
		if !ok {
			return value, errors.New("is neither a string nor a list of strings")
		}
		if len(list) > maxSetEntries {
			return value, fmt.Errorf("has more than %d entries", maxSetEntries)
		}
		for _, s := range list {
			if len(s) > maxTextBytes || !utf8.ValidString(s) {
				return value, fmt.Errorf("has an entry longer than %d bytes, or not UTF-8", maxTextBytes)
			}
		}
		slices.Sort(list)
		value.Set = slices.Compact(list)
	}
	return value, nil
}
