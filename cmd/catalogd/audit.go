// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/audit/archive"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/server"
	"github.com/sluice-data/sluice/internal/server/config"
)

const auditUsage = `
  catalogd audit verify [flags] [FILE ...]   prove that nobody has changed the audit log
  catalogd audit query [flags] [FILE ...]    print records
  catalogd audit tail [flags] [FILE]         print records of reads as they are written, until interrupted
  catalogd audit export [flags] [FILE ...]   print all lines as they are, checkpoints too

Without FILE, with --config FILE or --data-dir DIR, they read the log of reads and the changes of every warehouse in
the store (--warehouse NAME: of this one); with SQLite the server has to be stopped meanwhile. With files, oldest
first, they read these; - is standard input, a directory an archive (or a part of one, such as warehouses/NAME).
  --key FILE              a key that verifies, public or private; can be given again (those of the configuration count)
  --checkpoint FILE       a checkpoint that was kept elsewhere, which must still hold; can be given again
  --logs N                how many servers' logs of reads were put together; 1 unless given (verify)
  --strict                records that no checkpoint proves, and no key given, are a fault too (verify)
  -o text|json            form of the report (verify)
  --since, --until TIME   RFC 3339, or an age such as 24h
  --principal, --actor, --resource, --operation NAME, --outcome ok|denied|failed
`

// trail is one log of records.
type trail struct {
	name string
	read iter.Seq2[audit.Line, error]
	kept time.Time
}

func auditCommand(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("audit needs verify, query, tail or export: %w", errUsage)
	}
	name, args := args[0], args[1:]
	f := newFlags("audit " + name)
	var keyFiles, checkpointFiles locations
	path, dataDir, warehouse := f.String("config", "", ""), f.String("data-dir", "", ""), f.String("warehouse", "", "")
	format, logs, strict := "text", 1, false
	var filter audit.Filter
	since, until := "", ""
	switch name {
	case "verify":
		f.Var(&keyFiles, "key", "")
		f.Var(&checkpointFiles, "checkpoint", "")
		f.StringVar(&format, "o", "text", "")
		f.IntVar(&logs, "logs", 1, "")
		f.BoolVar(&strict, "strict", false, "")
	case "query", "tail":
		if name == "query" {
			f.StringVar(&since, "since", "", "")
			f.StringVar(&until, "until", "", "")
		}
		f.StringVar(&filter.Principal, "principal", "", "")
		f.StringVar(&filter.Actor, "actor", "", "")
		f.StringVar(&filter.Resource, "resource", "", "")
		f.StringVar(&filter.Operation, "operation", "", "")
		f.StringVar(&filter.Outcome, "outcome", "", "")
	case "export":
	default:
		return fmt.Errorf("audit: there is no %q; it has verify, query, tail and export: %w", name, errUsage)
	}
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("audit %s: %w: %w", name, err, errUsage)
	}
	if format != "text" && format != "json" {
		return fmt.Errorf("audit verify: -o %q is not json or text: %w", format, errUsage)
	}
	if o := filter.Outcome; o != "" && o != audit.OutcomeOK && o != audit.OutcomeDenied && o != audit.OutcomeFailed {
		return fmt.Errorf("audit %s: --outcome %q is not ok, denied or failed: %w", name, o, errUsage)
	}
	var err error
	if filter.Since, err = parseMoment("since", since); err != nil {
		return err
	}
	if filter.Until, err = parseMoment("until", until); err != nil {
		return err
	}
	var c *config.Config
	if *path != "" || *dataDir != "" {
		u := &upkeep{flags: f, config: *path, dataDir: *dataDir}
		if c, err = u.load(); err != nil {
			return err
		}
	} else if f.NArg() == 0 {
		return fmt.Errorf("audit %s: name files, or give --config or --data-dir: %w", name, errUsage)
	}
	if name == "tail" {
		return auditTail(c, f.Args(), filter, stdout)
	}
	each := func(use func(trail) error) error {
		if f.NArg() > 0 {
			return fileTrail(f.Args(), stdin, use)
		}
		return configuredTrails(c, *warehouse, use)
	}
	if name == "verify" {
		o, err := verifyOptions(c, keyFiles, checkpointFiles)
		if err != nil {
			return err
		}
		o.Logs = logs
		return auditVerify(o, format, strict, each, stdout)
	}
	return each(func(t trail) error {
		for line, err := range t.read {
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			if name == "query" && !filter.Matches(line.Text) {
				continue
			}
			if _, err := stdout.Write(append(line.Text[:len(line.Text):len(line.Text)], '\n')); err != nil {
				return err
			}
		}
		return nil
	})
}

