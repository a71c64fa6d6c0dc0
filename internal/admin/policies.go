// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"

	"connectrpc.com/connect"

	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
)

// policyKey reads which set is meant; the owner is the caller's organisation
// when none is named.
func (s *server) policyKey(ctx context.Context, ref *v1.PolicySetRef) sharing.PolicyKey {
	key := sharing.PolicyKey{Layer: sharing.Layer(ref.GetLayer()), Organisation: ref.GetOrganisation(), Name: ref.GetName()}
	if key.Layer != sharing.LayerPlatform {
		key.Organisation = s.ownOr(ctx, key.Organisation)
	}
	return key
}

func policySetOf(p sharing.PolicySet) *v1.PolicySet {
	return &v1.PolicySet{
		Name: p.Name, Uid: p.ID.String(), Layer: v1.PolicyLayer(p.Layer), Organisation: p.Organisation, Description: p.Description,
		ActiveVersion: p.Active, NewestVersion: p.Newest, Etag: p.Etag(), CreateTime: stampOf(p.CreatedAt), UpdateTime: stampOf(p.UpdatedAt),
	}
}

func versionOf(v sharing.PolicyVersion, files bool) *v1.PolicyVersion {
	out := &v1.PolicyVersion{
		Version: v.Version, Comment: v.Comment, Principal: v.Principal, Digest: v.Digest, PolicyCount: int32(min(v.Policies, 1<<31-1)), CreateTime: stampOf(v.CreatedAt),
	}
	if files {
		for _, f := range v.Files {
			out.Files = append(out.Files, &v1.PolicyFile{Path: f.Path, Text: f.Text})
		}
	}
	return out
}

func filesOf(in []*v1.PolicyFile) []sharing.PolicyFile {
	out := make([]sharing.PolicyFile, 0, len(in))
	for _, f := range in {
		out = append(out, sharing.PolicyFile{Path: f.GetPath(), Text: f.GetText()})
	}
	return out
}

// maxProblems bounds how many problems an answer lists.
const maxProblems = 1000

func problemsOf(in policy.Problems) []*v1.PolicyProblem {
	var out []*v1.PolicyProblem
	for _, p := range in[:min(len(in), maxProblems)] {
		out = append(out, &v1.PolicyProblem{
			File: p.File, Line: int32(min(p.Line, 1<<31-1)), Column: int32(min(p.Column, 1<<31-1)), Policy: p.Policy, Table: p.Table, Message: p.Message, Hint: p.Hint,
		})
	}
	return out
}

func (s *server) CreatePolicySet(ctx context.Context, req *connect.Request[v1.CreatePolicySetRequest]) (*connect.Response[v1.CreatePolicySetResponse], error) {
	in := req.Msg.GetPolicySet()
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.PolicySet, error) {
		return s.sharing.CreatePolicySet(ctx, m, sharing.PolicySet{PolicyKey: s.policyKey(ctx, refOf(in)), Description: in.GetDescription()})
	}, func(p sharing.PolicySet, _ bool) (*v1.CreatePolicySetResponse, error) {
		return &v1.CreatePolicySetResponse{PolicySet: policySetOf(p)}, nil
	})
}

func (s *server) GetPolicySet(ctx context.Context, req *connect.Request[v1.GetPolicySetRequest]) (*connect.Response[v1.GetPolicySetResponse], error) {
	p, err := s.sharing.PolicySet(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetPolicySetResponse{PolicySet: policySetOf(p)}), nil
}

func (s *server) ListPolicySets(ctx context.Context, req *connect.Request[v1.ListPolicySetsRequest]) (*connect.Response[v1.ListPolicySetsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.PolicySets(ctx, sharing.Layer(req.Msg.GetLayer()), s.scope(ctx, req.Msg.GetOrganisation()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListPolicySetsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, p := range all {
		res.PolicySets = append(res.PolicySets, policySetOf(p))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdatePolicySet(ctx context.Context, req *connect.Request[v1.UpdatePolicySetRequest]) (*connect.Response[v1.UpdatePolicySetResponse], error) {
	in := req.Msg.GetPolicySet()
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.PolicySet, error) {
		return s.sharing.UpdatePolicySet(ctx, m, s.policyKey(ctx, refOf(in)), func(p *sharing.PolicySet) error {
			return applyMask(req.Msg.GetUpdateMask(), text("description", in.GetDescription(), &p.Description))
		})
	}, func(p sharing.PolicySet, _ bool) (*v1.UpdatePolicySetResponse, error) {
		return &v1.UpdatePolicySetResponse{PolicySet: policySetOf(p)}, nil
	})
}

func (s *server) UploadPolicyVersion(ctx context.Context, req *connect.Request[v1.UploadPolicyVersionRequest]) (*connect.Response[v1.UploadPolicyVersionResponse], error) {
	return change(ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.UploadedVersion, error) {
		return s.sharing.UploadPolicyVersion(ctx, m, s.policyKey(ctx, req.Msg.GetPolicySet()), filesOf(req.Msg.GetFiles()), req.Msg.GetComment())
	}, func(up sharing.UploadedVersion, _ bool) (*v1.UploadPolicyVersionResponse, error) {
		return &v1.UploadPolicyVersionResponse{Version: versionOf(up.Version, false), Problems: problemsOf(up.Problems), Unchanged: up.Unchanged}, nil
	})
}

func (s *server) GetPolicyVersion(ctx context.Context, req *connect.Request[v1.GetPolicyVersionRequest]) (*connect.Response[v1.GetPolicyVersionResponse], error) {
	v, err := s.sharing.PolicyVersion(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()), req.Msg.GetVersion())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetPolicyVersionResponse{Version: versionOf(v, true)}), nil
}

