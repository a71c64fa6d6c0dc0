// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"

	"connectrpc.com/connect"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/sharing"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
)

func organisationOf(o sharing.Organisation) *v1.Organisation {
	return &v1.Organisation{
		Name: o.Name, Uid: o.ID.String(), DisplayName: o.DisplayName, Contact: o.Contact, Etag: o.Etag(), CreateTime: stampOf(o.CreatedAt), UpdateTime: stampOf(o.UpdatedAt),
	}
}

func (s *server) CreateOrganisation(ctx context.Context, req *connect.Request[v1.CreateOrganisationRequest]) (*connect.Response[v1.CreateOrganisationResponse], error) {
	in := req.Msg.GetOrganisation()
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.Organisation, error) {
		return s.sharing.CreateOrganisation(ctx, m, sharing.Organisation{Name: in.GetName(), DisplayName: in.GetDisplayName(), Contact: in.GetContact()})
	}, func(o sharing.Organisation, _ bool) (*v1.CreateOrganisationResponse, error) {
		return &v1.CreateOrganisationResponse{Organisation: organisationOf(o)}, nil
	})
}

func (s *server) GetOrganisation(ctx context.Context, req *connect.Request[v1.GetOrganisationRequest]) (*connect.Response[v1.GetOrganisationResponse], error) {
	o, err := s.sharing.Organisation(ctx, req.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetOrganisationResponse{Organisation: organisationOf(o)}), nil
}

func (s *server) ListOrganisations(ctx context.Context, req *connect.Request[v1.ListOrganisationsRequest]) (*connect.Response[v1.ListOrganisationsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	if name := s.scope(ctx, ""); name != "" {
		o, err := s.sharing.Organisation(ctx, name)
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(&v1.ListOrganisationsResponse{Organisations: []*v1.Organisation{organisationOf(o)}}), nil
	}
	all, next, err := s.sharing.Organisations(ctx, page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListOrganisationsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, o := range all {
		res.Organisations = append(res.Organisations, organisationOf(o))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdateOrganisation(ctx context.Context, req *connect.Request[v1.UpdateOrganisationRequest]) (*connect.Response[v1.UpdateOrganisationResponse], error) {
	in := req.Msg.GetOrganisation()
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Organisation, error) {
		return s.sharing.UpdateOrganisation(ctx, m, in.GetName(), func(o *sharing.Organisation) error {
			return applyMask(req.Msg.GetUpdateMask(), text("display_name", in.GetDisplayName(), &o.DisplayName), text("contact", in.GetContact(), &o.Contact))
		})
	}, func(o sharing.Organisation, _ bool) (*v1.UpdateOrganisationResponse, error) {
		return &v1.UpdateOrganisationResponse{Organisation: organisationOf(o)}, nil
	})
}

func (s *server) DeleteOrganisation(ctx context.Context, req *connect.Request[v1.DeleteOrganisationRequest]) (*connect.Response[v1.DeleteOrganisationResponse], error) {
	return remove[v1.DeleteOrganisationRequest, v1.DeleteOrganisationResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteOrganisation(ctx, m, req.Msg.GetName())
	})
}

var wireRoles = map[Role]v1.Role{RoleNone: v1.Role_ROLE_UNSPECIFIED, RoleOrganisation: v1.Role_ROLE_ORGANISATION_ADMIN, RolePlatform: v1.Role_ROLE_PLATFORM_ADMIN}

func (s *server) WhoAmI(ctx context.Context, _ *connect.Request[v1.WhoAmIRequest]) (*connect.Response[v1.WhoAmIResponse], error) {
	c := who(ctx)
	res := &v1.WhoAmIResponse{
		Id: c.ID, Kind: c.Kind.String(), Issuer: c.Issuer, Subject: c.Subject, Organisation: c.Organisation, Groups: c.Groups, Actor: c.Actor, Role: wireRoles[c.role],
		ServerVersion: s.cfg.Version, ServerTime: stampOf(s.cfg.Now()), WarehouseAccess: map[string]string{},
	}
	for _, g := range c.Grants {
		if a := c.Access(g.Warehouse); a != identity.AccessNone {
			res.WarehouseAccess[g.Warehouse] = a.String()
		}
	}
	return connect.NewResponse(res), nil
}

func principalOf(p sharing.Principal) *v1.Principal {
	role := RoleNone
	if p.Admin {
		role = RoleOrganisation
	}
	return &v1.Principal{
		Id: p.ID, Organisation: p.Organisation, DisplayName: p.DisplayName, Role: wireRoles[role], Disabled: p.Disabled,
		Etag: p.Etag(), CreateTime: stampOf(p.CreatedAt), UpdateTime: stampOf(p.UpdatedAt),
	}
}

// adminOf reads a role that a record can give.
func adminOf(r v1.Role) (bool, error) {
	switch r {
	case v1.Role_ROLE_UNSPECIFIED:
		return false, nil
	case v1.Role_ROLE_ORGANISATION_ADMIN:
		return true, nil
	}
	return false, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_ROLE", Message: "role: only ROLE_ORGANISATION_ADMIN can be given here", Next: "platform administrators are named in the server's configuration"}
}

func (s *server) CreatePrincipal(ctx context.Context, req *connect.Request[v1.CreatePrincipalRequest]) (*connect.Response[v1.CreatePrincipalResponse], error) {
	in := req.Msg.GetPrincipal()
	admin, err := adminOf(in.GetRole())
	if err != nil {
		return nil, err
	}
	owner, err := s.owner(ctx, in.GetOrganisation())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.Principal, error) {
		return s.sharing.CreatePrincipal(ctx, m, sharing.Principal{ID: in.GetId(), Organisation: owner, DisplayName: in.GetDisplayName(), Admin: admin, Disabled: in.GetDisabled()})
	}, func(p sharing.Principal, _ bool) (*v1.CreatePrincipalResponse, error) {
		return &v1.CreatePrincipalResponse{Principal: principalOf(p)}, nil
	})
}

