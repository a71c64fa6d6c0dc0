// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package suite checks an Apache Iceberg REST catalog from the outside: it
// sends requests and compares the answers with the OpenAPI document of the
// protocol and with what released clients depend on.
//
// Invariants:
//
//   - Every case names its source (a section of the specification, the code of
//     a released client, or a public issue) and its severity: must where the
//     specification or a released client needs the behaviour, should where it
//     recommends it or operators need it, may where it is one good choice of
//     several.
//   - A case whose need (an endpoint, a feature) the server does not offer is
//     n/a with that reason. It is never counted as passed.
//   - A case works in a namespace of its own with a random name and removes
//     what it made, also when it fails.
//   - Nothing but HTTP to the one target is used: no object storage, no
//     database, no client library. Snapshots point to manifest lists that do
//     not exist, inside the table's location.
//   - Texts of errors are compared only where a released client depends on
//     them; a check that a message names the bad field is never a must.
//
// The suite never touches namespaces that it did not make, never follows
// redirects, and never prints the token.
package suite
