// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zalando/go-keyring"

	"github.com/sluice-data/sluice/internal/server"
)

// update rewrites what the scripts expect: go test ./cmd/sharectl/... -update
var update = flag.Bool("update", false, "rewrite the scripts in testdata")

// TestMain lets no test see or change the keyring of whoever runs it.
func TestMain(m *testing.M) {
	keyring.MockInitWithError(keyring.ErrUnsupportedPlatform)
	os.Exit(m.Run())
}

// catalog is a server in this process, as catalogd dev makes it.
type catalog struct {
	t     *testing.T
	ready server.Ready
	dir   string
}

func startCatalog(t *testing.T) *catalog {
	t.Helper()
	dir := t.TempDir()
	options, ready, err := server.Dev(server.DevOptions{DataDir: filepath.Join(dir, "data"), Address: "127.0.0.1:0", LogLevel: "error", LogFormat: "text"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s, err := server.Open(ctx, options)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return &catalog{t, ready.At(s.Address()), dir}
}

// post changes something without sharectl.
func (c *catalog) post(path, body string) []byte {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.ready.URI+"/v1/demo"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.ready.Token)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %d %s %v", path, resp.StatusCode, raw, err)
	}
	return raw
}

const (
	ordersTable = `{"name":"orders","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":true,"type":"long"},
		{"id":2,"name":"region","required":false,"type":"string","doc":"where it was ordered"},{"id":3,"name":"price","required":false,"type":"decimal(10, 2)"},
		{"id":4,"name":"tags","required":false,"type":{"type":"list","element-id":5,"element":"string","element-required":false}}]},
		"partition-spec":{"spec-id":0,"fields":[{"source-id":1,"field-id":1000,"name":"id_bucket","transform":"bucket[4]"}]},"properties":{"owner":"emea"}}`
	ordersView = `{"name":"recent","schema":{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":false,"type":"long"}]},
		"view-version":{"version-id":1,"schema-id":0,"timestamp-ms":1767225600000,"summary":{},"default-namespace":["sales"],
		"representations":[{"type":"sql","dialect":"spark","sql":"SELECT id\nFROM orders"}]},"properties":{}}`
)

// fill puts a table with two snapshots and a view into the namespace sales.
func (c *catalog) fill() {
	c.post("/namespaces", `{"namespace":["sales"],"properties":{}}`)
	var made struct{ Metadata struct{ Location string } }
	if err := json.Unmarshal(c.post("/namespaces/sales/tables", ordersTable), &made); err != nil {
		c.t.Fatal(err)
	}
	snapshot := func(id, at int64, added, total int, parent string) string {
		return fmt.Sprintf(`{"action":"add-snapshot","snapshot":{"snapshot-id":%d,%s"sequence-number":%d,"timestamp-ms":%d,"manifest-list":"%s/metadata/%d.avro","schema-id":0,
			"summary":{"operation":"append","added-records":"%d","total-records":"%d","total-data-files":"1","total-delete-files":"0","total-files-size":"%d"}}},
			{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":%d}`, id, parent, id, at, made.Metadata.Location, id, added, total, total*100, id)
	}
	now := time.Now().UnixMilli() // Iceberg takes no snapshot from long before the table
	c.post("/namespaces/sales/tables/orders", `{"requirements":[],"updates":[`+snapshot(1, now+10, 3, 3, "")+`]}`)
	c.post("/namespaces/sales/tables/orders", `{"requirements":[],"updates":[`+snapshot(2, now+20, 4, 7, `"parent-snapshot-id":1,`)+`]}`)
	c.post("/namespaces/sales/views", ordersView)
}

// volatile is what differs from run to run, and what it becomes in scripts.
var volatile = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "{uuid}"},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "{time}"},
	{regexp.MustCompile(`"(timestamp-ms|last-updated-ms)": \d+`), `"$1": {ms}`},
	{regexp.MustCompile(`127\.0\.0\.1[-:]\d+`), "{host}"},
	{regexp.MustCompile(`answers after \d+(\.\d+)?(µs|ms|s)`), "answers after {duration}"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "{hash}"},
	{regexp.MustCompile(`((?i:etag)"?:\s+"?)[0-9a-z-]+`), "${1}{etag}"},
}

var columnGap = regexp.MustCompile(`(\S)  +`)

// stage is where a script plays.
type stage struct {
	t      *testing.T
	env    map[string]string
	words  map[string]string // {word} in commands, and in what is expected
	home   string
	now    func() time.Time
	secret func() ([]byte, error)
}

func newStage(t *testing.T) *stage {
	home := t.TempDir()
	return &stage{t: t, env: map[string]string{"HOME": home}, words: map[string]string{"home": home}, home: home, now: time.Now}
}

// run runs one command line.
func (s *stage) run(stdin string, args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	var out, errs bytes.Buffer
	code = Run(s.t.Context(), args, System{
		Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Env: func(k string) string { return s.env[k] }, Now: s.now, Version: "0.0-test",
		InTerminal: s.secret != nil, ReadSecret: s.secret,
	})
	return code, out.String(), errs.String()
}

