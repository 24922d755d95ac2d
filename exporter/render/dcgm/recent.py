"""XIDs of the last five minutes by GPU and code, as DCGM's exporter counts them in its window.

The daemon's counters cover its lifetime, so their increases are kept with their time.  Of events before the first
update only the newest of each code has a time: those count once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from exporter.model import XidCount

WINDOW = 300.0  # seconds, the exporter's default
_MAX_INCREASES = 4096  # of different instants, GPUs and codes; a storm is one increase

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
