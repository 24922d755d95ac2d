"""How long something is left alone after it failed: twice as long each time, up to a limit."""

from __future__ import annotations

from msgspec import Struct


class Backoff:
    """A delay that doubles from ``first`` to ``last`` seconds until it is reset."""

    __slots__ = ("_delay", "_first", "_last")

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self._delay = first

    def next(self) -> float:
        """Return the seconds to wait now; those after the next failure are twice as many."""
        delay = self._delay
        self._delay = min(delay * 2.0, self._last)
        return delay

    def saturate(self) -> None:
        """Go on with the longest delay."""
        self._delay = self._last

    def reset(self) -> None:
        """Start again with the first delay."""
        self._delay = self._first


class _Period(Struct, frozen=True):
    until: float
    seconds: float


class Cooldown:
    """Keys that are left alone for a while, for longer each time; a key that was well for ``last`` seconds is new.

    Times are monotonic seconds.
    """

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self._periods: dict[str, _Period] = {}

    def begin(self, key: str, now: float) -> float:
        """Leave a key alone from now on and return for how many seconds."""
        self._periods = {key: period for key, period in self._periods.items() if now - period.until < self._last}
        before = self._periods.get(key)
        seconds = self._first if before is None else min(before.seconds * 2.0, self._last)
        self._periods[key] = _Period(now + seconds, seconds)
        return seconds

    def remaining(self, now: float) -> dict[str, float]:
        """Return the keys that are left alone, and for how many seconds yet."""
        return {key: period.until - now for key, period in self._periods.items() if period.until > now}
