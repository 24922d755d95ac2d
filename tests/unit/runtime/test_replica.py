"""One replica's poller on recorded and made-up pages, with a clock that tests move."""

from __future__ import annotations

import logging
import pathlib
import threading
import time

import pytest

from exporter.errors import EndpointError
from exporter.model import COMMON_STAGES, LENGTHS, Stage, Window
from exporter.runtime.poll.loop import staggered
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.sources.replay import Replay, ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import poll
from tests.support.waiting import CEILING, until

FIRST = Stage.TIME_TO_FIRST_TOKEN
CAPTURES = pathlib.Path(__file__).parents[2] / "captures"
IDLE, LOAD, AFTER = (CAPTURES / f"vllm-0.32.0-real-cpu-{state}.prom" for state in ("idle", "load", "after"))


def plan(**changes):
    values = {
        "name": "a",
        "kind": "auto",
        "interval": 5.0,
        "windows": (Window("1m", 60.0), Window("5m", 300.0)),
        "quantiles": (0.5, 0.99),
    }
    return ReplicaConfig(**{**values, **changes})


def make_poller(pages, clock=None, **changes):
    fetcher = Replay(pages) if isinstance(pages, list) else pages
    return replica_poller(plan(**changes), fetcher, clock=clock or Clock(), unix_now=lambda: 1.7e9)


def page(tokens, *, model="m", running=1, extra=""):
    return (
        f'vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}\n'
        f'vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {tokens}\n{extra}'
    ).encode()


def polled(poller, clock, times, step=5.0):
    for _ in range(times):
        poller.poll()
        clock.tick(step)
    return poller.state


def test_recorded_pages_become_figures_of_the_time_between_them():
    clock = Clock()
    poller = make_poller(Replay.of_files([IDLE, AFTER]), clock)
    state = polled(poller, clock, 2, step=30.0)
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
    poller = make_poller([page(1), page(9), None], clock)
    assert polled(poller, clock, 2).windows
    state = polled(poller, clock, 1)
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
    poller = make_poller([page(100), page(600), page(50), page(100)], clock)
    rates = []
    for _ in range(4):
        state = polled(poller, clock, 1)
        rates += [figures.generation_token_rate for figures in state.windows.values()]
    assert state.restarts == 1
    assert all(0 <= rate <= 100 for rate in rates)
    assert state.windows["1m"].generation_token_rate == pytest.approx((500 + 50 + 50) / 15)


def test_another_model_on_the_same_port_starts_anew():
    clock = Clock()
    poller = make_poller([page(100), page(600), page(5000, model="other"), page(5010, model="other")], clock)
    state = polled(poller, clock, 4)
    assert state.labels == ("a", "vllm", "other")
    assert state.windows["1m"].generation_token_rate == pytest.approx(10 / 5)


def test_an_engine_whose_work_stands_still_is_frozen_after_twenty_seconds():
    clock = Clock()
    poller = make_poller([page(100), page(200)], clock)
    verdicts = [polled(poller, clock, 1).frozen for _ in range(8)]
    assert verdicts[1] is False
    assert verdicts[-1] is True


def test_freezing_and_moving_again_are_each_said_once(caplog):
    clock = Clock()
    poller = make_poller([page(100), *[page(200)] * 9, *[page(300 + step) for step in range(3)]], clock)
    with caplog.at_level(logging.INFO, logger="exporter.runtime.replica"):
        polled(poller, clock, 13)
    assert [message for message in caplog.messages if "state_changed" not in message] == [
        'event=frozen source=engine:a msg="requests are running and no counter moves"',
        "event=recovered source=engine:a",
    ]


def test_another_kind_of_engine_under_the_same_url_is_said_once(caplog):
    clock = Clock()
    poller = make_poller([page(100), b"tgi_queue_size 0\ntgi_request_success 1\n"], clock)
    with caplog.at_level(logging.WARNING, logger="exporter.runtime.replica"):
        polled(poller, clock, 5)
    assert [line for line in caplog.messages if "kind_changed" in line] == [
        'event=kind_changed source=engine:a kind=tgi before=vllm msg="another kind of engine answers; windows start anew"'
    ]


