// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package identity turns what a request carries into a [Principal]: a bearer
// token into who sent it, and an account's client secret into a token.
//
// Invariants:
//
//   - A token is believed only when this catalog signed it (Ed25519, one fixed
//     algorithm, key chosen by an exact key id) for itself (issuer and
//     audience), it has not expired, and its account still exists.
//   - What an account may do is read from the account when the token is
//     checked, never from the token.
//   - A wrong secret of an existing client and any secret of an unknown one
//     cost the same work and get the same answer.
//   - Checking secrets takes bounded memory however many ask at once.
//
// It opens no connection, so no token can make it fetch anything. It never
// logs or returns a token or a secret.
package identity
