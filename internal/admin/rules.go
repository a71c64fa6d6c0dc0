// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
	connectv1 "github.com/sluice-data/sluice/proto/sluice/admin/v1/adminv1connect"
)

// ManagePlatform is what only a platform administrator may do: organisations
// as such, storage, the platform's policies.
const ManagePlatform policy.Action = "managePlatform"

// Resource is what an operation is about.
type Resource struct {
	// Organisation owns it; "" is the platform, and in listings all
	// organisations.
	Organisation string
	// Kind and Name are for messages and records: "share", "sales".
	Kind, Name string
	// hidden is set when a caller that may not do the operation is not to know
	// that the resource exists.
	hidden bool
}

// rule is what an operation asks for. The zero action asks for a caller that
// is known, no more; about may then be nil.
type rule struct {
	action policy.Action
	about  func(ctx context.Context, s *server, req any) (Resource, error)
}

// rules has every operation. An operation without one is refused, and fails a
// test.
var rules = map[string]rule{
	connectv1.OrganisationServiceCreateOrganisationProcedure: {ManagePlatform, platform},
	connectv1.OrganisationServiceGetOrganisationProcedure:    {policy.ManageMembers, organisation(func(r *v1.GetOrganisationRequest) string { return r.GetName() })},
	connectv1.OrganisationServiceListOrganisationsProcedure:  {policy.ManageMembers, own[v1.ListOrganisationsRequest]},
	connectv1.OrganisationServiceUpdateOrganisationProcedure: {policy.ManageMembers, organisation(func(r *v1.UpdateOrganisationRequest) string { return r.GetOrganisation().GetName() })},
	connectv1.OrganisationServiceDeleteOrganisationProcedure: {ManagePlatform, platform},

	connectv1.PrincipalServiceWhoAmIProcedure:          {},
	connectv1.PrincipalServiceCreatePrincipalProcedure: {policy.ManageMembers, within("organisation", func(r *v1.CreatePrincipalRequest) string { return r.GetPrincipal().GetOrganisation() })},
	connectv1.PrincipalServiceGetPrincipalProcedure:    {policy.ManageMembers, principal(func(r *v1.GetPrincipalRequest) (string, string) { return r.GetOrganisation(), r.GetId() })},
	connectv1.PrincipalServiceListPrincipalsProcedure:  {policy.ManageMembers, within("organisation", func(r *v1.ListPrincipalsRequest) string { return r.GetOrganisation() })},
	connectv1.PrincipalServiceUpdatePrincipalProcedure: {policy.ManageMembers, principal(func(r *v1.UpdatePrincipalRequest) (string, string) {
		return r.GetPrincipal().GetOrganisation(), r.GetPrincipal().GetId()
	})},
	connectv1.PrincipalServiceDeletePrincipalProcedure: {policy.ManageMembers, principal(func(r *v1.DeletePrincipalRequest) (string, string) { return r.GetOrganisation(), r.GetId() })},

	connectv1.ServiceAccountServiceCreateServiceAccountProcedure: {policy.ManageMembers, within("organisation", func(r *v1.CreateServiceAccountRequest) string { return r.GetServiceAccount().GetOrganisation() })},
	connectv1.ServiceAccountServiceGetServiceAccountProcedure:    {policy.ManageMembers, account(func(r *v1.GetServiceAccountRequest) string { return r.GetClientId() })},
	connectv1.ServiceAccountServiceListServiceAccountsProcedure:  {policy.ManageMembers, within("organisation", func(r *v1.ListServiceAccountsRequest) string { return r.GetOrganisation() })},
	connectv1.ServiceAccountServiceUpdateServiceAccountProcedure: {policy.ManageMembers, account(func(r *v1.UpdateServiceAccountRequest) string { return r.GetServiceAccount().GetClientId() })},
	connectv1.ServiceAccountServiceDeleteServiceAccountProcedure: {policy.ManageMembers, account(func(r *v1.DeleteServiceAccountRequest) string { return r.GetClientId() })},
	connectv1.ServiceAccountServiceCreateServiceAccountSecretProcedure: {
		policy.ManageMembers,
		account(func(r *v1.CreateServiceAccountSecretRequest) string { return r.GetClientId() }),
	},
	connectv1.ServiceAccountServiceDeleteServiceAccountSecretProcedure: {
		policy.ManageMembers,
		account(func(r *v1.DeleteServiceAccountSecretRequest) string { return r.GetClientId() }),
	},

	connectv1.WarehouseServiceCreateWarehouseProcedure: {ManagePlatform, platform},
	connectv1.WarehouseServiceGetWarehouseProcedure:    {policy.ManageShares, warehouse(func(r *v1.GetWarehouseRequest) string { return r.GetName() })},
	connectv1.WarehouseServiceListWarehousesProcedure:  {policy.ManageShares, within("organisation", func(r *v1.ListWarehousesRequest) string { return r.GetOrganisation() })},
	connectv1.WarehouseServiceUpdateWarehouseProcedure: {ManagePlatform, platform},
	connectv1.WarehouseServiceDeleteWarehouseProcedure: {ManagePlatform, platform},

	connectv1.ShareServiceCreateShareProcedure:        {policy.ManageShares, within("organisation", func(r *v1.CreateShareRequest) string { return r.GetShare().GetOrganisation() })},
	connectv1.ShareServiceGetShareProcedure:           {policy.ManageShares, share(func(r *v1.GetShareRequest) string { return r.GetName() })},
	connectv1.ShareServiceListSharesProcedure:         {policy.ManageShares, within("organisation", func(r *v1.ListSharesRequest) string { return r.GetOrganisation() })},
	connectv1.ShareServiceUpdateShareProcedure:        {policy.ManageShares, share(func(r *v1.UpdateShareRequest) string { return r.GetShare().GetName() })},
	connectv1.ShareServiceDeleteShareProcedure:        {policy.ManageShares, share(func(r *v1.DeleteShareRequest) string { return r.GetName() })},
	connectv1.ShareServiceModifyShareMembersProcedure: {policy.ManageShares, share(func(r *v1.ModifyShareMembersRequest) string { return r.GetShare() })},
	connectv1.ShareServiceListShareMembersProcedure:   {policy.ManageShares, share(func(r *v1.ListShareMembersRequest) string { return r.GetShare() })},
	connectv1.ShareServiceListSharedObjectsProcedure:  {policy.ManageShares, share(func(r *v1.ListSharedObjectsRequest) string { return r.GetShare() })},
	connectv1.ShareServiceListShareWarningsProcedure:  {policy.ManageShares, warnings},

	connectv1.RecipientServiceCreateRecipientProcedure: {policy.ManageGrants, within("provider", func(r *v1.CreateRecipientRequest) string { return r.GetRecipient().GetProvider() })},
	connectv1.RecipientServiceGetRecipientProcedure:    {policy.ManageGrants, recipient(func(r *v1.GetRecipientRequest) (string, string) { return r.GetProvider(), r.GetName() })},
	connectv1.RecipientServiceListRecipientsProcedure:  {policy.ManageGrants, within("provider", func(r *v1.ListRecipientsRequest) string { return r.GetProvider() })},
	connectv1.RecipientServiceUpdateRecipientProcedure: {policy.ManageGrants, recipient(func(r *v1.UpdateRecipientRequest) (string, string) {
		return r.GetRecipient().GetProvider(), r.GetRecipient().GetName()
	})},
	connectv1.RecipientServiceDeleteRecipientProcedure:      {policy.ManageGrants, recipient(func(r *v1.DeleteRecipientRequest) (string, string) { return r.GetProvider(), r.GetName() })},
	connectv1.RecipientServiceCreateActivationLinkProcedure: {policy.ManageGrants, recipient(func(r *v1.CreateActivationLinkRequest) (string, string) { return r.GetProvider(), r.GetRecipient() })},
	connectv1.RecipientServiceActivateProcedure:             {},

	connectv1.GrantServiceCreateGrantProcedure:        {policy.ManageGrants, share(func(r *v1.CreateGrantRequest) string { return r.GetGrant().GetShare() })},
	connectv1.GrantServiceGetGrantProcedure:           {policy.ManageGrants, grant(func(r *v1.GetGrantRequest) string { return r.GetId() })},
	connectv1.GrantServiceListGrantsProcedure:         {policy.ManageGrants, within("provider", func(r *v1.ListGrantsRequest) string { return r.GetProvider() })},
	connectv1.GrantServiceUpdateGrantProcedure:        {policy.ManageGrants, grant(func(r *v1.UpdateGrantRequest) string { return r.GetGrant().GetId() })},
	connectv1.GrantServiceRevokeGrantProcedure:        {policy.ManageGrants, grant(func(r *v1.RevokeGrantRequest) string { return r.GetId() })},
	connectv1.GrantServiceDeleteGrantProcedure:        {policy.ManageGrants, grant(func(r *v1.DeleteGrantRequest) string { return r.GetId() })},
	connectv1.GrantServiceListReceivedGrantsProcedure: {},
	connectv1.GrantServiceAcceptGrantTermsProcedure:   {},

	connectv1.PolicyServiceCreatePolicySetProcedure: {policy.ManagePolicy, policySet(func(r *v1.CreatePolicySetRequest) *v1.PolicySetRef { return refOf(r.GetPolicySet()) })},
	connectv1.PolicyServiceGetPolicySetProcedure:    {policy.ManagePolicy, policySet((*v1.GetPolicySetRequest).GetPolicySet)},
	connectv1.PolicyServiceListPolicySetsProcedure:  {policy.ManagePolicy, within("organisation", func(r *v1.ListPolicySetsRequest) string { return r.GetOrganisation() })},
	connectv1.PolicyServiceUpdatePolicySetProcedure: {policy.ManagePolicy, policySet(func(r *v1.UpdatePolicySetRequest) *v1.PolicySetRef { return refOf(r.GetPolicySet()) })},
	connectv1.PolicyServiceUploadPolicyVersionProcedure: {
		policy.ManagePolicy, policySet((*v1.UploadPolicyVersionRequest).GetPolicySet),
	},
	connectv1.PolicyServiceGetPolicyVersionProcedure:      {policy.ManagePolicy, policySet((*v1.GetPolicyVersionRequest).GetPolicySet)},
	connectv1.PolicyServiceListPolicyVersionsProcedure:    {policy.ManagePolicy, policySet((*v1.ListPolicyVersionsRequest).GetPolicySet)},
	connectv1.PolicyServiceCheckPolicyProcedure:           {policy.ManagePolicy, policySet((*v1.CheckPolicyRequest).GetPolicySet)},
	connectv1.PolicyServiceTestPolicyProcedure:            {policy.ManagePolicy, policySet((*v1.TestPolicyRequest).GetPolicySet)},
	connectv1.PolicyServiceDiffPolicyProcedure:            {policy.ManagePolicy, policySet((*v1.DiffPolicyRequest).GetPolicySet)},
	connectv1.PolicyServiceActivatePolicyVersionProcedure: {policy.ManagePolicy, policySet((*v1.ActivatePolicyVersionRequest).GetPolicySet)},
	connectv1.PolicyServiceRollbackPolicySetProcedure:     {policy.ManagePolicy, policySet((*v1.RollbackPolicySetRequest).GetPolicySet)},
	connectv1.PolicyServiceListPolicyActivationsProcedure: {policy.ManagePolicy, policySet((*v1.ListPolicyActivationsRequest).GetPolicySet)},

	connectv1.AuditServiceQueryAuditProcedure:  {policy.ReadAudit, partitions((*v1.QueryAuditRequest).GetFilter)},
	connectv1.AuditServiceTailAuditProcedure:   {policy.ReadAudit, partitions((*v1.TailAuditRequest).GetFilter)},
	connectv1.AuditServiceVerifyAuditProcedure: {policy.ReadAudit, partitions(func(r *v1.VerifyAuditRequest) *v1.AuditFilter { return &v1.AuditFilter{Partitions: r.GetPartitions()} })},
	connectv1.AuditServiceExportAuditProcedure: {policy.ReadAudit, partitions(func(r *v1.ExportAuditRequest) *v1.AuditFilter {
		return &v1.AuditFilter{Partitions: []string{r.GetPartition()}}
	})},
}

