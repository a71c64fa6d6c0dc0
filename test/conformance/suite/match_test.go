// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package suite

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	doc := decode(t, `{"a":{"b-c":[1,{"d":null},3]},"":{"x":1}}`)
	for path, want := range map[string]string{
		"a/b-c/0": "1", "a/b-c/1/d": "null", "a/b-c/-1": "3", "a/b-c/#": "3", "a/#": "1",
		"a/b-c/3": "", "a/b-c/-4": "", "a/x": "", "a/b-c/0/x": "", "a/b-c/x": "",
	} {
		v, ok := lookup(doc, path)
		got := ""
		if ok {
			got = show(v)
		}
		if got != want {
			t.Errorf("lookup(%s) is %q, want %q", path, got, want)
		}
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		got, want string
		ok        bool
	}{
		{`1`, `1`, true},
		{`1.0`, `1`, true},
		{`9007199254740993`, `9007199254740992`, false}, // beyond float64
		{`"1"`, `1`, false},
		{`[1,2]`, `[1,2]`, true},
		{`[1,2]`, `[2,1]`, false},
		{`{"a":1}`, `{"a":1}`, true},
		{`{"a":1,"b":2}`, `{"a":1}`, false},
		{`{"a":1,"b":2}`, `{"$subset":{"a":1}}`, true},
		{`{"b":2}`, `{"$subset":{"a":1}}`, false},
		{`{"b":2}`, `{"$subset":{"a":{"$exists":false}}}`, true},
		{`[1,2]`, `{"$set":[2,1]}`, true},
		{`[1,2,2]`, `{"$set":[2,1]}`, false},
		{`[1,2]`, `{"$contains":2}`, true},
		{`[1,2]`, `{"$lacks":2}`, false},
		{`"abc"`, `{"$contains":"b"}`, true},
		{`"abc"`, `{"$match":"^a.c$"}`, true},
		{`5`, `{"$match":"5"}`, false},
		{`5`, `{"$gte":5}`, true},
		{`4`, `{"$gte":5}`, false},
		{`"x"`, `{"$gte":5}`, false},
		{`5`, `{"$type":"number"}`, true},
		{`null`, `{"$type":"object"}`, false},
		{`null`, `{"$exists":false}`, true},
		{`1`, `{"$exists":false}`, false},
		{`1`, `{"$not":1}`, false},
		{`2`, `{"$not":1}`, true},
		{`2`, `{"$any":[1,2]}`, true},
		{`3`, `{"$any":[1,2]}`, false},
		{`[{"a":1},{"a":2}]`, `{"$each":{"$subset":{"a":{"$type":"number"}}}}`, true},
		{`[{"a":1},{"a":"2"}]`, `{"$each":{"$subset":{"a":{"$type":"number"}}}}`, false},
		{`{}`, `{"$each":1}`, false},
		{`1`, `{"$nonsense":1}`, false},
		{`1e999999999`, `1`, false},
		{`{}`, `{}`, true},
		{`{"a":1}`, `{}`, false},
	} {
		wrong := match(decode(t, tc.got), true, decode(t, tc.want))
		if (wrong == "") != tc.ok {
			t.Errorf("match(%s, %s) says %q", tc.got, tc.want, wrong)
		}
	}
	for _, want := range []string{`1`, `{"$exists":true}`, `{"$type":"string"}`, `{"$lacks":1}`, `{"$each":1}`} {
		if match(nil, false, decode(t, want)) == "" {
			t.Errorf("an absent value matches %s", want)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	s := &session{run: "r", config: Response{Body: []byte("{}")}}
	trial := s.newTrial(Case{ID: "x.y", Severity: Must})
	trial.set("n", int64(5))
	trial.set("text", "a b/c")
	trial.set("loc.t", "file:///w/t")
	for in, want := range map[string]string{
		`"${n}"`:                       `5`,
		`"x${n}y"`:                     `"x5y"`,
		`"${text|escape}"`:             `"a+b%2Fc"`,
		`"[${repeat:{\"a\"::3}]"`:      `"[{\"a\":{\"a\":{\"a\":]"`,
		`"${repeat:ab:2}"`:             `"abab"`,
		`"${hex:41}"`:                  `"A"`,
		`{"${n}":["${n}"]}`:            `{"5":[5]}`,
		`{"$schema":[0,"1 id long!"]}`: `{"fields":[{"id":1,"name":"id","required":true,"type":"long"}],"schema-id":0,"type":"struct"}`,
	} {
		got, err := trial.expand(decode(t, in))
		if err != nil {
			t.Errorf("expand(%s): %v", in, err)
			continue
		}
		if show(got) != want {
			t.Errorf("expand(%s) is %s, want %s", in, show(got), want)
		}
	}
	snapshot, err := trial.expand(decode(t, `{"$snapshot":{"table":"t","id":7,"seq":2,"parent":1,"summary":null,"x":"${n}"}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := decode(t, `{"$subset":{"snapshot-id":7,"sequence-number":2,"parent-snapshot-id":1,"x":5,"manifest-list":"file:///w/t/metadata/snap-7.avro","summary":{"$exists":false}}}`)
	if wrong := match(snapshot, true, want); wrong != "" {
		t.Errorf("$snapshot: %s", wrong)
	}
	for _, bad := range []string{`"${absent}"`, `"${open"`, `"${n|shout}"`, `{"$nonsense":1}`, `{"$schema":["x"]}`, `{"$schema":[0,"id long"]}`, `{"$snapshot":{"table":"none","id":1}}`, `"${hex:zz}"`} {
		if v, err := trial.expand(decode(t, bad)); err == nil && !strings.Contains(bad, `["x"]`) {
			t.Errorf("expand(%s) is %v, want an error", bad, v)
		}
	}
}

// FuzzMatch checks that no answer of a server breaks the comparison.
func FuzzMatch(f *testing.F) {
	f.Add(`{"a":[1]}`, "a/0")
	f.Add(`[[],{"#":1}]`, "1/#")
	f.Fuzz(func(t *testing.T, body, path string) {
		doc, err := (&Response{Body: []byte(body)}).JSON()
		if err != nil {
			return
		}
		v, ok := lookup(doc, path)
		if wrong := match(v, ok, v); ok && wrong != "" && !strings.Contains(body, "$") && !strings.ContainsAny(body, "eE") {
			t.Errorf("%s at %q does not match itself: %s", body, path, wrong)
		}
	})
}

func decode(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestRedact checks that no secret of an answer reaches a report.
func TestRedact(t *testing.T) {
	t.Parallel()
	s := &session{target: Target{Token: "tok-0123456789", Token2: "tok-second-one", Credential: "id:pass-word-1"}}
	for _, text := range []string{
		`status 200: {"access_token":"HIDE","x":1}`,
		`{"config":{"s3.secret-access-key":"HIDE","s3.session-token":"HIDE`,
		`is "{\"gcs.oauth2.token\":\"HIDE\"}"`,
		`{"adls.sas-token.account" : "HIDE"}`,
		"echo of Bearer tok-0123456789",
		"tok-second-one", "pass-word-1",
	} {
		got := s.redact(text)
		for _, secret := range []string{"HIDE", "tok-0123456789", "tok-second-one", "pass-word-1"} {
			if strings.Contains(got, secret) {
				t.Errorf("redact(%s) is %s", text, got)
			}
		}
	}
	if got := s.redact(`{"error":{"message":"no such table"}}`); got != `{"error":{"message":"no such table"}}` {
		t.Errorf("an ordinary text becomes %s", got)
	}
}
