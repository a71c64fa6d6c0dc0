// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"net/netip"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-data/sluice/internal/sharing"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
)

func recipientOf(r sharing.Recipient) *v1.Recipient {
	out := &v1.Recipient{
		Name: r.Name, Uid: r.ID.String(), Provider: r.Provider, DisplayName: r.DisplayName, Organisation: r.Organisation, Disabled: r.Disabled,
		Etag: r.Etag(), CreateTime: stampOf(r.CreatedAt), UpdateTime: stampOf(r.UpdatedAt),
	}
	switch b := r.Binding; b.Kind {
	case sharing.BoundByToken:
		out.Binding = &v1.Recipient_Token{Token: &v1.TokenBinding{Issuer: b.Issuer, Claim: b.Claim, Value: b.Value}}
	case sharing.BoundByCertificate:
		out.Binding = &v1.Recipient_Certificate{Certificate: &v1.CertificateBinding{Issuer: b.Issuer, Subject: b.Value}}
	case sharing.BoundByActivation:
		a := &v1.ActivationBinding{ExpireTime: stampOf(b.LinkExpires), ActivateTime: stampOf(b.ActivatedAt)}
		if b.Issuer != "" {
			a.Principal = b.Issuer + ":" + b.Value
		}
		out.Binding = &v1.Recipient_Activation{Activation: a}
	}
	return out
}

// bindingOf reads the binding of a request; what the server sets is ignored.
func bindingOf(r *v1.Recipient) sharing.Binding {
	switch b := r.GetBinding().(type) {
	case *v1.Recipient_Token:
		return sharing.Binding{Kind: sharing.BoundByToken, Issuer: b.Token.GetIssuer(), Claim: b.Token.GetClaim(), Value: b.Token.GetValue()}
	case *v1.Recipient_Certificate:
		return sharing.Binding{Kind: sharing.BoundByCertificate, Issuer: b.Certificate.GetIssuer(), Value: b.Certificate.GetSubject()}
	case *v1.Recipient_Activation:
		return sharing.Binding{Kind: sharing.BoundByActivation}
	}
	return sharing.Binding{}
}

func lifetimeOf(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 {
		return 0, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_LIFETIME", Message: "lifetime: must be a positive duration"}
	}
	return d.AsDuration(), nil
}

// linkOf writes a link; nil when there is none to show.
func linkOf(n sharing.NewLink, kept, dryRun bool) *v1.ActivationLink {
	if n.Token.Empty() || kept || dryRun {
		return nil
	}
	return &v1.ActivationLink{Url: n.URL.Reveal(), Token: n.Token.Reveal(), ExpireTime: stampOf(n.Expires)}
}

func (s *server) CreateRecipient(ctx context.Context, req *connect.Request[v1.CreateRecipientRequest]) (*connect.Response[v1.CreateRecipientResponse], error) {
	in := req.Msg.GetRecipient()
	provider, err := s.owner(ctx, in.GetProvider())
	if err != nil {
		return nil, err
	}
	lifetime, err := lifetimeOf(req.Msg.GetActivationLifetime())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.NewLink, error) {
		return s.sharing.CreateRecipient(ctx, m, sharing.Recipient{
			Provider: provider, Name: in.GetName(), DisplayName: in.GetDisplayName(), Organisation: in.GetOrganisation(), Disabled: in.GetDisabled(), Binding: bindingOf(in),
		}, lifetime)
	}, func(n sharing.NewLink, kept bool) (*v1.CreateRecipientResponse, error) {
		return &v1.CreateRecipientResponse{Recipient: recipientOf(n.Recipient), ActivationLink: linkOf(n, kept, req.Msg.GetValidateOnly())}, nil
	})
}

func (s *server) GetRecipient(ctx context.Context, req *connect.Request[v1.GetRecipientRequest]) (*connect.Response[v1.GetRecipientResponse], error) {
	r, err := s.sharing.Recipient(ctx, s.ownOr(ctx, req.Msg.GetProvider()), req.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetRecipientResponse{Recipient: recipientOf(r)}), nil
}

