// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package config is catalogd's configuration: one YAML file, overridden by
// environment variables.
//
// The [Config] type is the one description of it: keys, defaults, allowed
// values and their documentation are its fields and their tags, from which
// reading, the JSON Schema ([Schema]) and the reference in
// docs/configuration.md are made.
//
// Invariants:
//
//   - An unknown key is an error, with its line and what may have been meant.
//   - All problems are reported at once, each with file, line and column.
//   - A secret is named by the file or environment variable that holds it. A
//     literal secret is refused and not repeated in the message.
package config

import (
	"time"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/secret"
)

// Tags of the fields below: config is the key; doc is its documentation;
// default, enum, min and max are what they say; required marks keys that must
// be there when their section is.

// Config is the whole configuration.
type Config struct {
	PublicURI   string      `config:"public_uri" doc:"URI under which clients reach the catalog. It is the issuer of tokens unless tokens.issuer is set."`
	Listeners   Listeners   `config:"listeners" doc:"Where the server listens."`
	Store       Store       `config:"store" required:"true" doc:"Where the catalog's state is kept: exactly one of sqlite and postgres."`
	Warehouses  []Warehouse `config:"warehouses" required:"true" doc:"The warehouses that are served."`
	Accounts    []Account   `config:"accounts" doc:"Built-in service accounts."`
	Admin       []string    `config:"admin" doc:"Ids of principals that administer everything: \"ISSUER:SUBJECT\", or \"account:CLIENT\" (see also accounts[].admin)."`
	Issuers     []Issuer    `config:"issuers" doc:"External authorities whose tokens or certificates are accepted."`
	Policies    []PolicySet `config:"policies" doc:"Policy sets in Cedar that are active for whom they name. Where an owner has none, access to the warehouse decides alone."`
	Tokens      Tokens      `config:"tokens" doc:"Access tokens that the catalog signs itself."`
	Limits      Limits      `config:"limits" doc:"Bounds on what clients may use up."`
	Cache       Cache       `config:"cache" doc:"Memory for what is read again and again."`
	Audit       Audit       `config:"audit" doc:"The log of what is read, and the chains that prove what was read and changed."`
	Logging     Logging     `config:"logging" doc:"Logs, on stderr."`
	Telemetry   Telemetry   `config:"telemetry" doc:"Traces and metrics."`
	Drain       Drain       `config:"drain" doc:"What happens on SIGTERM. A second signal ends the server at once."`
	Maintenance Maintenance `config:"maintenance" doc:"Background work: purges, expiry."`
}

// Listeners are where the server listens.
type Listeners struct {
	Catalog Listener        `config:"catalog" doc:"The protocol, and /health/live and /health/ready."`
	Metrics MetricsListener `config:"metrics" doc:"/metrics and health, without authentication: keep it off networks that clients reach."`
}

// Listener is the catalog's listener.
type Listener struct {
	Address  string `config:"address" default:"127.0.0.1:8181" doc:"host:port. Off loopback it needs tls, or insecure."`
	Insecure bool   `config:"insecure" default:"false" doc:"Serve plain HTTP off loopback, tokens and all: for a proxy on the same host or pod that terminates TLS."`
	TLS      *TLS   `config:"tls" doc:"Serve HTTPS."`
}

// MetricsListener is a Listener with its own default.
type MetricsListener struct {
	Address  string `config:"address" default:"127.0.0.1:8182" doc:"host:port; an empty string switches it off."`
	Insecure bool   `config:"insecure" default:"false" doc:"Serve plain HTTP off loopback."`
	TLS      *TLS   `config:"tls" doc:"Serve HTTPS."`
}

// TLS is the server's side of TLS.
type TLS struct {
	Cert       string `config:"cert" required:"true" doc:"PEM file with the certificate and its chain, relative to the configuration's directory. Read again when it changes, and on SIGHUP."`
	Key        string `config:"key" required:"true" doc:"PEM file with the private key."`
	ClientCA   string `config:"client_ca" doc:"PEM file of authorities; clients must then show a certificate of one of them."`
	MinVersion string `config:"min_version" default:"1.2" enum:"1.2,1.3" doc:"Oldest version of TLS."`
}

// Store says where the state is kept.
type Store struct {
	SQLite      *SQLite   `config:"sqlite" doc:"An embedded database, for one server."`
	Postgres    *Postgres `config:"postgres" doc:"PostgreSQL 15 or newer, for any number of servers."`
	AutoMigrate bool      `config:"auto_migrate" default:"false" doc:"Migrate the schema at start. Otherwise run catalogd migrate, and the server refuses to start on an older schema."`
}

