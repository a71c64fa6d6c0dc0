// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package catalog holds the catalog's own rules: warehouses, namespaces,
// tables, views, functions, commits and multi-table transactions, over a
// [Store] for what must be transactional and an object store for metadata
// files.
//
// Invariants:
//
//   - A metadata file is durable before a pointer to it is; the pointer, the
//     idempotency record, the outbox event and the audit row of one change
//     are one transaction of the store.
//   - Requirements of a commit are checked against the very version that the
//     commit replaces, as often as the commit is retried.
//   - Tables and views share one name space per namespace; functions have one
//     of their own.
//   - The locations of two objects never overlap, in whatever order they are
//     created, moved or registered.
//
// The package speaks no HTTP, decides no policy and holds no state that
// another replica would miss: caches are keyed by immutable things only.
package catalog
