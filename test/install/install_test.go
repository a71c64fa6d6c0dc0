// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestOnceFillsOnce(t *testing.T) {
	t.Setenv("SLUICE_CACHE", t.TempDir())
	var fills atomic.Int32
	fill := func(_ context.Context, dir string) error {
		fills.Add(1)
		return os.WriteFile(filepath.Join(dir, "thing"), nil, 0o644)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := once(t.Context(), "x", "version 1", fill)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "thing")); err != nil {
				t.Errorf("returned before it was filled: %v", err)
			}
		})
	}
	wg.Wait()
	if fills.Load() != 1 {
		t.Errorf("filled %d times for eight at once", fills.Load())
	}
	if _, err := once(t.Context(), "x", "version 2", fill); err != nil || fills.Load() != 2 {
		t.Errorf("another version: filled %d times, error %v; want 2 and none", fills.Load(), err)
	}
}

func TestOnceBeginsAgainAfterAFailure(t *testing.T) {
	t.Setenv("SLUICE_CACHE", t.TempDir())
	broken := errors.New("the registry is away")
	if _, err := once(t.Context(), "x", "1", func(_ context.Context, dir string) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o644), broken)
	}); !errors.Is(err, broken) {
		t.Fatalf("got %v, want the error of the installation", err)
	}
	dir, err := once(t.Context(), "x", "1", func(_ context.Context, dir string) error {
		left, err := os.ReadDir(dir)
		if len(left) > 0 {
			t.Errorf("%s was left from the installation that failed", left[0].Name())
		}
		return err
	})
	if err != nil || !complete(dir) {
		t.Errorf("second try: error %v, complete %v", err, complete(dir))
	}
}

func TestRunSaysWhatWasPrinted(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), t.TempDir(), nil, "sh", "-c", "echo out; echo reason >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "out\nreason") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v, want what it printed and its exit status", err)
	}
}

func TestInstalledJavaIsOfTheVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"java-17.0.25":  `echo 'openjdk version "17.0.25" 2025-10-15' >&2`,
		"broken-25":     `exit 1`,
		"temurin-25":    `echo 'openjdk version "25.0.3" 2026-04-21 LTS' >&2`,
		"early-26":      `echo 'openjdk version "26-ea" 2026-03-17' >&2`,
		"java-8-update": `echo 'java version "1.8.0_252"' >&2`,
	} {
		if err := os.MkdirAll(filepath.Join(dir, name, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "bin", "java"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := installedJava(t.Context(), dir, 25), filepath.Join(dir, "temurin-25"); got != want {
		t.Errorf("JDK 25 is %q, want %q", got, want)
	}
	if got := installedJava(t.Context(), dir, 26); got != "" {
		t.Errorf("JDK 26 is %q, want none: an early access build is no release", got)
	}
	if err := javaIs(t.Context(), filepath.Join(dir, "java-17.0.25"), 25); err == nil || !strings.Contains(err.Error(), `Java "17.0.25", wanted 25`) {
		t.Errorf("error is %v, want the version that is there and the one wanted", err)
	}
}

func TestClasspath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a-1.jar", "b-1.jar", "pom.xml"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := Classpath(dir, "b-"), filepath.Join(dir, "a-1.jar"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
