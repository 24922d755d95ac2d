"""Histograms across pages: bounds that change, ranks that share them or not, and counts that only grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.delta import update
from exporter.derive.ranks import common_bounds, sum_over_ranks, sum_stages
from exporter.model import Histogram, Stage
from tests.support.counted_pages import BOUNDS, TTFT, buckets, histogram, page, run, stages


def test_counts_that_fall_with_the_bound_are_repaired_upwards():
    totals = run(stages(0, histogram(0, 0, 0, 0)), stages(1, histogram(5, 3, 9, 9))).totals
    assert tuple(totals.histograms[TTFT].counts) == (5, 5, 9, 9)


def test_changed_bounds_start_the_stage_anew_and_mix_no_edges():
    old = stages(0, histogram(10, 20, 30, 40))
    new = [stages(at, histogram(at, 2 * at, 3 * at, bounds=(0.2, 0.8))) for at in (1, 2)]
    first, second = run(old, new[0]).totals, run(old, *new).totals
    assert first.histograms[TTFT] == buckets(0, 0, 0, bounds=(0.2, 0.8))
    assert second.histograms[TTFT] == buckets(1, 2, 3, bounds=(0.2, 0.8))
    assert second.begun == {TTFT: 1}


def test_changed_bounds_of_one_stage_leave_the_others_alone():
    def both(at, n, bounds):
        return page(
            at,
            histograms={
                TTFT: {"0": histogram(*[n] * (len(bounds) + 1), bounds=bounds)},
                Stage.REQUEST: {"0": histogram(n, n, n, n)},
            },
        )

    totals = run(both(0, 1, BOUNDS), both(1, 3, (0.7,))).totals
    assert tuple(totals.histograms[Stage.REQUEST].counts) == (2, 2, 2, 2)
    assert Stage.REQUEST not in totals.begun


def test_ranks_with_different_bounds_meet_on_the_common_ones():
    wide = [histogram(n, n, n, n, bounds=(0.1, 0.5, 1.0)) for n in (0, 4)]
    other = [histogram(0, n, n + 1, bounds=(0.5, 2.0)) for n in (0, 3)]
    totals = run(stages(0, wide[0], other[0]), stages(1, wide[1], other[1])).totals
    assert totals.histograms[TTFT] == buckets(4 + 0, 4 + 3, bounds=(0.5,))


def test_common_bounds_stay_in_order_however_many_they_are():
    first = tuple(0.001 * 1.3**step for step in range(60))
    assert common_bounds([first, first[::-1], (*first[::2], 1e9)]) == first[::2]


def test_ranks_without_a_common_bound_have_no_histogram():
    first, two = histogram(1, 2, bounds=(0.1,)), histogram(1, 2, bounds=(0.2,))
    totals = run(stages(0, first, two), stages(1, first, two)).totals
    assert TTFT not in totals.histograms
    again = run(
        stages(0, first, two), stages(1, first, first), stages(2, histogram(3, 4, bounds=(0.1,)), first)
    ).totals
    assert again.histograms[TTFT] == buckets(2, 2, bounds=(0.1,))
    assert again.begun == {TTFT: 1}


def test_a_rank_missing_from_one_page_does_not_change_the_common_bounds():
    wide, narrow = histogram(1, 2, 3, 4), histogram(1, 2, bounds=(0.5,))
    totals = run(stages(0, wide, narrow), stages(1, wide), stages(2, histogram(1, 3, 4, 5), narrow)).totals
    assert totals.histograms[TTFT] == buckets(1, 1, bounds=(0.5,))
    assert totals.begun == {}


def test_bounds_that_change_without_a_restart_never_take_anything_away():
    # Rank 0 changes an edge that rank 1 does not share: the common bounds stay as they are.
    odd = stages(1, histogram(9, 0, 9, bounds=(0.3, 0.5)), histogram(1, 2, bounds=(0.5,)))
    totals = run(stages(0, histogram(1, 8, 8, bounds=(0.1, 0.5)), histogram(0, 0, bounds=(0.5,))), odd).totals
    assert totals.histograms[TTFT] == buckets(1, 2, bounds=(0.5,))


def test_ranks_are_summed_on_common_bounds():
    wide = Histogram(bounds=(0.1, 0.5), counts=(1, 2, 3), sum=1.5)
    narrow = Histogram(bounds=(0.5,), counts=(4, 5), sum=2.0)
    assert sum_over_ranks({"0": wide, "1": narrow}) == Histogram(bounds=(0.5,), counts=(6, 8), sum=3.5)
    assert sum_over_ranks({"0": wide, "1": Histogram(bounds=(0.5,), counts=(4, 5))}).sum is None
    assert sum_over_ranks({"0": wide}) == wide
    assert sum_over_ranks({"0": wide, "1": Histogram(bounds=(9.0,), counts=(4, 5))}) is None
    assert sum_over_ranks({}) is None


def test_stages_whose_ranks_did_not_change_are_not_added_again():
    first, two, more = histogram(1, 2, 3, 4), histogram(2, 2, 2, 2), histogram(3, 3, 3, 3)
    before = {TTFT: {"0": first, "1": two}, Stage.QUEUE: {"0": first}}
    known = sum_stages(before)
    assert known[TTFT].counts == (3, 4, 5, 6)
    later = sum_stages({TTFT: {"0": first, "1": two}, Stage.QUEUE: {"0": more}}, before, known)
    assert later[TTFT] is known[TTFT]
    assert later[Stage.QUEUE] == more
    assert sum_stages({TTFT: {"0": first}}, before, known)[TTFT] == first
    assert sum_stages({TTFT: {"1": first, "0": two}}, {TTFT: {"0": two, "1": first}}, known)[TTFT].counts == (
        3,
        4,
        5,
        6,
    )


@given(
    st.lists(st.lists(st.one_of(st.floats(), st.integers(-5, 1000).map(float)), min_size=4, max_size=4), max_size=12)
)
def test_whatever_buckets_a_page_holds_accumulated_buckets_only_grow(pages):
    progress, last = None, (0.0,) * 4
    for at, counts in enumerate(pages):
        progress = update(progress, stages(at, Histogram(bounds=BOUNDS, counts=tuple(counts))))
        now = progress.totals.histograms.get(TTFT)
        if now is not None:
            assert all(new >= old for new, old in zip(now.counts, last))
            last = now.counts


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("012"),
            st.tuples(st.sampled_from([(0.1,), (0.1, 0.5), (0.5, 0.1), (0.5,), (2.0,)]), st.integers(0, 50)),
        ),
        max_size=12,
    )
)
def test_ranks_and_bounds_may_come_and_go_without_a_crash_or_a_loss(pages):
    progress, last = None, None
    for at, ranks in enumerate(pages):
        histograms = {r: histogram(*[n] * (len(b) + 1), bounds=tuple(sorted(b))) for r, (b, n) in ranks.items()}
        progress = update(progress, page(at, histograms={TTFT: histograms}))
        now = progress.totals.histograms.get(TTFT)
        if now is not None and last is not None and progress.totals.begun.get(TTFT) != at:
            assert now.bounds == last.bounds
            assert all(new >= old for new, old in zip(now.counts, last.counts))
        last = now
