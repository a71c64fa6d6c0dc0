// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"fmt"
	"regexp"
)

// AttributeType is the declared type of a principal's attribute.
type AttributeType string

// The types of attributes.
const (
	TypeString  AttributeType = "string"
	TypeLong    AttributeType = "long" // a whole number of 64 bits
	TypeBoolean AttributeType = "boolean"
	TypeSet     AttributeType = "set" // a set of strings
)

// AttributeValue is the value of one attribute. The field of its type holds
// it; the others are zero.
type AttributeValue struct {
	Type    AttributeType `json:"type"`
	String  string        `json:"string,omitempty"`
	Long    int64         `json:"long,omitempty"`
	Boolean bool          `json:"boolean,omitempty"`
	Set     []string      `json:"set,omitempty"` // sorted, no value twice
}

// attributeForm is an identifier of the policy language.
var attributeForm = regexp.MustCompile(`^[a-z][A-Za-z0-9_]{0,63}$`)

// CheckAttribute reports what is wrong with an attribute's name or type.
func CheckAttribute(name string, t AttributeType) error {
	if !attributeForm.MatchString(name) {
		return fmt.Errorf("attribute %q must begin with a small letter and hold at most 64 letters, digits and _", clip(name))
	}
	if name == "organisation" {
		return fmt.Errorf("attribute %q is there already, from the organisation's mapping", name)
	}
	switch t {
	case TypeString, TypeLong, TypeBoolean, TypeSet:
		return nil
	}
	return fmt.Errorf("attribute %q: type %q is not one of string, long, boolean, set", name, clip(string(t)))
}
