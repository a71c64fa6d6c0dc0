// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package pgtest starts a private PostgreSQL for the tests of one binary: in a
// directory of its own, on loopback, as a user other than root, gone at the
// end. It never touches a server that it has not started, but for the one
// that SLUICE_TEST_POSTGRES_DSN names.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Password is that of the superuser of a server that Start has started.
const Password = "correct-horse-battery"

// Server is a running PostgreSQL.
type Server struct {
	dsn  *url.URL
	dir  string    // "" when somebody else runs it
	cmd  *exec.Cmd // nil likewise, and while it is stopped
	bin  string
	args []string
	cred *syscall.Credential
	log  *os.File
}

// Start starts a server, or uses the one that SLUICE_TEST_POSTGRES_DSN (a URL
// of a user who may create databases) names. The caller stops it.
func Start(ctx context.Context) (*Server, error) {
	if dsn := os.Getenv("SLUICE_TEST_POSTGRES_DSN"); dsn != "" {
		u, err := url.Parse(dsn)
		if err != nil || u.Scheme == "" {
			return nil, errors.New("SLUICE_TEST_POSTGRES_DSN is no URL of the form postgres://user:password@host:port/database")
		}
		return &Server{dsn: u}, nil
	}
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL for tests: %w", err), s.Stop())
	}
	return s, nil
}

// binaries returns the directory of the newest installation.
func binaries() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		version := func(path string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 for other names
			return n
		}
		newest := slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
		return filepath.Dir(newest), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("tests need PostgreSQL 15 or newer: apt-get install postgresql (or set SLUICE_TEST_POSTGRES_DSN)")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return filepath.Dir(path), nil
}

func (s *Server) create(ctx context.Context) (err error) {
	if s.dir, err = os.MkdirTemp(parent(), prefix); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if s.cred, err = unprivileged(); err != nil {
			return err
		}
		if err := os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return err
		}
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return err
	}
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte(Password+"\n"), 0o644); err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	initdb := s.command(ctx, "initdb", "-D", data, "-U", "postgres", "-A", "scram-sha-256", "--pwfile", password, "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync",
		// Not bytewise, so that columns and queries must say what they compare by.
		"--locale-provider", "icu", "--icu-locale", "en-US")
	if err := initdb.Run(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, s.logged())
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	s.dsn = &url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", Password), Host: "127.0.0.1:" + strconv.Itoa(port),
		Path: "/postgres", RawQuery: "sslmode=disable",
	}
	s.args = []string{
		"-D", data, "-k", s.dir, "-h", "127.0.0.1", "-p", strconv.Itoa(port),
		// Tests are about rules, not about power cuts; small buffers start fast.
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200", "-c", "shared_buffers=64MB",
		"-c", "deadlock_timeout=100ms", "-c", "dynamic_shared_memory_type=mmap",
	}
	return s.Resume(ctx)
}

// prefix begins the names of the servers' directories.
const prefix = "sluice-postgres-"

// parent is where servers have their directories: in memory where there is a
// gibibyte to spare, else in the usual place. Each CREATE and DROP DATABASE
// touches some three hundred files, which is half of the tests' time on a disk.
func parent() string {
	const memory, enough = "/dev/shm", 1 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < enough {
		return ""
	}
	// What tests left that were killed would hold memory until the next boot.
	left, _ := filepath.Glob(filepath.Join(memory, prefix+"*")) // no error: the pattern is a good one
	for _, dir := range left {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(dir) // another's, perhaps, and then it stays
		}
	}
	if probe, err := os.MkdirTemp(memory, prefix); err != nil || os.Remove(probe) != nil {
		return ""
	}
	return memory
}

// unprivileged is whom PostgreSQL runs as when the tests run as root, which it
// refuses to.
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
	return nil, errors.New("tests run as root, and there is no user postgres or nobody to run PostgreSQL as")
}

func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = s.log, s.log
	// SIGINT is PostgreSQL's fast shutdown, also when the tests are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGINT}
	return cmd
}

func (s *Server) logged() string {
	raw, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw))
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Resume starts the server again after Pause, with the same data and port.
func (s *Server) Resume(ctx context.Context) error {
	s.cmd = s.command(context.WithoutCancel(ctx), "postgres", s.args...)
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, s.dsn.String())
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not answer: %w\n%s", err, s.logged())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Own reports whether this package started the server, so that it may be
// paused.
func (s *Server) Own() bool { return s.dir != "" }

// Pause ends a server that Start has started, at once, as a crash does.
func (s *Server) Pause() error { return s.end(syscall.SIGQUIT) }

// end tells the server to end and waits for it.
func (s *Server) end(how syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(how); err != nil {
		return err
	}
	killer := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer killer.Stop()
	err := s.cmd.Wait()
	s.cmd = nil
	var exit *exec.ExitError
	if errors.As(err, &exit) && how == syscall.SIGQUIT {
		return nil // a crash has no good exit status
	}
	return err
}

// Stop ends the server and removes its directory. It leaves a server alone
// that it has not started.
func (s *Server) Stop() error {
	if s.dir == "" {
		return nil
	}
	err := s.end(syscall.SIGINT)
	if s.log != nil {
		s.log.Close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Database creates an empty database and returns its URL and a function that
// drops it, whoever is still connected.
func (s *Server) Database(ctx context.Context) (dsn string, drop func() error, err error) {
	return s.database(ctx, "template0")
}

// Copy creates a database like the one at from, a URL that Database has
// returned and to which nobody is connected.
func (s *Server) Copy(ctx context.Context, from string) (dsn string, drop func() error, err error) {
	u, err := url.Parse(from)
	if err != nil {
		return "", nil, err
	}
	return s.database(ctx, strings.TrimPrefix(u.Path, "/"))
}

func (s *Server) database(ctx context.Context, template string) (dsn string, drop func() error, err error) {
	name := "sluice_test_" + strings.ToLower(rand.Text())
	if err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+""); err != nil {
		return "", nil, err
	}
	u := *s.dsn
	u.Path = "/" + name
	return u.String(), func() error {
		return s.exec(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)")
	}, nil
}

func (s *Server) exec(ctx context.Context, query string) error {
	c, err := pgx.Connect(ctx, s.dsn.String())
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, query)
	return errors.Join(err, c.Close(context.WithoutCancel(ctx)))
}
