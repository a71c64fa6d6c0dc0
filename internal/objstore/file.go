// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
)

// files is local files below one or more roots. Each root is an os.Root, so
// that no path and no symbolic link leads out of it.
type files struct {
	roots []fileRoot
	mu    sync.Mutex
	dirs  map[string]bool // directories known to exist durably
}

type fileRoot struct {
	location Location
	root     *os.Root
}

const (
	dirMode  = 0o755
	fileMode = 0o644
)

func openFiles(roots []Location) (driver, error) {
	f := &files{dirs: map[string]bool{}}
	for _, l := range roots {
		if l.Scheme != "file" {
			return nil, fmt.Errorf("%s is not a file location", l)
		}
		if err := os.MkdirAll("/"+l.Path, dirMode); err != nil {
			return nil, fmt.Errorf("create warehouse root: %w", err)
		}
		r, err := os.OpenRoot("/" + l.Path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open warehouse root: %w", err), f.close())
		}
		f.roots = append(f.roots, fileRoot{l, r})
	}
	return f, nil
}

func (f *files) close() error {
	var errs []error
	for _, r := range f.roots {
		errs = append(errs, r.root.Close())
	}
	return errors.Join(errs...)
}

// at returns the root that holds a location and the path below it.
func (f *files) at(l Location) (*os.Root, string, error) {
	for _, r := range f.roots {
		if r.location.Contains(l) {
			if r.location.Path == "" {
				return r.root, l.Path, nil
			}
			return r.root, l.Path[len(r.location.Path)+1:], nil
		}
	}
	return nil, "", ErrOutside
}

func (f *files) read(_ context.Context, l Location, limit int64) ([]byte, error) {
	root, name, err := f.at(l)
	if err != nil {
		return nil, err
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, fileError(err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, ErrNotFound
	case info.Size() > limit:
		return nil, ErrTooLarge
	}
	// One allocation of the right size; a file that grows meanwhile is not
	// one that WriteNew made.
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(file, data); err != nil {
		return nil, err
	}
	return data, nil
}

// writeNew creates the file under its final name. A crash may leave a part of
// it: no pointer leads there, since the caller has had no acknowledgement.
func (f *files) writeNew(_ context.Context, l Location, data []byte) error {
	root, name, err := f.at(l)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	if err := f.makeDir(root, dir); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrNotExist) {
		// Somebody removed the directory that was known.
		f.forget(root, dir)
		if err := f.makeDir(root, dir); err != nil {
			return err
		}
		file, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	}
	if err != nil {
		return fileError(err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return syncDir(root, dir)
}

// makeDir creates a directory with its parents, each durably.
func (f *files) makeDir(root *os.Root, dir string) error {
	key := root.Name() + "\x00" + dir
	f.mu.Lock()
	known := f.dirs[key]
	f.mu.Unlock()
	if known || dir == "." {
		return nil
	}
	if parent := path.Dir(dir); parent != "." {
		if err := f.makeDir(root, parent); err != nil {
			return err
		}
	}
	err := root.Mkdir(dir, dirMode)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fileError(err)
	}
	if err == nil {
		if err := syncDir(root, path.Dir(dir)); err != nil {
			return err
		}
	}
	f.mu.Lock()
	if len(f.dirs) > 1<<16 {
		clear(f.dirs) // only a memory of what need not be done again
	}
	f.dirs[key] = true
	f.mu.Unlock()
	return nil
}

func (f *files) forget(root *os.Root, dir string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ; dir != "."; dir = path.Dir(dir) {
		delete(f.dirs, root.Name()+"\x00"+dir)
	}
}

func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// missing looks at the name alone and opens nothing, so it may go by the
// plain path.
func (f *files) missing(l Location) bool {
	_, err := os.Lstat("/" + l.Path)
	return errors.Is(err, fs.ErrNotExist)
}

func (f *files) delete(_ context.Context, l Location) error {
	root, name, err := f.at(l)
	if err != nil {
		return err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileError(err)
	}
	// Directories that became empty go too; the first that is not ends it.
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if root.Remove(dir) != nil {
			break
		}
		f.forget(root, dir)
	}
	return nil
}

func (f *files) list(ctx context.Context, dir Location, fn func(path string, size int64) error) error {
	root, name, err := f.at(dir)
	if err != nil {
		return err
	}
	base := dir.Path[:len(dir.Path)-len(name)]
	return fs.WalkDir(root.FS(), name, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case d.IsDir():
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(base+p, info.Size())
	})
}

func fileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %w", ErrExists, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}
