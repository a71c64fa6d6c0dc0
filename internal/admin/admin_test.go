// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/sluice-data/sluice/internal/admin"
	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
	connectv1 "github.com/sluice-data/sluice/proto/sluice/admin/v1/adminv1connect"
)

// The callers, by their tokens.
var people = map[string]identity.Principal{
	"platform":   {ID: "corp:root", Issuer: "corp", Subject: "root", Kind: identity.KindToken, Organisation: "platform"},
	"owner":      {ID: "corp:olga", Issuer: "corp", Subject: "olga", Kind: identity.KindToken, Organisation: "acme"},
	"colleague":  {ID: "corp:carl", Issuer: "corp", Subject: "carl", Kind: identity.KindToken, Organisation: "acme"},
	"other":      {ID: "corp:gus", Issuer: "corp", Subject: "gus", Kind: identity.KindToken, Organisation: "globex"},
	"homeless":   {ID: "corp:hal", Issuer: "corp", Subject: "hal", Kind: identity.KindToken},
	"posing":     {ID: "corp:olga", Issuer: "corp", Subject: "olga", Kind: identity.KindToken, Organisation: "globex"},
	"on-behalf":  {ID: "corp:olga", Issuer: "corp", Subject: "olga", Kind: identity.KindToken, Organisation: "acme", Actor: "account:etl"},
	"root-actor": {ID: "corp:root", Issuer: "corp", Subject: "root", Kind: identity.KindToken, Organisation: "platform", Actor: "account:etl"},
	"disabled":   {ID: "corp:dora", Issuer: "corp", Subject: "dora", Kind: identity.KindToken, Organisation: "acme"},
}

// site is a server with two organisations.
type site struct {
	*testing.T
	ctx     context.Context
	http    *httptest.Server
	sharing *sharing.Service
	catalog *sqlstore.Store
	main    *catalog.Warehouse
	grant   string // the id of acme's grant to globex
	member  string
	stop    chan struct{}

	mu       sync.Mutex
	accesses []admin.Access
}

func open(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, ctx: t.Context(), stop: make(chan struct{})}
	var err error
	if s.catalog, err = sqlite.Open(s.ctx, filepath.Join(t.TempDir(), "catalog.db"), sqlite.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.catalog.Close() })
	s.ok(s.catalog.Migrate(s.ctx))
	shares, err := store.Open(s.ctx, s.catalog)
	s.ok(err)
	schema, err := policy.NewSchema(nil)
	s.ok(err)
	key, _ := identity.GenerateSigningKey()
	ids, err := identity.New(identity.Config{SigningKey: key, Issuer: "sluice", Audience: "sluice"})
	s.ok(err)
	s.sharing, err = sharing.New(sharing.Config{Store: shares, Schema: schema, Issuers: map[string]identity.IssuerKind{"corp": identity.IssuerJWT}, Activations: ids.Activations, PublicURI: "https://sluice.example"})
	s.ok(err)
	root := "file://" + t.TempDir()
	bucket, err := objstore.Open(s.ctx, objstore.Profile{Type: objstore.TypeFile, Root: root}, objstore.Options{})
	s.ok(err)
	t.Cleanup(func() { bucket.Close() })
	s.main, err = catalog.OpenWarehouse(s.ctx, catalog.Config{Options: catalog.Options{Name: "main"}, Root: root, Store: s.catalog, Files: bucket, Watcher: sharing.NewWatcher(shares)})
	s.ok(err)
	t.Cleanup(s.main.Close)
	s.ok(s.sharing.AdoptWarehouse(s.ctx, "main", s.main.ID(), "acme", root))
	s.ok(s.sharing.EnsureOrganisation(s.ctx, "globex"))
	handler, err := admin.New(admin.Config{
		Sharing: s.sharing, Administrators: []string{"corp:root"}, Version: "test", Stopping: s.stop,
		Authenticate: func(r *http.Request) (identity.Principal, error) {
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			p, ok := people[token]
			if !ok {
				return p, &identity.Refusal{Status: http.StatusUnauthorized, Message: "who are you?", Challenge: "Bearer"}
			}
			return p, nil
		},
		Address: func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.1") },
		Audit:   &admin.AuditSource{Store: s.catalog, Before: s.catalog.AuditBefore, Administration: shares.Administration(), Keys: audit.Keys{}},
		Record: func(_ context.Context, a admin.Access) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.accesses = append(s.accesses, a)
			return nil
		},
	})
	s.ok(err)
	s.http = httptest.NewUnstartedServer(handler)
	s.http.EnableHTTP2 = true
	s.http.StartTLS()
	t.Cleanup(s.http.Close)
	return s
}

func (s *site) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// post sends a JSON request; out is decoded unless it is nil.
func (s *site) post(token, procedure, body string) (status int, answer []byte) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.http.URL+procedure, strings.NewReader(body))
	s.ok(err)
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := s.http.Client().Do(r)
	s.ok(err)
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	s.ok(err)
	return res.StatusCode, answer
}

// wireErr is an error of the JSON form.
type wireErr struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string `json:"type"`
		Debug struct {
			Reason   string            `json:"reason"`
			Domain   string            `json:"domain"`
			Metadata map[string]string `json:"metadata"`
		} `json:"debug"`
	} `json:"details"`
}

// do is post of a message that must succeed.
func do[T any, P interface {
	*T
	proto.Message
}](s *site, token, procedure string, req proto.Message) P {
	s.Helper()
	raw, err := protojson.Marshal(req)
	s.ok(err)
	status, answer := s.post(token, procedure, string(raw))
	if status != http.StatusOK {
		s.Fatalf("%s: %d %s", procedure, status, answer)
	}
	out := P(new(T))
	s.ok(protojson.Unmarshal(answer, out))
	return out
}

// refused posts a message and returns the error.
func (s *site) refused(token, procedure string, req proto.Message) wireErr {
	s.Helper()
	raw, err := protojson.Marshal(req)
	s.ok(err)
	status, answer := s.post(token, procedure, string(raw))
	var e wireErr
	if status == http.StatusOK || json.Unmarshal(answer, &e) != nil {
		s.Fatalf("%s: %d %s", procedure, status, answer)
	}
	return e
}

