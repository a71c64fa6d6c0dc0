// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/internal/audit"
)

// pause is how often a followed file is looked at.
const pause = 200 * time.Millisecond

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Read the audit log, and prove that nobody has changed it",
		Long: `Reads audit logs from files: those that servers write, or that "audit export"
wrote. Files are named oldest first; - is stdin. Without a file it reads the
changes that the context's server keeps, in a chain for each warehouse and one,
administration, for what the sharing API changes. docs/audit.md says what a log
proves.`,
	}
	cmd.AddCommand(a.auditVerify(), a.auditQuery(), a.auditTail(), a.auditExport())
	return cmd
}

// logLines reads the lines of files, one after the other.
func (a *app) logLines(files []string) (log iter.Seq2[audit.Line, error], done func(), err error) {
	var readers []io.Reader
	var open []*os.File
	done = func() {
		for _, f := range open {
			f.Close()
		}
	}
	for _, name := range files {
		if name == "-" {
			readers = append(readers, a.Stdin)
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			done()
			return nil, nil, err
		}
		open, readers = append(open, f), append(readers, f)
	}
	return audit.Lines(readers...), done, nil
}

func (a *app) auditVerify() *cobra.Command {
	var keys, checkpoints, chains []string
	cmd := &cobra.Command{
		Use: "verify [FILE...]", Short: "Prove that nobody has changed a log; exit code 6 if somebody has",
		Example: "  sharectl audit verify --key audit.pub.pem --checkpoint kept.json reads.log.1 reads.log",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if len(keys)+len(checkpoints) > 0 {
					return usage(errors.New("keys and checkpoints verify files"), "sharectl audit verify --key FILE LOG...")
				}
				return a.verifyServer(cmd.Context(), chains)
			}
			o := audit.VerifyOptions{Keys: audit.Keys{}}
			if err := audit.ReadKeys(o.Keys, keys...); err != nil {
				return usage(err, "")
			}
			var err error
			if o.Checkpoints, err = audit.ReadCheckpoints(checkpoints...); err != nil {
				return usage(err, "")
			}
			log, done, err := a.logLines(args)
			if err != nil {
				return err
			}
			defer done()
			report, err := audit.Verify(log, o)
			if err != nil {
				return err
			}
			if a.format == "table" {
				err = report.WriteText(a.Stdout, args[0], len(keys) > 0)
			} else {
				err = a.encode(report.Summary(args[0], len(keys) > 0))
			}
			switch {
			case err != nil:
				return err
			case !report.OK():
				return wanting("the audit log is not what the server wrote")
			case len(keys) == 0 && report.Records > 0:
				a.hint("Without --key FILE this shows damage only.")
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "key that verifies, public or private; can be given again")
	cmd.Flags().StringArrayVar(&checkpoints, "checkpoint", nil, "file with checkpoints that were kept elsewhere; can be given again")
	addChains(cmd, &chains)
	return cmd
}

// addChains adds the flag that chooses chains of a server.
func addChains(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringArrayVar(to, "chain", nil, "without files: this chain of the server, a warehouse or administration; can be given again")
}

// auditFilter are the flags that choose records.
type auditFilter struct {
	audit.Filter
	since, until string
}

func (f *auditFilter) flags(cmd *cobra.Command, times bool) {
	if times {
		cmd.Flags().StringVar(&f.since, "since", "", "from this time on (RFC 3339), or an age such as 24h")
		cmd.Flags().StringVar(&f.until, "until", "", "before this time")
	}
	cmd.Flags().StringVar(&f.Principal, "principal", "", "id of the principal")
	cmd.Flags().StringVar(&f.Actor, "actor", "", "id of who acts for it")
	cmd.Flags().StringVar(&f.Resource, "resource", "", "identifier, or the levels that it begins with")
	cmd.Flags().StringVar(&f.Operation, "operation", "", "operation, as loadTable")
	cmd.Flags().StringVar(&f.Outcome, "outcome", "", "ok, denied or failed")
	_ = cmd.RegisterFlagCompletionFunc("outcome", cobra.FixedCompletions([]string{audit.OutcomeOK, audit.OutcomeDenied, audit.OutcomeFailed}, cobra.ShellCompDirectiveNoFileComp))
}

// ready checks the flags.
func (f *auditFilter) ready(now time.Time) error {
	switch f.Outcome {
	case "", audit.OutcomeOK, audit.OutcomeDenied, audit.OutcomeFailed:
	default:
		return usage(fmt.Errorf("--outcome %q is not ok, denied or failed", f.Outcome), "")
	}
	for _, t := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &f.Since}, {"until", f.until, &f.Until}} {
		if t.text == "" {
			continue
		}
		if age, err := time.ParseDuration(t.text); err == nil {
			*t.to = now.Add(-age)
			continue
		}
		moment, err := time.Parse(time.RFC3339, t.text)
		if err != nil {
			return usage(fmt.Errorf("--%s %q is neither a time such as 2026-01-31T12:00:00Z nor an age such as 24h", t.flag, t.text), "")
		}
		*t.to = moment
	}
	return nil
}

