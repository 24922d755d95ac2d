"""A listener under test and a client made of raw sockets, for the tests of the serving side."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from exporter.http.server.listener import HttpServer, Request, Response, ServerLimits
from tests.support.waiting import until

PAGE = b"# HELP up Whether it is.\nup 1\n" * 100
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
GET_CLOSE = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def page(request: Request) -> Response:
    return Response(status=200, content_type="text/plain", body=PAGE)


def echo(request: Request) -> Response:
    body = f"{request.method} {request.path} {request.query}".encode()
    return Response(status=200, content_type="text/plain", body=body)


@contextlib.contextmanager
def serving(handler=page, **limits) -> Iterator[HttpServer]:
    listener = HttpServer("127.0.0.1", 0, handler, ServerLimits(**limits))
    listener.start()
    until(lambda: listener._selector is not None)  # from here on the descriptors can be counted
    try:
        yield listener
    finally:
        listener.stop()
        assert not listener.alive


def connect(listener: HttpServer, receive_buffer: int = 0) -> socket.socket:
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(10)
    sock.connect(listener.address)
    return sock


def to_the_end(sock: socket.socket, strict: bool = False) -> bytes:
    """All that still comes; a reset counts as an end, as it does for a client that has read its answer."""
    parts = []
    with contextlib.suppress(*() if strict else (ConnectionResetError,)):
        while data := sock.recv(65536):
            parts.append(data)
    return b"".join(parts)


def one_answer(sock: socket.socket, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(1)
        assert more, f"closed after {data!r}"
        data += more
    status, headers = split_head(data)
    body = b""
    while not bodiless and len(body) < int(headers["content-length"]):
        more = sock.recv(int(headers["content-length"]) - len(body))
        assert more, "closed in the middle of a body"
        body += more
    return status, headers, body


def split_head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}


def ask(listener: HttpServer, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(listener) as sock:
        with contextlib.suppress(ConnectionError):  # a refused client may be cut off while it still sends
            sock.sendall(raw)
        data = to_the_end(sock)
    assert data, "closed without an answer"
    return (*split_head(data), data.partition(b"\r\n\r\n")[2])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
