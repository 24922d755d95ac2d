"""A ``requests`` session over the same connection, so with the same deadline, caps and rules.

Loads requests and urllib3: 5 MiB, which a node without discovery over HTTP never pays.
"""

from __future__ import annotations

import http.cookiejar
import logging
from typing import Any

import requests
import requests.adapters
import urllib3
import urllib3.connection

from exporter.http.client.connection import DeadlineConnection
from exporter.http.client.url import Origin

# It logs URLs with their queries, which may hold a secret.
logging.getLogger("urllib3").setLevel(logging.CRITICAL + 1)


class SessionConnection(DeadlineConnection, urllib3.connection.HTTPConnection):
    """A connection that urllib3's pool can hold; does TLS itself."""

    @property
    def is_connected(self) -> bool:
        """Return True: ``ask`` has seen to that, and a new TLS connection has session tickets to be read."""
        return True


def open_session(origin: Origin, connection: SessionConnection) -> requests.Session:
    """Return a session that reaches ``origin`` and nothing else, and takes nothing from the environment.

    ``timeout`` of its calls is in seconds, for the whole exchange; it follows no redirect and keeps no cookie.
    """
    session = _Session()
    session.trust_env = False
    session.headers.clear()
    session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))
    session.adapters.clear()
    session.mount(f"{origin}/", _Adapter(origin, connection))
    return session


class _Session(requests.Session):
    def get_redirect_target(self, _: requests.Response) -> None:
        """Leave redirects alone: the library would read their bodies, and parse where they lead."""


class _Adapter(requests.adapters.HTTPAdapter):
    def __init__(self, origin: Origin, connection: SessionConnection) -> None:
        super().__init__()
        self._connection = connection
        self._pool = urllib3.HTTPConnectionPool(origin.host, origin.port, maxsize=1)
        self._pool.ConnectionCls = lambda **_: connection  # type: ignore[assignment]

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        connection, send = self._connection, super().send
        connection.deadline.shorten(options["timeout"])
        options["timeout"] = None  # what the library would set for the socket alone

        def ask() -> requests.Response:
            request.headers["Accept-Encoding"] = connection.accept_encoding
            return send(request, *args, **options)

        return connection.ask(ask)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> urllib3.HTTPConnectionPool:
        return self._pool

    def cert_verify(self, *_: Any) -> None:
        """Leave TLS to the connection: the library would add the authorities that it ships."""
