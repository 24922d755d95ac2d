"""Connections of ``http.client``, and so of urllib3, with one deadline over resolve, connect, TLS, head and body."""

from __future__ import annotations

import functools
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from exporter.errors import EndpointError
from exporter.http.client.deadline import Deadline
from exporter.http.client.errors import READING, explain, is_disconnect
from exporter.http.client.resolver import Address, Resolver
from exporter.http.client.response import StrictResponse
from exporter.http.client.sockets import DeadlineSocket, DeadlineTlsSocket, is_readable
from exporter.http.client.target import Limits, Target
from exporter.http.client.tls import TlsContext
from exporter.http.client.url import Origin

T = TypeVar("T")


class DeadlineConnection(http.client.HTTPConnection):
    """A connection to ``origin``, where ``target`` is; the caller sets ``deadline`` before each request.

    ``certificate_expires``: in Unix time; None without TLS, and where nothing verifies the certificate.
    """

    sock: DeadlineSocket | DeadlineTlsSocket | None

    def __init__(self, target: Target, origin: Origin, limits: Limits, resolver: Resolver) -> None:
        super().__init__(origin.host, origin.port)
        self.response_class = functools.partial(StrictResponse, limits=limits)  # type: ignore[assignment]
        self.deadline = Deadline(0.0)
        self._is_loopback = False
        self.certificate_expires: float | None = None
        self._resolver = resolver
        self._tls = TlsContext(target, origin) if origin.scheme == "https" else None
        self._context: ssl.SSLContext | None = None
        self._newest_sock: DeadlineSocket | DeadlineTlsSocket | None = None
        self._phase = "preparing"  # what the exchange under way is doing

    def ask(self, request: Callable[[], T]) -> T:
        """Return what ``request`` returns over the open connection.  A kept one that turns out dead is replaced once.

        ``request`` sends one and reads the head of its answer.
        """
        if self._can_reuse():
            try:
                return request()
            except Exception as problem:
                if not is_disconnect(problem):
                    raise
            self.close()
        self.connect()
        return request()

    @property
    def accept_encoding(self) -> str:
        """What to ask for: packing a page costs both sides more than it saves where no network lies between them."""
        return "identity" if self._is_loopback else "gzip"

    def _can_reuse(self) -> bool:
        """Return whether the next request may go over the open connection; close it where it may not."""
        self._phase = "preparing"
        context = self._tls.context() if self._tls is not None else None
        sock = self.sock
        # What stands unread on a connection at rest is its end, or nothing that was asked for.
        if sock is None or sock.is_spent or context is not self._context or is_readable(sock):
            self.close()
            return False
        self._use(sock)
        return True

    def connect(self) -> None:
        """Open the connection; raise EndpointError or OSError."""
        self._context = self._tls.context() if self._tls is not None else None
        sock = self._dial()
        if self._tls is None:
            sock.settimeout(None)
            self._use(sock)
            return
        self._phase = "shaking hands over TLS"
        try:
            tls_sock = self._tls.wrap(sock)
        except BaseException:
            sock.close()
            raise
        self.certificate_expires = tls_sock.certificate_expires()
        self._use(tls_sock)

    def _use(self, sock: DeadlineSocket | DeadlineTlsSocket) -> None:
        self.sock = self._newest_sock = sock
        sock.deadline = self.deadline
        self._phase = "sending the request"

    def _dial(self) -> DeadlineSocket:
        """Connect to the first address that answers, none of them being given the time of those after it."""
        self._phase = "resolving the name"
        addresses = self._resolver.addresses(self.host, self.deadline)
        self._phase = "connecting"
        first_problem: OSError | None = None
        for index, address in enumerate(addresses):
            self._is_loopback = ipaddress.ip_address(address[1][0].partition("%")[0]).is_loopback
            try:
                return _connect(address, self.port, self.deadline, len(addresses) - index)
            except OSError as problem:
                first_problem = first_problem or problem
        try:
            raise first_problem or EndpointError("dns", f"no address for {self.host}")
        finally:
            del first_problem  # its traceback holds this frame: garbage that only the collector would find

    def getresponse(self) -> Any:
        """Return the answer once its head is there: a StrictResponse, or urllib3's around one."""
        self._phase = "waiting for the head of the answer"
        response = super().getresponse()
        self._phase = READING
        return response

    def explain(self, cause: Exception) -> EndpointError:
        """Return the error for what stopped the exchange; close the connection and have the name looked up anew."""
        self.close()
        self._resolver.forget(self.host)
        return explain(cause, self._phase, self.deadline.seconds)

    def shut_down(self) -> None:
        """End the exchange under way in another thread; it fails at once."""
        if self._newest_sock is not None:  # ``sock`` may belong to the answer alone by now
            with suppress(OSError):
                # Not the socket's own shutdown: over TLS that takes the encryption away under the reader.
                socket.socket.shutdown(self._newest_sock, socket.SHUT_RDWR)


def _connect(address: Address, port: int, deadline: Deadline, candidates: int) -> DeadlineSocket:
    """Return a connected socket; ``candidates``: addresses, this one included, that share the time left."""
    family, where = address
    sock = DeadlineSocket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(deadline.remaining() / candidates)
        sock.connect((where[0], port, *where[2:]))
        sock.settimeout(deadline.remaining())  # what a TLS handshake may take
    except BaseException:
        sock.close()
        raise
    return sock
