# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors
"""Reads metadata files with PyIceberg: each line of the file that it is given is NAME OURS JAVAS.

PyIceberg does not know all of the specification. A file that it cannot read counts as read when it
refuses Java's file of the same case for the same reason; JAVAS is - where Java has written none.
"""

import re
import sys

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile

io = PyArrowFileIO()


def refusal(file):
    try:
        FromInputFile.table_metadata(io.new_input(file))
    except Exception as e:
        # Java spells out the parameters of a type that we leave as they came.
        return re.sub(r"\(\S+\)", "(…)", " ".join(str(e).split()))[:500]
    return None


for line in open(sys.argv[1]):
    name, ours, javas = line.split()
    reason = refusal(ours)
    if reason is None:
        print("ok", name)
    elif javas != "-" and refusal(javas) == reason:
        print("ok", name, "(nor Java's)", reason)
    else:
        print(f"FAIL {name}: PyIceberg cannot read it: {reason}")