// play runs a script of testdata: lines that begin with "$ " are commands,
// and what follows is their output, that on stderr with "! " before it, and
// the exit code if it is not 0. Lines that begin with "; " are comments. A
// command may have variables before it and
// "< text" after it.
func (s *stage) play(name string) {
	s.t.Helper()
	path := filepath.Join("testdata", name)
	raw, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	var result strings.Builder
	for line := range strings.Lines(string(raw)) {
		command, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ ")
		switch {
		case strings.HasPrefix(line, "; ") || line == "\n":
			result.WriteString(line)
		case ok:
			result.WriteString(line)
			s.command(&result, command)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(result.String()), 0o644); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	want, got := strings.Split(string(raw), "\n"), strings.Split(result.String(), "\n")
	for i := range max(len(want), len(got)) {
		var w, g string
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if w != g {
			s.t.Fatalf("%s:%d: got\n  %s\nwant\n  %s\nin\n%s", path, i+1, g, w, result.String())
		}
	}
}

func (s *stage) command(result *strings.Builder, command string) {
	s.t.Helper()
	for word, value := range s.words {
		command = strings.ReplaceAll(command, "{"+word+"}", value)
	}
	command, stdin, _ := strings.Cut(command, " < ")
	words := split(s.t, command)
	set := map[string]string{}
	for len(words) > 0 && words[0] != "sharectl" {
		k, v, ok := strings.Cut(words[0], "=")
		if !ok {
			s.t.Fatalf("no command: %s", command)
		}
		set[k], s.env[k] = s.env[k], v
		words = words[1:]
	}
	code, stdout, stderr := s.run(stdin, words[1:]...)
	for k, v := range set {
		s.env[k] = v
	}
	for line := range strings.Lines(s.steady(stdout)) {
		if line == "\n" {
			line = "(blank)\n"
		}
		result.WriteString(line)
	}
	if stdout != "" && !strings.HasSuffix(stdout, "\n") {
		result.WriteString("(no newline)\n")
	}
	for line := range strings.Lines(s.steady(stderr)) {
		result.WriteString("! " + line)
	}
	if code != 0 {
		fmt.Fprintf(result, "exit %d\n", code)
	}
}

// steady puts words in the place of what differs from run to run.
func (s *stage) steady(text string) string {
	for word, value := range s.words {
		if len(value) > 3 {
			text = strings.ReplaceAll(text, value, "{"+word+"}")
		}
	}
	// Columns are as wide as what is in them, which differs.
	text = columnGap.ReplaceAllString(text, "$1  ")
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.word)
	}
	return text
}

// split splits a command at spaces outside single quotes.
func split(t *testing.T, command string) []string {
	t.Helper()
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for _, r := range command {
		switch {
		case r == '\'':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quoted {
		t.Fatalf("a quote is not closed: %s", command)
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

func TestCatalog(t *testing.T) {
	t.Parallel()
	c := startCatalog(t)
	c.fill()
	s := newStage(t)
	s.words["uri"], s.words["token"], s.words["id"], s.words["secret"] = c.ready.URI, c.ready.Token, c.ready.ClientID, c.ready.ClientSecret
	s.words["data"] = filepath.Join(c.dir, "data")
	for _, name := range []string{"login.txt", "namespaces.txt", "tables.txt", "connect.txt", "doctor.txt"} {
		s.play(name)
	}
}

func TestOffline(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.play("usage.txt")
	s.play("policy.txt")
}

// TestEveryCommand holds all commands to what the scripts cannot show one by
// one: they have help, examples that name themselves, and a manual page.
func TestEveryCommand(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	dir := filepath.Join(s.home, "man")
	if code, _, stderr := s.run("", "man", dir); code != 0 {
		t.Fatal(stderr)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "sharectl*.1"))
	if err != nil || len(pages) < 30 {
		t.Errorf("%d manual pages, %v", len(pages), err)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, stderr := s.run("", "completion", shell); code != 0 || !strings.Contains(out, "sharectl") {
			t.Errorf("completion %s: %d %s", shell, code, stderr)
		}
	}
	if code, out, _ := s.run("", "help", "exit-codes"); code != 0 || !strings.Contains(out, "checked, and found wanting") {
		t.Errorf("exit codes: %s", out)
	}
}

// TestDocumentedCodes holds docs/sharectl.md to the exit codes.
func TestDocumentedCodes(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.FromSlash("../../../../docs/sharectl.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(exitCodes) {
		code, meaning, _ := strings.Cut(strings.TrimSpace(line), " ")
		if row := "| " + code + " | " + strings.TrimSpace(meaning) + " |"; !strings.Contains(string(raw), row) {
			t.Errorf("docs/sharectl.md lacks the row %s", row)
		}
	}
}

func TestJSONIsWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	c := startCatalog(t)
	c.fill()
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = c.ready.URI, c.ready.Token
	code, stdout, stderr := s.run("", "table", "show", "sales.orders", "-o", "json")
	var answer struct {
		Metadata struct {
			Version int `json:"format-version"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal([]byte(stdout), &answer); code != 0 || err != nil || answer.Metadata.Version == 0 {
		t.Errorf("%d %v %s %s", code, err, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(s.home, ".config")); !os.IsNotExist(err) {
		t.Errorf("with the environment alone something was kept: %v", err)
	}
}
