"""The TLS context of a web configuration."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import ssl
from collections.abc import Iterator

from exporter.config.files import read_text
from exporter.config.parsers import Invalid
from exporter.config.web import (
    CURVES,
    NO_CLIENT_CERT,
    REQUIRE_AND_VERIFY,
    TLS12_CIPHERS,
    TLS13_CIPHERS,
    TlsServerSettings,
)
from exporter.errors import Problem, SettingsError

# With forward secrecy and authenticated encryption: OpenSSL's default has CBC as well.
_DEFAULT_CIPHERS = [cipher for name, cipher in TLS12_CIPHERS.items() if "_CBC_" not in name]
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


def server_context(tls: TlsServerSettings, origin: str) -> ssl.SSLContext:
    """Return the context of a listener.  Raises SettingsError, which names the key whose file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    with _refusing("key_file" if _is_certificate(tls.cert_file) else "cert_file", origin):
        # an empty password instead of OpenSSL's default, which stops the daemon to ask at the terminal
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: b"")
    if tls.client_ca_file is not None and tls.client_auth_type != NO_CLIENT_CERT:
        with _refusing("client_ca_file", origin):
            context.load_verify_locations(tls.client_ca_file)
        required = tls.client_auth_type == REQUIRE_AND_VERIFY
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    ciphers = [TLS12_CIPHERS[cipher] for cipher in tls.cipher_suites if cipher not in TLS13_CIPHERS]
    if not tls.cipher_suites:
        ciphers = _DEFAULT_CIPHERS
    if ciphers:
        with _refusing("cipher_suites", origin):
            context.set_ciphers(":".join(ciphers))
    for curve in tls.curve_preferences:
        with _refusing("curve_preferences", origin):
            context.set_ecdh_curve(CURVES[curve])
    return context


def _is_certificate(path: str) -> bool:
    """Return whether a file holds certificates that can be read, so that its key is at fault for what fails."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except (OSError, ValueError):
        return False
    return True


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


_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION_TAG, _UTC_TIME = 0xA0, 0x17


def certificate_expires(path: str) -> float | None:
    """Return the Unix time at which the first certificate of a PEM file ends; None where that cannot be read.

    Python's ssl module shows certificates of the other side only.
    """
    try:
        match = _CERTIFICATE.search(read_text(path))
        if match is None:
            return None
        certificate = _elements(ssl.PEM_cert_to_DER_cert(match[0]))[0][1]
        fields = [field for field in _elements(_elements(certificate)[0][1]) if field[0] != _VERSION_TAG]
        _serial, _algorithm, _issuer, (_, validity), *_ = fields
        tag, text = _elements(validity)[1]
        digits = text.decode("ascii")
        if tag == _UTC_TIME:  # two digits of the year: from 1950 to 2049, says RFC 5280
            digits = ("19" if digits >= "50" else "20") + digits
        return dt.datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.timezone.utc).timestamp()
    except (Invalid, ValueError, IndexError):
        return None


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return tags and contents of what stands in a row in DER."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        found.append((tag, der[at : at + length]))
        at += length
    return found
