// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"strings"
	"testing"
)

// TestApplyRefuses has files that are not as they must be; nothing is sent for
// them.
func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	f, uri := startFake(t)
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = uri, "admin"
	for file, want := range map[string]string{
		"kind: Shares\nname: a":                         `kind "Shares" is not one of Organisation,`,
		"name: a":                                       `kind "" is not one of`,
		"kind: Share":                                   "a Share needs name",
		"kind: Share\nname: a\ncolour: red":             `unknown field "colour"`,
		"kind: Share\nname: a\nonDrop: perhaps":         "perhaps",
		"kind: Share\nname: a\nmembers: [{table: a.b}]": "members[0] needs warehouse and exactly one of",
		"kind: Share\nname: a\nmembers: [{table: a.b, view: a.c, warehouse: w}]":           "members[0] needs warehouse and exactly one of",
		"kind: Share\nname: a\nmembers: [{table: a.b, warehouse: w, alias: x}]":            `members[0] has "alias"`,
		"kind: Share\nname: a\nmembers: [{table: b, warehouse: w}]":                        "names no namespace",
		"kind: Share\nname: a\nmembers: 1":                                                 "members is no list",
		"kind: Organisation\nname: a\n---\nkind: Organisation\nname: a":                    "-:4: Organisation a of  is declared at -:1 already",
		"kind: Share\nname: a\nname: b":                                                    "already defined",
		"kind: [":                                                                          "-: ",
		"":                                                                                 "nothing is declared in -",
		"kind: Grant\nshare: a\nrecipient: b\nexpireTime: tomorrow":                        "tomorrow",
		"kind: Grant\nshare: a\nrecipient: b\ntermsFile: none.md":                          "termsFile: there is no none.md",
		"kind: Grant\nshare: a":                                                            "a Grant needs recipient",
		"kind: PolicySet\nlayer: provider\nname: a\nfiles: [none]":                         "none: no such file",
		"kind: PolicySet\nlayer: provider\nname: a\nactivate: perhaps":                     "activate is neither true nor false",
		"kind: ServiceAccount\nclientId: a\nclientSecret: mine":                            `unknown field "clientSecret"`,
		"kind: Recipient\nname: a\ntoken: {issuer: a}\ncertificate: {issuer: a}":           "oneof",
		"kind: Organisation\nname: &x a\n---\nkind: Organisation\nname: b\ncontact: [1]\n": "-:4: ",
	} {
		code, stdout, stderr := s.run(file, "apply", "-f", "-")
		if code != codeUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d %s%s", file, code, stdout, stderr)
		}
	}
	for _, call := range f.calls {
		if call != "WhoAmI" {
			t.Errorf("%s was called", call)
		}
	}
}

// TestApplyKeepsOthersChanges has somebody change a share between the
// comparison and the change.
func TestApplyKeepsOthersChanges(t *testing.T) {
	t.Parallel()
	f, uri := startFake(t)
	s := newStage(t)
	s.env["SHARECTL_URI"], s.env["SHARECTL_TOKEN"] = uri, "admin"
	if code, _, stderr := s.run("kind: Share\nname: a\ndescription: one", "apply", "-f", "-"); code != 0 {
		t.Fatal(stderr)
	}
	a := &app{System: System{Stdin: strings.NewReader(""), Stdout: &strings.Builder{}, Stderr: &strings.Builder{}, Env: func(k string) string { return s.env[k] }, Now: s.now}, format: "table"}
	docs, err := a.parseDocuments("x.yaml", []byte("kind: Share\nname: a\norganisation: acme\ndescription: two"))
	if err != nil {
		t.Fatal(err)
	}
	step, err := a.compare(t.Context(), docs[0])
	if err != nil || step == nil || step.Action != "update" {
		t.Fatal(step, err)
	}
	f.all["Share"][0]["etag"] = "another"
	if err := step.do(t.Context()); err == nil || classify(err).code != codeConflict {
		t.Errorf("somebody else's change is lost: %v", err)
	}
}

func TestLinkToken(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]string{
		"https://x.example/activate#token=abc": "abc", "https://x.example/activate#abc": "abc", "https://x.example/activate/abc": "abc",
		"https://x.example/activate?token=abc": "abc", "abc": "abc", "": "", "https://x.example/": "", "a b": "", "a/b": "",
	} {
		if got, err := linkToken(link); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", link, got, err)
		}
	}
}
