"""TLS to an engine: its context, its socket, and its failures in words.

Loaded with the first URL that is https: OpenSSL takes 1.4 MiB and a tenth of the start, and most engines are asked on
the same node without it.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from exporter.errors import EndpointError
from exporter.http.client.credentials import Stamp, TlsFiles, stamp_of, why
from exporter.http.client.deadline import Deadline
from exporter.http.client.errors import READING

_EXPIRED = 10  # verification results of OpenSSL, x509_vfy.h
_WRONG_NAME = frozenset({62, 64})
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21})


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

    def certificate_expires(self) -> float | None:
        """Give when the server's certificate ends, in Unix time; None where it was not asked for."""
        certificate = self.getpeercert()
        ends = certificate.get("notAfter") if certificate else None
        return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


class TlsSettings:
    """The TLS context of one endpoint, made anew when one of its files changes."""

    __slots__ = ("_context", "_files", "_stamps")

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps: tuple[Stamp, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context, the same object until a file changes; raise EndpointError ``credentials``."""
        files = self._files
        paths = [path for path in (files.ca_file, files.cert_file, files.key_file) if path]
        stamps = tuple(stamp_of(path) for path in paths)
        if self._context is None or stamps != self._stamps:
            self._context = None
            self._context = _make_context(files)
            self._stamps = stamps
        return self._context

    def wrapped(self, sock: socket.socket, name: str) -> DeadlineTlsSocket:
        """Shake hands over a connected socket in the newest context; the socket is the result's from then on."""
        made = self.context().wrap_socket(sock, server_hostname=name)
        assert isinstance(made, DeadlineTlsSocket)  # the context's class
        made.suppress_ragged_eofs = False  # a page that ends with the connection must end on purpose
        return made


def _make_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chain and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = DeadlineTlsSocket
    context.set_alpn_protocols(["http/1.1"])  # or a server that prefers HTTP/2 may speak that
    if files.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if files.ca_file:
            context.load_verify_locations(files.ca_file)
        elif not files.insecure_skip_verify:
            context.load_default_certs()
    except (OSError, ValueError) as problem:
        raise EndpointError("credentials", f"cannot use {files.ca_file}: {_pem_problem(problem)}") from None
    try:
        if files.cert_file:
            # an empty password instead of OpenSSL's default, which stops the daemon to ask at the terminal
            context.load_cert_chain(files.cert_file, files.key_file, password=lambda: b"")
        elif files.key_file:
            raise EndpointError("credentials", "key_file is set and cert_file is not")
    except (OSError, ValueError) as problem:
        pair = " with ".join(path for path in (files.cert_file, files.key_file) if path)
        raise EndpointError("credentials", f"cannot use {pair}: {_pem_problem(problem)}") from None
    return context


def _pem_problem(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        reason = problem.reason or "no PEM certificate or key"
        return reason.replace("_", " ").lower()
    return why(problem)


def explain(cause: Exception, phase: str) -> EndpointError:
    """Give reason and sentence for an error of the library in ``phase``."""
    if isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        hint = "" if phase == READING else "; it may want a client certificate, see cert_file"
        return EndpointError("closed", f"the peer ended the TLS connection while {phase}{hint}")
    if not isinstance(cause, ssl.SSLCertVerificationError):
        reason = getattr(cause, "reason", None) or "failed"
        return EndpointError("tls", f"TLS while {phase}: {reason.replace('_', ' ').lower()}")
    if cause.verify_code == _EXPIRED:
        return EndpointError("tls_expired", "the server's certificate has expired")
    if cause.verify_code in _WRONG_NAME:
        return EndpointError("tls_name", "the server's certificate is for another name; see server_name")
    if cause.verify_code in _UNKNOWN_ISSUER:
        return EndpointError("tls_unknown_ca", "the server's certificate is of an unknown authority; see ca_file")
    return EndpointError("tls", f"the server's certificate is refused: {cause.verify_message}")
