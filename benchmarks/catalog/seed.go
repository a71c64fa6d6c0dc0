// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // the driver of both SQLite databases
)

// The namespaces: big has as many tables as the run asks for, of which the
// first realTables can be loaded; large has tables with much metadata.
const (
	small      = "small"
	big        = "big"
	large      = "large"
	smallCount = 100
	realTables = 1000
)

// createBody is a createTable request; the name may hold the placeholder.
func createBody(name string) string {
	return `{"name":"` + name + `","schema":{"type":"struct","schema-id":0,"fields":[` +
		`{"id":1,"name":"id","required":true,"type":"long"},{"id":2,"name":"at","required":true,"type":"timestamptz"},{"id":3,"name":"payload","required":false,"type":"string"}]},` +
		`"partition-spec":{"spec-id":0,"fields":[{"name":"at_day","transform":"day","source-id":2,"field-id":1000}]},"properties":{"owner":"etl"}}`
}

func tableName(i int) string { return fmt.Sprintf("t%06d", i) }

// createNamespace creates a namespace.
func (s *subject) createNamespace(ctx context.Context, name string) error {
	_, _, err := s.call(ctx, http.MethodPost, s.path("/namespaces"), map[string]any{"namespace": []string{name}, "properties": map[string]string{}})
	return err
}

// createTables creates tables by the protocol.
func (s *subject) createTables(ctx context.Context, ns string, count int) error {
	if err := s.createNamespace(ctx, ns); err != nil {
		return err
	}
	requests := make([]request, count)
	for i := range requests {
		requests[i] = request{http.MethodPost, s.path("/namespaces/%s/tables", ns), s.header(), createBody(tableName(i))}
	}
	o, err := runLoad(ctx, load{Address: s.address, Connections: 4, Count: int64(count), Requests: requests})
	if err != nil {
		return err
	}
	if o.Failed > 0 {
		return fmt.Errorf("%s: %d of %d tables could not be created: %s", s.name, o.Failed, count, o.Problem)
	}
	return nil
}

// registerLarge writes a metadata file with n snapshots and registers it as a
// table of namespace large.
func (s *subject) registerLarge(ctx context.Context, name string, snapshots int) error {
	location := s.root + "/" + large + "-" + name
	file := filepath.Join(strings.TrimPrefix(location, "file://"), "metadata", "00001-"+uuid.NewString()+".metadata.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, largeMetadata(uuid.New(), location, snapshots), 0o644); err != nil {
		return err
	}
	_, _, err := s.call(ctx, http.MethodPost, s.path("/namespaces/%s/register", large), map[string]string{"name": name, "metadata-location": "file://" + file})
	return err
}

// largeMetadata is a version 2 table with snapshots as Spark writes them,
// about a kilobyte each.
func largeMetadata(id uuid.UUID, location string, snapshots int) []byte {
	var list, log bytes.Buffer
	snapshotID := func(i int) int64 { return 1 + int64(i)*7_919_317_261 }
	at := func(i int) int64 { return 1_600_000_000_000 + int64(i)*1000 }
	for i := range snapshots {
		parent := ""
		if i > 0 {
			parent = fmt.Sprintf(`"parent-snapshot-id":%d,`, snapshotID(i-1))
			list.WriteByte(',')
			log.WriteByte(',')
		}
		fmt.Fprintf(&list, `{"sequence-number":%d,"snapshot-id":%d,%s"timestamp-ms":%d,"summary":{"operation":"append","spark.app.id":"application_1700000000000_%06d",`+
			`"added-data-files":"12","added-records":"120000","added-files-size":"48211223","changed-partition-count":"3","total-records":"%d","total-files-size":"%d",`+
			`"total-data-files":"%d","total-delete-files":"0","total-position-deletes":"0","total-equality-deletes":"0","engine-version":"4.1.4","app-id":"application_1700000000000_%06d",`+
			`"engine-name":"spark","iceberg-version":"Apache Iceberg 1.12.0 (commit 8b2ba1b0f5c0a7e6d3b4c5d6e7f8091a2b3c4d5e)","manifests-created":"1","manifests-kept":"41","manifests-replaced":"0","entries-processed":"0","partition-summaries-included":"false","spark.app.name":"hourly-load"},"manifest-list":"%s/metadata/snap-%d-1-6f2c4a9e-4e8b-4d0a-9a5b-3c1d2e3f4a5b.avro","schema-id":0}`,
			i+1, snapshotID(i), parent, at(i), i, (i+1)*120000, (i+1)*48211223, (i+1)*12, i, location, snapshotID(i))
		fmt.Fprintf(&log, `{"timestamp-ms":%d,"snapshot-id":%d}`, at(i), snapshotID(i))
	}
	last := snapshots - 1
	return fmt.Appendf(nil, `{"format-version":2,"table-uuid":%q,"location":%q,"last-sequence-number":%d,"last-updated-ms":%d,"last-column-id":3,"current-schema-id":0,`+
		`"schemas":[{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":true,"type":"long"},{"id":2,"name":"at","required":true,"type":"timestamptz"},{"id":3,"name":"payload","required":false,"type":"string"}]}],`+
		`"default-spec-id":0,"partition-specs":[{"spec-id":0,"fields":[{"name":"at_day","transform":"day","source-id":2,"field-id":1000}]}],"last-partition-id":1000,`+
		`"default-sort-order-id":0,"sort-orders":[{"order-id":0,"fields":[]}],"properties":{"owner":"etl"},"current-snapshot-id":%d,`+
		`"refs":{"main":{"snapshot-id":%d,"type":"branch"}},"snapshots":[%s],"statistics":[],"partition-statistics":[],"snapshot-log":[%s],"metadata-log":[]}`,
		id, location, snapshots, at(last), snapshotID(last), snapshotID(last), list.Bytes(), log.Bytes())
}

