# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""PyIceberg with tokens of an identity provider and with client certificates.

The first argument is what it signs in with: "provider" (OIDC_PROVIDER=yes for
what only the server of the identity part has), "delegated", "workload" (with
NAMESPACE) or "certificate".
CA is the authority of the catalog's certificate.
"""

import os
import sys

import pyarrow as pa
from common import CLIENT_SECRET, TOKEN, URI, WAREHOUSE, raises, same, steps
from pyiceberg.catalog import load_catalog

CA = os.environ["CA"]
TOKEN_URL = os.environ.get("TOKEN_URL", "")
CERTIFICATES = os.environ.get("CERTIFICATES", "")  # their folder
T = ("idp", "t")
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def catalog(ssl=None, **more):
    return load_catalog("sluice", type="rest", uri=URI, warehouse=WAREHOUSE, ssl={"cabundle": CA, **(ssl or {})}, **more)


def by_credentials(client, **more):
    return catalog(credential=f"{client}:{CLIENT_SECRET}", scope="catalog", **{"oauth2-server-uri": TOKEN_URL}, **more)


# Without it, PyIceberg sends the header "Authorization: Bearer None".
NOOP = {"type": "noop"}


def by_certificate(name):
    return catalog(auth=NOOP, ssl={"client": {"cert": f"{CERTIFICATES}/{name}.crt", "key": f"{CERTIFICATES}/{name}.key"}})


def ids(c):
    return sorted(c.load_table(T).scan().to_arrow()["id"].to_pylist())


def token_by_client_credentials_writes():
    c = by_credentials("etl")
    c.create_namespace("idp")
    c.create_table(T, schema=SCHEMA).append(pa.table({"id": [1, 2], "name": ["one", "two"]}, schema=SCHEMA))
    same(ids(by_credentials("etl")), [1, 2])


def a_group_that_reads_may_not_write():
    c = by_credentials("analyst")
    same(ids(c), [1, 2])
    raises(lambda: c.create_namespace("analysts_own"), "needs write access")
    raises(lambda: c.load_table(T).append(pa.table({"id": [9], "name": ["nine"]}, schema=SCHEMA)), "needs write access")
    same(ids(c), [1, 2])


def a_client_without_grants_sees_nothing():
    raises(lambda: by_credentials("stranger"), "warehouse")


def a_wrong_secret_gets_no_token():
    raises(lambda: catalog(credential="etl:wrong-secret", scope="catalog", **{"oauth2-server-uri": TOKEN_URL}), "_client:")


def http_basic():
    auth = {"type": "oauth2", "oauth2": {"client_id": "etl-basic", "client_secret": CLIENT_SECRET, "token_url": TOKEN_URL, "scope": "catalog"}}
    same(ids(catalog(auth=auth)), [1, 2])


def an_opaque_token():
    same(ids(by_credentials("etl", resource="urn:sluice:opaque")), [1, 2])


def a_token_for_another_audience_is_refused():
    raises(lambda: by_credentials("etl", resource="urn:elsewhere"), "not authorized")


def a_token_of_another_algorithm_is_refused():
    raises(lambda: by_credentials("etl", resource="urn:sluice:ps256"), "not authorized")


def an_exchanged_token_reads_and_writes():
    c = catalog(token=TOKEN)
    same(ids(c), [1, 2])
    c.create_namespace("on_behalf")


def a_service_account_reads_and_writes():
    c = catalog(token=TOKEN)
    name = os.environ["NAMESPACE"]
    c.create_namespace(name)
    c.create_table((name, "t"), schema=SCHEMA).append(pa.table({"id": [1], "name": ["one"]}, schema=SCHEMA))
    same(c.load_table((name, "t")).scan().to_arrow().num_rows, 1)


def a_spiffe_id_reads_and_writes():
    c = by_certificate("mesh-loader")
    c.create_namespace("meshed")
    c.create_table(("meshed", "t"), schema=SCHEMA).append(pa.table({"id": [1], "name": ["one"]}, schema=SCHEMA))
    same(c.load_table(("meshed", "t")).scan().to_arrow().num_rows, 1)


def a_common_name_reads():
    c = by_certificate("office-reader")
    same(("meshed",) in c.list_namespaces(), True)
    same(c.load_table(("meshed", "t")).scan().to_arrow().num_rows, 1)
    raises(lambda: c.create_namespace("readers_own"), "needs write access")


def a_subject_without_grants_sees_nothing():
    raises(lambda: by_certificate("mesh-stranger"), "warehouse")


def a_certificate_of_another_authority_is_refused():
    raises(lambda: by_certificate("rogue-loader"), "not authorized")


def no_certificate_is_refused():
    raises(lambda: catalog(auth=NOOP), "not authorized")


kinds = {
    "provider": [
        token_by_client_credentials_writes,
        a_group_that_reads_may_not_write,
        a_client_without_grants_sees_nothing,
        a_wrong_secret_gets_no_token,
    ],
    "delegated": [an_exchanged_token_reads_and_writes],
    "workload": [a_service_account_reads_and_writes],
    "certificate": [
        a_spiffe_id_reads_and_writes,
        a_common_name_reads,
        a_subject_without_grants_sees_nothing,
        a_certificate_of_another_authority_is_refused,
        no_certificate_is_refused,
    ],
}
if os.environ.get("OIDC_PROVIDER"):
    kinds["provider"] += [http_basic, an_opaque_token, a_token_for_another_audience_is_refused, a_token_of_another_algorithm_is_refused]
steps(*kinds[sys.argv[1]])
