"""The npm packages of the tests, installed once from their lock file into the checkout's cache."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from tests.support.tools import CI, locked, tool

HERE = pathlib.Path(__file__).parent / "typescript"
CACHE = pathlib.Path(__file__).parents[2] / ".cache" / "typescript"


def node_modules() -> pathlib.Path:
    """Return the folder of the packages; skip without npm or a network, but never in CI."""
    tool("node")
    npm = tool("npm")
    lock = (HERE / "package-lock.json").read_bytes()
    stamp = CACHE / "installed.json"
    with locked(CACHE.with_suffix(".lock")):
        if not stamp.exists() or stamp.read_bytes() != lock:
            _install(npm)
            stamp.write_bytes(lock)
    return CACHE / "node_modules"


def _install(npm: str) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, CACHE / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=170)
    if done.returncode != 0 and not CI:
        pytest.skip(f"npm ci failed, and outside of CI that may be for want of a network: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
