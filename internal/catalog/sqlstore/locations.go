// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
)

// Ancestors returns a location and everything above it, down from the scheme:
// s3://b/x/y gives s3://b, s3://b/x, s3://b/x/y.
func Ancestors(location string) []string {
	start := 0
	if i := strings.Index(location, "://"); i >= 0 {
		start = i + 3
	}
	var all []string
	for i := start; i < len(location); i++ {
		if location[i] == '/' && i > start {
			all = append(all, location[:i])
		}
	}
	return append(all, location)
}

// reserve inserts locations for an object, or returns ErrLocationTaken when
// one equals, contains or lies inside another object's.
func (t *tx) reserve(ctx context.Context, warehouse, object uuid.UUID, locations []string, position int) error {
	if len(locations) == 0 {
		return nil
	}
	if err := t.engine.LockLocations(ctx, t.c, warehouse, locations); err != nil {
		return fmt.Errorf("lock locations: %w", err)
	}
	for i, location := range locations {
		taken, own, err := t.overlap(ctx, warehouse, object, location)
		switch {
		case err != nil:
			return fmt.Errorf("look for overlapping locations: %w", err)
		case taken:
			return catalog.ErrLocationTaken
		case own:
			continue
		}
		_, err = t.c.TryExec(ctx, `INSERT INTO locations (warehouse, location, object, position) VALUES ($1, $2, $3, $4)`,
			warehouse, location, object, position+i)
		if errors.Is(err, ErrUnique) {
			return catalog.ErrLocationTaken
		}
		if err != nil {
			return fmt.Errorf("reserve location: %w", err)
		}
	}
	return nil
}

// overlap looks for other objects' reservations that meet location, and
// whether this very location is the object's already. Two index probes: one
// for the location and all its ancestors, one for the range of descendants.
func (r reader) overlap(ctx context.Context, warehouse, object uuid.UUID, location string) (taken, own bool, err error) {
	rows, err := r.c.Query(ctx, ancestorsQuery(location), ancestorsArgs(warehouse, location)...)
	if err != nil {
		return false, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var holder uuid.UUID
		var at string
		if err := rows.Scan(&holder, &at); err != nil {
			return false, false, err
		}
		if holder != object {
			taken = true
		} else if at == location {
			own = true
		}
	}
	if err := rows.Err(); err != nil || taken {
		return taken, own, err
	}
	rows.Close() // a connection runs one query at a time
	// '0' is the byte after '/': the range of all that begins with location/.
	err = r.c.QueryRow(ctx, selectDescendant, []any{warehouse, location + "/", location + "0", object}, &taken)
	return taken, own, err
}

func (r reader) Overlaps(ctx context.Context, warehouse, object uuid.UUID, locations []string) (bool, error) {
	for _, location := range locations {
		if taken, _, err := r.overlap(ctx, warehouse, object, location); taken || err != nil {
			return taken, err
		}
	}
	return false, nil
}

const selectDescendant = `SELECT EXISTS (SELECT 1 FROM locations WHERE warehouse = $1 AND location > $2 AND location < $3 AND object <> $4)`

// ancestorsWidth rounds up the number of ancestors, so that locations of all
// depths need few different statements.
func ancestorsWidth(n int) int {
	width := 8
	for width < n {
		width *= 2
	}
	return width
}

// ancestorsQuery selects the reservations of a location and its ancestors.
func ancestorsQuery(location string) string {
	var q strings.Builder
	q.WriteString(`SELECT object, location FROM locations WHERE warehouse = $1 AND location IN (`)
	for i := range ancestorsWidth(len(Ancestors(location))) {
		if i > 0 {
			q.WriteString(", ")
		}
		fmt.Fprintf(&q, "$%d", i+2)
	}
	q.WriteString(")")
	return q.String()
}

// ancestorsArgs are the arguments of ancestorsQuery, filled up with the
// location itself.
func ancestorsArgs(warehouse uuid.UUID, location string) []any {
	all := Ancestors(location)
	args := make([]any, 0, 1+ancestorsWidth(len(all)))
	args = append(args, warehouse)
	for _, a := range all {
		args = append(args, a)
	}
	for len(args) < cap(args) {
		args = append(args, location)
	}
	return args[:1+ancestorsWidth(len(all))]
}
