"""One page against what was known: what it may be subtracted from, and whether a rank or the whole engine began anew.

A counter that fell was reset, and its new value counts whole, as in Prometheus.  Unlike there, one counter that
falls resets every counter of its rank: after a restart some counters have overtaken their old value by the next
poll, and would otherwise be read as a tiny increase.  Where nothing that a page shows goes on from where it was, the
whole engine has restarted, which is one restart: what the page does not show yet is forgotten too, because it will
come with a small number when it comes.  So it is when an engine comes back with ranks of other names, as from
another version.

A counter that appears had counted nothing before: engines make many with their first event.  Unless the last page
held numbers that could not be read: then it may have stood there with its whole life, and begins at what it shows.
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


class Raw(Struct, frozen=True, kw_only=True):
    """The newest known raw values, also those that the newest page does not show."""

    ranks: Mapping[str, RankCounters]
    responses: Mapping[str, float]
    process_start: float | None  # wall
    created: Mapping[str, float]  # rank → wall
    has_unreadable_numbers: bool  # numbers on the page could not be read
    gone: DepartedRanks = NONE


class Step(Struct, frozen=True, kw_only=True):
    """One page against what was known: ``before`` holds only what the page may be subtracted from."""

    before: Mapping[str, RankCounters]
    page: Mapping[str, RankCounters]
    after: Raw
    responses_before: Mapping[str, float]
    responses: Mapping[str, float]
    restarted: bool


def raw(reading: EngineReading, known: Mapping[str, RankCounters]) -> Raw:
    """Give what the page says of itself, as far as it can be believed; ``known``: see ``by_rank``."""
    return Raw(
        ranks=by_rank(reading, known),
        responses=valid(reading.responses),
        process_start=reading.process_start,
        created=valid(reading.created),
        has_unreadable_numbers=has_unreadable_numbers(reading),
    )


def compare(known: Raw, page: Raw, at: float, keep: float) -> Step:
    """Say what of a page that was read at ``at`` is new; ranks that it lacks are remembered for ``keep`` seconds."""
    renewed = {rank for rank, began in page.created.items() if known.created.get(rank, began) != began}
    if (
        _new_process(known.process_start, page.process_start)
        or (renewed and renewed >= known.created.keys())
        or _renamed(known, page)
    ):
        return _all_anew(page)
    # By rank: one that joins, or restarts alone, must not add the lifetime of all the others to the window.
    reset = renewed | {
        rank for rank, now in page.ranks.items() if has_decreased(known.ranks.get(rank, NO_COUNTERS), now)
    }
    responses_fell = any_decreased(known.responses, page.responses)
    if (reset or responses_fell) and not _goes_on(known, page, reset):
        return _all_anew(page)
    before, gone = known.ranks, known.gone
    if reset:
        gone = retire(gone, {rank: before[rank] for rank in reset if rank in before})
        before = {rank: counters for rank, counters in before.items() if rank not in reset}
    if gone.forgotten:
        gone, back = restore(gone, page.ranks)
        before = {**before, **back}
    responses_before = EMPTY if responses_fell else known.responses
    if known.has_unreadable_numbers:
        assumed = {
            rank: assume(before.get(rank, NO_COUNTERS), now) for rank, now in page.ranks.items() if rank not in reset
        }
        before = {**before, **assumed}
        responses_before = EMPTY if responses_fell else merged(page.responses, responses_before)
    ranks = {**before, **{rank: remember(before.get(rank, NO_COUNTERS), now) for rank, now in page.ranks.items()}}
    gone, remembered = expire(gone, ranks, page.ranks, at, keep)
    return Step(
        before=before,
        page=page.ranks,
        after=_after(known, page, remembered, responses_before, gone),
        responses_before=responses_before,
        responses=page.responses,
        restarted=bool(reset) or responses_fell,
    )


def _after(
    known: Raw,
    page: Raw,
    ranks: Mapping[str, RankCounters],
    responses_before: Mapping[str, float],
    gone: DepartedRanks,
) -> Raw:
    created = merged(known.created, page.created)
    if created is not page.created:
        created = {rank: began for rank, began in created.items() if rank in ranks}
    return Raw(
        ranks=ranks,
        responses=newest(responses_before, page.responses),
        process_start=known.process_start if page.process_start is None else page.process_start,
        created=created,
        has_unreadable_numbers=page.has_unreadable_numbers,
        gone=gone,
    )


def _all_anew(page: Raw) -> Step:
    return Step(
        before=EMPTY, page=page.ranks, after=page, responses_before=EMPTY, responses=page.responses, restarted=True
    )


def first(page: Raw) -> Raw:
    """Give what stands in for the past before the first page: the page itself, so that nothing has grown."""
    return replace(page, has_unreadable_numbers=False)


def _new_process(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and (new < old or new > old)  # NaN is no change


def _renamed(known: Raw, page: Raw) -> bool:
    """Say whether ranks count, and none of them is known: a rank that joins finds others, or none that ever counted.

    Requests that were refused before they had a rank are counted apart, and say nothing here.
    """
    some = False
    for rank, now in page.ranks.items():
        if now.quantities or now.histograms:
            old = known.ranks.get(rank, NO_COUNTERS)
            if old.quantities or old.histograms or rank in known.gone.forgotten:
                return False
            some = True
    hidden = known.has_unreadable_numbers or page.has_unreadable_numbers
    return some and not hidden and any(old.quantities or old.histograms for old in known.ranks.values())


def _goes_on(known: Raw, page: Raw, reset: set[str]) -> bool:
    """Say whether anything that a rank shows goes on from where it was; a counter that stood at 0 says nothing."""
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
