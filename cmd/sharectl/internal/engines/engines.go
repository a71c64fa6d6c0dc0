// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package engines writes the settings with which query engines use a catalog.
//
// What is secret is left to the environment unless it is given, and where an
// engine cannot read the environment the settings say what to add. Every value
// is quoted as the engine's own syntax asks: nothing in a name or a URI can end
// a setting and begin another. In a file that is not sharectl's own only the
// part between two marks is sharectl's; the rest stays as it is.
package engines

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Auth is how an engine signs in.
type Auth string

// The ways.
const (
	AuthToken       Auth = "token"       // a token, until it ends
	AuthCredentials Auth = "credentials" // the engine asks for tokens itself
	AuthNone        Auth = "none"        // a certificate, or a proxy that signs in
)

// Variables of the environment that settings without secrets read.
const (
	TokenVariable  = "SLUICE_TOKEN"
	SecretVariable = "SLUICE_CLIENT_SECRET"
)

// Storages are where files can lie.
var Storages = []string{"file", "s3", "gcs", "azure"}

// Settings are what an engine needs.
type Settings struct {
	Name      string // of the catalog in the engine
	URI       string
	Warehouse string
	Auth      Auth
	ClientID  string
	TokenURI  string
	Scope     string
	Storage   string // of Storages; "" when it is not known
	// Vended says that the catalog gives credentials for the files; else the
	// engine has its own.
	Vended bool
	// Token and Secret are "" when the environment has them.
	Token, Secret string
}

// catalogName is a name that needs no quoting in any engine.
var catalogName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// Check says what is wrong with settings.
func (s *Settings) Check() error {
	if !catalogName.MatchString(s.Name) {
		return fmt.Errorf("a catalog cannot be called %q in every engine: small letters, digits and '_', at most 63", s.Name)
	}
	for _, v := range []string{s.URI, s.Warehouse, s.ClientID, s.TokenURI, s.Scope, s.Token, s.Secret} {
		if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return errors.New("a setting has a control character")
		}
		if strings.Contains(v, "${") { // Trino and Spark would put something else there
			return fmt.Errorf("%q has ${, which engines replace", v)
		}
	}
	if s.Auth == AuthCredentials && s.ClientID == "" {
		return errors.New("no client id is known")
	}
	return nil
}

// HasSecret reports whether the settings hold one.
func (s *Settings) HasSecret() bool { return s.Token != "" || s.Secret != "" }

// credential is what engines call one: id and secret.
func (s *Settings) credential() string { return s.ClientID + ":" + s.Secret }

// Engine is a query engine.
type Engine struct {
	Name string
	// Text is what a person pastes.
	Text func(*Settings) string
	// File is the engine's own file.
	File func(*Settings, func(string) string) (string, error)
	// Merge puts the settings into what the file has now.
	Merge func([]byte, *Settings) ([]byte, error)
	// Note is what is left to do when the file has been written without
	// secrets; "" for nothing.
	Note func(*Settings) string
}

// All are the engines.
var All = []Engine{
	{"spark", sparkText, sparkFile, sparkMerge, sparkNote},
	{"trino", trinoText, trinoFile, trinoMerge, environmentNote},
	{"pyiceberg", pyicebergText, pyicebergFile, pyicebergMerge, pyicebergNote},
	{"duckdb", duckdbText, duckdbFile, duckdbMerge, environmentNote},
}

// Names are the engines' names.
func Names() []string {
	names := make([]string, len(All))
	for i, e := range All {
		names[i] = e.Name
	}
	return names
}

type setting struct{ key, value string }

// Spark

const (
	sparkPackage    = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
	sparkBundle     = "org.apache.iceberg:iceberg-%s-bundle:1.12.0"
	sparkExtensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
)

func sparkPackages(s *Settings) string {
	switch s.Storage {
	case "s3":
		return sparkPackage + "," + fmt.Sprintf(sparkBundle, "aws")
	case "gcs":
		return sparkPackage + "," + fmt.Sprintf(sparkBundle, "gcp")
	case "azure":
		return sparkPackage + "," + fmt.Sprintf(sparkBundle, "azure")
	}
	return sparkPackage
}

