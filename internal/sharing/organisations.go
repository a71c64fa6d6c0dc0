// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/secret"
)

func (o *Organisation) check() error {
	return firstError(checkName("name", o.Name), checkText("display_name", o.DisplayName, maxText, false), checkText("contact", o.Contact, maxText, false))
}

// CreateOrganisation creates an organisation of which the name, the display
// name and the contact are taken.
func (s *Service) CreateOrganisation(ctx context.Context, m Mutation, o Organisation) (Organisation, error) {
	if err := o.check(); err != nil {
		return Organisation{}, err
	}
	o.ID, o.Stamp = uuid.Must(uuid.NewV7()), newStamp(s.stamp())
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Organisation, change, error) {
		return o, change{resource: "organisation/" + o.Name, organisation: o.Name}, named(tx.PutOrganisation(ctx, o), "organisation", o.Name)
	})
}

// Organisation returns an organisation.
func (s *Service) Organisation(ctx context.Context, name string) (Organisation, error) {
	return read(s.store.Organisation(ctx, name))("organisation", name)
}

// Organisations lists all by name, and the key to go on with, "" at the end.
// So do the other lists of a Service.
func (s *Service) Organisations(ctx context.Context, p Page) ([]Organisation, string, error) {
	all, err := s.store.Organisations(ctx, oneMore(p))
	page, next := more(all, p.Limit, func(o Organisation) string { return o.Name })
	return page, next, storeError(err)
}

// UpdateOrganisation lets apply change the display name and the contact.
func (s *Service) UpdateOrganisation(ctx context.Context, m Mutation, name string, apply func(*Organisation) error) (Organisation, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Organisation, change, error) {
		o, err := tx.Organisation(ctx, name)
		if err != nil {
			return o, change{}, named(err, "organisation", name)
		}
		if err := firstError(checkEtag(m, "organisation", name, o.Stamp), apply(&o), o.check()); err != nil {
			return o, change{}, err
		}
		o.Stamp = o.Stamp.next(s.stamp())
		return o, change{resource: "organisation/" + name, organisation: name}, named(tx.PutOrganisation(ctx, o), "organisation", name)
	})
}

// DeleteOrganisation deletes an organisation to which nothing belongs.
func (s *Service) DeleteOrganisation(ctx context.Context, m Mutation, name string) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		o, err := tx.Organisation(ctx, name)
		if err != nil {
			return struct{}{}, change{}, named(err, "organisation", name)
		}
		if err := checkEtag(m, "organisation", name, o.Stamp); err != nil {
			return struct{}{}, change{}, err
		}
		// After this others cannot give it anything any more.
		if err := tx.DeleteOrganisation(ctx, name); err != nil {
			return struct{}{}, change{}, named(err, "organisation", name)
		}
		owns, err := tx.Owns(ctx, name)
		if err == nil && owns {
			err = Errorf(FailedPrecondition, "ORGANISATION_NOT_EMPTY", "organisation %q still has warehouses, shares, recipients, policy sets, principals or service accounts", name).
				Try("delete those first, or give the warehouses to another organisation")
		}
		return struct{}{}, change{resource: "organisation/" + name, organisation: name}, err
	})
	return err
}

func (p *Principal) check() error {
	if len(p.ID) == 0 || len(p.ID) > 600 || !strings.Contains(p.ID, ":") || strings.ContainsFunc(p.ID, unicode.IsControl) {
		return invalid("id", "%q is not the id of a principal", clip(p.ID)).Try(`write "account:<client id>" or "<issuer>:<subject>", as whoami and the audit log show it`)
	}
	return checkText("display_name", p.DisplayName, maxText, false)
}

// CreatePrincipal records a principal of an organisation.
func (s *Service) CreatePrincipal(ctx context.Context, m Mutation, p Principal) (Principal, error) {
	if err := p.check(); err != nil {
		return p, err
	}
	p.Stamp = newStamp(s.stamp())
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Principal, change, error) {
		err := firstError(holdOrganisation(ctx, tx, p.Organisation), named(tx.PutPrincipal(ctx, p), "principal", p.ID))
		return p, p.change(), err
	})
}

func (p *Principal) change() change {
	return change{"principal/" + p.ID, p.Organisation, map[string]any{"admin": p.Admin, "disabled": p.Disabled}}
}

// Principal returns an organisation's record of a principal.
func (s *Service) Principal(ctx context.Context, organisation, id string) (Principal, error) {
	return read(s.store.Principal(ctx, organisation, id))("principal", id)
}

