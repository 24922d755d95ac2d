"""Figures of a replica by window: rates, ratios, latencies, frozen, imbalance between ranks and replicas."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.delta import update
from exporter.derive.imbalance import rank_imbalance, replica_imbalance
from exporter.derive.kv_cache import hit_ratio, lifetime_hit_ratio
from exporter.derive.replica import LIFETIME, is_frozen, window_figures
from exporter.derive.windows import History
from exporter.model import (
    Detail,
    EngineReading,
    Histogram,
    Quantity,
    ReplicaLabels,
    ReplicaState,
    SourceStatus,
    Stage,
    Window,
    WindowFigures,
)
from tests.support.records import replace

TTFT = Stage.TIME_TO_FIRST_TOKEN
GEN = Quantity.GENERATION_TOKENS
PROMPT = Quantity.PROMPT_TOKENS
QUERIES = Quantity.PREFIX_CACHE_QUERIES
HITS = Quantity.PREFIX_CACHE_HITS
RUNNING, WAITING = Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING
WINDOWS = (Window("1m", 60.0), Window("5m", 300.0))
QUANTILES = (0.5, 0.99)


def page(at, values=None, *, ranks=None, **fields) -> EngineReading:
    return EngineReading(at=at, engine="vllm", ranks=ranks or {"0": values or {}}, **fields)


def replay(readings, windows=WINDOWS):
    """Return the history and the progress after all readings."""
    history, progress = History(windows), None
    for reading in readings:
        progress = update(progress, reading)
        if progress is not None:
            history.add(progress.totals)
    return history, progress


def answers(readings, windows=WINDOWS, **fields):
    return window_figures(replay(readings, windows)[0], QUANTILES, **fields)


def requests(at, stop=0.0, error=None, ok=None, bad=None, **fields):
    outcomes = {"stop": stop} | ({} if error is None else {"error": error})
    responses = {k: v for k, v in {"2xx": ok, "5xx": bad}.items() if v is not None}
    return page(at, finished={"0": outcomes}, responses=responses, **fields)


# ── Rates and windows ───────────────────────────────────────────────────────────────────────────────────────────


def test_rates_are_per_second_over_the_time_really_covered():
    by_window = answers([page(at, {GEN: 10.0 * at}, finished={"0": {"stop": 2.0 * at}}) for at in range(0, 35, 5)])
    assert by_window["1m"].seconds == by_window["5m"].seconds == 30
    assert by_window["1m"].generation_token_rate == 10
    assert by_window["1m"].request_rate == 2
    assert by_window["1m"].rank_token_rates == {"0": 10}


def test_a_first_reading_has_no_figures():
    assert answers([page(0, {GEN: 1e9})]) == {}
    assert window_figures(History(WINDOWS), QUANTILES) == {}


def test_windows_see_only_their_own_time():
    by_window = answers([page(at, {GEN: 0.0 if at < 540 else 100.0 * (at - 540)}) for at in range(0, 605, 5)])
    assert by_window["1m"].generation_token_rate == 100
    assert by_window["5m"].generation_token_rate == pytest.approx(20)


def test_a_restart_inside_the_window_is_crossed_and_never_negative():
    values = [100, 110, 120, 5, 15, 25]
    by_window = answers([page(5.0 * i, {GEN: value}) for i, value in enumerate(values)])
    assert by_window["1m"].generation_token_rate == (20 + 5 + 20) / 25


def test_a_suspended_daemon_leaves_a_gap_and_no_spike():
    # 60 s without a poll, 6 million tokens in between: the minute after it knows nothing, then only the new rate.
    before = [page(at, {GEN: 10.0 * at}) for at in range(30)]
    after = [page(at, {GEN: 6e6 + 10.0 * at}) for at in range(90, 95)]
    assert "1m" not in answers(before + after[:1])
    assert answers(before + after)["1m"].generation_token_rate == 10


def test_an_outage_longer_than_the_window_is_not_attributed_to_it():
    readings = [page(0, {GEN: 0}), page(5, {GEN: 50}), page(100, {GEN: 5e9}), page(105, {GEN: 5e9 + 50})]
    by_window = answers(readings)
    assert by_window["1m"].generation_token_rate == 10
    assert by_window["5m"].generation_token_rate == (5e9 + 50) / 105


def test_the_wall_clock_moves_nothing():
    # Only `at` is used; a wall clock that jumps shows in no reading but as the same process start.
    readings = [page(at, {GEN: 10.0 * at}, process_start=1.7e9) for at in range(0, 65, 5)]
    assert answers(readings) == answers([replace(r, process_start=1.7e9 + 3600) for r in readings])


def test_a_family_that_left_the_page_is_absent_not_zero():
    full = {GEN: 5, QUERIES: 10, HITS: 5}
    h = {TTFT: {"0": Histogram(bounds=(1.0,), counts=(0, 0))}}
    rich = [
        page(0, full, finished={"0": {"stop": 1}}, histograms=h),
        page(5, {**full, GEN: 9, QUERIES: 20}, finished={"0": {"stop": 3}}, histograms=h),
    ]
    assert None not in (answers(rich)["1m"].generation_token_rate, answers(rich)["1m"].hit_ratio)
    figures = answers([*rich, page(10, {Quantity.PROMPT_TOKENS: 7})])["1m"]
    assert (figures.generation_token_rate, figures.request_rate, figures.hit_ratio, figures.error_ratio) == (
        None,
    ) * 4
    assert figures.latency == {}
    assert figures.rank_token_rates == {}


def test_a_cut_off_page_is_no_base_and_no_end():
    readings = [page(0, {GEN: 100}), page(5, {GEN: 1}, complete=False), page(10, {GEN: 200})]
    assert answers(readings)["1m"].generation_token_rate == 10
    assert answers(readings[:2]) == {}


def test_a_flapping_source_keeps_only_its_good_pages():
    readings = [page(at, {GEN: 10.0 * at if at % 2 == 0 else 0.0}, complete=at % 2 == 0) for at in range(40)]
    assert answers(readings)["1m"].generation_token_rate == 10


@given(
    st.lists(
        st.tuples(st.floats(0.5, 200), st.integers(0, 5000), st.booleans(), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_rates_are_never_negative_and_never_above_the_truth(steps):
    at, raw, truth, life, progress, history = 0.0, 0.0, [], 0.0, None, History(WINDOWS)
    for gap, grown, restarts, read in steps:
        at += gap
        raw = grown if restarts else raw + grown
        life += grown
        truth.append((at, life))
        if not read:
            continue
        progress = update(progress, page(at, {GEN: raw}))
        history.add(progress.totals)
        for label, figures in window_figures(history, QUANTILES).items():
            began = dict(truth)[history.base(label).at]
            assert 0 <= figures.generation_token_rate * figures.seconds <= (life - began) * (1 + 1e-9)
            assert 0 < figures.seconds <= dict(WINDOWS)[label]


# ── Latency ─────────────────────────────────────────────────────────────────────────────────────────────────────


def stage(at, *ranks, bounds=(1.0, 2.0), **fields):
    histograms = {str(i): Histogram(bounds=bounds, counts=tuple(map(float, c))) for i, c in enumerate(ranks)}
    return page(at, histograms={TTFT: histograms}, **fields)


def test_quantiles_come_from_buckets_summed_over_ranks():
    by_window = answers([stage(0, (5, 5, 5), (9, 9, 9)), stage(5, (15, 15, 15), (9, 19, 19))])
    latency = by_window["1m"].latency[TTFT]
    assert latency.observations == 20
    assert latency.quantiles == {0.5: 1.0, 0.99: pytest.approx(1.98)}


def test_a_histogram_that_appears_with_its_first_request_is_counted_from_nothing():
    by_window = answers([page(0), stage(5, (0, 4, 4))])
    assert by_window["1m"].latency[TTFT].observations == 4


def test_bucket_edges_that_change_restart_the_window_of_that_stage():
    old = [stage(5.0 * i, (10 * i, 20 * i, 30 * i)) for i in range(4)]
    new = [stage(20 + 5.0 * i, (7 * i, 7 * i, 7 * i), bounds=(0.1, 0.2)) for i in range(1, 4)]
    assert TTFT not in answers(old + new[:1])["1m"].latency
    latency = answers(old + new)["1m"].latency[TTFT]
    assert latency.observations == 14
    assert latency.quantiles[0.5] == pytest.approx(0.05)


def test_bucket_edges_that_change_and_change_back_do_not_mix_the_two_lives():
    bounds = [(1.0, 2.0), (0.1, 0.2), (1.0, 2.0), (1.0, 2.0)]
    by_window = answers([stage(5.0 * i, (9 * i, 9 * i, 9 * i), bounds=b) for i, b in enumerate(bounds)])
    assert by_window["1m"].latency[TTFT].observations == 9


def test_an_idle_stage_says_that_nothing_was_observed():
    latency = answers([stage(0, (5, 5, 5)), stage(5, (5, 5, 5))])["1m"].latency[TTFT]
    assert (latency.observations, latency.quantiles, latency.overflow_ratio) == (0, {}, None)


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_errors_are_what_either_side_saw_over_what_either_side_saw():
    assert answers([requests(0, 0, 0, 0, 0), requests(5, 90, 10, 95, 5)])["1m"].error_ratio == 10 / 100
    assert answers([requests(0, 0, 0, 0, 0), requests(5, 40, 0, 80, 20)])["1m"].error_ratio == 20 / 100
    assert answers([requests(0, 0, 0), requests(5, 3, 1)])["1m"].error_ratio == 1 / 4


def test_without_requests_there_is_no_error_ratio():
    assert answers([requests(0, 5, 5, 5, 5), requests(5, 5, 5, 5, 5)])["1m"].error_ratio is None
    assert answers([page(0), page(5)])["1m"].error_ratio is None


def test_client_errors_are_in_neither_number():
    readings = [page(at, responses={"2xx": 9.0 * at, "4xx": 500.0 * at, "5xx": 1.0 * at}) for at in (0, 5)]
    assert answers(readings)["1m"].error_ratio == pytest.approx(0.1)


def test_what_clients_did_wrong_or_gave_up_does_not_dilute_the_error_ratio():
    outcomes = {"success": 1.0, "error": 9.0, "invalid": 500.0, "cancelled": 40.0, "rejected": 30.0}
    readings = [page(at, finished={"": {name: at * count for name, count in outcomes.items()}}) for at in (0, 5)]
    assert answers(readings)["1m"].error_ratio == pytest.approx(0.9)


def test_shed_load_is_no_error_and_no_finished_request_but_has_a_rate_of_its_own():
    """vLLM 0.32 with a bounded queue: 58 served, 1,678 answered 503 on purpose, no error."""
    readings = [
        page(
            at,
            finished={"0": {"stop": 58.0 * at, "error": 0.0}, "": {"rejected": 1678.0 * at}},
            responses={"2xx": 58.0 * at, "5xx": 1678.0 * at},
        )
        for at in (0, 10)
    ]
    figures = answers(readings)["1m"]
    assert figures.error_ratio == 0
    assert (figures.request_rate, figures.rejected_rate) == (58, 1678)


def test_errors_beside_shed_load_are_errors_still():
    finished = {"0": {"stop": 70.0}, "": {"rejected": 100.0}}
    readings = [page(0), page(10, finished=finished, responses={"2xx": 70.0, "5xx": 130.0})]
    assert answers(readings)["1m"].error_ratio == 30 / 100


def test_an_engine_that_does_not_count_what_it_sheds_has_no_rate_of_it():
    figures = answers([page(at, finished={"0": {"stop": 1.0 * at}}) for at in (0, 5)])["1m"]
    assert (figures.request_rate, figures.rejected_rate) == (1, None)


def test_a_side_that_left_the_page_has_no_say_in_the_errors():
    first, then = requests(0, 0, 0, 0, 0), requests(5, 80, 0, 0, 20)
    assert answers([first, then, requests(10, 160, 0)])["1m"].error_ratio == 0
    assert answers([first, then, requests(10, 160, 0, 0, 20)])["1m"].error_ratio == 20 / 160


counts = st.lists(st.integers(0, 1000), min_size=4, max_size=4)


@given(counts, counts)
def test_an_error_ratio_is_a_ratio(first, more):
    before, after = requests(0, *first), requests(5, *(a + b for a, b in zip(first, more)))
    ratio = answers([before, after])["1m"].error_ratio
    assert ratio is None if sum(more) == 0 else 0 <= ratio <= 1


# ── Cache ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_hit_ratio_is_summed_over_ranks_and_taken_over_the_window():
    first = {"0": {QUERIES: 1e6, HITS: 1e6}, "1": {QUERIES: 0, HITS: 0}}
    then = {"0": {QUERIES: 1e6 + 100, HITS: 1e6}, "1": {QUERIES: 300, HITS: 200}}
    assert answers([page(0, ranks=first), page(5, ranks=then)])["1m"].hit_ratio == 0.5


def test_without_queries_the_hit_ratio_is_unknown():
    assert hit_ratio(0, 0) is None
    assert hit_ratio(nan, 1) is None
    assert answers([page(at, {QUERIES: 0, HITS: 0}) for at in (0, 5)])["1m"].hit_ratio is None
    assert answers([page(at, {QUERIES: at}) for at in (0, 5)])["1m"].hit_ratio is None


def test_more_hits_than_queries_are_nonsense_and_only_rounding_is_forgiven():
    assert hit_ratio(100, 101) is None
    assert hit_ratio(3, 3.0000000001) == 1.0
    assert hit_ratio(4, 4) == 1.0
    assert hit_ratio(4, -1) is None


def life(*ranks):
    return page(0, ranks={str(index): values for index, values in enumerate(ranks)})


def test_the_average_of_a_life_is_used_only_without_counters():
    ratio = Quantity.LIFETIME_HIT_RATIO
    assert lifetime_hit_ratio(life({ratio: 0.25})) == 0.25
    assert lifetime_hit_ratio(life({ratio: 0.25, QUERIES: 0})) is None
    assert lifetime_hit_ratio(life({})) is None
    for missing in (-1.0, nan, 1.5):
        assert lifetime_hit_ratio(life({ratio: missing})) is None


def test_the_average_of_a_life_weighs_ranks_by_their_prompts():
    ratio, prompt = Quantity.LIFETIME_HIT_RATIO, Quantity.PROMPT_TOKENS
    assert lifetime_hit_ratio(life({ratio: 1.0, prompt: 100}, {ratio: 0.0, prompt: 300})) == 0.25
    assert lifetime_hit_ratio(life({ratio: 1.0, prompt: 100}, {ratio: 0.0})) == 0.5
    assert lifetime_hit_ratio(life({ratio: 1.0, prompt: 0}, {ratio: 0.0, prompt: 0})) == 0.5


def test_the_average_of_a_life_stands_beside_the_windows():
    reading = page(5, {Quantity.LIFETIME_HIT_RATIO: 0.25, GEN: 1})
    by_window = answers([replace(reading, at=0), reading], reading=reading)
    assert by_window[LIFETIME].hit_ratio == 0.25
    assert by_window["1m"].hit_ratio is None


# ── Frozen ──────────────────────────────────────────────────────────────────────────────────────────────────────


def frozen_after(readings, now=None):
    _, progress = replay(readings)
    return is_frozen(readings[-1], progress.totals, readings[-1].at if now is None else now)


def test_work_without_movement_is_frozen_after_twenty_seconds():
    stuck = [page(at, {RUNNING: 3, GEN: 50}) for at in range(0, 25, 5)]
    assert frozen_after(stuck[:1]) is None
    assert frozen_after(stuck[:4]) is None
    assert frozen_after(stuck) is True


def test_an_engine_that_was_put_to_sleep_is_not_frozen():
    def waits(**states):
        details = {Detail.SLEEP_STATES: {"0": states}}
        values = {RUNNING: 0, WAITING: 2, GEN: 50}
        return [page(at, values, details=details, stalled_after=20.0) for at in range(0, 100, 5)]

    assert frozen_after(waits(awake=1.0, weights_offloaded=0.0)) is True
    assert frozen_after(waits(awake=0.0, weights_offloaded=1.0)) is False


def test_a_poll_that_comes_a_little_early_does_not_delay_the_verdict_to_the_next():
    stuck = [page(at, {RUNNING: 3, GEN: 50}) for at in (0, 5, 10, 15, 19.9)]
    assert frozen_after(stuck) is True
    assert frozen_after([*stuck[:4], page(19, {RUNNING: 3, GEN: 50})]) is None


def test_moving_or_idle_engines_are_not_frozen():
    assert frozen_after([page(at, {RUNNING: 3, GEN: 50 + at}) for at in (0, 5)]) is False
    assert frozen_after([page(at, {RUNNING: 0, GEN: 50}) for at in (0, 60)]) is False
    assert frozen_after([page(0, {RUNNING: 0, GEN: 50})]) is False


def test_one_stuck_rank_among_idle_ones_is_frozen():
    stuck = [page(at, ranks={"0": {RUNNING: 0, GEN: 1}, "1": {RUNNING: 1, GEN: 1}}) for at in (0, 10, 20)]
    assert frozen_after(stuck) is True


def two_ranks(at, running=1, **fields):
    return page(at, ranks={"0": {RUNNING: 1, GEN: at}, "1": {RUNNING: running, GEN: 7}}, **fields)


def test_one_stuck_rank_among_busy_ones_is_frozen_after_twenty_seconds():
    assert frozen_after([two_ranks(at) for at in (0, 5, 10, 15)]) is False
    assert frozen_after([two_ranks(at) for at in (0, 5, 10, 15, 20)]) is True


def test_a_rank_that_idled_has_its_twenty_seconds_from_its_first_request_on():
    idle = [two_ranks(at, running=0) for at in range(0, 60, 5)]
    assert frozen_after([*idle, *(two_ranks(at) for at in (60, 65, 70, 75))]) is False
    assert frozen_after([*idle, *(two_ranks(at) for at in (60, 65, 70, 75, 80))]) is True


def test_ranks_that_another_program_shows_and_ranks_without_tokens_of_their_own_do_not_freeze_the_rest():
    assert frozen_after([two_ranks(at, relayed=True) for at in range(0, 60, 5)]) is False
    silent = [page(at, ranks={"0": {RUNNING: 1, GEN: at}, "1": {RUNNING: 1}}) for at in range(0, 60, 5)]
    assert frozen_after(silent) is False


def test_an_engine_that_worked_and_then_stopped_is_frozen_twenty_seconds_later():
    readings = [page(at, {RUNNING: 1, GEN: min(at, 30)}) for at in range(0, 55, 5)]
    assert frozen_after(readings[:10]) is False
    assert frozen_after(readings[:11]) is True


def given_up(at, **fields):
    """Return a page of an engine that hangs while its clients give up and new ones come."""
    return page(at, {RUNNING: 4, GEN: 50, Quantity.REQUESTS_ABORTED: at, **fields.pop("more", {})}, **fields)


@pytest.mark.parametrize(
    "moving",
    [
        lambda at: {"responses": {"2xx": 100.0 + 2 * at}},  # vLLM counts what a client left as answered
        lambda at: {"responses": {"4xx": at, "5xx": at}},
        lambda at: {"finished": {"0": {"success": 9.0, "cancelled": at, "invalid": at}}},
    ],
    ids=["responses", "rejections", "cancelled"],
)
def test_clients_that_give_up_on_an_engine_that_hangs_are_no_progress(moving):
    assert frozen_after([given_up(at, **moving(at)) for at in range(0, 25, 5)]) is True


@pytest.mark.parametrize(
    "moving",
    [
        lambda at: {"finished": {"0": {"success": 9.0 + at, "cancelled": at}}},
        lambda at: {"more": {PROMPT: 10.0 * at}},
        lambda at: {"activity": {"0": (at,)}},
    ],
    ids=["finished", "prompts", "steps"],
)
def test_an_engine_that_works_while_clients_give_up_is_not_frozen(moving):
    assert (
        frozen_after([given_up(at, responses={"2xx": 100.0 + at}, **moving(at)) for at in range(0, 25, 5)]) is False
    )


def test_responses_are_progress_where_the_engine_counts_no_tokens():
    assert frozen_after([page(at, {RUNNING: 1}, responses={"2xx": at}) for at in range(0, 25, 5)]) is False
    assert frozen_after([page(at, {RUNNING: 1}, responses={"4xx": at}) for at in range(0, 25, 5)]) is True


def waiting(at, *, number=3, running=0, tokens=50, stalled_after=30.0):
    return page(at, {RUNNING: running, WAITING: number, GEN: tokens}, stalled_after=stalled_after)


def test_requests_that_wait_while_none_runs_and_nothing_moves_are_frozen():
    worked = [page(0, {RUNNING: 1, WAITING: 0, GEN: 10}), page(5, {RUNNING: 0, WAITING: 0, GEN: 50})]
    stuck = [*worked, *(waiting(at) for at in range(10, 45, 5))]
    assert frozen_after(stuck[:-1]) is False
    assert frozen_after(stuck) is True
    assert frozen_after([*stuck, waiting(45, tokens=51)]) is False
    assert frozen_after([*stuck, waiting(45, number=0)]) is False


def test_a_queue_is_no_standstill_where_its_gauge_cannot_be_trusted_at_rest():
    worked = [page(0, {RUNNING: 1, GEN: 10}), page(5, {RUNNING: 0, GEN: 50})]
    assert frozen_after([*worked, *(waiting(at, stalled_after=None) for at in range(10, 200, 5))]) is False


def test_the_first_request_after_an_idle_hour_is_not_frozen():
    idle = [page(at, {RUNNING: 0, GEN: 50}) for at in range(0, 3600, 60)]
    assert frozen_after([*idle, page(3600, {RUNNING: 1, GEN: 50})]) is False


def test_without_the_gauge_or_without_fresh_pages_freezing_is_not_known():
    assert frozen_after([page(at, {GEN: 50}) for at in (0, 60)]) is None
    assert is_frozen(page(0, {RUNNING: 1}), None, 0.0) is None
    assert frozen_after([page(at, {RUNNING: 1, GEN: at}) for at in (0, 5)], now=30.0) is None


# ── Imbalance ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_ranks_are_compared_by_maximum_over_mean():
    reading = page(
        0,
        ranks={
            "0": {RUNNING: 6, Quantity.REQUESTS_WAITING: 0, Quantity.KV_CACHE_USAGE: 0.9},
            "1": {RUNNING: 2, Quantity.REQUESTS_WAITING: 0, Quantity.KV_CACHE_USAGE: 0.3},
        },
    )
    imbalance = rank_imbalance(reading, WindowFigures(seconds=60.0, rank_token_rates={"0": 30.0, "1": 10.0}))
    assert imbalance == pytest.approx({"requests_running": 1.5, "kv_cache_usage": 1.5, "generation_token_rate": 1.5})


def test_a_single_rank_is_not_compared():
    assert rank_imbalance(page(0, {RUNNING: 6}), WindowFigures(seconds=60.0, rank_token_rates={"0": 5.0})) == {}
    assert rank_imbalance(page(0, ranks={"0": {RUNNING: 6}, "1": {RUNNING: nan}}), None) == {}


def test_a_rank_that_says_nonsense_leaves_the_comparison_to_the_others():
    ranks = {"0": {RUNNING: 6}, "1": {RUNNING: nan}, "2": {RUNNING: 2}, "3": {RUNNING: -1}}
    assert rank_imbalance(page(0, ranks=ranks), None) == {"requests_running": 1.5}


def replica(name, ranks, model="m", **windows):
    return ReplicaState(
        name=name,
        kind="vllm",
        labels=ReplicaLabels(name, "vllm", model),
        status=SourceStatus(source=name, up=True),
        reading=None if ranks is None else page(0, ranks=ranks),
        last_read_at=0.0,
        windows={label: WindowFigures(seconds=60.0, **values) for label, values in windows.items()},
    )


def test_a_rank_that_is_given_the_long_prompts_stands_out_where_all_run_as_many_requests():
    def ranks(first, second):
        return {"0": {RUNNING: 4, GEN: 60, PROMPT: first}, "1": {RUNNING: 4, GEN: 60, PROMPT: second}}

    window = answers([page(0, ranks=ranks(0, 0)), page(60, ranks=ranks(9000, 3000))])["1m"]
    assert window.rank_prompt_token_rates == {"0": 150.0, "1": 50.0}
    imbalance = rank_imbalance(page(60, ranks=ranks(9000, 3000)), window)
    assert imbalance["prompt_token_rate"] == pytest.approx(1.5)
    assert imbalance["requests_running"] == 1.0


def test_replicas_of_one_model_are_compared_by_sums_over_their_ranks():
    a = replica(
        "a", {"0": {RUNNING: 1, Quantity.KV_CACHE_USAGE: 0.2}, "1": {RUNNING: 5, Quantity.KV_CACHE_USAGE: 0.4}}
    )
    b = replica("b", {"0": {RUNNING: 2, Quantity.KV_CACHE_USAGE: 0.1}})
    assert replica_imbalance([a, b]) == pytest.approx({("m", "requests_running"): 1.5, ("m", "kv_cache_usage"): 1.5})


def test_replicas_are_compared_with_their_own_model_only():
    cards = {"0": {RUNNING: 4}}
    assert replica_imbalance([replica("a", cards, "x"), replica("b", cards, "y")]) == {}
    assert replica_imbalance([replica("a", cards, ""), replica("b", cards, "")]) == {}
    assert replica_imbalance([replica("a", cards), replica("b", None)]) == {}
    assert replica_imbalance([]) == {}


def test_replica_rates_come_from_the_first_window_that_two_have():
    short_figures = {"generation_token_rate": 30.0, "request_rate": 1.0}
    two = {"generation_token_rate": 10.0, "request_rate": 1.0}
    short = {"0": {}}
    a, b = replica("a", short, **{"1m": short_figures, "5m": two}), replica("b", short, **{"1m": two, "5m": two})
    expected = {("m", "generation_token_rate"): 1.5, ("m", "request_rate"): 1.0}
    assert replica_imbalance([a, b]) == pytest.approx(expected)
    late = replica("c", short, **{"5m": short_figures})
    assert (
        replica_imbalance([replica("a", short, **{"1m": short_figures, "5m": two}), late])[
            "m", "generation_token_rate"
        ]
        == 1.5
    )


levels = st.one_of(st.just(0.0), st.floats(1e-9, 1e6))


@given(st.lists(levels, min_size=2, max_size=8), st.randoms())
def test_maximum_over_mean_lies_between_one_and_the_number_of_ranks(values, random):
    ranks = {str(i): {RUNNING: value} for i, value in enumerate(values)}
    imbalance = rank_imbalance(page(0, ranks=ranks), None).get("requests_running")
    if sum(values) == 0:
        assert imbalance is None
    else:
        assert 1 <= imbalance <= len(values) * (1 + 1e-12)
        shuffled = list(ranks.values())
        random.shuffle(shuffled)
        assert rank_imbalance(page(0, ranks=dict(zip("abcdefgh", shuffled))), None)["requests_running"] == imbalance
