# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""DuckDB with its iceberg extension, attached to the catalog as sluice."""

import glob
import os

import duckdb
from common import S3_ENDPOINT, S3_KEY, S3_SECRET, TOKEN, URI, WAREHOUSE


def extension(name):
    """The extension file that its PyPI package brings."""
    package = __import__(f"duckdb_extension_{name}")
    found = glob.glob(os.path.join(os.path.dirname(package.__file__), "**", f"{name}.duckdb_extension"), recursive=True)
    if not found:
        raise RuntimeError(f"no extension file in the package of {name}")
    return found[0]


db = duckdb.connect()
for name in ("avro", "httpfs", "aws", "iceberg"):
    db.execute(f"LOAD '{extension(name)}'")
if S3_ENDPOINT:
    host = S3_ENDPOINT.split("//")[1]
    db.execute(f"CREATE SECRET s3 (TYPE s3, KEY_ID '{S3_KEY}', SECRET '{S3_SECRET}', ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')")
if "SETTINGS" in os.environ:
    # What `sharectl connect duckdb` prints, but for the extensions, which are loaded already.
    db.execute("\n".join(line for line in os.environ["SETTINGS"].splitlines() if not line.startswith(("INSTALL", "LOAD"))))
else:
    db.execute(f"CREATE SECRET sluice (TYPE iceberg, TOKEN '{TOKEN}')")
    db.execute(f"ATTACH '{WAREHOUSE}' AS sluice (TYPE iceberg, ENDPOINT '{URI}', SECRET sluice, ACCESS_DELEGATION_MODE 'none')")


def rows(query):
    return db.execute(query).fetchall()
