"""One answer, read strictly and within a cap on each dimension; what is announced and what comes must agree.

``http.client`` alone takes a chunk size of -1 as "all there is", malformed fields as they come and lines without
limit, and gives each head to the parser of electronic mail, which takes longer than the rest of an exchange.
"""

from __future__ import annotations

import http.client
import io
import re
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from typing import BinaryIO

from msgspec import Struct

from exporter.errors import EndpointError
from exporter.http import wire
from exporter.http.client.sockets import DeadlineSocket, has_trailing_data
from exporter.http.client.target import SMALL, Limits

_STATUS = re.compile(rb"HTTP/1\.([0-9]) +([1-9][0-9]{2})(?:[ \t].*)?", re.DOTALL)
_MAX_INTERIM = 8  # answers; a server has use for one or two: 100 and 103
_NO_CONTENT = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_DECODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_LENGTH = re.compile(r"[0-9]{1,18}")  # int() of thousands of digits takes time, and raises
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t -~\x80-\xff]*)?\r?\n")
_CHUNK_LINE = 256  # bytes
_PIECE = 64 * 1024
_INFLATED_PIECE = 256 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 1024  # of 64 KiB each they fill 8 times the largest page
_DIGITS = b"0123456789."
_WAIT_FOR_REST = 0.01  # seconds for the rest of a line that should have been whole: more than a node's network takes


class StrictResponse(http.client.HTTPResponse):
    """An answer of ``http.client``, and so of urllib3 and requests, whose ``read`` returns the content decoded.

    ``headers`` leaves out the fields that ``read`` has dealt with.  Raises EndpointError, or OSError of the socket.
    """

    fp: io.BufferedReader | None  # type: ignore[assignment]  # the stubs leave None out

    def __init__(self, sock: DeadlineSocket, *, limits: Limits, method: str | None = None) -> None:
        super().__init__(sock, method=method)
        self._sock, self._limits, self._method = sock, limits, method
        self._content: Iterator[bytes] = iter(())
        self._fields: dict[str, list[str]] = {}

    def begin(self) -> None:
        """Read the head, past interim ones (1xx)."""
        assert self.fp is not None
        head = _read_head(self.fp, self._limits)
        fields = self._fields = head.fields
        self.status = self.code = head.status
        self.reason, self.version = "", 11
        self.will_close = not _keeps_connection(head)
        self.headers = self.msg = http.client.HTTPMessage()
        for name in fields.keys() - _DECODED:
            for value in fields[name]:
                self.headers.set_raw(name, value)
        is_empty = fields.get("content-length") == ["0"] and "transfer-encoding" not in fields
        if is_empty or self._method == "HEAD" or self.status in _NO_CONTENT:
            self._sock.is_spent = has_trailing_data(self._sock, self.fp)
            self._close()
        else:
            self._content = _read_content(self._sock, self.fp, fields, self._limits)

    @property
    def announced(self) -> int:
        """How many bytes of body will be sent, 0 where the head does not say."""
        return _length(self._fields, self._limits) or 0

    def read(self, amt: int | None = None) -> bytes:
        """Return all of the content, or its next piece where ``amt`` is given, whatever its size; b"" at the end."""
        if amt is None:
            return b"".join(self._content)
        piece = next(self._content, b"")
        if not piece:
            self._close()
        return piece

    def _close(self) -> None:
        """Release the connection, which stays open."""
        fp, self.fp = self.fp, None
        if fp is not None:
            fp.close()


# ---------------------------------------------------------------------- the head


class _Head(Struct, frozen=True, kw_only=True):
    """Status and fields of an answer; ``minor_version`` is 0 for HTTP/1.0."""

    minor_version: int
    status: int
    fields: dict[str, list[str]]


