"""One moment by which a whole exchange must be over, and sockets that ask for it before every wait.

A plain socket timeout bounds one call, so a peer that sends a byte now and then is never late.  These sockets ask
for what is left of the deadline before each call; ``io.BufferedReader`` reads them through ``Inbound``.
"""

from __future__ import annotations

import io
import select
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exporter.http.client.tls import DeadlineTlsSocket


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


class Inbound(io.RawIOBase):
    """What comes on a connection, to be read through ``io.BufferedReader``; closing it leaves the socket open.

    With ``over`` set it gives what was received already and waits for nothing.
    """

    over = False

    def __init__(self, sock: DeadlineSocket | DeadlineTlsSocket) -> None:
        super().__init__()
        self._receive = sock.recv_into

    def readable(self) -> bool:
        """Say yes: ``io.BufferedReader`` asks."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive into ``buffer``, which is all that ``io.BufferedReader`` needs; None where nothing is due."""
        return None if self.over else self._receive(buffer)


def surplus(sock: DeadlineSocket | DeadlineTlsSocket, stream: io.BufferedReader, patience: float) -> bool:
    """Say whether more has come than was taken from ``stream``, which is of no use afterwards.

    Without ``patience`` (seconds) only what was received already counts, which costs no call of the kernel: what
    still stands there ``readable`` will see, except the rest of a TLS record.
    """
    inbound = stream.raw
    assert isinstance(inbound, Inbound)
    if patience:
        sock.deadline = Deadline(patience)
    else:
        inbound.over = True
    try:
        return bool(stream.peek(1)) or (not isinstance(sock, DeadlineSocket) and sock.pending() > 0)
    except OSError:
        return False  # nothing came in time, or the connection ended in some way after all that was announced


def readable(sock: socket.socket) -> bool:
    """Say whether something stands unread, the end of the connection included."""
    return _wait(sock, select.POLLIN, 0.0)


def _wait(sock: socket.socket, events: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(sock, events)
    return bool(poller.poll(seconds * 1000))
