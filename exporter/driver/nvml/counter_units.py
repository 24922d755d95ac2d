"""Which unit a driver's clock event counters run in, found by comparing them with the clock on the wall.

Headers, exporters and drivers disagree: nanoseconds or microseconds, and some field ids have moved between branches,
so that a number may be something else altogether.  While the driver says that a reason is active, its counter must
advance as time does: by nearly 1e9 a second, or 1e6.  While the reason is not active it must not.

The bit is known only at each look.  A reason may have been active between two looks that did not see it, for an
instant or for nearly all of the time, so one stretch proves nothing: against a counter speak many looks in a row
that all say the same, over stretches of a few seconds each of which says it too.  What the counter does later may
take the doubt back.  Nothing here reads a clock or a driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

NANOSECONDS, MICROSECONDS = 1e-9, 1e-6  # seconds for one step of the counter
UNITS = frozenset({NANOSECONDS, MICROSECONDS})

ENOUGH_ACTIVE = 2.0  # seconds of an active reason that show the unit
STRETCH = 5.0  # seconds that are judged as one
LEAST_LOOKS = 2  # after the first, for either
DOUBT, MANY_LOOKS = 10.0, 10  # seconds, and looks after the first, that refute a counter, or clear it again
# A reason seen active at each look may have been inactive in between; the units are a thousandfold apart.
SHARE_LEAST, SHARE_MOST = 0.2, 1.1
SHARE_REFUTES, SHARE_CLEARS = 0.9, 0.5  # of the time in which a reason is not active
STEP = 0.25  # seconds by which a counter may run ahead of our clock: drivers update them in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one counter has shown.  ``raw``: its last number; all counts begin anew when the bit changes."""

    at: float | None = None
    raw: float = 0.0
    active: bool | None = None
    seconds: float = 0.0  # of the stretch under way, with the counter's steps in it and the looks after the first
    steps: float = 0.0
    looks: int = 0
    says: bool | None = None  # whether the last stretches spoke for the counter; None: neither for nor against it
    said_seconds: float = 0.0  # in how long, and in how many looks, they have said so without a break
    said_looks: int = 0
    unit: float | None = None  # seconds for one step, once known
    runs_idle: bool = False  # it runs with time while its reason is not active
    fits_nothing: bool = False  # it runs in no known unit while its reason is active

    @property
    def refuted(self) -> bool:
        """Say whether it is not the counter that it should be, as far as one can tell now."""
        return self.runs_idle or self.fits_nothing

    def value(self, unit: float | None) -> float | None:
        """Give seconds by the unit found here or, failing that, ``unit``; None while it may be anything."""
        if self.refuted:
            return None
        if self.raw == 0.0:
            return 0.0
        unit = self.unit or unit
        return None if unit is None else self.raw * unit


def weigh(before: Evidence, at: float, raw: float, *, active: bool | None, unit: float | None = None) -> Evidence:
    """Take in a number read at ``at`` (seconds, any monotonic clock).

    ``active``: None where the bit is not known; ``unit``: what the counter runs in by another card's evidence.
    """
    if before.at is None or at <= before.at or raw < before.raw or active is None or active is not before.active:
        return replace(before, at=at, raw=raw, active=active, **_BEGIN, **_NOTHING_SAID)
    seen = replace(
        before,
        at=at,
        raw=raw,
        seconds=before.seconds + at - before.at,
        steps=before.steps + raw - before.raw,
        looks=before.looks + 1,
    )
    if seen.looks < LEAST_LOOKS:
        return seen
    if active and seen.unit is None and seen.seconds >= ENOUGH_ACTIVE:
        seen = replace(seen, unit=_fitting(seen))
    return seen if seen.seconds < STRETCH else _judged(seen, unit)


_BEGIN: Mapping[str, Any] = {"seconds": 0.0, "steps": 0.0, "looks": 0}
_NOTHING_SAID: Mapping[str, Any] = {"says": None, "said_seconds": 0.0, "said_looks": 0}


def _judged(seen: Evidence, unit: float | None) -> Evidence:
    """Let a stretch that is complete speak, and act on what has been said often enough."""
    says = _speaks_for(seen, unit)
    again = says is seen.says
    said = replace(
        seen,
        **_BEGIN,
        says=says,
        said_seconds=seen.seconds + (seen.said_seconds if again else 0.0),
        said_looks=seen.looks + (seen.said_looks if again else 0),
    )
    if says is None or said.said_seconds < DOUBT or said.said_looks < MANY_LOOKS:
        return said
    if not seen.active:
        return replace(said, runs_idle=not says)
    # What has run so fast as nanoseconds do was never microseconds, but not the other way round.
    units = [unit for unit in (_fitting(seen), seen.unit) if unit is not None]
    return replace(said, fits_nothing=not says, unit=min(units, default=None))


def _speaks_for(stretch: Evidence, unit: float | None) -> bool | None:
    """Say whether a stretch is what the counter should do; None where it says nothing."""
    if stretch.active and _fitting(stretch) is not None:
        return True
    if stretch.active:
        return None if stretch.unit is not None else False
    unit = stretch.unit or unit
    share = None if unit is None else stretch.steps * unit / stretch.seconds
    if share is None or SHARE_CLEARS < share < SHARE_REFUTES or share > SHARE_MOST:
        return None
    return share <= SHARE_CLEARS


def _fitting(stretch: Evidence) -> float | None:
    """Give the unit in which a counter has run with time for most of a stretch."""
    for unit in (NANOSECONDS, MICROSECONDS):
        if SHARE_LEAST * stretch.seconds <= stretch.steps * unit <= SHARE_MOST * stretch.seconds:
            return unit
    return None


def rested(evidence: Evidence) -> Evidence:
    """Give what a counter has shown for good, after a time in which nobody looked and it may have begun anew."""
    return replace(evidence, at=None, raw=0.0, active=None, **_BEGIN, **_NOTHING_SAID)


def plausible(before: Evidence, at: float, raw: float, unit: float | None) -> bool:
    """Say whether a counter may have gone from its last number to this one: never back, never faster than time."""
    if before.at is None:
        return True
    seconds = (raw - before.raw) * (before.unit or unit or NANOSECONDS)
    return 0.0 <= seconds <= (at - before.at) * SHARE_MOST + STEP
