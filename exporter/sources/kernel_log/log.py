"""The kernel log of this machine, from whatever place can be read: the errors of GPUs, switches and adapters in it.

Without a configured path the device is tried first, then systemd's journal, then the file into which syslog daemons
write the same, whose lines do not prove that they are the kernel's.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable

from msgspec import Struct

from exporter.errors import SourceError
from exporter.sources.kernel_log.journal import JournalLog
from exporter.sources.kernel_log.kmsg import Kmsg
from exporter.sources.kernel_log.messages import GpuNameMessage, MessageParser, XidMessage
from exporter.sources.kernel_log.nic_messages import NicMessage
from exporter.sources.kernel_log.record import KernelRecord
from exporter.sources.kernel_log.switch_messages import SxidMessage
from exporter.sources.kernel_log.text_log import TextLog

DEVICE, TEXT = "/dev/kmsg", "/var/log/kern.log"
JOURNAL_PERIOD = 600.0  # seconds between attempts at a journal that refused, as each costs a process
_HINT = (
    "give the daemon CAP_SYSLOG, or put its user into the group systemd-journal, or name a log file that it may read "
    "as kernel_log.path"
)


class Entry(Struct, frozen=True, kw_only=True):
    """A message of the driver, and when it was written; ``unix_time`` None: not known."""

    message: XidMessage | GpuNameMessage | SxidMessage | NicMessage
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
        self._parser = MessageParser()
        self._log: Kmsg | TextLog | JournalLog | None = None
        self._journal_at = float("-inf")  # no journal before that
        self._missing: set[str] = set()  # paths that did not exist when last opened

    def read(self) -> list[Entry]:
        """Return the messages of the driver since the last time.

        Raises SourceError: no_permission, missing, not_a_log, unreadable.
        """
        try:
            if self._log is None:
                self._log = self._open_any()
            records = self._log.read()
        except OSError as error:
            if isinstance(self._log, TextLog) and isinstance(error, FileNotFoundError):
                self._missing.add(self._log.path)
            self.close()
            raise self._failure(error) from error
        self.overruns += self._log.overruns
        self._log.overruns = 0
        return self._entries(records)

    def _entries(self, records: list[KernelRecord]) -> list[Entry]:
        entries = []
        for record in records:
            message = self._parser.parse(record.message)
            if message is not None:
                entries.append(Entry(message=message, unix_time=record.unix_time, old=record.old))
        return entries

    def _open_any(self) -> Kmsg | TextLog | JournalLog:
        if self.path is not None:
            return self._open(self.path)
        with contextlib.suppress(OSError):
            return self._open(DEVICE)
        if self._clock() >= self._journal_at:
            self._journal_at = self._clock() + JOURNAL_PERIOD
            with contextlib.suppress(OSError):
                log = JournalLog(unix_now=self._unix_now)
                self._journal_at = float("-inf")
                return log
        with contextlib.suppress(OSError):
            return self._open(TEXT)
        return self._open(DEVICE)  # the one that should work, for its error

    def _open(self, path: str) -> Kmsg | TextLog:
        try:
            if stat.S_ISCHR(os.stat(path).st_mode):
                return Kmsg(path, clock=self._clock, unix_now=self._unix_now)
            # What may be read from now on only is as old as it is: only what was not there before is new.
            log = TextLog(path, new=path in self._missing, unix_now=self._unix_now)
        except FileNotFoundError:
            self._missing.add(path)
            raise
        self._missing.discard(path)
        return log

    def _failure(self, error: OSError) -> SourceError:
        name = self.path or DEVICE
        why = error.strerror or "it failed"
        if isinstance(error, PermissionError):
            return SourceError("no_permission", f"{name} cannot be read ({why}): {_HINT}")
        if isinstance(error, FileNotFoundError):
            return SourceError("missing", f"{name} is not there: in a container, mount it; or {_HINT}")
        return SourceError("unreadable", f"{name} cannot be read: {why}")

    @property
    def is_authentic(self) -> bool:
        """Whether the place that is read proves that the kernel wrote what it holds."""
        return self._log is None or self._log.is_authentic

    def close(self) -> None:
        """Close the log; the next read opens it again."""
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()