const schemaText = `{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","type":"long","required":true}]}`

// settle gives acme one of everything.
func (s *site) settle() {
	s.Helper()
	ns := catalog.Namespace{"a"}
	_, err := s.main.CreateNamespace(s.ctx, catalog.Mutation{}, ns, nil)
	s.ok(err)
	for _, name := range []string{"t", "u"} {
		_, err = s.main.CreateTable(s.ctx, catalog.Mutation{}, ns, catalog.NewTable{Name: name, Schema: json.RawMessage(schemaText)})
		s.ok(err)
	}
	for id, p := range map[string]*v1.Principal{"corp:olga": {Role: v1.Role_ROLE_ORGANISATION_ADMIN}, "corp:dora": {Role: v1.Role_ROLE_ORGANISATION_ADMIN, Disabled: true}, "corp:gus": {Role: v1.Role_ROLE_ORGANISATION_ADMIN, Organisation: "globex"}} {
		p.Id = id
		if p.GetOrganisation() == "" {
			p.Organisation = "acme"
		}
		do[v1.CreatePrincipalResponse](s, "platform", connectv1.PrincipalServiceCreatePrincipalProcedure, &v1.CreatePrincipalRequest{Principal: p})
	}
	do[v1.CreateServiceAccountResponse](s, "owner", connectv1.ServiceAccountServiceCreateServiceAccountProcedure, &v1.CreateServiceAccountRequest{ServiceAccount: &v1.ServiceAccount{ClientId: "etl"}})
	do[v1.CreateWarehouseResponse](s, "platform", connectv1.WarehouseServiceCreateWarehouseProcedure, &v1.CreateWarehouseRequest{Warehouse: &v1.Warehouse{Name: "lake", Organisation: "acme", Storage: &v1.StorageProfile{Root: "s3://b/lake"}}})
	do[v1.CreateShareResponse](s, "owner", connectv1.ShareServiceCreateShareProcedure, &v1.CreateShareRequest{Share: &v1.Share{Name: "sales"}})
	changed := do[v1.ModifyShareMembersResponse](s, "owner", connectv1.ShareServiceModifyShareMembersProcedure, &v1.ModifyShareMembersRequest{
		Share: "sales", Add: []*v1.ShareMember{{Kind: v1.MemberKind_MEMBER_KIND_TABLE, Warehouse: "main", Namespace: ns, Object: "t"}},
	})
	s.member = changed.GetAdded()[0].GetId()
	for name, r := range map[string]*v1.Recipient{
		"globex": {Binding: &v1.Recipient_Token{Token: &v1.TokenBinding{Issuer: "corp", Claim: "organisation", Value: "globex"}}},
		"later":  {Binding: &v1.Recipient_Activation{Activation: &v1.ActivationBinding{}}},
	} {
		r.Name = name
		do[v1.CreateRecipientResponse](s, "owner", connectv1.RecipientServiceCreateRecipientProcedure, &v1.CreateRecipientRequest{Recipient: r})
	}
	s.grant = do[v1.CreateGrantResponse](s, "owner", connectv1.GrantServiceCreateGrantProcedure, &v1.CreateGrantRequest{Grant: &v1.Grant{Share: "sales", Recipient: "globex", Terms: "be nice"}}).GetGrant().GetId()
	do[v1.CreatePolicySetResponse](s, "owner", connectv1.PolicyServiceCreatePolicySetProcedure, &v1.CreatePolicySetRequest{PolicySet: &v1.PolicySet{Layer: v1.PolicyLayer_POLICY_LAYER_PROVIDER, Name: "main"}})
	for _, text := range []string{"permit (principal, action, resource);", "forbid (principal, action, resource);"} {
		v := do[v1.UploadPolicyVersionResponse](s, "owner", connectv1.PolicyServiceUploadPolicyVersionProcedure, &v1.UploadPolicyVersionRequest{PolicySet: mainSet(), Files: []*v1.PolicyFile{{Path: "a.cedar", Text: text}}})
		do[v1.ActivatePolicyVersionResponse](s, "owner", connectv1.PolicyServiceActivatePolicyVersionProcedure, &v1.ActivatePolicyVersionRequest{PolicySet: mainSet(), Version: v.GetVersion().GetVersion()})
	}
}

func mainSet() *v1.PolicySetRef {
	return &v1.PolicySetRef{Layer: v1.PolicyLayer_POLICY_LAYER_PROVIDER, Organisation: "acme", Name: "main"}
}

// procedures are all of the .proto files, with whether each is a stream.
func procedures() map[string]protoreflect.MethodDescriptor {
	out := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage("sluice.admin.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				out[fmt.Sprintf("/%s/%s", service.FullName(), m.Name())] = m
			}
		}
		return true
	})
	return out
}

// TestEveryOperationHasARule fails when an operation is added to proto/ and
// not to the table.
func TestEveryOperationHasARule(t *testing.T) {
	t.Parallel()
	all := procedures()
	if len(all) < 50 {
		t.Fatalf("only %d operations seen", len(all))
	}
	ruled := map[string]bool{}
	for _, p := range admin.Procedures() {
		ruled[p] = true
		if all[p] == nil {
			t.Errorf("the rule of %s is of no operation", p)
		}
	}
	for p := range all {
		if !ruled[p] {
			t.Errorf("%s has no rule", p)
		}
	}
}

// What a caller without the right gets.
type ward int

const (
	owned     ward = iota // acme's: others are told that it does not exist
	listed                // a listing that names nobody: each sees its own
	platforms             // everybody knows of it, and few may
	anyones
)