def _read_head(stream: BinaryIO, limits: Limits) -> _Head:
    """Return the head of the next answer that is not interim."""
    for _ in range(_MAX_INTERIM + 1):
        lines = _read_lines(stream, limits)
        match = _STATUS.fullmatch(next(lines, b""))
        if match is None:
            raise EndpointError("protocol", "the answer is not HTTP")
        status, fields = int(match[2]), _parse_fields(lines)
        # Nobody asked for another protocol: what follows a 101 is no HTTP, and it is refused like any other status.
        if status >= HTTPStatus.OK or status == HTTPStatus.SWITCHING_PROTOCOLS:
            return _Head(minor_version=int(match[1]), status=status, fields=fields)
    raise EndpointError("head_too_large", f"more than {_MAX_INTERIM} interim answers came before the real one")


def _read_lines(stream: BinaryIO, limits: Limits) -> Iterator[bytes]:
    """Yield the lines of a head or of trailers, without their ends, up to the blank one."""
    left = limits.head_bytes
    for index in range(limits.head_fields + 2):
        line = stream.readline(left + 1)
        left -= len(line)
        if left < 0:
            break
        if not line and index == 0:
            raise http.client.RemoteDisconnected("no answer")
        if not line.endswith(b"\n"):
            raise EndpointError("closed", "the peer closed the connection inside the head of its answer")
        line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if not line:
            return
        yield line
    raise EndpointError("head_too_large", "the response head is too long, or has too many fields")


def _parse_fields(lines: Iterator[bytes]) -> dict[str, list[str]]:
    try:
        return wire.parse_fields(lines)
    except wire.MalformedError:
        raise EndpointError("protocol", "a field of the response head is malformed") from None


def _keeps_connection(head: _Head) -> bool:
    """Return whether another request may follow; only a body with an end of its own leaves room for one."""
    fields = head.fields
    options = wire.connection_options(fields)
    if "close" in options or not ("content-length" in fields or "transfer-encoding" in fields):
        return False
    # HTTP/1.0 knows no chunks: where such a peer thinks that its answer ends is not known.
    return head.minor_version > 0 or ("keep-alive" in options and "transfer-encoding" not in fields)


# ---------------------------------------------------------------------- the body


def _read_content(
    sock: DeadlineSocket, stream: io.BufferedReader, fields: wire.Fields, limits: Limits
) -> Iterator[bytes]:
    """Yield the content decoded, in pieces that are not empty; see in the end whether all of it came, and no more."""
    is_gzip, is_chunked, length = _is_gzip(fields), _is_chunked(fields), _length(fields, limits)
    if length is not None:
        pieces = _read_exactly(stream, length)
    else:
        pieces = _read_chunks(stream, limits) if is_chunked else _read_to_end(stream, limits)
    size, last = 0, b"\n"
    for piece in _inflate(pieces) if is_gzip else pieces:
        size += len(piece)
        if size > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        last = piece[-1:]
        yield piece
    # A last chunk or a checksum vouches for the end, anything else is the peer's arithmetic.
    if last != b"\n" and not is_chunked and not is_gzip:
        if length is None and last in _DIGITS:
            # Any other line that is cut is no sample, and seen as such by the parser.
            raise EndpointError("closed", "closed after a number, without a final newline: it may be cut off")
        if has_trailing_data(sock, stream, min(_WAIT_FOR_REST, sock.deadline.remaining())):
            message = f"the announced {size} bytes end in the middle of a line, and more follows"
            raise EndpointError("content_length", message)
    sock.is_spent = has_trailing_data(sock, stream)


def _is_gzip(fields: wire.Fields) -> bool:
    coding = ",".join(fields.get("content-encoding", ())).lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise EndpointError("encoding", "the content coding is neither identity nor gzip")
    return coding.endswith("gzip")


def _is_chunked(fields: wire.Fields) -> bool:
    codings = [value.lower() for value in fields.get("transfer-encoding", ())]
    if codings not in ([], ["chunked"]):
        raise EndpointError("encoding", "the transfer coding is not chunked")
    if codings and "content-length" in fields:
        raise EndpointError("content_length", "both chunked and with a Content-Length")
    return bool(codings)


