"""Log the changes of a source's state, and only those.

A source that flips on every poll must not flood the log: one line a minute per source, and the next line counts the
changes that were suppressed.  After quiet minutes three may follow each other, so that what is started, fails and
comes back is logged as it happens: a line that came a minute late, under the wrong time, misleads whoever compares
logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from exporter.logs import log_down, log_up

LOG_PERIOD_SECONDS = 60.0
BURST = 3  # lines


class RateLimiter:
    """A token bucket of log lines: a few at first, and one more for each minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines, self._at = float(BURST), clock()

    def allow(self) -> bool:
        """Return whether a line may be written now; one that may counts as written."""
        now = self._clock()
        self._lines = min(BURST, self._lines + (now - self._at) / LOG_PERIOD_SECONDS)
        self._at = now
        if self._lines < 1.0:
            return False
        self._lines -= 1.0
        return True


class StateLogger:
    """Logs the state of one source; owned by the thread that reads it."""

    def __init__(self, logger: logging.Logger, source: str, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._source = source
        self._reason: str | None = None  # "" is up; None before the first poll
        self._logged: str | None = None
        self._rate_limiter = RateLimiter(clock)
        self._suppressed = 0

    def up(self) -> None:
        """Record that the source was read; logged when it was down before or never read."""
        self._change("", "")

    def down(self, reason: str, message: str) -> None:
        """Record that the source could not be read; logged when it was up before or the reason changed."""
        self._change(reason, message)

    def _change(self, reason: str, message: str) -> None:
        if reason == self._reason and self._logged == reason:
            return
        if reason != self._reason:
            self._suppressed += 1
        self._reason = reason
        if not self._rate_limiter.allow():
            return
        suppressed = self._suppressed - 1 if self._suppressed > 1 else None
        if reason:
            log_down(self._logger, self._source, reason, message, changes_suppressed=suppressed)
        else:
            log_up(self._logger, self._source, changes_suppressed=suppressed)
        self._logged, self._suppressed = reason, 0
