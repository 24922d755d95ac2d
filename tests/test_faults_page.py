"""Rows E22 to E38, P6, P12, P19 and P20 of the fault matrix: what stands on our page, whatever the engines say."""

from __future__ import annotations

import logging
import pathlib
import random
import subprocess
import sys

import pytest
from builders import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.collector import MAX_SERIES
from tests.fault_matrix import (
    HEALTH,
    ROOT,
    Figures,
    Rig,
    bare_environment,
    living_page,
    promtool_is_content,
    strictly,
)

CAPTURES = sorted((pathlib.Path(__file__).parent / "captures").glob("*.prom"))
LABELS = 'engine="0",model_name="m"'


class Engine:
    """Counts its seconds by polls; ``change`` turns its good page into what the engine says instead."""

    def __init__(self, change=lambda page: page, **settings):
        self.seconds = 0
        self.change = change
        self.settings = settings

    def __call__(self):
        self.seconds += 1
        return self.change(living_page(self.seconds, **self.settings))


def beside_a_healthy_one(change, turns=3, **more):
    """Run a changed engine beside a good one; the good one's figures must be what they always are."""
    rig = Rig({"bad": Engine(change), "good": Engine()}, **more)
    for _ in range(turns):
        rig.turn()
    page = rig.checked()
    assert page.one("llm_up", replica="good") == 1.0
    assert page.one("llm_generation_tokens_total", replica="good") == 1000.0 * turns
    assert page.one("llm_generation_token_rate", replica="good") == pytest.approx(1000.0)
    assert page.one("shardwatch_dropped_series") == 0.0
    return page


def appended(*lines):
    return lambda page: page + b"".join(line + b"\n" for line in lines)


def odd(page, reason):
    return sum(page.all("shardwatch_source_oddities_total", source="engine:bad", reason=reason))


def tokens(page, engine="bad"):
    return page.all("llm_generation_tokens_total", replica=engine)


# ---------------------------------------------------------------------- E22 to E34: one page


def test_e22_a_page_cut_in_mid_line_loses_its_last_lines_and_says_so():
    page = beside_a_healthy_one(lambda page: page[: page.index(b"prefix_cache_queries_total") + 10])
    assert tokens(page) == [3000.0]
    assert odd(page, "unreadable") == 3.0
    assert page.all("llm_prefix_cache_queries_total", replica="bad") == []
    assert page.all("llm_time_to_first_token_seconds_count", replica="bad") == []
    assert page.all("llm_generation_token_rate", replica="bad") == []  # half a page is no base of a window


@pytest.mark.parametrize("change", [lambda page: page[:-1], lambda page: page.replace(b"\n", b"\r\n")])
def test_e22_a_missing_last_newline_and_crlf_are_accepted(change):
    page = beside_a_healthy_one(change)
    assert tokens(page) == [3000.0]
    assert page.one("llm_time_to_first_token_seconds_count", replica="bad") == 30.0
    assert page.all("shardwatch_source_oddities_total") == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"this is no sample", "unreadable"),
        (b'vllm:num_requests_swapped{engine="0"} twelve', "bad_value"),
        (b'vllm:num_requests_swapped{engine="0" 12', "unreadable"),
    ],
)
def test_e23_one_unreadable_line_costs_only_itself(line, reason):
    page = beside_a_healthy_one(appended(line), series="full")
    assert tokens(page) == [3000.0]
    assert odd(page, reason) == 3.0
    assert page.all("llm_requests_swapped", replica="bad") == []


def test_e24_invalid_utf8_is_skipped_and_a_nul_never_reaches_our_page():
    page = beside_a_healthy_one(
        appended(
            b'vllm:num_requests_swapped{engine="\xff\xfe"} 1',
            b'vllm:num_requests_running{engine="\x00",model_name="m"} 7',
        ),
        series="full",
    )
    assert odd(page, "unreadable") == 3.0
    assert page.all("llm_requests_swapped", replica="bad") == []
    assert "\x00" not in page.text
    assert page.one("llm_requests_running", replica="bad", rank="\ufffd") == 7.0
    assert tokens(page) and page.text.encode("utf-8")


