// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audittable

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/sluice-data/sluice/internal/audit"
)

// The table's schema. Fields may be added at the end; a table that was made
// before keeps its own, and rows have what it knows.
const (
	schemaJSON = `{"type":"struct","fields":[
{"id":1,"name":"time","type":"timestamptz","required":true},
{"id":2,"name":"type","type":"string","required":true,"doc":"audit. and the kind of record; audit.checkpoint and audit.partition are of the log itself"},
{"id":3,"name":"partition","type":"string","required":true,"doc":"chain that the line belongs to: of a warehouse's changes, or of a run of a server"},
{"id":4,"name":"seq","type":"long","required":true,"doc":"number in it"},
{"id":5,"name":"source","type":"string","required":true,"doc":"warehouses/<name> or administration for changes, or reads"},
{"id":6,"name":"request_id","type":"string","required":false},
{"id":7,"name":"principal","type":"string","required":false},
{"id":8,"name":"actor","type":"string","required":false,"doc":"who acted for the principal"},
{"id":9,"name":"address","type":"string","required":false},
{"id":10,"name":"operation","type":"string","required":false},
{"id":11,"name":"warehouse","type":"string","required":false},
{"id":12,"name":"resource","type":"string","required":false},
{"id":13,"name":"status","type":"int","required":false,"doc":"HTTP status"},
{"id":14,"name":"decision","type":"string","required":false,"doc":"allow or deny"},
{"id":15,"name":"outcome","type":"string","required":false,"doc":"ok, denied or failed"},
{"id":16,"name":"policies","required":false,"type":{"type":"list","element-id":17,"element-required":true,"element":{"type":"struct","fields":[
{"id":18,"name":"set","type":"string","required":true},{"id":19,"name":"version","type":"long","required":true},{"id":20,"name":"policy","type":"string","required":false}]}},"doc":"policies that determined the decision, with the versions of their sets"},
{"id":21,"name":"detail","type":"string","required":false,"doc":"JSON"},
{"id":22,"name":"hash","type":"string","required":false},
{"id":23,"name":"line","type":"string","required":true,"doc":"the record as it was written, which verifies"}]}`
	specJSON = `{"fields":[{"source-id":1,"field-id":1000,"name":"day","transform":"day"}]}`
)

// rowsOf turns lines into one batch of rows in a table's schema.
func rowsOf(schema *iceberg.Schema, source string, lines [][]byte) (array.RecordReader, error) {
	to, err := table.SchemaToArrowSchema(schema, nil, true, false)
	if err != nil {
		return nil, err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, to)
	defer b.Release()
	of := func(name string) array.Builder {
		for i, f := range to.Fields() {
			if f.Name == name {
				return b.Field(i)
			}
		}
		return nil
	}
	texts := map[string]*array.StringBuilder{}
	for _, f := range to.Fields() {
		if t, ok := of(f.Name).(*array.StringBuilder); ok {
			texts[f.Name] = t
		}
	}
	_, hasTime := of("time").(*array.TimestampBuilder)
	_, hasSeq := of("seq").(*array.Int64Builder)
	for _, name := range []string{"type", "partition", "source", "line"} {
		hasSeq = hasSeq && texts[name] != nil
	}
	if !hasTime || !hasSeq {
		return nil, fmt.Errorf("%s is there, and is not a table of audit records: rename or drop it, with audit.table switched off meanwhile", Ident)
	}
	for _, line := range lines {
		i, err := audit.ParseLine(line)
		if err != nil {
			return nil, err
		}
		if name, ok := strings.CutPrefix(source, "warehouses/"); ok && i.Warehouse == "" {
			i.Warehouse = name
		}
		outcome := ""
		if i.IsRecord() {
			outcome = i.Outcome()
		}
		values := map[string]string{
			"type": i.Type, "partition": i.Partition, "source": source, "request_id": i.RequestID, "principal": i.Principal, "actor": i.Actor,
			"address": i.Address, "operation": i.Operation, "warehouse": i.Warehouse, "resource": i.Resource, "decision": i.Decision,
			"outcome": outcome, "detail": string(i.Detail), "hash": i.Hash, "line": string(line),
		}
		for name, to := range texts {
			if v := values[name]; v != "" {
				to.Append(v)
			} else {
				to.AppendNull()
			}
		}
		if t, ok := of("time").(*array.TimestampBuilder); ok {
			t.Append(arrow.Timestamp(i.Time.UnixMicro()))
		}
		if n, ok := of("seq").(*array.Int64Builder); ok {
			n.Append(i.Seq)
		}
		if n, ok := of("status").(*array.Int32Builder); ok {
			if i.Status > 0 && i.Status < 1000 {
				n.Append(int32(i.Status)) //nolint:gosec // just looked at
			} else {
				n.AppendNull()
			}
		}
		if l, ok := of("policies").(*array.ListBuilder); ok {
			appendPolicies(l, i.Policies)
		}
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	return array.NewRecordReader(to, []arrow.RecordBatch{batch})
}

func appendPolicies(l *array.ListBuilder, policies []audit.Policy) {
	if len(policies) == 0 {
		l.AppendNull()
		return
	}
	l.Append(true)
	s := l.ValueBuilder().(*array.StructBuilder)
	for _, p := range policies {
		s.Append(true)
		s.FieldBuilder(0).(*array.StringBuilder).Append(p.Set)
		s.FieldBuilder(1).(*array.Int64Builder).Append(p.Version)
		if policy := s.FieldBuilder(2).(*array.StringBuilder); p.ID != "" {
			policy.Append(p.ID)
		} else {
			policy.AppendNull()
		}
	}
}
