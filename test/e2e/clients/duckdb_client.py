# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""DuckDB with its iceberg extension against the catalog."""

import sys

import pyarrow as pa
from common import CLIENT_ID, CLIENT_SECRET, FINAL, TOKEN, URI, WAREHOUSE, matrix, raises, same, steps
from duckdb_catalog import db, rows
from pyiceberg.catalog import load_catalog
from pyiceberg.view.metadata import ViewVersion


def create_namespace():
    db.execute("CREATE SCHEMA IF NOT EXISTS sluice.e2e")
    same(("e2e",) in rows("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'sluice'"), True)


def token_by_client_credentials():
    db.execute(f"CREATE SECRET oauth (TYPE iceberg, CLIENT_ID '{CLIENT_ID}', CLIENT_SECRET '{CLIENT_SECRET}', OAUTH2_SERVER_URI '{URI}/v1/oauth/tokens', OAUTH2_SCOPE 'catalog')")
    db.execute(f"ATTACH '{WAREHOUSE}' AS oauth (TYPE iceberg, ENDPOINT '{URI}', SECRET oauth, ACCESS_DELEGATION_MODE 'none')")
    same(("e2e",) in rows("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'oauth'"), True)


def create_and_insert():
    db.execute("CREATE TABLE sluice.e2e.duckdb (id BIGINT, name VARCHAR, n INTEGER)")
    db.execute("INSERT INTO sluice.e2e.duckdb VALUES (1,'one',10),(2,'two',20),(3,'three',30)")
    same(rows("SELECT id, name, n FROM sluice.e2e.duckdb ORDER BY id"), [(1, "one", 10), (2, "two", 20), (3, "three", 30)])


def evolve_schema():
    db.execute("ALTER TABLE sluice.e2e.duckdb ALTER n TYPE BIGINT")
    db.execute("ALTER TABLE sluice.e2e.duckdb ADD COLUMN extra INTEGER")
    db.execute("ALTER TABLE sluice.e2e.duckdb RENAME COLUMN extra TO more")
    db.execute("ALTER TABLE sluice.e2e.duckdb DROP COLUMN more")
    same([(r[0], r[1]) for r in rows("DESCRIBE sluice.e2e.duckdb")], [("id", "BIGINT"), ("name", "VARCHAR"), ("n", "BIGINT")])


# After the delete: DuckDB 1.5.5 writes position deletes under the newest spec, whatever the spec of the data file. Other
# engines look for them under the file's own and would find its deleted rows.
def evolve_partitioning():
    db.execute("ALTER TABLE sluice.e2e.duckdb SET PARTITIONED BY (bucket(4, id))")


def second_commit_and_transaction():
    db.execute("BEGIN")
    db.execute("INSERT INTO sluice.e2e.duckdb VALUES (4,'four',40)")
    db.execute("COMMIT")
    same(rows("SELECT id, name, n FROM sluice.e2e.duckdb ORDER BY id"), FINAL)


def time_travel():
    snapshots = rows("SELECT snapshot_id FROM iceberg_snapshots(sluice.e2e.duckdb) ORDER BY sequence_number")
    same(rows(f"SELECT count(*) FROM sluice.e2e.duckdb AT (VERSION => {snapshots[0][0]})"), [(3,)])


def delete_rows():
    db.execute("DELETE FROM sluice.e2e.duckdb WHERE id = 3")
    same(rows("SELECT id, name, n FROM sluice.e2e.duckdb ORDER BY id"), [(1, "one", 10), (2, "two", 20)])


def create_table_as_select():
    db.execute("CREATE TABLE sluice.e2e.duckdb_ctas AS SELECT id FROM sluice.e2e.duckdb")
    same(rows("SELECT count(*) FROM sluice.e2e.duckdb_ctas"), [(3,)])


def rename_and_drop():
    db.execute("ALTER TABLE sluice.e2e.duckdb_ctas RENAME TO duckdb_tmp")
    same(rows("SELECT count(*) FROM sluice.e2e.duckdb_tmp"), [(3,)])
    raises(lambda: rows("SELECT * FROM sluice.e2e.duckdb_ctas"), "does not exist")
    db.execute("DROP TABLE sluice.e2e.duckdb_tmp")
    raises(lambda: rows("SELECT * FROM sluice.e2e.duckdb_tmp"), "does not exist")


# DuckDB 1.5.5 sees no views of a catalog: it never asks for them, and can make none there. This holds it to that, so that
# the day it learns them this step fails and real ones take its place. A view of its own over the catalog's tables works.
def views_of_the_catalog_are_not_seen():
    catalog = load_catalog("sluice", type="rest", uri=URI, warehouse=WAREHOUSE, token=TOKEN)
    view = ("e2e", "duckdb_view")
    catalog.create_view(view, schema=pa.schema([pa.field("id", pa.int64())]), view_version=ViewVersion(
        schema_id=0, default_namespace=("e2e",), representations=[{"type": "sql", "dialect": "duckdb", "sql": "SELECT id FROM duckdb"}]))
    raises(lambda: rows("SELECT id FROM sluice.e2e.duckdb_view"), "Table with name duckdb_view does not exist")
    same(rows("SELECT view_name FROM duckdb_views() WHERE database_name = 'sluice'"), [])
    same([r for r in rows("SELECT table_name FROM duckdb_tables() WHERE database_name = 'sluice'") if "view" in r[0]], [])
    raises(lambda: db.execute("CREATE VIEW sluice.e2e.duckdb_own AS SELECT id FROM sluice.e2e.duckdb"), "Not implemented Error: Create View")
    raises(lambda: db.execute("DROP VIEW sluice.e2e.duckdb_view"), "View with name duckdb_view does not exist")
    same(catalog.view_exists(view), True)
    same([v for v in catalog.list_views("e2e") if v[1] == "duckdb_own"], [])
    catalog.drop_view(view)


def view_of_its_own_over_the_catalog():
    db.execute("CREATE VIEW own AS SELECT id FROM sluice.e2e.duckdb WHERE id > 1")
    same(rows("SELECT id FROM own ORDER BY id"), [(2,), (4,)])


def read(name):
    if name == "spark_v3":  # with deletion vectors
        same(rows("SELECT count(*), sum(id) FROM sluice.e2e.spark_v3"), [(90, 4950 - sum(range(3, 100, 10)))])
    else:
        same(rows(f"SELECT id, name, n FROM sluice.e2e.{name} ORDER BY id"), FINAL)


if sys.argv[1] == "write":
    steps(create_namespace, token_by_client_credentials, create_and_insert, evolve_schema, delete_rows, evolve_partitioning, second_commit_and_transaction, time_travel, create_table_as_select, rename_and_drop,
          views_of_the_catalog_are_not_seen, view_of_its_own_over_the_catalog)
else:
    matrix(read)