func (s *server) ListPolicyVersions(ctx context.Context, req *connect.Request[v1.ListPolicyVersionsRequest]) (*connect.Response[v1.ListPolicyVersionsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.PolicyVersions(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListPolicyVersionsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, v := range all {
		res.Versions = append(res.Versions, versionOf(v, false))
	}
	return connect.NewResponse(res), nil
}

func (s *server) CheckPolicy(ctx context.Context, req *connect.Request[v1.CheckPolicyRequest]) (*connect.Response[v1.CheckPolicyResponse], error) {
	c, err := s.sharing.CheckPolicies(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()), filesOf(req.Msg.GetFiles()), req.Msg.GetVersion())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CheckPolicyResponse{Problems: problemsOf(c.Problems), PolicyCount: int32(min(c.Policies, 1<<31-1)), Tables: c.Tables}), nil
}

func (s *server) TestPolicy(ctx context.Context, req *connect.Request[v1.TestPolicyRequest]) (*connect.Response[v1.TestPolicyResponse], error) {
	results, problems, err := s.sharing.TestPolicies(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()), filesOf(req.Msg.GetFiles()), req.Msg.GetVersion())
	if err != nil {
		return nil, err
	}
	res := &v1.TestPolicyResponse{Problems: problemsOf(problems)}
	for _, r := range results {
		if !r.Passed {
			res.FailedCount++
		}
		res.Results = append(res.Results, &v1.PolicyCaseResult{File: r.File, Name: r.Name, Passed: r.Passed, Message: r.Message})
	}
	return connect.NewResponse(res), nil
}

func (s *server) DiffPolicy(ctx context.Context, req *connect.Request[v1.DiffPolicyRequest]) (*connect.Response[v1.DiffPolicyResponse], error) {
	d, err := s.sharing.DiffPolicies(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()), req.Msg.GetFromVersion(), req.Msg.GetToVersion(), filesOf(req.Msg.GetFiles()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DiffPolicyResponse{
		FromVersion: d.From, ToVersion: d.To, Diff: d.Text, AddedPolicies: d.Added, RemovedPolicies: d.Removed, ChangedPolicies: d.Changed,
	}), nil
}

func (s *server) ActivatePolicyVersion(ctx context.Context, req *connect.Request[v1.ActivatePolicyVersionRequest]) (*connect.Response[v1.ActivatePolicyVersionResponse], error) {
	return change(ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Activated, error) {
		return s.sharing.ActivatePolicies(ctx, m, s.policyKey(ctx, req.Msg.GetPolicySet()), req.Msg.GetVersion())
	}, func(a sharing.Activated, _ bool) (*v1.ActivatePolicyVersionResponse, error) {
		return &v1.ActivatePolicyVersionResponse{PolicySet: policySetOf(a.Set), PreviousVersion: a.Previous}, nil
	})
}

func (s *server) RollbackPolicySet(ctx context.Context, req *connect.Request[v1.RollbackPolicySetRequest]) (*connect.Response[v1.RollbackPolicySetResponse], error) {
	return change(ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Activated, error) {
		return s.sharing.RollBackPolicies(ctx, m, s.policyKey(ctx, req.Msg.GetPolicySet()))
	}, func(a sharing.Activated, _ bool) (*v1.RollbackPolicySetResponse, error) {
		return &v1.RollbackPolicySetResponse{PolicySet: policySetOf(a.Set), PreviousVersion: a.Previous}, nil
	})
}

func (s *server) ListPolicyActivations(ctx context.Context, req *connect.Request[v1.ListPolicyActivationsRequest]) (*connect.Response[v1.ListPolicyActivationsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.PolicyActivations(ctx, s.policyKey(ctx, req.Msg.GetPolicySet()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListPolicyActivationsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, a := range all {
		res.Activations = append(res.Activations, &v1.PolicyActivation{
			Id: a.ID, Version: a.Version, PreviousVersion: a.Previous, Principal: a.Principal, Time: stampOf(a.Time), Rollback: a.Rollback,
		})
	}
	return connect.NewResponse(res), nil
}

// Layers are numbered as in package sharing.
var (
	_ = [1]struct{}{}[int(v1.PolicyLayer_POLICY_LAYER_PLATFORM)-int(sharing.LayerPlatform)]
	_ = [1]struct{}{}[int(v1.PolicyLayer_POLICY_LAYER_RECIPIENT)-int(sharing.LayerRecipient)]
)