@pytest.mark.parametrize("number", [b"NaN", b"+Inf", b"-Inf", b"-5"])
def test_e25_numbers_that_cannot_be_are_absent_and_counted(number):
    def change(page):
        for name in (b"generation_tokens_total", b"num_requests_running", b"kv_cache_usage_perc"):
            page = page.replace(b"vllm:" + name + b"{", b"x{")
            page += b"vllm:%s{%s} %s\n" % (name, LABELS.encode(), number)
        return page

    page = beside_a_healthy_one(change)
    assert page.one("llm_up", replica="bad") == 1.0
    assert tokens(page) == []
    assert page.all("llm_requests_running", replica="bad") == []
    assert page.all("llm_kv_cache_usage_ratio", replica="bad") == []
    assert page.all("llm_generation_token_rate", replica="bad") == []
    assert odd(page, "bad_number") >= 3.0
    assert page.one("llm_prompt_tokens_total", replica="bad") == 15000.0


@pytest.mark.parametrize("again", [b"3000", b"999999"])
def test_e26_of_a_repeated_series_the_first_stands_and_the_rest_is_counted(again):
    page = beside_a_healthy_one(appended(b"vllm:generation_tokens_total{%s} %s" % (LABELS.encode(), again)))
    assert tokens(page) == [3000.0]
    assert odd(page, "duplicate") >= 3.0


def test_e26_labels_in_another_order_are_the_same_series():
    page = beside_a_healthy_one(appended(b'vllm:generation_tokens_total{model_name="m",engine="0"} 7'))
    assert tokens(page) == [3000.0]
    assert odd(page, "duplicate") >= 1.0


def test_e27_a_repeated_label_name_costs_its_line():
    page = beside_a_healthy_one(appended(b'vllm:num_requests_swapped{engine="0",engine="1"} 4'), series="full")
    assert page.all("llm_requests_swapped", replica="bad") == []
    assert odd(page, "unreadable") == 3.0
    assert tokens(page) == [3000.0]


def test_e28_types_that_contradict_and_families_in_pieces_change_nothing():
    def change(page):
        lines = page.splitlines()
        shuffled = lines[::2] + [b"# TYPE vllm:generation_tokens_total histogram"] + lines[1::2]
        types = [b"# TYPE vllm:generation_tokens_total gauge", b"# TYPE vllm:generation_tokens_total counter"]
        return b"\n".join([*types, *shuffled]) + b"\n"

    page = beside_a_healthy_one(change)
    good = {key: value for key, value in page.rows.items() if dict(key[1]).get("replica") == "good"}
    for (name, labels), value in good.items():
        if name not in HEALTH:
            assert page.one(name, **{**dict(labels), "replica": "bad"}) == value


def test_e29_buckets_that_fall_are_raised_and_without_inf_there_is_no_histogram():
    falling = beside_a_healthy_one(
        lambda page: page.replace(b',le="10.0"} ', b',le="10.0"} -0').replace(b',le="1.0"} ', b',le="1.0"} 9')
    )
    buckets = [
        value
        for (name, labels), value in falling.rows.items()
        if name == "llm_time_to_first_token_seconds_bucket" and dict(labels)["replica"] == "bad"
    ]
    assert buckets == sorted(buckets)
    assert odd(falling, "falling_buckets") >= 1.0
    without = beside_a_healthy_one(lambda page: page.replace(b'le="+Inf"', b'le="99"'))
    assert "llm_time_to_first_token_seconds_bucket" not in without.families_of("bad")
    assert "llm_latency_quantile_seconds" not in without.families_of("bad")
    assert odd(without, "no_inf_bucket") >= 1.0
    assert tokens(without) == [3000.0]


@pytest.mark.parametrize("stamp", [b" 1", b" 99999999999999", b" -5"])
def test_e30_time_stamps_are_ignored_and_we_set_none(stamp):
    page = beside_a_healthy_one(lambda page: page.replace(b"\n", stamp + b"\n"))
    assert tokens(page) == [3000.0]
    assert page.one("llm_generation_token_rate", replica="bad") == pytest.approx(1000.0)
    assert all(len(line.rpartition("}")[2].split()) == 1 for line in page.text.splitlines() if "} " in line)


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:num_requests_swapped{engine="' + b"x" * (7 * 1024 * 1024) + b'"} 1',
        b"vllm:num_requests_swapped{" + b",".join(b'a%d="1"' % index for index in range(20_000)) + b"} 1",
    ],
    ids=["a label of 7 MiB", "20,000 labels"],
)
def test_e32_a_line_beyond_16_kib_is_skipped_and_counted(line):
    page = beside_a_healthy_one(appended(line), series="full")
    assert tokens(page) == [3000.0]
    assert page.all("llm_requests_swapped", replica="bad") == []
    assert odd(page, "long_line") == 3.0


