// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

//go:build !linux

package objstore

import "os"

// dropPages does nothing where the kernel takes no such advice.
func dropPages(*os.File) {}
