"""How the daemon's own log lines look: logfmt or JSON, one key a field, and nothing that a value holds breaks either."""

from __future__ import annotations

import errno
import json
import logging
import re
import time

import pytest

from exporter.logs import LogEvent, formatter, log_down, log_event, log_exception, log_up

logger = logging.getLogger("a.b")
MALICIOUS = 'a"b=c \\d\n\x1b[31m\x9b\u202e\u2028 \u4e2d'


@pytest.fixture(autouse=True)
def far_from_greenwich(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def record_of(message: object, *arguments: object) -> logging.LogRecord:
    record = logging.LogRecord("a.b", logging.INFO, __file__, 1, message, arguments, None)
    record.created, record.msecs = 946_728_000.25, 250.0
    return record


def parsed(line: str) -> dict[str, str]:
    """Parse logfmt as strictly as Go's parsers do: pairs with one space between them, values quoted like JSON."""
    pair = re.compile(r'([a-z_]+)=(?:("(?:[^"\\\x00-\x1f]|\\.)*")|([!#-<>-~]+))(?: |$)')
    fields, position = {}, 0
    while position < len(line):
        found = pair.match(line, position)
        assert found, line[position:]
        fields[found[1]] = json.loads(found[2]) if found[2] else found[3]
        position = found.end()
    return fields


def test_times_are_universal_so_that_the_lines_of_a_fleet_can_be_compared():
    line = formatter("logfmt").format(record_of(LogEvent("arrived", "it is here", {"n": 1})))
    assert line == 'time=2000-01-01T12:00:00.250Z level=info logger=a.b event=arrived n=1 msg="it is here"'


def test_json_has_the_same_keys_and_keeps_numbers():
    line = formatter("json").format(record_of(LogEvent("arrived", "", {"n": 1, "full": True})))
    assert json.loads(line) == {
        "time": "2000-01-01T12:00:00.250Z",
        "level": "info",
        "logger": "a.b",
        "event": "arrived",
        "n": 1,
        "full": True,
    }


@pytest.mark.parametrize("value", [MALICIOUS, "", " ", "=", '"', "a b", "\\", "\ud800"])
def test_any_value_comes_back_whole_from_either_format_on_one_printable_line(value):
    event = LogEvent("arrived", "", {"value": value})
    text, as_json = (formatter(name).format(record_of(event)) for name in ("logfmt", "json"))
    assert parsed(text)["value"] == json.loads(as_json)["value"] == value
    assert text.isprintable() and as_json.isprintable()


def test_a_value_without_anything_special_is_not_quoted_and_none_is_left_out():
    event = LogEvent("arrived", "", {"url": "http://a:1/b?c", "gone": None, "ok": False, "share": 0.5})
    assert str(event) == "event=arrived url=http://a:1/b?c ok=false share=0.5"


@pytest.mark.parametrize("name", ["logfmt", "json"])
def test_an_exception_becomes_two_fields_of_the_same_line(name, caplog):
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        log_exception(logger, "internal_error", "it failed")
    line = formatter(name).format(caplog.records[0])
    fields = json.loads(line) if name == "json" else parsed(line)
    assert fields["error"] == "ZeroDivisionError: a bug" and fields["msg"] == "it failed"
    assert "\n" not in line and fields["traceback"].startswith("Traceback") and "\n" in fields["traceback"]


def test_a_limit_of_descriptors_is_one_line_without_a_traceback(caplog):
    try:
        raise OSError(errno.EMFILE, "Too many open files", "html/__init__.py")
    except OSError:
        log_exception(logger, "internal_error", "it failed")
    fields = parsed(formatter("logfmt").format(caplog.records[0]))
    assert (fields["reason"], fields["error"]) == ("descriptor_limit", "Too many open files")
    assert "traceback" not in fields and "ulimit -n" in fields["hint"]


def test_what_a_library_logs_is_a_message_without_an_event():
    line = formatter("logfmt").format(record_of("retrying %s times", 3))
    assert parsed(line)["msg"] == "retrying 3 times" and "event" not in parsed(line)


def test_states_are_logged_with_their_source_and_reason(caplog):
    caplog.set_level(logging.INFO)
    log_down(logger, "engine:a", "refused", "nobody listens", gpu=0)
    log_up(logger, "engine:a")
    assert caplog.messages == [
        'event=state_changed source=engine:a state=down reason=refused gpu=0 error="nobody listens"',
        "event=state_changed source=engine:a state=up",
    ]


def test_a_level_that_is_off_costs_no_rendering(caplog):
    caplog.set_level(logging.INFO)
    log_event(logger, logging.DEBUG, "arrived")
    assert not caplog.records
