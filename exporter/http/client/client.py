"""Bounded HTTP exchanges, the daemon's only outbound HTTP: a whole body or a named failure.

Whatever the peer does, ``fetch`` returns within the deadline (resolving, connecting, TLS, head and body together),
takes no more memory than its limits, follows at most one redirect and only within the same origin, and shows no
secret.  Nothing is read from the environment: no proxy, no netrc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from exporter import __version__
from exporter.errors import EndpointError
from exporter.http.client import url as urls
from exporter.http.client.body_buffer import collect
from exporter.http.client.credentials import authorization
from exporter.http.client.deadline import Deadline
from exporter.http.client.resolver import Resolver, default_resolver
from exporter.http.client.target import SMALL, Limits, Target
from exporter.http.client.url import Origin

__all__ = ["FetchResult", "HttpClient", "Limits", "SessionClient", "Target", "status_error"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_STATUSES = frozenset(int(status) for status in HTTPStatus)
_DEFAULT_LIMITS = Limits()


T = TypeVar("T")


class ClientConnection(Protocol):
    """What a client needs of its connection; ``DeadlineConnection`` is loaded when the first one is opened."""

    deadline: Deadline
    certificate_expires: float | None

    @property
    def accept_encoding(self) -> str: ...

    def ask(self, request: Callable[[], T]) -> T: ...

    def explain(self, cause: Exception) -> EndpointError: ...

    def shut_down(self) -> None: ...

    def close(self) -> None: ...


class FetchResult(Struct, frozen=True, kw_only=True):
    """A whole body, inflated; ``duration`` in seconds; when the server's certificate ends, in Unix time.

    ``certificate_expires`` is None without TLS, and with ``insecure_skip_verify``, where nothing watches the date.
    """

    body: bytes
    duration: float
    certificate_expires: float | None


class HttpClient:
    """One server's address and the connection kept to it.  One exchange at a time; others wait in their deadline.

    Over ``http.client``: a page of 60 kB takes 99 µs on loopback, over urllib3's pool 161 µs, over requests 350 µs.
    """

    def __init__(
        self, target: Target, limits: Limits = _DEFAULT_LIMITS, *, resolver: Resolver = default_resolver
    ) -> None:
        self._target = target
        self._limits = limits
        self._resolver = resolver
        self._lock = threading.Lock()
        self._is_closed = False
        self._connection: ClientConnection | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target!r})"

    def fetch(self, path: str | None = None) -> FetchResult:
        """Return the page at the target's URL, or at ``path`` of the same origin.

        Raise EndpointError, and nothing else, with one of the closed reasons; the connection is then closed and the
        address looked up anew the next time.
        """
        started = time.monotonic()
        body, expires = self._guarded(path, self._exchange)
        return FetchResult(body=body, duration=time.monotonic() - started, certificate_expires=expires)

    def _guarded(
        self, path: str | None, exchange: Callable[[ClientConnection, Origin, str], T]
    ) -> tuple[T, float | None]:
        """Return what ``exchange`` returns, and when the certificate ends; raise EndpointError only."""
        try:
            return self._run(path, Deadline(self._target.timeout), exchange)
        except EndpointError as problem:
            failure = EndpointError(problem.reason, f"{self._redacted(path)}: {problem}", detail=problem.detail)
        # Raised out here so that it carries neither the cause, whose text may hold a secret, nor its frames.
        try:
            raise failure
        finally:
            del failure  # as its traceback holds this frame

    def close(self) -> None:
        """Close the connection, also under an exchange in another thread, which fails at once.  Final."""
        self._is_closed = True
        connection = self._connection
        if connection is None:
            return
        if not self._lock.acquire(blocking=False):
            connection.shut_down()
            return
        try:
            connection.close()
        finally:
            self._lock.release()

    def _split(self, path: str | None) -> tuple[Origin, str]:
        origin, own = urls.parse_configured(self._target.url)
        return origin, own if path is None else urls.parse_path(path)

    def _redacted(self, path: str | None) -> str:
        try:
            return urls.redact(*self._split(path))
        except EndpointError:
            return urls.redact_url(self._target.url)

    def _run(
        self, path: str | None, deadline: Deadline, exchange: Callable[[ClientConnection, Origin, str], T]
    ) -> tuple[T, float | None]:
        origin, path = self._split(path)
        if not self._lock.acquire(timeout=deadline.seconds):
            raise EndpointError("timeout", "the exchange before this one is still under way")
        try:
            if self._is_closed:
                raise EndpointError("closed", "this client is closed")
            connection = self._connection = self._connection or self._make_connection(origin)
            connection.deadline = deadline
            try:
                return exchange(connection, origin, path), connection.certificate_expires
            except Exception as cause:
                raise connection.explain(cause) from None
        finally:
            self._lock.release()
            if self._is_closed:
                self.close()  # it came while this exchange held the connection

    def _make_connection(self, origin: Origin) -> ClientConnection:
        # With http.client and OpenSSL 1.5 MiB and 11 ms, which the start of the daemon need not wait for.
        from exporter.http.client.connection import DeadlineConnection  # noqa: PLC0415

        return DeadlineConnection(self._target, origin, self._limits, self._resolver)

    def _exchange(self, connection: ClientConnection, origin: Origin, path: str) -> bytes:
        headers = self._headers(origin)
        response = self._get(connection, path, headers)
        if response.status in _REDIRECTS:
            path = urls.follow(origin, path, response.headers.get("location"))
            if not response.isclosed():
                connection.close()  # an unread body would be taken for the next answer
            response = self._get(connection, path, headers)
            if response.status in _REDIRECTS:
                raise EndpointError("redirect", "redirected a second time")
        if response.status != HTTPStatus.OK:
            raise status_error(response.status)
        pieces = iter(lambda: response.read(SMALL), b"")
        announced = getattr(response, "announced", 0)  # urllib3's answers do not have it
        body = collect(pieces, self._limits.body_bytes, connection.deadline, announced)
        if not body:
            raise EndpointError("empty", "the page is empty")
        return body

    def _headers(self, origin: Origin) -> dict[str, str]:
        """Return what every request says; no part of it can end a line, see ``url`` and ``credentials``."""
        return {
            "Host": origin.authority,
            "Accept": self._target.accept,
            "User-Agent": f"shardwatch/{__version__}",
            **authorization(self._target),
        }

    def _get(self, connection: Any, path: str, headers: dict[str, str]) -> Any:
        """Return the answer, its head read, as ``http.client`` or urllib3 has it."""

        def request() -> Any:
            connection.request("GET", path, headers=headers | {"Accept-Encoding": connection.accept_encoding})
            return connection.getresponse()

        return connection.ask(request)


class SessionClient(HttpClient):
    """The same over a ``requests`` session, for what is asked seldom: lists of targets, pods, other nodes."""

    def _make_connection(self, origin: Origin) -> ClientConnection:
        from exporter.http.client.session import SessionConnection, open_session  # noqa: PLC0415 - 5 MiB

        connection = SessionConnection(self._target, origin, self._limits, self._resolver)
        self._session = open_session(origin, connection)
        return connection

    def _get(self, connection: ClientConnection, path: str, headers: dict[str, str]) -> Any:
        origin, _ = urls.parse_configured(self._target.url)
        timeout = connection.deadline.remaining()
        return self._session.get(f"{origin}{path}", headers=headers, timeout=timeout, stream=True).raw


def status_error(status: int) -> EndpointError:
    """Return the error of an answer other than 200.

    Statuses that no standard knows share a word, or a peer could invent labels.
    """
    word = str(status) if status in _STATUSES else f"{str(status)[0]}xx"
    return EndpointError(f"http_{word}", f"answered with status {status}", detail=status)
