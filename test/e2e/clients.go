// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

func clients(r *run) {}
