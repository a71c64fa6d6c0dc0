// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// emulators are the tests that drive package objstore against a store that
// runs here: what, and the test's name.
var emulators = [][2]string{
	{"SeaweedFS", "TestSeaweedFS"}, {"versitygw", "TestVersityGateway"}, {"fake-gcs-server", "TestFakeGCSServer"}, {"Azurite", "TestAzurite"},
}

// stores runs the object store's tests against emulators of S3, GCS and Azure.
func stores(r *run) {
	for _, e := range emulators {
		r.step(e[0]+" (installed once)", 20*time.Minute, func(ctx context.Context) error {
			out, err := command(ctx, r.root, nil, "go", "test", "-count=1", "-timeout=19m", "-tags=emulators", "-run=^"+e[1]+"$", "-v", "./internal/objstore")
			if err == nil && !strings.Contains(out, "--- PASS: "+e[1]) {
				err = fmt.Errorf("%s did not run\n%s", e[1], out)
			}
			return err
		})
	}
}
