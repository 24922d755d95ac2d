"""The kernel's messages out of systemd's journal, through ``journalctl``.

For nodes that keep no text file of them, where the daemon may not read the device: members of the group
systemd-journal may read the journal, without a capability.  One child follows it and is read without waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import time
from collections.abc import Callable

from exporter.sources.kernel_log.record import KernelRecord, message_of_journal_line, of_driver, written_at

PROGRAMS = ("/usr/bin/journalctl", "/bin/journalctl")  # nothing that happens to be earlier in the path
KERN = "SYSLOG_FACILITY=0"  # not what a program of root wrote into the kernel's ring
HISTORY = 2000  # messages of this boot that are looked at
PROOF = 3.0  # seconds for the first message to come
OLD_FOR = 5.0  # seconds in which old messages may come; later ones are new, whatever the clock was set to meanwhile
MAX_LINE = 16 * 1024  # bytes; the rest of a longer line is skipped
MAX_BYTES = 256 * 1024  # a turn
_READ = 64 * 1024
_END = 1.0  # seconds for a child that was killed


class JournalLog:
    """The child that follows the journal.  Raises OSError from the constructor where there is nothing to follow.

    Without permission some versions end and others go on with a journal that holds no message of the kernel's: as
    every kernel has logged something since it was booted, the first message is the proof.
    """

    is_authentic = True  # journald itself marks which messages came from the kernel

    def __init__(self, *, unix_now: Callable[[], float]) -> None:
        self.overruns = 0
        self._unix_now, self._opened = unix_now, unix_now()
        self._old_until = time.monotonic() + OLD_FOR
        self._rest, self._skipping = b"", False
        program = next((path for path in PROGRAMS if os.path.exists(path)), None)
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "there is no journalctl")
        options = ("--dmesg", "--follow", "--output=short-unix", f"--lines={HISTORY}", "--no-pager", "--quiet", KERN)
        self._child = subprocess.Popen(
            [program, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        if self._child.stdout is None:
            raise OSError(errno.EIO, "journalctl has no output")
        self._output = self._child.stdout
        os.set_blocking(self._output.fileno(), False)
        if not self._has_output():
            self.close()
            raise PermissionError(errno.EACCES, "the journal shows no message of the kernel")

    def _has_output(self) -> bool:
        """Wait for the first bytes, keep them, and return whether there were any."""
        poller = select.poll()
        poller.register(self._output.fileno(), select.POLLIN)
        end = time.monotonic() + PROOF
        while not self._rest and (left := end - time.monotonic()) > 0:
            if poller.poll(left * 1000):
                with contextlib.suppress(BlockingIOError):
                    self._rest = os.read(self._output.fileno(), _READ)
                    break
        return bool(self._rest)

    def read(self) -> list[KernelRecord]:
        """Return the new messages about the GPU driver.  Raises OSError when the child has ended."""
        records: list[KernelRecord] = []
        data, self._rest = self._rest, b""
        self._cut(data, records)
        for _ in range(MAX_BYTES // _READ):
            try:
                data = os.read(self._output.fileno(), _READ)
            except BlockingIOError:
                return records
            if not data:
                if records:
                    return records  # the next read says that it has ended
                raise OSError(errno.EPIPE, f"journalctl ended with code {self._child.poll()}")
            self._cut(data, records)
        return records

    def _cut(self, data: bytes, records: list[KernelRecord]) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = "" if self._skipping or not of_driver(line) else line[:MAX_LINE].decode("utf-8", "replace")
            message = message_of_journal_line(text)
            if message is not None:
                written = written_at(text, self._unix_now())
                early = time.monotonic() < self._old_until
                old = early and written is not None and written < self._opened
                records.append(KernelRecord(message, written if old else self._unix_now(), old=old))
            self._skipping = False
        if len(rest) > MAX_LINE:
            self._skipping, rest = True, b""
        self._rest = b"" if self._skipping else rest

    def close(self) -> None:
        """End the child."""
        self._output.close()
        with contextlib.suppress(PermissionError):
            self._child.kill()  # itself only: it starts nothing, and the group of one that is gone may be another's
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_END)
