"""Waiting for what another thread or process brings about: short looks, and an end."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK = 0.01  # seconds between two looks


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Say whether the condition came to hold in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(LOOK)
    return bool(condition())


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for the condition, and fail when it does not come to hold in time."""
    assert wait_until(condition, seconds), f"not so within {seconds:g} s"
