// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"
)

// Errors that calls of a [Bucket] wrap.
var (
	ErrNotFound    = errors.New("object does not exist")
	ErrExists      = errors.New("object already exists")
	ErrTooLarge    = errors.New("object is larger than allowed")
	ErrOutside     = errors.New("location is outside the warehouse")
	ErrForbidden   = errors.New("the object store refused the credentials")
	ErrNoBucket    = errors.New("the bucket does not exist")
	ErrUnavailable = errors.New("the object store does not answer or is overloaded")
	ErrInvalidGzip = errors.New("not valid gzip data")
)

// driver is one kind of store. Its locations lie inside the roots.
type driver interface {
	read(ctx context.Context, l Location, limit int64) ([]byte, error)
	// readRange returns io.ErrUnexpectedEOF when the object ends earlier.
	readRange(ctx context.Context, l Location, offset, n int64) ([]byte, error)
	size(ctx context.Context, l Location) (int64, error)
	writeNew(ctx context.Context, l Location, data []byte) error
	delete(ctx context.Context, l Location) error
	deleteMany(ctx context.Context, list []Location) error
	list(ctx context.Context, dir Location, fn func(path string, size int64) error) error
	close() error
}

// Bucket is the objects of one warehouse. It is safe for concurrent use.
type Bucket struct {
	roots   []Location
	driver  driver
	observe func(string, time.Duration, error)
	// conditional tells that writeNew is atomic among all writers.
	conditional bool
}

// Open checks a profile and returns its Bucket. It does not touch the store,
// except that local roots are created. ctx bounds Open alone.
func Open(ctx context.Context, p Profile, o Options) (*Bucket, error) {
	b := &Bucket{observe: o.Observe, conditional: p.Type != TypeS3 || !p.S3.NoConditionalWrites}
	if b.observe == nil {
		b.observe = func(string, time.Duration, error) {}
	}
	for _, s := range append([]string{p.Root}, p.AllowedRoots...) {
		l, err := ParseLocation(s)
		if err != nil {
			return nil, err
		}
		b.roots = append(b.roots, l)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := requests{timeout: o.Timeout, pause: 100 * time.Millisecond}
	if r.timeout <= 0 {
		r.timeout = 30 * time.Second
	}
	client := o.HTTPClient
	if client == nil && p.Type != TypeFile {
		client = HTTPClient()
	}
	var err error
	switch p.Type {
	case TypeFile:
		b.driver, err = openFiles(b.roots, p.File)
	case TypeS3:
		b.driver, err = openS3(b.roots, p.S3, client, r)
	case TypeGCS:
		b.driver, err = openGCS(b.roots, p.GCS, client, r)
	case TypeAzure:
		b.driver, err = openAzure(b.roots, p.Azure, client, r)
	default:
		err = fmt.Errorf("storage type %q is not known; use file, s3, gcs or azure", p.Type)
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

// call runs one operation on a location inside the roots and reports it.
func (b *Bucket) call(ctx context.Context, op, location string, f func(Location) error) error {
	l, err := b.locate(location)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", op, location, err)
	}
	start := time.Now()
	err = f(l)
	b.observe(op, time.Since(start), err)
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, location, err)
	}
	return nil
}

// Read returns a whole object of at most limit bytes, as it is stored:
// ErrNotFound, ErrTooLarge, ErrOutside, ErrForbidden, ErrNoBucket,
// ErrUnavailable. All other calls may return the last four too.
func (b *Bucket) Read(ctx context.Context, location string, limit int64) (data []byte, err error) {
	err = b.call(ctx, "read", location, func(l Location) error {
		data, err = b.driver.read(ctx, l, limit)
		return err
	})
	return data, err
}

// ReadRange returns exactly n bytes from offset on: ErrNotFound, and
// io.ErrUnexpectedEOF when the object ends earlier. A large n costs no more
// memory than the object has bytes.
func (b *Bucket) ReadRange(ctx context.Context, location string, offset, n int64) (data []byte, err error) {
	if offset < 0 || n < 0 || offset+n < 0 {
		return nil, fmt.Errorf("read %s: the range of %d bytes from %d is invalid", location, n, offset)
	}
	err = b.call(ctx, "read", location, func(l Location) error {
		if n == 0 {
			return nil
		}
		data, err = b.driver.readRange(ctx, l, offset, n)
		return err
	})
	return data, err
}

// Size returns an object's length in bytes: ErrNotFound.
func (b *Bucket) Size(ctx context.Context, location string) (size int64, err error) {
	err = b.call(ctx, "size", location, func(l Location) error {
		size, err = b.driver.size(ctx, l)
		return err
	})
	return size, err
}

