"""The daemon's only way out over HTTP: one bounded exchange with one engine, a whole page or a named failure.

Whatever the peer does, ``fetch`` returns within the deadline (resolving, connecting, TLS, head and body together),
takes no more memory than its limits, follows at most one redirect and only within the same origin, and shows no
secret.  It keeps one connection between polls.  Request and answer are written and read here: at a poll a second,
what the HTTP libraries do around a few bytes of head was a third of an exchange, and having them loaded a tenth of
the daemon's memory.  TLS is the standard library's.  Nothing is read from the environment: no proxy, no netrc.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.errors import EndpointError
from exporter.http.client import url as urls
from exporter.http.client.credentials import Authorization, TlsFiles
from exporter.http.client.deadline import Deadline, DeadlineSocket, Inbound, readable, surplus
from exporter.http.client.errors import READING, dropped, explain, of_status
from exporter.http.client.head import Head, Limits, read_head
from exporter.http.client.resolver import Address, Resolver, default_resolver
from exporter.http.client.response import read_page, vouched_for
from exporter.http.client.url import Origin

if TYPE_CHECKING:
    import ssl

    from exporter.http.client.tls import DeadlineTlsSocket, TlsSettings

__all__ = ["HttpClient", "Limits", "Response", "Target"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_STANDARD = Limits()
_PATIENCE = 0.01  # seconds for the rest of a line that should have been whole: more than a node's network takes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Target:
    """Where to read, and as whom.  ``timeout`` is in seconds, for the whole exchange.

    With more in ``accept`` than the text format, some engines rename their metrics.
    """

    url: str
    timeout: float = 1.0
    bearer_token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False
    accept: str = "text/plain;version=0.0.4"

    def __repr__(self) -> str:
        """Show what is safe to show."""
        return f"Target({urls.redacted(self.url)}, timeout={self.timeout:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole body, inflated; ``duration`` in seconds; when the server's certificate ends, in Unix time.

    ``certificate_expires`` is None without TLS, and with ``insecure_skip_verify``, where nothing watches the date.
    """

    body: bytes
    duration: float
    certificate_expires: float | None


