"""The TLS context of one client, from files that may change."""

from __future__ import annotations

import ssl

from exporter.errors import EndpointError
from exporter.http.client.credentials import FileStamp, file_stamp, system_reason
from exporter.http.client.sockets import DeadlineSocket, DeadlineTlsSocket
from exporter.http.client.target import Target
from exporter.http.client.url import Origin


class TlsContext:
    """The context, made anew when one of its files changes, and the name that the certificate must have."""

    __slots__ = ("_context", "_server_name", "_stamps", "_target")

    def __init__(self, target: Target, origin: Origin) -> None:
        self._target = target
        self._server_name = target.server_name or origin.server_name
        self._stamps: tuple[FileStamp, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context, the same object until a file changes; raise EndpointError ``credentials``."""
        paths = (self._target.ca_file, self._target.cert_file, self._target.key_file)
        stamps = tuple(file_stamp(path) for path in paths if path)
        if self._context is None or stamps != self._stamps:
            self._context = None
            self._context = _make_context(self._target)
            self._stamps = stamps
        return self._context

    def wrap(self, sock: DeadlineSocket) -> DeadlineTlsSocket:
        """Shake hands over a connected socket in the newest context; the socket is the result's from then on."""
        wrapped = self.context().wrap_socket(sock, server_hostname=self._server_name)
        assert isinstance(wrapped, DeadlineTlsSocket)  # the context's class
        wrapped.suppress_ragged_eofs = False  # a page that ends with the connection must end on purpose
        return wrapped


def _make_context(target: Target) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chain and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = DeadlineTlsSocket
    context.set_alpn_protocols(["http/1.1"])  # or a server that prefers HTTP/2 may speak that
    if target.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if target.ca_file:
            context.load_verify_locations(target.ca_file)
        elif not target.insecure_skip_verify:
            context.load_default_certs()
    except (OSError, ValueError) as problem:
        raise _unusable(target.ca_file or "the system's certificates", problem) from None
    try:
        if target.cert_file:
            # an empty password instead of OpenSSL's default, which stops the daemon to ask at the terminal
            context.load_cert_chain(target.cert_file, target.key_file, password=lambda: b"")
        elif target.key_file:
            raise EndpointError("credentials", "key_file is set and cert_file is not")
    except (OSError, ValueError) as problem:
        pair = " with ".join(path for path in (target.cert_file, target.key_file) if path)
        raise _unusable(pair, problem) from None
    return context


def _unusable(files: str, problem: Exception) -> EndpointError:
    return EndpointError("credentials", f"cannot use {files}: {_pem_problem(problem)}", detail=files)


def _pem_problem(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        reason = problem.reason or "no PEM certificate or key"
        return reason.replace("_", " ").lower()
    return system_reason(problem)
