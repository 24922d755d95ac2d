"""Standard error that nobody reads: callers never wait, what waits is bounded, and what is lost is counted and said."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import threading
import time

import pytest

from exporter import log_writer
from exporter.errors import ThreadLimitError
from exporter.log_writer import LogHandler, LogWriter
from exporter.logs import formatter, log_event
from tests.support.waiting import until


class Pipe:
    """A pipe of one page of memory, read when the test says so."""

    def __init__(self) -> None:
        self.reading_end, self.writing_end = os.pipe()
        fcntl.fcntl(self.writing_end, fcntl.F_SETPIPE_SZ, 4096)

    def read(self, lines: int) -> list[str]:
        text = b""
        while text.count(b"\n") < lines:
            assert select.select([self.reading_end], [], [], 10.0)[0], text
            text += os.read(self.reading_end, 65536)
        return text.decode().splitlines()

    def drain(self, until_closed: threading.Event) -> None:
        while not until_closed.is_set() or select.select([self.reading_end], [], [], 0)[0]:
            if select.select([self.reading_end], [], [], 0.01)[0]:
                os.read(self.reading_end, 65536)


@pytest.fixture
def pipe():
    one = Pipe()
    yield one
    os.close(one.reading_end)
    os.close(one.writing_end)


@pytest.fixture
def writer(pipe):
    one = LogWriter(pipe.writing_end)
    yield one
    done = threading.Event()
    reader = threading.Thread(target=pipe.drain, args=[done])
    reader.start()
    assert one.flush(10.0)
    done.set()
    reader.join(10)


@pytest.fixture
def logger(writer):
    handler = LogHandler(writer)
    handler.setFormatter(formatter("logfmt"))
    one = logging.Logger("tests.log_writer")  # noqa: LOG001 - no other test is to see it
    one.addHandler(handler)
    return one


def test_lines_arrive_in_their_order(pipe, writer):
    for number in range(20):
        assert writer.write(f"line {number}")
    assert pipe.read(20) == [f"line {number}" for number in range(20)]
    assert writer.flush(10.0) and writer.dropped == 0


def test_who_logs_never_waits_for_who_does_not_read_and_what_is_kept_is_bounded(writer, monkeypatch):
    monkeypatch.setattr(log_writer, "MAX_LINES", 50)
    began = time.monotonic()
    kept = sum(writer.write("x" * 1000) for _ in range(2000))
    assert time.monotonic() - began < 5.0
    assert 50 <= kept <= 50 + 4096 // 1000 + 1 and writer.dropped == 2000 - kept
    assert not writer.flush(0.05)


def test_what_waits_is_bounded_in_bytes_too(writer):
    kept = sum(writer.write("x" * 100_000) for _ in range(200))
    assert kept * log_writer.MAX_LINE <= log_writer.MAX_BYTES + 4096 + log_writer.MAX_LINE


def test_lines_that_are_lost_are_said_once_lines_flow_again(pipe, writer, logger, monkeypatch):
    monkeypatch.setattr(log_writer, "MAX_LINES", 10)
    for number in range(100):
        log_event(logger, logging.INFO, "counted", "y" * 500, number=number)
    dropped = writer.dropped
    assert dropped > 50
    lines = pipe.read(100 - dropped)
    until(lambda: writer.flush(0.0))
    log_event(logger, logging.INFO, "again")
    while "event=again" not in lines[-1]:
        lines += pipe.read(1)
    lost = [line for line in lines if "event=log_lines_dropped" in line]
    # One line, or two where the writer came to write before the pipe was full.
    assert sum(int(re.search(r" lines=(\d+) ", line)[1]) for line in lost) == writer.dropped == dropped
    assert len(lost) <= 2 and all("level=warning" in line for line in lost)


def test_a_flush_gives_up_soon_and_once(logger, monkeypatch):
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 0.2)
    for _ in range(20):
        log_event(logger, logging.INFO, "counted", "y" * 500)
    began = time.monotonic()
    for _ in range(5):
        logger.handlers[0].flush()
    assert 0.1 < time.monotonic() - began < 2.0


def test_an_error_that_cannot_be_written_is_a_lost_line_and_nothing_else(tmp_path):
    with open("/dev/full", "wb") as full:
        writer = LogWriter(full.fileno())
        assert writer.write("a") and writer.write("b")
        until(lambda: writer.dropped == 2)
        assert writer.flush(1.0)


def test_a_pipe_made_nonblocking_by_another_process_loses_nothing(pipe, writer):
    os.set_blocking(pipe.writing_end, False)
    for number in range(20):
        assert writer.write(f"{number:03d} " + "x" * 1000)
    assert [line[:3] for line in pipe.read(20)] == [f"{number:03d}" for number in range(20)]
    assert writer.flush(10.0) and writer.dropped == 0


def test_without_a_thread_lines_are_lost_until_there_is_one(pipe, writer, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not writer.write("lost")
    assert writer.dropped == 1 and writer.write("kept")
    assert pipe.read(1) == ["kept"]


def test_a_record_that_cannot_be_formatted_is_a_lost_line_and_prints_nothing(writer, logger, capfd):
    logger.warning("%d", "no number")
    assert writer.dropped == 1
    assert capfd.readouterr().err == ""


def test_lines_that_are_lost_because_no_thread_could_be_started_are_reported_as_such(writer, pipe, monkeypatch):
    def no_more(_):
        raise ThreadLimitError("can't start new thread")

    log = logging.LogRecord(__name__, logging.INFO, __file__, 0, "event=a", None, None)
    handler = LogHandler(writer)
    handler.setFormatter(formatter("logfmt"))
    with monkeypatch.context() as limited:
        limited.setattr(log_writer.Thread, "start", no_more)
        handler.emit(log)
    handler.emit(log)
    lost, _ = pipe.read(2)
    assert "event=log_lines_dropped" in lost and "lines=1" in lost
    assert "no thread could be started" in lost and "not read in time" not in lost
