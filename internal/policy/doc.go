// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package policy decides, with Cedar policies, who may do what, which rows of
// a table a principal may see, and which of its columns, plain or masked.
//
// Three owners may each bring a policy set: the platform, the provider of a
// table and the recipient. A [Set] is one of these, parsed and checked; a
// [Stack] is the sets that apply to a request, and its decision is their
// intersection. A set can only narrow what the others allow.
//
// Invariants:
//
//   - Whatever is not decided is denied: no set, no permit that applies, an
//     error, a policy that no longer fits the table it speaks of.
//   - A forbid that cannot be evaluated forbids. Cedar skips such a policy; here
//     a request is denied, or the row hidden.
//   - A [Filter] says of each row what cedar.Authorize says of it, but for the
//     rule above. What could not be exact is refused by [Set.Check], with the
//     place in the source.
//   - [Filter.Prune] may keep too many files, never too few rows.
//   - A null value is an absent attribute. Nothing is compared with null.
//
// The package reads no configuration and no store, and never logs a value.
//
// Sources: the Cedar language reference (docs.cedarpolicy.com), and Cutler et
// al., "Cedar: A New Language for Expressive, Fast, Safe, and Analyzable
// Authorization", OOPSLA 2024.
package policy
