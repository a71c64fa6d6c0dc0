# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""Spark 4.1 with the Iceberg 1.12 runtime against the catalog."""

import logging
import os
import sys

from common import CLIENT_ID, CLIENT_SECRET, FINAL, S3_ENDPOINT, S3_KEY, S3_SECRET, TOKEN, URI, WAREHOUSE, matrix, raises, same, steps
from pyspark.sql import SparkSession


def session():
    b = (
        SparkSession.builder.master("local[2]").appName("sluice-e2e")
        .config("spark.jars", os.environ["SPARK_JARS"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.defaultCatalog", "sluice")
    )
    for name, auth in (("sluice", {"token": TOKEN}), ("oauth", {"credential": f"{CLIENT_ID}:{CLIENT_SECRET}", "scope": "catalog", "oauth2-server-uri": URI + "/v1/oauth/tokens"})):
        p = f"spark.sql.catalog.{name}"
        b = b.config(p, "org.apache.iceberg.spark.SparkCatalog").config(p + ".type", "rest").config(p + ".uri", URI).config(p + ".warehouse", WAREHOUSE)
        for k, v in auth.items():
            b = b.config(f"{p}.{k}", v)
        if S3_ENDPOINT:
            for k, v in {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": S3_ENDPOINT, "s3.path-style-access": "true", "s3.access-key-id": S3_KEY,
                         "s3.secret-access-key": S3_SECRET, "client.region": "us-east-1"}.items():
                b = b.config(f"{p}.{k}", v)
    return b.getOrCreate()


# Spark logs each error once more, as one line of JSON with all of its stack.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
spark = session()
spark.sparkContext.setLogLevel("ERROR")
sql = spark.sql


def rows(query):
    return [tuple(r) for r in sql(query).collect()]


def create_namespace():
    sql("CREATE NAMESPACE IF NOT EXISTS sluice.e2e")
    sql("CREATE NAMESPACE sluice.e2e.nested COMMENT 'below'")
    same(("e2e.nested",) in rows("SHOW NAMESPACES IN sluice.e2e"), True)
    sql("DROP NAMESPACE sluice.e2e.nested")


def token_by_client_credentials():
    same(("e2e",) in rows("SHOW NAMESPACES IN oauth"), True)


def create_and_insert():
    sql("CREATE TABLE e2e.spark (id BIGINT, name STRING, n INT) USING iceberg TBLPROPERTIES ('written-by'='spark')")
    sql("INSERT INTO e2e.spark VALUES (1,'one',10),(2,'two',20),(3,'three',30)")
    same(rows("SELECT id, name, n FROM e2e.spark ORDER BY id"), [(1, "one", 10), (2, "two", 20), (3, "three", 30)])


def evolve_schema():
    sql("ALTER TABLE e2e.spark ALTER COLUMN n TYPE BIGINT")
    sql("ALTER TABLE e2e.spark ADD COLUMN extra INT")
    sql("ALTER TABLE e2e.spark RENAME COLUMN extra TO more")
    same([r[0] for r in rows("DESCRIBE TABLE e2e.spark")][:4], ["id", "name", "n", "more"])


def evolve_partitioning():
    sql("ALTER TABLE e2e.spark ADD PARTITION FIELD bucket(4, id)")
    sql("ALTER TABLE e2e.spark WRITE ORDERED BY name")
    sql("INSERT INTO e2e.spark VALUES (4,'four',40,NULL)")


def time_travel_branch_and_tag():
    first = rows("SELECT snapshot_id FROM e2e.spark.snapshots ORDER BY committed_at LIMIT 1")[0][0]
    same(rows(f"SELECT count(*) FROM e2e.spark VERSION AS OF {first}"), [(3,)])
    sql("ALTER TABLE e2e.spark CREATE TAG first AS OF VERSION %d RETAIN 7 DAYS" % first)
    sql("ALTER TABLE e2e.spark CREATE BRANCH audit")
    sql("INSERT INTO e2e.spark.branch_audit VALUES (9,'nine',90,NULL)")
    same(rows("SELECT count(*) FROM e2e.spark VERSION AS OF 'audit'"), [(5,)])
    same(rows("SELECT count(*) FROM e2e.spark"), [(4,)])
    sql("ALTER TABLE e2e.spark DROP BRANCH audit")


def delete_update_merge():
    sql("DELETE FROM e2e.spark WHERE id = 3")
    sql("UPDATE e2e.spark SET name = 'TWO' WHERE id = 2")
    sql("MERGE INTO e2e.spark t USING (SELECT 2 AS id, 'two' AS name) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.name = s.name")
    same(rows("SELECT id, name, n FROM e2e.spark ORDER BY id"), FINAL)


def rollback_procedure():
    sql("CREATE TABLE e2e.spark_rb (x INT) USING iceberg")
    sql("INSERT INTO e2e.spark_rb VALUES (1)")
    first = rows("SELECT snapshot_id FROM e2e.spark_rb.snapshots")[0][0]
    sql("INSERT INTO e2e.spark_rb VALUES (2)")
    sql(f"CALL sluice.system.rollback_to_snapshot('e2e.spark_rb', {first})")
    same(rows("SELECT x FROM e2e.spark_rb"), [(1,)])
    sql("CALL sluice.system.rewrite_data_files('e2e.spark_rb')")
    sql("CALL sluice.system.expire_snapshots(table => 'e2e.spark_rb', older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)")
    same(rows("SELECT x FROM e2e.spark_rb"), [(1,)])
    sql("DROP TABLE e2e.spark_rb PURGE")


def create_table_as_select_and_replace():
    sql("CREATE TABLE e2e.spark_ctas USING iceberg AS SELECT id, name FROM e2e.spark")
    same(rows("SELECT count(*) FROM e2e.spark_ctas"), [(3,)])
    sql("CREATE OR REPLACE TABLE e2e.spark_ctas USING iceberg PARTITIONED BY (id) AS SELECT id FROM e2e.spark WHERE id < 3")
    same(rows("SELECT count(*) FROM e2e.spark_ctas"), [(2,)])
    sql("DROP TABLE e2e.spark_ctas")


def format_version_3_with_deletion_vectors():
    sql("CREATE TABLE e2e.spark_v3 (id BIGINT, name STRING, n INT) USING iceberg TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')")
    sql("INSERT INTO e2e.spark_v3 SELECT id, concat('r', id), CAST(id AS INT) FROM range(100)")
    sql("DELETE FROM e2e.spark_v3 WHERE id % 10 = 3")
    same(rows("SELECT count(*), sum(id) FROM e2e.spark_v3"), [(90, 4950 - sum(range(3, 100, 10)))])
    formats = {r[0] for r in rows("SELECT file_format FROM e2e.spark_v3.delete_files")}
    same(formats, {"PUFFIN"}, "format of delete files")
    same(rows("SELECT count(DISTINCT _row_id) FROM e2e.spark_v3"), [(90,)])


def views():
    sql("CREATE VIEW e2e.spark_view AS SELECT id, name FROM e2e.spark WHERE id > 1")
    same(rows("SELECT count(*) FROM e2e.spark_view"), [(2,)])
    sql("CREATE OR REPLACE VIEW e2e.spark_view (id COMMENT 'key') AS SELECT id FROM e2e.spark")
    same(rows("SELECT count(*) FROM e2e.spark_view"), [(3,)])
    same("spark_view" in [r[1] for r in rows("SHOW VIEWS IN e2e")], True)
    sql("ALTER VIEW e2e.spark_view RENAME TO e2e.spark_view2")
    sql("DROP VIEW e2e.spark_view2")
    raises(lambda: sql("SELECT * FROM e2e.spark_view2"), "cannot be found")


def rename_and_drop():
    sql("CREATE TABLE e2e.spark_tmp (x INT) USING iceberg")
    sql("ALTER TABLE e2e.spark_tmp RENAME TO e2e.spark_tmp2")
    sql("INSERT INTO e2e.spark_tmp2 VALUES (1)")
    sql("DROP TABLE e2e.spark_tmp2 PURGE")
    raises(lambda: sql("SELECT * FROM e2e.spark_tmp2"), "cannot be found")


def read(name):
    if name == "spark_v3":
        same(rows("SELECT count(*), sum(id) FROM e2e.spark_v3"), [(90, 4950 - sum(range(3, 100, 10)))])
    else:
        same(rows(f"SELECT id, name, n FROM e2e.{name} ORDER BY id"), FINAL)


if sys.argv[1] == "write":
    steps(create_namespace, token_by_client_credentials, create_and_insert, evolve_schema, evolve_partitioning, time_travel_branch_and_tag, delete_update_merge,
          rollback_procedure, create_table_as_select_and_replace, format_version_3_with_deletion_vectors, views, rename_and_drop)
else:
    matrix(read)
