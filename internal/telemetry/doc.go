// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package telemetry is what operators see: logs (slog), metrics (Prometheus)
// and traces (OpenTelemetry).
//
// Invariants:
//
//   - Nothing is global: a process may hold several of each.
//   - What runs per request finds its series resolved beforehand and
//     allocates nothing.
//   - No label is chosen by a client: routes, methods and status codes are
//     closed sets, and names of tables appear only when told so.
//   - Tracing is off unless an endpoint is configured.
package telemetry