def _length(fields: wire.Fields, limits: Limits) -> int | None:
    """Return the announced length, None where the body ends by other means; refuse what has two readings."""
    lengths = {part.strip(" \t") for value in fields.get("content-length", ()) for part in value.split(",")}
    if not lengths:
        return None
    text = lengths.pop()
    if lengths or not _LENGTH.fullmatch(text):
        raise EndpointError("content_length", "the Content-Length is not one number")
    if int(text) > limits.wire_bytes:
        limit = limits.wire_bytes
        raise EndpointError("too_large", f"announces {int(text)} bytes; the limit is {limit}", detail=limit)
    return int(text)


def _read_exactly(stream: BinaryIO, length: int) -> Iterator[bytes]:
    left, size = length, SMALL if length <= SMALL else _PIECE  # the usual page in one piece
    while left:
        piece = stream.read(min(left, size))
        left -= len(piece)
        if left and len(piece) < size:
            raise EndpointError("content_length", f"closed {left} bytes short of the announced {length}")
        yield piece


def _read_to_end(stream: BinaryIO, limits: Limits) -> Iterator[bytes]:
    left = limits.wire_bytes
    while piece := stream.read(_PIECE):
        left -= len(piece)
        if left < 0:
            raise _too_large(limits.wire_bytes)
        yield piece


def _read_chunks(stream: BinaryIO, limits: Limits) -> Iterator[bytes]:
    left = limits.wire_bytes  # framing counts: a million chunks of one byte are no small page
    collected = bytearray()  # or the reader would pay for each of them
    size = -1
    while size:
        line = stream.readline(_CHUNK_LINE)
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise _cut_off() if len(line) < _CHUNK_LINE and not line.endswith(b"\n") else _bad_chunk()
        size = rest = int(match[1], 16)
        left -= len(line) + size + 2
        if left < 0:
            raise _too_large(limits.wire_bytes)
        while rest:
            piece = stream.read(min(rest, _PIECE))
            if not piece:
                raise _cut_off()
            rest -= len(piece)
            collected += piece
            if len(collected) >= _PIECE:
                yield bytes(collected)
                collected.clear()
        if size and (end := stream.read(2)) != b"\r\n":
            raise _bad_chunk() if len(end) == 2 else _cut_off()
    _parse_fields(_read_lines(stream, limits))  # the trailers; nothing in them is of use
    if collected:
        yield bytes(collected)


def _cut_off() -> EndpointError:
    return EndpointError("closed", "the peer closed the connection inside a chunked body")


def _bad_chunk() -> EndpointError:
    return EndpointError("protocol", "the chunked body is malformed")


def _too_large(limit: int) -> EndpointError:
    return EndpointError("too_large", f"the page is larger than {limit} bytes", detail=limit)


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what ``pieces`` stand for; gzip's members follow one another, and their contents too.

    urllib3's decoder takes a broken member after the first for the end, and any number of members.
    """
    inflater = zlib.decompressobj(_GZIP)
    members = 1
    try:
        for piece in pieces:
            rest = piece
            while rest:
                if inflater.eof:
                    members += 1
                    if members > _MAX_MEMBERS:  # each costs a table of its own, and twenty bytes make an empty one
                        raise EndpointError("encoding", f"the gzip stream has more than {_MAX_MEMBERS} members")
                    inflater = zlib.decompressobj(_GZIP)
                if content := inflater.decompress(rest, _INFLATED_PIECE):
                    yield content
                rest = inflater.unused_data or inflater.unconsumed_tail
        if content := inflater.flush():
            yield content
    except zlib.error:
        what = "says gzip and is not" if members == 1 else "after the first gzip member follows a broken one, or none"
        raise EndpointError("encoding", what) from None
    if not inflater.eof:
        raise EndpointError("encoding", "the gzip stream is cut off")