// matrix has each operation with a request about what is acme's.
func (s *site) matrix() map[string]struct {
	ward
	req proto.Message
} {
	type cell = struct {
		ward
		req proto.Message
	}
	account := "etl"
	files := []*v1.PolicyFile{{Path: "a.cedar", Text: "permit (principal, action, resource);"}}
	return map[string]cell{
		connectv1.OrganisationServiceCreateOrganisationProcedure: {platforms, &v1.CreateOrganisationRequest{Organisation: &v1.Organisation{Name: "new"}, ValidateOnly: true}},
		connectv1.OrganisationServiceGetOrganisationProcedure:    {owned, &v1.GetOrganisationRequest{Name: "acme"}},
		connectv1.OrganisationServiceListOrganisationsProcedure:  {listed, &v1.ListOrganisationsRequest{}},
		connectv1.OrganisationServiceUpdateOrganisationProcedure: {owned, &v1.UpdateOrganisationRequest{Organisation: &v1.Organisation{Name: "acme", Contact: "x"}, ValidateOnly: true}},
		connectv1.OrganisationServiceDeleteOrganisationProcedure: {platforms, &v1.DeleteOrganisationRequest{Name: "acme", ValidateOnly: true}},

		connectv1.PrincipalServiceWhoAmIProcedure:          {anyones, &v1.WhoAmIRequest{}},
		connectv1.PrincipalServiceCreatePrincipalProcedure: {owned, &v1.CreatePrincipalRequest{Principal: &v1.Principal{Id: "corp:new", Organisation: "acme"}, ValidateOnly: true}},
		connectv1.PrincipalServiceGetPrincipalProcedure:    {owned, &v1.GetPrincipalRequest{Id: "corp:olga", Organisation: "acme"}},
		connectv1.PrincipalServiceListPrincipalsProcedure:  {owned, &v1.ListPrincipalsRequest{Organisation: "acme"}},
		connectv1.PrincipalServiceUpdatePrincipalProcedure: {owned, &v1.UpdatePrincipalRequest{Principal: &v1.Principal{Id: "corp:olga", Organisation: "acme", DisplayName: "x"}, ValidateOnly: true}},
		connectv1.PrincipalServiceDeletePrincipalProcedure: {owned, &v1.DeletePrincipalRequest{Id: "corp:olga", Organisation: "acme", ValidateOnly: true}},

		connectv1.ServiceAccountServiceCreateServiceAccountProcedure:       {owned, &v1.CreateServiceAccountRequest{ServiceAccount: &v1.ServiceAccount{ClientId: "new", Organisation: "acme"}, ValidateOnly: true}},
		connectv1.ServiceAccountServiceGetServiceAccountProcedure:          {owned, &v1.GetServiceAccountRequest{ClientId: account}},
		connectv1.ServiceAccountServiceListServiceAccountsProcedure:        {owned, &v1.ListServiceAccountsRequest{Organisation: "acme"}},
		connectv1.ServiceAccountServiceUpdateServiceAccountProcedure:       {owned, &v1.UpdateServiceAccountRequest{ServiceAccount: &v1.ServiceAccount{ClientId: account, DisplayName: "x"}, ValidateOnly: true}},
		connectv1.ServiceAccountServiceDeleteServiceAccountProcedure:       {owned, &v1.DeleteServiceAccountRequest{ClientId: account, ValidateOnly: true}},
		connectv1.ServiceAccountServiceCreateServiceAccountSecretProcedure: {owned, &v1.CreateServiceAccountSecretRequest{ClientId: account, ValidateOnly: true}},
		connectv1.ServiceAccountServiceDeleteServiceAccountSecretProcedure: {owned, &v1.DeleteServiceAccountSecretRequest{ClientId: account, SecretId: s.secretID(), ValidateOnly: true}},

		connectv1.WarehouseServiceCreateWarehouseProcedure: {platforms, &v1.CreateWarehouseRequest{Warehouse: &v1.Warehouse{Name: "new", Organisation: "acme", Storage: &v1.StorageProfile{Root: "s3://b/new"}}, ValidateOnly: true}},
		connectv1.WarehouseServiceGetWarehouseProcedure:    {owned, &v1.GetWarehouseRequest{Name: "main"}},
		connectv1.WarehouseServiceListWarehousesProcedure:  {owned, &v1.ListWarehousesRequest{Organisation: "acme"}},
		connectv1.WarehouseServiceUpdateWarehouseProcedure: {platforms, &v1.UpdateWarehouseRequest{Warehouse: &v1.Warehouse{Name: "main", DisplayName: "x"}, ValidateOnly: true}},
		connectv1.WarehouseServiceDeleteWarehouseProcedure: {platforms, &v1.DeleteWarehouseRequest{Name: "lake", ValidateOnly: true}},

		connectv1.ShareServiceCreateShareProcedure: {owned, &v1.CreateShareRequest{Share: &v1.Share{Name: "new", Organisation: "acme"}, ValidateOnly: true}},
		connectv1.ShareServiceGetShareProcedure:    {owned, &v1.GetShareRequest{Name: "sales"}},
		connectv1.ShareServiceListSharesProcedure:  {listed, &v1.ListSharesRequest{}},
		connectv1.ShareServiceUpdateShareProcedure: {owned, &v1.UpdateShareRequest{Share: &v1.Share{Name: "sales", Description: "x"}, ValidateOnly: true}},
		connectv1.ShareServiceDeleteShareProcedure: {owned, &v1.DeleteShareRequest{Name: "sales", Force: true, ValidateOnly: true}},
		connectv1.ShareServiceModifyShareMembersProcedure: {owned, &v1.ModifyShareMembersRequest{
			Share: "sales", Remove: []string{s.member}, ValidateOnly: true,
			Add: []*v1.ShareMember{{Kind: v1.MemberKind_MEMBER_KIND_TABLE, Warehouse: "main", Namespace: []string{"a"}, Object: "u"}},
		}},
		connectv1.ShareServiceListShareMembersProcedure:  {owned, &v1.ListShareMembersRequest{Share: "sales"}},
		connectv1.ShareServiceListSharedObjectsProcedure: {owned, &v1.ListSharedObjectsRequest{Share: "sales"}},
		connectv1.ShareServiceListShareWarningsProcedure: {owned, &v1.ListShareWarningsRequest{Share: "sales"}},

		connectv1.RecipientServiceCreateRecipientProcedure: {owned, &v1.CreateRecipientRequest{
			Recipient: &v1.Recipient{Provider: "acme", Name: "new", Binding: &v1.Recipient_Token{Token: &v1.TokenBinding{Issuer: "corp", Claim: "subject", Value: "x"}}}, ValidateOnly: true,
		}},
		connectv1.RecipientServiceGetRecipientProcedure:         {owned, &v1.GetRecipientRequest{Provider: "acme", Name: "globex"}},
		connectv1.RecipientServiceListRecipientsProcedure:       {listed, &v1.ListRecipientsRequest{}},
		connectv1.RecipientServiceUpdateRecipientProcedure:      {owned, &v1.UpdateRecipientRequest{Recipient: &v1.Recipient{Provider: "acme", Name: "globex", DisplayName: "x"}, ValidateOnly: true}},
		connectv1.RecipientServiceDeleteRecipientProcedure:      {owned, &v1.DeleteRecipientRequest{Provider: "acme", Name: "globex", Force: true, ValidateOnly: true}},
		connectv1.RecipientServiceCreateActivationLinkProcedure: {owned, &v1.CreateActivationLinkRequest{Provider: "acme", Recipient: "later", ValidateOnly: true}},
		connectv1.RecipientServiceActivateProcedure:             {anyones, &v1.ActivateRequest{Token: "slact_nothing"}},

		connectv1.GrantServiceCreateGrantProcedure:        {owned, &v1.CreateGrantRequest{Grant: &v1.Grant{Share: "sales", Recipient: "later"}, ValidateOnly: true}},
		connectv1.GrantServiceGetGrantProcedure:           {owned, &v1.GetGrantRequest{Id: s.grant}},
		connectv1.GrantServiceListGrantsProcedure:         {listed, &v1.ListGrantsRequest{}},
		connectv1.GrantServiceUpdateGrantProcedure:        {owned, &v1.UpdateGrantRequest{Grant: &v1.Grant{Id: s.grant, Comment: "x"}, ValidateOnly: true}},
		connectv1.GrantServiceRevokeGrantProcedure:        {owned, &v1.RevokeGrantRequest{Id: s.grant, ValidateOnly: true}},
		connectv1.GrantServiceDeleteGrantProcedure:        {owned, &v1.DeleteGrantRequest{Id: s.grant, ValidateOnly: true}},
		connectv1.GrantServiceListReceivedGrantsProcedure: {anyones, &v1.ListReceivedGrantsRequest{}},
		connectv1.GrantServiceAcceptGrantTermsProcedure:   {anyones, &v1.AcceptGrantTermsRequest{Id: s.grant, ValidateOnly: true}},

		connectv1.PolicyServiceCreatePolicySetProcedure: {owned, &v1.CreatePolicySetRequest{
			PolicySet: &v1.PolicySet{Layer: v1.PolicyLayer_POLICY_LAYER_RECIPIENT, Organisation: "acme", Name: "own"}, ValidateOnly: true,
		}},
		connectv1.PolicyServiceGetPolicySetProcedure:          {owned, &v1.GetPolicySetRequest{PolicySet: mainSet()}},
		connectv1.PolicyServiceListPolicySetsProcedure:        {listed, &v1.ListPolicySetsRequest{}},
		connectv1.PolicyServiceUpdatePolicySetProcedure:       {owned, &v1.UpdatePolicySetRequest{PolicySet: &v1.PolicySet{Layer: v1.PolicyLayer_POLICY_LAYER_PROVIDER, Organisation: "acme", Name: "main", Description: "x"}, ValidateOnly: true}},
		connectv1.PolicyServiceUploadPolicyVersionProcedure:   {owned, &v1.UploadPolicyVersionRequest{PolicySet: mainSet(), Files: files, ValidateOnly: true}},
		connectv1.PolicyServiceGetPolicyVersionProcedure:      {owned, &v1.GetPolicyVersionRequest{PolicySet: mainSet()}},
		connectv1.PolicyServiceListPolicyVersionsProcedure:    {owned, &v1.ListPolicyVersionsRequest{PolicySet: mainSet()}},
		connectv1.PolicyServiceCheckPolicyProcedure:           {owned, &v1.CheckPolicyRequest{PolicySet: mainSet(), Files: files}},
		connectv1.PolicyServiceTestPolicyProcedure:            {owned, &v1.TestPolicyRequest{PolicySet: mainSet()}},
		connectv1.PolicyServiceDiffPolicyProcedure:            {owned, &v1.DiffPolicyRequest{PolicySet: mainSet(), FromVersion: 1}},
		connectv1.PolicyServiceActivatePolicyVersionProcedure: {owned, &v1.ActivatePolicyVersionRequest{PolicySet: mainSet(), Version: 1, ValidateOnly: true}},
		connectv1.PolicyServiceRollbackPolicySetProcedure:     {owned, &v1.RollbackPolicySetRequest{PolicySet: mainSet(), ValidateOnly: true}},
		connectv1.PolicyServiceListPolicyActivationsProcedure: {owned, &v1.ListPolicyActivationsRequest{PolicySet: mainSet()}},

		connectv1.AuditServiceQueryAuditProcedure:  {owned, &v1.QueryAuditRequest{Filter: &v1.AuditFilter{Partitions: []string{"main"}}}},
		connectv1.AuditServiceTailAuditProcedure:   {owned, &v1.TailAuditRequest{Filter: &v1.AuditFilter{Partitions: []string{"main"}}}},
		connectv1.AuditServiceVerifyAuditProcedure: {owned, &v1.VerifyAuditRequest{Partitions: []string{"main"}}},
		connectv1.AuditServiceExportAuditProcedure: {owned, &v1.ExportAuditRequest{Partition: "main"}},
	}
}

