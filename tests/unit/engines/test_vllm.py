"""The vLLM table on real and generated pages of many versions."""

from __future__ import annotations

import pathlib

import pytest

from exporter.engines.detect import recognise
from exporter.engines.engine import status_class
from exporter.engines.interpreter import EngineInterpreter
from exporter.engines.parse.text import PageReader
from exporter.engines.tables import ENGINES, by_kind
from exporter.engines.tables.vllm import VLLM
from exporter.errors import PageError
from exporter.model import Quantity, Stage

CAPTURES = pathlib.Path(__file__).parents[2] / "captures"


def interpret(page: bytes, engine=VLLM):
    interpreter = EngineInterpreter(engine)
    return interpreter.read(PageReader(interpreter.wanted).read(page), at=1.0)


def capture(name: str):
    return interpret((CAPTURES / name).read_bytes())


def test_every_engine_has_a_capture_that_it_recognises():
    recognised = {path.name: recognise(path.read_bytes()) for path in CAPTURES.glob("*.prom")}
    unknown = [name for name, engine in recognised.items() if engine is None]
    assert not unknown, f"no engine of ENGINES (exporter/engines/tables) recognises {', '.join(sorted(unknown))}"
    assert {engine.kind for engine in recognised.values()} == {engine.kind for engine in ENGINES}


def test_a_page_of_0_32_gives_every_stage_and_quantity_of_its_only_rank():
    reading = capture("vllm-0.32.0-real-cpu-after.prom")
    assert reading.model == "tiny-llama"
    assert dict(reading.ranks["0"]) == {
        Quantity.REQUESTS_RUNNING: 0.0,
        Quantity.REQUESTS_WAITING: 0.0,
        Quantity.KV_CACHE_USAGE: 0.0,
        Quantity.KV_CACHE_CAPACITY: 2048.0,
        Quantity.PROMPT_TOKENS: 243226.0,
        Quantity.GENERATION_TOKENS: 86413.0,
        Quantity.PREEMPTIONS: 0.0,
        Quantity.PREFIX_CACHE_QUERIES: 243226.0,
        Quantity.PREFIX_CACHE_HITS: 80288.0,
        Quantity.EXTERNAL_CACHE_QUERIES: 0.0,
        Quantity.EXTERNAL_CACHE_HITS: 0.0,
    }
    assert set(reading.histograms) == set(Stage) - {Stage.INFERENCE, Stage.BATCH_PREFILL, Stage.BATCH_DECODE}
    assert reading.finished["0"] == {"success": 1897.0, "cancelled": 0.0, "error": 0.0}
    reasons = {"stop": 30.0, "length": 1867.0, "abort": 0.0, "error": 0.0, "repetition": 0.0}
    assert reading.finish_reasons["0"] == reasons
    assert reading.finished[""] == {"rejected": 0.0}
    assert reading.responses == {"2xx": 1944.0, "4xx": 94.0}
    assert reading.process_start == 1795206326.09
    assert reading.created == {"0": pytest.approx(1795206360.7878008)}
    ttft = reading.histograms[Stage.TIME_TO_FIRST_TOKEN]["0"]
    assert len(ttft.counts) == len(ttft.bounds) + 1 == 23
    assert ttft.counts[-1] == max(ttft.counts)


def test_two_ranks_behind_two_servers_stay_apart_and_share_the_blocks():
    reading = capture("vllm-0.32.0-dp2-real-cpu-load.prom")
    assert {rank: values[Quantity.REQUESTS_RUNNING] for rank, values in reading.ranks.items()} == {"0": 7.0, "1": 8.0}
    # num_gpu_blocks says 128 beside each rank, the sum of both; each really has 64 blocks of 32 tokens.
    assert [values[Quantity.KV_CACHE_CAPACITY] for values in reading.ranks.values()] == [2048.0, 2048.0]
    assert reading.process_start is None


def test_idle_servers_without_gauge_samples_say_nothing_about_load():
    reading = capture("vllm-0.32.0-dp2-real-cpu-idle.prom")
    assert Quantity.REQUESTS_RUNNING not in reading.ranks["0"]
    assert reading.ranks["0"][Quantity.PROMPT_TOKENS] == 0.0


@pytest.mark.parametrize(
    "name", ["vllm-0.8.5.post2-real-cpu-fresh.prom", "vllm-0.6.6.post1-generated-v0-mp-fresh.prom"]
)
def test_a_nearly_empty_page_before_the_first_request_is_a_reading_and_no_error(name):
    reading = capture(name)
    assert list(reading.ranks) == [""]
    assert list(reading.ranks[""]) == [Quantity.KV_CACHE_CAPACITY]
    assert reading.histograms == {}
    assert reading.parse_warnings == {}


