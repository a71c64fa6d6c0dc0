// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLookupsJoinOnlyLaterQueries shows the two promises of coalescing: few
// queries for many callers, and never an answer older than the question.
func TestLookupsJoinOnlyLaterQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var version, queries atomic.Int64
		l := lookups{fetch: func(context.Context, lookupKey) (Object, error) {
			seen := version.Load() // what a query sees is fixed when it starts
			queries.Add(1)
			time.Sleep(time.Second)
			return Object{Version: seen}, nil
		}}
		var wg sync.WaitGroup
		key := lookupKey{"ns", "t", KindTable}
		ask := func(atLeast int64) {
			wg.Go(func() {
				obj, err := l.get(t.Context(), key)
				if err != nil || obj.Version < atLeast {
					t.Errorf("asked after version %d was committed, got version %d, %v", atLeast, obj.Version, err)
				}
			})
		}
		ask(0)
		synctest.Wait() // the first query has started and sees version 0
		version.Store(1)
		for range 100 {
			ask(1)
		}
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond) // the second query runs and saw version 1
		version.Store(2)
		for range 100 {
			ask(2)
		}
		wg.Wait()
		if n := queries.Load(); n != 3 {
			t.Errorf("201 callers took %d queries, want 3", n)
		}
		synctest.Wait()
		if len(l.open) != 0 {
			t.Errorf("%d look-ups left behind", len(l.open))
		}
	})
}

// TestLookupsCancelOne shows that one caller's cancellation is its own.
func TestLookupsCancelOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := lookups{fetch: func(ctx context.Context, _ lookupKey) (Object, error) {
			select {
			case <-time.After(time.Second):
				return Object{Version: 7}, nil
			case <-ctx.Done():
				return Object{}, ctx.Err()
			}
		}}
		key := lookupKey{"ns", "t", KindTable}
		first, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.get(first, key); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled caller got %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				if obj, err := l.get(t.Context(), key); err != nil || obj.Version != 7 {
					t.Errorf("follower got %d, %v", obj.Version, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

func TestLookupsFetchError(t *testing.T) {
	t.Parallel()
	l := lookups{fetch: func(context.Context, lookupKey) (Object, error) { return Object{}, ErrNoObject }}
	for range 2 {
		if _, err := l.get(t.Context(), lookupKey{"a", "b", KindTable}); !errors.Is(err, ErrNoObject) {
			t.Fatalf("got %v", err)
		}
	}
	if len(l.open) != 0 {
		t.Error("a failed look-up was left behind")
	}
}

func TestKeyedMutex(t *testing.T) {
	t.Parallel()
	var k keyedMutex
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			unlock, err := k.lock(t.Context(), "t")
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two holders")
			}
			total.Add(1)
			inside.Add(-1)
			unlock()
		})
	}
	wg.Wait()
	unlock, err := k.lock(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.lock(ctx, "t"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with a cancelled context: %v", err)
	}
	other, err := k.lock(t.Context(), "u")
	if err != nil {
		t.Fatal(err)
	}
	other()
	unlock()
	if len(k.locks) != 0 || total.Load() != 50 {
		t.Errorf("%d locks left, %d entered", len(k.locks), total.Load())
	}
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"flights": true, "a b": true, "a+b": true, "a%b": true, "100%": true, "a/b": true, "ta.ble": true, "日本": true, "_": true, "…": true,
		"": false, ".": false, "..": false, "a|b": false, "a\x00": false, "a\x1fb": false, "a\nb": false, "\u2028": false, "a\x7f": false,
		"\xff": false, string(make([]byte, 256)): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}

func TestReservedProperties(t *testing.T) {
	t.Parallel()
	for key, reserved := range map[string]bool{
		"s3.endpoint": true, "S3.Access-Key-Id": true, "gcs.keypath": true, "adls.connection-string.x": true, "io-impl": true, "py-io-impl": true,
		"s3.signer.uri": true, "oauth2-server-uri": true, "token": true, "credential": true, "uri": true, "header.X": true, "rest.sigv4-enabled": true,
		"client.region": true, "urn:ietf:params:oauth:token-type:jwt": true,
		"owner": false, "write.format.default": false, "commit.retry.num-retries": false, "history.expire.max-snapshot-age-ms": false,
		"write.metadata.path": false, "comment": false, "engine.hive.enabled": false, "read.split.target-size": false, "format-version": false,
	} {
		if reservedProperty(key) != reserved {
			t.Errorf("reservedProperty(%q) = %v", key, !reserved)
		}
	}
}

func TestMetadataVersion(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{
		"s3://b/t/metadata/00003-6f0c0f7e-0000-0000-0000-000000000000.metadata.json":       3,
		"file:///w/t/metadata/00010-6f0c0f7e-0000-0000-0000-000000000000.gz.metadata.json": 10,
		"s3://b/t/metadata/v3.metadata.json":                                               -1, "s3://b/t/metadata/x-y.metadata.json": -1, "": -1, "-1-x": -1,
	} {
		if got := metadataVersion(file); got != want {
			t.Errorf("metadataVersion(%q) = %d, want %d", file, got, want)
		}
	}
}
