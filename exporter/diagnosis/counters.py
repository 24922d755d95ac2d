"""What counters grew by during the last minutes: sampled rarely, so that it costs nothing on most snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.model import EMPTY

SAMPLE_SECONDS = 10.0
Counter = tuple[Hashable, ...]


class _WindowSample(Struct, frozen=True):
    at: float
    totals: Mapping[Counter, float]  # what each counter grew by since it was first seen


class CounterWindow:
    """Follows counters over ``WINDOW_SECONDS``.  Bounded by the counters of the newest update."""

    def __init__(self) -> None:
        self._raw: Mapping[Counter, float] = EMPTY
        self._samples: deque[_WindowSample] = deque()

    def is_due(self, now: float) -> bool:
        """Return whether the counters should be sampled now."""
        return not self._samples or now - self._samples[-1].at >= SAMPLE_SECONDS

    def update(self, now: float, counters: Mapping[Counter, float]) -> None:
        """Add a sample; a counter that decreased was reset, and what was lost is not guessed."""
        totals = self._samples[-1].totals if self._samples else EMPTY
        grown: dict[Counter, float] = {}
        for name, value in counters.items():
            raw = self._raw.get(name)
            if raw is None or name not in totals:
                grown[name] = 0.0
            else:
                grown[name] = totals[name] + (value - raw if value >= raw else value)
        self._raw = counters
        self._samples.append(_WindowSample(now, grown))
        while len(self._samples) > 2 and now - self._samples[1].at >= limit.WINDOW_SECONDS:
            self._samples.popleft()

    def increase(self, name: Counter) -> float | None:
        """Return what a counter grew by during the window, or since it is known; None before its second sample."""
        base = self._base(name)
        return None if base is None else self._samples[-1].totals[name] - base.totals[name]

    def rate(self, name: Counter) -> float | None:
        """Return the same per second."""
        base = self._base(name)
        if base is None:
            return None
        newest = self._samples[-1]
        return (newest.totals[name] - base.totals[name]) / (newest.at - base.at)

    def _base(self, name: Counter) -> _WindowSample | None:
        """Return the oldest sample since which a counter was never missing: after a gap it counts from 0 again."""
        base = None
        for sample in reversed(self._samples):
            if name not in sample.totals:
                break
            base = sample
        return base if self._samples and base is not self._samples[-1] else None
