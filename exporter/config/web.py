"""The web configuration, in the format of Prometheus' exporter-toolkit: TLS, users and headers of the endpoint.

The file is of its own, named by ``web_config_file``, so that one file serves every exporter of a host.  Reading is
stricter than exporter-toolkit's: what this server cannot do is refused with its line, because a restriction that is
ignored leaves the endpoint open.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping

from exporter.config import fields, loader
from exporter.config.parsers import Invalid
from exporter.config.reader import Item, ListOf, Scalar, Table
from exporter.config.section import Record, SectionResult, key, section
from exporter.config.suggest import did_you_mean
from exporter.model import EMPTY

NO_CLIENT_CERT = "NoClientCert"
REQUEST = "RequestClientCert"  # a certificate that is not verified proves nothing: the same as none
VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"
MAX_USERS = 128

VERSIONS = ("TLS12", "TLS13")
TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
TLS12_CIPHERS: Mapping[str, str] = {  # the names of Go and IANA → OpenSSL's
    f"TLS_ECDHE_{go_key}_WITH_{go_cipher}": f"ECDHE-{go_key}-{cipher}"
    for go_key in ("ECDSA", "RSA")
    for go_cipher, cipher in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("CHACHA20_POLY1305", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
CURVES: Mapping[str, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}

_UNVERIFIED = ("RequireClientCert", "RequireAnyClientCert")
_OLD_VERSIONS = ("TLS10", "TLS11")
_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_MIN_COST, _MAX_COST = 4, 16
_MAX_HEADER = 4096  # characters
_VALUES: Mapping[str, tuple[str, ...]] = {
    "X-Content-Type-Options": ("", "nosniff"),
    "X-Frame-Options": ("", "deny", "sameorigin"),
}
_HEADERS = (
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
    "Content-Security-Policy",
)


def _client_auth() -> Scalar:
    words = (NO_CLIENT_CERT, REQUEST, VERIFY_IF_GIVEN, REQUIRE_AND_VERIFY)

    def convert(item: Item) -> str:
        value = fields.raw(item, f"one of {', '.join(words)}")
        if value in _UNVERIFIED:
            raise Invalid(
                f"{value} accepts certificates without verifying them, which is not supported; "
                f"write {REQUIRE_AND_VERIFY}"
            )
        if value not in words:
            raise Invalid(did_you_mean(value, words, "unknown value"))
        return NO_CLIENT_CERT if value == REQUEST else value

    return Scalar(convert, " | ".join(words))


def _version() -> Scalar:
    def convert(item: Item) -> str:
        value = fields.raw(item, f"one of {', '.join(VERSIONS)}")
        if value in _OLD_VERSIONS:
            raise Invalid("TLS 1.0 and 1.1 are not supported; write TLS12 or TLS13")
        if value not in VERSIONS:
            raise Invalid(did_you_mean(value, VERSIONS, "unknown value"))
        return value

    return Scalar(convert, " | ".join(VERSIONS))


def _cipher_suite() -> Scalar:
    known = (*TLS13_CIPHERS, *TLS12_CIPHERS)
    suggested = [name for name in known if "_CBC_" not in name]  # CBC is accepted and not recommended

    def convert(item: Item) -> str:
        value = fields.raw(item, "a cipher suite")
        if value not in known:
            raise Invalid(did_you_mean(value, suggested, "unknown value"))
        return value

    return Scalar(convert, " | ".join(known))


def _password_hash() -> Scalar:
    def convert(item: Item) -> str:
        value = fields.raw(item, "a bcrypt hash")
        match = _BCRYPT.fullmatch(value)
        if match is None:
            raise Invalid("expected a bcrypt hash ($2y$…), which `htpasswd -nB NAME` prints, and not the password")
        if not _MIN_COST <= int(match[1]) <= _MAX_COST:
            raise Invalid(f"the cost of the bcrypt hash must be between {_MIN_COST} and {_MAX_COST}")
        return value

    return Scalar(convert, "bcrypt hash")


def _user_name(name: str) -> None:
    if not name or len(name) > fields.MAX_TEXT or ":" in name or not name.isprintable():
        raise Invalid(f"expected a user name: at most {fields.MAX_TEXT} printable characters, without a colon")


def _header_name(name: str) -> None:
    if name not in _HEADERS:
        raise Invalid(did_you_mean(name, _HEADERS, "this header cannot be configured"))


def _header_value() -> Scalar:
    def convert(item: Item) -> str:
        value = fields.raw(item, "the value of a header")
        if len(value) > _MAX_HEADER or not (value.isascii() and value.isprintable()) or value != value.strip():
            raise Invalid(f"expected at most {_MAX_HEADER} printable ASCII characters without a space at either end")
        known = next((values for name, values in _VALUES.items() if item.path.endswith(name)), None)
        if known is not None and value not in known:
            raise Invalid(f"unknown value; expected one of: {', '.join(word or 'an empty text' for word in known)}")
        return value

    return Scalar(convert, "header value")


class TlsServerSettings(Record):
    """The certificate of the endpoint, and what is asked of its clients."""

    cert_file: str = key(fields.file(), aliases=("cert",))
    key_file: str = key(fields.file(secret=True), aliases=("key",))
    client_auth_type: str = key(_client_auth(), default=NO_CLIENT_CERT)
    client_ca_file: str | None = key(fields.file(), default=None, aliases=("client_ca",))
    client_allowed_sans: tuple[str, ...] = key(
        ListOf(item=fields.text("a name in a certificate"), what="names in certificates", max_items=256), default=()
    )
    min_version: str = key(_version(), default="TLS12")
    max_version: str = key(_version(), default="TLS13")
    cipher_suites: tuple[str, ...] = key(ListOf(item=_cipher_suite(), what="cipher suites", max_items=32), default=())
    curve_preferences: tuple[str, ...] = key(
        ListOf(item=fields.choice(*CURVES), what="curves", max_items=8), default=()
    )
    prefer_server_cipher_suites: bool = key(fields.boolean(), default=True)


def _finish_tls(found: SectionResult) -> None:
    """Refuse keys that contradict each other, or that Python's ssl module cannot apply together."""
    client_auth = found.known("client_auth_type", NO_CLIENT_CERT)
    if client_auth == NO_CLIENT_CERT:
        for name in ("client_ca_file", "client_allowed_sans"):
            if found.given(name):
                found.refuse(
                    name,
                    f"has no effect: no client certificate is asked for; set client_auth_type: {REQUIRE_AND_VERIFY}",
                )
    elif client_auth is not None and not found.given("client_ca_file"):
        found.refuse("client_auth_type", "needs client_ca_file: the authorities that client certificates come from")
    min_version, max_version = found.known("min_version", "TLS12"), found.known("max_version", "TLS13")
    if min_version == "TLS13" and max_version == "TLS12":
        found.refuse("min_version", "is above max_version")
    ciphers = found.known("cipher_suites", ())
    if ciphers and min_version == "TLS12" and not any(cipher in TLS12_CIPHERS for cipher in ciphers):
        found.refuse("cipher_suites", "has no cipher suite of TLS 1.2; add one, or set min_version: TLS13")
    if len(found.known("curve_preferences", ()) or ()) > 1:
        found.refuse("curve_preferences", "more than one curve is not supported; write one, or remove the key")


