// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/policy"
)

// Config is what a [Service] is made of. Store is required.
type Config struct {
	Store Store
	// Issuers are the configured issuers by name, with how they verify. Bindings
	// name one of them or AccountIssuer.
	Issuers map[string]identity.IssuerKind
	// Activations makes and redeems links; nil: there are none.
	Activations func(identity.ActivationStore) *identity.Activations
	// PublicURI is where links lead; "" leaves only their token.
	PublicURI string
	// Schema is what policies may speak of.
	Schema *policy.Schema
	// Table returns a table or view as policies know it, to check policies
	// against; ErrNotFound when there is none. Nil: policies are checked without
	// tables.
	Table func(ctx context.Context, warehouse string, id catalog.Ident) (*policy.Table, error)
	// ReservedClient reports whether a client id is another account's, such as
	// one of the configuration.
	ReservedClient func(clientID string) bool
	// IdempotencyLifetime is how long a request id is remembered; 24 h when zero.
	IdempotencyLifetime time.Duration
	Logger              *slog.Logger
	Now                 func() time.Time
}

// Service has the operations of this package. It is safe for concurrent use.
type Service struct {
	cfg         Config
	store       Store
	activations *identity.Activations
	log         *slog.Logger
	views       *lru.Cache[uuid.UUID, *compiled]
}

// keptViews is how many shares are kept as recipients see them.
const keptViews = 1024

// New returns the service of a store.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil {
		return nil, errors.New("sharing: a store is required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.IdempotencyLifetime <= 0 {
		cfg.IdempotencyLifetime = catalog.DefaultIdempotencyLifetime
	}
	views, err := lru.New[uuid.UUID, *compiled](keptViews)
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, store: cfg.Store, log: cfg.Logger, views: views}
	if cfg.Activations != nil {
		s.activations = cfg.Activations(activationStore{s})
	}
	return s, nil
}

// stamp is the current time in the precision that stores keep.
func (s *Service) stamp() time.Time { return s.cfg.Now().UTC().Truncate(time.Millisecond) }

// Mutation is what every change takes with it.
type Mutation struct {
	catalog.Mutation
	// ValidateOnly does everything but commit.
	ValidateOnly bool
	// Etag, when it is not "", must be that of what is changed.
	Etag string
	// Answer encodes the result of a change that came with a Key, to be given
	// again; it leaves out what is shown once.
	Answer func(result any) (json.RawMessage, error)
}

// change is what a transaction did, for the audit log. Detail holds names,
// states and numbers, never a secret.
type change struct {
	resource     string // "share/sales"
	organisation string
	detail       map[string]any
}

var (
	errDryRun = errors.New("nothing is to be changed")
	// errReplayed ends a transaction whose key another request has used.
	errReplayed = errors.New("another request with this request_id was first")
)

// mutate runs a change in one transaction with its records.
func mutate[T any](ctx context.Context, s *Service, m Mutation, fn func(ctx context.Context, tx Tx) (T, change, error)) (T, error) {
	var result T
	err := s.store.Update(ctx, func(tx Tx) error {
		var c change
		var err error
		if result, c, err = fn(ctx, tx); err != nil {
			return err
		}
		if m.ValidateOnly {
			return errDryRun
		}
		return s.record(ctx, tx, m, c, result)
	})
	switch {
	case errors.Is(err, errDryRun):
		return result, nil
	case err != nil:
		var none T
		return none, storeError(err)
	}
	return result, nil
}

func (s *Service) record(ctx context.Context, tx Tx, m Mutation, c change, result any) error {
	at := s.stamp()
	if c.detail == nil {
		c.detail = map[string]any{}
	}
	if c.organisation != "" {
		c.detail["organisation"] = c.organisation
	}
	detail, err := json.Marshal(c.detail)
	if err != nil {
		return fmt.Errorf("encode audit record: %w", err)
	}
	if err := tx.PutAudit(ctx, audit.Record{
		Kind: audit.KindChange, Time: at, RequestID: m.RequestID, Principal: m.Principal, Actor: m.Actor, Address: m.Address,
		Operation: m.Operation, Resource: c.resource, Decision: m.Decision, Policies: m.Policies, Detail: detail,
	}); err != nil {
		return err
	}
	if m.Key == nil {
		return nil
	}
	response := json.RawMessage("{}")
	if m.Answer != nil {
		if response, err = m.Answer(result); err != nil {
			return fmt.Errorf("encode idempotency record: %w", err)
		}
	}
	err = tx.PutIdempotency(ctx, catalog.IdempotencyRecord{
		Principal: m.Principal, Key: m.Key.Key, Operation: m.Operation, RequestHash: m.Key.RequestHash,
		Response: response, CreatedAt: at, ExpiresAt: at.Add(s.cfg.IdempotencyLifetime),
	})
	if errors.Is(err, catalog.ErrIdempotencyUsed) {
		return &Error{Code: Aborted, Reason: "REQUEST_ID_USED", Message: "Another request with this request_id was first", Next: "repeat the request to get that one's answer", Cause: errReplayed}
	}
	return err
}

