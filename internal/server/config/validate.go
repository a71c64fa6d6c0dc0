// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/sharing"
)

// validate checks what no single key can tell.
func (l *loader) validate(c *Config) {
	l.validatePublicURI(c.PublicURI)
	l.validateListener("listeners.catalog", c.Listeners.Catalog)
	if c.Listeners.Metrics.Address != "" {
		l.validateListener("listeners.metrics", Listener(c.Listeners.Metrics))
		if c.Listeners.Metrics.Address == c.Listeners.Catalog.Address && !strings.HasSuffix(c.Listeners.Catalog.Address, ":0") {
			l.wrong("listeners.metrics.address", "is the catalog's too")
		}
	}
	switch {
	case c.Store.SQLite == nil && c.Store.Postgres == nil:
		l.wrong("store", "give one of sqlite and postgres")
	case c.Store.SQLite != nil && c.Store.Postgres != nil:
		l.wrong("store", "give only one of sqlite and postgres")
	}
	l.validateWarehouses(c.Warehouses)
	l.validateAccounts(c)
	for i, id := range c.Admin {
		issuer, subject, ok := strings.Cut(id, ":")
		if !ok || issuer == "" || subject == "" {
			l.wrong(fmt.Sprintf("admin[%d]", i), "%q is not the id of a principal: write ISSUER:SUBJECT, or account:CLIENT", clip(id))
		}
	}
	l.validateTokens(c)
	l.validateIssuers(c)
	l.validatePolicies(c)
	for i, p := range c.Limits.TrustedProxies {
		if _, err := netip.ParsePrefix(p); err != nil {
			l.wrong(fmt.Sprintf("limits.trusted_proxies[%d]", i), "%q is no CIDR such as 10.0.0.0/8", clip(p))
		}
	}
	l.validateAudit(c)
	if e := c.Telemetry.OTLPEndpoint; e != "" && !isHTTPURL(e) {
		l.wrong("telemetry.otlp_endpoint", "must be a URL such as http://127.0.0.1:4318, without user info")
	}
}

func (l *loader) validatePolicies(c *Config) {
	type owner struct{ layer, organisation string }
	seen := map[owner]bool{}
	for i, set := range c.Policies {
		key := fmt.Sprintf("policies[%d]", i)
		o := owner{set.Layer, set.Organisation}
		switch {
		case set.Layer == "platform" && set.Organisation != "":
			l.wrong(key+".organisation", "the platform's set has none; for an organisation's say layer: provider or recipient")
		case set.Layer != "platform" && set.Organisation == "":
			l.wrong(key+".layer", "a %s's set names its organisation", set.Layer)
		case seen[o]:
			l.wrong(key, "there are two sets of this owner; list their files in one")
		case set.Layer == "provider" && !slices.ContainsFunc(c.Warehouses, func(w Warehouse) bool { return w.Organisation == set.Organisation }):
			l.wrong(key+".organisation", "no warehouse is owned by %q; name it as warehouses[].organisation", clip(set.Organisation))
		}
		if len(set.Files) == 0 {
			l.wrong(key+".files", "at least one is needed")
		}
		seen[o] = true
	}
}

func (l *loader) validateAudit(c *Config) {
	a := c.Audit
	if a.Reads == "" {
		l.wrong("audit.reads", "say stderr, off, or a file")
	}
	switch {
	case a.SigningKey.Value.Empty():
		if a.KeepChanges > 0 {
			l.wrong("audit.keep_changes", "needs audit.signing_key: rows are removed up to a signed checkpoint only")
		}
		if a.KeepReads > 0 {
			l.wrong("audit.keep_reads", "needs audit.signing_key: files are removed up to a signed checkpoint only")
		}
	case a.SigningKey.Value.Equal(c.Tokens.SigningKey.Value):
		l.wrong("audit.signing_key", "is the key of tokens; give it one of its own")
	default:
		if _, err := audit.ParseSigner(a.SigningKey.Value); err != nil {
			l.wrong("audit.signing_key", "%v", err)
		}
	}
	for key, d := range map[string]time.Duration{"audit.rotate_reads": a.RotateReads, "audit.keep_reads": a.KeepReads} {
		switch {
		case d == 0:
		case d < time.Minute:
			l.wrong(key, "must be at least 1m, or 0s")
		case !a.ReadsInFile():
			l.wrong(key, "is for a file, but audit.reads is %s", a.Reads)
		}
	}
	if a.KeepChanges < 0 {
		l.wrong("audit.keep_changes", "must not be negative")
	}
	l.validateExports(c)
	for i, k := range a.PreviousKeys {
		if _, err := audit.ParseVerifyKey(k.Value); err != nil {
			l.wrong(fmt.Sprintf("audit.previous_keys[%d]", i), "%v", err)
		}
	}
}