def test_old_and_new_names_on_one_page_are_counted_once():
    reading = capture("vllm-0.9.2-generated-v1-t2.prom")
    page = (CAPTURES / "vllm-0.9.2-generated-v1-t2.prom").read_text()
    assert "vllm:gpu_prefix_cache_queries_total" in page
    assert "vllm:prefix_cache_queries_total" in page
    assert reading.ranks["0"][Quantity.PREFIX_CACHE_QUERIES] == reading.ranks["0"][Quantity.PROMPT_TOKENS] == 408780.0


def test_a_lifetime_hit_ratio_of_minus_one_is_missing_and_not_odd():
    reading = capture("vllm-0.6.6.post1-generated-v0-mp-noprefixcache-t2.prom")
    assert Quantity.LIFETIME_HIT_RATIO not in reading.ranks[""]
    assert reading.parse_warnings == {}


def test_v0_names_of_0_4_3_are_understood():
    reading = capture("vllm-0.4.3-generated-v0-t2.prom")
    assert reading.ranks[""][Quantity.REQUESTS_SWAPPED] == 0.0
    assert reading.ranks[""][Quantity.KV_CACHE_USAGE] == pytest.approx(0.9182, abs=1e-4)
    latencies = {Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN, Stage.REQUEST}
    assert set(reading.histograms) == latencies | {Stage.PROMPT_LENGTH, Stage.GENERATION_LENGTH}


@pytest.mark.parametrize("relay", ["ray_vllm:", "ray_vllm_", "vllm_"])
def test_names_that_a_relay_changed_are_the_same_metrics(relay):
    page = (CAPTURES / "vllm-0.32.0-real-cpu-after.prom").read_bytes()
    changed = page.replace(b"vllm:", relay.encode())
    assert recognise(changed) is VLLM
    assert interpret(changed).ranks == interpret(page).ranks


PAGE = b"""\
vllm:num_requests_running{engine="0",model_name="m"} %s
vllm:kv_cache_usage_perc{engine="0",model_name="m"} %s
vllm:generation_tokens_total{engine="0",model_name="m"} 5
"""


@pytest.mark.parametrize(("running", "usage"), [(b"NaN", b"0.5"), (b"+Inf", b"0.5"), (b"-7", b"0.5"), (b"1", b"1.2")])
def test_a_number_that_cannot_be_is_dropped_and_counted(running, usage):
    reading = interpret(PAGE % (running, usage))
    assert reading.parse_warnings == {"bad_number": 1}
    assert len(reading.ranks["0"]) == 2


def bucket_page(*buckets: tuple[str, float]) -> bytes:
    name = "vllm:time_to_first_token_seconds"
    lines = [f'{name}_bucket{{engine="0",le="{le}",model_name="m"}} {count}' for le, count in buckets]
    return "\n".join([*lines, f'{name}_sum{{engine="0",model_name="m"}} 3', ""]).encode()


def test_buckets_that_fall_are_raised_to_their_running_maximum_and_counted():
    reading = interpret(bucket_page(("0.1", 9), ("1.0", 4), ("+Inf", 12)))
    assert reading.histograms[Stage.TIME_TO_FIRST_TOKEN]["0"].counts == (9.0, 9.0, 12.0)
    assert reading.parse_warnings == {"falling_buckets": 1}


def test_buckets_in_any_order_are_sorted_by_their_bounds():
    reading = interpret(bucket_page(("+Inf", 12), ("1.0", 9), ("0.1", 4)))
    histogram = reading.histograms[Stage.TIME_TO_FIRST_TOKEN]["0"]
    assert (histogram.bounds, histogram.counts, histogram.sum) == ((0.1, 1.0), (4.0, 9.0, 12.0), 3.0)


@pytest.mark.parametrize(
    ("buckets", "parse_warnings"),
    [
        ([("0.1", 1), ("1.0", 4)], {"no_inf_bucket": 1}),
        ([("+Inf", 4)], {"no_inf_bucket": 1}),
        ([("0.1", float("nan")), ("+Inf", 4)], {"bad_number": 1}),
        ([("0.1", 1), ("+Inf", float("inf"))], {"bad_number": 1}),
        ([("0.1", 1.5), ("+Inf", 4)], {"bad_number": 1}),
        ([("0.1", -1), ("+Inf", 4)], {"bad_number": 1}),
        ([("0.1", 1), ("+Inf", 2.0**63)], {"bad_number": 1}),
        ([("abc", 1), ("0.1", 1), ("+Inf", 1)], {"bad_bucket": 1}),
    ],
)
def test_a_histogram_that_cannot_be_used_is_absent_or_mended_and_counted(buckets, parse_warnings):
    reading = interpret(bucket_page(*buckets))
    assert reading.parse_warnings == parse_warnings
    assert bool(reading.histograms) == ("bad_bucket" in parse_warnings)