// Procedures names every operation that has a rule, in order.
func Procedures() []string { return slices.Sorted(maps.Keys(rules)) }

func platform(context.Context, *server, any) (Resource, error) {
	return Resource{Kind: "platform"}, nil
}

// organisation is an organisation itself, which others are not to know of.
func organisation[R any](name func(*R) string) func(context.Context, *server, any) (Resource, error) {
	return func(_ context.Context, _ *server, req any) (Resource, error) {
		n := name(req.(*R))
		if n == "" {
			return Resource{}, required("name")
		}
		return Resource{Organisation: n, Kind: "organisation", Name: n, hidden: true}, nil
	}
}

// own is the caller's organisation; all, for a platform administrator.
func own[R any](ctx context.Context, s *server, _ any) (Resource, error) {
	return Resource{Organisation: s.scope(ctx, ""), Kind: "organisation"}, nil
}

// within is something in an organisation, which is the caller's when the
// request names none.
func within[R any](_ string, name func(*R) string) func(context.Context, *server, any) (Resource, error) {
	return func(ctx context.Context, s *server, req any) (Resource, error) {
		n := name(req.(*R))
		return Resource{Organisation: s.scope(ctx, n), Kind: "organisation", Name: n, hidden: n != ""}, nil
	}
}

func principal[R any](key func(*R) (organisation, id string)) func(context.Context, *server, any) (Resource, error) {
	return member("principal", key)
}