// IsReplayed reports whether a change was not made because another request with
// the same key was first; [Service.Replay] has that one's answer.
func IsReplayed(err error) bool { return errors.Is(err, errReplayed) }

// Replay returns the recorded answer to an earlier request with the same key,
// and nil when there is none. A key that was used for another request is an
// InvalidArgument.
func (s *Service) Replay(ctx context.Context, m Mutation) (json.RawMessage, error) {
	if m.Key == nil {
		return nil, nil
	}
	rec, err := s.store.Idempotency(ctx, m.Principal, m.Key.Key, s.stamp())
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, storeError(err)
	}
	if rec.Operation != m.Operation || rec.RequestHash != m.Key.RequestHash {
		return nil, Errorf(InvalidArgument, "REQUEST_ID_REUSED", "request_id %s was already used for another request", m.Key.Key).Try("make a new UUID for each operation")
	}
	return rec.Response, nil
}

// Limits of what callers may store.
const (
	maxText     = 1024     // bytes of a display name, comment, reason
	maxLongText = 8 << 10  // of a description
	maxTerms    = 64 << 10 // of terms
	maxMembers  = 10_000   // of a share
	maxChanges  = 1000     // members added or removed at once
	maxList     = 100      // of networks, groups, roots
)

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// IsName reports whether a name can be that of an organisation.
func IsName(name string) bool { return nameForm.MatchString(name) }

// checkName applies the rule for names of organisations, shares, recipients,
// policy sets and warehouses.
func checkName(field, name string) error {
	if !nameForm.MatchString(name) {
		return invalid(field, "%q must be 1 to 63 of a-z, 0-9, \"-\" and \"_\", beginning with a letter", clip(name))
	}
	return nil
}

// checkText applies the rule for texts for people: valid UTF-8 of at most so
// many bytes, without control characters but, if lines is set, line breaks and
// tabs.
func checkText(field, text string, most int, lines bool) error {
	switch {
	case len(text) > most:
		return invalid(field, "is %d bytes long; at most %d are allowed", len(text), most)
	case !utf8.ValidString(text):
		return invalid(field, "is not valid UTF-8")
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && (!lines || r != '\n' && r != '\t' && r != '\r') }):
		return invalid(field, "holds a control character")
	}
	return nil
}

// firstError returns the first that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEtag compares what a caller sent with what is there.
func checkEtag(m Mutation, kind, name string, s Stamp) error {
	if m.Etag != "" && m.Etag != s.Etag() {
		return stale(kind, name)
	}
	return nil
}

// named gives the sentinels of a look-up or a put the name of what was meant.
func named(err error, kind, name string) error {
	switch {
	case errors.Is(err, ErrNotFound):
		return notFound(kind, name)
	case errors.Is(err, ErrExists):
		return exists(kind, name)
	case errors.Is(err, ErrStale):
		return stale(kind, name)
	}
	return err
}

// read is [named] and [storeError] for what is read outside a transaction.
func read[T any](v T, err error) func(kind, name string) (T, error) {
	return func(kind, name string) (T, error) { return v, storeError(named(err, kind, name)) }
}

// holdOrganisation keeps the owner of something new from being deleted.
func holdOrganisation(ctx context.Context, tx Tx, name string) error {
	return named(tx.HoldOrganisation(ctx, name), "organisation", name)
}

// More is the key with which a page goes on, "" when it was the last; lists
// are asked for one row more than the page has.
func more[T any](all []T, limit int, key func(T) string) ([]T, string) {
	if limit <= 0 || len(all) <= limit {
		return all, ""
	}
	return all[:limit], key(all[limit-1])
}

// oneMore is the page with one row more.
func oneMore(p Page) Page {
	if p.Limit > 0 {
		p.Limit++
	}
	return p
}