// validateExports checks where audit records are sent.
func (l *loader) validateExports(c *Config) {
	names := map[string]bool{}
	common := func(key, name, records string) {
		switch {
		case !warehouseForm.MatchString(name):
			l.wrong(key+".name", "%q must begin with a letter or digit and hold only letters, digits and . _ -", clip(name))
		case names[name]:
			l.wrong(key+".name", "there are two exports %q", name)
		}
		names[name] = true
		if records == "all" && !c.Audit.ReadsInFile() {
			l.wrong(key+".records", "is all, but audit.reads is %s: reads are exported from a file; name one there", c.Audit.Reads)
		}
	}
	receiver := func(key, uri string) {
		u, err := url.Parse(uri)
		switch {
		case err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http":
			l.wrong(key, "must be an https URL without user info and fragment")
		case u.Scheme == "http" && !IsLoopback(u.Hostname()):
			l.wrong(key, "is plain http off loopback: records would cross the network for everybody to read; use https")
		}
	}
	for i, w := range c.Audit.Webhooks {
		key := fmt.Sprintf("audit.webhooks[%d]", i)
		common(key, w.Name, w.Records)
		receiver(key+".url", w.URL)
		if n := len(w.Secret.Value.Reveal()); n > 0 && n < 16 {
			l.wrong(key+".secret", "is shorter than 16 bytes; make one with openssl rand -base64 32")
		}
	}
	for i, o := range c.Audit.OTLP {
		key := fmt.Sprintf("audit.otlp[%d]", i)
		common(key, o.Name, o.Records)
		receiver(key+".endpoint", o.Endpoint)
	}
	for i, a := range c.Audit.Archives {
		key := fmt.Sprintf("audit.archives[%d]", i)
		common(key, a.Name, a.Records)
		l.validateStorage(key+".storage", a.Storage)
		l.validateArchiveRoot(key+".storage", a.Storage, c.Warehouses)
	}
	if t := c.Audit.Table; t != nil {
		common("audit.table", TableExport, t.Records)
		var warehouses []string
		for _, w := range c.Warehouses {
			warehouses = append(warehouses, w.Name)
		}
		if !slices.Contains(warehouses, t.Warehouse) {
			l.wrong("audit.table.warehouse", "there is no warehouse %q%s", clip(t.Warehouse), didYouMean(t.Warehouse, warehouses))
		}
		if t.Keep != 0 && t.Keep < 24*time.Hour {
			l.wrong("audit.table.keep", "must be at least 24h: rows are removed by whole days")
		}
	}
}

// TableExport is the name of the export that audit.table is.
const TableExport = "system.audit"

// validateArchiveRoot keeps an archive out of where clients write.
func (l *loader) validateArchiveRoot(key string, s Storage, warehouses []Warehouse) {
	root, err := objstore.ParseLocation(s.Root)
	if err != nil {
		l.wrong(key+".root", "%v", err)
		return
	}
	if want := schemes[s.Type]; want != nil && !want[root.Scheme] {
		l.wrong(key+".root", "%s is no location of a store of type %s", root, s.Type)
	}
	if len(s.AllowedRoots) > 0 {
		l.wrong(key+".allowed_roots", "does not belong to an archive: it has one root")
	}
	for i, w := range warehouses {
		for _, r := range append([]string{w.Storage.Root}, w.Storage.AllowedRoots...) {
			if other, err := objstore.ParseLocation(r); err == nil && other.Overlaps(root) {
				l.wrong(key+".root", "%s overlaps %s of warehouses[%d]: clients could write there", root, other, i)
			}
		}
	}
}

func isHTTPURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

func (l *loader) validatePublicURI(s string) {
	if s != "" && !isHTTPURL(s) {
		l.wrong("public_uri", "must be an http or https URL without user info, query and fragment")
	}
}

func (l *loader) validateListener(key string, listener Listener) {
	host, port, err := net.SplitHostPort(listener.Address)
	if err != nil || port == "" {
		l.wrong(key+".address", "%q is not host:port", clip(listener.Address))
		return
	}
	switch {
	case listener.TLS != nil && listener.Insecure:
		l.wrong(key+".insecure", "is true, but tls is configured; remove one of them")
	case listener.TLS == nil && !listener.Insecure && !IsLoopback(host):
		l.wrong(key+".address", "%s is not on loopback: tokens would cross the network in plain text. Configure %s.tls, or say %s.insecure: true if something else protects the connection", clip(listener.Address), key, key)
	}
}

