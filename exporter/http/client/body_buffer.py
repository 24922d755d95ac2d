"""Whole bodies in little memory, however many hostile peers send large ones at once."""

from __future__ import annotations

import io
import mmap
import threading
from collections.abc import Iterator

from exporter.errors import EndpointError
from exporter.http.client.deadline import Deadline
from exporter.http.client.target import LARGE

# Bodies beyond LARGE are read one at a time, or many hostile peers at once would take 8 MiB each.
_one_large_body = threading.Semaphore(1)


def collect(pieces: Iterator[bytes], max_bytes: int, deadline: Deadline) -> bytes:
    """Return ``pieces`` joined, which are ``max_bytes`` at most.

    Raise what they raise, or EndpointError ``timeout`` if the turn of another large body takes too long.
    """
    buffer = io.BytesIO()
    for piece in pieces:
        if buffer.tell() + len(piece) > LARGE:
            return _collect_large(buffer, piece, pieces, max_bytes, deadline)
        buffer.write(piece)
    return buffer.getvalue()


def _collect_large(
    buffer: io.BytesIO, piece: bytes, pieces: Iterator[bytes], max_bytes: int, deadline: Deadline
) -> bytes:
    if not _one_large_body.acquire(timeout=deadline.remaining()):
        raise EndpointError("timeout", "waited in vain for another large page to be read")
    try:
        # Not the heap: the allocator keeps what it once got by the megabyte, in every thread that polls.
        with mmap.mmap(-1, max_bytes) as large:
            large.write(buffer.getvalue())
            buffer.truncate(0)
            large.write(piece)
            for later in pieces:
                large.write(later)
            return large[: large.tell()]
    finally:
        _one_large_body.release()
