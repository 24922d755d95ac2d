"""What every polled page has in common: a thread of its own, a ticker, back-off after failures, and its health.

A source that hangs delays no other, because none shares its thread.  The owner of a ``PollLoop`` defines what one
turn does; the health that it gets back stands beside the data that it publishes.

How far polls move apart while a source fails depends on what a failed poll costs.  A refusal, an error status or a
page that cannot be read is over within a millisecond or two for either side, and whoever mends an engine looks for it
at once: such a source is asked every four seconds or so, and is back within five, or one interval if that is
longer.  One that hangs leaves another connection with a server that has no worker free; but an engine is slow just
when it is loaded and looked at, so ten seconds must do.  Up to half a minute apart are polls that take from others
while they fail: a page over the limits is written and sent in vain, name servers serve whole clusters, wrong
passwords lock accounts, a 429 asks for peace, and a bug of ours logs a traceback.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from exporter.errors import SourceError
from exporter.logs import log_event, log_exception
from exporter.model import SourceStatus
from exporter.runtime.poll.state_logger import LOG_PERIOD_SECONDS, StateLogger
from exporter.runtime.poll.ticker import Ticker
from exporter.threads import Thread

Action = Callable[[], None]

_BACK_OFF_AFTER = 5  # failures in a row; a restart of an engine takes minutes and needs no poll a second
_GAP = 0.003  # seconds between the polls of neighbours; a poll takes one or two thousandths
_MAX_BACK_OFF = 4.0  # seconds; the spread, one exchange and our next page come on top, and make five
_MAX_BACK_OFF_BY_REASON = {"timeout": 10.0} | dict.fromkeys(
    (
        "too_large",
        "head_too_large",
        "too_many_lines",
        "series_churn",
        "series_too_large",
        "dns",
        "internal",
        "http_401",
        "http_403",
        "http_429",
    ),
    30.0,
)


class Fetched(Protocol):
    """An answer's body, how long it took in seconds, and when the server's certificate ends (Unix time)."""

    @property
    def body(self) -> bytes: ...  # noqa: D102

    @property
    def duration(self) -> float: ...  # noqa: D102

    @property
    def certificate_expires(self) -> float | None: ...  # noqa: D102


class Fetcher(Protocol):
    """One bounded exchange; raises SourceError and nothing else."""

    def fetch(self, path: str | None = None) -> Fetched: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class PollLoop:
    """The loop and the health of one source, named like ``engine:chat-a``.  Owned by the one thread that polls it."""

    def __init__(
        self,
        source: str,
        interval: float,
        *,
        logger: logging.Logger,
        clock: Callable[[], float],
        unix_now: Callable[[], float],
    ) -> None:
        self.source = source
        self.interval = interval
        self.loop_restarts = 0
        self.status = SourceStatus(source=source, up=False, reason="starting")
        self._logger = logger
        self._clock = clock
        self._unix_now = unix_now
        self._state_logger = StateLogger(logger, source, clock)
        self._failures: Counter[str] = Counter()
        self._consecutive_failures = 0
        self._restart_logged_at = float("-inf")
        self._exchange_began: float | None = None
        self._ticker: Ticker | None = None
        self._requested: tuple[float, float] | None = None  # another interval, and when it begins
        self._applied: tuple[float, float] | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._thread: Thread | None = None

    # ------------------------------------------------------------------ the health of one poll

    def begin(self) -> float:
        """Record that an exchange begins, and return the time."""
        started = self._exchange_began = self._clock()
        # Not before a poll has begun, or a shorter interval would make the last poll look late.
        if self._ticker is not None:
            self.interval = self._ticker.interval
        return started

    def end(self) -> None:
        """Record that the exchange has ended, with success or not."""
        self._exchange_began = None

    def elapsed(self) -> float:
        """Return how many seconds the exchange under way has taken; 0 between two."""
        since = self._exchange_began
        return 0.0 if since is None else self._clock() - since

    def is_overdue(self, now: float) -> bool:
        """Return whether nothing has come for far too long: the exchange under way hangs, or the loop is dead."""
        since = self._exchange_began
        if since is None and self.status.up:
            since = self.status.last_success
        return since is not None and now - since > 2 * self.interval + 5.0

    def status_at(self, now: float) -> SourceStatus:
        """Return the health at ``now``: that of a hung source once it is overdue."""
        return as_hung(self.status) if self.is_overdue(now) else self.status

    def succeeded(self, duration: float) -> SourceStatus:
        """Record a success that took ``duration`` seconds, and return the health after it."""
        self._consecutive_failures = 0
        self._state_logger.up()
        self.status = replace(
            self.status,
            up=True,
            reason="",
            error="",
            duration=duration,
            last_success=self._clock(),
            last_success_unix_time=self._unix_now(),
            skipped=self._skipped(),
        )
        return self.status

    def failed(self, error: SourceError, started: float) -> SourceStatus:
        """Record a failure of a poll that began at ``started``, and return the health after it."""
        self._failures[error.reason] += 1
        self._consecutive_failures += 1
        self._state_logger.down(error.reason, str(error))
        self.status = replace(
            self.status,
            up=False,
            reason=error.reason,
            error=str(error),
            duration=self._clock() - started,
            failures=dict(self._failures),
            skipped=self._skipped(),
        )
        return self.status

    def _skipped(self) -> int:
        return self._ticker.skipped if self._ticker is not None else 0

    def log_restart(self) -> None:
        """Log a restart, at most once a minute: counters that fall on every page must not flood the log."""
        now = self._clock()
        if now - self._restart_logged_at >= LOG_PERIOD_SECONDS:
            self._restart_logged_at = now
            log_event(self._logger, logging.INFO, "restarted", source=self.source)

    # ------------------------------------------------------------------ the loop

    def start(
        self,
        first: float,
        turn: Action,
        close: Action,
        *,
        crashed: Callable[[SourceStatus], None] = lambda _: None,
    ) -> None:
        """Call ``turn`` from ``first`` (monotonic) on, in a thread of its own, and ``close`` at the end.

        A turn that raises counts as a failure, and the loop goes on; ``crashed`` is handed the health after it.
        """
        self._thread = Thread(self._run, name=self.source, args=(first, turn, close, crashed))
        self._thread.start()

    def reschedule(self, interval: float, first: float) -> None:
        """Poll at ``first`` (monotonic), and every ``interval`` seconds from then on; callable from any thread."""
        self._requested = (interval, first)
        self.interval = max(self.interval, interval)  # or the last poll would look late until the next one
        self._wake.set()

    def stop(self) -> None:
        """Signal the thread to end; it does so within one exchange."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout: float) -> None:
        """Wait for the thread, not for ever."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, first: float, turn: Action, close: Action, crashed: Callable[[SourceStatus], None]) -> None:
        ticker = self._ticker = Ticker(self.interval, first)
        while self._waited(ticker):
            try:
                turn()
            except Exception:
                self.loop_restarts += 1
                msg = "a poll failed unexpectedly; the loop goes on"
                log_exception(self._logger, "internal_error", msg, source=self.source)
                bug = SourceError("internal", "an unexpected error; see the log")
                crashed(self.failed(bug, self._clock()))
            now = self._clock()
            ticker.advance(now)
            delay = self._back_off()
            if delay > ticker.wait(now):
                ticker.postpone(now, delay)
        close()

    def _waited(self, ticker: Ticker) -> bool:
        """Wait until a poll is due, and return True; False when the loop is to end instead."""
        while True:
            woken = self._wake.wait(ticker.wait(self._clock()))
            self._wake.clear()
            if self._stopping:
                return False
            asked = self._requested  # set before the wake-up, so none is lost
            if asked is not None and asked is not self._applied:
                self._applied = asked
                ticker.restart(*asked)
            elif not woken:
                return True

    def _back_off(self) -> float:
        # Not driver.cooldown's Backoff: the limit follows the newest reason, and five failures wait for nothing.
        at_once = self.status.reason == "series_too_large"  # each such page costs megabytes for a moment
        over = self._consecutive_failures - (1 if at_once else _BACK_OFF_AFTER)
        if over < 0:
            return 0.0
        max_delay = _MAX_BACK_OFF_BY_REASON.get(self.status.reason, _MAX_BACK_OFF)
        # So that sources which fell together spread out.
        spread = 0.9 + 0.2 * (zlib.crc32(self.source.encode()) % 101) / 101
        return min(max_delay, self.interval * 2.0 ** min(over + 1, 10)) * spread


def as_hung(status: SourceStatus) -> SourceStatus:
    """Return the health of a source whose exchange does not return."""
    return replace(status, up=False, reason="hung", error="", hung=True)


def staggered(count: int, interval: float, now: float) -> Sequence[float]:
    """First due times of ``count`` sources: the first at once, the others close behind it, one after the other.

    One after the other, so that they do not fight for the interpreter; close, because a poll that follows another
    finds its code and data in the processor's caches, which saves a tenth of its time.
    """
    gap = min(_GAP, 0.2 * interval / max(1, count))
    return [now + index * gap for index in range(count)]
