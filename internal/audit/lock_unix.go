// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

//go:build unix

package audit

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes an exclusive lock, which ends with the process; ok is false
// when another one has it.
func tryLock(f *os.File) (ok bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // a file descriptor is an int
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
