"""A file or pipe of text that holds the kernel's messages, such as /var/log/kern.log, followed as ``tail -F`` would.

A line of text does not prove who wrote it: a syslog daemon may take a user's for the kernel's, and one that
splits messages at newlines makes a line of its own out of the second line of a crashed program's name.

What the file holds when it is opened first is old (its last MiB is read); a file that appears later, after
a rotation or because it was not there, is new from its beginning.  From a pipe everything is new.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from exporter.errors import SourceError
from exporter.sources.kernel_log.record import KernelRecord, message_of_line, of_driver, written_at

MAX_LINE = 16 * 1024  # bytes; the rest of a longer line is skipped
MAX_BYTES = 256 * 1024  # a turn
BACKLOG = 1 << 20  # bytes of old text that are looked at
_READ = 64 * 1024


class TextLog:
    """The open file; raises OSError, or SourceError("not_a_log") for what is neither a file nor a pipe."""

    is_authentic = False

    def __init__(self, path: str, *, new: bool, unix_now: Callable[[], float]) -> None:
        """Open the file.  ``new``: everything in it was written since this daemon looks for it."""
        self.path, self._unix_now = path, unix_now
        self.overruns = 0
        self._descriptor, self._old_until = -1, 0
        self._open(new=new)

    def _open(self, *, new: bool) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            os.close(descriptor)
            raise SourceError("not_a_log", f"{self.path} is neither a file nor a pipe")
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._regular = stat.S_ISREG(status.st_mode)
        self._stamp = (status.st_dev, status.st_ino)
        self._at = 0
        self._old_until = 0 if new or not self._regular else status.st_size
        self._rest, self._skipping = b"", False
        if self._old_until > BACKLOG:
            self._at = self._old_until - BACKLOG
            self._skipping = True  # the first line is cut

    def read(self) -> list[KernelRecord]:
        """Return the new lines about the GPU driver.  Raises OSError, FileNotFoundError when the file is gone."""
        records = self._lines(MAX_BYTES)
        if self._regular:
            status = os.stat(self.path)
            if (status.st_dev, status.st_ino) != self._stamp:
                records += self._lines(MAX_BYTES)  # what was written up to the rotation
                self._open(new=True)
                records += self._lines(MAX_BYTES)
            elif status.st_size < self._at:
                self._at, self._old_until, self._rest, self._skipping = 0, 0, b"", False  # cut and written anew
                records += self._lines(MAX_BYTES)
        return records

    def _lines(self, max_bytes: int) -> list[KernelRecord]:
        records: list[KernelRecord] = []
        while max_bytes > 0:
            try:
                data = os.pread(self._descriptor, _READ, self._at) if self._regular else self._from_pipe()
            except BlockingIOError:
                break
            if not data:
                break
            max_bytes -= len(data)
            begin, self._at = self._at, self._at + len(data)
            self._cut(data, begin < self._old_until, records)
        return records

    def _from_pipe(self) -> bytes:
        return os.read(self._descriptor, _READ)

    def _cut(self, data: bytes, old: bool, records: list[KernelRecord]) -> None:  # noqa: FBT001 - of this class only
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._skipping and of_driver(line):
                text = line[:MAX_LINE].decode("utf-8", "replace")
                unix_time = written_at(text, self._unix_now()) if old else self._unix_now()
                records.append(KernelRecord(message_of_line(text), unix_time, old=old))
            self._skipping = False
        if len(rest) > MAX_LINE:
            self._skipping, rest = True, b""
        self._rest = b"" if self._skipping else rest

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
