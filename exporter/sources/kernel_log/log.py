"""The kernel log of this machine, from whatever place can be read: errors of cards that stand in it.

Without a configured path the device is tried first, then the file into which syslog daemons write the same, then
systemd's journal.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

from exporter.errors import SourceError
from exporter.sources.kernel_log.journal import JournalLog
from exporter.sources.kernel_log.kmsg import Kmsg
from exporter.sources.kernel_log.line import LineReader, NameLine, XidLine
from exporter.sources.kernel_log.record import Record
from exporter.sources.kernel_log.switch_line import SxidLine
from exporter.sources.kernel_log.text_log import TextLog

PLACES = ("/dev/kmsg", "/var/log/kern.log")
JOURNAL_EVERY = 600.0  # seconds between attempts at a journal that refused, as each costs a process
_CURE = (
    "give the daemon CAP_SYSLOG, or put its user into the group systemd-journal, or name a log file that it may read "
    "as kernel_log.path"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a line says, and when it was written; ``unix_time`` None: not known."""

    said: XidLine | NameLine | SxidLine
    unix_time: float | None
    old: bool


class KernelLog:
    """Opened at the first read, and again after a failure.  Owned by the one thread that reads it."""

    def __init__(
        self,
        path: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.overruns = 0  # times that the kernel overwrote what was not read yet
        self._clock, self._unix_now = clock, unix_now
        self._lines = LineReader()
        self._log: Kmsg | TextLog | JournalLog | None = None
        self._journal_at = float("-inf")  # no journal before that
        self._missing: set[str] = set()  # places that were not there when last looked at

    def read(self) -> list[Entry]:
        """Give what was said since the last time.

        Raises SourceError: no_permission, missing, not_a_log, unreadable.
        """
        try:
            if self._log is None:
                self._log = self._opened()
            records = self._log.read()
        except OSError as error:
            if isinstance(self._log, TextLog) and isinstance(error, FileNotFoundError):
                self._missing.add(self._log.path)
            self.close()
            raise self._failure(error) from error
        self.overruns += self._log.overruns
        self._log.overruns = 0
        return self._entries(records)

    def _entries(self, records: list[Record]) -> list[Entry]:
        entries = []
        for record in records:
            said = self._lines.read(record.text)
            if said is not None:
                entries.append(Entry(said=said, unix_time=record.unix_time, old=record.old))
        return entries

    def _opened(self) -> Kmsg | TextLog | JournalLog:
        places = (self.path,) if self.path is not None else PLACES
        for place in places:
            with contextlib.suppress(OSError):
                return self._open(place)
        if self.path is None and self._clock() >= self._journal_at:
            self._journal_at = self._clock() + JOURNAL_EVERY
            with contextlib.suppress(OSError):
                log = JournalLog(unix_now=self._unix_now)
                self._journal_at = float("-inf")
                return log
        return self._open(places[0])  # the one that should work, for its error

    def _open(self, place: str) -> Kmsg | TextLog:
        try:
            if stat.S_ISCHR(os.stat(place).st_mode):
                return Kmsg(place, clock=self._clock, unix_now=self._unix_now)
            # What may be read from now on only is as old as it is: only what was not there before is new.
            log = TextLog(place, new=place in self._missing, unix_now=self._unix_now)
        except FileNotFoundError:
            self._missing.add(place)
            raise
        self._missing.discard(place)
        return log

    def _failure(self, error: OSError) -> SourceError:
        name = self.path or PLACES[0]
        why = error.strerror or "it failed"
        if isinstance(error, PermissionError):
            return SourceError("no_permission", f"{name} cannot be read ({why}): {_CURE}")
        if isinstance(error, FileNotFoundError):
            return SourceError("missing", f"{name} is not there: in a container, mount it; or {_CURE}")
        return SourceError("unreadable", f"{name} cannot be read: {why}")

    def close(self) -> None:
        """Let go of the log; the next read opens it again."""
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()