// IsLoopback reports whether a listener's host is reachable from this machine
// alone.
func IsLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

var warehouseForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func (l *loader) validateWarehouses(list []Warehouse) {
	names := map[string]bool{}
	// roots are the locations of the warehouses before, with the key that
	// said each.
	type root struct {
		location  objstore.Location
		endpoint  string
		warehouse int
		key       string
	}
	var roots []root
	for i, w := range list {
		key := fmt.Sprintf("warehouses[%d]", i)
		switch {
		case !warehouseForm.MatchString(w.Name):
			l.wrong(key+".name", "%q must begin with a letter or digit and hold only letters, digits and . _ -", clip(w.Name))
		case names[w.Name]:
			l.wrong(key+".name", "there are two warehouses %q", w.Name)
		}
		names[w.Name] = true
		if w.Organisation != "" && !sharing.IsName(w.Organisation) {
			l.wrong(key+".organisation", "%q must be 1 to 63 of a-z, 0-9, - and _, beginning with a letter", clip(w.Organisation))
		}
		l.validateStorage(key+".storage", w.Storage)
		for name := range w.ClientConfig {
			if word := secretWord(name); word != "" {
				l.wrong(key+".client_config."+name, "looks like a secret (%q); whatever stands here is sent to every client", word)
			}
		}
		for j, s := range append([]string{w.Storage.Root}, w.Storage.AllowedRoots...) {
			where := key + ".storage.root"
			if j > 0 {
				where = fmt.Sprintf("%s.storage.allowed_roots[%d]", key, j-1)
			}
			location, err := objstore.ParseLocation(s)
			if err != nil {
				l.wrong(where, "%v", err)
				continue
			}
			if want := schemes[w.Storage.Type]; want != nil && !want[location.Scheme] {
				l.wrong(where, "%s is no location of a store of type %s", location, w.Storage.Type)
			}
			r := root{location: location, warehouse: i, key: where}
			if w.Storage.S3 != nil {
				r.endpoint = w.Storage.S3.Endpoint
			}
			for _, o := range roots {
				if o.warehouse != i && o.endpoint == r.endpoint && o.location.Overlaps(r.location) {
					l.wrong(where, "%s overlaps %s of %s; warehouses must not share files", r.location, o.location, o.key)
				}
			}
			roots = append(roots, r)
		}
	}
}

var schemes = map[string]map[string]bool{
	"file": {"file": true}, "s3": {"s3": true}, "gcs": {"gs": true}, "azure": {"abfss": true},
}

// secretWord returns the part of a client setting's name that says it holds a
// secret.
func secretWord(name string) string {
	lower := strings.ToLower(name)
	for _, word := range []string{"secret", "token", "password", "credential", "access-key", "account-key", "connection-string", "sas"} {
		if strings.Contains(lower, word) {
			return word
		}
	}
	return ""
}

func (l *loader) validateStorage(key string, s Storage) {
	for _, section := range []struct {
		kind     string
		there    bool
		required bool
	}{{"s3", s.S3 != nil, true}, {"gcs", s.GCS != nil, false}, {"azure", s.Azure != nil, true}} {
		switch {
		case section.there && s.Type != section.kind:
			l.wrong(key+"."+section.kind, "does not belong to a store of type %s", s.Type)
		case !section.there && s.Type == section.kind && section.required:
			l.wrong(key+"."+section.kind, "is required for a store of type %s", s.Type)
		}
	}
	for name, endpoint := range map[string]string{
		"s3.endpoint":     fieldOr(s.S3, func(p *S3) string { return p.Endpoint }),
		"gcs.endpoint":    fieldOr(s.GCS, func(p *GCS) string { return p.Endpoint }),
		"azure.endpoint":  fieldOr(s.Azure, func(p *Azure) string { return p.Endpoint }),
		"azure.authority": fieldOr(s.Azure, func(p *Azure) string { return p.Authority }),
	} {
		if endpoint != "" && !isHTTPURL(endpoint) {
			l.wrong(key+"."+name, "must be an http or https URL")
		}
	}
	if a := s.Azure; a != nil {
		principal := []bool{a.TenantID != "", a.ClientID != "", !a.ClientSecret.Value.Empty()}
		switch some, all := slices.Contains(principal, true), !slices.Contains(principal, false); {
		case some && !all:
			l.wrong(key+".azure", "a service principal needs tenant_id, client_id and client_secret")
		case all == !a.AccountKey.Value.Empty():
			l.wrong(key+".azure", "give either account_key, or tenant_id, client_id and client_secret")
		}
	}
}

