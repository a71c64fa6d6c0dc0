// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that was started and will be ended, with its children:
// it runs in a process group of its own, and dies with us.
type process struct {
	cmd       *exec.Cmd
	log       *tail       // stdout and stderr
	firstLine chan string // of stdout
	done      chan struct{}
	err       error // of Wait; read it after done
	// farewell is what asks it to end; SIGTERM when zero.
	farewell syscall.Signal
}

// start starts a program. Its output is kept in memory (the end of it) and,
// where logFile is not empty, whole in that file.
func start(dir, logFile string, env []string, as *syscall.Credential, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), log: &tail{}, firstLine: make(chan string, 1), done: make(chan struct{})}
	if logFile != "" {
		f, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		p.log.file = f
	}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout = &lineCatcher{next: p.log, line: p.firstLine}
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: as}
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		p.log.close()
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		p.log.close()
		close(p.done)
	}()
	return p, nil
}

// signal reaches the whole group.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// stop asks the process to end, and ends it when it has not after 30 s. A
// process that ends by that signal, or with exit code 0 or 143 (which is how
// Java says that it was asked to), has ended well.
func (p *process) stop() error {
	farewell := p.farewell
	if farewell == 0 {
		farewell = syscall.SIGTERM
	}
	select {
	case <-p.done:
		return fmt.Errorf("%s had ended by itself: %w\n%s", p.cmd.Path, p.err, p.log)
	default:
	}
	p.signal(farewell)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.kill()
		return fmt.Errorf("%s did not end within 30 s of %v\n%s", p.cmd.Path, farewell, p.log)
	}
	state, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if p.err == nil || state.ExitStatus() == 143 || state.Signaled() && state.Signal() == farewell {
		return nil
	}
	return fmt.Errorf("%s ended badly: %w\n%s", p.cmd.Path, p.err, p.log)
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
			return fmt.Errorf("%s ended before it was ready: %w\n%s", what, p.err, p.log)
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time: %w\n%s", what, ctx.Err(), p.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// tail keeps the last half mebibyte, at least, of what is written to it, and
// all of it in a file where there is one.
type tail struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	file *os.File
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if t.buf.Len() > 1<<20 {
		t.buf.Next(t.buf.Len() - 1<<19)
	}
	if t.file != nil {
		if _, err := t.file.Write(b); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func (t *tail) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file != nil {
		t.file.Close()
		t.file = nil
	}
}

// String returns the end.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// lineCatcher passes on what is written to it, and the first line of it to a
// channel. Only one goroutine writes to it: the one that copies stdout.
type lineCatcher struct {
	next *tail
	line chan<- string
	buf  strings.Builder
	sent bool
}

// Write implements io.Writer.
func (l *lineCatcher) Write(b []byte) (int, error) {
	if !l.sent {
		l.buf.Write(b)
		if line, _, ok := strings.Cut(l.buf.String(), "\n"); ok {
			l.sent = true
			l.line <- line
		}
	}
	return l.next.Write(b)
}

// command runs a program to its end and returns what it printed.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	p, err := start(dir, "", env, nil, name, args...)
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

// freePorts picks n ports of 127.0.0.1 that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // only now: no port is picked twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// freePort picks one.
func freePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// listening reports whether a port of 127.0.0.1 answers.
func listening(port int) bool {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
