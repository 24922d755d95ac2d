"""Fixtures of the tests of the fault matrix that run the daemon as a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.fault_matrix import Program, programs
from tests.support.malicious_server import MaliciousServer


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    with programs() as begin:
        yield begin


@pytest.fixture
def server() -> Iterator[MaliciousServer]:
    with MaliciousServer() as running:
        yield running
