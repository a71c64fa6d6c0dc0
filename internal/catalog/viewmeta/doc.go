// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package viewmeta is the view metadata of Apache Iceberg (format version 1)
// as a lossless document.
//
// View metadata is small, so a commit decodes what it must understand and
// keeps everything else as JSON. Invariants:
//
//   - What we do not know survives every commit at every level, in its order:
//     top level, versions, representations, schemas, log entries. Members
//     that a commit does not change keep their bytes.
//   - Everything that Parse accepts has unique keys, ids that resolve and one
//     query per dialect and version; everything that New and Apply return
//     would pass Parse.
//   - A commit that changes nothing yields the bytes it was given.
//
// The semantics are those of the Iceberg view specification and, where it
// leaves room, of Java's ViewMetadata.Builder, which engines were tested
// against. We differ from Java on purpose in these places:
//
//   - "Last added" (-1) also means a schema or version that the commit added
//     but the view had already: a client that repeats a commit after a lost
//     answer finds the view as it wants it, where Java refuses.
//   - Setting a property to the value that it has is no change.
//   - Versions stay in the order in which they were added when old ones
//     expire; Java moves the current one to the front.
//   - A version without any SQL, and blank SQL or dialects, are refused: no
//     engine could read the view.
//   - A trailing slash of a location is dropped, as for tables.
//
// The package does no I/O and reads no clock.
package viewmeta