// SQLite is the embedded database.
type SQLite struct {
	Path string `config:"path" required:"true" doc:"The database's file; -wal, -shm and -lock lie beside it."`
}

// Postgres is PostgreSQL.
type Postgres struct {
	DSN            Secret `config:"dsn" required:"true" doc:"Connection string, URI or key=value."`
	MaxConnections int    `config:"max_connections" default:"16" min:"2" max:"1000" doc:"Most connections of this server."`
}

// PolicySet is a policy set of one owner.
type PolicySet struct {
	Layer        string   `config:"layer" required:"true" enum:"platform,provider,recipient" doc:"Whose set it is: the platform's, or an organisation's for what it owns (provider) or for its own people (recipient)."`
	Organisation string   `config:"organisation" doc:"The organisation; absent for the platform."`
	Version      int64    `config:"version" default:"1" min:"1" max:"9223372036854775807" doc:"Version that the audit log names."`
	Files        []string `config:"files" required:"true" doc:"Files of Cedar policies, or directories with *.cedar, relative to the configuration's directory."`
	Cases        []string `config:"cases" doc:"Files of cases (*.yaml), or directories: the server does not start when one fails. docs/policy.md has the form."`
}

// Warehouse is one warehouse.
type Warehouse struct {
	Name                string            `config:"name" required:"true" doc:"Name, which is also the prefix in the protocol's paths: letters, digits and . _ -"`
	Organisation        string            `config:"organisation" doc:"Organisation that owns the warehouse: its provider set decides on it."`
	Storage             Storage           `config:"storage" required:"true" doc:"Where files lie and how the server reaches them."`
	SoftDelete          time.Duration     `config:"soft_delete" default:"0s" doc:"How long dropped tables and views can be restored; 0s drops for good."`
	ProtectByDefault    bool              `config:"protect_by_default" default:"false" doc:"New tables and views cannot be dropped until they are unprotected."`
	IdempotencyLifetime time.Duration     `config:"idempotency_lifetime" default:"24h" doc:"How long an Idempotency-Key is remembered."`
	ClientConfig        map[string]string `config:"client_config" doc:"Settings that clients are told when they load a table, over those that follow from storage (s3.endpoint, client.region, …). No secrets."`
}

// Storage is a warehouse's storage profile.
type Storage struct {
	Type         string   `config:"type" required:"true" enum:"file,s3,gcs,azure" doc:"Kind of store."`
	Root         string   `config:"root" required:"true" doc:"Location under which the catalog places tables: file:///…, s3://bucket/…, gs://bucket/…, abfss://container@account.dfs.core.windows.net/…"`
	AllowedRoots []string `config:"allowed_roots" doc:"Further locations where clients may place tables."`
	S3           *S3      `config:"s3" doc:"With type s3."`
	GCS          *GCS     `config:"gcs" doc:"With type gcs."`
	Azure        *Azure   `config:"azure" doc:"With type azure: the account's key, or a service principal."`
}

// S3 is Amazon S3 or a compatible store.
type S3 struct {
	Endpoint        string `config:"endpoint" doc:"URL of a compatible store; absent for Amazon."`
	Region          string `config:"region" required:"true" doc:"Region; any for a store that has none."`
	PathStyle       bool   `config:"path_style" default:"false" doc:"Bucket in the path instead of the host name."`
	AccessKeyID     string `config:"access_key_id" required:"true" doc:"Access key id."`
	SecretAccessKey Secret `config:"secret_access_key" required:"true" doc:"Secret access key."`
	SessionToken    Secret `config:"session_token" doc:"Session token, with temporary keys."`
}

// GCS is Google Cloud Storage.
type GCS struct {
	Credentials Secret `config:"credentials" doc:"JSON key of a service account; absent means anonymous."`
	Endpoint    string `config:"endpoint" doc:"URL of an emulator."`
}

// Azure is Azure Blob Storage, reached with the account's key or as a service
// principal.
type Azure struct {
	Account      string `config:"account" required:"true" doc:"Storage account."`
	AccountKey   Secret `config:"account_key" doc:"Key of the account, in base64."`
	TenantID     string `config:"tenant_id" doc:"Tenant of the service principal."`
	ClientID     string `config:"client_id" doc:"Client id of the service principal."`
	ClientSecret Secret `config:"client_secret" doc:"Client secret of the service principal."`
	Authority    string `config:"authority" doc:"URL of the token service; absent for the public cloud's."`
	Endpoint     string `config:"endpoint" doc:"URL of the blob service; absent for the one of account and root."`
}

