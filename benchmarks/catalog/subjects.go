// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-data/sluice/test/install"
)

// subject is a catalog that is measured: how to start it, where it is, what
// it costs.
type subject struct {
	name   string
	dir    string
	root   string // of its warehouse, file:///…
	prefix string // of the protocol's paths: "" or "/demo"

	launch func(ctx context.Context, s *subject) error // sets the rest
	// bulk adds rows of tables that are only listed: names t<from>… up to
	// t<to>, in namespace big.
	bulk func(ctx context.Context, from, to int) error

	process  *process
	address  string
	token    string
	ready    time.Duration // from start to the first good answer
	database *process      // PostgreSQL, counted apart; nil for others
}

func (s *subject) start(ctx context.Context) error {
	if err := s.launch(ctx, s); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return nil
}

// stop ends the catalog, not its database.
func (s *subject) stop() {
	if s.process != nil {
		s.process.stop(syscall.SIGTERM)
		s.process = nil
	}
}

// cpu returns what catalog and database have used.
func (s *subject) cpu() (own, database time.Duration, err error) {
	if own, err = cpu(s.process.pid()); err != nil {
		return 0, 0, err
	}
	if s.database != nil {
		database, err = cpuTree(s.database.pid())
	}
	return own, database, err
}

// header returns the headers of every request.
func (s *subject) header() []string {
	if s.token == "" {
		return nil
	}
	return []string{"Authorization: Bearer " + s.token}
}

// path returns a path below the warehouse.
func (s *subject) path(format string, args ...any) string {
	return "/v1" + s.prefix + fmt.Sprintf(format, args...)
}

// call sends one request and returns the answer, which must be good.
func (s *subject) call(ctx context.Context, method, path string, body any) (http.Header, []byte, error) {
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, nil, err
		}
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+path, reader)
	if err != nil {
		return nil, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, nil, fmt.Errorf("%s: %s %s: %s: %.300s", s.name, method, path, resp.Status, raw)
	}
	return resp.Header, raw, nil
}

// location returns the location of the table that a path loads.
func (s *subject) location(ctx context.Context, path string) (string, error) {
	_, raw, err := s.call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	var answer struct{ Metadata struct{ Location string } }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", err
	}
	return answer.Metadata.Location, nil
}

// answers reports whether GET of a path is good.
func (s *subject) answers(ctx context.Context, path string) bool {
	_, _, err := s.call(ctx, http.MethodGet, path, nil)
	return err == nil
}

// newFixture is the reference server of the Iceberg compatibility kit, on
// SQLite.
func newFixture(dir string) *subject {
	s := &subject{name: "fixture", dir: dir, root: "file://" + filepath.Join(dir, "warehouse")}
	database := filepath.Join(dir, "catalog.db")
	s.launch = func(ctx context.Context, s *subject) error {
		jars, err := install.Jars(ctx, "kit", install.Kit)
		if err != nil {
			return err
		}
		java, err := install.JavaHome(ctx, 17)
		if err != nil {
			return err
		}
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		s.address = "127.0.0.1:" + strconv.Itoa(port)
		s.process, err = start(ctx, dir, "fixture", startOptions{env: []string{
			"CATALOG_WAREHOUSE=" + s.root,
			"CATALOG_URI=jdbc:sqlite:file:" + database + "?busy_timeout=60000&journal_mode=WAL&synchronous=FULL&transaction_mode=IMMEDIATE",
			"CATALOG_REST_PORT=" + strconv.Itoa(port), "REST_PORT=" + strconv.Itoa(port),
		}}, filepath.Join(java, "bin", "java"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
			"-cp", install.Classpath(jars), "org.apache.iceberg.rest.RESTCatalogServer")
		if err != nil {
			return err
		}
		err = s.process.until(ctx, func() bool { return s.answers(ctx, "/v1/config") })
		s.ready = time.Since(s.process.started)
		return err
	}
	s.bulk = func(ctx context.Context, from, to int) error { return fillFixture(ctx, database, from, to) }
	return s
}

// newDev is catalogd on SQLite: catalogd dev, as anybody starts it first.
func newDev(name, binary, dir string) *subject {
	s := &subject{name: name, dir: dir, root: "file://" + filepath.Join(dir, "warehouse"), prefix: "/demo"}
	s.launch = func(ctx context.Context, s *subject) (err error) {
		s.process, err = start(ctx, dir, "catalogd", startOptions{}, binary, "dev", "--data-dir", dir, "--http", "127.0.0.1:0")
		if err != nil {
			return err
		}
		var line struct{ URI, Token string }
		select {
		case text := <-s.process.lines:
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				return fmt.Errorf("catalogd printed %q: %w", text, err)
			}
		case <-s.process.done:
			return fmt.Errorf("catalogd ended: %w\n%s", s.process.err, s.process.log())
		case <-ctx.Done():
			return ctx.Err()
		}
		s.address, s.token = strings.TrimPrefix(line.URI, "http://"), line.Token
		err = s.process.until(ctx, func() bool { return s.answers(ctx, "/v1/config?warehouse=demo") })
		s.ready = time.Since(s.process.started)
		return err
	}
	s.bulk = func(ctx context.Context, from, to int) error {
		return fillSQLite(ctx, filepath.Join(dir, "catalog.db"), from, to)
	}
	return s
}

