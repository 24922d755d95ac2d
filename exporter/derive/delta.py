"""Counters that survive restarts: increases since the first reading, computed per rank and then summed.

``restarts`` decides what may be subtracted from a page, and what a restart is.  What was lost between the last poll
and a restart is not guessed.
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
from exporter.derive.restarts import PageChange, RawCounters, as_baseline, compare, raw_counters
from exporter.model import EMPTY, LATENCIES, EngineReading, Quantity, Stage
from exporter.model.outcome import CLIENT_OUTCOMES

_Key = TypeVar("_Key")

FINISHED = "finished"
RESPONSES = "responses"
RETENTION = 300.0  # seconds
_ABORTED = frozenset((Quantity.REQUESTS_ABORTED,))
_4XX = frozenset(("4xx",))
_NONE: frozenset[str] = frozenset()  # shared: a window keeps 65 of them, of 216 bytes each


class BucketCounts(Struct, frozen=True, kw_only=True):
    """A histogram without its sum, packed: a window keeps 65 of them a stage, and a tuple takes three times as much.

    ``counts``: one cumulative count per finite bound, then the one for +Inf; never written to.
    """

    bounds: tuple[float, ...]
    counts: array[float]


class ReplicaTotals(Struct, frozen=True, kw_only=True):
    """Increases since the first reading of a replica; no number ever decreases, across restarts too.

    A counter that the newest page lacks keeps its sum here, so that a window that starts at such a page is correct.
    ``withdrawn`` and ``withdrawn_ranks`` name those counters: they must not be exposed.
    """

    at: float
    finished: Mapping[str, float] = EMPTY  # outcome → requests
    responses: Mapping[str, float] = EMPTY  # HTTP status class → responses
    quantities: Mapping[Quantity, float] = EMPTY  # counters, summed over ranks
    rank_generation: Mapping[str, float] = EMPTY  # rank → tokens
    rank_prompts: Mapping[str, float] = EMPTY  # rank → tokens
    histograms: Mapping[Stage, BucketCounts] = EMPTY  # summed over ranks
    restarts: int = 0  # readings with a restart of the process or of any rank
    first_at: float  # of the first reading
    moved_at: float  # when a counter last increased, work last began, or nothing was running
    rank_moved_at: float = inf  # the same, of the rank that stands still longest; inf: ranks do not count separately
    begun: Mapping[Stage, float] = EMPTY  # stage → when its bounds last changed
    withdrawn: frozenset[str] = frozenset()  # Quantity and Stage values, FINISHED, RESPONSES
    withdrawn_ranks: frozenset[str] = frozenset()  # of rank_generation


class ReplicaCounters(Struct, frozen=True, kw_only=True):
    """What ``update`` needs next time: the totals, and the raw values that they were made of."""

    totals: ReplicaTotals
    raw: RawCounters
    busy: frozenset[str]  # ranks with running requests on the newest page
    idle: bool  # there was no work on the newest page
    moved: Mapping[str, float]  # rank → as Totals.moved_at; only where several ranks count for themselves
    activity: Mapping[str, tuple[float, ...]] = EMPTY  # as on the newest page


def update(
    known: ReplicaCounters | None,
    reading: EngineReading,
    stages: Collection[Stage] = LATENCIES,
    keep: float = RETENTION,
) -> ReplicaCounters | None:
    """Return the counters with the increases of this reading added; None until the first complete reading.

    A truncated page, and a reading not newer than the last, change nothing.  ``stages``: whose observations are
    followed.  ``keep``: seconds for which ranks that pages lack are remembered, the longest window.
    """
    if not reading.complete or (known is not None and reading.at <= known.totals.at):
        return known
    page = raw_counters(reading, known.raw.ranks if known is not None else EMPTY)
    if known is None:
        known = _initial(reading, page)
    change = compare(known.raw, page, reading.at, keep)
    moved = _moved(known, reading, change)
    return ReplicaCounters(
        totals=_sum_up(known, reading, change, stages, moved),
        raw=change.after,
        busy=_busy(reading),
        idle=_idle(reading),
        moved=moved,
        activity=reading.activity,
    )


def with_zero_hits(known: ReplicaCounters | None, reading: EngineReading) -> EngineReading:
    """Return the reading with 0 prefix-cache hits where the engine exposes the counter only after the first hit."""
    return counters.with_zero_hits(reading, known.raw.ranks if known is not None else EMPTY)


def departed_totals(known: ReplicaCounters | None, reading: EngineReading) -> DepartedTotals:
    """Return what sums over the ranks need beside the newest page, which may be truncated."""
    if known is None:
        return DepartedTotals(quantities=EMPTY, finished=EMPTY, histograms=reading.histograms)
    return merge(known.raw.departed, known.raw.ranks, reading)


def with_stages(known: ReplicaCounters, before: Collection[Stage], now: Collection[Stage]) -> ReplicaCounters:
    """Return the counters for other stages: new ones count from the next page, the others are forgotten.

    What a stage observed while it was not followed must not look like new observations.
    """
    totals = known.totals
    added = set(now) - set(before)
    shown = {stage for counters in known.raw.ranks.values() for stage in counters.histograms}
    begun = {stage: at for stage, at in totals.begun.items() if stage in now}
    return replace(
        known,
        totals=replace(
            totals,
            histograms={stage: buckets for stage, buckets in totals.histograms.items() if stage in now},
            begun={**begun, **dict.fromkeys(added & shown, totals.at)},
        ),
    )


def _initial(reading: EngineReading, page: RawCounters) -> ReplicaCounters:
    at = reading.at
    return ReplicaCounters(
        totals=ReplicaTotals(at=at, first_at=at, moved_at=at),
        raw=as_baseline(page),
        busy=_busy(reading),
        idle=False,
        moved=EMPTY,
    )


# ── Progress ────────────────────────────────────────────────────────────────────────────────────────────────────


def _busy(reading: EngineReading) -> frozenset[str]:
    running = Quantity.REQUESTS_RUNNING
    return frozenset([rank for rank, numbers in reading.ranks.items() if numbers.get(running, 0.0) > 0]) or _NONE


def levels(reading: EngineReading, name: Quantity) -> list[float]:
    """Return a quantity of every rank that has it."""
    return [values[name] for values in reading.ranks.values() if name in values]


def _idle(reading: EngineReading) -> bool:
    running = levels(reading, Quantity.REQUESTS_RUNNING)
    if not running or max(running) > 0:
        return False
    return reading.stalled_after is None or not any(levels(reading, Quantity.REQUESTS_WAITING))


def _moved(known: ReplicaCounters, reading: EngineReading, change: PageChange) -> Mapping[str, float]:
    """Return when each rank last made progress.  Not on a relayed page, where departed ranks keep their figures."""
    if len(change.page) < 2 or reading.relayed:
        return EMPTY
    busy = _busy(reading) & known.busy  # work that is new on this page cannot have moved anything yet
    return {
        rank: known.moved.get(rank, reading.at)
        if rank in busy
        and is_unchanged(change.before.get(rank, NO_COUNTERS), now)
        and reading.activity.get(rank) == known.activity.get(rank)
        else reading.at
        for rank, now in change.page.items()
        if Quantity.GENERATION_TOKENS in now.quantities
    }


# ── Sums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sum_up(
    known: ReplicaCounters,
    reading: EngineReading,
    change: PageChange,
    stages: Collection[Stage],
    moved: Mapping[str, float],
) -> ReplicaTotals:
    totals = known.totals
    pairs = [(change.before.get(rank, NO_COUNTERS), now) for rank, now in change.page.items()]
    quantities = _increased(totals.quantities, [(old.quantities, new.quantities) for old, new in pairs])
    finished = _increased(totals.finished, [(old.finished, new.finished) for old, new in pairs])
    if len(finished) > MAX_NAMES:
        finished = _only(finished, {outcome for now in change.page.values() for outcome in now.finished})
    responses = _increased(totals.responses, [(change.responses_before, change.responses)])
    if len(responses) > MAX_NAMES:
        responses = _only(responses, change.responses)
    generation = _rank_totals(totals.rank_generation, Quantity.GENERATION_TOKENS, change)
    prompts = _rank_totals(totals.rank_prompts, Quantity.PROMPT_TOKENS, change)
    shown = _of_ranks(change.page, Quantity.GENERATION_TOKENS)
    histograms, begun = _increased_histograms(totals, reading.at, change, stages)
    stalled = (  # work that is new on this page cannot have moved anything yet
        not (change.restarted or known.idle or _idle(reading))
        and _only_clients_moved(quantities, totals.quantities, _ABORTED)
        and _only_clients_moved(finished, totals.finished, CLIENT_OUTCOMES)
        # A client that gives up on an engine that hangs leaves a response behind, in vLLM one with status 200.
        and (Quantity.GENERATION_TOKENS in quantities or _only_clients_moved(responses, totals.responses, _4XX))
        and histograms is totals.histograms
        and not _other_stages_moved(change, stages)
        and reading.activity == known.activity
    )
    return ReplicaTotals(
        at=reading.at,
        finished=finished,
        responses=responses,
        quantities=quantities,
        rank_generation=generation,
        rank_prompts=prompts,
        histograms=histograms,
        restarts=totals.restarts + change.restarted,
        first_at=totals.first_at,
        moved_at=totals.moved_at if stalled else reading.at,
        rank_moved_at=min(moved.values(), default=inf),
        begun=begun,
        withdrawn=_withdrawn(quantities, finished, responses, histograms, change),
        withdrawn_ranks=frozenset(missing) if (missing := generation.keys() - shown.keys()) else _NONE,
    )


def _other_stages_moved(change: PageChange, stages: Collection[Stage]) -> bool:
    """Return whether a stage that is not followed has new observations: that is progress too."""
    for rank, now in change.page.items():
        before = change.before.get(rank, NO_COUNTERS).histograms
        for stage, histogram in now.histograms.items():
            if stage not in stages:
                old = before.get(stage)
                if old is not histogram and (old is None or old.counts != histogram.counts):
                    return True
    return False


def _only_clients_moved(
    now: Mapping[_Key, float], before: Mapping[_Key, float], of_clients: Collection[_Key]
) -> bool:
    """Return whether nothing moved but counters that clients move, also while the engine hangs."""
    return now is before or all(count == before.get(name) or name in of_clients for name, count in now.items())


def _rank_totals(totals: Mapping[str, float], name: Quantity, change: PageChange) -> Mapping[str, float]:
    """Return a counter's increases by rank; only of ranks that are remembered."""
    grown = _increased(totals, [(_of_ranks(change.before, name), _of_ranks(change.page, name))])
    return _only(grown, change.after.ranks) if len(grown) > len(change.after.ranks) else grown


