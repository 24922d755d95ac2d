"""Counters across restarts, half pages, late series and changed bounds."""

from __future__ import annotations

from array import array
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.derive.delta import FINISHED, RESPONSES, Buckets, Progress, advance
from exporter.derive.ranks import sum_over_ranks, summed
from exporter.model import EngineReading, Histogram, Quantity, Stage

TTFT = Stage.TIME_TO_FIRST_TOKEN
GEN = Quantity.GENERATION_TOKENS
PROMPT = Quantity.PROMPT_TOKENS
BOUNDS = (0.1, 0.5, 1.0)


def histogram(*counts: float, bounds=BOUNDS) -> Histogram:
    return Histogram(bounds=bounds, counts=tuple(map(float, counts)))


def buckets(*counts: float, bounds=BOUNDS) -> Buckets:
    return Buckets(bounds=bounds, counts=array("d", counts))


def page(at: float, ranks=None, **fields) -> EngineReading:
    return EngineReading(at=at, engine="vllm", ranks={"0": {}} if ranks is None else ranks, **fields)


def run(*readings: EngineReading) -> Progress:
    progress = None
    for reading in readings:
        progress = advance(progress, reading)
    assert progress is not None
    return progress


def tokens(at: float, *by_rank: float, **fields) -> EngineReading:
    return page(at, {str(rank): {GEN: value} for rank, value in enumerate(by_rank)}, **fields)


def stages(at: float, *by_rank: Histogram, **fields) -> EngineReading:
    return page(at, histograms={TTFT: {str(rank): h for rank, h in enumerate(by_rank)}}, **fields)


def test_responses_that_fell_count_whole_and_leave_the_ranks_alone():
    before = tokens(0, 1e9, responses={"2xx": 50.0, "5xx": 1.0})
    totals = run(before, tokens(1, 1e9 + 1, responses={"2xx": 4.0, "5xx": 3.0})).totals
    assert totals.responses == {"2xx": 4, "5xx": 3}
    assert totals.quantities[GEN] == 1
    assert totals.restarts == 1


def test_fewer_observations_under_new_bounds_are_a_restart_of_the_rank():
    before = page(0, {"0": {GEN: 50}}, histograms={TTFT: {"0": histogram(1, 2, 3, 40)}})
    after = page(1, {"0": {GEN: 60}}, histograms={TTFT: {"0": histogram(1, 2, bounds=(0.7,))}})
    assert run(before, after).totals.quantities[GEN] == 60


def test_the_first_page_adds_nothing_of_the_life_before_it():
    totals = run(tokens(0, 1e9)).totals
    assert totals.quantities[GEN] == 0
    assert totals.restarts == 0


def test_increases_are_added_per_rank_so_one_reset_rank_does_not_hide_in_the_sum():
    # The plain sum goes 300 → 310: without ranks this would be read as an increase of 10.
    totals = run(tokens(0, 100, 200), tokens(1, 300, 10)).totals
    assert totals.quantities[GEN] == 200 + 10
    assert totals.rank_generation == {"0": 200, "1": 10}
    assert totals.restarts == 1


def test_any_counter_that_fell_resets_every_counter_of_its_rank():
    before = page(
        0, {"0": {GEN: 50, PROMPT: 10}}, finished={"0": {"stop": 9}}, histograms={TTFT: {"0": histogram(1, 2, 3, 4)}}
    )
    after = page(
        1, {"0": {GEN: 60, PROMPT: 20}}, finished={"0": {"stop": 1}}, histograms={TTFT: {"0": histogram(5, 6, 7, 8)}}
    )
    totals = run(before, after).totals
    assert totals.quantities == {GEN: 60, PROMPT: 20}
    assert totals.finished == {"stop": 1}
    assert tuple(totals.histograms[TTFT].counts) == (5, 6, 7, 8)
    assert totals.restarts == 1


