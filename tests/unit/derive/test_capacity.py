"""What is left of a KV cache, from what the engine says and from nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.capacity import MIN_FINISHED, KvCacheUsage, headroom, mean_length, seconds_to_full
from exporter.derive.delta import FINISHED, ReplicaTotals
from exporter.model import EngineReading, KvTokens, Quantity, Window, WindowFigures
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.simulate.products import H100, LLAMA_8B
from exporter.simulate.records import ReplicaSpec, Scenario, Traffic
from exporter.sources.replay import Replay
from tests.support.builders import Clock
from tests.support.records import replace
from tests.support.virtual_node import VirtualNode

WINDOW = 60.0


def reading(**ranks):
    """A reading; each rank is (usage, capacity), None where the engine does not say it."""
    values_by_rank = {
        rank: {
            name: value
            for name, value in zip((Quantity.KV_CACHE_USAGE, Quantity.KV_CACHE_CAPACITY), pair)
            if value is not None
        }
        for rank, pair in ranks.items()
    }
    return EngineReading(at=60.0, engine="vllm", model="m", ranks=values_by_rank)


def recent(*levels, step=6.0, rank="0"):
    start = 60.0 - step * (len(levels) - 1)
    return [KvCacheUsage(at=start + step * number, ranks={rank: level}) for number, level in enumerate(levels)]


def totals(at, *, prompt=0.0, generated=0.0, withdrawn=(), **finished):
    quantities = {Quantity.PROMPT_TOKENS: prompt, Quantity.GENERATION_TOKENS: generated}
    return ReplicaTotals(
        at=at, first_at=0.0, moved_at=at, quantities=quantities, finished=finished, withdrawn=frozenset(withdrawn)
    )


# ── Tokens and sequences ────────────────────────────────────────────────────────────────────────────────────────


def test_used_and_free_are_usage_times_capacity_by_rank():
    result = headroom(reading(a=(0.75, 1000.0), b=(0.0, 500.0)), {}, [], WINDOW)
    assert result.ranks["a"] == KvTokens(used=750.0, free=250.0, sequences=None)
    assert result.ranks["b"] == KvTokens(used=0.0, free=500.0, sequences=None)
    assert result.total == KvTokens(used=750.0, free=750.0, sequences=None)


def test_what_the_engine_does_not_say_is_absent():
    result = headroom(reading(a=(0.5, None), b=(None, 1000.0), c=(0.0, 0.0)), {}, [], WINDOW)
    assert (result.ranks, result.total, result.seconds_to_full) == ({}, None, None)


def test_whole_sequences_of_the_mean_length_fit_and_the_longest_window_says_how_long_they_are():
    windows = {
        "1m": WindowFigures(seconds=60.0, request_tokens=10.0),
        "5m": WindowFigures(seconds=300.0, request_tokens=90.0),
        "10m": WindowFigures(seconds=310.0),
    }
    result = headroom(reading(a=(0.5, 1000.0), b=(0.95, 1000.0)), windows, [], WINDOW)
    assert {rank: tokens.sequences for rank, tokens in result.ranks.items()} == {"a": 5.0, "b": 0.0}
    assert result.total.sequences == 5.0


def test_without_a_recent_length_no_number_of_sequences_is_known():
    result = headroom(reading(a=(0.5, 1000.0)), {"1m": WindowFigures(seconds=60.0)}, [], WINDOW)
    assert result.ranks == {"a": KvTokens(used=500.0, free=500.0, sequences=None)}


def test_the_mean_length_is_prompt_and_answer_over_finished_requests_but_not_over_rejected_ones():
    base = totals(0.0, prompt=100.0, generated=10.0, stop=5.0, rejected=7.0)
    latest = totals(60.0, prompt=10_100.0, generated=2_010.0, stop=20.0, length=5.0, rejected=90.0)
    assert mean_length(base, latest) == pytest.approx(12_000 / 20)


def test_too_few_requests_have_no_mean_length():
    base, latest = totals(0.0), totals(60.0, prompt=900.0, generated=90.0, stop=MIN_FINISHED - 1.0)
    assert mean_length(base, latest) is None
    assert mean_length(base, replace(latest, finished={"stop": float(MIN_FINISHED)})) == pytest.approx(99.0)
    assert mean_length(base, totals(60.0, stop=50.0)) is None
    assert mean_length(base, totals(60.0, generated=5.0, stop=50.0)) == 1.0  # no request is shorter


@pytest.mark.parametrize("name", [FINISHED, "prompt_tokens", "generation_tokens"])
def test_a_counter_that_left_the_page_gives_no_mean_length(name):
    latest = totals(60.0, prompt=900.0, generated=90.0, stop=50.0)
    assert mean_length(totals(0.0), latest) == pytest.approx(19.8)
    assert mean_length(totals(0.0), replace(latest, withdrawn=frozenset([name]))) is None


# ── Time until full ─────────────────────────────────────────────────────────────────────────────────────────────


def test_steady_growth_reaches_the_end_when_the_line_says():
    assert seconds_to_full(recent(0.40, 0.41, 0.42, 0.43, 0.44, 0.45, 0.46), "0", WINDOW) == pytest.approx(
        0.54 / 0.01 * 6
    )


def test_the_line_goes_through_all_samples_and_not_through_the_ends():
    """One request that comes or goes at the last moment must not decide."""
    level = [0.40, 0.42, 0.44, 0.46, 0.48, 0.50, 0.52]
    assert seconds_to_full(recent(*level[:-1], 0.40), "0", WINDOW) != pytest.approx(0.60 / 0.02 * 6)
    assert seconds_to_full(recent(*level[:-1], 0.40), "0", WINDOW) is not None


def test_a_cache_that_shrinks_or_stands_or_hardly_grows_is_not_filling():
    assert seconds_to_full(recent(0.6, 0.5, 0.4, 0.3, 0.2, 0.1), "0", WINDOW) is None
    assert seconds_to_full(recent(*[0.5] * 10), "0", WINDOW) is None
    assert seconds_to_full(recent(*[0.5 + 0.0005 * number for number in range(10)]), "0", WINDOW) is None


def test_a_full_cache_is_full_now_however_it_got_there():
    assert seconds_to_full(recent(1.0), "0", WINDOW) == 0.0
    assert seconds_to_full(recent(0.5, 1.0), "0", WINDOW) == 0.0


def test_a_young_history_says_nothing_yet():
    assert seconds_to_full(recent(0.1, 0.2, 0.3, 0.4), "0", WINDOW) is None
    assert seconds_to_full(recent(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, step=5.0), "0", WINDOW) is None
    assert seconds_to_full(recent(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "0", WINDOW) == pytest.approx(24.0)
    assert seconds_to_full(recent(0.1, 0.2, 0.3, 0.4, step=19.0), "0", WINDOW) is None
    assert seconds_to_full([], "0", WINDOW) is None


def test_a_rank_that_left_the_page_is_not_extended():
    samples = [*recent(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), KvCacheUsage(at=61.0, ranks={})]
    assert seconds_to_full(samples, "0", WINDOW) is None


def test_the_first_rank_to_be_full_decides():
    samples = [
        KvCacheUsage(at=6.0 * number, ranks={"a": 0.05 * number, "b": 0.02 * number, "c": 0.9})
        for number in range(11)
    ]
    result = headroom(reading(a=(0.5, None), b=(0.2, None), c=(0.9, None)), {}, samples, WINDOW)
    assert result.seconds_to_full == pytest.approx(0.5 / 0.05 * 6)


@given(st.lists(st.floats(0, 1), min_size=6, max_size=65), st.floats(0.1, 10))
def test_the_time_is_never_negative_and_scales_with_the_pace(levels, factor):
    step = WINDOW / (len(levels) - 1)
    plain = seconds_to_full(recent(*levels, step=step), "0", WINDOW)
    slow = seconds_to_full(recent(*levels, step=step * factor), "0", WINDOW * factor)
    assert (plain is None) == (slow is None)
    if plain is not None:
        assert plain >= 0.0
        assert slow == pytest.approx(plain * factor, rel=1e-6)


# ── Through a replica's poller ──────────────────────────────────────────────────────────────────────────────────


def page(usage, model="m"):
    labels = f'engine="0",model_name="{model}"'
    return (
        f'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="1000"}} 1.0\n'
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}\nvllm:num_requests_running{{{labels}}} 1\n"
    ).encode()


def make_poller(pages, clock):
    windows = (Window("1m", 60.0), Window("5m", 300.0))
    plan = ReplicaConfig(name="a", kind="auto", interval=5.0, windows=windows, quantiles=(0.5,))
    return replica_poller(plan, Replay(pages), clock=clock, unix_now=lambda: 1.7e9)


def test_a_cache_that_fills_from_page_to_page_says_when_it_will_be_full():
    clock = Clock()
    poller = make_poller([page(0.02 * number) for number in range(13)], clock)
    for _ in range(13):
        poller.poll()
        clock.tick(5.0)
    headroom = poller.state.headroom
    assert headroom.ranks["0"].used == pytest.approx(0.24 * 16000)
    assert headroom.seconds_to_full == pytest.approx(0.76 / 0.02 * 5)


def test_a_replica_that_stops_answering_has_no_room_and_its_past_is_kept():
    clock = Clock()
    poller = make_poller([*[page(0.02 * number) for number in range(10)], None, page(0.22)], clock)
    for _ in range(11):
        poller.poll()
        clock.tick(5.0)
    assert (poller.state.headroom, poller.state.generated_tokens) == (None, None)
    poller.poll()
    assert poller.state.headroom.seconds_to_full == pytest.approx(0.78 / 0.02 * 5)


def test_another_model_on_the_port_begins_a_new_past():
    clock = Clock()
    poller = make_poller([*[page(0.02 * number) for number in range(13)], page(0.5, "n")], clock)
    for _ in range(14):
        poller.poll()
        clock.tick(5.0)
    assert poller.state.labels[2] == "n"
    assert poller.state.headroom.seconds_to_full is None


def test_tokens_that_left_the_page_are_no_longer_counted():
    clock = Clock()
    counted = page(0.1) + b'vllm:generation_tokens_total{engine="0",model_name="m"} 7\n'
    poller = make_poller([counted, counted.replace(b" 7\n", b" 19\n"), page(0.1)], clock)
    poller.poll()
    assert poller.state.generated_tokens == (clock.now, 0.0)
    clock.tick(5.0)
    poller.poll()
    assert poller.state.generated_tokens == (clock.now, 12.0)
    poller.poll()
    clock.tick(5.0)
    poller.poll()
    assert poller.state.generated_tokens is None


def test_an_exchange_that_does_not_come_back_withdraws_the_room_too():
    clock = Clock()
    poller = make_poller([page(0.5)], clock)
    poller.poll()
    poller.poll_loop.begin()
    clock.tick(60.0)
    view = poller.view(clock())
    assert (view.reading, view.headroom, view.generated_tokens) == (None, None, None)


def test_a_simulated_engine_has_the_room_that_its_blocks_leave():
    crowd = Traffic(rate=12.0, prompt=900, output=300)
    spec = ReplicaSpec(name="chat", model=LLAMA_8B, traffic=crowd, ranks=((0,), (1,)))
    node = VirtualNode(Scenario(name="crowd", summary="", product=H100, replicas=(spec,)), seed=1)
    state = node.live_until(90.0).replicas[0]
    for number, rank in enumerate(node.world.replicas[0].ranks):
        capacity = rank.blocks * 16
        tokens = state.headroom.ranks[str(number)]
        assert tokens.used + tokens.free == pytest.approx(capacity)
        assert tokens.used == pytest.approx(rank.report.kv_usage * capacity)
        length = state.windows["5m"].request_tokens
        assert 900 < length < 9000
        assert tokens.sequences == tokens.free // length
