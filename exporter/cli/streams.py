"""The standard streams: what is printed arrives whole or is an error in one line, and closed ones do no harm."""

from __future__ import annotations

import os
import sys

from exporter.errors import OutputError


def ensure_fds_open() -> None:
    """Put the null device where a standard stream was closed.

    The next socket or file would get its number otherwise, and a driver's library that writes to standard error
    would write into that.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it lives as long as the process


def print_lines(*lines: str) -> None:
    """Print lines as UTF-8 whatever the locale; names of files that are no text are printed as they came."""
    write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))


def write(data: bytes) -> None:
    """Print bytes; OutputError when they cannot be written."""
    if sys.stdout is not None:
        try:
            sys.stdout.buffer.write(data)
        except OSError as error:
            _give_up(error)
    flush()


def flush() -> None:
    """Write what was printed; OutputError when it cannot be written."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(error)


def _give_up(error: OSError) -> None:
    # What is left in the buffer would fail again when the interpreter ends, with a message of its own.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    raise OutputError(f"standard output cannot be written: {error.strerror}") from None
