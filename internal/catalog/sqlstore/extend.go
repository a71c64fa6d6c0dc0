// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlstore

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// What others need who keep tables of their own in the catalog's database:
// package sharing/store.

// Conn reads outside transactions.
func (s *Store) Conn() Conn { return s.engine }

// Locks are the engine's clauses.
func (s *Store) Locks() RowLocks { return s.locks }

// ConnOf returns the connection of a transaction of this package.
func ConnOf(t catalog.Tx) (Conn, error) {
	own, ok := t.(*tx)
	if !ok {
		return nil, errors.New("the transaction is another store's")
	}
	return own.c, nil
}

// Fail makes a transaction of this package one that cannot be committed.
func Fail(t catalog.Tx, err error) {
	if own, ok := t.(*tx); ok {
		own.note(&err)
	}
}

// AuditBefore returns audit rows of a warehouse, newest first, also those that
// have no place in the chain yet, each with the number to go on before. 0
// starts.
func (s *Store) AuditBefore(ctx context.Context, warehouse uuid.UUID, before int64, n int) (rows []catalog.AuditRow, numbers []int64, err error) {
	if before <= 0 {
		before = 1<<63 - 1
	}
	r, err := s.c.Query(ctx, `SELECT id, COALESCE(seq, 0), hash, `+auditColumns+` FROM audit WHERE warehouse = $1 AND id < $2 ORDER BY id DESC LIMIT $3`, warehouse, before, limit(n))
	if err != nil {
		return nil, nil, wrap("read audit rows", err)
	}
	defer r.Close()
	for r.Next() {
		var a auditRow
		var number int64
		var hash []byte
		if err := r.Scan(a.dest(&number, &a.row.Seq, &hash)...); err != nil {
			return nil, nil, wrap("read audit rows", err)
		}
		if len(hash) == len(a.row.Hash) {
			copy(a.row.Hash[:], hash)
		}
		rows, numbers = append(rows, a.finish(warehouse)), append(numbers, number)
	}
	return rows, numbers, wrap("read audit rows", r.Err())
}
