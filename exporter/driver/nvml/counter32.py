"""Byte counters of 32 bits, followed through their wraps as far as it is known how often they have wrapped.

Drivers count PCIe bytes so, and a link of today moves that many in a fraction of a second: between two looks the
counter may have started over many times, and its difference says nothing.  How often it did follows from the link
where that is too slow for a second lap, else from a rate that was measured over the same time in another way.  Where
there is neither, there is no total: a rate that is wrong by any multiple of 2^32 bytes looks like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model import Missing

RANGE = 2.0**32
_SLACK = 0.05  # seconds by which two looks may be further apart than their times
_UNLIKE = 0.1  # by which two measures of the same traffic differ: one counts what the other leaves out
_LANE = (
    0.25e9  # bytes per second of the first generation's lane in one direction; each further one at most doubles it
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A counter at one look.  ``at``: seconds, any monotonic clock; ``why``: why ``total`` is not to be shown."""

    at: float
    raw: float
    total: float
    why: Missing | None = None


def follow(
    before: Followed | None, at: float, raw: float, *, most: float | None, shown: float | None = None
) -> Followed:
    """Take in a number; None for what is not known.

    ``most``: bytes per second that can have been counted at most; ``shown``: that were, about, by another measure.
    """
    if before is None or at <= before.at:
        return Followed(at=at, raw=raw, total=raw, why=Missing.STARTING)
    seconds, step = at - before.at, (raw - before.raw) % RANGE
    if shown is not None:
        total, sure = _by_measure(before.total, step, shown * seconds)
    else:
        limit = RANGE if most is None else most * (seconds + _SLACK)
        # More than the link carries: the counter was set back.
        total, sure = raw if step > limit else before.total + step, limit < RANGE
    return Followed(at=at, raw=raw, total=total, why=None if sure else Missing.UNVERIFIED)


def _by_measure(total: float, step: float, expected: float) -> tuple[float, bool]:
    """Add the laps that bring a step nearest to what is expected, and say whether the two agree then."""
    step += max(0, round((expected - step) / RANGE)) * RANGE
    agree = abs(step - expected) <= max(RANGE / 4.0, _UNLIKE * expected)
    return total + (step if agree else expected), agree


def link_limit(generation: float | None, width: float | None) -> float | None:
    """Give what a PCIe link can carry at most in one direction, bytes per second."""
    return None if generation is None or width is None else _LANE * 2.0 ** (generation - 1.0) * width