// owner is the organisation of something new: the one that is named, else the
// caller's.
func (s *server) owner(ctx context.Context, named string) (string, error) {
	if o := s.ownOr(ctx, named); o != "" {
		return o, nil
	}
	return "", &sharing.Error{Code: sharing.InvalidArgument, Reason: "REQUIRED", Message: "organisation: required", Next: "name one: you belong to none yourself"}
}

func (s *server) GetPrincipal(ctx context.Context, req *connect.Request[v1.GetPrincipalRequest]) (*connect.Response[v1.GetPrincipalResponse], error) {
	p, err := s.sharing.Principal(ctx, s.ownOr(ctx, req.Msg.GetOrganisation()), req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetPrincipalResponse{Principal: principalOf(p)}), nil
}

func (s *server) ListPrincipals(ctx context.Context, req *connect.Request[v1.ListPrincipalsRequest]) (*connect.Response[v1.ListPrincipalsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.Principals(ctx, s.scope(ctx, req.Msg.GetOrganisation()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListPrincipalsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, p := range all {
		res.Principals = append(res.Principals, principalOf(p))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdatePrincipal(ctx context.Context, req *connect.Request[v1.UpdatePrincipalRequest]) (*connect.Response[v1.UpdatePrincipalResponse], error) {
	in := req.Msg.GetPrincipal()
	admin, err := adminOf(in.GetRole())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Principal, error) {
		return s.sharing.UpdatePrincipal(ctx, m, s.ownOr(ctx, in.GetOrganisation()), in.GetId(), func(p *sharing.Principal) error {
			return applyMask(req.Msg.GetUpdateMask(), text("display_name", in.GetDisplayName(), &p.DisplayName),
				maskField{"role", in.GetRole() != v1.Role_ROLE_UNSPECIFIED, func() { p.Admin = admin }},
				maskField{"disabled", in.GetDisabled(), func() { p.Disabled = in.GetDisabled() }})
		})
	}, func(p sharing.Principal, _ bool) (*v1.UpdatePrincipalResponse, error) {
		return &v1.UpdatePrincipalResponse{Principal: principalOf(p)}, nil
	})
}

func (s *server) DeletePrincipal(ctx context.Context, req *connect.Request[v1.DeletePrincipalRequest]) (*connect.Response[v1.DeletePrincipalResponse], error) {
	return remove[v1.DeletePrincipalRequest, v1.DeletePrincipalResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeletePrincipal(ctx, m, s.ownOr(ctx, req.Msg.GetOrganisation()), req.Msg.GetId())
	})
}

func secretOf(k sharing.AccountSecret) *v1.ServiceAccountSecret {
	return &v1.ServiceAccountSecret{Id: k.ID, CreateTime: stampOf(k.CreatedAt), ExpireTime: stampOf(k.ExpiresAt)}
}

func accountOf(a sharing.ServiceAccount) *v1.ServiceAccount {
	out := &v1.ServiceAccount{
		ClientId: a.ClientID, Organisation: a.Organisation, DisplayName: a.DisplayName, Disabled: a.Disabled,
		Etag: a.Etag(), CreateTime: stampOf(a.CreatedAt), UpdateTime: stampOf(a.UpdatedAt),
	}
	for _, k := range a.Secrets {
		out.Secrets = append(out.Secrets, secretOf(k))
	}
	return out
}

func (s *server) CreateServiceAccount(ctx context.Context, req *connect.Request[v1.CreateServiceAccountRequest]) (*connect.Response[v1.CreateServiceAccountResponse], error) {
	in := req.Msg.GetServiceAccount()
	owner, err := s.owner(ctx, in.GetOrganisation())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.NewSecret, error) {
		return s.sharing.CreateServiceAccount(ctx, m, sharing.ServiceAccount{
			ClientID: in.GetClientId(), Organisation: owner, DisplayName: in.GetDisplayName(), Disabled: in.GetDisabled(),
		}, !req.Msg.GetWithoutSecret())
	}, func(n sharing.NewSecret, kept bool) (*v1.CreateServiceAccountResponse, error) {
		res := &v1.CreateServiceAccountResponse{ServiceAccount: accountOf(n.Account)}
		if !kept && !req.Msg.GetValidateOnly() {
			res.ClientSecret = n.Value.Reveal()
		}
		return res, nil
	})
}

