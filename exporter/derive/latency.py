"""Quantiles of the observations between two states of a histogram, equal to PromQL's histogram_quantile.

Linear inside a bucket; the first bucket starts at 0; a quantile in the +Inf bucket is the last finite bound, and
``overflow_ratio`` says how many observations hide there.  Quantiles are never averaged, only computed from
buckets that were summed first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from exporter.model import EMPTY, LatencySummary

# Counts that differ by less than this share of their sum are one count written twice: PromQL's own tolerance.
_TOLERANCE = 1e-12


class Cumulative(Protocol):
    """What a quantile needs of a histogram: n finite bounds, and n + 1 cumulative counts."""

    @property
    def bounds(self) -> tuple[float, ...]: ...  # noqa: D102

    @property
    def counts(self) -> Sequence[float]: ...  # noqa: D102


def summarize(base: Cumulative | None, latest: Cumulative, quantiles: Sequence[float]) -> LatencySummary | None:
    """Return the quantiles (each 0 to 1) of what was observed after ``base``; without a base, of everything.

    Without observations there are no quantiles.  None if the two have different bounds or no finite bound.
    """
    bounds = latest.bounds
    if not bounds or (base is not None and base.bounds != bounds):
        return None
    old = (0.0,) * len(latest.counts) if base is None else base.counts
    rising = _rising(latest.counts, old)
    observations = rising[-1]
    if observations <= 0:
        return LatencySummary(quantiles=EMPTY, observations=0.0, overflow_ratio=None)
    values = {}
    for quantile in quantiles:
        value = _quantile(quantile * observations, bounds, rising)
        if value is not None:
            values[quantile] = value
    return LatencySummary(
        quantiles=values,
        observations=observations,
        overflow_ratio=(observations - rising[-2]) / observations,
    )


def _rising(counts: Sequence[float], old: Sequence[float]) -> list[float]:
    """Subtract, and repair with the running maximum: a page may be read between two increments."""
    highest, rising = 0.0, []
    for new, before in zip(counts, old, strict=True):
        count = new - before
        if count > highest and count - highest >= _TOLERANCE * (count + highest):
            highest = count
        rising.append(highest)
    return rising


def _quantile(rank: float, bounds: tuple[float, ...], rising: list[float]) -> float | None:
    if not 0 <= rank <= rising[-1]:
        return None
    bucket = bisect_left(rising, rank, 0, len(bounds))
    if bucket == len(bounds):
        return bounds[-1]
    if bucket == 0:
        if bounds[0] <= 0:
            return bounds[0]
        below, start = 0.0, 0.0
    else:
        below, start = rising[bucket - 1], bounds[bucket - 1]
    inside = rising[bucket] - below
    if inside <= 0:  # only quantile 0 with an empty first bucket, where PromQL answers NaN
        return None
    return start + (bounds[bucket] - start) * ((rank - below) / inside)