// auditTail follows the log of reads until the program is interrupted.
func auditTail(c *config.Config, files []string, filter audit.Filter, stdout io.Writer) error {
	if len(files) == 0 && c.Audit.ReadsInFile() {
		files = []string{c.Audit.Reads}
	}
	if len(files) != 1 {
		return fmt.Errorf("audit tail: name one file (the configuration has audit.reads: stderr, off or a file): %w", errUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := audit.Follow(ctx, files[0], false, 200*time.Millisecond, func(line []byte) error {
		if !filter.Matches(line) {
			return nil
		}
		_, err := fmt.Fprintf(stdout, "%s\n", line)
		return err
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// parseMoment reads a time, or an age before now.
func parseMoment(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(s); err == nil {
		return time.Now().Add(-age), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("--%s %q is neither a time such as 2026-01-31T12:00:00Z nor an age such as 24h: %w", flag, s, errUsage)
	}
	return t, nil
}

// fileTrail is what files hold, one after the other; for a directory those of
// the archive in it.
func fileTrail(names []string, stdin io.Reader, use func(trail) error) error {
	readers, err := archive.Readers(stdin, names...)
	if err != nil {
		return err
	}
	return use(trail{name: names[0], read: audit.Lines(readers...)})
}

// configuredTrails are the log of reads and the chain of each warehouse.
func configuredTrails(c *config.Config, warehouse string, use func(trail) error) error {
	var errs []error
	if warehouse == "" && c.Audit.ReadsInFile() {
		errs = append(errs, readsTrail(c.Audit.Reads, use))
	}
	ctx := context.Background()
	errs = append(errs, server.AuditStore(ctx, c, func(store catalog.Store, ids map[string]uuid.UUID, administration uuid.UUID) error {
		if _, ok := ids[warehouse]; !ok && warehouse != "" {
			return fmt.Errorf("there is no warehouse %q", warehouse)
		}
		for _, name := range slices.Sorted(maps.Keys(ids)) {
			if warehouse != "" && name != warehouse {
				continue
			}
			t := trail{name: "warehouse " + name, read: catalog.AuditLines(ctx, store, ids[name], 0), kept: server.KeptSince(c, time.Now())}
			errs = append(errs, use(t))
		}
		if warehouse == "" {
			errs = append(errs, use(trail{name: "administration", read: catalog.AuditLines(ctx, store, administration, 0), kept: server.KeptSince(c, time.Now())}))
		}
		return nil
	}))
	return errors.Join(errs...)
}

// readsTrail is the log of reads: its file, and those that were moved away and
// are still beside it.
func readsTrail(path string, use func(trail) error) error {
	segments, err := audit.Segments(path)
	if err != nil {
		return err
	}
	names := []string{}
	for _, s := range segments {
		if s.Path != path {
			names = append(names, s.Path)
		}
	}
	return fileTrail(append(names, path), nil, func(t trail) error {
		t.name = path
		return use(t)
	})
}

func verifyOptions(c *config.Config, keyFiles, checkpointFiles []string) (audit.VerifyOptions, error) {
	o := audit.VerifyOptions{Keys: audit.Keys{}}
	if c != nil {
		keys, err := server.AuditKeys(c)
		if err != nil {
			return o, err
		}
		o.Keys = keys
	}
	if err := audit.ReadKeys(o.Keys, keyFiles...); err != nil {
		return o, err
	}
	var err error
	o.Checkpoints, err = audit.ReadCheckpoints(checkpointFiles...)
	return o, err
}

// errAltered is what verify ends with when a log is not whole.
var errAltered = errors.New("the audit log is not what the server wrote")

// errUnproven is what verify ends with when it is to be strict.
var errUnproven = errors.New("there are records that no signed checkpoint proves")

func auditVerify(o audit.VerifyOptions, format string, strict bool, each func(func(trail) error) error, stdout io.Writer) error {
	kept := o.Checkpoints
	altered, unproven := false, false
	err := each(func(t trail) error {
		o.RemovedBefore, o.Checkpoints = t.kept, kept
		report, err := audit.Verify(t.read, o)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		altered = altered || !report.OK()
		unproven = unproven || report.Unproven() > 0 || report.Older > 0 || len(o.Keys) == 0
		if format == "json" {
			return json.NewEncoder(stdout).Encode(report.Summary(t.name, len(o.Keys) > 0))
		}
		return report.WriteText(stdout, t.name, len(o.Keys) > 0)
	})
	if altered {
		err = errors.Join(err, errAltered)
	}
	if strict && unproven {
		err = errors.Join(err, errUnproven)
	}
	return err
}
