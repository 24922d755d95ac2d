"""Engines that misbehave, on loopback, one path a fault; for the tests of whatever reads over HTTP.

``with MaliciousServer() as server: server.url("drip_body")``; the faults stand in ``malicious_pages``.  Every fault gets the
accepted socket itself, so it can break any layer above TCP.  Leaving the block ends every thread and closes every
socket, whatever the fault was doing.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

TEXT = b"Content-Type: text/plain; version=0.0.4\r\n"
STEP = 0.03  # seconds between the bytes of whoever drips: far below any deadline

Fault = Callable[["Peer"], None]


def head(*fields: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    sized = b"" if length is None else b"Content-Length: %d\r\n" % length
    return b"HTTP/1.1 " + status + b"\r\n" + TEXT + sized + b"".join(f + b"\r\n" for f in fields) + b"\r\n"


def answer(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    return head(*fields, status=status, length=len(body)) + body


def send(peer: Peer, data: bytes) -> None:
    peer.raw(data)


class Peer:
    """One accepted connection: what was asked on it, and ways to answer."""

    def __init__(self, server: MaliciousServer, conn: socket.socket) -> None:
        self.server = server
        self.conn = conn
        self.keep = False
        self.path = ""
        self.request = b""

    def raw(self, *pieces: bytes) -> None:
        self.conn.sendall(b"".join(pieces))

    def reply(self, body: bytes, *fields: bytes, status: bytes = b"200 OK") -> None:
        self.raw(answer(body, *fields, status=status))

    def redirect(self, where: str, status: bytes = b"307 Temporary Redirect") -> None:
        self.reply(b"", b"Location: " + where.encode(), status=status)

    def drip(self, data: bytes) -> None:
        for byte in data:
            self.raw(bytes([byte]))
            if self.server.ending.wait(STEP):
                return

    def flood(self, block: bytes) -> None:
        while not self.server.ending.is_set():
            self.raw(block)

    def silence(self) -> None:
        self.server.ending.wait()

    def reset(self) -> None:
        self.conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.conn.close()


class MaliciousServer:
    """The server.  ``requests`` holds every head received, ``connections`` counts those accepted."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.ending = threading.Event()
        self.requests: list[tuple[str, bytes]] = []
        self.connections = 0
        self.errors: list[str] = []
        self.state: dict[str, int] = {}
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, port), backlog=64)
        self.host = host
        self.port: int = self._listener.getsockname()[1]

    def url(self, path: str, host: str | None = None) -> str:
        return f"{'https' if self._tls else 'http'}://{host or self.host}:{self.port}/{path}"

    def heads(self, path: str) -> list[bytes]:
        with self._lock:
            return [head for asked, head in self.requests if asked == path]

    def __enter__(self) -> MaliciousServer:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            connections = list(self._open)
        for conn in connections:
            with suppress(OSError):
                socket.socket.shutdown(conn, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a fault did not end"
        self._listener.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while not self.ending.is_set():
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self._start(self._serve, conn)

    def _serve(self, conn: socket.socket) -> None:
        try:
            if self._tls is not None:
                conn.settimeout(10)
                conn = self._tls.wrap_socket(conn, server_side=True)
            with self._lock:
                self._open.add(conn)
            peer = Peer(self, conn)
            while not self.ending.is_set() and self._one(peer) and peer.keep:
                pass
        except OSError as problem:
            self.errors.append(type(problem).__name__)
        finally:
            with self._lock:
                self._open.discard(conn)
            conn.close()

    def _one(self, peer: Peer) -> bool:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            data = peer.conn.recv(4096)
            if not data:
                return False
            request += data
        peer.request = request
        peer.path = request.split(b" ", 2)[1].decode()
        name = peer.path.strip("/").partition("?")[0].partition("/")[0]
        with self._lock:
            self.requests.append((name, request))
        peer.keep = False
        FAULTS.get(name, not_found)(peer)
        return True


FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


def not_found(peer: Peer) -> None:
    peer.reply(b"no such page\n", status=b"404 Not Found")
