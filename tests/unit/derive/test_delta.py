"""Counters across restarts, half pages and late series, and what counts as movement."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.delta import FINISHED, RESPONSES, update
from exporter.model import Quantity, Stage
from tests.support.counted_pages import GEN, PROMPT, TTFT, histogram, page, run, stages, tokens


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
    began = {"created": lambda at: {"0": at}, "process_start": float}[field]
    old = tokens(0, 100, responses={"2xx": 10.0}, **{field: began(1000.0)})
    new = tokens(5, 150, responses={"2xx": 30.0}, **{field: began(2000.0)})
    totals = run(old, new).totals
    assert totals.quantities[GEN] == 150
    assert totals.responses["2xx"] == 30
    assert totals.restarts == 1


def test_a_start_time_that_is_missing_once_is_kept():
    totals = run(tokens(0, 5, process_start=10.0), tokens(1, 6), tokens(2, 7, process_start=10.0)).totals
    assert totals.quantities[GEN] == 2
    assert run(tokens(0, 5, process_start=10.0), tokens(1, 6), tokens(2, 7, process_start=11.0)).totals.restarts == 1


def test_a_start_time_that_is_no_number_is_no_restart_each_time():
    totals = run(*(tokens(at, 100 + at, process_start=nan, created={"0": nan}) for at in range(5))).totals
    assert totals.restarts == 0
    assert totals.quantities[GEN] == 4


def test_a_rank_that_joins_a_living_process_is_no_restart_of_the_others():
    before = tokens(0, 1_000_000, created={"0": 10.0})
    totals = run(before, tokens(1, 1_000_001, 7, created={"0": 10.0, "1": 99.0})).totals
    assert totals.restarts == 0
    assert totals.quantities[GEN] == 1 + 7


@pytest.mark.parametrize("again", [2000.0, 500.0])
def test_a_rank_that_restarts_alone_counts_alone_whichever_way_its_creation_moved(again):
    before = tokens(0, 1_000_000, 50, responses={"2xx": 9.0}, created={"0": 1000.0, "1": 1000.0})
    after = tokens(1, 1_000_001, 60, responses={"2xx": 11.0}, created={"0": 1000.0, "1": again})
    totals = run(before, after).totals
    assert (totals.quantities[GEN], totals.responses["2xx"], totals.restarts) == (1 + 60, 2, 1)


def test_a_rank_that_left_and_comes_back_renewed_counts_from_nothing():
    both = {"0": 1000.0, "1": 1000.0}
    without_rank = tokens(1, 1_000_000, created={"0": 1000.0})
    back = tokens(2, 1_000_000, 90, created={"0": 1000.0, "1": 2000.0})
    assert run(tokens(0, 1_000_000, 50, created=both), without_rank, back).totals.quantities[GEN] == 90


@pytest.mark.parametrize("reason", ["unreadable", "long_line", "bad_value", "bad_number"])
def test_what_a_page_with_unread_numbers_may_have_hidden_is_no_increase(reason):
    whole = {"0": {GEN: 1e6, PROMPT: 50}}
    late = {"finished": {"0": {"stop": 1e6}}, "responses": {"2xx": 1e6}}
    pages = [page(0, {"0": {PROMPT: 40}}, parse_warnings={reason: 1})]
    pages += [page(1, whole, histograms={TTFT: {"0": histogram(1e6, 1e6, 1e6, 1e6)}}, **late)]
    totals = run(*pages).totals
    assert (totals.quantities[GEN], totals.quantities[PROMPT]) == (0, 10)
    assert (totals.finished, totals.responses) == ({"stop": 0}, {"2xx": 0})
    assert tuple(totals.histograms[TTFT].counts) == (0, 0, 0, 0)
    more = page(2, {"0": {GEN: 1e6 + 3, PROMPT: 50}}, finished={"0": {"stop": 1e6 + 2}}, responses={"2xx": 1e6 + 1})
    totals = run(*pages, more).totals
    assert (totals.quantities[GEN], totals.finished, totals.responses) == (3, {"stop": 2}, {"2xx": 1})


def test_a_restart_counts_whole_even_after_a_page_with_unread_numbers():
    before = page(0, {"0": {GEN: 100, PROMPT: 9}}, parse_warnings={"unreadable": 1})
    totals = run(before, page(1, {"0": {GEN: 40, PROMPT: 9}}, finished={"0": {"stop": 2}})).totals
    assert (totals.quantities[GEN], totals.finished, totals.restarts) == (40, {"stop": 2}, 1)


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


def test_a_new_process_starts_without_the_counts_of_the_old_one():
    totals = run(
        tokens(0, 100, process_start=1.0), page(1, process_start=2.0), tokens(2, 130, process_start=2.0)
    ).totals
    assert totals.quantities[GEN] == 130
    assert totals.restarts == 1


def test_a_page_that_was_cut_off_changes_nothing():
    first = run(tokens(0, 100))
    assert update(first, tokens(1, 5, complete=False)) is first
    assert update(None, tokens(1, 5, complete=False)) is None


def test_time_that_stands_or_runs_back_changes_nothing():
    first = run(tokens(10, 100))
    assert update(first, tokens(10, 200)) is first
    assert update(first, tokens(3, 200)) is first


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


def test_movement_is_any_counter_that_grows_and_any_time_without_work():
    busy = {Quantity.REQUESTS_RUNNING: 2, GEN: 5}
    assert run(page(0, {"0": busy}), page(9, {"0": busy})).totals.moved_at == 0
    assert run(page(0, {"0": busy}), page(9, {"0": {**busy, GEN: 6}})).totals.moved_at == 9
    assert run(page(0, {"0": busy}), page(9, {"0": {**busy, Quantity.REQUESTS_RUNNING: 0}})).totals.moved_at == 9
    assert run(stages(0, histogram(1, 1, 1, 1)), stages(9, histogram(1, 1, 1, 2))).totals.moved_at == 9


def test_one_rank_without_work_does_not_make_the_others_idle():
    ranks = {"0": {Quantity.REQUESTS_RUNNING: 2, GEN: 5}, "1": {Quantity.REQUESTS_RUNNING: 0, GEN: 5}}
    assert run(page(0, ranks), page(9, ranks)).totals.moved_at == 0


def test_answers_move_an_engine_but_refusals_of_its_front_do_not():
    busy = {"0": {Quantity.REQUESTS_RUNNING: 2}}
    before = page(0, busy, responses={"2xx": 1.0, "4xx": 1.0})
    assert run(before, page(9, busy, responses={"2xx": 1.0, "4xx": 9.0})).totals.moved_at == 0
    assert run(before, page(9, busy, responses={"2xx": 2.0, "4xx": 1.0})).totals.moved_at == 9


def test_a_stage_that_no_window_follows_moves_an_engine_too():
    def prefilled(at, *counts):
        return page(at, {"0": {Quantity.REQUESTS_RUNNING: 2}}, histograms={Stage.PREFILL: {"0": histogram(*counts)}})

    assert run(prefilled(0, 1, 1, 1, 1), prefilled(9, 1, 1, 1, 1)).totals.moved_at == 0
    assert run(prefilled(0, 1, 1, 1, 1), prefilled(9, 1, 1, 1, 2)).totals.moved_at == 9


def test_an_idle_engine_keeps_sharing_its_sums():
    still = {"histograms": {TTFT: {"0": histogram(1, 2, 3, 4)}}, "finished": {"0": {"stop": 1.0}}}
    progress = run(tokens(0, 5), tokens(1, 9, **still), tokens(2, 9, **still))
    later = update(progress, tokens(3, 9, **still))
    assert later.totals.moved_at == 1
    assert later.totals.finished is progress.totals.finished
    assert later.totals.quantities is progress.totals.quantities
    assert later.totals.histograms is progress.totals.histograms


# ── Properties ──────────────────────────────────────────────────────────────────────────────────────────────────

increments = st.lists(
    st.tuples(
        st.floats(0.001, 1e5),  # seconds to the next page
        st.lists(st.integers(0, 1000), min_size=2, max_size=2),  # what each rank generates
        st.sampled_from(["page", "page", "page", "half", "restart", "silent restart", "missed", "rank gone"]),
    ),
    max_size=25,
)


@given(increments)
def test_sums_only_grow_and_never_exceed_the_truth(steps):
    """Every restart loses at most what was counted after the last page; nothing is ever invented."""
    at, raw, start, truth, previous, progress = 0.0, [7.0, 1e9], 1.0, 0.0, 0.0, None
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
        progress = update(progress, reading)
        total = progress.totals.quantities[GEN]
        assert previous <= total <= truth
        assert total >= sum(progress.totals.rank_generation.values())  # ranks that are gone for long are left out
        previous = total
