// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/sluice-data/sluice/proto/sluice/admin/v1"
	connectv1 "github.com/sluice-data/sluice/proto/sluice/admin/v1/adminv1connect"
)

// devServer is a running catalogd dev.
type devServer struct {
	*testing.T
	uri   string
	ready Ready
}

func serveDev(t *testing.T) *devServer {
	t.Helper()
	options, ready, err := Dev(DevOptions{DataDir: t.TempDir(), Address: "127.0.0.1:0", LogLevel: "error", LogFormat: "text"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	options.Config.Audit.SealInterval = 50 * time.Millisecond
	s, err := Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &devServer{t, "http://" + s.Address().String(), ready}
}

// send sends a request and decodes the answer.
func (d *devServer) send(token, method, path string, body string) (int, map[string]any) {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), method, d.uri+path, strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if strings.HasSuffix(path, "/oauth/tokens") {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		d.Fatal(err)
	}
	defer res.Body.Close()
	out := map[string]any{}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		d.Fatal(err)
	}
	if len(raw) > 0 && json.Unmarshal(raw, &out) != nil {
		d.Fatalf("%s %s: %d %s", method, path, res.StatusCode, raw)
	}
	return res.StatusCode, out
}

// admin makes a call of the administration as the developer.
func (d *devServer) admin(operation, body string) map[string]any {
	d.Helper()
	status, out := d.send(d.ready.Token, http.MethodPost, "/sluice.admin.v1."+operation, body)
	if status != http.StatusOK {
		d.Fatalf("%s: %d %v", operation, status, out)
	}
	return out
}

func (d *devServer) token(id, secret string) (int, string) {
	d.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {id}, "client_secret": {secret}, "scope": {"catalog"}}
	status, out := d.send("", http.MethodPost, "/v1/oauth/tokens", form.Encode())
	token, _ := out["access_token"].(string)
	return status, token
}

const whoAmI = "/sluice.admin.v1.PrincipalService/WhoAmI"

// TestServiceAccountsOfAdministrators: an account that was made through the
// interface gets tokens, has the role that its record gives, and is out with
// the next request after it was disabled or deleted, though its token has been
// believed before.
func TestServiceAccountsOfAdministrators(t *testing.T) {
	t.Parallel()
	d := serveDev(t)
	d.admin("OrganisationService/CreateOrganisation", `{"organisation":{"name":"acme"}}`)
	made := d.admin("ServiceAccountService/CreateServiceAccount", `{"serviceAccount":{"clientId":"etl","organisation":"acme"}}`)
	secret, _ := made["clientSecret"].(string)
	if status, _ := d.token("etl", "wrong"); status == http.StatusOK {
		t.Error("a wrong secret is good")
	}
	status, token := d.token("etl", secret)
	if status != http.StatusOK {
		t.Fatalf("no token: %d", status)
	}
	if status, me := d.send(token, http.MethodPost, whoAmI, "{}"); status != http.StatusOK || me["id"] != "account:etl" || me["organisation"] != "acme" || me["role"] != nil {
		t.Errorf("%d %v", status, me)
	}
	const shares = "/sluice.admin.v1.ShareService/ListShares"
	if status, _ := d.send(token, http.MethodPost, shares, "{}"); status != http.StatusForbidden {
		t.Errorf("without a role: %d", status)
	}
	d.admin("PrincipalService/CreatePrincipal", `{"principal":{"id":"account:etl","organisation":"acme","role":"ROLE_ORGANISATION_ADMIN"}}`)
	if status, _ := d.send(token, http.MethodPost, shares, "{}"); status != http.StatusOK {
		t.Errorf("with a role: %d", status)
	}
	d.admin("ServiceAccountService/UpdateServiceAccount", `{"serviceAccount":{"clientId":"etl","disabled":true}}`)
	for _, path := range []string{whoAmI, shares} {
		if status, _ := d.send(token, http.MethodPost, path, "{}"); status != http.StatusUnauthorized {
			t.Errorf("%s of a disabled account: %d", path, status)
		}
	}
	if status, _ := d.send(token, http.MethodGet, "/v1/config?warehouse=demo", ""); status != http.StatusUnauthorized {
		t.Errorf("the catalog for a disabled account: %d", status)
	}
	if status, _ := d.token("etl", secret); status == http.StatusOK {
		t.Error("a disabled account gets a token")
	}
	d.admin("ServiceAccountService/UpdateServiceAccount", `{"serviceAccount":{"clientId":"etl"},"updateMask":"disabled"}`)
	if status, _ := d.send(token, http.MethodPost, whoAmI, "{}"); status != http.StatusOK {
		t.Errorf("an account that is back: %d", status)
	}
	second := d.admin("ServiceAccountService/CreateServiceAccountSecret", `{"clientId":"etl"}`)
	first, _ := made["serviceAccount"].(map[string]any)["secrets"].([]any)[0].(map[string]any)["id"].(string)
	d.admin("ServiceAccountService/DeleteServiceAccountSecret", `{"clientId":"etl","secretId":"`+first+`"}`)
	if status, _ := d.token("etl", secret); status == http.StatusOK {
		t.Error("a deleted secret is good")
	}
	if status, _ := d.token("etl", second["clientSecret"].(string)); status != http.StatusOK {
		t.Errorf("the second secret: %d", status)
	}
	d.admin("ServiceAccountService/DeleteServiceAccount", `{"clientId":"etl"}`)
	if status, _ := d.send(token, http.MethodPost, whoAmI, "{}"); status != http.StatusUnauthorized {
		t.Errorf("a deleted account: %d", status)
	}
	// One of the same name in another organisation does not inherit its tokens.
	d.admin("ServiceAccountService/CreateServiceAccount", `{"serviceAccount":{"clientId":"etl","organisation":"dev"}}`)
	if status, _ := d.send(token, http.MethodPost, whoAmI, "{}"); status != http.StatusUnauthorized {
		t.Errorf("a token of an account that was, for one of its name: %d", status)
	}
	if status, out := d.send(d.ready.Token, http.MethodPost, "/sluice.admin.v1.ServiceAccountService/CreateServiceAccount", `{"serviceAccount":{"clientId":"dev"}}`); status != http.StatusConflict {
		t.Errorf("an account of the configuration: %d %v", status, out)
	}
}

