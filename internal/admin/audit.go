// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/sharing"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
)

// administration is how callers name the chain of what this interface changes.
const administration = "administration"

// AuditSource is what the audit service reads.
type AuditSource struct {
	Store catalog.Store
	// Before returns rows of a chain, newest first, each with the number to go
	// on with after it; 0 starts.
	Before func(ctx context.Context, partition uuid.UUID, before int64, limit int) ([]catalog.AuditRow, []int64, error)
	// Administration is the id of that chain.
	Administration uuid.UUID
	// Keys verify checkpoints.
	Keys audit.Keys
	// KeptSince is the time before which rows may have been removed; zero when
	// they are kept for ever.
	KeptSince func(now time.Time) time.Time
}

// chain is a chain that a caller may read.
type chain struct {
	name string
	id   uuid.UUID
	// only, when it is not "", hides records that do not concern that
	// organisation.
	only string
}

// chains are those that a request names, or all that the caller may read.
// Which it may was decided before.
func (s *server) chains(ctx context.Context, names []string) ([]chain, error) {
	only := s.scope(ctx, "")
	admin := chain{administration, s.cfg.Audit.Administration, only}
	if len(names) > 0 {
		var out []chain
		for _, name := range names {
			if name == administration {
				out = append(out, admin)
				continue
			}
			w, err := s.sharing.Warehouse(ctx, name)
			if err != nil {
				return nil, err
			}
			out = append(out, chain{w.Name, w.ID, ""})
		}
		return out, nil
	}
	out := []chain{admin}
	all, _, err := s.sharing.Warehouses(ctx, only, sharing.Page{})
	for _, w := range all {
		out = append(out, chain{w.Name, w.ID, ""})
	}
	return out, err
}

// filter says which records are wanted.
type filter struct {
	audit.Filter
	requestID string
}

func readFilter(in *v1.AuditFilter) (filter, error) {
	f := filter{audit.Filter{Principal: in.GetPrincipal(), Operation: in.GetOperation(), Resource: in.GetResource(), Outcome: in.GetOutcome()}, in.GetRequestId()}
	if o := f.Outcome; o != "" && o != audit.OutcomeOK && o != audit.OutcomeDenied && o != audit.OutcomeFailed {
		return f, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_OUTCOME", Message: "outcome: must be ok, denied or failed"}
	}
	var err error
	if f.Since, err = timeOf("start_time", in.GetStartTime()); err != nil {
		return f, err
	}
	f.Until, err = timeOf("end_time", in.GetEndTime())
	return f, err
}

// matches reports whether a record is wanted, and the caller's business.
func (f *filter) matches(c chain, r *audit.Record) bool {
	if c.only != "" {
		var d struct {
			Organisation string `json:"organisation"`
		}
		if json.Unmarshal(r.Detail, &d) != nil || d.Organisation != c.only {
			return false
		}
	}
	return (f.Principal == "" || r.Principal == f.Principal || r.Actor == f.Principal) && (f.Operation == "" || r.Operation == f.Operation) &&
		(f.Outcome == "" || r.Outcome() == f.Outcome) && (f.requestID == "" || r.RequestID == f.requestID) &&
		(f.Resource == "" || r.Resource == f.Resource || strings.HasPrefix(r.Resource, f.Resource+".") || strings.HasPrefix(r.Resource, f.Resource+"/")) &&
		!r.Time.Before(f.Since) && (f.Until.IsZero() || r.Time.Before(f.Until))
}

func recordOf(c chain, row *catalog.AuditRow) *v1.AuditRecord {
	r := &row.Record
	out := &v1.AuditRecord{
		Partition: c.name, Sequence: row.Seq, Time: stampOf(r.Time), Kind: r.Kind.String(), RequestId: r.RequestID, Principal: r.Principal, Actor: r.Actor,
		Operation: r.Operation, Resource: r.Resource, Status: int32(min(r.Status, 1<<31-1)), Decision: r.Decision.String(), Outcome: r.Outcome(),
	}
	if r.Address.IsValid() {
		out.Address = r.Address.String()
	}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, &v1.AuditPolicy{Set: p.Set, Version: p.Version, Policy: p.ID})
	}
	if len(r.Detail) > 0 {
		out.Detail = &structpb.Struct{}
		if err := out.Detail.UnmarshalJSON(r.Detail); err != nil {
			// A row that was changed; verification tells.
			out.Detail = &structpb.Struct{Fields: map[string]*structpb.Value{"unreadable": structpb.NewBoolValue(true)}}
		}
	}
	return out
}

