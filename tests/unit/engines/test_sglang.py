"""The SGLang table on pages of a real server, of an old version, and on pages with the labels of bigger servers."""

from __future__ import annotations

import pytest

from exporter.engines.detect import recognise
from exporter.engines.tables.sglang import SGLANG
from exporter.errors import PageError
from exporter.model import Quantity, Stage
from tests.support.builders import Clock
from tests.support.engine_pages import histogram, interpret, make_poller, page, polled

AFTER = "sglang-0.5.23-real-cpu-after"
LOAD = "sglang-0.5.23-real-cpu-load"
OLD = "sglang-0.4.6-generated"


def test_a_page_of_0_5_23_gives_every_quantity_it_has():
    reading = interpret(page(LOAD))
    assert (reading.engine, reading.model, reading.name_style) == ("sglang", "tiny-llama", "sglang:")
    assert dict(reading.ranks[""]) == {
        Quantity.REQUESTS_RUNNING: 7.0,
        Quantity.REQUESTS_WAITING: 7.0,
        Quantity.KV_CACHE_USAGE: 0.32,
        Quantity.KV_CACHE_CAPACITY: 4096.0,
        Quantity.PROMPT_TOKENS: 22354.0 + 18620.0,
        Quantity.GENERATION_TOKENS: 12295.0 + 309.0,
        Quantity.REQUESTS_ABORTED: 18.0,
        Quantity.PREFIX_CACHE_QUERIES: 22354.0 + 18620.0,
        Quantity.PREFIX_CACHE_HITS: 18620.0,
        Quantity.SPEC_ACCEPTED_LENGTH_NOW: 0.0,
        Quantity.SPEC_ACCEPTANCE_NOW: 0.0,
    }
    assert set(reading.histograms) == {
        Stage.PROMPT_LENGTH,
        Stage.GENERATION_LENGTH,
        Stage.TIME_TO_FIRST_TOKEN,
        Stage.INTER_TOKEN,
        Stage.TIME_PER_OUTPUT_TOKEN,
        Stage.REQUEST,
        Stage.QUEUE,
        Stage.PREFILL,
    }
    assert reading.parse_warnings == {}


def test_live_token_counters_agree_with_those_at_the_end_once_all_requests_have_ended():
    reading = interpret(page(AFTER))
    finished = 9083 + 20938  # generation_tokens_total of both kinds of requests
    health_check = 1  # answered with one token, and no request in the tokenizer's counters
    assert reading.ranks[""][Quantity.GENERATION_TOKENS] == finished + health_check
    assert reading.ranks[""][Quantity.PROMPT_TOKENS] == 25670 + 66086 + health_check


def test_streamed_and_other_requests_are_summed():
    reading = interpret(page(LOAD))
    ttft = reading.histograms[Stage.TIME_TO_FIRST_TOKEN][""]
    assert ttft.counts[-1] == 82 + 226
    assert ttft.sum == pytest.approx(44.964282656269006 + 131.6325178749994)
    assert reading.finished == {"": {"success": 81.0 + 219.0}}


def test_only_answers_of_inference_paths_count_and_by_class():
    assert interpret(page(LOAD)).responses == {"2xx": 1.0 + 89.0 + 195.0, "4xx": 14.0}


def test_the_hit_rate_of_the_last_batch_is_never_used():
    body = b'sglang:cache_hit_rate{model_name="m"} 0.9\nsglang:num_running_reqs{model_name="m"} 1\n'
    assert interpret(body).ranks == {"": {Quantity.REQUESTS_RUNNING: 1.0}}


def test_an_old_version_gives_its_hits_and_tokens_from_what_it_counts_at_the_end():
    reading = interpret(page(OLD))
    ranks = reading.ranks[""]
    assert ranks[Quantity.GENERATION_TOKENS] == 46161.0
    assert ranks[Quantity.PREFIX_CACHE_HITS] / ranks[Quantity.PREFIX_CACHE_QUERIES] == 67364.0 / 275248.0
    assert Quantity.KV_CACHE_CAPACITY not in ranks
    assert reading.frozen_after is None  # its counters stand still while long requests run