// recordJSON is what a line for people shows of a record.
type recordJSON struct {
	Type, Time, Principal, Actor, Operation, Warehouse, Resource, Decision string
	Status                                                                 int
}

// recordRow is a record as a row.
func recordRow(text []byte) ([]string, error) {
	var r recordJSON
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	who := r.Principal
	if r.Actor != "" {
		who += " by " + r.Actor
	}
	resource := r.Resource
	if r.Warehouse != "" {
		resource = r.Warehouse + "/" + resource
	}
	outcome := r.Decision
	if r.Status != 0 {
		outcome = fmt.Sprintf("%s %d", r.Decision, r.Status)
	}
	return []string{r.Time, who, r.Operation, resource, outcome}, nil
}

var recordColumns = []string{"TIME", "WHO", "OPERATION", "WHAT", "OUTCOME"}

func (a *app) auditQuery() *cobra.Command {
	var filter auditFilter
	var limit int
	var chains []string
	cmd := &cobra.Command{
		Use: "query [FILE...]", Short: "Search records",
		Long:    "Searches records: in files from the oldest on, on the server from the newest on.\nWith -o json each is printed on a line.",
		Example: "  sharectl audit query --since 24h --outcome denied reads.log\n  sharectl audit query --since 24h --chain administration",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filter.ready(a.Now()); err != nil {
				return err
			}
			if len(args) == 0 {
				return a.queryServer(cmd.Context(), &filter, chains, limit)
			}
			log, done, err := a.logLines(args)
			if err != nil {
				return err
			}
			defer done()
			l := list{columns: recordColumns, none: "No record is like that."}
			values := []json.RawMessage{}
			found := 0
			for line, err := range log {
				if err != nil {
					return err
				}
				if !filter.Matches(line.Text) {
					continue
				}
				if found++; limit > 0 && found > limit {
					break
				}
				switch a.format {
				case "json":
					if _, err := fmt.Fprintf(a.Stdout, "%s\n", line.Text); err != nil {
						return err
					}
				case "yaml":
					values = append(values, bytes.Clone(line.Text))
				default:
					row, err := recordRow(line.Text)
					if err != nil {
						return err
					}
					l.rows = append(l.rows, row)
				}
			}
			if limit > 0 && found > limit {
				a.hint("There are more than %d; --limit 0 prints all.", limit)
			}
			if a.format == "json" {
				return nil
			}
			l.value = values
			return a.print(l)
		},
	}
	filter.flags(cmd, true)
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many; 0 for all")
	addChains(cmd, &chains)
	return cmd
}

func (a *app) auditTail() *cobra.Command {
	var filter auditFilter
	var all bool
	var chains []string
	cmd := &cobra.Command{
		Use: "tail [FILE]", Short: "Print records as they are written, also after the file is rotated", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filter.ready(a.Now()); err != nil {
				return err
			}
			if len(args) == 0 {
				return a.tailServer(cmd.Context(), &filter, chains)
			}
			err := audit.Follow(cmd.Context(), args[0], all, pause, func(line []byte) error {
				if !filter.Matches(line) {
					return nil
				}
				if a.format != "table" {
					_, err := fmt.Fprintf(a.Stdout, "%s\n", line)
					return err
				}
				row, err := recordRow(line)
				if err != nil {
					return err
				}
				for i := range row {
					row[i] = clean(row[i])
				}
				_, err = fmt.Fprintf(a.Stdout, "%s  %s  %s  %s  %s\n", row[0], row[1], row[2], row[3], row[4])
				return err
			})
			if errors.Is(err, context.Canceled) {
				return nil // that is how it ends
			}
			return err
		},
	}
	filter.flags(cmd, false)
	cmd.Flags().BoolVar(&all, "all", false, "with a file: those that are there already, too")
	addChains(cmd, &chains)
	return cmd
}

func (a *app) auditExport() *cobra.Command {
	var chain string
	cmd := &cobra.Command{
		Use: "export [FILE...]", Short: "Print all lines as they are, checkpoints too; what it prints verifies",
		Example: "  sharectl audit export --chain sales > sales.log && sharectl audit verify --key audit.pub.pem sales.log",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if chain == "" {
					return usage(errors.New("which chain?"), "sharectl audit export --chain administration")
				}
				return a.exportServer(cmd.Context(), chain)
			}
			log, done, err := a.logLines(args)
			if err != nil {
				return err
			}
			defer done()
			for line, err := range log {
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintf(a.Stdout, "%s\n", line.Text); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&chain, "chain", "", "without files: this chain of the server, a warehouse or administration")
	return cmd
}
