"""Sockets that keep one deadline over all that is received and sent.

A plain socket timeout bounds one call, so a peer that sends a byte now and then is never late.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
from typing import Any

from exporter.http.client.deadline import Deadline


class DeadlineSocket(socket.socket):
    """A TCP socket whose calls raise TimeoutError at ``deadline``; each exchange sets a new one.

    Without a timeout of its own: what is there costs one system call to take, where that would make it three.
    ``is_spent``: more has come than was announced, so no further answer on it can be trusted.
    """

    deadline: Deadline
    is_spent = False

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into ``buffer``."""
        while True:
            left = self.deadline.remaining()
            try:
                return super().recv_into(buffer, nbytes, flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self, select.POLLIN, left)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of ``data``."""
        rest = memoryview(data)
        while rest:
            left = self.deadline.remaining()
            try:
                rest = rest[super().send(rest, flags | socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                _wait(self, select.POLLOUT, left)


class DeadlineTlsSocket(ssl.SSLSocket):
    """The same over TLS.  Constructed by an SSLContext whose ``sslsocket_class`` this is, never directly.

    The handshake comes before ``deadline`` is set: OpenSSL's wrapper bounds it as a whole.
    """

    deadline: Deadline
    is_spent = False
    suppress_ragged_eofs: bool  # the library's own, missing from its stubs

    def recv_into(self, *args: Any) -> int:
        """Receive into a buffer."""
        self.settimeout(self.deadline.remaining())
        return super().recv_into(*args)

    def send(self, *args: Any) -> int:
        """Send some of the data; ``sendall`` loops over this."""
        self.settimeout(self.deadline.remaining())
        return super().send(*args)

    def certificate_expires(self) -> float | None:
        """Return when the server's certificate ends, in Unix time; None where it was not asked for."""
        certificate = self.getpeercert()
        ends = certificate.get("notAfter") if certificate else None
        return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


def is_readable(sock: socket.socket) -> bool:
    """Return whether something stands unread, the end of the connection included."""
    return _wait(sock, select.POLLIN, 0.0)


def has_trailing_data(sock: DeadlineSocket | DeadlineTlsSocket, stream: io.BufferedReader, wait: float = 0.0) -> bool:
    """Return whether more has come than was taken from ``stream``, which is of no use afterwards.

    ``wait`` in seconds; with 0 only what was received already counts, which costs no system call: what still stands
    in the socket ``is_readable`` will see, except the rest of a TLS record.
    """
    sock.deadline = Deadline(wait)
    try:
        return bool(stream.peek(1)) or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)
    except OSError:
        return False  # nothing came in time, or the connection ended in some way after all that was announced


def _wait(sock: socket.socket, events: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(sock, events)
    return bool(poller.poll(seconds * 1000))