func account[R any](id func(*R) string) func(context.Context, *server, any) (Resource, error) {
	return lookup("service account", id, func(ctx context.Context, s *server, name string) (string, error) {
		a, err := s.sharing.ServiceAccount(ctx, name)
		return a.Organisation, err
	})
}

func warehouse[R any](name func(*R) string) func(context.Context, *server, any) (Resource, error) {
	return lookup("warehouse", name, func(ctx context.Context, s *server, name string) (string, error) {
		w, err := s.sharing.Warehouse(ctx, name)
		return w.Organisation, err
	})
}

func share[R any](name func(*R) string) func(context.Context, *server, any) (Resource, error) {
	return lookup("share", name, func(ctx context.Context, s *server, name string) (string, error) {
		sh, err := s.sharing.Share(ctx, name)
		return sh.Organisation, err
	})
}

func grant[R any](id func(*R) string) func(context.Context, *server, any) (Resource, error) {
	return lookup("grant", id, func(ctx context.Context, s *server, name string) (string, error) {
		id, err := grantID(name)
		if err != nil {
			return "", err
		}
		g, err := s.sharing.Grant(ctx, id)
		return g.Provider, err
	})
}

func grantID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return uuid.Nil, &sharing.Error{Code: sharing.InvalidArgument, Reason: "INVALID_ID", Message: "id: not the id of a grant, which is a UUID", Next: "list the grants to see their ids"}
	}
	return id, nil
}

