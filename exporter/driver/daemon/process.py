"""The driver worker as its parent sees it: a child process, a pipe each way, and nothing that ever waits for it.

The child gets no descriptor but its pipes, a session of its own (a terminal's Ctrl-C is not for it) and the parent's
import path, so that it finds the same package whether installed, editable or run from a checkout.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import msgspec

import exporter
from exporter.driver import protocol

_READ = 65536
_READS = 64  # at most 4 MiB at a time, so that a flood of frames cannot keep the supervisor


def import_path() -> list[str]:
    """Return the import path for the child: the parent's, without entries that mean the current directory."""
    kept = [entry for entry in sys.path if os.path.isabs(entry)]
    if len(kept) != len(sys.path):
        # This package may have been found through one of the entries just dropped.
        kept.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(exporter.__file__))))
    return kept


def command(options: protocol.WorkerOptions) -> list[str]:
    """Return the command line of a worker; -I because the path is handed over whole."""
    code = f"import sys; sys.path[:] = {import_path()!r}; from exporter.driver.worker.main import main; main()"
    return [sys.executable, "-I", "-c", code, msgspec.json.encode(options).decode()]


class WorkerProcess:
    """One child.  Raises OSError from the constructor when it cannot be started."""

    def __init__(self, options: protocol.WorkerOptions) -> None:
        # Without the limit the C library keeps an arena of memory for each GPU's thread.
        environment = {"MALLOC_ARENA_MAX": "2", **os.environ}
        self._child = subprocess.Popen(
            command(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # the vendor's library does not see it: see crash_trace
            bufsize=0,
            close_fds=True,
            start_new_session=True,
            env=environment,
        )
        if self._child.stdin is None or self._child.stdout is None or self._child.stderr is None:
            raise OSError("the worker has no pipes")
        self._to_child, self._from_child, self._errors = self._child.stdin, self._child.stdout, self._child.stderr
        for end in (self._to_child, self._from_child, self._errors):
            os.set_blocking(end.fileno(), False)
        self._frames = protocol.FrameBuffer()
        self.pid = self._child.pid
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor on which answers arrive, for poll."""
        return self._from_child.fileno()

    def send(self, message: protocol.Message) -> bool:
        """Write one request and return whether the worker takes it."""
        data = protocol.encode(message)
        try:
            # Far below PIPE_BUF, so a pipe takes it whole or not at all.
            return os.write(self._to_child.fileno(), data) == len(data)
        except OSError:
            return False

    def request_exit(self) -> None:
        """Close the worker's input: one that still runs releases the driver and ends."""
        with contextlib.suppress(OSError):
            self._to_child.close()

    def receive(self) -> list[protocol.AnyMessage]:
        """Return the messages that have arrived; sets ``closed`` at the end of the stream.

        Raises DriverError("protocol") when what arrived is not the protocol; the worker is then of no use.
        """
        messages: list[protocol.AnyMessage] = []
        for _ in range(_READS):
            try:
                data = os.read(self.fileno(), _READ)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            messages += [protocol.decode(frame) for frame in self._frames.feed(data)]
        return messages

    def crash_trace(self) -> str:
        """Return what the worker's fault handler wrote when it died of a signal; "" when it died otherwise."""
        try:
            return os.read(self._errors.fileno(), _READ).decode("ascii", "replace")
        except (OSError, ValueError):
            return ""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the worker and whatever it started."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def exit_code(self) -> int | None:
        """Return the exit code (negative: the signal) without waiting; None while it is alive."""
        return self._child.poll()

    def close(self) -> None:
        """Close all pipes; a worker that still runs ends itself."""
        self.closed = True
        for end in (self._to_child, self._from_child, self._errors):
            with contextlib.suppress(OSError):
                end.close()
