// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// tools is what the clients need.
type tools struct{ python, sparkJars, trino, iceberg, icebergo, java17 string }

// clients drives every client on local files with SQLite, and on an
// S3-compatible store with PostgreSQL: each makes and changes a table, then
// each reads what all have written.
func clients(r *run) {
	var t tools
	if !r.step("install the clients", 20*time.Minute, func(ctx context.Context) (err error) { t, err = installClients(ctx); return err }) {
		return
	}
	r.step("build the driver of iceberg-go (once, about two minutes)", 25*time.Minute, func(ctx context.Context) (err error) {
		t.icebergo, err = install.Program(ctx, r.root, filepath.Join("test", "e2e", "icebergo"))
		return err
	})
	if r.where == "" {
		r.step("install the iceberg-go command", 25*time.Minute, func(ctx context.Context) (err error) {
			tool := install.GoTools["iceberg"]
			t.iceberg, err = install.GoTool(ctx, tool[0], tool[1])
			return err
		})
	}
	func() {
		if r.where == "s3" {
			return
		}
		var cat *target
		if !r.step("files: start catalogd", time.Minute, func(ctx context.Context) (err error) {
			cat, err = r.sqlite(ctx, filepath.Join(r.dir, "clients"), 0)
			return err
		}) {
			return
		}
		r.drive("files", t, cat, nil)
		r.step("files: stop catalogd", time.Minute, func(context.Context) error { return cat.stop() })
	}()
	if r.where == "files" {
		return
	}
	var s *objectStore
	if !r.step("s3: start SeaweedFS (built once, about five minutes)", 20*time.Minute, func(ctx context.Context) (err error) { s, err = r.s3(ctx); return err }) {
		return
	}
	defer s.kill()
	var db *database
	defer func() {
		if db != nil {
			db.kill()
		}
	}()
	var cat *target
	if !r.step("s3: start PostgreSQL and catalogd", 2*time.Minute, func(ctx context.Context) error {
		var err error
		if db, err = r.postgres(ctx); err != nil {
			return err
		}
		if _, err := command(ctx, r.dir, nil, t.python, "-c", makeBucket, s.endpoint, s.keyID, s.secret, s.bucket); err != nil {
			return err
		}
		port, err := freePort()
		if err != nil {
			return err
		}
		cat, err = r.serve(ctx, "clients-s3", deployment{Port: port, Root: "s3://" + s.bucket + "/warehouse", Endpoint: s.endpoint, KeyID: s.keyID, secret: s.secret, dsn: db.dsn})
		return err
	}) {
		return
	}
	r.drive("s3", t, cat, s)
	r.step("s3: stop catalogd", time.Minute, func(context.Context) error { return cat.stop() })
}

const makeBucket = `
import sys
import botocore.session
endpoint, key, secret, bucket = sys.argv[1:]
c = botocore.session.get_session().create_client("s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
c.create_bucket(Bucket=bucket)
`

func installClients(ctx context.Context) (t tools, err error) {
	if t.python, err = install.Python(ctx, "clients", install.Clients); err != nil {
		return t, err
	}
	var jars []string
	for name, coordinate := range map[string]string{"spark-iceberg": install.SparkRuntime, "spark-aws": install.SparkAWS} {
		dir, err := install.Artifact(ctx, name, coordinate)
		if err != nil {
			return t, err
		}
		found, _ := filepath.Glob(filepath.Join(dir, "*.jar"))
		jars = append(jars, found...)
	}
	t.sparkJars = strings.Join(jars, ",")
	if t.trino, err = install.Trino(ctx); err != nil {
		return t, err
	}
	t.java17, err = install.JavaHome(ctx, 17)
	return t, err
}

