// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/zalando/go-keyring"
)

// Where tokens are kept.
const (
	StoreKeyring = "keyring"
	StoreFile    = "file"
)

// keyringService is what the operating system's keyring shows.
const keyringService = "sharectl"

// Kept is what is secret of a context.
type Kept struct {
	AccessToken  string    `json:"access_token,omitempty"`
	RefreshToken string    `json:"refresh_token,omitempty"`
	Expiry       time.Time `json:"expiry,omitzero"` // zero when nothing is known
	// ClientSecret is there when it was asked to be kept.
	ClientSecret string `json:"client_secret,omitempty"`
}

// String shows nothing.
func (Kept) String() string { return "REDACTED" }

// GoString shows nothing.
func (Kept) GoString() string { return "REDACTED" }

// Vault keeps the tokens of contexts.
type Vault struct{ path string }

// NewVault returns the vault whose file, where one is used, lies in a
// directory.
func NewVault(home string) *Vault { return &Vault{filepath.Join(home, "tokens.json")} }

// Path is the file that is used where there is no keyring.
func (v *Vault) Path() string { return v.path }

// Put keeps a context's secrets in one place, or with store "" in the keyring
// if there is one and else in the file. It returns where.
func (v *Vault) Put(store, name string, k Kept) (string, error) {
	raw, err := json.Marshal(k)
	if err != nil {
		return "", err
	}
	if store != StoreFile {
		err := keyring.Set(keyringService, name, string(raw))
		if err == nil {
			return StoreKeyring, v.change(func(all map[string]Kept) { delete(all, name) })
		}
		if store == StoreKeyring {
			return "", fmt.Errorf("the keyring does not take the token: %w", err)
		}
	}
	return StoreFile, v.change(func(all map[string]Kept) { all[name] = k })
}

// Get returns a context's secrets; none is no error.
func (v *Vault) Get(store, name string) (Kept, error) {
	if store == StoreKeyring {
		raw, err := keyring.Get(keyringService, name)
		if errors.Is(err, keyring.ErrNotFound) {
			return Kept{}, nil
		}
		if err != nil {
			return Kept{}, fmt.Errorf("the keyring does not give the token of context %q: %w", name, err)
		}
		var k Kept
		if json.Unmarshal([]byte(raw), &k) != nil { // the decoder's error could quote the secret
			return Kept{}, fmt.Errorf("what the keyring has for context %q is not what sharectl wrote", name)
		}
		return k, nil
	}
	all, err := v.load()
	return all[name], err
}

// Remove forgets a context's secrets wherever they are.
func (v *Vault) Remove(store, name string) error {
	if store == StoreKeyring {
		if err := keyring.Delete(keyringService, name); err != nil && !errors.Is(err, keyring.ErrNotFound) {
			return fmt.Errorf("the keyring does not forget the token of context %q: %w", name, err)
		}
	}
	return v.change(func(all map[string]Kept) { delete(all, name) })
}

func (v *Vault) load() (map[string]Kept, error) {
	all := map[string]Kept{}
	info, err := os.Stat(v.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s holds tokens and can be read by others (mode %04o): chmod 600 it, and consider the tokens known", v.path, info.Mode().Perm())
	}
	raw, err := os.ReadFile(v.path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	if json.Unmarshal(raw, &all) != nil || all == nil {
		return nil, fmt.Errorf("%s is not what sharectl wrote; remove it and sign in again", v.path)
	}
	return all, nil
}

// change rewrites the file when there is something to change in it.
func (v *Vault) change(f func(map[string]Kept)) error {
	all, err := v.load()
	if err != nil {
		return err
	}
	before, err := json.Marshal(all)
	if err != nil {
		return err
	}
	f(all)
	after, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if compact, err := json.Marshal(all); err == nil && string(compact) == string(before) {
		return nil
	}
	if err := writePrivate(v.path, append(after, '\n')); err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	return nil
}
