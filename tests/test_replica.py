"""One replica's poller on recorded and made-up pages, with a clock that tests move."""

from __future__ import annotations

import logging
import pathlib
import threading
import time

import pytest
from builders import Clock

from exporter.errors import EndpointError
from exporter.model import Stage
from exporter.polling import staggered
from exporter.replica import ReplicaPlan, replica_poller
from exporter.sources.replay import Replay, ReplayedPage

CAPTURES = pathlib.Path(__file__).parent / "captures"
IDLE, LOAD, AFTER = (CAPTURES / f"vllm-0.32.0-real-cpu-{state}.prom" for state in ("idle", "load", "after"))


def plan(**changes):
    values = {
        "name": "a",
        "kind": "auto",
        "interval": 5.0,
        "windows": (("1m", 60.0), ("5m", 300.0)),
        "quantiles": (0.5, 0.99),
    }
    return ReplicaPlan(**{**values, **changes})


def poller(pages, clock=None, **changes):
    fetcher = Replay(pages) if isinstance(pages, list) else pages
    return replica_poller(plan(**changes), fetcher, clock=clock or Clock(), wall=lambda: 1.7e9)


def page(tokens, *, model="m", running=1, extra=""):
    return (
        f'vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}\n'
        f'vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {tokens}\n{extra}'
    ).encode()


def polled(one, clock, times, step=5.0):
    for _ in range(times):
        one.poll()
        clock.tick(step)
    return one.state


def test_recorded_pages_become_figures_of_the_time_between_them():
    clock = Clock()
    one = poller(Replay.of_files([IDLE, AFTER]), clock)
    state = polled(one, clock, 2, step=30.0)
    assert state.labels == ("a", "vllm", "tiny-llama")
    figures = state.windows["1m"]
    assert figures.seconds == 30.0
    assert figures.hit_ratio == pytest.approx(80288 / 243226)
    assert figures.generation_token_rate == pytest.approx(86413 / 30)
    assert figures.request_rate == pytest.approx((1867 + 30) / 30)
    assert 0 < figures.latency[Stage.TIME_TO_FIRST_TOKEN].quantiles[0.5] < 1
    assert state.histograms[Stage.REQUEST].counts[-1] == figures.latency[Stage.REQUEST].observations


def test_a_failed_poll_withdraws_every_figure_and_keeps_identity_and_age():
    clock = Clock()
    one = poller([page(1), page(9), None], clock)
    assert polled(one, clock, 2).windows
    state = polled(one, clock, 1)
    assert state.reading is None
    assert state.windows == {}
    assert state.frozen is None
    assert state.labels == ("a", "vllm", "m")
    assert state.status.up is False
    assert state.status.reason == "refused"
    assert state.status.failures == {"refused": 1}
    assert state.last_read_at == 1005.0


def test_a_restart_is_counted_and_never_gives_a_negative_or_huge_rate():
    clock = Clock()
    one = poller([page(100), page(600), page(50), page(100)], clock)
    rates = []
    for _ in range(4):
        state = polled(one, clock, 1)
        rates += [figures.generation_token_rate for figures in state.windows.values()]
    assert state.restarts == 1
    assert all(0 <= rate <= 100 for rate in rates)
    assert state.windows["1m"].generation_token_rate == pytest.approx((500 + 50 + 50) / 15)


def test_another_model_on_the_same_port_starts_anew():
    clock = Clock()
    one = poller([page(100), page(600), page(5000, model="other"), page(5010, model="other")], clock)
    state = polled(one, clock, 4)
    assert state.labels == ("a", "vllm", "other")
    assert state.windows["1m"].generation_token_rate == pytest.approx(10 / 5)


def test_an_engine_whose_work_stands_still_is_frozen_after_twenty_seconds():
    clock = Clock()
    one = poller([page(100), page(200)], clock)
    verdicts = [polled(one, clock, 1).frozen for _ in range(8)]
    assert verdicts[1] is False
    assert verdicts[-1] is True


def test_freezing_and_moving_again_are_each_said_once(caplog):
    clock = Clock()
    one = poller([page(100), *[page(200)] * 9, *[page(300 + step) for step in range(3)]], clock)
    with caplog.at_level(logging.INFO, logger="exporter.replica"):
        polled(one, clock, 13)
    assert [message for message in caplog.messages if "event=" in message] == [
        "source=engine:a event=frozen: requests are running and nothing moves",
        "source=engine:a event=moves_again",
    ]


def test_a_hung_engine_stays_frozen_while_its_http_front_refuses_requests():
    clock = Clock()
    refused = 'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} '
    pages = [page(100), page(200), *(page(200, extra=f"{refused}{count}\n") for count in range(8))]
    one = poller(pages, clock)
    states = [polled(one, clock, 1) for _ in pages]
    assert states[-1].reading.responses == {"4xx": 7}
    assert [state.frozen for state in states[-3:]] == [True, True, True]


