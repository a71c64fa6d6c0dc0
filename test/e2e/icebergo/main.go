// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command icebergo drives the library iceberg-go against the catalog, as the
// scripts of ../clients drive theirs: the same environment, the same lines of
// output, the same rows in the table e2e.iceberg_go when it has written.
//
//	icebergo write|read
//
// It is a module of its own, since the library's S3 brings many more that
// Sluice has no use for.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog/rest"
	_ "github.com/apache/iceberg-go/io/gocloud/s3"
	"github.com/apache/iceberg-go/table"
)

// final is what every client's table holds when it has been written.
var final = []string{"1|one|10", "2|two|20", "4|four|40"}

// limit is the time that one step may take.
const limit = 2 * time.Minute

// step is one check by name.
type step struct {
	name string
	run  func(ctx context.Context, c *rest.Catalog) error
}

func main() { os.Exit(drive()) }

func drive() int {
	steps := writing
	switch {
	case len(os.Args) == 2 && os.Args[1] == "write":
	case len(os.Args) == 2 && os.Args[1] == "read":
		steps = reading()
	default:
		fmt.Fprintln(os.Stderr, "usage: icebergo write|read")
		return 2
	}
	c, err := connect(context.Background(), rest.WithOAuthToken(os.Getenv("TOKEN")))
	if err != nil {
		fmt.Printf("FAIL connect: %s\n", oneLine(err))
		return 1
	}
	code := 0
	for _, s := range steps {
		start := time.Now()
		err := try(s, c)
		if err != nil {
			fmt.Printf("FAIL %s: %s\n", s.name, oneLine(err))
			code = 1
			continue
		}
		fmt.Printf("ok %s %.2f\n", s.name, time.Since(start).Seconds())
	}
	return code
}

// try runs one step; a panic of the library is that step's failure alone.
func try(s step, c *rest.Catalog) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return s.run(ctx, c)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// connect makes a client of the catalog under test.
func connect(ctx context.Context, auth ...rest.Option) (*rest.Catalog, error) {
	options := append([]rest.Option{rest.WithWarehouseLocation(os.Getenv("WAREHOUSE"))}, auth...)
	if endpoint := os.Getenv("S3_ENDPOINT"); endpoint != "" {
		options = append(options, rest.WithAdditionalProps(iceberg.Properties{
			"s3.endpoint": endpoint, "s3.access-key-id": os.Getenv("S3_KEY"), "s3.secret-access-key": os.Getenv("S3_SECRET"), "s3.region": "us-east-1",
		}))
	}
	return rest.NewCatalog(ctx, "sluice", os.Getenv("URI"), options...)
}

// byCredentials asks for a token with the client's id and secret.
func byCredentials(ctx context.Context) (*rest.Catalog, error) {
	uri, err := url.Parse(os.Getenv("URI") + "/v1/oauth/tokens")
	if err != nil {
		return nil, err
	}
	return connect(ctx, rest.WithCredential(os.Getenv("CLIENT_ID")+":"+os.Getenv("CLIENT_SECRET")), rest.WithAuthURI(uri), rest.WithScope("catalog"))
}

// same fails when what was got is not what was wanted.
func same[T any](what string, got, want T) error {
	if g, w := fmt.Sprintf("%v", got), fmt.Sprintf("%v", want); g != w {
		return fmt.Errorf("%s: got %s, want %s", what, g, w)
	}
	return nil
}

// refused fails when err is not the one wanted.
func refused(what string, err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("%s: error is %v, want %v", what, err, want)
	}
	return nil
}

// rows reads id, name and n of a table, sorted, as "id|name|n".
func rows(ctx context.Context, t *table.Table, options ...table.ScanOption) ([]string, error) {
	data, err := t.Scan(append(options, table.WithSelectedFields("id", "name", "n"))...).ToArrowTable(ctx)
	if err != nil {
		return nil, err
	}
	defer data.Release()
	var found []string
	batches := array.NewTableReader(data, 0)
	defer batches.Release()
	for batches.Next() {
		batch := batches.RecordBatch()
		for row := range int(batch.NumRows()) {
			var values []string
			for _, name := range []string{"id", "name", "n"} {
				at := batch.Schema().FieldIndices(name)
				if len(at) != 1 {
					return nil, fmt.Errorf("%d columns are called %s", len(at), name)
				}
				values = append(values, batch.Column(at[0]).ValueStr(row))
			}
			found = append(found, strings.Join(values, "|"))
		}
	}
	slices.Sort(found)
	return found, batches.Err()
}

// holds fails when a table's rows are not the wanted ones.
func holds(ctx context.Context, t *table.Table, what string, want []string, options ...table.ScanOption) error {
	got, err := rows(ctx, t, options...)
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return same(what, got, want)
}

// holdsNow loads a table anew and compares its rows.
func holdsNow(ctx context.Context, c *rest.Catalog, name table.Identifier, want []string) (*table.Table, error) {
	t, err := c.LoadTable(ctx, name)
	if err != nil {
		return nil, err
	}
	return t, holds(ctx, t, strings.Join(name, "."), want)
}

// append adds rows, given as JSON, to a table.
func appendRows(ctx context.Context, t *table.Table, json string) (*table.Table, error) {
	schema, err := table.SchemaToArrowSchema(t.Schema(), nil, true, false)
	if err != nil {
		return nil, err
	}
	batch, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(json))
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	data := array.NewTableFromRecords(schema, []arrow.RecordBatch{batch})
	defer data.Release()
	return t.AppendTable(ctx, data, 1024, nil)
}
