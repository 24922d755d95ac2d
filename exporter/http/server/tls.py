"""TLS on the serving side: connections that shake hands in the event loop.

The handshake is one more thing that a connection waits for, under the deadline of its first request: a client that
says nothing occupies a place like any other silent client, and neither the loop nor the accepting.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from selectors import EVENT_READ, EVENT_WRITE

from exporter.http.server.connection import RequestHandler, ServerConnection, ServerLimits
from exporter.http.server.request import format_head, text_response

_SAN_KINDS = frozenset({"DNS", "IP Address", "URI", "email"})


def subject_names(certificate: Mapping[str, object]) -> frozenset[str]:
    """Return the subject alternative names of a certificate as ``SSLSocket.getpeercert`` describes it."""
    names = certificate.get("subjectAltName", ())
    assert isinstance(names, tuple)
    return frozenset(_normal(text) if kind == "IP Address" else text for kind, text in names if kind in _SAN_KINDS)


def _normal(address: str) -> str:
    """Return an IP address in its shortest form; OpenSSL writes out the zeros of IPv6."""
    try:
        return str(ipaddress.ip_address(address.strip()))
    except ValueError:
        return address


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLEOFError):
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or "protocol error").replace("_", " ").lower()


class TlsServerConnection(ServerConnection):
    """A client that speaks TLS.  Takes over ``sock``, also when it raises OSError because the client is gone.

    ``allowed_sans``: of which the certificate of a client that has one must have at least one; empty allows all.
    ``on_failure`` is called with why a handshake failed, "" where it is not worth a log line.
    """

    __slots__ = ("_allowed_sans", "_on_failure", "_shaking")

    sock: ssl.SSLSocket

    def __init__(
        self,
        sock: socket.socket,
        handler: RequestHandler,
        limits: ServerLimits,
        now: float,
        *,
        context: ssl.SSLContext,
        allowed_sans: frozenset[str] = frozenset(),
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        secured = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(secured, handler, limits, now)
        self._allowed_sans, self._on_failure = allowed_sans, on_failure
        self._shaking = True

    def advance(self, now: float) -> None:
        """Shake hands first; then as any connection.  Raises OSError when the client is gone or not admitted."""
        try:
            if self._shaking:
                self._shake()
            super().advance(now)
        except ssl.SSLWantReadError:
            self.interest = EVENT_READ
        except ssl.SSLWantWriteError:
            self.interest = EVENT_WRITE

    def _shake(self) -> None:
        try:
            self.sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                response = text_response(400, "this port speaks HTTPS; write https://")
                self._on_failure("")  # it is told; and so asks the image's own health check
                with contextlib.suppress(OSError):
                    socket.socket.send(self.sock, format_head(response, keep=False) + response.body)
            else:
                self._on_failure(_reason(error))
            raise
        certificate = self.sock.getpeercert() if self._allowed_sans else None
        if certificate and not subject_names(certificate) & self._allowed_sans:
            reason = "the client's certificate has none of client_allowed_sans"
            self._on_failure(reason)
            raise ssl.SSLError(0, reason)
        self._shaking = False
        self.interest = EVENT_READ

    def close(self) -> None:
        """End TLS, as far as that takes no waiting, and close the socket."""
        self._end_tls()
        super().close()

    def reject(self) -> None:
        """Close because all connections are in use; without a response where that would take a handshake first."""
        if self._shaking:
            self.close()
        else:
            super().reject()

    def _pending(self) -> bool:
        return self.sock.pending() > 0

    def _linger(self, now: float) -> None:
        self._end_tls()
        super()._linger(now)

    def _end_tls(self) -> None:
        """Send the alert that ends the stream, or some clients report that it was cut off."""
        if not self._shaking:
            with contextlib.suppress(OSError, ValueError):
                self.sock.unwrap()