func (s *server) ListRecipients(ctx context.Context, req *connect.Request[v1.ListRecipientsRequest]) (*connect.Response[v1.ListRecipientsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.Recipients(ctx, s.scope(ctx, req.Msg.GetProvider()), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListRecipientsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, r := range all {
		res.Recipients = append(res.Recipients, recipientOf(r))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdateRecipient(ctx context.Context, req *connect.Request[v1.UpdateRecipientRequest]) (*connect.Response[v1.UpdateRecipientResponse], error) {
	in := req.Msg.GetRecipient()
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Recipient, error) {
		return s.sharing.UpdateRecipient(ctx, m, s.ownOr(ctx, in.GetProvider()), in.GetName(), func(r *sharing.Recipient) error {
			bind := func() {
				if b := bindingOf(in); b.Kind == sharing.BoundByToken || b.Kind == sharing.BoundByCertificate {
					r.Binding = b
				}
			}
			for _, path := range req.Msg.GetUpdateMask().GetPaths() {
				if path == "token" && in.GetToken() == nil || path == "certificate" && in.GetCertificate() == nil {
					return &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_UPDATE_MASK", Message: "update_mask: names " + path + ", which the recipient does not have", Next: "send the new binding"}
				}
			}
			return applyMask(req.Msg.GetUpdateMask(), text("display_name", in.GetDisplayName(), &r.DisplayName), text("organisation", in.GetOrganisation(), &r.Organisation),
				maskField{"disabled", in.GetDisabled(), func() { r.Disabled = in.GetDisabled() }},
				maskField{"token", in.GetToken() != nil, bind}, maskField{"certificate", in.GetCertificate() != nil, bind})
		})
	}, func(r sharing.Recipient, _ bool) (*v1.UpdateRecipientResponse, error) {
		return &v1.UpdateRecipientResponse{Recipient: recipientOf(r)}, nil
	})
}

func (s *server) DeleteRecipient(ctx context.Context, req *connect.Request[v1.DeleteRecipientRequest]) (*connect.Response[v1.DeleteRecipientResponse], error) {
	return remove[v1.DeleteRecipientRequest, v1.DeleteRecipientResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteRecipient(ctx, m, s.ownOr(ctx, req.Msg.GetProvider()), req.Msg.GetName(), req.Msg.GetForce())
	})
}

func (s *server) CreateActivationLink(ctx context.Context, req *connect.Request[v1.CreateActivationLinkRequest]) (*connect.Response[v1.CreateActivationLinkResponse], error) {
	lifetime, err := lifetimeOf(req.Msg.GetLifetime())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.NewLink, error) {
		return s.sharing.CreateLink(ctx, m, s.ownOr(ctx, req.Msg.GetProvider()), req.Msg.GetRecipient(), lifetime)
	}, func(n sharing.NewLink, kept bool) (*v1.CreateActivationLinkResponse, error) {
		return &v1.CreateActivationLinkResponse{ActivationLink: linkOf(n, kept, req.Msg.GetValidateOnly())}, nil
	})
}

func (s *server) Activate(ctx context.Context, req *connect.Request[v1.ActivateRequest]) (*connect.Response[v1.ActivateResponse], error) {
	m, err := mutation(ctx, req.Spec().Procedure, &v1.CreateActivationLinkRequest{}, "")
	if err != nil {
		return nil, err
	}
	c := who(ctx)
	r, err := s.sharing.Activate(ctx, m, c.Caller, req.Msg.GetToken())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ActivateResponse{Provider: r.Provider, Recipient: r.Name, Principal: c.ID}), nil
}

func conditionsOf(c sharing.Conditions) *v1.GrantConditions {
	if c.NotBefore.IsZero() && len(c.Networks) == 0 && len(c.Groups) == 0 && len(c.Kinds) == 0 {
		return nil
	}
	out := &v1.GrantConditions{NotBefore: stampOf(c.NotBefore), Groups: c.Groups, Kinds: c.Kinds}
	for _, n := range c.Networks {
		out.Networks = append(out.Networks, n.String())
	}
	return out
}