// Principals lists those of one organisation, or of all, by organisation and id.
func (s *Service) Principals(ctx context.Context, organisation string, p Page) ([]Principal, string, error) {
	all, err := s.store.Principals(ctx, organisation, oneMore(p))
	page, next := more(all, p.Limit, func(p Principal) string { return Key(p.Organisation, p.ID) })
	return page, next, storeError(err)
}

// UpdatePrincipal lets apply change all but the id and the organisation.
func (s *Service) UpdatePrincipal(ctx context.Context, m Mutation, organisation, id string, apply func(*Principal) error) (Principal, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Principal, change, error) {
		p, err := tx.Principal(ctx, organisation, id)
		if err != nil {
			return p, change{}, named(err, "principal", id)
		}
		if err := firstError(checkEtag(m, "principal", id, p.Stamp), apply(&p), p.check()); err != nil {
			return p, change{}, err
		}
		p.Stamp = p.Stamp.next(s.stamp())
		return p, p.change(), named(tx.PutPrincipal(ctx, p), "principal", id)
	})
}

// DeletePrincipal deletes a record.
func (s *Service) DeletePrincipal(ctx context.Context, m Mutation, organisation, id string) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		p, err := tx.Principal(ctx, organisation, id)
		if err == nil {
			err = firstError(checkEtag(m, "principal", id, p.Stamp), tx.DeletePrincipal(ctx, organisation, id))
		}
		return struct{}{}, change{resource: "principal/" + id, organisation: p.Organisation}, named(err, "principal", id)
	})
	return err
}

func (a *ServiceAccount) check() error {
	if err := identity.CheckClientID(a.ClientID); err != nil {
		return invalid("client_id", "%s", err.Error())
	}
	return checkText("display_name", a.DisplayName, maxText, false)
}

// NewSecret is a secret that was made, to be shown once.
type NewSecret struct {
	Account ServiceAccount
	Secret  AccountSecret
	Value   secret.Value
}

// newSecret makes a secret of 256 random bits.
func (s *Service) newSecret(expires time.Time) (AccountSecret, secret.Value) {
	raw := make([]byte, 40)
	rand.Read(raw) //nolint:errcheck // never fails (crypto/rand)
	value := secret.New("slsec_" + base64.RawURLEncoding.EncodeToString(raw[8:]))
	return AccountSecret{
		ID: base64.RawURLEncoding.EncodeToString(raw[:8]), Hash: identity.NewHash(value).PHC(), CreatedAt: s.stamp(), ExpiresAt: expires,
	}, value
}

// CreateServiceAccount creates an account, with a first secret if asked to.
func (s *Service) CreateServiceAccount(ctx context.Context, m Mutation, a ServiceAccount, withSecret bool) (NewSecret, error) {
	if err := a.check(); err != nil {
		return NewSecret{}, err
	}
	if s.cfg.ReservedClient != nil && s.cfg.ReservedClient(a.ClientID) {
		return NewSecret{}, exists("service account", a.ClientID).Try("choose another client id: this one is in the server's configuration")
	}
	made := NewSecret{Account: a}
	made.Account.Secrets, made.Account.Stamp = []AccountSecret{}, newStamp(s.stamp())
	if withSecret {
		made.Secret, made.Value = s.newSecret(time.Time{})
		made.Account.Secrets = append(made.Account.Secrets, made.Secret)
	}
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (NewSecret, change, error) {
		err := firstError(holdOrganisation(ctx, tx, a.Organisation), named(tx.PutServiceAccount(ctx, made.Account), "service account", a.ClientID))
		return made, change{resource: "serviceaccount/" + a.ClientID, organisation: a.Organisation}, err
	})
}

// ServiceAccount returns an account.
func (s *Service) ServiceAccount(ctx context.Context, clientID string) (ServiceAccount, error) {
	return read(s.store.ServiceAccount(ctx, clientID))("service account", clientID)
}

// ServiceAccounts lists those of one organisation, or of all, by client id.
func (s *Service) ServiceAccounts(ctx context.Context, organisation string, p Page) ([]ServiceAccount, string, error) {
	all, err := s.store.ServiceAccounts(ctx, organisation, oneMore(p))
	page, next := more(all, p.Limit, func(a ServiceAccount) string { return a.ClientID })
	return page, next, storeError(err)
}

