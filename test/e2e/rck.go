// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// rck runs the Iceberg REST Compatibility Kit on both stores. Every test that
// it starts must pass, and it must start no fewer than are known to.
func rck(r *run) {
	var jars string
	if !r.step("install the kit", 10*time.Minute, func(ctx context.Context) (err error) {
		jars, err = install.Jars(ctx, "kit", install.Kit)
		return err
	}) {
		return
	}
	r.step("sqlite", 10*time.Minute, func(ctx context.Context) error {
		t, err := r.sqlite(ctx, filepath.Join(r.dir, "rck"), 0, "file:///tmp/")
		if err != nil {
			return err
		}
		return errors.Join(r.kit(ctx, jars, t), t.stop())
	})
	if r.fixture {
		return // its PostgreSQL driver is not part of the kit
	}
	r.step("postgresql", 10*time.Minute, func(ctx context.Context) error {
		db, err := r.postgres(ctx)
		if err != nil {
			return err
		}
		defer db.kill()
		port, err := freePort()
		if err != nil {
			return err
		}
		t, err := r.serve(ctx, "rck", deployment{Port: port, Root: "file://" + filepath.Join(r.dir, "rck-pg"), Allow: "file:///tmp/", dsn: db.dsn})
		if err != nil {
			return err
		}
		return errors.Join(r.kit(ctx, jars, t), t.stop())
	})
}

// How many tests of the kit pass: one more when a table needs a namespace that
// exists, which the reference server does not ask for.
const (
	kitTests         = 145
	kitTestsOnItself = 144
)

var kitCount = regexp.MustCompile(`\[\s*(\d+) tests (successful|failed|skipped|aborted)\s*\]`)

func (r *run) kit(ctx context.Context, jars string, t *target) error {
	want := kitTests
	if r.fixture {
		want = kitTestsOnItself
	}
	java, err := install.JavaHome(ctx, 17)
	if err != nil {
		return err
	}
	out, err := command(ctx, r.dir, []string{
		"CATALOG_URI=" + t.URI, "CATALOG_WAREHOUSE=" + t.Warehouse, "CATALOG_TOKEN=" + t.Token,
	}, filepath.Join(java, "bin", "java"),
		"-Drck.local=false", "-Drck.requires-namespace-create="+strconv.FormatBool(!r.fixture), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", install.Classpath(jars), "org.junit.platform.console.ConsoleLauncher", "execute",
		"--select-class", "org.apache.iceberg.rest.RESTCompatibilityKitSuite", "--details=tree", "--disable-banner", "--disable-ansi-colors")
	counts := map[string]int{}
	for _, m := range kitCount.FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(m[1])
		counts[m[2]] = n
	}
	fmt.Printf("     the kit: %d passed, %d failed, %d skipped or not assumed\n", counts["successful"], counts["failed"], counts["skipped"]+counts["aborted"])
	if err != nil {
		return err
	}
	if counts["failed"] != 0 || counts["successful"] < want {
		return fmt.Errorf("%d tests passed and %d failed; at least %d must pass and none fail\n%s", counts["successful"], counts["failed"], want, out)
	}
	return nil
}