// TestActivatedPoliciesDecide: a version counts from the next request on.
func TestActivatedPoliciesDecide(t *testing.T) {
	t.Parallel()
	d := serveDev(t)
	namespaces := func() int {
		status, _ := d.send(d.ready.Token, http.MethodGet, "/v1/demo/namespaces", "")
		return status
	}
	if status := namespaces(); status != http.StatusOK {
		t.Fatalf("before: %d", status)
	}
	const set = `"policySet":{"layer":"POLICY_LAYER_PROVIDER","name":"main"}`
	d.admin("PolicyService/CreatePolicySet", `{`+set+`}`)
	d.admin("PolicyService/UploadPolicyVersion", `{`+set+`,"files":[{"path":"a.cedar","text":"permit (principal, action, resource);"}]}`)
	d.admin("PolicyService/UploadPolicyVersion", `{`+set+`,"files":[{"path":"a.cedar","text":"permit (principal == User::\"corp:alice\", action, resource);"}]}`)
	d.admin("PolicyService/ActivatePolicyVersion", `{`+set+`,"version":1}`)
	if status := namespaces(); status != http.StatusOK {
		t.Errorf("with everything permitted: %d", status)
	}
	d.admin("PolicyService/ActivatePolicyVersion", `{`+set+`,"version":2}`)
	if status := namespaces(); status != http.StatusNotFound {
		t.Errorf("with nothing permitted: %d", status)
	}
	d.admin("PolicyService/RollbackPolicySet", `{`+set+`}`)
	if status := namespaces(); status != http.StatusOK {
		t.Errorf("rolled back: %d", status)
	}
}

// TestAdministrationWithoutTLS: gRPC with HTTP/2 in the clear, and a chain of
// its own in the audit log that is sealed and verifies.
func TestAdministrationWithoutTLS(t *testing.T) {
	t.Parallel()
	d := serveDev(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	shares := connectv1.NewShareServiceClient(client, d.uri, connect.WithGRPC())
	create := connect.NewRequest(&v1.CreateShareRequest{Share: &v1.Share{Name: "sales"}})
	create.Header().Set("Authorization", "Bearer "+d.ready.Token)
	if _, err := shares.CreateShare(t.Context(), create); err != nil {
		t.Fatal(err)
	}
	audits := connectv1.NewAuditServiceClient(client, d.uri, connect.WithGRPC())
	verify := connect.NewRequest(&v1.VerifyAuditRequest{Partitions: []string{"administration"}})
	verify.Header().Set("Authorization", "Bearer "+d.ready.Token)
	for range 100 {
		res, err := audits.VerifyAudit(t.Context(), verify)
		if err != nil {
			t.Fatal(err)
		}
		v := res.Msg.GetPartitions()[0]
		if !v.GetIntact() {
			t.Fatalf("%v", v)
		}
		if v.GetRecordCount() >= 2 { // the warehouse was adopted, the share created
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("what was changed is not in the chain")
}
