// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command e2e drives the built catalogd with real clients: the long checks.
//
//	go run ./test/e2e [-only part,part] [-long] [-target catalogd|fixture]
//
// With -target fixture it drives the reference server of the compatibility kit
// instead, where a part can: what it scores shows what a step is worth.
//
// It prints one line per step and closes with "N passed, N failed". The whole
// output of a step that failed is in a log file whose path is printed. What a
// part needs is installed by package test/install; every process that it
// starts ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// part is a group of steps that can be run alone.
type part struct {
	name string
	run  func(*run)
	long bool // left out unless it is named, or with -long
}

var parts = []part{
	{name: "rck", run: rck},
	{name: "metadata", run: metadata},
	{name: "stores", run: stores},
	{name: "clients", run: clients},
	{name: "identity", run: identity},
	// A download of 170 MB and a server that takes a minute of both cores show
	// little more than oidc-provider does.
	{name: "keycloak", run: keycloak, long: true},
	// The API server takes a quarter of an hour to build, once.
	{name: "kubernetes", run: kubernetes, long: true},
	{name: "policy", run: policy},
	{name: "faults", run: faults},
	{name: "audit", run: auditTable},
	{name: "openapi", run: openapi},
}

// run is one execution.
type run struct {
	ctx     context.Context
	root    string // of the repository
	dir     string // for data and logs
	binary  string // catalogd
	fixture bool   // drive the reference server instead
	rounds  int    // of faults
	where   string // of clients

	part           string // that runs now
	passed, failed int
	clientHash     string // of clientSecret, once it was made
}

// logFile is where a program of this part writes its output.
func (r *run) logFile(program string) string {
	return filepath.Join(r.dir, r.part+"-"+program+".log")
}

func main() { os.Exit(drive()) }

func drive() int {
	only := flag.String("only", "", "parts to run, separated by commas; empty for all")
	rounds := flag.Int("rounds", 100, "how often the faults part kills the server, per store")
	where := flag.String("where", "", "files or s3: where the clients part keeps tables; empty for both")
	subject := flag.String("target", "catalogd", "what to drive: catalogd, or fixture for the reference server")
	binary := flag.String("binary", "", "catalogd to drive; empty for bin/catalogd of the repository")
	long := flag.Bool("long", false, "also run the parts that are left out otherwise: keycloak, kubernetes")
	keep := flag.Bool("keep", false, "keep data and logs")
	flag.Parse()
	if *subject != "catalogd" && *subject != "fixture" {
		fmt.Fprintf(os.Stderr, "e2e: -target %s: it is catalogd or fixture\n", *subject)
		return 2
	}
	if *where != "" && *where != "files" && *where != "s3" {
		fmt.Fprintf(os.Stderr, "e2e: -where %s: it is files, s3 or empty\n", *where)
		return 2
	}
	names := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	for _, n := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == n }) {
			fmt.Fprintf(os.Stderr, "e2e: no part is called %s\n", n)
			return 2
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := repository()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	// Not below the system's folder for temporary files: the kit's own tables
	// lie there, and would overlap with the warehouse.
	base := filepath.Join(root, "bin")
	if err := os.MkdirAll(base, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	dir, err := os.MkdirTemp(base, "e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if *binary == "" {
		*binary = filepath.Join(root, "bin", "catalogd")
	}
	r := &run{ctx: ctx, root: root, dir: dir, binary: *binary, fixture: *subject == "fixture", rounds: *rounds, where: *where}
	start := time.Now()
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) || len(names) == 0 && p.long && !*long {
			continue
		}
		r.part = p.name
		p.run(r)
		if ctx.Err() != nil {
			break
		}
	}
	fmt.Printf("%s in all\n%d passed, %d failed\n", time.Since(start).Round(time.Second), r.passed, r.failed)
	if r.failed > 0 || ctx.Err() != nil || r.passed == 0 {
		fmt.Printf("logs: %s\n", dir)
		return 1
	}
	if !*keep {
		os.RemoveAll(dir)
	}
	return 0
}

func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", errors.New("run it inside the repository")
		}
	}
}

// step runs one step and prints its line.
func (r *run) step(name string, limit time.Duration, f func(ctx context.Context) error) bool {
	if r.ctx.Err() != nil {
		return false // interrupted: what is left has not failed
	}
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	start := time.Now()
	err := f(ctx)
	return r.report(name, time.Since(start), err)
}

// report counts and prints a step.
func (r *run) report(name string, took time.Duration, err error) bool {
	if err == nil {
		r.passed++
		fmt.Printf("ok   %s/%s %s\n", r.part, name, took.Round(10*time.Millisecond))
		return true
	}
	r.failed++
	file := filepath.Join(r.dir, strings.NewReplacer("/", "-", " ", "-").Replace(r.part+"-"+name)+".log")
	if werr := os.WriteFile(file, []byte(err.Error()+"\n"), 0o644); werr != nil {
		file = werr.Error()
	}
	text := err.Error()
	if len(text) > 1500 {
		text = "…" + text[len(text)-1500:]
	}
	fmt.Printf("FAIL %s/%s %s\n     %s\n     (%s)\n", r.part, name, took.Round(10*time.Millisecond), strings.ReplaceAll(text, "\n", "\n     "), file)
	return false
}