func (s *server) GetServiceAccount(ctx context.Context, req *connect.Request[v1.GetServiceAccountRequest]) (*connect.Response[v1.GetServiceAccountResponse], error) {
	a, err := s.sharing.ServiceAccount(ctx, req.Msg.GetClientId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetServiceAccountResponse{ServiceAccount: accountOf(a)}), nil
}

func (s *server) ListServiceAccounts(ctx context.Context, req *connect.Request[v1.ListServiceAccountsRequest]) (*connect.Response[v1.ListServiceAccountsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.ServiceAccounts(ctx, s.scope(ctx, req.Msg.GetOrganisation()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListServiceAccountsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, a := range all {
		res.ServiceAccounts = append(res.ServiceAccounts, accountOf(a))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdateServiceAccount(ctx context.Context, req *connect.Request[v1.UpdateServiceAccountRequest]) (*connect.Response[v1.UpdateServiceAccountResponse], error) {
	in := req.Msg.GetServiceAccount()
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.ServiceAccount, error) {
		return s.sharing.UpdateServiceAccount(ctx, m, in.GetClientId(), func(a *sharing.ServiceAccount) error {
			return applyMask(req.Msg.GetUpdateMask(), text("display_name", in.GetDisplayName(), &a.DisplayName),
				maskField{"disabled", in.GetDisabled(), func() { a.Disabled = in.GetDisabled() }})
		})
	}, func(a sharing.ServiceAccount, _ bool) (*v1.UpdateServiceAccountResponse, error) {
		return &v1.UpdateServiceAccountResponse{ServiceAccount: accountOf(a)}, nil
	})
}

func (s *server) DeleteServiceAccount(ctx context.Context, req *connect.Request[v1.DeleteServiceAccountRequest]) (*connect.Response[v1.DeleteServiceAccountResponse], error) {
	return remove[v1.DeleteServiceAccountRequest, v1.DeleteServiceAccountResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteServiceAccount(ctx, m, req.Msg.GetClientId())
	})
}

func (s *server) CreateServiceAccountSecret(ctx context.Context, req *connect.Request[v1.CreateServiceAccountSecretRequest]) (*connect.Response[v1.CreateServiceAccountSecretResponse], error) {
	expires, err := timeOf("expire_time", req.Msg.GetExpireTime())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.NewSecret, error) {
		return s.sharing.CreateSecret(ctx, m, req.Msg.GetClientId(), expires)
	}, func(n sharing.NewSecret, kept bool) (*v1.CreateServiceAccountSecretResponse, error) {
		res := &v1.CreateServiceAccountSecretResponse{Secret: secretOf(n.Secret)}
		if !kept && !req.Msg.GetValidateOnly() {
			res.ClientSecret = n.Value.Reveal()
		}
		return res, nil
	})
}

func (s *server) DeleteServiceAccountSecret(ctx context.Context, req *connect.Request[v1.DeleteServiceAccountSecretRequest]) (*connect.Response[v1.DeleteServiceAccountSecretResponse], error) {
	return remove[v1.DeleteServiceAccountSecretRequest, v1.DeleteServiceAccountSecretResponse](ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteSecret(ctx, m, req.Msg.GetClientId(), req.Msg.GetSecretId())
	})
}

var wireSources = map[sharing.WarehouseSource]v1.WarehouseSource{
	sharing.SourceConfiguration: v1.WarehouseSource_WAREHOUSE_SOURCE_CONFIGURATION, sharing.SourceAPI: v1.WarehouseSource_WAREHOUSE_SOURCE_API,
}

