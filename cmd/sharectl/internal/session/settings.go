// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package session is what sharectl keeps between two commands: contexts, each
// of which is a server and a way to sign in, and the tokens that signing in
// gave.
//
// Contexts are in a YAML file without any secret. Tokens are in the operating
// system's keyring or in a file of their own that nobody else can read; a file
// that others can read is refused. A token never goes over plain HTTP to
// another machine.
package session

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Ways to sign in.
const (
	MethodToken       = "token"              // a token that somebody else gave
	MethodCredentials = "client-credentials" // RFC 6749 section 4.4
	MethodDevice      = "device-code"        // RFC 8628
)

// Context is a server, and how to sign in there.
type Context struct {
	URI       string `yaml:"uri"`
	Warehouse string `yaml:"warehouse,omitempty"`
	// AdminURI is where the sharing API listens, when not at URI.
	AdminURI string `yaml:"admin_uri,omitempty"`
	TLS      TLS    `yaml:"tls,omitempty"`
	SignIn   SignIn `yaml:"sign_in,omitempty"`
}

// TLS are files in PEM, as absolute paths.
type TLS struct {
	CAFile   string `yaml:"ca_file,omitempty"`   // authorities to trust instead of the system's
	CertFile string `yaml:"cert_file,omitempty"` // a client certificate
	KeyFile  string `yaml:"key_file,omitempty"`
}

// SignIn is how a token is obtained.
type SignIn struct {
	Method   string   `yaml:"method,omitempty"`
	ClientID string   `yaml:"client_id,omitempty"`
	Issuer   string   `yaml:"issuer,omitempty"`
	TokenURI string   `yaml:"token_uri,omitempty"`
	Scopes   []string `yaml:"scopes,omitempty"`
	Audience string   `yaml:"audience,omitempty"`
	// Store is where the tokens are: StoreKeyring or StoreFile.
	Store string `yaml:"store,omitempty"`
}

// Settings are all contexts.
type Settings struct {
	Current  string              `yaml:"current,omitempty"`
	Contexts map[string]*Context `yaml:"contexts,omitempty"`
	path     string
}

// Home is the directory of sharectl's files below XDG_CONFIG_HOME, which is
// ~/.config when unset, or below %AppData% on Windows (XDG Base Directory
// Specification 0.8).
func Home(env func(string) string) (string, error) {
	if dir := env("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sharectl"), nil
	}
	if runtime.GOOS == "windows" {
		if dir := env("AppData"); dir != "" {
			return filepath.Join(dir, "sharectl"), nil
		}
	}
	home := env("HOME")
	if home == "" {
		return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set: there is no place for the configuration")
	}
	return filepath.Join(home, ".config", "sharectl"), nil
}

// Load reads the settings in a directory; there need be none.
func Load(home string) (*Settings, error) {
	s := &Settings{path: filepath.Join(home, "config.yaml"), Contexts: map[string]*Context{}}
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(raw, s, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %s", s.path, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if s.Contexts == nil {
		s.Contexts = map[string]*Context{}
	}
	for name, c := range s.Contexts {
		if c == nil {
			return nil, fmt.Errorf("%s: contexts.%s is empty; it needs at least uri", s.path, name)
		}
	}
	return s, nil
}

// Path is the file.
func (s *Settings) Path() string { return s.path }

// Names are the contexts, sorted.
func (s *Settings) Names() []string { return slices.Sorted(maps.Keys(s.Contexts)) }

// Save writes the file, with mode 0600, whole or not at all.
func (s *Settings) Save() error {
	raw, err := yaml.MarshalWithOptions(s, yaml.Indent(2))
	if err != nil {
		return err
	}
	if err := writePrivate(s.path, raw); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

// writePrivate replaces a file by one that only its owner can read.
func writePrivate(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// CreateTemp gives mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