// production is the configuration of catalogd on PostgreSQL.
var production = template.Must(template.New("").Parse(`
public_uri: http://{{.Address}}
listeners:
  catalog: {address: "{{.Address}}"}
  metrics: {address: ""}
store:
  auto_migrate: true
  postgres: {dsn: {env: BENCH_DSN}}
warehouses:
  - name: demo
    storage: {type: file, root: "{{.Root}}"}
accounts:
  - client_id: bench
    secrets: [{env: BENCH_CLIENT_HASH}]
    grants: [{warehouse: demo, access: write}]
tokens:
  signing_key: {env: BENCH_SIGNING_KEY}
  oauth_endpoint: true
  lifetime: 12h
audit: {reads: "{{.Audit}}"}
`))

const (
	clientSecret = "benchmark-client-secret-0123456789" // of a server that lives for minutes, on loopback
	signingKey   = "c2x1aWNlLWJlbmNoLXNpZ25pbmcta2V5LTAxMjM0NTY="
)

// newServe is catalogd on PostgreSQL: catalogd serve, as in production but
// for TLS, which the fixture has not either.
func newServe(ctx context.Context, name, binary, dir string, database *process, dsn string) (*subject, error) {
	s := &subject{name: name, dir: dir, root: "file://" + filepath.Join(dir, "warehouse"), prefix: "/demo", database: database}
	hash := exec.CommandContext(ctx, binary, "hash-secret")
	hash.Stdin = strings.NewReader(clientSecret)
	phc, err := hash.Output()
	if err != nil {
		return nil, fmt.Errorf("catalogd hash-secret: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "warehouse"), 0o700); err != nil {
		return nil, err
	}
	s.launch = func(ctx context.Context, s *subject) error {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		s.address, s.token = "127.0.0.1:"+strconv.Itoa(port), ""
		var text bytes.Buffer
		if err := production.Execute(&text, struct{ Address, Root, Audit string }{s.address, s.root, filepath.Join(dir, "audit.log")}); err != nil {
			return err
		}
		file := filepath.Join(dir, "catalogd.yaml")
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			return err
		}
		s.process, err = start(ctx, dir, "catalogd", startOptions{env: []string{
			"BENCH_DSN=" + dsn, "BENCH_CLIENT_HASH=" + strings.TrimSpace(string(phc)), "BENCH_SIGNING_KEY=" + signingKey,
		}}, binary, "serve", "--config", file)
		if err != nil {
			return err
		}
		if err := s.process.until(ctx, func() bool { return s.answers(ctx, "/health/ready") }); err != nil {
			return err
		}
		s.ready = time.Since(s.process.started)
		s.token, err = fetchToken(ctx, s.address)
		return err
	}
	s.bulk = func(ctx context.Context, from, to int) error { return fillPostgres(ctx, dsn, from, to) }
	return s, nil
}

func fetchToken(ctx context.Context, address string) (string, error) {
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {"catalog"}, "client_id": {"bench"}, "client_secret": {clientSecret}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/oauth/tokens", strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Token == "" {
		return "", errors.Join(fmt.Errorf("oauth/tokens answered %s without a token", resp.Status), err)
	}
	return answer.Token, nil
}

// startPostgres starts a private PostgreSQL with its own defaults, durable
// commits among them.
func startPostgres(ctx context.Context, dir string) (p *process, dsn string, err error) {
	bin, err := install.PostgresBin()
	if err != nil {
		return nil, "", err
	}
	var o startOptions
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		if o.credential, err = unprivileged(); err != nil {
			return nil, "", err
		}
		if err := os.Chown(dir, int(o.credential.Uid), int(o.credential.Gid)); err != nil {
			return nil, "", err
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"), "-U", "sluice", "-A", "trust", "-E", "UTF8", "--locale", "C.UTF-8")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: o.credential}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, "", err
	}
	p, err = start(ctx, dir, "postgres", o, filepath.Join(bin, "postgres"), "-D", filepath.Join(dir, "data"), "-k", dir, "-h", "127.0.0.1", "-p", strconv.Itoa(port))
	if err != nil {
		return nil, "", err
	}
	dsn = fmt.Sprintf("postgres://sluice@127.0.0.1:%d/postgres?sslmode=disable", port)
	err = p.until(ctx, func() bool {
		db, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return false
		}
		return db.Close(ctx) == nil
	})
	return p, dsn, err
}

// createDatabase makes a database beside that of dsn and returns its dsn.
func createDatabase(ctx context.Context, dsn, name string) (string, error) {
	db, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	defer db.Close(ctx) //nolint:errcheck // a statement that failed has said so
	if _, err := db.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody")
}

// newBare is a Go handler that does nothing but write the bytes of a file:
// the least that a server in Go can cost. Any path will do.
func newBare(dir, file string) *subject {
	s := &subject{name: "bare Go handler", dir: dir}
	s.launch = func(ctx context.Context, s *subject) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if s.process, err = start(ctx, dir, "bare", startOptions{}, self, commandBare, file); err != nil {
			return err
		}
		select {
		case s.address = <-s.process.lines:
			return nil
		case <-s.process.done:
			return fmt.Errorf("bare handler ended: %w\n%s", s.process.err, s.process.log())
		}
	}
	return s
}

// bareCommand is the process: it prints its address and serves.
func bareCommand(file string, stdout io.Writer) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	l, err := listen()
	if err != nil {
		return err
	}
	length := strconv.Itoa(len(body))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", length)
		w.Write(body) //nolint:errcheck // the client has gone
	})}
	if _, err := fmt.Fprintln(stdout, l.Addr()); err != nil {
		return err
	}
	return server.Serve(l)
}
