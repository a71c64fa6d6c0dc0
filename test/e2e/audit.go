// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// auditKey is the seed of the key that signs checkpoints.
var auditKey = base64.StdEncoding.EncodeToString([]byte("sluice-e2e-audit-key-01234567890"))

// auditRequests is how many changes, reads and refusals there are of each.
const auditRequests = 25

// auditTable has a server keep its audit log in system.audit and in an archive,
// kills it once, and reads the table with PyIceberg and DuckDB: both find every
// request once, and what they read verifies.
func auditTable(r *run) {
	var python string
	if !r.step("install clients", 25*time.Minute, func(ctx context.Context) (err error) {
		python, err = install.Python(ctx, "clients", install.Clients)
		return err
	}) {
		return
	}
	db, err := r.postgres(r.ctx)
	if !r.report("start PostgreSQL", 0, err) {
		return
	}
	defer db.kill()
	dir := filepath.Join(r.dir, "audit")
	port, err := freePort()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if !r.report("a place for it", 0, err) {
		return
	}
	d := deployment{
		Port: port, Root: "file://" + filepath.Join(dir, "warehouse"), dsn: db.dsn,
		Audit: fmt.Sprintf("audit: {reads: %[1]s/reads.jsonl, signing_key: {env: E2E_AUDIT_KEY}, seal_interval: 100ms, checkpoint_interval: 200ms, "+
			"table: {warehouse: demo, records: all, interval: 1s}, archives: [{name: vault, records: all, interval: 1s, storage: {type: file, root: \"file://%[1]s/archive\"}}]}", dir),
	}
	var t *target
	defer func() {
		if t != nil {
			t.kill()
		}
	}()
	if !r.step("requests, with the server killed in between", 5*time.Minute, func(ctx context.Context) (err error) {
		for n := range auditRequests {
			if n%10 == 0 {
				if t != nil {
					// Reads are written behind the answer: what is in the queue
					// goes with the process.
					time.Sleep(500 * time.Millisecond)
					t.kill()
				}
				if t, err = r.serve(ctx, "audit", d); err != nil {
					return err
				}
			}
			name := fmt.Sprint("audited_", n)
			if err := t.do(ctx, http.MethodPost, "/namespaces", map[string]any{"namespace": []string{name}}, nil, ""); err != nil {
				return err
			}
			if err := t.do(ctx, http.MethodGet, "/namespaces/"+name, nil, nil, ""); err != nil {
				return err
			}
			if err := t.do(ctx, http.MethodGet, "/namespaces/audited_nowhere", nil, nil, ""); err == nil {
				return fmt.Errorf("a namespace that is none was found")
			}
		}
		return nil
	}) {
		return
	}
	lines := filepath.Join(dir, "lines.jsonl")
	r.script("table", client{"audit", nil, []string{python, filepath.Join(r.root, "test", "e2e", "clients", "audit_client.py")}}, "read", []string{
		"URI=" + t.URI, "WAREHOUSE=" + t.Warehouse, "TOKEN=" + t.Token, "CLIENT_ID=" + t.ClientID, "CLIENT_SECRET=" + t.ClientSecret,
		"PYTHONPATH=" + filepath.Join(r.root, "test", "e2e", "clients"), fmt.Sprint("REQUESTS=", auditRequests), "LINES=" + lines,
	})
	key := filepath.Join(dir, "audit.key")
	if !r.report("write the key", 0, os.WriteFile(key, []byte(auditKey), 0o600)) {
		return
	}
	for _, what := range []string{lines, filepath.Join(dir, "archive", "reads"), filepath.Join(dir, "archive", "warehouses", "demo")} {
		r.step("verify "+filepath.Base(what), time.Minute, func(ctx context.Context) error {
			out, err := command(ctx, r.root, nil, r.binary, "audit", "verify", "--key", key, what)
			if err != nil || !strings.HasPrefix(out, "ok ") {
				return fmt.Errorf("%s: %w", out, err)
			}
			return nil
		})
	}
}
