"""``python -m exporter.catalog`` prints the metric reference; with ``--names`` the module of names for queries."""

import sys

from exporter.catalog.reference import names, reference

if __name__ == "__main__":
    print(names() if sys.argv[1:] == ["--names"] else reference(), end="")
