// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// health answers probes. They tell nothing but a word.
type health struct {
	ping     func(context.Context) error
	log      *slog.Logger
	draining atomic.Bool

	mu      sync.Mutex
	checked time.Time
	err     error
}

const (
	// healthTTL is how long an answer of the store is used again, so that
	// probes cannot load it.
	healthTTL     = time.Second
	healthTimeout = 2 * time.Second
)

// live answers as long as the process can.
func (h *health) live(w http.ResponseWriter, _ *http.Request) { writeHealth(w, http.StatusOK, "ok") }

// ready says whether requests should be sent here.
func (h *health) ready(w http.ResponseWriter, r *http.Request) {
	switch {
	case h.draining.Load():
		writeHealth(w, http.StatusServiceUnavailable, "draining")
	case h.check(r.Context()) != nil:
		writeHealth(w, http.StatusServiceUnavailable, "store unavailable")
	default:
		writeHealth(w, http.StatusOK, "ok")
	}
}

// check asks the store, at most once per healthTTL. Those who ask at the same
// time wait for one answer.
func (h *health) check(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.checked) < healthTTL {
		return h.err
	}
	// The answer is for everyone, so no single caller's leaving ends it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
	defer cancel()
	was := h.err
	h.err = h.ping(ctx)
	h.checked = time.Now()
	switch {
	case h.err != nil && was == nil:
		h.log.Error("not ready: the store does not answer", "error", h.err)
	case h.err == nil && was != nil:
		h.log.Info("ready again: the store answers")
	}
	return h.err
}

func writeHealth(w http.ResponseWriter, status int, word string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"status":"` + word + `"}`)) // the prober is gone if this fails
}

// register adds the probes to a mux.
func (h *health) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /health/live", h.live)
	mux.HandleFunc("GET /health/ready", h.ready)
}
