// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main_test

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var auditKey = base64.StdEncoding.EncodeToString([]byte("abcdefghijklmnopqrstuvwxyz012345"))

// archived are the lines of an archive, with how often each is there.
func archived(t *testing.T, dir string) map[string]int {
	t.Helper()
	lines := map[string]int{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".jsonl") {
			for _, line := range strings.Split(strings.TrimSuffix(readText(t, path), "\n"), "\n") {
				lines[line]++
			}
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return lines
}

// TestExportsSurviveKills kills the server with SIGKILL again and again while
// it records and exports, with the log of reads rotated in between: the
// archive has every record, once, and verifies.
func TestExportsSurviveKills(t *testing.T) {
	t.Parallel()
	d := deploy(t, anyPorts+"audit: {reads: DIR/reads.jsonl, signing_key: {env: AUDIT_KEY}, seal_interval: 50ms, checkpoint_interval: 100ms, checkpoint_records: 5, "+
		"archives: [{name: vault, records: all, interval: 1s, storage: {type: file, root: \"file://DIR/archive\"}}]}\n")
	edit(t, &d, strings.NewReplacer("DIR", d.dir))
	env := []string{"AUDIT_KEY=" + auditKey}
	if code, stdout, stderr := once(t, env, "", "migrate", "--config", d.config); code != 0 {
		t.Fatalf("migrate: %s%s", stdout, stderr)
	}
	archive := filepath.Join(d.dir, "archive")
	reads := filepath.Join(d.dir, "reads.jsonl")
	var p *process
	var base string
	const runs = 4
	for run := range runs {
		p = start(t, env, "serve", "--config", d.config)
		base = "http://" + p.address("catalog")
		token := d.token(t, http.DefaultClient, base)
		until := time.Now().Add(700*time.Millisecond + rand.N(700*time.Millisecond))
		for n := 0; time.Now().Before(until); n++ {
			name := fmt.Sprintf("n%d_%d", run, n)
			if status, body := send(t, http.DefaultClient, http.MethodPost, base+"/v1/main/namespaces", token, strings.NewReader(`{"namespace":["`+name+`"]}`)); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			send(t, http.DefaultClient, http.MethodGet, base+"/v1/main/namespaces/"+name, token, nil)
		}
		if run == runs-1 {
			break
		}
		p.signal(syscall.SIGKILL)
		p.exit()
		if run%2 == 1 {
			if err := os.Rename(reads, fmt.Sprint(reads, ".", run)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// written are the records of reads; what a kill cut off is none.
	written := func() (lines []string) {
		files, err := filepath.Glob(reads + "*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, ".last") || strings.HasSuffix(f, ".cursor") {
				continue
			}
			for _, line := range strings.Split(readText(t, f), "\n") {
				if strings.HasSuffix(line, `"}`) {
					lines = append(lines, line)
				}
			}
		}
		return lines
	}
	p.until("the archive has all reads", func() bool {
		has := archived(t, archive)
		for _, line := range written() {
			if has[line] == 0 {
				return false
			}
		}
		return true
	})
	_, metrics := send(t, http.DefaultClient, http.MethodGet, "http://"+p.address("metrics")+"/metrics", "", nil)
	for _, want := range []string{
		`sluice_audit_export_lag_seconds{export="vault",kind="archive",records="reads"} 0`,
		`sluice_audit_export_failures_total{export="vault",kind="archive",records="changes"} 0`,
		`sluice_audit_export_records_total{export="vault",kind="archive",records="changes"}`,
		"sluice_audit_seal_failing_seconds 0",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	// A restart, so that the last changes are signed and sent too.
	p.signal(syscall.SIGTERM)
	p.exit()
	_, changes, _ := once(t, env, "", "audit", "export", "--config", d.config, "--warehouse", "main")
	p = start(t, env, "serve", "--config", d.config)
	p.until("the archive has all changes", func() bool {
		has := archived(t, archive)
		for line := range strings.Lines(changes) {
			if has[strings.TrimSuffix(line, "\n")] == 0 {
				return false
			}
		}
		return true
	})
	p.signal(syscall.SIGTERM)
	p.exit()
	for line, n := range archived(t, archive) {
		if n != 1 {
			t.Errorf("%d times in the archive: %s", n, line)
		}
	}
	d.write(t, "audit.key", auditKey)
	for _, part := range []string{"reads", "warehouses/main"} {
		code, stdout, stderr := once(t, nil, "", "audit", "verify", "--key", filepath.Join(d.dir, "audit.key"), filepath.Join(archive, part))
		if code != 0 || !strings.Contains(stdout, "ok   ") || part == "warehouses/main" && strings.Contains(stdout, "unproven") {
			t.Errorf("verify %s: %d %s%s", part, code, stdout, stderr)
		}
	}
	// The log with its rotated files, from the configuration.
	if code, stdout, stderr := once(t, env, "", "audit", "verify", "--config", d.config); code != 0 || !strings.Contains(stdout, "ok   "+reads) || strings.Contains(stdout, "which is not here") {
		t.Errorf("verify: %d %s%s", code, stdout, stderr)
	}
	// One record changed in the archive is found.
	var changed string
	_ = filepath.WalkDir(filepath.Join(archive, "warehouses"), func(path string, _ fs.DirEntry, _ error) error {
		if strings.HasSuffix(path, ".jsonl") {
			changed = path
		}
		return nil
	})
	if err := os.WriteFile(changed, []byte(strings.Replace(readText(t, changed), "account:alice", "account:mallo", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := once(t, nil, "", "audit", "verify", "--key", filepath.Join(d.dir, "audit.key"), filepath.Join(archive, "warehouses/main")); code != 1 || !strings.Contains(stdout, "was altered") {
		t.Errorf("an archive that was changed: %d %s", code, stdout)
	}
}

// TestRetention has old changes removed by the next start of the server: what
// is left verifies, and says from where.
func TestRetention(t *testing.T) {
	t.Parallel()
	d := deploy(t, anyPorts+"audit: {reads: DIR/reads.jsonl, signing_key: {env: AUDIT_KEY}, seal_interval: 50ms, checkpoint_interval: 100ms, keep_changes: 1s, rotate_reads: 1m, keep_reads: 1m}\n")
	edit(t, &d, strings.NewReplacer("DIR", d.dir))
	env := []string{"AUDIT_KEY=" + auditKey}
	if code, stdout, stderr := once(t, env, "", "migrate", "--config", d.config); code != 0 {
		t.Fatalf("migrate: %s%s", stdout, stderr)
	}
	for _, names := range [][]string{{"a", "b"}, {"c"}} {
		p := start(t, env, "serve", "--config", d.config)
		base := "http://" + p.address("catalog")
		token := d.token(t, http.DefaultClient, base)
		for _, name := range names {
			if status, body := send(t, http.DefaultClient, http.MethodPost, base+"/v1/main/namespaces", token, strings.NewReader(`{"namespace":["`+name+`"]}`)); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
		}
		p.signal(syscall.SIGTERM)
		if code := p.exit(); code != 0 {
			t.Fatalf("ended with %d", code)
		}
		time.Sleep(1100 * time.Millisecond) // the age
	}
	code, stdout, stderr := once(t, env, "", "audit", "verify", "--config", d.config)
	if code != 0 || !strings.Contains(stdout, "warehouse main: 1 records") || !strings.Contains(stdout, "begins after record 2 of ") || strings.Contains(stdout, "unproven") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
	// Where nothing is to be removed, the same is a fault.
	raw := readText(t, d.config)
	d.write(t, "catalogd.yaml", strings.Replace(raw, "keep_changes: 1s, ", "", 1))
	if code, stdout, _ := once(t, env, "", "audit", "verify", "--config", d.config); code != 1 || !strings.Contains(stdout, "records 1 to 2 are missing") {
		t.Errorf("%d %s", code, stdout)
	}
}
