"""The raw counters of a page by rank: validation, comparison, and what is remembered.

Raw values are remembered while a page lacks them, so that a counter that comes back continues instead of adding its
lifetime at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import inf
from operator import le, lt
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from exporter.model import COUNTERS, EMPTY, EngineReading, Histogram, Quantity, Stage

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class RankCounters(Struct, frozen=True, kw_only=True):
    """The newest known raw counters of one rank, also those that the newest page lacks."""

    quantities: Mapping[Quantity, float] = EMPTY
    finished: Mapping[str, float] = EMPTY
    histograms: Mapping[Stage, Histogram] = EMPTY


NO_COUNTERS = RankCounters()
MAX_NAMES = 64  # remembered outcomes of a rank, or status classes; engines have a handful


# Reasons why a number on the page is not in the reading: a counter seen for the first time after such a page may
# have been there before.
_UNREADABLE = frozenset(("unreadable", "long_line", "bad_value", "bad_number", "too_many_label_sets"))


def has_unreadable_numbers(reading: EngineReading) -> bool:
    """Return whether the page had numbers that could not be read."""
    return not _UNREADABLE.isdisjoint(reading.parse_warnings)


def by_rank(reading: EngineReading, known: Mapping[str, RankCounters]) -> dict[str, RankCounters]:
    """Return the page's valid counters; histograms that are the same objects in ``known`` are not checked again."""
    histograms: dict[str, dict[Stage, Histogram]] = {}
    for stage, by_rank in reading.histograms.items():
        for rank, histogram in by_rank.items():
            is_known = (
                known.get(rank, NO_COUNTERS).histograms.get(stage) is histogram
            )  # most do not change in a second
            valid_histogram = histogram if is_known else _validated(histogram)
            if valid_histogram is not None:
                histograms.setdefault(rank, {})[stage] = valid_histogram
    names = dict.fromkeys((*reading.ranks, *reading.finished, *histograms))
    return {
        rank: RankCounters(
            quantities={
                quantity: value
                for quantity, value in reading.ranks.get(rank, EMPTY).items()
                if quantity in COUNTERS and 0 <= value < inf
            },
            finished=valid(reading.finished.get(rank, EMPTY)),
            histograms=histograms.get(rank, EMPTY),
        )
        for rank in names
    }


def with_zero_hits(reading: EngineReading, known: Mapping[str, RankCounters]) -> EngineReading:
    """Return the reading with 0 prefix-cache hits where a rank counts queries and has never shown a hit."""
    queries, hits = Quantity.PREFIX_CACHE_QUERIES, Quantity.PREFIX_CACHE_HITS
    if not reading.hits_from_first or not reading.complete or has_unreadable_numbers(reading):
        return reading
    added = {
        rank: {**numbers, hits: 0.0}
        for rank, numbers in reading.ranks.items()
        if queries in numbers and hits not in numbers and not known.get(rank, NO_COUNTERS).quantities.get(hits)
    }
    return replace(reading, ranks={**reading.ranks, **added}) if added else reading


def valid(counters: Mapping[_Key, float]) -> Mapping[_Key, float]:
    """Return the counters with valid values: finite and not negative."""
    return {name: value for name, value in counters.items() if 0 <= value < inf}  # NaN compares false


def _validated(histogram: Histogram) -> Histogram | None:
    """Return the histogram with counts that do not decrease with the bound; None if a count is invalid."""
    counts = histogram.counts
    if not histogram.bounds or len(counts) != len(histogram.bounds) + 1 or not 0 <= sum(counts) < inf:
        return None
    if min(counts) < 0:
        return None
    if all(map(le, counts, counts[1:])):
        return histogram
    return Histogram(bounds=histogram.bounds, counts=tuple(accumulate(counts, max)), sum=histogram.sum)


def any_decreased(before: Mapping[_Key, float], now: Mapping[_Key, float]) -> bool:
    """Return whether any counter is lower than before."""
    return any(value < before.get(key, 0.0) for key, value in now.items())


def has_decreased(before: RankCounters, now: RankCounters) -> bool:
    """Return whether any counter or bucket of the rank is lower than before."""
    if any_decreased(before.quantities, now.quantities) or any_decreased(before.finished, now.finished):
        return True
    for stage, histogram in now.histograms.items():
        known = before.histograms.get(stage)
        if known is None or known is histogram or known.counts == histogram.counts:
            continue
        if histogram.counts[-1] < known.counts[-1]:
            return True
        if known.bounds == histogram.bounds and any(map(lt, histogram.counts, known.counts)):
            return True
    return False


def is_unchanged(before: RankCounters, now: RankCounters) -> bool:
    """Return whether nothing that the rank shows has changed."""
    if any(before.quantities.get(name) != value for name, value in now.quantities.items()):
        return False
    if any(before.finished.get(outcome) != value for outcome, value in now.finished.items()):
        return False
    for stage, histogram in now.histograms.items():
        known = before.histograms.get(stage)
        if known is not histogram and (known is None or known.counts != histogram.counts):
            return False
    return True


def remember(before: RankCounters, now: RankCounters) -> RankCounters:
    """Return what the rank shows, and what it showed before and lacks now."""
    return RankCounters(
        quantities=merged(before.quantities, now.quantities),
        finished=newest(before.finished, now.finished),
        histograms=merged(before.histograms, now.histograms),
    )


def assume(before: RankCounters, now: RankCounters) -> RankCounters:
    """Return ``before`` with what only ``now`` shows, as if it had been there already."""
    return RankCounters(
        quantities=merged(now.quantities, before.quantities),
        finished=merged(now.finished, before.finished),
        histograms=merged(now.histograms, before.histograms),
    )


def merged(before: Mapping[_Key, _Value], now: Mapping[_Key, _Value]) -> Mapping[_Key, _Value]:
    """Return both, ``now`` where both have a key."""
    return now if before.keys() <= now.keys() else {**before, **now}


def newest(before: Mapping[_Key, _Value], now: Mapping[_Key, _Value]) -> Mapping[_Key, _Value]:
    """Return both as ``merged`` does, of what ``now`` lacks only the newest ``MAX_NAMES``."""
    both = merged(before, now)
    if both is now or len(both) <= MAX_NAMES:
        return both
    lacking = [key for key in both if key not in now]
    room = max(0, MAX_NAMES - len(now))
    return {**{key: before[key] for key in lacking[len(lacking) - room :]}, **now}
