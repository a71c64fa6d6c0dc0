// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/sluice-data/sluice/internal/secret"
)

// Errors that calls of a [Bucket] wrap.
var (
	ErrNotFound    = errors.New("object does not exist")
	ErrExists      = errors.New("object already exists")
	ErrTooLarge    = errors.New("object is larger than allowed")
	ErrOutside     = errors.New("location is outside the warehouse")
	ErrForbidden   = errors.New("the object store refused the credentials")
	ErrInvalidGzip = errors.New("not valid gzip data")
)

// The types of storage profile.
const (
	TypeFile = "file"
	TypeS3   = "s3"
	TypeGCS  = "gcs"
)

// Profile says where a warehouse lies and how the server reaches it. Only the
// part of its Type is used.
type Profile struct {
	Type         string   // TypeFile, TypeS3, TypeGCS
	Root         string   // location of the warehouse
	AllowedRoots []string // further locations that may be read and written
	S3           S3
	GCS          GCS
}

// S3 reaches Amazon S3 or a compatible store with static credentials.
type S3 struct {
	Endpoint        string // "" for Amazon
	Region          string
	PathStyle       bool
	AccessKeyID     string
	SecretAccessKey secret.Value
	SessionToken    secret.Value
}

// GCS reaches Google Cloud Storage with a service account's key.
type GCS struct {
	Credentials secret.Value // JSON; empty means anonymous
	Endpoint    string       // "" for Google
}

// Options tune a [Bucket].
type Options struct {
	// Observe is called after each operation: "read", "write", "delete",
	// "list".
	Observe func(op string, took time.Duration, err error)
	// Timeout bounds each call to the store; 30 s when zero.
	Timeout time.Duration
}

// driver is one kind of store. Keys are [Location.Path]s.
type driver interface {
	read(ctx context.Context, l Location, limit int64) ([]byte, error)
	writeNew(ctx context.Context, l Location, data []byte) error
	delete(ctx context.Context, l Location) error
	list(ctx context.Context, dir Location, fn func(path string, size int64) error) error
	close() error
}

// Bucket is the objects of one warehouse. It is safe for concurrent use.
type Bucket struct {
	roots   []Location
	driver  driver
	observe func(string, time.Duration, error)
	timeout time.Duration
}

// Open checks a profile and returns its Bucket. It does not touch the store,
// except that a local root is created.
func Open(ctx context.Context, p Profile, o Options) (*Bucket, error) {
	b := &Bucket{observe: o.Observe, timeout: o.Timeout}
	if b.observe == nil {
		b.observe = func(string, time.Duration, error) {}
	}
	if b.timeout <= 0 {
		b.timeout = 30 * time.Second
	}
	for _, s := range append([]string{p.Root}, p.AllowedRoots...) {
		l, err := ParseLocation(s)
		if err != nil {
			return nil, err
		}
		b.roots = append(b.roots, l)
	}
	var err error
	switch p.Type {
	case TypeFile:
		b.driver, err = openFiles(b.roots)
	case TypeS3:
		b.driver, err = openS3(b.roots, p.S3)
	case TypeGCS:
		b.driver, err = openGCS(ctx, b.roots, p.GCS)
	default:
		err = fmt.Errorf("storage type %q is not known; use file, s3 or gcs", p.Type)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Close releases connections and files.
func (b *Bucket) Close() error { return b.driver.close() }

// locate parses a file's location and refuses one outside the roots.
func (b *Bucket) locate(location string) (Location, error) {
	l, err := ParseFile(location)
	if err != nil {
		return Location{}, fmt.Errorf("%w: %w", ErrOutside, err)
	}
	for _, root := range b.roots {
		if root.Contains(l) {
			return l, nil
		}
	}
	return Location{}, fmt.Errorf("%w: %s", ErrOutside, location)
}

// call runs one operation within its time and reports it.
func (b *Bucket) call(ctx context.Context, op, location string, f func(context.Context, Location) error) error {
	l, err := b.locate(location)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	start := time.Now()
	err = f(ctx, l)
	b.observe(op, time.Since(start), err)
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, location, err)
	}
	return nil
}

// Read returns a whole object of at most limit bytes: ErrNotFound,
// ErrTooLarge, ErrOutside, ErrForbidden.
func (b *Bucket) Read(ctx context.Context, location string, limit int64) (data []byte, err error) {
	err = b.call(ctx, "read", location, func(ctx context.Context, l Location) error {
		data, err = b.driver.read(ctx, l, limit)
		return err
	})
	return data, err
}

// WriteNew writes an object that must not exist and returns when it is
// durable: ErrExists, ErrOutside, ErrForbidden.
func (b *Bucket) WriteNew(ctx context.Context, location string, data []byte) error {
	return b.call(ctx, "write", location, func(ctx context.Context, l Location) error {
		return b.driver.writeNew(ctx, l, data)
	})
}

// Delete removes an object; an absent one is no error.
func (b *Bucket) Delete(ctx context.Context, location string) error {
	return b.call(ctx, "delete", location, func(ctx context.Context, l Location) error {
		return b.driver.delete(ctx, l)
	})
}

// List calls fn for every object under a directory with its location, in the
// directory's spelling, and size in bytes. An absent directory has none.
func (b *Bucket) List(ctx context.Context, directory string, fn func(location string, size int64) error) error {
	l, err := b.locate(directory)
	if err != nil {
		return err
	}
	start := time.Now()
	err = b.driver.list(ctx, l, func(path string, size int64) error {
		return fn(l.String()+path[len(l.Path):], size)
	})
	b.observe("list", time.Since(start), err)
	if err != nil {
		return fmt.Errorf("list %s: %w", directory, err)
	}
	return nil
}

// Missing reports that a file is certainly not there, where the store can
// tell without a round trip (local files); false says nothing.
func (b *Bucket) Missing(location string) bool {
	d, ok := b.driver.(interface{ missing(Location) bool })
	if !ok {
		return false
	}
	l, err := b.locate(location)
	return err == nil && d.missing(l)
}

// Check proves that the store can be written, read and deleted from, with an
// object of its own below the root.
func (b *Bucket) Check(ctx context.Context) error {
	name := fmt.Sprintf("%s/_sluice/check-%d", b.roots[0], time.Now().UnixNano())
	if err := b.WriteNew(ctx, name, []byte("sluice")); err != nil {
		return err
	}
	data, err := b.Read(ctx, name, 64)
	if err == nil && string(data) != "sluice" {
		err = fmt.Errorf("read back %q from %s", data, name)
	}
	return errors.Join(err, b.Delete(ctx, name))
}

// Gunzip inflates data of at most limit bytes: ErrTooLarge, ErrInvalidGzip.
// Memory stays within the limit however much the data would inflate to.
func Gunzip(data []byte, limit int64) ([]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidGzip, err)
	}
	out, err := readLimited(zr, limit)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return nil, fmt.Errorf("%w: %w", ErrInvalidGzip, err)
	}
	return out, err
}

// readLimited reads all of r, at most limit bytes.
func readLimited(r io.Reader, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	n, err := buf.ReadFrom(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, ErrTooLarge
	}
	return buf.Bytes(), nil
}