def test_a_standstill_without_running_requests_is_said_as_such(caplog):
    waits = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 2\nvllm:generation_tokens_total %d\n"
    clock = Clock()
    poller = make_poller([waits % 1, *[waits % 2] * 29], clock)
    with caplog.at_level(logging.INFO, logger="exporter.runtime.replica"):
        polled(poller, clock, 30)
    assert 'event=frozen source=engine:a msg="requests wait, none runs, and no counter moves"' in caplog.messages


def freezing(caplog, pages, step=5.0):
    clock = Clock()
    poller = make_poller(pages, clock)
    with caplog.at_level(logging.INFO, logger="exporter.runtime.replica"):
        polled(poller, clock, len(pages), step)
    return [
        message.partition("event=")[2].split()[0] for message in caplog.messages if "state_changed" not in message
    ]


def test_the_log_s_last_word_is_not_frozen_when_the_engine_failed_between(caplog):
    pages = [page(100), *[page(200)] * 9, None, None, *[page(300 + step) for step in range(4)]]
    assert freezing(caplog, pages) == ["frozen", "recovered"]


def test_an_engine_that_fails_on_every_other_page_is_not_called_frozen_on_each(caplog):
    pages = [page(100), page(200), *[page(200), None] * 60]
    assert freezing(caplog, pages, 2.5) == ["frozen"]


def test_an_engine_that_freezes_again_and_again_says_so_once_a_minute(caplog):
    pages = [page(100 + tokens) for tokens in range(40) for _ in range(6)]
    events = freezing(caplog, pages)
    assert events[:4] == ["frozen", "recovered", "frozen", "recovered"]
    assert len(events) <= 3 + len(pages) * 5 / 60 + 1


def test_a_hung_engine_stays_frozen_while_its_http_front_refuses_requests():
    clock = Clock()
    refused = 'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} '
    pages = [page(100), page(200), *(page(200, extra=f"{refused}{count}\n") for count in range(8))]
    poller = make_poller(pages, clock)
    states = [polled(poller, clock, 1) for _ in pages]
    assert states[-1].reading.responses == {"4xx": 7}
    assert [state.frozen for state in states[-3:]] == [True, True, True]


def test_half_a_page_shows_what_it_has_and_leaves_the_windows_alone():
    clock = Clock()
    whole = page(100, extra='vllm:prompt_tokens_total{engine="0",model_name="m"} 7000\n')
    half = page(150) + b"vllm:prompt_tokens_total{engi"
    later = page(200, extra='vllm:prompt_tokens_total{engine="0",model_name="m"} 7100\n')
    poller = make_poller([whole, half, later], clock)
    state = polled(poller, clock, 3)
    assert state.windows["1m"].generation_token_rate == pytest.approx(100 / 10)
    assert poller.parse_warnings == {"unreadable": 1}


def test_a_page_of_no_known_engine_is_a_reason_and_not_an_exception():
    clock = Clock()
    assert polled(make_poller([b"up 1\n"], clock), clock, 1).status.reason == "unknown_engine"
    assert polled(make_poller([b"<html>"], clock, kind="vllm"), clock, 1).status.reason == "not_metrics"
    assert polled(make_poller([b"up 1\n"], clock, kind="vllm"), clock, 1).status.reason == "no_engine_metrics"
    assert polled(make_poller([page(1)], clock, kind="of_tomorrow"), clock, 1).status.reason == "unsupported_engine"


STRANGER = (
    b"# HELP x y\nnode_cpu_seconds_total 1\nnode_load1 2\nnode_load5 2\nnode_x 3\nprocess_cpu_seconds_total 5\n"
)


