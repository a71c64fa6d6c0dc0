// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package server is catalogd's composition root: it opens what the
// configuration names, connects the rooms, listens, and drains.
//
// Invariants:
//
//   - Whatever was opened is closed, in reverse order, on every way out.
//   - A plain listener off loopback needs the word insecure.
//   - Draining loses no request that was accepted, within its limit.
//   - A panic in a handler is one 500, logged with its stack, and not the
//     end of the process.
//
// No business rule lives here.
package server
