// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package admin serves the administration interface of proto/ as gRPC,
// gRPC-Web and JSON over HTTP, from one handler.
//
// Invariants:
//
//   - Every operation has a rule in one table ([Procedures] names them all):
//     which action it is, and on what. One without a rule is refused.
//   - What a caller may not see is NotFound, with the message of what does not
//     exist. PermissionDenied is for what everybody knows to exist.
//   - A role is given by the configuration, or by a record of an administrator
//     that the caller's own token agrees with. Nobody has a role on behalf of
//     somebody else.
//   - An error has a reason for programs and a next step for people
//     (google.rpc.ErrorInfo), and no secret.
//
// It decodes, authorises, calls package sharing, and encodes; rules about the
// things themselves are there.
package admin