@pytest.mark.parametrize(
    ("kind", "body", "warning", "not_said"),
    [
        (
            "auto",
            STRANGER,
            "the page has node_cpu_seconds_total, node_load1, node_load5, and no metrics of vLLM",
            "kind",
        ),
        (
            "vllm",
            STRANGER,
            "the page has node_cpu_seconds_total, node_load1, node_load5, and no vllm:* series",
            "stats",
        ),
        ("vllm", b"process_cpu_seconds_total 5\nhttp_requests_total 9\n", "--disable-log-stats", "the page has node"),
        ("vllm", b"sglang:num_running_reqs 5\n", "the page is of SGLang, and kind says vllm", "stats"),
        ("auto", b"process_cpu_seconds_total 5\n", "nothing but figures of a process", "kind"),
    ],
)
def test_an_unknown_page_is_reported_with_what_it_has_and_what_would_be_understood(
    kind, body, warning, not_said, caplog
):
    make_poller([body], kind=kind).poll()
    assert warning in caplog.text
    assert not_said not in caplog.text


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("llamacpp", "Was the server started with --metrics?"),
        ("sglang", "Was the server started with --enable-metrics?"),
        (
            "auto",
            "SGLang needs --enable-metrics, MindIE needs MIES_SERVICE_MONITOR_MODE=1, llama.cpp needs --metrics",
        ),
        ("triton", "Is this Triton's metrics port (8002)?"),
    ],
)
def test_a_server_without_a_metrics_endpoint_is_reported_with_the_flag_that_it_may_lack(kind, advice, caplog):
    class Refusing(Replay):
        def fetch(self, path=None):
            raise EndpointError(self._pages[0], "answered with an error")

    poller = make_poller(Refusing(["http_501"]), kind=kind)
    poller.poll()
    assert poller.state.status.reason == "http_501"
    assert advice in caplog.text
    make_poller(Refusing(["http_503"]), kind=kind).poll()
    assert caplog.text.count(advice) == 1


def test_a_flapping_engine_is_logged_three_times_then_once_a_minute_and_the_silence_is_counted(caplog):
    clock = Clock()
    poller = make_poller([page(1), None] * 60, clock)
    with caplog.at_level(logging.INFO):
        polled(poller, clock, 120, step=1.0)
    lines = [record.message for record in caplog.records if "state=" in record.message]
    assert 4 <= len(lines) <= 6
    assert any("changes_suppressed=" in line for line in lines[1:])
    assert poller.state.status.failures == {"refused": 60}


def test_an_exchange_that_never_returns_is_withdrawn_by_who_looks():
    clock = Clock()
    poller = make_poller([page(1)], clock)
    poller.poll()
    assert poller.view(clock.now).reading is not None
    poller.poll_loop.begin()
    assert poller.view(clock.now + 10).reading is not None
    late = poller.view(clock.now + 16)
    assert late.reading is None
    assert (late.status.reason, late.status.hung) == ("hung", True)


class Versioned:
    def __init__(self, *answers):
        self.asked = 0
        self.answers = list(answers)
        self.down = False

    def fetch(self, path=None):
        if self.down:
            raise EndpointError("refused", "nobody listens there")
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
    poller = make_poller(engine, clock)
    for seconds in (1, 30, 35, 500):
        poll(poller)
        clock.tick(seconds)
    poller.poll()
    assert engine.asked == 2
    assert poller.state.reading.version == "0.32.0"


def test_an_engine_that_comes_back_is_asked_for_its_version_before_anything_is_shown_under_the_old_one():
    clock, engine = Clock(), Versioned(b'{"version": "0.32.0"}', b'{"version": "0.33.0"}', None)
    poller = make_poller(engine, clock)
    poll(poller)
    poll(poller)
    for version in ("0.33.0", ""):
        engine.down = True
        clock.tick(5.0)
        poll(poller)
        assert poller.state.reading is None
        engine.down = False
        clock.tick(5.0)
        poll(poller)
        assert poller.state.reading.version == version and poller.state.restarts == 0
    assert engine.asked == 3, "one that does not say has none, rather than what it was before"


@pytest.mark.parametrize("answer", [b"no json", b"[]", b'{"version": 3}', b"[" * 100_000])
def test_an_odd_version_answer_is_no_version_and_no_error(answer):
    poller = make_poller(Versioned(answer))
    poll(poller)
    poller.poll()
    assert poller.state.reading.version == ""
    assert poller.state.status.up


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


def run_until(poller, condition):
    before = threading.active_count()
    poller.start(time.monotonic())
    until(condition)
    poller.stop()
    poller.join(CEILING)
    assert threading.active_count() <= before, "its thread ended"


def test_the_loop_survives_a_bug_counts_it_and_goes_on():
    engine = Counting(fail=RuntimeError("a bug"))
    poller = replica_poller(plan(interval=0.05), engine)
    run_until(poller, lambda: poller.loop_restarts >= 2)
    assert poller.state.status.reason == "internal"
    assert engine.closed


