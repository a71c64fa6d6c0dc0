// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluice-data/sluice/internal/audit"
)

// record writes the outbox event, the audit row and, when the request came
// with a key, the idempotency record, in the transaction of the change.
func (w *Warehouse) record(ctx context.Context, tx Tx, m Mutation, c change) error {
	if err := w.checkReserved(m, c); err != nil {
		return err
	}
	payload, err := json.Marshal(c.payload)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	if c.payload == nil {
		payload = []byte("{}")
	}
	if err := tx.PutEvent(ctx, Event{
		Time: c.at, Warehouse: w.id, Type: c.event, Object: c.object.ID,
		Namespace: c.namespace.Path(), Name: c.object.Name, Payload: payload,
	}); err != nil {
		return err
	}
	if err := tx.PutAudit(ctx, AuditRow{Warehouse: w.id, Record: audit.Record{
		Kind: audit.KindChange, Time: c.at, RequestID: m.RequestID, Principal: m.Principal, Actor: m.Actor, Address: m.Address,
		Operation: m.Operation, Resource: c.resource, Decision: m.Decision, Policies: m.Policies, Detail: payload,
	}}); err != nil {
		return err
	}
	return w.recordKey(ctx, tx, m, c.replay)
}

// checkReserved refuses what clients would change of the server's own. Every
// change is recorded, so none is missed here; a rename is recorded under its old
// name with the object under its new one.
func (w *Warehouse) checkReserved(m Mutation, c change) error {
	if m.system || w.opts.Reserved.Name == "" {
		return nil
	}
	if own := w.opts.Reserved.Resource(); c.resource == own || c.object.Name != "" && c.object.Ident().Resource() == own {
		return Errorf(Forbidden, "%s belongs to the server: it can be read, and not changed", own)
	}
	return nil
}

// errReplayed ends a transaction whose key another request has used
// meanwhile; the caller answers with that request's outcome.
var errReplayed = errors.New("another request with this Idempotency-Key was first")

// recordKey stores the outcome of a request that came with a key.
func (w *Warehouse) recordKey(ctx context.Context, tx Tx, m Mutation, r Replay) error {
	if m.Key == nil {
		return nil
	}
	response, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode idempotency record: %w", err)
	}
	at := w.stamp()
	err = tx.PutIdempotency(ctx, IdempotencyRecord{
		Warehouse: w.id, Principal: m.Principal, Key: m.Key.Key, Operation: m.Operation,
		RequestHash: m.Key.RequestHash, Response: response, CreatedAt: at, ExpiresAt: at.Add(w.opts.IdempotencyLifetime),
	})
	if errors.Is(err, ErrIdempotencyUsed) {
		return &Error{Reason: CommitFailed, Message: "Another request with this Idempotency-Key was first", Cause: errReplayed}
	}
	return err
}

// IsReplayed reports whether a mutation was not carried out because another
// request with the same Idempotency-Key was first; [Warehouse.Replay] has
// that request's outcome.
func IsReplayed(err error) bool { return errors.Is(err, errReplayed) }

// Replay returns the recorded outcome of an earlier request with the same
// key, and nil when there is none. A key that was used for another request
// is a BadRequest.
func (w *Warehouse) Replay(ctx context.Context, m Mutation) (*Replay, error) {
	if m.Key == nil {
		return nil, nil
	}
	rec, err := w.store.Idempotency(ctx, w.id, m.Principal, m.Key.Key, w.stamp())
	if errors.Is(err, ErrNoObject) {
		return nil, nil
	}
	if err != nil {
		return nil, storeError(err)
	}
	if rec.Operation != m.Operation || rec.RequestHash != m.Key.RequestHash {
		return nil, Errorf(BadRequest, "The Idempotency-Key %s was already used for another request; make a new key for each operation", m.Key.Key)
	}
	var r Replay
	if err := json.Unmarshal(rec.Response, &r); err != nil {
		return nil, fmt.Errorf("decode idempotency record: %w", err)
	}
	return &r, nil
}

// FinishFailed records a final 4xx answer for the request's key, so that the
// same request gets the same answer again. Without a key it does nothing.
func (w *Warehouse) FinishFailed(ctx context.Context, m Mutation, status int, body json.RawMessage) error {
	if m.Key == nil {
		return nil
	}
	return storeError(w.store.Update(ctx, func(tx Tx) error {
		return w.recordKey(ctx, tx, m, Replay{Status: status, Body: body})
	}))
}
