"""Counters that survive restarts: what grew since the first reading, added up per rank before summing.

A counter that fell was reset, and its new value counts whole, as in Prometheus.  Unlike there, one counter that
falls resets every counter of its rank: after a restart some counters have overtaken their old value by the next
poll, and would otherwise be read as a tiny increase.  What was lost between the last poll and the restart is not
guessed.

A counter that appears had counted nothing before: engines make many with their first event.  Unless the last page
held numbers that could not be read: then it may have stood there with its whole life, and begins at what it shows.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import add, sub
from typing import TypeVar

from exporter.derive.counters import (
    NOTHING,
    RankCounters,
    any_fell,
    assume,
    by_rank,
    fell,
    hiding,
    merged,
    remember,
    same,
    valid,
)
from exporter.derive.ranks import common_bounds, on_bounds
from exporter.model import EMPTY, EngineReading, Quantity, Stage

_Key = TypeVar("_Key")

FINISHED = "finished"
RESPONSES = "responses"
_NOBODY: frozenset[str] = frozenset()  # one for all: a window keeps 65 of them, and each would take 216 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """A histogram without its sum, packed: a window keeps 65 of these per stage, and a tuple takes thrice as much.

    ``counts``: one cumulative count per finite bound, then the one for +Inf.  Nobody writes to it.
    """

    bounds: tuple[float, ...]
    counts: array[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Increases since the first reading of a replica; every number only grows, across restarts too.

    A counter that is not on the newest page keeps its sum here, so that a window that starts at such a page is
    right; ``withdrawn`` and ``withdrawn_ranks`` say whose sums are merely carried and must not be shown as new.
    """

    at: float
    finished: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # outcome → requests
    responses: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # HTTP status class → responses
    quantities: Mapping[Quantity, float] = field(default_factory=lambda: EMPTY)  # counters, summed over ranks
    rank_generation: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # rank → tokens
    histograms: Mapping[Stage, Buckets] = field(default_factory=lambda: EMPTY)  # summed over ranks
    restarts: int = 0  # readings that showed a restart of the process or of any rank
    first_at: float  # of the first reading
    moved_at: float  # when a counter last grew, work last began, or nothing was running
    rank_moved_at: float = inf  # the same, of the rank that has stood still longest; inf: ranks do not count apart
    begun: Mapping[Stage, float] = field(default_factory=lambda: EMPTY)  # stage → when its bounds changed last
    withdrawn: frozenset[str] = frozenset()  # Quantity and Stage values, FINISHED, RESPONSES
    withdrawn_ranks: frozenset[str] = frozenset()  # of rank_generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What ``advance`` must be handed back next time: the sums, and the raw values they were made of."""

    totals: Totals
    ranks: Mapping[str, RankCounters]
    responses: Mapping[str, float]
    process_start: float | None
    created: Mapping[str, float]  # rank → wall
    busy: frozenset[str]  # ranks that the newest page said to be running requests
    idle: bool  # it said that nothing is running
    hiding: bool  # numbers on it could not be read
    moved: Mapping[str, float]  # rank → as Totals.moved_at; only where several ranks count for themselves


def advance(
    progress: Progress | None, reading: EngineReading, stages: Collection[Stage] = tuple(Stage)
) -> Progress | None:
    """Add what grew between the last reading and this one; None until the first complete reading.

    A page that was cut off, and a reading not younger than the last one, change nothing.  ``stages``: whose
    observations are followed.
    """
    if not reading.complete or (progress is not None and reading.at <= progress.totals.at):
        return progress
    page = by_rank(reading, progress.ranks if progress is not None else EMPTY)
    responses = valid(reading.responses)
    created = valid(reading.created)
    if progress is None:  # the page as its own predecessor: everything is known and nothing has grown
        progress = _beginning(reading, page, responses, created)
    step = _step(progress, reading, page, responses, created)
    moved = _moved(progress, reading, step)
    return Progress(
        totals=_sum_up(progress, reading, step, stages, moved),
        ranks=step.after,
        responses=merged(step.responses_before, responses),
        process_start=progress.process_start if reading.process_start is None else reading.process_start,
        created=merged(progress.created, created),
        busy=_busy(reading),
        idle=_idle(reading),
        hiding=hiding(reading),
        moved=moved,
    )


def _beginning(
    reading: EngineReading,
    page: Mapping[str, RankCounters],
    responses: Mapping[str, float],
    created: Mapping[str, float],
) -> Progress:
    at = reading.at
    return Progress(
        totals=Totals(at=at, first_at=at, moved_at=at),
        ranks=page,
        responses=responses,
        process_start=reading.process_start,
        created=created,
        busy=_busy(reading),
        idle=False,
        hiding=False,
        moved=EMPTY,
    )


# ── Restarts ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One reading against what was known: ``before`` holds only what the page may be subtracted from."""

    before: Mapping[str, RankCounters]
    page: Mapping[str, RankCounters]
    after: Mapping[str, RankCounters]
    responses_before: Mapping[str, float]
    responses: Mapping[str, float]
    restarted: bool


