"""Fixtures of the whole suite."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from tests.support.tools import tool

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