func fieldOr[T any](p *T, get func(*T) string) string {
	if p == nil {
		return ""
	}
	return get(p)
}

func (l *loader) validateAccounts(c *Config) {
	warehouses := make([]string, 0, len(c.Warehouses))
	for _, w := range c.Warehouses {
		warehouses = append(warehouses, w.Name)
	}
	ids := map[string]bool{}
	for _, a := range c.Accounts {
		ids[a.ClientID] = true
	}
	seen := map[string]bool{}
	for i, a := range c.Accounts {
		key := fmt.Sprintf("accounts[%d]", i)
		if err := identity.CheckClientID(a.ClientID); err != nil {
			l.wrong(key+".client_id", "%v", err)
		} else if seen[a.ClientID] {
			l.wrong(key+".client_id", "there are two accounts %q", a.ClientID)
		}
		seen[a.ClientID] = true
		if n := len(a.Secrets); n > identity.MaxSecrets {
			l.wrong(key+".secrets", "%d secrets are given; at most %d can be valid at once", n, identity.MaxSecrets)
		}
		for j, g := range a.Grants {
			if g.Warehouse != identity.AnyWarehouse && !slices.Contains(warehouses, g.Warehouse) {
				l.wrong(fmt.Sprintf("%s.grants[%d].warehouse", key, j), "there is no warehouse %q%s", clip(g.Warehouse), didYouMean(g.Warehouse, warehouses))
			}
		}
		for j, subject := range a.ActFor {
			issuer, rest, external := strings.Cut(subject, ":")
			switch {
			case external && (rest == "" || !slices.ContainsFunc(c.Issuers, func(i Issuer) bool { return i.Name == issuer })):
				l.wrong(fmt.Sprintf("%s.act_for[%d]", key, j), "there is no issuer %q; a principal of one is ISSUER:SUBJECT, all of one are ISSUER:*", clip(issuer))
			case !external && subject != "*" && !ids[subject]:
				l.wrong(fmt.Sprintf("%s.act_for[%d]", key, j), "there is no account %q", clip(subject))
			}
		}
	}
}

func (l *loader) validateTokens(c *Config) {
	t := c.Tokens
	switch {
	case t.SigningKey.Value.Empty() && t.OAuthEndpoint:
		l.wrong("tokens.signing_key", "is required with tokens.oauth_endpoint: %s", `make one with "openssl genpkey -algorithm ed25519"`)
	case t.SigningKey.Value.Empty() && len(c.Issuers) > 0:
	case t.SigningKey.Value.Empty():
		l.wrong("tokens", "nobody could authenticate: set tokens.oauth_endpoint: true and tokens.signing_key, so that accounts can get tokens (or give the signing_key of the server where they do)")
	default:
		if _, err := identity.ParseSigningKey(t.SigningKey.Value); err != nil {
			l.wrong("tokens.signing_key", "%v", err)
		}
	}
	for i, k := range t.PreviousKeys {
		if _, err := identity.ParseVerifyKey(k.Value); err != nil {
			l.wrong(fmt.Sprintf("tokens.previous_keys[%d]", i), "%v", err)
		}
	}
	if len(c.Accounts) == 0 && len(c.Issuers) == 0 {
		l.wrong("accounts", "nobody could authenticate: give at least one account, or one of issuers")
	}
}

// validateIssuers checks what package identity says of each issuer, and what
// only the whole configuration can tell.
func (l *loader) validateIssuers(c *Config) {
	var warehouses []string
	for _, w := range c.Warehouses {
		warehouses = append(warehouses, w.Name)
	}
	valid := true
	var list []identity.Issuer
	for i, issuer := range c.Issuers {
		key := fmt.Sprintf("issuers[%d]", i)
		one := issuer.Identity()
		if field, err := one.Check(); err != nil {
			valid = false
			l.wrong(join(key, field), "%v", err)
		}
		list = append(list, one)
		for j, g := range issuer.Grants {
			if g.Warehouse != identity.AnyWarehouse && !slices.Contains(warehouses, g.Warehouse) {
				l.wrong(fmt.Sprintf("%s.grants[%d].warehouse", key, j), "there is no warehouse %q%s", clip(g.Warehouse), didYouMean(g.Warehouse, warehouses))
			}
		}
		if issuer.Kind == string(identity.IssuerMTLS) && c.Listeners.Catalog.TLS == nil {
			l.wrong(key+".kind", "client certificates need listeners.catalog.tls")
		}
	}
	if !valid {
		return
	}
	if at, field, err := identity.CheckIssuers(list, c.OwnIssuer()); err != nil {
		l.wrong(join(fmt.Sprintf("issuers[%d]", at), field), "%v", err)
	}
}
