"""``python -m exporter`` is the same program as ``shardwatch``."""

import sys

from exporter.cli import signals


def main() -> int:
    """Run the command line of this process; return the exit code."""
    signals.install_early_handlers(sys.argv[1:])  # before the imports of the next line
    from exporter.cli.main import main as run  # noqa: PLC0415

    return run()


if __name__ == "__main__":
    sys.exit(main())
