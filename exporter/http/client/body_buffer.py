"""Whole bodies in little memory, however many hostile peers send large ones at once.

A body beyond SMALL holds a turn until it is dropped, which is when its page has been parsed: bodies that wait for the
parser take memory as well.
"""

from __future__ import annotations

import io
import mmap
import threading
from collections.abc import Iterator

from exporter.errors import EndpointError
from exporter.http.client.deadline import Deadline
from exporter.http.client.target import LARGE, SMALL

_bodies = threading.Semaphore(8)  # beyond SMALL; peers that send slowly must not hold all turns
_one_large_body = threading.Semaphore(1)  # of these beyond LARGE: up to 8 MiB


class _Body(bytes):
    """A body that gives its turns back when nobody refers to it."""

    turns: list[threading.Semaphore]

    def __del__(self) -> None:
        for turn in self.turns:
            turn.release()


def collect(pieces: Iterator[bytes], max_bytes: int, deadline: Deadline, announced: int = 0) -> bytes:
    """Return ``pieces`` joined, which are ``max_bytes`` at most, and of which so many bytes are ``announced``.

    Raise what they raise, or EndpointError ``timeout`` if the turn of another large body takes too long.
    """
    if announced > SMALL:  # nothing of it is held while it waits
        return _collect_in_turn(b"", pieces, max_bytes, deadline, announced)
    buffer = io.BytesIO()
    for piece in pieces:
        buffer.write(piece)
        if buffer.tell() > SMALL:
            return _collect_in_turn(buffer.getvalue(), pieces, max_bytes, deadline, 0)
    return buffer.getvalue()


def _collect_in_turn(
    begin: bytes, pieces: Iterator[bytes], max_bytes: int, deadline: Deadline, announced: int
) -> bytes:
    turns: list[threading.Semaphore] = []
    try:
        is_large = announced > LARGE
        _take(_one_large_body if is_large else _bodies, turns, deadline)
        # Not the heap: the allocator keeps what it once got by the megabyte, in every thread that polls.
        with mmap.mmap(-1, max_bytes) as large:
            large.write(begin)
            for piece in pieces:
                if not is_large and large.tell() + len(piece) > LARGE:
                    is_large = True  # whoever holds this turn waits for no other
                    _take(_one_large_body, turns, deadline)
                large.write(piece)
            with memoryview(large)[: large.tell()] as whole:
                body = _Body(whole)
        body.turns, turns = turns, []
        return body
    finally:
        for turn in turns:
            turn.release()


def _take(turn: threading.Semaphore, turns: list[threading.Semaphore], deadline: Deadline) -> None:
    if not turn.acquire(timeout=deadline.remaining()):
        raise EndpointError("timeout", "waited in vain for another large page to be read")
    turns.append(turn)
    deadline.shorten(deadline.seconds / 2)  # slow peers would hold every turn all the time
