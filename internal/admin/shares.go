// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/sharing"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
)

func shareOf(sh sharing.Share) *v1.Share {
	return &v1.Share{
		Name: sh.Name, Uid: sh.ID.String(), Organisation: sh.Organisation, DisplayName: sh.DisplayName, Description: sh.Description, OnDrop: v1.OnDrop(sh.OnDrop),
		MemberCount: int32(min(sh.Members, 1<<31-1)), Etag: sh.Etag(), CreateTime: stampOf(sh.CreatedAt), UpdateTime: stampOf(sh.UpdatedAt),
	}
}

// onDropOf reads a rule; unspecified is block.
func onDropOf(d v1.OnDrop) sharing.OnDrop {
	if d == v1.OnDrop_ON_DROP_UNSPECIFIED {
		return sharing.OnDropBlock
	}
	return sharing.OnDrop(d)
}

func (s *server) CreateShare(ctx context.Context, req *connect.Request[v1.CreateShareRequest]) (*connect.Response[v1.CreateShareResponse], error) {
	in := req.Msg.GetShare()
	owner, err := s.owner(ctx, in.GetOrganisation())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.Share, error) {
		return s.sharing.CreateShare(ctx, m, sharing.Share{
			Name: in.GetName(), Organisation: owner, DisplayName: in.GetDisplayName(), Description: in.GetDescription(), OnDrop: onDropOf(in.GetOnDrop()),
		})
	}, func(sh sharing.Share, _ bool) (*v1.CreateShareResponse, error) {
		return &v1.CreateShareResponse{Share: shareOf(sh)}, nil
	})
}

func (s *server) GetShare(ctx context.Context, req *connect.Request[v1.GetShareRequest]) (*connect.Response[v1.GetShareResponse], error) {
	sh, err := s.sharing.Share(ctx, req.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetShareResponse{Share: shareOf(sh)}), nil
}

func (s *server) ListShares(ctx context.Context, req *connect.Request[v1.ListSharesRequest]) (*connect.Response[v1.ListSharesResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.Shares(ctx, s.scope(ctx, req.Msg.GetOrganisation()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListSharesResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, sh := range all {
		res.Shares = append(res.Shares, shareOf(sh))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdateShare(ctx context.Context, req *connect.Request[v1.UpdateShareRequest]) (*connect.Response[v1.UpdateShareResponse], error) {
	in := req.Msg.GetShare()
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Share, error) {
		return s.sharing.UpdateShare(ctx, m, in.GetName(), func(sh *sharing.Share) error {
			return applyMask(req.Msg.GetUpdateMask(), text("display_name", in.GetDisplayName(), &sh.DisplayName), text("description", in.GetDescription(), &sh.Description),
				maskField{"on_drop", in.GetOnDrop() != v1.OnDrop_ON_DROP_UNSPECIFIED, func() { sh.OnDrop = onDropOf(in.GetOnDrop()) }})
		})
	}, func(sh sharing.Share, _ bool) (*v1.UpdateShareResponse, error) {
		return &v1.UpdateShareResponse{Share: shareOf(sh)}, nil
	})
}

func (s *server) DeleteShare(ctx context.Context, req *connect.Request[v1.DeleteShareRequest]) (*connect.Response[v1.DeleteShareResponse], error) {
	return remove[v1.DeleteShareRequest, v1.DeleteShareResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteShare(ctx, m, req.Msg.GetName(), req.Msg.GetForce())
	})
}

// memberOf writes a member; names are those of warehouses by their ids.
func (s *server) memberOf(ctx context.Context, m sharing.Member, names map[uuid.UUID]string) (*v1.ShareMember, error) {
	name, ok := names[m.Warehouse]
	if !ok {
		var err error
		if name, err = s.sharing.WarehouseName(ctx, m.Warehouse); err != nil {
			return nil, err
		}
		names[m.Warehouse] = name
	}
	out := &v1.ShareMember{
		Id: m.ID.String(), Kind: v1.MemberKind(m.Kind), Warehouse: name, Namespace: m.Namespace, Object: m.Name,
		AliasNamespace: m.AliasNamespace, Alias: m.Alias, CreateTime: stampOf(m.CreatedAt),
	}
	if m.UUID != uuid.Nil {
		out.Uuid = m.UUID.String()
	}
	return out, nil
}

func (s *server) ModifyShareMembers(ctx context.Context, req *connect.Request[v1.ModifyShareMembersRequest]) (*connect.Response[v1.ModifyShareMembersResponse], error) {
	add := make([]sharing.NewMember, 0, len(req.Msg.GetAdd()))
	for _, in := range req.Msg.GetAdd() {
		n := sharing.NewMember{
			Kind: sharing.MemberKind(in.GetKind()), Warehouse: in.GetWarehouse(), Namespace: in.GetNamespace(), Name: in.GetObject(),
			AliasNamespace: in.GetAliasNamespace(), Alias: in.GetAlias(),
		}
		if in.GetUuid() != "" {
			id, err := uuid.Parse(in.GetUuid())
			if err != nil {
				return nil, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_UUID", Message: "add: uuid is not a UUID"}
			}
			n.UUID = id
		}
		add = append(add, n)
	}
	gone := make([]uuid.UUID, 0, len(req.Msg.GetRemove()))
	for _, text := range req.Msg.GetRemove() {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_ID", Message: "remove: not the id of a member, which is a UUID", Next: "list the share's members to see their ids"}
		}
		gone = append(gone, id)
	}
	return change(ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.MembersChanged, error) {
		return s.sharing.ModifyMembers(ctx, m, req.Msg.GetShare(), add, gone)
	}, func(c sharing.MembersChanged, _ bool) (*v1.ModifyShareMembersResponse, error) {
		res := &v1.ModifyShareMembersResponse{Share: shareOf(c.Share)}
		names := map[uuid.UUID]string{}
		for i, m := range c.Added {
			names[m.Warehouse] = add[i].Warehouse // as the request called it
			one, err := s.memberOf(ctx, m, names)
			if err != nil {
				return nil, err
			}
			res.Added = append(res.Added, one)
		}
		return res, nil
	})
}

