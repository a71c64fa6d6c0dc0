// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"
)

// policy holds row filters, and what prunes files of them, equal to
// cedar.Authorize over a million random pairs of policy set and row. make test
// has ten thousand.
func policy(r *run) {
	r.step("a million pairs of policy set and row", 10*time.Minute, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout=9m", "-run=^TestFilterIsCedar$", "./internal/policy")
		cmd.Dir, cmd.Env = r.root, append(os.Environ(), "SLUICE_POLICY_PAIRS=1000000")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		if !strings.Contains(string(out), "--- PASS: TestFilterIsCedar") {
			return errors.New("the test did not run: " + string(out))
		}
		return nil
	})
}
