// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command catalog measures catalogd beside the Iceberg reference server
// ("fixture") and a bare Go handler: CPU time of the server per request, all
// in one run, interleaved, several rounds, medians. See ../README.md.
//
//	go run ./benchmarks/catalog [-quick] [-only REGEXP] [-rounds N] [-tables N] [-binary bin/catalogd]
//
// It prints a table, and at the end one line of JSON per goal. A number never
// makes it fail; a server that does not work does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// Commands of this program that it runs as processes of their own.
const (
	commandLoad     = "load-generator"
	commandBare     = "bare-handler"
	commandMetadata = "measure-metadata"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case commandLoad:
			return loadCommand(os.Stdin, os.Stdout)
		case commandBare:
			return bareCommand(args[1], os.Stdout)
		case commandMetadata:
			return metadataCommand(args[1], os.Stdout)
		}
	}
	f := flag.NewFlagSet("catalog", flag.ExitOnError)
	quick := f.Bool("quick", false, "about a minute: one round, 8 connections, fewer tables")
	rounds := f.Int("rounds", 0, "measured rounds (default 5; 1 with -quick)")
	tables := f.Int("tables", 0, "tables of the large namespace (default 100000; 20000 with -quick)")
	binary := f.String("binary", "bin/catalogd", "the catalogd to measure")
	only := f.String("only", "", "regular expression: only scenarios whose name it matches, and the goals that they suffice for")
	if err := f.Parse(args); err != nil {
		return err
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	path, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w; build it with `make build`", err)
	}
	b := &bench{
		binary: path, only: pattern, quick: *quick, rounds: 5, tables: 100_000, duration: time.Second, commits: 2048, largeCommits: 20,
		number: 1 << 20, samples: map[cell][]sample{}, deepTokens: map[*subject]string{}, log: os.Stderr,
	}
	if *quick {
		b.rounds, b.tables, b.duration, b.commits, b.largeCommits = 1, 20_000, 300*time.Millisecond, 512, 5
	}
	if *rounds > 0 {
		b.rounds = *rounds
	}
	if *tables > 0 {
		b.tables = *tables
	}
	if b.tables < 2*realTables {
		return fmt.Errorf("-tables %d: at least %d", b.tables, 2*realTables)
	}
	if b.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	// PostgreSQL's user must be able to pass.
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	defer b.stop()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.measureAll(ctx); err != nil {
		return err
	}
	return b.report(os.Stdout)
}

// bench is one run.
type bench struct {
	binary       string
	dir          string
	only         *regexp.Regexp
	quick        bool
	rounds       int
	tables       int
	duration     time.Duration // of a run of the load generator that reads
	commits      int64         // of a run that writes
	largeCommits int
	log          io.Writer

	subjects         []*subject
	fixture, bare    *subject
	sqlite, postgres *subject
	few, fewPostgres *subject // the same with 100 tables
	database         *process
	number           int64 // next value of the placeholder
	deepTokens       map[*subject]string
	idle             map[string]int64         // resident bytes after the start
	ready            map[string]time.Duration // from start to the first answer
	samples          map[cell][]sample
	largeSamples     map[string][]sample
	growth           growth
	metadata         figures
	tableBytes       int
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.log, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// folder makes a folder of the run.
func (b *bench) folder(name string) (string, error) {
	dir := filepath.Join(b.dir, name)
	return dir, os.Mkdir(dir, 0o755)
}

// prepare starts everything and fills it.
func (b *bench) prepare(ctx context.Context) error {
	folders := map[string]string{}
	for _, name := range []string{"fixture", "sqlite", "few", "postgres", "few-postgres", "postgres-data", "bare", "metadata"} {
		dir, err := b.folder(name)
		if err != nil {
			return err
		}
		folders[name] = dir
	}
	b.progress("metadata in process: iceberg-go and ours")
	var err error
	if b.metadata, err = measureMetadata(ctx, folders["metadata"]); err != nil {
		return err
	}
	var dsn string
	if b.database, dsn, err = startPostgres(ctx, folders["postgres-data"]); err != nil {
		return err
	}
	b.fixture = newFixture(folders["fixture"])
	b.sqlite = newDev("catalogd SQLite", b.binary, folders["sqlite"])
	b.few = newDev("catalogd SQLite, 100 tables", b.binary, folders["few"])
	if b.postgres, err = newServe(ctx, "catalogd PostgreSQL", b.binary, folders["postgres"], b.database, dsn); err != nil {
		return err
	}
	fewDSN, err := createDatabase(ctx, dsn, "few")
	if err != nil {
		return err
	}
	if b.fewPostgres, err = newServe(ctx, "catalogd PostgreSQL, 100 tables", b.binary, folders["few-postgres"], b.database, fewDSN); err != nil {
		return err
	}
	for _, s := range []*subject{b.fixture, b.sqlite, b.postgres, b.few, b.fewPostgres} {
		b.subjects = append(b.subjects, s)
		b.progress("start and fill: %s", s.name)
		if err := b.fill(ctx, s); err != nil {
			return err
		}
	}
	if err := b.restart(ctx); err != nil {
		return err
	}
	_, body, err := b.sqlite.call(ctx, "GET", b.sqlite.path("/namespaces/%s/tables/%s", small, tableName(0)), nil)
	if err != nil {
		return err
	}
	b.tableBytes = len(body)
	file := filepath.Join(folders["bare"], "body")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		return err
	}
	b.bare = newBare(folders["bare"], file)
	b.subjects = append(b.subjects, b.bare)
	return b.bare.start(ctx)
}

