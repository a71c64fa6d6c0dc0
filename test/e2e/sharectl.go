// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sharectl runs bin/sharectl on a catalog, with nothing but the environment,
// and returns what it prints on stdout. It signs in as the client, which has a
// secret.
func (r *run) sharectl(ctx context.Context, cat *target, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.root, "bin", "sharectl"), args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(),
		"HOME="+r.dir, "XDG_CONFIG_HOME="+filepath.Join(r.dir, "config"), "SHARECTL_URI="+cat.URI, "SHARECTL_WAREHOUSE="+cat.Warehouse,
		"SHARECTL_CLIENT_ID="+cat.ClientID, "SHARECTL_CLIENT_SECRET="+cat.ClientSecret)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("sharectl %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// storageKind is what --storage calls an object store, or the local disk.
func storageKind(s *objectStore) string {
	if s == nil {
		return "file"
	}
	return "s3"
}

// pyicebergSettings has sharectl write .pyiceberg.yaml, and PyIceberg read a
// table with nothing else but the store's keys.
func (r *run) pyicebergSettings(ctx context.Context, t tools, cat *target, s *objectStore) error {
	home, err := os.MkdirTemp(r.dir, "pyiceberg-")
	if err != nil {
		return err
	}
	if _, err := r.sharectl(ctx, cat, "connect", "pyiceberg", "--write", "--with-secret", "--file", filepath.Join(home, ".pyiceberg.yaml")); err != nil {
		return err
	}
	env := []string{"HOME=" + home, "PYICEBERG_HOME=" + home}
	if s != nil {
		const p = "PYICEBERG_CATALOG__SLUICE__S3__"
		env = append(env, p+"ENDPOINT="+s.endpoint, p+"ACCESS_KEY_ID="+s.keyID, p+"SECRET_ACCESS_KEY="+s.secret, p+"REGION=us-east-1")
	}
	out, err := command(ctx, home, env, t.python, "-c", "from pyiceberg.catalog import load_catalog\nprint(load_catalog('sluice').load_table('e2e.pyiceberg').scan().to_arrow().num_rows)")
	if err == nil && strings.TrimSpace(out) != "3" {
		err = fmt.Errorf("PyIceberg reads %q rows, and there are 3", out)
	}
	return err
}

// doctorIsContent has sharectl look for what is wrong, where nothing is. On
// an object store the catalog gives no keys yet, which it warns of.
func (r *run) doctorIsContent(ctx context.Context, cat *target, s *objectStore) error {
	out, err := r.sharectl(ctx, cat, "doctor", "--table", "e2e.pyiceberg")
	if err != nil {
		return err
	}
	want := "local files can be read"
	if s != nil {
		want = "the catalog gives no credentials for S3"
	}
	if !strings.Contains(out, want) {
		return errors.New(out)
	}
	return nil
}