func warehouseOf(w sharing.Warehouse) *v1.Warehouse {
	return &v1.Warehouse{
		Name: w.Name, Uid: w.ID.String(), Organisation: w.Organisation, DisplayName: w.DisplayName, Source: wireSources[w.Source],
		Storage: &v1.StorageProfile{
			Root: w.Storage.Root, AllowedRoots: w.Storage.AllowedRoots, Region: w.Storage.Region, Endpoint: w.Storage.Endpoint, PathStyle: w.Storage.PathStyle,
			SecretReferences: w.Storage.Secrets,
		},
		Etag: w.Etag(), CreateTime: stampOf(w.CreatedAt), UpdateTime: stampOf(w.UpdatedAt),
	}
}

func (s *server) CreateWarehouse(ctx context.Context, req *connect.Request[v1.CreateWarehouseRequest]) (*connect.Response[v1.CreateWarehouseResponse], error) {
	in := req.Msg.GetWarehouse()
	owner, err := s.owner(ctx, in.GetOrganisation())
	if err != nil {
		return nil, err
	}
	st := in.GetStorage()
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.Warehouse, error) {
		return s.sharing.CreateWarehouse(ctx, m, sharing.Warehouse{
			Name: in.GetName(), Organisation: owner, DisplayName: in.GetDisplayName(),
			Storage: sharing.Storage{
				Root: st.GetRoot(), AllowedRoots: st.GetAllowedRoots(), Region: st.GetRegion(), Endpoint: st.GetEndpoint(), PathStyle: st.GetPathStyle(), Secrets: st.GetSecretReferences(),
			},
		})
	}, func(w sharing.Warehouse, _ bool) (*v1.CreateWarehouseResponse, error) {
		return &v1.CreateWarehouseResponse{Warehouse: warehouseOf(w)}, nil
	})
}

func (s *server) GetWarehouse(ctx context.Context, req *connect.Request[v1.GetWarehouseRequest]) (*connect.Response[v1.GetWarehouseResponse], error) {
	w, err := s.sharing.Warehouse(ctx, req.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetWarehouseResponse{Warehouse: warehouseOf(w)}), nil
}

func (s *server) ListWarehouses(ctx context.Context, req *connect.Request[v1.ListWarehousesRequest]) (*connect.Response[v1.ListWarehousesResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.Warehouses(ctx, s.scope(ctx, req.Msg.GetOrganisation()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListWarehousesResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, w := range all {
		res.Warehouses = append(res.Warehouses, warehouseOf(w))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdateWarehouse(ctx context.Context, req *connect.Request[v1.UpdateWarehouseRequest]) (*connect.Response[v1.UpdateWarehouseResponse], error) {
	in, st := req.Msg.GetWarehouse(), req.Msg.GetWarehouse().GetStorage()
	if in.GetName() == "" {
		return nil, required("warehouse.name")
	}
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Warehouse, error) {
		return s.sharing.UpdateWarehouse(ctx, m, in.GetName(), func(w *sharing.Warehouse) error {
			fields := []maskField{text("organisation", in.GetOrganisation(), &w.Organisation), text("display_name", in.GetDisplayName(), &w.DisplayName)}
			if w.Source == sharing.SourceAPI {
				fields = append(fields,
					maskField{"storage.allowed_roots", len(st.GetAllowedRoots()) > 0, func() { w.Storage.AllowedRoots = st.GetAllowedRoots() }},
					text("storage.region", st.GetRegion(), &w.Storage.Region), text("storage.endpoint", st.GetEndpoint(), &w.Storage.Endpoint),
					maskField{"storage.path_style", st.GetPathStyle(), func() { w.Storage.PathStyle = st.GetPathStyle() }},
					maskField{"storage.secret_references", len(st.GetSecretReferences()) > 0, func() { w.Storage.Secrets = st.GetSecretReferences() }})
			}
			return applyMask(req.Msg.GetUpdateMask(), fields...)
		})
	}, func(w sharing.Warehouse, _ bool) (*v1.UpdateWarehouseResponse, error) {
		return &v1.UpdateWarehouseResponse{Warehouse: warehouseOf(w)}, nil
	})
}

func (s *server) DeleteWarehouse(ctx context.Context, req *connect.Request[v1.DeleteWarehouseRequest]) (*connect.Response[v1.DeleteWarehouseResponse], error) {
	return remove[v1.DeleteWarehouseRequest, v1.DeleteWarehouseResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteWarehouse(ctx, m, req.Msg.GetName())
	})
}
