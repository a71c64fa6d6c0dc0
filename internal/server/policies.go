// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/policy/enforce"
	"github.com/sluice-data/sluice/internal/server/config"
	"github.com/sluice-data/sluice/internal/sharing"
)

func (s *Server) openPolicies(context.Context, Options) error {
	configured, err := policySets(s.cfg)
	if err != nil {
		return err
	}
	schema, err := policySchema(s.cfg)
	if err != nil {
		return err
	}
	sets, err := enforce.NewSets(schema, policySources{configured, sharing.NewActivePolicies(s.shareStore)})
	if err != nil {
		return err
	}
	s.policies, err = enforce.New(sets, nil)
	return err
}

// owners are the organisations of the warehouses that have one.
func owners(c *config.Config) map[string]string {
	m := map[string]string{}
	for _, w := range c.Warehouses {
		m[w.Name] = w.Organisation
	}
	return m
}

// policySets reads the policy sets that the configuration names, with their
// cases, and fails when a policy or a case does.
func policySets(c *config.Config) (enforce.Fixed, error) {
	schema, err := policySchema(c)
	if err != nil {
		return nil, err
	}
	fixed := enforce.Fixed{}
	for _, set := range c.Policies {
		owner := enforce.Owner{Layer: set.Layer, Organisation: set.Organisation}
		active := enforce.Active{Version: set.Version}
		if err := eachFile(set.Files, []string{".cedar"}, func(name string, text []byte) error {
			active.Sources = append(active.Sources, policy.Source{File: name, Text: text})
			return nil
		}); err != nil {
			return nil, fmt.Errorf("policies of %s: %w", owner, err)
		}
		parsed, err := policy.Parse(schema, active.Sources...)
		if err != nil {
			return nil, fmt.Errorf("policies of %s:\n%w", owner, err)
		}
		if err := eachFile(set.Cases, []string{".yaml", ".yml"}, func(name string, text []byte) error {
			cases, err := policy.ParseCases(name, text)
			if err != nil {
				return err
			}
			if problems := cases.Run(parsed); len(problems) > 0 {
				return problems
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("cases of %s:\n%w", owner, err)
		}
		fixed[owner] = active
	}
	return fixed, nil
}

// policySchema is what policies may speak of: the attributes that issuers tell.
func policySchema(c *config.Config) (*policy.Schema, error) {
	attributes := map[string]string{}
	for _, i := range c.Issuers {
		for _, a := range i.Identity().Claims.Attributes {
			name, typ := a.Name, policy.AttributeType(a.Type)
			if known, ok := attributes[name]; ok && known != typ {
				return nil, fmt.Errorf("issuer %s: attribute %s is a %s, and a %s of another issuer; policies need one type", i.Name, name, typ, known)
			}
			attributes[name] = typ
		}
	}
	return policy.NewSchema(attributes)
}

// eachFile reads files, and those of directories that end in one of some ways,
// in the order of their names.
func eachFile(paths, endings []string, do func(name string, text []byte) error) error {
	for _, path := range paths {
		names := []string{path}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.IsDir() {
			entries, err := os.ReadDir(path)
			if err != nil {
				return err
			}
			names = names[:0]
			for _, e := range entries {
				for _, ending := range endings {
					if !e.IsDir() && strings.HasSuffix(e.Name(), ending) {
						names = append(names, filepath.Join(path, e.Name()))
					}
				}
			}
			if len(names) == 0 {
				return fmt.Errorf("%s: holds no %s", path, strings.Join(endings, " or "))
			}
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if err := do(name, text); err != nil {
				return err
			}
		}
	}
	return nil
}