// Exists reports whether there is an object.
func (b *Bucket) Exists(ctx context.Context, location string) (bool, error) {
	_, err := b.Size(ctx, location)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// WriteNew writes an object that must not exist and returns when it is
// durable: ErrExists. After any other error the object may be there or not,
// but never a part of it. When an answer of the store was lost, an object that
// holds the same bytes counts as the one written.
func (b *Bucket) WriteNew(ctx context.Context, location string, data []byte) error {
	return b.call(ctx, "write", location, func(l Location) error {
		return b.driver.writeNew(ctx, l, data)
	})
}

// Delete removes an object; an absent one is no error.
func (b *Bucket) Delete(ctx context.Context, location string) error {
	return b.call(ctx, "delete", location, func(l Location) error {
		return b.driver.delete(ctx, l)
	})
}

// DeleteMany removes objects; absent ones are no error. If any location is
// refused, nothing is deleted; after another error some are.
func (b *Bucket) DeleteMany(ctx context.Context, locations []string) error {
	list := make([]Location, len(locations))
	for i, location := range locations {
		var err error
		if list[i], err = b.locate(location); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		return nil
	}
	start := time.Now()
	err := b.driver.deleteMany(ctx, list)
	b.observe("delete", time.Since(start), err)
	if err != nil {
		return fmt.Errorf("delete %d objects: %w", len(list), err)
	}
	return nil
}

// List calls fn for every object under a directory with its location, in the
// directory's spelling, and size in bytes, in no certain order. An absent
// directory has none. fn may delete what it is given.
func (b *Bucket) List(ctx context.Context, directory string, fn func(location string, size int64) error) error {
	return b.call(ctx, "list", directory, func(l Location) error {
		return b.driver.list(ctx, l, func(path string, size int64) error {
			return fn(l.String()+path[len(l.Path):], size)
		})
	})
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

// MakeDirectory makes an empty directory where the store has directories
// (local files), for clients that write into one without making it.
func (b *Bucket) MakeDirectory(location string) error {
	l, err := b.locate(location)
	if err != nil {
		return err
	}
	d, ok := b.driver.(interface{ makeDirectory(Location) error })
	if !ok {
		return nil
	}
	return d.makeDirectory(l)
}

// Check proves that the store can do all that a warehouse needs, with an
// object of its own below <root>/_sluice: write it, refuse to overwrite it,
// read, list and delete it.
func (b *Bucket) Check(ctx context.Context) (err error) {
	dir := b.roots[0].String() + "/_sluice"
	name, data := dir+"/check-"+rand.Text(), []byte("sluice")
	defer func() {
		// Also after a failure, and after ctx has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, b.Delete(ctx, name))
	}()
	if err := b.WriteNew(ctx, name, data); err != nil {
		return err
	}
	switch err := b.WriteNew(ctx, name, data); {
	case err == nil && b.conditional:
		return errors.New("the store overwrites objects although asked not to (If-None-Match); where that is acceptable, turn conditional writes off in the storage profile")
	case err == nil:
		return fmt.Errorf("write %s: the store does not show an object right after it was written", name)
	case !errors.Is(err, ErrExists):
		return err
	}
	if got, err := b.Read(ctx, name, 64); err != nil || !bytes.Equal(got, data) {
		return errors.Join(err, fmt.Errorf("read back %q from %s", got, name))
	}
	if got, err := b.ReadRange(ctx, name, 2, 3); err != nil || !bytes.Equal(got, data[2:5]) {
		return errors.Join(err, fmt.Errorf("read back %q from a range of %s", got, name))
	}
	listed := false
	err = b.List(ctx, dir, func(location string, _ int64) error {
		listed = listed || location == name
		return nil
	})
	if err == nil && !listed {
		err = fmt.Errorf("list %s: %s is not listed", dir, name)
	}
	return err
}

// Gunzip inflates data to at most limit bytes: ErrTooLarge, ErrInvalidGzip.
// Memory stays within twice the limit however much the data would inflate to.
func Gunzip(data []byte, limit int64) ([]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidGzip, err)
	}
	// Text deflates to about a seventh; a first guess that saves growing.
	out, err := readSized(zr, min(8*int64(len(data)), limit), limit)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return nil, fmt.Errorf("%w: %w", ErrInvalidGzip, err)
	}
	return out, err
}

// maxGuess bounds what is allocated on an announced length alone.
const maxGuess = 64 << 20

// readSized reads all of r, at most limit bytes; size is the length to expect,
// or negative.
func readSized(r io.Reader, size, limit int64) ([]byte, error) {
	data := make([]byte, 0, min(max(size, 0), limit, maxGuess)+1)
	for {
		// Room for one byte more than allowed tells too large from the end.
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > limit:
			return nil, ErrTooLarge
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, err
		case len(data) == cap(data):
			// Doubled, but never past the limit.
			grown := make([]byte, len(data), min(2*int64(cap(data))+512, limit+1))
			copy(grown, data)
			data = grown
		}
	}
}
