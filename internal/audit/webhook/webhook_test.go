// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/secret"
)

const (
	record     = `{"type":"audit.change","partition":"p","seq":3,"time":"2026-03-04T05:06:07.089000Z","resource":"a<b\u2028","hash":"00"}`
	checkpoint = `{"type":"audit.checkpoint","partition":"p","seq":3,"hash":"00","count":3,"time":"2026-03-04T05:06:08.000000Z","key":"k","signature":"00"}`
)

func batch(lines ...string) audit.Batch {
	b := audit.Batch{Source: "warehouses/sales", Partition: "p", After: 2, Last: 3}
	for _, l := range lines {
		b.Lines = append(b.Lines, []byte(l))
	}
	return b
}

func TestDelivery(t *testing.T) {
	t.Parallel()
	const key = "a shared secret"
	var header http.Header
	var body []byte
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer receiver.Close()
	s := New(receiver.URL, secret.New(key), nil)
	if err := s.Send(t.Context(), batch(record, checkpoint)); err != nil {
		t.Fatal(err)
	}
	// As a receiver checks it.
	at, mac, ok := strings.Cut(strings.TrimPrefix(header.Get(SignatureHeader), "t="), ",v1=")
	want := hmac.New(sha256.New, []byte(key))
	want.Write([]byte(at + "." + string(body)))
	if got, err := hex.DecodeString(mac); !ok || err != nil || !hmac.Equal(got, want.Sum(nil)) {
		t.Errorf("signature %q", header.Get(SignatureHeader))
	}
	if got := header.Get("Content-Type"); !strings.HasPrefix(got, "application/cloudevents-batch+json") {
		t.Errorf("content type %s", got)
	}
	if strings.Contains(string(body), key) || !strings.Contains(string(body), `"data":`+record+`}`) {
		t.Errorf("body %s", body)
	}
	var events []event
	if err := json.Unmarshal(body, &events); err != nil || len(events) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	for i, want := range []string{"1.0 p/3 sluice/warehouses/sales io.sluice.audit.change", "1.0 p/3/checkpoint sluice/warehouses/sales io.sluice.audit.checkpoint"} {
		e := events[i]
		if got := strings.Join([]string{e.SpecVersion, e.ID, e.Source, e.Type}, " "); got != want || e.Time.IsZero() || e.DataContentType != "application/json" {
			t.Errorf("event %d: %+v", i, e)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	status := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", other.URL)
		w.WriteHeader(status)
	}))
	defer receiver.Close()
	s := New(receiver.URL, secret.New("k"), nil)
	for _, status = range []int{301, 302, 307, 308, 400, 404, 500, 503} {
		if err := s.Send(t.Context(), batch(record)); err == nil {
			t.Errorf("%d counts as delivered", status)
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
	if err := s.Send(t.Context(), batch("{")); err == nil {
		t.Error("a broken line is sent")
	}
	receiver.Close()
	s = New(receiver.URL+"/hidden-path?key=hidden", secret.New("k"), nil)
	if err := s.Send(t.Context(), batch(record)); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("the URL, which may be a secret, is in the error: %v", err)
	}
	if err := s.Send(t.Context(), batch(record)); err == nil {
		t.Error("a receiver that is away has it")
	}
}