def test_half_a_page_shows_what_it_has_and_leaves_the_windows_alone():
    clock = Clock()
    whole = page(100, extra='vllm:prompt_tokens_total{engine="0",model_name="m"} 7000\n')
    half = page(150) + b"vllm:prompt_tokens_total{engi"
    later = page(200, extra='vllm:prompt_tokens_total{engine="0",model_name="m"} 7100\n')
    one = poller([whole, half, later], clock)
    state = polled(one, clock, 3)
    assert state.windows["1m"].generation_token_rate == pytest.approx(100 / 10)
    assert one.oddities == {"unreadable": 1}


def test_a_page_of_no_known_engine_is_a_reason_and_not_an_exception():
    clock = Clock()
    assert polled(poller([b"up 1\n"], clock), clock, 1).status.reason == "unknown_engine"
    assert polled(poller([b"<html>"], clock, kind="vllm"), clock, 1).status.reason == "not_metrics"
    assert polled(poller([b"up 1\n"], clock, kind="vllm"), clock, 1).status.reason == "no_engine_metrics"
    assert polled(poller([page(1)], clock, kind="of_tomorrow"), clock, 1).status.reason == "unsupported_engine"


def test_a_flapping_engine_is_logged_once_a_minute_and_the_silence_is_counted(caplog):
    clock = Clock()
    one = poller([page(1), None] * 60, clock)
    with caplog.at_level(logging.INFO):
        polled(one, clock, 120, step=1.0)
    lines = [record.message for record in caplog.records if "state=" in record.message]
    assert 2 <= len(lines) <= 3
    assert any("changes_unsaid=" in line for line in lines[1:])
    assert one.state.status.failures == {"refused": 60}


def test_an_exchange_that_never_returns_is_withdrawn_by_who_looks():
    clock = Clock()
    one = poller([page(1)], clock)
    one.poll()
    assert one.view(clock.now).reading is not None
    one.polling.begin()
    assert one.view(clock.now + 10).reading is not None
    late = one.view(clock.now + 16)
    assert late.reading is None
    assert (late.status.reason, late.status.hung) == ("hung", True)


class Versioned:
    def __init__(self, *answers):
        self.asked = 0
        self.answers = list(answers)

    def fetch(self, path=None):
        if path is None:
            return ReplayedPage(body=page(1))
        assert path == "/version"
        self.asked += 1
        answer = self.answers.pop(0)
        if answer is None:
            raise EndpointError("http_404", "no such path")
        return ReplayedPage(body=answer)

    def close(self):
        pass


def test_the_version_is_asked_seldom_and_shown_when_known():
    clock, engine = Clock(), Versioned(None, b'{"version": "0.32.0"}')
    one = poller(engine, clock)
    for seconds in (1, 30, 35, 500):
        one.turn()
        clock.tick(seconds)
    one.poll()
    assert engine.asked == 2
    assert one.state.reading.version == "0.32.0"


@pytest.mark.parametrize("answer", [b"no json", b"[]", b'{"version": 3}', b"[" * 100_000])
def test_an_odd_version_answer_is_no_version_and_no_error(answer):
    one = poller(Versioned(answer))
    one.turn()
    one.poll()
    assert one.state.reading.version == ""
    assert one.state.status.up


class Counting:
    def __init__(self, fail=None):
        self.polls = []
        self.fail = fail

    def fetch(self, path=None):
        if path is None:
            self.polls.append(time.monotonic())
            if self.fail:
                raise self.fail
        return ReplayedPage(body=page(len(self.polls)))

    def close(self):
        self.closed = True


def run_for(one, seconds):
    before = threading.active_count()
    one.start(time.monotonic())
    time.sleep(seconds)
    one.stop()
    one.join(2.0)
    assert threading.active_count() == before


def test_the_loop_survives_a_bug_counts_it_and_goes_on():
    engine = Counting(fail=RuntimeError("a bug"))
    one = replica_poller(plan(interval=0.05), engine)
    run_for(one, 0.5)
    assert one.loop_restarts >= 2
    assert one.state.status.reason == "internal"
    assert engine.closed


def test_a_failing_engine_is_asked_less_and_less_often():
    refused, timeout = Counting(EndpointError("refused", "")), Counting(EndpointError("timeout", ""))
    ones = [replica_poller(plan(interval=0.02), engine) for engine in (refused, timeout)]
    for one in ones:
        one.polling._failed_in_a_row = 100
    for one, most in zip(ones, (4.0, 10.0), strict=True):
        one.poll()
        assert 0.8 * min(most, 0.02 * 2**10) <= one.polling._back_off() <= 1.1 * most
    healthy = replica_poller(plan(interval=0.02), Counting())
    healthy.poll()
    assert healthy.polling._back_off() == 0.0


def test_replicas_start_at_once_and_not_all_together():
    times = staggered(8, 1.0, 100.0)
    assert times[0] == 100.0
    assert len(set(times)) == 8
    assert max(times) <= 100.2
