"""The log as the settings ask for it, judged by parsers that are not ours."""

from __future__ import annotations

import json
import logging

import logfmt
import pytest

from exporter.cli.setup import log_to_stderr
from exporter.config.settings import parse
from exporter.logs import log_down, log_event

logger = logging.getLogger("exporter.somewhere")
WANTED = {
    "level": "warning",
    "logger": "exporter.somewhere",
    "event": "state_changed",
    "source": "engine:chat a",
    "state": "down",
    "reason": "refused",
    "url": "http://127.0.0.1:8000/metrics?a=b",
    "error": "nobody listens; is it = started?",
}


def lines(capfd, text):
    log_to_stderr(parse(text, "c.yaml", {}).log)
    log_event(logger, logging.INFO, "started")
    log_down(logger, "engine:chat a", "refused", WANTED["error"], url=WANTED["url"])
    logging.root.handlers[0].flush()
    return capfd.readouterr().err.splitlines()


@pytest.mark.parametrize(("name", "read"), [("logfmt", logfmt.parse_line), ("json", json.loads)])
def test_a_line_of_either_format_is_read_by_a_parser_of_that_format(name, read, capfd):
    started, down = map(read, lines(capfd, f"log: {{format: {name}}}"))
    assert {key: down[key] for key in WANTED} == WANTED
    assert down.keys() == {*WANTED, "time"}
    assert started["event"] == "started" and started["level"] == "info"


def test_logfmt_is_the_default_and_the_level_is_the_least_that_is_logged(capfd):
    (only,) = map(logfmt.parse_line, lines(capfd, "log: {level: warning}"))
    assert only["event"] == "state_changed"