// sparkSettings are the catalog's, with the given texts for what is secret;
// "" leaves them out.
func sparkSettings(s *Settings, token, credential string) []setting {
	p := "spark.sql.catalog." + s.Name
	all := []setting{{p, "org.apache.iceberg.spark.SparkCatalog"}, {p + ".type", "rest"}, {p + ".uri", s.URI}, {p + ".warehouse", s.Warehouse}}
	switch s.Storage {
	case "s3":
		all = append(all, setting{p + ".io-impl", "org.apache.iceberg.aws.s3.S3FileIO"})
	case "gcs":
		all = append(all, setting{p + ".io-impl", "org.apache.iceberg.gcp.gcs.GCSFileIO"})
	case "azure":
		all = append(all, setting{p + ".io-impl", "org.apache.iceberg.azure.adlsv2.ADLSFileIO"})
	}
	switch s.Auth {
	case AuthToken:
		all = append(all, setting{p + ".token", token})
	case AuthCredentials:
		all = append(all, setting{p + ".oauth2-server-uri", s.TokenURI}, setting{p + ".scope", s.Scope}, setting{p + ".credential", credential})
	}
	if s.Vended {
		all = append(all, setting{p + ".header.X-Iceberg-Access-Delegation", "vended-credentials"})
	}
	var kept []setting
	for _, x := range all {
		if x.value != "" {
			kept = append(kept, x)
		}
	}
	return kept
}

