"""TLS on the serving side: the context of a web configuration, and connections that shake hands in the event loop.

The handshake is one more thing that a connection waits for, under the deadline of its first request: a client that
says nothing occupies a place like any other silent client, and neither the loop nor the accepting.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Mapping
from selectors import EVENT_READ, EVENT_WRITE

from exporter.config.web import (
    CURVES,
    NO_CLIENT_CERT,
    REQUIRE_AND_VERIFY,
    TLS12_CIPHERS,
    TLS13_CIPHERS,
    TlsServerSettings,
)
from exporter.errors import Problem, SettingsError
from exporter.http.server.connection import RequestHandler, ServerConnection, ServerLimits
from exporter.http.server.request import format_head, text_response

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_SAN_KINDS = frozenset({"DNS", "IP Address", "URI", "email"})


def server_context(tls: TlsServerSettings, origin: str) -> ssl.SSLContext:
    """Return the context of a listener.  Raises SettingsError, which names the key whose file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    with _refusing("cert_file", origin):
        # an empty password instead of OpenSSL's default, which stops the daemon to ask at the terminal
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: b"")
    if tls.client_ca_file is not None and tls.client_auth_type != NO_CLIENT_CERT:
        with _refusing("client_ca_file", origin):
            context.load_verify_locations(tls.client_ca_file)
        required = tls.client_auth_type == REQUIRE_AND_VERIFY
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    ciphers = [TLS12_CIPHERS[cipher] for cipher in tls.cipher_suites if cipher not in TLS13_CIPHERS]
    if ciphers:
        with _refusing("cipher_suites", origin):
            context.set_ciphers(":".join(ciphers))
    for curve in tls.curve_preferences:
        with _refusing("curve_preferences", origin):
            context.set_ecdh_curve(CURVES[curve])
    return context


@contextlib.contextmanager
def _refusing(name: str, origin: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, ssl.SSLError):
            reason = (error.reason or "no PEM certificate or key").replace("_", " ").lower()
        else:
            reason = getattr(error, "strerror", None) or type(error).__name__
        raise SettingsError([Problem(f"tls_server_config.{name}", f"cannot be used: {reason}")], origin) from None


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


class TlsServerConnection(ServerConnection):
    """A client that speaks TLS.  Takes over ``sock``, also when it raises OSError because the client is gone.

    ``allowed_sans``: of which the certificate of a client that has one must have at least one; empty allows all.
    """

    __slots__ = ("_allowed_sans", "_shaking")

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
    ) -> None:
        secured = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(secured, handler, limits, now)
        self._allowed_sans = allowed_sans
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
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                response = text_response(400, "this port speaks HTTPS; write https://")
                with contextlib.suppress(OSError):
                    socket.socket.send(self.sock, format_head(response, keep=False) + response.body)
            raise
        certificate = self.sock.getpeercert() if self._allowed_sans else None
        if certificate and not subject_names(certificate) & self._allowed_sans:
            raise ssl.SSLError(0, "the client's certificate has none of client_allowed_sans")
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
