// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that we started and will end.
type process struct {
	cmd     *exec.Cmd
	logPath string
	lines   chan string // the first line on stdout
	done    chan struct{}
	err     error
	started time.Time
}

// startOptions are what most programs do without.
type startOptions struct {
	env        []string
	credential *syscall.Credential
}

// start starts a program whose output goes to a file in dir. It runs until it
// is stopped, whatever becomes of ctx, so that it can end in good order.
func start(ctx context.Context, dir, name string, o startOptions, program string, args ...string) (*process, error) {
	p := &process{
		cmd: exec.CommandContext(context.WithoutCancel(ctx), program, args...), logPath: filepath.Join(dir, name+".log"),
		lines: make(chan string, 1), done: make(chan struct{}),
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own descriptor
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), o.env...)
	p.cmd.Stderr = log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: o.credential}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		first := true
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); first = false {
			if first {
				p.lines <- scanner.Text()
			}
		}
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// until waits for a condition, or the program's end.
func (p *process) until(ctx context.Context, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %w\n%s", p.cmd.Path, p.err, p.log())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready: %w\n%s", p.cmd.Path, ctx.Err(), p.log())
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

func (p *process) log() string {
	raw, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4000):])
}

// stop ends the program by a signal, and by force after 20 seconds.
func (p *process) stop(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal) // an error means that it has ended
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
		<-p.done
	}
}

// tick is the unit of /proc/PID/stat: Linux reports to user space in
// hundredths of a second on every architecture that Go knows.
const tick = 10 * time.Millisecond

// stat is the part of /proc/PID/stat that counts.
type stat struct {
	parent         int
	own, descended time.Duration // CPU time; of children that were waited for
}

// parseStat reads /proc/PID/stat (proc(5)). The second field is the program's
// name in parentheses and may hold anything.
func parseStat(text string) (stat, error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errors.New("/proc/PID/stat has no name")
	}
	fields := strings.Fields(text[end+1:])
	number := func(field int) time.Duration { // as proc(5) counts
		if field-3 >= len(fields) {
			return 0
		}
		n, _ := strconv.ParseInt(fields[field-3], 10, 64) // the kernel wrote it
		return time.Duration(n)
	}
	return stat{parent: int(number(4)), own: (number(14) + number(15)) * tick, descended: (number(16) + number(17)) * tick}, nil
}

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(raw))
}

// cpu is the CPU time that a process has used.
func cpu(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.own, err
}

// cpuTree is the CPU time of a process, of its children, and of those that it
// has waited for.
func cpuTree(pid int) (time.Duration, error) {
	root, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	total := root.own + root.descended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s, err := readStat(child)
		if err == nil && s.parent == pid { // it may have ended meanwhile
			total += s.own + s.descended
		}
	}
	return total, nil
}

// memory returns a line of /proc/PID/status in bytes: VmRSS, VmHWM.
func memory(pid int, key string) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, key)
}

// resetPeak makes VmHWM begin anew at what is resident now.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
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
