"""What the log says of a source that changes state: at once, and never too much."""

from __future__ import annotations

import logging

import pytest

from exporter.runtime.poll.state_logger import BURST, LOG_PERIOD_SECONDS, StateLogger


@pytest.fixture
def source(caplog):
    caplog.set_level(logging.INFO)
    clock = [1000.0]
    state_logger = StateLogger(logging.getLogger("tests.source"), "engine:a", lambda: clock[0])

    def change(reason: str, after: float = 1.0) -> list[str]:
        clock[0] += after
        caplog.clear()
        if reason:
            state_logger.down(reason, "why")
        else:
            state_logger.up()
        return caplog.messages

    return change


def test_a_start_a_fall_and_a_return_are_said_when_they_happen(source):
    assert source("") == ["event=state_changed source=engine:a state=up"]
    assert source("") == []
    assert source("refused") == ["event=state_changed source=engine:a state=down reason=refused error=why"]
    assert source("refused") == []
    assert source("") == ["event=state_changed source=engine:a state=up"]


def test_a_source_that_flips_every_second_says_one_thing_a_minute_and_counts_the_rest(source):
    minutes = 5
    lines_by_second = [source("" if second % 2 else "timeout") for second in range(minutes * 60)]
    lines = [line for each in lines_by_second for line in each]
    assert BURST + minutes - 1 <= len(lines) <= BURST + minutes
    assert sum(map(len, lines_by_second[:6])) == BURST
    counted = sum(int(line.partition("changes_suppressed=")[2].split()[0]) for line in lines if "suppressed" in line)
    last = max(second for second, each in enumerate(lines_by_second) if each)
    assert counted + len(lines) == last + 1


def test_what_could_not_be_said_is_said_as_soon_as_it_may(source):
    for reason in ("", "refused", "", "timeout"):
        last = source(reason, 0.1)
    assert last == []
    assert source("timeout", LOG_PERIOD_SECONDS + 0.1) == [
        "event=state_changed source=engine:a state=down reason=timeout error=why"
    ]
