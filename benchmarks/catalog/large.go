// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	icetable "github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog/metadata"
)

// manySnapshots is the table whose commits are compared with iceberg-go's and
// Java's: 10 MB of metadata.
const manySnapshots = 10_000

// largeTable is the table of namespace large that is committed to.
const largeTable = "many"

// commitLarge measures commits to a table with many snapshots, one after the
// other: the CPU time of each, all of the request included.
func (b *bench) commitLarge(ctx context.Context, s *subject, count int) (sample, error) {
	sc := scenario{name: commitLarge, count: int64(count), requests: func(context.Context, *subject, string) ([]request, error) {
		return []request{{
			Method: http.MethodPost, Path: s.path("/namespaces/%s/tables/%s", large, largeTable), Header: s.header(),
			Body: commitBody(fmt.Sprintf(addSnapshot, s.root+"/"+large+"-"+largeTable)),
		}}, nil
	}}
	got, _, err := b.measure(ctx, s, sc, 1, "")
	return got, err
}

// figures are what the second process says of metadata in memory.
type figures struct {
	IcebergGoMs float64 `json:"iceberg-go-ms"` // CPU of parse, apply, serialise
	SluiceMs    float64 `json:"sluice-ms"`     // CPU of decode, apply on the cached document
	ParseMs     float64 `json:"parse-ms"`      // CPU of our parse, once per metadata file
	HeapFactor  float64 `json:"heap-factor"`   // live heap of a parsed document / its bytes
	Bytes       int     `json:"bytes"`
}

// measureMetadata runs metadataCommand as a process of its own.
func measureMetadata(ctx context.Context, dir string) (figures, error) {
	file := filepath.Join(dir, "many.metadata.json")
	if err := os.WriteFile(file, largeMetadata(uuid.New(), "file:///warehouse/many", manySnapshots), 0o600); err != nil {
		return figures{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return figures{}, err
	}
	cmd := exec.CommandContext(ctx, self, commandMetadata, file)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return figures{}, fmt.Errorf("measure metadata in process: %w", err)
	}
	var f figures
	return f, json.Unmarshal(out, &f)
}

func metadataCommand(file string, stdout io.Writer) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	updates := fmt.Appendf(nil, `[{"action":"add-snapshot","snapshot":{"sequence-number":%d,"snapshot-id":5,"timestamp-ms":1700000000001,`+
		`"summary":{"operation":"append","added-records":"1"},"manifest-list":"file:///warehouse/many/metadata/snap-5.avro","schema-id":0}},`+
		`{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":5}]`, manySnapshots+1)
	const previous = "file:///warehouse/many/metadata/00001-a.metadata.json"
	f := figures{Bytes: len(raw)}

	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	raw = bytes.Clone(raw) // without spare room
	before := live()
	doc, err := metadata.Parse(raw, metadata.Limits{})
	if err != nil {
		return err
	}
	f.HeapFactor = 1 + float64(live()-before)/float64(len(raw))

	if f.ParseMs, err = cpuOf(10, func() error {
		_, err := metadata.Parse(raw, metadata.Limits{})
		return err
	}); err != nil {
		return err
	}
	if f.SluiceMs, err = cpuOf(50, func() error {
		decoded, err := metadata.DecodeUpdates(updates)
		if err != nil {
			return err
		}
		_, _, err = doc.Apply(decoded, metadata.ApplyOptions{At: time.UnixMilli(1700000000002), PreviousMetadataLocation: previous})
		return err
	}); err != nil {
		return err
	}
	runtime.KeepAlive(doc)
	if f.IcebergGoMs, err = cpuOf(5, func() error {
		meta, err := icetable.ParseMetadataBytes(raw)
		if err != nil {
			return err
		}
		var decoded icetable.Updates
		if err := json.Unmarshal(updates, &decoded); err != nil {
			return err
		}
		after, err := icetable.UpdateTableMetadata(meta, decoded, previous)
		if err != nil {
			return err
		}
		_, err = json.Marshal(after)
		return err
	}); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(f)
}

// cpuOf returns the CPU time of this process per call, in ms.
func cpuOf(n int, f func() error) (float64, error) {
	used := func() (time.Duration, error) {
		var u syscall.Rusage
		err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
	}
	if err := f(); err != nil { // warm
		return 0, err
	}
	runtime.GC()
	before, err := used()
	if err != nil {
		return 0, err
	}
	for range n {
		if err := f(); err != nil {
			return 0, err
		}
	}
	after, err := used()
	return milliseconds(after-before) / float64(n), err
}

// growth is what one table with many snapshots adds to a server's memory.
type growth struct {
	idle, loaded, committed int64 // resident bytes: before, and the peaks of the two phases
	size                    int64 // of the metadata
}

// measureGrowth registers and loads such a table, and then commits to it, one
// commit after the other.
func (b *bench) measureGrowth(ctx context.Context, s *subject, commits int) (g growth, err error) {
	pid := s.process.pid()
	if g.idle, err = memory(pid, "VmRSS"); err != nil {
		return g, err
	}
	if err := s.createNamespace(ctx, large); err != nil {
		return g, err
	}
	if err := resetPeak(pid); err != nil {
		return g, err
	}
	if err := s.registerLarge(ctx, largeTable, manySnapshots); err != nil {
		return g, err
	}
	_, raw, err := s.call(ctx, http.MethodGet, s.path("/namespaces/%s/tables/%s", large, largeTable), nil)
	if err != nil {
		return g, err
	}
	g.size = int64(len(raw))
	if g.loaded, err = memory(pid, "VmHWM"); err != nil {
		return g, err
	}
	if _, err := b.commitLarge(ctx, s, commits); err != nil {
		return g, err
	}
	g.committed, err = memory(pid, "VmHWM")
	return g, err
}