def test_a_failing_engine_is_polled_less_and_less_often():
    refused, timeout = Counting(EndpointError("refused", "")), Counting(EndpointError("timeout", ""))
    ones = [replica_poller(plan(interval=0.02), engine) for engine in (refused, timeout)]
    for poller in ones:
        poller.poll_loop._consecutive_failures = 100
    for poller, max_delay in zip(ones, (4.0, 10.0), strict=True):
        poller.poll()
        assert 0.8 * min(max_delay, 0.02 * 2**10) <= poller.poll_loop._back_off() <= 1.1 * max_delay
    healthy = replica_poller(plan(interval=0.02), Counting())
    healthy.poll()
    assert healthy.poll_loop._back_off() == 0.0


def test_replicas_start_at_once_and_not_all_together():
    times = staggered(8, 1.0, 100.0)
    assert times[0] == 100.0
    assert len(set(times)) == 8
    assert max(times) <= 100.2


def queued(count):
    extra = "".join(
        f'vllm:{family}_bucket{{model_name="m",engine="0",le="{edge}"}} {count}\n'
        for family in ("request_queue_time_seconds", "time_to_first_token_seconds")
        for edge in ("0.5", "1", "+Inf")
    )
    return page(count * 10, extra=extra)


def test_figures_asked_for_later_are_computed_from_the_past_that_is_kept():
    clock = Clock()
    poller = make_poller([page(100 * n) for n in range(20)], clock)
    polled(poller, clock, 13)
    other = plan(windows=(Window("30s", 30.0), Window("1m", 60.0), Window("10m", 600.0)), quantiles=(0.9,))
    poller.reconfigure(other, None, clock.now)
    state = polled(poller, clock, 1)
    assert {label: figures.seconds for label, figures in state.windows.items()} == {
        "30s": 30.0, "1m": 60.0, "10m": 65.0
    }  # fmt: skip
    assert state.windows["10m"].generation_token_rate == pytest.approx(1300 / 65)
    assert state.headroom is not None, "the usage of the shortest window is kept under its new label"


def test_stages_followed_later_count_from_then_on_and_never_their_life():
    clock = Clock()
    poller = make_poller(
        [queued(n) for n in (1000, 1001, 1002, 1005, 1009, 1010, 1011, 1012)], clock, stages=COMMON_STAGES
    )

    def observed():
        latency = polled(poller, clock, 1).windows["1m"].latency
        return {stage: latency[stage].observations for stage in (Stage.QUEUE, FIRST) if stage in latency}

    polled(poller, clock, 1)
    assert observed() == {FIRST: 1.0}
    poller.reconfigure(plan(), None, clock.now)
    assert observed() == {FIRST: 2.0}, "the first page that is followed is where it begins"
    assert observed() == {FIRST: 5.0, Stage.QUEUE: 3.0}
    poller.reconfigure(plan(stages=COMMON_STAGES), None, clock.now)
    assert observed() == {FIRST: 9.0}
    poller.reconfigure(plan(), None, clock.now)
    assert observed() == {FIRST: 10.0}
    assert observed() == {FIRST: 11.0, Stage.QUEUE: 1.0}, "what it counted before it was left out is over"


def test_lengths_are_read_only_where_they_are_shown_and_a_reload_that_shows_them_empties_no_window():
    clock = Clock()
    poller = make_poller(Replay.of_files([LOAD, AFTER, AFTER, AFTER]), clock, lengths=False)
    before = polled(poller, clock, 2, step=30.0)
    assert not set(before.histograms) & set(LENGTHS)
    poller.reconfigure(plan(), None, clock.now)
    state = polled(poller, clock, 1, step=10.0)
    assert set(LENGTHS) < set(state.histograms)
    assert (state.histograms[Stage.PROMPT_LENGTH].counts[-1], state.histograms[Stage.PROMPT_LENGTH].sum) == (
        1897,
        236947,
    )
    assert state.windows["5m"].generation_token_rate > 0
    assert not set(state.windows["5m"].latency) & set(LENGTHS)
    poller.reconfigure(plan(lengths=False), None, clock.now)
    assert set(polled(poller, clock, 1, step=10.0).histograms) == set(before.histograms)
