"""Counters that survive restarts: what grew since the first reading, added up per rank before summing.

A counter that fell was reset, and its new value counts whole, as in Prometheus.  Unlike there, one counter that
falls resets every counter of its rank: after a restart some counters have overtaken their old value by the next
poll, and would otherwise be read as a tiny increase.  What was lost between the last poll and the restart is not
guessed.

Raw values stay remembered while they are missing from a page, so that a counter which comes back continues where
it was instead of adding its whole life at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from operator import add, le, lt, sub
from typing import TypeVar

from exporter.derive.ranks import common_bounds, on_bounds
from exporter.model import COUNTERS, EMPTY, WINDOWED, EngineReading, Histogram, Quantity, Stage

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
    begun: Mapping[Stage, float] = field(default_factory=lambda: EMPTY)  # stage → when its bounds changed last
    withdrawn: frozenset[str] = frozenset()  # Quantity and Stage values, FINISHED, RESPONSES
    withdrawn_ranks: frozenset[str] = frozenset()  # of rank_generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """The newest known raw counters of one rank, whether or not the newest page shows them."""

    quantities: Mapping[Quantity, float] = field(default_factory=lambda: EMPTY)
    finished: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    histograms: Mapping[Stage, Histogram] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What ``advance`` must be handed back next time: the sums, and the raw values they were made of."""

    totals: Totals
    ranks: Mapping[str, RankCounters]
    responses: Mapping[str, float]
    process_start: float | None
    created: float | None
    idle: bool  # the newest page said that nothing is running


_NOTHING = RankCounters()


def advance(progress: Progress | None, reading: EngineReading) -> Progress | None:
    """Add what grew between the last reading and this one; None until the first complete reading.

    A page that was cut off, and a reading not younger than the last one, change nothing.
    """
    if not reading.complete or (progress is not None and reading.at <= progress.totals.at):
        return progress
    page = _by_rank(reading, progress.ranks if progress is not None else EMPTY)
    responses = _valid(reading.responses)
    if progress is None:  # the page as its own predecessor: everything is known and nothing has grown
        start = Totals(at=reading.at, first_at=reading.at, moved_at=reading.at)
        progress = Progress(
            totals=start,
            ranks=page,
            responses=responses,
            process_start=reading.process_start,
            created=reading.created,
            idle=False,
        )
    step = _step(progress, reading, page, responses)
    return Progress(
        totals=_sum_up(progress, reading, step),
        ranks=step.after,
        responses=_merged(step.responses_before, responses),
        process_start=progress.process_start if reading.process_start is None else reading.process_start,
        created=progress.created if reading.created is None else reading.created,
        idle=_idle(reading),
    )


# ── Reading a page ──────────────────────────────────────────────────────────────────────────────────────────────


def _by_rank(reading: EngineReading, known: Mapping[str, RankCounters]) -> dict[str, RankCounters]:
    histograms: dict[str, dict[Stage, Histogram]] = {}
    for stage, by_rank in reading.histograms.items():
        for rank, histogram in by_rank.items():
            same = known.get(rank, _NOTHING).histograms.get(stage) is histogram  # most do not change in a second
            sound = histogram if same else _sound(histogram)
            if sound is not None:
                histograms.setdefault(rank, {})[stage] = sound
    names = dict.fromkeys((*reading.ranks, *reading.finished, *histograms))
    return {
        rank: RankCounters(
            quantities={
                quantity: value
                for quantity, value in reading.ranks.get(rank, EMPTY).items()
                if quantity in COUNTERS and 0 <= value < inf
            },
            finished=_valid(reading.finished.get(rank, EMPTY)),
            histograms=histograms.get(rank, EMPTY),
        )
        for rank in names
    }


def _valid(counters: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in counters.items() if 0 <= value < inf}  # NaN compares false


