"""What engines tell beside their metrics: asked seldom, beside the polls, and never at their expense."""

from __future__ import annotations

import threading
import time

import pytest

from exporter.errors import EndpointError
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import make_poller, page, poll, polled
from tests.support.waiting import until

VLLM, TGI = page("vllm-0.32.0-real-cpu-load"), page("tgi-3.3.7-handmade-t1")


class Slow:
    """An engine whose page is there at once; what is asked beside it waits for ``go``."""

    def __init__(self, body, answer=b'{"version": "9.9.9", "model_id": "tiny"}'):
        self.body, self.answer = body, answer
        self.go = threading.Event()
        self.asked = 0
        self.down = False

    def fetch(self, path=None):
        if self.down:
            raise EndpointError("refused", "nobody listens there")
        if path is None:
            return ReplayedPage(body=self.body)
        self.asked += 1
        self.go.wait(10)
        return ReplayedPage(body=self.answer)

    def close(self):
        """Nothing is open."""


@pytest.fixture
def slow():
    made = []

    def make(*arguments):
        made.append(Slow(*arguments))
        return made[-1]

    yield make
    for engine in made:
        engine.go.set()


def seconds_of(action) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_an_engine_that_does_not_report_its_version_delays_no_poll(slow):
    clock, engine = Clock(), slow(VLLM)
    poller = make_poller(engine, clock, timeout=5.0)
    assert seconds_of(poller.poll) < 2.0
    until(lambda: engine.asked == 1)
    clock.tick(5.0)
    assert seconds_of(poller.poll) < 2.0 and engine.asked == 1, "one request at a time"
    assert poller.state.reading.version == ""
    engine.go.set()
    poll(poller)
    poller.poll()
    assert poller.state.reading.version == "9.9.9"


def test_a_poll_waits_for_a_model_that_only_the_engine_knows_as_long_as_a_poll_may_take(slow):
    clock, engine = Clock(), slow(TGI)
    poller = make_poller(engine, clock, timeout=0.2)
    assert 0.1 < seconds_of(poller.poll) < 2.0
    assert poller.state.status.up and poller.state.labels == ("a", "tgi", "")
    engine.go.set()
    poll(poller)
    poller.poll()
    assert poller.state.labels == ("a", "tgi", "tiny")


def test_the_first_page_has_the_model_where_the_engine_answers(slow):
    engine = slow(TGI)
    engine.go.set()
    assert polled(make_poller(engine, Clock()), Clock()).labels == ("a", "tgi", "tiny")


def test_an_engine_that_comes_back_and_does_not_answer_costs_one_timeout_and_has_no_version(slow):
    clock, engine = Clock(), slow(VLLM)
    engine.go.set()
    poller = make_poller(engine, clock, timeout=0.2)
    poll(poller)
    poll(poller)
    assert poller.state.reading.version == "9.9.9"
    engine.down = True
    poll(poller)
    engine.down = False
    engine.go.clear()
    assert 0.1 < seconds_of(poller.poll) < 2.0
    assert poller.state.reading.version == ""


def test_what_was_asked_before_an_engine_went_down_is_not_taken_for_its_successors_answer(slow):
    clock, engine = Clock(), slow(VLLM)
    poller = make_poller(engine, clock, timeout=0.05)
    poller.poll()
    until(lambda: engine.asked == 1)
    engine.down = True
    poller.poll()
    engine.down, engine.answer = False, b'{"version": "10.0.0"}'
    poller.poll()
    until(lambda: engine.asked == 2)
    engine.go.set()
    poll(poller)
    poller.poll()
    assert poller.state.reading.version == "10.0.0"


def test_without_a_thread_to_ask_in_the_polls_go_on(slow, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    engine = slow(TGI)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        state = polled(make_poller(engine, Clock(), timeout=5.0), Clock())
    assert state.status.up and engine.asked == 0


@pytest.mark.parametrize(("model", "version"), [("tiny-llama", "0.5.23"), ("another", "")])
def test_an_answer_that_names_another_model_than_the_page_is_another_servers(slow, model, version):
    answer = f'{{"version": "0.5.23", "served_model_name": "{model}"}}'.encode()
    engine, clock = slow(page("sglang-0.5.23-real-cpu-load"), answer), Clock()
    engine.go.set()
    state = polled(make_poller(engine, clock), clock, 2)
    assert engine.asked == 1
    assert (state.reading.version, state.labels[2]) == (version, "tiny-llama")


@pytest.mark.parametrize(
    ("answer", "sizes"),
    [
        (b'{"version": "0.5.23", "tp_size": 4, "pp_size": 2}', (4, 2)),
        (b'{"version": "0.4.6", "tp_size": 8}', (8, 1)),
        (b'{"version": "0.5.23"}', None),
        (b'{"version": "0.5.23", "tp_size": "4", "pp_size": 1}', None),
        (b'{"version": "0.5.23", "tp_size": 4, "pp_size": 0}', None),
        (b'{"version": "0.5.23", "tp_size": true, "pp_size": 1}', None),
        (b'{"version": "0.5.23", "tp_size": 1e300, "pp_size": 1}', None),
    ],
)
def test_sglang_tells_its_parallel_sizes_and_what_is_no_count_is_unknown(slow, answer, sizes):
    engine, clock = slow(page("sglang-0.5.23-real-cpu-load"), answer), Clock()
    engine.go.set()
    found = polled(make_poller(engine, clock), clock, 2).reading.parallel_sizes
    assert sizes == (None if found is None else (found.tensor, found.pipeline))
