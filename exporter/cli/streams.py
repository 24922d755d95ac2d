"""Standard streams: what is printed is written whole or is an error of one line; closed streams are replaced."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from typing import Any, NoReturn

from exporter.errors import OutputError, ReaderGoneError

_STDERR_SECONDS = 0.5  # in all, however often is written
_CHUNK = 4096  # bytes; a pipe that is ready takes as many without waiting


class _BoundedStderr(io.RawIOBase):
    """Standard error that a reader who stops cannot block: what it does not take in time is lost."""

    def __init__(self) -> None:
        self._seconds = _STDERR_SECONDS

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, data: Any, /) -> int:
        rest = memoryview(data)
        size, poll = rest.nbytes, select.poll()
        poll.register(2, select.POLLOUT)
        while rest:
            started = time.monotonic()
            ready = poll.poll(1000 * self._seconds)
            self._seconds = max(0.0, self._seconds - (time.monotonic() - started))
            if not ready:
                break
            try:
                rest = rest[os.write(2, rest[:_CHUNK]) :]
            except OSError:
                break
        return size


def bound_stderr() -> None:
    """Limit to half a second in all how long printing to standard error may wait.

    A daemon that ends with an error ends also where nobody reads why.
    """
    sys.stderr = io.TextIOWrapper(_BoundedStderr(), "utf-8", "backslashreplace", write_through=True)


def ensure_fds_open() -> None:
    """Open the null device for each standard stream that is closed.

    Otherwise the next socket or file would get its number, and a driver library that writes to standard error would
    write into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it lives as long as the process


def print_lines(*lines: str) -> None:
    """Print lines as UTF-8 whatever the locale; file names that are not text are printed as they are."""
    write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))


def write(data: bytes) -> None:
    """Print bytes; raises OutputError if they cannot be written."""
    if sys.stdout is not None:
        try:
            sys.stdout.buffer.write(data)
        except OSError as error:
            give_up(error)
    flush()


def flush() -> None:
    """Flush what was printed; raises OutputError if it cannot be written."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        sys.stdout.flush()
    except OSError as error:
        give_up(error)


def give_up(error: OSError) -> NoReturn:
    """Raise ReaderGoneError if nobody reads standard output any more, OutputError for any other failed write."""
    # The rest of the buffer would fail again when the interpreter exits, with a message of its own.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    if isinstance(error, BrokenPipeError):
        raise ReaderGoneError("nobody reads standard output any more") from None
    raise OutputError(f"standard output cannot be written: {error.strerror}") from None
