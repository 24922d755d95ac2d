"""Names of driver calls and of the threads that make them: what both sides of the process boundary agree on."""

from __future__ import annotations

import time
from collections.abc import Mapping

THREAD = "card_"  # with the index: the function that a card's thread runs in, see crashes


def place(index: int) -> str:
    """Give what stands for a card that has not said who it is."""
    return f"#{index}"


def call_group(name: str) -> str:
    """Give what is left out together: profiling calls share buffers, and a crash in one is a crash in another."""
    return "nvmlGpm" if name.startswith("nvmlGpm") else name


def left_out(name: str, left: Mapping[str, float]) -> bool:
    """Say whether a call is not to be made now; ``left``: group of calls → monotonic seconds, "" for every call."""
    return bool(left) and time.monotonic() < max(left.get(call_group(name), 0.0), left.get("", 0.0))
