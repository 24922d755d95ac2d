"""Rows E31, E35 to E38, P6, P12, P14, P18 and P19 of the fault matrix: what stands on our page as time goes on."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.bench import soak
from tests.support.builders import Clock
from tests.support.fault_matrix import ROOT, Harness, bare_environment
from tests.support.harness_engines import Engine, tokens
from tests.support.living_engines import living_page
from tests.support.page_figures import HEALTH

# ---------------------------------------------------------------------- E31: cardinality


EXPLOSION = """
import os
import sys
from tests.support.fault_matrix import Harness, resident_of
from tests.support.living_engines import living_page
name, series, polls = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
template = b"".join(b'%s{engine="0",model_name="m",a="@@@@",b="%d"} 1\\n' % (name, i) for i in range(series))
count = 0
def bad():
    global count
    count += 1
    return living_page(count) + template.replace(b"@@@@", b"%d" % count)
harness = Harness({"bad": bad, "good": lambda: living_page(count)})
for number in range(polls):
    harness.turn(publish=number % 10 == 0)
    if number in (polls // 5, polls - 1):
        page = harness.page()
        print(resident_of(os.getpid()), len(page.rows), page.value("llm_up", replica="bad"),
              page.reason("bad") or "-", page.value("llm_generation_tokens_total", replica="good"))
"""


@pytest.mark.slow
def test_e31_new_series_on_every_page_fill_neither_memory_nor_our_page():
    """50,000 series refuse the page, and so do 2,000 that are new each time.  Side by side, in fresh processes."""
    cases = {
        "too_many_lines": ("vllm:unknown_total", 50_000, 100),
        "series_churn": ("vllm:num_requests_waiting", 2_000, 50),
    }
    running = {
        reason: subprocess.Popen(
            [sys.executable, "-c", EXPLOSION, *map(str, case)],
            stdout=subprocess.PIPE, text=True, env=bare_environment(), cwd=ROOT,
        )
        for reason, case in cases.items()
    }  # fmt: skip
    output_by_reason = {reason: process.communicate(timeout=150)[0] for reason, process in running.items()}
    assert [process.returncode for process in running.values()] == [0, 0]
    for reason, text in output_by_reason.items():
        (early, early_rows, *_), (late, late_rows, _, why, good) = [line.split() for line in text.splitlines()]
        assert why == reason
        assert float(late) - float(early) <= 16.0
        assert abs(int(late_rows) - int(early_rows)) <= 2
        assert int(late_rows) < 500
        assert float(good) > 0


# ---------------------------------------------------------------------- E35 to E38: over time


def test_e35_a_flapping_engine_fills_windows_with_its_good_pages_only():
    engine = Engine()

    def flapping():
        page = engine()
        return page if engine.seconds % 2 else None

    harness = Harness({"bad": flapping, "good": Engine()})
    rates, ups = [], []
    for _ in range(20):
        harness.turn()
        page = harness.page()
        ups.append(page.value("llm_up", replica="bad"))
        rates += page.all("llm_generation_token_rate", replica="bad")
        if not ups[-1]:
            assert page.families_of("bad") <= HEALTH
    assert ups == [1.0, 0.0] * 10
    assert rates == [pytest.approx(1000.0)] * 9
    assert harness.checked().value("shardwatch_source_failures_total", source="engine:bad", reason="refused") == 10.0


def test_e36_an_engine_that_restarts_never_shows_a_negative_or_doubled_rate():
    engine = Engine()

    def restarting():
        if engine.seconds == 7:
            engine.seconds = 0
        return engine()

    harness = Harness({"bad": restarting}, series="full")
    rates = []
    for _ in range(40):
        harness.turn()
        rates += harness.page().all("llm_generation_token_rate", replica="bad")
    assert len(rates) == 39
    assert all(0.0 <= rate <= 2000.0 for rate in rates)
    assert rates[-1] == pytest.approx(1000.0, rel=0.2)
    assert harness.checked().value("llm_restarts_total", replica="bad") == 5.0


def test_e37_bucket_edges_that_change_start_the_window_of_their_stage_anew():
    engine = Engine()
    harness = Harness({"bad": engine})
    for _ in range(10):
        harness.turn()
    observed = harness.page().value(
        "llm_latency_observations", replica="bad", stage="time_to_first_token", window="1m"
    )
    assert observed == 90.0
    engine.settings = {"edges": (0.5, 5.0)}
    engine.seconds = 0
    harness.turn()
    page = harness.checked()
    assert page.all("llm_latency_quantile_seconds", replica="bad", stage="time_to_first_token") == []
    edges = page.labels("llm_time_to_first_token_seconds_bucket", "le", replica="bad")
    assert edges == {"0.5", "5.0", "+Inf"}
    for _ in range(5):
        harness.turn()
    page = harness.checked()
    assert page.value("llm_latency_observations", replica="bad", stage="time_to_first_token", window="1m") == 50.0
    quantiles = page.all("llm_latency_quantile_seconds", replica="bad", stage="time_to_first_token")
    assert quantiles and all(0.0 <= number <= 5.0 for number in quantiles)


def test_e38_what_an_upgrade_renames_away_is_absent_and_not_zero():
    engine = Engine()
    harness = Harness({"bad": engine, "good": Engine()})
    for _ in range(5):
        harness.turn()
    assert harness.page().value("llm_kv_cache_hit_ratio", replica="bad") == pytest.approx(0.6)
    engine.change = lambda page: page.replace(b"prefix_cache", b"apc").replace(b'engine="0",', b"")
    harness.turn()
    page = harness.checked()
    for name in ("llm_prefix_cache_queries_total", "llm_prefix_cache_hits_total", "llm_kv_cache_hit_ratio"):
        assert page.all(name, replica="bad") == []
        assert page.all(name, replica="good") != []
    assert tokens(page) == [6000.0]
    assert page.labels("llm_requests_running", "rank", replica="bad") == {""}
    engine.change = lambda page: page.replace(b"vllm:", b"vllm2:")
    harness.turn()
    page = harness.checked()
    assert page.reason("bad") == "no_engine_metrics"
    assert page.families_of("bad") <= HEALTH
    assert page.value("llm_up", replica="bad") == 0.0


# ---------------------------------------------------------------------- P6: clocks


def test_p6_a_wall_clock_that_jumps_moves_time_stamps_only():
    jumps = {5: 3600.0, 9: -7200.0, 12: 1.0, 15: 86_400.0 * 365}
    steady = Harness({"a": Engine()})
    offset = [0.0]
    clock = Clock()
    jumping = Harness({"a": Engine()}, clock=clock, unix_now=lambda: 1.7e9 + clock.now + offset[0])
    for second in range(20):
        offset[0] += jumps.get(second, 0.0)
        steady.turn()
        jumping.turn()
        steady_rows, other = steady.page().rows, jumping.checked().rows
        assert steady_rows.keys() == other.keys()
        differing = {
            key[0]
            for key in steady_rows
            if steady_rows[key] != other[key] and not key[0].startswith(("process_", "python_"))
        }
        allowed = {
            "shardwatch_source_last_success_timestamp_seconds",
            "shardwatch_config_last_reload_success_timestamp_seconds",
        }
        assert differing <= allowed
        if second >= 5:
            assert "shardwatch_source_last_success_timestamp_seconds" in differing
    assert jumping.page().value("llm_generation_token_rate", replica="a") == pytest.approx(1000.0)
    assert jumping.page().value("llm_data_age_seconds", replica="a") == 0.0


# ---------------------------------------------------------------------- P14: a loop that is dead


def test_p14_figures_of_a_loop_that_has_died_are_withdrawn():
    """Nothing is under way and nothing comes any more; an old reading must not be shown as if it were new."""
    harness = Harness({"dead": Engine(), "good": Engine()})
    harness.turn()
    assert harness.page().value("llm_up", replica="dead") == 1.0
    dead, good = harness.app.pollers.replicas.values()
    dead.poll = lambda: None
    for _ in range(20):
        harness.turn()
    page = harness.checked()
    assert page.reason("dead") == "hung"
    assert page.families_of("dead") <= HEALTH
    assert page.value("llm_data_age_seconds", replica="dead") == 20.0
    assert page.value("llm_up", replica="good") == 1.0


# ---------------------------------------------------------------------- P12: the log


@pytest.mark.parametrize(
    "trouble", ["refused and back", "one reason after the other", "restarts on every page", "bad lines on every page"]
)
def test_p12_sixteen_engines_in_trouble_for_a_minute_log_less_than_a_line_a_second(trouble, caplog):
    def engine(number):
        clock = Engine()

        def poll():
            page = clock()
            turn = clock.seconds + number
            if trouble == "refused and back":
                return page if turn % 2 else None
            if trouble == "one reason after the other":
                return (None, b"<html>", b"x 1\n", page)[turn % 4]
            if trouble == "restarts on every page":
                return living_page(1_000_000.0 - clock.seconds)
            return page + b"nonsense\n" * 50

        return poll

    harness = Harness({f"e{number}": engine(number) for number in range(16)})
    with caplog.at_level(logging.INFO):
        for _ in range(240):
            harness.turn(0.25, publish=False)
    assert harness.clock.now == pytest.approx(1060.0)
    assert len(caplog.records) <= 60
    harness.app.publisher.publish_once()
    harness.checked()


# ---------------------------------------------------------------------- P18: for long


@pytest.mark.slow
def test_p18_a_simulated_soak_leaves_no_thread_descriptor_process_or_error():
    """Two minutes of what ``make soak`` does for hours; memory is its business."""
    samples = []
    errors = soak.simulate(1 / 30, lambda polls, held: samples.append((polls, held)))
    assert [polls for polls, _ in samples] == [96 * tenth for tenth in range(1, 11)]
    _, first = samples[1]
    without_memory = [(polls, replace(held, resident=first.resident)) for polls, held in samples]
    assert soak.breaches(without_memory, errors) == []


def test_p18_whatever_grows_fails_the_soak():
    calm = soak.Usage(resident=50.0, descriptors=9, threads=3, processes=2)
    samples = [(0.0, calm), (1e6, calm), (3e6, calm)]
    assert soak.breaches(samples, []) == []
    assert soak.breaches(samples, ["a loop died"]) == ["an error was logged: a loop died"]
    for leak, word in (
        ({"resident": 52.6}, "2.60 MiB, 2.50 are"),
        ({"threads": 4}, "threads"),
        ({"descriptors": 10}, "9"),
    ):
        (found,) = soak.breaches([*samples[:2], (3e6, replace(calm, **leak))], [])
        assert word in found


# ---------------------------------------------------------------------- P19: the same page


SAME_PAGE = """
import sys, time
from tests.support.fault_matrix import Harness
from tests.support.harness_engines import CAPTURES
engines = {path.stem.replace(".", "-"): path.read_bytes for path in CAPTURES}
harness = Harness(engines, kind="auto", series="full", unix_now=lambda: 1.7e9)
harness.turn(); harness.turn(30.0)
time.tzset()
for openmetrics in (False, True):
    lines = harness.bytes(openmetrics=openmetrics).split(b"\\n")
    sys.stdout.buffer.write(b"\\n".join(line for line in lines if not line.startswith((b"process_", b"python_"))))
"""


@pytest.mark.slow
def test_p19_the_page_is_the_same_to_the_byte_for_any_hash_seed_locale_and_time_zone():
    environments = [
        {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"},
        {"PYTHONHASHSEED": "1", "LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Kathmandu"},
        {"PYTHONHASHSEED": "31337", "LC_ALL": "tr_TR.UTF-8", "LANG": "ar_EG.UTF-8", "TZ": "America/St_Johns"},
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SAME_PAGE],
            stdout=subprocess.PIPE,
            env=bare_environment(**each),
            cwd=ROOT,
        )
        for each in environments
    ]
    pages = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert pages[0].count(b"\n") > 2000
    assert pages[1] == pages[0]
    assert pages[2] == pages[0]