func (s *site) secretID() string {
	a, err := s.sharing.ServiceAccount(s.ctx, "etl")
	s.ok(err)
	return a.Secrets[0].ID
}

// call makes any operation, streams too, and returns the code, 0 for success.
func (s *site) call(token, procedure string, req proto.Message) connect.Code {
	s.Helper()
	m := procedures()[procedure]
	if m == nil {
		s.Fatalf("there is no %s", procedure)
	}
	var err error
	switch r := req.(type) {
	case *v1.TailAuditRequest:
		err = stream[v1.TailAuditRequest, v1.TailAuditResponse](s, token, procedure, r)
	case *v1.ExportAuditRequest:
		err = stream[v1.ExportAuditRequest, v1.ExportAuditResponse](s, token, procedure, r)
	default:
		raw, encodeErr := protojson.Marshal(req)
		s.ok(encodeErr)
		status, answer := s.post(token, procedure, string(raw))
		if status == http.StatusOK {
			return 0
		}
		var e wireErr
		var code connect.Code
		if json.Unmarshal(answer, &e) != nil || code.UnmarshalText([]byte(e.Code)) != nil {
			s.Fatalf("%s as %s: %d %s", procedure, token, status, answer)
		}
		return code
	}
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}

// stream reads the beginning of a stream.
func stream[Req, Res any](s *site, token, procedure string, req *Req) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	client := connect.NewClient[Req, Res](s.http.Client(), s.http.URL+procedure)
	r := connect.NewRequest(req)
	r.Header().Set("Authorization", "Bearer "+token)
	res, err := client.CallServerStream(ctx, r)
	if err != nil {
		return err
	}
	defer res.Close()
	if procedure == connectv1.AuditServiceTailAuditProcedure {
		// A refusal comes at once; a tail that has begun has nothing to say yet.
		done := make(chan error, 1)
		go func() { res.Receive(); done <- res.Err() }()
		s.nudge()
		return <-done
	}
	res.Receive()
	return res.Err()
}

