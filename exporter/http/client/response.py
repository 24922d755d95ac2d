"""The body of one HTTP answer, read with a cap on each dimension; what is announced and what comes must agree.

Read here and not by ``http.client``: its chunk reader takes a size of -1 as "all there is", without limit.  Nothing
is ever returned in part.
"""

from __future__ import annotations

import io
import mmap
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO

from exporter.errors import EndpointError
from exporter.http.client.deadline import Deadline
from exporter.http.client.head import Head, Limits, Lines

_GZIP = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 1024  # of 64 KiB each they fill 8 times the largest page
_PIECE = 64 * 1024
_INFLATED_PIECE = 256 * 1024
_LARGE = 1024 * 1024  # no page of a real engine is known to be larger
_CHUNK_LINE = 256
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t -~\x80-\xff]*)?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_NUMERALS = b"0123456789."

# Pages beyond _LARGE are read one at a time, or many hostile peers at once would take 8 MiB each.
_one_large_page = threading.Semaphore(1)


class _Sink:
    """Collects a body up to a limit; a large one waits for its turn, and its memory goes back to the system."""

    __slots__ = ("_deadline", "_large", "_limit", "_size", "_small")

    def __init__(self, limit: int, deadline: Deadline) -> None:
        self._deadline = deadline
        self._limit = limit
        self._size = 0
        self._small = io.BytesIO()
        self._large: mmap.mmap | None = None

    def close(self) -> None:
        """Give memory and turn back."""
        if self._large is not None:
            self._large.close()
            _one_large_page.release()

    def write(self, piece: bytes) -> None:
        """Add ``piece``; raise EndpointError ``too_large``, or ``timeout`` if another large page takes too long."""
        self._size += len(piece)
        if self._size > self._limit:
            raise _too_large(self._limit)
        if self._size > _LARGE and self._large is None:
            self._enlarge()
        (self._small if self._large is None else self._large).write(piece)

    def _enlarge(self) -> None:
        if not _one_large_page.acquire(timeout=self._deadline.remaining()):
            raise EndpointError("timeout", "waited in vain for another large page to be read")
        try:
            # Not the heap: the allocator keeps what it once got by the megabyte, in every thread that polls.
            self._large = mmap.mmap(-1, self._limit)
        except BaseException:
            _one_large_page.release()
            raise
        self._large.write(self._small.getvalue())
        self._small = io.BytesIO()

    def whole(self) -> bytes:
        """Return all that was written."""
        return self._small.getvalue() if self._large is None else self._large[: self._size]


def read_page(head: Head, stream: BinaryIO, limits: Limits, deadline: Deadline) -> bytes:
    """Return the whole body, inflated; raise EndpointError, OSError (TimeoutError among them) or nothing at all."""
    gzipped = _gzipped(head)
    length = _length(head, limits)
    if not gzipped and length is not None and length <= min(_LARGE, limits.body_bytes):
        body = stream.read(length)  # the usual page, in one piece
        if len(body) < length:
            raise _short(length - len(body), length)
    else:
        body = _collected(_pieces(head, stream, length, limits), limits, deadline, inflate=gzipped)
    if not body:
        raise EndpointError("empty", "the page is empty")
    if length is None and body[-1] in _NUMERALS and not vouched_for(head):
        # Any other line that is cut is no sample, and seen as such by whoever reads the page.
        raise EndpointError("closed", "closed after a number, without a final newline: it may be cut off")
    return body


def vouched_for(head: Head) -> bool:
    """Say whether a last chunk or a checksum vouches for the end of the body, and not only the peer's arithmetic."""
    return "transfer-encoding" in head.fields or _gzipped(head)


def _gzipped(head: Head) -> bool:
    codings = head.fields.get("content-encoding")
    if codings is None:
        return False
    coding = ",".join(codings).lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise EndpointError("encoding", "the content coding is neither identity nor gzip")
    return coding.endswith("gzip")


def _collected(pieces: Iterator[bytes], limits: Limits, deadline: Deadline, *, inflate: bool) -> bytes:
    with closing(_Sink(limits.body_bytes, deadline)) as sink:
        if inflate:
            _inflate(pieces, sink)
        else:
            for piece in pieces:
                sink.write(piece)
        return sink.whole()


