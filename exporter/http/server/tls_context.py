"""The TLS context of a web configuration."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from exporter.config.web import (
    CURVES,
    NO_CLIENT_CERT,
    REQUIRE_AND_VERIFY,
    TLS12_CIPHERS,
    TLS13_CIPHERS,
    TlsServerSettings,
)
from exporter.errors import Problem, SettingsError

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


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
