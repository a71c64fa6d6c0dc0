// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-data/sluice/internal/secret"
)

func TestNeverPrints(t *testing.T) {
	t.Parallel()
	const hidden = "hunter2-very-secret"
	type holder struct {
		Name string
		Key  secret.Value
		Ptr  *secret.Value
	}
	v := secret.New(hidden)
	h := holder{Name: "n", Key: v, Ptr: &v}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		fmt.Fprintf(&out, verb+"\n", v)
		fmt.Fprintf(&out, verb+"\n", h)
		fmt.Fprintf(&out, verb+"\n", []secret.Value{v})
		fmt.Fprintf(&out, verb+"\n", map[string]secret.Value{"k": v})
	}
	raw, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(raw)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "key", v, "holder", h)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "key", v, "holder", h)
	fmt.Fprintln(&out, fmt.Errorf("with %v and %s", v, v))
	if s := out.String(); strings.Contains(s, hidden) || strings.Contains(s, fmt.Sprintf("%x", hidden)) || !strings.Contains(s, secret.Redacted) {
		t.Errorf("a secret was printed:\n%s", s)
	}
	if v.Reveal() != hidden || v.Empty() || !v.Equal(secret.New(hidden)) || v.Equal(secret.New("x")) {
		t.Error("a secret does not hold what was put in")
	}
}