def _length(head: Head, limits: Limits) -> int | None:
    """Give the announced length, None where the body ends by other means; refuse what has two readings."""
    transfer = head.fields.get("transfer-encoding")
    lengths = head.fields.get("content-length")
    if transfer:
        if [coding.lower() for coding in transfer] != ["chunked"]:
            raise EndpointError("encoding", "the transfer coding is not chunked")
        if lengths:
            raise EndpointError("content_length", "both chunked and with a Content-Length")
    return _announced(lengths, limits) if lengths else None


def _pieces(head: Head, stream: BinaryIO, length: int | None, limits: Limits) -> Iterator[bytes]:
    if length is not None:
        return _exactly(stream, length)
    return _chunked(stream, limits) if "transfer-encoding" in head.fields else _until_closed(stream, limits)


def _announced(lengths: list[str], limits: Limits) -> int:
    distinct = {part.strip(" \t") for value in lengths for part in value.split(",")}
    text = distinct.pop()
    if distinct or not _LENGTH.fullmatch(text):
        raise EndpointError("content_length", "the Content-Length is not one number")
    if int(text) > limits.wire_bytes:
        raise EndpointError("too_large", f"announces {int(text)} bytes; the limit is {limits.wire_bytes}")
    return int(text)


def _exactly(stream: BinaryIO, length: int) -> Iterator[bytes]:
    left = length
    while left:
        piece = stream.read(min(left, _PIECE))
        if not piece:
            raise _short(left, length)
        left -= len(piece)
        yield piece


def _short(left: int, length: int) -> EndpointError:
    return EndpointError("content_length", f"closed {left} bytes short of the announced {length}")


def _until_closed(stream: BinaryIO, limits: Limits) -> Iterator[bytes]:
    left = limits.wire_bytes
    while piece := stream.read(_PIECE):
        left -= len(piece)
        if left < 0:
            raise _too_large(limits.wire_bytes)
        yield piece


def _chunked(stream: BinaryIO, limits: Limits) -> Iterator[bytes]:
    left = limits.wire_bytes  # framing counts: a million chunks of one byte are no small page
    while True:
        line = stream.readline(_CHUNK_LINE)
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise _cut_off() if len(line) < _CHUNK_LINE and not line.endswith(b"\n") else _bad_chunk()
        size = int(match[1], 16)
        left -= len(line) + size + 2
        if left < 0:
            raise _too_large(limits.wire_bytes)
        if size == 0:
            break
        while size:
            piece = stream.read(min(size, _PIECE))
            if not piece:
                raise _cut_off()
            size -= len(piece)
            yield piece
        if (end := stream.read(2)) != b"\r\n":
            raise _bad_chunk() if len(end) == 2 else _cut_off()
    Lines(stream, limits).fields()  # the trailers; nothing in them is of use


def _cut_off() -> EndpointError:
    return EndpointError("closed", "the peer closed the connection inside a chunked body")


def _bad_chunk() -> EndpointError:
    return EndpointError("protocol", "the chunked body is malformed")


def _too_large(limit: int) -> EndpointError:
    return EndpointError("too_large", f"the page is larger than {limit} bytes")


def _inflate(pieces: Iterator[bytes], sink: _Sink) -> None:
    """Write what ``pieces`` stand for; gzip's members follow one another, and their contents too."""
    inflater = zlib.decompressobj(_GZIP)
    members = 1
    try:
        for piece in pieces:
            rest = piece
            while rest:
                if inflater.eof:
                    members += 1
                    inflater = _next_member(members)
                sink.write(inflater.decompress(rest, _INFLATED_PIECE))
                rest = inflater.unused_data or inflater.unconsumed_tail
        sink.write(inflater.flush())
    except zlib.error:
        raise EndpointError("encoding", _bad_gzip(members)) from None
    if not inflater.eof:
        raise EndpointError("encoding", "the gzip stream is cut off")


def _next_member(number: int) -> zlib._Decompress:
    if number > _MAX_MEMBERS:  # each costs a table of its own, and twenty bytes make an empty one
        raise EndpointError("encoding", f"the gzip stream has more than {_MAX_MEMBERS} members")
    return zlib.decompressobj(_GZIP)


def _bad_gzip(members: int) -> str:
    return "says gzip and is not" if members == 1 else "after the first gzip member follows a broken one, or none"
