// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// throttle bounds failures per key: at most burst at once, refilled evenly
// over a window. It remembers a bounded number of keys, the most recent ones.
type throttle struct {
	burst  float64
	perSec float64
	now    func() time.Time

	mu      sync.Mutex
	buckets *simplelru.LRU[string, *bucket]
}

type bucket struct {
	left float64
	at   time.Time
}

// throttleKeys bounds the memory of one throttle to a few MiB.
const throttleKeys = 1 << 15

func newThrottle(burst int, window time.Duration, now func() time.Time) *throttle {
	buckets, err := simplelru.NewLRU[string, *bucket](throttleKeys, nil)
	if err != nil {
		panic(err) // only for a size below one
	}
	return &throttle{burst: float64(burst), perSec: float64(burst) / window.Seconds(), now: now, buckets: buckets}
}

// take takes one attempt of a key ahead of the work, so that attempts that
// run at the same time all count. It returns how long to wait when there is
// none; 0 means that the attempt may go on.
func (t *throttle) take(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	b, ok := t.buckets.Get(key)
	if !ok {
		t.buckets.Add(key, &bucket{left: t.burst - 1, at: now})
		return 0
	}
	b.left = min(t.burst, b.left+now.Sub(b.at).Seconds()*t.perSec)
	b.at = now
	if b.left < 1 {
		wait := time.Duration((1 - b.left) / t.perSec * float64(time.Second))
		return max(wait, time.Second)
	}
	b.left--
	return 0
}

// refund gives an attempt back that turned out to be no failure.
func (t *throttle) refund(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b, ok := t.buckets.Get(key); ok {
		b.left = min(t.burst, b.left+1)
	}
}
