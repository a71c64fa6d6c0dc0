// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// openTemp opens a bucket over a directory of its own and returns both.
func openTemp(t testing.TB, p File, o Options) (*Bucket, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "made", "root")
	b, err := Open(t.Context(), Profile{Type: TypeFile, Root: "file://" + dir, File: p}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, dir
}

func TestFiles(t *testing.T) {
	t.Parallel()
	b, dir := openTemp(t, File{}, Options{})
	testStore(t, b, "file://"+dir)
	// Empty directories and drafts went with what was deleted.
	if err := b.List(t.Context(), "file://"+dir, nil); !errors.Is(err, ErrOutside) {
		t.Errorf("the root itself is no directory of a table: %v", err)
	}
	for _, top := range []string{"names", "large", "race", "outside", "ranges", "zip", "list"} {
		for location := range listed(t, b, "file://"+dir+"/"+top) {
			if err := b.Delete(t.Context(), location); err != nil {
				t.Error(err)
			}
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("after deleting every object the root holds %v, %v", left, err)
	}
}

func TestFileSpelledShort(t *testing.T) {
	t.Parallel()
	b, dir := openTemp(t, File{}, Options{})
	// Hadoop writes file:/x where the root says file:///x.
	short, long := "file:"+dir+"/t/f", "file://"+dir+"/t/f"
	if err := b.WriteNew(t.Context(), short, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteNew(t.Context(), long, []byte("x")); !errors.Is(err, ErrExists) {
		t.Errorf("the other spelling is another file: %v", err)
	}
	if got := listed(t, b, "file:"+dir+"/t"); got[short] != 1 {
		t.Errorf("listed %v, want the directory's spelling", got)
	}
}

// TestLinksLeadNowhere plants links in every position of a path.
func TestLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, dir := openTemp(t, File{}, Options{})
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "t"), 0o755); err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(filepath.Join(dir, "t"), outside)
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"absolute": outside, "relative": relative, "parent": "../../..", "file": secret, "chain": "absolute", "loop": "loop", "dangling": outside + "/new", "root": "/",
	} {
		if err := os.Symlink(target, filepath.Join(dir, "t", name)); err != nil {
			t.Fatal(err)
		}
	}
	root := "file://" + dir
	for _, location := range []string{
		"/t/absolute/secret", "/t/relative/secret", "/t/file", "/t/chain/secret", "/t/loop", "/t/loop/x", "/t/root/etc/passwd", "/t/parent/x", "/t/dangling", "/t/dangling/x",
	} {
		location = root + location
		if data, err := b.Read(ctx, location, 1<<20); !errors.Is(err, ErrOutside) && !errors.Is(err, ErrNotFound) {
			t.Errorf("Read(%s): %q, %v", location, data, err)
		}
		if n, err := b.Size(ctx, location); !errors.Is(err, ErrOutside) && !errors.Is(err, ErrNotFound) {
			t.Errorf("Size(%s): %d, %v", location, n, err)
		}
	}
	for _, location := range []string{"/t/absolute/new", "/t/relative/new", "/t/chain/d/new", "/t/root/tmp/new", "/t/dangling/new"} {
		if err := b.WriteNew(ctx, root+location, []byte("x")); !errors.Is(err, ErrOutside) && !errors.Is(err, ErrExists) {
			t.Errorf("WriteNew(%s): %v", location, err)
		}
	}
	for _, location := range []string{"/t/file", "/t/dangling"} {
		if err := b.WriteNew(ctx, root+location, []byte("x")); !errors.Is(err, ErrExists) {
			t.Errorf("WriteNew(%s) through a link: %v", location, err)
		}
	}
	for _, location := range []string{"/t/absolute/secret", "/t/relative/secret", "/t/chain/secret"} {
		if err := b.Delete(ctx, root+location); !errors.Is(err, ErrOutside) {
			t.Errorf("Delete(%s): %v", location, err)
		}
	}
	for _, directory := range []string{"/t/absolute", "/t/chain", "/t/root"} {
		if got := listed(t, b, root+directory); len(got) != 0 {
			t.Errorf("List(%s) goes through a link: %v", directory, got)
		}
	}
	// A purge takes the links themselves and nothing behind them.
	for location := range listed(t, b, root+"/t") {
		if err := b.Delete(ctx, location); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "t")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the purged directory is still there: %v", err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "secret" {
		t.Errorf("the file outside holds %q, %v", data, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("the directory outside holds %v, %v", left, err)
	}
}

