"""XIDs of the last five minutes by card and code, as DCGM's exporter counts them in its window.

The daemon's counts are of its whole life, so what they rose by is kept with its time.  Of what came before the first
look only the newest event has a time: of those, one of each code counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from exporter.model import XidCount

WINDOW = 300.0  # seconds, the exporter's default
_MAX_RISES = 4096  # a storm counts thousands in one rise; this bounds different moments, cards and codes

Recent = Mapping[str, Mapping[int, int]]  # uuid → code → events in the window
_Key = tuple[str, int]


class XidWindow:
    """Follows the counts of all cards; owned by one thread, or guarded by its owner."""

    def __init__(self) -> None:
        self._counts: dict[_Key, int] | None = None  # None: not looked yet
        self._rises: deque[tuple[float, _Key, int]] = deque(maxlen=_MAX_RISES)

    def take(self, xids: Sequence[XidCount], at: float, wall: float) -> Recent:
        """Note the counts at ``at`` (monotonic; ``wall`` the same in Unix time) and give those of the window."""
        shown = {(one.labels.uuid, one.xid): one for one in xids if one.xid is not None and one.count}
        if self._counts is None:
            ages = {
                key: max(0.0, wall - one.last_unix_time)
                for key, one in shown.items()
                if one.last_unix_time is not None
            }
            self._rises.extend(sorted((at - age, key, 1) for key, age in ages.items()))
        else:
            risen = {key: one.count - self._counts.get(key, 0) for key, one in shown.items()}
            self._rises.extend((at, key, times) for key, times in risen.items() if times > 0)
        self._counts = {key: one.count for key, one in shown.items()}
        while self._rises and self._rises[0][0] <= at - WINDOW:
            self._rises.popleft()
        recent: dict[str, dict[int, int]] = {}
        for _, (uuid, code), times in self._rises:
            of_card = recent.setdefault(uuid, {})
            of_card[code] = of_card.get(code, 0) + times
        return recent