def test_a_bucket_that_fell_resets_the_whole_histogram():
    totals = run(stages(0, histogram(5, 6, 7, 8)), stages(1, histogram(4, 7, 8, 9))).totals
    assert tuple(totals.histograms[TTFT].counts) == (4, 7, 8, 9)


@pytest.mark.parametrize("field", ["process_start", "created"])
def test_a_new_process_counts_whole_even_if_every_counter_overtook_its_old_value(field):
    old = tokens(0, 100, responses={"2xx": 10.0}, **{field: 1000.0})
    new = tokens(5, 150, responses={"2xx": 30.0}, **{field: 2000.0})
    totals = run(old, new).totals
    assert totals.quantities[GEN] == 150
    assert totals.responses["2xx"] == 30
    assert totals.restarts == 1


def test_a_start_time_that_is_missing_once_is_remembered():
    totals = run(tokens(0, 5, process_start=10.0), tokens(1, 6), tokens(2, 7, process_start=10.0)).totals
    assert totals.quantities[GEN] == 2
    assert run(tokens(0, 5, process_start=10.0), tokens(1, 6), tokens(2, 7, process_start=11.0)).totals.restarts == 1


def test_a_start_time_that_is_no_number_is_no_restart_each_time():
    totals = run(*(tokens(at, 100 + at, process_start=nan, created=nan) for at in range(5))).totals
    assert totals.restarts == 0
    assert totals.quantities[GEN] == 4


def test_a_rank_that_joins_a_living_process_is_no_restart_of_the_others():
    totals = run(tokens(0, 1_000_000, created=10.0), tokens(1, 1_000_001, 7, created=99.0)).totals
    assert totals.restarts == 0
    assert totals.quantities[GEN] == 1 + 7


def test_a_counter_that_appears_later_was_zero_before():
    late = page(
        1,
        {"0": {GEN: 40}},
        finished={"0": {"error": 3}},
        responses={"5xx": 2},
        histograms={TTFT: {"0": histogram(1, 2, 2, 4)}},
    )
    totals = run(page(0), late).totals
    assert totals.quantities[GEN] == 40
    assert totals.finished == {"error": 3}
    assert totals.responses == {"5xx": 2}
    assert tuple(totals.histograms[TTFT].counts) == (1, 2, 2, 4)
    assert totals.restarts == 0


def test_a_counter_that_vanished_and_came_back_continues_where_it_was():
    full = page(
        0,
        {"0": {GEN: 1e9}},
        finished={"0": {"stop": 1e6}},
        responses={"2xx": 1e6},
        histograms={TTFT: {"0": histogram(1e6, 1e6, 1e6, 1e6)}},
    )
    back = page(
        2,
        {"0": {GEN: 1e9 + 5}},
        finished={"0": {"stop": 1e6 + 1}},
        responses={"2xx": 1e6 + 1},
        histograms={TTFT: {"0": histogram(1e6, 1e6 + 1, 1e6 + 1, 1e6 + 1)}},
    )
    for half in (page(1), page(1, {})):
        middle = run(full, half).totals
        assert middle.withdrawn == {"generation_tokens", "time_to_first_token", FINISHED, RESPONSES}
        assert middle.withdrawn_ranks == {"0"}
        totals = run(full, half, back).totals
        assert totals.quantities[GEN] == 5
        assert totals.finished == {"stop": 1}
        assert totals.responses == {"2xx": 1}
        assert tuple(totals.histograms[TTFT].counts) == (0, 1, 1, 1)
        assert totals.withdrawn == frozenset() == totals.withdrawn_ranks


def test_a_counter_that_vanished_and_came_back_lower_was_reset():
    totals = run(tokens(0, 100), page(1), tokens(2, 30)).totals
    assert totals.quantities[GEN] == 30
    assert totals.restarts == 1


def test_a_new_process_forgets_what_the_old_one_counted():
    totals = run(
        tokens(0, 100, process_start=1.0), page(1, process_start=2.0), tokens(2, 130, process_start=2.0)
    ).totals
    assert totals.quantities[GEN] == 130
    assert totals.restarts == 1


