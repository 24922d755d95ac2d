"""One moment by which a whole exchange must be over, and sockets that ask for it before every wait.

A plain socket timeout bounds one call, so a peer that sends a byte now and then is never late.  These sockets ask
for what is left of the deadline before each call; ``io.BufferedReader`` reads through ``recv_into``.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import Any


class Deadline:
    """A moment on the monotonic clock, ``seconds`` from its making."""

    __slots__ = ("_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left, always more than zero; raise TimeoutError when there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class DeadlineSocket(socket.socket):
    """A TCP socket that keeps ``deadline``; each exchange on a kept connection sets a new one.

    To be made non-blocking once it is connected: then what is there costs one call of the kernel to take, where a
    socket's own timeout would make it three.
    """

    deadline: Deadline

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into ``buffer``; raise TimeoutError at the deadline."""
        while True:
            left = self.deadline.remaining()
            try:
                return super().recv_into(buffer, nbytes, flags)
            except BlockingIOError:
                _wait(self, select.POLLIN, left)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send everything; raise TimeoutError at the deadline."""
        rest = memoryview(data)
        while rest:
            left = self.deadline.remaining()
            try:
                rest = rest[super().send(rest, flags) :]
            except BlockingIOError:
                _wait(self, select.POLLOUT, left)


class DeadlineTlsSocket(ssl.SSLSocket):
    """The same over TLS.  The handshake comes before ``deadline`` is set: OpenSSL's wrapper bounds it as a whole.

    Made by an SSLContext whose ``sslsocket_class`` this is, never directly.
    """

    deadline: Deadline
    suppress_ragged_eofs: bool  # the library's own, missing from its stubs

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive into ``buffer``; raise TimeoutError at the deadline, SSLEOFError on an unannounced end."""
        self.settimeout(self.deadline.remaining())
        return super().recv_into(buffer, nbytes, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send some of ``data`` (``sendall`` loops over this); raise TimeoutError at the deadline."""
        self.settimeout(self.deadline.remaining())
        return super().send(data, flags)


def readable(sock: socket.socket) -> bool:
    """Say whether something stands unread, the end of the connection included."""
    return _wait(sock, select.POLLIN, 0.0)


def _wait(sock: socket.socket, events: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(sock, events)
    return bool(poller.poll(seconds * 1000))