def test_e33_escapes_come_out_exactly_as_they_went_in():
    model = 'a "quoted" \\ back\\\\slash }{,= new\nline'
    written = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode()
    page = beside_a_healthy_one(lambda page: page.replace(b'model_name="m"', b'model_name="' + written + b'"'))
    from prometheus_client.parser import text_string_to_metric_families

    labels = [
        sample.labels["model"]
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if sample.name == "llm_generation_tokens_total" and sample.labels["replica"] == "bad"
    ]
    assert labels == [model]


def test_e34_openmetrics_with_exemplars_is_read_for_its_values():
    def change(page):
        out = []
        for line in page.splitlines():
            out.append(line + b' # {trace_id="0af7"} 0.67 1.7e9' if b"_bucket" in line else line)
        return b"\n".join(out) + b"\n# EOF\n"

    page = beside_a_healthy_one(change)
    assert tokens(page) == [3000.0]
    assert page.one("llm_time_to_first_token_seconds_count", replica="bad") == 30.0
    assert "trace_id" not in page.text
    assert page.all("shardwatch_source_oddities_total") == []


@pytest.mark.parametrize("kind", ["auto", "vllm"])
@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html>\n<html><body>Please log in to vllm</body></html>\n",
        b"<html>\n<p>please log in</p>\n</html>\n",
        bytes(range(256)) * 40,
        b'{"error": "unauthorized"}\n',
    ],
    ids=["html that names the engine", "html", "binary", "json"],
)
def test_e20_what_is_no_metrics_page_is_known_by_its_content(content, kind):
    engine = Engine()
    rig = Rig({"bad": engine, "good": Engine()}, kind=kind)
    rig.turn()
    before = rig.page()
    engine.change = lambda _: content
    rig.turn()
    page = rig.checked()
    assert page.reason("bad") == "not_metrics"
    assert page.families_of("bad") <= HEALTH
    stamp = "shardwatch_source_last_success_timestamp_seconds"
    assert page.one(stamp, source="engine:bad") == before.one(stamp, source="engine:bad")
    assert page.one(stamp, source="engine:good") > before.one(stamp, source="engine:good")
    assert page.one("llm_up", replica="good") == 1.0


# ---------------------------------------------------------------------- E31: cardinality

EXPLOSION = """
import os
import sys
from tests.fault_matrix import Rig, living_page, resident_of
name, series, polls = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
template = b"".join(b'%s{engine="0",model_name="m",a="@@@@",b="%d"} 1\\n' % (name, i) for i in range(series))
count = 0
def bad():
    global count
    count += 1
    return living_page(count) + template.replace(b"@@@@", b"%d" % count)
rig = Rig({"bad": bad, "good": lambda: living_page(count)})
for number in range(polls):
    rig.turn(publish=number % 10 == 0)
    if number in (polls // 5, polls - 1):
        page = rig.page()
        print(resident_of(os.getpid()), len(page.rows), page.one("llm_up", replica="bad"),
              page.reason("bad") or "-", page.one("llm_generation_tokens_total", replica="good"))
"""


@pytest.mark.slow
def test_e31_new_series_on_every_page_fill_neither_memory_nor_our_page():
    """50,000 series refuse the page; 2,000 of a name that we want are bounded.  Side by side, in fresh processes."""
    cases = {
        "too_many_lines": ("vllm:unknown_total", 50_000, 600),
        "-": ("vllm:num_requests_waiting", 2_000, 200),
    }
    running = {
        reason: subprocess.Popen(
            [sys.executable, "-c", EXPLOSION, *map(str, case)],
            stdout=subprocess.PIPE, text=True, env=bare_environment(), cwd=ROOT,
        )
        for reason, case in cases.items()
    }  # fmt: skip
    said = {reason: process.communicate(timeout=150)[0] for reason, process in running.items()}
    assert [process.returncode for process in running.values()] == [0, 0]
    for reason, text in said.items():
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

    rig = Rig({"bad": flapping, "good": Engine()})
    rates, ups = [], []
    for _ in range(20):
        rig.turn()
        page = rig.page()
        ups.append(page.one("llm_up", replica="bad"))
        rates += page.all("llm_generation_token_rate", replica="bad")
        if not ups[-1]:
            assert page.families_of("bad") <= HEALTH
    assert ups == [1.0, 0.0] * 10
    assert rates == [pytest.approx(1000.0)] * 9
    assert rig.checked().one("shardwatch_source_failures_total", source="engine:bad", reason="refused") == 10.0


