"""``python -m exporter`` is the same program as ``shardwatch``."""

import sys

from exporter.cli import main

if __name__ == "__main__":
    sys.exit(main())