// drive runs all clients against one catalog.
func (r *run) drive(where string, t tools, cat *target, s *objectStore) {
	env := []string{
		"URI=" + cat.URI, "WAREHOUSE=" + cat.Warehouse, "TOKEN=" + cat.Token, "CLIENT_ID=" + cat.ClientID, "CLIENT_SECRET=" + cat.ClientSecret,
		"SPARK_JARS=" + t.sparkJars, "JAVA_HOME=" + t.java17, "PYTHONPATH=" + filepath.Join(r.root, "test", "e2e", "clients"), "AWS_REGION=us-east-1",
		"AWS_EC2_METADATA_DISABLED=true", "SPARK_LOCAL_IP=127.0.0.1",
	}
	if s != nil {
		env = append(env, "S3_ENDPOINT="+s.endpoint, "S3_KEY="+s.keyID, "S3_SECRET="+s.secret)
	}
	r.step(where+": sharectl writes DuckDB's settings", time.Minute, func(ctx context.Context) error {
		settings, err := r.sharectl(ctx, cat, "connect", "duckdb", "--with-secret", "--storage", storageKind(s))
		env = append(env, "SETTINGS="+settings)
		return err
	})
	trinoPort := 0
	var trino *process
	if r.step(where+": start Trino", 10*time.Minute, func(ctx context.Context) (err error) {
		trino, trinoPort, err = r.startTrino(ctx, where, t, cat, s)
		return err
	}) {
		defer func() { _ = trino.stop() }()
		env = append(env, "TRINO_PORT="+strconv.Itoa(trinoPort))
	}
	scripts := filepath.Join(r.root, "test", "e2e", "clients")
	all := []client{
		{"pyiceberg", []string{"pyiceberg"}, []string{t.python, filepath.Join(scripts, "pyiceberg_client.py")}},
		{"spark", []string{"spark", "spark_v3"}, []string{t.python, filepath.Join(scripts, "spark_client.py")}},
		{"duckdb", []string{"duckdb"}, []string{t.python, filepath.Join(scripts, "duckdb_client.py")}},
	}
	if trino != nil {
		all = append(all, client{"trino", []string{"trino"}, []string{t.python, filepath.Join(scripts, "trino_client.py")}})
	}
	if t.icebergo != "" {
		all = append(all, client{"iceberg-go", []string{"iceberg_go", "iceberg_go_deletes"}, []string{t.icebergo}})
	}
	var written []string
	for _, c := range all {
		r.script(where, c, "write", env)
		written = append(written, c.tables...)
	}
	env = append(env, "WRITTEN="+strings.Join(written, " "))
	for _, c := range all {
		r.script(where, c, "read", env)
	}
	r.step(where+": sharectl connect pyiceberg --write, and PyIceberg reads", 2*time.Minute, func(ctx context.Context) error { return r.pyicebergSettings(ctx, t, cat, s) })
	r.step(where+": sharectl doctor", time.Minute, func(ctx context.Context) error { return r.doctorIsContent(ctx, cat, s) })
	if t.iceberg != "" {
		r.icebergGo(where, t, cat, s, written)
	}
}

// client is a program that drives one client.
type client struct {
	name    string
	tables  []string // in e2e, that the others read
	command []string // "write" or "read" is added
}

// script runs one client's program and reports each of its steps.
func (r *run) script(where string, c client, mode string, env []string) {
	if r.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Minute)
	defer cancel()
	start := time.Now()
	out, err := command(ctx, r.dir, env, c.command[0], append(c.command[1:len(c.command):len(c.command)], mode)...)
	reported, failed := 0, 0
	var since []string // the last step
	prefix := fmt.Sprintf("%s: %s: ", where, c.name)
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "ok "); ok {
			i := strings.LastIndexByte(rest, ' ')
			if seconds, err := strconv.ParseFloat(rest[i+1:], 64); i > 0 && err == nil {
				r.report(prefix+rest[:i], time.Duration(seconds*float64(time.Second)), nil)
				reported++
				since = nil
				continue
			}
		} else if rest, ok := strings.CutPrefix(line, "FAIL "); ok {
			step, reason, _ := strings.Cut(rest, ": ")
			r.report(prefix+step, 0, errors.New(strings.Join(since, "\n")+"\n"+reason))
			reported++
			failed++
			since = nil
			continue
		}
		since = append(since, line)
	}
	if err != nil && failed == 0 && reported > 0 {
		// It died between two steps, or ran out of time.
		r.report(prefix+mode+" to the end", time.Since(start), err)
	}
	if reported == 0 {
		if err == nil {
			err = errors.New("it printed no step\n" + out)
		}
		r.report(fmt.Sprintf("%s: %s: %s", where, c.name, mode), time.Since(start), err)
	}
}

