"""XIDs and clock events of the last five minutes: XIDs by GPU and code, as DCGM's exporter counts them in its window.

The daemon's counters cover its lifetime, so their increases are kept with their time.  Of events before the first
update only the newest of each code has a time: those count once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from exporter.model import CardState, XidCount

WINDOW = 300.0  # seconds, the exporter's default
_MAX_INCREASES = 4096  # of different instants, GPUs and codes; a storm is one increase

_MAX_READINGS = 4096  # of one GPU

Recent = Mapping[str, Mapping[int, int]]  # uuid → code → events in the window


class _GpuXid(NamedTuple):
    uuid: str
    code: int


class _Increase(NamedTuple):
    at: float
    xid: _GpuXid
    events: int


class XidWindow:
    """Tracks the counters of all GPUs.  Not locked; the owner does that."""

    def __init__(self) -> None:
        self._counts: dict[_GpuXid, int] | None = None  # None: before the first update
        self._increases: deque[_Increase] = deque(maxlen=_MAX_INCREASES)

    def update(self, xids: Sequence[XidCount], at: float, unix_time: float) -> Recent:
        """Add the counts of an instant, monotonic and in Unix time, and return those of the window."""
        shown = {_GpuXid(xid.labels.uuid, xid.xid): xid for xid in xids if xid.xid is not None and xid.count}
        if self._counts is None:
            ages = {
                key: max(0.0, unix_time - xid.last_unix_time)
                for key, xid in shown.items()
                if xid.last_unix_time is not None
            }
            self._increases.extend(sorted(_Increase(at - age, key, 1) for key, age in ages.items()))
        else:
            increases = {key: xid.count - self._counts.get(key, 0) for key, xid in shown.items()}
            self._increases.extend(_Increase(at, key, events) for key, events in increases.items() if events > 0)
        self._counts = {key: xid.count for key, xid in shown.items()}
        while self._increases and self._increases[0].at <= at - WINDOW:
            self._increases.popleft()
        recent: dict[str, dict[int, int]] = {}
        for increase in self._increases:
            of_gpu = recent.setdefault(increase.xid.uuid, {})
            of_gpu[increase.xid.code] = of_gpu.get(increase.xid.code, 0) + increase.events
        return recent


class ClockEventWindow:
    """Counts, for each GPU, the readings of the window in which a reason was active.  Not locked; the owner does."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[tuple[float, tuple[str, ...]]]] = {}

    def update(self, cards: Sequence[CardState]) -> Mapping[str, Mapping[str, int]]:
        """Add the readings of these GPUs and return uuid → reason → readings; GPUs that do not tell are absent."""
        kept: dict[str, deque[tuple[float, tuple[str, ...]]]] = {}
        for card in cards:
            if card.reading is None or not card.reading.clock_events:
                continue
            at = card.reading.at
            known = kept[card.facts.uuid] = self._readings.get(card.facts.uuid) or deque(maxlen=_MAX_READINGS)
            if not known or at > known[-1][0]:
                known.append((at, tuple(reason for reason, active in card.reading.clock_events.items() if active)))
            while known[0][0] <= at - WINDOW:
                known.popleft()
        self._readings = kept
        return {uuid: Counter(reason for _, reasons in known for reason in reasons) for uuid, known in kept.items()}
