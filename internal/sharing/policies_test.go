// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/sharing"
)

var mainSet = sharing.PolicyKey{Layer: sharing.LayerProvider, Organisation: "acme", Name: "main"}

const (
	openPolicy = "@id(\"open\")\npermit (principal, action, resource);\n"
	euPolicy   = `@id("eu")
permit (principal, action == Action::"readTable", resource == Table::"main/a/t")
when { context.row has region && context.row.region == "eu" };
@id("columns")
permit (principal, action == Action::"readColumn", resource);
`
	wrongType = `@id("wrong")
permit (principal, action == Action::"readTable", resource == Table::"main/a/t")
when { context.row.id == "eu" };
`
	cases = `principals:
  alice: {user: "corp:alice", organisation: globex}
tables:
  main/a/t:
    organisation: acme
    columns:
      - {name: id, type: long, required: true}
      - {name: region, type: string}
cases:
  - {name: read, principal: alice, table: main/a/t, expect: {allow: EXPECT}}
`
)

func files(policies, cases string) []sharing.PolicyFile {
	out := []sharing.PolicyFile{{Path: "main.cedar", Text: policies}}
	if cases != "" {
		out = append(out, sharing.PolicyFile{Path: "cases.yaml", Text: cases})
	}
	return out
}

func TestPolicyVersions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		h.table(h.main, h.namespace(h.main, "a"), "t")
		_, err := h.CreatePolicySet(h.ctx, m(), sharing.PolicySet{PolicyKey: mainSet})
		h.ok(err)
		second := mainSet
		second.Name = "second"
		_, err = h.CreatePolicySet(h.ctx, m(), sharing.PolicySet{PolicyKey: second})
		h.refused(err, "POLICY_SET_EXISTS")
		for reason, key := range map[string]sharing.PolicyKey{
			"INVALID_LAYER":          {Layer: 7, Organisation: "acme", Name: "x"},
			"INVALID_ORGANISATION":   {Layer: sharing.LayerProvider, Name: "x"},
			"ORGANISATION_NOT_FOUND": {Layer: sharing.LayerProvider, Organisation: "none", Name: "x"},
			"INVALID_NAME":           {Layer: sharing.LayerPlatform, Name: ""},
		} {
			_, err := h.CreatePolicySet(h.ctx, m(), sharing.PolicySet{PolicyKey: key})
			h.refused(err, reason)
		}

		upload := func(reason string, f []sharing.PolicyFile) sharing.UploadedVersion {
			h.Helper()
			up, err := h.UploadPolicyVersion(h.ctx, m(), mainSet, f, "why")
			if reason == "" {
				h.ok(err)
			} else {
				h.refused(err, reason)
			}
			return up
		}
		for _, bad := range [][]sharing.PolicyFile{
			nil, {{Path: "../x.cedar"}}, {{Path: "/x.cedar"}}, {{Path: "a//x.cedar"}}, {{Path: "x.txt"}}, {{Path: "x.cedar"}, {Path: "x.cedar"}}, {{Path: "x.cedar", Text: "\x00"}}, {{Path: "x.cedar", Text: "\xff"}},
		} {
			upload("INVALID_FILES", bad)
		}
		upload("POLICY_INVALID", files("permit (", ""))
		upload("POLICY_INVALID", files(openPolicy, "cases: [{nme: x}]"))
		v1 := upload("", files(openPolicy, strings.ReplaceAll(cases, "EXPECT", "true")))
		if v1.Version.Version != 1 || v1.Version.Policies != 1 || v1.Unchanged {
			h.Errorf("the first version %+v", v1)
		}
		if same := upload("", files(openPolicy, strings.ReplaceAll(cases, "EXPECT", "true"))); !same.Unchanged || same.Version.Version != 1 {
			h.Errorf("the same again %+v", same)
		}
		v2 := upload("", files(wrongType, ""))
		if v2.Version.Version != 2 || len(v2.Problems) == 0 || v2.Problems[0].Line == 0 {
			h.Errorf("a version that does not fit a table %+v", v2)
		}
		v3 := upload("", files(euPolicy, strings.ReplaceAll(cases, "EXPECT", "false")))
		v4 := upload("", files(euPolicy, strings.ReplaceAll(cases, "EXPECT", "true")))

		active := func(want int64) {
			h.Helper()
			if got, err := h.ActiveVersion(h.ctx, mainSet); err != nil || got != want {
				h.Errorf("active is %d, %v; want %d", got, err, want)
			}
		}
		active(0)
		source := sharing.NewActivePolicies(h.store)
		owner := enforce.Owner{Layer: enforce.Provider, Organisation: "acme"}
		if a, err := source.Active(h.ctx, owner); err != nil || a.Version != 0 {
			h.Errorf("in force is %+v, %v", a, err)
		}
		before, err := source.Revision(h.ctx)
		h.ok(err)
		for version, reason := range map[int64]string{0: "INVALID_VERSION", 2: "POLICY_DOES_NOT_FIT", v3.Version.Version: "POLICY_CASES_FAIL", 99: "POLICY_VERSION_NOT_FOUND"} {
			_, err := h.ActivatePolicies(h.ctx, m(), mainSet, version)
			h.refused(err, reason)
		}
		_, err = h.RollBackPolicies(h.ctx, m(), mainSet)
		h.refused(err, "NO_VERSION_BEFORE")
		active(0)
		dry := m()
		dry.ValidateOnly = true
		_, err = h.ActivatePolicies(h.ctx, dry, mainSet, 1)
		h.ok(err)
		active(0)
		for _, version := range []int64{1, v4.Version.Version} {
			_, err := h.ActivatePolicies(h.ctx, m(), mainSet, version)
			h.ok(err)
			active(version)
		}
		after, err := source.Revision(h.ctx)
		if err != nil || after != before+2 {
			h.Errorf("revision %d after %d, %v", after, before, err)
		}
		a, err := source.Active(h.ctx, owner)
		if err != nil || a.Version != 4 || len(a.Sources) != 1 || string(a.Sources[0].Text) != euPolicy {
			h.Errorf("in force is %+v, %v", a, err)
		}
		back, err := h.RollBackPolicies(h.ctx, m(), mainSet)
		if err != nil || back.Set.Active != 1 || back.Previous != 4 {
			h.Errorf("rolled back to %+v, %v", back, err)
		}
		_, err = h.RollBackPolicies(h.ctx, m(), mainSet)
		h.refused(err, "NO_VERSION_BEFORE")
		active(1)
		history, _, err := h.PolicyActivations(h.ctx, mainSet, sharing.Page{})
		if err != nil || len(history) != 3 || !history[0].Rollback || history[0].Previous != 4 || history[2].Previous != 0 {
			h.Errorf("history %+v, %v", history, err)
		}
		// All versions are there, as they were.
		for version := int64(1); version <= 4; version++ {
			v, err := h.PolicyVersion(h.ctx, mainSet, version)
			if err != nil || len(v.Files) == 0 || v.Comment != "why" {
				h.Errorf("version %d: %+v, %v", version, v, err)
			}
		}

		checked, err := h.CheckPolicies(h.ctx, mainSet, files(wrongType, ""), 0)
		if err != nil || len(checked.Problems) == 0 || !slices.Equal(checked.Tables, []string{"main/a.t"}) {
			h.Errorf("checked %+v, %v", checked, err)
		}
		checked, err = h.CheckPolicies(h.ctx, mainSet, files("permit (", ""), 0)
		if err != nil || len(checked.Problems) == 0 || checked.Problems[0].File != "main.cedar" {
			h.Errorf("checked %+v, %v", checked, err)
		}
		byNamespace := strings.ReplaceAll(wrongType, `resource == Table::"main/a/t"`, `resource in Namespace::"main/a"`)
		checked, err = h.CheckPolicies(h.ctx, mainSet, files(byNamespace, ""), 0)
		if err != nil || len(checked.Problems) == 0 || !slices.Equal(checked.Tables, []string{"main/a.t"}) {
			h.Errorf("by its namespace: %+v, %v", checked, err)
		}
		results, problems, err := h.TestPolicies(h.ctx, mainSet, nil, v3.Version.Version)
		if err != nil || len(problems) != 0 || len(results) != 1 || results[0].Passed || results[0].Name != "read" || results[0].Message == "" {
			h.Errorf("tested %+v, %v, %v", results, problems, err)
		}
		results, _, err = h.TestPolicies(h.ctx, mainSet, nil, 0)
		if err != nil || len(results) != 1 || !results[0].Passed {
			h.Errorf("tested %+v, %v", results, err)
		}
		d, err := h.DiffPolicies(h.ctx, mainSet, 0, 0, nil)
		if err != nil || d.From != 1 || d.To != 4 || !slices.Equal(d.Added, []string{"columns", "eu"}) || !slices.Equal(d.Removed, []string{"open"}) || !strings.Contains(d.Text, "-permit (principal, action, resource);") {
			h.Errorf("diff %+v, %v", d, err)
		}
		d, err = h.DiffPolicies(h.ctx, mainSet, 3, 0, files(euPolicy, strings.ReplaceAll(cases, "EXPECT", "true")))
		if err != nil || d.To != 0 || len(d.Added)+len(d.Removed)+len(d.Changed) != 0 || !strings.Contains(d.Text, "+++ b/cases.yaml") || strings.Contains(d.Text, "main.cedar") {
			h.Errorf("diff with files %+v, %v", d, err)
		}
	})
}

