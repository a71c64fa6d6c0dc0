// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeAdmin keeps what it is told, in memory: enough of the sharing API to
// drive every command. What it answers is held to the messages of proto by the
// client, which takes no field that they have not.
type fakeAdmin struct {
	mu      sync.Mutex
	all     map[string][]message // by type
	members map[string][]any
	next    int
	calls   []string
}

type refusal struct{ code, text string }

func startFake(t *testing.T) (*fakeAdmin, string) {
	t.Helper()
	f := &fakeAdmin{all: map[string][]message{}, members: map[string][]any{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL
}

var plurals = func() map[string]*resource {
	m := map[string]*resource{}
	for _, k := range kinds {
		if k.resource != nil {
			m[k.resource.plural] = k.resource
		}
	}
	m["PolicySets"] = setsResource
	return m
}()

var setsResource = &resource{typ: "PolicySet", plural: "PolicySets", id: "name"}

func (f *fakeAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	var body message
	if r.Header.Get("Authorization") != "Bearer admin" {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"code":"unauthenticated","message":"who are you?"}`)
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || !strings.HasPrefix(r.URL.Path, "/sluice.admin.v1.") {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	method := path.Base(r.URL.Path)
	f.calls = append(f.calls, method)
	answer, refused := f.serve(method, body)
	if refused != nil {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(message{"code": refused.code, "message": refused.text})
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fakeAdmin) id() string {
	f.next++
	return fmt.Sprintf("%d", f.next)
}

// find is the place of one.
func (f *fakeAdmin) find(r *resource, key message) int {
	return slices.IndexFunc(f.all[r.typ], func(m message) bool {
		return m[r.id] == key[r.id] && (r != setsResource || m["layer"] == key["layer"])
	})
}

func (f *fakeAdmin) serve(method string, body message) (message, *refusal) {
	dry := body["validateOnly"] == true
	if strings.HasPrefix(method, "List") {
		if r := plurals[strings.TrimPrefix(method, "List")]; r != nil {
			return f.list(r, body), nil
		}
	}
	for _, r := range plurals {
		switch verb := strings.TrimSuffix(method, r.typ); {
		case !strings.HasSuffix(method, r.typ) || verb == method:
		case verb == "Create":
			return f.create(r, body, dry)
		case verb == "Get" || verb == "Update" || verb == "Delete" || verb == "Revoke" || verb == "Rollback":
			return f.one(r, verb, body, dry)
		}
	}
	switch method {
	case "WhoAmI":
		return message{"id": "account:admin", "kind": "service", "subject": "admin", "organisation": "acme", "role": "ROLE_ORGANISATION_ADMIN", "serverVersion": "1.0"}, nil
	case "ModifyShareMembers":
		return f.modify(body, dry)
	case "ListShareMembers":
		return message{"members": f.members[text(body, "share")]}, nil
	case "ListSharedObjects":
		return message{"objects": []any{message{"namespace": []any{"public"}, "name": "flights", "kind": "MEMBER_KIND_TABLE", "warehouse": "demo", "sourceNamespace": []any{"nyc"}, "sourceName": "flights"}}}, nil
	case "ListShareWarnings":
		return message{"warnings": []any{message{"id": "1", "time": "2026-01-01T00:00:00Z", "share": "flights", "reason": "MEMBER_REMOVED", "message": "the table was dropped", "object": "nyc.flights", "principal": "account:etl"}}}, nil
	case "CreateActivationLink":
		return message{"activationLink": message{"url": "https://catalog.example.com/activate#token=second-link", "expireTime": "2026-01-02T00:00:00Z"}}, nil
	case "Activate":
		if body["token"] != "second-link" {
			return nil, &refusal{"not_found", "the link is void"}
		}
		return message{"provider": "acme", "recipient": "initech", "principal": "corp:bob"}, nil
	case "CreateServiceAccountSecret":
		return message{"secret": message{"id": "s2"}, "clientSecret": "second-secret"}, nil
	case "DeleteServiceAccountSecret":
		return message{}, nil
	case "ListReceivedGrants":
		return message{"grants": []any{message{"id": "7", "share": "theirs", "provider": "globex", "terms": "Be good.\nAlways.", "termsDigest": "abc", "state": "GRANT_STATE_PENDING_TERMS"}}}, nil
	case "AcceptGrantTerms":
		if body["termsDigest"] != "abc" {
			return nil, &refusal{"failed_precondition", "other terms"}
		}
		return message{"grant": message{"id": "7", "state": "GRANT_STATE_ACTIVE"}}, nil
	case "VerifyAudit":
		return message{"partitions": []any{message{"partition": "administration", "intact": true, "recordCount": "12", "signedCount": "12", "checkpointCount": 2}, message{"partition": "demo", "recordCount": "3", "problems": []any{"record 2 is missing"}}}}, nil
	case "QueryAudit":
		return message{"records": []any{message{"partition": "administration", "sequence": "9", "time": "2026-01-01T00:00:00Z", "kind": "change", "principal": "account:admin", "operation": "createShare", "resource": "share/flights", "status": 200, "outcome": "ok"}}}, nil
	}
	if a, ok := f.policies(method, body, dry); ok {
		return a, nil
	}
	return nil, &refusal{"unimplemented", ""}
}

func (f *fakeAdmin) list(r *resource, body message) message {
	found := []any{}
	for _, m := range f.all[r.typ] {
		fits := true
		for _, k := range []string{"organisation", "provider", "share", "recipient"} {
			fits = fits && (body[k] == nil || m[k] == body[k])
		}
		if fits {
			found = append(found, m)
		}
	}
	// Pages of two.
	from := 0
	_, _ = fmt.Sscanf(text(body, "pageToken"), "after %d", &from)
	if len(found) > from+2 {
		return message{lower(r.plural): found[from : from+2], "nextPageToken": fmt.Sprintf("after %d", from+2)}
	}
	return message{lower(r.plural): found[from:]}
}

func (f *fakeAdmin) create(r *resource, body message, dry bool) (message, *refusal) {
	m, _ := body[r.field()].(message)
	if r == grants {
		m["id"], m["state"], m["provider"] = f.id(), "GRANT_STATE_ACTIVE", "acme"
	}
	if f.find(r, m) >= 0 {
		return nil, &refusal{"already_exists", fmt.Sprintf("there is a %s %q already", r.noun, m[r.id])}
	}
	m["etag"] = f.id()
	answer := message{r.field(): m}
	if dry {
		return answer, nil
	}
	if m["activation"] != nil {
		m["activation"] = message{"expireTime": "2026-01-02T00:00:00Z"}
		answer["activationLink"] = message{"url": "https://catalog.example.com/activate#token=first-link", "expireTime": "2026-01-02T00:00:00Z"}
	}
	if r == serviceAccounts && body["withoutSecret"] != true {
		answer["clientSecret"] = "first-secret"
	}
	f.all[r.typ] = append(f.all[r.typ], m)
	return answer, nil
}

func (f *fakeAdmin) one(r *resource, verb string, body message, dry bool) (message, *refusal) {
	key := body
	if m, ok := body[r.field()].(message); ok {
		key = m
	}
	i := f.find(r, key)
	if i < 0 {
		return nil, &refusal{"not_found", fmt.Sprintf("there is no %s %q", r.typ, key[r.id])}
	}
	m := f.all[r.typ][i]
	switch verb {
	case "Update":
		if e := key["etag"]; e != nil && e != m["etag"] {
			return nil, &refusal{"aborted", "it was changed meanwhile"}
		}
		changed := maps.Clone(m)
		for _, field := range strings.Split(text(body, "updateMask"), ",") {
			top, _, _ := strings.Cut(field, ".")
			if key[top] == nil {
				delete(changed, top)
			} else {
				changed[top] = key[top]
			}
		}
		changed["etag"] = f.id()
		if !dry {
			f.all[r.typ][i] = changed
		}
		return message{r.field(): changed}, nil
	case "Delete":
		if !dry {
			f.all[r.typ] = slices.Delete(f.all[r.typ], i, i+1)
		}
		return message{}, nil
	case "Revoke":
		m["state"], m["revokeReason"] = "GRANT_STATE_REVOKED", body["reason"]
	case "Rollback":
		m["activeVersion"] = "1"
		return message{"policySet": m, "previousVersion": "2"}, nil
	}
	return message{r.field(): m}, nil
}

func (f *fakeAdmin) modify(body message, dry bool) (message, *refusal) {
	i := f.find(shares, message{"name": body["share"]})
	if i < 0 {
		return nil, &refusal{"not_found", fmt.Sprintf("there is no share %q", body["share"])}
	}
	name := text(body, "share")
	members := slices.Clone(f.members[name])
	for _, id := range list2(body["remove"]) {
		members = slices.DeleteFunc(members, func(x any) bool { return x.(message)["id"] == id })
	}
	for _, x := range list2(body["add"]) {
		m := x.(message)
		m["id"], m["uuid"] = "m"+f.id(), "00000000-0000-4000-8000-000000000000"
		members = append(members, m)
	}
	share := maps.Clone(f.all["Share"][i])
	share["memberCount"] = len(members)
	if !dry {
		f.members[name], f.all["Share"][i] = members, share
	}
	return message{"share": share}, nil
}

func list2(v any) []any {
	l, _ := v.([]any)
	return l
}

func (f *fakeAdmin) policies(method string, body message, dry bool) (message, bool) {
	key, _ := body["policySet"].(message)
	i := f.find(setsResource, key)
	if i < 0 {
		return nil, false
	}
	set := f.all["PolicySet"][i]
	versions := "PolicyVersion " + text(set, "layer") + text(set, "name")
	switch method {
	case "UploadPolicyVersion":
		files := list2(body["files"])
		v := message{"version": fmt.Sprint(len(f.all[versions]) + 1), "files": files, "comment": body["comment"], "policyCount": 4, "createTime": "2026-01-01T00:00:00Z", "principal": "account:admin"}
		if !dry {
			f.all[versions] = append(f.all[versions], v)
			set["newestVersion"] = v["version"]
		}
		return message{"version": v, "problems": []any{message{"file": "sales.cedar", "line": 3, "column": 1, "policy": "columns", "table": "demo/sales/orders", "message": "does not fit", "hint": "write another"}}}, true
	case "GetPolicyVersion":
		all := f.all[versions]
		if len(all) == 0 {
			return nil, false
		}
		return message{"version": all[len(all)-1]}, true
	case "ListPolicyVersions":
		var all []any
		for _, v := range f.all[versions] {
			all = append([]any{v}, all...)
		}
		return message{"versions": all}, true
	case "ActivatePolicyVersion":
		before := set["activeVersion"]
		if !dry {
			set["activeVersion"] = body["version"]
		}
		return message{"policySet": set, "previousVersion": before}, true
	case "ListPolicyActivations":
		return message{"activations": []any{message{"id": "1", "version": "1", "principal": "account:admin", "time": "2026-01-01T00:00:00Z"}}}, true
	case "DiffPolicy":
		return message{"fromVersion": "1", "diff": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n", "changedPolicies": []any{"x"}}, true
	case "CheckPolicy":
		return message{"policyCount": 4, "tables": []any{"demo/sales/orders"}}, true
	case "TestPolicy":
		return message{"results": []any{message{"file": "c.yaml", "name": "one", "passed": true}, message{"file": "c.yaml", "name": "two", "message": "differs"}}, "failedCount": 1}, true
	}
	return nil, false
}

func TestSharing(t *testing.T) {
	t.Parallel()
	_, uri := startFake(t)
	s := newStage(t)
	s.words["uri"] = uri
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"], s.env["SHARECTL_WAREHOUSE"] = uri, "admin", "demo"
	s.play("sharing.txt")
	s.play("policysets.txt")
}

func TestApply(t *testing.T) {
	t.Parallel()
	_, uri := startFake(t)
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = uri, "admin"
	s.play("apply.txt")
}
