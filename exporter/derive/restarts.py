"""One page compared with what was known: what may be subtracted from it, and which ranks, or the engine, restarted.

A counter that decreased was reset, and its new value counts entirely, as in Prometheus.  Unlike there, one counter
that decreases resets every counter of its rank: after a restart counting counters exceed their old value by the next
poll, and would otherwise be read as a tiny increase.  Where nothing on the page continues, the whole engine has
restarted, which is one restart: what the page does not show yet is forgotten too, because it will begin low.  The
same holds for an engine that returns with ranks of other names, as another version may.

A counter that appears had counted nothing before: engines create many with the first event.  If the last page had
numbers that could not be read, it may have been there before, and begins at what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from exporter.derive.counters import (
    NO_COUNTERS,
    RankCounters,
    any_decreased,
    assume,
    by_rank,
    has_decreased,
    has_unreadable_numbers,
    merged,
    newest,
    remember,
    valid,
)
from exporter.derive.departed_ranks import NONE, DepartedRanks, expire, restore, retire
from exporter.model import EMPTY, EngineReading


class RawCounters(Struct, frozen=True, kw_only=True):
    """The newest known raw values, also those that the newest page lacks."""

    ranks: Mapping[str, RankCounters]
    responses: Mapping[str, float]
    process_start: float | None  # Unix time
    created: Mapping[str, float]  # rank → Unix time
    has_unreadable_numbers: bool  # numbers on the page could not be read
    departed: DepartedRanks = NONE


class PageChange(Struct, frozen=True, kw_only=True):
    """One page compared with what was known; ``before`` has only what may be subtracted from the page."""

    before: Mapping[str, RankCounters]
    page: Mapping[str, RankCounters]
    after: RawCounters
    responses_before: Mapping[str, float]
    responses: Mapping[str, float]
    restarted: bool


def raw_counters(reading: EngineReading, known: Mapping[str, RankCounters]) -> RawCounters:
    """Return the page's valid counters and start times; ``known``: see ``by_rank``."""
    return RawCounters(
        ranks=by_rank(reading, known),
        responses=valid(reading.responses),
        process_start=reading.process_start,
        created=valid(reading.created),
        has_unreadable_numbers=has_unreadable_numbers(reading),
    )


def compare(known: RawCounters, page: RawCounters, at: float, keep: float) -> PageChange:
    """Compare a page that was read at ``at``; ranks that it lacks are remembered for ``keep`` seconds."""
    recreated = {
        rank for rank, created_at in page.created.items() if known.created.get(rank, created_at) != created_at
    }
    if (
        _new_process(known.process_start, page.process_start)
        or (recreated and recreated >= known.created.keys())
        or _renamed(known, page)
    ):
        return _restarted_page(page)
    # By rank: one that joins, or restarts alone, must not add the lifetime of the others to the window.
    reset = recreated | {
        rank for rank, now in page.ranks.items() if has_decreased(known.ranks.get(rank, NO_COUNTERS), now)
    }
    responses_fell = any_decreased(known.responses, page.responses)
    if (reset or responses_fell) and not _continues(known, page, reset):
        return _restarted_page(page)
    before, departed = known.ranks, known.departed
    if reset:
        departed = retire(departed, {rank: before[rank] for rank in reset if rank in before})
        before = {rank: counters for rank, counters in before.items() if rank not in reset}
    if departed.expired:
        departed, restored = restore(departed, page.ranks)
        before = {**before, **restored}
    responses_before = EMPTY if responses_fell else known.responses
    if known.has_unreadable_numbers:
        assumed = {
            rank: assume(before.get(rank, NO_COUNTERS), now) for rank, now in page.ranks.items() if rank not in reset
        }
        before = {**before, **assumed}
        responses_before = EMPTY if responses_fell else merged(page.responses, responses_before)
    ranks = {**before, **{rank: remember(before.get(rank, NO_COUNTERS), now) for rank, now in page.ranks.items()}}
    departed, remembered = expire(departed, ranks, page.ranks, at, keep)
    return PageChange(
        before=before,
        page=page.ranks,
        after=_after(known, page, remembered, responses_before, departed),
        responses_before=responses_before,
        responses=page.responses,
        restarted=bool(reset) or responses_fell,
    )


def _after(
    known: RawCounters,
    page: RawCounters,
    ranks: Mapping[str, RankCounters],
    responses_before: Mapping[str, float],
    departed: DepartedRanks,
) -> RawCounters:
    created = merged(known.created, page.created)
    if created is not page.created:
        created = {rank: created_at for rank, created_at in created.items() if rank in ranks}
    return RawCounters(
        ranks=ranks,
        responses=newest(responses_before, page.responses),
        process_start=known.process_start if page.process_start is None else page.process_start,
        created=created,
        has_unreadable_numbers=page.has_unreadable_numbers,
        departed=departed,
    )


def _restarted_page(page: RawCounters) -> PageChange:
    return PageChange(
        before=EMPTY, page=page.ranks, after=page, responses_before=EMPTY, responses=page.responses, restarted=True
    )


def as_baseline(page: RawCounters) -> RawCounters:
    """Return the first page as its own past, so that nothing has increased."""
    return replace(page, has_unreadable_numbers=False)


def _new_process(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and (new < old or new > old)  # NaN is no change


def _renamed(known: RawCounters, page: RawCounters) -> bool:
    """Return whether no rank that counts is known: a rank that joins finds others, or none that ever counted.

    Requests that were rejected before they had a rank are counted separately, and do not matter here.
    """
    counting = False
    for rank, now in page.ranks.items():
        if now.quantities or now.histograms:
            old = known.ranks.get(rank, NO_COUNTERS)
            if old.quantities or old.histograms or rank in known.departed.expired:
                return False
            counting = True
    unreadable = known.has_unreadable_numbers or page.has_unreadable_numbers
    return counting and not unreadable and any(old.quantities or old.histograms for old in known.ranks.values())


def _continues(known: RawCounters, page: RawCounters, reset: set[str]) -> bool:
    """Return whether anything that a rank shows continues; a counter that was 0 is no evidence."""
    for rank, now in page.ranks.items():
        old = known.ranks.get(rank)
        if old is None or rank in reset:
            continue
        if any(old.quantities.get(name, 0.0) > 0 for name in now.quantities):
            return True
        if any(old.finished.get(outcome, 0.0) > 0 for outcome in now.finished):
            return True
        if any(stage in old.histograms and old.histograms[stage].counts[-1] > 0 for stage in now.histograms):
            return True
    return False
