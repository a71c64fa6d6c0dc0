// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/catalog/sqlstore"
	"github.com/sluice-data/sluice/internal/sharing"
)

// column is one column of a table: its name, what is written there, and where
// what is read goes. dest may return a finish that runs after the scan.
type column[T any] struct {
	name  string
	value func(*T) any
	dest  func(*T) (dest any, finish func() error)
}

// field is a column of a type that the drivers know.
func field[T, V any](name string, at func(*T) *V) column[T] {
	return column[T]{name, func(t *T) any { return *at(t) }, func(t *T) (any, func() error) { return at(t), nil }}
}

// number is a column of a named integer type.
func number[T any, V ~int | ~int64](name string, at func(*T) *V) column[T] {
	return column[T]{name, func(t *T) any { return int64(*at(t)) }, func(t *T) (any, func() error) {
		var n int64
		return &n, func() error { *at(t) = V(n); return nil }
	}}
}

// moment is a column of a time in milliseconds, 0 for the zero time.
func moment[T any](name string, at func(*T) *time.Time) column[T] {
	return column[T]{name, func(t *T) any { return millis(*at(t)) }, func(t *T) (any, func() error) {
		var ms int64
		return &ms, func() error { *at(t) = fromMillis(ms); return nil }
	}}
}

// document is a column of JSON.
func document[T, V any](name string, at func(*T) *V) column[T] {
	return column[T]{name, func(t *T) any {
		raw, err := json.Marshal(at(t))
		if err != nil {
			panic(fmt.Sprintf("column %s: %v", name, err)) // types of package sharing always encode
		}
		return string(raw)
	}, func(t *T) (any, func() error) {
		var raw string
		return &raw, func() error { return json.Unmarshal([]byte(raw), at(t)) }
	}}
}

// mapped is a column with a stored form of its own.
func mapped[T, S any](name string, to func(*T) S, from func(*T, S)) column[T] {
	return column[T]{name, func(t *T) any { return to(t) }, func(t *T) (any, func() error) {
		var s S
		return &s, func() error { from(t, s); return nil }
	}}
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// entity is a table whose rows are T. The first keys columns, one unless said
// otherwise, are the key by which rows are changed.
type entity[T any] struct {
	table   string
	keys    int
	columns []column[T]
	stamp   func(*T) *sharing.Stamp // nil: rows never change

	names          string
	insert, update string
}

// stamped adds the columns of a stamp.
func stamped[T any](table string, stamp func(*T) *sharing.Stamp, columns ...column[T]) *entity[T] {
	e := &entity[T]{table: table, stamp: stamp, columns: append(columns,
		field("version", func(t *T) *int64 { return &stamp(t).Version }),
		moment("created_at", func(t *T) *time.Time { return &stamp(t).CreatedAt }),
		moment("updated_at", func(t *T) *time.Time { return &stamp(t).UpdatedAt }),
	)}
	return e.prepare()
}

// keyed is the table with a key of several columns.
func (e *entity[T]) keyed(columns int) *entity[T] {
	e.keys = columns
	return e.prepare()
}

// plain is a table without stamps.
func plain[T any](table string, columns ...column[T]) *entity[T] {
	return (&entity[T]{table: table, columns: columns}).prepare()
}

// prepare writes the statements: once, from this package's own names.
func (e *entity[T]) prepare() *entity[T] {
	names, marks, sets := make([]string, len(e.columns)), make([]string, len(e.columns)), make([]string, len(e.columns))
	for i, c := range e.columns {
		names[i], marks[i] = c.name, "$"+strconv.Itoa(i+1)
		sets[i] = c.name + " = " + marks[i]
	}
	e.names = strings.Join(names, ", ")
	e.insert = `INSERT INTO ` + e.table + ` (` + e.names + `) VALUES (` + strings.Join(marks, ", ") + `)`
	e.update = `UPDATE ` + e.table + ` SET ` + strings.Join(sets, ", ") + ` WHERE ` + strings.Join(sets[:max(e.keys, 1)], " AND ") + ` AND version = $` + strconv.Itoa(len(names)+1)
	return e
}

func (e *entity[T]) values(t *T) []any {
	out := make([]any, len(e.columns))
	for i, c := range e.columns {
		out[i] = c.value(t)
	}
	return out
}

// put is what [sharing.Tx] says of Put.
func (e *entity[T]) put(ctx context.Context, c sqlstore.Conn, t T) error {
	version := int64(1)
	if e.stamp != nil {
		version = e.stamp(&t).Version
	}
	if version == 1 {
		_, err := c.TryExec(ctx, e.insert, e.values(&t)...)
		switch {
		case errors.Is(err, sqlstore.ErrUnique):
			return sharing.ErrExists
		case errors.Is(err, sqlstore.ErrForeignKey):
			return sharing.ErrNotFound
		}
		return e.wrap("insert into", err)
	}
	n, err := c.TryExec(ctx, e.update, append(e.values(&t), version-1)...)
	if errors.Is(err, sqlstore.ErrUnique) {
		return sharing.ErrExists
	}
	if err == nil && n == 0 {
		return sharing.ErrStale
	}
	return e.wrap("update", err)
}

func (e *entity[T]) wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", doing, e.table, err)
	}
	return nil
}

// scan reads the columns of a row.
func (e *entity[T]) scan(t *T, scan func(dest ...any) error) error {
	dest := make([]any, len(e.columns))
	finish := make([]func() error, len(e.columns))
	for i, c := range e.columns {
		dest[i], finish[i] = c.dest(t)
	}
	if err := scan(dest...); err != nil {
		return err
	}
	for i, f := range finish {
		if f != nil {
			if err := f(); err != nil {
				return fmt.Errorf("column %s: %w", e.columns[i].name, err)
			}
		}
	}
	return nil
}

// one reads the row that the condition finds.
func (e *entity[T]) one(ctx context.Context, c sqlstore.Conn, where string, args ...any) (T, error) {
	var t T
	err := e.scan(&t, func(dest ...any) error {
		return c.QueryRow(ctx, `SELECT `+e.names+` FROM `+e.table+` WHERE `+where, args, dest...)
	})
	if errors.Is(err, sqlstore.ErrNoRows) {
		return t, sharing.ErrNotFound
	}
	return t, e.wrap("read", err)
}

// list reads the rows that the condition, with its order and limit, finds.
func (e *entity[T]) list(ctx context.Context, c sqlstore.Conn, where string, args ...any) ([]T, error) {
	rows, err := c.Query(ctx, `SELECT `+e.names+` FROM `+e.table+` WHERE `+where, args...)
	if err != nil {
		return nil, e.wrap("list", err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var t T
		if err := e.scan(&t, rows.Scan); err != nil {
			return nil, e.wrap("list", err)
		}
		all = append(all, t)
	}
	return all, e.wrap("list", rows.Err())
}

// delete deletes rows; ErrNotFound when there are none.
func (e *entity[T]) delete(ctx context.Context, c sqlstore.Conn, where string, args ...any) error {
	n, err := c.TryExec(ctx, `DELETE FROM `+e.table+` WHERE `+where, args...)
	if err == nil && n == 0 {
		return sharing.ErrNotFound
	}
	return e.wrap("delete from", err)
}
