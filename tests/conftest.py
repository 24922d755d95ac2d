"""Fixtures of the whole suite."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil

import pytest
import yaml

TESTS = pathlib.Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew; the diff is the review"
    )


@pytest.fixture
def golden(request):
    """Compare text with tests/golden/NAME, or write it there with --update-golden."""

    def check(name: str, text: str) -> None:
        path = TESTS / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.exists(), f"{path} is missing; run pytest --update-golden and review it"
        assert text == path.read_text(), f"{name} differs; if that is meant, run pytest --update-golden and review"

    return check


def tool(name: str) -> str:
    """Give the path of a program that no Python package brings; skip without it, but never in CI."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is missing, and CI must not skip")
        pytest.skip(f"{name} is not installed")
    return path


@pytest.fixture
def promtool() -> str:
    return tool("promtool")


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def each_loader(request, monkeypatch):
    """Read YAML with libyaml, and once more without it."""
    if request.param == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML is built without libyaml")
    return request.param


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
