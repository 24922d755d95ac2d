"""One HTTP answer, read with a cap on each dimension; what is announced and what comes must agree.

The head goes through ``http.client``, which bounds a line at 64 KiB and a head at 100 of them; here the whole head
has one small budget.  The body is read here and not by ``http.client``: its chunk reader takes a size of -1 as "all
there is", without limit.  Nothing is ever returned in part.
"""

from __future__ import annotations

import http.client
import io
import mmap
import re
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO

from exporter.errors import EndpointError
from exporter.sources.endpoint.deadline import Deadline

_PIECE = 64 * 1024
_INFLATED_PIECE = 256 * 1024
_LARGE = 1024 * 1024  # no page of a real engine is known to be larger
_CHUNK_LINE = 256
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t -~\x80-\xff]*)?\r?\n")
_BLANK = (b"\r\n", b"\n")
_LENGTH = re.compile(r"[0-9]{1,18}")

# Pages beyond _LARGE are read one at a time, or many hostile peers at once would take 8 MiB each.
_one_large_page = threading.Semaphore(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer may take: bytes and fields of head and trailers, bytes of body as sent and as inflated."""

    head_bytes: int = 16 * 1024
    head_fields: int = 64
    wire_bytes: int = 8 * 1024 * 1024
    body_bytes: int = 8 * 1024 * 1024


class _Head:
    """The file that http.client reads a head from: one budget of bytes and fields, and every line well formed."""

    __slots__ = ("_fields_left", "_first", "_left", "_stream")

    def __init__(self, stream: Any, limits: Limits, *, status_line: bool = True) -> None:
        self._stream = stream
        self._left = limits.head_bytes
        self._fields_left = limits.head_fields
        self._first = status_line

    def readline(self, _limit: int = -1) -> bytes:
        """Return the next line; raise EndpointError where http.client would guess or go on."""
        line: bytes = self._stream.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise EndpointError("head_too_large", "the response head is too long")
        first, self._first = self._first, False
        if first:
            return line  # http.client judges the status line, and an end before it
        if not line.endswith(b"\n"):
            raise EndpointError("closed", "the peer closed the connection inside the head of its answer")
        if line in _BLANK:
            self._first = True  # after "100 Continue" comes another status line
        else:
            self._count(line)
        return line

    def _count(self, line: bytes) -> None:
        self._fields_left -= 1
        if self._fields_left < 0:
            raise EndpointError("head_too_large", "the response head has too many fields")
        if not _FIELD.fullmatch(line):
            raise EndpointError("protocol", "a field of the response head is malformed")

    def close(self) -> None:
        """Close the stream below."""
        self._stream.close()


class CappedResponse(http.client.HTTPResponse):
    """An answer whose head is read within ``limits``; ``read_page`` reads the rest."""

    def __init__(self, sock: socket.socket, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._limits = limits

    def begin(self) -> None:
        """Read status and fields; raise EndpointError or what http.client raises."""
        stream = self.fp
        self.fp = _Head(stream, self._limits)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if self.fp is not None:  # http.client has closed it when the answer is not HTTP
                self.fp = stream


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


def read_page(response: CappedResponse, limits: Limits, deadline: Deadline) -> bytes:
    """Return the whole body, inflated; raise EndpointError, OSError (TimeoutError among them) or nothing at all."""
    coding = response.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise EndpointError("encoding", "the content coding is neither identity nor gzip")
    pieces = _body(response, limits)
    with closing(_Sink(limits.body_bytes, deadline)) as sink:
        if coding in ("", "identity"):
            for piece in pieces:
                sink.write(piece)
        else:
            _inflate(pieces, sink)
        body = sink.whole()
    if not body:
        raise EndpointError("empty", "the page is empty")
    return body


def _body(response: CappedResponse, limits: Limits) -> Iterator[bytes]:
    """Choose how the body is delimited; refuse what two readers could understand in two ways."""
    transfer = response.headers.get_all("Transfer-Encoding", [])
    lengths = response.headers.get_all("Content-Length", [])
    stream: BinaryIO = response.fp
    if transfer:
        if [coding.strip().lower() for coding in transfer] != ["chunked"]:
            raise EndpointError("encoding", "the transfer coding is not chunked")
        if lengths:
            raise EndpointError("content_length", "both chunked and with a Content-Length")
        return _chunked(stream, limits)
    if lengths:
        return _exactly(stream, _announced(lengths, limits))
    return _until_closed(stream, limits)


def _announced(lengths: list[str], limits: Limits) -> int:
    distinct = {part.strip() for value in lengths for part in value.split(",")}
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
            raise EndpointError("content_length", f"closed {left} bytes short of the announced {length}")
        left -= len(piece)
        yield piece


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
    trailer = _Head(stream, limits, status_line=False)
    while trailer.readline() not in _BLANK:
        pass


def _cut_off() -> EndpointError:
    return EndpointError("closed", "the peer closed the connection inside a chunked body")


def _bad_chunk() -> EndpointError:
    return EndpointError("protocol", "the chunked body is malformed")


def _too_large(limit: int) -> EndpointError:
    return EndpointError("too_large", f"the page is larger than {limit} bytes")


def _inflate(pieces: Iterator[bytes], sink: _Sink) -> None:
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                sink.write(inflater.decompress(rest, _INFLATED_PIECE))
                rest = inflater.unconsumed_tail
            if inflater.unused_data:
                raise EndpointError("encoding", "more bytes follow after the gzip stream")
        sink.write(inflater.flush())
    except zlib.error:
        raise EndpointError("encoding", "says gzip and is not") from None
    if not inflater.eof:
        raise EndpointError("encoding", "the gzip stream is cut off")
