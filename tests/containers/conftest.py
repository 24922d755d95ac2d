"""Fixtures of the tests in containers: ``make containers``.  Nothing else collects them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers import engine
from tests.containers.engine import Docker
from tests.containers.images import IMAGE, make_images, make_systemd

if "SHARDWATCH_CONTAINERS" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    """An engine that holds every image of the stack, the daemon's own built from this checkout."""
    if reason := engine.missing():
        pytest.skip(reason)
    with engine.engine() as found:
        make_images(found)
        found("build", "--network", "host", "--file", "Dockerfile", "--tag", IMAGE, "..")
        yield found


@pytest.fixture(scope="session")
def systemd_image(docker: Docker) -> None:
    make_systemd(docker)