// Account is a built-in service account.
type Account struct {
	ClientID     string   `config:"client_id" required:"true" doc:"Client id: 1 to 128 of A-Z a-z 0-9 . _ ~ @ -"`
	Secrets      []Hash   `config:"secrets" required:"true" doc:"One or two argon2id hashes (catalogd hash-secret), so that a secret can be replaced while the old one still works: {file: …}, {env: …} or {hash: …}."`
	Organisation string   `config:"organisation" doc:"Organisation that the account belongs to."`
	Admin        bool     `config:"admin" default:"false" doc:"The account administers everything: organisations, shares, recipients, grants, policies, audit."`
	Grants       []Grant  `config:"grants" doc:"What the account may do."`
	ActFor       []string `config:"act_for" doc:"On whose behalf the account may exchange tokens (RFC 8693): another account's client id, \"*\" for every account, ISSUER:SUBJECT for a principal of an issuer, ISSUER:* for all of one."`
}

// Grant is access to warehouses.
type Grant struct {
	Warehouse string `config:"warehouse" required:"true" doc:"Name of a warehouse, or \"*\" for every one."`
	Access    string `config:"access" required:"true" enum:"read,write" doc:"write includes read."`
}

// Issuer is an external authority.
type Issuer struct {
	Name          string         `config:"name" required:"true" doc:"Name, which begins the ids of its principals: small letters, digits and -. Never give it to another authority later."`
	Kind          string         `config:"kind" required:"true" enum:"jwt,introspection,kubernetes,mtls" doc:"How its principals are verified: signed tokens by published keys, any tokens by asking (RFC 7662), service accounts of a cluster, client certificates."`
	Issuer        string         `config:"issuer" doc:"The iss of its tokens, compared byte by byte; https, or http on this machine. Required with jwt and kubernetes."`
	Audiences     []string       `config:"audiences" doc:"Values of aud, one of which a token must have. Required, but with mtls."`
	Algorithms    []string       `config:"algorithms" default:"RS256,ES256" doc:"Signatures that are accepted: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA."`
	Claims        Claims         `config:"claims" doc:"What makes a principal of a token or certificate. A claim is named as it stands in the token or, with / in front, by a JSON pointer. Certificates have cn, o, ou, san_dns, san_uri and san_email."`
	Grants        []IssuerGrant  `config:"grants" doc:"What its principals may do."`
	JWKSURI       string         `config:"jwks_uri" doc:"URL of the keys, with jwt; absent means OpenID Connect discovery."`
	CAFile        string         `config:"ca_file" doc:"PEM file of authorities for connections to the issuer, relative to the configuration's directory; absent means the system's."`
	Refresh       time.Duration  `config:"refresh" default:"5m" min:"10s" max:"1h" doc:"How often keys are fetched. A key that the issuer removes is used no longer than this."`
	MaxStale      time.Duration  `config:"max_stale" default:"12h" min:"1m" max:"7d" doc:"How long keys are used that cannot be fetched again; then its tokens are answered 503."`
	Introspection *Introspection `config:"introspection" doc:"With kind introspection."`
	Kubernetes    *Kubernetes    `config:"kubernetes" doc:"With kind kubernetes, for keys of the API server itself or for TokenReview; absent when the cluster's issuer publishes its keys."`
	MTLS          *MTLS          `config:"mtls" doc:"With kind mtls."`
}

// Claims is what makes a principal of a token.
type Claims struct {
	Subject      string       `config:"subject" default:"sub" doc:"Claim of the subject. Choose one that the issuer never gives to another."`
	Organisation Organisation `config:"organisation" doc:"Organisation of the principals: fixed, or claim with allowed."`
	Groups       string       `config:"groups" doc:"Claim of the groups: a list of strings, or one."`
	Attributes   []Attribute  `config:"attributes" doc:"Attributes for policies. A claim of another type than declared refuses the token."`
}

// Organisation is where a principal's organisation comes from.
type Organisation struct {
	Fixed   string   `config:"fixed" doc:"The organisation of all its principals."`
	Claim   string   `config:"claim" doc:"Claim of the organisation."`
	Allowed []string `config:"allowed" doc:"Organisations that the issuer may speak for, with claim."`
}