// TestOddFiles: what is no regular file is no object, and blocks nobody.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, dir := openTemp(t, File{}, Options{})
	root := "file://" + dir
	if err := b.WriteNew(ctx, root+"/d/f", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "d", "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, location := range []string{"/d/pipe", "/d", "/d/f/below-a-file"} {
			if _, err := b.Read(ctx, root+location, 10); !errors.Is(err, ErrNotFound) {
				t.Errorf("Read(%s): %v", location, err)
			}
			if _, err := b.ReadRange(ctx, root+location, 0, 1); !errors.Is(err, ErrNotFound) {
				t.Errorf("ReadRange(%s): %v", location, err)
			}
			if there, err := b.Exists(ctx, root+location); there || err != nil {
				t.Errorf("Exists(%s): %t, %v", location, there, err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("reading a pipe blocks")
	}
	if err := b.Delete(ctx, root+"/d"); err != nil {
		t.Errorf("deleting a directory's name: %v", err)
	}
	if data, err := b.Read(ctx, root+"/d/f", 10); err != nil || string(data) != "x" {
		t.Errorf("deleting a directory's name deleted what is in it: %q, %v", data, err)
	}
	if !b.Missing(root+"/d/g") || b.Missing(root+"/d/f") {
		t.Errorf("Missing: absent %t, present %t", b.Missing(root+"/d/g"), b.Missing(root+"/d/f"))
	}
	for _, location := range []string{root + "/d/" + strings.Repeat("n", 300), root + "/d/f/g"} {
		if err := b.WriteNew(ctx, location, []byte("x")); err == nil || errors.Is(err, ErrExists) {
			t.Errorf("WriteNew(%.60s…): %v", location, err)
		}
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p         File
		dir, file fs.FileMode
	}{
		{File{}, 0o755, 0o644},
		{File{DirMode: 0o700, FileMode: 0o600}, 0o700, 0o600},
	} {
		b, dir := openTemp(t, c.p, Options{})
		if err := b.WriteNew(t.Context(), "file://"+dir+"/t/metadata/f", nil); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]fs.FileMode{".": c.dir, "t": c.dir, "t/metadata": c.dir, "t/metadata/f": c.file} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("%s has %v, %v; want %v", name, info.Mode(), err, want)
			}
		}
	}
}

// TestCrashLeftovers: what a crash leaves of an unfinished write is never
// seen under the object's name, does not stop the next, and goes in a purge.
func TestCrashLeftovers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, dir := openTemp(t, File{}, Options{})
	location := "file://" + dir + "/t/metadata/00001.metadata.json"
	files := b.driver.(*files)
	// The crash: everything happened up to the link, nothing after it.
	crash := errors.New("power is gone")
	files.link = func(dir *os.Root, draft, name string) error {
		if _, err := dir.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the object shows before it is complete: %v", err)
		}
		if err := dir.Link(draft, ".sluice-leftover.tmp"); err != nil {
			t.Error(err)
		}
		return crash
	}
	if err := b.WriteNew(ctx, location, []byte("half")); !errors.Is(err, crash) {
		t.Fatal(err)
	}
	files.link = (*os.Root).Link
	if _, err := b.Read(ctx, location, 100); !errors.Is(err, ErrNotFound) {
		t.Errorf("after the crash: %v", err)
	}
	if err := b.WriteNew(ctx, location, []byte("whole")); err != nil {
		t.Errorf("the next write: %v", err)
	}
	for location := range listed(t, b, "file://"+dir+"/t") {
		if err := b.Delete(ctx, location); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the purge left %v, %v", left, err)
	}
}

