// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"slices"
	"strings"
)

// Kind tells how a principal proved who it is.
type Kind uint8

// The kinds of principal.
const (
	KindAnonymous   Kind = iota
	KindService          // a built-in service account
	KindToken            // a token of an external issuer
	KindWorkload         // a Kubernetes service account
	KindCertificate      // a client certificate
)

// String is the word that logs and audit records use.
func (k Kind) String() string {
	switch k {
	case KindService:
		return "service"
	case KindToken:
		return "token"
	case KindWorkload:
		return "workload"
	case KindCertificate:
		return "certificate"
	}
	return "anonymous"
}

// Access is what a principal may do in a warehouse. Higher includes lower.
type Access uint8

// The levels of access.
const (
	AccessNone Access = iota // the warehouse does not exist for the principal
	AccessRead
	AccessWrite
)

// String is the word that the configuration uses.
func (a Access) String() string {
	switch a {
	case AccessRead:
		return "read"
	case AccessWrite:
		return "write"
	}
	return "none"
}

// AnyWarehouse in a [Grant] stands for every warehouse.
const AnyWarehouse = "*"

// Grant gives access to one warehouse or to all.
type Grant struct {
	Warehouse string // a name, or AnyWarehouse
	Access    Access
}

// Principal is who calls. The zero Principal is nobody and may do nothing.
// Principals share their slices; nobody changes them.
type Principal struct {
	// ID is stable over tokens and restarts and names the principal in
	// records: "account:" and the client id, or the issuer's name, a colon and
	// the subject. No two principals of any issuers have the same.
	ID      string
	Issuer  string // name of the issuer; "" for a built-in account
	Subject string // client id, or the subject as the issuer knows it
	Kind    Kind
	// Organisation is whose principal it is; "" when nothing says so.
	Organisation string
	// Groups are the ids of the principal's groups: the issuer's name, a colon
	// and the name that the issuer knows.
	Groups []string
	// Attributes are what the issuer's mapping took from the token. A claim
	// that is missing is no attribute.
	Attributes map[string]AttributeValue
	// Actor is the ID of who acts on the principal's behalf; "" when the
	// principal calls by itself.
	Actor  string
	Grants []Grant
	// actorGrants bound Grants when there is an actor.
	actorGrants []Grant
	// signOnly is set when the token's scope is for the signer alone.
	signOnly bool
}

// Access returns what p may do in a warehouse: the most that any grant gives,
// and, with an actor, no more than the actor has itself. A token for the
// signer alone gives no access to the catalog.
func (p Principal) Access(warehouse string) Access {
	if p.signOnly {
		return AccessNone
	}
	a := accessOf(p.Grants, warehouse)
	if p.Actor != "" {
		a = min(a, accessOf(p.actorGrants, warehouse))
	}
	return a
}

// SignOnly reports whether the principal's token is for the signer alone, and
// good for nothing else.
func (p Principal) SignOnly() bool { return p.signOnly }

func accessOf(grants []Grant, warehouse string) Access {
	a := AccessNone
	for _, g := range grants {
		if g.Warehouse == warehouse || g.Warehouse == AnyWarehouse {
			a = max(a, g.Access)
		}
	}
	return a
}

// Account is a built-in service account.
type Account struct {
	ClientID     string
	Organisation string
	// Secrets are at most two argon2id hashes in PHC form, so that a secret
	// can be replaced while the old one still works.
	Secrets []Hash
	Grants  []Grant
	// ActFor names on whose behalf the account may exchange their tokens: the
	// client id of another account, "*" for every account, the id of an
	// issuer's principal ("corp:alice"), or "corp:*" for all of an issuer.
	ActFor []string
}

// principalID names a built-in account in records.
func principalID(clientID string) string { return "account:" + clientID }

func (a *Account) mayActFor(subject string) bool {
	if a == nil { // it has been deleted meanwhile
		return false
	}
	if slices.Contains(a.ActFor, subject) {
		return true
	}
	issuer, _, external := strings.Cut(subject, ":")
	if external {
		return slices.Contains(a.ActFor, issuer+":*")
	}
	return slices.Contains(a.ActFor, "*")
}