def _step(
    progress: Progress,
    reading: EngineReading,
    page: Mapping[str, RankCounters],
    responses: Mapping[str, float],
    created: Mapping[str, float],
) -> _Step:
    before: dict[str, RankCounters] = {}
    responses_before: Mapping[str, float] = EMPTY
    # By rank: one that joins, or restarts alone, must not add the lifetime of all the others to the window.
    renewed = {rank for rank, at in created.items() if progress.created.get(rank, at) != at}
    restarted = _new_process(progress.process_start, reading.process_start) or (
        bool(renewed) and renewed >= progress.created.keys()
    )
    if not restarted:
        reset = renewed | {rank for rank, now in page.items() if fell(progress.ranks.get(rank, NOTHING), now)}
        before = {rank: known for rank, known in progress.ranks.items() if rank not in reset}
        responses_fell = any_fell(progress.responses, responses)
        responses_before = EMPTY if responses_fell else progress.responses
        if progress.hiding:
            before |= {
                rank: assume(before.get(rank, NOTHING), now) for rank, now in page.items() if rank not in reset
            }
            responses_before = EMPTY if responses_fell else merged(responses, responses_before)
        restarted = bool(reset) or responses_fell
    return _Step(
        before=before,
        page=page,
        after=before | {rank: remember(before.get(rank, NOTHING), now) for rank, now in page.items()},
        responses_before=responses_before,
        responses=responses,
        restarted=restarted,
    )


def _new_process(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and (new < old or new > old)  # NaN is no change


# ── Standing still ──────────────────────────────────────────────────────────────────────────────────────────────


def _busy(reading: EngineReading) -> frozenset[str]:
    running = Quantity.REQUESTS_RUNNING
    return frozenset([rank for rank, said in reading.ranks.items() if said.get(running, 0.0) > 0]) or _NOBODY


def _idle(reading: EngineReading) -> bool:
    running = [values.get(Quantity.REQUESTS_RUNNING) for values in reading.ranks.values()]
    known = [number for number in running if number is not None]
    return bool(known) and max(known) <= 0


def _moved(progress: Progress, reading: EngineReading, step: _Step) -> Mapping[str, float]:
    """Say when each rank moved last.  On a page that relays, ranks that are gone keep their last figures."""
    if len(step.page) < 2 or reading.relayed:
        return EMPTY
    busy = _busy(reading) & progress.busy  # work that was not there at the last page has had no time to move anything
    return {
        rank: progress.moved.get(rank, reading.at)
        if rank in busy and same(step.before.get(rank, NOTHING), now)
        else reading.at
        for rank, now in step.page.items()
        if Quantity.GENERATION_TOKENS in now.quantities
    }


# ── Sums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sum_up(
    progress: Progress,
    reading: EngineReading,
    step: _Step,
    stages: Collection[Stage],
    moved: Mapping[str, float],
) -> Totals:
    totals = progress.totals
    pairs = [(step.before.get(rank, NOTHING), now) for rank, now in step.page.items()]
    quantities = _grown(totals.quantities, [(old.quantities, new.quantities) for old, new in pairs])
    finished = _grown(totals.finished, [(old.finished, new.finished) for old, new in pairs])
    responses = _grown(totals.responses, [(step.responses_before, step.responses)])
    shown = _generation(step.page)
    generation = _grown(totals.rank_generation, [(_generation(step.before), shown)])
    histograms, begun = _grown_histograms(totals, reading.at, step, stages)
    still = (  # work that was not there at the last page has had no time to move anything yet
        not (step.restarted or progress.idle or _idle(reading))
        and quantities is totals.quantities
        and finished is totals.finished
        and (responses is totals.responses or _served(responses) == _served(totals.responses))
        and histograms is totals.histograms
        and not _moved_elsewhere(step, stages)
    )
    return Totals(
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


def _moved_elsewhere(step: _Step, stages: Collection[Stage]) -> bool:
    """Say whether a stage that is not followed over the windows has observed something: that is progress too."""
    for rank, now in step.page.items():
        before = step.before.get(rank, NOTHING).histograms
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


def _grown_histograms(
    totals: Totals, at: float, step: _Step, stages: Collection[Stage]
) -> tuple[Mapping[Stage, Buckets], Mapping[Stage, float]]:
    grown, begun = dict(totals.histograms), dict(totals.begun)
    for stage in stages:
        if not any(stage in now.histograms for now in step.page.values()):
            continue
        known = [ranks.histograms[stage] for ranks in step.after.values() if stage in ranks.histograms]
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
    same = grown.keys() == totals.histograms.keys() and all(
        histogram is totals.histograms[stage] for stage, histogram in grown.items()
    )
    return (totals.histograms if same else grown), (totals.begun if begun == totals.begun else begun)


def _no_observations(edges: tuple[float, ...]) -> Buckets:
    return Buckets(bounds=edges, counts=array("d", bytes(8 * (len(edges) + 1))))


def _with_increases(total: Buckets, stage: Stage, step: _Step) -> Buckets:
    edges = total.bounds
    counts: Iterable[float] = total.counts
    for rank, now in step.page.items():
        histogram = now.histograms.get(stage)
        if histogram is None:
            continue
        known = step.before.get(rank, NOTHING).histograms.get(stage)
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
    step: _Step,
) -> frozenset[str]:
    page = step.page.values()
    gone = {name.value for name in quantities if all(name not in now.quantities for now in page)}
    gone.update(stage.value for stage in histograms if all(stage not in now.histograms for now in page))
    if finished and not any(now.finished for now in page):
        gone.add(FINISHED)
    if responses and not step.responses:
        gone.add(RESPONSES)
    return frozenset(gone) if gone else _NOBODY
