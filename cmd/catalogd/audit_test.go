// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestAudit has a server write its log, verifies it, and then changes it as
// somebody might who can write the file.
func TestAudit(t *testing.T) {
	t.Parallel()
	// A receiver that fails at first.
	events := make(chan string, 100)
	var calls atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, _ := io.ReadAll(r.Body)
		events <- r.Header.Get("Sluice-Signature") + " " + string(body)
	}))
	defer receiver.Close()
	d := deploy(t, anyPorts+"audit: {reads: DIR/reads.jsonl, signing_key: {env: AUDIT_KEY}, seal_interval: 50ms, checkpoint_interval: 100ms, webhooks: [{name: siem, url: \""+receiver.URL+"\", secret: {env: HOOK}}]}\n")
	edit(t, &d, strings.NewReplacer("DIR", d.dir))
	env := []string{"AUDIT_KEY=" + base64.StdEncoding.EncodeToString([]byte("abcdefghijklmnopqrstuvwxyz012345")), "HOOK=hook-secret-Wz48-Wz48"}
	if code, stdout, stderr := once(t, env, "", "migrate", "--config", d.config); code != 0 {
		t.Fatalf("migrate: %s%s", stdout, stderr)
	}
	p := start(t, env, "serve", "--config", d.config)
	base := "http://" + p.address("catalog")
	token := d.token(t, http.DefaultClient, base)
	for _, ns := range []string{"a", "b", "c"} {
		if status, body := send(t, http.DefaultClient, http.MethodPost, base+"/v1/main/namespaces", token, strings.NewReader(`{"namespace":["`+ns+`"]}`)); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		send(t, http.DefaultClient, http.MethodGet, base+"/v1/main/namespaces/"+ns, token, nil)
	}
	send(t, http.DefaultClient, http.MethodGet, base+"/v1/main/namespaces", "wrong-token", nil)
	received := ""
	for strings.Count(received, `"type":"io.sluice.audit.change"`) < 3 || !strings.Contains(received, `"type":"io.sluice.audit.checkpoint"`) {
		select {
		case e := <-events:
			received += e
		case <-time.After(20 * time.Second):
			t.Fatalf("the webhook got only %s", received)
		}
	}
	if !strings.HasPrefix(received, "t=") || strings.Contains(received, "hook-secret") {
		t.Errorf("the webhook got %s", received)
	}
	p.signal(syscall.SIGTERM)
	p.exit()

	audit := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := once(t, env, "", append([]string{"audit"}, args...)...)
		if code != want {
			t.Errorf("audit %v: %d, want %d\n%s%s", args, code, want, stdout, stderr)
		}
		return stdout + stderr
	}
	whole := audit(0, "verify", "--config", d.config)
	for _, want := range []string{"ok   " + filepath.Join(d.dir, "reads.jsonl"), "ok   warehouse main: 3 records", "ok   administration: ", "last checkpoint, worth keeping"} {
		if !strings.Contains(whole, want) {
			t.Errorf("no %q in:\n%s", want, whole)
		}
	}
	if strings.Contains(whole, "unproven") {
		t.Errorf("a clean end leaves an unproven tail:\n%s", whole)
	}
	for args, want := range map[string]int{
		"--operation getToken":                         1,
		"--operation createNamespace":                  3,
		"--operation loadNamespaceMetadata":            3,
		"--resource b":                                 2,
		"--outcome denied":                             1,
		"--principal account:alice --since 1h":         7,
		"--until 1h":                                   0,
		"--outcome ok --resource a --actor somebody":   0,
		"--warehouse main --operation createNamespace": 3,
	} {
		out := audit(0, append([]string{"query", "--config", d.config}, strings.Fields(args)...)...)
		if got := strings.Count(out, "\n"); got != want {
			t.Errorf("query %s: %d records, want %d\n%s", args, got, want, out)
		}
	}
	exported := audit(0, "export", "--config", d.config, "--warehouse", "main")
	d.write(t, "export.jsonl", exported)
	key := filepath.Join(d.dir, "audit.key")
	d.write(t, "audit.key", base64.StdEncoding.EncodeToString([]byte("abcdefghijklmnopqrstuvwxyz012345")))
	if out := audit(0, "verify", "--strict", "--key", key, filepath.Join(d.dir, "export.jsonl")); strings.Contains(out, "unproven") || strings.Contains(out, "no key") {
		t.Errorf("the export does not verify by itself:\n%s", out)
	}

	file := filepath.Join(d.dir, "reads.jsonl")
	kept := file + ".last"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(raw), "\n"), func(l string) bool { return strings.Contains(l, `"audit.checkpoint"`) })
	d.write(t, "reads.jsonl", strings.Join(lines[:3], ""))
	if out := audit(0, "verify", "--key", key, file); !strings.Contains(out, "unproven tail of 3 records") {
		t.Errorf("a log without its end: %s", out)
	}
	for _, args := range [][]string{{"--key", key, file}, {file}} {
		if out := audit(1, append([]string{"verify", "--strict"}, args...)...); !strings.Contains(out, "that no signed checkpoint proves") {
			t.Errorf("--strict %v: %s", args, out)
		}
	}
	if out := audit(1, "verify", "--key", key, "--checkpoint", kept, file); !strings.Contains(out, "as a checkpoint kept elsewhere proves") {
		t.Errorf("a log without its end, against a checkpoint: %s", out)
	}
	d.write(t, "reads.jsonl", strings.Replace(string(raw), "account:alice", "account:mallo", 1))
	if out := audit(1, "verify", "-o", "json", "--key", key, file); !strings.Contains(out, "was altered") || !strings.Contains(out, `"ok":false`) {
		t.Errorf("an altered log: %s", out)
	}
	for _, wrong := range [][]string{
		{}, {"verify"}, {"other"}, {"verify", "-o", "xml", file}, {"query", "--since", "yesterday", file}, {"query", "--outcome", "good", file},
	} {
		audit(2, wrong...)
	}
	audit(1, "verify", filepath.Join(d.dir, "none"))
	audit(1, "verify", "--key", file, file)
	audit(1, "query", "--config", d.config, "--warehouse", "none")
}

// TestAuditTail follows a file that grows.
func TestAuditTail(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "reads.jsonl")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := start(t, nil, "audit", "tail", "--outcome", "denied", file)
	p.until("a record that is denied", func() bool {
		for _, decision := range []string{"allow", "deny"} {
			if _, err := f.WriteString(`{"type":"audit.decision","time":"2026-01-02T03:04:05.000006Z","decision":"` + decision + `"}` + "\n"); err != nil {
				t.Fatal(err)
			}
		}
		return strings.Contains(p.stdout.String(), `"deny"`)
	})
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 || strings.Contains(p.stdout.String(), `"allow"`) {
		t.Errorf("%d: %s", code, p.stdout.String())
	}
	for _, wrong := range [][]string{{"audit", "tail"}, {"audit", "tail", file, file}} {
		if code, _, _ := once(t, nil, "", wrong...); code != 2 {
			t.Errorf("%v: %d", wrong, code)
		}
	}
}
