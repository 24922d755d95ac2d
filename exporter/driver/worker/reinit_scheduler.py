"""When the worker initialises the driver once more."""

from __future__ import annotations

import threading
from collections.abc import Collection

from exporter.driver.cooldown import Backoff

RETRY_FIRST, RETRY_LAST = 2.0, 600.0  # seconds between initialisations for the sake of an unavailable GPU
SPACING_FIRST, SPACING_LAST = 1.0, 60.0  # seconds between initialisations for whatever reason


class ReinitScheduler:
    """Decides when the driver is initialised again: on request, or for the sake of an unavailable GPU.

    Each time interrupts all GPUs, and without persistence mode resets their counters: hence the long back-off.
    ``retry_lost``: without it never for the sake of an unavailable GPU, because an attempt has hung.
    """

    def __init__(self, now: float, *, retry_lost: bool = True) -> None:
        self._requested = threading.Event()
        self._unavailable_since: float | None = None
        self._retry_lost = retry_lost
        self._retry = Backoff(RETRY_FIRST, RETRY_LAST)
        self._retry_after = self._retry.next()
        self._spacing = Backoff(SPACING_FIRST, SPACING_LAST)
        self._spacing.next()  # the initialisation at the start
        self._not_before = now

    def request(self) -> None:
        """Request it, from any thread."""
        self._requested.set()

    def due(self, now: float, unavailable: Collection[bool | None]) -> bool:
        """Return whether it is time; ``unavailable`` holds what each GPU last answered, None before the first."""
        if True in unavailable and self._retry_lost:
            self._unavailable_since = now if self._unavailable_since is None else self._unavailable_since
            if now - self._unavailable_since >= self._retry_after:
                self._requested.set()
        elif None not in unavailable:
            self._unavailable_since = None
            self._reset_retry()
        return self._requested.is_set() and now >= self._not_before

    def _reset_retry(self) -> None:
        self._retry.reset()
        self._retry_after = self._retry.next()

    def postpone(self, now: float) -> None:
        """Try later: some GPU is in a call."""
        self._not_before = now + SPACING_LAST

    def on_done(self, now: float) -> None:
        """Start counting anew; what happens often happens less often."""
        if now - self._not_before > SPACING_LAST:
            self._spacing.reset()
        self._not_before = now + self._spacing.next()
        if self._unavailable_since is not None:
            self._unavailable_since, self._retry_after = now, self._retry.next()
        self._requested.clear()
