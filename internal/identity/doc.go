// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package identity turns what a request carries into a [Principal]: a token of
// the catalog, a token of an external issuer, or a client certificate. It also
// turns an account's client secret, or somebody else's token, into a token of
// the catalog, and binds recipients to identities by activation links.
//
// Invariants:
//
//   - A token of the catalog is believed only when the catalog signed it
//     (Ed25519, one fixed algorithm, key chosen by an exact key id) for itself
//     (issuer and audience), it has not expired, and its account still exists.
//   - A token of an issuer is believed only when the one configured issuer whose
//     iss it names to the byte vouches for it: by a published key of a configured
//     algorithm, or by its answer about the token. Of a token that is not
//     believed yet nothing decides whom to ask but that iss and the token's
//     prefix, and no address in it is ever asked.
//   - No two principals or groups of different issuers have one id.
//   - What a principal may do is read from the configuration when the token is
//     checked, never from the token. With an actor it is what both may.
//   - An issuer that cannot be asked lets nobody in (503), and keeps nobody of
//     another issuer out.
//   - A wrong secret of an existing client and any secret of an unknown one
//     cost the same work and get the same answer.
//   - Checking secrets takes bounded memory however many ask at once.
//
// It never logs or returns a token or a secret.
package identity
