// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is what one run of the load generator does. It runs in a process of
// its own, so that its CPU time is nobody else's.
type load struct {
	Address     string        `json:"address"` // host:port
	Connections int           `json:"connections"`
	Duration    time.Duration `json:"duration"` // how long to begin requests, 0: no end
	Count       int64         `json:"count"`    // how many requests to send, 0: no end
	// Requests are sent in turn. When there are at least as many as
	// connections, each belongs to one connection; otherwise all share them.
	Requests []request `json:"requests"`
	First    int64     `json:"first"` // the first value of placeholder
}

// request is one request. In its path and body, ${n} becomes a number that
// grows from request to request, ${now} the time in milliseconds.
type request struct {
	Method string   `json:"method"`
	Path   string   `json:"path"`
	Header []string `json:"header"` // "Name: value"
	Body   string   `json:"body"`
}

const (
	placeholder    = "${n}"
	placeholderNow = "${now}"
)

// outcome is what a run of the load generator found.
type outcome struct {
	OK       int64         `json:"ok"`     // 200, 204 and 304
	Failed   int64         `json:"failed"` // any other status
	Problem  string        `json:"problem"`
	Bytes    int64         `json:"bytes"` // of bodies
	Elapsed  time.Duration `json:"elapsed"`
	P50, P99 time.Duration
}

// runLoad runs the load generator as a process.
func runLoad(ctx context.Context, l load) (outcome, error) {
	self, err := os.Executable()
	if err != nil {
		return outcome{}, err
	}
	spec, err := json.Marshal(l)
	if err != nil {
		return outcome{}, err
	}
	cmd := exec.CommandContext(ctx, self, commandLoad)
	cmd.Stdin = bytes.NewReader(spec)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return outcome{}, fmt.Errorf("load generator: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var o outcome
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		return outcome{}, fmt.Errorf("load generator printed %q: %w", stdout.String(), err)
	}
	return o, nil
}

// loadCommand is the process: a load on stdin, its outcome on stdout.
func loadCommand(stdin io.Reader, stdout io.Writer) error {
	var l load
	if err := json.NewDecoder(stdin).Decode(&l); err != nil {
		return err
	}
	o, err := l.run(context.Background())
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(o)
}

func (l load) run(ctx context.Context) (outcome, error) {
	if l.Connections < 1 || len(l.Requests) == 0 || l.Count == 0 && l.Duration == 0 {
		return outcome{}, errors.New("a load needs connections, requests, and a duration or a count")
	}
	var number atomic.Int64
	number.Store(l.First)
	begin := time.Now()
	workers := make([]worker, l.Connections)
	errs := make([]error, l.Connections)
	var wg sync.WaitGroup
	for i := range workers {
		// Each connection sends its part, so that each request is sent equally
		// often.
		part := (l.Count + int64(l.Connections-1-i)) / int64(l.Connections)
		more := func(sent int64) bool {
			if l.Count > 0 && sent >= part {
				return false
			}
			// At least one each, however long connecting took.
			return l.Duration == 0 || sent == 0 || time.Since(begin) < l.Duration
		}
		wg.Go(func() { errs[i] = workers[i].run(ctx, l.Address, l.share(i), more, &number) })
	}
	wg.Wait()
	o := outcome{Elapsed: time.Since(begin)}
	var took []time.Duration
	for i := range workers {
		w := &workers[i]
		o.OK, o.Failed, o.Bytes = o.OK+w.ok, o.Failed+w.failed, o.Bytes+w.bytes
		took = append(took, w.took...)
		if o.Problem == "" {
			o.Problem = w.problem
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		o.P50, o.P99 = took[len(took)/2], took[len(took)*99/100]
	}
	return o, errors.Join(errs...)
}

// share returns the requests of a connection.
func (l load) share(connection int) []request {
	if len(l.Requests) < l.Connections {
		return l.Requests
	}
	var own []request
	for i := connection; i < len(l.Requests); i += l.Connections {
		own = append(own, l.Requests[i])
	}
	return own
}

// worker is one connection.
type worker struct {
	ok, failed, bytes int64
	problem           string // the first answer that was not good
	took              []time.Duration
}

func (w *worker) run(ctx context.Context, address string, requests []request, more func(sent int64) bool, number *atomic.Int64) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewReaderSize(conn, 64<<10)
	for i := 0; more(int64(i)); i++ {
		text := requests[i%len(requests)].render(address, number.Add(1))
		start := time.Now()
		if err := conn.SetDeadline(start.Add(2 * time.Minute)); err != nil {
			return err
		}
		if _, err := conn.Write(text); err != nil {
			return fmt.Errorf("send a request: %w", err)
		}
		if err := w.receive(answers, requests[i%len(requests)].Method); err != nil {
			return fmt.Errorf("receive an answer: %w", err)
		}
		w.took = append(w.took, time.Since(start))
	}
	return nil
}

func (w *worker) receive(answers *bufio.Reader, method string) error {
	resp, err := http.ReadResponse(answers, &http.Request{Method: method})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNoContent, http.StatusNotModified:
		w.ok++
		n, err := io.Copy(io.Discard, resp.Body)
		w.bytes += n
		return err
	}
	w.failed++
	body, err := io.ReadAll(resp.Body)
	if w.problem == "" {
		w.problem = fmt.Sprintf("%s: %.300s", resp.Status, body)
	}
	return err
}

// render returns the request's bytes.
func (r request) render(host string, n int64) []byte {
	number := strconv.FormatInt(n, 10)
	body := strings.ReplaceAll(r.Body, placeholder, number)
	if strings.Contains(body, placeholderNow) {
		body = strings.ReplaceAll(body, placeholderNow, strconv.FormatInt(time.Now().UnixMilli(), 10))
	}
	b := make([]byte, 0, 512+len(body))
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, strings.ReplaceAll(r.Path, placeholder, number)...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	for _, h := range r.Header {
		b = append(b, h...)
		b = append(b, "\r\n"...)
	}
	if r.Body != "" {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	return append(b, body...)
}
