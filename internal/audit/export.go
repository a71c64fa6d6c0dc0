// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"
)

// Batch is what an export delivers at once: lines of one partition, in order,
// each checkpoint after its record. The lines are whole, without newlines.
type Batch struct {
	// Source says whose lines they are: "warehouses/<name>" or
	// "administration" for changes, "reads" for the log of reads.
	Source    string
	Partition string
	// After is the number of the last record before the batch and Last that of
	// the last one in it; they are the same when it holds a checkpoint alone.
	After, Last int64
	Lines       [][]byte
}

// Records is how many records are among the lines.
func (b *Batch) Records() int64 { return b.Last - b.After }

// Sink is a receiver of batches.
type Sink interface {
	// Send returns nil when the receiver has the whole batch and keeps it. A
	// batch whose delivery was not noted comes again, perhaps with more lines
	// at its end; a Sink that can tells what it has already.
	Send(ctx context.Context, b Batch) error
}

// Limits of a batch.
const (
	DefaultBatch  = 500     // records
	maxBatchBytes = 8 << 20 // of lines; a single line may be longer
)

// Full reports whether a batch of so many records and bytes takes no more.
func Full(records, bytes, limit int64) bool {
	if limit <= 0 {
		limit = DefaultBatch
	}
	return records >= limit || bytes >= maxBatchBytes
}

// LineInfo is what exports read of a line beside its bytes.
type LineInfo struct {
	Type      string          `json:"type"`
	Partition string          `json:"partition"`
	Seq       int64           `json:"seq"`
	Time      time.Time       `json:"time"`
	RequestID string          `json:"request_id"`
	Principal string          `json:"principal"`
	Actor     string          `json:"actor"`
	Address   string          `json:"address"`
	Operation string          `json:"operation"`
	Warehouse string          `json:"warehouse"`
	Resource  string          `json:"resource"`
	Status    int             `json:"status"`
	Decision  string          `json:"decision"`
	Policies  []Policy        `json:"policies"`
	Detail    json.RawMessage `json:"detail"`
	Hash      string          `json:"hash"`
}

// IsRecord reports whether the line is of something that happened, and not of
// the log itself.
func (i *LineInfo) IsRecord() bool { return i.Type != checkpointType && i.Type != openType }

// IsCheckpoint reports whether the line is a checkpoint.
func (i *LineInfo) IsCheckpoint() bool { return i.Type == checkpointType }

// Outcome is that of the record.
func (i *LineInfo) Outcome() string {
	r := Record{Status: i.Status, Decision: ParseDecision(i.Decision)}
	return r.Outcome()
}

// ParseLine reads a line that Append has written.
func ParseLine(line []byte) (i LineInfo, err error) {
	err = json.Unmarshal(line, &i)
	return i, err
}

// Progress is how an export fares. It is safe for concurrent use, and its zero
// value is ready.
type Progress struct {
	records, failures atomic.Int64

	mu     sync.Mutex
	oldest map[string]time.Time // of what each source has not delivered
}

// Pending notes when the oldest record of a source was made that waits to be
// delivered; zero when none does.
func (p *Progress) Pending(source string, oldest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.oldest == nil {
		p.oldest = map[string]time.Time{}
	}
	if oldest.IsZero() {
		delete(p.oldest, source)
		return
	}
	p.oldest[source] = oldest
}

// Delivered counts records that the receiver has.
func (p *Progress) Delivered(records int64) { p.records.Add(records) }

// Failed counts a failure, after which the same is tried again.
func (p *Progress) Failed() { p.failures.Add(1) }

// Counts are how many records were delivered and how often it failed.
func (p *Progress) Counts() (records, failures int64) { return p.records.Load(), p.failures.Load() }

// Lag is the age of the oldest record that waits, zero when none does.
func (p *Progress) Lag(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lag time.Duration
	for _, at := range p.oldest {
		lag = max(lag, now.Sub(at))
	}
	return lag
}

// maxPause is the longest pause between tries of an export.
const maxPause = time.Minute

// Repeat does rounds until ctx ends, with a pause between them (1 s when zero)
// that doubles up to a minute after each failure, which failed hears of.
func Repeat(ctx context.Context, interval time.Duration, round func(context.Context) error, failed func(err error, pause time.Duration)) {
	if interval <= 0 {
		interval = time.Second
	}
	pause := interval
	for {
		if err := round(ctx); err == nil {
			pause = interval
		} else if ctx.Err() == nil {
			pause = max(min(2*pause, maxPause), min(interval, maxPause))
			failed(err, pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
