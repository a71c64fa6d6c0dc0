// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package metadata is the table metadata of Apache Iceberg as a lossless
// document: versions 1, 2 and 3 of the table format, every update and every
// requirement of the REST catalog protocol.
//
// A [Document] is one immutable version of a table: the bytes of its JSON and
// a small index over them. A commit ([Document.Apply]) does not decode and
// encode the document. It works out which values change, copies everything
// else as bytes and carries the index over by arithmetic. What we do not
// understand (unknown keys at any level, the order of keys, the spelling of
// numbers, white space) therefore survives every commit, and a commit on a
// table with ten thousand snapshots costs one copy of its bytes.
//
// Invariants:
//
//   - A Document never changes and is safe for concurrent use.
//   - Everything that Parse accepts has unique keys where we interpret them
//     and ids that resolve; everything that Apply returns would pass Parse.
//   - An update that changes nothing yields the same Document, not a new
//     version.
//   - Objects that a client adds are kept as the client wrote them; only the
//     ids that the table assigns are set.
//
// The semantics are those of the Iceberg table specification. Where it leaves
// room we do what Java's TableMetadata.Builder does, because most engines
// were tested against it; testdata/choices.json lists each deviation with its
// reason.
//
// The package does no I/O, reads no clock and never looks into manifests.
package metadata
