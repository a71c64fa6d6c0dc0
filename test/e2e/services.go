// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluice-data/sluice/test/install"
)

// database is a private PostgreSQL, which syncs to disk as in production.
type database struct {
	*process
	dsn string
	dir string
}

// postgres starts a PostgreSQL of our own in an empty folder.
func (r *run) postgres(ctx context.Context) (*database, error) {
	bin, err := install.PostgresBin()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	// A folder that another user can reach, with a short name: the name of the
	// socket in it may have 107 bytes.
	dir, err := os.MkdirTemp("", "sluice-pg-")
	if err != nil {
		return nil, err
	}
	as, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	init, err := start(dir, "", nil, as, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "sluice", "--encoding=UTF8", "--locale=C")
	if err != nil {
		return nil, err
	}
	select {
	case <-init.done:
	case <-ctx.Done():
		init.kill()
		return nil, fmt.Errorf("initdb: %w\n%s", ctx.Err(), init.log)
	}
	if init.err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", init.err, init.log)
	}
	p, err := start(dir, r.logFile("postgresql"), nil, as, filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port), "-k", dir, "-c", "listen_addresses=127.0.0.1")
	if err != nil {
		return nil, err
	}
	p.farewell = syscall.SIGINT // without waiting for clients
	db := &database{process: p, dsn: fmt.Sprintf("postgres://sluice@127.0.0.1:%d/postgres?sslmode=disable", port), dir: dir}
	if err := p.until(ctx, "PostgreSQL", func() bool { return strings.Contains(p.log.String(), "ready to accept connections") }); err != nil {
		db.kill()
		return nil, err
	}
	return db, nil
}

// stop ends it and removes its data.
func (d *database) stop() error { return errors.Join(d.process.stop(), os.RemoveAll(d.dir)) }

// kill ends it at once and removes its data.
func (d *database) kill() {
	d.process.kill()
	os.RemoveAll(d.dir)
}

// unprivileged returns who runs PostgreSQL, which refuses to run as root: nil
// for us, when we are not root; else the user "postgres", or "nobody". The
// folder then belongs to it.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres or nobody: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, int(uid), int(gid))
}

// objectStore is a running SeaweedFS: an S3-compatible store with one account
// and one bucket.
type objectStore struct {
	*process
	endpoint, keyID, secret, bucket string
}

// s3 starts SeaweedFS with an empty bucket.
func (r *run) s3(ctx context.Context) (*objectStore, error) {
	weed, err := install.Weed(ctx, r.root)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.dir, "seaweedfs")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	s := &objectStore{keyID: "admin", secret: "admin-secret-key-0123456789", bucket: "lake"}
	iam, err := json.Marshal(map[string]any{"identities": []any{map[string]any{
		"name":        "admin",
		"credentials": []any{map[string]string{"accessKey": s.keyID, "secretKey": s.secret}},
		"actions":     []string{"Admin", "Read", "Write", "List", "Tagging"},
	}}})
	if err != nil {
		return nil, err
	}
	// An empty security.toml in its folder keeps it from reading one of the machine.
	for name, content := range map[string][]byte{"iam.json": iam, "security.toml": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	args := []string{
		"mini", "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-dir", dir, "-s3.config", "iam.json",
		"-webdav=false", "-s3.port.lance=0", "-s3.port.iceberg=0",
	}
	names := []string{"master", "volume", "filer", "admin", "s3"}
	ports, err := freePorts(2 * len(names))
	if err != nil {
		return nil, err
	}
	port := ports[len(names)-1]
	for i, name := range names {
		args = append(args, fmt.Sprintf("-%s.port=%d", name, ports[i]), fmt.Sprintf("-%s.port.grpc=%d", name, ports[len(names)+i]))
	}
	if s.process, err = start(dir, r.logFile("seaweedfs"), nil, nil, weed, args...); err != nil {
		return nil, err
	}
	s.endpoint = fmt.Sprintf("http://127.0.0.1:%d", port)
	if err := s.until(ctx, "SeaweedFS", func() bool { return listening(port) }); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}
