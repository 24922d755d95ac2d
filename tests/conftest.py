"""Fixtures of the whole suite, and how it is divided among the workers of pytest-xdist."""

from __future__ import annotations

import logging
import pathlib

import pytest
import yaml

from tests.support import examples
from tests.support.tools import built_once, tool

TESTS = pathlib.Path(__file__).parent
SLOWEST_FIRST = ("containers", "system", "component", "contract", "unit")
# Files whose tests share no fixture: each test goes to whichever worker is free.
SPREAD = {"tests/component/alerts/test_alert_rules.py"}

examples.register()


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew; the diff is the review"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Start with the directories that take longest, so that no worker ends with one of them."""
    items.sort(key=lambda item: SLOWEST_FIRST.index(item.path.relative_to(TESTS).parts[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep a file's tests, which share its fixtures, in one worker; those of ``SPREAD`` go to whoever is free."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return nodeid if file in SPREAD else file

    return Scheduler(config, log)


@pytest.fixture(autouse=True)
def the_root_logger_as_it_was():
    """Undo what a command that ran in this process did to the log: ``caplog`` of a later test would hold more lines."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


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


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """Compile the C library that stands in for the driver's, and return the folder that holds it."""
    from tests.support.nvml_node import build

    return built_once(tmp_path_factory, "nvml", lambda folder: build(tool("cc"), folder))


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def each_loader(request, monkeypatch):
    """Read YAML with libyaml, and once more without it."""
    if request.param == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML is built without libyaml")
    return request.param
