# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""PyIceberg and DuckDB read the audit table, system.audit."""

import os
import time

from common import TOKEN, URI, WAREHOUSE, raises, same, steps
from duckdb_catalog import db, rows
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo

REQUESTS = int(os.environ["REQUESTS"])
catalog = load_catalog("sluice", type="rest", uri=URI, warehouse=WAREHOUSE, token=TOKEN)
AUDIT = ("system", "audit")
# The order of the log, as docs/audit.md says it.
ORDERED = """SELECT line FROM (SELECT *, min(time) OVER (PARTITION BY partition) AS began FROM sluice.system.audit)
ORDER BY began, partition, seq, type = 'audit.checkpoint', time"""


def find_every_request():
    """The table is behind by its interval."""
    for deadline in range(60):
        try:
            found = catalog.load_table(AUDIT).scan(selected_fields=("operation", "resource", "status")).to_arrow().to_pylist()
        except Exception:
            found = []
        names = [f"audited_{n}" for n in range(REQUESTS)]
        got = {(r["operation"], r["resource"]): 0 for r in found}
        for r in found:
            got[r["operation"], r["resource"]] += 1
        want = {("createNamespace", n): 1 for n in names} | {("loadNamespaceMetadata", n): 1 for n in names} | {("loadNamespaceMetadata", "audited_nowhere"): REQUESTS}
        missing = {k: (got.get(k), n) for k, n in want.items() if got.get(k) != n}
        if not missing:
            return
        time.sleep(1)
    raise AssertionError(f"not as often as they were made: {missing}")


def filter_by_outcome():
    table = catalog.load_table(AUDIT)
    found = table.scan(row_filter=EqualTo("outcome", "failed"), selected_fields=("resource", "status", "principal", "address")).to_arrow().to_pylist()
    same({(r["resource"], r["status"], r["address"]) for r in found}, {("audited_nowhere", 404, "127.0.0.1")})
    same(len(found), REQUESTS)
    same([f.name for f in table.spec().fields], ["day"])


def nobody_changes_it():
    raises(lambda: catalog.load_table(AUDIT).delete("status = 404"), "belongs to the server")
    raises(lambda: catalog.drop_table(AUDIT), "belongs to the server")
    raises(lambda: catalog.rename_table(AUDIT, ("system", "mine")), "belongs to the server")


def query_with_duckdb():
    same(rows("SELECT count(*) FROM sluice.system.audit WHERE outcome = 'failed'"), [(REQUESTS,)])
    same(rows("SELECT count(*) FROM sluice.system.audit WHERE operation = 'createNamespace' AND resource LIKE 'audited_%' AND decision = 'allow'"), [(REQUESTS,)])
    same(rows("SELECT count(*) - count(DISTINCT line) FROM sluice.system.audit"), [(0,)])
    same(rows("SELECT count(*) FROM sluice.system.audit WHERE policies IS NOT NULL"), [(0,)])


def write_the_lines():
    db.execute(f"COPY ({ORDERED}) TO '{os.environ['LINES']}' (FORMAT csv, HEADER false, QUOTE '', DELIMITER E'\\x01')")


steps(find_every_request, filter_by_outcome, nobody_changes_it, query_with_duckdb, write_the_lines)
