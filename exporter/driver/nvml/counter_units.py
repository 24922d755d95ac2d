"""Which unit a driver's clock event counters run in, found by comparing them with the monotonic clock.

Headers, exporters and drivers disagree: nanoseconds or microseconds, and some field ids have moved between branches,
so that a number may be something else altogether.  While the driver says that a reason is active, its counter must
advance as time does: by nearly 1e9 a second, or 1e6.  While the reason is not active it must not.

The bit is known only at each read.  A reason may have been active between two reads that did not see it, for an
instant or for nearly all of the time, so one interval proves nothing: a counter is disproved by many reads in a row
that all say the same, over intervals of a few seconds each of which says it too.  What the counter does later may
clear it again.  Nothing here reads a clock or a driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from exporter.driver.protocol import MICROSECONDS, NANOSECONDS

ENOUGH_ACTIVE = 2.0  # seconds of an active reason that show the unit
INTERVAL = 5.0  # seconds that are judged as one
MIN_READS = 2  # after the first, for either
DOUBT, MANY_READS = 10.0, 10  # seconds, and reads after the first, that disprove a counter, or clear it again
# A reason seen active at each read may have been inactive in between; the units are a thousandfold apart.
MIN_SHARE, MAX_SHARE = 0.2, 1.1
SHARE_DISPROVES, SHARE_CLEARS = 0.9, 0.5  # of the time in which a reason is not active
STEP = 0.25  # seconds by which a counter may run ahead of our clock: drivers update them in steps


class UnitEvidence(Struct, frozen=True, kw_only=True):
    """What one counter has shown.  ``raw``: its last number; all counts begin anew when the bit changes."""

    at: float | None = None
    raw: float = 0.0
    active: bool | None = None
    seconds: float = 0.0  # of the interval under way, with the counter's steps in it and the reads after the first
    steps: float = 0.0
    reads: int = 0
    agreement: bool | None = None  # whether the last intervals agree with the counter; None: they say nothing
    agreement_seconds: float = 0.0  # for how long, and in how many reads, without a break
    agreement_reads: int = 0
    unit: float | None = None  # seconds for one step, once known
    runs_idle: bool = False  # it runs with time while its reason is not active
    fits_nothing: bool = False  # it runs in no known unit while its reason is active

    @property
    def disproved(self) -> bool:
        """Whether it is not the counter that it should be, as far as one can tell now."""
        return self.runs_idle or self.fits_nothing

    def value(self, unit: float | None) -> float | None:
        """Return seconds by the unit found here or, failing that, ``unit``; None while it may be anything."""
        if self.disproved:
            return None
        if self.raw == 0.0:
            return 0.0
        unit = self.unit or unit
        return None if unit is None else self.raw * unit


def update(
    before: UnitEvidence, at: float, raw: float, *, active: bool | None, unit: float | None = None
) -> UnitEvidence:
    """Return the evidence after a number read at ``at`` (seconds, any monotonic clock).

    ``active``: None where the bit is not known; ``unit``: what the counter runs in by another GPU's evidence.
    """
    if before.at is None or at <= before.at or raw < before.raw or active is None or active is not before.active:
        return replace(before, at=at, raw=raw, active=active, **_NEW_INTERVAL, **_NO_AGREEMENT)
    after = replace(
        before,
        at=at,
        raw=raw,
        seconds=before.seconds + at - before.at,
        steps=before.steps + raw - before.raw,
        reads=before.reads + 1,
    )
    if after.reads < MIN_READS:
        return after
    if active and after.unit is None and after.seconds >= ENOUGH_ACTIVE:
        after = replace(after, unit=_fitting_unit(after))
    return after if after.seconds < INTERVAL else _complete_interval(after, unit)


_NEW_INTERVAL: Mapping[str, Any] = {"seconds": 0.0, "steps": 0.0, "reads": 0}
_NO_AGREEMENT: Mapping[str, Any] = {"agreement": None, "agreement_seconds": 0.0, "agreement_reads": 0}


def _complete_interval(interval: UnitEvidence, unit: float | None) -> UnitEvidence:
    """Evaluate a complete interval, and act on what has been found often enough."""
    agreement = _agreement(interval, unit)
    again = agreement is interval.agreement
    after = replace(
        interval,
        **_NEW_INTERVAL,
        agreement=agreement,
        agreement_seconds=interval.seconds + (interval.agreement_seconds if again else 0.0),
        agreement_reads=interval.reads + (interval.agreement_reads if again else 0),
    )
    if agreement is None or after.agreement_seconds < DOUBT or after.agreement_reads < MANY_READS:
        return after
    if not interval.active:
        return replace(after, runs_idle=not agreement)
    # What has run so fast as nanoseconds do was never microseconds, but not the other way round.
    units = [unit for unit in (_fitting_unit(interval), interval.unit) if unit is not None]
    return replace(after, fits_nothing=not agreement, unit=min(units, default=None))


def _agreement(interval: UnitEvidence, unit: float | None) -> bool | None:
    """Return whether an interval is what the counter should do; None where it says nothing."""
    if interval.active and _fitting_unit(interval) is not None:
        return True
    if interval.active:
        return None if interval.unit is not None else False
    unit = interval.unit or unit
    share = None if unit is None else interval.steps * unit / interval.seconds
    if share is None or SHARE_CLEARS < share < SHARE_DISPROVES or share > MAX_SHARE:
        return None
    return share <= SHARE_CLEARS


def _fitting_unit(interval: UnitEvidence) -> float | None:
    """Return the unit in which a counter has run with time for most of an interval."""
    for unit in (NANOSECONDS, MICROSECONDS):
        if MIN_SHARE * interval.seconds <= interval.steps * unit <= MAX_SHARE * interval.seconds:
            return unit
    return None


def after_gap(evidence: UnitEvidence) -> UnitEvidence:
    """Return what stays true of a counter after a time in which it was not read and may have been reset."""
    return replace(evidence, at=None, raw=0.0, active=None, **_NEW_INTERVAL, **_NO_AGREEMENT)


def is_plausible(before: UnitEvidence, at: float, raw: float, unit: float | None) -> bool:
    """Return whether a counter may have gone from its last number to this one: never back, never faster than time."""
    if before.at is None:
        return True
    seconds = (raw - before.raw) * (before.unit or unit or NANOSECONDS)
    return 0.0 <= seconds <= (at - before.at) * MAX_SHARE + STEP
