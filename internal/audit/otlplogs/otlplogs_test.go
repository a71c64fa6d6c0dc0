// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package otlplogs

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/secret"
)

// collectorServer is a receiver that answers as it is told.
type collectorServer struct {
	t       *testing.T
	status  int
	answer  *collogs.ExportLogsServiceResponse
	header  http.Header
	path    string
	records []*logs.LogRecord
	service string
}

func (c *collectorServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.header, c.path = r.Header, r.URL.Path
	body, err := gzip.NewReader(r.Body)
	if err != nil {
		c.t.Error(err)
		return
	}
	raw, err := io.ReadAll(body)
	var request collogs.ExportLogsServiceRequest
	if err != nil || proto.Unmarshal(raw, &request) != nil {
		c.t.Error("no request", err)
		return
	}
	c.records = nil
	for _, rl := range request.ResourceLogs {
		for _, a := range rl.Resource.Attributes {
			if a.Key == "service.name" {
				c.service = a.Value.GetStringValue()
			}
		}
		for _, sl := range rl.ScopeLogs {
			c.records = append(c.records, sl.LogRecords...)
		}
	}
	raw, err = proto.Marshal(c.answer)
	if err != nil {
		c.t.Error(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.Header().Set("Location", "/elsewhere")
	w.WriteHeader(c.status)
	_, _ = w.Write(raw)
	if c.status != http.StatusOK {
		_, _ = w.Write(bytes.Repeat([]byte("no "), 10_000))
	}
}

const (
	denied = `{"type":"audit.decision","partition":"p","seq":3,"time":"2026-03-04T05:06:07.089000Z","request_id":"r","principal":"alice","actor":"engine",` +
		`"address":"192.0.2.1","operation":"loadTable","warehouse":"sales","resource":"a<b` + "\u00e9" + `","status":403,"decision":"deny",` +
		`"policies":[{"set":"provider/acme","version":3,"policy":"p1"},{"set":"platform","version":1}],"detail":{"x":1},"hash":"00"}`
	failed     = `{"type":"audit.decision","partition":"p","seq":4,"time":"2026-03-04T05:06:07.089000Z","status":500,"hash":"00"}`
	checkpoint = `{"type":"audit.checkpoint","partition":"p","seq":4,"hash":"00","count":4,"time":"2026-03-04T05:06:08.000000Z","key":"k","signature":"00"}`
)

func open(t *testing.T) (*collectorServer, *Sender) {
	t.Helper()
	c := &collectorServer{t: t, status: http.StatusOK, answer: &collogs.ExportLogsServiceResponse{}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	s, err := New(t.Context(), Options{Endpoint: server.URL + "/base", Headers: map[string]secret.Value{"Authorization": secret.New("Bearer hush")}, Service: "catalogd", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c, s
}

func batch(lines ...string) audit.Batch {
	b := audit.Batch{Source: "reads", Partition: "p", After: 2, Last: 4}
	for _, l := range lines {
		b.Lines = append(b.Lines, []byte(l))
	}
	return b
}

func TestRecords(t *testing.T) {
	t.Setenv("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
	t.Setenv("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", "2")
	c, s := open(t)
	for range 2 { // nothing of a batch is left in the next
		if err := s.Send(t.Context(), batch(denied, failed, checkpoint)); err != nil {
			t.Fatal(err)
		}
	}
	if c.path != "/base/v1/logs" || c.header.Get("Authorization") != "Bearer hush" || c.service != "catalogd" || len(c.records) != 3 {
		t.Fatalf("%s, %s, %d records", c.path, c.service, len(c.records))
	}
	for i, want := range []struct {
		body, event string
		severity    logs.SeverityNumber
	}{
		{denied, "audit.decision", logs.SeverityNumber_SEVERITY_NUMBER_WARN},
		{failed, "audit.decision", logs.SeverityNumber_SEVERITY_NUMBER_ERROR},
		{checkpoint, "audit.checkpoint", logs.SeverityNumber_SEVERITY_NUMBER_INFO},
	} {
		r := c.records[i]
		if r.Body.GetStringValue() != want.body || r.EventName != want.event || r.SeverityNumber != want.severity {
			t.Errorf("record %d: %v", i, r)
		}
	}
	if at := time.Unix(0, int64(c.records[0].TimeUnixNano)); !at.Equal(time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)) { //nolint:gosec // of our century
		t.Errorf("time %s", at)
	}
	got := map[string]string{}
	for _, a := range c.records[0].Attributes {
		got[a.Key] = text(a.Value)
	}
	for key, want := range map[string]string{
		"user.id": "alice", "sluice.audit.actor": "engine", "client.address": "192.0.2.1", "sluice.audit.operation": "loadTable",
		"sluice.audit.warehouse": "sales", "sluice.audit.resource": "a<b\u00e9", "http.response.status_code": "403", "sluice.audit.decision": "deny",
		"sluice.audit.policies": "provider/acme@3/p1,platform@1", "sluice.audit.partition": "p", "sluice.audit.seq": "3", "sluice.audit.source": "reads",
		"sluice.audit.outcome": "denied", "sluice.audit.request_id": "r", "sluice.audit.hash": "00",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
}

func text(v *common.AnyValue) string {
	switch v := v.Value.(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *common.AnyValue_ArrayValue:
		var all []string
		for _, e := range v.ArrayValue.Values {
			all = append(all, text(e))
		}
		return strings.Join(all, ",")
	}
	return ""
}

// TestNotDelivered holds a batch for undelivered unless all of it was taken.
func TestNotDelivered(t *testing.T) {
	t.Parallel()
	c, s := open(t)
	for _, c.status = range []int{301, 302, 307, 308, 400, 401, 404, 429, 500, 503} {
		err := s.Send(t.Context(), batch(failed))
		if err == nil || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "/base") || len(err.Error()) > 500 {
			t.Errorf("%d: %v", c.status, err)
		}
		if c.path != "/base/v1/logs" {
			t.Errorf("%d: a redirect was followed to %s", c.status, c.path)
		}
	}
	c.status = http.StatusOK
	c.answer.PartialSuccess = &collogs.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too old"}
	if err := s.Send(t.Context(), batch(failed, checkpoint)); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("a batch that was taken in part: %v", err)
	}
	if err := s.Send(t.Context(), batch("{")); err == nil {
		t.Error("a line that is none is sent")
	}
	away, err := New(t.Context(), Options{Endpoint: "http://127.0.0.1:1/hidden-path"})
	if err != nil {
		t.Fatal(err)
	}
	if err := away.Send(t.Context(), batch(failed)); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("the URL, which may be a secret, is in the error: %v", err)
	}
	for _, endpoint := range []string{"", "collector:4318", "ftp://c", "https://u:p@c"} {
		if _, err := New(t.Context(), Options{Endpoint: endpoint}); err == nil {
			t.Errorf("%q is an endpoint", endpoint)
		}
	}
}
