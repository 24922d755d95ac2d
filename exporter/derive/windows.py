"""The past that windows need, thinned so that it fits: at most 65 sums per window, shared between windows.

A window's base is the oldest sum not older than the window, as in Prometheus.  So an outage or a suspended daemon
is a gap and never a spike: what happened during an outage longer than the window belongs to no window.

Thinning makes a window start late by less than a 64th of its length plus one poll interval.  Rates do not suffer,
because they divide by the time really covered; a quantile leaves out the observations of that first instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

from exporter.model import Window

# 64 and not 60: polls once a second come a little early or late, and an entry refused for one millisecond would
# double the spacing of a one-minute window.
_STEPS = 64


class Dated(Protocol):
    """What a history keeps: anything that says when it was true, in monotonic seconds."""

    @property
    def at(self) -> float: ...  # noqa: D102


_Sums = TypeVar("_Sums", bound=Dated)


class History(Generic[_Sums]):
    """Sums of one replica over the longest window.  Owned by one thread; not locked."""

    __slots__ = ("_latest", "_rings", "_windows")

    def __init__(self, windows: Sequence[Window]) -> None:
        """``windows``: label and length in seconds of each window, labels distinct, lengths above 0."""
        self._windows = dict(windows)
        self._rings: dict[str, deque[_Sums]] = {label: deque(maxlen=_STEPS + 1) for label in self._windows}
        self._latest: _Sums | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The windows' labels in the order given."""
        return tuple(self._windows)

    @property
    def latest(self) -> _Sums | None:
        """The newest sums added, None before the first."""
        return self._latest

    def add(self, totals: _Sums) -> None:
        """Take the newest sums; sums not younger than the last ones are ignored."""
        if self._latest is not None and totals.at <= self._latest.at:
            return
        self._latest = totals
        for label, length in self._windows.items():
            ring = self._rings[label]
            while ring and ring[0].at < totals.at - length:
                ring.popleft()
            if not ring or totals.at - ring[-1].at >= length / _STEPS:
                ring.append(totals)

    def over(self, windows: Sequence[Window]) -> History[_Sums]:
        """Give the same past over other windows; one that is longer than any before begins with what is kept."""
        other: History[_Sums] = History(windows)
        kept = {totals.at: totals for ring in self._rings.values() for totals in ring}
        if self._latest is not None:
            kept[self._latest.at] = self._latest
        for at in sorted(kept):
            other.add(kept[at])
        same = self._windows.items() & other._windows.items()
        other._rings.update({label: self._rings[label].copy() for label, _ in same})
        return other

    def base(self, label: str, not_before: float = -inf) -> _Sums | None:
        """Give the oldest sums inside the window that ends at the newest, and not from before ``not_before``.

        None before the first reading; the newest sums themselves when the window holds nothing else.
        """
        for totals in self._rings[label]:
            if totals.at >= not_before:
                return totals
        return self._latest

    def within(self, label: str) -> Sequence[_Sums]:
        """Give what is kept of the window, oldest first, the newest sums among it."""
        ring = self._rings[label]
        return [*ring, self._latest] if self._latest is not None and ring[-1] is not self._latest else [*ring]