// Attribute is an attribute of principals.
type Attribute struct {
	Name     string `config:"name" required:"true" doc:"Name in policies."`
	Claim    string `config:"claim" doc:"Claim; the name when absent."`
	Type     string `config:"type" required:"true" enum:"string,long,boolean,set" doc:"Type; set is one of strings."`
	Required bool   `config:"required" default:"false" doc:"Refuse tokens without the claim."`
}

// IssuerGrant is access for principals of an issuer.
type IssuerGrant struct {
	Subject   string `config:"subject" doc:"To this subject; or"`
	Group     string `config:"group" doc:"to this group, as the issuer calls it; or"`
	Everyone  bool   `config:"everyone" default:"false" doc:"to every principal of the issuer."`
	Warehouse string `config:"warehouse" required:"true" doc:"Name of a warehouse, or \"*\" for every one."`
	Access    string `config:"access" required:"true" enum:"read,write" doc:"write includes read."`
}

// Introspection is how an issuer is asked about tokens.
type Introspection struct {
	Endpoint     string        `config:"endpoint" required:"true" doc:"URL of the introspection endpoint."`
	ClientID     string        `config:"client_id" required:"true" doc:"Client id of the catalog at the issuer."`
	ClientSecret Secret        `config:"client_secret" required:"true" doc:"Client secret of the catalog at the issuer."`
	Auth         string        `config:"auth" default:"basic" enum:"basic,form" doc:"How the client's credentials are sent."`
	TokenPrefix  string        `config:"token_prefix" doc:"What its tokens begin with. Opaque tokens go to the issuer whose prefix fits best, and to no other."`
	TTL          time.Duration `config:"ttl" default:"1m" min:"1s" max:"1h" doc:"How long an answer is believed, at most until the token expires. A revoked token works no longer than this."`
	NegativeTTL  time.Duration `config:"negative_ttl" default:"10s" min:"1s" max:"5m" doc:"How long a token that was refused is not asked about again."`
}

// Kubernetes is a cluster.
type Kubernetes struct {
	API       string        `config:"api" doc:"URL of the API server, such as https://kubernetes.default.svc."`
	TokenFile string        `config:"token_file" doc:"File with the bearer token for the API server, relative to the configuration's directory. Read for each request."`
	Review    bool          `config:"review" default:"false" doc:"Ask the API server about each token (TokenReview) instead of checking its signature: tokens of deleted pods end at once."`
	TTL       time.Duration `config:"ttl" default:"1m" min:"1s" max:"1h" doc:"How long a review's answer is believed, at most until the token expires."`
}

// MTLS is an authority of client certificates.
type MTLS struct {
	CAFile      string `config:"ca_file" required:"true" doc:"PEM file of the authorities, relative to the configuration's directory. Read again when it changes."`
	TrustDomain string `config:"trust_domain" doc:"SPIFFE trust domain; the subject is then the SPIFFE id, otherwise the common name."`
}

// Tokens are the catalog's own access tokens.
type Tokens struct {
	SigningKey    Secret        `config:"signing_key" doc:"Ed25519 private key: PKCS#8 PEM (openssl genpkey -algorithm ed25519) or base64 of a 32-byte seed. The same for all servers of a deployment."`
	PreviousKeys  []Secret      `config:"previous_keys" doc:"Keys whose tokens are still accepted, private or public, while signing_key is replaced."`
	Issuer        string        `config:"issuer" doc:"iss and aud of tokens; public_uri or \"sluice\" when absent."`
	Lifetime      time.Duration `config:"lifetime" default:"1h" min:"1m" max:"24h" doc:"How long a token is valid."`
	MaxSession    time.Duration `config:"max_session" default:"0s" doc:"How long a token can be renewed without the client secret; 0s is without bound."`
	OAuthEndpoint bool          `config:"oauth_endpoint" default:"false" doc:"Serve the protocol's deprecated POST /v1/oauth/tokens, where accounts get their tokens."`
}

// Limits bound what clients may use up.
type Limits struct {
	BodyBytes         Bytes         `config:"body_bytes" default:"64MiB" min:"64KiB" doc:"Largest request body, also after inflation."`
	HeaderBytes       Bytes         `config:"header_bytes" default:"64KiB" min:"4KiB" doc:"Largest request headers."`
	ReadHeaderTimeout time.Duration `config:"read_header_timeout" default:"10s" min:"100ms" doc:"Time for a request's headers to arrive."`
	ReadTimeout       time.Duration `config:"read_timeout" default:"2m" min:"1s" doc:"Time for a whole request to arrive."`
	WriteTimeout      time.Duration `config:"write_timeout" default:"5m" min:"1s" doc:"Time from the headers to the end of the answer."`
	IdleTimeout       time.Duration `config:"idle_timeout" default:"3m" min:"1s" doc:"Time a connection may be idle."`
	TrustedProxies    []string      `config:"trusted_proxies" doc:"CIDRs of proxies whose X-Forwarded-For is believed, for throttling and audit."`
	Failures          Failures      `config:"failures" doc:"Failing authentications that are let through before the answer is 429."`
}

