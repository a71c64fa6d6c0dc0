// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is something that was started and will be ended, with its children.
type process struct {
	cmd    *exec.Cmd
	log    *tail
	stdout *lines
	done   chan struct{}
	err    error
}

// start starts a program in a process group of its own.
func start(dir string, env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), log: &tail{}, stdout: &lines{ready: make(chan string, 1)}, done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout = io.MultiWriter(p.stdout, p.log)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// signal reaches the whole group.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// stop ends the process: politely, then not.
func (p *process) stop() error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(20 * time.Second):
		p.signal(syscall.SIGKILL)
		<-p.done
		return errors.New("did not end within 20 s of SIGTERM")
	}
}

// kill ends it as a crash would.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// until waits for a condition, or the end of the process.
func (p *process) until(ctx context.Context, what string, ok func() bool) error {
	for !ok() {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %v\n%s", what, p.err, p.log)
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time\n%s", what, p.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if t.buf.Len() > 1<<20 {
		t.buf.Next(t.buf.Len() - 1<<19)
	}
	return len(b), nil
}

// String returns the end.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// lines gives the first line that is written to it.
type lines struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	ready chan string
	sent  bool
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sent {
		l.buf.Write(b)
		if line, _, ok := strings.Cut(l.buf.String(), "\n"); ok {
			l.sent = true
			l.ready <- line
		}
	}
	return len(b), nil
}

// command runs a program to its end and returns what it printed.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	p, err := start(dir, env, name, args...)
	if err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		return p.log.String(), fmt.Errorf("%s: %w\n%s", name, ctx.Err(), p.log)
	}
	if p.err != nil {
		return p.log.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), p.err, p.log)
	}
	return p.log.String(), nil
}

// freePort picks a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// listening reports whether a port answers.
func listening(port int) bool {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
