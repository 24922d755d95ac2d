"""Ranks that a page lacks: remembered for a while, then by name only, while what they counted stays in the sums.

A rank may be missing from one page, or for good: Ray starts a replica under a new name, a server scales down.  The
raw counters are kept until no window reaches back to it, of at most ``MAX_DEPARTED`` ranks.  Then they are added to
``retired_totals``, so that sums over the ranks continue: a sum that decreased would look like a reset, and the
lifetime of the other ranks like new increase.  Sums begin again only when the whole engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from exporter.derive.counters import NO_COUNTERS, RankCounters, by_rank, newest
from exporter.derive.ranks import sum_over_ranks
from exporter.model import EMPTY, EngineReading, Histogram, Quantity, Stage

_Key = TypeVar("_Key")

MAX_DEPARTED = 64  # ranks whose raw counters are kept, of some 20 kB each
MAX_EXPIRED = 256  # names of others
_RETIRED = "\0"  # in place of a rank where histograms are added; no rank's name contains it


class DepartedRanks(Struct, frozen=True, kw_only=True):
    """The ranks that the newest page lacks.

    ``since``: remembered rank → when a page lacked it first.  ``expired``: names, the oldest first; what such a rank
    counts while it is away is not guessed when it returns.  ``retired_totals``: the counters of expired ranks, and
    of ranks before they restarted alone; below 0 where a rank returned with more.
    """

    since: Mapping[str, float] = EMPTY
    expired: Mapping[str, None] = EMPTY
    retired_totals: RankCounters = NO_COUNTERS


NONE = DepartedRanks()


def restore(
    departed: DepartedRanks, page: Mapping[str, RankCounters]
) -> tuple[DepartedRanks, Mapping[str, RankCounters]]:
    """Return the ranks that are still away, and the counters of expired ranks that the page shows again."""
    restored = {rank: page[rank] for rank in departed.expired if rank in page}
    if not restored:
        return departed, restored
    retired_totals = departed.retired_totals
    for counters in restored.values():
        retired_totals = _plus(retired_totals, counters, -1.0)
    expired = {rank: None for rank in departed.expired if rank not in restored}
    return DepartedRanks(since=departed.since, expired=expired, retired_totals=retired_totals), restored


def retire(departed: DepartedRanks, retired: Mapping[str, RankCounters]) -> DepartedRanks:
    """Return the departed ranks with the counters, before their restart, of ranks that restarted alone."""
    retired_totals = departed.retired_totals
    for counters in retired.values():
        retired_totals = _plus(retired_totals, counters, 1.0)
    return (
        departed
        if retired_totals is departed.retired_totals
        else DepartedRanks(since=departed.since, expired=departed.expired, retired_totals=retired_totals)
    )


def expire(
    departed: DepartedRanks,
    known: Mapping[str, RankCounters],
    page: Mapping[str, RankCounters],
    at: float,
    keep: float,
) -> tuple[DepartedRanks, Mapping[str, RankCounters]]:
    """Return the departed ranks and those remembered: the ranks on the page, and others for ``keep`` seconds."""
    if len(known) == len(page):  # the page's ranks are among the known ones
        return (
            DepartedRanks(expired=departed.expired, retired_totals=departed.retired_totals)
            if departed.since
            else departed
        ), known
    since = {rank: departed.since.get(rank, at) for rank in known if rank not in page}
    oldest = sorted(since, key=since.__getitem__)
    too_many = len(oldest) - MAX_DEPARTED
    dropped = [rank for place, rank in enumerate(oldest) if place < too_many or at - since[rank] >= keep]
    if not dropped:
        return DepartedRanks(since=since, expired=departed.expired, retired_totals=departed.retired_totals), known
    retired_totals = departed.retired_totals
    for rank in dropped:
        retired_totals = _plus(retired_totals, known[rank], 1.0)
        del since[rank]
    names = [*departed.expired, *dropped][-MAX_EXPIRED:]
    remembered = {rank: counters for rank, counters in known.items() if rank in page or rank in since}
    return DepartedRanks(since=since, expired=dict.fromkeys(names), retired_totals=retired_totals), remembered


def _plus(retired_totals: RankCounters, counters: RankCounters, sign: float) -> RankCounters:
    quantities, finished = dict(retired_totals.quantities), dict(retired_totals.finished)
    for quantity, value in counters.quantities.items():
        quantities[quantity] = quantities.get(quantity, 0.0) + sign * value
    for outcome, value in counters.finished.items():
        finished[outcome] = finished.get(outcome, 0.0) + sign * value
    histograms = dict(retired_totals.histograms)
    for stage, histogram in counters.histograms.items():
        signed = histogram if sign > 0 else _negative(histogram)
        total = sum_over_ranks({"": histograms[stage], _RETIRED: signed}) if stage in histograms else signed
        if total is not None:
            histograms[stage] = total
    return RankCounters(quantities=quantities, finished=newest(EMPTY, finished), histograms=histograms)


def _negative(histogram: Histogram) -> Histogram:
    return Histogram(
        bounds=histogram.bounds,
        counts=tuple([-count for count in histogram.counts]),
        sum=None if histogram.sum is None else -histogram.sum,
    )


# ── What sums over the ranks need beside the page ───────────────────────────────────────────────────────────────


class DepartedTotals(Struct, frozen=True, kw_only=True):
    """What sums over the ranks need so that they do not decrease when a page lacks some.

    ``quantities`` and ``finished``: counted by ranks of which the page does not show it.  ``histograms``: those to
    add, stage → rank → …, of the page and of ranks that it lacks.
    """

    quantities: Mapping[Quantity, float]
    finished: Mapping[str, float]  # outcome → requests
    histograms: Mapping[Stage, Mapping[str, Histogram]]


def merge(departed: DepartedRanks, known: Mapping[str, RankCounters], reading: EngineReading) -> DepartedTotals:
    """Return what the ``known`` and the expired ranks counted beyond what the page shows."""
    if departed.expired and not reading.complete:
        departed, _ = restore(departed, by_rank(reading, known))  # restored ranks are on the page as well
    quantities, finished = dict(departed.retired_totals.quantities), dict(departed.retired_totals.finished)
    for rank, counters in known.items():
        numbers, outcomes = reading.ranks.get(rank, EMPTY), reading.finished.get(rank, EMPTY)
        if not reading.complete or not counters.quantities.keys() <= numbers.keys():
            _add_lacking(quantities, counters.quantities, numbers)
        if not reading.complete or not counters.finished.keys() <= outcomes.keys():
            _add_lacking(finished, counters.finished, outcomes)
    return DepartedTotals(
        quantities=quantities or EMPTY, finished=finished or EMPTY, histograms=_histograms(departed, known, reading)
    )


def _add_lacking(sums: dict[_Key, float], known: Mapping[_Key, float], shown: Mapping[_Key, float]) -> None:
    """Add what is known beyond what is shown; a truncated page may show less."""
    for key, value in known.items():
        lacking = value - shown.get(key, 0.0)
        if lacking > 0:
            sums[key] = sums.get(key, 0.0) + lacking


def _histograms(
    departed: DepartedRanks, known: Mapping[str, RankCounters], reading: EngineReading
) -> Mapping[Stage, Mapping[str, Histogram]]:
    """Return the page's histograms, and those of the same stages of ranks that the page lacks.

    The retired totals are among them only if they have the others' bounds: with other bounds, the sum would lose for
    ever the bounds that they lack.
    """
    shown = reading.histograms
    if departed.retired_totals is NO_COUNTERS and sum(map(len, shown.values())) == sum(
        [len(counters.histograms) for counters in known.values()]
    ):
        return shown
    restored = {}
    for stage, on_page in shown.items():
        restored[stage] = {
            **on_page,
            **{
                rank: counters.histograms[stage]
                for rank, counters in known.items()
                if stage in counters.histograms and rank not in on_page
            },
        }
        retired = departed.retired_totals.histograms.get(stage)
        if retired is not None and all(retired.bounds == histogram.bounds for histogram in restored[stage].values()):
            restored[stage][_RETIRED] = retired
    return restored
