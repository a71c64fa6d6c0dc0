// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package enforce

import (
	"context"
	"fmt"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
)

// The layers, by whose set it is.
const (
	Platform  = "platform"
	Provider  = "provider"
	Recipient = "recipient"
)

// Owner is whose policy set it is: the platform's, or an organisation's as
// provider or as recipient.
type Owner struct {
	Layer        string
	Organisation string // "" for the platform
}

func (o Owner) String() string { return setName(o.Layer, o.Organisation) }

// Active is the version of a set that its owner has activated.
type Active struct {
	Version int64 // 0: none is
	Sources []policy.Source
	// Bindings are what the set's names meant when it was activated; nil: what
	// they mean now.
	Bindings *policy.Bindings
}

// Source is where activated sets are kept.
type Source interface {
	// Revision grows, from 0, whenever another set becomes active for any owner.
	Revision(ctx context.Context) (int64, error)
	// Active returns what an owner has activated, as of the revision or later.
	Active(ctx context.Context, o Owner) (Active, error)
}

// Sets is the policy sets of all owners: [Stacks] over a [Source]. A set that
// is activated counts from the next request on. The cost of a request is one
// look at the revision.
type Sets struct {
	schema *policy.Schema
	source Source
	open   *policy.Set
	flight singleflight.Group

	mu       sync.Mutex
	revision int64
	sets     *lru.Cache[Owner, activeSet]
	stacks   *lru.Cache[stackKey, *policy.Stack]
}

type activeSet struct {
	version  int64
	set      *policy.Set
	bindings *policy.Bindings
}

func (a *activeSet) layer(name, owner string) policy.Layer {
	return policy.Layer{Name: name, Owner: owner, Version: a.version, Set: a.set, Bindings: a.bindings}
}

// stackKey is the sets of a stack, each parsed once per activation.
type stackKey struct {
	platform, provider, recipient activeSet
	provides, receives            string
}

const keptSets = 1024

// NewSets returns the sets of a source; policies speak of schema.
func NewSets(schema *policy.Schema, source Source) (*Sets, error) {
	sets, err := lru.New[Owner, activeSet](keptSets)
	if err != nil {
		return nil, err
	}
	stacks, err := lru.New[stackKey, *policy.Stack](keptSets)
	if err != nil {
		return nil, err
	}
	return &Sets{schema: schema, source: source, open: policy.OpenSet(schema), sets: sets, stacks: stacks, revision: -1}, nil
}

// Stack implements [Stacks]: the platform's set, the owner's as a provider, and
// for a principal of another organisation that organisation's as a recipient.
func (s *Sets) Stack(ctx context.Context, owner string, p identity.Principal) (*policy.Stack, error) {
	revision, err := s.source.Revision(ctx)
	if err != nil {
		return nil, fmt.Errorf("revision of the policy sets: %w", err)
	}
	s.mu.Lock()
	if revision > s.revision { // what another request has seen meanwhile may be newer
		s.revision = revision
		s.sets.Purge()
	}
	s.mu.Unlock()
	platform, err := s.active(ctx, Owner{Layer: Platform}, revision)
	if err != nil {
		return nil, err
	}
	provider, err := s.active(ctx, Owner{Provider, owner}, revision)
	if err != nil {
		return nil, err
	}
	key := stackKey{platform: platform, provider: provider, provides: owner}
	layers := []policy.Layer{platform.layer(Platform, ""), provider.layer(Provider, owner)}
	if p.Organisation != owner && p.Organisation != "" {
		recipient, err := s.active(ctx, Owner{Recipient, p.Organisation}, revision)
		if err != nil {
			return nil, err
		}
		key.recipient, key.receives = recipient, p.Organisation
		layers = append(layers, recipient.layer(Recipient, p.Organisation))
	}
	if stack, ok := s.stacks.Get(key); ok {
		return stack, nil
	}
	stack, err := policy.NewStack(layers...)
	if err != nil {
		return nil, err
	}
	s.stacks.Add(key, stack)
	return stack, nil
}

// active returns an owner's set, parsed once per revision.
func (s *Sets) active(ctx context.Context, o Owner, revision int64) (activeSet, error) {
	if o.Organisation == "" && o.Layer != Platform {
		return activeSet{set: s.open}, nil
	}
	if a, ok := s.sets.Get(o); ok {
		return a, nil
	}
	v, err, _ := s.flight.Do(fmt.Sprint(revision, " ", o), func() (any, error) {
		active, err := s.source.Active(context.WithoutCancel(ctx), o)
		if err != nil {
			return nil, fmt.Errorf("policy set of %s: %w", o, err)
		}
		a := activeSet{active.Version, s.open, active.Bindings}
		if active.Version != 0 {
			if a.set, err = policy.Parse(s.schema, active.Sources...); err != nil {
				return nil, fmt.Errorf("policy set of %s, version %d: %w", o, active.Version, err)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.revision == revision { // else it may be older than what is there
			s.sets.Add(o, a)
		}
		return a, nil
	})
	if err != nil {
		return activeSet{}, err
	}
	return v.(activeSet), nil
}

// Fixed is a [Source] whose sets do not change.
type Fixed map[Owner]Active

// Revision implements [Source].
func (Fixed) Revision(context.Context) (int64, error) { return 0, nil }

// Active implements [Source].
func (f Fixed) Active(_ context.Context, o Owner) (Active, error) { return f[o], nil }
