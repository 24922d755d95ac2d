"""One unary gRPC call over a Unix socket: as much of HTTP/2 (RFC 9113) as it takes to be answered.

grpcio would cost 15 MiB and threads of its own for one call without arguments.  The headers of the answer are not
read: a call that failed has no message.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from exporter.errors import EndpointError
from exporter.http.client.deadline import Deadline
from exporter.http.client.errors import explain

MAX_MESSAGE = 4 << 20  # bytes; what a client of gRPC accepts unless it is told otherwise
_MAX_READ = 2 * MAX_MESSAGE  # bytes of all frames
_MAX_FRAME = 16_384  # bytes that a server may send in one unless it is told otherwise
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED = 0x4, 0x8
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 0x1, 0x2, 0x4
_STREAM = 1
_PREFIX = 5  # bytes before a message: whether it is compressed, its length


def call(path: str, method: str, seconds: float) -> bytes:
    """Return the answer of ``method`` to an empty message; raise EndpointError.

    ``path``: of the socket; ``method``: ``/package.Service/Method``; ``seconds``: of the whole exchange.
    """
    phase = "connecting"
    deadline = Deadline(seconds)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(deadline.remaining())
            sock.connect(path)
            phase = "sending the request"
            sock.sendall(_request(method))
            phase = "reading the answer"
            return _message(_answer(sock, deadline))
    except ConnectionRefusedError:
        raise EndpointError("refused", "nobody listens on that socket, or the file is none") from None
    except OSError as error:
        raise explain(error, phase, seconds) from None


def _request(method: str) -> bytes:
    settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, MAX_MESSAGE))
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return b"".join(
        (
            _PREFACE,
            _frame(
                _SETTINGS,
                0,
                0,
                b"".join(name.to_bytes(2, "big") + size.to_bytes(4, "big") for name, size in settings),
            ),
            _frame(_WINDOW_UPDATE, 0, 0, MAX_MESSAGE.to_bytes(4, "big")),
            _frame(
                _HEADERS, _END_HEADERS, _STREAM, b"".join(b"\0" + _text(name) + _text(text) for name, text in headers)
            ),
            _frame(_DATA, _END_STREAM, _STREAM, bytes(_PREFIX)),
        )
    )


def _text(text: str) -> bytes:
    """Return a text as HPACK has it without Huffman's code."""
    data = text.encode("ascii")
    if len(data) >= 0x7F:
        raise ValueError(f"{len(data)} bytes in a header")
    return bytes((len(data),)) + data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _answer(sock: socket.socket, deadline: Deadline) -> bytes:
    """Return the data of the stream, and acknowledge what a server wants acknowledged."""
    data = bytearray()
    for kind, flags, stream, payload in _frames(sock, deadline):
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            sock.settimeout(deadline.remaining())
            sock.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif (kind == _GOAWAY and not _finishes(payload)) or (kind == _RST_STREAM and stream == _STREAM):
            raise EndpointError("refused", "the server refused the call")
        elif stream == _STREAM:
            if kind == _DATA:
                data += _unpadded(payload) if flags & _PADDED else payload
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                return bytes(data)
    raise EndpointError("closed", "the server closed the connection without an answer")


def _finishes(goodbye: bytes) -> bool:
    """Return whether a server that closes the connection answers this call first."""
    last_stream = int.from_bytes(goodbye[:4], "big") & 0x7FFFFFFF
    return len(goodbye) >= 8 and last_stream >= _STREAM and not any(goodbye[4:8])


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise EndpointError("protocol", "padding that is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _frames(sock: socket.socket, deadline: Deadline) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, stream and payload of the frames until the server closes the connection."""
    buffer, read = bytearray(), 0
    while True:
        sock.settimeout(deadline.remaining())
        received = sock.recv(65_536)
        if not received:
            return
        buffer += received
        read += len(received)
        if read > _MAX_READ:
            raise EndpointError("too_large", f"the answer has more than {MAX_MESSAGE} bytes")
        while len(buffer) >= 9:
            size = int.from_bytes(buffer[:3], "big")
            if size > _MAX_FRAME:
                raise EndpointError("protocol", "this is no HTTP/2, or a frame is too long")
            if len(buffer) < 9 + size:
                break
            yield buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big") & 0x7FFFFFFF, bytes(buffer[9 : 9 + size])
            del buffer[: 9 + size]


def _message(data: bytes) -> bytes:
    if not data:
        raise EndpointError("refused", "the server answers with an error; it may not have this method")
    if len(data) < _PREFIX or data[0] or len(data) != _PREFIX + int.from_bytes(data[1:_PREFIX], "big"):
        raise EndpointError("protocol", "the answer is not one plain message")
    return data[_PREFIX:]
