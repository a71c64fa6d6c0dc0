// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package session

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zalando/go-keyring"
)

// TestKeyring keeps tokens in a keyring, and moves them between stores. It is
// not parallel: the keyring is one for all.
func TestKeyring(t *testing.T) {
	keyring.MockInit()
	v := NewVault(t.TempDir())
	k := Kept{AccessToken: "a-token", RefreshToken: "b-token", Expiry: time.Unix(1767225600, 0).UTC()}
	where, err := v.Put("", "dev", k)
	if err != nil || where != StoreKeyring {
		t.Fatal(where, err)
	}
	if _, err := os.Stat(v.Path()); !os.IsNotExist(err) {
		t.Errorf("there is a file beside the keyring: %v", err)
	}
	if got, err := v.Get(StoreKeyring, "dev"); err != nil || got != k {
		t.Errorf("%#v, %v", got, err)
	}
	if got, err := v.Get(StoreKeyring, "none"); err != nil || got != (Kept{}) {
		t.Errorf("%#v, %v", got, err)
	}
	if where, err := v.Put(StoreFile, "dev", k); err != nil || where != StoreFile {
		t.Error(where, err)
	}
	if _, err := v.Put(StoreKeyring, "dev", k); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(v.Path())
	if err != nil || strings.Contains(string(raw), "token") {
		t.Errorf("the file still has what is in the keyring: %s %v", raw, err)
	}
	if err := v.Remove(StoreKeyring, "dev"); err != nil {
		t.Error(err)
	}
	if got, err := v.Get(StoreKeyring, "dev"); err != nil || got != (Kept{}) {
		t.Errorf("%#v, %v", got, err)
	}
	if err := v.Remove(StoreKeyring, "dev"); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	keyring.MockInitWithError(errors.New("it is locked"))
	defer keyring.MockInit()
	if where, err := v.Put("", "dev", k); err != nil || where != StoreFile {
		t.Errorf("without a keyring: %s %v", where, err)
	}
	if _, err := v.Get(StoreKeyring, "dev"); err == nil || !strings.Contains(err.Error(), "it is locked") {
		t.Error(err)
	}
	if s := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(s, "token") {
		t.Errorf("a secret prints: %s", s)
	}
}

func TestVaultRefuses(t *testing.T) {
	t.Parallel()
	v := NewVault(t.TempDir())
	for content, mode := range map[string]os.FileMode{"{}": 0o640, `{"a":`: 0o600, "null": 0o600} {
		if err := os.WriteFile(v.Path(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(v.Path(), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Get(StoreFile, "a"); err == nil {
			t.Errorf("%q with mode %o is taken", content, mode)
		}
	}
}

// TestAnotherProcessRenews has a refresh token that works once, and somebody
// who was faster.
func TestAnotherProcessRenews(t *testing.T) {
	t.Parallel()
	v := NewVault(t.TempDir())
	now := time.Now()
	faster := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if faster {
			if _, err := v.Put(StoreFile, "me", Kept{AccessToken: "theirs", RefreshToken: "next", Expiry: now.Add(time.Hour)}); err != nil {
				t.Error(err)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant","error_description":"used already"}`)
	}))
	defer server.Close()
	c := &Context{URI: server.URL, SignIn: SignIn{Method: MethodDevice, ClientID: "x", TokenURI: server.URL, Store: StoreFile}}
	old := Kept{AccessToken: "old", RefreshToken: "once", Expiry: now.Add(-time.Hour)}
	if _, err := v.Put(StoreFile, "me", old); err != nil {
		t.Fatal(err)
	}
	if k, err := c.Token(t.Context(), server.Client(), v, "me", now); err != nil || k.AccessToken != "theirs" {
		t.Errorf("%q, %v", k.AccessToken, err)
	}
	faster = false
	if _, err := v.Put(StoreFile, "me", old); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Token(t.Context(), server.Client(), v, "me", now); !errors.Is(err, ErrSignIn) || !strings.Contains(err.Error(), "used already") {
		t.Error(err)
	}
}

func TestParseURI(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://x.example": "https://x.example", "https://x.example/": "https://x.example", "https://x.example/v1/": "https://x.example", "https://x.example/a/v1": "https://x.example/a",
		"http://localhost:1": "http://localhost:1", "http://127.0.0.2:1": "http://127.0.0.2:1", "http://[::1]:1": "http://[::1]:1",
		"http://x.example": "", "http://10.0.0.1": "", "ftp://x.example": "", "x.example": "", "https://": "", "https://x.example?a=b": "", "https://u:p@x.example": "", "http://localhost.x.example": "",
	} {
		got, err := ParseURI(raw)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: the password is in %v", raw, err)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	if home, err := Home(env(map[string]string{"XDG_CONFIG_HOME": dir, "HOME": "/h"})); err != nil || home != filepath.Join(dir, "sharectl") {
		t.Error(home, err)
	}
	// A relative path in it is to be ignored, says the specification.
	if home, err := Home(env(map[string]string{"XDG_CONFIG_HOME": "x", "HOME": dir})); err != nil || home != filepath.Join(dir, ".config", "sharectl") {
		t.Error(home, err)
	}
	if _, err := Home(env(nil)); err == nil {
		t.Error("there is a home without any")
	}
	for content, want := range map[string]string{
		"contexts: {a: {uri: http://x, color: red}}": "color", "contexts: {a: }": "contexts.a is empty", "contexts: [": "config.yaml", "current: a\ncurrent: b": "current",
	} {
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", content, err)
		}
	}
}
