// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/identity"
)

const (
	testHash = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	hidden   = "hunter2-is-a-secret"
)

// minimal is the least that is valid. Tests append to it or replace lines.
const minimal = `store:
  sqlite: {path: catalog.db}
warehouses:
  - name: demo
    storage: {type: file, root: "file:///srv/sluice/demo"}
accounts:
  - client_id: alice
    secrets: [{env: ALICE_HASH}]
    grants: [{warehouse: demo, access: write}]
tokens:
  signing_key: {env: KEY}
  oauth_endpoint: true
`

// environment has what minimal needs, and more.
func environment(t testing.TB, more ...string) func(string) (string, bool) {
	t.Helper()
	_, key := identity.GenerateSigningKey()
	env := map[string]string{"ALICE_HASH": testHash, "KEY": key.Reveal(), "HIDDEN": hidden, "EMPTY": ""}
	for i := 0; i < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := parse("f.yaml", []byte(minimal), environment(t))
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]any{
		"address":     {c.Listeners.Catalog.Address, "127.0.0.1:8181"},
		"metrics":     {c.Listeners.Metrics.Address, "127.0.0.1:8182"},
		"body":        {c.Limits.BodyBytes, Bytes(64 << 20)},
		"idempotency": {c.Warehouses[0].IdempotencyLifetime, 24 * time.Hour},
		"reports":     {c.Maintenance.KeepReports, 30 * 24 * time.Hour},
		"level":       {c.Logging.Level, "info"},
		"grant":       {c.Accounts[0].Grants[0], Grant{"demo", "write"}},
		"path":        {c.Store.SQLite.Path, "catalog.db"},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s is %v, want %v", what, pair[0], pair[1])
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	with := func(old, replacement string) string {
		if !strings.Contains(minimal, old) {
			t.Fatalf("%q is not in the minimal configuration", old)
		}
		return strings.Replace(minimal, old, replacement, 1)
	}
	tests := []struct {
		name, yaml string
		want       []string // each a part of one problem, in order
	}{
		{"unknown key", minimal + "lisseners: {}\n", []string{`f.yaml:13:1: lisseners: there is no such key here; did you mean "listeners"?`}},
		{"unknown key inside", minimal + "limits:\n  body_byte: 1MiB\n", []string{`f.yaml:14:3: limits.body_byte: there is no such key in limits; did you mean "body_bytes"?`}},
		{"unknown key in a list", with("grants:", "grant:"), []string{`f.yaml:9:5: accounts[0].grant: there is no such key in accounts[0]; did you mean "grants"?`}},
		{"nothing like it", minimal + "zzzzzzzz: 1\n", []string{`f.yaml:13:1: zzzzzzzz: there is no such key here`}},
		{
			"several at once", minimal + "logging: {level: loud, format: xml}\ndrain: {limit: soon}\n",
			[]string{`f.yaml:13:18: logging.level: "loud" is not one of debug, info, warn, error`, `f.yaml:13:32: logging.format: "xml" is not one of json, text`, `f.yaml:14:16: drain.limit: expected a duration such as "30s", "12h" or "7d", found "soon"`},
		},
		{"not YAML", "store: [\n", []string{`f.yaml:1:8: not valid YAML:`}},
		{"key twice", minimal + "store: {}\n", []string{`f.yaml:13:1: not valid YAML: mapping key "store" already defined`}},
		{"two documents", minimal + "---\nstore: {}\n", []string{"only one YAML document"}},
		{"empty", "", []string{"store: is required", "warehouses: is required"}},
		{"a list for a mapping", "store: []\n", []string{`f.yaml:1:8: store: expected a mapping of keys, found a list`}},
		{"a mapping for a list", with("accounts:\n  - client_id", "accounts:\n    client_id"), []string{`accounts: expected a list, found a mapping`}},
		{"a list for text", with("name: demo", "name: [demo]"), []string{`f.yaml:4:11: warehouses[0].name: expected a string, found a list`}},
		{"text for a switch", minimal + "logging: {level: info}\ntelemetry: {reports_by_table: yes please}\n", []string{`expected true or false, found "yes please"`}},
		{"a size that is none", minimal + "limits: {body_bytes: 1MB}\n", []string{`f.yaml:13:22: limits.body_bytes: expected a size such as "64MiB", found "1MB"`}},
		{"too small", minimal + "limits: {body_bytes: 1KiB}\n", []string{"limits.body_bytes: must be at least 64KiB"}},
		{"too large", minimal + "telemetry: {sample_ratio: 1.5}\n", []string{"telemetry.sample_ratio: must be at most 1"}},
		{"negative", with("name: demo", "name: demo\n    soft_delete: -1h"), []string{"f.yaml:5:18: warehouses[0].soft_delete: must not be negative"}},
		{"anchors", minimal + "logging: &a {level: info}\n", []string{"anchors, aliases, tags and merge keys are not supported"}},
		{"required", with("{path: catalog.db}", "{}"), []string{"f.yaml:2:3: store.sqlite.path: is required"}},
		{"two stores", with("sqlite: {path: catalog.db}", "sqlite: {path: catalog.db}\n  postgres: {dsn: {env: HIDDEN}}"), []string{"f.yaml:1:1: store: give only one of sqlite and postgres"}},
		{"no store", with("sqlite: {path: catalog.db}", "auto_migrate: true"), []string{"f.yaml:1:1: store: give one of sqlite and postgres"}},

		{"literal secret", with("{env: KEY}", hidden), []string{"f.yaml:11:16: tokens.signing_key: a secret is not written here; say where it is: {file: PATH} or {env: NAME}"}},
		{"secret of two places", with("{env: KEY}", "{env: KEY, file: x}"), []string{"tokens.signing_key: say where the secret is"}},
		{"secret of no place", with("{env: KEY}", "{value: "+hidden+"}"), []string{"tokens.signing_key: say where the secret is"}},
		{"variable not set", with("{env: KEY}", "{env: NOT_SET}"), []string{"f.yaml:11:16: tokens.signing_key: the environment variable NOT_SET is not set"}},
		{"variable empty", with("{env: KEY}", "{env: EMPTY}"), []string{"tokens.signing_key: the secret is empty"}},
		{"file not there", with("{env: KEY}", "{file: /none/such}"), []string{"tokens.signing_key: stat /none/such: no such file or directory"}},
		{"not a key", with("{env: KEY}", "{env: HIDDEN}"), []string{"f.yaml:11:3: tokens.signing_key: not an Ed25519 key"}},
		{"not a hash", with("{env: ALICE_HASH}", "{env: HIDDEN}"), []string{"accounts[0].secrets[0]: not an argon2id hash"}},
		{"a literal for a hash", with("{env: ALICE_HASH}", hidden), []string{"accounts[0].secrets[0]: a secret is not written here; say where it is: {file: PATH}, {env: NAME} or {hash: PHC}"}},
		{"three secrets", with("[{env: ALICE_HASH}]", "[{env: ALICE_HASH}, {env: ALICE_HASH}, {env: ALICE_HASH}]"), []string{"3 secrets are given; at most 2"}},

		{"audit key that is none", minimal + "audit: {signing_key: {env: HIDDEN}}\n", []string{"audit.signing_key: not an Ed25519 key"}},
		{"audit key that signs tokens", minimal + "audit: {signing_key: {env: KEY}}\n", []string{"audit.signing_key: is the key of tokens; give it one of its own"}},
		{"old audit key that is none", minimal + "audit: {previous_keys: [{env: HIDDEN}]}\n", []string{"audit.previous_keys[0]: not an Ed25519 key"}},
		{"retention without a key", minimal + "audit: {keep_changes: 30d}\n", []string{"audit.keep_changes: needs audit.signing_key"}},
		{"retention of reads without a file", minimal + "audit: {keep_reads: 30d}\n", []string{"audit.keep_reads: needs audit.signing_key", "audit.keep_reads: is for a file, but audit.reads is stderr"}},
		{"retention of reads for a moment", minimal + "audit: {reads: /x, rotate_reads: 1s}\n", []string{"audit.rotate_reads: must be at least 1m"}},
		{"webhook by plain http", minimal + "audit: {webhooks: [{name: a, url: \"http://example.org/x\", secret: {env: HIDDEN}}]}\n", []string{"audit.webhooks[0].url: is plain http off loopback"}},
		{"webhook that is no URL", minimal + "audit: {webhooks: [{name: a/b, url: \"https://u:p@example.org\", secret: {env: HIDDEN}}]}\n", []string{"audit.webhooks[0].name:", "audit.webhooks[0].url: must be an https URL"}},
		{"two webhooks of one name", minimal + "audit: {webhooks: [{name: a, url: \"https://x\", secret: {env: HIDDEN}}, {name: a, url: \"http://127.0.0.1:1\", secret: {env: HIDDEN}}]}\n", []string{`there are two exports "a"`}},

		{"two exports of one name", minimal + "audit: {webhooks: [{name: a, url: \"https://x\", secret: {env: HIDDEN}}], otlp: [{name: a, endpoint: \"https://x\"}]}\n", []string{`audit.otlp[0].name: there are two exports "a"`}},
		{"OTLP by plain http", minimal + "audit: {otlp: [{name: a, endpoint: \"http://10.0.0.1:4318\"}]}\n", []string{"audit.otlp[0].endpoint: is plain http off loopback"}},
		{"reads that are in no file", minimal + "audit: {otlp: [{name: a, endpoint: \"https://x\", records: all}]}\n", []string{"audit.otlp[0].records: is all, but audit.reads is stderr"}},
		{"archive in a warehouse", minimal + "audit: {archives: [{name: a, storage: {type: file, root: \"file:///srv/sluice/demo/audit\"}}]}\n", []string{"audit.archives[0].storage.root: file:///srv/sluice/demo/audit overlaps file:///srv/sluice/demo of warehouses[0]: clients could write there"}},
		{"archive of another store", minimal + "audit: {archives: [{name: a, storage: {type: s3, root: \"file:///x\", allowed_roots: [\"s3://b\"]}}]}\n", []string{"audit.archives[0].storage.s3: is required", "is no location of a store of type s3", "allowed_roots: does not belong to an archive"}},
		{"archive in no place", minimal + "audit: {archives: [{name: a, storage: {type: file, root: \"x\"}}]}\n", []string{"audit.archives[0].storage.root:"}},

		{"table in no warehouse", minimal + "audit: {table: {warehouse: dem, keep: 1h}}\n", []string{`audit.table.warehouse: there is no warehouse "dem"; did you mean`, "audit.table.keep: must be at least 24h"}},

		{"plain off loopback", minimal + "listeners:\n  catalog:\n    address: 0.0.0.0:8181\n", []string{"f.yaml:15:14: listeners.catalog.address: 0.0.0.0:8181 is not on loopback"}},
		{"plain on every address", minimal + "listeners: {catalog: {address: \":8181\"}}\n", []string{":8181 is not on loopback"}},
		{"plain metrics off loopback", minimal + "listeners: {metrics: {address: \"10.0.0.1:9\"}}\n", []string{"listeners.metrics.address: 10.0.0.1:9 is not on loopback"}},
		{"insecure beside TLS", minimal + "listeners: {catalog: {insecure: true, tls: {cert: a, key: b}}}\n", []string{"listeners.catalog.insecure: is true, but tls is configured"}},
		{"no port", minimal + "listeners: {catalog: {address: localhost}}\n", []string{`"localhost" is not host:port`}},
		{"one address twice", minimal + "listeners: {metrics: {address: \"127.0.0.1:8181\"}}\n", []string{"listeners.metrics.address: is the catalog's too"}},

		{"warehouse name", with("name: demo", "name: a/b"), []string{`warehouses[0].name: "a/b" must begin`, "there is no warehouse"}},
		{"location", with("file:///srv/sluice/demo", "file:///srv/../etc"), []string{"f.yaml:5:33: warehouses[0].storage.root: invalid location"}},
		{"location of another store", with("file:///srv/sluice/demo", "s3://bucket/x"), []string{"is no location of a store of type file"}},
		{"overlap", with(storage, storage+"\n  - name: two\n    storage: {type: file, root: \"file:/srv/sluice\"}"), []string{"f.yaml:7:33: warehouses[1].storage.root: file:/srv/sluice overlaps file:///srv/sluice/demo of warehouses[0].storage.root"}},
		{"overlap of an allowed root", with(storage, storage+"\n  - name: two\n    storage: {type: file, root: \"file:///other\", allowed_roots: [\"file:///srv/sluice/demo/x\"]}"), []string{"warehouses[1].storage.allowed_roots[0]: file:///srv/sluice/demo/x overlaps"}},
		{"warehouse twice", with(storage, storage+"\n  - name: demo\n    storage: {type: file, root: \"file:///other\"}"), []string{`warehouses[1].name: there are two warehouses "demo"`}},
		{"section of another store", with(storage, `storage: {type: file, root: "file:///srv/sluice/demo", s3: {region: x, access_key_id: y, secret_access_key: {env: HIDDEN}}}`), []string{"warehouses[0].storage.s3: does not belong to a store of type file"}},
		{"no section", with(storage, `storage: {type: s3, root: "s3://bucket/x"}`), []string{"warehouses[0].storage.s3: is required for a store of type s3"}},
		{"no key of Azure", with(storage, azure(`account: acc`)), []string{"warehouses[0].storage.azure: give either account_key, or tenant_id"}},
		{"two keys of Azure", with(storage, azure(`account: acc, account_key: {env: HIDDEN}, tenant_id: t, client_id: c, client_secret: {env: HIDDEN}`)), []string{"warehouses[0].storage.azure: give either account_key, or tenant_id"}},
		{"half a principal", with(storage, azure(`account: acc, account_key: {env: HIDDEN}, tenant_id: t`)), []string{"warehouses[0].storage.azure: a service principal needs"}},
		{"authority", with(storage, azure(`account: acc, account_key: {env: HIDDEN}, authority: login`)), []string{"warehouses[0].storage.azure.authority: must be an http or https URL"}},
		{"secret for clients", with(storage, storage+"\n    client_config: {s3.secret-access-key: "+hidden+"}"), []string{"client_config.s3.secret-access-key: looks like a secret"}},

		{"grant of nothing", with("warehouse: demo", "warehouse: dmeo"), []string{`f.yaml:9:26: accounts[0].grants[0].warehouse: there is no warehouse "dmeo"; did you mean "demo"?`}},
		{"access", with("access: write", "access: admin"), []string{`accounts[0].grants[0].access: "admin" is not one of read, write`}},
		{"client id", with("client_id: alice", "client_id: \"a:b\""), []string{"accounts[0].client_id: client id"}},
		{"nobody can authenticate", with("  signing_key: {env: KEY}\n  oauth_endpoint: true\n", "  lifetime: 1h\n"), []string{"f.yaml:10:1: tokens: nobody could authenticate"}},
		{"no key", with("  signing_key: {env: KEY}\n", ""), []string{"tokens.signing_key: is required with tokens.oauth_endpoint"}},
		{"proxies", minimal + "limits: {trusted_proxies: [10.0.0.1]}\n", []string{`limits.trusted_proxies[0]: "10.0.0.1" is no CIDR`}},
		{"collector", minimal + "telemetry: {otlp_endpoint: \"collector:4318\"}\n", []string{"telemetry.otlp_endpoint: must be a URL"}},
		{"public URI", minimal + "public_uri: \"https://u:" + hidden + "@x\"\n", []string{"public_uri: must be an http or https URL"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := parse("f.yaml", []byte(test.yaml), environment(t))
			var problems Problems
			if !errors.As(err, &problems) || c != nil {
				t.Fatalf("got %v, %v\n%s", c, err, test.yaml)
			}
			if len(problems) != len(test.want) {
				t.Fatalf("%d problems, want %d:\n%v", len(problems), len(test.want), err)
			}
			for i, want := range test.want {
				if got := problems[i].String(); !strings.Contains(got, want) {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("a secret is repeated: %v", err)
			}
		})
	}
}

// storage is the storage section of minimal.
const storage = `storage: {type: file, root: "file:///srv/sluice/demo"}`

// azure is a storage section with the given keys.
func azure(keys string) string {
	return `storage: {type: azure, root: "abfss://c@acc.dfs.core.windows.net/w", azure: {` + keys + `}}`
}

func TestAzure(t *testing.T) {
	t.Parallel()
	for _, keys := range []string{`account: acc, account_key: {env: HIDDEN}`, `account: acc, tenant_id: t, client_id: c, client_secret: {env: HIDDEN}`} {
		c, err := parse("f.yaml", []byte(strings.Replace(minimal, storage, azure(keys), 1)), environment(t))
		if err != nil {
			t.Fatalf("%s: %v", keys, err)
		}
		a := c.Warehouses[0].Storage.Azure
		if got := a.AccountKey.Value.Reveal() + a.ClientSecret.Value.Reveal(); a.Account != "acc" || got != hidden {
			t.Errorf("%s: account %s with the secret %s", keys, a.Account, got)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	dsn := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(dsn, []byte("postgres://"+hidden+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noStore := strings.Replace(minimal, "sqlite: {path: catalog.db}", "auto_migrate: false", 1)
	c, err := parse("f.yaml", []byte(noStore), environment(
		t,
		"SLUICE_STORE_POSTGRES_DSN_FILE", dsn, "SLUICE_STORE_POSTGRES_MAX_CONNECTIONS", "5", "SLUICE_STORE_AUTO_MIGRATE", "true",
		"SLUICE_LIMITS_TRUSTED_PROXIES", "10.0.0.0/8, 192.168.0.0/16", "SLUICE_LIMITS_BODY_BYTES", "1MiB", "SLUICE_DRAIN_LIMIT", "5s",
		"SLUICE_LISTENERS_METRICS_ADDRESS", "", "SLUICE_TELEMETRY_SAMPLE_RATIO", "0.5",
	))
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]any{
		"dsn": {c.Store.Postgres.DSN.Value.Reveal(), "postgres://" + hidden}, "connections": {c.Store.Postgres.MaxConnections, 5},
		"migrate": {c.Store.AutoMigrate, true}, "proxies": {c.Limits.TrustedProxies, []string{"10.0.0.0/8", "192.168.0.0/16"}},
		"body": {c.Limits.BodyBytes, Bytes(1 << 20)}, "drain": {c.Drain.Limit, 5 * time.Second}, "metrics": {c.Listeners.Metrics.Address, ""},
		"ratio": {c.Telemetry.SampleRatio, 0.5},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s is %v, want %v", what, pair[0], pair[1])
		}
	}
	if printed := fmt.Sprintf("%v %+v %#v", c, c, *c); strings.Contains(printed, hidden) {
		t.Error("a configuration prints its secrets")
	}
	for variable, want := range map[string]string{
		"SLUICE_LIMITS_BODY_BYTES=much":         `environment variable SLUICE_LIMITS_BODY_BYTES: limits.body_bytes: expected a size`,
		"SLUICE_LOGGING_LEVEL=loud":             `environment variable SLUICE_LOGGING_LEVEL: logging.level: "loud" is not one of`,
		"SLUICE_LISTENERS_CATALOG_ADDRESS=:1":   `environment variable SLUICE_LISTENERS_CATALOG_ADDRESS: listeners.catalog.address: :1 is not on loopback`,
		"SLUICE_TOKENS_SIGNING_KEY=" + hidden:   `environment variable SLUICE_TOKENS_SIGNING_KEY: tokens.signing_key: not an Ed25519 key`,
		"SLUICE_TOKENS_SIGNING_KEY_FILE=/none":  `environment variable SLUICE_TOKENS_SIGNING_KEY_FILE: tokens.signing_key: stat /none`,
		"SLUICE_STORE_POSTGRES_DSN=" + hidden:   `store: give only one of sqlite and postgres`,
		"SLUICE_TOKENS_SIGNING_KEY=":            `tokens.signing_key: the secret is empty`,
		"SLUICE_STORE_POSTGRES_DSN_FILE=/none":  `store.postgres.dsn: stat /none`,
		"SLUICE_LISTENERS_CATALOG_INSECURE=yes": `listeners.catalog.insecure: expected true or false`,
	} {
		name, value, _ := strings.Cut(variable, "=")
		_, err := parse("f.yaml", []byte(minimal), environment(t, name, value))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), hidden) {
			t.Errorf("%s: %v", variable, err)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")
	// Paths of secrets are relative to the configuration's file.
	yaml := strings.Replace(minimal, "{env: ALICE_HASH}", "{file: alice.hash}, {hash: '"+testHash+"'}", 1)
	for name, content := range map[string]string{path: yaml, filepath.Join(dir, "alice.hash"): testHash + "\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(path, environment(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Accounts[0].Secrets) != 2 || c.Accounts[0].Secrets[0].Value.PHC() != testHash {
		t.Errorf("secrets are %+v", c.Accounts[0].Secrets)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml"), environment(t)); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestFilesOfTLS are relative to the configuration, as secrets are.
func TestFilesOfTLS(t *testing.T) {
	t.Parallel()
	c, err := parse("/etc/sluice/f.yaml", []byte(minimal+"listeners:\n  catalog: {tls: {cert: c.pem, key: /run/k.pem}}\n  metrics: {tls: {cert: m/c.pem, key: m/k.pem, client_ca: ca.pem}}\n"), environment(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := *c.Listeners.Catalog.TLS, (TLS{"/etc/sluice/c.pem", "/run/k.pem", "", "1.2"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := *c.Listeners.Metrics.TLS, (TLS{"/etc/sluice/m/c.pem", "/etc/sluice/m/k.pem", "/etc/sluice/ca.pem", "1.2"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.yaml")
	yaml := strings.Replace(minimal, "{env: ALICE_HASH}", "{env: SLUICE_ALICE}", 1)
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	_, key := identity.GenerateSigningKey()
	env := NewEnvironment([]string{
		"SLUICE_ALICE=" + testHash, "KEY=" + key.Reveal(), "SLUICE_LOGGING_LEVEL=debug", "HOME=/root",
		// What Kubernetes says of Services.
		"SLUICE_PORT=tcp://10.0.0.1:80", "SLUICE_SERVICE_HOST=10.0.0.1", "SLUICE_SERVICE_PORT_HTTP=80", "SLUICE_METRICS_PORT_8182_TCP_ADDR=10.0.0.1",
		// Misspelt, and of a list.
		"SLUICE_LOGING_FORMAT=" + hidden, "SLUICE_WAREHOUSES_DEMO=x",
	})
	c, err := Load(path, env.Lookup)
	if err != nil || c.Logging.Level != "debug" {
		t.Fatalf("%v, %v", c, err)
	}
	want := []string{
		`the environment variable SLUICE_LOGING_FORMAT is no key of the configuration, and has no effect; did you mean "SLUICE_LOGGING_FORMAT"?`,
		`the environment variable SLUICE_WAREHOUSES_DEMO is no key of the configuration, and has no effect`,
	}
	if got := env.Unknown(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	var s struct {
		Properties map[string]struct {
			Properties map[string]struct {
				Default any      `json:"default"`
				Enum    []string `json:"enum"`
			} `json:"properties"`
		} `json:"properties"`
		Additional any `json:"additionalProperties"`
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Additional != false || s.Properties["limits"].Properties["body_bytes"].Default != "64MiB" ||
		!slices.Equal(s.Properties["logging"].Properties["format"].Enum, []string{"json", "text"}) {
		t.Errorf("schema:\n%s", Schema())
	}
}

// TestFieldsAreDescribed keeps the one description complete.
func TestFieldsAreDescribed(t *testing.T) {
	t.Parallel()
	seen := 0
	var walk func(reflect.Type)
	walk = func(t2 reflect.Type) {
		for i := range t2.NumField() {
			f := t2.Field(i)
			seen++
			if f.Tag.Get("config") == "" || f.Tag.Get("doc") == "" {
				t.Errorf("%s.%s has no key or no documentation", t2.Name(), f.Name)
			}
			inner := f.Type
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			if isSection(inner) {
				walk(inner)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	if seen < 80 {
		t.Errorf("only %d fields seen", seen)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: &x [*x]\n? {b: c}\n: d\n"))
	f.Add([]byte("store: {sqlite: !!str x}\n"))
	env := environment(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parse("f.yaml", raw, env)
		var problems Problems
		if err != nil && (!errors.As(err, &problems) || len(problems) == 0 || c != nil) {
			t.Errorf("%v, %v", c, err)
		}
	})
}
