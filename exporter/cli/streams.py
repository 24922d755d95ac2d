"""Standard streams: what is printed is written whole or is an error of one line; closed streams are replaced."""

from __future__ import annotations

import os
import sys

from exporter.errors import OutputError


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
            _give_up(error)
    flush()


def flush() -> None:
    """Flush what was printed; raises OutputError if it cannot be written."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(error)


def _give_up(error: OSError) -> None:
    # The rest of the buffer would fail again when the interpreter exits, with a message of its own.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    raise OutputError(f"standard output cannot be written: {error.strerror}") from None