def test_histograms_of_one_rank_are_summed_and_without_one_of_their_sums_there_is_none():
    twice = b"".join(
        bucket_page(("0.1", count), ("+Inf", 9)).replace(b'engine="0"', b'engine="0",lora="%d"' % number)
        for number, count in enumerate((2, 3))
    )
    whole = interpret(twice).histograms[Stage.TIME_TO_FIRST_TOKEN]["0"]
    assert (whole.counts, whole.sum) == ((5.0, 18.0), 6.0)
    less = interpret(twice.replace(b'_sum{engine="0",lora="1"', b'_max{engine="0",lora="1"'))
    assert less.histograms[Stage.TIME_TO_FIRST_TOKEN]["0"].sum is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [("200", "2xx"), ("499", "4xx"), ("2xx", "2xx"), ("", ""), ("20", "20"), ("timeout", "timeout")],
)
def test_a_status_has_its_class_and_what_is_none_stays(code, expected):
    assert status_class(code) == expected


def test_more_ranks_than_the_cap_are_left_out():
    rows = b"".join(b'vllm:num_requests_running{engine="%d",model_name="m"} 1\n' % i for i in range(5_000))
    reading = interpret(rows)
    assert len(reading.ranks) == 100
    assert reading.parse_warnings == {"too_many_label_sets": 4_900}


def test_a_hostile_model_name_is_bounded_and_printable():
    reading = interpret(b'vllm:num_requests_running{engine="0",model_name="x\x00y' + b"z" * 5_000 + b'"} 1\n')
    assert len(reading.model) == 256
    assert reading.model.startswith("x\ufffdyzz")


def test_a_page_of_something_else_says_what_to_look_at():
    with pytest.raises(PageError) as caught:
        interpret(b"http_requests_total 5\n")
    assert caught.value.reason == "no_engine_metrics"
    assert "--disable-log-stats" in str(caught.value)
    assert recognise(b'# HELP x vllm:\nup{job="vllm:"} 1\n') is None
    assert by_kind("no such kind") is None


def test_unknown_names_of_a_future_version_are_ignored():
    page = (CAPTURES / "vllm-0.32.0-real-cpu-after.prom").read_bytes()
    future = page + b'vllm:a_new_family_total{engine="0",model_name="tiny-llama",why="x"} 3\n'
    assert interpret(future).ranks == interpret(page).ranks
    assert interpret(future).parse_warnings == {}


def test_a_histogram_that_did_not_change_is_the_very_same_object_on_the_next_reading():
    page = (CAPTURES / "vllm-0.32.0-real-cpu-after.prom").read_bytes()
    interpreter = EngineInterpreter(VLLM)
    reader = PageReader(interpreter.wanted)
    first = interpreter.read(reader.read(page), at=1.0).histograms
    name = b"vllm:e2e_request_latency_seconds_sum"
    (line,) = [line for line in page.split(b"\n") if line.startswith(name)]
    changed = page.replace(line, line.rpartition(b" ")[0] + b" 12345.5")
    second = interpreter.read(reader.read(changed), at=2.0).histograms
    assert second[Stage.REQUEST]["0"].sum == 12345.5
    assert second[Stage.TIME_TO_FIRST_TOKEN]["0"] is first[Stage.TIME_TO_FIRST_TOKEN]["0"]


# ── Buckets that change ─────────────────────────────────────────────────────────────────────────────────────────


def buckets(*edges):
    labels = 'engine="0",model_name="m"'
    rows = [f'vllm:time_to_first_token_seconds_bucket{{le="{edge}",{labels}}} 1' for edge in (*edges, "+Inf")]
    rows += [f"vllm:num_requests_running{{{labels}}} 1", f"vllm:time_to_first_token_seconds_sum{{{labels}}} 1"]
    return ("\n".join(rows) + "\n").encode()


def test_bounds_that_change_again_within_a_minute_are_not_read_until_they_have_stayed_the_same_for_one():
    interpreter = EngineInterpreter(VLLM)
    reader = PageReader(interpreter.wanted)

    def read(at, *edges):
        return interpreter.read(reader.read(buckets(*edges)), at=at)

    assert Stage.TIME_TO_FIRST_TOKEN in read(0.0, 1, 2).histograms
    assert Stage.TIME_TO_FIRST_TOKEN in read(5.0, 1, 3).histograms, "an engine may restart with other buckets"
    for at in range(10, 100, 5):
        refused = read(float(at), 1, 100 + at)
        assert not refused.histograms
        assert refused.missing["time_to_first_token"] == "unstable_buckets"
        assert refused.parse_warnings == {"unstable_buckets": 1}
        assert refused.ranks["0"][Quantity.REQUESTS_RUNNING] == 1.0, "everything else is read as ever"
    assert not read(150.0, 1, 195).histograms
    assert Stage.TIME_TO_FIRST_TOKEN in read(156.0, 1, 195).histograms


def test_a_histogram_with_hundreds_of_bounds_is_not_read():
    reading = interpret(buckets(*range(1, 130)))
    assert not reading.histograms
    assert reading.missing["time_to_first_token"] == "too_many_buckets"
    assert interpret(buckets(*range(1, 129))).histograms