// shell quotes a word for a POSIX shell.
func shell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:,=+@-]+$`)

func word(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return shell(s)
}

func sparkText(s *Settings) string {
	var b strings.Builder
	fmt.Fprintf(&b, "spark-sql --packages %s", word(sparkPackages(s)))
	fmt.Fprintf(&b, " \\\n  --conf spark.sql.extensions=%s", sparkExtensions)
	const fromToken, fromSecret = "\x00token", "\x00secret"
	token, credential := s.Token, s.credential()
	if token == "" {
		token = fromToken
	}
	if s.Secret == "" {
		credential = fromSecret
	}
	for _, x := range sparkSettings(s, token, credential) {
		text := ""
		switch x.value {
		case fromToken:
			text = x.key + `="$` + TokenVariable + `"`
		case fromSecret:
			text = x.key + "=" + word(s.ClientID+":") + `"$` + SecretVariable + `"`
		default:
			text = word(x.key + "=" + x.value)
		}
		fmt.Fprintf(&b, " \\\n  --conf %s", text)
	}
	return b.String() + "\n"
}

func sparkFile(_ *Settings, env func(string) string) (string, error) {
	if dir := env("SPARK_CONF_DIR"); dir != "" {
		return filepath.Join(dir, "spark-defaults.conf"), nil
	}
	if dir := env("SPARK_HOME"); dir != "" {
		return filepath.Join(dir, "conf", "spark-defaults.conf"), nil
	}
	return "", errors.New("neither SPARK_CONF_DIR nor SPARK_HOME is set; give --file")
}

// sparkMerge writes spark-defaults.conf, which Java reads as properties: the
// last setting of a key counts. Lists that other lines have are continued.
func sparkMerge(old []byte, s *Settings) ([]byte, error) {
	rest, err := cutBlock(old, "#", s.Name)
	if err != nil {
		return nil, err
	}
	has := map[string]string{}
	for line := range strings.Lines(string(rest)) {
		line = strings.TrimSpace(line)
		if i := strings.IndexAny(line, " \t=:"); i > 0 && line[0] != '#' && line[0] != '!' {
			has[line[:i]] = strings.Trim(line[i:], " \t=:")
		}
	}
	join := func(key, wanted string) setting {
		list := has[key]
		for w := range strings.SplitSeq(wanted, ",") {
			switch {
			case list == "":
				list = w
			case !strings.Contains(","+list+",", ","+w+","):
				list += "," + w
			}
		}
		return setting{key, list}
	}
	credential := ""
	if s.Secret != "" {
		credential = s.credential()
	}
	all := append([]setting{join("spark.jars.packages", sparkPackages(s)), join("spark.sql.extensions", sparkExtensions)}, sparkSettings(s, s.Token, credential)...)
	var b strings.Builder
	for _, x := range all {
		fmt.Fprintf(&b, "%s %s\n", x.key, property(x.value))
	}
	return putBlock(rest, "#", s.Name, b.String()), nil
}

func sparkNote(s *Settings) string {
	p := "spark.sql.catalog." + s.Name
	switch {
	case s.Auth == AuthToken && s.Token == "":
		return fmt.Sprintf("spark-defaults.conf reads no environment; start Spark with\n  --conf %s.token=\"$%s\"", p, TokenVariable)
	case s.Auth == AuthCredentials && s.Secret == "":
		return fmt.Sprintf("spark-defaults.conf reads no environment; start Spark with\n  --conf %s.credential=%s\"$%s\"", p, word(s.ClientID+":"), SecretVariable)
	}
	return ""
}

// property escapes a value as java.util.Properties reads it.
func property(v string) string {
	v = strings.ReplaceAll(v, `\`, `\\`)
	if strings.HasPrefix(v, " ") {
		v = `\` + v
	}
	return v
}

// Trino

func trinoText(s *Settings) string {
	return fmt.Sprintf("# etc/catalog/%s.properties\n", s.Name) + trinoProperties(s)
}

func trinoProperties(s *Settings) string {
	all := []setting{
		{"connector.name", "iceberg"},
		{"iceberg.catalog.type", "rest"},
		{"iceberg.rest-catalog.uri", s.URI},
		{"iceberg.rest-catalog.warehouse", s.Warehouse},
	}
	switch s.Auth {
	case AuthToken:
		all = append(all, setting{"iceberg.rest-catalog.security", "OAUTH2"}, setting{"iceberg.rest-catalog.oauth2.token", s.Token})
		if s.Token == "" {
			all[len(all)-1].value = "\x00${ENV:" + TokenVariable + "}"
		}
	case AuthCredentials:
		all = append(all, setting{"iceberg.rest-catalog.security", "OAUTH2"},
			setting{"iceberg.rest-catalog.oauth2.server-uri", s.TokenURI}, setting{"iceberg.rest-catalog.oauth2.scope", s.Scope},
			setting{"iceberg.rest-catalog.oauth2.credential", s.credential()})
		if s.Secret == "" {
			all[len(all)-1].value = "\x00" + property(s.ClientID) + ":${ENV:" + SecretVariable + "}"
		}
	}
	switch s.Storage {
	case "file":
		all = append(all, setting{"fs.hadoop.enabled", "true"})
	case "s3":
		all = append(all, setting{"fs.native-s3.enabled", "true"})
	case "gcs":
		all = append(all, setting{"fs.native-gcs.enabled", "true"})
	case "azure":
		all = append(all, setting{"fs.native-azure.enabled", "true"})
	}
	if s.Vended {
		all = append(all, setting{"iceberg.rest-catalog.vended-credentials-enabled", "true"})
	}
	var b strings.Builder
	for _, x := range all {
		if ready, ok := strings.CutPrefix(x.value, "\x00"); ok {
			fmt.Fprintf(&b, "%s=%s\n", x.key, ready)
		} else if x.value != "" {
			fmt.Fprintf(&b, "%s=%s\n", x.key, property(x.value))
		}
	}
	return b.String()
}

func trinoFile(s *Settings, env func(string) string) (string, error) {
	file := filepath.Join("catalog", s.Name+".properties")
	if dir := env("TRINO_ETC_DIR"); dir != "" {
		return filepath.Join(dir, file), nil
	}
	if dir := env("TRINO_HOME"); dir != "" {
		return filepath.Join(dir, "etc", file), nil
	}
	return "", errors.New("neither TRINO_ETC_DIR nor TRINO_HOME is set; give --file")
}

// trinoMerge writes a file that is a catalog's own.
func trinoMerge(old []byte, s *Settings) ([]byte, error) {
	if len(bytes.TrimSpace(old)) > 0 && !bytes.HasPrefix(old, []byte(begin("#", s.Name))) {
		return nil, fmt.Errorf("another catalog %q is configured there; remove that file, or choose another name with --as", s.Name)
	}
	return putBlock(nil, "#", s.Name, trinoProperties(s)), nil
}

func environmentNote(s *Settings) string {
	switch {
	case s.Auth == AuthToken && s.Token == "":
		return fmt.Sprintf("It reads the token from the environment:\n  export %s=\"$(sharectl token show)\"", TokenVariable)
	case s.Auth == AuthCredentials && s.Secret == "":
		return fmt.Sprintf("It reads the secret of client %s from the variable %s.", s.ClientID, SecretVariable)
	}
	return ""
}

// PyIceberg

func pyicebergSettings(s *Settings) []setting {
	all := []setting{{"type", "rest"}, {"uri", s.URI}, {"warehouse", s.Warehouse}}
	switch s.Auth {
	case AuthToken:
		all = append(all, setting{"token", s.Token})
	case AuthCredentials:
		all = append(all, setting{"oauth2-server-uri", s.TokenURI}, setting{"scope", s.Scope})
		if s.Secret != "" {
			all = append(all, setting{"credential", s.credential()})
		}
	}
	var kept []setting
	for _, x := range all {
		if x.value != "" {
			kept = append(kept, x)
		}
	}
	return kept
}

// python quotes a string for Python, which reads JSON's escapes too.
func python(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
}

func pyicebergText(s *Settings) string {
	var b strings.Builder
	secretFrom := ""
	switch {
	case s.Auth == AuthToken && s.Token == "":
		secretFrom = fmt.Sprintf(`    "token": os.environ["%s"],`+"\n", TokenVariable)
	case s.Auth == AuthCredentials && s.Secret == "":
		secretFrom = fmt.Sprintf(`    "credential": %s + os.environ["%s"],`+"\n", python(s.ClientID+":"), SecretVariable)
	}
	if secretFrom != "" {
		b.WriteString("import os\n\n")
	}
	fmt.Fprintf(&b, "from pyiceberg.catalog import load_catalog\n\ncatalog = load_catalog(%s, **{\n", python(s.Name))
	for _, x := range pyicebergSettings(s) {
		fmt.Fprintf(&b, "    %s: %s,\n", python(x.key), python(x.value))
	}
	return b.String() + secretFrom + "})\n"
}

func pyicebergFile(_ *Settings, env func(string) string) (string, error) {
	for _, dir := range []string{env("PYICEBERG_HOME"), env("HOME")} {
		if dir != "" {
			return filepath.Join(dir, ".pyiceberg.yaml"), nil
		}
	}
	return "", errors.New("neither PYICEBERG_HOME nor HOME is set; give --file")
}

// pyicebergMerge sets the catalog in .pyiceberg.yaml; comments and other
// catalogs stay.
func pyicebergMerge(old []byte, s *Settings) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(old, &doc); err != nil {
		return nil, fmt.Errorf("it is no YAML: %w", err)
	}
	if doc.Kind == 0 {
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	root := doc.Content[0]
	catalogs, err := child(root, "catalog")
	if err != nil {
		return nil, err
	}
	catalog, err := child(catalogs, s.Name)
	if err != nil {
		return nil, err
	}
	catalog.Content = nil
	for _, x := range pyicebergSettings(s) {
		catalog.Content = append(catalog.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: x.key}, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: x.value})
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// child is a mapping in a mapping, made if it is not there.
func child(n *yaml.Node, key string) (*yaml.Node, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d is no mapping", n.Line)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != key {
			continue
		}
		c := n.Content[i+1]
		if c.Kind == yaml.ScalarNode && c.Tag == "!!null" {
			*c = yaml.Node{Kind: yaml.MappingNode}
		}
		if c.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("line %d: %s is no mapping", c.Line, key)
		}
		return c, nil
	}
	c := &yaml.Node{Kind: yaml.MappingNode}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, c)
	return c, nil
}

func pyicebergNote(s *Settings) string {
	p := "PYICEBERG_CATALOG__" + strings.ToUpper(s.Name) + "__"
	switch {
	case s.Auth == AuthToken && s.Token == "":
		return fmt.Sprintf("PyIceberg reads the token from the environment:\n  export %sTOKEN=\"$(sharectl token show)\"", p)
	case s.Auth == AuthCredentials && s.Secret == "":
		return fmt.Sprintf("PyIceberg reads the credential from the environment:\n  export %sCREDENTIAL=%s\"$%s\"", p, word(s.ClientID+":"), SecretVariable)
	}
	return ""
}

// DuckDB

// sql quotes a string for SQL.
func sql(v string) string { return "'" + strings.ReplaceAll(v, "'", "''") + "'" }

func duckdbText(s *Settings) string {
	var b strings.Builder
	b.WriteString("INSTALL iceberg;\nLOAD iceberg;\n")
	switch s.Storage {
	case "s3", "gcs":
		b.WriteString("INSTALL httpfs;\nLOAD httpfs;\n")
	case "azure":
		b.WriteString("INSTALL azure;\nLOAD azure;\n")
	}
	secret, options := ", SECRET "+s.Name, ""
	switch s.Auth {
	case AuthToken:
		token := "getenv(" + sql(TokenVariable) + ")"
		if s.Token != "" {
			token = sql(s.Token)
		}
		fmt.Fprintf(&b, "CREATE OR REPLACE SECRET %s (TYPE iceberg, TOKEN %s);\n", s.Name, token)
	case AuthCredentials:
		value := "getenv(" + sql(SecretVariable) + ")"
		if s.Secret != "" {
			value = sql(s.Secret)
		}
		scope := ""
		if s.Scope != "" {
			scope = ", OAUTH2_SCOPE " + sql(s.Scope)
		}
		fmt.Fprintf(&b, "CREATE OR REPLACE SECRET %s (TYPE iceberg, CLIENT_ID %s, CLIENT_SECRET %s, OAUTH2_SERVER_URI %s%s);\n", s.Name, sql(s.ClientID), value, sql(s.TokenURI), scope)
	case AuthNone:
		secret, options = "", ", AUTHORIZATION_TYPE 'none'"
	}
	if !s.Vended {
		options += ", ACCESS_DELEGATION_MODE 'none'"
	}
	fmt.Fprintf(&b, "ATTACH %s AS %s (TYPE iceberg, ENDPOINT %s%s%s);\n", sql(s.Warehouse), s.Name, sql(s.URI), secret, options)
	return b.String()
}

func duckdbFile(_ *Settings, env func(string) string) (string, error) {
	if home := env("HOME"); home != "" {
		return filepath.Join(home, ".duckdbrc"), nil
	}
	return "", errors.New("HOME is not set; give --file")
}

func duckdbMerge(old []byte, s *Settings) ([]byte, error) {
	rest, err := cutBlock(old, "--", s.Name)
	if err != nil {
		return nil, err
	}
	return putBlock(rest, "--", s.Name, duckdbText(s)), nil
}

// Blocks

func begin(comment, name string) string {
	return comment + " >>> " + name + ": written by sharectl connect >>>"
}

func end(comment, name string) string { return comment + " <<< " + name + " <<<" }

// cutBlock removes sharectl's part of a file.
func cutBlock(old []byte, comment, name string) ([]byte, error) {
	before, after, found := bytes.Cut(old, []byte(begin(comment, name)+"\n"))
	if !found {
		return old, nil
	}
	_, after, found = bytes.Cut(after, []byte(end(comment, name)+"\n"))
	if !found {
		return nil, fmt.Errorf("the line %q is there and its end %q is not; mend the file by hand", begin(comment, name), end(comment, name))
	}
	return append(bytes.TrimRight(before, "\n"), append([]byte("\n"), after...)...), nil
}

// putBlock adds sharectl's part to the rest of a file.
func putBlock(rest []byte, comment, name, text string) []byte {
	b := bytes.TrimRight(rest, "\n")
	b = b[:len(b):len(b)]
	if len(b) > 0 {
		b = append(b, "\n\n"...)
	}
	return append(b, begin(comment, name)+"\n"+text+end(comment, name)+"\n"...)
}