// TestNoHardLinks: file systems without them still refuse to overwrite.
func TestNoHardLinks(t *testing.T) {
	t.Parallel()
	for _, refusal := range []syscall.Errno{syscall.EPERM, syscall.ENOTSUP, syscall.ENOSYS} {
		b, dir := openTemp(t, File{}, Options{})
		b.driver.(*files).link = func(_ *os.Root, draft, name string) error {
			return &os.LinkError{Op: "link", Old: draft, New: name, Err: refusal}
		}
		location := "file://" + dir + "/t/f"
		if err := b.WriteNew(t.Context(), location, []byte("one")); err != nil {
			t.Fatal(err)
		}
		if err := b.WriteNew(t.Context(), location, []byte("two")); !errors.Is(err, ErrExists) {
			t.Errorf("write again: %v", err)
		}
		if data, err := b.Read(t.Context(), location, 10); err != nil || string(data) != "one" {
			t.Errorf("read %q, %v", data, err)
		}
		if got := listed(t, b, "file://"+dir+"/t"); len(got) != 1 {
			t.Errorf("listed %v", got)
		}
	}
}

// TestWritersAndDeleters: directories come and go under writers' feet, made
// and removed by this process and by others.
func TestWritersAndDeleters(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, dir := openTemp(t, File{}, Options{})
	root := "file://" + dir
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 25 {
				location := fmt.Sprintf("%s/t/d/w%d-%d", root, worker, i)
				if err := b.WriteNew(ctx, location, []byte(location)); err != nil {
					t.Error(err)
					return
				}
				if data, err := b.Read(ctx, location, 1000); err != nil || string(data) != location {
					t.Errorf("read %q, %v", data, err)
				}
				if err := b.Delete(ctx, location); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// Another process removes the directory that is known here.
	if err := b.WriteNew(ctx, root+"/t/d/f", nil); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "t")); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteNew(ctx, root+"/t/d/f", nil); err != nil {
		t.Errorf("after the directory was removed: %v", err)
	}
}

