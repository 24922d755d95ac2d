"""Which directories only trusted users can write to, and whether modules are imported from no other.

Many modules are imported late, so a file named like one of them would run as this user.  Until the import path has been
checked nothing is imported that the interpreter has not loaded itself, of the standard library neither: a directory of
PYTHONPATH comes before it.
"""

import os
import stat
import sys

# What the program imports: a directory of theirs may be open although the one above it is not.
PACKAGES = (
    "alerts", "bcrypt", "certifi", "charset_normalizer", "dashboards", "exporter", "grafanalib", "idna", "msgspec",
    "prometheus_client", "pynvml.py", "requests", "urllib3", "yaml",
)  # fmt: skip
