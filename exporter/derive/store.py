"""How often a KV-cache store had what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.derive.windows import History
from exporter.model.store import StoreQuantity, StoreReading


class StoreTotals(Struct, frozen=True, kw_only=True):
    """Queries and hits since the store was first read, across its restarts, and the counters they continue from."""

    at: float
    queries: float
    hits: float
    raw_queries: float
    raw_hits: float


def update(known: StoreTotals | None, reading: StoreReading) -> StoreTotals | None:
    """Return the totals with the increases on this page added; a page without both counters changes nothing."""
    queries = reading.quantities.get(StoreQuantity.QUERIES, {}).get("")
    hits = reading.quantities.get(StoreQuantity.HITS, {}).get("")
    if queries is None or hits is None or not reading.complete:
        return known
    if known is None:
        return StoreTotals(at=reading.at, queries=0.0, hits=0.0, raw_queries=queries, raw_hits=hits)
    restarted = queries < known.raw_queries or hits < known.raw_hits
    return StoreTotals(
        at=reading.at,
        queries=known.queries + queries - (0.0 if restarted else known.raw_queries),
        hits=known.hits + hits - (0.0 if restarted else known.raw_hits),
        raw_queries=queries,
        raw_hits=hits,
    )


def hit_ratios(history: History[StoreTotals]) -> Mapping[str, float]:
    """Return hits over queries by window label; a window without queries is left out.

    A lookup and its hit may be counted on two pages, so a ratio above 1 is cut.
    """
    latest, ratios = history.latest, {}
    for label in history.labels:
        base = history.base(label)
        if latest is not None and base is not None and latest.queries > base.queries:
            ratios[label] = min(1.0, (latest.hits - base.hits) / (latest.queries - base.queries))
    return ratios


def usage_ratios(reading: StoreReading) -> Mapping[str, float]:
    """Return used over capacity by tier, or the store's own ratio where it tells no capacity."""
    used = reading.quantities.get(StoreQuantity.USED, {})
    capacity = reading.quantities.get(StoreQuantity.CAPACITY, {})
    told = reading.quantities.get(StoreQuantity.USAGE, {})
    return {**told, **{tier: min(1.0, used[tier] / size) for tier, size in capacity.items() if size and tier in used}}
