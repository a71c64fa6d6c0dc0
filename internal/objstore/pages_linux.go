// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"os"

	"golang.org/x/sys/unix"
)

// dropPages tells the kernel that nobody will read a file again soon that has
// just been made durable. What a refusal would mean, that the pages stay, is
// no failure.
func dropPages(file *os.File) {
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}