def test_a_colon_and_an_underscore_are_the_same_name():
    body = page(AFTER)
    changed = body.replace(b"sglang:", b"sglang_")
    assert recognise(changed) is SGLANG
    assert interpret(changed).ranks == interpret(body).ranks
    assert interpret(changed).name_style == "sglang_"


def test_both_spellings_on_one_page_are_counted_once_and_said():
    body = page(AFTER)
    both = interpret(body + body.replace(b"sglang:", b"sglang_"))
    assert both.ranks == interpret(body).ranks
    assert both.parse_warnings["other_spelling"] > 50


def scheduler(name: str, value: float, **labels: str) -> str:
    pairs = {"model_name": "m", "engine_type": "unified", "pp_rank": "0", "tp_rank": "0", **labels}
    return f"sglang:{name}{{" + ",".join(f'{key}="{text}"' for key, text in pairs.items()) + f"}} {value}\n"


def test_ranks_in_lockstep_that_all_report_do_not_count_twice():
    body = "".join(
        scheduler("num_running_reqs", 5, tp_rank=str(tp), pp_rank=str(pp)) for tp in (1, 0, 3, 2) for pp in (0, 1)
    )
    assert interpret(body.encode()).ranks == {"": {Quantity.REQUESTS_RUNNING: 5.0}}


def test_data_parallel_ranks_stay_apart_although_their_lowest_tensor_rank_is_not_0():
    body = scheduler("num_running_reqs", 5, dp_rank="0", tp_rank="0")
    body += scheduler("num_running_reqs", 5, dp_rank="0", tp_rank="1")
    body += scheduler("num_running_reqs", 9, dp_rank="1", tp_rank="2")
    body += scheduler("num_running_reqs", 9, dp_rank="1", tp_rank="3")
    body += 'sglang:prompt_tokens_total{model_name="m"} 70\n'
    ranks = interpret(body.encode()).ranks
    assert {rank: dict(values) for rank, values in ranks.items()} == {
        "0": {Quantity.REQUESTS_RUNNING: 5.0},
        "1": {Quantity.REQUESTS_RUNNING: 9.0},
        "": {Quantity.PROMPT_TOKENS: 70.0, Quantity.PREFIX_CACHE_QUERIES: 70.0},
    }


def test_a_members_number_of_five_thousand_digits_costs_nothing():
    body = scheduler("num_running_reqs", 5, tp_rank="9" * 5_000)  # more than Python turns into a number
    assert interpret(body.encode()).ranks == {"": {Quantity.REQUESTS_RUNNING: 5.0}}


def test_histograms_of_members_in_lockstep_count_once_and_of_ranks_apart():
    buckets = (("0.1", 3.0), ("+Inf", 4.0))
    body = "".join(
        histogram("sglang:queue_time_seconds", f'model_name="m",dp_rank="{dp}",tp_rank="{tp}"', *buckets)
        for dp, tp in ((0, 0), (0, 1), (1, 2), (1, 3))
    )
    queue = interpret(body.encode()).histograms[Stage.QUEUE]
    assert {rank: histogram.counts for rank, histogram in queue.items()} == {"0": (3.0, 4.0), "1": (3.0, 4.0)}


def test_the_series_without_a_priority_is_the_total_of_the_others():
    body = scheduler("num_queue_reqs", 7, priority="")
    body += scheduler("num_queue_reqs", 4, priority="1") + scheduler("num_queue_reqs", 3, priority="9")
    assert interpret(body.encode()).ranks == {"": {Quantity.REQUESTS_WAITING: 7.0}}


