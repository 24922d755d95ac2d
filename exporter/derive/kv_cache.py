"""Prefix-cache hit ratio: from counters where they exist, else the engine's lifetime average.

Without queries the ratio is not known, and not 0: prefix caching may be off, or there is no traffic.
"""

from __future__ import annotations

from exporter.model import EngineReading, Quantity

_ROUNDING = 1e-9


def hit_ratio(queries: float, hits: float) -> float | None:
    """Return hits over queries, both increases over the same time; None without queries, and above 1.

    A ratio above 1 means that the counters do not belong together; clamped to 1 it would look perfect.
    """
    if not queries > 0 or hits < 0:
        return None
    ratio = hits / queries
    return min(ratio, 1.0) if ratio <= 1 + _ROUNDING else None


def lifetime_hit_ratio(reading: EngineReading) -> float | None:
    """Return the average since the engine's start that old engines report; None where counters exist.

    Ranks are weighted by their prompt tokens, or equally where any rank does not count them.
    """
    ratios: list[float] = []
    weights: list[float] = []
    for values in reading.ranks.values():
        if Quantity.PREFIX_CACHE_QUERIES in values or Quantity.PREFIX_CACHE_HITS in values:
            return None
        ratio = values.get(Quantity.LIFETIME_HIT_RATIO)
        if ratio is not None and 0 <= ratio <= 1 + _ROUNDING:  # −1 and NaN mean that there is none
            ratios.append(min(ratio, 1.0))
            weights.append(values.get(Quantity.PROMPT_TOKENS, -1.0))
    if not ratios:
        return None
    total = sum(weights)
    if min(weights) < 0 or not 0 < total < float("inf"):
        return sum(ratios) / len(ratios)
    return min(sum(ratio * weight for ratio, weight in zip(ratios, weights, strict=True)) / total, 1.0)