// TestActivationIsOfOneVersionAtATime: of several at once, those that were
// checked against another state than there is are refused.
func TestActivationIsOfOneVersionAtATime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		_, err := h.CreatePolicySet(h.ctx, m(), sharing.PolicySet{PolicyKey: mainSet})
		h.ok(err)
		for _, text := range []string{openPolicy, openPolicy + "\n", openPolicy + "\n\n"} {
			_, err := h.UploadPolicyVersion(h.ctx, m(), mainSet, files(text, ""), "")
			h.ok(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for version := range int64(3) {
			wg.Go(func() {
				_, err := h.ActivatePolicies(h.ctx, m(), mainSet, version+1)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if sharing.CodeOf(err) != sharing.Aborted {
					h.Errorf("a loser got %v", err)
				}
			})
		}
		wg.Wait()
		history, _, err := h.PolicyActivations(h.ctx, mainSet, sharing.Page{})
		if err != nil || won == 0 || len(history) != won {
			h.Errorf("%d have won, history %+v, %v", won, history, err)
		}
		set, err := h.PolicySet(h.ctx, mainSet)
		if err != nil || set.Active != history[0].Version {
			h.Errorf("active is %d, the newest in history %d, %v", set.Active, history[0].Version, err)
		}
		for i := range len(history) - 1 {
			if history[i].Previous != history[i+1].Version {
				h.Errorf("history has a gap: %+v", history)
			}
		}
	})
}
