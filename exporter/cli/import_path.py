"""Where modules are imported from: nothing that another user can write to.

Many modules are imported late, so a file named like one of them would run as this user.  Until the import path has
been checked nothing is imported that the interpreter has not loaded itself, not even from the standard library: the
directories of PYTHONPATH come before it.
"""

import os
import stat
import sys

from exporter.config.trusted_paths import unprotected_directory

# What the program imports: it may be writable although the directory above it is not.
PACKAGES = (
    "alerts", "bcrypt", "cramjam", "dashboards", "exporter", "google", "grafanalib", "msgspec", "opentelemetry",
    "prometheus_client", "pynvml.py", "requests", "urllib3", "yaml",
)  # fmt: skip


def untrusted_import() -> str:
    """Return the error, in one line, if modules would be imported from where other users can write; else ""."""
    # Whoever owns the root directory or this file has no need of another module.
    trusted = {0, os.geteuid(), os.stat("/").st_uid, os.stat(__file__).st_uid}
    for entry in sys.path:
        place = unprotected_directory(os.path.join(entry, "module"), trusted, stat.S_IWOTH) or _open_package(
            entry, trusted
        )
        if place is not None:
            return (
                f"modules would be imported from {entry or os.curdir}, and other users may write to {place}; install "
                "the program elsewhere, correct the permissions, or remove the directory from PYTHONPATH"
            )
    return ""


def _open_package(entry: str, trusted: set[int]) -> str | None:
    for name in PACKAGES:
        place = os.path.join(entry, name)
        try:
            status = os.stat(place)
        except OSError:
            continue
        if status.st_mode & stat.S_IWOTH or status.st_uid not in trusted:
            return place
    return None
