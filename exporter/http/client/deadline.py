"""One moment by which a whole exchange must be over."""

from __future__ import annotations

import time


class Deadline:
    """A moment on the monotonic clock, ``seconds`` from its construction."""

    __slots__ = ("_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Let the rest take no more than ``seconds`` from now."""
        self._until = min(self._until, time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds left, always more than zero; raise TimeoutError when there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
