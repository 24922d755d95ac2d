"""Several ranks as one: numbers added up, histograms bucket by bucket on the bounds that all have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add, is_

from exporter.model import COUNTERS, EMPTY, Histogram, Quantity, Stage

_SUMMED = (*sorted(COUNTERS), Quantity.KV_CACHE_CAPACITY)


def quantity_totals(
    ranks: Mapping[str, Mapping[Quantity, float]], departed: Mapping[Quantity, float]
) -> dict[Quantity, float]:
    """Return counters and capacities that any rank shows, summed over the ranks and what departed ranks counted."""
    totals = {}
    for quantity in _SUMMED:
        shown = [numbers[quantity] for numbers in ranks.values() if quantity in numbers]
        if shown:
            totals[quantity] = sum(shown) + departed.get(quantity, 0.0)
    return totals


def finished_totals(ranks: Mapping[str, Mapping[str, float]], departed: Mapping[str, float]) -> dict[str, float]:
    """Return finished requests by outcome that any rank shows, summed over the ranks and departed ones."""
    totals: dict[str, float] = {}
    for outcomes in ranks.values():
        for outcome, count in outcomes.items():
            totals[outcome] = totals.get(outcome, 0.0) + count
    return {outcome: count + departed.get(outcome, 0.0) for outcome, count in totals.items()}


def sum_stages(
    stages: Mapping[Stage, Mapping[str, Histogram]],
    before: Mapping[Stage, Mapping[str, Histogram]] = EMPTY,
    known: Mapping[Stage, Histogram] = EMPTY,
) -> dict[Stage, Histogram]:
    """Return the sum over the ranks of every stage that has one.

    ``known``: the result for ``before``; stages whose histograms are all the same objects are not added again.
    """
    sums = {}
    for stage, by_rank in stages.items():
        histogram = known.get(stage)
        old = before.get(stage, EMPTY)
        if histogram is None or len(old) != len(by_rank) or not all(map(is_, by_rank.values(), old.values())):
            histogram = sum_over_ranks(by_rank)
        if histogram is not None:
            sums[stage] = histogram
    return sums


def sum_over_ranks(histograms: Mapping[str, Histogram]) -> Histogram | None:
    """Return the ranks' histograms added bucket by bucket on common bounds; None without a common finite bound.

    Those that have no finite bound at all, but a sum and a count, are added, too.  ``sum`` is set only if every rank
    has one.
    """
    edges = common_bounds([histogram.bounds for histogram in histograms.values()])
    if not edges and (not histograms or any(histogram.bounds for histogram in histograms.values())):
        return None
    counts: Iterable[float] = ()
    for histogram in histograms.values():
        of_rank = on_bounds(edges, histogram)
        counts = map(add, counts, of_rank) if counts else of_rank
    sums = [histogram.sum for histogram in histograms.values() if histogram.sum is not None]
    return Histogram(
        bounds=edges,
        counts=tuple(counts),
        sum=sum(sums) if len(sums) == len(histograms) else None,
    )


def common_bounds(all_bounds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the bounds that all have, in the order of the first; the same object where all are equal."""
    first = all_bounds[0] if all_bounds else ()
    if all(bounds is first or bounds == first for bounds in all_bounds):
        return first
    common = set(first).intersection(*all_bounds)
    return tuple(bound for bound in first if bound in common)


def on_bounds(edges: tuple[float, ...], histogram: Histogram) -> tuple[float, ...]:
    """Return the cumulative counts at some of a histogram's bounds, and the one for +Inf."""
    if histogram.bounds is edges or histogram.bounds == edges:
        return histogram.counts
    at_bound = dict(zip(histogram.bounds, histogram.counts, strict=False))  # without +Inf, which has no bound
    return (*(at_bound[edge] for edge in edges), histogram.counts[-1])
