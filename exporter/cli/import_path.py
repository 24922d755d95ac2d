"""Where modules are imported from: nothing that another user can write to.

Many modules are imported late, so a file named like one of them would run as the daemon.  ``exporter.__main__``
removes the working directory, which ``python -m`` puts first.
"""

from __future__ import annotations

import os
import stat
import sys

from exporter.errors import ShardwatchError


class ImportPathError(ShardwatchError):
    """Modules would be imported from a directory that other users can write to."""


def check_import_path() -> None:
    """Raise ImportPathError for a directory on the import path that anybody may write to."""
    for entry in sys.path:
        if _is_world_writable(entry):
            raise ImportPathError(
                f"{entry} is on Python's import path, and anybody may write to it; install the program elsewhere, "
                "or remove the directory from PYTHONPATH"
            )


def _is_world_writable(entry: str) -> bool:
    try:
        return bool(os.stat(entry or os.curdir).st_mode & stat.S_IWOTH)
    except OSError:
        return False  # nothing is imported from there