def test_cached_tokens_are_summed_over_their_sources():
    body = "".join(
        f'sglang:cached_tokens_total{{cache_source="{source}",model_name="m"}} {count}\n'
        for source, count in (("device", 10), ("host", 5), ("storage", 1))
    )
    body += 'sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 40\n'
    ranks = interpret(body.encode()).ranks[""]
    assert ranks[Quantity.PREFIX_CACHE_HITS] == 16.0
    assert ranks[Quantity.PREFIX_CACHE_QUERIES] == 40.0


def test_a_router_that_shows_all_its_workers_shows_them_as_ranks():
    body = "".join(
        f'sglang_num_running_reqs{{model_name="m",worker_addr="http://10.0.0.{n}:30000",dp_rank="0"}} {n}\n'
        for n in (1, 2)
    )
    assert {rank: values[Quantity.REQUESTS_RUNNING] for rank, values in interpret(body.encode()).ranks.items()} == {
        "http://10.0.0.1:30000/0": 1.0,
        "http://10.0.0.2:30000/0": 2.0,
    }


def test_a_gauge_that_lags_behind_finished_work_is_not_called_frozen_at_once():
    clock = Clock()
    idle = page("sglang-0.5.23-real-cpu-idle")
    poller = make_poller([idle, page(LOAD)], clock)
    polled(poller, clock, 2, step=5.0)
    assert polled(poller, clock, 8, step=5.0).frozen is False  # 40 seconds without progress
    assert polled(poller, clock, 8, step=5.0).frozen is True


def test_a_server_without_metrics_is_reported_with_the_option_it_needs():
    with pytest.raises(PageError, match="--enable-metrics"):
        interpret(b"up 1\n", SGLANG)


def test_figures_between_two_pages_of_a_real_server_are_those_of_the_time_between():
    clock = Clock()
    poller = make_poller([page("sglang-0.5.23-real-cpu-idle"), page(AFTER)], clock)
    figures = polled(poller, clock, 2, step=30.0).windows["1m"]
    assert figures.hit_ratio == pytest.approx(43304 / (91757 - 19))
    assert figures.error_ratio == 0.0
    assert figures.request_rate == pytest.approx((712 - 1) / 30)


def test_a_server_that_only_prefills_or_only_decodes_loses_no_token_to_a_counter_that_says_nothing_of_them():
    def server(modes):
        lines = [scheduler("realtime_tokens_total", number, mode=mode) for mode, number in modes.items()]
        totals = {"prompt_tokens_total": 500, "generation_tokens_total": 70, "cached_tokens_total": 120}
        lines += [f'sglang:{name}{{model_name="m"}} {number}\n' for name, number in totals.items()]
        return interpret("".join(lines).encode()).ranks[""]

    decode, prefill = server({"decode": 90}), server({"prefill_compute": 300, "prefill_cache": 200})
    assert (decode[Quantity.PROMPT_TOKENS], decode[Quantity.GENERATION_TOKENS]) == (500.0, 90.0)
    assert (decode[Quantity.PREFIX_CACHE_QUERIES], decode[Quantity.PREFIX_CACHE_HITS]) == (500.0, 120.0)
    assert (prefill[Quantity.PROMPT_TOKENS], prefill[Quantity.GENERATION_TOKENS]) == (500.0, 70.0)
    assert (prefill[Quantity.PREFIX_CACHE_QUERIES], prefill[Quantity.PREFIX_CACHE_HITS]) == (500.0, 200.0)


def test_bytes_of_kv_transfers_are_the_parts_of_all_tensor_parallel_ranks():
    body = "".join(
        f'sglang:kv_transfer_total_mb_sum{{model_name="m",dp_rank="0",tp_rank="{rank}",pp_rank="0"}} 3\n'
        f'sglang:kv_transfer_latency_ms_count{{model_name="m",dp_rank="0",tp_rank="{rank}",pp_rank="0"}} 5\n'
        for rank in range(4)
    )
    (rank,) = interpret(body.encode(), SGLANG).ranks.values()
    assert (rank[Quantity.KV_TRANSFER_BYTES], rank[Quantity.KV_TRANSFERS]) == (4 * 3 * 2.0**20, 5.0)
