"""Byte counters of 32 bits, unwrapped as far as it is known how often they have wrapped.

Drivers count PCIe bytes so, and a link of today moves that many in a fraction of a second: between two reads the
counter may have wrapped many times, and its difference says nothing.  How often it did follows from the link where
that is too slow to wrap twice, else from a rate that was measured over the same time in another way.  Where there is
neither, there is no total: a rate that is wrong by any multiple of 2^32 bytes looks like any other.
"""

from __future__ import annotations

from msgspec import Struct

from exporter.model import Missing

RANGE = 2.0**32
_SLACK = 0.05  # seconds by which two reads may be further apart than their times
_TOLERANCE = 0.1  # by which two measures of the same traffic differ: one counts what the other leaves out
# Bytes per second of the first generation's lane in one direction; each further one at most doubles it.
_LANE = 0.25e9


class Counter32(Struct, frozen=True, kw_only=True):
    """A counter at one read.  ``at``: seconds, any monotonic clock; ``why``: why ``total`` is not to be shown."""

    at: float
    raw: float
    total: float
    why: Missing | None = None


def unwrap(
    before: Counter32 | None, at: float, raw: float, *, max_rate: float | None, reference_rate: float | None = None
) -> Counter32:
    """Return the counter after a further read.

    ``max_rate``: bytes per second that can have been counted at most; ``reference_rate``: that were counted, about,
    by another measure.  None for what is not known.
    """
    if before is None or at <= before.at:
        return Counter32(at=at, raw=raw, total=raw, why=Missing.STARTING)
    seconds, step = at - before.at, (raw - before.raw) % RANGE
    if reference_rate is not None:
        return _unwrap_by_reference(before.total, at, raw, step, reference_rate * seconds)
    limit = RANGE if max_rate is None else max_rate * (seconds + _SLACK)
    # More than the link carries: the counter was reset.
    total = raw if step > limit else before.total + step
    return Counter32(at=at, raw=raw, total=total, why=None if limit < RANGE else Missing.UNVERIFIED)


def _unwrap_by_reference(total: float, at: float, raw: float, step: float, expected: float) -> Counter32:
    """Add the wraps that bring a step nearest to what is expected; the total is shown if the two agree then."""
    step += max(0, round((expected - step) / RANGE)) * RANGE
    agree = abs(step - expected) <= max(RANGE / 4.0, _TOLERANCE * expected)
    total += step if agree else expected
    return Counter32(at=at, raw=raw, total=total, why=None if agree else Missing.UNVERIFIED)


def link_limit(generation: float | None, width: float | None) -> float | None:
    """Return what a PCIe link can carry at most in one direction, bytes per second."""
    return None if generation is None or width is None else _LANE * 2.0 ** (generation - 1.0) * width
