// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	icetable "github.com/apache/iceberg-go/table"
)

// largeDocument returns a version 2 table whose JSON has about size bytes,
// most of them snapshots as Spark writes them.
func largeDocument(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"format-version":2,"table-uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1","location":"s3://bucket/warehouse/db/events",` +
		`"last-updated-ms":1700000000000,"last-column-id":3,"current-schema-id":0,"schemas":[{"type":"struct","schema-id":0,"fields":[` +
		`{"id":1,"name":"id","required":true,"type":"long"},{"id":2,"name":"at","required":true,"type":"timestamptz"},{"id":3,"name":"payload","required":false,"type":"string"}]}],` +
		`"default-spec-id":0,"partition-specs":[{"spec-id":0,"fields":[{"name":"at_day","transform":"day","source-id":2,"field-id":1000}]}],"last-partition-id":1000,` +
		`"default-sort-order-id":0,"sort-orders":[{"order-id":0,"fields":[]}],"properties":{"owner":"etl","write.parquet.compression-codec":"zstd"}`)
	var snapshots, log bytes.Buffer
	id, n := int64(0), 0
	for b.Len()+snapshots.Len()+log.Len() < size-400 {
		parent := ""
		if n > 0 {
			parent = fmt.Sprintf(`"parent-snapshot-id":%d,`, id)
			snapshots.WriteByte(',')
			log.WriteByte(',')
		}
		id = int64((uint64(n+1)*0x9E3779B97F4A7C15)>>1) | 1 //nolint:gosec // shifted right, so it fits
		n++
		at := int64(1600000000000) + int64(n)*1000
		fmt.Fprintf(&snapshots, `{"sequence-number":%d,"snapshot-id":%d,%s"timestamp-ms":%d,"summary":{"operation":"append","spark.app.id":"application_1700000000000_%06d",`+
			`"added-data-files":"12","added-records":"120000","added-files-size":"48211223","changed-partition-count":"3","total-records":"%d","total-files-size":"%d",`+
			`"total-data-files":"%d","total-delete-files":"0","total-position-deletes":"0","total-equality-deletes":"0","engine-version":"3.5.1","app-id":"application_1700000000000_%06d",`+
			`"engine-name":"spark","iceberg-version":"Apache Iceberg 1.12.0 (commit 8b2ba1b)"},"manifest-list":"s3://bucket/warehouse/db/events/metadata/snap-%d-1-6f2c4a9e-4e8b-4d0a-9a5b-3c1d2e3f4a5b.avro","schema-id":0}`,
			n, id, parent, at, n, n*120000, n*48211223, n*12, n, id)
		fmt.Fprintf(&log, `{"timestamp-ms":%d,"snapshot-id":%d}`, at, id)
	}
	current := "-1"
	if n > 0 {
		current = fmt.Sprint(id)
		fmt.Fprintf(&b, `,"refs":{"main":{"snapshot-id":%d,"type":"branch"}}`, id)
	}
	fmt.Fprintf(&b, `,"last-sequence-number":%d,"current-snapshot-id":%s,"snapshots":[`, n, current)
	b.Write(snapshots.Bytes())
	b.WriteString(`],"statistics":[],"partition-statistics":[],"snapshot-log":[`)
	b.Write(log.Bytes())
	b.WriteString(`],"metadata-log":[]}`)
	return b.Bytes()
}

var benchSizes = []struct {
	name string
	size int
}{{"1KB", 1 << 10}, {"1MB", 1 << 20}, {"10MB", 10 << 20}}

// appendUpdates are what an engine sends for an append.
func appendUpdates(d *Document) []byte {
	return fmt.Appendf(nil, `[{"action":"add-snapshot","snapshot":{"sequence-number":%d,"snapshot-id":42,"timestamp-ms":1700000000001,`+
		`"summary":{"operation":"append","added-records":"1"},"manifest-list":"s3://bucket/warehouse/db/events/metadata/snap-42.avro","schema-id":0}},`+
		`{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":42}]`, d.LastSequenceNumber()+1)
}

var benchOptions = ApplyOptions{At: time.UnixMilli(1700000000002), PreviousMetadataLocation: "s3://bucket/warehouse/db/events/metadata/00001-a.metadata.json"}

func BenchmarkParse(b *testing.B) {
	for _, s := range benchSizes {
		raw := largeDocument(s.size)
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(raw, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.name+"/iceberg-go", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := icetable.ParseMetadataBytes(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCommit is an append to a parsed document, decoding of the updates
// included; for iceberg-go, which keeps no bytes, also parse and serialise.
func BenchmarkCommit(b *testing.B) {
	for _, s := range benchSizes {
		raw := largeDocument(s.size)
		d := mustParse(b, raw)
		request := appendUpdates(d)
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				updates, err := DecodeUpdates(request)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := d.Apply(updates, benchOptions); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.name+"/iceberg-go", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := icebergApply(raw, request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// icebergApply is parse, apply and serialise with iceberg-go.
func icebergApply(base, request []byte) ([]byte, error) {
	meta, err := icetable.ParseMetadataBytes(base)
	if err != nil {
		return nil, err
	}
	var updates icetable.Updates
	if err := json.Unmarshal(request, &updates); err != nil {
		return nil, err
	}
	after, err := icetable.UpdateTableMetadata(meta, updates, benchOptions.PreviousMetadataLocation)
	if err != nil {
		return nil, err
	}
	return json.Marshal(after)
}

func BenchmarkRefsOnly(b *testing.B) {
	for _, s := range benchSizes {
		d := mustParse(b, largeDocument(s.size))
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(d.Size()))
			b.ReportAllocs()
			for b.Loop() {
				d.RefsOnly()
			}
		})
	}
}

// BenchmarkExpire removes half of the snapshots.
func BenchmarkExpire(b *testing.B) {
	d := mustParse(b, largeDocument(10<<20))
	var ids []int64
	for s := range d.Snapshots() {
		if len(ids) < d.SnapshotCount()/2 {
			ids = append(ids, s.ID)
		}
	}
	list, err := json.Marshal(ids)
	if err != nil {
		b.Fatal(err)
	}
	updates, err := DecodeUpdates(fmt.Appendf(nil, `[{"action":"remove-snapshots","snapshot-ids":%s}]`, list))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := d.Apply(updates, benchOptions); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDocumentMemory reports what a parsed document keeps alive, as a
// multiple of its bytes.
func BenchmarkDocumentMemory(b *testing.B) {
	for b.Loop() {
		live := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		raw := bytes.Clone(largeDocument(10 << 20)) // without the buffer's spare room
		before := live()
		d := mustParse(b, raw)
		after := live()
		b.ReportMetric(1+float64(after-before)/float64(d.Size()), "heap/bytes")
		runtime.KeepAlive(d)
	}
}

// BenchmarkManyUpdates are lists of updates as long as a request may have
// them, which must not cost time with their square.
func BenchmarkManyUpdates(b *testing.B) {
	d := mustParse(b, largeDocument(1<<20))
	current, _ := d.CurrentSnapshotID()
	for name, c := range map[string]struct {
		n    int
		make func(i int) string
	}{
		"add-schema": {maxStructural, func(i int) string {
			return fmt.Sprintf(`{"action":"add-schema","schema":{"type":"struct","fields":[{"id":%d,"name":"a","required":false,"type":"int"}]}}`, i+10)
		}},
		"add-spec": {maxStructural, func(i int) string {
			return fmt.Sprintf(`{"action":"add-spec","spec":{"fields":[{"name":"p%d","transform":"bucket[%d]","source-id":1}]}}`, i, i+1)
		}},
		"set-properties": {maxUpdates, func(i int) string { return fmt.Sprintf(`{"action":"set-properties","updates":{"k%d":"v"}}`, i) }},
		"set-snapshot-ref": {maxUpdates - 1, func(i int) string {
			return fmt.Sprintf(`{"action":"set-snapshot-ref","ref-name":"t%d","type":"tag","snapshot-id":%d}`, i, current)
		}},
		"remove-snapshots": {maxUpdates, func(i int) string {
			return fmt.Sprintf(`{"action":"remove-snapshots","snapshot-ids":[%d]}`, d.snapshots[i%d.SnapshotCount()].id)
		}},
		"add-and-remove": {maxUpdates, func(i int) string {
			if i >= maxUpdates/2 {
				return fmt.Sprintf(`{"action":"remove-snapshots","snapshot-ids":[%d]}`, i-maxUpdates/2)
			}
			return fmt.Sprintf(`{"action":"add-snapshot","snapshot":{"snapshot-id":%d,"sequence-number":%d,"timestamp-ms":1700000000000,"manifest-list":"m","summary":{"operation":"append"}}}`, i, d.LastSequenceNumber()+int64(i)+1)
		}},
		"set-statistics": {maxUpdates, func(i int) string {
			return fmt.Sprintf(`{"action":"set-partition-statistics","partition-statistics":{"snapshot-id":%d,"statistics-path":"s","file-size-in-bytes":1}}`, i)
		}},
	} {
		b.Run(name, func(b *testing.B) {
			parts := make([]string, c.n)
			for i := range parts {
				parts[i] = c.make(i)
			}
			request := []byte("[" + strings.Join(parts, ",") + "]")
			for b.Loop() {
				updates, err := DecodeUpdates(request)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := d.Apply(updates, benchOptions); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