def test_e36_an_engine_that_restarts_never_shows_a_negative_or_doubled_rate():
    engine = Engine()

    def restarting():
        if engine.seconds == 7:
            engine.seconds = 0
        return engine()

    rig = Rig({"bad": restarting}, series="full")
    rates = []
    for _ in range(40):
        rig.turn()
        rates += rig.page().all("llm_generation_token_rate", replica="bad")
    assert len(rates) == 39
    assert all(0.0 <= rate <= 2000.0 for rate in rates)
    assert rates[-1] == pytest.approx(1000.0, rel=0.2)
    assert rig.checked().one("llm_restarts_total", replica="bad") == 5.0


def test_e37_bucket_edges_that_change_start_the_window_of_their_stage_anew():
    engine = Engine()
    rig = Rig({"bad": engine})
    for _ in range(10):
        rig.turn()
    observed = rig.page().one("llm_latency_observations", replica="bad", stage="time_to_first_token", window="1m")
    assert observed == 90.0
    engine.settings = {"edges": (0.5, 5.0)}
    engine.seconds = 0
    rig.turn()
    page = rig.checked()
    assert page.all("llm_latency_quantile_seconds", replica="bad", stage="time_to_first_token") == []
    edges = page.labels("llm_time_to_first_token_seconds_bucket", "le", replica="bad")
    assert edges == {"0.5", "5.0", "+Inf"}
    for _ in range(5):
        rig.turn()
    page = rig.checked()
    assert page.one("llm_latency_observations", replica="bad", stage="time_to_first_token", window="1m") == 50.0
    quantiles = page.all("llm_latency_quantile_seconds", replica="bad", stage="time_to_first_token")
    assert quantiles and all(0.0 <= number <= 5.0 for number in quantiles)


def test_e38_what_an_upgrade_renames_away_is_absent_and_not_zero():
    engine = Engine()
    rig = Rig({"bad": engine, "good": Engine()})
    for _ in range(5):
        rig.turn()
    assert rig.page().one("llm_kv_cache_hit_ratio", replica="bad") == pytest.approx(0.6)
    engine.change = lambda page: page.replace(b"prefix_cache", b"apc").replace(b'engine="0",', b"")
    rig.turn()
    page = rig.checked()
    for gone in ("llm_prefix_cache_queries_total", "llm_prefix_cache_hits_total", "llm_kv_cache_hit_ratio"):
        assert page.all(gone, replica="bad") == []
        assert page.all(gone, replica="good") != []
    assert tokens(page) == [6000.0]
    assert page.labels("llm_requests_running", "rank", replica="bad") == {""}
    engine.change = lambda page: page.replace(b"vllm:", b"vllm2:")
    rig.turn()
    page = rig.checked()
    assert page.reason("bad") == "no_engine_metrics"
    assert page.families_of("bad") <= HEALTH
    assert page.one("llm_up", replica="bad") == 0.0


# ---------------------------------------------------------------------- P6: clocks


def test_p6_a_wall_clock_that_jumps_moves_time_stamps_only():
    jumps = {5: 3600.0, 9: -7200.0, 12: 1.0, 15: 86_400.0 * 365}
    steady = Rig({"a": Engine()})
    offset = [0.0]
    clock = Clock()
    jumping = Rig({"a": Engine()}, clock=clock, wall=lambda: 1.7e9 + clock.now + offset[0])
    for second in range(20):
        offset[0] += jumps.get(second, 0.0)
        steady.turn()
        jumping.turn()
        one, other = steady.page().rows, jumping.checked().rows
        assert one.keys() == other.keys()
        differing = {key[0] for key in one if one[key] != other[key] and not key[0].startswith("process_")}
        allowed = {
            "shardwatch_source_last_success_timestamp_seconds",
            "shardwatch_config_last_reload_success_timestamp_seconds",
        }
        assert differing <= allowed
        if second >= 5:
            assert "shardwatch_source_last_success_timestamp_seconds" in differing
    assert jumping.page().one("llm_generation_token_rate", replica="a") == pytest.approx(1000.0)
    assert jumping.page().one("llm_data_age_seconds", replica="a") == 0.0


