// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// writerEnv makes this test binary a process that writes until it is killed.
const writerEnv = "SLUICE_TEST_SQLITE_WRITE_TO"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeForEver(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForEver commits events from several goroutines and prints the name of
// each after its commit.
func writeForEver(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	wh, err := s.EnsureWarehouse(ctx, "main")
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range 4 {
		go func() {
			for {
				name := uuid.NewString()
				if err := s.Update(ctx, func(tx catalog.Tx) error {
					return tx.PutEvent(ctx, catalog.Event{Warehouse: wh, Name: name, Payload: []byte("{}")})
				}); err != nil {
					failed <- err
					return
				}
				if _, err := fmt.Println(name); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// TestKilledProcessLosesNothingAcknowledged kills a writing process again and
// again; whatever it had said to be committed is there.
func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "catalog.db")
	acknowledged := map[string]bool{}
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), writerEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			acknowledged[lines.Text()] = true
			if n == 20+7*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wh, err := s.EnsureWarehouse(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		events, err := s.Events(t.Context(), wh, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		stored := map[string]bool{}
		for _, e := range events {
			stored[e.Name] = true
		}
		for name := range acknowledged {
			if !stored[name] {
				t.Errorf("round %d: %s was acknowledged and is gone", round, name)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(acknowledged) < 100 {
		t.Errorf("only %d writes were acknowledged", len(acknowledged))
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.db")
	first, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		_, err := Open(t.Context(), p, Options{})
		if !errors.Is(err, catalog.ErrUnavailable) || !strings.Contains(err.Error(), "in use by another process") {
			t.Errorf("second open of %s: %v", p, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(t.Context(), link, Options{})
	if err != nil {
		t.Fatalf("open after close: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPathIsTakenLiterally(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a b.db", "a?mode=memory", "a#b", "a%20b", "ä", "a&b=c", ":memory:", "file:x"} {
		path := filepath.Join(t.TempDir(), "new directory", name)
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := errors.Join(s.Migrate(t.Context()), s.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if info.Size() == 0 {
			t.Errorf("%s: nothing was written to it", name)
		}
		if info.Mode() != fs.FileMode(0o600) {
			t.Errorf("%s: mode is %v", name, info.Mode())
		}
		if _, err := os.Stat(path + "-wal"); err == nil {
			t.Errorf("%s: close has left the log behind", name)
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Open(t.Context(), dir, Options{}); err == nil {
		t.Error("a directory was opened")
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), text, Options{}); err == nil || !strings.Contains(err.Error(), "not a database") {
		t.Errorf("a text was opened: %v", err)
	}
	// The lock was given back.
	if err := os.Remove(text); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestForeignSchemaIsRefused(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		`INSERT INTO schema_migrations VALUES (1000, '', 0)`:                `schema version 1000`,
		`UPDATE schema_migrations SET checksum = 'other' WHERE version = 1`: `another build`,
	} {
		e, s := open(t, Options{})
		if _, err := e.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if err := s.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %s: %v", change, err)
		}
	}
}

func TestVersionOfAnEmptyFileIsZero(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	current, newest, err := s.Version(t.Context())
	if err != nil || current != 0 || newest < 1 {
		t.Errorf("version %d of %d: %v", current, newest, err)
	}
}

// TestCloseWaitsForWriters closes while transactions run and wait.
func TestCloseWaitsForWriters(t *testing.T) {
	t.Parallel()
	_, s := open(t, Options{})
	wh, err := s.EnsureWarehouse(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		first <- s.Update(t.Context(), func(tx catalog.Tx) error {
			close(started)
			time.Sleep(50 * time.Millisecond)
			return tx.PutEvent(t.Context(), catalog.Event{Warehouse: wh, Payload: []byte("{}")})
		})
	}()
	<-started
	go func() { second <- s.Update(t.Context(), func(catalog.Tx) error { return nil }) }()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Errorf("a running transaction: %v", err)
	}
	if err := <-second; err != nil && !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("a waiting transaction: %v", err)
	}
}
