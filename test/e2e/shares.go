// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"path/filepath"
	"time"
)

// shares has one organisation share tables with another, with sharectl, and the
// other read them with PyIceberg and Spark.
func shares(r *run) {
	var t tools
	if !r.step("install the clients", 20*time.Minute, func(ctx context.Context) (err error) { t, err = installClients(ctx); return err }) {
		return
	}
	var cat *target
	if !r.step("start catalogd", time.Minute, func(ctx context.Context) (err error) {
		cat, err = r.sqlite(ctx, filepath.Join(r.dir, "shares"), 0)
		return err
	}) {
		return
	}
	scripts := filepath.Join(r.root, "test", "e2e", "clients")
	r.script("two organisations", client{"shares", nil, []string{t.python, filepath.Join(scripts, "shares_client.py")}}, "write", []string{
		"URI=" + cat.URI, "WAREHOUSE=" + cat.Warehouse, "TOKEN=" + cat.Token, "CLIENT_ID=" + cat.ClientID, "CLIENT_SECRET=" + cat.ClientSecret,
		"SHARECTL=" + filepath.Join(r.root, "bin", "sharectl"), "SPARK_JARS=" + t.sparkJars, "JAVA_HOME=" + t.java17, "PYTHONPATH=" + scripts, "SPARK_LOCAL_IP=127.0.0.1",
	})
	r.step("stop catalogd", time.Minute, func(context.Context) error { return cat.stop() })
}
