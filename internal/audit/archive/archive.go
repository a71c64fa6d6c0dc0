// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package archive keeps audit logs as objects of JSON lines, in a bucket or a
// directory:
//
//	<root>/<source>/<partition>/<number of the first record, 20 digits>.jsonl
//
// Invariants: objects are made and never changed, so the credentials need no
// right to overwrite or delete, and the bucket can be one that allows neither;
// each line is in one object, also when a batch comes again after a crash; an
// object that somebody else has put in the place of one is left, and the lines
// go beside it.
package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
)

// Objects is where an archive lies; *objstore.Bucket is one.
type Objects interface {
	WriteNew(ctx context.Context, location string, data []byte) error
	Read(ctx context.Context, location string, limit int64) ([]byte, error)
}

// Archive is an [audit.Sink].
type Archive struct {
	objects Objects
	root    string
	exists  error
	log     *slog.Logger
}

// New returns an archive below a location. exists is what WriteNew's error
// wraps when there is an object already.
func New(objects Objects, root string, exists error, log *slog.Logger) *Archive {
	return &Archive{objects: objects, root: strings.TrimRight(root, "/"), exists: exists, log: log}
}

// maxObject bounds what is read of an object that is there already: above what
// a batch can be.
const maxObject = 64 << 20

// suffix ends the names of objects.
const suffix = ".jsonl"

// Send implements [audit.Sink].
func (a *Archive) Send(ctx context.Context, b audit.Batch) error {
	for rest := b.Lines; len(rest) > 0; {
		name, err := nameOf(rest[0])
		if err != nil {
			return err
		}
		data := append(bytes.Join(rest, []byte("\n")), '\n')
		location := a.root + "/" + b.Source + "/" + b.Partition + "/" + name
		err = a.objects.WriteNew(ctx, location+suffix, data)
		if !errors.Is(err, a.exists) {
			return err
		}
		// An earlier try has written it, perhaps with fewer lines.
		there, err := a.objects.Read(ctx, location+suffix, maxObject)
		if err != nil {
			return err
		}
		kept, ok := common(there, rest)
		if !ok {
			sum := sha256.Sum256(data)
			location += "-" + hex.EncodeToString(sum[:8])
			a.log.Error("an object of the audit archive is not what was written there; the records go beside it", "object", location+suffix)
			if err := a.objects.WriteNew(ctx, location+suffix, data); !errors.Is(err, a.exists) {
				return err
			}
			return nil // its name says what it holds
		}
		rest = rest[kept:]
	}
	return nil
}

// common is how many of the lines an object holds, which must be all that it
// holds, or all of them.
func common(object []byte, lines [][]byte) (n int, ok bool) {
	for _, line := range lines {
		if len(object) == 0 {
			break
		}
		more, found := bytes.CutPrefix(object, line)
		if !found || len(more) == 0 || more[0] != '\n' {
			return 0, false
		}
		object = more[1:]
		n++
	}
	return n, n > 0 && (len(object) == 0 || n == len(lines))
}

// nameOf is the name of the object that begins with a line.
func nameOf(line []byte) (string, error) {
	i, err := audit.ParseLine(line)
	if err != nil {
		return "", fmt.Errorf("a line of the audit log is no JSON: %w", err)
	}
	name := fmt.Sprintf("%020d", i.Seq)
	if i.IsCheckpoint() {
		name += "-checkpoint"
	}
	return name, nil
}

// file is an object of an archive in a directory.
type file struct {
	path      string
	partition string
	seq       int64
	at        time.Time
	later     bool // a checkpoint, which comes after the record of its number
}

// Files returns the files of an archive, or of a part of one, that lies in a
// directory, in the order of the log: partitions by the time that they begin,
// in each the files by number.
func Files(dir string) ([]string, error) {
	var all []file
	began := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(path, suffix) {
			return err
		}
		f, err := open(path)
		if err != nil {
			return err
		}
		if t, ok := began[f.partition]; !ok || f.at.Before(t) {
			began[f.partition] = f.at
		}
		all = append(all, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b file) int {
		if a.partition != b.partition {
			if c := began[a.partition].Compare(began[b.partition]); c != 0 {
				return c
			}
			return strings.Compare(a.partition, b.partition)
		}
		switch {
		case a.seq != b.seq:
			return int(max(-1, min(1, a.seq-b.seq)))
		case a.later != b.later && b.later:
			return -1
		case a.later != b.later:
			return 1
		}
		return strings.Compare(a.path, b.path)
	})
	paths := make([]string, len(all))
	for i, f := range all {
		paths[i] = f.path
	}
	return paths, nil
}

// open reads the first line of a file.
func open(path string) (file, error) {
	r, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer r.Close()
	for line, err := range audit.Lines(io.LimitReader(r, maxObject)) {
		if err != nil {
			return file{}, err
		}
		i, err := audit.ParseLine(line.Text)
		if err != nil {
			break
		}
		return file{path: path, partition: i.Partition, seq: i.Seq, at: i.Time, later: i.IsCheckpoint()}, nil
	}
	return file{}, fmt.Errorf("%s does not begin with a line of an audit log", path)
}
