"""Programs that the tests need, and running without root's powers."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest


def tool(name: str) -> str:
    """Give the path of a program that no Python package brings; skip without it, but never in CI."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is missing, and CI must not skip")
        pytest.skip(f"{name} is not installed")
    return path


@contextlib.contextmanager
def without_root():
    """Let this process read only what everybody may read; for root, whom no file mode stops."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
