// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

// reading is one step for each client's table: it must hold what was written.
func reading() []step {
	var steps []step
	for _, name := range strings.Fields(os.Getenv("WRITTEN")) {
		want := final
		if name == "spark_v3" { // with deletion vectors
			want = nil
		}
		steps = append(steps, step{"read the table of " + name, func(ctx context.Context, c *rest.Catalog) error {
			t, err := c.LoadTable(ctx, table.Identifier{"e2e", name})
			if err != nil {
				return err
			}
			if name == "duckdb" {
				return unreadable(ctx, t)
			}
			if want != nil {
				return holds(ctx, t, "rows", want)
			}
			got, err := rows(ctx, t)
			if err != nil {
				return err
			}
			return same("rows and the sum of their ids", fmt.Sprint(len(got), sum(got)), fmt.Sprint(90, 4950-480))
		}})
	}
	return steps
}

// unreadable holds iceberg-go 0.7 to what it does not read: DuckDB writes the
// name of the file format in small letters, as the specification does, and
// iceberg-go knows it in capitals only. When it has learnt it, this step
// fails and reads the rows instead.
func unreadable(ctx context.Context, t *table.Table) error {
	_, err := rows(ctx, t)
	if err == nil || !strings.Contains(err.Error(), "only parquet format is implemented, got parquet") {
		return fmt.Errorf("iceberg-go reads DuckDB's files now: hold the rows to what was written (error is %v)", err)
	}
	return nil
}

// sum adds the ids of rows; the script of Spark has deleted 3, 13, … 93.
func sum(rows []string) (total int) {
	for _, row := range rows {
		var id int
		if _, err := fmt.Sscanf(row, "%d|", &id); err == nil {
			total += id
		}
	}
	return total
}