// changeAccount changes an account that is there.
func changeAccount[T any](ctx context.Context, s *Service, m Mutation, clientID string, fn func(*ServiceAccount) (T, map[string]any, error)) (T, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (T, change, error) {
		var none T
		a, err := tx.ServiceAccount(ctx, clientID)
		if err != nil {
			return none, change{}, named(err, "service account", clientID)
		}
		if err := checkEtag(m, "service account", clientID, a.Stamp); err != nil {
			return none, change{}, err
		}
		a.Stamp = a.Stamp.next(s.stamp())
		result, detail, err := fn(&a)
		if err != nil {
			return none, change{}, err
		}
		return result, change{"serviceaccount/" + clientID, a.Organisation, detail}, named(tx.PutServiceAccount(ctx, a), "service account", clientID)
	})
}

// UpdateServiceAccount lets apply change the display name and whether the
// account is disabled.
func (s *Service) UpdateServiceAccount(ctx context.Context, m Mutation, clientID string, apply func(*ServiceAccount) error) (result ServiceAccount, err error) {
	return changeAccount(ctx, s, m, clientID, func(a *ServiceAccount) (ServiceAccount, map[string]any, error) {
		if err := firstError(apply(a), a.check()); err != nil {
			return *a, nil, err
		}
		return *a, map[string]any{"disabled": a.Disabled}, nil
	})
}

// CreateSecret makes a further secret of an account.
func (s *Service) CreateSecret(ctx context.Context, m Mutation, clientID string, expires time.Time) (NewSecret, error) {
	now := s.stamp()
	if !expires.IsZero() && !expires.After(now) {
		return NewSecret{}, invalid("expire_time", "lies in the past")
	}
	made, value := s.newSecret(expires.UTC().Truncate(time.Millisecond))
	return changeAccount(ctx, s, m, clientID, func(a *ServiceAccount) (NewSecret, map[string]any, error) {
		a.Secrets = slices.DeleteFunc(a.Secrets, func(k AccountSecret) bool { return !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) })
		if len(a.Secrets) >= identity.MaxSecrets {
			return NewSecret{}, nil, Errorf(FailedPrecondition, "TOO_MANY_SECRETS", "service account %q has %d secrets already", clientID, len(a.Secrets)).Try("delete the one that is not in use any more")
		}
		a.Secrets = append(a.Secrets, made)
		return NewSecret{*a, made, value}, map[string]any{"secret": made.ID}, nil
	})
}

// DeleteSecret deletes a secret of an account.
func (s *Service) DeleteSecret(ctx context.Context, m Mutation, clientID, id string) error {
	if encode := m.Answer; encode != nil { // what is deleted is not shown
		m.Answer = func(any) (json.RawMessage, error) { return encode(struct{}{}) }
	}
	_, err := changeAccount(ctx, s, m, clientID, func(a *ServiceAccount) (ServiceAccount, map[string]any, error) {
		before := len(a.Secrets)
		a.Secrets = slices.DeleteFunc(a.Secrets, func(k AccountSecret) bool { return k.ID == id })
		if len(a.Secrets) == before {
			return *a, nil, notFound("secret", id)
		}
		return *a, map[string]any{"secret": id}, nil
	})
	return err
}

// DeleteServiceAccount deletes an account.
func (s *Service) DeleteServiceAccount(ctx context.Context, m Mutation, clientID string) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		a, err := tx.ServiceAccount(ctx, clientID)
		if err == nil {
			err = firstError(checkEtag(m, "service account", clientID, a.Stamp), tx.DeleteServiceAccount(ctx, clientID))
		}
		return struct{}{}, change{resource: "serviceaccount/" + clientID, organisation: a.Organisation}, named(err, "service account", clientID)
	})
	return err
}