// fill gives a catalog its tables.
func (b *bench) fill(ctx context.Context, s *subject) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.createTables(ctx, small, smallCount); err != nil {
		return err
	}
	if s == b.few || s == b.fewPostgres {
		return nil
	}
	if err := s.createTables(ctx, big, realTables); err != nil {
		return err
	}
	if err := s.createNamespace(ctx, large); err != nil {
		return err
	}
	for name, snapshots := range map[string]int{"mb1": manySnapshots / 10, "mb10": manySnapshots, largeTable: manySnapshots} {
		if err := s.registerLarge(ctx, name, snapshots); err != nil {
			return err
		}
	}
	s.stop()
	begin := time.Now()
	if err := s.bulk(ctx, realTables, b.tables); err != nil {
		return err
	}
	b.progress("  %d rows in %s", b.tables-realTables, time.Since(begin).Round(time.Millisecond))
	return s.start(ctx)
}

// restart starts every catalog anew, on its data, and notes how long it takes
// and what it holds when nothing is asked of it.
func (b *bench) restart(ctx context.Context) error {
	b.ready, b.idle = map[string]time.Duration{}, map[string]int64{}
	for _, s := range b.subjects {
		var ready []float64
		for range 3 {
			s.stop()
			if err := s.start(ctx); err != nil {
				return err
			}
			ready = append(ready, float64(s.ready))
		}
		b.ready[s.name] = time.Duration(median(ready))
	}
	if err := wait(ctx, 3*time.Second); err != nil {
		return err
	}
	for _, s := range b.subjects {
		var err error
		if b.idle[s.name], err = memory(s.process.pid(), "VmRSS"); err != nil {
			return err
		}
		if b.takesAll(s) {
			if b.deepTokens[s], err = s.deepToken(ctx, b.tables); err != nil {
				return err
			}
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// measureAll runs all rounds.
func (b *bench) measureAll(ctx context.Context) error {
	b.largeSamples = map[string][]sample{}
	for number := range b.rounds + 1 {
		if number == 0 {
			b.progress("warm up")
		} else {
			b.progress("round %d of %d", number, b.rounds)
		}
		if err := b.round(ctx, number); err != nil {
			return err
		}
		for _, s := range []*subject{b.fixture, b.sqlite, b.postgres} {
			if !b.only.MatchString(commitLarge) {
				break
			}
			got, err := b.commitLarge(ctx, s, b.largeCommits)
			if err != nil {
				return err
			}
			if number > 0 {
				b.largeSamples[s.name] = append(b.largeSamples[s.name], got)
			}
		}
	}
	// Last, since it makes the server with few tables large.
	b.few.stop()
	if err := b.few.start(ctx); err != nil {
		return err
	}
	if err := wait(ctx, time.Second); err != nil {
		return err
	}
	var err error
	b.growth, err = b.measureGrowth(ctx, b.few, b.largeCommits)
	return err
}

// stop ends everything that was started.
func (b *bench) stop() {
	for _, s := range b.subjects {
		s.stop()
	}
	if b.database != nil {
		b.database.stop(syscall.SIGINT)
	}
}

func listen() (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(errors.New("listen on loopback"), err)
	}
	return l, nil
}
