// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package sharing knows who shares what with whom: organisations, their
// principals and service accounts, the profiles of warehouses, shares with
// their members, recipients, grants, and policy sets with all their versions.
//
// A [Service] has the operations; a [Store] keeps what they work on, in the
// database of the catalog.
//
// Invariants:
//
//   - A change, its audit record and its idempotency record are one transaction
//     of the store.
//   - A recipient finds in a share what its members say and nothing else. A
//     table or view is shared as the object that it is: it keeps its place in
//     the share when it is renamed, and another object that takes its name
//     is not shared. A namespace is shared with whatever is in it.
//   - A grant gives access as long as nothing speaks against it: its time, its
//     conditions, its terms, its recipient. Whether it does is decided with
//     each request, on rows that are as new as the request.
//   - Policy versions are never changed or deleted. A version becomes active as
//     a whole, after everything that can be checked has been.
//   - No secret is stored: hashes of secrets are, and names of places where
//     secrets are.
//
// Who may call which operation is decided by the caller (package admin).
package sharing
