# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""Two organisations: the provider makes tables and shares some of them with
sharectl; the recipient reads them with PyIceberg, Spark and DuckDB, and finds
nothing else. Policies and the revocation count from the next request on.
"""

import json
import logging
import os
import subprocess
import tempfile

import pyarrow as pa
from common import CLIENT_ID, CLIENT_SECRET, TOKEN, URI, WAREHOUSE, raises, same, steps
from pyiceberg.catalog import load_catalog

SHARECTL = os.environ["SHARECTL"]
HOME = tempfile.mkdtemp(prefix="sharectl-")
PROVIDER = {"client": CLIENT_ID, "secret": CLIENT_SECRET}
RECIPIENT = {"client": "reader", "secret": ""}
state = {}


def sharectl(*args, who=PROVIDER):
    """What sharectl prints for an organisation; what else it says is in state["said"]."""
    env = dict(os.environ, HOME=HOME, XDG_CONFIG_HOME=HOME, SHARECTL_URI=URI, SHARECTL_WAREHOUSE=WAREHOUSE,
               SHARECTL_CLIENT_ID=who["client"], SHARECTL_CLIENT_SECRET=who["secret"])
    done = subprocess.run([SHARECTL, *args], env=env, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise AssertionError(f"sharectl {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}")
    state["said"] = done.stderr
    return done.stdout


def rows(ids):
    return pa.table({"id": pa.array(ids, pa.int64()), "region": pa.array(["EU" if i % 2 else "US" for i in ids])})


def the_provider_makes_tables():
    catalog = load_catalog("provider", type="rest", uri=URI, warehouse=WAREHOUSE, token=TOKEN)
    for ns, name, ids in (("sales", "orders", [1, 2, 3]), ("sales", "people", [7]), ("reference", "countries", [4, 5]), ("internal", "salaries", [9])):
        catalog.create_namespace_if_not_exists(ns)
        data = rows(ids)
        catalog.create_table((ns, name), schema=data.schema).append(data)


def the_provider_shares():
    sharectl("organisation", "create", "globex")
    RECIPIENT["secret"] = sharectl("serviceaccount", "create", RECIPIENT["client"], "--organisation", "globex").strip()
    sharectl("share", "create", "partners", "--description", "Orders for partners")
    sharectl("share", "add", "partners", "--table", "sales.orders=public.orders", "--namespace", "reference")
    sharectl("recipient", "create", "globex", "--is", "globex", "--token", "account:organisation=globex")
    with tempfile.NamedTemporaryFile("w", suffix=".md") as terms:
        terms.write("Not to be given to others.\n")
        terms.flush()
        state["grant"] = sharectl("grant", "create", "partners", "globex", "--terms-file", terms.name).strip()


def open_share():
    return load_catalog("recipient", type="rest", uri=URI, warehouse="share/partners", credential=f"{RECIPIENT['client']}:{RECIPIENT['secret']}",
                        scope="catalog", **{"oauth2-server-uri": URI + "/v1/oauth/tokens"})


def the_recipient_accepts_the_terms():
    raises(open_share, "terms of share")
    shown = sharectl("grant", "accept", state["grant"], "--yes", who=RECIPIENT)
    same("Not to be given to others" in shown + state["said"], True)
    state["share"] = open_share()


def pyiceberg_sees_the_share_alone():
    c = state["share"]
    same(sorted(c.list_namespaces()), [("public",), ("reference",)])
    same(c.list_tables("public"), [("public", "orders")])
    same(c.list_tables("reference"), [("reference", "countries")])
    same(sorted(c.load_table("public.orders").scan().to_arrow()["id"].to_pylist()), [1, 2, 3])
    same(sorted(c.load_table("reference.countries").scan().to_arrow()["id"].to_pylist()), [4, 5])
    for hidden in ("sales.orders", "public.people", "reference.orders", "internal.salaries"):
        raises(lambda hidden=hidden: c.load_table(hidden), "does not exist")
    for hidden in ("sales", "internal"):
        raises(lambda hidden=hidden: c.list_tables(hidden), "does not exist")
    raises(lambda: load_catalog("w", type="rest", uri=URI, warehouse=WAREHOUSE, credential=f"{RECIPIENT['client']}:{RECIPIENT['secret']}", scope="catalog",
                                **{"oauth2-server-uri": URI + "/v1/oauth/tokens"}), "does not exist")


def pyiceberg_changes_nothing():
    c = state["share"]
    raises(lambda: c.create_namespace("mine"), "read-only")
    raises(lambda: c.drop_table("public.orders"), "read-only")
    raises(lambda: c.load_table("public.orders").append(rows([8])), "read-only")
    raises(lambda: c.rename_table("public.orders", "public.mine"), "read-only")


def spark_sees_the_share_alone():
    from pyspark.sql import SparkSession

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    settings = {}
    for line in sharectl("connect", "spark", "--share", "partners", "--as", "shared", "--with-secret", "--storage", "file", who=RECIPIENT).splitlines():
        key, _, value = line.removesuffix(" \\").strip().removeprefix("--conf ").partition("=")
        if key.startswith("spark.sql."):
            settings[key] = value
    same(settings["spark.sql.catalog.shared.warehouse"], "share/partners")
    builder = SparkSession.builder.master("local[2]").appName("sluice-shares").config("spark.jars", os.environ["SPARK_JARS"]).config("spark.ui.enabled", "false")
    # Without its cache of tables Spark asks for each query anew.
    builder = builder.config("spark.sql.catalog.shared.cache-enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    for key, value in settings.items():
        builder = builder.config(key, value)
    state["spark"] = spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def sql(query):
        return [tuple(r) for r in spark.sql(query).collect()]

    state["sql"] = sql
    same(sorted(sql("SHOW NAMESPACES IN shared")), [("public",), ("reference",)])
    same([r[1] for r in sql("SHOW TABLES IN shared.public")], ["orders"])
    same(sql("SELECT sum(o.id), count(*) FROM shared.public.orders o"), [(6, 3)])
    same(sql("SELECT count(*) FROM shared.reference.countries"), [(2,)])
    raises(lambda: sql("SELECT * FROM shared.internal.salaries"), "cannot be found")
    raises(lambda: sql("SELECT * FROM shared.sales.orders"), "cannot be found")
    raises(lambda: sql("INSERT INTO shared.public.orders VALUES (8, 'EU')"), "read-only")


def a_policy_closes_a_table():
    sharectl("policy", "create", "provider/main")
    with tempfile.TemporaryDirectory() as d:
        def activate(text):
            with open(os.path.join(d, "p.cedar"), "w") as f:
                f.write(text)
            version = json.loads(sharectl("policy", "upload", "provider/main", d, "-o", "json"))
            version = version.get("version", version)
            sharectl("policy", "activate", "provider/main", str(version["version"] if isinstance(version, dict) else version))

        share = 'permit(principal in Organisation::"globex", action in Action::"read", resource in Share::"partners");\n'
        own = f'permit(principal in Organisation::"{state_organisation()}", action, resource);\n'
        use = 'permit(principal in Organisation::"globex", action == Action::"useShare", resource == Share::"partners");\n'
        activate(own + use + share)
        same(state["share"].load_table("public.orders").scan().to_arrow().num_rows, 3)
        activate(own + use + share + f'@id("closed") forbid(principal, action == Action::"readTable", resource == Table::"{WAREHOUSE}/sales/orders");')
        raises(lambda: state["share"].load_table("public.orders"), "does not exist")
        raises(lambda: state["sql"]("SELECT * FROM shared.public.orders"), "cannot be found")
        activate(own + use + share + 'forbid(principal in Organisation::"globex", action == Action::"readTable", resource) when { context.row has region && context.row.region == "US" };')
        raises(lambda: state["share"].load_table("public.orders"), "some rows")
        sharectl("policy", "rollback", "provider/main")
        raises(lambda: state["share"].load_table("public.orders"), "does not exist")
        activate(own + use + share)
        same(state["share"].load_table("public.orders").scan().to_arrow().num_rows, 3)


def state_organisation():
    return json.loads(sharectl("warehouse", "show", WAREHOUSE, "-o", "json"))["organisation"]


def the_provider_revokes():
    c = state["share"]
    c.load_table("public.orders")
    sharectl("grant", "revoke", state["grant"], "--reason", "the contract has ended", "--yes")
    raises(lambda: c.load_table("public.orders"), "does not exist")
    raises(lambda: c.list_namespaces(), "does not exist")
    raises(open_share, "does not exist")
    raises(lambda: state["sql"]("SELECT count(*) FROM shared.reference.countries"), "")
    state["spark"].stop()


def the_audit_log_has_it_all():
    log = sharectl("audit", "query", "--chain", "administration", "-o", "json")
    for word in ("createShare", "createGrant", "acceptGrantTerms", "activatePolicyVersion", "revokeGrant"):
        same((word, f'"{word}"' in log), (word, True))
    for secret in (RECIPIENT["secret"], CLIENT_SECRET):
        same(secret in log, False)


steps(the_provider_makes_tables, the_provider_shares, the_recipient_accepts_the_terms, pyiceberg_sees_the_share_alone, pyiceberg_changes_nothing,
      spark_sees_the_share_alone, a_policy_closes_a_table, the_provider_revokes, the_audit_log_has_it_all)
