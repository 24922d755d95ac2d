"""Log lines to standard error by one thread, so that a reader that stops blocks nothing else.

A pipe that is not read, a terminal that is stopped, a journal that hangs: a write to any of them may never return.
Callers only append to a bounded queue.  Lines that do not fit are dropped and counted, and a later line reports how
many.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque

from exporter.errors import ThreadLimitError
from exporter.logs import LogEvent
from exporter.threads import Thread

MAX_LINES, MAX_BYTES = 1000, 1 << 20  # that wait
MAX_LINE = 32 * 1024  # bytes; a traceback of some depth
FLUSH_SECONDS = 0.5  # at the end of the process


class LogWriter:
    """A bounded queue of lines and the thread that writes them.  Any thread may call."""

    def __init__(self, descriptor: int = 2) -> None:
        """``descriptor`` is written to, and never closed."""
        self.dropped = 0  # lines
        self.reported = 0  # of them, those that a log line has reported
        self.could_not_start = False  # its thread, since the last report
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._wake, self._written = threading.Event(), threading.Event()
        self._thread: Thread | None = None

    def write(self, line: str) -> bool:
        """Append a line; return False if it was dropped.  Never waits."""
        accepted = self.offer(line)
        if not accepted:
            with self._lock:
                self.dropped += 1
        return accepted

    def offer(self, line: str) -> bool:
        """Append a line where there is room for it; return whether there was."""
        data = line.encode("utf-8", "backslashreplace")[: MAX_LINE - 1] + b"\n"
        with self._lock:
            if len(self._lines) >= MAX_LINES or self._bytes + len(data) > MAX_BYTES or not self._is_running():
                return False
            self._lines.append(data)
            self._bytes += len(data)
            self._written.clear()
        self._wake.set()
        return True

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all lines are written, at most ``seconds``; return whether they are."""
        with self._lock:
            if not self._lines:
                return True
        return self._written.wait(seconds)

    def _is_running(self) -> bool:
        if self._thread is None:
            thread = Thread(self._run, name="log")
            try:
                thread.start()
            except ThreadLimitError:
                self.could_not_start = True
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                lost = not self._write(self._lines[0])  # it counts as waiting until it is written
                with self._lock:
                    self._bytes -= len(self._lines.popleft())
                    self.dropped += lost
                    if not self._lines:
                        self._written.set()

    def _write(self, data: bytes) -> bool:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # noqa: PERF203 - another program made it nonblocking, as some do with terminals
                select.select([], [self._descriptor], [], 1.0)
            except OSError:
                return False
        return True


class LogHandler(logging.Handler):
    """Formats records in the thread that logs, and hands them to the writer."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer
        self._flushed_until = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after a line about those that were dropped before it."""
        try:
            writer = self._writer
            dropped = writer.dropped - writer.reported
            if dropped and writer.offer(self.format(_dropped(dropped, no_thread=writer.could_not_start))):
                writer.reported += dropped
                writer.could_not_start = False
            writer.write(self.format(record))
        except Exception:  # a field that cannot be formatted; the library would print it to standard error, and wait
            self._writer.dropped += 1

    def flush(self) -> None:
        """Wait for the lines, a bounded time in all however often it is called."""
        now = time.monotonic()
        if self._flushed_until == float("-inf"):
            self._flushed_until = now + FLUSH_SECONDS
        self._writer.flush(max(0.0, self._flushed_until - now))


def _dropped(lines: int, *, no_thread: bool) -> logging.LogRecord:
    why = (
        "no thread could be started to write to standard error"
        if no_thread
        else "standard error was not read in time"
    )
    msg = f"{why}; these lines are lost"
    event = LogEvent("log_lines_dropped", msg, {"lines": lines})
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, event, None, None)


stderr_writer = LogWriter()
