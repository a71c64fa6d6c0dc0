// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package objstore is object access for one warehouse, and the grammar of
// storage locations.
//
// Invariants:
//
//   - A [Bucket] is built from a warehouse's [Profile] alone: never from a
//     table's properties, and never from the process's ambient identity.
//   - It refuses every location outside its profile's roots.
//   - What WriteNew has acknowledged is durable.
//   - Local files are opened below the root by the operating system's rules
//     (os.Root), so neither ".." nor a symbolic link leads out.
//
// It never retries a refusal, never prints a credential, and knows nothing of
// Iceberg.
package objstore
