"""How long to wait before the next driver worker, and when a hanging GPU is worth replacing it.

Times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque

from exporter.driver.cooldown import Backoff

FIRST, LAST = 1.0, 60.0  # seconds between two attempts while the driver does not work
IMMEDIATELY = 0.1
MAX_DEATHS, DEATHS_WITHIN = 3, 60.0
_DEATHS = frozenset({"crashed", "hung", "protocol", "recycled"})
WORKED = 10.0  # a worker that answered this long was a good one, and its end is a new failure

# A replaced driver package heals the moment its kernel module is loaded, and people wait for it.
MISMATCH_DELAY, MISMATCH_PATIENCE, MISMATCH_LATER = 2.0, 120.0, 10.0

HANG_FIRST, HANG_SECOND, HANG_LAST = 10.0, 60.0, 600.0


class RestartPolicy:
    """Delay before the next worker, by the reason for which the last one ended."""

    def __init__(self) -> None:
        self._backoff = Backoff(FIRST, LAST)
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS + 1)
        self._mismatch_since: float | None = None

    def delay(self, reason: str, now: float, worked: float) -> float:
        """Return the seconds to wait after a worker that ended for ``reason`` after ``worked`` seconds of work."""
        if worked >= WORKED:
            self._backoff.reset()
            self._mismatch_since = None
        if reason == "mismatch":
            return self._mismatch_delay(now, worked)
        if reason == "recycled" and worked >= WORKED:
            return IMMEDIATELY
        if reason in _DEATHS:
            self._deaths.append(now)
            if len(self._deaths) <= MAX_DEATHS or now - self._deaths[0] > DEATHS_WITHIN:
                return IMMEDIATELY
        return self._backoff.next()

    def _mismatch_delay(self, now: float, worked: float) -> float:
        self._mismatch_since = now if self._mismatch_since is None else self._mismatch_since
        if worked >= WORKED:
            return IMMEDIATELY  # a fresh process loads the new library
        patient = now - self._mismatch_since < MISMATCH_PATIENCE
        return MISMATCH_DELAY if patient else MISMATCH_LATER


class ReplacementPolicy:
    """Whether the worker should be replaced because some, not all, of its GPUs hang.

    A replacement interrupts the neighbours and usually does not help, so it becomes rarer while it does not.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._wait = HANG_FIRST
        self._backoff = Backoff(HANG_SECOND, HANG_LAST)

    def due(self, now: float, *, hung: bool, settled: bool) -> bool:
        """Return whether to replace it now; ``settled``: all GPUs answer, those that hung before included."""
        if settled:
            self._since, self._wait = None, HANG_FIRST
            self._backoff.reset()
        if not hung:
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._wait:
            return False
        self._since, self._wait = now, self._backoff.next()
        return True
