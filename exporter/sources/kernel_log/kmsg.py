"""``/dev/kmsg``: the kernel's ring of messages, one record a read, never waited for.

A read returns ``priority,sequence,microseconds,flags;text``, then lines with the record's properties.  Records that
root wrote into the device have another facility than the kernel's, and are skipped.  What the ring still holds at the
beginning is old; what comes after the first time that nothing is left is new.  Records that were overwritten before
they were read are counted in ``overruns``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from exporter.sources.kernel_log.record import KernelRecord, of_driver

MAX_RECORD = 8192  # the kernel's own limit
MAX_READS = 4096  # a turn: some milliseconds
_MAX_PRIORITY = 7  # of facility kern, which is 0
OLD_FOR = 60.0  # seconds; under a flood there is always something left


class Kmsg:
    """The open device; raises OSError from the constructor.  Times of records are monotonic, like the kernel's."""

    is_authentic = True  # only the kernel writes records of its facility

    def __init__(self, path: str, *, clock: Callable[[], float], unix_now: Callable[[], float]) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._clock, self._unix_now = clock, unix_now
        self._opened = clock()
        self._old = True
        self.overruns = 0

    def read(self) -> list[KernelRecord]:
        """Return the new records about the GPU driver, at most those of MAX_READS reads.  Raises OSError."""
        records = []
        if self._clock() - self._opened > OLD_FOR:
            self._old = False
        for _ in range(MAX_READS):
            try:
                data = os.read(self._descriptor, MAX_RECORD)
            except BlockingIOError:
                self._old = False
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # the next read goes on with the oldest that is left
                    self.overruns += 1
                    continue
                if error.errno == errno.EINVAL:  # a record longer than any: it is skipped
                    continue
                raise
            if not data:
                break
            if of_driver(data) and (record := self._record(data)) is not None:
                records.append(record)
        return records

    def _record(self, data: bytes) -> KernelRecord | None:
        head, _, text = data.partition(b";")
        priority = head.partition(b",")[0]
        if not priority.isdigit() or int(priority[:9]) > _MAX_PRIORITY:
            return None
        message = text.partition(b"\n")[0].decode("utf-8", "replace")
        unix_time = self._unix_now()
        if self._old:
            try:
                unix_time -= max(0.0, self._clock() - int(head.split(b",")[2]) / 1e6)
            except (ValueError, IndexError):
                return KernelRecord(message, None, old=True)
        return KernelRecord(message.replace("\\x0a", " "), unix_time, old=self._old)

    def close(self) -> None:
        """Close the device."""
        os.close(self._descriptor)
