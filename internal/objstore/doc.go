// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package objstore is object access for one warehouse, and the grammar of
// storage locations.
//
// Invariants:
//
//   - A [Bucket] is built from a warehouse's [Profile] alone: never from a
//     table's properties, and never from the process's environment or ambient
//     identity.
//   - It refuses every location outside its profile's roots.
//   - An object's key is the location's path, byte for byte, on every store.
//   - What WriteNew has acknowledged is durable, and nobody sees a part of it.
//   - Local files are opened below the root by the operating system's rules
//     (os.Root), so neither ".." nor a symbolic link leads out.
//   - A request that failed in passing is made again, at most four times
//     within its time; a refusal never is.
//
// It never prints a credential, never inflates what it reads, and knows
// nothing of Iceberg.
//
// The stores are reached through aws-sdk-go-v2, azblob and Google's JSON API,
// not through gocloud.dev/blob: that rewrites keys (on S3 and Google "x../y",
// and "__0x2f__" in listings; more on Azure), reports an absent bucket as an
// absent object and a refused key as unknown, and obeys
// STORAGE_EMULATOR_HOST.
package objstore
