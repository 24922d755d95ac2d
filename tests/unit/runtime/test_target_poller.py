"""The life that replicas and gateways share: one poll after the other, what each leaves behind, and its end."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import pytest

from exporter.errors import EndpointError, PageError
from exporter.model import EMPTY, SourceStatus, Window
from exporter.runtime.gateway import GatewayConfig, gateway_poller
from exporter.runtime.poll.loop import PollLoop
from exporter.runtime.poll.target_poller import TargetPoller
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.sources.replay import Replay, ReplayedPage
from tests.support.builders import Clock
from tests.support.records import replace
from tests.support.waiting import until


@dataclass(frozen=True)
class Reading:
    text: bytes
    at: float
    parse_warnings: dict = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    status: SourceStatus
    reading: Reading | None = None
    seen: int = 0


@dataclass(frozen=True)
class Config:
    interval: float


class Letters:
    """A handler whose pages are single letters; ``?`` is none, ``!`` is a bug, ``~`` can be used in part."""

    def __init__(self, poll_loop, handled):
        self.poll_loop, self.said = poll_loop, handled

    @property
    def config(self):
        return Config(self.poll_loop.interval)

    def reconfigure(self, config, fetcher):
        self.said.append(f"follow {config.interval:g}")

    def parse(self, body, at):
        if body == b"?":
            raise PageError("no_letter", "that is no letter")
        assert body != b"!"
        return Reading(body, at, {"cut": 2} if body == b"~" else {})

    def apply(self, before, reading, page):
        return State(self.poll_loop.succeeded(page.duration), reading, before.seen + 1)

    def explain(self, error):
        return error

    def invalidated(self, state, status):
        return replace(state, status=status, reading=None)


class Pages:
    def __init__(self, *pages):
        self.pages = list(pages)
        self.closed = 0

    def fetch(self, path=None):
        page = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if page is None:
            raise EndpointError("refused", "nobody listens there")
        return ReplayedPage(body=page, duration=0.25)

    def close(self):
        self.closed += 1


def letters(pages, clock, *, interval=1.0):
    poll_loop = PollLoop(
        "letters", interval, logger=logging.getLogger("letters"), clock=clock, unix_now=lambda: 1.7e9
    )
    handled = []
    poller = TargetPoller(
        Letters(poll_loop, handled),
        State(poll_loop.status),
        pages,
        poll_loop,
        on_update=lambda: handled.append("update"),
        clock=clock,
    )
    return poller, handled


def test_a_good_page_follows_on_the_state_before_and_a_bad_one_withdraws_only_the_reading():
    clock = Clock()
    poller, handled = letters(Pages(b"a", b"?", None, b"b"), clock)
    assert poller.state.status.reason == "starting"
    states = []
    for _ in range(4):
        clock.tick(1.0)
        poller.poll()
        states.append(
            (poller.state.reading and poller.state.reading.text, poller.state.status.reason, poller.state.seen)
        )
    assert states == [(b"a", "", 1), (None, "no_letter", 1), (None, "refused", 1), (b"b", "", 2)]
    assert poller.state.reading.at == clock.now and poller.state.status.duration == 0.25
    assert poller.state.status.failures == {"no_letter": 1, "refused": 1}
    assert handled == ["update"] * 4


def test_what_could_not_be_used_is_added_up():
    poller, _ = letters(Pages(b"~", b"a", b"~"), Clock())
    for _ in range(3):
        poller.poll()
    assert poller.parse_warnings == {"cut": 4}


def test_a_page_that_meets_a_bug_withdraws_the_reading_and_says_so_at_once():
    poller, handled = letters(Pages(b"a", b"!"), time.monotonic, interval=0.01)
    updates = []
    poller._on_update = lambda: updates.append((poller.state.reading is not None, poller.state.status.reason))
    poller.start(time.monotonic())
    until(lambda: poller.loop_restarts)
    poller.stop()
    poller.join(5.0)
    assert updates[:2] == [(True, ""), (False, "internal")]
    assert poller.loop_restarts == len(updates) - 1, "one for each page that could not be applied"


def test_an_exchange_that_does_not_come_back_is_withdrawn_by_whoever_looks_and_stays_the_pollers():
    clock = Clock()
    poller, _ = letters(Pages(b"a"), clock)
    poller.poll()
    poller.poll_loop.begin()
    assert poller.view(clock.now + 7.0) is poller.state
    late = poller.view(clock.now + 7.1)
    assert (late.reading, late.status.reason, late.status.hung, late.seen) == (None, "hung", True, 1)
    assert poller.state.reading.text == b"a"


def test_another_plan_is_applied_from_the_next_poll_on_and_what_was_read_stands_until_then():
    clock = Clock()
    old, new = Pages(b"a"), Pages(b"b")
    poller, handled = letters(old, clock)
    poller.poll()
    poller.reconfigure(Config(3.0), new, clock.now)
    assert poller.config == Config(3.0) and poller.state.reading.text == b"a" and old.closed == 0
    poller.poll()
    assert poller.state.reading.text == b"b" and poller.state.seen == 2, "the past goes on"
    assert (old.closed, new.closed) == (1, 0)
    poller.reconfigure(Config(4.0), None, clock.now)
    poller.poll()
    assert new.closed == 0 and handled.count("follow 3") == handled.count("follow 4") == 1


def test_a_poller_that_waits_for_long_follows_another_interval_at_once_and_is_never_late_for_it():
    pages = Pages(b"a")
    poller, _ = letters(pages, time.monotonic, interval=600.0)
    poller.start(time.monotonic())
    until(lambda: poller.state.seen == 1)
    begun = time.monotonic()
    poller.reconfigure(Config(0.02), None, begun)
    until(lambda: poller.state.seen >= 5)
    poller.reconfigure(Config(600.0), None, time.monotonic())
    poller.reconfigure(Config(0.03), None, time.monotonic())
    before = poller.state.seen
    until(lambda: poller.state.seen >= before + 3)
    poller.stop()
    poller.join(5.0)
    assert pages.closed == 1 and poller.state.status.skipped < 100
    assert poller.poll_loop.interval == 0.03


def test_a_shorter_interval_does_not_make_the_last_poll_look_late_before_the_next_one():
    clock = Clock()
    poller, _ = letters(Pages(b"a"), clock, interval=600.0)
    poller.poll()
    poller.reconfigure(Config(1.0), None, clock.now + 100.0)
    assert poller.view(clock.now + 90.0).reading is not None


def test_a_bug_withdraws_the_page_is_counted_and_the_loop_goes_on():
    pages = Pages(b"a", b"!")
    poller, _ = letters(pages, time.monotonic, interval=0.02)
    poller.start(time.monotonic())
    until(lambda: poller.state.status.failures.get("internal", 0) >= 2)
    assert (poller.state.reading, poller.state.status.reason, poller.state.seen) == (None, "internal", 1)
    pages.pages = [b"b"]
    until(lambda: poller.state.seen >= 2)
    poller.stop()
    poller.join(5.0)
    assert poller.loop_restarts == poller.state.status.failures["internal"]
    assert poller.state.reading.text == b"b" and pages.closed == 1


def replica(clock):
    page = b'vllm:num_requests_running{model_name="m"} 1\nvllm:num_requests_waiting{model_name="m"} 0\n'
    config = ReplicaConfig(name="a", kind="auto", interval=1.0, windows=(Window("1m", 60.0),), quantiles=(0.5,))
    return replica_poller(config, Replay([page, None]), clock=clock, unix_now=lambda: 1.7e9)


def gateway(clock):
    page = b'haproxy_server_sessions_total{proxy="p",server="a"} 3\nhaproxy_backend_sessions_total{proxy="p"} 3\n'
    config = GatewayConfig(name="edge", kind="haproxy", interval=1.0, windows=(Window("1m", 60.0),))
    return gateway_poller(config, Replay([page, None]), clock=clock, unix_now=lambda: 1.7e9)


@pytest.mark.parametrize("make", [replica, gateway])
def test_a_hang_withdraws_all_that_a_failure_withdraws(make):
    """Whatever a page may show of a moment that is over, the imbalance between ranks included."""
    clock = Clock()
    poller = make(clock)
    poller.poll()
    assert poller.state.reading is not None
    figures = {name: {"x": 2.0} for name in ("windows", "rank_imbalance", "replicas") if hasattr(poller.state, name)}
    poller.state = replace(poller.state, **figures)
    poller.poll_loop.begin()
    hung = poller.view(clock.now + 60.0)
    poller.poll_loop.end()
    poller.poll()
    failed = poller.state
    assert hung.status.reason == "hung" and failed.status.reason != "hung"
    assert replace(hung, status=failed.status) == failed
    assert all(getattr(hung, name) == EMPTY for name in figures)


class SlowPages:
    """Every answer takes longer than the interval; counts exchanges under way."""

    def __init__(self):
        self.polls = self.under_way = self.most_under_way = 0

    def fetch(self, path=None):
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        time.sleep(0.03)
        self.under_way -= 1
        self.polls += 1
        return ReplayedPage(body=b"a", duration=0.03)

    def close(self):
        pass


def test_answers_slower_than_the_interval_are_read_one_after_the_other():
    pages = SlowPages()
    poll_loop = PollLoop("letters", 0.01, logger=logging.getLogger("t"), clock=time.monotonic, unix_now=time.time)
    poller = TargetPoller(
        Letters(poll_loop, []),
        State(poll_loop.status),
        pages,
        poll_loop,
        on_update=lambda: None,
        clock=time.monotonic,
    )
    poller.start(time.monotonic())
    try:
        until(lambda: pages.polls >= 3)
        assert poller.view(time.monotonic()).status.up
        assert pages.most_under_way == 1
    finally:
        poller.stop()
        poller.join(5.0)
