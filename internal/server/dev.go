// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/secret"
	"github.com/sluice-data/sluice/internal/server/config"
)

// DevOptions are the flags of `catalogd dev`.
type DevOptions struct {
	DataDir        string
	Address        string   // host:port on loopback
	AllowLocations []string // further locations for tables
	Token          string   // "" takes the data directory's
	LogLevel       string
	LogFormat      string
}

// DevWarehouse and devClient name what `catalogd dev` serves to whom.
const (
	DevWarehouse = "demo"
	devClient    = "dev"
	// devOrganisation owns the warehouse and the account.
	devOrganisation = "dev"
)

// Ready is the line that `catalogd dev` prints when it serves. It shows
// secrets on purpose: they are the user's own, for this machine.
type Ready struct {
	URI          string `json:"uri"`
	Warehouse    string `json:"warehouse"`
	Token        string `json:"token"`
	ClientID     string `json:"client-id"`
	ClientSecret string `json:"client-secret"`
}

// devSecrets are what a data directory keeps between starts, in dev.json.
type devSecrets struct {
	SigningKey   string `json:"signing-key"`
	Token        string `json:"token"`
	ClientSecret string `json:"client-secret"`
	// ClientSecretHash spares the work of hashing at every start.
	ClientSecretHash string `json:"client-secret-hash"`
}

// Dev returns the options of a server for development, and the line to print
// when it is open (its URI is filled by [Ready.At]).
func Dev(o DevOptions, log io.Writer) (Options, Ready, error) {
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil {
		return Options{}, Ready{}, fmt.Errorf("--http %q is not host:port", o.Address)
	}
	if !config.IsLoopback(host) {
		return Options{}, Ready{}, fmt.Errorf("--http %s: catalogd dev serves plain HTTP on loopback only; use catalogd serve with TLS", o.Address)
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return Options{}, Ready{}, fmt.Errorf("--data-dir: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Options{}, Ready{}, fmt.Errorf("--data-dir: %w", err)
	}
	kept, err := loadDevSecrets(filepath.Join(dir, "dev.json"))
	if err != nil {
		return Options{}, Ready{}, err
	}
	hash, err := identity.ParseHash(kept.ClientSecretHash)
	if err != nil {
		return Options{}, Ready{}, fmt.Errorf("%s: client-secret-hash: %w; remove the file to get new secrets", filepath.Join(dir, "dev.json"), err)
	}
	if o.Token != "" {
		kept.Token = o.Token
	}
	if err := identity.CheckStaticToken(secret.New(kept.Token)); err != nil {
		return Options{}, Ready{}, fmt.Errorf("--token: %w", err)
	}

	c := config.Default()
	c.Listeners.Catalog.Address = o.Address
	c.Listeners.Metrics.Address = ""
	c.Store = config.Store{SQLite: &config.SQLite{Path: filepath.Join(dir, "catalog.db")}, AutoMigrate: true}
	c.Warehouses = []config.Warehouse{{
		Name:                DevWarehouse,
		Organisation:        devOrganisation,
		IdempotencyLifetime: 24 * time.Hour,
		Storage:             config.Storage{Type: "file", Root: "file://" + filepath.ToSlash(filepath.Join(dir, "warehouse")), AllowedRoots: o.AllowLocations},
	}}
	c.Accounts = []config.Account{{
		ClientID: devClient, Secrets: []config.Hash{{Value: hash}}, Organisation: devOrganisation, Admin: true,
		Grants: []config.Grant{{Warehouse: identity.AnyWarehouse, Access: "write"}},
	}}
	c.Tokens.SigningKey = config.Secret{Value: secret.New(kept.SigningKey)}
	c.Tokens.OAuthEndpoint = true
	c.Audit.Reads = filepath.Join(dir, "audit.log")
	key, err := loadAuditKey(filepath.Join(dir, "audit-key.json"))
	if err != nil {
		return Options{}, Ready{}, err
	}
	c.Audit.SigningKey = config.Secret{Value: key}
	c.Logging = config.Logging{Level: o.LogLevel, Format: o.LogFormat}
	options := Options{
		Config: c, MetricsOnCatalog: true, Log: log,
		StaticTokens: []identity.StaticToken{{Token: secret.New(kept.Token), ClientID: devClient}},
	}
	return options, Ready{Warehouse: DevWarehouse, Token: kept.Token, ClientID: devClient, ClientSecret: kept.ClientSecret}, nil
}

// At returns the line with the URI of an address.
func (r Ready) At(a net.Addr) Ready {
	r.URI = "http://" + a.String()
	return r
}

// loadDevSecrets reads the data directory's secrets, and makes them at its
// first use.
func loadDevSecrets(path string) (devSecrets, error) {
	var kept devSecrets
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeDevSecrets(path)
	}
	if err != nil {
		return kept, fmt.Errorf("secrets of the data directory: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return kept, fmt.Errorf("%s holds secrets and can be read by others: chmod 600 it, or remove it to get new ones", path)
	}
	// The decoder's error could quote what it reads.
	if json.Unmarshal(raw, &kept) != nil || kept.SigningKey == "" || kept.Token == "" || kept.ClientSecret == "" {
		return devSecrets{}, fmt.Errorf("%s is not what catalogd dev wrote; remove it to get new secrets", path)
	}
	return kept, nil
}

// loadAuditKey reads the key that signs the data directory's audit log, and
// makes it at its first use.
func loadAuditKey(path string) (secret.Value, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, key := identity.GenerateSigningKey()
		if raw, err = json.Marshal(key.Reveal()); err != nil {
			return secret.Value{}, err
		}
		return key, keepSecret(path, raw)
	}
	if err != nil {
		return secret.Value{}, fmt.Errorf("audit key of the data directory: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return secret.Value{}, fmt.Errorf("%s holds a key and can be read by others: chmod 600 it", path)
	}
	var text string
	// The decoder's error could quote what it reads.
	if json.Unmarshal(raw, &text) != nil {
		return secret.Value{}, fmt.Errorf("%s is not what catalogd dev wrote", path)
	}
	key := secret.New(text)
	if _, err := audit.ParseSigner(key); err != nil {
		return secret.Value{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func makeDevSecrets(path string) (devSecrets, error) {
	random := func() string {
		b := make([]byte, 24)
		rand.Read(b) //nolint:errcheck // never fails (crypto/rand)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	_, key := identity.GenerateSigningKey()
	made := devSecrets{SigningKey: key.Reveal(), Token: random(), ClientSecret: random()}
	made.ClientSecretHash = identity.NewHash(secret.New(made.ClientSecret)).PHC()
	debug.FreeOSMemory() // hashing took 19 MiB, which a first start need not keep
	raw, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return devSecrets{}, err
	}
	if err := keepSecret(path, raw); err != nil {
		return devSecrets{}, err
	}
	return made, nil
}

// keepSecret writes a file of mode 0600, whole or not at all: a crash leaves
// no half-written one.
func keepSecret(path string, raw []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".dev-*.json") // mode 0600
	if err != nil {
		return fmt.Errorf("keep secrets in the data directory: %w", err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep secrets in the data directory: %w", err), os.Remove(f.Name()))
	}
	return nil
}
