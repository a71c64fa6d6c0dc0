# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""PyIceberg against the catalog."""

import sys

import pyarrow as pa
from common import CLIENT_ID, CLIENT_SECRET, FINAL, S3_ENDPOINT, S3_KEY, S3_SECRET, TOKEN, URI, WAREHOUSE, matrix, raises, same, steps
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType
from pyiceberg.view.metadata import ViewVersion

io = {"s3.endpoint": S3_ENDPOINT, "s3.access-key-id": S3_KEY, "s3.secret-access-key": S3_SECRET, "s3.region": "us-east-1"} if S3_ENDPOINT else {}
catalog = load_catalog("sluice", type="rest", uri=URI, warehouse=WAREHOUSE, token=TOKEN, **io)
T = ("e2e", "pyiceberg")


def rows(table, **kwargs):
    return sorted((r["id"], r["name"], r["n"]) for r in table.scan(**kwargs).to_arrow().to_pylist())


def create_namespace():
    catalog.create_namespace_if_not_exists("e2e")
    raises(lambda: catalog.create_namespace("e2e"), "already exists")
    same(("e2e",) in catalog.list_namespaces(), True)


def token_by_client_credentials():
    c = load_catalog("x", type="rest", uri=URI, warehouse=WAREHOUSE, credential=f"{CLIENT_ID}:{CLIENT_SECRET}", scope="catalog")
    same(("e2e",) in c.list_namespaces(), True)


def create_and_append():
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("n", pa.int32())])
    table = catalog.create_table(T, schema=schema, properties={"owner": "pyiceberg"})
    table.append(pa.table({"id": [1, 2, 3], "name": ["one", "two", "three"], "n": [10, 20, 30]}, schema=schema))
    same(rows(catalog.load_table(T)), [(1, "one", 10), (2, "two", 20), (3, "three", 30)])


def evolve_schema():
    with catalog.load_table(T).update_schema() as u:
        u.update_column("n", field_type=LongType())
        u.add_column("extra", IntegerType())
    with catalog.load_table(T).update_schema() as u:
        u.rename_column("extra", "more")
    same([f.name for f in catalog.load_table(T).schema().fields], ["id", "name", "n", "more"])


def evolve_partitioning():
    with catalog.load_table(T).update_spec() as u:
        u.add_field("id", BucketTransform(4), "id_bucket")
    table = catalog.load_table(T)
    same([f.name for f in table.spec().fields], ["id_bucket"])
    table.append(pa.table({"id": [4], "name": ["four"], "n": [40], "more": pa.array([None], pa.int32())}))


def time_travel_and_tag():
    table = catalog.load_table(T)
    first = table.history()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "first").commit()
    same(len(rows(catalog.load_table(T), snapshot_id=first)), 3)
    same(catalog.load_table(T).refs()["first"].snapshot_id, first)


def delete_rows():
    catalog.load_table(T).delete(EqualTo("id", 3))
    same(rows(catalog.load_table(T)), FINAL)


def rename_and_drop():
    t = ("e2e", "pyiceberg_tmp")
    catalog.create_table(t, schema=pa.schema([pa.field("x", pa.int64())]))
    catalog.rename_table(t, ("e2e", "pyiceberg_tmp2"))
    same(catalog.table_exists(t), False)
    raises(lambda: catalog.rename_table(("e2e", "pyiceberg_tmp2"), T), "already exists")
    catalog.drop_table(("e2e", "pyiceberg_tmp2"))
    raises(lambda: catalog.load_table(("e2e", "pyiceberg_tmp2")), "does not exist")


def concurrent_commit_is_refused():
    a, b = catalog.load_table(T), catalog.load_table(T)
    with a.update_schema() as u:
        u.add_column("by_a", IntegerType())

    def late():
        with b.update_schema() as u:
            u.add_column("by_b", IntegerType())

    raises(late, "Requirement failed")
    with catalog.load_table(T).update_schema() as u:
        u.delete_column("by_a")


def create_table_transaction():
    t = ("e2e", "pyiceberg_ctas")
    data = pa.table({"x": [1, 2]})
    with catalog.create_table_transaction(t, schema=data.schema) as tx:
        tx.append(data)
    same(catalog.load_table(t).scan().to_arrow().num_rows, 2)
    catalog.purge_table(t)


def views():
    v = ("e2e", "pyiceberg_view")
    version = ViewVersion(schema_id=0, default_namespace=("e2e",), representations=[
        {"type": "sql", "dialect": "spark", "sql": "SELECT id FROM pyiceberg"}, {"type": "sql", "dialect": "trino", "sql": "SELECT id FROM pyiceberg"},
    ])
    catalog.create_view(v, schema=pa.schema([pa.field("id", pa.int64())]), view_version=version)
    raises(lambda: catalog.create_view(v, schema=pa.schema([pa.field("id", pa.int64())]), view_version=version), "already exists")
    same(v in catalog.list_views("e2e"), True)
    same(catalog.load_view(v).sql_for("trino").sql, "SELECT id FROM pyiceberg")
    same(catalog.view_exists(v), True)
    catalog.drop_view(v)
    same(catalog.view_exists(v), False)


def read(name):
    table = catalog.load_table(("e2e", name))
    if name == "spark_v3":  # with deletion vectors
        got = table.scan().to_arrow()
        same((got.num_rows, sum(got["id"].to_pylist())), (90, 4950 - sum(range(3, 100, 10))))
    else:
        same(rows(table), FINAL)


if sys.argv[1] == "write":
    steps(create_namespace, token_by_client_credentials, create_and_append, evolve_schema, evolve_partitioning, time_travel_and_tag, delete_rows,
          rename_and_drop, concurrent_commit_is_refused, create_table_transaction, views)
else:
    matrix(read)
