# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""Trino 476 against the catalog; the driver has started the server at TRINO_PORT.

Trino asks the namespace for its location and stages the table below it. A
namespace that tells none makes it create the table at once and then refuse
its location, since the first metadata file lies there already: "Cannot create a
table on a non-empty location".
"""

import os
import sys

from common import FINAL, matrix, raises, same, steps
from trino.dbapi import connect

connection = connect(host="127.0.0.1", port=int(os.environ["TRINO_PORT"]), user="e2e", catalog="sluice", schema="e2e")


def rows(query):
    cursor = connection.cursor()
    cursor.execute(query)
    return [tuple(r) for r in cursor.fetchall()]


def create_namespace():
    rows("CREATE SCHEMA IF NOT EXISTS sluice.e2e")
    same(["e2e"] in [list(r) for r in rows("SHOW SCHEMAS FROM sluice")], True)


def create_and_insert():
    rows("CREATE TABLE e2e.trino (id BIGINT, name VARCHAR, n INTEGER)")
    rows("INSERT INTO e2e.trino VALUES (1,'one',10),(2,'two',20),(3,'three',30)")
    same(rows("SELECT id, name, n FROM e2e.trino ORDER BY id"), [(1, "one", 10), (2, "two", 20), (3, "three", 30)])


def evolve_schema():
    rows("ALTER TABLE e2e.trino ALTER COLUMN n SET DATA TYPE BIGINT")
    rows("ALTER TABLE e2e.trino ADD COLUMN extra INTEGER")
    rows("ALTER TABLE e2e.trino RENAME COLUMN extra TO more")
    same([r[0] for r in rows("DESCRIBE e2e.trino")], ["id", "name", "n", "more"])


def evolve_partitioning():
    rows("ALTER TABLE e2e.trino SET PROPERTIES partitioning = ARRAY['bucket(id, 4)']")
    rows("INSERT INTO e2e.trino VALUES (4,'four',40,NULL)")


def time_travel():
    first = rows('SELECT snapshot_id FROM e2e."trino$snapshots" WHERE operation = \'append\' AND element_at(summary, \'added-records\') = \'3\'')[0][0]
    same(rows(f"SELECT count(*) FROM e2e.trino FOR VERSION AS OF {first}"), [(3,)])


def delete_update_merge():
    rows("DELETE FROM e2e.trino WHERE id = 3")
    rows("UPDATE e2e.trino SET name = 'TWO' WHERE id = 2")
    rows("MERGE INTO e2e.trino t USING (VALUES (2, 'two')) s(id, name) ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name")
    same(rows("SELECT id, name, n FROM e2e.trino ORDER BY id"), FINAL)


def create_table_as_select():
    rows("CREATE TABLE e2e.trino_ctas AS SELECT id FROM e2e.trino")
    same(rows("SELECT count(*) FROM e2e.trino_ctas"), [(3,)])
    rows("DROP TABLE e2e.trino_ctas")


def views():
    rows("CREATE VIEW e2e.trino_view AS SELECT id FROM e2e.trino WHERE id > 1")
    same(rows("SELECT count(*) FROM e2e.trino_view"), [(2,)])
    rows("CREATE OR REPLACE VIEW e2e.trino_view AS SELECT id FROM e2e.trino")
    same(rows("SELECT count(*) FROM e2e.trino_view"), [(3,)])
    rows("DROP VIEW e2e.trino_view")


def rename_and_drop():
    rows("CREATE TABLE e2e.trino_tmp (x INTEGER)")
    rows("ALTER TABLE e2e.trino_tmp RENAME TO e2e.trino_tmp2")
    rows("DROP TABLE e2e.trino_tmp2")
    raises(lambda: rows("SELECT * FROM e2e.trino_tmp2"), "does not exist")


def read(name):
    same(rows(f"SELECT id, name, n FROM e2e.{name} ORDER BY id"), FINAL)


if sys.argv[1] == "write":
    steps(create_namespace, create_and_insert, evolve_schema, evolve_partitioning, time_travel, delete_update_merge, create_table_as_select, views, rename_and_drop)
else:
    matrix(read, "spark_v3")  # Trino 476 knows no format version 3