def _sound(histogram: Histogram) -> Histogram | None:
    """Give the histogram with counts that never fall with the bound; None if a count cannot be one."""
    counts = histogram.counts
    if not histogram.bounds or len(counts) != len(histogram.bounds) + 1 or not 0 <= sum(counts) < inf:
        return None
    if min(counts) < 0:
        return None
    if all(map(le, counts, counts[1:])):
        return histogram
    return Histogram(bounds=histogram.bounds, counts=tuple(accumulate(counts, max)), sum=histogram.sum)


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
    progress: Progress, reading: EngineReading, page: Mapping[str, RankCounters], responses: Mapping[str, float]
) -> _Step:
    before: dict[str, RankCounters] = {}
    responses_before: Mapping[str, float] = EMPTY
    restarted = _new_process(progress, reading, page)
    if not restarted:
        reset = {rank for rank, now in page.items() if _fell(progress.ranks.get(rank, _NOTHING), now)}
        before = {rank: known for rank, known in progress.ranks.items() if rank not in reset}
        responses_fell = _any_fell(progress.responses, responses)
        responses_before = EMPTY if responses_fell else progress.responses
        restarted = bool(reset) or responses_fell
    return _Step(
        before=before,
        page=page,
        after=before | {rank: _remember(before.get(rank, _NOTHING), now) for rank, now in page.items()},
        responses_before=responses_before,
        responses=responses,
        restarted=restarted,
    )


def _new_process(progress: Progress, reading: EngineReading, page: Mapping[str, RankCounters]) -> bool:
    old, new = progress.process_start, reading.process_start
    if old is not None and new is not None and (new < old or new > old):  # NaN is no change
        return True
    old, new = progress.created, reading.created
    if old is None or new is None or not new > old:
        return False
    # The newest creation time also moves when a rank joins a living process.  Calling that a restart would add
    # the lifetime counts of all other ranks to the window.
    return page.keys() <= progress.ranks.keys()


def _any_fell(before: Mapping[_Key, float], now: Mapping[_Key, float]) -> bool:
    return any(value < before.get(key, 0.0) for key, value in now.items())


def _fell(before: RankCounters, now: RankCounters) -> bool:
    if _any_fell(before.quantities, now.quantities) or _any_fell(before.finished, now.finished):
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


def _remember(before: RankCounters, now: RankCounters) -> RankCounters:
    return RankCounters(
        quantities=_merged(before.quantities, now.quantities),
        finished=_merged(before.finished, now.finished),
        histograms=_merged(before.histograms, now.histograms),
    )


_Value = TypeVar("_Value")


def _merged(before: Mapping[_Key, _Value], now: Mapping[_Key, _Value]) -> Mapping[_Key, _Value]:
    return now if before.keys() <= now.keys() else {**before, **now}


# ── Sums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sum_up(progress: Progress, reading: EngineReading, step: _Step) -> Totals:
    totals = progress.totals
    pairs = [(step.before.get(rank, _NOTHING), now) for rank, now in step.page.items()]
    quantities = _grown(totals.quantities, [(old.quantities, new.quantities) for old, new in pairs])
    finished = _grown(totals.finished, [(old.finished, new.finished) for old, new in pairs])
    responses = _grown(totals.responses, [(step.responses_before, step.responses)])
    shown = _generation(step.page)
    generation = _grown(totals.rank_generation, [(_generation(step.before), shown)])
    histograms, begun = _grown_histograms(totals, reading.at, step)
    still = (  # work that was not there at the last page has had no time to move anything yet
        not (step.restarted or progress.idle or _idle(reading))
        and quantities is totals.quantities
        and finished is totals.finished
        and (responses is totals.responses or _served(responses) == _served(totals.responses))
        and histograms is totals.histograms
        and not _moved_elsewhere(step)
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
        begun=begun,
        withdrawn=_withdrawn(quantities, finished, responses, histograms, step),
        withdrawn_ranks=frozenset(gone) if (gone := generation.keys() - shown.keys()) else _NOBODY,
    )


def _moved_elsewhere(step: _Step) -> bool:
    """Say whether a stage that is not followed over the windows has observed something: that is progress too."""
    for rank, now in step.page.items():
        before = step.before.get(rank, _NOTHING).histograms
        for stage, histogram in now.histograms.items():
            if stage not in WINDOWED:
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


def _idle(reading: EngineReading) -> bool:
    running = [values.get(Quantity.REQUESTS_RUNNING) for values in reading.ranks.values()]
    known = [number for number in running if number is not None]
    return bool(known) and max(known) <= 0


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
    totals: Totals, at: float, step: _Step
) -> tuple[Mapping[Stage, Buckets], Mapping[Stage, float]]:
    grown, begun = dict(totals.histograms), dict(totals.begun)
    for stage in WINDOWED:
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
        known = step.before.get(rank, _NOTHING).histograms.get(stage)
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
