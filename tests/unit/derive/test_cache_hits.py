"""Prefix-cache hits that are counted from the first one on: until then the ratio is 0 where queries are counted."""

from __future__ import annotations

import pytest

from exporter.model import Quantity
from tests.support.builders import Clock
from tests.support.engine_pages import make_poller, polled

HITS = Quantity.PREFIX_CACHE_HITS
LABELS = 'model_name="m"'
INTER_TOKEN = f'sglang:inter_token_latency_seconds_bucket{{{LABELS},le="+Inf"}} 5\n'


def old(step: int, extra: str = INTER_TOKEN) -> str:
    """SGLang before 0.5.7."""
    return (
        f"sglang:num_running_reqs{{{LABELS}}} 1\n"
        f"sglang:prompt_tokens_total{{{LABELS}}} {1000 * step}\n"
        f"sglang:generation_tokens_total{{{LABELS}}} {100 * step}\n{extra}"
    )


def live(step: int, extra: str = "") -> str:
    """SGLang from 0.5.7 on."""
    return (
        f"sglang:num_running_reqs{{{LABELS}}} 1\n"
        f'sglang:realtime_tokens_total{{{LABELS},mode="prefill_compute"}} {1000 * step}\n'
        f'sglang:realtime_tokens_total{{{LABELS},mode="decode"}} {90 * step}\n{extra}'
    )


def ray(step: int, extra: str = "") -> str:
    labels = '{model_name="m",ReplicaId="a",engine="0"}'
    return (
        f"ray_vllm_generation_tokens_total{labels} {100 * step}\n"
        f"ray_vllm_prefix_cache_queries_total{labels} {100 * step}\n{extra}"
    )


def states(*bodies: str):
    clock = Clock()
    poller = make_poller([body.encode() for body in bodies], clock)
    return [polled(poller, clock) for _ in bodies]


def ratios(*bodies: str):
    return [state.windows["1m"].hit_ratio if "1m" in state.windows else None for state in states(*bodies)]


@pytest.mark.parametrize("page", [old, live, ray])
def test_an_engine_that_has_found_nothing_yet_has_a_ratio_of_0_and_a_counter_of_0(page):
    assert ratios(page(1), page(2), page(3)) == [None, 0.0, 0.0]
    assert {numbers[HITS] for numbers in states(page(1), page(2))[1].reading.ranks.values()} == {0.0}


def test_the_first_hits_count_from_0():
    prefill_cache = f'sglang:realtime_tokens_total{{{LABELS},mode="prefill_cache"}} '
    assert ratios(live(1), live(2), live(3, f"{prefill_cache}500\n"))[-1] == pytest.approx(500 / 2500)


def test_without_queries_there_is_no_ratio_and_no_hit():
    decode = f'sglang:num_running_reqs{{{LABELS}}} 1\nsglang:realtime_tokens_total{{{LABELS},mode="decode"}} 9\n'
    assert ratios(decode, decode) == [None, None]
    assert HITS not in states(decode)[0].reading.ranks[""]


def test_a_version_that_counts_no_hits_has_no_ratio():
    assert ratios(old(1, ""), old(2, "")) == [None, None]
    bare = [ray(step).replace("ray_vllm_", "vllm:") for step in (1, 2)]
    assert ratios(*bare) == [None, None]


def test_hits_that_were_seen_and_are_missing_are_not_0():
    prefill_cache = f'sglang:realtime_tokens_total{{{LABELS},mode="prefill_cache"}} '
    states_read = [
        live(1, f"{prefill_cache}300\n"),
        live(2, f"{prefill_cache}400\n"),
        live(3),
        live(4, f"{prefill_cache}600\n"),
    ]
    assert ratios(*states_read) == [None, pytest.approx(100 / 1100), None, pytest.approx(300 / 3300)]
    assert states(*states_read)[-1].restarts == 0


@pytest.mark.parametrize("rest", ["sglang:realtime_tok", "sglang:nonsense{ 4\n"])
def test_a_page_that_may_hide_the_hits_says_nothing_of_them(rest):
    assert HITS not in states(live(1) + rest)[0].reading.ranks[""]


def test_after_a_restart_nothing_has_been_found_again():
    prefill_cache = f'sglang:realtime_tokens_total{{{LABELS},mode="prefill_cache"}} '
    pages = [live(50, f"{prefill_cache}300\n"), live(51, f"{prefill_cache}400\n"), live(1), live(2)]
    last = states(*pages)[-1]
    assert (last.restarts, last.reading.ranks[""][HITS]) == (1, 0.0)
    assert last.windows["1m"].hit_ratio is not None