// nudge makes a change in the warehouse main and puts it into the chain, so
// that a tail has a record to send.
func (s *site) nudge() {
	_, err := s.main.UpdateNamespaceProperties(s.ctx, catalog.Mutation{}, catalog.Namespace{"a"}, nil, map[string]string{"k": "v"})
	s.ok(err)
	_, _, err = s.catalog.SealAudit(s.ctx, s.main.ID(), 100)
	s.ok(err)
}

// TestMatrix walks every operation with every kind of caller.
func TestMatrix(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.settle()
	matrix := s.matrix()
	for p := range procedures() {
		if _, ok := matrix[p]; !ok {
			t.Errorf("%s is not in the matrix", p)
		}
	}
	denied := map[connect.Code]bool{connect.CodeUnauthenticated: true, connect.CodePermissionDenied: true, connect.CodeNotFound: true}
	for procedure, cell := range matrix {
		for token := range people {
			got := s.call(token, procedure, cell.req)
			var want connect.Code // 0: let through
			switch {
			case token == "disabled":
				want = connect.CodePermissionDenied
			case token == "platform", cell.ward == anyones, token == "owner" && cell.ward != platforms:
			case cell.ward == listed && token == "other":
			case cell.ward == platforms, cell.ward == listed:
				want = connect.CodePermissionDenied
			default:
				want = connect.CodeNotFound
			}
			switch {
			case want == 0 && cell.ward == anyones:
				// These say themselves what is wrong: a link, a grant of others.
				if got == connect.CodeUnauthenticated {
					t.Errorf("%s as %s: %v", procedure, token, got)
				}
			case want == 0 && denied[got], want != 0 && got != want:
				t.Errorf("%s as %s: %v, want %v", procedure, token, got, want)
			}
		}
		if got := s.call("nobody", procedure, cell.req); got != connect.CodeUnauthenticated {
			t.Errorf("%s as nobody: %v", procedure, got)
		}
	}
	// Nothing has changed.
	grant, err := s.sharing.Share(s.ctx, "sales")
	if err != nil || grant.Members != 1 {
		t.Errorf("the share is %+v, %v", grant, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.accesses {
		if (a.Decision == audit.Allow) == (a.Principal.ID == "corp:dora") && a.Principal.ID == "corp:dora" || a.Operation() == "" {
			t.Errorf("recorded %+v", a)
		}
	}
}

// TestOthersSeeTheirOwn: what listings without a name show, and that what is
// hidden is answered as what does not exist.
func TestOthersSeeTheirOwn(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.settle()
	do[v1.CreateShareResponse](s, "other", connectv1.ShareServiceCreateShareProcedure, &v1.CreateShareRequest{Share: &v1.Share{Name: "theirs"}})
	for token, want := range map[string]string{"owner": "sales", "other": "theirs", "platform": "sales theirs"} {
		res := do[v1.ListSharesResponse](s, token, connectv1.ShareServiceListSharesProcedure, &v1.ListSharesRequest{})
		var names []string
		for _, sh := range res.GetShares() {
			names = append(names, sh.GetName())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s sees %q, want %q", token, got, want)
		}
	}
	for _, pair := range [][2]proto.Message{
		{&v1.GetShareRequest{Name: "sales"}, &v1.GetShareRequest{Name: "nones"}},
	} {
		hidden, absent := s.refused("other", connectv1.ShareServiceGetShareProcedure, pair[0]), s.refused("other", connectv1.ShareServiceGetShareProcedure, pair[1])
		if hidden.Code != "not_found" || strings.ReplaceAll(hidden.Message, "sales", "nones") != absent.Message || hidden.Details[0].Debug.Reason != absent.Details[0].Debug.Reason {
			t.Errorf("hidden: %+v\nabsent: %+v", hidden, absent)
		}
	}
	// The recipient's side needs no role.
	received := do[v1.ListReceivedGrantsResponse](s, "other", connectv1.GrantServiceListReceivedGrantsProcedure, &v1.ListReceivedGrantsRequest{})
	if len(received.GetGrants()) != 1 || received.GetGrants()[0].GetState() != v1.GrantState_GRANT_STATE_PENDING_TERMS {
		t.Fatalf("received %v", received)
	}
	accepted := do[v1.AcceptGrantTermsResponse](s, "other", connectv1.GrantServiceAcceptGrantTermsProcedure, &v1.AcceptGrantTermsRequest{Id: s.grant, TermsDigest: received.GetGrants()[0].GetTermsDigest(), RequestId: "0190a3c4-8f0e-7aaa-8bbb-0123456789ab"})
	again := do[v1.AcceptGrantTermsResponse](s, "other", connectv1.GrantServiceAcceptGrantTermsProcedure, &v1.AcceptGrantTermsRequest{Id: s.grant, TermsDigest: received.GetGrants()[0].GetTermsDigest(), RequestId: "0190a3c4-8f0e-7aaa-8bbb-0123456789ab"})
	if accepted.GetGrant().GetState() != v1.GrantState_GRANT_STATE_ACTIVE || !proto.Equal(accepted, again) {
		t.Errorf("accepted %v, again %v", accepted, again)
	}
	if e := s.refused("owner", connectv1.GrantServiceAcceptGrantTermsProcedure, &v1.AcceptGrantTermsRequest{Id: s.grant}); e.Code != "not_found" {
		t.Errorf("the provider accepts its own terms: %+v", e)
	}
	// Records of administration are each organisation's own.
	mine := do[v1.QueryAuditResponse](s, "other", connectv1.AuditServiceQueryAuditProcedure, &v1.QueryAuditRequest{})
	for _, r := range mine.GetRecords() {
		if r.GetDetail().GetFields()["organisation"].GetStringValue() != "globex" {
			t.Errorf("another's record: %v", r)
		}
	}
	if len(mine.GetRecords()) == 0 {
		t.Error("no records")
	}
	if v := do[v1.VerifyAuditResponse](s, "other", connectv1.AuditServiceVerifyAuditProcedure, &v1.VerifyAuditRequest{}); len(v.GetPartitions()) != 0 {
		t.Errorf("verified %v", v)
	}
	for _, req := range []proto.Message{&v1.ExportAuditRequest{Partition: "administration"}} {
		if code := s.call("owner", connectv1.AuditServiceExportAuditProcedure, req); code != connect.CodeNotFound {
			t.Errorf("an organisation exports the administration: %v", code)
		}
	}
}

func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.settle()
	long := strings.Repeat("x", 3000)
	for _, c := range []struct{ procedure, body, code, reason string }{
		{connectv1.ShareServiceCreateShareProcedure, `{`, "invalid_argument", ""},
		{connectv1.ShareServiceCreateShareProcedure, ``, "invalid_argument", ""},
		{connectv1.ShareServiceCreateShareProcedure, `[]`, "invalid_argument", ""},
		{connectv1.ShareServiceCreateShareProcedure, `{"share":{"name":"x","title":"y"}}`, "invalid_argument", ""},
		{connectv1.ShareServiceCreateShareProcedure, `{"share":{"name":7}}`, "invalid_argument", ""},
		{connectv1.ShareServiceCreateShareProcedure, `{"share":{"name":"x","onDrop":"ON_DROP_NEVER"}}`, "invalid_argument", ""},
		{connectv1.ShareServiceCreateShareProcedure, `{"share":{"name":"x","onDrop":9}}`, "invalid_argument", "INVALID_ON_DROP"},
		{connectv1.ShareServiceCreateShareProcedure, `{"share":{"name":"x","displayName":"` + long + `"}}`, "invalid_argument", "INVALID_DISPLAY_NAME"},
		{connectv1.ShareServiceCreateShareProcedure, `{"share":{"name":"x"},"requestId":"abc"}`, "invalid_argument", "INVALID_REQUEST_ID"},
		{connectv1.ShareServiceCreateShareProcedure, `{}`, "invalid_argument", "INVALID_NAME"},
		{connectv1.ShareServiceGetShareProcedure, `{}`, "invalid_argument", "REQUIRED"},
		{connectv1.ShareServiceListSharesProcedure, `{"pageSize":-1}`, "invalid_argument", "INVALID_PAGE_SIZE"},
		{connectv1.ShareServiceListSharesProcedure, `{"pageToken":"!"}`, "invalid_argument", "INVALID_PAGE_TOKEN"},
		{connectv1.ShareServiceListSharesProcedure, `{"pageToken":"e30"}`, "invalid_argument", "INVALID_PAGE_TOKEN"},
		{connectv1.ShareServiceUpdateShareProcedure, `{"share":{"name":"sales"},"updateMask":"organisation"}`, "invalid_argument", "INVALID_UPDATE_MASK"},
		{connectv1.ShareServiceModifyShareMembersProcedure, `{"share":"sales","remove":["x"]}`, "invalid_argument", "INVALID_ID"},
		{connectv1.ShareServiceModifyShareMembersProcedure, `{"share":"sales","add":[{}]}`, "invalid_argument", "INVALID_ADD"},
		{connectv1.GrantServiceGetGrantProcedure, `{"id":"1"}`, "invalid_argument", "INVALID_ID"},
		{connectv1.GrantServiceCreateGrantProcedure, `{"grant":{"share":"sales"}}`, "invalid_argument", "REQUIRED"},
		{connectv1.GrantServiceCreateGrantProcedure, `{"grant":{"share":"sales","recipient":"later","conditions":{"networks":["10.0.0.1"]}}}`, "invalid_argument", "INVALID_NETWORK"},
		{connectv1.GrantServiceCreateGrantProcedure, `{"grant":{"share":"sales","recipient":"later","conditions":{"kinds":["robot"]}}}`, "invalid_argument", "INVALID_CONDITIONS_KINDS"},
		{connectv1.GrantServiceCreateGrantProcedure, `{"grant":{"share":"sales","recipient":"later","conditions":{"groups":["analysts"]}}}`, "invalid_argument", "INVALID_CONDITIONS_GROUPS"},
		{connectv1.GrantServiceCreateGrantProcedure, `{"grant":{"share":"sales","recipient":"later","expireTime":"2020-01-01T00:00:00Z"}}`, "invalid_argument", "INVALID_EXPIRE_TIME"},
		{connectv1.GrantServiceCreateGrantProcedure, `{"grant":{"share":"sales","recipient":"later","expireTime":"0001-01-01T00:00:00Z"}}`, "invalid_argument", "INVALID_TIME"},
		{connectv1.RecipientServiceCreateRecipientProcedure, `{"recipient":{"name":"x"}}`, "invalid_argument", "INVALID_BINDING"},
		{connectv1.RecipientServiceCreateRecipientProcedure, `{"recipient":{"name":"x","token":{"issuer":"evil","claim":"subject","value":"y"}}}`, "invalid_argument", "INVALID_TOKEN_ISSUER"},
		{connectv1.RecipientServiceCreateRecipientProcedure, `{"recipient":{"name":"x","token":{"issuer":"corp","claim":"Sub ject","value":"y"}}}`, "invalid_argument", "INVALID_TOKEN_CLAIM"},
		{connectv1.RecipientServiceCreateRecipientProcedure, `{"recipient":{"name":"x","token":{"issuer":"corp","claim":"subject"}}}`, "invalid_argument", "INVALID_TOKEN_VALUE"},
		{connectv1.RecipientServiceCreateRecipientProcedure, `{"recipient":{"name":"x","certificate":{"issuer":"corp","subject":"y"}}}`, "invalid_argument", "INVALID_CERTIFICATE_ISSUER"},
		{connectv1.RecipientServiceCreateRecipientProcedure, `{"recipient":{"name":"x","activation":{}},"activationLifetime":"999999999s"}`, "invalid_argument", "INVALID_ACTIVATION_LIFETIME"},
		{connectv1.PrincipalServiceCreatePrincipalProcedure, `{"principal":{"id":"corp:x","role":"ROLE_PLATFORM_ADMIN"}}`, "invalid_argument", "INVALID_ROLE"},
		{connectv1.PrincipalServiceCreatePrincipalProcedure, `{"principal":{"id":"nobody"}}`, "invalid_argument", "INVALID_ID"},
		{connectv1.PolicyServiceGetPolicySetProcedure, `{"policySet":{"layer":"POLICY_LAYER_PROVIDER"}}`, "invalid_argument", "REQUIRED"},
		{connectv1.AuditServiceQueryAuditProcedure, `{"filter":{"outcome":"maybe"}}`, "invalid_argument", "INVALID_OUTCOME"},
	} {
		status, answer := s.post("owner", c.procedure, c.body)
		var e wireErr
		if json.Unmarshal(answer, &e) != nil || status == http.StatusOK || e.Code != c.code {
			t.Errorf("%s %s: %d %s", c.procedure, limited(c.body), status, answer)
			continue
		}
		if c.reason != "" && (len(e.Details) != 1 || e.Details[0].Type != "google.rpc.ErrorInfo" || e.Details[0].Debug.Reason != c.reason || e.Details[0].Debug.Domain != "sluice") {
			t.Errorf("%s %s: %s, want the reason %s", c.procedure, limited(c.body), answer, c.reason)
		}
	}
	// Paths and methods that there are not, and types of content.
	for _, c := range []struct{ method, path, kind string }{{"POST", "/sluice.admin.v1.ShareService/Nothing", "application/json"}, {"PUT", connectv1.ShareServiceGetShareProcedure, "application/json"}, {"POST", connectv1.ShareServiceGetShareProcedure, "text/plain"}, {"POST", "/sluice.admin.v1.Nothing/X", "application/json"}} {
		r, err := http.NewRequestWithContext(s.ctx, c.method, s.http.URL+c.path, strings.NewReader("{}"))
		s.ok(err)
		r.Header.Set("Content-Type", c.kind)
		r.Header.Set("Authorization", "Bearer owner")
		res, err := s.http.Client().Do(r)
		s.ok(err)
		res.Body.Close()
		if res.StatusCode < 400 || res.StatusCode >= 500 {
			t.Errorf("%s %s as %s: %d", c.method, c.path, c.kind, res.StatusCode)
		}
	}
	// More than may be sent at once.
	big := bytes.Repeat([]byte{' '}, 21<<20)
	if status, _ := s.post("owner", connectv1.ShareServiceGetShareProcedure, string(big)+"{}"); status != http.StatusTooManyRequests { // resource_exhausted
		t.Errorf("21 MiB: %d", status)
	}
}

func limited(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// TestGRPC makes the same calls as gRPC, and reads typed errors.
func TestGRPC(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.settle()
	shares := connectv1.NewShareServiceClient(s.http.Client(), s.http.URL, connect.WithGRPC())
	as := func(token string, h http.Header) { h.Set("Authorization", "Bearer "+token) }
	get := connect.NewRequest(&v1.GetShareRequest{Name: "sales"})
	as("owner", get.Header())
	res, err := shares.GetShare(s.ctx, get)
	if err != nil || res.Msg.GetShare().GetMemberCount() != 1 || res.Header().Get("X-Request-Id") == "" {
		t.Fatalf("%v, %v", res, err)
	}
	stale := connect.NewRequest(&v1.UpdateShareRequest{Share: &v1.Share{Name: "sales", Description: "x", Etag: "old"}})
	as("owner", stale.Header())
	_, err = shares.UpdateShare(s.ctx, stale)
	var wire *connect.Error
	if !errors.As(err, &wire) || wire.Code() != connect.CodeAborted || len(wire.Details()) != 1 {
		t.Fatalf("a stale etag: %v", err)
	}
	detail, err := wire.Details()[0].Value()
	s.ok(err)
	info, ok := detail.(*errdetails.ErrorInfo)
	if !ok || info.GetReason() != "ETAG_MISMATCH" || info.GetMetadata()["next_step"] == "" {
		t.Errorf("detail %v", detail)
	}
	audits := connectv1.NewAuditServiceClient(s.http.Client(), s.http.URL, connect.WithGRPC())
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	tail := connect.NewRequest(&v1.TailAuditRequest{Filter: &v1.AuditFilter{Partitions: []string{"main"}, Operation: "ping"}})
	as("owner", tail.Header())
	stream, err := audits.TailAudit(ctx, tail)
	s.ok(err)
	defer stream.Close()
	for _, operation := range []string{"noise", "ping"} {
		_, err := s.main.UpdateNamespaceProperties(s.ctx, catalog.Mutation{Operation: operation}, catalog.Namespace{"a"}, nil, map[string]string{"k": operation})
		s.ok(err)
	}
	_, _, err = s.catalog.SealAudit(s.ctx, s.main.ID(), 100)
	s.ok(err)
	if !stream.Receive() || stream.Msg().GetRecord().GetOperation() != "ping" || stream.Msg().GetRecord().GetSequence() == 0 {
		t.Fatalf("tail: %v, %v", stream.Msg(), stream.Err())
	}
	// A server that is being stopped ends its streams.
	close(s.stop)
	for stream.Receive() {
		t.Errorf("more: %v", stream.Msg())
	}
	if connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
		t.Errorf("at the end: %v", stream.Err())
	}
	export := connect.NewRequest(&v1.ExportAuditRequest{Partition: "main"})
	as("platform", export.Header())
	lines, err := audits.ExportAudit(s.ctx, export)
	s.ok(err)
	n := 0
	for lines.Receive() {
		n += len(lines.Msg().GetLines())
	}
	if n < 2 || lines.Err() != nil {
		t.Errorf("%d lines, %v", n, lines.Err())
	}
	lines.Close()
}

// TestHabits: pages, masks, idempotency, dry runs, etags.
func TestHabits(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.settle()
	for i := range 7 {
		do[v1.CreateShareResponse](s, "owner", connectv1.ShareServiceCreateShareProcedure, &v1.CreateShareRequest{Share: &v1.Share{Name: fmt.Sprintf("n%d", i)}})
	}
	var names []string
	req := &v1.ListSharesRequest{PageSize: 3}
	for {
		res := do[v1.ListSharesResponse](s, "owner", connectv1.ShareServiceListSharesProcedure, req)
		for _, sh := range res.GetShares() {
			names = append(names, sh.GetName())
		}
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
		// A token is good for its own listing, and its own caller.
		if e := s.refused("owner", connectv1.ShareServiceListSharesProcedure, &v1.ListSharesRequest{PageToken: req.GetPageToken(), Organisation: "acme"}); e.Code != "invalid_argument" {
			t.Errorf("a token of another listing: %+v", e)
		}
		if e := s.refused("platform", connectv1.ShareServiceListSharesProcedure, &v1.ListSharesRequest{PageToken: req.GetPageToken()}); e.Code != "invalid_argument" {
			t.Errorf("another's token: %+v", e)
		}
	}
	if got := strings.Join(names, " "); got != "n0 n1 n2 n3 n4 n5 n6 sales" {
		t.Errorf("listed %q", got)
	}
	// The audit log in pages, of several chains.
	all := do[v1.QueryAuditResponse](s, "platform", connectv1.AuditServiceQueryAuditProcedure, &v1.QueryAuditRequest{PageSize: 1000})
	var paged []*v1.AuditRecord
	query := &v1.QueryAuditRequest{PageSize: 4}
	for range 100 {
		res := do[v1.QueryAuditResponse](s, "platform", connectv1.AuditServiceQueryAuditProcedure, query)
		paged = append(paged, res.GetRecords()...)
		if query.PageToken = res.GetNextPageToken(); query.GetPageToken() == "" {
			break
		}
	}
	if len(paged) != len(all.GetRecords()) || len(paged) < 15 {
		t.Fatalf("%d records in pages, %d at once", len(paged), len(all.GetRecords()))
	}
	seen := map[string]bool{}
	for i, r := range paged {
		key := r.GetPartition() + r.GetRequestId() + r.GetOperation() + r.GetResource() + r.GetTime().String()
		seen[key] = true
		if i > 0 && r.GetTime().AsTime().After(paged[i-1].GetTime().AsTime()) {
			t.Errorf("record %d is newer than the one before", i)
		}
	}
	if len(seen) < len(paged)*9/10 {
		t.Errorf("%d of %d records are different", len(seen), len(paged))
	}

	update := func(req *v1.UpdateShareRequest) *v1.Share {
		t.Helper()
		return do[v1.UpdateShareResponse](s, "owner", connectv1.ShareServiceUpdateShareProcedure, req).GetShare()
	}
	one := update(&v1.UpdateShareRequest{Share: &v1.Share{Name: "n0", Description: "d", DisplayName: "n"}})
	two := update(&v1.UpdateShareRequest{Share: &v1.Share{Name: "n0", Description: "other", Etag: one.GetEtag()}, UpdateMask: mask("display_name")})
	if one.GetDescription() != "d" || two.GetDescription() != "d" || two.GetDisplayName() != "" {
		t.Errorf("%v, then %v", one, two)
	}
	if e := s.refused("owner", connectv1.ShareServiceUpdateShareProcedure, &v1.UpdateShareRequest{Share: &v1.Share{Name: "n0", Description: "x", Etag: one.GetEtag()}}); e.Code != "aborted" {
		t.Errorf("an old etag: %+v", e)
	}
	// A repeated request is answered as the first, though it could not be done
	// again; secrets and links are not kept.
	create := &v1.CreateServiceAccountRequest{ServiceAccount: &v1.ServiceAccount{ClientId: "once"}, RequestId: "7f0c2b3e-1111-4222-8333-944445555666"}
	first := do[v1.CreateServiceAccountResponse](s, "owner", connectv1.ServiceAccountServiceCreateServiceAccountProcedure, create)
	second := do[v1.CreateServiceAccountResponse](s, "owner", connectv1.ServiceAccountServiceCreateServiceAccountProcedure, create)
	if first.GetClientSecret() == "" || second.GetClientSecret() != "" || !proto.Equal(first.GetServiceAccount(), second.GetServiceAccount()) {
		t.Errorf("%v, then %v", first, second)
	}
	create.ServiceAccount.DisplayName = "changed"
	if e := s.refused("owner", connectv1.ServiceAccountServiceCreateServiceAccountProcedure, create); e.Details[0].Debug.Reason != "REQUEST_ID_REUSED" {
		t.Errorf("the same id for another request: %+v", e)
	}
	for _, procedure := range []string{connectv1.PolicyServiceActivatePolicyVersionProcedure, connectv1.PolicyServiceUploadPolicyVersionProcedure, connectv1.ShareServiceModifyShareMembersProcedure, connectv1.GrantServiceRevokeGrantProcedure} {
		req := s.matrix()[procedure].req
		unset(req, "validate_only")
		req.ProtoReflect().Set(req.ProtoReflect().Descriptor().Fields().ByName("request_id"), protoreflect.ValueOfString("7f0c2b3e-2222-4222-8333-94444555566"+fmt.Sprint(len(procedure)%10)))
		raw, err := protojson.Marshal(req)
		s.ok(err)
		status, one := s.post("owner", procedure, string(raw))
		_, two := s.post("owner", procedure, string(raw))
		if status != http.StatusOK || !sameJSON(one, two) {
			t.Errorf("%s: %d\n%s\nthen\n%s", procedure, status, one, two)
		}
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}
func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

// unset empties a field of a message.
func unset(m proto.Message, field protoreflect.Name) {
	m.ProtoReflect().Clear(m.ProtoReflect().Descriptor().Fields().ByName(field))
}