def test_a_page_that_was_cut_off_changes_nothing():
    first = run(tokens(0, 100))
    assert advance(first, tokens(1, 5, complete=False)) is first
    assert advance(None, tokens(1, 5, complete=False)) is None


def test_time_that_stands_or_runs_back_changes_nothing():
    first = run(tokens(10, 100))
    assert advance(first, tokens(10, 200)) is first
    assert advance(first, tokens(3, 200)) is first


def test_a_name_lost_in_an_upgrade_is_withdrawn_not_zero():
    totals = run(page(0, {"0": {GEN: 5, PROMPT: 5}}), page(1, {"0": {PROMPT: 6}})).totals
    assert totals.withdrawn == {"generation_tokens"}
    assert totals.quantities[PROMPT] == 1


@pytest.mark.parametrize("bad", [nan, inf, -inf, -1.0])
def test_impossible_numbers_are_treated_as_not_on_the_page(bad):
    full = page(
        0,
        {"0": {GEN: 10}},
        finished={"0": {"stop": 10}},
        responses={"2xx": 10},
        histograms={TTFT: {"0": histogram(1, 2, 3, 4)}},
    )
    broken = page(
        1,
        {"0": {GEN: bad}},
        finished={"0": {"stop": bad}},
        responses={"2xx": bad},
        histograms={TTFT: {"0": histogram(1, bad, 3, 4)}},
    )
    back = page(
        2,
        {"0": {GEN: 11}},
        finished={"0": {"stop": 11}},
        responses={"2xx": 11},
        histograms={TTFT: {"0": histogram(1, 2, 3, 5)}},
    )
    totals = run(full, broken, back).totals
    assert (totals.quantities[GEN], totals.finished["stop"], totals.responses["2xx"]) == (1, 1, 1)
    assert tuple(totals.histograms[TTFT].counts) == (0, 0, 0, 1)
    assert totals.restarts == 0


def test_gauges_are_not_summed():
    totals = run(page(0, {"0": {Quantity.REQUESTS_RUNNING: 3, Quantity.KV_CACHE_USAGE: 0.5}})).totals
    assert totals.quantities == {}


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


def test_ranks_without_a_common_bound_have_no_histogram():
    one, two = histogram(1, 2, bounds=(0.1,)), histogram(1, 2, bounds=(0.2,))
    totals = run(stages(0, one, two), stages(1, one, two)).totals
    assert TTFT not in totals.histograms
    again = run(stages(0, one, two), stages(1, one, one), stages(2, histogram(3, 4, bounds=(0.1,)), one)).totals
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


def test_movement_is_any_counter_that_grows_and_any_time_without_work():
    busy = {Quantity.REQUESTS_RUNNING: 2, GEN: 5}
    assert run(page(0, {"0": busy}), page(9, {"0": busy})).totals.moved_at == 0
    assert run(page(0, {"0": busy}), page(9, {"0": {**busy, GEN: 6}})).totals.moved_at == 9
    assert run(page(0, {"0": busy}), page(9, {"0": {**busy, Quantity.REQUESTS_RUNNING: 0}})).totals.moved_at == 9
    assert run(stages(0, histogram(1, 1, 1, 1)), stages(9, histogram(1, 1, 1, 2))).totals.moved_at == 9


def test_an_idle_engine_keeps_sharing_its_sums():
    still = {"histograms": {TTFT: {"0": histogram(1, 2, 3, 4)}}, "finished": {"0": {"stop": 1.0}}}
    progress = run(tokens(0, 5), tokens(1, 9, **still), tokens(2, 9, **still))
    later = advance(progress, tokens(3, 9, **still))
    assert later.totals.moved_at == 1
    assert later.totals.finished is progress.totals.finished
    assert later.totals.quantities is progress.totals.quantities
    assert later.totals.histograms is progress.totals.histograms


