"""Counters that survive restarts: what grew since the first reading, added up per rank before summing.

What a page may be subtracted from, and what a restart is, ``restarts`` says.  What was lost between the last poll and
a restart is not guessed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from math import inf
from operator import add, sub
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from exporter.derive import counters
from exporter.derive.counters import MAX_NAMES, NO_COUNTERS, RankCounters, is_unchanged
from exporter.derive.departed_ranks import DepartedTotals, merge
from exporter.derive.ranks import common_bounds, on_bounds
from exporter.derive.restarts import Raw, Step, compare, first, raw
from exporter.model import EMPTY, EngineReading, Quantity, Stage

_Key = TypeVar("_Key")

FINISHED = "finished"
RESPONSES = "responses"
RETENTION = 300.0  # seconds
_NOBODY: frozenset[str] = frozenset()  # one for all: a window keeps 65 of them, and each would take 216 bytes


class Buckets(Struct, frozen=True, kw_only=True):
    """A histogram without its sum, packed: a window keeps 65 of these per stage, and a tuple takes thrice as much.

    ``counts``: one cumulative count per finite bound, then the one for +Inf.  Nobody writes to it.
    """

    bounds: tuple[float, ...]
    counts: array[float]


class ReplicaTotals(Struct, frozen=True, kw_only=True):
    """Increases since the first reading of a replica; every number only grows, across restarts too.

    A counter that is not on the newest page keeps its sum here, so that a window that starts at such a page is
    right; ``withdrawn`` and ``withdrawn_ranks`` say whose sums are merely carried and must not be shown as new.
    """

    at: float
    finished: Mapping[str, float] = EMPTY  # outcome → requests
    responses: Mapping[str, float] = EMPTY  # HTTP status class → responses
    quantities: Mapping[Quantity, float] = EMPTY  # counters, summed over ranks
    rank_generation: Mapping[str, float] = EMPTY  # rank → tokens
    histograms: Mapping[Stage, Buckets] = EMPTY  # summed over ranks
    restarts: int = 0  # readings that showed a restart of the process or of any rank
    first_at: float  # of the first reading
    moved_at: float  # when a counter last grew, work last began, or nothing was running
    rank_moved_at: float = inf  # the same, of the rank that has stood still longest; inf: ranks do not count apart
    begun: Mapping[Stage, float] = EMPTY  # stage → when its bounds changed last
    withdrawn: frozenset[str] = frozenset()  # Quantity and Stage values, FINISHED, RESPONSES
    withdrawn_ranks: frozenset[str] = frozenset()  # of rank_generation


class ReplicaCounters(Struct, frozen=True, kw_only=True):
    """What ``update`` must be handed back next time: the sums, and the raw values they were made of."""

    totals: ReplicaTotals
    raw: Raw
    busy: frozenset[str]  # ranks that the newest page said to be running requests
    idle: bool  # it said that nothing is running
    moved: Mapping[str, float]  # rank → as Totals.moved_at; only where several ranks count for themselves
    activity: Mapping[str, tuple[float, ...]] = EMPTY  # as on the newest page


def update(
    progress: ReplicaCounters | None,
    reading: EngineReading,
    stages: Collection[Stage] = tuple(Stage),
    keep: float = RETENTION,
) -> ReplicaCounters | None:
    """Add what grew between the last reading and this one; None until the first complete reading.

    A page that was cut off, and a reading not younger than the last one, change nothing.  ``stages``: whose
    observations are followed.  ``keep``: seconds for which ranks that pages lack are remembered, the longest window.
    """
    if not reading.complete or (progress is not None and reading.at <= progress.totals.at):
        return progress
    page = raw(reading, progress.raw.ranks if progress is not None else EMPTY)
    if progress is None:
        progress = _beginning(reading, page)
    step = compare(progress.raw, page, reading.at, keep)
    moved = _moved(progress, reading, step)
    return ReplicaCounters(
        totals=_sum_up(progress, reading, step, stages, moved),
        raw=step.after,
        busy=_busy(reading),
        idle=_idle(reading),
        moved=moved,
        activity=reading.activity,
    )


def with_zero_hits(progress: ReplicaCounters | None, reading: EngineReading) -> EngineReading:
    """Give the reading with 0 where the engine begins to count hits in its prefix cache only when there is one."""
    return counters.with_zero_hits(reading, progress.raw.ranks if progress is not None else EMPTY)


def departed_totals(progress: ReplicaCounters | None, reading: EngineReading) -> DepartedTotals:
    """Give what sums over the ranks need beside the newest page, which may be one that was cut off."""
    if progress is None:
        return DepartedTotals(quantities=EMPTY, finished=EMPTY, histograms=reading.histograms)
    return merge(progress.raw.gone, progress.raw.ranks, reading)


def with_stages(progress: ReplicaCounters, before: Collection[Stage], now: Collection[Stage]) -> ReplicaCounters:
    """Give the progress with other stages followed: new ones count from the next page, those left out are forgotten.

    What a stage that was not followed had observed so far must not look as if it had happened since.
    """
    totals = progress.totals
    added = set(now) - set(before)
    shown = {stage for counters in progress.raw.ranks.values() for stage in counters.histograms}
    begun = {stage: at for stage, at in totals.begun.items() if stage in now}
    return replace(
        progress,
        totals=replace(
            totals,
            histograms={stage: buckets for stage, buckets in totals.histograms.items() if stage in now},
            begun={**begun, **dict.fromkeys(added & shown, totals.at)},
        ),
    )


def _beginning(reading: EngineReading, page: Raw) -> ReplicaCounters:
    at = reading.at
    return ReplicaCounters(
        totals=ReplicaTotals(at=at, first_at=at, moved_at=at),
        raw=first(page),
        busy=_busy(reading),
        idle=False,
        moved=EMPTY,
    )


# ── Standing still ──────────────────────────────────────────────────────────────────────────────────────────────


def _busy(reading: EngineReading) -> frozenset[str]:
    running = Quantity.REQUESTS_RUNNING
    return frozenset([rank for rank, said in reading.ranks.items() if said.get(running, 0.0) > 0]) or _NOBODY


def _idle(reading: EngineReading) -> bool:
    running = [values.get(Quantity.REQUESTS_RUNNING) for values in reading.ranks.values()]
    known = [number for number in running if number is not None]
    return bool(known) and max(known) <= 0


def _moved(progress: ReplicaCounters, reading: EngineReading, step: Step) -> Mapping[str, float]:
    """Say when each rank moved last.  On a page that relays, ranks that are gone keep their last figures."""
    if len(step.page) < 2 or reading.relayed:
        return EMPTY
    busy = _busy(reading) & progress.busy  # work that was not there at the last page has had no time to move anything
    return {
        rank: progress.moved.get(rank, reading.at)
        if rank in busy
        and is_unchanged(step.before.get(rank, NO_COUNTERS), now)
        and reading.activity.get(rank) == progress.activity.get(rank)
        else reading.at
        for rank, now in step.page.items()
        if Quantity.GENERATION_TOKENS in now.quantities
    }


# ── Sums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sum_up(
    progress: ReplicaCounters,
    reading: EngineReading,
    step: Step,
    stages: Collection[Stage],
    moved: Mapping[str, float],
) -> ReplicaTotals:
    totals = progress.totals
    pairs = [(step.before.get(rank, NO_COUNTERS), now) for rank, now in step.page.items()]
    quantities = _grown(totals.quantities, [(old.quantities, new.quantities) for old, new in pairs])
    finished = _grown(totals.finished, [(old.finished, new.finished) for old, new in pairs])
    if len(finished) > MAX_NAMES:
        finished = _only(finished, {outcome for now in step.page.values() for outcome in now.finished})
    responses = _grown(totals.responses, [(step.responses_before, step.responses)])
    if len(responses) > MAX_NAMES:
        responses = _only(responses, step.responses)
    shown = _generation(step.page)
    generation = _grown(totals.rank_generation, [(_generation(step.before), shown)])
    if len(generation) > len(step.after.ranks):
        generation = _only(generation, step.after.ranks)
    histograms, begun = _grown_histograms(totals, reading.at, step, stages)
    still = (  # work that was not there at the last page has had no time to move anything yet
        not (step.restarted or progress.idle or _idle(reading))
        and quantities is totals.quantities
        and finished is totals.finished
        and (responses is totals.responses or _served(responses) == _served(totals.responses))
        and histograms is totals.histograms
        and not _moved_elsewhere(step, stages)
        and reading.activity == progress.activity
    )
    return ReplicaTotals(
        at=reading.at,
        finished=finished,
        responses=responses,
        quantities=quantities,
        rank_generation=generation,
        histograms=histograms,
        restarts=totals.restarts + step.restarted,
        first_at=totals.first_at,
        moved_at=totals.moved_at if still else reading.at,
        rank_moved_at=min(moved.values(), default=inf),
        begun=begun,
        withdrawn=_withdrawn(quantities, finished, responses, histograms, step),
        withdrawn_ranks=frozenset(gone) if (gone := generation.keys() - shown.keys()) else _NOBODY,
    )


def _moved_elsewhere(step: Step, stages: Collection[Stage]) -> bool:
    """Say whether a stage that is not followed over the windows has observed something: that is progress too."""
    for rank, now in step.page.items():
        before = step.before.get(rank, NO_COUNTERS).histograms
        for stage, histogram in now.histograms.items():
            if stage not in stages:
                old = before.get(stage)
                if old is not histogram and (old is None or old.counts != histogram.counts):
                    return True
    return False


def _served(responses: Mapping[str, float]) -> dict[str, float]:
    """Leave out 4xx: the HTTP front goes on refusing requests while the engine behind it hangs."""
    return {status: number for status, number in responses.items() if status != "4xx"}


def _generation(ranks: Mapping[str, RankCounters]) -> dict[str, float]:
    name = Quantity.GENERATION_TOKENS
    return {rank: known.quantities[name] for rank, known in ranks.items() if name in known.quantities}


def _grown(
    sums: Mapping[_Key, float], pairs: Iterable[tuple[Mapping[_Key, float], Mapping[_Key, float]]]
) -> Mapping[_Key, float]:
    """Give the sums with the increases added; the same object if nothing grew, so that rings can share it."""
    grown: dict[_Key, float] | None = None
    for before, now in pairs:
        for key, value in now.items():
            increase = value - before.get(key, 0.0)
            if increase > 0 or key not in (sums if grown is None else grown):
                grown = dict(sums) if grown is None else grown
                grown[key] = grown.get(key, 0.0) + increase
    return sums if grown is None else grown


def _only(sums: Mapping[_Key, float], names: Collection[_Key]) -> Mapping[_Key, float]:
    """Leave out what nobody will ask for again, or too many; the same object if that is nothing."""
    left = {name: total for name, total in sums.items() if name in names}
    return sums if len(left) == len(sums) else left


def _grown_histograms(
    totals: ReplicaTotals, at: float, step: Step, stages: Collection[Stage]
) -> tuple[Mapping[Stage, Buckets], Mapping[Stage, float]]:
    grown, begun = dict(totals.histograms), dict(totals.begun)
    for stage in stages:
        if not any(stage in now.histograms for now in step.page.values()):
            continue
        known = [ranks.histograms[stage] for ranks in step.after.ranks.values() if stage in ranks.histograms]
        edges = common_bounds([histogram.bounds for histogram in known])
        old = totals.histograms.get(stage)
        if not edges:
            grown.pop(stage, None)
            begun[stage] = at
        elif old is None and stage not in begun:  # first seen: what it holds was observed since the last page
            grown[stage] = _with_increases(_no_observations(edges), stage, step)
        elif old is None or old.bounds != edges:
            grown[stage] = _no_observations(edges)
            begun[stage] = at
        else:
            grown[stage] = _with_increases(old, stage, step)
    is_unchanged = grown.keys() == totals.histograms.keys() and all(
        histogram is totals.histograms[stage] for stage, histogram in grown.items()
    )
    return (totals.histograms if is_unchanged else grown), (totals.begun if begun == totals.begun else begun)


def _no_observations(edges: tuple[float, ...]) -> Buckets:
    return Buckets(bounds=edges, counts=array("d", bytes(8 * (len(edges) + 1))))


def _with_increases(total: Buckets, stage: Stage, step: Step) -> Buckets:
    edges = total.bounds
    counts: Iterable[float] = total.counts
    for rank, now in step.page.items():
        histogram = now.histograms.get(stage)
        if histogram is None:
            continue
        known = step.before.get(rank, NO_COUNTERS).histograms.get(stage)
        if known is None:
            counts = map(add, counts, on_bounds(edges, histogram))
        elif known is histogram:
            continue
        elif known.counts != histogram.counts and known.bounds == histogram.bounds:
            grown = map(sub, on_bounds(edges, histogram), on_bounds(edges, known))
            counts = map(add, counts, grown)
        # else nothing new, or new bounds without a restart: not comparable, so left out this once
    return total if counts is total.counts else Buckets(bounds=edges, counts=array("d", counts))


def _withdrawn(
    quantities: Mapping[Quantity, float],
    finished: Mapping[str, float],
    responses: Mapping[str, float],
    histograms: Mapping[Stage, Buckets],
    step: Step,
) -> frozenset[str]:
    page = step.page.values()
    counted: set[Quantity] = set().union(*[now.quantities for now in page])
    observed: set[Stage] = set().union(*[now.histograms for now in page])
    gone = {name.value for name in quantities if name not in counted}
    gone.update([stage.value for stage in histograms if stage not in observed])
    if finished and not any(now.finished for now in page):
        gone.add(FINISHED)
    if responses and not step.responses:
        gone.add(RESPONSES)
    return frozenset(gone) if gone else _NOBODY