// fillSQLite and fillPostgres multiply the first table of namespace big in the
// database of a catalogd that does not run. What they do not name is copied,
// so that they know little of the schema.
func fillSQLite(ctx context.Context, database string, from, to int) error {
	db, err := sql.Open("sqlite", database)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // a statement that failed has said so
	columns := func(table string) ([]string, error) {
		rows, err := db.QueryContext(ctx, "SELECT * FROM "+table+" LIMIT 0")
		if err != nil {
			return nil, err
		}
		defer rows.Close() //nolint:errcheck // rows.Err says it
		names, err := rows.Columns()
		return names, errors.Join(err, rows.Err())
	}
	statements, err := multiply(columns, "printf('00000000-0000-4000-8000-%012d', i)", "printf('t%06d', i)",
		fmt.Sprintf("(WITH RECURSIVE s(i) AS (SELECT %d UNION ALL SELECT i + 1 FROM s WHERE i + 1 < %d) SELECT i FROM s)", from, to))
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("add tables to SQLite: %w", err)
		}
	}
	return nil
}

func fillPostgres(ctx context.Context, dsn string, from, to int) error {
	db, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a statement that failed has said so
	columns := func(table string) ([]string, error) {
		rows, err := db.Query(ctx, "SELECT * FROM "+table+" LIMIT 0")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var names []string
		for _, f := range rows.FieldDescriptions() {
			names = append(names, f.Name)
		}
		return names, rows.Err()
	}
	statements, err := multiply(columns, "('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid", "'t' || lpad(i::text, 6, '0')",
		fmt.Sprintf("(SELECT i FROM generate_series(%d, %d) AS i)", from, to-1))
	if err != nil {
		return err
	}
	for _, statement := range append(statements, "ANALYSE") {
		if _, err := db.Exec(ctx, statement); err != nil {
			return fmt.Errorf("add tables to PostgreSQL: %w", err)
		}
	}
	return nil
}

// multiply returns the statements; id and name are SQL of the number i, which
// series yields as column i.
func multiply(columns func(table string) ([]string, error), id, name, series string) ([]string, error) {
	first := "o.namespace = '" + big + "' AND o.name = '" + tableName(0) + "'"
	copyOf := func(table, from, where string, changed map[string]string) (string, error) {
		all, err := columns(table)
		if err != nil {
			return "", err
		}
		values := make([]string, len(all))
		for i, column := range all {
			values[i] = from + "." + column
			if value, ok := changed[column]; ok {
				values[i] = value
			}
		}
		return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s, %s AS n WHERE %s",
			table, strings.Join(all, ", "), strings.Join(values, ", "), where, series, first), nil
	}
	objects, err := copyOf("objects", "o", "objects AS o", map[string]string{
		"id": id, "uuid": id, "name": name, "location": "o.location || '-' || i", "metadata_location": "o.location || '-' || i || '/metadata/00000.metadata.json'", "metadata_digest": "NULL",
	})
	if err != nil {
		return nil, err
	}
	locations, err := copyOf("locations", "l", "objects AS o JOIN locations AS l ON l.object = o.id", map[string]string{
		"location": "l.location || '-' || i", "object": id,
	})
	return []string{objects, locations}, err
}

// fillFixture adds rows like that of the first table of namespace big.
func fillFixture(ctx context.Context, database string, from, to int) error {
	db, err := sql.Open("sqlite", database+"?_pragma=busy_timeout(60000)")
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // a statement that failed has said so
	_, err = db.ExecContext(ctx, `
		WITH RECURSIVE n(i) AS (SELECT ? UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)
		INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type)
		SELECT catalog_name, table_namespace, printf('t%06d', i), metadata_location, NULL, iceberg_type
		FROM n, iceberg_tables WHERE table_namespace = ? AND table_name = 't000000'`, from, to, big)
	if err != nil {
		return fmt.Errorf("add tables to the fixture's database: %w", err)
	}
	return nil
}

// deepToken returns the token of a page in the middle of namespace big.
func (s *subject) deepToken(ctx context.Context, tables int) (string, error) {
	token := ""
	for seen := 0; seen < tables/2; {
		_, raw, err := s.call(ctx, http.MethodGet, s.path("/namespaces/%s/tables?pageSize=1000&pageToken=%s", big, token), nil)
		if err != nil {
			return "", err
		}
		var page struct {
			Next        string `json:"next-page-token"`
			Identifiers []json.RawMessage
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return "", err
		}
		if page.Next == "" || len(page.Identifiers) == 0 {
			return "", fmt.Errorf("%s: the listing ended after %d of %d tables", s.name, seen+len(page.Identifiers), tables)
		}
		token, seen = page.Next, seen+len(page.Identifiers)
	}
	return token, nil
}
