// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"errors"
	"fmt"
	"strings"
)

// scope is what a token may be used for. Higher includes lower.
type scope uint8

const (
	scopeNone    scope = iota
	scopeSign          // the remote signer alone, as Java's signer client asks
	scopeCatalog       // everything that the account may do
)

// rolePrefix begins the scopes of clients that choose a role. There are no
// roles here: each stands for all that the account may do.
const rolePrefix = "PRINCIPAL_ROLE:"

const maxScopeBytes = 1024

// parseScope reads a space-separated list (RFC 6749 section 3.3) of the
// scopes that clients of the protocol ask for. None given is scopeNone.
func parseScope(s string) (scope, error) {
	if len(s) > maxScopeBytes {
		return scopeNone, errors.New("the scope is too long")
	}
	result := scopeNone
	for token := range strings.SplitSeq(s, " ") {
		switch {
		case token == "":
		case token == "sign":
			result = max(result, scopeSign)
		case token == "catalog", strings.HasPrefix(token, rolePrefix) && isScopeToken(token[len(rolePrefix):]):
			result = scopeCatalog
		default:
			return scopeNone, fmt.Errorf("the scope is not known; ask for catalog, sign or %sALL", rolePrefix)
		}
	}
	return result, nil
}

// isScopeToken reports whether s is a scope-token of RFC 6749.
func isScopeToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < '!' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return s != ""
}