// lookup is something whose owner the store knows.
func lookup[R any](kind string, name func(*R) string, owner func(context.Context, *server, string) (string, error)) func(context.Context, *server, any) (Resource, error) {
	return func(ctx context.Context, s *server, req any) (Resource, error) {
		n := name(req.(*R))
		if n == "" {
			return Resource{}, required(kind)
		}
		organisation, err := owner(ctx, s, n)
		return Resource{Organisation: organisation, Kind: kind, Name: n, hidden: true}, err
	}
}

func recipient[R any](key func(*R) (provider, name string)) func(context.Context, *server, any) (Resource, error) {
	return member("recipient", key)
}

// member is something whose owner is a part of its name; the caller's
// organisation when the request names none.
func member[R any](kind string, key func(*R) (owner, name string)) func(context.Context, *server, any) (Resource, error) {
	return func(ctx context.Context, s *server, req any) (Resource, error) {
		owner, name := key(req.(*R))
		if name == "" {
			return Resource{}, required(kind)
		}
		return Resource{Organisation: s.ownOr(ctx, owner), Kind: kind, Name: name, hidden: true}, nil
	}
}

func warnings(ctx context.Context, s *server, req any) (Resource, error) {
	r := req.(*v1.ListShareWarningsRequest)
	if r.GetShare() != "" {
		return share((*v1.ListShareWarningsRequest).GetShare)(ctx, s, req)
	}
	return within("organisation", (*v1.ListShareWarningsRequest).GetOrganisation)(ctx, s, req)
}

