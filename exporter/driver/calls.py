"""Names of driver calls and of the functions that GPU threads run in: what both sides of the boundary agree on."""

from __future__ import annotations

import time
from collections.abc import Mapping

THREAD_FUNCTION = "gpu_"  # with the index: the function that a GPU's thread runs in, see daemon.crashes


def slot_key(index: int) -> str:
    """Return what stands for the GPU at an index whose UUID is not known."""
    return f"#{index}"


def call_group(name: str) -> str:
    """Return what is skipped together: profiling calls share buffers, and a crash in one is a crash in another."""
    return "nvmlGpm" if name.startswith("nvmlGpm") else name


def is_disabled(name: str, skipped_calls: Mapping[str, float]) -> bool:
    """Return whether a call must not be made now.

    ``skipped_calls``: call group → until when (monotonic seconds); "" stands for every call.
    """
    if not skipped_calls:
        return False
    return time.monotonic() < max(skipped_calls.get(call_group(name), 0.0), skipped_calls.get("", 0.0))