// startTrino configures and starts a Trino server for one catalog.
func (r *run) startTrino(ctx context.Context, where string, t tools, cat *target, s *objectStore) (*process, int, error) {
	java, err := install.JavaHome(ctx, 25)
	if err != nil {
		return nil, 0, err
	}
	port, err := freePort()
	if err != nil {
		return nil, 0, err
	}
	dir := filepath.Join(r.dir, "trino-"+where)
	etc := filepath.Join(dir, "etc")
	if err := os.MkdirAll(filepath.Join(etc, "catalog"), 0o755); err != nil {
		return nil, 0, err
	}
	// The catalog's file is what sharectl writes; an object store's place and
	// keys are added.
	file := filepath.Join(etc, "catalog", "sluice.properties")
	if _, err := r.sharectl(ctx, cat, "connect", "trino", "--write", "--with-secret", "--storage", storageKind(s), "--file", file); err != nil {
		return nil, 0, err
	}
	if s != nil {
		written, err := os.ReadFile(file)
		if err != nil {
			return nil, 0, err
		}
		written = fmt.Appendf(written, "s3.endpoint=%s\ns3.region=us-east-1\ns3.path-style-access=true\ns3.aws-access-key=%s\ns3.aws-secret-key=%s\n", s.endpoint, s.keyID, s.secret)
		if err := os.WriteFile(file, written, 0o600); err != nil {
			return nil, 0, err
		}
	}
	for name, content := range map[string]string{
		"node.properties":   fmt.Sprintf("node.environment=e2e\nnode.id=e2e-%s\nnode.data-dir=%s\n", where, filepath.Join(dir, "data")),
		"jvm.config":        "-server\n-Xmx2G\n-XX:+UseG1GC\n-XX:+ExitOnOutOfMemoryError\n-Dfile.encoding=UTF-8\n--enable-native-access=ALL-UNNAMED\n",
		"config.properties": fmt.Sprintf("coordinator=true\nnode-scheduler.include-coordinator=true\nhttp-server.http.port=%d\ndiscovery.uri=http://127.0.0.1:%d\nnode.internal-address=127.0.0.1\ncatalog.management=static\n", port, port),
		"log.properties":    "io.trino=INFO\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(content), 0o600); err != nil {
			return nil, 0, err
		}
	}
	p, err := start(dir, r.logFile("trino-"+where), []string{"JAVA_HOME=" + java, "PATH=" + filepath.Join(java, "bin") + ":" + os.Getenv("PATH")}, nil,
		filepath.Join(t.trino, "bin", "launcher"), "run", "--etc-dir="+etc, "--data-dir="+filepath.Join(dir, "data"))
	if err != nil {
		return nil, 0, err
	}
	if err := p.until(ctx, "Trino", func() bool { return trinoReady(ctx, port) }); err != nil {
		p.kill()
		return nil, 0, err
	}
	return p, port, nil
}

// trinoReady reports whether a Trino server says that it has started.
func trinoReady(ctx context.Context, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/v1/info", port), nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var info struct {
		Starting *bool `json:"starting"`
	}
	return json.NewDecoder(resp.Body).Decode(&info) == nil && info.Starting != nil && !*info.Starting
}
