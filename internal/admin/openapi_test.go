// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestOpenAPI holds the description of the JSON form to what is served: every
// operation, every field of every message, and no reference to nothing.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "proto", "sluice", "admin", "v1", "openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI    string `json:"openapi"`
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
				Required   []string
				Enum       []string
			}
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%q, %v", doc.OpenAPI, err)
	}
	all := procedures()
	if len(doc.Paths) != len(all) {
		t.Errorf("%d paths of %d operations", len(doc.Paths), len(all))
	}
	for p, m := range all {
		if doc.Paths[p]["post"] == nil {
			t.Errorf("%s is not described", p)
		}
		for _, message := range []protoreflect.MessageDescriptor{m.Input(), m.Output()} {
			schema := doc.Components.Schemas[string(message.Name())]
			for i := range message.Fields().Len() {
				if f := message.Fields().Get(i); schema.Properties[f.JSONName()] == nil {
					t.Errorf("%s.%s is not described", message.Name(), f.Name())
				}
			}
			for _, name := range schema.Required {
				if schema.Properties[name] == nil {
					t.Errorf("%s requires %s, which it does not have", message.Name(), name)
				}
			}
		}
	}
	if !slices.Contains(doc.Components.Schemas["OnDrop"].Enum, "ON_DROP_REMOVE") {
		t.Error("enumerations are not described")
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	references(tree, func(ref string) {
		name, ok := strings.CutPrefix(ref, "#/components/schemas/")
		if _, there := doc.Components.Schemas[name]; !ok || !there {
			t.Errorf("%s leads nowhere", ref)
		}
	})
}

func references(tree any, each func(string)) {
	switch v := tree.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			each(ref)
		}
		for _, child := range v {
			references(child, each)
		}
	case []any:
		for _, child := range v {
			references(child, each)
		}
	}
}
