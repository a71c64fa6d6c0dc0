// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audittable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	stdio "io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/io"
)

// Objects is the object store of the warehouse; *objstore.Bucket is one.
type Objects interface {
	Read(ctx context.Context, location string, limit int64) ([]byte, error)
	WriteNew(ctx context.Context, location string, data []byte) error
	Delete(ctx context.Context, location string) error
}

// maxFile bounds what is read of a file: manifests and lists of them, and data
// files of a batch.
const maxFile = 256 << 20

// files lets the library read and write below the table's location, and
// nowhere else, with the warehouse's own credentials.
type files struct {
	ctx     context.Context //nolint:containedctx // the library's interface has none
	objects Objects
	root    string

	mu      sync.Mutex
	written []string
	err     error // of a file whose Close the library did not look at
}

func (f *files) open(context.Context) (io.IO, error) { return f, nil }

func (f *files) check(name string) error {
	if !strings.HasPrefix(name, f.root) {
		return fmt.Errorf("%s lies outside the audit table", name)
	}
	return nil
}

// ReadFile implements io.ReadFileIO.
func (f *files) ReadFile(name string) ([]byte, error) {
	if err := f.check(name); err != nil {
		return nil, err
	}
	return f.objects.Read(f.ctx, name, maxFile)
}

// Open implements io.IO.
func (f *files) Open(name string) (io.File, error) {
	data, err := f.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return &opened{Reader: bytes.NewReader(data), name: name}, nil
}

// Remove implements io.IO.
func (f *files) Remove(name string) error {
	if err := f.check(name); err != nil {
		return err
	}
	return f.objects.Delete(f.ctx, name)
}

// WriteFile implements io.WriteFileIO.
func (f *files) WriteFile(name string, data []byte) error {
	err := f.check(name)
	if err == nil {
		err = f.objects.WriteNew(f.ctx, name, data)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written, f.err = append(f.written, name), errors.Join(f.err, err)
	return err
}

// Create implements io.WriteFileIO.
func (f *files) Create(name string) (io.FileWriter, error) {
	if err := f.check(name); err != nil {
		return nil, err
	}
	return &created{files: f, name: name}, nil
}

// discard removes what was written for a commit that was refused.
func (f *files) discard() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), 10*time.Second)
	defer cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.written {
		_ = f.objects.Delete(ctx, name) //nolint:errcheck // only space
	}
}

// created is a file that is written when it is closed.
type created struct {
	bytes.Buffer
	files *files
	name  string
	done  bool
}

// Close writes the file, once.
func (c *created) Close() error {
	if c.done {
		return nil
	}
	c.done = true
	return c.files.WriteFile(c.name, c.Bytes())
}

// opened is a file that was read.
type opened struct {
	*bytes.Reader
	name string
}

func (o *opened) Close() error               { return nil }
func (o *opened) Stat() (fs.FileInfo, error) { return o, nil }
func (o *opened) Name() string               { return path.Base(o.name) }
func (o *opened) Mode() fs.FileMode          { return 0o444 }
func (o *opened) ModTime() time.Time         { return time.Time{} }
func (o *opened) IsDir() bool                { return false }
func (o *opened) Sys() any                   { return nil }

var _ stdio.ReaderAt = (*opened)(nil)