def _of_ranks(ranks: Mapping[str, RankCounters], name: Quantity) -> dict[str, float]:
    return {rank: known.quantities[name] for rank, known in ranks.items() if name in known.quantities}


def _increased(
    sums: Mapping[_Key, float], pairs: Iterable[tuple[Mapping[_Key, float], Mapping[_Key, float]]]
) -> Mapping[_Key, float]:
    """Return the sums with the increases added; the same object without any, so that windows share it."""
    grown: dict[_Key, float] | None = None
    for before, now in pairs:
        for key, value in now.items():
            increase = value - before.get(key, 0.0)
            if increase > 0 or key not in (sums if grown is None else grown):
                grown = dict(sums) if grown is None else grown
                grown[key] = grown.get(key, 0.0) + increase
    return sums if grown is None else grown


def _only(sums: Mapping[_Key, float], names: Collection[_Key]) -> Mapping[_Key, float]:
    """Return the sums of these names; the same object if that is all of them."""
    kept = {name: total for name, total in sums.items() if name in names}
    return sums if len(kept) == len(sums) else kept


def _increased_histograms(
    totals: ReplicaTotals, at: float, change: PageChange, stages: Collection[Stage]
) -> tuple[Mapping[Stage, BucketCounts], Mapping[Stage, float]]:
    grown, begun = dict(totals.histograms), dict(totals.begun)
    for stage in stages:
        if not any(stage in now.histograms for now in change.page.values()):
            continue
        known = [ranks.histograms[stage] for ranks in change.after.ranks.values() if stage in ranks.histograms]
        edges = common_bounds([histogram.bounds for histogram in known])
        old = totals.histograms.get(stage)
        if not edges:
            if grown.pop(stage, None) is not None or stage not in begun:
                begun[stage] = at
        elif old is None and stage not in begun:  # first seen: all of it was observed since the last page
            grown[stage] = _with_increases(_no_observations(edges), stage, change)
        elif old is None or old.bounds != edges:
            grown[stage] = _no_observations(edges)
            begun[stage] = at
        else:
            grown[stage] = _with_increases(old, stage, change)
    is_unchanged = grown.keys() == totals.histograms.keys() and all(
        histogram is totals.histograms[stage] for stage, histogram in grown.items()
    )
    return (totals.histograms if is_unchanged else grown), (totals.begun if begun == totals.begun else begun)


