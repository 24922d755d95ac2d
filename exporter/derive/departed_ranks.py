"""Ranks that a page shows no more: remembered for a while, then by name alone, while what they counted stays counted.

A rank may be missing for a page, or for good: Ray starts a replica under a new name, a server grows smaller.  Its raw
counters are kept until no window reaches back to it, of at most ``MAX_DEPARTED`` ranks.  After that ``left`` holds
them, added up, so that sums over the ranks go on from where they were: a sum that fell would be read as a reset, and
the whole life of the other ranks as new.  They begin anew only when the whole engine does.
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
_LEFT = "\0"  # stands for a rank where histograms are added up; no rank's name has it


class DepartedRanks(Struct, frozen=True, kw_only=True):
    """Who is not on the newest page.

    ``since``: remembered rank → when a page lacked it first.  ``forgotten``: names, the oldest first; should such a
    rank come back, what it counted while it was away is not guessed.  ``left``: the counters of the forgotten ranks,
    and of lives that a rank has ended alone; below 0 where one came back with more.
    """

    since: Mapping[str, float] = EMPTY
    forgotten: Mapping[str, None] = EMPTY
    left: RankCounters = NO_COUNTERS


NONE = DepartedRanks()


def restore(
    gone: DepartedRanks, page: Mapping[str, RankCounters]
) -> tuple[DepartedRanks, Mapping[str, RankCounters]]:
    """Give who is still gone, and the counters of those forgotten that are on the page again."""
    back = {rank: page[rank] for rank in gone.forgotten if rank in page}
    if not back:
        return gone, back
    left = gone.left
    for counters in back.values():
        left = _plus(left, counters, -1.0)
    forgotten = {rank: None for rank in gone.forgotten if rank not in back}
    return DepartedRanks(since=gone.since, forgotten=forgotten, left=left), back


def retire(gone: DepartedRanks, lives: Mapping[str, RankCounters]) -> DepartedRanks:
    """Keep what ranks counted that have begun anew alone."""
    left = gone.left
    for counters in lives.values():
        left = _plus(left, counters, 1.0)
    return gone if left is gone.left else DepartedRanks(since=gone.since, forgotten=gone.forgotten, left=left)


def expire(
    gone: DepartedRanks, known: Mapping[str, RankCounters], page: Mapping[str, RankCounters], at: float, keep: float
) -> tuple[DepartedRanks, Mapping[str, RankCounters]]:
    """Give who is gone now, and the ranks still remembered: those on the page, and others for ``keep`` seconds."""
    if len(known) == len(page):  # the page's ranks are among the known ones
        return (DepartedRanks(forgotten=gone.forgotten, left=gone.left) if gone.since else gone), known
    since = {rank: gone.since.get(rank, at) for rank in known if rank not in page}
    oldest = sorted(since, key=since.__getitem__)
    too_many = len(oldest) - MAX_DEPARTED
    dropped = [rank for place, rank in enumerate(oldest) if place < too_many or at - since[rank] >= keep]
    if not dropped:
        return DepartedRanks(since=since, forgotten=gone.forgotten, left=gone.left), known
    left = gone.left
    for rank in dropped:
        left = _plus(left, known[rank], 1.0)
        del since[rank]
    names = [*gone.forgotten, *dropped][-MAX_EXPIRED:]
    remembered = {rank: counters for rank, counters in known.items() if rank in page or rank in since}
    return DepartedRanks(since=since, forgotten=dict.fromkeys(names), left=left), remembered


def _plus(left: RankCounters, counters: RankCounters, sign: float) -> RankCounters:
    quantities, finished = dict(left.quantities), dict(left.finished)
    for quantity, value in counters.quantities.items():
        quantities[quantity] = quantities.get(quantity, 0.0) + sign * value
    for outcome, value in counters.finished.items():
        finished[outcome] = finished.get(outcome, 0.0) + sign * value
    histograms = dict(left.histograms)
    for stage, histogram in counters.histograms.items():
        signed = histogram if sign > 0 else _negative(histogram)
        total = sum_over_ranks({"": histograms[stage], _LEFT: signed}) if stage in histograms else signed
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
    """What sums over the ranks need so that they do not fall when a page lacks some.

    ``quantities`` and ``finished``: counted by ranks of which the page does not show it.
    ``histograms``: those to add up, stage → rank → …, of the page and of ranks that it lacks.
    """

    quantities: Mapping[Quantity, float]
    finished: Mapping[str, float]  # outcome → requests
    histograms: Mapping[Stage, Mapping[str, Histogram]]


def merge(gone: DepartedRanks, known: Mapping[str, RankCounters], reading: EngineReading) -> DepartedTotals:
    """Give what the ``known`` ranks, and those forgotten, had counted beside what the page shows."""
    if gone.forgotten and not reading.complete:
        gone, _ = restore(gone, by_rank(reading, known))  # who is back stands on the page as well
    quantities, finished = dict(gone.left.quantities), dict(gone.left.finished)
    for rank, counters in known.items():
        numbers, outcomes = reading.ranks.get(rank, EMPTY), reading.finished.get(rank, EMPTY)
        if not reading.complete or not counters.quantities.keys() <= numbers.keys():
            _add_lacking(quantities, counters.quantities, numbers)
        if not reading.complete or not counters.finished.keys() <= outcomes.keys():
            _add_lacking(finished, counters.finished, outcomes)
    return DepartedTotals(
        quantities=quantities or EMPTY, finished=finished or EMPTY, histograms=_histograms(gone, known, reading)
    )


def _add_lacking(sums: dict[_Key, float], known: Mapping[_Key, float], shown: Mapping[_Key, float]) -> None:
    """Add what was known beyond what is shown; a page that was cut off may show less, and is not gone on from."""
    for key, value in known.items():
        lacking = value - shown.get(key, 0.0)
        if lacking > 0:
            sums[key] = sums.get(key, 0.0) + lacking


def _histograms(
    gone: DepartedRanks, known: Mapping[str, RankCounters], reading: EngineReading
) -> Mapping[Stage, Mapping[str, Histogram]]:
    """Give the page's histograms, and of the same stages those of ranks that the page lacks.

    What is left of forgotten ranks is among them as long as it has the others' bounds; with other bounds it would
    take from them, for ever, the bounds that it lacks.
    """
    shown = reading.histograms
    if gone.left is NO_COUNTERS and sum(map(len, shown.values())) == sum(
        [len(one.histograms) for one in known.values()]
    ):
        return shown
    found = {}
    for stage, on_page in shown.items():
        found[stage] = {
            **on_page,
            **{
                rank: counters.histograms[stage]
                for rank, counters in known.items()
                if stage in counters.histograms and rank not in on_page
            },
        }
        left = gone.left.histograms.get(stage)
        if left is not None and all(left.bounds == histogram.bounds for histogram in found[stage].values()):
            found[stage][_LEFT] = left
    return found