func readConditions(in *v1.GrantConditions) (sharing.Conditions, error) {
	c := sharing.Conditions{Groups: in.GetGroups(), Kinds: in.GetKinds()}
	var err error
	if c.NotBefore, err = timeOf("conditions.not_before", in.GetNotBefore()); err != nil {
		return c, err
	}
	for _, text := range in.GetNetworks() {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return c, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_NETWORK", Message: "conditions.networks: " + limited(text) + " is not a network", Next: `write it as CIDR: "192.0.2.0/24"`}
		}
		c.Networks = append(c.Networks, n)
	}
	return c, nil
}

func grantOf(g sharing.Granted) *v1.Grant {
	return &v1.Grant{
		Id: g.ID.String(), Share: g.ShareName, Provider: g.Provider, Recipient: g.RecipientName, Comment: g.Comment, ExpireTime: stampOf(g.ExpiresAt), Conditions: conditionsOf(g.Conditions),
		Terms: g.Terms, AcceptedBy: g.AcceptedBy, AcceptTime: stampOf(g.AcceptedAt), State: v1.GrantState(g.State), RevokeTime: stampOf(g.RevokedAt), RevokeReason: g.RevokeReason,
		Etag: g.Etag(), CreateTime: stampOf(g.CreatedAt), UpdateTime: stampOf(g.UpdatedAt),
	}
}

func (s *server) CreateGrant(ctx context.Context, req *connect.Request[v1.CreateGrantRequest]) (*connect.Response[v1.CreateGrantResponse], error) {
	in := req.Msg.GetGrant()
	if in.GetRecipient() == "" {
		return nil, required("grant.recipient")
	}
	expires, err := timeOf("expire_time", in.GetExpireTime())
	if err != nil {
		return nil, err
	}
	conditions, err := readConditions(in.GetConditions())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.Granted, error) {
		return s.sharing.CreateGrant(ctx, m, in.GetShare(), in.GetRecipient(), sharing.Grant{Comment: in.GetComment(), ExpiresAt: expires, Conditions: conditions, Terms: in.GetTerms()})
	}, func(g sharing.Granted, _ bool) (*v1.CreateGrantResponse, error) {
		return &v1.CreateGrantResponse{Grant: grantOf(g)}, nil
	})
}

func (s *server) GetGrant(ctx context.Context, req *connect.Request[v1.GetGrantRequest]) (*connect.Response[v1.GetGrantResponse], error) {
	id, err := grantID(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	g, err := s.sharing.Grant(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetGrantResponse{Grant: grantOf(g)}), nil
}

func (s *server) ListGrants(ctx context.Context, req *connect.Request[v1.ListGrantsRequest]) (*connect.Response[v1.ListGrantsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	provider := s.scope(ctx, req.Msg.GetProvider())
	if share := req.Msg.GetShare(); share != "" {
		sh, err := s.sharing.Share(ctx, share)
		if err != nil {
			return nil, err
		}
		if provider != "" && sh.Organisation != provider {
			return nil, sharing.Missing("share", share)
		}
	}
	if req.Msg.GetRecipient() != "" && provider == "" {
		if provider = s.ownOr(ctx, ""); provider == "" {
			return nil, required("provider")
		}
	}
	all, next, err := s.sharing.Grants(ctx, provider, req.Msg.GetShare(), req.Msg.GetRecipient(), page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListGrantsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, g := range all {
		res.Grants = append(res.Grants, grantOf(g))
	}
	return connect.NewResponse(res), nil
}

func (s *server) UpdateGrant(ctx context.Context, req *connect.Request[v1.UpdateGrantRequest]) (*connect.Response[v1.UpdateGrantResponse], error) {
	in := req.Msg.GetGrant()
	id, err := grantID(in.GetId())
	if err != nil {
		return nil, err
	}
	expires, err := timeOf("expire_time", in.GetExpireTime())
	if err != nil {
		return nil, err
	}
	conditions, err := readConditions(in.GetConditions())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, in.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Granted, error) {
		return s.sharing.UpdateGrant(ctx, m, id, func(g *sharing.Grant) error {
			return applyMask(req.Msg.GetUpdateMask(), text("comment", in.GetComment(), &g.Comment),
				maskField{"expire_time", in.GetExpireTime() != nil, func() { g.ExpiresAt = expires }},
				maskField{"conditions", in.GetConditions() != nil, func() { g.Conditions = conditions }},
				text("terms", in.GetTerms(), &g.Terms))
		})
	}, func(g sharing.Granted, _ bool) (*v1.UpdateGrantResponse, error) {
		return &v1.UpdateGrantResponse{Grant: grantOf(g)}, nil
	})
}

func (s *server) RevokeGrant(ctx context.Context, req *connect.Request[v1.RevokeGrantRequest]) (*connect.Response[v1.RevokeGrantResponse], error) {
	id, err := grantID(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) (sharing.Granted, error) {
		return s.sharing.RevokeGrant(ctx, m, id, req.Msg.GetReason())
	}, func(g sharing.Granted, _ bool) (*v1.RevokeGrantResponse, error) {
		return &v1.RevokeGrantResponse{Grant: grantOf(g)}, nil
	})
}

