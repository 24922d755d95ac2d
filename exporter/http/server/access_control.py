"""Applies a web configuration to the connections and requests of a listener, and counts what it refuses."""

from __future__ import annotations

import functools
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from exporter.http.server.basic_auth import REASONS, Authenticator
from exporter.http.server.connection import DeferredResponse, RequestHandler, ServerConnection, ServerLimits
from exporter.http.server.request import Request, Response
from exporter.logs import log_event

if TYPE_CHECKING:
    from exporter.http.server.web_config import Access

_log = logging.getLogger(__name__)

_LOG_INTERVAL = 60.0  # seconds between two log lines of one event: whoever is refused decides how often that happens


class AccessControl:
    """Admits clients by what ``access`` returns now; ``open_paths`` need no user.

    The counters only rise, and may be read from any thread.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        *,
        open_paths: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.handshake_failures = 0
        self.authentication_failures = dict.fromkeys(REASONS, 0)
        self._access, self._open_paths = access, open_paths
        self._authenticator = Authenticator(on_failure=self._on_authentication_failure)
        self._clock = clock
        self._quiet_until: dict[str, float] = {}

    def connect(
        self,
        sock: socket.socket,
        peer: str,
        handle: RequestHandler,
        limits: ServerLimits,
        *,
        now: float,
        wake: Callable[[], None],
    ) -> ServerConnection:
        """Return the connection of a new client, under the rules of now.

        Raises OSError when the client is gone.  ``wake`` is called from another thread when the answer to whether a
        request may be handled is there.
        """
        access = self._access()
        handler = functools.partial(self._handle, peer, handle, wake)
        connection: ServerConnection
        if access.context is None:
            connection = ServerConnection(sock, handler, limits, now)
        else:
            from exporter.http.server.tls import TlsServerConnection  # noqa: PLC0415 - ssl takes 20 ms to import

            connection = TlsServerConnection(
                sock,
                handler,
                limits,
                now,
                context=access.context,
                allowed_sans=access.allowed_sans,
                on_failure=functools.partial(self._on_handshake_failure, peer),
            )
        connection.authorize = lambda request, response: self._handle(peer, lambda _: response, wake, request)
        connection.access, connection.headers = access, access.headers
        return connection

    def is_current(self, connection: ServerConnection) -> bool:
        """Return whether a connection was accepted under the rules of now."""
        return connection.access is self._access()

    def _handle(
        self, peer: str, handle: RequestHandler, wake: Callable[[], None], request: Request
    ) -> Response | DeferredResponse:
        """Handle a request of a user that may make it; where there are no users, of everybody."""
        users = self._access().users
        if not users or request.path in self._open_paths:
            return handle(request)
        response = self._authenticator.authenticate(
            request, _peer_network(peer), users, functools.partial(handle, request)
        )
        if isinstance(response, DeferredResponse):
            response.add_done_callback(wake)
        return response

    def _on_handshake_failure(self, peer: str, reason: str) -> None:
        self.handshake_failures += 1
        if reason:
            self._warn("tls_handshake_failed", peer, reason)

    def _on_authentication_failure(self, reason: str, peer: str) -> None:
        self.authentication_failures[reason] += 1  # each reason by one thread only
        self._warn("authentication_failed", peer, reason)

    def _warn(self, event: str, peer: str, reason: str) -> None:
        now = self._clock()
        if now >= self._quiet_until.get(event, now):
            self._quiet_until[event] = now + _LOG_INTERVAL
            log_event(_log, logging.WARNING, event, client=peer, reason=reason)


def _peer_network(host: str) -> str:
    """Return what one client has at most one of: an IPv4 address, or the /64 of an IPv6 address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((address, 64), strict=False))
