// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

func BenchmarkParseFile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseFile("s3://lake-wh/w/9c12d441-03fe-4693-9a96-a0705ddf69c1/metadata/00001-9c12d441.metadata.json"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFileRead(b *testing.B) {
	for name, size := range map[string]int{"1KB": 1 << 10, "10MB": 10 << 20} {
		b.Run(name, func(b *testing.B) {
			bucket, dir := openTemp(b, File{}, Options{})
			location := "file://" + dir + "/t/metadata/f"
			if err := bucket.WriteNew(b.Context(), location, make([]byte, size)); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bucket.Read(b.Context(), location, 1<<30); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFileWriteNew times durable writes, and beside it what the disk
// needs for a file alone: creating, writing and syncing it.
func BenchmarkFileWriteNew(b *testing.B) {
	for name, size := range map[string]int{"1KB": 1 << 10, "10MB": 10 << 20} {
		data := make([]byte, size)
		b.Run(name, func(b *testing.B) {
			bucket, dir := openTemp(b, File{}, Options{})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := bucket.WriteNew(b.Context(), fmt.Sprintf("file://%s/t/metadata/f%d", dir, i), data); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"-disk", func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				f, err := os.Create(fmt.Sprintf("%s/f%d", dir, i))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := f.Write(data); err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		})
	}
}

func BenchmarkFileMissing(b *testing.B) {
	bucket, dir := openTemp(b, File{}, Options{})
	location := "file://" + dir + "/t/metadata/f"
	if err := bucket.WriteNew(b.Context(), location, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if bucket.Missing(location) {
			b.Fatal("missing")
		}
	}
}

func BenchmarkGunzip(b *testing.B) {
	text := bytes.Repeat([]byte(`{"snapshot-id":3051729675574597004,"timestamp-ms":1515100955770,"summary":{"operation":"append"}},`), 10_000)
	zipped := zip(b, text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Gunzip(zipped, 1<<30); err != nil {
			b.Fatal(err)
		}
	}
}