func (s *server) DeleteGrant(ctx context.Context, req *connect.Request[v1.DeleteGrantRequest]) (*connect.Response[v1.DeleteGrantResponse], error) {
	id, err := grantID(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return remove[v1.DeleteGrantRequest, v1.DeleteGrantResponse](ctx, s, req, req.Msg.GetEtag(), func(ctx context.Context, m sharing.Mutation) error {
		return s.sharing.DeleteGrant(ctx, m, id)
	})
}

func receivedOf(r sharing.Received) *v1.ReceivedGrant {
	out := &v1.ReceivedGrant{
		Id: r.ID.String(), Share: r.ShareName, Provider: r.Provider, Description: r.Description, Terms: r.Terms, State: v1.GrantState(r.State),
		ExpireTime: stampOf(r.ExpiresAt), NotBefore: stampOf(r.Conditions.NotBefore), AcceptTime: stampOf(r.AcceptedAt),
	}
	if r.Terms != "" {
		out.TermsDigest = sharing.TermsDigest(r.Terms)
	}
	return out
}

func (s *server) ListReceivedGrants(ctx context.Context, req *connect.Request[v1.ListReceivedGrantsRequest]) (*connect.Response[v1.ListReceivedGrantsResponse], error) {
	page, err := pageOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	all, next, err := s.sharing.ReceivedGrants(ctx, who(ctx).Principal, page)
	if err != nil {
		return nil, err
	}
	res := &v1.ListReceivedGrantsResponse{NextPageToken: tokenOf(ctx, req.Msg, next)}
	for _, r := range all {
		res.Grants = append(res.Grants, receivedOf(r))
	}
	return connect.NewResponse(res), nil
}

func (s *server) AcceptGrantTerms(ctx context.Context, req *connect.Request[v1.AcceptGrantTermsRequest]) (*connect.Response[v1.AcceptGrantTermsResponse], error) {
	id, err := grantID(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return change(ctx, s, req, "", func(ctx context.Context, m sharing.Mutation) (sharing.Received, error) {
		return s.sharing.AcceptTerms(ctx, m, who(ctx).Principal, id, req.Msg.GetTermsDigest())
	}, func(r sharing.Received, _ bool) (*v1.AcceptGrantTermsResponse, error) {
		return &v1.AcceptGrantTermsResponse{Grant: receivedOf(r)}, nil
	})
}

// States of grants are numbered as in package sharing.
var (
	_ = [1]struct{}{}[int(v1.GrantState_GRANT_STATE_PENDING_TERMS)-int(sharing.StatePendingTerms)]
	_ = [1]struct{}{}[int(v1.GrantState_GRANT_STATE_ACTIVE)-int(sharing.StateActive)]
	_ = [1]struct{}{}[int(v1.GrantState_GRANT_STATE_SUSPENDED)-int(sharing.StateSuspended)]
)
