"""The samples that windows need: at most 65 for each window, shared between windows.

A window's base is the oldest sample inside the window, as in Prometheus.  An outage or a suspended daemon is
therefore a gap and never a spike: what happened during an outage longer than the window belongs to no window.

Downsampling makes a window start late by less than a 64th of its length plus one poll interval.  Rates are not
affected, because they divide by the time covered; a quantile misses the observations of that first instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

from exporter.model import Window

# 64 and not 60: polls once a second jitter, and a sample refused for one millisecond would double the spacing of a
# one-minute window.
_STEPS = 64


class Timestamped(Protocol):
    """Anything with an instant in monotonic seconds."""

    @property
    def at(self) -> float: ...  # noqa: D102


_Sample = TypeVar("_Sample", bound=Timestamped)


class History(Generic[_Sample]):
    """Samples of one source over its longest window.  Owned by one thread; not locked."""

    __slots__ = ("_latest", "_rings", "_windows")

    def __init__(self, windows: Sequence[Window]) -> None:
        """Labels of ``windows`` are distinct, lengths above 0."""
        self._windows = dict(windows)
        self._rings: dict[str, deque[_Sample]] = {label: deque(maxlen=_STEPS + 1) for label in self._windows}
        self._latest: _Sample | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The windows' labels in the given order."""
        return tuple(self._windows)

    @property
    def latest(self) -> _Sample | None:
        """The newest sample, None before the first."""
        return self._latest

    def add(self, sample: _Sample) -> None:
        """Add the newest sample; one that is not newer than the last is ignored."""
        if self._latest is not None and sample.at <= self._latest.at:
            return
        self._latest = sample
        for label, length in self._windows.items():
            ring = self._rings[label]
            while ring and ring[0].at < sample.at - length:
                ring.popleft()
            if not ring or sample.at - ring[-1].at >= length / _STEPS:
                ring.append(sample)

    def with_windows(self, windows: Sequence[Window]) -> History[_Sample]:
        """Return the same past for other windows; a longer window than before begins with what is kept."""
        other: History[_Sample] = History(windows)
        kept = {sample.at: sample for ring in self._rings.values() for sample in ring}
        if self._latest is not None:
            kept[self._latest.at] = self._latest
        for at in sorted(kept):
            other.add(kept[at])
        same = self._windows.items() & other._windows.items()
        other._rings.update({label: self._rings[label].copy() for label, _ in same})
        return other

    def base(self, label: str, not_before: float = -inf) -> _Sample | None:
        """Return the oldest sample of the window, not older than ``not_before``.

        None before the first sample; the newest sample if the window holds no other.
        """
        for sample in self._rings[label]:
            if sample.at >= not_before:
                return sample
        return self._latest

    def samples(self, label: str) -> Sequence[_Sample]:
        """Return the kept samples of the window, oldest first, the newest sample included."""
        ring = self._rings[label]
        return [*ring, self._latest] if self._latest is not None and ring[-1] is not self._latest else [*ring]