def test_ranks_are_summed_on_common_bounds():
    wide = Histogram(bounds=(0.1, 0.5), counts=(1, 2, 3), sum=1.5)
    narrow = Histogram(bounds=(0.5,), counts=(4, 5), sum=2.0)
    assert sum_over_ranks({"0": wide, "1": narrow}) == Histogram(bounds=(0.5,), counts=(6, 8), sum=3.5)
    assert sum_over_ranks({"0": wide, "1": Histogram(bounds=(0.5,), counts=(4, 5))}).sum is None
    assert sum_over_ranks({"0": wide}) == wide
    assert sum_over_ranks({"0": wide, "1": Histogram(bounds=(9.0,), counts=(4, 5))}) is None
    assert sum_over_ranks({}) is None


def test_stages_whose_ranks_did_not_change_are_not_added_again():
    one, two, more = histogram(1, 2, 3, 4), histogram(2, 2, 2, 2), histogram(3, 3, 3, 3)
    before = {TTFT: {"0": one, "1": two}, Stage.QUEUE: {"0": one}}
    known = summed(before)
    assert known[TTFT].counts == (3, 4, 5, 6)
    later = summed({TTFT: {"0": one, "1": two}, Stage.QUEUE: {"0": more}}, before, known)
    assert later[TTFT] is known[TTFT]
    assert later[Stage.QUEUE] == more
    assert summed({TTFT: {"0": one}}, before, known)[TTFT] == one
    assert summed({TTFT: {"1": one, "0": two}}, {TTFT: {"0": two, "1": one}}, known)[TTFT].counts == (3, 4, 5, 6)


# ── Properties ──────────────────────────────────────────────────────────────────────────────────────────────────

increments = st.lists(
    st.tuples(
        st.floats(0.001, 1e5),  # seconds to the next page
        st.lists(st.integers(0, 1000), min_size=2, max_size=2),  # what each rank generates
        st.sampled_from(["page", "page", "page", "half", "restart", "silent restart", "missed", "rank gone"]),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(increments)
def test_sums_only_grow_and_never_exceed_the_truth(steps):
    """Every restart loses at most what was counted after the last page; nothing is ever invented."""
    at, raw, start, truth, seen, progress = 0.0, [7.0, 1e9], 1.0, 0.0, 0.0, None
    for gap, grown, event in [(1.0, [0, 0], "page"), *steps]:
        at += gap
        if "restart" in event:
            raw = [0.0, 0.0]
            start += event == "restart"
        raw = [value + more for value, more in zip(raw, grown)]
        truth += sum(grown)
        if event == "missed":
            continue
        fields = {"process_start": start, "complete": event != "half"}
        values = raw if event in ("page", "restart", "silent restart") else [0.0, 0.0]
        reading = tokens(at, raw[0], **fields) if event == "rank gone" else tokens(at, *values, **fields)
        progress = advance(progress, reading)
        total = progress.totals.quantities[GEN]
        assert seen <= total <= truth
        assert total == sum(progress.totals.rank_generation.values())
        seen = total


@settings(deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.floats(), st.integers(-5, 1000).map(float)), min_size=4, max_size=4), max_size=12)
)
def test_whatever_buckets_a_page_holds_accumulated_buckets_only_grow(pages):
    progress, last = None, (0.0,) * 4
    for at, counts in enumerate(pages):
        progress = advance(progress, stages(at, Histogram(bounds=BOUNDS, counts=tuple(counts))))
        now = progress.totals.histograms.get(TTFT)
        if now is not None:
            assert all(new >= old for new, old in zip(now.counts, last))
            last = now.counts


@settings(deadline=None)
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
        found = {r: histogram(*[n] * (len(b) + 1), bounds=tuple(sorted(b))) for r, (b, n) in ranks.items()}
        progress = advance(progress, page(at, histograms={TTFT: found}))
        now = progress.totals.histograms.get(TTFT)
        if now is not None and last is not None and progress.totals.begun.get(TTFT) != at:
            assert now.bounds == last.bounds
            assert all(new >= old for new, old in zip(now.counts, last.counts))
        last = now
