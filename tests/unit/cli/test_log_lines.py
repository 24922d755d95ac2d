"""How the daemon's own log lines look."""

from __future__ import annotations

import json
import logging
import time

import pytest

from exporter.cli.main import _log_to_stderr
from exporter.config.settings import LogSettings


@pytest.fixture(autouse=True)
def far_from_greenwich(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    monkeypatch.undo()
    time.tzset()


def lines(capsys, layout: str) -> list[str]:
    _log_to_stderr(LogSettings(format=layout))
    record = logging.LogRecord("a.b", logging.INFO, __file__, 1, "event=here n=%d", (1,), None)
    record.created, record.msecs = 946_728_000.25, 250.0
    logging.root.handle(record)
    return capsys.readouterr().err.splitlines()


def test_times_are_universal_so_that_the_lines_of_a_fleet_can_be_compared(capsys):
    (line,) = lines(capsys, "text")
    assert line == "time=2000-01-01T12:00:00.250Z level=INFO logger=a.b event=here n=1"


def test_json_says_the_same_time(capsys):
    (line,) = lines(capsys, "json")
    assert json.loads(line) == {
        "time": "2000-01-01T12:00:00.250Z",
        "level": "info",
        "logger": "a.b",
        "message": "event=here n=1",
    }
