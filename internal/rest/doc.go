// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package rest is the Iceberg REST catalog protocol over HTTP.
//
// A request passes, in this order: the table of routes (over the escaped path,
// with no redirects), authentication, the warehouse that its prefix names and
// the principal's access to it, the body's limits, the Idempotency-Key, and the
// handler of its operation. Handlers decode, call package catalog and encode;
// they hold no business logic. Every error, of whatever step, has the
// protocol's error model and is made in errors.go.
//
// The routes are also what /v1/config advertises and what metrics are named
// by, so none of the three can differ from what is served.
package rest