func TestSeveralRoots(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	one, two, three := t.TempDir(), t.TempDir(), t.TempDir()
	b, err := Open(ctx, Profile{Type: TypeFile, Root: "file://" + one, AllowedRoots: []string{"file:" + two}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for dir, want := range map[string]error{one: nil, two: nil, three: ErrOutside} {
		if err := b.WriteNew(ctx, "file://"+dir+"/f", []byte("x")); !errors.Is(err, want) {
			t.Errorf("write below %s: %v", dir, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		p    Profile
		want string
	}{
		"no type":             {Profile{Root: "file:///x"}, "not known"},
		"unknown type":        {Profile{Type: "hdfs", Root: "file:///x"}, "not known"},
		"no root":             {Profile{Type: TypeFile}, "must begin with"},
		"root that escapes":   {Profile{Type: TypeFile, Root: "file:///srv/../etc"}, "dot segments"},
		"bad further root":    {Profile{Type: TypeFile, Root: "file://" + t.TempDir(), AllowedRoots: []string{"file:x"}}, "absolute"},
		"other scheme":        {Profile{Type: TypeFile, Root: "s3://b/w"}, "not a file location"},
		"other further":       {Profile{Type: TypeFile, Root: "file://" + t.TempDir(), AllowedRoots: []string{"s3://b"}}, "not a file location"},
		"root is a file":      {Profile{Type: TypeFile, Root: "file://" + file}, "not a directory"},
		"s3 without region":   {Profile{Type: TypeS3, Root: "s3://b/w"}, "region"},
		"s3 without key":      {Profile{Type: TypeS3, Root: "s3://b/w", S3: S3{Region: "r"}}, "access key"},
		"s3 on gs":            {Profile{Type: TypeS3, Root: "gs://b/w", S3: S3{Region: "r", AccessKeyID: "a", SecretAccessKey: value("s")}}, "not a s3 location"},
		"s3 endpoint":         {Profile{Type: TypeS3, Root: "s3://b/w", S3: S3{Region: "r", AccessKeyID: "a", SecretAccessKey: value("s"), Endpoint: "localhost:9000"}}, "http or https URL"},
		"s3 endpoint's user":  {Profile{Type: TypeS3, Root: "s3://b/w", S3: S3{Region: "r", AccessKeyID: "a", SecretAccessKey: value("s"), Endpoint: "http://u:p@h"}}, "no user"},
		"gcs with a user key": {Profile{Type: TypeGCS, Root: "gs://b/w", GCS: GCS{Credentials: value(`{"type":"authorized_user","client_id":"x"}`)}}, "not a service account"},
		"gcs from a program":  {Profile{Type: TypeGCS, Root: "gs://b/w", GCS: GCS{Credentials: value(`{"type":"external_account","credential_source":{"executable":{"command":"/bin/sh"}}}`)}}, "not a service account"},
		"gcs not json":        {Profile{Type: TypeGCS, Root: "gs://b/w", GCS: GCS{Credentials: value("secret-text")}}, "not a service account"},
		"gcs on s3":           {Profile{Type: TypeGCS, Root: "s3://b/w"}, "not a gs location"},
		"azure no account":    {Profile{Type: TypeAzure, Root: "abfss://c@a.dfs.core.windows.net/w"}, "account is required"},
		"azure no key":        {Profile{Type: TypeAzure, Root: "abfss://c@a.dfs.core.windows.net/w", Azure: Azure{Account: "a"}}, "either the account's key or"},
		"azure two keys":      {Profile{Type: TypeAzure, Root: "abfss://c@a.dfs.core.windows.net/w", Azure: Azure{Account: "a", AccountKey: value("a2V5"), ClientID: "c"}}, "either the account's key or"},
		"azure other account": {Profile{Type: TypeAzure, Root: "abfss://c@b.dfs.core.windows.net/w", Azure: Azure{Account: "a", AccountKey: value("a2V5")}}, "does not lie in the account"},
		"azure bad host":      {Profile{Type: TypeAzure, Root: "abfss://c@a/w", Azure: Azure{Account: "a", AccountKey: value("a2V5")}}, "must be a.dfs."},
		"azure key":           {Profile{Type: TypeAzure, Root: "abfss://c@a.dfs.core.windows.net/w", Azure: Azure{Account: "a", AccountKey: value("not base64!")}}, "not base64"},
		"azure no secret":     {Profile{Type: TypeAzure, Root: "abfss://c@a.dfs.core.windows.net/w", Azure: Azure{Account: "a", ClientID: "c", TenantID: "t"}}, "client secret"},
		"azure tenant":        {Profile{Type: TypeAzure, Root: "abfss://c@a.dfs.core.windows.net/w", Azure: Azure{Account: "a", ClientID: "c", TenantID: "t/../x", ClientSecret: value("s")}}, "tenant id is invalid"},
	} {
		b, err := Open(t.Context(), c.p, Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret-text") || strings.Contains(err.Error(), "not base64!")) {
			t.Errorf("%s: the error shows the secret: %v", name, err)
		}
		if b != nil {
			t.Errorf("%s: a bucket beside the error", name)
		}
	}
}

// TestLinksBelowTheRoot is about one place with two locations: a purge of the
// one must not delete what lies at the other.
func TestLinksBelowTheRoot(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, dir := openTemp(t, File{}, Options{})
	root := "file://" + dir
	if err := b.WriteNew(ctx, root+"/a/data/precious", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"write":          b.WriteNew(ctx, root+"/link/new", []byte("x")),
		"write deeper":   b.WriteNew(ctx, root+"/link/data/new", []byte("x")),
		"make directory": b.MakeDirectory(root + "/link/metadata"),
		"delete":         b.Delete(ctx, root+"/link/data/precious"),
		"list":           b.List(ctx, root+"/link/data", func(string, int64) error { return nil }),
	} {
		if !errors.Is(err, ErrOutside) {
			t.Errorf("%s through a link: %v", what, err)
		}
	}
	if got := listed(t, b, root+"/a"); len(got) != 1 {
		t.Errorf("the directory behind the link holds %v", got)
	}
}
