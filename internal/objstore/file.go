// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
)

// files is local files below one or more roots. Each root is an os.Root, so
// that no path and no symbolic link leads out of it. Nor is anything written,
// listed or deleted through a link that stays below its root: two locations
// would then be one place, and a purge of the one delete the files of the
// other. Links that are put there while this looks are not guarded against.
type files struct {
	roots    []fileRoot
	dirMode  fs.FileMode
	fileMode fs.FileMode
	// link is os.Root.Link; a test replaces it.
	link func(dir *os.Root, old, name string) error

	mu   sync.Mutex
	dirs map[string]bool // directories known to exist durably
}

type fileRoot struct {
	location Location
	root     *os.Root
	escapes  error // what root's calls wrap when a path leads out
}

func openFiles(roots []Location, p File) (driver, error) {
	f := &files{dirs: map[string]bool{}, dirMode: p.DirMode, fileMode: p.FileMode, link: (*os.Root).Link}
	if f.dirMode == 0 {
		f.dirMode = 0o755
	}
	if f.fileMode == 0 {
		f.fileMode = 0o644
	}
	for _, l := range roots {
		if l.Scheme != "file" {
			return nil, errors.Join(fmt.Errorf("%s is not a file location", l), f.close())
		}
		r, err := openRoot("/"+l.Path, f.dirMode)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open warehouse root: %w", err), f.close())
		}
		root := fileRoot{location: l, root: r}
		var outside *fs.PathError
		if _, err := r.Lstat(".."); errors.As(err, &outside) {
			root.escapes = outside.Err
		}
		f.roots = append(f.roots, root)
	}
	return f, nil
}

// openRoot opens a directory, which is made durably if it is not there.
func openRoot(dir string, mode fs.FileMode) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	parent, err := openRoot(filepath.Dir(dir), mode)
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }() // it holds nothing that could be lost
	if err := parent.Mkdir(filepath.Base(dir), mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := syncDir(parent, "."); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

func (f *files) close() error {
	var errs []error
	for _, r := range f.roots {
		errs = append(errs, r.root.Close())
	}
	return errors.Join(errs...)
}

// at returns the root that holds a location and the path below it.
func (f *files) at(l Location) (fileRoot, string, error) {
	for _, r := range f.roots {
		if r.location.Contains(l) {
			if r.location.Path == "" {
				return r, l.Path, nil
			}
			return r, l.Path[len(r.location.Path)+1:], nil
		}
	}
	return fileRoot{}, "", ErrOutside
}

// open opens a regular file. Without O_NONBLOCK a named pipe would hold the
// caller until somebody writes to it.
func (f *files) open(l Location) (*os.File, int64, error) {
	root, name, err := f.at(l)
	if err != nil {
		return nil, 0, err
	}
	file, err := root.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, root.error(err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is a %s", ErrNotFound, kindOf(info.Mode()))
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

func kindOf(mode fs.FileMode) string {
	if mode.IsDir() {
		return "directory"
	}
	return "device, pipe or socket"
}

func (f *files) read(_ context.Context, l Location, limit int64) ([]byte, error) {
	file, size, err := f.open(l)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > limit {
		return nil, ErrTooLarge
	}
	// One allocation of the right size; a file that grows meanwhile is not
	// one that WriteNew made.
	data := make([]byte, size)
	if _, err := io.ReadFull(file, data); err != nil {
		return nil, err
	}
	return data, nil
}

func (f *files) readRange(_ context.Context, l Location, offset, n int64) ([]byte, error) {
	file, size, err := f.open(l)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if offset+n > size {
		return nil, fmt.Errorf("%w: it has %d bytes", io.ErrUnexpectedEOF, size)
	}
	data := make([]byte, n)
	if _, err := file.ReadAt(data, offset); err != nil {
		return nil, err
	}
	return data, nil
}

func (f *files) size(_ context.Context, l Location) (int64, error) {
	root, name, err := f.at(l)
	if err != nil {
		return 0, err
	}
	info, err := root.root.Stat(name)
	if err != nil {
		return 0, root.error(err)
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%w: it is a %s", ErrNotFound, kindOf(info.Mode()))
	}
	return info.Size(), nil
}

// writeNew writes under a name of its own, makes that durable, and links it
// to the final name, which fails if there is one: nobody ever sees a part of
// a file. What a crash leaves under the first name begins with a dot, as
// engines expect of files that are not data, and goes when its directory is
// purged.
func (f *files) writeNew(_ context.Context, l Location, data []byte) error {
	root, name, err := f.at(l)
	if err != nil {
		return err
	}
	// A Delete elsewhere may remove a directory that became empty just after
	// it was made here.
	for range 10 {
		err = f.writeIn(root, path.Dir(name), path.Base(name), data)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		f.forget(root.root, path.Dir(name))
	}
	return root.error(err)
}

func (f *files) writeIn(root fileRoot, dirName, name string, data []byte) error {
	if err := f.makeDir(root.root, dirName); err != nil {
		return err
	}
	dir, err := root.root.OpenRoot(dirName)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it holds nothing that could be lost
	draft := ".sluice-" + rand.Text() + ".tmp"
	if err := f.writeFile(dir, draft, data); err != nil {
		return err
	}
	err = f.link(dir, draft, name)
	if removeErr := dir.Remove(draft); err == nil && removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		err = removeErr
	}
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		// A file system without hard links. A crash may then leave a part of
		// the file under its name; no pointer leads there, since the caller
		// has had no acknowledgement.
		err = f.writeFile(dir, name, data)
	}
	if err != nil {
		return err
	}
	return syncDir(dir, ".")
}

// droppedFrom is the size in bytes from which a written file leaves the page
// cache at once. Callers keep large objects they have written, so a second
// copy in the kernel only takes memory from others, and getting fresh pages
// for every version costs more than writing into those of the last.
const droppedFrom = 1 << 20

// writeFile makes a file and its content durable; the name is not yet.
func (f *files) writeFile(dir *os.Root, name string, data []byte) error {
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err == nil && len(data) >= droppedFrom {
		dropPages(file)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, dir.Remove(name))
	}
	return nil
}

