// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const auditService = "AuditService"

// forServer is the filter as the server takes it. A principal counts as an
// actor, too, there.
func (f *auditFilter) forServer(partitions []string) (message, error) {
	if f.Actor != "" {
		return nil, usage(errors.New("--actor is for files; on the server --principal also finds who acts for another"), "")
	}
	m := message{}
	for k, v := range map[string]string{"principal": f.Principal, "operation": f.Operation, "resource": f.Resource, "outcome": f.Outcome} {
		if v != "" {
			m[k] = v
		}
	}
	for k, t := range map[string]time.Time{"startTime": f.Since, "endTime": f.Until} {
		if !t.IsZero() {
			m[k] = t.UTC().Format(time.RFC3339Nano)
		}
	}
	if len(partitions) > 0 {
		m["partitions"] = partitions
	}
	return m, nil
}

// serverRow is a server's record as a row.
func serverRow(m message) []string {
	who := text(m, "principal")
	if actor := text(m, "actor"); actor != "" {
		who += " by " + actor
	}
	outcome := text(m, "outcome")
	if status := text(m, "status"); status != "" {
		outcome += " " + status
	}
	return []string{text(m, "time"), who, text(m, "operation"), text(m, "partition") + "/" + text(m, "resource"), outcome}
}

// queryServer searches the server's records of changes.
func (a *app) queryServer(ctx context.Context, f *auditFilter, partitions []string, limit int) error {
	filter, err := f.forServer(partitions)
	if err != nil {
		return err
	}
	wanted := 0
	if limit > 0 {
		wanted = limit + 1 // to know whether there are more
	}
	all, err := a.pages(ctx, auditService, "QueryAudit", "records", message{"filter": filter}, wanted)
	if err != nil {
		return err
	}
	if limit > 0 && len(all) > limit {
		all = all[:limit]
		a.hint("There are more than %d; --limit 0 prints all.", limit)
	}
	if a.format == "json" { // a line for each, as from files
		for _, m := range all {
			if err := a.jsonLine(m); err != nil {
				return err
			}
		}
		return nil
	}
	l := list{columns: recordColumns, value: all, none: "No record is like that."}
	for _, m := range all {
		l.rows = append(l.rows, serverRow(m))
	}
	return a.print(l)
}

func (a *app) jsonLine(m message) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return a.write(string(raw) + "\n")
}

// tailServer prints records as they come.
func (a *app) tailServer(ctx context.Context, f *auditFilter, partitions []string) error {
	filter, err := f.forServer(partitions)
	if err != nil {
		return err
	}
	err = a.stream(ctx, auditService, "TailAudit", message{"filter": filter}, func(m message) error {
		record, _ := m["record"].(message)
		if a.format != "table" {
			return a.jsonLine(record)
		}
		row := serverRow(record)
		for i := range row {
			row[i] = clean(row[i])
		}
		return a.write(strings.Join(row, "  ") + "\n")
	})
	if errors.Is(err, context.Canceled) {
		return nil // that is how it ends
	}
	return err
}

// verifyServer has the server verify its own chains. That is no proof against
// whoever runs it.
func (a *app) verifyServer(ctx context.Context, partitions []string) error {
	body := message{}
	if len(partitions) > 0 {
		body["partitions"] = partitions
	}
	answer, err := a.ask(ctx, auditService, "VerifyAudit", body)
	if err != nil {
		return err
	}
	found, _ := answer["partitions"].([]any)
	l := list{columns: []string{"CHAIN", "RESULT", "RECORDS", "SIGNED", "CHECKPOINTS"}, value: answer, none: "There is no chain that you may read."}
	broken := 0
	var problems []string
	for _, x := range found {
		m, ok := x.(message)
		if !ok {
			continue
		}
		result := "ok"
		if m["intact"] != true {
			result = "FAIL"
			broken++
		}
		list, _ := m["problems"].([]any)
		for _, p := range list {
			problems = append(problems, fmt.Sprintf("%s: %s", text(m, "partition"), valueText(p)))
		}
		l.rows = append(l.rows, []string{text(m, "partition"), result, first(text(m, "recordCount"), "0"), first(text(m, "signedCount"), "0"), first(text(m, "checkpointCount"), "0")})
	}
	if err := a.print(l); err != nil {
		return err
	}
	if a.format == "table" {
		for _, p := range problems {
			a.hint("%s", clean(p))
		}
	}
	if broken > 0 {
		return wanting("the audit log is not what the server wrote")
	}
	a.hint("The server says so of itself; for a proof: sharectl audit export --chain NAME > FILE, and sharectl audit verify --key KEY FILE")
	return nil
}

// exportServer prints a chain's lines exactly as hashed.
func (a *app) exportServer(ctx context.Context, partition string) error {
	return a.stream(ctx, auditService, "ExportAudit", message{"partition": partition}, func(m message) error {
		lines, _ := m["lines"].([]any)
		for _, line := range lines {
			if err := a.write(valueText(line) + "\n"); err != nil {
				return err
			}
		}
		return nil
	})
}