class HttpClient:
    """One engine's address and the connection kept to it.  One exchange at a time; others wait in their deadline."""

    def __init__(self, target: Target, limits: Limits = _STANDARD, *, resolver: Resolver = default_resolver) -> None:
        self._target = target
        self._limits = limits
        self._resolver = resolver
        self._authorization = Authorization(target.bearer_token_file, target.username, target.password_file)
        self._tls: TlsSettings | None = None
        self._turn = threading.Lock()
        self._closed = False
        self._sock: DeadlineSocket | DeadlineTlsSocket | None = None
        self._context: ssl.SSLContext | None = None
        self._stream: io.BufferedReader | None = None
        self._loopback = False
        self._expires: float | None = None
        self._phase = ""

    def __repr__(self) -> str:
        return f"HttpClient({self._target!r})"

    def fetch(self, path: str | None = None) -> Response:
        """Return the page at the target's URL, or at ``path`` of the same origin.

        Raise EndpointError, and nothing else, with one of the closed reasons; the connection is then closed and the
        address looked up anew the next time.
        """
        started = time.monotonic()
        deadline = Deadline(self._target.timeout)
        try:
            origin, asked = self._where(path)
            body, expires = self._exchange_in_turn(origin, asked, deadline)
        except Exception as cause:
            problem = explain(cause, self._phase, self._target.timeout)
            failure = EndpointError(problem.reason, f"{self._shown(path)}: {problem}")
        else:
            duration = time.monotonic() - started
            return Response(body=body, duration=duration, certificate_expires=expires)
        # Raised out here so that it carries neither the cause, whose text may hold a secret, nor its frames.
        try:
            raise failure
        finally:
            del failure  # as its traceback holds this frame

    def close(self) -> None:
        """Give the connection up, also under an exchange in another thread, which fails at once.  Final."""
        self._closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._turn.release()
            return
        sock = self._sock
        if sock is not None:
            with suppress(OSError):
                # Not sock.shutdown: that of a TLS socket takes its encryption away under the reader.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _where(self, path: str | None) -> tuple[Origin, str]:
        origin, own = urls.parse_configured(self._target.url)
        return origin, own if path is None else urls.parse_path(path)

    def _shown(self, path: str | None) -> str:
        try:
            return urls.shown(*self._where(path))
        except EndpointError:
            return urls.redacted(self._target.url)

    def _exchange_in_turn(self, origin: Origin, path: str, deadline: Deadline) -> tuple[bytes, float | None]:
        if not self._turn.acquire(timeout=deadline.remaining()):
            raise EndpointError("timeout", "the exchange before this one is still under way")
        try:
            return self._exchange(origin, path, deadline), self._expires
        except BaseException:
            self._drop()
            self._resolver.forget(origin.host)
            raise
        finally:
            self._turn.release()
            if self._closed:
                self.close()  # it came while this exchange held the connection

    def _exchange(self, origin: Origin, path: str, deadline: Deadline) -> bytes:
        self._phase = "preparing"
        authorization = self._authorization.value()
        head = self._ask(origin, path, authorization, deadline)
        if head.status in _REDIRECTS:
            path = urls.follow(origin, path, head.first("location"))
            self._leave(head)
            head = self._ask(origin, path, authorization, deadline)
            if head.status in _REDIRECTS:
                raise EndpointError("redirect", "redirected a second time")
        if head.status != HTTPStatus.OK:
            raise of_status(head.status)
        self._phase = READING
        assert self._stream is not None  # made with the head
        body = read_page(head, self._stream, self._limits, deadline)
        doubtful = not body.endswith(b"\n") and not vouched_for(head)
        patience = min(_PATIENCE, deadline.remaining()) if doubtful else 0.0
        if self._finish(head, patience) and doubtful:
            message = f"the announced {len(body)} bytes end in the middle of a line, and more follows"
            raise EndpointError("content_length", message)
        return body

    def _finish(self, head: Head, patience: float = 0.0) -> bool:
        """Have done with an answer that was read whole; tell whether more than it came, within ``patience`` seconds.

        Such a surplus is no answer to anything, so the connection is given up with it.
        """
        stream, self._stream = self._stream, None
        assert self._sock is not None
        assert stream is not None  # both by _send
        more = surplus(self._sock, stream, patience)
        stream.close()
        if more or not head.keep:
            self._drop()
        return more

    def _leave(self, head: Head) -> None:
        """Make the connection ready for the next request; a body nobody reads would be taken for its answer."""
        self._finish(head)
        if head.fields.get("content-length") != ["0"] or "transfer-encoding" in head.fields:
            self._drop()

    def _ask(self, origin: Origin, path: str, authorization: str | None, deadline: Deadline) -> Head:
        """Send the request, return the answer's head.  A kept connection that turns out dead is replaced once."""
        kept = self._connect(origin, deadline)
        try:
            return self._send(origin, path, authorization)
        except OSError as problem:
            if not kept or not dropped(problem):
                raise
        self._drop()
        self._connect(origin, deadline)
        return self._send(origin, path, authorization)

    def _connect(self, origin: Origin, deadline: Deadline) -> bool:
        """Have a connection that keeps ``deadline``; return whether it was there before."""
        if self._closed:
            raise EndpointError("closed", "this endpoint is closed")
        tls = self._tls_settings() if origin.scheme == "https" else None
        context = tls.context() if tls is not None else None
        sock = self._sock
        # What stands unread on a connection at rest is its end, or nothing that was asked for.
        kept = sock is not None and context is self._context and not readable(sock)
        if sock is None or not kept:
            self._drop()
            sock, self._context = self._open(origin, tls, deadline), context
        sock.deadline = deadline
        return kept

    def _tls_settings(self) -> TlsSettings:
        if self._tls is None:
            from exporter.http.client.tls import TlsSettings  # noqa: PLC0415 - see there

            target = self._target
            self._tls = TlsSettings(
                TlsFiles(
                    ca_file=target.ca_file,
                    cert_file=target.cert_file,
                    key_file=target.key_file,
                    insecure_skip_verify=target.insecure_skip_verify,
                )
            )
        return self._tls

    def _open(
        self, origin: Origin, tls: TlsSettings | None, deadline: Deadline
    ) -> DeadlineSocket | DeadlineTlsSocket:
        dialled = self._dial(origin, deadline)
        if tls is None:
            dialled.setblocking(False)
            self._sock = dialled
            return dialled
        try:
            sock = tls.wrapped(dialled, self._target.server_name or origin.server_name)
        except BaseException:
            dialled.close()
            raise
        self._sock = sock
        self._expires = sock.certificate_expires()
        return sock

    def _dial(self, origin: Origin, deadline: Deadline) -> DeadlineSocket:
        """Connect to the first address that answers, none of them being given the time of those after it."""
        self._phase = "resolving the name"
        addresses = self._resolver.addresses(origin.host, deadline)
        self._phase = "connecting"
        first_problem: OSError | None = None
        for index, address in enumerate(addresses):
            self._loopback = ipaddress.ip_address(address[1][0].partition("%")[0]).is_loopback
            try:
                sock = _connected(address, origin.port, deadline, deadline.remaining() / (len(addresses) - index))
            except OSError as problem:
                first_problem = first_problem or problem
                continue
            self._phase = "shaking hands over TLS"
            return sock
        try:
            raise first_problem or EndpointError("dns", f"no address for {origin.host}")
        finally:
            del first_problem  # its traceback holds this frame: garbage that only the collector would find

    def _send(self, origin: Origin, path: str, authorization: str | None) -> Head:
        sock = self._sock
        assert sock is not None  # by _connect
        self._phase = "sending the request"
        sock.sendall(self._request(origin, path, authorization))
        self._phase = "waiting for the head of the answer"
        self._stream = io.BufferedReader(Inbound(sock))
        return read_head(self._stream, self._limits)

    def _request(self, origin: Origin, path: str, authorization: str | None) -> bytes:
        """Write the request; no part of it can end a line, see ``origin`` and ``credentials``."""
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {origin.authority}",
            f"Accept: {self._target.accept}",
            f"Accept-Encoding: {'identity' if self._loopback else 'gzip'}",
            f"User-Agent: shardwatch/{__version__}",
        ]
        if authorization is not None:
            lines.append(f"Authorization: {authorization}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        stream, self._stream = self._stream, None
        self._expires = None
        if stream is not None:
            stream.close()
        if sock is not None:
            sock.close()


def _connected(address: Address, port: int, deadline: Deadline, seconds: float) -> DeadlineSocket:
    family, where = address
    sock = DeadlineSocket(family, socket.SOCK_STREAM)
    sock.deadline = deadline
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(seconds)
        sock.connect((where[0], port, *where[2:]))
        sock.settimeout(deadline.remaining())  # what a TLS handshake may take
    except BaseException:
        sock.close()
        raise
    return sock
