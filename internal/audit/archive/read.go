// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package archive

import (
	"io"
	"os"
)

// Readers opens logs by name, for [audit.Lines]: "-" is stdin, a directory
// stands for the archive in it, and all else is a file. A file is open only
// while it is read, since an archive has many.
func Readers(stdin io.Reader, names ...string) ([]io.Reader, error) {
	var readers []io.Reader
	for _, name := range names {
		if name == "-" {
			readers = append(readers, stdin)
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		files := []string{name}
		if info.IsDir() {
			if files, err = Files(name); err != nil {
				return nil, err
			}
		}
		for _, f := range files {
			readers = append(readers, &lazyFile{name: f})
		}
	}
	return readers, nil
}

// lazyFile is open only while it is read.
type lazyFile struct {
	name string
	file *os.File
}

func (l *lazyFile) Read(b []byte) (n int, err error) {
	if l.file == nil {
		if l.file, err = os.Open(l.name); err != nil {
			return 0, err
		}
	}
	if n, err = l.file.Read(b); err != nil {
		l.file.Close() //nolint:errcheck // opened for reading
	}
	return n, err
}
