"""Programs that the tests need, artefacts that they build once, and running without root's powers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest

CI = os.environ.get("CI") == "true"
# Debian's name first, then the one upstream uses.
NAMES = {
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "node_exporter": ("prometheus-node-exporter", "node_exporter"),
}


def tool(name: str) -> str:
    """Return the path of a program that is installed or in the virtual environment; skip without it, but never in CI."""
    for candidate in NAMES.get(name, (name,)):
        if path := shutil.which(candidate) or shutil.which(candidate, path=pathlib.Path(sys.executable).parent):
            return path
    if CI:
        pytest.fail(f"{name} is missing, and CI must not skip")
    pytest.skip(f"{name} is not installed")


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Hold a lock on ``path`` against the other processes of this and any other test run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """Return a folder that ``build`` has filled, once for a test run however many workers it has."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / "built" / name
    with locked(root / "built" / f"{name}.lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(folder)
    return folder


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Restrict this process to files that everybody may read; file modes do not stop root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