# ---------------------------------------------------------------------- P14: a loop that is dead


def test_p14_figures_of_a_loop_that_has_died_are_withdrawn():
    """Nothing is under way and nothing comes any more; an old reading must not be shown as if it were new."""
    rig = Rig({"dead": Engine(), "good": Engine()})
    rig.turn()
    assert rig.page().one("llm_up", replica="dead") == 1.0
    dead, good = rig.app._replicas.values()
    dead.poll = lambda: None
    for _ in range(20):
        rig.turn()
    page = rig.checked()
    assert page.reason("dead") == "hung"
    assert page.families_of("dead") <= HEALTH
    assert page.one("llm_data_age_seconds", replica="dead") == 20.0
    assert page.one("llm_up", replica="good") == 1.0


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

    rig = Rig({f"e{number}": engine(number) for number in range(16)})
    with caplog.at_level(logging.INFO):
        for _ in range(600):
            rig.turn(0.1, publish=False)
    assert rig.clock.now == pytest.approx(1060.0)
    assert len(caplog.records) <= 60
    rig.app.publisher.turn()
    rig.checked()


# ---------------------------------------------------------------------- P19: the same page

SAME_PAGE = """
import sys, time
from tests.fault_matrix import Rig, living_page
from tests.test_faults_page import CAPTURES
engines = {path.stem.replace(".", "-"): path.read_bytes for path in CAPTURES}
rig = Rig(engines, kind="auto", series="full", wall=lambda: 1.7e9)
rig.turn(); rig.turn(30.0)
time.tzset()
for openmetrics in (False, True):
    lines = rig.bytes(openmetrics=openmetrics).split(b"\\n")
    sys.stdout.buffer.write(b"\\n".join(line for line in lines if not line.startswith(b"process_")))
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


# ---------------------------------------------------------------------- P20: our page under hostile ones

POOL = [path.read_bytes() for path in CAPTURES]
LINES = [line for page in POOL for line in page.split(b"\n") if line]
WANTED = [line for line in LINES if not line.startswith(b"#")]
NUMBERS = [
    b"NaN",
    b"+Inf",
    b"-Inf",
    b"-1",
    b"1e309",
    b"1e-320",
    b"0x10",
    b"1_000",
    b"",
    b"9" * 400,
    b"18446744073709551616",
]
VALUES = [b"", b"0", b"m", b"\xff", b"\x00", b'\\"', b"\\n", b"\\\\", b"\\", b"}{,=", b"\xe2\x80\xa8", b"\xed\xa0\x80",
          b"+Inf", b"-Inf", b"NaN", b"-1", b"0.1", b"-0.0", b"1e400", b"x" * 300, b"\xf0\x9f\x92\xa3", b"lifetime", b"\r", b"\t", b"# EOF"]  # fmt: skip


def mutated(rng, page):
    """Damage a page in one of the ways that engines, relays and disks do."""
    lines = page.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(12):
            case 0:
                lines[at] = line.rpartition(b" ")[0] + b" " + rng.choice(NUMBERS)
            case 1:
                cut = rng.randrange(len(line) + 1)
                lines[at] = line[:cut] + rng.randbytes(rng.randrange(1, 5)) + line[cut:]
            case 2:
                lines[at] = line[: rng.randrange(len(line) + 1)]
            case 3:
                lines.insert(rng.randrange(len(lines)), line)
            case 4:
                del lines[at : at + rng.randrange(1, 30)]
                lines = lines or [b""]
            case 5:
                parts = line.split(b'"')
                if len(parts) > 2:
                    parts[rng.randrange(1, len(parts), 2)] = rng.choice(VALUES)
                lines[at] = b'"'.join(parts)
            case 6:
                lines[at] = rng.choice(LINES)
            case 7:
                rng.shuffle(lines)
            case 8:
                name, brace, rest = line.partition(b"{")
                lines[at] = name + brace + rng.choice((b'model_name="other",', b'engine="7",', b'le="5",')) + rest
            case 9:
                lines[at] = line + rng.choice((b" 123", b' # {a="b"} 1', b"\r", b" junk", b"\x00"))
            case 10:
                lines[at] = line.replace(b"vllm:", rng.choice((b"vllm_", b"ray_vllm:", b"VLLM:", b"vllm:vllm:")))
            case 11:
                lines = lines[: rng.randrange(len(lines)) + 1]
    return b"\n".join(lines)


def invented(rng):
    """Make a page up from wanted names, odd labels and odd numbers."""
    lines = []
    for _ in range(rng.randrange(1, 40)):
        name = rng.choice(WANTED).partition(b"{")[0].partition(b" ")[0]
        labels = b",".join(
            b'%s="%s"' % (rng.choice((b"engine", b"model_name", b"le", b"finished_reason", b"x")), rng.choice(VALUES))
            for _ in range(rng.randrange(4))
        )
        number = rng.choice(NUMBERS) if rng.random() < 0.3 else b"%d" % rng.randrange(1000)
        lines.append(b"%s{%s} %s" % (name, labels, number))
    return b"\n".join(lines)


class Fuzzed:
    """Another hostile page on each poll, small ones more often."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.small = [
            b"\n".join(sorted(self.rng.sample(page.split(b"\n"), min(40, page.count(b"\n"))))) for page in POOL
        ]

    def __call__(self):
        draw = self.rng.random()
        if draw < 0.02:
            return None
        if draw < 0.05:
            return mutated(self.rng, self.rng.choice(POOL))
        if draw < 0.5:
            return mutated(self.rng, self.rng.choice(self.small))
        return invented(self.rng)


