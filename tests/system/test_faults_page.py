"""Rows E20, E22 to E30 and E32 to E34 of the fault matrix: what of one odd page stands on ours."""

from __future__ import annotations

import pytest

from tests.support.fault_matrix import Harness
from tests.support.harness_engines import Engine, appended, beside_a_healthy_one, odd, tokens
from tests.support.page_figures import HEALTH

LABELS = 'engine="0",model_name="m"'


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
    assert page.value("llm_time_to_first_token_seconds_count", replica="bad") == 30.0
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
    assert page.value("llm_requests_running", replica="bad", rank="\ufffd") == 7.0
    assert tokens(page) and page.text.encode("utf-8")


@pytest.mark.parametrize("number", [b"NaN", b"+Inf", b"-Inf", b"-5"])
def test_e25_numbers_that_cannot_be_are_absent_and_counted(number):
    def change(page):
        for name in (b"generation_tokens_total", b"num_requests_running", b"kv_cache_usage_perc"):
            page = page.replace(b"vllm:" + name + b"{", b"x{")
            page += b"vllm:%s{%s} %s\n" % (name, LABELS.encode(), number)
        return page

    page = beside_a_healthy_one(change)
    assert page.value("llm_up", replica="bad") == 1.0
    assert tokens(page) == []
    assert page.all("llm_requests_running", replica="bad") == []
    assert page.all("llm_kv_cache_usage_ratio", replica="bad") == []
    assert page.all("llm_generation_token_rate", replica="bad") == []
    assert odd(page, "bad_number") >= 3.0
    assert page.value("llm_prompt_tokens_total", replica="bad") == 15000.0


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
            assert page.value(name, **{**dict(labels), "replica": "bad"}) == value


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
    assert page.value("llm_generation_token_rate", replica="bad") == pytest.approx(1000.0)
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
    assert page.value("llm_time_to_first_token_seconds_count", replica="bad") == 30.0
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
    harness = Harness({"bad": engine, "good": Engine()}, kind=kind)
    harness.turn()
    before = harness.page()
    engine.change = lambda _: content
    harness.turn()
    page = harness.checked()
    assert page.reason("bad") == "not_metrics"
    assert page.families_of("bad") <= HEALTH
    stamp = "shardwatch_source_last_success_timestamp_seconds"
    assert page.value(stamp, source="engine:bad") == before.value(stamp, source="engine:bad")
    assert page.value(stamp, source="engine:good") > before.value(stamp, source="engine:good")
    assert page.value("llm_up", replica="good") == 1.0