def _finish_web(found: SectionResult) -> None:
    if found.given("basic_auth_users") and importlib.util.find_spec("bcrypt") is None:
        found.refuse("basic_auth_users", "needs the bcrypt package: pip install 'shardwatch[auth]'")


class HttpServerSettings(Record):
    """Headers that every response gets; ``http2`` permits HTTP/2, which this server never offers."""

    http2: bool = key(fields.boolean(), default=True)
    headers: Mapping[str, str] = key(
        Table(name=_header_name, value=_header_value(), what="a mapping of headers to values", harmless="[A-Za-z-]+"),
        default=EMPTY,
    )


class WebSettings(Record):
    """The whole file; ``basic_auth_users`` maps names to bcrypt hashes."""

    tls_server_config: TlsServerSettings | None = key(section(TlsServerSettings, _finish_tls), default=None)
    http_server_config: HttpServerSettings = key(section(HttpServerSettings), default=HttpServerSettings())
    basic_auth_users: Mapping[str, str] = key(
        Table(
            name=_user_name,
            value=_password_hash(),
            what="a mapping of user names to bcrypt hashes",
            harmless="[a-z]{1,16}",
            max_items=MAX_USERS,
        ),
        default=EMPTY,
        shown=False,
    )


SECTION = section(WebSettings, _finish_web)


def parse(text: str, origin: str, *, base: str = "") -> WebSettings:
    """Read a web configuration; file names in it start from ``base``.  Raises SettingsError with every problem."""
    found: WebSettings = loader.parse(SECTION, text, origin, base=base)
    return found