var (
	referenceForm  = regexp.MustCompile(`^(file:/[^\x00-\x1f]{1,1000}|env:[A-Za-z_][A-Za-z0-9_]{0,127})$`)
	secretNameForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

func (w *Warehouse) check() error {
	if err := firstError(checkName("name", w.Name), checkText("display_name", w.DisplayName, maxText, false)); err != nil {
		return err
	}
	return w.Storage.check()
}

// check refuses, without repeating it, what could be a secret where a
// reference is wanted.
func (s *Storage) check() error {
	if _, err := objstore.ParseLocation(s.Root); err != nil {
		return invalid("storage.root", "%s", err.Error())
	}
	if len(s.AllowedRoots) > maxList {
		return invalid("storage.allowed_roots", "has %d entries; at most %d are allowed", len(s.AllowedRoots), maxList)
	}
	for i, r := range s.AllowedRoots {
		if _, err := objstore.ParseLocation(r); err != nil {
			return invalid("storage.allowed_roots", "entry %d: %s", i, err.Error())
		}
	}
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return invalid("storage.endpoint", "must be a URL such as https://s3.example.org, without user, query or fragment")
		}
	}
	if err := checkText("storage.region", s.Region, 128, false); err != nil {
		return err
	}
	if len(s.Secrets) > maxList {
		return invalid("storage.secret_references", "has %d entries; at most %d are allowed", len(s.Secrets), maxList)
	}
	for name, reference := range s.Secrets {
		if !secretNameForm.MatchString(name) {
			return invalid("storage.secret_references", "a name must be 1 to 64 of a-z, 0-9 and _, beginning with a letter")
		}
		if !referenceForm.MatchString(reference) {
			return invalid("storage.secret_references", "the value of %s is not a reference", name).Try(`write "file:/run/secrets/NAME" or "env:NAME"; never send the secret itself: if you just did, replace it`)
		}
	}
	return nil
}

func (w *Warehouse) change() change {
	return change{"warehouse/" + w.Name, w.Organisation, map[string]any{"root": w.Storage.Root}}
}

// CreateWarehouse records a warehouse.
func (s *Service) CreateWarehouse(ctx context.Context, m Mutation, w Warehouse) (Warehouse, error) {
	if err := w.check(); err != nil {
		return w, err
	}
	// Whether there is one of that name is looked at before anything is made.
	if _, err := s.store.Warehouse(ctx, w.Name); err == nil {
		return w, exists("warehouse", w.Name)
	} else if !errors.Is(err, ErrNotFound) {
		return w, storeError(err)
	}
	if err := checkOverlap(ctx, s.store, w); err != nil {
		return w, err
	}
	w.Source, w.Stamp = SourceAPI, newStamp(s.stamp())
	id := uuid.Must(uuid.NewV7())
	if !m.ValidateOnly {
		var err error
		if id, err = s.store.EnsureWarehouse(ctx, w.Name); err != nil {
			return w, storeError(err)
		}
	}
	w.ID = id
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Warehouse, change, error) {
		if err := holdOrganisation(ctx, tx, w.Organisation); err != nil || m.ValidateOnly {
			return w, change{}, err
		}
		return w, w.change(), named(tx.PutWarehouse(ctx, w), "warehouse", w.Name)
	})
}

// checkOverlap refuses roots that lie in another warehouse, or it in them: what
// is vended for one must not open the other.
func checkOverlap(ctx context.Context, r Reader, w Warehouse) error {
	others, err := r.Warehouses(ctx, "", Page{})
	if err != nil {
		return storeError(err)
	}
	for _, o := range others {
		if o.Name == w.Name {
			continue
		}
		for _, theirs := range append([]string{o.Storage.Root}, o.Storage.AllowedRoots...) {
			a, err := objstore.ParseLocation(theirs)
			if err != nil {
				continue // recorded by a server that knew more kinds
			}
			for _, mine := range append([]string{w.Storage.Root}, w.Storage.AllowedRoots...) {
				if b, err := objstore.ParseLocation(mine); err == nil && a.Overlaps(b) {
					return Errorf(FailedPrecondition, "WAREHOUSE_OVERLAPS", "%s overlaps the files of another warehouse", clip(mine)).Try("choose another root: warehouses must not share files")
				}
			}
		}
	}
	return nil
}

// AdoptWarehouse records a warehouse of the configuration, which may name its
// organisation; the organisation is made when it is new. It is called when the
// server starts.
func (s *Service) AdoptWarehouse(ctx context.Context, name string, id uuid.UUID, organisation, root string) error {
	if organisation != "" {
		if err := s.EnsureOrganisation(ctx, organisation); err != nil {
			return err
		}
	}
	at := s.stamp()
	m := Mutation{Mutation: catalog.Mutation{Operation: "adoptWarehouse", Caller: catalog.Caller{Principal: "configuration"}}}
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Warehouse, change, error) {
		w, err := tx.Warehouse(ctx, name)
		switch {
		case errors.Is(err, ErrNotFound):
			w = Warehouse{Name: name, ID: id, Stamp: newStamp(at)}
		case err != nil:
			return w, change{}, err
		case (organisation == "" || w.Organisation == organisation) && w.Storage.Root == root && w.Source == SourceConfiguration:
			return w, change{}, errDryRun
		default:
			w.Stamp = w.Stamp.next(at)
		}
		if organisation != "" {
			w.Organisation = organisation
		}
		w.Source, w.Storage = SourceConfiguration, Storage{Root: root}
		return w, w.change(), tx.PutWarehouse(ctx, w)
	})
	// Another server that starts at the same time has recorded it.
	if errors.Is(err, ErrExists) || errors.Is(err, ErrStale) {
		return nil
	}
	return err
}