// maxScan bounds how many records of a chain one page looks at; a page may
// then be short, and the listing goes on.
const maxScan = 5000

func (s *server) QueryAudit(ctx context.Context, req *connect.Request[v1.QueryAuditRequest]) (*connect.Response[v1.QueryAuditResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	f, err := readFilter(req.Msg.GetFilter())
	if err != nil {
		return nil, err
	}
	chains, err := s.chains(ctx, req.Msg.GetFilter().GetPartitions())
	if err != nil {
		return nil, err
	}
	// Where each chain goes on: before this row; -1 at its end.
	from := make(map[string]int64, len(chains))
	if page.After != "" {
		for part := range strings.SplitSeq(page.After, ",") {
			name, n, _ := strings.Cut(part, "=")
			if from[name], err = strconv.ParseInt(n, 10, 64); err != nil {
				return nil, badPage()
			}
		}
	}
	type found struct {
		chain  chain
		row    catalog.AuditRow
		number int64
	}
	var all []found
	scanned := make(map[string]int64, len(chains))
	for _, c := range chains {
		before := from[c.id.String()]
		matched := 0
		for n := 0; before >= 0 && matched < page.Limit && n < maxScan; {
			rows, numbers, err := s.cfg.Audit.Before(ctx, c.id, before, min(1000, page.Limit+1))
			if err != nil {
				return nil, err
			}
			if len(rows) == 0 {
				before = -1
				break
			}
			for i := range rows {
				n, before = n+1, numbers[i]
				if rows[i].Time.Before(f.Since.Add(-time.Minute)) { // rows are nearly in order of time
					before = -1
					break
				}
				if f.matches(c, &rows[i].Record) {
					matched++
					all = append(all, found{c, rows[i], numbers[i]})
					if matched == page.Limit {
						break
					}
				}
			}
		}
		scanned[c.id.String()] = before
	}
	slices.SortStableFunc(all, func(a, b found) int { return b.row.Time.Compare(a.row.Time) })
	// What does not fit on the page is looked at again for the next one.
	next := scanned
	if len(all) > page.Limit {
		shown := map[string]int64{}
		for _, x := range all[:page.Limit] {
			shown[x.chain.id.String()] = x.number
		}
		for _, x := range all[page.Limit:] {
			id := x.chain.id.String()
			if last, ok := shown[id]; ok {
				next[id] = last
			} else {
				next[id] = from[id]
			}
		}
		all = all[:page.Limit]
	}
	res := &v1.QueryAuditResponse{}
	for i := range all {
		res.Records = append(res.Records, recordOf(all[i].chain, &all[i].row))
	}
	var parts []string
	goesOn := false
	for _, c := range chains {
		n := next[c.id.String()]
		goesOn = goesOn || n >= 0
		parts = append(parts, c.id.String()+"="+strconv.FormatInt(n, 10))
	}
	if goesOn {
		res.NextPageToken = tokenOf(ctx, req.Msg, strings.Join(parts, ","))
	}
	return connect.NewResponse(res), nil
}

// tailPause is how often a tail looks for new records.
const tailPause = 500 * time.Millisecond

func (s *server) TailAudit(ctx context.Context, req *connect.Request[v1.TailAuditRequest], stream *connect.ServerStream[v1.TailAuditResponse]) error {
	return s.wireError(ctx, s.tail(ctx, req, stream))
}

func (s *server) tail(ctx context.Context, req *connect.Request[v1.TailAuditRequest], stream *connect.ServerStream[v1.TailAuditResponse]) error {
	if err := s.authorise(ctx, req.Spec().Procedure, req.Msg); err != nil {
		return err
	}
	f, err := readFilter(req.Msg.GetFilter())
	if err != nil {
		return err
	}
	chains, err := s.chains(ctx, req.Msg.GetFilter().GetPartitions())
	if err != nil {
		return err
	}
	last := make([]int64, len(chains))
	for i, c := range chains {
		state, err := s.cfg.Audit.Store.AuditState(ctx, c.id)
		if err != nil && !errors.Is(err, catalog.ErrNoObject) {
			return err
		}
		last[i] = state.Head.Seq
	}
	// The headers tell the caller that it has begun.
	if err := stream.Send(nil); err != nil {
		return err
	}
	checked := s.cfg.Now()
	for {
		for i, c := range chains {
			rows, err := s.cfg.Audit.Store.AuditRows(ctx, c.id, last[i], 1000)
			if err != nil {
				return err
			}
			for j := range rows {
				last[i] = rows[j].Seq
				if !f.matches(c, &rows[j].Record) {
					continue
				}
				if err := stream.Send(&v1.TailAuditResponse{Record: recordOf(c, &rows[j])}); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Stopping:
			return connect.NewError(connect.CodeUnavailable, errors.New("the server is being stopped; begin again"))
		case <-time.After(tailPause):
		}
		// Whoever may not read any more is not read to.
		if now := s.cfg.Now(); now.Sub(checked) >= recheck {
			checked = now
			if err := s.stillAllowed(ctx, req); err != nil {
				return err
			}
		}
	}
}

// recheck is how often a stream's caller is authorised anew.
const recheck = 10 * time.Second

// stillAllowed applies the rule again, with the records of this moment. That a
// token has expired since is not looked at: it was good when the stream began,
// and a stream does not outlive maxStream.
func (s *server) stillAllowed(ctx context.Context, req *connect.Request[v1.TailAuditRequest]) error {
	c := *who(ctx)
	if s.cfg.Now().Sub(c.since) > maxStream {
		return connect.NewError(connect.CodeUnavailable, errors.New("the stream has lasted an hour; begin again"))
	}
	if err := s.giveRole(ctx, &c); err != nil {
		return err
	}
	return s.check(context.WithValue(ctx, callerKey{}, &c), req.Spec().Procedure, req.Msg, nil)
}

// maxStream is how long a stream lasts: as long as a token of this server, by
// default.
const maxStream = time.Hour

func (s *server) VerifyAudit(ctx context.Context, req *connect.Request[v1.VerifyAuditRequest]) (*connect.Response[v1.VerifyAuditResponse], error) {
	chains, err := s.chains(ctx, req.Msg.GetPartitions())
	if err != nil {
		return nil, err
	}
	res := &v1.VerifyAuditResponse{}
	o := audit.VerifyOptions{Keys: s.cfg.Audit.Keys}
	if s.cfg.Audit.KeptSince != nil {
		o.RemovedBefore = s.cfg.Audit.KeptSince(s.cfg.Now())
	}
	for _, c := range chains {
		if c.only != "" {
			continue // a chain of several organisations is the platform's to verify
		}
		checkpoints, err := s.cfg.Audit.Store.AuditCheckpoints(ctx, c.id, 0, 0)
		if err != nil {
			return nil, err
		}
		report, err := audit.Verify(catalog.AuditLines(ctx, s.cfg.Audit.Store, c.id, 0), o)
		if err != nil {
			return nil, err
		}
		v := &v1.AuditVerification{
			Partition: c.name, Intact: report.OK(), RecordCount: report.Records, SignedCount: report.Records - report.Unproven(), CheckpointCount: int64(len(checkpoints)),
		}
		if len(o.Keys) == 0 {
			v.SignedCount = 0
		}
		for _, p := range report.Problems {
			v.Problems = append(v.Problems, p.String())
		}
		res.Partitions = append(res.Partitions, v)
	}
	slices.SortFunc(res.Partitions, func(a, b *v1.AuditVerification) int { return cmp.Compare(a.GetPartition(), b.GetPartition()) })
	return connect.NewResponse(res), nil
}

// exportBatch is about how many bytes of lines one message of an export has.
const exportBatch = 256 << 10

func (s *server) ExportAudit(ctx context.Context, req *connect.Request[v1.ExportAuditRequest], stream *connect.ServerStream[v1.ExportAuditResponse]) error {
	return s.wireError(ctx, s.export(ctx, req, stream))
}

func (s *server) export(ctx context.Context, req *connect.Request[v1.ExportAuditRequest], stream *connect.ServerStream[v1.ExportAuditResponse]) error {
	if err := s.authorise(ctx, req.Spec().Procedure, req.Msg); err != nil {
		return err
	}
	if req.Msg.GetAfterSequence() < 0 {
		return &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_SEQUENCE", Message: "after_sequence: must not be negative"}
	}
	chains, err := s.chains(ctx, []string{req.Msg.GetPartition()})
	if err != nil {
		return err
	}
	res, size := &v1.ExportAuditResponse{}, 0
	for line, err := range catalog.AuditLines(ctx, s.cfg.Audit.Store, chains[0].id, req.Msg.GetAfterSequence()) {
		if err != nil {
			return err
		}
		res.Lines, size = append(res.Lines, string(line.Text)), size+len(line.Text)
		if size < exportBatch {
			continue
		}
		if err := stream.Send(res); err != nil {
			return err
		}
		res, size = &v1.ExportAuditResponse{}, 0
	}
	if len(res.GetLines()) == 0 {
		return nil
	}
	return stream.Send(res)
}
