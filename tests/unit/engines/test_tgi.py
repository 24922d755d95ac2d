"""The TGI table on pages made by hand from its published names, and what TGI never gives."""

from __future__ import annotations

import json

import pytest

from exporter.engines.detect import recognise
from exporter.engines.tables.tgi import TGI
from exporter.errors import EndpointError
from exporter.model import Quantity, Stage
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import histogram, interpret, make_poller, page, polled

FIRST, SECOND = page("tgi-3.3.7-handmade-t1"), page("tgi-3.3.7-handmade-t2")


def test_a_page_of_the_v3_backend_gives_what_it_has_and_nothing_else():
    reading = interpret(SECOND)
    assert recognise(SECOND) is TGI
    assert dict(reading.ranks[""]) == {
        Quantity.REQUESTS_RUNNING: 12.0,
        Quantity.REQUESTS_WAITING: 3.0,
        Quantity.KV_CACHE_CAPACITY: 262144.0,
        Quantity.PROMPT_TOKENS: 200000.0,
        Quantity.GENERATION_TOKENS: 24600.0,
    }
    assert reading.finished == {
        "": {"success": 200.0, "rejected": 8.0, "invalid": 6.0, "error": 4.0, "cancelled": 2.0}
    }
    assert reading.finish_reasons[""]["overloaded"] == 8.0
    assert reading.parse_warnings == {}


def test_what_is_measured_per_batch_is_not_passed_off_as_a_requests_latency():
    histograms = interpret(FIRST).histograms
    assert set(histograms) == {
        Stage.PROMPT_LENGTH,
        Stage.GENERATION_LENGTH,
        Stage.TIME_PER_OUTPUT_TOKEN,
        Stage.REQUEST,
        Stage.QUEUE,
        Stage.INFERENCE,
        Stage.BATCH_PREFILL,
        Stage.BATCH_DECODE,
    }
    assert histograms[Stage.BATCH_PREFILL][""].counts[-1] == 60.0
    assert histograms[Stage.BATCH_DECODE][""].counts[-1] == 5000.0


def test_what_tgi_never_gives_is_said_with_the_reason():
    missing = interpret(FIRST).missing
    assert missing["time_to_first_token"] == "not_exposed_by_engine"
    assert missing["kv_cache_hit"] == "not_exposed_by_engine"
    assert missing["kv_cache_usage"] == "not_exposed_by_engine"
    assert missing["inter_token"] == "only_per_batch"
    assert "request" not in missing


def test_tokens_of_a_speculating_server_are_the_steps_and_what_they_skipped():
    body = b"tgi_request_skipped_tokens_sum 500\ntgi_request_skipped_tokens_count 1000\ntgi_queue_size 0\n"
    assert interpret(body).ranks[""][Quantity.GENERATION_TOKENS] == 1500.0


@pytest.mark.parametrize("version", ["2.0.4 and older: a histogram", "2.3.0 and newer: a summary"])
def test_skipped_tokens_are_read_whatever_their_type(version):
    rows = 'tgi_request_skipped_tokens_bucket{le="+Inf"} 9\n' if "histogram" in version else ""
    rows += 'tgi_request_skipped_tokens{quantile="0.5"} 3\n' if "summary" in version else ""
    rows += "tgi_request_skipped_tokens_sum 1\ntgi_request_skipped_tokens_count 9\n"
    assert interpret(rows.encode()).ranks[""] == {Quantity.GENERATION_TOKENS: 10.0}


def test_a_backend_without_batches_shows_the_routers_part_alone():
    rows = [line for line in FIRST.decode().split("\n") if "tgi_batch" not in line and "queue_size" not in line]
    body = "\n".join(row for row in rows if "skipped" not in row)
    reading = interpret(body.encode())
    assert set(reading.ranks[""]) == {Quantity.PROMPT_TOKENS, Quantity.GENERATION_TOKENS}
    assert reading.ranks[""][Quantity.GENERATION_TOKENS] == 12000.0  # at the end of each request
    assert reading.frozen_after is None
    assert Stage.REQUEST in reading.histograms


def test_a_fork_that_writes_a_mapping_as_the_method_is_understood():
    labels = "method=\"{'method': 'prefill'}\""
    body = histogram("tgi_batch_inference_duration", labels, ("0.1", 4), ("+Inf", 5))
    assert interpret(body.encode()).histograms[Stage.BATCH_PREFILL][""].counts == (4.0, 5.0)


def test_failed_requests_are_errors_and_refused_or_wrong_ones_are_not():
    clock = Clock()
    figures = polled(make_poller([FIRST, SECOND], clock), clock, 2).windows["1m"]
    assert figures.error_ratio == pytest.approx(2 / 102)  # generation, of what was not refused or given up
    assert figures.generation_token_rate == pytest.approx(1230.0)
    assert figures.hit_ratio is None


class Server:
    """Answers the page and /info as a TGI server does."""

    def __init__(self, **info):
        self.info = info
        self.asked = 0
        self.down = False
        self.page = FIRST

    def fetch(self, path=None):
        if self.down:
            raise EndpointError("refused", "nobody listens there")
        if path is None:
            return ReplayedPage(body=self.page)
        self.asked += 1
        if path != "/info" or not self.info:
            raise EndpointError("http_404", "no such path")
        return ReplayedPage(body=json.dumps(self.info).encode())

    def close(self):
        """Nothing is open."""


def test_the_model_that_the_page_does_not_name_is_asked_before_anything_is_shown():
    clock, server = Clock(), Server(version="3.3.7", model_id="org/llama")
    state = polled(make_poller(server, clock), clock)
    assert state.labels == ("a", "tgi", "org/llama")
    assert state.reading.version == "3.3.7"
    assert polled(make_poller(server, clock), clock, 5).labels[2] == "org/llama"
    assert server.asked == 2  # once for each of the two pollers


def test_a_server_that_comes_back_with_another_model_is_shown_under_no_other_name():
    clock, server = Clock(), Server(version="3.3.6", model_id="org/llama")
    poller = make_poller(server, clock)
    assert polled(poller, clock, 2).labels == ("a", "tgi", "org/llama")
    server.down = True
    polled(poller, clock)
    server.down, server.info = False, {"version": "3.3.7", "model_id": "org/qwen"}
    state = polled(poller, clock)
    assert state.labels == ("a", "tgi", "org/qwen") and state.reading.version == "3.3.7"
    assert state.windows == {}, "nothing of the other model is in its windows"


def test_a_server_that_takes_the_place_of_another_without_a_gap_is_asked_before_it_is_shown():
    clock, server = Clock(), Server(version="3.3.6", model_id="org/llama")
    poller = make_poller(server, clock)
    server.page = SECOND
    polled(poller, clock, 2)
    server.page, server.info = FIRST, {"version": "3.3.7", "model_id": "org/qwen"}
    state = polled(poller, clock)
    assert state.labels == ("a", "tgi", "org/qwen") and state.reading.version == "3.3.7"
    assert state.windows == {}
    assert polled(poller, clock).labels[2] == "org/qwen"


def test_a_server_that_does_not_report_its_model_is_read_and_not_queried_at_every_poll():
    clock, server = Clock(), Server()
    state = polled(make_poller(server, clock), clock, 5)
    assert state.status.up
    assert state.labels == ("a", "tgi", "")
    assert server.asked == 1