// EnsureOrganisation makes an organisation that the configuration names.
func (s *Service) EnsureOrganisation(ctx context.Context, name string) error {
	if _, err := s.store.Organisation(ctx, name); !errors.Is(err, ErrNotFound) {
		return storeError(err)
	}
	m := Mutation{Mutation: catalog.Mutation{Operation: "adoptOrganisation", Caller: catalog.Caller{Principal: "configuration"}}}
	_, err := s.CreateOrganisation(ctx, m, Organisation{Name: name})
	if CodeOf(err) == AlreadyExists {
		return nil
	}
	return err
}

// Warehouse returns what is recorded of a warehouse.
func (s *Service) Warehouse(ctx context.Context, name string) (Warehouse, error) {
	return read(s.store.Warehouse(ctx, name))("warehouse", name)
}

// Warehouses lists those of one organisation, or of all, by name.
func (s *Service) Warehouses(ctx context.Context, organisation string, p Page) ([]Warehouse, string, error) {
	all, err := s.store.Warehouses(ctx, organisation, oneMore(p))
	page, next := more(all, p.Limit, func(w Warehouse) string { return w.Name })
	return page, next, storeError(err)
}

// UpdateWarehouse lets apply change all but the name and the root; of one of
// the configuration the organisation and the display name. A warehouse of
// which something is shared keeps its organisation.
func (s *Service) UpdateWarehouse(ctx context.Context, m Mutation, name string, apply func(*Warehouse) error) (Warehouse, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (Warehouse, change, error) {
		w, err := tx.Warehouse(ctx, name)
		if err != nil {
			return w, change{}, named(err, "warehouse", name)
		}
		before := w
		if err := firstError(checkEtag(m, "warehouse", name, w.Stamp), apply(&w)); err != nil {
			return w, change{}, err
		}
		if w.Source == SourceAPI {
			if err := firstError(w.check(), checkOverlap(ctx, tx, w)); err != nil {
				return w, change{}, err
			}
		} else if err := checkText("display_name", w.DisplayName, maxText, false); err != nil {
			return w, change{}, err
		}
		if w.Organisation != before.Organisation {
			if err := holdOrganisation(ctx, tx, w.Organisation); err != nil {
				return w, change{}, err
			}
			if shared, err := tx.SharesFrom(ctx, w.ID); err != nil || shared {
				if err == nil {
					err = Errorf(FailedPrecondition, "WAREHOUSE_SHARED", "objects of warehouse %q are in shares of organisation %q", name, before.Organisation).Try("remove them from the shares first")
				}
				return w, change{}, err
			}
		}
		w.Stamp = w.Stamp.next(s.stamp())
		return w, w.change(), named(tx.PutWarehouse(ctx, w), "warehouse", name)
	})
}

// DeleteWarehouse forgets a warehouse that holds no namespace.
func (s *Service) DeleteWarehouse(ctx context.Context, m Mutation, name string) error {
	_, err := mutate(ctx, s, m, func(ctx context.Context, tx Tx) (struct{}, change, error) {
		w, err := tx.Warehouse(ctx, name)
		if err != nil {
			return struct{}{}, change{}, named(err, "warehouse", name)
		}
		if err := checkEtag(m, "warehouse", name, w.Stamp); err != nil {
			return struct{}{}, change{}, err
		}
		if w.Source == SourceConfiguration {
			return struct{}{}, change{}, Errorf(FailedPrecondition, "WAREHOUSE_CONFIGURED", "warehouse %q is in the server's configuration", name).Try("take it out there")
		}
		some, err := tx.HasNamespaces(ctx, w.ID)
		if err == nil && some {
			err = Errorf(FailedPrecondition, "WAREHOUSE_NOT_EMPTY", "warehouse %q still holds namespaces", name).Try("drop them first")
		}
		if err != nil {
			return struct{}{}, change{}, err
		}
		return struct{}{}, w.change(), named(tx.DeleteWarehouse(ctx, name), "warehouse", name)
	})
	return err
}
