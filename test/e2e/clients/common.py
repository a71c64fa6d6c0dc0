# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""What the clients' scripts have in common.

Each script reads the environment: URI, WAREHOUSE, TOKEN, CLIENT_ID,
CLIENT_SECRET, S3_ENDPOINT, S3_KEY, S3_SECRET (empty on local files). It runs
its steps in order and prints "ok NAME SECONDS" or "FAIL NAME: REASON" per
step; a step that fails does not end the others. The first argument is "write"
(make and change a table) or "read" (read what every client wrote).
"""

import os
import sys
import time
import traceback

URI = os.environ["URI"]
WAREHOUSE = os.environ["WAREHOUSE"]
TOKEN = os.environ["TOKEN"]
CLIENT_ID = os.environ["CLIENT_ID"]
CLIENT_SECRET = os.environ["CLIENT_SECRET"]
S3_ENDPOINT = os.environ.get("S3_ENDPOINT", "")
S3_KEY = os.environ.get("S3_KEY", "")
S3_SECRET = os.environ.get("S3_SECRET", "")

# What every client's table e2e.<client> holds when its script has written it.
FINAL = [(1, "one", 10), (2, "two", 20), (4, "four", 40)]


def others():
    """The clients whose tables are there to read."""
    return os.environ.get("WRITTEN", "").split()


def steps(*functions):
    failed = 0
    for f in functions:
        name = f.__name__.replace("_", " ")
        start = time.monotonic()
        try:
            f()
            print(f"ok {name} {time.monotonic() - start:.2f}", flush=True)
        except Exception as e:  # one step's failure is its own
            failed += 1
            traceback.print_exc(file=sys.stdout)
            text = " ".join(str(e).split())[:600] or type(e).__name__
            print(f"FAIL {name}: {text}", flush=True)
    sys.exit(1 if failed else 0)


def matrix(read, *skipped):
    """One step for each client's table but the skipped ones: read(name) must find what was written."""

    def step(name):
        def f():
            read(name)

        f.__name__ = f"read_the_table_of_{name}"
        return f

    steps(*(step(name) for name in others() if name not in skipped))


def same(got, want, what="rows"):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def raises(f, part):
    try:
        f()
    except Exception as e:
        if part.lower() not in str(e).lower():
            raise AssertionError(f"expected an error with {part!r}, got: {e}") from e
        return
    raise AssertionError(f"expected an error with {part!r}, got none")