def _no_observations(edges: tuple[float, ...]) -> BucketCounts:
    return BucketCounts(bounds=edges, counts=array("d", bytes(8 * (len(edges) + 1))))


def _with_increases(total: BucketCounts, stage: Stage, change: PageChange) -> BucketCounts:
    edges = total.bounds
    counts: Iterable[float] = total.counts
    for rank, now in change.page.items():
        histogram = now.histograms.get(stage)
        if histogram is None:
            continue
        known = change.before.get(rank, NO_COUNTERS).histograms.get(stage)
        if known is None:
            counts = map(add, counts, on_bounds(edges, histogram))
        elif known is histogram:
            continue
        elif known.counts != histogram.counts and known.bounds == histogram.bounds:
            grown = map(sub, on_bounds(edges, histogram), on_bounds(edges, known))
            counts = map(add, counts, grown)
        # else nothing new, or new bounds without a restart: not comparable, left out once
    return total if counts is total.counts else BucketCounts(bounds=edges, counts=array("d", counts))


def _withdrawn(
    quantities: Mapping[Quantity, float],
    finished: Mapping[str, float],
    responses: Mapping[str, float],
    histograms: Mapping[Stage, BucketCounts],
    change: PageChange,
) -> frozenset[str]:
    page = change.page.values()
    counted: set[Quantity] = set().union(*[now.quantities for now in page])
    observed: set[Stage] = set().union(*[now.histograms for now in page])
    missing = {name.value for name in quantities if name not in counted}
    missing.update([stage.value for stage in histograms if stage not in observed])
    if finished and not any(now.finished for now in page):
        missing.add(FINISHED)
    if responses and not change.responses:
        missing.add(RESPONSES)
    return frozenset(missing) if missing else _NONE
