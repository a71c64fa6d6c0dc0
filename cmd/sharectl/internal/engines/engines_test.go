// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package engines

import (
	"strings"
	"testing"
)

func settings() *Settings {
	return &Settings{Name: "sluice", URI: "https://catalog.example.com", Warehouse: "sales", Auth: AuthToken, Storage: "s3"}
}

// TestMergeTwice holds every engine's file to what it had, however often
// settings are written.
func TestMergeTwice(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]string{
		"spark":  "# mine\nspark.jars.packages   org.example:thing:1\nspark.sql.extensions=org.example.Extension\n\nspark.executor.memory 4g\n",
		"duckdb": ".mode line\nSET threads = 2;\n", "trino": "",
		"pyiceberg": "# mine\ncatalog:\n  other: # keep\n    uri: http://other\n  sluice:\n    uri: http://old\n    token: old-token\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := All[indexOf(t, name)]
			once, err := e.Merge([]byte(old), settings())
			if err != nil {
				t.Fatal(err)
			}
			twice, err := e.Merge(once, settings())
			if err != nil || string(once) != string(twice) {
				t.Errorf("the second time it is another: %v\n%s\n%s", err, once, twice)
			}
			changed := settings()
			changed.Warehouse = "research"
			third, err := e.Merge(twice, changed)
			if err != nil || strings.Contains(string(third), "sales") || !strings.Contains(string(third), "research") {
				t.Errorf("another warehouse: %v\n%s", err, third)
			}
			for _, kept := range map[string][]string{
				"spark":  {"# mine\n", "spark.executor.memory 4g\n", "spark.jars.packages org.example:thing:1,org.apache", "spark.sql.extensions org.example.Extension,org.apache"},
				"duckdb": {".mode line\nSET threads = 2;\n"}, "pyiceberg": {"# mine\n", "other: # keep\n", "uri: http://other\n"},
			}[name] {
				if !strings.Contains(string(third), kept) {
					t.Errorf("%q is gone:\n%s", kept, third)
				}
			}
			if strings.Contains(string(third), "old") {
				t.Errorf("the old settings are still there:\n%s", third)
			}
		})
	}
}

func indexOf(t *testing.T, name string) int {
	t.Helper()
	for i, e := range All {
		if e.Name == name {
			return i
		}
	}
	t.Fatalf("no engine %s", name)
	return 0
}

func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ engine, old, want string }{
		{"trino", "connector.name=hive\n", "another catalog"},
		{"spark", begin("#", "sluice") + "\nspark.x y\n", "is not"},
		{"pyiceberg", "- a\n", "no mapping"},
		{"pyiceberg", "catalog: [1]\n", "no mapping"},
		{"pyiceberg", "a: [", "no YAML"},
	} {
		if out, err := All[indexOf(t, c.engine)].Merge([]byte(c.old), settings()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %v\n%s", c.engine, c.old, err, out)
		}
	}
}

// TestNothingBreaksOut gives values that would end a setting and begin
// another, if they were not quoted.
func TestNothingBreaksOut(t *testing.T) {
	t.Parallel()
	s := settings()
	s.Warehouse, s.Token = `a'; DROP TABLE x; --`, `t" $(touch x) 'y`
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	for engine, want := range map[string][]string{
		"duckdb":    {`ATTACH 'a''; DROP TABLE x; --' AS sluice`, `TOKEN 't" $(touch x) ''y'`},
		"pyiceberg": {`"warehouse": "a'; DROP TABLE x; --"`, `"token": "t\" $(touch x) 'y"`},
		"spark":     {`--conf 'spark.sql.catalog.sluice.warehouse=a'\''; DROP TABLE x; --'`, `--conf 'spark.sql.catalog.sluice.token=t" $(touch x) '\''y'`},
		"trino":     {"iceberg.rest-catalog.warehouse=a'; DROP TABLE x; --\n"},
	} {
		text := All[indexOf(t, engine)].Text(s)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in\n%s", engine, w, text)
			}
		}
	}
	for _, bad := range []string{"a\nconnector.name=x", "a\x00", "${ENV:HOME}"} {
		s := settings()
		s.Warehouse = bad
		if s.Check() == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if got := property(` a\b`); got != `\ a\\b` {
		t.Errorf("property: %q", got)
	}
}

// TestSecretsStayOut looks for a secret where none was asked for.
func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	for _, auth := range []Auth{AuthToken, AuthCredentials} {
		s := settings()
		s.Auth, s.ClientID, s.TokenURI, s.Scope = auth, "analyst", s.URI+"/v1/oauth/tokens", "catalog"
		for _, e := range All {
			merged, err := e.Merge(nil, s)
			if err != nil {
				t.Fatal(err)
			}
			if e.Note(s) == "" {
				t.Errorf("%s by %s: nothing tells where the secret comes from", e.Name, auth)
			}
			s.Token, s.Secret = "the-token", "the-secret"
			full, err := e.Merge(nil, s)
			if err != nil || !strings.Contains(string(full)+e.Text(s), "the-") || e.Note(s) != "" {
				t.Errorf("%s by %s: with a secret: %v %q\n%s", e.Name, auth, err, e.Note(s), full)
			}
			s.Token, s.Secret = "", ""
			if strings.Contains(string(merged)+e.Text(s), "the-") {
				t.Errorf("%s by %s: a secret in\n%s", e.Name, auth, merged)
			}
		}
	}
}