func refOf(p *v1.PolicySet) *v1.PolicySetRef {
	return &v1.PolicySetRef{Layer: p.GetLayer(), Organisation: p.GetOrganisation(), Name: p.GetName()}
}

func policySet[R any](ref func(*R) *v1.PolicySetRef) func(context.Context, *server, any) (Resource, error) {
	return func(ctx context.Context, s *server, req any) (Resource, error) {
		key := s.policyKey(ctx, ref(req.(*R)))
		if key.Name == "" {
			return Resource{}, required("policy_set.name")
		}
		return Resource{Organisation: key.Organisation, Kind: "policy set", Name: key.String(), hidden: true}, nil
	}
}

// partitions are the chains that a request names, which must all be one
// organisation's; without any they are all that the caller may read.
func partitions[R any](filter func(*R) *v1.AuditFilter) func(context.Context, *server, any) (Resource, error) {
	return func(ctx context.Context, s *server, req any) (Resource, error) {
		names := filter(req.(*R)).GetPartitions()
		if len(names) == 0 || slices.Equal(names, []string{administration}) && !exports(req) {
			return Resource{Organisation: s.scope(ctx, ""), Kind: "audit log"}, nil
		}
		owner := ""
		for i, name := range names {
			if name == "" {
				return Resource{}, required("partition")
			}
			organisation := ""
			if name != administration {
				w, err := s.sharing.Warehouse(ctx, name)
				if err != nil {
					return Resource{}, err
				}
				organisation = w.Organisation
			} else if !exports(req) {
				organisation = s.scope(ctx, "") // only what concerns it is shown
			}
			if i > 0 && organisation != owner {
				return Resource{Kind: "warehouse", Name: name, hidden: true}, nil // the platform's business
			}
			owner = organisation
		}
		return Resource{Organisation: owner, Kind: "warehouse", Name: names[0], hidden: true}, nil
	}
}

// exports reports whether a request is for a whole chain, and not for records
// one by one.
func exports(req any) bool {
	switch req.(type) {
	case *v1.VerifyAuditRequest, *v1.ExportAuditRequest:
		return true
	}
	return false
}

func required(field string) error {
	return &sharing.Error{Code: sharing.InvalidArgument, Reason: "REQUIRED", Message: field + ": required"}
}

// refusal is the error of a caller that may not do an operation.
func (r Resource) refusal() error {
	if r.hidden {
		return sharing.Missing(r.Kind, r.Name)
	}
	return &sharing.Error{
		Code: sharing.PermissionDenied, Reason: "PERMISSION_DENIED", Message: fmt.Sprintf("you do not administer the %s", orElse(r.Kind, "platform")),
		Next: "ask an administrator; whoami shows your organisation and role",
	}
}

// String is the resource in records: "share/sales", "organisation/acme".
func (r Resource) String() string {
	switch {
	case r.Name != "":
		return strings.ReplaceAll(r.Kind, " ", "-") + "/" + r.Name
	case r.Organisation != "":
		return "organisation/" + r.Organisation
	}
	return r.Kind
}

// changes reports whether an operation changes something. Those that do not
// say so in the .proto files.
func changes(procedure string) bool {
	service, method, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return true
	}
	options, _ := d.Options().(*descriptorpb.MethodOptions)
	return options.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
