"""How long to wait before the next driver worker, when a hanging card is worth replacing it, and what rests then."""

from __future__ import annotations

from collections import deque

FIRST, LAST = 1.0, 60.0  # seconds between two attempts while the driver is of no use
AT_ONCE = 0.1
DEATHS, DEATHS_WITHIN = 3, 60.0
_DEATHS = frozenset({"crashed", "hung", "protocol", "recycled"})
WORKED = 10.0  # a worker that answered this long was a good one, and its end is a new trouble

# A replaced driver package heals the moment its kernel module is loaded, and people wait for it.
MISMATCH_DELAY, MISMATCH_PATIENCE, MISMATCH_LATER = 2.0, 120.0, 10.0

HANG_FIRST, HANG_AGAIN, HANG_LAST = 10.0, 60.0, 600.0
REST_FIRST, REST_LAST = 120.0, 600.0  # seconds


class Restarts:
    """Delay before the next worker, by why the last one ended.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._delay = FIRST
        self._deaths: deque[float] = deque(maxlen=DEATHS + 1)
        self._mismatch_since: float | None = None

    def delay(self, reason: str, now: float, worked: float) -> float:
        """Give the seconds to wait after a worker that ended for ``reason`` having worked for ``worked`` seconds."""
        if worked >= WORKED:
            self._delay, self._mismatch_since = FIRST, None
        if reason == "mismatch":
            self._mismatch_since = now if self._mismatch_since is None else self._mismatch_since
            if worked >= WORKED:
                return AT_ONCE  # a fresh process loads the new library
            patient = now - self._mismatch_since < MISMATCH_PATIENCE
            return MISMATCH_DELAY if patient else MISMATCH_LATER
        if reason == "recycled" and worked >= WORKED:
            return AT_ONCE
        if reason in _DEATHS:
            self._deaths.append(now)
            if len(self._deaths) <= DEATHS or now - self._deaths[0] > DEATHS_WITHIN:
                return AT_ONCE
        delay = self._delay
        self._delay = min(delay * 2, LAST)
        return delay


class HangPatience:
    """Whether the worker should be replaced because some, not all, of its cards hang.

    A replacement interrupts the neighbours and usually does not help, so it becomes rarer while it does not.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._wait = HANG_FIRST

    def due(self, now: float, *, hung: bool, settled: bool) -> bool:
        """Say whether now is the time; ``settled``: all cards answer, those that hung before included."""
        if settled:
            self._since, self._wait = None, HANG_FIRST
        if not hung:
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._wait:
            return False
        self._since = now
        self._wait = HANG_AGAIN if self._wait == HANG_FIRST else min(self._wait * 2, HANG_LAST)
        return True


class Cooldown:
    """For how long a question is not put to a card that has hung or crashed in it; longer each time, in seconds."""

    def __init__(self, first: float = REST_FIRST, last: float = REST_LAST) -> None:
        self._first, self._last = first, last
        self._known: dict[str, tuple[float, float]] = {}  # who → end (monotonic) and length of its last rest

    def begin(self, who: str, now: float) -> float:
        """Note that it has happened, and give the seconds of the rest."""
        self._known = {one: rest for one, rest in self._known.items() if now - rest[0] < self._last}
        _, before = self._known.get(who, (now, 0.0))
        seconds = min(before * 2, self._last) or self._first
        self._known[who] = (now + seconds, seconds)
        return seconds

    def left(self, now: float) -> dict[str, float]:
        """Give who rests, and for how many seconds yet."""
        return {who: end - now for who, (end, _) in self._known.items() if end > now}