// Failures bound failing authentications.
type Failures struct {
	Window     time.Duration `config:"window" default:"1m" min:"1s" doc:"The time that the counts below are for."`
	PerClient  int           `config:"per_client" default:"10" min:"1" doc:"Wrong secrets of one client id from one address, or invalid activation links of one caller."`
	PerAddress int           `config:"per_address" default:"100" min:"1" doc:"Wrong secrets from one address (IPv6: /64), or invalid activation links."`
	Tokens     int           `config:"tokens" default:"600" min:"1" doc:"Invalid bearer tokens from one address. Valid ones are never refused for them."`
}

// Cache is memory for metadata.
type Cache struct {
	MetadataBytes Bytes `config:"metadata_bytes" default:"256MiB" min:"1MiB" doc:"Table and view metadata kept in memory."`
}

// Audit is the log of reads and the chains of changes.
type Audit struct {
	Reads              string        `config:"reads" default:"stderr" doc:"Where reads are recorded, one JSON object a line: stderr, off, or a file (opened anew on SIGHUP). A file of this name with .last at its end holds the newest checkpoint."`
	RotateReads        time.Duration `config:"rotate_reads" default:"0s" doc:"Age of the first record after which the file of reads is moved away, to its name with the time behind it; 0s leaves that to others, who rename it and send SIGHUP."`
	KeepReads          time.Duration `config:"keep_reads" default:"0s" doc:"How long files of reads that were moved away are kept, from their last record on; 0s is for ever. They go whole, oldest first, once every export has them and the next file is signed, so it needs signing_key."`
	Queue              int           `config:"queue" default:"8192" min:"1" max:"1048576" doc:"Records that may wait to be written."`
	OnFull             string        `config:"on_full" default:"refuse" enum:"refuse,wait" doc:"When the queue is full: refuse answers 503, wait makes the request wait. A record is never dropped."`
	SigningKey         Secret        `config:"signing_key" doc:"Ed25519 private key that signs checkpoints: PKCS#8 PEM (openssl genpkey -algorithm ed25519) or base64 of a 32-byte seed. The same for all servers of a deployment, and used for nothing else. Without it nothing is signed, and somebody who can write the log or the store can rewrite it."`
	PreviousKeys       []Secret      `config:"previous_keys" doc:"Keys that signing_key replaced, private or public: they verify the checkpoints that they made."`
	CheckpointRecords  int           `config:"checkpoint_records" default:"1000" min:"1" max:"1000000" doc:"Records after which a checkpoint is signed."`
	CheckpointInterval time.Duration `config:"checkpoint_interval" default:"10s" min:"100ms" max:"1h" doc:"Time after which a checkpoint is signed when there are new records."`
	SealInterval       time.Duration `config:"seal_interval" default:"1s" min:"50ms" max:"1m" doc:"Pause between rounds that put committed changes into their warehouse's chain."`
	KeepChanges        time.Duration `config:"keep_changes" default:"0s" doc:"How long audit rows of changes are kept; 0s is for ever. They go up to a checkpoint only, so it needs signing_key."`
	Webhooks           []Webhook     `config:"webhooks" doc:"Receivers of records and their checkpoints, as CloudEvents."`
	OTLP               []AuditOTLP   `config:"otlp" doc:"Receivers of records and their checkpoints, as OpenTelemetry logs."`
	Archives           []Archive     `config:"archives" doc:"Buckets and directories that keep records and their checkpoints, as objects of JSON lines that are made once and never changed."`
	Table              *AuditTable   `config:"table" doc:"Keep records and their checkpoints as rows of the Iceberg table system.audit."`
}

// ReadsInFile reports whether reads are recorded in a file.
func (a *Audit) ReadsInFile() bool { return a.Reads != "off" && a.Reads != "stderr" && a.Reads != "" }

