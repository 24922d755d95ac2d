"""Which unit a driver's clock event counters run in, found by comparing them with the clock on the wall.

Headers, exporters and drivers disagree: nanoseconds or microseconds, and some field ids have moved between branches,
so that a number may be something else altogether.  While the driver says that a reason is active, its counter must
advance as time does: by nearly 1e9 a second, or 1e6.  While the reason is not active it must not.  Nothing here
reads a clock or a driver.
"""

from __future__ import annotations

from dataclasses import dataclass

NANOSECONDS, MICROSECONDS = 1e-9, 1e-6  # seconds for one step of the counter

ENOUGH_ACTIVE = 2.0  # seconds of an active reason that decide
ENOUGH_IDLE = 5.0  # seconds of an inactive reason that refute
DOUBT = 10.0  # seconds of an active reason after which a counter that fits no unit is something else
# A reason seen active at each look may have been inactive in between; the units are a thousandfold apart.
SHARE_LEAST, SHARE_MOST = 0.2, 1.1
SHARE_REFUTES = 0.9
STEP = 0.25  # seconds by which a counter may run ahead of our clock: drivers update them in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one counter has shown.  ``raw``: its last number; the sums are over stretches without a change of bit."""

    at: float | None = None
    raw: float = 0.0
    active: bool | None = None
    active_seconds: float = 0.0
    active_steps: float = 0.0
    idle_seconds: float = 0.0
    idle_steps: float = 0.0
    unit: float | None = None  # seconds for one step, once known
    refuted: bool = False  # it is not the counter that it should be

    def value(self, unit: float | None) -> float | None:
        """Give seconds by the unit found here or, failing that, ``unit``; None while it may be anything."""
        if self.refuted:
            return None
        if self.raw == 0.0:
            return 0.0
        unit = self.unit or unit
        return None if unit is None else self.raw * unit


def weigh(before: Evidence, at: float, raw: float, *, active: bool | None) -> Evidence:
    """Take in a number read at ``at`` (seconds, any monotonic clock); ``active`` None where the bit is not known."""
    known = before.at is not None and at > before.at and raw >= before.raw
    both = active if known and before.active == active else None
    seconds, steps = (at - before.at, raw - before.raw) if before.at is not None else (0.0, 0.0)
    active_seconds = before.active_seconds + seconds if both is True else 0.0
    active_steps = before.active_steps + steps if both is True else 0.0
    idle_seconds = before.idle_seconds + seconds if both is False else 0.0
    idle_steps = before.idle_steps + steps if both is False else 0.0
    unit = before.unit
    if unit is None and active_seconds >= ENOUGH_ACTIVE:
        unit = _unit(active_steps, active_seconds, SHARE_LEAST)
    runs_anyway = idle_seconds >= ENOUGH_IDLE and _unit(idle_steps, idle_seconds, SHARE_REFUTES) is not None
    fits_nothing = unit is None and active_seconds >= DOUBT
    return Evidence(
        at=at,
        raw=raw,
        active=active,
        active_seconds=active_seconds,
        active_steps=active_steps,
        idle_seconds=idle_seconds,
        idle_steps=idle_steps,
        unit=unit,
        refuted=before.refuted or runs_anyway or fits_nothing,
    )


def _unit(steps: float, seconds: float, least: float) -> float | None:
    for unit in (NANOSECONDS, MICROSECONDS):
        if least * seconds <= steps * unit <= SHARE_MOST * seconds:
            return unit
    return None


def plausible(before: Evidence, at: float, raw: float, unit: float | None) -> bool:
    """Say whether a counter may have gone from its last number to this one: never back, never faster than time."""
    if before.at is None:
        return True
    seconds = (raw - before.raw) * (before.unit or unit or NANOSECONDS)
    return 0.0 <= seconds <= (at - before.at) * SHARE_MOST + STEP


def widened(before: float | None, raw: float, wraps: int, width: int) -> tuple[float, int]:
    """Give a counter of ``width`` bits without its wraps, and how often it has wrapped now.

    A fall is a wrap only from the upper half to the lower one; any other fall is a reset, and starts anew from zero.
    """
    if before is not None and raw < before:
        half = 2.0 ** (width - 1)
        wraps = wraps + 1 if before >= half > raw else 0
    return raw + wraps * 2.0**width, wraps
