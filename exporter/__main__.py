"""``python -m exporter`` is the same program as ``shardwatch``."""

import os
import sys

from exporter.cli.exit_codes import FAILED, UNKNOWN


def drop_working_directory() -> None:
    """Remove the working directory, which ``python -m`` puts first, from the import path.

    In a hostile directory a file named like any module that is imported later would run.  A checkout stays.
    """
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
    working = os.path.realpath(os.curdir)
    if working != root:
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != working]


def drop_inspect_mode() -> None:
    """Start the process anew without PYTHONINSPECT, with which every exit ends in a traceback and a prompt."""
    if os.environ.pop("PYTHONINSPECT", ""):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def main() -> int:
    """Run the command line of this process; return the exit code."""
    drop_inspect_mode()
    drop_working_directory()
    from exporter.cli.import_path import untrusted_import  # noqa: PLC0415 - imports nothing

    if error := untrusted_import():
        print(f"shardwatch: {error}", file=sys.stderr)
        return UNKNOWN if sys.argv[1:2] == ["check"] else FAILED
    from exporter.cli import signals  # noqa: PLC0415

    signals.install_early_handlers(sys.argv[1:])  # before the imports of the next line
    from exporter.cli.main import main as run  # noqa: PLC0415

    return run()


if __name__ == "__main__":
    sys.exit(main())