// makeDir creates a directory with its parents, each durably. One that is
// there already may be another writer's, who has not yet made it durable.
func (f *files) makeDir(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	key := root.Name() + "\x00" + dir
	f.mu.Lock()
	known := f.dirs[key]
	f.mu.Unlock()
	if known {
		return nil
	}
	parent := path.Dir(dir)
	if err := f.makeDir(root, parent); err != nil {
		return err
	}
	if err := root.Mkdir(dir, f.dirMode); errors.Is(err, fs.ErrExist) {
		if err := refuseLink(root, dir); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := syncDir(root, parent); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.dirs) > 1<<16 {
		clear(f.dirs) // only a memory of what need not be done again
	}
	f.dirs[key] = true
	return nil
}

// refuseLinks refuses a directory that lies behind a symbolic link.
func refuseLinks(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if err := refuseLinks(root, path.Dir(dir)); err != nil {
		return err
	}
	return refuseLink(root, dir)
}

func refuseLink(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%w: %s is a symbolic link", ErrOutside, name)
	}
	return nil // absent or unreadable: whatever comes next says so
}

func (f *files) makeDirectory(l Location) error {
	root, name, err := f.at(l)
	if err != nil {
		return err
	}
	return root.error(f.makeDir(root.root, name))
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
// plain path, which costs one system call however deep the file lies.
func (f *files) missing(l Location) bool {
	var info syscall.Stat_t
	err := syscall.Lstat("/"+l.Path, &info)
	return errors.Is(err, fs.ErrNotExist)
}

func (f *files) delete(_ context.Context, l Location) error {
	root, name, err := f.at(l)
	if err != nil {
		return err
	}
	if err := refuseLinks(root.root, path.Dir(name)); err != nil {
		return err
	}
	if err := ignoreAbsent(root.error(root.root.Remove(name))); err != nil {
		return err
	}
	// Directories that became empty go too; the first that is not ends it.
	for dir := path.Dir(name); dir != "." && root.root.Remove(dir) == nil; dir = path.Dir(dir) {
		f.forget(root.root, dir)
	}
	return nil
}

// ignoreAbsent drops the error of removing a name that no object has; perhaps
// a directory has it.
func ignoreAbsent(err error) error {
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EISDIR) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (f *files) deleteMany(ctx context.Context, list []Location) error {
	for _, l := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.delete(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// list reports symbolic links as the small files they are and follows none,
// so that deleting what is listed deletes nothing elsewhere.
func (f *files) list(ctx context.Context, dir Location, fn func(path string, size int64) error) error {
	root, name, err := f.at(dir)
	if err != nil {
		return err
	}
	base := dir.Path[:len(dir.Path)-len(name)]
	if err := refuseLinks(root.root, path.Dir(name)); err != nil {
		return err
	}
	switch info, err := root.root.Lstat(name); {
	case err == nil && info.IsDir():
	case err == nil, errors.Is(root.error(err), ErrNotFound):
		return nil
	default:
		return root.error(err)
	}
	var stopped error // by fn, whose errors are not the file system's
	err = fs.WalkDir(root.root.FS(), name, func(p string, d fs.DirEntry, err error) error {
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
		stopped = fn(base+p, info.Size())
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return root.error(err)
}

// error gives an operating system's error its meaning for objects.
func (r fileRoot) error(err error) error {
	kind := error(nil)
	switch {
	case err == nil:
		return nil
	case r.escapes != nil && errors.Is(err, r.escapes):
		kind = ErrOutside
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENXIO): // a socket, or a device without driver
		kind = ErrNotFound
	case errors.Is(err, fs.ErrExist):
		kind = ErrExists
	case errors.Is(err, fs.ErrPermission):
		kind = ErrForbidden
	default:
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}
