// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
	"github.com/sluice-data/sluice/proto/sluice/admin/v1/adminv1connect"
)

// auditServer streams, through the handler that servers use.
type auditServer struct {
	adminv1connect.UnimplementedAuditServiceHandler
	wait bool
}

func (s *auditServer) TailAudit(ctx context.Context, r *connect.Request[adminv1.TailAuditRequest], stream *connect.ServerStream[adminv1.TailAuditResponse]) error {
	if r.Msg.GetFilter().GetPrincipal() != "account:alice" || r.Header().Get("Authorization") != "Bearer admin" {
		return connect.NewError(connect.CodePermissionDenied, errors.New("not yours"))
	}
	for i := range 3 {
		if err := stream.Send(&adminv1.TailAuditResponse{Record: &adminv1.AuditRecord{
			Partition: "demo", Sequence: int64(i + 1), Time: timestamppb.New(time.Unix(1767225600, 0)), Principal: "account:alice", Actor: "account:\x1b[31mengine",
			Operation: "dropTable", Resource: "sales.orders", Status: 204, Outcome: "ok",
		}}); err != nil {
			return err
		}
	}
	if s.wait {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (s *auditServer) ExportAudit(_ context.Context, r *connect.Request[adminv1.ExportAuditRequest], stream *connect.ServerStream[adminv1.ExportAuditResponse]) error {
	if r.Msg.GetPartition() != "demo" {
		return connect.NewError(connect.CodeNotFound, errors.New("there is no such chain"))
	}
	return errors.Join(stream.Send(&adminv1.ExportAuditResponse{Lines: []string{`{"seq":1}`, `{"seq":2}`}}), stream.Send(&adminv1.ExportAuditResponse{Lines: []string{`{"seq":3}`}}))
}

func startAuditServer(t *testing.T, wait bool) *stage {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(adminv1connect.NewAuditServiceHandler(&auditServer{wait: wait}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = server.URL, "admin"
	return s
}

func TestStreams(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t, false)
	code, stdout, stderr := s.run("", "audit", "tail", "--principal", "account:alice")
	line := "2026-01-01T00:00:00Z  account:alice by account:\\x1b[31mengine  dropTable  demo/sales.orders  ok 204\n"
	if code != 0 || stdout != strings.Repeat(line, 3) {
		t.Errorf("tail: %d %q %s", code, stdout, stderr)
	}
	if code, stdout, stderr := s.run("", "audit", "tail", "--principal", "account:alice", "-o", "json"); code != 0 || strings.Count(stdout, "\n") != 3 || !strings.Contains(stdout, `"sequence":"3"`) {
		t.Errorf("tail as JSON: %d %q %s", code, stdout, stderr)
	}
	if code, _, stderr := s.run("", "audit", "tail", "--principal", "account:bob"); code != codeRefused || !strings.Contains(stderr, "not yours") {
		t.Errorf("tail of another: %d %s", code, stderr)
	}
	if code, stdout, stderr := s.run("", "audit", "export", "--chain", "demo"); code != 0 || stdout != "{\"seq\":1}\n{\"seq\":2}\n{\"seq\":3}\n" {
		t.Errorf("export: %d %q %s", code, stdout, stderr)
	}
	if code, _, stderr := s.run("", "audit", "export", "--chain", "none"); code != codeNotFound || !strings.Contains(stderr, "there is no such chain") {
		t.Errorf("export of none: %d %s", code, stderr)
	}
	// What the server does not have is said to be so.
	if code, _, stderr := s.run("", "audit", "query"); code != codeFailed || !strings.Contains(stderr, "has no such operation") {
		t.Errorf("query: %d %s", code, stderr)
	}
	if code, _, stderr := s.run("", "share", "list"); code != codeFailed || !strings.Contains(stderr, "has no such operation") {
		t.Errorf("share list: %d %s", code, stderr)
	}
}

// firstWrite cancels when something is written.
type firstWrite struct {
	written bytes.Buffer
	cancel  context.CancelFunc
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.cancel()
	return w.written.Write(b)
}

// TestTailIsInterrupted has a person end what does not end by itself.
func TestTailIsInterrupted(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t, true)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out := &firstWrite{cancel: cancel}
	var errs bytes.Buffer
	code := Run(ctx, []string{"audit", "tail", "--principal", "account:alice"}, System{
		Stdin: strings.NewReader(""), Stdout: out, Stderr: &errs, Env: func(k string) string { return s.env[k] }, Now: time.Now, Version: "0.0-test",
	})
	if code != 0 || !strings.Contains(out.written.String(), "dropTable") {
		t.Errorf("%d %q %s", code, out.written.String(), errs.String())
	}
}
