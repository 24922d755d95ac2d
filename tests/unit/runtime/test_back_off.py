"""How long a polled page is left alone after failures: seconds, unless asking is dear to either side."""

from __future__ import annotations

import logging
import time
import zlib

import pytest

from exporter.errors import SourceError
from exporter.runtime.poll.loop import PollLoop
from tests.support.builders import Clock
from tests.support.waiting import until

SLACK = 3.0  # seconds that a machine with other work may add

CHEAP = [
    "refused", "http_500", "http_502", "http_503", "http_5xx", "http_404", "empty", "not_metrics", "unknown_engine",
    "no_engine_metrics", "protocol", "encoding", "content_length", "closed", "reset", "tls_expired", "credentials",
]  # fmt: skip
DEAR = [
    "too_large", "head_too_large", "too_many_lines", "series_churn", "series_too_large", "dns", "http_401", "http_403", "http_429", "internal",
]  # fmt: skip


def polling(source: str = "engine:a", interval: float = 1.0) -> PollLoop:
    clock = Clock()
    return PollLoop(source, interval, logger=logging.getLogger("quiet"), clock=clock, unix_now=lambda: 1.7e9)


def failed(poll_loop: PollLoop, reason: str, times: int = 1) -> float:
    for _ in range(times):
        poll_loop.failed(SourceError(reason), 0.0)
    return poll_loop._back_off()


def sources() -> list[str]:
    """Names whose share of the spread is the least and the greatest that there are."""
    by_share = {zlib.crc32(f"engine:{n}".encode()) % 101: f"engine:{n}" for n in range(3000)}
    return [by_share[0], by_share[100]]


@pytest.mark.parametrize("reason", CHEAP)
def test_a_source_that_fails_cheaply_is_read_again_within_five_seconds(reason: str) -> None:
    for source in sources():
        for interval in (0.2, 1.0, 3.0):
            poll_loop = polling(source, interval)
            for _ in range(100):
                assert failed(poll_loop, reason) <= 5.0 - 0.5  # an exchange comes on top, and the next page of ours
            assert poll_loop._back_off() >= 3.0


@pytest.mark.parametrize("reason", DEAR)
def test_an_expensive_source_is_read_twice_a_minute_in_the_end(reason: str) -> None:
    for source in sources():
        poll_loop = polling(source)
        assert 27.0 <= failed(poll_loop, reason, 100) <= 33.0


def test_an_engine_that_was_too_slow_is_seen_again_ten_seconds_after_it_has_caught_up() -> None:
    for source in sources():
        assert 9.0 <= failed(polling(source), "timeout", 100) <= 11.0


def test_the_first_failures_postpone_nothing_and_a_success_resets_them() -> None:
    poll_loop = polling()
    assert [failed(poll_loop, "dns") for _ in range(4)] == [0.0] * 4
    delays = [failed(poll_loop, "dns") for _ in range(6)]
    assert delays == sorted(delays) and delays[0] < 2.5 and delays[-1] > 25.0
    poll_loop.succeeded(0.01)
    assert poll_loop._back_off() == 0.0


def test_the_newest_reason_decides_so_an_engine_that_comes_back_with_errors_is_near() -> None:
    poll_loop = polling()
    assert failed(poll_loop, "dns", 50) > 25.0
    assert failed(poll_loop, "http_503") < 5.0


def test_a_page_that_is_polled_seldom_anyway_keeps_its_beat() -> None:
    assert failed(polling(interval=10.0), "http_500", 50) < 10.0


@pytest.mark.slow
def test_the_loop_itself_comes_back_within_seconds_to_an_engine_that_was_down_for_an_hour() -> None:
    poll_loop = PollLoop("engine:a", 0.2, logger=logging.getLogger("quiet"), clock=time.monotonic, unix_now=time.time)
    asked: list[float] = []
    poll_loop._consecutive_failures = 3600

    def poll_once() -> None:
        asked.append(time.monotonic())
        if len(asked) == 1:
            poll_loop.failed(SourceError("http_500"), asked[-1])
        else:
            poll_loop.succeeded(0.01)

    poll_loop.start(time.monotonic(), poll_once, lambda: None)
    until(lambda: len(asked) >= 4)
    poll_loop.stop()
    poll_loop.join(5.0)
    assert 3.0 < asked[1] - asked[0] < 5.0 + SLACK
    assert asked[3] - asked[1] < 0.4 + SLACK


def test_a_page_with_too_much_series_text_backs_off_from_its_first_failure():
    poll_loop = polling(interval=5.0)
    assert 9.0 <= failed(poll_loop, "series_too_large") <= 11.0
    assert 27.0 <= failed(poll_loop, "series_too_large", 3) <= 33.0
    assert failed(polling(interval=5.0), "series_churn") == 0.0
