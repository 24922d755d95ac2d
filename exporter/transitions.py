"""Say in the log when a source changes state, and only then.

A source that flips on every poll must not flood the log: three lines a minute per source at most, and the next line
says how many changes went unsaid.  Three, so that what is started, fails and comes back is told as it happens: a line
that came a minute late, under the wrong time, misleads whoever lays logs side by side.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

QUIET_SECONDS = 60.0
LINES = 3  # in so many seconds


class Transitions:
    """The log voice of one source; owned by the thread that reads it."""

    def __init__(self, logger: logging.Logger, source: str, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._source = source
        self._clock = clock
        self._reason: str | None = None  # "" is up; None before the first verdict
        self._said: str | None = None
        self._said_at: deque[float] = deque(maxlen=LINES)
        self._unsaid = 0

    def up(self) -> None:
        """Note that the source was read; logged when it was down before or never read."""
        self._turn("", "")

    def down(self, reason: str, message: str) -> None:
        """Note that the source could not be read; logged when it was up before or the reason changed."""
        self._turn(reason, message)

    def _turn(self, reason: str, message: str) -> None:
        if reason == self._reason and self._said == reason:
            return
        if reason != self._reason:
            self._unsaid += 1
        self._reason = reason
        now = self._clock()
        if len(self._said_at) == LINES and now - self._said_at[0] < QUIET_SECONDS:
            return
        unsaid = f" changes_unsaid={self._unsaid - 1}" if self._unsaid > 1 else ""
        if reason:
            self._logger.warning("source=%s state=down reason=%s%s: %s", self._source, reason, unsaid, message)
        else:
            self._logger.info("source=%s state=up%s", self._source, unsaid)
        self._said, self._unsaid = reason, 0
        self._said_at.append(now)
