"""``python -m exporter.gateways`` prints the reference of gateways; with ``--outcomes`` how requests end."""

import sys

from exporter.gateways.reference import outcomes, reference

if __name__ == "__main__":
    print(outcomes() if sys.argv[1:] == ["--outcomes"] else reference(), end="")