def neither_duplicates_nor_nan(text):
    page = Figures(text)
    assert len(page.rows) <= MAX_SERIES
    for family in ("llm_kv_cache_hit_ratio", "llm_error_ratio", "llm_kv_cache_usage_ratio"):
        assert all(0.0 <= ratio <= 1.0 for ratio in page.all(family)), family
    for family in ("llm_generation_token_rate", "llm_request_rate", "llm_latency_quantile_seconds"):
        assert all(number >= 0.0 for number in page.all(family)), family


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auto", "vllm"])
def test_p20_our_page_parses_strictly_whatever_ten_thousand_pages_of_engines_say(kind, promtool):
    """Twenty engines at a time, so that they could also disturb each other; a good one is among them."""
    seed = 20261121
    rig = Rig({**{f"e{i}": Fuzzed(seed + i) for i in range(20)}, "good": Engine()}, kind=kind, series="full")
    for turn in range(250):
        rig.turn()
        if turn % 5 == 0:
            page = rig.bytes().decode("utf-8")
            neither_duplicates_nor_nan(page)
            strictly(page, rig.bytes(openmetrics=True).decode("utf-8"))
            assert f'replica="good",engine="vllm",model="m",rank="0"}} {1000.0 * (turn + 1)}' in page
        if turn % 125 == 0:
            promtool_is_content(promtool, page)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(sorted({line.partition(b"{")[0] for line in WANTED})),
                st.dictionaries(
                    st.sampled_from(["engine", "model_name", "le", "finished_reason"]), st.text(max_size=8)
                ),
                st.floats() | st.integers(),
            ),
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_p20_any_labels_and_numbers_in_any_order_of_pages_give_a_page_that_parses(pages):
    from exporter.collector import escape_label

    bodies = iter(
        "\n".join(
            name.decode()
            + "{"
            + ",".join(f'{key}="{escape_label(text)}"' for key, text in labels.items())
            + f"}} {number}"
            for name, labels, number in page
        ).encode("utf-8", "surrogatepass")
        for page in pages
    )
    rig = Rig({"a": lambda: next(bodies), "good": Engine()}, series="full")
    for _ in pages:
        rig.turn()
        page = rig.bytes().decode("utf-8")
        neither_duplicates_nor_nan(page)
        strictly(page, rig.bytes(openmetrics=True).decode("utf-8"))