func (s *server) ListShareMembers(ctx context.Context, req *connect.Request[v1.ListShareMembersRequest]) (*connect.Response[v1.ListShareMembersResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.Members(ctx, req.Msg.GetShare(), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListShareMembersResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	names := map[uuid.UUID]string{}
	for _, m := range all {
		one, err := s.memberOf(ctx, m, names)
		if err != nil {
			return nil, err
		}
		res.Members = append(res.Members, one)
	}
	return connect.NewResponse(res), nil
}

func (s *server) ListSharedObjects(ctx context.Context, req *connect.Request[v1.ListSharedObjectsRequest]) (*connect.Response[v1.ListSharedObjectsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	view, err := s.sharing.Preview(ctx, req.Msg.GetShare())
	if err != nil {
		return nil, err
	}
	all, err := view.All(ctx)
	if err != nil {
		return nil, err
	}
	key := func(o sharing.Shown) string {
		return sharing.Key(append(slices.Clone(o.Ident.Namespace), o.Ident.Name)...)
	}
	i, found := slices.BinarySearchFunc(all, page.After, func(o sharing.Shown, after string) int { return strings.Compare(key(o), after) })
	if found {
		i++
	}
	if page.After == "" {
		i = 0
	}
	res := &v1.ListSharedObjectsResponse{}
	for n, o := range all[i:] {
		if n == page.Limit {
			res.NextPageToken = tokenOf(ctx, req.Msg, key(all[i+n-1]))
			break
		}
		res.Objects = append(res.Objects, &v1.SharedObject{
			Namespace: o.Ident.Namespace, Name: o.Ident.Name, Kind: v1.MemberKind(o.Object.Kind), Warehouse: o.Warehouse,
			SourceNamespace: o.Object.Namespace, SourceName: o.Object.Name, Uuid: o.Object.UUID.String(), Member: o.Member.String(),
		})
	}
	return connect.NewResponse(res), nil
}

func (s *server) ListShareWarnings(ctx context.Context, req *connect.Request[v1.ListShareWarningsRequest]) (*connect.Response[v1.ListShareWarningsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	organisation := ""
	if req.Msg.GetShare() == "" {
		if organisation, err = s.owner(ctx, req.Msg.GetOrganisation()); err != nil {
			return nil, err
		}
	}
	all, next, err := s.sharing.Warnings(ctx, req.Msg.GetShare(), organisation, page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListShareWarningsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, w := range all {
		res.Warnings = append(res.Warnings, &v1.ShareWarning{
			Id: w.ID, Time: stampOf(w.Time), Share: w.ShareName, Reason: w.Reason, Message: w.Message, Object: w.Object, Principal: w.Principal,
		})
	}
	return connect.NewResponse(res), nil
}

// kinds of members are those of the catalog, and namespaces.
var (
	_ = [1]struct{}{}[int(v1.MemberKind_MEMBER_KIND_TABLE)-int(catalog.KindTable)]
	_ = [1]struct{}{}[int(v1.MemberKind_MEMBER_KIND_VIEW)-int(catalog.KindView)]
	_ = [1]struct{}{}[int(v1.MemberKind_MEMBER_KIND_NAMESPACE)-int(sharing.MemberNamespace)]
	_ = [1]struct{}{}[int(v1.OnDrop_ON_DROP_REMOVE)-int(sharing.OnDropRemove)]
)