// Webhook is a receiver of audit records.
type Webhook struct {
	Name    string `config:"name" required:"true" doc:"Name, under which is kept how far it has come: letters, digits and . _ - No other export may have it."`
	URL     string `config:"url" required:"true" doc:"Where batches are sent (POST, application/cloudevents-batch+json); https, or http on loopback. Redirects are not followed."`
	Secret  Secret `config:"secret" required:"true" doc:"Shared secret of the HMAC in the Sluice-Signature header; at least 16 bytes."`
	Records string `config:"records" default:"changes" enum:"changes,all" doc:"What is sent: changes, or all records, reads too, which audit.reads must then keep in a file."`
}

// AuditOTLP is a receiver of audit records as OpenTelemetry logs.
type AuditOTLP struct {
	Name     string            `config:"name" required:"true" doc:"Name, as of a webhook."`
	Endpoint string            `config:"endpoint" required:"true" doc:"OTLP/HTTP base URL, to which /v1/logs is added; https, or http on loopback. Redirects are not followed."`
	Headers  map[string]Secret `config:"headers" doc:"Headers sent to it."`
	Records  string            `config:"records" default:"changes" enum:"changes,all" doc:"What is sent, as of a webhook."`
}

// AuditTable keeps audit records in an Iceberg table.
type AuditTable struct {
	Warehouse string        `config:"warehouse" required:"true" doc:"Warehouse of the table. Who may read there may read the records: give it one of its own, or policies."`
	Records   string        `config:"records" default:"changes" enum:"changes,all" doc:"What is kept, as of a webhook."`
	Interval  time.Duration `config:"interval" default:"1m" min:"1s" max:"1h" doc:"Pause between commits."`
	Keep      time.Duration `config:"keep" default:"0s" doc:"How long rows are kept, by whole days of UTC; 0s is for ever."`
}

// Archive keeps audit records in a bucket or directory.
type Archive struct {
	Name     string        `config:"name" required:"true" doc:"Name, as of a webhook."`
	Storage  Storage       `config:"storage" required:"true" doc:"Where objects are put, outside all warehouses. The credentials need to create and to read objects, not to overwrite or delete them."`
	Records  string        `config:"records" default:"changes" enum:"changes,all" doc:"What is kept, as of a webhook."`
	Interval time.Duration `config:"interval" default:"1m" min:"1s" max:"1h" doc:"Pause between objects."`
}

// Logging is the log on stderr.
type Logging struct {
	Level  string `config:"level" default:"info" enum:"debug,info,warn,error" doc:"Least level that is written."`
	Format string `config:"format" default:"json" enum:"json,text" doc:"Format of lines."`
}

// Telemetry is traces and metrics.
type Telemetry struct {
	OTLPEndpoint   string            `config:"otlp_endpoint" doc:"OTLP/HTTP base URL for traces, such as http://127.0.0.1:4318; absent switches tracing off."`
	OTLPHeaders    map[string]Secret `config:"otlp_headers" doc:"Headers sent to it."`
	SampleRatio    float64           `config:"sample_ratio" default:"0.01" min:"0" max:"1" doc:"Share of traces that begin here and are kept. A caller's decision is followed."`
	ServiceName    string            `config:"service_name" default:"catalogd" doc:"service.name of traces."`
	ReportsByTable bool              `config:"reports_by_table" default:"false" doc:"Label the metrics made of clients' scan and commit reports with the table's name."`
}

// Drain is what happens on SIGTERM.
type Drain struct {
	Delay time.Duration `config:"delay" default:"0s" doc:"Time between /health/ready turning 503 and no more connections being accepted, for load balancers to notice."`
	Limit time.Duration `config:"limit" default:"30s" min:"1s" doc:"Time for requests to finish."`
}

// Maintenance is background work.
type Maintenance struct {
	Interval    time.Duration `config:"interval" default:"30s" min:"1s" doc:"Pause between rounds."`
	KeepReports time.Duration `config:"keep_reports" default:"30d" min:"1h" doc:"How long clients' metrics reports are kept."`
	KeepEvents  time.Duration `config:"keep_events" default:"7d" min:"1h" doc:"How long change events are kept."`
}

// Bytes is a size: "64MiB", "1GiB", "512KiB" or a number of bytes.
type Bytes int64

// Secret is a secret by reference: {file: PATH} or {env: NAME}.
type Secret struct {
	File, Env string
	Value     secret.Value // what was found there
}

// Hash is an argon2id hash by reference or, since it is not a secret itself,
// in place: {file: PATH}, {env: NAME} or {hash: PHC}.
type Hash struct {
	File, Env string
	Value     identity.Hash
}
